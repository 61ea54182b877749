/* gemm_f32.cuh - fp32 products through shared memory, in the CPU's order and so with its bits: a thread has
 * 4 x 4 numbers of the result,
 *
 *     acc = fma(A[row][k], B[k][col], acc)     ascending k of a leaf and no further, then Tree over leaves
 *     (gemm_tile.cuh's fold) */
#ifndef SHARDLINE_KERNELS_CUDA_GEMM_GEMM_F32_CUH
#define SHARDLINE_KERNELS_CUDA_GEMM_GEMM_F32_CUH

#include "kernels/cuda/gemm/gemm_tile.cuh"

constexpr int F32_TILE = 64, F32_DEPTH = 16, F32_THREADS = 256, F32_EACH = F32_TILE * F32_DEPTH / F32_THREADS,
              F32_LD = F32_TILE + 4, F32_STAGE = F32_DEPTH * F32_LD;
/* two stages of A and B */
constexpr int F32_PIPE_BYTES = 4 * F32_STAGE * 4, F32_SLOT_BYTES = 16 * F32_THREADS * 4;

/* Elements [k, k + length) for columns (rows) [c0, c0 + 64): those of this thread; what is not there is 0
 * and not used. */
template <bool BY_ROWS>
GPU void f32_bring(float *v, const struct side &x, int c0, int cols, int k, int length)
{
    const int t = (int)threadIdx.x, depth = BY_ROWS ? t % F32_DEPTH : t / F32_TILE,
              more = F32_THREADS / (BY_ROWS ? F32_DEPTH : F32_TILE);
    const int c = c0 + (BY_ROWS ? t / F32_DEPTH : t % F32_TILE);
    const int64_t step = more * x.ld;
    const float *from = (const float *)x.p + (BY_ROWS ? c * x.ld + k + depth
                                                      : c / PANEL * x.panel + (k + depth) * x.ld + c % PANEL);
    GPU_UNROLL
    for (int e = 0; e < F32_EACH; e++, from += step)
        v[e] = (BY_ROWS ? depth < length && c + e * more < cols : depth + e * more < length && c < cols)
                   ? *from
                   : 0.0f;
}
template <bool BY_ROWS> GPU void f32_put(float *tile, const float *v)
{
    GPU_UNROLL
    for (int e = 0; e < F32_EACH; e++) {
        const int i = (int)threadIdx.x + e * F32_THREADS;
        tile[BY_ROWS ? i % F32_DEPTH * F32_LD + i / F32_DEPTH : i / F32_TILE * F32_LD + i % F32_TILE] = v[e];
    }
}

GPU void f32_step(float *acc, const float *a, const float *b)
{
    const float4 x = *(const float4 *)a, y = *(const float4 *)b;
    const float u[4] = { x.x, x.y, x.z, x.w }, v[4] = { y.x, y.y, y.z, y.w };
    GPU_UNROLL
    for (int i = 0; i < 16; i++)
        acc[i] = fmaf(u[i / 4], v[i % 4], acc[i]);
}

/* A block's tile. RAGGED: leaves may have no rows (gemm_experts.cuh). */
template <bool BY_ROWS, bool RAGGED>
GPU void f32_block(const struct gemm_job &j, unsigned task, unsigned char *memory, int slots)
{
    float *const tile = (float *)memory;
    const int thread = (int)threadIdx.x, a = thread / 16 * 4, b = thread % 16 * 4;
    const struct corner at = corner_of<F32_TILE, F32_TILE>(task, j);
    const auto where = [&](int i) -> int64_t {
        const int r = at.r + a + i / 4, c = at.c + b + i % 4;
        return r < j.rows && c < j.cols ? r * j.ld + c : -1;
    };
    float acc[16] = { 0 }, va[F32_EACH], vb[F32_EACH];
    fold<16, F32_THREADS> sum;
    walk<F32_DEPTH> now;
    int turn = 0;
    sum.begin(j, memory + F32_PIPE_BYTES, slots, thread);
    now.begin(j, 0);
    if (now.g < j.n_leaves) {
        f32_bring<BY_ROWS>(va, j.a[now.s], at.r, j.rows, now.k, now.length());
        f32_bring<false>(vb, j.b[now.s], at.c, j.cols, now.k, now.length());
    }
    for (int g = 0; g < j.n_leaves; g++) {
        while (now.g == g) {
            float *const ta = tile + turn * 2 * F32_STAGE, *const tb = ta + F32_STAGE;
            const int length = now.length();
            f32_put<BY_ROWS>(ta, va);
            f32_put<false>(tb, vb);
            __syncthreads();
            now.next(j);
            if (now.g < j.n_leaves) {
                f32_bring<BY_ROWS>(va, j.a[now.s], at.r, j.rows, now.k, now.length());
                f32_bring<false>(vb, j.b[now.s], at.c, j.cols, now.k, now.length());
            }
            if (length == F32_DEPTH) {
                GPU_UNROLL
                for (int k = 0; k < F32_DEPTH; k++)
                    f32_step(acc, ta + k * F32_LD + a, tb + k * F32_LD + b);
            } else {
                const struct index_order chain = ORDER("gpu_f32_chain", forward_order(),
                                                       backward_order(length));
                for (int i = 0; i < length; i++) {
                    const int k = (int)index_at(chain, i);
                    f32_step(acc, ta + k * F32_LD + a, tb + k * F32_LD + b);
                }
            }
            turn ^= 1;
        }
        if constexpr (RAGGED)
            leaf_of_none<16>(acc, j, g);
        sum.push(j, acc, where);
    }
    sum.end(j, acc, where);
}

template <bool BY_ROWS>
static __global__ void __launch_bounds__(F32_THREADS)
    f32_kernel(const __grid_constant__ struct gemm_job j, int slots)
{
    SHARED(memory);
    f32_block<BY_ROWS, false>(j, blockIdx.x, memory, slots);
}

template <bool BY_ROWS> static void f32_start(struct dev *d, const struct gemm_job &j, int slots)
{
    cuda_launch(d, f32_kernel<BY_ROWS>, tiles_of(j, F32_TILE, F32_TILE), F32_THREADS,
                (size_t)F32_PIPE_BYTES + (size_t)slots * F32_SLOT_BYTES, j, slots);
}

#endif
