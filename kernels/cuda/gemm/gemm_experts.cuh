/* gemm_experts.cuh - products of experts: the blocks of all experts in one launch. A block puts its expert's
 * job together in shared memory and runs the text of a dense product on it, so that every row has a dense
 * product's bits. Leaves of a weight gradient end where the expert's lists say; one without rows is -0. */
#ifndef SHARDLINE_KERNELS_CUDA_GEMM_GEMM_EXPERTS_CUH
#define SHARDLINE_KERNELS_CUDA_GEMM_GEMM_EXPERTS_CUH

#include "kernels/cuda/gemm/gemm_bf16.cuh"
#include "kernels/cuda/gemm/gemm_f32.cuh"

/* What an expert's job has of its own. */
struct gemm_expert {
    int64_t row;              /* of the operands that all share: rows of A, or of the contraction */
    int rows;                 /* of the result */
    const void *b[PARTS_MAX]; /* NULL: B is an operand that all share */
    const int64_t *ends;      /* gemm_job's */
    struct tree_acc acc;
    struct gemm_job::gemm_run run;
};
/* Blocks first[e] .. first[e + 1] - 1 are expert e's; a block's number there is its task. */
struct gemm_experts {
    const struct gemm_expert *of;
    const unsigned *first;
    int n, size; /* bytes of an element */
};

GPU const void *moved(const struct side &x, int64_t row, int size)
{
    return (const char *)x.p + row * x.ld * size;
}

/* This block's job and task. All its threads call this. */
GPU unsigned expert_job(struct gemm_job *to, const struct gemm_job &all, const struct gemm_experts &x)
{
    int e = 0;
    for (int high = x.n; high - e > 1;) {
        const int half = (e + high) / 2;
        if (x.first[half] <= blockIdx.x)
            e = half;
        else
            high = half;
    }
    const struct gemm_expert &own = x.of[e];
    const uint32_t *from = (const uint32_t *)&all;
    for (unsigned i = threadIdx.x; i < sizeof all / 4; i += blockDim.x)
        ((uint32_t *)to)[i] = from[i];
    __syncthreads();
    if (threadIdx.x == 0) {
        to->rows = own.rows;
        to->acc = own.acc;
        to->run = own.run;
        to->ends = own.ends;
        to->ends_from = own.row;
        for (int s = 0; s < to->n_parts; s++) {
            to->a[s].p = moved(all.a[s], own.row, x.size);
            to->b[s].p = own.b[s] ? own.b[s] : moved(all.b[s], own.row, x.size);
        }
    }
    __syncthreads();
    return blockIdx.x - x.first[e];
}

template <class T>
static __global__ void __launch_bounds__(T::THREADS)
    gemm_experts_kernel(const __grid_constant__ struct gemm_job all,
                        const __grid_constant__ struct gemm_experts x, int slots)
{
    __shared__ struct gemm_job j;
    SHARED(memory);
    const unsigned task = expert_job(&j, all, x);
    if (j.acc.level[0])
        gemm_block<T, true>(j, task, memory, slots);
}

template <bool BY_ROWS>
static __global__ void __launch_bounds__(F32_THREADS)
    f32_experts_kernel(const __grid_constant__ struct gemm_job all,
                       const __grid_constant__ struct gemm_experts x, int slots)
{
    __shared__ struct gemm_job j;
    SHARED(memory);
    const unsigned task = expert_job(&j, all, x);
    if (j.acc.level[0])
        f32_block<BY_ROWS, true>(j, task, memory, slots);
}

template <class T>
static void gemm_experts_start(struct dev *d, const struct gemm_job &all, const struct gemm_experts &x,
                               unsigned blocks, int slots)
{
    cuda_launch(d, gemm_experts_kernel<T>, blocks, T::THREADS,
                (size_t)T::PIPE_BYTES + (size_t)slots * T::SLOT_BYTES, all, x, slots);
}

template <bool BY_ROWS>
static void f32_experts_start(struct dev *d, const struct gemm_job &all, const struct gemm_experts &x,
                              unsigned blocks, int slots)
{
    cuda_launch(d, f32_experts_kernel<BY_ROWS>, blocks, F32_THREADS,
                (size_t)F32_PIPE_BYTES + (size_t)slots * F32_SLOT_BYTES, all, x, slots);
}

#endif
