/* marked.c - encodes text with untrusted parts: no special token has a byte in such a part.
 *
 * added.c does not search special tokens there. BPE merges could still produce one: the special ids are
 * counted, and if there are too many, words that produced one are encoded character by character. */
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>

static int inside_character(const struct marked_text *m, size_t at)
{
    return at < m->n && ((unsigned char)m->text[at] & 0xC0) == 0x80;
}

static int check_text(const struct marked_text *m, struct err *e)
{
    const char *text = m->text;
    size_t n = m->n, done = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = utf8_next(text + i, n - i, &cp);
        if (len <= 0)
            return err_set(e, ERR_CONFIG, "byte %zu of a text with marked parts is not UTF-8", i);
        i += (size_t)len;
    }

    for (size_t i = 0; i < m->n_user; i++) {
        if (m->user[i].begin < done || m->user[i].end < m->user[i].begin || m->user[i].end > n)
            return err_set(e, ERR_CONFIG,
                           "marked part %zu of a text is [%zu, %zu): parts ascend and lie in its %zu bytes",
                           i, m->user[i].begin, m->user[i].end, n);
        if (inside_character(m, m->user[i].begin) || inside_character(m, m->user[i].end))
            return err_set(e, ERR_CONFIG,
                           "marked part %zu of a text is [%zu, %zu): a border lies in a character", i,
                           m->user[i].begin, m->user[i].end);
        done = m->user[i].end;
    }
    return 0;
}

static int is_special(const struct tokenizer *t, int32_t id) { return tokenizer_is_special(t, id); }

/* Special tokens among pieces that are added tokens, and among ids from `from` on. */
static size_t special_pieces(const struct tokenizer *t, const struct pieces *ps)
{
    size_t n = 0;
    for (size_t i = 0; i < ps->n; i++)
        n += ps->v[i].id >= 0 && is_special(t, ps->v[i].id);
    return n;
}

static size_t special_ids(const struct tokenizer *t, const struct ids *l, size_t from)
{
    size_t n = 0;
    for (size_t i = from; i < l->n; i++)
        n += is_special(t, l->v[i]);
    return n;
}

/* Encodes a word whose merges produce a special token character by character. */
static int spell(const struct tokenizer *t, const struct pieces *ps, const struct piece *word,
                 struct ids *out, struct err *e)
{
    struct pieces chars = { 0 };
    size_t from = out->n;
    int rc = 0;

    buf_add(&chars.text, ps->text.p + word->off, word->n);
    for (size_t i = 0; i < word->n && !chars.text.failed;) {
        uint32_t cp;
        int len = utf8_next(chars.text.p + i, word->n - i, &cp);
        len = len > 0 ? len : 1;
        pieces_add(&chars, i, (size_t)len, -1, 0);
        i += (size_t)len;
    }

    if (chars.failed || chars.text.failed)
        rc = text_memory(e);
    else
        rc = model_pieces(t, &chars, out, e);
    if (rc == 0 && special_ids(t, out, from))
        rc = err_set(
            e, ERR_CONFIG,
            "a message holds a character that the tokenizer writes only as a special token: take it out");
    pieces_free(&chars);
    return rc;
}

/* The slow way: encodes word by word, those of untrusted pieces without special tokens. */
static int encode_words(const struct tokenizer *t, const struct pieces *whole, const struct buf *touched,
                        struct ids *out, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; i < whole->n && rc == 0; i++) {
        struct pieces one = { .limit = whole->limit };
        buf_add(&one.text, whole->text.p + whole->v[i].off, whole->v[i].n);
        pieces_add(&one, 0, whole->v[i].n, whole->v[i].id, whole->v[i].first);
        rc = one.failed || one.text.failed ? text_memory(e) : split_run(&t->splitter, &one, e);
        for (size_t k = 0; k < one.n && rc == 0; k++) {
            struct pieces word = { .text = one.text, .v = &one.v[k], .n = 1, .limit = one.limit };
            size_t from = out->n;
            rc = model_pieces(t, &word, out, e);
            if (rc < 0 || one.v[k].id >= 0 || !touched->p[i] || !special_ids(t, out, from))
                continue;
            out->n = from;
            rc = spell(t, &one, &one.v[k], out, e);
        }
        pieces_free(&one);
    }
    return rc;
}

static int encode_text(const struct tokenizer *t, const struct marked_text *m, const char *marks,
                       struct ids *out, struct err *e)
{
    struct pieces raw = { .limit = m->limit }, ps = { 0 }, whole = { .limit = m->limit };
    struct buf touched = { 0 };
    int rc = 0;
    size_t from = out->n;

    buf_add(&raw.text, m->text, m->n);
    TRY(raw.text.failed ? text_memory(e) : split_added(t, &raw, marks, &ps, &touched, e));
    pieces_free(&raw);
    buf_add(&whole.text, ps.text.p ? ps.text.p : "", ps.text.n);
    for (size_t i = 0; i < ps.n; i++)
        pieces_add(&whole, ps.v[i].off, ps.v[i].n, ps.v[i].id, ps.v[i].first);
    if (whole.failed || whole.text.failed) {
        rc = text_memory(e);
        goto out;
    }

    TRY(split_run(&t->splitter, &ps, e));
    TRY(model_pieces(t, &ps, out, e));
    if (special_ids(t, out, from) != special_pieces(t, &whole)) {
        out->n = from;
        TRY(encode_words(t, &whole, &touched, out, e));
    }
out:
    pieces_free(&raw);
    pieces_free(&ps);
    pieces_free(&whole);
    buf_free(&touched);
    return rc;
}

static int encode_bytes(const char *text, size_t n, int32_t **ids, size_t *n_ids, struct err *e)
{
    int32_t *v = malloc((n ? n : 1) * sizeof *v);
    if (!v)
        return text_memory(e);
    for (size_t i = 0; i < n; i++)
        v[i] = (unsigned char)text[i];
    *ids = v;
    *n_ids = n;
    return 0;
}

/* Appends the ids of a text without untrusted parts, whose bytes need not be UTF-8. */
static int encode_trusted(const struct tokenizer *t, const struct marked_text *m, struct ids *out,
                          struct err *e)
{
    struct pieces raw = { .limit = m->limit }, ps = { 0 };
    int rc = 0;

    utf8_repair(m->text, m->n, 1, &raw.text);
    TRY(split_added(t, &raw, NULL, &ps, NULL, e));
    pieces_free(&raw);
    TRY(split_run(&t->splitter, &ps, e));
    TRY(model_pieces(t, &ps, out, e));
out:
    pieces_free(&raw);
    pieces_free(&ps);
    return rc;
}

/* Appends the ids of a text with untrusted parts. */
static int encode_untrusted(const struct tokenizer *t, const struct marked_text *m, struct ids *out,
                            struct err *e)
{
    int rc = check_text(m, e);
    if (rc < 0)
        return rc;
    char *marks = calloc(m->n + 1, 1);
    if (!marks)
        return text_memory(e);
    for (size_t i = 0; i < m->n_user; i++)
        memset(marks + m->user[i].begin, 1, m->user[i].end - m->user[i].begin);
    rc = encode_text(t, m, marks, out, e);
    free(marks);
    return rc;
}

int tokenizer_encode_marked(const struct tokenizer *t, const struct marked_text *m, int add_special,
                            int32_t **ids, size_t *n_ids, struct err *e)
{
    struct ids out = { .max = m->max_ids };
    int rc = 0;

    if (m->n > TEXT_LIMIT)
        return err_set(e, ERR_CONFIG,
                       "a text of %zu bytes: at most %zu are tokenized at once: cut it into documents", m->n,
                       TEXT_LIMIT);
    if (t->raw_bytes && m->max_ids && m->n > m->max_ids)
        return err_set(e, ERR_CONFIG, "the text has more than %zu tokens", m->max_ids);
    if (t->raw_bytes)
        return encode_bytes(m->text, m->n, ids, n_ids, e);
    for (size_t i = 0; add_special && i < t->before.n; i++)
        ids_add(&out, t->before.v[i]);
    TRY((m->n_user ? encode_untrusted : encode_trusted)(t, m, &out, e));
    for (size_t i = 0; add_special && i < t->after.n; i++)
        ids_add(&out, t->after.v[i]);
    rc = ids_detach(&out, ids, n_ids, e);
out:
    free(out.v);
    return rc;
}
