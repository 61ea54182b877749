/* cuda_ops.h - the CUDA device's op tables, put together in device.c. */
#ifndef SHARDLINE_KERNELS_CUDA_CUDA_OPS_H
#define SHARDLINE_KERNELS_CUDA_CUDA_OPS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif
const struct kernel_ops *cuda_kernels(void); /* without tensor cores: the CPU's bits */
/* Puts ops of rows that take a block of threads for what the plain ones have a warp for (rows.cuh), with the
 * same bits, into a table. */
void cuda_choose_rows(struct kernel_ops *ops);
/* Puts attention on tensor cores (attn.cu) into a table; SHARDLINE_CUDA=simt: neither does. */
void cuda_choose_attn(struct kernel_ops *ops);
#ifdef __cplusplus
}
#endif

#endif
