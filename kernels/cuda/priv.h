/* priv.h - what the .cu files of kernels/cuda need of device.c. */
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
/* A copy of an op's host arguments on the device, valid for ops of the queue in use until 8 MiB more are
 * uploaded there. Bytes that were uploaded recently and are unchanged, as the lists of every layer of a
 * step, are not copied again. Device memory is returned as it is. NULL: too many bytes, recorded for
 * dev_check. */
const void *cuda_upload(struct dev *d, const void *host, size_t bytes);
/* A call failed since the last dev_check: nothing more is run until then. */
int cuda_failed(const struct dev *d);
/* The device's products (products.h). */
struct products *cuda_products(struct dev *d);
/* Records a failed call for dev_check. 1: the call succeeded. */
int cuda_well(struct dev *d, cudaError_t rc, const char *what);
#ifdef __cplusplus
}
#endif

#endif
