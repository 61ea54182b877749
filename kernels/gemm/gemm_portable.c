/* gemm_portable.c - products in plain C: two columns at a time, fused multiply-adds by fmaf. Slow, and the
 * same bits. */
#include <math.h>
#include <string.h>
#include "kernels/flushed.h"
#include "kernels/gemm/b12.h"
#include "kernels/gemm/gemm_core.h"

#define V float
#define V_WIDTH 1
#define V_ZERO() 0.0f
#define V_LOAD(p) (*(p))
#define V_STORE(p, v) (*(p) = (v))
#define V_ADD(a, b) ((a) + (b))

#define TILE(layout, rows) f32_##layout##_##rows
#define TILE_SET gemm_tiles_portable_f32
#define TILE_ROWS 4
#define TILE_HELD 0
#define STEP_B(b) const float b0 = (b)[0], b1 = (b)[1];
#define STEP_ROW(p, q, x) \
    { \
        p = fmaf(*(x), b0, p); \
        q = fmaf(*(x), b1, q); \
    }
#define CHAIN_ENTER
#define CHAIN_LEAVE
#define PIN(v)
extern const struct gemm_tiles gemm_tiles_portable_f32;
#include "kernels/gemm/gemm_tile.inc"

/* Half of a pair of bf16 as fp32; denormals are read as signed zero. */
static inline float half_of(float pair, int upper)
{
    uint32_t w;
    float x;
    memcpy(&w, &pair, 4);
    w = upper ? w & 0xffff0000u : w << 16;
    if (!(w & 0x7f800000u))
        w &= 0x80000000u;
    memcpy(&x, &w, 4);
    return x;
}

#define TILE(layout, rows) bf16_##layout##_##rows
#define TILE_SET gemm_tiles_portable_bf16
#define TILE_ROWS 4
#define TILE_HELD 0
#define STEP_B(b) \
    const float b0u = half_of((b)[0], 1), b0l = half_of((b)[0], 0), b1u = half_of((b)[1], 1), \
                b1l = half_of((b)[1], 0);
#define STEP_ROW(p, q, x) \
    { \
        float a0u = half_of(*(x), 1), a0l = half_of(*(x), 0); \
        p = fma_flushed(a0l, b0l, fma_flushed(a0u, b0u, p)); \
        q = fma_flushed(a0l, b1l, fma_flushed(a0u, b1u, q)); \
    }
#define CHAIN_ENTER
#define CHAIN_LEAVE
#define PIN(v)
extern const struct gemm_tiles gemm_tiles_portable_bf16;
#include "kernels/gemm/gemm_tile.inc"

/* Kinds of panels, by kind and dtype (gemm_core.h). */
static const struct gemm_kind kinds[PANEL_KINDS][2] = {
    [PANEL_ROWS] = { [DT_F32] = { &gemm_tiles_portable_f32_natural, NULL, gemm_unpack_rows_plain },
                     [DT_BF16] = { &gemm_tiles_portable_bf16_natural, NULL, gemm_unpack_rows_plain } },
    [PANEL_B12] = { [DT_BF16] = { NULL, NULL, b12_unpack, 0 } }
};

GEMM_CLASS(gemm_portable, &gemm_tiles_portable_f32, &gemm_tiles_portable_bf16, kinds)
