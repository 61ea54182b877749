/* none.c - in the place of the CUDA device where nvcc was not found. */
#include "kernels/cuda/cuda.h"

int cuda_is_built(void) { return 0; }

int cuda_open(struct dev *d, struct err *e)
{
    (void)d;
    return err_set(e, ERR_DEVICE, "built without CUDA: use --device cpu, or build where nvcc is");
}
