/* plan.c - see plan.h. */
#include "serve/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { W_OP, W_WORDS, W_SEQ, W_ROWS, W_WANT, W_PAGES, W_HEAD = 8, W_EACH = 3 };

int plan_open(struct plan *p, int max_seqs, int64_t max_rows, int64_t max_wants, int64_t max_pages, struct err *e)
{
    memset(p, 0, sizeof *p);
    p->max_seqs = max_seqs;
    p->cap = W_HEAD + (int64_t)W_EACH * max_seqs + max_pages + max_rows + max_wants;
    p->cap = p->cap < PLAN_INLINE ? PLAN_INLINE : p->cap;
    p->word = calloc((size_t)p->cap, sizeof *p->word);
    p->page = malloc(sizeof *p->page * (size_t)max_pages);
    p->seq = calloc((size_t)max_seqs, sizeof *p->seq);
    if (!p->word || !p->page || !p->seq)
        return err_set(e, ERR_MEMORY, "no memory for step plans: lower --max-batch or --kv-memory");
    return 0;
}

void plan_close(struct plan *p)
{
    free(p->word);
    free(p->page);
    free(p->seq);
    memset(p, 0, sizeof *p);
}

/* Where the parts of a message lie. */
static int32_t *pages_of(struct plan *p) { return p->word + W_HEAD + (int64_t)W_EACH * p->word[W_SEQ]; }

static void point(struct plan *p)
{
    p->op = (enum plan_op)p->word[W_OP];
    p->n_seq = p->word[W_SEQ];
    p->n_rows = p->word[W_ROWS];
    p->n_want = p->word[W_WANT];
    p->ids = pages_of(p) + p->word[W_PAGES];
    p->want = p->ids + p->n_rows;
}

void step_plan_make(struct plan *p, enum plan_op op, const struct sched *s, const int32_t *(*ids_of)(const struct seq *q))
{
    int32_t *w = p->word, *page;
    int n = op == PLAN_STEP ? s->n_items : 0;
    memset(w, 0, sizeof *w * W_HEAD);
    w[W_OP] = (int32_t)op;
    w[W_SEQ] = n;
    page = pages_of(p);
    for (int i = 0; i < n; i++) {
        const struct sched_item *it = &s->item[i];
        int32_t *head = w + W_HEAD + W_EACH * i;
        int64_t pages = kv_pages_for(it->pos + it->n_rows);
        head[0] = (int32_t)it->pos;
        head[1] = (int32_t)it->n_rows;
        head[2] = (int32_t)pages;
        memcpy(page + w[W_PAGES], it->seq->page, sizeof *page * (size_t)pages);
        w[W_PAGES] += (int32_t)pages;
        w[W_ROWS] += (int32_t)it->n_rows;
        w[W_WANT] += (int32_t)(it->n_rows - it->skip_want);
    }
    int32_t *id = page + w[W_PAGES], *want = id + w[W_ROWS], row = 0;
    for (int i = 0; i < n; i++) {
        const struct sched_item *it = &s->item[i];
        memcpy(id + row, ids_of(it->seq) + it->pos, sizeof *id * (size_t)it->n_rows);
        for (int64_t r = it->skip_want; r < it->n_rows; r++)
            *want++ = row + (int32_t)r;
        row += (int32_t)it->n_rows;
    }
    w[W_WORDS] = (int32_t)(want - w);
    point(p);
}

void step_plan_order(struct plan *p, enum plan_op op, const char *text)
{
    memset(p->word, 0, sizeof *p->word * PLAN_INLINE);
    p->word[W_OP] = (int32_t)op;
    p->word[W_WORDS] = PLAN_INLINE;
    point(p);
    snprintf((char *)pages_of(p), (PLAN_INLINE - W_HEAD) * sizeof *p->word, "%s", text);
}

int plan_share(struct plan *p, struct comm *c, struct err *e)
{
    int rc = comm_broadcast(c, p->word, PLAN_INLINE * sizeof *p->word, 0, e);
    int64_t words = p->word[W_WORDS];
    if (rc >= 0 && (words < W_HEAD || words > p->cap))
        rc = err_set(e, ERR_INTERNAL, "a step plan of %lld words, room for %lld", (long long)words, (long long)p->cap);
    if (rc >= 0 && words > PLAN_INLINE)
        rc = comm_broadcast(c, p->word + PLAN_INLINE, (size_t)(words - PLAN_INLINE) * sizeof *p->word, 0, e);
    if (rc < 0)
        return err_add(e, "sharing the next step");
    point(p);
    return 0;
}

void plan_place(struct plan *p, const struct kv *kv)
{
    const int32_t *page = pages_of(p);
    char **at = p->page;
    int64_t row = 0;
    for (int i = 0; i < p->n_seq; i++) {
        const int32_t *head = p->word + W_HEAD + W_EACH * i;
        int64_t pages = head[2];
        kv_clear_new(kv, page, head[0], head[1]);
        for (int64_t j = 0; j < pages; j++)
            at[j] = kv_page(kv, page[j]);
        p->seq[i] = (struct attn_seq){ .row = row, .n_rows = head[1], .pos = head[0], .page = at };
        row += head[1];
        page += pages;
        at += pages;
    }
}
