/* rows.h - the ops over rows and elements, one table a CPU class. All tables are compiled from one text
 * (rows_text.h) and give the same bits; cpu.c puts one of them into kernel_ops. */
#ifndef SHARDLINE_KERNELS_ROWS_H
#define SHARDLINE_KERNELS_ROWS_H

#include "kernels/kernels.h"

/* clang-format off */
#define ROW_OPS(X) \
    X(embed) X(embed_dw) X(rms_norm) X(rms_norm_dx) X(rms_norm_dw) X(rope_store) X(rope_dx) X(swiglu) \
    X(swiglu_dx) X(layer_norm) X(layer_norm_dx) X(layer_norm_dw) X(bias_dw) X(add_bias) X(gelu) \
    X(gelu_dx) X(rope_back) X(head_norm_dx) X(head_norm_dw) X(add_leaves) X(embed_add) X(transpose) \
    X(add_rounded) X(round_to) X(widen) X(ce_max) X(ce_sum) X(ce_pick) X(ce_first) X(ce_dx) \
    X(ce_logprob) X(adamw) X(tree_add)
/* clang-format on */

struct row_ops {
#define X(name) __typeof__(((struct kernel_ops *)0)->name) name;
    ROW_OPS(X)
#undef X
};

extern const struct row_ops rows_portable, rows_avx2, rows_avx512, rows_simt;

/* ---- shared by the forms, not ISA dependent ---- */

/* Calls fn(arg, begin, end) for pieces of [0, n) of at most per each, spread over the device's threads. */
void rows_spread(struct dev *d, int64_t n, int64_t per, void (*fn)(void *arg, int64_t begin, int64_t end),
                 void *arg);
/* Rows of so many elements a task should take. */
int64_t rows_per_task(int64_t cols);

/* The tokens of a batch by table row: order[begin[r] .. begin[r + 1]) are the tokens with ids[t] - first ==
 * r, ascending. Both
 * NULL when there is no memory for it: then the reader looks through all ids. */
struct token_index {
    int32_t *begin, *order;
};
void rows_index_tokens(struct dev *d, struct token_index *x, int64_t first, int64_t rows, const int32_t *ids,
                       int64_t n);

/* A piece of up to PILE_WIDTH elements of the partial sums of a tree_acc, while a call adds leaves to it.
 * Entries [0, kept) lie in the accumulator's levels, the others here; nothing is written to memory before
 * pile_end. */
#define PILE_WIDTH 256
struct pile {
    const struct tree_acc *acc;
    const struct sum_order *order;
    /* offset of the piece in every level; elements; leaves of this call so far */
    int64_t at, width, n_pushed;
    int depth, kept;
    char zero[TREE_DEPTH_MAX]; /* entries that are all +0: nothing is added, nothing is read */
    float own[TREE_DEPTH_MAX][PILE_WIDTH];
};
void pile_begin(struct pile *p, const struct tree_acc *acc, int64_t at, int64_t width);
/* NULL: zeros, which change no sum from +0 (such a sum is never -0) */
void pile_push(struct pile *p, const float *leaf);
void pile_end(struct pile *p); /* writes the changed entries to the levels */

/* The op sum_squares: integers, so one form serves every CPU class. */
void xsum_squares(struct dev *d, struct xsum *s, const float *x, int64_t n);
/* Adds bins of squares: for exponent e of the floats, low[e] + 2^32 high[e] units of 2^(2 max(e, 1) - 300);
 * of bin 255 the number of NaN and Inf. */
void xsum_add_bins(struct xsum *s, const uint64_t low[256], const uint64_t high[256], int64_t n_nan);

#endif
