/* products.h - which code multiplies on the CUDA device: a row a provider, one chosen for --numerics exact
 * and one for fast.
 *
 *     simt   ops.cu: 32 lanes a task, the CPU's bits; correct but slow
 *     own    tensor cores, the contract's leaves, by mma and on sm_90 by wgmma too (wgmma.h): `exact`
 *            takes it
 *     lt     cuBLASLt (lt.h): `fast` takes it where the library is found
 *
 * SHARDLINE_CUDA=simt|own|lt chooses one for both, an error where it is missing; mma or wgmma: own, by
 * these instructions only. Every provider packs weights in its own layout. */
#ifndef SHARDLINE_KERNELS_CUDA_PRODUCTS_H
#define SHARDLINE_KERNELS_CUDA_PRODUCTS_H

#include "kernels/gemm.h"

struct products;

/* Replaces the products in the device's table *ops, which are those of simt. ERR_USAGE: SHARDLINE_CUDA
 * names no provider. */
int products_open(struct products **out, struct dev *d, struct kernel_ops *ops, struct err *e);
/* Second half of opening, when the device can allocate. ERR_DEVICE: the provider in SHARDLINE_CUDA is
 * missing. */
int products_ready(struct dev *d, struct err *e);
/* NULL: nothing. */
void products_close(struct products *p);
/* After d->fast was set: opens the provider and names it in d->note. */
void products_numerics(struct dev *d);
/* The first failure of a provider since the last call. */
int products_check(struct products *p, struct err *e);

/* The products on tensor cores; NULL: not for this GPU. */
const struct gemm_ops *cuda_gemm_own(struct dev *d);

#endif
