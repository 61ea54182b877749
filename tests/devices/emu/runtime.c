/* runtime.c - the runtime's calls that device.c makes, over the host's memory. */
#include "tests/devices/emu/cuda.h"
#include "tests/devices/emu/cuda_runtime_api.h"
#include "tests/devices/emu/emu.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory of the device ---- */
enum { PIECES_MAX = 4096 };
static struct piece {
    char *p;
    size_t bytes;
} piece[PIECES_MAX]; /* in no order */
static int n_pieces, last;

int emu_owns(const void *p, size_t bytes)
{
    const char *at = (const char *)p;
    for (int i = -1; i < n_pieces; i++) {
        const int k = i < 0 ? last : i;
        if (k < n_pieces && at >= piece[k].p && at + bytes <= piece[k].p + piece[k].bytes) {
            last = k;
            return 1;
        }
    }
    return 0;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    if (n_pieces == PIECES_MAX || !(*p = aligned_alloc(256, (bytes + 255) / 256 * 256)))
        return cudaErrorMemoryAllocation;
    memset(*p, 0xff, bytes);
    piece[n_pieces++] = (struct piece){ *p, bytes };
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    for (int i = 0; p && i < n_pieces; i++)
        if (piece[i].p == p) {
            piece[i] = piece[--n_pieces];
            free(p);
            return cudaSuccess;
        }
    return p ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t s)
{
    return s ? cudaMalloc(p, bytes) : cudaErrorInvalidValue;
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return s ? cudaFree(p) : cudaErrorInvalidValue; }
cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return (*p = malloc(bytes)) ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all)
{
    *free_bytes = *all = (size_t)1 << 30;
    return cudaSuccess;
}

/* ---- copies: what lies on the device must be the device's ---- */
static cudaError_t sides(const void *to, const void *from, size_t bytes, int kind)
{
    const int to_here = kind != cudaMemcpyDeviceToHost, from_here = kind != cudaMemcpyHostToDevice;
    return emu_owns(to, bytes) == to_here && emu_owns(from, bytes) == from_here ? cudaSuccess
                                                                                : cudaErrorInvalidValue;
}

cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t s)
{
    emu_calls.fills++;
    if (!s || !emu_owns(p, bytes))
        return cudaErrorInvalidValue;
    memset(p, byte, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t s)
{
    emu_calls.copies++;
    if (!s || sides(to, from, bytes, kind) != cudaSuccess)
        return cudaErrorInvalidValue;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes,
                              size_t rows, int kind, cudaStream_t s)
{
    cudaError_t rc = cudaSuccess;
    for (size_t i = 0; i < rows && rc == cudaSuccess; i++)
        rc = cudaMemcpyAsync((char *)to + i * to_pitch, (const char *)from + i * from_pitch, bytes, kind, s);
    return rc;
}

/* ---- streams and events: everything is over at once ---- */
static char here; /* what they point to */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    *s = (cudaStream_t)(void *)&here;
    return flags == cudaStreamNonBlocking ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) { return s ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    return s ? cudaPeekAtLastError() : cudaErrorInvalidValue;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    *e = (cudaEvent_t)(void *)&here;
    return flags == cudaEventDisableTiming ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) { return e ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    return e && s ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) { return e ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaEventQuery(cudaEvent_t e) { return cudaEventSynchronize(e); }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    return s && e && !flags ? cudaSuccess : cudaErrorInvalidValue;
}

/* ---- errors ---- */
cudaError_t cudaPeekAtLastError(void) { return *emu_fault() ? cudaErrorLaunchFailure : cudaSuccess; }
static char kept[512]; /* text of the failure that was asked for last */
cudaError_t cudaGetLastError(void)
{
    cudaError_t rc = cudaPeekAtLastError();
    emu_fault_clear();
    return rc;
}

const char *cudaGetErrorString(cudaError_t rc)
{
    if (rc != cudaErrorLaunchFailure)
        return rc == cudaErrorMemoryAllocation ? "out of memory" : "invalid argument";
    if (*emu_fault())
        strcpy(kept, emu_fault());
    return kept;
}

/* ---- the device ---- */
cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) { return index == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int index)
{
    const char *sm = getenv("SHARDLINE_EMU_SM");
    *prop = (struct cudaDeviceProp){
        sm ? atoi(sm) / 10 : 8, sm ? atoi(sm) % 10 : 0, 1, { { 'e', 'm', 'u' } }
    };
    return cudaSetDevice(index);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    union {
        void (*encode)(void);
        void *p;
    } f = { .encode = (void (*)(void))cuTensorMapEncodeTiled };
    *found = strcmp(name, "cuTensorMapEncodeTiled") ? cudaDriverEntryPointSymbolNotFound
                                                    : cudaDriverEntryPointSuccess;
    *function = f.p;
    return version == 12000 && flags == cudaEnableDefault ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaGetDevice(int *index)
{
    *index = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, int attr, int index)
{
    if (attr != cudaDevAttrMultiProcessorCount && attr != cudaDevAttrMaxSharedMemoryPerBlockOptin)
        return cudaErrorInvalidValue;
    const char *processors = getenv("SHARDLINE_EMU_PROCESSORS");
    *value = attr == cudaDevAttrMaxSharedMemoryPerBlockOptin ? (int)emu_shared_limit()
             : processors                                    ? atoi(processors)
                                                             : 1;
    return cudaSetDevice(index);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int index)
{
    *pool = NULL;
    return cudaSetDevice(index);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, int attr, void *value)
{
    return !pool && attr == cudaMemPoolAttrReleaseThreshold && value ? cudaSuccess : cudaErrorInvalidValue;
}
/* Nothing is kept. */
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, int attr, void *value)
{
    *(uint64_t *)value = 0;
    return !pool && (attr == cudaMemPoolAttrReservedMemCurrent || attr == cudaMemPoolAttrUsedMemCurrent)
               ? cudaSuccess
               : cudaErrorInvalidValue;
}
