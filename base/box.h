/* box.h - n-dimensional regions of a tensor: which part of the whole tensor a piece is. Pure functions. */
#ifndef SHARDLINE_BASE_BOX_H
#define SHARDLINE_BASE_BOX_H

#include <stdint.h>

#define BOX_DIMS 8

struct box {
    int n_dims;               /* 1..BOX_DIMS (a scalar is [1]) */
    int64_t start[BOX_DIMS];  /* first index of every dim, in the whole tensor */
    int64_t extent[BOX_DIMS]; /* number of indices of every dim, >= 0 */
};

/* The box of a whole tensor of shape [n_dims]. */
struct box box_whole(int n_dims, const int64_t *shape);

/* Number of elements. */
int64_t box_count(const struct box *b);

/* Sets *out to the intersection of a and b, which have the same n_dims. Returns its number of elements, 0
 * when the boxes are disjoint. */
int64_t box_intersect(const struct box *a, const struct box *b, struct box *out);

/* 1 when both have the same dims, starts and extents. */
int box_equal(const struct box *a, const struct box *b);

/* A run of elements that is contiguous in two boxes. Offsets count elements in row-major order. */
struct box_run {
    int64_t of_off;   /* in box `of`, from its first element */
    int64_t part_off; /* in box `part`, from its first element */
    int64_t count;
};

/* State of box_next_run. Zero it before the first call. */
struct box_walk {
    int started;
    int64_t idx[BOX_DIMS];
};

/* Iterates over the elements that box `part` shares with the row-major range [lo, hi) of box `of`, as runs
 * that are contiguous in both. `part` need not lie inside of `of`. Returns 1 with *run set, 0 at the end. */
int box_next_run(const struct box *of, int64_t lo, int64_t hi, const struct box *part, struct box_walk *w,
                 struct box_run *run);

#endif
