/* gguf_merges.c - see gguf_vocab.h. Source: the rule of transformers (convert_slow_tokenizer): merges by
 * falling score, then by falling lengths of left and right, counted in characters, then in the order of the
 * vocabulary. */
#include <stdlib.h>
#include <string.h>
#include "format/vocab/gguf_vocab.h"

#define LONGEST 1024 /* bytes of a token; the time is that of the square */

struct merge {
    float score;
    int32_t token, left, right;
    uint16_t n_left, n_right; /* characters */
};
struct merges {
    struct merge *item;
    size_t n, capacity;
};

static int compare(const void *pa, const void *pb)
{
    const struct merge *a = pa, *b = pb;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    if (a->n_left != b->n_left)
        return a->n_left > b->n_left ? -1 : 1;
    if (a->n_right != b->n_right)
        return a->n_right > b->n_right ? -1 : 1;
    if (a->token != b->token)
        return a->token < b->token ? -1 : 1;
    return a->left != b->left ? (a->left > b->left) - (a->left < b->left)
                              : (a->right > b->right) - (a->right < b->right);
}

static int add(struct merges *m, const struct merge *x)
{
    if (m->n == m->capacity) {
        size_t capacity = m->capacity ? m->capacity * 2 : 4096;
        struct merge *grown = realloc(m->item, sizeof *grown * capacity);
        if (!grown)
            return -1;
        m->item = grown;
        m->capacity = capacity;
    }
    m->item[m->n++] = *x;
    return 0;
}

static int merges_as_text(enum gguf_token type) { return type == GGUF_NORMAL || type == GGUF_USER_DEFINED; }

/* Characters of UTF-8 text. */
static uint16_t characters(const char *p, int64_t n)
{
    uint16_t found = 0;
    for (int64_t i = 0; i < n; i++)
        found += ((unsigned char)p[i] & 0xc0) != 0x80;
    return found;
}

/* The two halves at each character of token i that are tokens themselves. */
static int split(struct merges *m, const struct gguf_tokens *t, int32_t i, int by_number, struct err *e)
{
    const struct gguf_token_row *r = &t->row[i];
    if (r->text.n > LONGEST)
        return err_set(e, ERR_FORMAT,
                       "%s: token %d has %lld bytes, tokens of at most %d are divided: is it "
                       "damaged",
                       t->f->path, i, (long long)r->text.n, LONGEST);
    for (int64_t at = 1; at < r->text.n; at++) {
        if (((unsigned char)r->text.p[at] & 0xc0) == 0x80)
            continue;
        int32_t left = gguf_token_find(t, r->text.p, at);
        int32_t right = left >= 0 ? gguf_token_find(t, r->text.p + at, r->text.n - at) : -1;
        if (right < 0 || !merges_as_text(t->row[left].type) || !merges_as_text(t->row[right].type))
            continue;
        struct merge x = { .score = by_number ? -(float)i : r->score,
                           .token = i,
                           .left = left,
                           .right = right,
                           .n_left = characters(r->text.p, at),
                           .n_right = characters(r->text.p + at, r->text.n - at) };
        if (add(m, &x) < 0)
            return err_set(e, ERR_MEMORY, "%s: no memory for the merges of its vocabulary", t->f->path);
    }
    return 0;
}

/* A file made without the model's scores has one score for all: then the number of a token is its rank. */
static int has_scores(const struct gguf_tokens *t)
{
    const struct gguf_token_row *first = NULL;
    for (int32_t i = 0; i < t->n; i++) {
        if (t->row[i].type != GGUF_NORMAL || !t->row[i].is_kept)
            continue;
        if (first && t->row[i].score != first->score)
            return 1;
        first = first ? first : &t->row[i];
    }
    return 0;
}

int gguf_print_merges(struct buf *o, const struct gguf_tokens *t, struct err *e)
{
    struct merges m = { 0 };
    int by_number = !has_scores(t), rc = 0;
    for (int32_t i = 0; i < t->n && rc >= 0; i++)
        if (t->row[i].is_kept && merges_as_text(t->row[i].type))
            rc = split(&m, t, i, by_number, e);
    if (m.n)
        qsort(m.item, m.n, sizeof *m.item, compare);

    gguf_print(o, "[");
    for (size_t i = 0; i < m.n && rc >= 0; i++) {
        const struct gguf_text *a = &t->row[m.item[i].left].text, *b = &t->row[m.item[i].right].text;
        gguf_print(o, i ? ",\n[" : "\n[");
        gguf_print_json(o, a->p, a->n);
        gguf_print(o, ",");
        gguf_print_json(o, b->p, b->n);
        gguf_print(o, "]");
    }
    gguf_print(o, "]");
    free(m.item);
    return rc;
}
