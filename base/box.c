/* box.c - see box.h. */
#include "base/box.h"

#include <string.h>

struct box box_whole(int n_dims, const int64_t *shape)
{
    struct box b = { .n_dims = n_dims };
    for (int d = 0; d < n_dims; d++)
        b.extent[d] = shape[d];
    return b;
}

int64_t box_count(const struct box *b)
{
    int64_t n = 1;
    for (int d = 0; d < b->n_dims; d++)
        n *= b->extent[d];
    return n;
}

int64_t box_intersect(const struct box *a, const struct box *b, struct box *out)
{
    struct box c = { .n_dims = a->n_dims };
    for (int d = 0; d < c.n_dims; d++) {
        int64_t a_end = a->start[d] + a->extent[d], b_end = b->start[d] + b->extent[d];
        int64_t begin = a->start[d] > b->start[d] ? a->start[d] : b->start[d];
        int64_t end = a_end < b_end ? a_end : b_end;
        c.start[d] = begin;
        c.extent[d] = end > begin ? end - begin : 0;
    }
    *out = c;
    return box_count(&c);
}

int box_equal(const struct box *a, const struct box *b)
{
    if (a->n_dims != b->n_dims)
        return 0;
    for (int d = 0; d < a->n_dims; d++)
        if (a->start[d] != b->start[d] || a->extent[d] != b->extent[d])
            return 0;
    return 1;
}

/* A run spans dims run_dim .. n_dims-1, the walk counts through dims 0 .. run_dim-1: inner dims that `common`
 * covers as a whole in both boxes are contiguous with the dim before them. */
static int run_dim(const struct box *common, const struct box *of, const struct box *part)
{
    int d = common->n_dims - 1;
    while (d > 0 && common->extent[d] == of->extent[d] && common->extent[d] == part->extent[d])
        d--;
    return d;
}

/* Row-major offset in b of the run at idx (idx counts from the start of common). */
static int64_t offset_in(const struct box *b, const struct box *common, const int64_t *idx, int n_outer)
{
    int64_t off = 0;
    for (int d = 0; d < b->n_dims; d++)
        off = off * b->extent[d] + common->start[d] - b->start[d] + (d < n_outer ? idx[d] : 0);
    return off;
}

/* Advances dims 0 .. n-1 of idx, the last one fastest. Returns 0 at the end. */
static int step(int64_t *idx, const struct box *common, int n)
{
    for (int d = n - 1; d >= 0; d--) {
        if (++idx[d] < common->extent[d])
            return 1;
        idx[d] = 0;
    }
    return 0;
}

/* Sets idx to the last run that begins at or before element lo of `of` (or to the first run of all) without
 * counting up to it: a ZeRO slice of a large tensor starts far inside. Returns 0 when every run ends before
 * lo. */
static int seek(int64_t *idx, const struct box *common, const struct box *of, int64_t lo, int n_outer)
{
    int64_t at[BOX_DIMS];
    for (int d = of->n_dims - 1; d >= 0; d--) {
        at[d] = lo % of->extent[d] + of->start[d];
        lo /= of->extent[d];
    }
    memset(idx, 0, sizeof(int64_t) * BOX_DIMS);
    if (lo > 0)
        return 0;
    for (int d = 0; d < n_outer; d++) {
        int64_t i = at[d] - common->start[d];
        if (i < 0)
            return 1;
        if (i >= common->extent[d])
            return step(idx, common, d);
        idx[d] = i;
    }
    return 1;
}

enum { WALK_NEW, WALK_ON, WALK_ENDED };

int box_next_run(const struct box *of, int64_t lo, int64_t hi, const struct box *part, struct box_walk *w,
                 struct box_run *run)
{
    struct box common;
    if (w->started == WALK_ENDED || lo >= hi || box_intersect(of, part, &common) == 0)
        return 0;
    int n_outer = run_dim(&common, of, part), more = 1;
    int64_t len = 1;
    for (int d = n_outer; d < common.n_dims; d++)
        len *= common.extent[d];
    if (w->started == WALK_NEW) {
        more = seek(w->idx, &common, of, lo < 0 ? 0 : lo, n_outer);
        w->started = WALK_ON;
    }
    while (more) {
        int64_t begin = offset_in(of, &common, w->idx, n_outer), end = begin + len;
        int64_t part_begin = offset_in(part, &common, w->idx, n_outer);
        if (begin >= hi)
            break;
        int64_t from = begin > lo ? begin : lo, to = end < hi ? end : hi;
        more = step(w->idx, &common, n_outer);
        if (from >= to)
            continue;
        *run = (struct box_run){ from, part_begin + (from - begin), to - from };
        w->started = more ? WALK_ON : WALK_ENDED;
        return 1;
    }
    w->started = WALK_ENDED;
    return 0;
}
