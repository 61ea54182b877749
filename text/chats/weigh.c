/* weigh.c - which tokens a span of a text is: the bytes of tokens are laid along the text. Where a
 * tokenizer changes texts (normal forms), the beginnings of the text are encoded instead. */
#include <stdlib.h>
#include <string.h>
#include "text/chats/chats_priv.h"
#include "text/tok.h"

struct walk {
    const struct tokenizer *t;
    const char *text;
    size_t n, at;
};

static size_t blanks(const struct walk *w, size_t at)
{
    size_t from = at;
    while (at < w->n && memchr(" \t\r\n", w->text[at], 4))
        at++;
    return at - from;
}

static int is_at(const struct walk *w, size_t at, const char *bytes, size_t n)
{
    return n <= w->n - at && !memcmp(w->text + at, bytes, n);
}

/* Lays one token at w->at: 1; 0: it does not fit. A tokenizer may put a blank before a text, and added tokens
 * may take the blanks around them. */
static int lay(struct walk *w, int32_t id, size_t *begin)
{
    size_t n, skip = blanks(w, w->at);
    const char *bytes = tokenizer_is_added(w->t, id) ? tokenizer_token_text(w->t, id, &n)
                                                     : tokenizer_token_bytes(w->t, id, &n);
    if (!bytes)
        return 0;
    *begin = w->at;
    if (!is_at(w, w->at, bytes, n) && n && *bytes == ' ' && is_at(w, w->at, bytes + 1, n - 1)) {
        n--;
        bytes++;
    } else if (!is_at(w, w->at, bytes, n) && is_at(w, w->at + skip, bytes, n)) {
        *begin = w->at += skip;
    }
    if (!is_at(w, w->at, bytes, n))
        return 0;
    w->at += n;
    return 1;
}

/* begin[i]: the first byte of token i; begin[n]: the end of the text. 0: the tokens are not the text. */
static int lay_all(const struct tokenizer *t, const struct marked_text *text, const struct chat_tokens *x,
                   size_t *begin)
{
    struct walk w = { t, text->text, text->n, 0 };
    for (size_t i = 0; i < x->n; i++)
        if (!lay(&w, x->ids[i], &begin[i]))
            return 0;
    begin[x->n] = text->n;
    return w.at + blanks(&w, w.at) == text->n;
}

/* A token takes the weight of the last span that it has a byte of; one without bytes that of the span around
 * its place. */
static void weigh_laid(struct chat_tokens *x, const struct chat_spans *spans, const size_t *begin)
{
    size_t k = 0;
    for (size_t i = 0; i < x->n; i++) {
        size_t from = begin[i], to = begin[i + 1] > from ? begin[i + 1] : from + 1;
        while (k < spans->n && spans->v[k].end <= from)
            k++;
        for (size_t s = k; s < spans->n && spans->v[s].begin < to; s++)
            x->weight[i] = spans->v[s].weight;
    }
}

/* How many first tokens of the text are those of its first n bytes. *whole: they are all of these. */
static int common_tokens(const struct tokenizer *t, const struct marked_text *text, size_t n,
                         const struct chat_tokens *x, size_t *common, int *whole, struct err *e)
{
    struct text_span *user = malloc((text->n_user + 1) * sizeof *user);
    struct marked_text part = { .text = text->text, .n = n, .user = user };
    int32_t *ids = NULL;
    size_t n_ids = 0, i = 0;
    if (!user)
        return text_memory(e);
    for (; part.n_user < text->n_user && text->user[part.n_user].begin < n; part.n_user++) {
        user[part.n_user] = text->user[part.n_user];
        if (user[part.n_user].end > n)
            user[part.n_user].end = n;
    }

    int rc = tokenizer_encode_marked(t, &part, 0, &ids, &n_ids, e);
    while (rc >= 0 && i < n_ids && i < x->n && ids[i] == x->ids[i])
        i++;
    *common = i;
    *whole = i == n_ids;
    free(ids);
    free(user);
    return rc;
}

static int weigh_by_parts(const struct tokenizer *t, const struct marked_text *text,
                          const struct chat_spans *spans, struct chat_tokens *x, struct err *e)
{
    for (size_t s = 0; s < spans->n; s++) {
        size_t from, to;
        int whole, rc = common_tokens(t, text, spans->v[s].begin, x, &from, &whole, e);
        if (rc >= 0)
            rc = common_tokens(t, text, spans->v[s].end, x, &to, &whole, e);
        if (rc < 0)
            return rc;
        to += !whole && to < x->n; /* a token reaches over the span's end */
        for (size_t i = from; i < to; i++)
            x->weight[i] = spans->v[s].weight;
    }
    return 0;
}

static int weigh(const struct tokenizer *t, const struct marked_text *text, const struct chat_spans *spans,
                 struct chat_tokens *x, struct err *e)
{
    size_t *begin = malloc((x->n + 1) * sizeof *begin);
    int rc = 0;
    if (!begin)
        return text_memory(e);
    if (t->raw_bytes)
        for (size_t i = 0; i <= x->n; i++)
            begin[i] = i;
    if (t->raw_bytes || lay_all(t, text, x, begin))
        weigh_laid(x, spans, begin);
    else
        rc = weigh_by_parts(t, text, spans, x, e);
    free(begin);
    return rc;
}

/* The ids that the post-processor adds around x, and the end of a text where the last id is another. */
static int add_around(const struct tokenizer *t, struct chat_tokens *x, struct err *e)
{
    int32_t eos = tokenizer_eos(t);
    size_t before = t->before.n, after = t->after.n, n = before + x->n + after + 1;
    int32_t *ids = realloc(x->ids, n * sizeof *ids);
    float *weight = ids ? realloc(x->weight, n * sizeof *weight) : NULL;

    x->ids = ids ? ids : x->ids;
    if (!weight)
        return text_memory(e);
    x->weight = weight;
    memmove(ids + before, ids, x->n * sizeof *ids);
    memmove(weight + before, weight, x->n * sizeof *weight);
    for (size_t i = 0; i < before; i++) {
        ids[i] = t->before.v[i];
        weight[i] = 0;
    }
    float last = x->n ? weight[before + x->n - 1] : 0;
    x->n += before;
    for (size_t i = 0; i < after; i++, x->n++) {
        ids[x->n] = t->after.v[i];
        weight[x->n] = last;
    }
    if (eos >= 0 && (!x->n || ids[x->n - 1] != eos)) {
        ids[x->n] = eos;
        weight[x->n++] = last;
    }
    return 0;
}

int chat_tokens_of(const struct tokenizer *t, const struct marked_text *text, const struct chat_spans *spans,
                   int whole, struct chat_tokens *out, struct err *e)
{
    struct chat_tokens x = { 0 };
    int rc;

    TRY(tokenizer_encode_marked(t, text, 0, &x.ids, &x.n, e));
    if (!(x.weight = calloc(x.n + 1, sizeof *x.weight))) {
        rc = text_memory(e);
        goto out;
    }
    TRY(weigh(t, text, spans, &x, e));
    if (whole)
        TRY(add_around(t, &x, e));
    *out = x;
    return 0;
out:
    chat_tokens_free(&x);
    return rc;
}
