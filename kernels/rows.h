/* rows.h - the ops over rows and elements, one table a CPU class. All tables are compiled from one text
 * (rows/rows.inc) and give the same bits; cpu.c copies one of them into kernel_ops. Private to kernels/. */
#ifndef SHARDLINE_KERNELS_ROWS_H
#define SHARDLINE_KERNELS_ROWS_H

#include "kernels/kernels.h"

/* clang-format off */
#define ROW_OPS(X) \
    X(embed) X(embed_dw) X(rms_norm) X(rms_norm_dx) X(rms_norm_dw) X(rope_store) X(rope_dx) X(swiglu) \
    X(swiglu_dx) X(layer_norm) X(layer_norm_dx) X(layer_norm_dw) X(bias_dw) X(add_bias) X(gelu) \
    X(gelu_dx) X(rope_back) X(head_norm_dx) X(head_norm_dw) X(add_leaves) X(embed_add) X(transpose) \
    X(add_rounded) X(round_to) X(widen) X(ce_max) X(ce_sum) X(ce_pick) X(ce_first) X(ce_dx) \
    X(ce_logprob) X(adamw) X(tree_add) X(route) X(route_dx) X(expert_dot) X(scale_rows) X(gather_scaled) \
    X(combine) X(combine_dx) X(add_to) X(gate_dx) X(sink_dw) X(swiglu_clamped) X(swiglu_clamped_dx) \
    X(add_bias_experts) X(dot_bias_experts) X(bias_dw_experts) \
    X(gelu_erf) X(gelu_erf_dx) X(geglu) X(geglu_dx) X(add_both) X(scale) X(softcap) X(softcap_dx) \
    X(add_scaled) X(latent_q) X(latent_k) X(latent_q_dx) X(latent_k_dx)
/* clang-format on */

struct row_ops {
#define X(name) __typeof__(((struct kernel_ops *)0)->name) name;
    ROW_OPS(X)
#undef X
};

extern const struct row_ops rows_portable, rows_avx2, rows_avx512, rows_simt;

/* ---- shared by all classes ---- */

/* Calls fn(arg, begin, end) for pieces of [0, n) of at most `per` elements, spread over the device's
 * threads. Returns when all have returned. */
void rows_spread(struct dev *d, int64_t n, int64_t per, void (*fn)(void *arg, int64_t begin, int64_t end),
                 void *arg);
/* How many rows of `cols` elements a task should take. */
int64_t rows_per_task(int64_t cols);

/* The tokens of a batch by table row: order[begin[r] .. begin[r + 1]) are the tokens t with ids[t] - first
 * == r, ascending. Both are in scratch slot 0, or NULL without memory: the reader then searches all ids. */
struct token_index {
    int32_t *begin, *order;
};
/* Builds the index of n tokens over `rows` rows from `first` on. */
void rows_index_tokens(struct dev *d, struct token_index *x, int64_t first, int64_t rows, const int32_t *ids,
                       int64_t n);

/* Up to PILE_WIDTH elements of the stack of partial sums of a tree_acc, while a call adds leaves to it.
 * Entries [0, kept) lie in the accumulator's levels, the others here; the levels are written by pile_end
 * only. */
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
/* Begins with the entries that the stack has before leaf acc->next. */
void pile_begin(struct pile *p, const struct tree_acc *acc, int64_t at, int64_t width);
/* Adds the next leaf; NULL: zeros, which change no sum that began at +0 (such a sum is never -0). */
void pile_push(struct pile *p, const float *leaf);
/* Writes the changed entries to the levels. */
void pile_end(struct pile *p);

/* The op sum_squares: integer arithmetic, one function for every CPU class. */
void xsum_squares(struct dev *d, struct xsum *s, const float *x, int64_t n);
/* Adds bins of squares: for exponent e of the floats, low[e] + 2^32 high[e] units of 2^(2 max(e, 1) - 300);
 * of bin 255 the number of NaN and Inf. */
void xsum_add_bins(struct xsum *s, const uint64_t low[256], const uint64_t high[256], int64_t n_nan);

#endif
