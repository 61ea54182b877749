/* cuda_ops.h - the CUDA device's op tables, put together in device.c. */
#ifndef SHARDLINE_KERNELS_CUDA_CUDA_OPS_H
#define SHARDLINE_KERNELS_CUDA_CUDA_OPS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif
/* The table without tensor cores: the CPU's bits. */
const struct kernel_ops *cuda_kernels(void);
/* Puts the row ops that use a block of threads in place of a warp (rows.cuh) into a table; the same bits. */
void cuda_choose_rows(struct kernel_ops *ops);
/* Puts attention on tensor cores (attn/attn.cu) into a table. SHARDLINE_CUDA=simt: both leave it as it is. */
void cuda_choose_attn(struct kernel_ops *ops);
#ifdef __cplusplus
}
#endif

#endif
