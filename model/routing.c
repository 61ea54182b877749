/* routing.c - see routing.h. */
#include "model/routing.h"

#include <string.h>
#include "kernels/tree.h"

void routing_carve(struct routing *r, struct arena *a)
{
    int64_t slots = r->rows * r->k;
    r->leaf = 0;
    r->n_routed = r->n_leaves;
    r->expert = ARENA_NEW(a, int32_t, slots);
    r->place = ARENA_NEW(a, int32_t, slots);
    r->row = ARENA_NEW(a, int32_t, slots);
    r->slot = ARENA_NEW(a, int32_t, slots);
    r->begin = ARENA_NEW(a, int64_t, r->n_local + 1);
    r->leaf_end = ARENA_NEW(a, int64_t, (int64_t)r->n_local * r->n_leaves);
    r->block_end = ARENA_NEW(a, int64_t, (int64_t)r->n_local * r->n_leaves * r->grain);
    r->bias = ARENA_NEW(a, const void *, r->grain ? r->n_local : 0);
    r->acc = ARENA_NEW(a, struct tree_acc, r->n_local);
    r->mat = ARENA_NEW(a, struct mat, 2 * r->n_local);
}

/* The local expert of a slot, or -1. */
static int local_expert(const struct routing *r, int64_t slot)
{
    int64_t row = slot / r->k, at = row % r->leaf_rows - r->home, leaf = row / r->leaf_rows - r->leaf;
    int e = r->expert[slot] - r->first;
    int is_home = at >= 0 && at < r->n_home && leaf >= 0 && leaf < r->n_routed;
    return e >= 0 && e < r->n_local && is_home ? e : -1;
}

/* leaf_end[e][s]: how many rows of expert e are in leaf s. */
static void count_rows(struct routing *r)
{
    memset(r->leaf_end, 0, sizeof *r->leaf_end * (size_t)r->n_local * (size_t)r->n_leaves);
    for (int64_t slot = 0; slot < r->rows * r->k; slot++) {
        int e = local_expert(r, slot);
        if (e >= 0)
            r->leaf_end[e * r->n_leaves + slot / r->k / r->leaf_rows]++;
    }
}

/* Counts become ends: expert by expert, leaf by leaf. */
static void sum_counts(struct routing *r)
{
    int64_t end = 0;
    for (int e = 0; e < r->n_local; e++) {
        r->begin[e] = end;
        for (int s = 0; s < r->n_leaves; s++) {
            end += r->leaf_end[e * r->n_leaves + s];
            r->leaf_end[e * r->n_leaves + s] = end;
        }
    }
    r->begin[r->n_local] = r->n = end;
}

/* Where blocks of positions end among the grouped rows. */
static void fill_blocks(struct routing *r)
{
    int64_t n_blocks = (int64_t)r->n_leaves * r->grain,
            size = r->grain ? block_size(r->leaf_rows, r->grain) : 1;
    for (int e = 0; e < r->n_local; e++) {
        int64_t *end = r->block_end + e * n_blocks, at = r->begin[e];
        for (int64_t b = 0; b < n_blocks; b++) {
            int64_t first = b / r->grain * r->leaf_rows, behind = (b % r->grain + 1) * size;
            first += behind < r->leaf_rows ? behind : r->leaf_rows;
            while (at < r->begin[e + 1] && r->row[at] < first)
                at++;
            end[b] = at;
        }
    }
}

void routing_fill(struct routing *r)
{
    int64_t slots = r->rows * r->k;
    count_rows(r);
    sum_counts(r);

    /* begin[e] is the next free row of expert e while the rows are placed, then its end */
    for (int64_t slot = 0; slot < slots; slot++) {
        int e = local_expert(r, slot);
        r->place[slot] = -1;
        if (e < 0)
            continue;
        int64_t at = r->begin[e]++;
        r->place[slot] = (int32_t)at;
        r->row[at] = (int32_t)(slot / r->k);
        r->slot[at] = (int32_t)slot;
    }
    memmove(r->begin + 1, r->begin, sizeof *r->begin * (size_t)r->n_local);
    r->begin[0] = 0;
    fill_blocks(r);
}

struct expert_rows leaves_joined(const struct expert_rows *g, int n, int64_t *ends)
{
    int n_leaves = g->n_leaves / n;
    for (int64_t i = 0; i < (int64_t)g->n * n_leaves; i++)
        ends[i] = g->leaf_end[i / n_leaves * g->n_leaves + (i % n_leaves + 1) * n - 1];
    return (struct expert_rows){ g->n, g->begin, n_leaves, ends };
}

void routing_count(const struct routing *r, int32_t *count)
{
    memset(count, 0, sizeof *count * (size_t)r->n_leaves * (size_t)r->n_experts);
    for (int64_t slot = 0; slot < r->rows * r->k; slot++)
        count[slot / r->k / r->leaf_rows * r->n_experts + r->expert[slot]]++;
}
