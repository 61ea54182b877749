/* answer_tokens.c - the text of a single token as an answer shows it. See answer.h. */
#include <stdlib.h>
#include <string.h>
#include "serve/api/answer.h"

/* The *n bytes of a token, borrowed from the tokenizer; NULL: it has none. */
static const char *token_bytes(const struct request *rq, int32_t id, size_t *n)
{
    const char *p = rq->sv->tok ? tokenizer_token_bytes(rq->sv->tok, id, n) : NULL;
    if (!p)
        *n = 0;
    return p;
}

/* Bytes of a token, n at p, that are missing where the text begins with it: the space of a word. */
static size_t missing_at_begin(const struct request *rq, int32_t id, const char *p, size_t n)
{
    struct err e;
    char *text;
    size_t n_text, missing = 0;

    if (tokenizer_decode(rq->sv->tok, &id, 1, 0, &text, &n_text, &e) < 0)
        return 0;
    if (n_text < n && !memcmp(p + n - n_text, text, n_text))
        missing = n - n_text;
    free(text);
    return missing;
}

const char *answer_token(const struct choice *c, int64_t i, int32_t id, size_t *n)
{
    const char *p = token_bytes(c->rq, id, n);
    if (!p || i != c->begins)
        return p;
    size_t missing = missing_at_begin(c->rq, id, p, *n);
    *n -= missing;
    return p + missing;
}

void answer_write_token(struct json_out *o, const struct choice *c, int64_t i, int32_t id)
{
    size_t n;
    const char *p = answer_token(c, i, id, &n);
    if (c->rq->tokens_as_ids || !p)
        json_out_fmt(o, "\"token_id:%d\"", id);
    else
        json_out_string_n(o, p, n);
}

int64_t answer_token_length(const struct choice *c, int64_t i)
{
    const struct request *rq = c->rq;
    size_t n;
    const char *p = answer_token(c, i, c->ids[i], &n);
    int generated = i >= c->prompt->n;

    if (i < c->begins ||
        (generated && rq->skip_special && rq->sv->tok && tokenizer_is_special(rq->sv->tok, c->ids[i])))
        return 0;
    return utf8_count(p, n);
}

int answer_same_key(const struct choice *c, int64_t i, int32_t a, int32_t b)
{
    size_t na, nb;
    const char *pa = answer_token(c, i, a, &na), *pb = answer_token(c, i, b, &nb);
    struct json_out ka = { 0 }, kb = { 0 };

    if (a == b)
        return 1;
    if (c->rq->tokens_as_ids || !pa || !pb)
        return 0;
    if (na == nb && !memcmp(pa, pb, na))
        return 1;
    if (utf8_count(pa, na) != utf8_count(pb, nb))
        return 0;
    json_out_string_n(&ka, pa, na); /* different bytes may be the same U+FFFD */
    json_out_string_n(&kb, pb, nb);
    int same = ka.n == kb.n && !memcmp(ka.p, kb.p, ka.n);
    json_out_free(&ka);
    json_out_free(&kb);
    return same;
}
