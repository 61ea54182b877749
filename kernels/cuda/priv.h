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
/* A copy on the device of what the host lends an op, valid for ops called in the same queue before its next
 * 8 MiB are lent; what was lent lately and is lent again unchanged, as the same lists for every layer of a
 * step, is not copied again. Device memory is returned as it is. NULL: too much, noted for dev_check. */
const void *cuda_lend(struct dev *d, const void *host, size_t bytes);
/* A call failed that dev_check was not asked for yet: nothing more is run. */
int cuda_failed(const struct dev *d);
/* Who multiplies (products.h). */
struct products *cuda_products(struct dev *d);
/* Notes a failed call for dev_check: 1 when it was well. */
int cuda_well(struct dev *d, cudaError_t rc, const char *what);
#ifdef __cplusplus
}
#endif

#endif
