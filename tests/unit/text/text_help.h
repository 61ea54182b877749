/* text_help.h - for the tests of room text: tokenizers written as JSON with ' for ", results as text. */
#ifndef SHARDLINE_TESTS_UNIT_TEXT_TEXT_HELP_H
#define SHARDLINE_TESTS_UNIT_TEXT_TEXT_HELP_H

#include <stdarg.h>
#include "tests/test.h"
#include "text/tok.h"

/* ' to ": JSON that can be read inside of C */
static inline char *quoted(const char *s)
{
    char *q = strdup(s);
    for (char *p = q; *p; p++)
        if (*p == '\'')
            *p = '"';
    return q;
}

static inline struct tokenizer *open_json(const char *json, struct err *e)
{
    char *q = quoted(json);
    struct tokenizer *t = NULL;
    int rc = tokenizer_open(&t, q, strlen(q), NULL, 0, "t.json", e);
    free(q);
    if (rc < 0 && t)
        test_fail(__FILE__, __LINE__, "a failed open gave a tokenizer");
    return t;
}

static inline struct tokenizer *must_open(const char *json)
{
    struct err e = { 0 };
    struct tokenizer *t = open_json(json, &e);
    if (!t)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    return t;
}

/* What opening says; "" when it opens. In a static buffer. */
static inline const char *refusal(const char *json)
{
    static struct err e;
    e = (struct err){ 0 };
    tokenizer_close(open_json(json, &e));
    return e.text;
}

/* "3 1 2", in a static buffer (for short texts) */
static inline const char *ids_text(const int32_t *ids, size_t n)
{
    static char out[4096];
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < n && at + 16 < sizeof out; i++)
        at += (size_t)sprintf(out + at, i ? " %d" : "%d", ids[i]);
    return out;
}

static inline const char *encoded_n(const struct tokenizer *t, const char *s, size_t n_s, int add_special)
{
    struct err e = { 0 };
    int32_t *ids = NULL;
    size_t n = 0;
    if (!t || tokenizer_encode(t, s, n_s, add_special, &ids, &n, &e) < 0) {
        test_fail(__FILE__, __LINE__, "encode: %s", e.text);
        return "";
    }
    const char *out = ids_text(ids, n);
    free(ids);
    return out;
}

static inline const char *encoded(const struct tokenizer *t, const char *s)
{
    return encoded_n(t, s, strlen(s), 0);
}

static inline const char *decoded(const struct tokenizer *t, int skip, size_t n, const int32_t *ids)
{
    static char out[4096];
    struct err e = { 0 };
    char *s = NULL;
    size_t n_s = 0;
    if (!t || tokenizer_decode(t, ids, n, skip, &s, &n_s, &e) < 0) {
        test_fail(__FILE__, __LINE__, "decode: %s", e.text);
        return "";
    }
    snprintf(out, sizeof out, "%s", s);
    free(s);
    return out;
}
#define IDS(...) \
    sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t), (int32_t[]) { __VA_ARGS__ }

#endif
