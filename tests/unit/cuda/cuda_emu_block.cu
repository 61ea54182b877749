/* cuda_emu_block.cu - small kernels, right and wrong ones, for cuda_emu_block_test.c. */
#include "kernels/cuda/cxx.h"
#include "kernels/cuda/warp.cuh"

enum { ALL = -1 };
static __global__ void barrier_of_some(float *x, int some)
{
    x[threadIdx.x] = 1;
    if (some == ALL || (int)threadIdx.x < some)
        __syncthreads();
}

static __global__ void shuffle_of_some(float *x, int some)
{
    if (some == ALL || (int)threadIdx.x < some)
        x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
}

/* Lanes of a warp part: one half shuffles, the other votes. */
static __global__ void lanes_part(float *x)
{
    if (threadIdx.x % 32 < 16)
        x[threadIdx.x] = __shfl_sync(0xffffffffu, x[threadIdx.x], 0);
    else
        x[threadIdx.x] = (float)__ballot_sync(0xffffffffu, 1);
}

static __global__ void halves_meet(float *x)
{
    const unsigned half = threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u;
    if (half == 0xffffu)
        x[threadIdx.x] = __shfl_down_sync(half, (float)threadIdx.x, 1 * (threadIdx.x % 16 < 15));
    else
        x[threadIdx.x] = (float)__popc(__ballot_sync(half, threadIdx.x % 2));
}

/* Every thread writes its word and reads its neighbour's. */
enum between { NOTHING, WARP, BLOCK };
static __global__ void neighbours(float *x, int between, int by)
{
    __shared__ float word[128];
    word[threadIdx.x] = (float)threadIdx.x;
    if (between == WARP)
        __syncwarp();
    if (between == BLOCK)
        __syncthreads();
    x[threadIdx.x] = word[(threadIdx.x + (unsigned)by) % blockDim.x];
}

static __global__ void neighbours_dynamic(float *x, int between, int by)
{
    SHARED(memory);
    float *word = (float *)memory;
    word[threadIdx.x] = (float)threadIdx.x;
    if (between == WARP)
        __syncwarp();
    if (between == BLOCK)
        __syncthreads();
    x[threadIdx.x] = word[(threadIdx.x + (unsigned)by) % blockDim.x];
}

/* Read by all, then written by one. */
static __global__ void write_after_reads(float *x, int with_barrier)
{
    __shared__ float one;
    if (threadIdx.x == 0)
        one = 3;
    __syncthreads();
    x[threadIdx.x] = one;
    if (with_barrier)
        __syncthreads();
    if (threadIdx.x == blockDim.x - 1)
        one = 4;
}

static __global__ void copies(float *x, const float *from, int waits, int with_barrier)
{
    SHARED(memory);
    float *word = (float *)memory;
    cp_async16(word + 4 * threadIdx.x, from + 4 * threadIdx.x, threadIdx.x == 1 ? 8 : 16);
    cp_async_commit();
    cp_async16(word + 4 * (blockDim.x + threadIdx.x), from + 4 * threadIdx.x, 16);
    cp_async_commit();
    if (waits == 0)
        cp_async_wait<0>();
    if (waits == 1)
        cp_async_wait<1>();
    if (with_barrier)
        __syncthreads();
    const unsigned t = with_barrier ? (threadIdx.x + 1) % blockDim.x : threadIdx.x;
    for (int i = 0; i < 4; i++)
        x[4 * threadIdx.x + i] = word[4 * t + i] + word[4 * (blockDim.x + t) + i];
}

static __global__ void beyond(float *x, int64_t at) { x[at + threadIdx.x] = 1; }

/* d[16][8] += a[16][16] b[16][8], b given by columns or by rows (transposed by ldmatrix). */
static __global__ void one_mma(float *d, const uint16_t *a, const uint16_t *b, int by_rows)
{
    SHARED(memory);
    uint16_t *sa = (uint16_t *)memory, *sb = sa + 256;
    const unsigned lane = threadIdx.x, g = lane / 4, c = 2 * (lane % 4);
    for (unsigned i = lane; i < 256; i += 32)
        sa[i] = a[i];
    for (unsigned i = lane; i < 128; i += 32)
        sb[i] = b[i];
    __syncwarp();
    uint32_t fa[4], fb[2];
    float fd[4] = { d[g * 8 + c], d[g * 8 + c + 1], d[(g + 8) * 8 + c], d[(g + 8) * 8 + c + 1] };
    ldmatrix<4>(fa, sa + lane % 16 * 16 + lane / 16 * 8);
    if (by_rows)
        ldmatrix_trans<2>(fb, sb + lane % 16 * 8);
    else
        ldmatrix<2>(fb, sb + lane % 8 * 16 + lane / 8 % 2 * 8);
    mma_bf16(fd, fa, fb);
    d[g * 8 + c] = fd[0], d[g * 8 + c + 1] = fd[1], d[(g + 8) * 8 + c] = fd[2],
              d[(g + 8) * 8 + c + 1] = fd[3];
}

static __global__ void whole_grid(unsigned *count, float *x)
{
    atomicAdd(&count[(blockIdx.x * gridDim.y + blockIdx.y) % 4], 1u);
    x[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] = (float)threadIdx.x;
}

#define CASE(name, params, ...) \
    extern "C" void case_##name params; \
    extern "C" void case_##name params { __VA_ARGS__; }
CASE(barrier, (struct dev * d, float *x, int some), cuda_launch(d, barrier_of_some, 2, 64, 0, x, some))
CASE(shuffle, (struct dev * d, float *x, int some), cuda_launch(d, shuffle_of_some, 1, 32, 0, x, some))
CASE(part, (struct dev * d, float *x), cuda_launch(d, lanes_part, 1, 32, 0, x))
CASE(halves, (struct dev * d, float *x), cuda_launch(d, halves_meet, 1, 32, 0, x))
CASE(neighbours, (struct dev * d, float *x, int between, int by),
     cuda_launch(d, neighbours, 2, 128, 0, x, between, by))
CASE(neighbours_dynamic, (struct dev * d, float *x, int between, int by),
     cuda_launch(d, neighbours_dynamic, 2, 128, 512, x, between, by))
CASE(write_after_reads, (struct dev * d, float *x, int with_barrier),
     cuda_launch(d, write_after_reads, 1, 64, 0, x, with_barrier))
CASE(copies, (struct dev * d, float *x, const float *from, int waits, int with_barrier),
     cuda_launch(d, copies, 1, 32, 1024, x, from, waits, with_barrier))
CASE(beyond, (struct dev * d, float *x, int64_t at), cuda_launch(d, beyond, 1, 32, 0, x, at))
CASE(mma, (struct dev * d, float *to, const uint16_t *a, const uint16_t *b, int by_rows),
     cuda_launch(d, one_mma, 1, 32, 1024, to, a, b, by_rows))
CASE(grid, (struct dev * d, unsigned *count, float *x),
     cuda_launch(d, whole_grid, dim3(3, 5), 7, 0, count, x))
CASE(large, (struct dev * d, float *x, unsigned threads, size_t shared),
     cuda_launch(d, beyond, 1, threads, shared, x, (int64_t)0))
