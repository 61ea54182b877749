/* normalize.c - the normalisers of tokenizer.json: text in, text out, one row of the table for each type.
 *
 * To add one: a load function (reads its JSON), a run function, a row. BertNormalizer is not supported: no
 * tokenizer of the supported models uses it. */
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>

static int load_nothing(struct step *s, const json_t *node, const char *what, struct err *e)
{
    (void)s, (void)node, (void)what, (void)e;
    return 0;
}

static int load_form(struct step *s, const json_t *node, const char *what, struct err *e)
{
    (void)node, (void)what, (void)e;
    s->form = (strchr(s->kind->type, 'K') ? UNI_COMPAT : 0) |
              (s->kind->type[strlen(s->kind->type) - 1] == 'C' ? UNI_COMPOSE : 0);
    return 0;
}

static int run_form(const struct step *s, const char *text, size_t n, struct buf *out, struct err *e)
{
    (void)e;
    uni_normalize(text, n, s->form, out);
    return 0;
}

static int run_lower(const struct step *s, const char *text, size_t n, struct buf *out, struct err *e)
{
    (void)s, (void)e;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += (size_t)utf8_next(text + i, n - i, &cp);
        /* the one letter whose lower case is two characters */
        if (cp == 0x130)
            buf_add(out, "i\xCC\x87", 3);
        else
            buf_add_cp(out, uni_lower(cp));
    }
    return 0;
}

static int run_strip_accents(const struct step *s, const char *text, size_t n, struct buf *out, struct err *e)
{
    (void)s, (void)e;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = (size_t)utf8_next(text + i, n - i, &cp);
        if (!uni_is_mark(cp))
            buf_add(out, text + i, len);
        i += len;
    }
    return 0;
}

static int load_prepend(struct step *s, const json_t *node, const char *what, struct err *e)
{
    const char *text;
    size_t n;
    int rc = text_member(node, "prepend", &text, &n, what, e);
    if (rc <= 0)
        return rc ? rc : err_set(e, ERR_CONFIG, "%s: Prepend has no prepend", what);
    return text_copy(&s->content, &s->n_content, text, n, e);
}

static int run_prepend(const struct step *s, const char *text, size_t n, struct buf *out, struct err *e)
{
    (void)e;
    if (n)
        buf_add(out, s->content, s->n_content);
    buf_add(out, text, n);
    return 0;
}

static int load_replace(struct step *s, const json_t *node, const char *what, struct err *e)
{
    const char *text;
    size_t n;
    int rc = text_member(node, "content", &text, &n, what, e);
    if (rc <= 0)
        return rc ? rc : err_set(e, ERR_CONFIG, "%s: Replace has no content", what);
    TRY(text_copy(&s->content, &s->n_content, text, n, e));
    TRY(pattern_load(&s->pat, json_object_get(node, "pattern"), what, e));
out:
    return rc < 0 ? rc : 0;
}

static int run_replace(const struct step *s, const char *text, size_t n, struct buf *out, struct err *e)
{
    struct finder m;
    size_t from = 0, start, end;
    int rc = 0, found = 0;
    TRY(finder_open(&m, &s->pat, e));
    finder_text(&m, text, n);
    while (!out->failed && (found = finder_next(&m, &start, &end, e)) > 0) {
        buf_add(out, text + from, start - from);
        buf_add(out, s->content, s->n_content);
        from = end;
    }
    rc = found < 0 ? found : 0;
    buf_add(out, text + from, n - from);
out:
    finder_close(&m);
    return rc;
}

static int load_strip(struct step *s, const json_t *node, const char *what, struct err *e)
{
    int rc = 0;
    TRY(flag_member(node, "strip_left", 1, &s->left, what, e));
    TRY(flag_member(node, "strip_right", 1, &s->right, what, e));
out:
    return rc;
}

static int run_strip(const struct step *s, const char *text, size_t n, struct buf *out, struct err *e)
{
    (void)e;
    uint32_t cp;
    size_t from = 0;
    while (s->left && from < n) {
        int len = utf8_next(text + from, n - from, &cp);
        if (!uni_is_space(cp))
            break;
        from += (size_t)len;
    }

    while (s->right && n > from) {
        int len = utf8_prev(text, n, &cp);
        if (!uni_is_space(cp))
            break;
        n -= (size_t)len;
    }

    buf_add(out, text + from, n - from);
    return 0;
}

static int run_bytes(const struct step *s, const char *text, size_t n, struct buf *out, struct err *e)
{
    (void)s, (void)e;
    for (size_t i = 0; i < n; i++)
        buf_add_cp(out, byte_char((unsigned char)text[i]));
    return 0;
}

/* SentencePiece's nmt rules: control characters go, characters that stand for a space become one. */
static int run_nmt(const struct step *s, const char *text, size_t n, struct buf *out, struct err *e)
{
    static const struct {
        uint32_t first, last;
        int is_space; /* else it is dropped */
    } rules[] = {
        { 0x1, 0x8, 0 },       { 0x9, 0xA, 1 },       { 0xB, 0xB, 0 },       { 0xC, 0xD, 1 },
        { 0xE, 0x1F, 0 },      { 0x7F, 0x7F, 0 },     { 0x8F, 0x8F, 0 },     { 0x9F, 0x9F, 0 },
        { 0x1680, 0x1680, 1 }, { 0x200B, 0x200F, 1 }, { 0x2028, 0x2029, 1 }, { 0x2581, 0x2581, 1 },
        { 0xFEFF, 0xFEFF, 1 }, { 0xFFFD, 0xFFFD, 1 },
    };
    (void)s, (void)e;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = (size_t)utf8_next(text + i, n - i, &cp), k = 0;
        while (k < sizeof rules / sizeof *rules && (cp < rules[k].first || cp > rules[k].last))
            k++;
        if (k == sizeof rules / sizeof *rules)
            buf_add(out, text + i, len);
        else if (rules[k].is_space)
            buf_add(out, " ", 1);
        i += len;
    }
    return 0;
}

const struct step_kind normalizer_kinds[] = {
    { .type = "NFC", .load = load_form, .run = run_form },
    { .type = "NFD", .load = load_form, .run = run_form },
    { .type = "NFKC", .load = load_form, .run = run_form },
    { .type = "NFKD", .load = load_form, .run = run_form },
    { .type = "Lowercase", .load = load_nothing, .run = run_lower },
    { .type = "StripAccents", .load = load_nothing, .run = run_strip_accents },
    { .type = "Prepend", .load = load_prepend, .run = run_prepend },
    { .type = "Replace", .load = load_replace, .run = run_replace },
    { .type = "Strip", .load = load_strip, .run = run_strip },
    { .type = "ByteLevel", .load = load_nothing, .run = run_bytes },
    { .type = "Nmt", .load = load_nothing, .run = run_nmt },
    { .type = "Precompiled", .load = precompiled_load, .run = precompiled_run },
    { 0 },
};

/* Runs all steps in order; the last one writes directly to out. */
int normalize(const struct steps *s, const char *text, size_t n, struct buf *out, struct err *e)
{
    size_t most = text_growth(n), n_text = n, max = out->max;
    struct buf a = { .max = most }, b = { .max = most };
    int rc = 0;

    if (!max || max - out->n > most)
        out->max = out->n + most;
    if (s->n == 0)
        buf_add(out, text, n);
    for (int i = 0; i < s->n; i++) {
        struct buf *to = i + 1 == s->n ? out : &b;
        TRY(s->v[i].kind->run(&s->v[i], text, n, to, e));
        if (to->failed) {
            rc = text_failed(to, "normalizer", n_text, e);
            goto out;
        }
        struct buf spare = a;
        a = b;
        b = spare;
        b.n = 0;
        text = a.p ? a.p : "";
        n = a.n;
    }
out:
    out->max = max;
    buf_free(&a);
    buf_free(&b);
    return rc;
}
