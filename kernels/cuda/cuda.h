/* cuda.h - the CUDA device as dev.c opens it; none.c defines these where nvcc was not found. */
#ifndef SHARDLINE_KERNELS_CUDA_CUDA_H
#define SHARDLINE_KERNELS_CUDA_CUDA_H

#include "kernels/dev.h"

/* Was this program built with CUDA? */
int cuda_is_built(void);
/* Fills in ops, isa, memory and back of d, whose host is open. ERR_DEVICE: built without CUDA, no driver,
 * no GPU. */
int cuda_open(struct dev *d, struct err *e);

#endif
