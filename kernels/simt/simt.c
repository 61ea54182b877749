/* simt.c - the CPU class "simt": the CUDA device's plain kernels, compiled for the host. Only
 * SHARDLINE_ISA=simt chooses it. */
#include "kernels/attn.h"
#include "kernels/flushed.h"
#include "kernels/gemm.h"
#include "kernels/lanes.h"
#include "kernels/rows.h"

#include "kernels/rows/each.inc"

static inline float fma_pair_half(float a, float b, float sum)
{
    return fma_flushed(flushed(a), flushed(b), flushed(sum));
}

#include "kernels/simt/simt.inc"

const struct gemm_ops gemm_simt = { .linear_pack = op_linear_pack,
                                    .linear = op_linear,
                                    .linear_dx = op_linear_dx,
                                    .linear_dw = op_linear_dw,
                                    .linear_experts = op_linear_experts,
                                    .linear_dx_experts = op_linear_dx_experts,
                                    .linear_dw_experts = op_linear_dw_experts };
const struct attn_ops attn_simt = { .attn = op_attn, .attn_dx = op_attn_dx };
const struct row_ops rows_simt = {
#define X(name) .name = op_##name,
    ROW_OPS(X)
#undef X
};
