/* priv.h - inside of kernels/cuda: what kernels ask of the device. */
#ifndef SHARDLINE_KERNELS_CUDA_PRIV_H
#define SHARDLINE_KERNELS_CUDA_PRIV_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
struct dev;
struct products;

/* The stream of the queue in use. */
cudaStream_t cuda_stream(struct dev *d);
/* A copy on the device of what the host lends an op, valid for ops called in the same queue before its next 8 MiB are lent. Device memory is returned as it
 * is. NULL: too much, noted for dev_check. */
const void *cuda_lend(struct dev *d, const void *host, size_t bytes);
/* Room of that kind, to be written by the caller. */
void *cuda_lend_room(struct dev *d, size_t bytes);
/* Who multiplies (products.h). */
struct products *cuda_products(struct dev *d);
/* Notes a failed call for dev_check: 1 when it was well. */
int cuda_well(struct dev *d, cudaError_t rc, const char *what);
#ifdef __cplusplus
}
#endif

#endif
