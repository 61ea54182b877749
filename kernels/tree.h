/* tree.h - the one order of sums: Tree(n), GRAIN blocks, leaves, the counter of partial sums.
 *
 * Tree(n), n = 2^a * m with m odd: runs of m neighbours are added in order, then a balanced binary tree
 * adds the 2^a runs.
 *
 * Adding leaf i to the counter: chain it to the open run if i % m != 0; when the run is complete, merge as
 * a binary counter does (as many times as i/m has trailing one bits). The stack of partial sums has at
 * most tree_depth(n) entries, entry 0 the oldest; after leaf n-1 entry 0 is the sum.
 *
 * Nested trees: n leaves in groups of `inner` neighbours; Tree(inner) of each group, then Tree(n / inner) of
 * the groups. inner divides n; 0 and 1: Tree(n). */
#ifndef SHARDLINE_KERNELS_TREE_H
#define SHARDLINE_KERNELS_TREE_H

#include <stdint.h>

#define GRAIN_MAX 64
#define TREE_DEPTH_MAX 34

/* The cut points of one contraction: leaf i covers [end[i-1], end[i]) of the local dim. */
struct leaves {
    int n;                  /* 1..GRAIN_MAX */
    int64_t end[GRAIN_MAX]; /* ascending, may repeat (an empty leaf sums to +0) */
};

/* A sum over n leaves that arrive in order, over several calls. Borrows its levels. */
struct tree_acc {
    int64_t n, next; /* leaves of the whole tree; the next leaf (the caller advances it, not the op) */
    int64_t inner;   /* the tree is nested */
    float *level[TREE_DEPTH_MAX]; /* the stack of partial sums, of which tree_levels(n, per_call) are used */
};

/* m: the odd part of n. */
int64_t tree_run(int64_t n);
/* Pops after leaf i: additions of older entries onto it, newest first. */
int tree_merges(int64_t n, int64_t i);
/* Entries on the stack before leaf i. */
int tree_depth_before(int64_t n, int64_t i);
/* Both for an order of n leaves: the tree, or (in altered builds, base/alter.h) one leaf after the other. */
struct sum_order {
    int (*merges)(int64_t n, int64_t i);
    int (*depth_before)(int64_t n, int64_t i);
};
extern const struct sum_order tree_order, chain_order;
/* tree_merges and tree_depth_before of a nested tree; and of both of its orders. */
int nest_merges(int64_t n, int64_t inner, int64_t i);
int nest_depth_before(int64_t n, int64_t inner, int64_t i);
int order_merges(const struct sum_order *o, const struct tree_acc *acc, int64_t i);
int order_depth_before(const struct sum_order *o, const struct tree_acc *acc, int64_t i);
/* Are leaves [first, first + count) one node of Tree(n)? */
int tree_is_node(int64_t n, int64_t first, int64_t count);
/* The most entries on the stack between calls of one leaf each. */
int tree_depth(int64_t n);
/* The same for calls of per_call leaves each. */
int tree_levels(int64_t n, int64_t per_call);
/* ceil(n / grain) */
int64_t block_size(int64_t n, int grain);
/* The first index of block g: min(g * block_size, n); g may be grain. */
int64_t block_begin(int64_t n, int grain, int g);
/* The leaves of blocks [first, first + count) of a dim of n, as offsets from block_begin(first). */
struct leaves leaves_of(int64_t n, int grain, int first, int count);
/* Tree(n) of x[0], x[stride], … */
float tree_sum(int64_t n, const float *x, int64_t stride);
/* The same in chain_order. */
float chain_sum(int64_t n, const float *x, int64_t stride);

#endif
