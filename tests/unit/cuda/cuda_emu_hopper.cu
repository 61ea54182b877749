/* cuda_emu_hopper.cu - small kernels for Hopper, right and wrong ones, for cuda_emu_hopper_test.c. */
#include "kernels/cuda/cxx.h"
#include "kernels/cuda/gemm/hopper.cuh"
#include "kernels/cuda/gemm/gemm_tile.cuh"
#include "kernels/cuda/gemm/wgmma.h"
#include "tests/unit/cuda/hopper_cases.h"

/* 64 x 32 products of 64: A by rows or across, B across in boxes of 64 or 32 columns, each brought by one
 * box (or by threads) and multiplied once. */
struct once {
    CUtensorMap a, b;
    const uint16_t *from_a, *from_b;
    float *to;
    int wrong, a_across, narrow, by_threads;
};
constexpr int DEEP = 64, ATOM = 1024;

static __device__ void copy_by_threads(uint16_t *to, const uint16_t *from, int rows, int row_halves,
                                       int thread)
{
    for (int i = thread; i < rows * row_halves; i += 128) {
        const int at = i / row_halves * row_halves * 2 + i % row_halves * 2; /* bytes */
        to[(at ^ (at >> 7 & (row_halves / 8 - 1)) << 4) / 2] = from[i];
    }
}

template <int N, int A_ACROSS>
static __device__ void multiply(float *acc, uint16_t *a, uint16_t *b, const struct once &o)
{
    const int row_b = o.narrow ? 64 : 128, stride_b = o.wrong == WRONG_STRIDE ? 4 * row_b : 8 * row_b;
    for (int step = 0; step < DEEP / 16; step++)
        mma_group<N, A_ACROSS, 1>(acc,
                                  operand(a + step * (A_ACROSS ? 16 * 64 : 16), 64 * 2 * DEEP, 8 * 2 * DEEP,
                                          SWIZZLE_128),
                                  operand(b + step * 8 * row_b, row_b * DEEP, stride_b,
                                          o.narrow ? SWIZZLE_64 : SWIZZLE_128));
}

static __global__ void once_kernel(const __grid_constant__ struct once o)
{
    SHARED(memory);
    uint16_t *a = (uint16_t *)(memory + (0u - window_address(memory)) % ATOM) +
                  (o.wrong == WRONG_ALIGNMENT ? 64 : 0),
             *b = a + 64 * DEEP;
    uint64_t *bar = (uint64_t *)(b + 64 * DEEP);
    const int thread = (int)threadIdx.x, bytes = (64 + (o.narrow ? 32 : 64)) * DEEP * 2;
    float acc[16] = { 0 };
    if (thread == 0) {
        bar_init(bar, o.by_threads ? 128 : 1);
        if (o.wrong != WRONG_NO_BAR_FENCE)
            bars_ready();
    }
    __syncthreads();
    if (o.by_threads) {
        copy_by_threads(a, o.from_a, 64, 64, thread);
        copy_by_threads(b, o.from_b, DEEP, o.narrow ? 32 : 64, thread);
        if (o.wrong != WRONG_NO_PROXY_FENCE)
            writes_ready();
        bar_arrive(bar);
    } else if (thread == 0) {
        bar_arrive_bytes(bar, o.wrong == WRONG_MORE_BYTES    ? bytes + 16
                              : o.wrong == WRONG_FEWER_BYTES ? bytes / 2
                                                             : bytes);
        copy_box(a, &o.a, 0, 0, 0, bar);
        copy_box(b, &o.b, 0, 0, 0, bar);
    }
    if (o.wrong != WRONG_NO_WAIT)
        bar_wait(bar, o.wrong == WRONG_PARITY, 1);
    if (o.wrong != WRONG_NO_GROUP_FENCE)
        group_fence();
    if (o.a_across)
        multiply<32, 1>(acc, a, b, o);
    else
        multiply<32, 0>(acc, a, b, o);
    group_commit();
    if (o.wrong == WRONG_REUSED_EARLY && thread == 0) {
        bar_arrive_bytes(bar, 64 * DEEP * 2);
        copy_box(a, &o.a, 0, 0, 0, bar);
    }
    if (o.wrong == WRONG_WRITE_EARLY)
        a[thread] = 0;
    if (o.wrong == WRONG_READ_TOO_SOON)
        o.to[thread] = acc[0];
    if (o.wrong != WRONG_NO_GROUP_WAIT)
        group_wait<0>();
    for (int i = 0; i < 16 && o.wrong != WRONG_READ_TOO_SOON; i++)
        o.to[(thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8) * 32 + i / 4 * 8 + thread % 4 * 2 + i % 2] =
            acc[i];
}

/* Two blocks of a cluster: the first brings a box to both, each writes its own; the first tells the second
 * when it is done. */
static __global__ void two_kernel(const __grid_constant__ struct once o)
{
    SHARED(memory);
    uint16_t *b = (uint16_t *)(memory + (0u - window_address(memory)) % ATOM);
    uint64_t *bar = (uint64_t *)(b + 64 * DEEP); /* brought, done */
    const int thread = (int)threadIdx.x, rank = (int)blockIdx.x % 2;
    if (thread == 0) {
        bar_init(&bar[0], 1);
        bar_init(&bar[1], 1);
        bars_ready();
    }
    if (o.wrong == WRONG_NO_MEETING)
        __syncthreads();
    else
        cluster_sync();
    if (thread == 0) {
        bar_arrive_bytes(&bar[0], 64 * DEEP * 2);
        if (rank == 0)
            copy_box_to_all(b, &o.b, 0, 0, 0, &bar[0], o.wrong == WRONG_ONE_OF_TWO ? 1 : 3);
    }
    bar_wait(&bar[0], 0, 1);
    o.to[rank * 128 + thread] = b[thread]; /* row 0 and 1, as swizzled */
    if (rank == 0 && thread == 0)
        bar_arrive_at(&bar[1], o.wrong == WRONG_RANK ? 2 : 1);
    if (o.wrong == WRONG_ENDS_EARLY)
        return;
    if (rank == 1)
        bar_wait(&bar[1], 0, 1);
    cluster_sync();
}

/* The map of [rows][halves], its inner dimension in a box of row_halves. */
static int map_of(CUtensorMap *map, const uint16_t *p, int rows, int halves, int row_halves)
{
    const cuuint64_t size[3] = { (cuuint64_t)halves, (cuuint64_t)rows, 1 }, stride[2] = { 128, 128 * 64 };
    const cuuint32_t box[3] = { (cuuint32_t)row_halves, 64, 1 }, step[3] = { 1, 1, 1 };
    return cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)p, size, stride, box,
                                  step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  row_halves == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

extern "C" void case_once(struct dev *d, float *to, const uint16_t *a, const uint16_t *b, int rows,
                          int halves, int form, int wrong)
{
    struct once o = {};
    o.from_a = a, o.from_b = b, o.to = to, o.wrong = wrong;
    o.a_across = form & ONCE_A_ACROSS, o.narrow = form & ONCE_NARROW, o.by_threads = form & ONCE_BY_THREADS;
    if (cuda_well(d,
                  map_of(&o.a, a, rows, halves, 64) && map_of(&o.b, b, rows, halves, o.narrow ? 32 : 64)
                      ? cudaSuccess
                      : cudaErrorInvalidValue,
                  "a map"))
        cuda_launch(d, once_kernel, 1, 128, (size_t)20 * 1024, o);
}

extern "C" void case_two(struct dev *d, float *to, const uint16_t *b, int wrong)
{
    struct once o = {};
    o.to = to, o.wrong = wrong;
    if (cuda_well(d, map_of(&o.b, b, 64, 64, 64) ? cudaSuccess : cudaErrorInvalidValue, "a map"))
        cuda_launch_clusters(d, two_kernel, 2, 4, 128, (size_t)12 * 1024, o);
}

extern "C" const char *case_size(int alone, const char *first, int form, int64_t rows, int64_t cols,
                                 int n_leaves, int slots)
{
    struct wgmma w = {};
    struct gemm_job j = {};
    w.use = alone ? WGMMA_ALONE : WGMMA_BESIDE;
    strcpy(w.first, first);
    /* no parts: boxes bring nothing */
    j.rows = (int)rows, j.cols = (int)cols, j.n_leaves = n_leaves, j.leaf = 64;
    return wgmma_size(&w, j, (enum form)form, slots, (size_t)227 * 1024, 132);
}
