/* products.h - who multiplies on the CUDA device: a row a provider, a choice for each of --numerics exact
 * and fast.
 *
 *     simt   kernels.cu: 32 lanes a task, the CPU's bits; right, and slow
 *     own    tensor cores, the contract's leaves: what `exact` takes where it is there; by mma, on sm_90 by
 *     wgmma too (wgmma.h)
 *     lt     cuBLASLt (lt.h): what `fast` takes where the library is
 *
 * SHARDLINE_CUDA=simt|own|lt: that one for both, an error where it is not there; mma, wgmma: own, by these
 * instructions alone. A provider packs weights for itself. */
#ifndef SHARDLINE_KERNELS_CUDA_PRODUCTS_H
#define SHARDLINE_KERNELS_CUDA_PRODUCTS_H

#include "kernels/gemm.h"

struct products;

/* ops: the device's table, whose products are those of simt; their rows are replaced. ERR_USAGE:
 * SHARDLINE_CUDA names nobody. */
int products_open(struct products **out, struct dev *d, struct kernel_ops *ops, struct err *e);
/* The device stands: memory can be had. ERR_DEVICE: what SHARDLINE_CUDA names is not here. */
int products_ready(struct dev *d, struct err *e);
void products_close(struct products *p);
/* d->fast was set: opens what is wanted and says in d->note who it is. */
void products_numerics(struct dev *d);
/* A failure of a library since the last call. */
int products_check(struct products *p, struct err *e);

/* The tensor-core products; NULL: not for this GPU. */
const struct gemm_ops *cuda_gemm_own(struct dev *d);

#endif
