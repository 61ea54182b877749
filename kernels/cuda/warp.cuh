/* warp.cuh - what kernels need of the machine below C++: launches, tensor cores, copies that run beside the
 * work. PTX on a GPU, the emulation (emu/emu.h) where a test runs the same text on a CPU; nothing else in
 * this folder contains PTX: the emulation tests everything else.
 *
 * cuda_launch(d, kernel, blocks, threads, shared, arguments...)   starts a kernel on the device's stream;
 * shared: bytes of dynamic shared memory
 * cuda_launch_clusters(d, kernel, cluster, blocks, ...)   so many blocks of neighbouring numbers run side by
 * side (sm_90: hopper.cuh); blocks: a multiple of it
 * SHARED(name)           in a kernel: that memory, at a multiple of 128 bytes
 * cp_async16(to, from, n)   16 bytes to shared memory, both at multiples of 16, of which n are read (the
 *                        rest becomes zero; from is any valid address
 *                        then); cp_async_commit() ends a group, cp_async_wait<N>() waits for all but the
 *                        newest N groups of this thread
 * ldmatrix<N>(to, row)   N = 1, 2, 4 matrices of 8 x 8 halves: row r of matrix m lies where lane 8 m + r
 *                        says (16 bytes, at a multiple of 16);
 *                        to[m]: elements 2 (lane mod 4), + 1 of row lane / 4; ldmatrix_trans: of that column
 * mma_bf16(d, a, b)      d += a b, 16 x 8 += 16 x 16 . 16 x 8: bf16 to fp32, all lanes. With g = lane / 4, c
 *                        = 2 (lane mod 4):
 *                        a[0..3] = A[g][c, c+1], A[g+8][c ..], A[g][c+8 ..], A[g+8][c+8 ..]      b[0..1] =
 *                        B[c, c+1][g], B[c+8 ..][g]
 *                        d[0..3] = D[g][c], D[g][c+1], D[g+8][c], D[g+8][c+1]     (the lower half of a
 *                        register is the first element)
 * bf16_pair(lo, hi)      both rounded to nearest even, lo the lower half; for operands: what is no number
 * becomes NaN, subnormal numbers stay
 * fma_ftz(a, b, sum)     a fused step whose subnormal inputs and result become signed zero: half of a bf16
 * pair on the CPU */
#ifndef SHARDLINE_KERNELS_CUDA_WARP_CUH
#define SHARDLINE_KERNELS_CUDA_WARP_CUH

#include <stdint.h>
#include "kernels/cuda/priv.h"

#ifdef CUDA_EMU
#include "kernels/flushed.h"

#define SHARED(name) unsigned char *const name = (unsigned char *)emu_shared()
#define GPU_UNROLL
#define GPU_LOOP
#define GPU_METHOD inline __attribute__((always_inline))

static inline void cp_async16(void *to, const void *from, int n) { emu_copy(to, from, n); }
static inline void cp_async_commit(void) { emu_copy_commit(); }
template <int N> static inline void cp_async_wait(void) { emu_copy_wait(N); }
template <int N> static inline void ldmatrix(uint32_t *to, const void *row, EMU_AT)
{
    struct emu_ldmatrix m = { to, row, N };
    emu_touch(row, emu_here.lane < 8 * N ? 16 : 0, 0);
    emu_warp_op(EMU_LDMATRIX, 0xffffffffu, (uint64_t)(uintptr_t)&m, 0, file, line);
}
template <int N> static inline void ldmatrix_trans(uint32_t *to, const void *row, EMU_AT)
{
    struct emu_ldmatrix m = { to, row, N };
    emu_touch(row, emu_here.lane < 8 * N ? 16 : 0, 0);
    emu_warp_op(EMU_LDMATRIX_TRANS, 0xffffffffu, (uint64_t)(uintptr_t)&m, 0, file, line);
}
static inline void mma_bf16(float *d, const uint32_t *a, const uint32_t *b, EMU_AT)
{
    struct emu_mma m = { d, a, b };
    emu_warp_op(EMU_MMA_BF16, 0xffffffffu, (uint64_t)(uintptr_t)&m, 0, file, line);
}
static inline uint32_t bf16_pair(float lo, float hi)
{
    const uint32_t x = __float_as_uint(lo), y = __float_as_uint(hi);
    const uint32_t l = lo != lo ? 0x7fffu : (x + 0x7fffu + (x >> 16 & 1u)) >> 16,
                   h = hi != hi ? 0x7fffu : (y + 0x7fffu + (y >> 16 & 1u)) >> 16;
    return l | h << 16;
}
static inline float fma_ftz(float a, float b, float sum)
{
    return fma_flushed(flushed(a), flushed(b), flushed(sum));
}

template <class... P, class... A>
static void cuda_launch_clusters(struct dev *d, void (*kernel)(P...), unsigned cluster, dim3 blocks,
                                 unsigned threads, size_t shared, A... args)
{
    auto call = [=]() { kernel(args...); };
    if (cuda_failed(d))
        return;
    const int ok = emu_launch(
        { blocks.x, blocks.y, blocks.z }, cluster, { threads, 1, 1 }, shared,
        [](void *c) { (*(decltype(call) *)c)(); }, &call, sizeof call);
    cuda_well(d, ok ? cudaSuccess : cudaErrorLaunchFailure, "running a kernel");
}

#else
#define SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define GPU_UNROLL _Pragma("unroll")
#define GPU_LOOP _Pragma("unroll 1")
#define GPU_METHOD __device__ __forceinline__

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void cp_async16(void *to, const void *from, int n)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(n)
                 : "memory");
}
static __device__ __forceinline__ void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#define LDMATRIX(name, words) \
    template <int N> static __device__ __forceinline__ void name(uint32_t *to, const void *row) \
    { \
        const uint32_t at = shared_address(row); \
        static_assert(N == 1 || N == 2 || N == 4); \
        if constexpr (N == 1) \
            asm volatile("ldmatrix.sync.aligned.m8n8.x1" words ".shared.b16 {%0}, [%1];" \
                         : "=r"(to[0]) \
                         : "r"(at) \
                         : "memory"); \
        else if constexpr (N == 2) \
            asm volatile("ldmatrix.sync.aligned.m8n8.x2" words ".shared.b16 {%0, %1}, [%2];" \
                         : "=r"(to[0]), "=r"(to[1]) \
                         : "r"(at) \
                         : "memory"); \
        else \
            asm volatile("ldmatrix.sync.aligned.m8n8.x4" words ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                         : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) \
                         : "r"(at) \
                         : "memory"); \
    }
LDMATRIX(ldmatrix, "")
LDMATRIX(ldmatrix_trans, ".trans")
#undef LDMATRIX

static __device__ __forceinline__ void mma_bf16(float *d, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ uint32_t bf16_pair(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
static __device__ __forceinline__ float fma_ftz(float a, float b, float sum)
{
    float r;
    asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(a), "f"(b), "f"(sum));
    return r;
}

template <class... P, class... A>
static void cuda_launch_clusters(struct dev *d, void (*kernel)(P...), unsigned cluster, dim3 blocks,
                                 unsigned threads, size_t shared, A... args)
{
    if (cuda_failed(d))
        return;
    cudaLaunchAttribute side_by_side = {};
    cudaLaunchConfig_t c = {};
    side_by_side.id = cudaLaunchAttributeClusterDimension;
    side_by_side.val.clusterDim.x = cluster;
    side_by_side.val.clusterDim.y = side_by_side.val.clusterDim.z = 1;
    c.gridDim = blocks;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.stream = cuda_stream(d);
    c.attrs = &side_by_side;
    c.numAttrs = cluster > 1;
    /* more than 48 KiB of shared memory must be asked for, once a kernel */
    if (shared > 48 * 1024 &&
        !cuda_well(d,
                   cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)shared),
                   "shared memory for a kernel"))
        return;
    cuda_well(d, cudaLaunchKernelEx(&c, kernel, P(args)...), "starting a kernel");
    cuda_well(d, cudaGetLastError(), "starting a kernel");
}
#endif

template <class... P, class... A>
static void cuda_launch(struct dev *d, void (*kernel)(P...), dim3 blocks, unsigned threads, size_t shared,
                        A... args)
{
    cuda_launch_clusters(d, kernel, 1, blocks, threads, shared, args...);
}

#endif
