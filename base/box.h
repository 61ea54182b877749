/* box.h - n-dimensional regions of a tensor: where a piece lies in the whole. */
#ifndef SHARDLINE_BASE_BOX_H
#define SHARDLINE_BASE_BOX_H

#include <stdint.h>

#define BOX_DIMS 4

struct box {
    int n_dims;               /* 1..BOX_DIMS (a scalar is [1]) */
    int64_t start[BOX_DIMS];  /* first index of every dim, in the whole tensor */
    int64_t extent[BOX_DIMS]; /* number of indices of every dim, >= 0 */
};

struct box box_whole(int n_dims, const int64_t *shape);
int64_t box_count(const struct box *b); /* elements */
/* out = a and b in common; returns its count, 0 when they have nothing in common. Both must have the same
 * n_dims. */
int64_t box_intersect(const struct box *a, const struct box *b, struct box *out);
int box_equal(const struct box *a, const struct box *b);

/* Walks the elements that box `part` and the row-major index range [lo, hi) of box `of` have in common (part
 * inside of or not), as runs that are contiguous in both. Iterator style: zero the walk, then call until it
 * returns 0.
 * of_off: element offset of the run in row-major `of` (absolute, lo <= of_off); part_off: in row-major
 * `part`. */
struct box_run {
    int64_t of_off, part_off, count;
};
struct box_walk {
    int started;
    int64_t idx[BOX_DIMS];
};
int box_next_run(const struct box *of, int64_t lo, int64_t hi, const struct box *part, struct box_walk *w,
                 struct box_run *run);

#endif
