/* words.h - CUDA's words for g++, read before the kernels' text (-include): the emulation's side of what
 * nvcc knows by itself. */
#ifndef SHARDLINE_TESTS_DEVICES_EMU_WORDS_H
#define SHARDLINE_TESTS_DEVICES_EMU_WORDS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>

#include "tests/devices/emu/emu.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline, unused))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#if defined(__SANITIZE_ADDRESS__) /* which watches the ends of variables, but not in sections */
#define __shared__ static
#else
#define __shared__ static __attribute__((section("emu_static")))
#endif

#define threadIdx (emu_here.thread)
#define blockIdx (emu_here.block)
#define blockDim (emu_here.threads)
#define gridDim (emu_here.blocks)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct float2 {
    float x, y;
} __attribute__((aligned(8)));
struct float4 {
    float x, y, z, w;
} __attribute__((aligned(16)));
struct uint2 {
    unsigned x, y;
} __attribute__((aligned(8)));
struct uint4 {
    unsigned x, y, z, w;
} __attribute__((aligned(16)));
static inline float2 make_float2(float x, float y) { return float2{ x, y }; }
static inline float4 make_float4(float x, float y, float z, float w) { return float4{ x, y, z, w }; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return uint2{ x, y }; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return uint4{ x, y, z, w }; }

/* ---- barriers, the warp ---- */
#define EMU_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()
static inline void __syncthreads(EMU_AT) { emu_barrier(file, line); }
static inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_AT)
{
    emu_warp_op(EMU_SYNC, mask, 0, 0, file, line);
}

template <class T>
static inline T emu_shuffle(enum emu_kind kind, unsigned mask, T v, int other, const char *file, int line)
{
    static_assert(sizeof v <= 8 && std::is_trivially_copyable_v<T>);
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = emu_warp_op(kind, mask, bits, other, file, line);
    memcpy(&v, &bits, sizeof v);
    return v;
}
template <class T> static inline T __shfl_sync(unsigned mask, T v, int lane, EMU_AT)
{
    return emu_shuffle(EMU_SHFL, mask, v, lane, file, line);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, EMU_AT)
{
    return emu_shuffle(EMU_SHFL_UP, mask, v, (int)by, file, line);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, EMU_AT)
{
    return emu_shuffle(EMU_SHFL_DOWN, mask, v, (int)by, file, line);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int by, EMU_AT)
{
    return emu_shuffle(EMU_SHFL_XOR, mask, v, by, file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int v, EMU_AT)
{
    return (unsigned)emu_warp_op(EMU_BALLOT, mask, v != 0, 0, file, line);
}
static inline int __any_sync(unsigned mask, int v, EMU_AT)
{
    return emu_warp_op(EMU_BALLOT, mask, v != 0, 0, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int v, EMU_AT)
{
    return (unsigned)emu_warp_op(EMU_BALLOT, mask, v != 0, 0, file, line) == mask;
}

/* ---- atomics: of integers only, sums of floats have an order ---- */
#define EMU_ATOMIC(name, now) \
    template <class T> \
    __attribute__((no_sanitize("thread"))) static inline T name(T *p, std::type_identity_t<T> v) \
    { \
        static_assert(std::is_integral_v<T>); \
        const T old = *p; \
        *p = now; \
        return old; \
    }
EMU_ATOMIC(atomicAdd, (T)(old + v))
EMU_ATOMIC(atomicSub, (T)(old - v))
EMU_ATOMIC(atomicMax, old > v ? old : v)
EMU_ATOMIC(atomicMin, old < v ? old : v)
EMU_ATOMIC(atomicOr, (T)(old | v))
EMU_ATOMIC(atomicExch, v)

/* ---- numbers ---- */
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
static inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
static inline unsigned __float_as_uint(float x)
{
    unsigned b;
    memcpy(&b, &x, 4);
    return b;
}
static inline float __uint_as_float(unsigned b)
{
    float x;
    memcpy(&x, &b, 4);
    return x;
}
template <class T> static inline T __ldg(const T *p) { return *p; }

#endif
