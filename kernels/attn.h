/* attn.h - attention forward and backward, one table a CPU class; cpu.c puts them into kernel_ops.
 *
 * Scratch slots 2 and 3 of the device are used. The order of every sum is in attn/attn.inc; all tables
 * give the same bits. */
#ifndef SHARDLINE_KERNELS_ATTN_H
#define SHARDLINE_KERNELS_ATTN_H

#include "kernels/kernels.h"

struct attn_ops {
    void (*attn)(struct dev *d, const struct attn *a, struct mat out, float *lse, struct mat q);
    void (*attn_dx)(struct dev *d, const struct attn *a, struct mat dq, struct mat dk, struct mat dv,
                    struct mat dout, struct attn_kept kept);
};
/* The last three exist on x86-64 only. */
extern const struct attn_ops attn_portable, attn_simt, attn_avx2, attn_avx512, attn_avx512bf16;

#endif
