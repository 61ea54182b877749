/* kernels.h - the CUDA device's op table, put together in kernels.cu. */
#ifndef SHARDLINE_KERNELS_CUDA_KERNELS_H
#define SHARDLINE_KERNELS_CUDA_KERNELS_H

#include "kernels/kernels.h"

const struct kernel_ops *cuda_kernels(void);

#endif
