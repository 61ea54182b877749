/* detok.c - ids to text: the decoders of tokenizer.json as a chain of stages, fed token by token.
 *
 *   id -> token -> [ Replace ] -> [ ByteFallback ] -> [ Fuse ] -> [ Strip ] -> text
 *
 * A stage receives parts of tokens and the ends of tokens, and passes on text that no later token can change.
 * Decoding a whole list and decoding as ids arrive are therefore the same code. Parts passed between
 * stages end at character borders. A stage holds back: a run of byte tokens until it ends (one wrong byte
 * turns the whole run into U+FFFD), spaces that Strip may still remove, an incomplete character. */
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>

enum decoder {
    DEC_BYTE_LEVEL,
    DEC_BYTE_FALLBACK,
    DEC_REPLACE,
    DEC_FUSE,
    DEC_STRIP,
    DEC_METASPACE,
    DEC_SPACES
};

struct stage {
    struct buf token;      /* the current token so far */
    struct buf run;        /* bytes held back: a run of byte tokens, an incomplete character */
    int64_t n_tokens;      /* tokens ended so far */
    int64_t n_chars;       /* Strip: characters examined at the left of this token */
    int left_done, n_held; /* Strip: the left is done; characters held back at the right */
};

struct tokenizer_stream {
    const struct tokenizer *t;
    int skip_special, n_stages;
    struct stage stage[TOK_STEPS + 1];
    struct buf out, unit;
    size_t n_fed;   /* bytes of the tokens so far */
    struct err err; /* of a Replace that failed */
};

static void feed(struct tokenizer_stream *s, int i, const char *p, size_t n, int end);

static const struct step spaces_step = { .kind = &(const struct step_kind){ .type = "",
                                                                            .code = DEC_SPACES } };
static const struct step *step_of(const struct tokenizer_stream *s, int i)
{
    return s->t->joins_with_space ? &spaces_step : &s->t->decoder.v[i];
}

/* --- one function for each stage: p, n: the new text; end: the token ends with it --- */

/* Joins the bytes of all tokens; an incomplete character is repaired at the end of the text. */
static void byte_level(struct tokenizer_stream *s, int i, const char *p, size_t n, int end)
{
    struct stage *g = &s->stage[i];
    size_t from = g->run.n;
    int plain = 0;

    buf_add(&g->token, p, n);
    if (!end)
        return;
    for (size_t k = 0; k < g->token.n && !plain;) {
        uint32_t cp;
        k += (size_t)utf8_next(g->token.p + k, g->token.n - k, &cp);
        int byte = char_byte(cp);
        plain = byte < 0;
        buf_add(&g->run, &(char){ (char)byte }, 1);
    }

    /* a character that stands for no byte: the token is its own text */
    if (plain) {
        g->run.n = from;
        buf_add(&g->run, g->token.p, g->token.n);
    }

    g->token.n = s->unit.n = 0;
    size_t used = utf8_repair(g->run.p ? g->run.p : "", g->run.n, 0, &s->unit);
    if (used)
        memmove(g->run.p, g->run.p + used, g->run.n - used);
    g->run.n -= used;
    feed(s, i + 1, s->unit.p, s->unit.n, 0);
}

static int is_valid(const char *p, size_t n)
{
    uint32_t cp;
    for (size_t k = 0; k < n;) {
        int len = utf8_next(p + k, n - k, &cp);
        if (len <= 0)
            return 0;
        k += (size_t)len;
    }
    return 1;
}

static void flush_run(struct tokenizer_stream *s, int i)
{
    struct stage *g = &s->stage[i];
    size_t n = g->run.n;
    g->run.n = 0;
    if (n && is_valid(g->run.p, n))
        feed(s, i + 1, g->run.p, n, 1);
    else
        for (size_t k = 0; k < n; k++)
            feed(s, i + 1, "\xEF\xBF\xBD", 3, 1);
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

static int byte_token(const char *p, size_t n)
{
    if (n != 6 || memcmp(p, "<0x", 3) || p[5] != '>' || hex(p[3]) < 0 || hex(p[4]) < 0)
        return -1;
    return hex(p[3]) * 16 + hex(p[4]);
}

static void byte_fallback(struct tokenizer_stream *s, int i, const char *p, size_t n, int end)
{
    struct stage *g = &s->stage[i];
    buf_add(&g->token, p, n);
    if (!end)
        return;
    int byte = byte_token(g->token.p, g->token.n);
    if (byte >= 0) {
        buf_add(&g->run, &(char){ (char)byte }, 1);
    } else {
        flush_run(s, i);
        feed(s, i + 1, g->token.p, g->token.n, 1);
    }
    g->token.n = 0;
}

static void replace(struct tokenizer_stream *s, int i, const char *p, size_t n, int end)
{
    struct stage *g = &s->stage[i];
    const struct step *step = step_of(s, i);
    struct buf done = { .max = text_growth(s->n_fed) };
    buf_add(&g->token, p, n);
    if (!end)
        return;
    if (!s->err.code &&
        step->kind->run(step, g->token.p ? g->token.p : "", g->token.n, &done, &s->err) == 0 && done.failed)
        text_failed(&done, "decoder", s->n_fed, &s->err);
    feed(s, i + 1, done.p, done.n, 1);
    buf_free(&done);
    g->token.n = 0;
}

static void fuse(struct tokenizer_stream *s, int i, const char *p, size_t n, int end)
{
    (void)end;
    feed(s, i + 1, p, n, 0);
}

static void strip(struct tokenizer_stream *s, int i, const char *p, size_t n, int end)
{
    struct stage *g = &s->stage[i];
    const struct step *step = step_of(s, i);
    size_t from = 0;

    while (!g->left_done && from < n) {
        g->left_done = g->n_chars == step->left || n - from < step->n_content ||
                       memcmp(p + from, step->content, step->n_content);
        from += g->left_done ? 0 : step->n_content;
        g->n_chars++;
    }

    p += from, n -= from;
    size_t keep = n;
    int held = 0;
    while (held < step->right && keep >= step->n_content &&
           !memcmp(p + keep - step->n_content, step->content, step->n_content)) {
        keep -= step->n_content;
        held++;
    }

    /* characters held back before stay so while only such characters follow */
    int free_right = step->right - held, stay = keep ? 0 : g->n_held < free_right ? g->n_held : free_right;
    for (int k = stay; k < g->n_held; k++)
        feed(s, i + 1, step->content, step->n_content, 0);
    if (keep)
        feed(s, i + 1, p, keep, 0);
    g->n_held = stay + held;
    if (!end)
        return;
    feed(s, i + 1, "", 0, 1);
    g->n_held = g->left_done = 0;
    g->n_chars = 0;
}

static void metaspace(struct tokenizer_stream *s, int i, const char *p, size_t n, int end)
{
    struct stage *g = &s->stage[i];
    const struct step *step = step_of(s, i);
    int drops = g->n_tokens == 0 && step->prefix;
    size_t from = 0, k = 0;

    while (k + step->n_content <= n) {
        if (memcmp(p + k, step->content, step->n_content)) {
            k++;
            continue;
        }
        feed(s, i + 1, p + from, k - from, 0);
        if (!drops)
            feed(s, i + 1, " ", 1, 0);
        from = k += step->n_content;
    }

    feed(s, i + 1, p + from, n - from, end);
    g->n_tokens += end;
}

static void spaces(struct tokenizer_stream *s, int i, const char *p, size_t n, int end)
{
    if (s->stage[i].n_tokens++)
        feed(s, i + 1, " ", 1, 0);
    feed(s, i + 1, p, n, end);
}

typedef void stage_fn(struct tokenizer_stream *s, int i, const char *p, size_t n, int end);
static stage_fn *const stages[] = {
    [DEC_BYTE_LEVEL] = byte_level, [DEC_BYTE_FALLBACK] = byte_fallback,
    [DEC_REPLACE] = replace,       [DEC_FUSE] = fuse,
    [DEC_STRIP] = strip,           [DEC_METASPACE] = metaspace,
    [DEC_SPACES] = spaces,
};

/* Passes text to stage i, or to the output. Recursion is at most TOK_STEPS deep. */
static void feed(struct tokenizer_stream *s, int i, const char *p, size_t n, int end)
{
    if (i == s->n_stages)
        buf_add(&s->out, p, n);
    else if (n || end)
        stages[step_of(s, i)->kind->code](s, i, p ? p : "", n, end);
}

/* The end of the text: every stage passes on what it holds back. */
static void finish(struct tokenizer_stream *s)
{
    for (int i = 0; i < s->n_stages; i++) {
        struct stage *g = &s->stage[i];
        switch (step_of(s, i)->kind->code) {
        case DEC_BYTE_LEVEL:
            s->unit.n = 0;
            utf8_repair(g->run.p ? g->run.p : "", g->run.n, 1, &s->unit);
            g->run.n = 0;
            feed(s, i + 1, s->unit.p, s->unit.n, 1);
            break;
        case DEC_BYTE_FALLBACK: flush_run(s, i); break;
        case DEC_FUSE: feed(s, i + 1, "", 0, 1); break;
        default: break;
        }
    }
}

/* --- the kinds --- */

static int load_nothing(struct step *s, const json_t *node, const char *what, struct err *e)
{
    (void)s, (void)node, (void)what, (void)e;
    return 0;
}

/* Replace is the normaliser of that name; Metaspace has the same JSON as the pre-tokeniser. */
static const struct step_kind *kind_named(const struct step_kind *k, const char *type)
{
    while (strcmp(k->type, type))
        k++;
    return k;
}

static int load_replace(struct step *s, const json_t *node, const char *what, struct err *e)
{
    return kind_named(normalizer_kinds, "Replace")->load(s, node, what, e);
}

static int run_replace(const struct step *s, const char *text, size_t n, struct buf *out, struct err *e)
{
    return kind_named(normalizer_kinds, "Replace")->run(s, text, n, out, e);
}

static int load_metaspace(struct step *s, const json_t *node, const char *what, struct err *e)
{
    return kind_named(split_kinds, "Metaspace")->load(s, node, what, e);
}

static int load_count(const json_t *node, const char *key, int *out, const char *what, struct err *e)
{
    const json_t *j = json_object_get(node, key);
    if (!json_is_integer(j) || json_integer_value(j) < 0 || json_integer_value(j) > 1000)
        return err_set(e, ERR_CONFIG, "%s: Strip has no %s of 0 … 1000", what, key);
    *out = (int)json_integer_value(j);
    return 0;
}

static int load_strip(struct step *s, const json_t *node, const char *what, struct err *e)
{
    const char *text;
    size_t n;
    uint32_t cp;
    int rc = 0;
    TRY(text_member(node, "content", &text, &n, what, e));
    if (rc == 0 || n == 0 || utf8_next(text, n, &cp) != (int)n)
        return err_set(e, ERR_CONFIG, "%s: Strip needs a content of one character", what);
    TRY(text_copy(&s->content, &s->n_content, text, n, e));
    TRY(load_count(node, "start", &s->left, what, e));
    TRY(load_count(node, "stop", &s->right, what, e));
out:
    return rc < 0 ? rc : 0;
}

const struct step_kind decoder_kinds[] = {
    { .type = "ByteLevel", .load = load_nothing, .code = DEC_BYTE_LEVEL },
    { .type = "ByteFallback", .load = load_nothing, .code = DEC_BYTE_FALLBACK },
    { .type = "Replace", .load = load_replace, .run = run_replace, .code = DEC_REPLACE },
    { .type = "Fuse", .load = load_nothing, .code = DEC_FUSE },
    { .type = "Strip", .load = load_strip, .code = DEC_STRIP },
    { .type = "Metaspace", .load = load_metaspace, .code = DEC_METASPACE },
    { 0 },
};

/* --- the bytes of a single token --- */

static int single_step(const struct step *s, const struct buf *in, struct buf *out, struct err *e)
{
    int byte = 0;
    uint32_t cp;

    switch (s->kind->code) {
    case DEC_BYTE_LEVEL:
        for (size_t k = 0; k < in->n && byte >= 0; buf_add(out, &(char){ (char)byte }, 1)) {
            k += (size_t)utf8_next(in->p + k, in->n - k, &cp);
            byte = char_byte(cp);
        }
        if (byte >= 0)
            return 0;
        out->n = 0;
        break;
    case DEC_BYTE_FALLBACK:
        if ((byte = byte_token(in->p, in->n)) < 0)
            break;
        buf_add(out, &(char){ (char)byte }, 1);
        return 0;
    case DEC_REPLACE: return s->kind->run(s, in->p ? in->p : "", in->n, out, e);
    case DEC_METASPACE:
        for (size_t k = 0; k < in->n;) {
            int hit = in->n - k >= s->n_content && !memcmp(in->p + k, s->content, s->n_content);
            buf_add(out, hit ? " " : in->p + k, 1);
            k += hit ? s->n_content : 1;
        }
        return 0;
    default: break;
    }

    buf_add(out, in->p, in->n);
    return 0;
}

int token_bytes_fill(struct tokenizer *t, struct err *e)
{
    struct vocab *v = &t->vocab;
    struct buf a = { 0 }, b = { 0 };
    int rc = 0;

    v->raw.max = text_growth(v->text.n);
    for (int32_t id = 0; id < v->n; id++) {
        a.n = 0;
        a.max = b.max = text_growth(v->v[id].decoded_n);
        buf_add(&a, v->text.p + v->v[id].decoded_off, v->v[id].decoded_n);
        /* a part of a character is no text that later stages could read */
        for (int i = 0; i < t->decoder.n && is_valid(a.p ? a.p : "", a.n); i++) {
            b.n = 0;
            TRY(single_step(&t->decoder.v[i], &a, &b, e));
            if (b.failed) {
                rc = text_failed(&b, "decoder", v->v[id].decoded_n, e);
                goto out;
            }
            struct buf spare = a;
            a = b;
            b = spare;
        }
        v->v[id].raw_off = v->raw.n;
        v->v[id].raw_n = a.n;
        buf_add(&v->raw, a.p, a.n);
        buf_add(&v->raw, "", 1);
    }

    if (a.failed || b.failed || v->raw.failed)
        rc = text_failed(&v->raw, "decoder", v->text.n, e);
out:
    buf_free(&a);
    buf_free(&b);
    return rc;
}

/* --- the public functions --- */

int tokenizer_stream_open(struct tokenizer_stream **out, const struct tokenizer *t, int skip_special,
                          struct err *e)
{
    struct tokenizer_stream *s = calloc(1, sizeof *s);
    if (!s)
        return text_memory(e);
    s->t = t;
    s->skip_special = skip_special;
    s->n_stages = t->joins_with_space ? 1 : t->decoder.n;
    *out = s;
    return 0;
}

void tokenizer_stream_close(struct tokenizer_stream *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_stages; i++) {
        buf_free(&s->stage[i].token);
        buf_free(&s->stage[i].run);
    }
    buf_free(&s->out);
    buf_free(&s->unit);
    free(s);
}

static void feed_id(struct tokenizer_stream *s, int32_t id)
{
    const struct vocab *v = &s->t->vocab;
    if (id < 0 || id >= v->n || !v->v[id].flags)
        return;
    /* the Hugging Face library looks special tokens up by text: one that normalisation changed is not
     * skipped */
    if (s->skip_special && (v->v[id].flags & (TOKEN_SPECIAL | TOKEN_REWRITTEN)) == TOKEN_SPECIAL)
        return;
    s->n_fed += v->v[id].decoded_n;
    feed(s, 0, v->text.p + v->v[id].decoded_off, v->v[id].decoded_n, 1);
}

static int stream_state(const struct tokenizer_stream *s, struct err *e)
{
    int failed = s->out.failed | s->unit.failed;
    for (int i = 0; i < s->n_stages; i++)
        failed |= s->stage[i].token.failed | s->stage[i].run.failed;
    if (failed)
        return text_memory(e);
    if (s->err.code)
        *e = s->err;
    return -s->err.code;
}

static int result(struct tokenizer_stream *s, const char **out, size_t *n, struct err *e)
{
    *out = s->out.p ? s->out.p : "";
    *n = s->out.n;
    return stream_state(s, e);
}

int tokenizer_stream_feed(struct tokenizer_stream *s, int32_t id, const char **out, size_t *n, struct err *e)
{
    s->out.n = 0;
    feed_id(s, id);
    return result(s, out, n, e);
}

/* Passes on a run of byte tokens but for an incomplete character at its end. */
static void settle_run(struct tokenizer_stream *s, int i)
{
    struct stage *g = &s->stage[i];
    uint32_t cp;
    size_t k = 0;
    for (int len; k < g->run.n && (len = utf8_next(g->run.p + k, g->run.n - k, &cp)) != 0;) {
        feed(s, i + 1, len > 0 ? g->run.p + k : "\xEF\xBF\xBD", len > 0 ? (size_t)len : 3, 1);
        k += (size_t)(len > 0 ? len : -len);
    }
    if (!k)
        return;
    memmove(g->run.p, g->run.p + k, g->run.n - k);
    g->run.n -= k;
}

int tokenizer_stream_begin(struct tokenizer_stream *s, const int32_t *ids, size_t n, int skip_special,
                           const char **out, size_t *n_text, struct err *e)
{
    int own = s->skip_special;

    s->out.n = 0;
    s->skip_special = skip_special;
    for (size_t i = 0; i < n; i++)
        feed_id(s, ids[i]);
    s->skip_special = own;

    for (int i = 0; i < s->n_stages; i++)
        if (step_of(s, i)->kind->code == DEC_BYTE_FALLBACK)
            settle_run(s, i);
    return result(s, out, n_text, e);
}

int tokenizer_stream_finish(struct tokenizer_stream *s, const char **out, size_t *n, struct err *e)
{
    s->out.n = 0;
    finish(s);
    return result(s, out, n, e);
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, int skip_special, char **out,
                     size_t *n_bytes, struct err *e)
{
    struct tokenizer_stream *s = NULL;
    int rc = tokenizer_stream_open(&s, t, skip_special, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++)
        feed_id(s, ids[i]);
    finish(s);
    buf_add(&s->out, "", 1); /* the NUL behind */
    TRY(stream_state(s, e));
    *out = s->out.p;
    *n_bytes = s->out.n - 1;
    s->out = (struct buf){ 0 };
out:
    tokenizer_stream_close(s);
    return rc;
}
