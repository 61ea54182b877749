/* rows_share.c - what the row ops of every CPU class share: pieces for the threads, tokens by id, piles of
 * partial sums. */
#include "kernels/rows.h"

#include <string.h>

#include "base/alter.h"

struct spread {
    void (*fn)(void *, int64_t, int64_t);
    void *arg;
    int64_t n, per;
};

static void spread_task(void *arg, int64_t task, int thread)
{
    const struct spread *s = arg;
    int64_t begin = task * s->per, end = begin + s->per;
    (void)thread;
    s->fn(s->arg, begin, end < s->n ? end : s->n);
}

void rows_spread(struct dev *d, int64_t n, int64_t per, void (*fn)(void *, int64_t, int64_t), void *arg)
{
    struct spread s = { fn, arg, n, per };
    if (n <= 0)
        return;
    if (n <= per || !d->pool || pool_threads(d->pool) == 1)
        fn(arg, 0, n);
    else
        pool_run(d->pool, (n + per - 1) / per, spread_task, &s);
}

int64_t rows_per_task(int64_t cols)
{
    int64_t per = 16384 / (cols > 0 ? cols : 1);
    return per > 0 ? per : 1;
}

void rows_index_tokens(struct dev *d, struct token_index *x, int64_t first, int64_t rows, const int32_t *ids,
                       int64_t n)
{
    int32_t *p = dev_scratch(d, 0, sizeof(int32_t) * (size_t)(rows + 2 + n));
    x->begin = x->order = NULL;
    if (!p)
        return;
    x->begin = p;
    x->order = p + rows + 2;
    memset(p, 0, sizeof(int32_t) * (size_t)(rows + 2));
    /* counts go two places up; filling moves them one down */
    for (int64_t t = 0; t < n; t++)
        if (ids[t] >= first && ids[t] - first < rows)
            p[ids[t] - first + 2]++;
    for (int64_t r = 1; r <= rows; r++)
        p[r + 1] += p[r];
    for (int64_t t = 0; t < n; t++)
        if (ids[t] >= first && ids[t] - first < rows)
            x->order[p[ids[t] - first + 1]++] = (int32_t)t;
}

void pile_begin(struct pile *p, const struct tree_acc *acc, int64_t at, int64_t width)
{
    p->acc = acc;
    p->order = ORDER("vector_tree", &tree_order, &chain_order);
    p->at = at;
    p->width = width;
    p->n_pushed = 0;
    p->depth = p->kept = order_depth_before(p->order, acc, acc->next);
}

static const float *pile_entry(const struct pile *p, int i)
{
    if (i < p->kept)
        return p->acc->level[i] + p->at;
    return p->zero[i] ? NULL : p->own[i];
}

/* Pops the top entry and returns it + newer (NULL: zeros). A sum that must be computed is stored in the
 * popped entry. */
static const float *pile_merge(struct pile *p, const float *newer)
{
    int top = --p->depth;
    const float *older = pile_entry(p, top);
    if (!older || !newer)
        return older ? older : newer;
    float *sum = p->own[top];
    for (int64_t j = 0; j < p->width; j++)
        sum[j] = older[j] + newer[j];
    return sum;
}

void pile_push(struct pile *p, const float *leaf)
{
    int64_t i = p->acc->next + p->n_pushed++;
    int merges = order_merges(p->order, p->acc, i);
    const float *v = leaf;
    for (; merges > 0; merges--)
        v = pile_merge(p, v);
    int at = p->depth++;
    /* only zeros were added: the entry stays in its level */
    if (at < p->kept && v == p->acc->level[at] + p->at) {
        p->kept = at + 1;
        return;
    }
    p->kept = at < p->kept ? at : p->kept;
    p->zero[at] = !v;
    if (v && v != p->own[at])
        memcpy(p->own[at], v, sizeof(float) * (size_t)p->width);
}

void pile_end(struct pile *p)
{
    for (int i = p->kept; i < p->depth; i++) {
        float *to = p->acc->level[i] + p->at;
        if (p->zero[i])
            memset(to, 0, sizeof(float) * (size_t)p->width);
        else
            memcpy(to, p->own[i], sizeof(float) * (size_t)p->width);
    }
}
