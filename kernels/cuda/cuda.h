/* cuda.h - the CUDA device's doors to dev.c; none.c has them where nvcc was not found. */
#ifndef SHARDLINE_KERNELS_CUDA_CUDA_H
#define SHARDLINE_KERNELS_CUDA_CUDA_H

#include "kernels/dev.h"

int cuda_is_built(void);
/* Fills in ops, isa, memory and back. ERR_DEVICE: built without CUDA, no driver, no GPU. */
int cuda_open(struct dev *d, struct err *e);

#endif
