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
};

/* The AVX classes exist on x86-64 only. */
extern const struct gemm_ops gemm_portable, gemm_avx2, gemm_avx512, gemm_avx512bf16, gemm_simt;

#endif
