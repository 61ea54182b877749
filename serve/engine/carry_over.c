/* carry_over.c - see carry_over.h. */
#include "serve/engine/carry_over.h"

#include <stdlib.h>
#include <string.h>

#define SLICE_S 0.035 /* that a slice makes answers wait */
#define LEAST_ROWS 16 /* shorter sequences are computed again in the step behind the swap; and of a chunk */
#define REST_ROWS 4   /* that may be left for the step behind the swap, … */
#define REST_EACH 2   /* … or as many of each sequence */
#define MOST_ROUNDS 8 /* then the swap is due, whatever is left */
#define JOIN_ROUNDS 4 /* sequences that begin to decode are carried, too, in these rounds */

/* ---- life ---- */

int carry_open(struct carry *c, struct sched *s, const int32_t *(*ids_of)(const struct seq *q), int n_layers,
               int64_t most_rows, struct err *e)
{
    *c = (struct carry){ .s = s, .ids_of = ids_of, .n_layers = n_layers, .most_rows = most_rows };
    c->rows = LEAST_ROWS;
    c->plan.n_groups = s->n_groups;
    c->plan.item = calloc((size_t)s->lim.max_seqs, sizeof *c->plan.item);
    if (!c->plan.item)
        return err_set(e, ERR_MEMORY, "no memory for %d sequences: lower --max-batch", s->lim.max_seqs);
    s->carry = c;
    return 0;
}

void carry_close(struct carry *c)
{
    if (!c->s)
        return;
    carry_drop(c);
    c->s->carry = NULL;
    free(c->plan.item);
    memset(c, 0, sizeof *c);
}

const int32_t *carry_ids(const struct seq *q) { return ((const struct carried *)q->owner)->ids; }

/* ---- which sequences ---- */

static void free_carried(struct carry *c, struct carried *x)
{
    struct carried **at = &c->first;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    sched_release(c->s, &x->seq);
    free(x->ids);
    free(x);
}

static int in_chunk(const struct carry *c, const struct carried *x)
{
    for (int i = 0; i < c->plan.n_items; i++)
        if (c->plan.item[i].seq == &x->seq)
            return 1;
    return 0;
}

void carry_leave(struct seq *q)
{
    struct carried *x = q->carried;
    if (!x)
        return;
    q->carried = NULL;
    x->of = NULL;
    x->carry->n--;
    if (!in_chunk(x->carry, x))
        free_carried(x->carry, x);
}

int carry_drop(struct carry *c)
{
    int had = c->first != NULL;
    c->plan.n_items = 0;
    for (struct carried *x = c->first, *next; x; x = next) {
        next = x->next;
        if (x->of)
            carry_leave(x->of);
        else
            free_carried(c, x);
    }
    return had;
}

void carry_end(struct carry *c)
{
    carry_drop(c);
    c->is_on = c->is_due = 0;
}

int carry_is_ready(const struct seq *q)
{
    const struct carried *x = q->carried;
    return x && x->seq.n_kv && !in_chunk(x->carry, x);
}

void carry_take(struct seq *q)
{
    struct carried *x = q->carried;
    for (int g = 0; g < PAGE_GROUPS; g++) {
        const struct seq_pages empty = q->in[g];
        q->in[g] = x->seq.in[g];
        x->seq.in[g] = empty;
    }
    q->n_kv = q->n_written = x->seq.n_kv;
    q->n_drafts = 0;
    carry_leave(q);
}

/* Do the free pages hold q a second time, beside what is promised? */
static int fits_twice(const struct sched *s, const struct seq *q)
{
    int64_t promised[PAGE_GROUPS];
    sched_promised(s, promised);
    for (int g = 0; g < s->n_groups; g++)
        if (promised[g] + kv_pages_most(q->n_ids, s->lim.pool[g].window, s->lim.chunk) >
            pages_free(&s->pages[g]))
            return 0;
    return 1;
}

/* Carries q, too, where that is worth it and can be done. */
static void join(struct carry *c, struct seq *q)
{
    struct carried **last = &c->first, *x;
    if (q->carried || q->n_ids - q->n_kv != 1 || q->n_kv < LEAST_ROWS || !fits_twice(c->s, q))
        return;
    x = calloc(1, sizeof *x);
    if (!x)
        return;
    x->carry = c;
    x->of = q;
    x->seq.owner = x;
    x->seq.adapter = q->adapter;
    x->seq.n_ids = q->n_ids;
    q->carried = x;
    while (*last)
        last = &(*last)->next;
    *last = x;
    c->n++;
}

/* Copies the tokens up to the present ones. 0: no memory. */
static int copy_ids(struct carry *c, struct carried *x)
{
    const int64_t n = x->of->n_kv, cap = n + n / 2;
    int32_t *ids = n > x->cap_ids ? realloc(x->ids, sizeof *ids * (size_t)cap) : x->ids;
    if (!ids)
        return 0;
    x->cap_ids = n > x->cap_ids ? cap : x->cap_ids;
    x->ids = ids;
    memcpy(ids, c->ids_of(x->of), sizeof *ids * (size_t)n);
    x->upto = n;
    x->seq.n_ids = n;
    return 1;
}

/* ---- rounds ---- */

/* Begins one with all rows that the old weights have computed. Returns how many the new ones lack. */
static int64_t begin_round(struct carry *c)
{
    int64_t rows = 0;
    for (struct seq *q = c->s->running.first; q && c->rounds < JOIN_ROUNDS; q = q->next)
        join(c, q);
    for (struct carried *x = c->first, *next; x; x = next) {
        next = x->next;
        if (!x->of)
            continue;
        if (copy_ids(c, x))
            rows += x->upto - x->seq.n_kv;
        else
            carry_leave(x->of);
    }
    c->rounds++;
    return rows;
}

int carry_begin(struct carry *c)
{
    if (!c->s)
        return 0;
    carry_end(c);
    c->rounds = c->step_due = 0;
    c->round_rows = begin_round(c);
    if (4 * c->n > 3 * c->most_rows) /* steps would add rows as fast as chunks compute them */
        carry_end(c);
    c->is_on = c->n > 0;
    return c->is_on;
}

static int64_t rows_left(const struct carry *c)
{
    int64_t rows = 0;
    for (const struct carried *x = c->first; x; x = x->next)
        rows += x->of ? x->upto - x->seq.n_kv : 0;
    return rows;
}

int carry_is_due(struct carry *c)
{
    if (c->is_due)
        return 1;
    if (!c->is_on || (c->n && (c->step_due || c->plan.n_items || rows_left(c))))
        return 0;
    const int n = c->n;
    const int64_t was = c->round_rows, few = n * REST_EACH > REST_ROWS ? n * REST_EACH : REST_ROWS;
    const int64_t rows = n ? begin_round(c) : 0;
    if (rows <= few || c->rounds > MOST_ROUNDS || (c->n == n && rows > was - was / 4))
        c->is_due = 1;
    c->round_rows = rows;
    return c->is_due;
}

/* ---- chunks and slices ---- */

/* How long a slice may take: with many sequences as long as computing twice the tokens of a step, or rounds
 * would not get shorter. */
static double slice_s(const struct carry *c)
{
    const double tokens_s = 2 * c->n * c->row_s;
    return tokens_s > SLICE_S ? tokens_s : SLICE_S;
}

/* Puts the next rows of the round into the plan. */
static void plan_chunk(struct carry *c)
{
    int64_t left = c->rows < c->most_rows ? c->rows : c->most_rows;
    struct err ignored;
    for (struct carried *x = c->first, *next; x && left > 0; x = next) {
        int64_t pos = x->seq.n_kv, n = x->upto - pos < left ? x->upto - pos : left;
        next = x->next;
        if (!x->of || n <= 0)
            continue;
        if (sched_acquire(c->s, &x->seq, pos + n, &ignored) <= 0) {
            carry_leave(x->of); /* its pages are needed elsewhere */
            continue;
        }
        c->plan.item[c->plan.n_items++] = (struct sched_item){
            .seq = &x->seq, .pos = pos, .n_rows = n, .skip_want = n
        };
        left -= n;
    }
}

static int64_t chunk_rows(const struct carry *c)
{
    int64_t rows = 0;
    for (int i = 0; i < c->plan.n_items; i++)
        rows += c->plan.item[i].n_rows;
    return rows;
}

/* Layers that a slice runs, from what those of the last slice took. */
static int slice_layers(const struct carry *c)
{
    if (!c->unit_rows || c->unit_s <= 0)
        return 1;
    double ratio = (double)chunk_rows(c) / (double)c->unit_rows;
    double n = slice_s(c) / (c->unit_s * (ratio > 0.5 ? ratio : 0.5));
    return n < 1 ? 1 : n < c->n_layers ? (int)n : c->n_layers;
}

int carry_slice(struct carry *c)
{
    if (!c->is_on || c->is_due || c->step_due || !c->n)
        return 0;
    if (!c->plan.n_items) {
        c->first_unit = 0;
        plan_chunk(c);
    }
    if (!c->plan.n_items)
        return 0;
    int last = c->first_unit + slice_layers(c) - (c->first_unit > 0);
    c->last_unit = last < c->n_layers ? last : c->n_layers;
    return 1;
}

/* Its rows have their keys: they count. */
static void end_chunk(struct carry *c)
{
    const int n = c->plan.n_items;
    c->plan.n_items = 0;
    for (int i = 0; i < n; i++) {
        const struct sched_item *it = &c->plan.item[i];
        struct carried *x = it->seq->owner;
        it->seq->n_kv = it->pos + it->n_rows;
        c->n_rows += it->n_rows;
        if (x->of)
            sched_release_behind(c->s, it->seq);
        else
            free_carried(c, x);
    }
}

/* Learns from a slice how many rows a chunk may have. */
static void learn(struct carry *c, double seconds)
{
    const int64_t rows = chunk_rows(c);
    const int layers = c->last_unit - c->first_unit + (c->first_unit > 0);
    const double most_s = slice_s(c);
    if (layers < 1 || rows < 1)
        return;
    c->unit_s = seconds / layers;
    c->unit_rows = rows;
    const double row_s = c->unit_s * c->n_layers / (double)rows;
    c->row_s = c->row_s > 0 && c->row_s < row_s ? c->row_s : row_s;
    if (c->unit_s > most_s && rows > LEAST_ROWS)
        c->rows = (int64_t)((double)rows * most_s / c->unit_s);
    else if (c->unit_s < most_s / 2 && rows >= c->rows)
        c->rows = 2 * rows < c->most_rows ? 2 * rows : c->most_rows;
    c->rows = c->rows > LEAST_ROWS ? c->rows : LEAST_ROWS;
}

void carry_slice_done(struct carry *c, double seconds)
{
    learn(c, seconds);
    c->step_due = 1;
    c->first_unit = c->last_unit + 1;
    if (c->last_unit == c->n_layers)
        end_chunk(c);
}
