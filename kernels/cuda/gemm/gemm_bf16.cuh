/* gemm_bf16.cuh - products on tensor cores, many rows: a block makes ROWS x COLS of the result, a warp
 * WARP_ROWS x WARP_COLS of it, through STAGES tiles of 32 elements of the contraction that are on their way
 * while one is used. Orders: gemm_tile.cuh. */
#ifndef SHARDLINE_KERNELS_CUDA_GEMM_GEMM_BF16_CUH
#define SHARDLINE_KERNELS_CUDA_GEMM_GEMM_BF16_CUH

#include "kernels/cuda/gemm/gemm_tile.cuh"

template <int ROWS_, int COLS_, int WARP_ROWS_, int WARP_COLS_, int STAGES_, bool BY_ROWS_> struct tiling {
    static constexpr bool BY_ROWS = BY_ROWS_;
    static constexpr int ROWS = ROWS_, COLS = COLS_, WARP_ROWS = WARP_ROWS_, WARP_COLS = WARP_COLS_,
                         STAGES = STAGES_;
    static constexpr int WARPS_DOWN = ROWS / WARP_ROWS, THREADS = WARPS_DOWN * (COLS / WARP_COLS) * 32;
    static constexpr int DOWN = WARP_ROWS / 16, ALONG = WARP_COLS / 8, NUMBERS = DOWN * ALONG * 4;
    static constexpr int TILE_A = ROWS * DEPTH, STAGE = TILE_A + COLS * DEPTH; /* halves */
    static constexpr int PIPE_BYTES = STAGES * STAGE * 2, SLOT_BYTES = NUMBERS * THREADS * 4;
};

template <class T>
GPU void bring_stage(uint16_t *stage, const struct gemm_job &j, const struct corner &at, const walk<DEPTH> &w)
{
    if (T::BY_ROWS)
        bring_rows<T::ROWS, T::THREADS>(stage, j.a[w.s], at.r, j.rows, w.k, w.length(), (int)threadIdx.x);
    else
        bring_across<T::ROWS, T::THREADS>(stage, j.a[w.s], at.r, j.rows, w.k, w.length(), (int)threadIdx.x);
    bring_across<T::COLS, T::THREADS>(stage + T::TILE_A, j.b[w.s], at.c, j.cols, w.k, w.length(),
                                      (int)threadIdx.x);
}

/* A step of 16 of this warp's part; a, b: its first row and column in the tile. */
template <class T> GPU void multiply(float *acc, const uint16_t *stage, int a, int b, int step, int lane)
{
    uint32_t fa[T::DOWN][4], fb[T::ALONG / 2][4];
    GPU_UNROLL
    for (int i = 0; i < T::DOWN; i++) {
        if (T::BY_ROWS)
            a_by_rows(fa[i], stage, a + 16 * i, step, lane);
        else
            a_across<T::ROWS>(fa[i], stage, a + 16 * i, step, lane);
    }
    GPU_UNROLL
    for (int i = 0; i < T::ALONG / 2; i++)
        b_across<T::COLS>(fb[i], stage + T::TILE_A, b + 16 * i, step, lane);
    GPU_UNROLL
    for (int r = 0; r < T::DOWN; r++) {
        GPU_UNROLL
        for (int c = 0; c < T::ALONG; c++)
            mma_bf16(acc + (r * T::ALONG + c) * 4, fa[r], fb[c / 2] + c % 2 * 2);
    }
}

/* A block's tile. RAGGED: leaves may have no rows (gemm_experts.cuh). */
template <class T, bool RAGGED>
GPU void gemm_block(const struct gemm_job &j, unsigned task, unsigned char *memory, int slots)
{
    uint16_t *const stage = (uint16_t *)memory;
    const int thread = (int)threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int a = warp % T::WARPS_DOWN * T::WARP_ROWS, b = warp / T::WARPS_DOWN * T::WARP_COLS;
    const struct corner at = corner_of<T::ROWS, T::COLS>(task, j);
    const int row = at.r + a + lane / 4, col = at.c + b + lane % 4 * 2;
    const auto where = [&](int i) -> int64_t {
        const int r = row + i / (4 * T::ALONG) * 16 + i / 2 % 2 * 8, c = col + i / 4 % T::ALONG * 8 + i % 2;
        return r < j.rows && c < j.cols ? r * j.ld + c : -1;
    };
    float acc[T::NUMBERS] = { 0 };
    fold<T::NUMBERS, T::THREADS> sum;
    walk<DEPTH> ahead, now;
    int turn = 0;
    sum.begin(j, memory + T::PIPE_BYTES, slots, thread);
    ahead.begin(j, 0);
    now.begin(j, 0);
    for (int i = 0; i < T::STAGES - 1; i++) {
        if (ahead.g < j.n_leaves) {
            bring_stage<T>(stage + i * T::STAGE, j, at, ahead);
            ahead.next(j);
        }
        cp_async_commit();
    }
    const struct index_order steps = ORDER("gpu_gemm_steps", forward_order(),
                                           backward_order(DEPTH / DEPTH_STEP));
    for (int g = 0; g < j.n_leaves; g++) {
        while (now.g == g) {
            cp_async_wait<T::STAGES - 2>();
            __syncthreads();
            if (ahead.g < j.n_leaves) {
                bring_stage<T>(stage + (turn + T::STAGES - 1) % T::STAGES * T::STAGE, j, at, ahead);
                ahead.next(j);
            }
            cp_async_commit();
            GPU_UNROLL
            for (int i = 0; i < DEPTH / DEPTH_STEP; i++) {
                const int step = (int)index_at(steps, i);
                if (step * DEPTH_STEP < now.length())
                    multiply<T>(acc, stage + turn * T::STAGE, a, b, step, lane);
            }
            turn = turn + 1 == T::STAGES ? 0 : turn + 1;
            now.next(j);
        }
        if constexpr (RAGGED)
            leaf_of_none<T::NUMBERS>(acc, j, g);
        sum.push(j, acc, where);
    }
    sum.end(j, acc, where);
}

template <class T>
static __global__ void __launch_bounds__(T::THREADS)
    gemm_kernel(const __grid_constant__ struct gemm_job j, int slots)
{
    SHARED(memory);
    gemm_block<T, false>(j, blockIdx.x, memory, slots);
}

template <class T> static void gemm_start(struct dev *d, const struct gemm_job &j, int slots)
{
    cuda_launch(d, gemm_kernel<T>, tiles_of(j, T::ROWS, T::COLS), T::THREADS,
                (size_t)T::PIPE_BYTES + (size_t)slots * T::SLOT_BYTES, j, slots);
}

#endif
