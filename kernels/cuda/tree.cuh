/* tree.cuh - tree.h for the device. */
#ifndef SHARDLINE_KERNELS_CUDA_TREE_CUH
#define SHARDLINE_KERNELS_CUDA_TREE_CUH

#include "kernels/cuda/cxx.h"
#include "kernels/fn.h"

FN int64_t gpu_tree_run(int64_t n)
{
    while (n > 0 && n % 2 == 0)
        n /= 2;
    return n;
}

FN int gpu_tree_merges(int64_t n, int64_t i)
{
    const int64_t m = gpu_tree_run(n);
    int merges = i % m != 0;
    if (i % m != m - 1)
        return merges;
    for (int64_t run = i / m; run & 1; run >>= 1)
        merges++;
    return merges;
}

FN int gpu_tree_depth_before(int64_t n, int64_t i)
{
    const int64_t m = gpu_tree_run(n);
    return __popcll((unsigned long long)(i / m)) + (i % m != 0);
}

FN int gpu_nest_merges(int64_t n, int64_t inner, int64_t i)
{
    if (inner < 2)
        return gpu_tree_merges(n, i);
    const int merges = gpu_tree_merges(inner, i % inner);
    return i % inner < inner - 1 ? merges : merges + gpu_tree_merges(n / inner, i / inner);
}

FN int gpu_nest_depth_before(int64_t n, int64_t inner, int64_t i)
{
    if (inner < 2)
        return gpu_tree_depth_before(n, i);
    return gpu_tree_depth_before(n / inner, i / inner) + gpu_tree_depth_before(inner, i % inner);
}

FN int64_t gpu_block_begin(int64_t n, int grain, int g)
{
    const int64_t b = (n + grain - 1) / grain * g;
    return b < n ? b : n;
}

FN float gpu_tree_sum(int64_t n, const float *x, int64_t stride)
{
    float stack[TREE_DEPTH_MAX];
    int depth = 0;
    for (int64_t i = 0; i < n; i++) {
        float v = x[i * stride];
        for (int k = gpu_tree_merges(n, i); k > 0; k--)
            v = stack[--depth] + v;
        stack[depth++] = v;
    }
    return n ? stack[0] : 0.0f;
}

FN float gpu_chain_sum(int64_t n, const float *x, int64_t stride)
{
    float sum = n ? x[0] : 0.0f;
    for (int64_t i = 1; i < n; i++)
        sum += x[i * stride];
    return sum;
}

#endif
