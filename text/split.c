/* split.c - the pre-tokenisers of tokenizer.json: pieces of text in, smaller pieces out. Pieces that are
 * added tokens are not changed.
 *
 * A pre-tokeniser is one or more passes over all pieces. A cutting pass keeps the text and makes more
 * pieces; a writing pass makes new text. To add one: a load function, a split function, a row of the
 * table. Not supported: BertPreTokenizer, UnicodeScripts, FixedLength. */
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>

#define MATCHES_A_CHECK 16 /* matches between two looks at the limit: one can take 0.1 s */
#define GPT2_REGEX "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* --- the behavior of Split: which piece a match belongs to --- */

enum behavior { ISOLATED, REMOVED, CONTIGUOUS, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, N_BEHAVIORS };
static const char *const behavior_names[N_BEHAVIORS] = { "Isolated", "Removed", "Contiguous",
                                                         "MergedWithPrevious", "MergedWithNext" };

/* Receives the matches of one piece and the text between them, in order, and adds the pieces they become. */
struct cutter {
    struct pieces *out;
    const struct piece *p;
    enum behavior behavior;
    int was_match, open; /* open: [start, end) is not added yet */
    size_t start, end;
};

static void cut_flush(struct cutter *c)
{
    if (c->open)
        pieces_add(c->out, c->p->off + c->start, c->end - c->start, -1, c->p->first && c->start == 0);
    c->open = 0;
}

static void cut(struct cutter *c, size_t start, size_t end, int match)
{
    int joins = 0;
    switch (c->behavior) {
    case CONTIGUOUS: joins = match == c->was_match; break;
    case MERGED_WITH_PREVIOUS: joins = match && !c->was_match; break;
    case MERGED_WITH_NEXT: joins = !match && c->was_match; break;
    default: break;
    }

    c->was_match = match;
    if (c->open && joins) {
        c->end = end;
        return;
    }

    cut_flush(c);
    c->open = !(match && c->behavior == REMOVED);
    c->start = start;
    c->end = end;
}

/* --- passes --- */

typedef int pass_fn(const struct step *s, struct pieces *in, struct pieces *out, struct err *e);

static int pass(pass_fn *fn, int writes, const struct step *s, struct pieces *ps, struct err *e)
{
    struct pieces out = { .text.max = ps->text.max, .limit = ps->limit };
    int rc = 0;

    TRY(work_check(ps->limit, e));
    TRY(fn(s, ps, &out, e));
    if (!writes) {
        out.text = ps->text;
        ps->text = (struct buf){ 0 };
    }

    if (out.failed || out.text.failed) {
        rc = text_failed(&out.text, "pre-tokenizer", ps->text.n, e);
        goto out;
    }

    pieces_free(ps);
    *ps = out;
    out = (struct pieces){ 0 };
out:
    pieces_free(&out);
    return rc < 0 ? rc : 0;
}

static int cut_pattern(const struct step *s, struct pieces *in, struct pieces *out, struct err *e)
{
    struct finder m;
    unsigned n_matches = 0;
    int rc = 0;

    TRY(finder_open(&m, &s->pat, e));
    for (size_t i = 0; i < in->n; i++) {
        const struct piece *p = &in->v[i];
        size_t from = 0, start, end;
        struct cutter c = { out, p, (enum behavior)s->behavior, 0, 0, 0, 0 };
        if (p->id >= 0) {
            pieces_add(out, p->off, p->n, p->id, p->first);
            continue;
        }
        finder_text(&m, in->text.p + p->off, p->n);
        while ((rc = finder_next(&m, &start, &end, e)) > 0) {
            if (++n_matches % MATCHES_A_CHECK == 0)
                TRY(work_check(in->limit, e));
            if (start > from)
                cut(&c, from, start, s->invert);
            cut(&c, start, end, !s->invert);
            from = end;
        }
        if (rc < 0)
            goto out;
        if (from < p->n)
            cut(&c, from, p->n, s->invert);
        cut_flush(&c);
    }
out:
    finder_close(&m);
    return rc;
}

static int cut_class(const struct step *s, struct pieces *in, struct pieces *out, struct err *e)
{
    (void)e;
    for (size_t i = 0; i < in->n; i++) {
        const struct piece *p = &in->v[i];
        const char *t = in->text.p + p->off;
        struct cutter c = { out, p, (enum behavior)s->behavior, 0, 0, 0, 0 };
        size_t from = 0, at = 0;
        if (p->id >= 0) {
            pieces_add(out, p->off, p->n, p->id, p->first);
            continue;
        }
        while (at < p->n) {
            uint32_t cp;
            size_t len = (size_t)utf8_next(t + at, p->n - at, &cp);
            int hit = s->kind->is ? s->kind->is(cp) : cp == s->cp;
            if (hit) {
                if (at > from)
                    cut(&c, from, at, 0);
                cut(&c, at, at + len, 1);
                from = at + len;
            }
            at += len;
        }
        if (from < p->n)
            cut(&c, from, p->n, 0);
        cut_flush(&c);
    }
    return 0;
}

/* \w+|[^\w\s]+ : runs of one class; runs of spaces are dropped */
static int cut_words(const struct step *s, struct pieces *in, struct pieces *out, struct err *e)
{
    (void)s, (void)e;
    for (size_t i = 0; i < in->n; i++) {
        const struct piece *p = &in->v[i];
        const char *t = in->text.p + p->off;
        size_t from = 0, at = 0;
        int run = 0; /* 0 space, 1 word, 2 neither */
        if (p->id >= 0) {
            pieces_add(out, p->off, p->n, p->id, p->first);
            continue;
        }
        while (at < p->n) {
            uint32_t cp;
            size_t len = (size_t)utf8_next(t + at, p->n - at, &cp);
            int now = uni_is_word(cp) ? 1 : uni_is_space(cp) ? 0 : 2;
            if (now != run) {
                if (run)
                    pieces_add(out, p->off + from, at - from, -1, p->first && from == 0);
                from = at;
                run = now;
            }
            at += len;
        }
        if (run)
            pieces_add(out, p->off + from, at - from, -1, p->first && from == 0);
    }
    return 0;
}

static int write_prefix(const struct step *s, struct pieces *in, struct pieces *out, struct err *e)
{
    (void)s, (void)e;
    for (size_t i = 0; i < in->n; i++) {
        const struct piece *p = &in->v[i];
        size_t off = out->text.n;
        if (p->id < 0 && in->text.p[p->off] != ' ')
            buf_add(&out->text, " ", 1);
        buf_add(&out->text, in->text.p + p->off, p->n);
        pieces_add(out, off, out->text.n - off, p->id, p->first);
    }
    return 0;
}

static int write_byte_chars(const struct step *s, struct pieces *in, struct pieces *out, struct err *e)
{
    (void)s, (void)e;
    for (size_t i = 0; i < in->n; i++) {
        const struct piece *p = &in->v[i];
        size_t off = out->text.n;
        for (size_t k = 0; k < p->n && p->id < 0; k++)
            buf_add_cp(&out->text, byte_char((unsigned char)in->text.p[p->off + k]));
        if (p->id >= 0)
            buf_add(&out->text, in->text.p + p->off, p->n);
        pieces_add(out, off, out->text.n - off, p->id, p->first);
    }
    return 0;
}

enum { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };

static int write_metaspace(const struct step *s, struct pieces *in, struct pieces *out, struct err *e)
{
    (void)e;
    for (size_t i = 0; i < in->n; i++) {
        const struct piece *p = &in->v[i];
        const char *t = in->text.p + p->off;
        size_t off = out->text.n;
        int begins = t[0] == ' ' || (p->n >= s->n_content && !memcmp(t, s->content, s->n_content));
        if (p->id >= 0) {
            buf_add(&out->text, t, p->n);
        } else {
            if (!begins && (s->prefix == PREPEND_ALWAYS || (s->prefix == PREPEND_FIRST && p->first)))
                buf_add(&out->text, s->content, s->n_content);
            for (const char *at = t, *end = t + p->n; at < end;) {
                const char *space = memchr(at, ' ', (size_t)(end - at));
                buf_add(&out->text, at, (size_t)((space ? space : end) - at));
                if (space)
                    buf_add(&out->text, s->content, s->n_content);
                at = space ? space + 1 : end;
            }
        }
        pieces_add(out, off, out->text.n - off, p->id, p->first);
    }
    return 0;
}

/* --- the kinds --- */

static int load_nothing(struct step *s, const json_t *node, const char *what, struct err *e)
{
    (void)s, (void)node, (void)what, (void)e;
    return 0;
}

static int load_behavior(struct step *s, const json_t *node, int absent, const char *what, struct err *e)
{
    const char *text;
    size_t n;
    int rc = text_member(node, "behavior", &text, &n, what, e);

    if (rc < 0)
        return rc;
    s->behavior = absent;
    if (rc == 0 && absent < N_BEHAVIORS)
        return 0;
    for (int i = 0; rc && i < N_BEHAVIORS; i++)
        if (!strcmp(text, behavior_names[i])) {
            s->behavior = i;
            return 0;
        }
    return err_set(e, ERR_CONFIG,
                   "%s: %s has the behavior \"%s\": known are Isolated, Removed, Contiguous, "
                   "MergedWithPrevious, MergedWithNext",
                   what, s->kind->type, rc ? text : "");
}

static int load_byte_level(struct step *s, const json_t *node, const char *what, struct err *e)
{
    int rc = 0;
    TRY(flag_member(node, "add_prefix_space", 1, &s->prefix, what, e));
    TRY(flag_member(node, "use_regex", 1, &s->split, what, e));
    s->behavior = ISOLATED;
    if (s->split)
        TRY(pattern_regex(&s->pat, GPT2_REGEX, sizeof GPT2_REGEX - 1, what, e));
out:
    return rc;
}

static int split_byte_level(const struct step *s, struct pieces *ps, struct err *e)
{
    int rc = 0;
    if (s->prefix)
        TRY(pass(write_prefix, 1, s, ps, e));
    if (s->split)
        TRY(pass(cut_pattern, 0, s, ps, e));
    TRY(pass(write_byte_chars, 1, s, ps, e));
out:
    return rc;
}

static int load_split(struct step *s, const json_t *node, const char *what, struct err *e)
{
    int rc = 0;
    TRY(load_behavior(s, node, N_BEHAVIORS, what, e));
    TRY(flag_member(node, "invert", 0, &s->invert, what, e));
    TRY(pattern_load(&s->pat, json_object_get(node, "pattern"), what, e));
out:
    return rc;
}

static int split_pattern(const struct step *s, struct pieces *ps, struct err *e)
{
    return pass(cut_pattern, 0, s, ps, e);
}
static int split_class(const struct step *s, struct pieces *ps, struct err *e)
{
    return pass(cut_class, 0, s, ps, e);
}
static int split_words(const struct step *s, struct pieces *ps, struct err *e)
{
    return pass(cut_words, 0, s, ps, e);
}

static int load_digits(struct step *s, const json_t *node, const char *what, struct err *e)
{
    int individual, rc = flag_member(node, "individual_digits", 0, &individual, what, e);
    s->behavior = individual ? ISOLATED : CONTIGUOUS;
    return rc;
}

static int load_punctuation(struct step *s, const json_t *node, const char *what, struct err *e)
{
    return load_behavior(s, node, ISOLATED, what, e);
}

static int load_removed(struct step *s, const json_t *node, const char *what, struct err *e)
{
    (void)node, (void)what, (void)e;
    s->behavior = REMOVED;
    return 0;
}

static int load_delimiter(struct step *s, const json_t *node, const char *what, struct err *e)
{
    const char *text;
    size_t n;
    int rc = text_member(node, "delimiter", &text, &n, what, e);
    if (rc < 0)
        return rc;
    if (rc == 0 || n == 0 || utf8_next(text, n, &s->cp) != (int)n)
        return err_set(e, ERR_CONFIG, "%s: CharDelimiterSplit needs a delimiter of one character", what);
    s->behavior = REMOVED;
    return 0;
}

static int load_metaspace(struct step *s, const json_t *node, const char *what, struct err *e)
{
    static const char *const schemes[] = { "never", "first", "always" };
    const char *text = "\xE2\x96\x81";
    size_t n = 3;
    int prefix, rc = 0;

    TRY(text_member(node, "replacement", &text, &n, what, e));
    TRY(text_copy(&s->content, &s->n_content, text, n, e));
    TRY(flag_member(node, "split", 1, &s->split, what, e));

    /* older files have add_prefix_space instead of prepend_scheme */
    TRY(flag_member(node, "add_prefix_space", 1, &prefix, what, e));
    s->prefix = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
    TRY(text_member(node, "prepend_scheme", &text, &n, what, e));
    if (rc > 0) {
        s->prefix = 0;
        while (s->prefix < 3 && strcmp(text, schemes[s->prefix]))
            s->prefix++;
        if (s->prefix == 3)
            return err_set(e, ERR_CONFIG,
                           "%s: Metaspace has the prepend_scheme \"%s\": known are never, first, always",
                           what, text);
    }

    if (s->n_content == 0)
        return err_set(e, ERR_CONFIG, "%s: Metaspace has an empty replacement", what);
    s->behavior = MERGED_WITH_NEXT;
    rc = text_copy(&s->pat.literal, &s->pat.n, s->content, s->n_content, e);
out:
    return rc < 0 ? rc : 0;
}

static int split_metaspace(const struct step *s, struct pieces *ps, struct err *e)
{
    int rc = pass(write_metaspace, 1, s, ps, e);
    return rc < 0 || !s->split ? rc : pass(cut_pattern, 0, s, ps, e);
}

const struct step_kind split_kinds[] = {
    { .type = "ByteLevel", .load = load_byte_level, .split = split_byte_level },
    { .type = "Split", .load = load_split, .split = split_pattern },
    { .type = "Metaspace", .load = load_metaspace, .split = split_metaspace },
    { .type = "Digits", .load = load_digits, .split = split_class, .is = uni_is_numeric },
    { .type = "Punctuation", .load = load_punctuation, .split = split_class, .is = uni_is_punct },
    { .type = "WhitespaceSplit", .load = load_removed, .split = split_class, .is = uni_is_space },
    { .type = "CharDelimiterSplit", .load = load_delimiter, .split = split_class },
    { .type = "Whitespace", .load = load_nothing, .split = split_words },
    { 0 },
};

int split_run(const struct steps *s, struct pieces *ps, struct err *e)
{
    ps->text.max = ps->text.max ? ps->text.max : text_growth(ps->text.n);
    for (int i = 0; i < s->n; i++) {
        int rc = s->v[i].kind->split(&s->v[i], ps, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}
