/* gemm_few.cuh - products of few rows (decode): weights pass once, at the speed of memory. A warp takes one
 * leaf of one panel of 32 columns, so that a block has its leaves side by side; they meet in shared memory
 * at the end. The same steps of mma and the same tree as gemm_bf16.cuh. */
#ifndef SHARDLINE_KERNELS_CUDA_GEMM_GEMM_FEW_CUH
#define SHARDLINE_KERNELS_CUDA_GEMM_GEMM_FEW_CUH

#include "kernels/cuda/gemm/gemm_tile.cuh"

constexpr int FEW_WARPS = 8, FEW_LEAVES = FEW_WARPS, FEW_ROWS = 64;
/* DOWN: groups of 16 rows. */
template <int DOWN> struct few {
    static constexpr int ROWS = DOWN * 16,
                         STAGES = DOWN == 1   ? 4
                                  : DOWN == 2 ? 3
                                              : 2,
                         TILE_A = ROWS * DEPTH, STAGE = TILE_A + PANEL * DEPTH;
    /* floats of a warp, in place of its stages */
    static constexpr int WARP_BYTES = STAGES * STAGE * 2, NUMBERS = DOWN * 4 * 4, RESULT = ROWS * PANEL;
    static_assert(RESULT * 4 <= WARP_BYTES);
};

template <int DOWN>
GPU void few_bring(uint16_t *stage, const struct gemm_job &j, int c0, const walk<DEPTH> &w, int lane)
{
    typedef struct few<DOWN> T;
    bring_rows<T::ROWS, 32>(stage, j.a[0], 0, j.rows, w.k, w.length(), lane);
    bring_across<PANEL, 32>(stage + T::TILE_A, j.b[0], c0, j.cols, w.k, w.length(), lane);
}

template <int DOWN> GPU void few_multiply(float *acc, const uint16_t *stage, int step, int lane)
{
    typedef struct few<DOWN> T;
    uint32_t fa[4], fb[2][4];
    GPU_UNROLL
    for (int i = 0; i < 2; i++)
        b_across<PANEL>(fb[i], stage + T::TILE_A, 16 * i, step, lane);
    GPU_UNROLL
    for (int r = 0; r < DOWN; r++) {
        a_by_rows(fa, stage, 16 * r, step, lane);
        GPU_UNROLL
        for (int c = 0; c < 4; c++)
            mma_bf16(acc + (r * 4 + c) * 4, fa, fb[c / 2] + c % 2 * 2);
    }
}

/* This warp's leaf of its panel. */
template <int DOWN>
GPU void few_leaf(float *acc, uint16_t *stage, const struct gemm_job &j, int g, int c0, int lane)
{
    typedef struct few<DOWN> T;
    walk<DEPTH> ahead, now;
    int turn = 0;
    ahead.begin(j, g);
    now.begin(j, g);
    for (int i = 0; i < T::STAGES - 1; i++) {
        if (ahead.g == g) {
            few_bring<DOWN>(stage + i * T::STAGE, j, c0, ahead, lane);
            ahead.next(j);
        }
        cp_async_commit();
    }
    const struct index_order steps = ORDER("gpu_few_steps", forward_order(),
                                           backward_order(DEPTH / DEPTH_STEP));
    while (now.g == g) {
        cp_async_wait<T::STAGES - 2>();
        __syncwarp();
        if (ahead.g == g) {
            few_bring<DOWN>(stage + (turn + T::STAGES - 1) % T::STAGES * T::STAGE, j, c0, ahead, lane);
            ahead.next(j);
        }
        cp_async_commit();
        GPU_UNROLL
        for (int i = 0; i < DEPTH / DEPTH_STEP; i++) {
            const int step = (int)index_at(steps, i);
            if (step * DEPTH_STEP < now.length())
                few_multiply<DOWN>(acc, stage + turn * T::STAGE, step, lane);
        }
        turn = turn + 1 == T::STAGES ? 0 : turn + 1;
        now.next(j);
    }
}

/* Tree over n <= FEW_LEAVES numbers that lie `stride` apart. */
GPU float few_tree(int n, const float *x, int stride)
{
    float stack[4]; /* of Tree(8) */
    int depth = 0;
    for (int i = 0; i < n; i++) {
        float v = x[i * stride];
        for (int k = gpu_tree_merges(n, i); k > 0; k--)
            v = stack[--depth] + v;
        stack[depth++] = v;
    }
    return stack[0];
}

/* The same numbers in a chain, for altered builds. */
GPU float few_chain(int n, const float *x, int stride)
{
    float sum = x[0];
    for (int i = 1; i < n; i++)
        sum = sum + x[i * stride];
    return sum;
}

template <int DOWN>
static __global__ void __launch_bounds__(FEW_WARPS * 32) few_kernel(const __grid_constant__ struct gemm_job j)
{
    typedef struct few<DOWN> T;
    SHARED(memory);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, n = j.n_leaves,
              panels = (int)blockDim.x / 32 / n;
    const int first = (int)blockIdx.x * panels; /* panel */
    float acc[T::NUMBERS] = { 0 };
    few_leaf<DOWN>(acc, (uint16_t *)(memory + warp * T::WARP_BYTES), j, warp % n, (first + warp / n) * PANEL,
                   lane);
    __syncthreads();
    float *const result = (float *)memory;
    GPU_UNROLL
    for (int i = 0; i < T::NUMBERS; i++)
        result[warp * T::RESULT + (i / 16 * 16 + i / 2 % 2 * 8 + lane / 4) * PANEL + i / 4 % 4 * 8 +
               lane % 4 * 2 + i % 2] = acc[i];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < panels * T::RESULT; i += (int)blockDim.x) {
        const int panel = i / T::RESULT, at = i % T::RESULT;
        const int r = at / PANEL, c = (first + panel) * PANEL + at % PANEL;
        if (r < j.rows && c < j.cols)
            j.acc.level[0][(int64_t)r * j.ld + c] = ORDER("gpu_few_tree", few_tree,
                                                          few_chain)(n, result + panel * n * T::RESULT + at,
                                                                     T::RESULT);
    }
}

/* Panels a block: as many as fit, but blocks enough for the GPU. */
constexpr int FEW_BLOCKS = 256;
template <int DOWN> static void few_start(struct dev *d, const struct gemm_job &j)
{
    const int panels = (j.cols + PANEL - 1) / PANEL;
    int per = FEW_WARPS / j.n_leaves;
    while (per > 1 && panels < FEW_BLOCKS * per)
        per--;
    const int warps = per * j.n_leaves;
    cuda_launch(d, few_kernel<DOWN>, (unsigned)((panels + per - 1) / per), (unsigned)(warps * 32),
                (size_t)warps * few<DOWN>::WARP_BYTES, j);
}

#endif
