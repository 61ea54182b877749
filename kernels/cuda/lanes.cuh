/* lanes.cuh - the lanes of lanes.h on a GPU: a warp, see there. */
#ifndef SHARDLINE_KERNELS_CUDA_LANES_CUH
#define SHARDLINE_KERNELS_CUDA_LANES_CUH

#include <assert.h>
#include "kernels/cuda/priv.h"
#include "kernels/cuda/tree.cuh"
#include "kernels/cuda/warp.cuh"

#define WARP_ALL 0xffffffffu

/* A lane's own element, whatever the index. */
struct lane_cell {
    float v;
    __device__ __forceinline__ float &operator[](int64_t) { return v; }
    __device__ __forceinline__ const float &operator[](int64_t) const { return v; }
};
struct lanes {
    struct lane_cell x;
};

#define EACH_LANE(j, n) \
    int j = (int)(threadIdx.x % LANES), j##_end_ = (int)(n); \
    j < j##_end_; \
    j += LANES
#define LANE_OF(a, j) __shfl_sync(WARP_ALL, (a)->x.v, (j))

/* C's void *, which becomes any pointer by itself. */
struct any_pointer {
    const void *p;
    template <class T> __host__ __device__ __forceinline__ operator T *() const { return (T *)p; }
};
FN struct any_pointer mat_row(struct mat m, int64_t r)
{
    struct any_pointer p = { (const char *)m.p + r * m.ld * (int64_t)(m.dt == DT_F32 ? 4 : 2) };
    return p;
}

/* The same folds as on a CPU; every lane gets the result. All lanes of the warp take part. */
FN float lanes_fold(struct lanes *a)
{
    float v = a->x.v;
    for (int w = LANES / 2; w > 0; w /= 2)
        v = v + __shfl_down_sync(WARP_ALL, v, w);
    return __shfl_sync(WARP_ALL, v, 0);
}

FN float lanes_max(const struct lanes *a)
{
    float m = a->x.v;
    for (int w = LANES / 2; w > 0; w /= 2) {
        float o = __shfl_xor_sync(WARP_ALL, m, w);
        m = o > m ? o : m;
    }
    return m + 0.0f;
}

#define ROW_TASK static __device__ void
#define ROW_ARG struct any_pointer
#define ROW_BOTH static __host__ __device__ __forceinline__
#define UPLOAD(d, p, bytes) ((decltype(p))cuda_upload((d), (p), (bytes)))
#define UPLOAD_IDS(d, ids, n) UPLOAD(d, ids, sizeof(int32_t) * (size_t)(n))
#define UPLOAD_ATTN(d, a) cuda_upload_attn((d), (a))
#define FLAT_PIECE(n) 256
#define ROPE_PIECE 1

/* The same with sequences and pages on the device. */
struct attn cuda_upload_attn(struct dev *d, const struct attn *a);

/* ---- tasks on the GPU: a warp each ---- */
/* a block */
enum { SPREAD_WARPS = 4 };

template <auto Task, class Job>
static __global__ void spread_kernel(const __grid_constant__ Job job, int64_t n, int64_t per)
{
    const int64_t i = ((int64_t)blockIdx.x * SPREAD_WARPS + threadIdx.x / LANES) * per;
    struct any_pointer arg = { &job };
    if (i < n)
        Task(arg, i, i + per < n ? i + per : n);
}

/* share: warps for each task, which know theirs by blockIdx.y. */
template <auto Task, class Job>
static void cuda_spread(struct dev *d, int64_t n, int64_t per, const Job *job, int64_t share = 1)
{
    const int64_t tasks = (n + per - 1) / per, blocks = (tasks + SPREAD_WARPS - 1) / SPREAD_WARPS;
    if (n <= 0)
        return;
    share = share < 65535 ? share : 65535;
    if (blocks > INT32_MAX) {
        cuda_well(d, cudaErrorInvalidConfiguration, "more rows than one launch takes");
        return;
    }
    cuda_launch(d, spread_kernel<Task, Job>, dim3((unsigned)blocks, (unsigned)share), SPREAD_WARPS * LANES, 0,
                *job, n, per);
}
#define rows_spread(d, n, per, task, job) cuda_spread<task>((d), (n), (per), (job))
#define rows_per_task(cols) 1

/* A row of a batch that decodes is for more warps than one: each takes some of its chunks. */
static inline int64_t SHARES(int64_t cols) { return cols > 0 ? (cols + LANES * 4 - 1) / (LANES * 4) : 1; }
#define rows_share(d, n, per, shares, task, job) cuda_spread<task>((d), (n), (per), (job), (shares))
#define EACH_OWN(h, n) \
    int h = (int)blockIdx.y; \
    h < (n); \
    h += (int)gridDim.y
#define OWN_CHUNKS(n, i, m, ...) \
    for (int64_t i = (int64_t)blockIdx.y * LANES; i < (n); i += (int64_t)gridDim.y * LANES) { \
        const int m = (int)((n)-i < LANES ? (n)-i : LANES); \
        __VA_ARGS__; \
    }

#define tree_merges gpu_tree_merges
#define tree_depth_before gpu_tree_depth_before
#define nest_merges gpu_nest_merges
#define nest_depth_before gpu_nest_depth_before
#define block_begin gpu_block_begin
#define tree_sum gpu_tree_sum
#define chain_sum gpu_chain_sum
#define dtype_size(t) ((t) == DT_F32 ? (size_t)4 : (size_t)2)
#define attn_value_dim(a) ((int64_t)((a)->v_dim > 0 ? (a)->v_dim : (a)->head_dim))
#define attn_head_bytes(a) \
    ((size_t)((a)->v_dim > 0 ? 1 : 2) * ATTN_PAGE * (size_t)(a)->head_dim * dtype_size((a)->dt))

#endif
