/* gemm.h - the products of the op table, one set of functions a CPU class; all sets give the same bits.
 *
 * Arguments are those of kernels.h. Scratch slots 0 and 1 of the device are used. */
#ifndef SHARDLINE_KERNELS_GEMM_H
#define SHARDLINE_KERNELS_GEMM_H

#include "kernels/kernels.h"

struct gemm_ops {
    void (*linear_pack)(struct dev *d, struct panels *p, int n_w, const struct mat *w);
    void (*linear)(struct dev *d, struct mat y, struct mat x, const struct panels *w);
    void (*linear_dx)(struct dev *d, struct mat dx, int n_w, const struct mat *dy, const struct mat *w,
                      const struct leaves *l);
    void (*linear_dw)(struct dev *d, const struct tree_acc *acc, int64_t ld, struct mat dy, struct mat x,
                      int n_seq, int64_t seq_len);
    void (*linear_experts)(struct dev *d, struct mat y, struct listed x, const struct expert_rows *g,
                           const struct panels *w);
    void (*linear_dx_experts)(struct dev *d, struct mat dx, int n_w, const struct listed *dy,
                              const struct mat *w, const struct leaves *l, const struct expert_rows *g);
    void (*linear_dw_experts)(struct dev *d, const struct tree_acc *acc, int64_t ld, struct listed dy,
                              struct listed x, const struct expert_rows *g);
};

/* The AVX classes exist on x86-64 only. */
extern const struct gemm_ops gemm_portable, gemm_avx2, gemm_avx512, gemm_avx512bf16, gemm_simt;

/* The products of experts as a loop over experts of ops' own products, for any device: the rows of a list are
 * copied to scratch first (gemm/experts_loop.c). */
void experts_loop_linear(struct dev *d, const struct gemm_ops *ops, struct mat y, struct listed x,
                         const struct expert_rows *g, const struct panels *w);
void experts_loop_dx(struct dev *d, const struct gemm_ops *ops, struct mat dx, int n_w,
                     const struct listed *dy, const struct mat *w, const struct leaves *l,
                     const struct expert_rows *g);
void experts_loop_dw(struct dev *d, const struct gemm_ops *ops, const struct tree_acc *acc, int64_t ld,
                     struct listed dy, struct listed x, const struct expert_rows *g);
/* Rows of expert e. */
static inline int64_t expert_row_count(const struct expert_rows *g, int e)
{
    return g->begin[e + 1] - g->begin[e];
}
/* Makes y NaN: there was no memory for its product. */
void experts_set_nan(struct dev *d, struct mat y);
/* out[0..n) = in[0..n) without their lists: the first `rows` rows of each that has one are copied to scratch.
 * Returns `more` bytes of scratch behind the copies; NULL: no memory. */
char *experts_copy_lists(struct dev *d, struct mat *out, int n, const struct listed *in, int64_t rows,
                         size_t more);

#endif
