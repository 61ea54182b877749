/* gemm_avx512bf16.c - bf16 products with the dot instruction vdpbf16ps; fp32 is that of AVX-512F. */
#include <immintrin.h>
#include "kernels/gemm/gemm_core.h"
#include "kernels/x86/b12_avx512.h"
#include "kernels/x86/gemm_block_avx512.h"

#define TILE_BLOCK gemm_block_avx512
#define V __m512
#define V_WIDTH 16
#define V_ZERO() _mm512_setzero_ps()
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_STORE(p, v) _mm512_storeu_ps((p), (v))
#define V_ADD(a, b) _mm512_add_ps((a), (b))

#define TILE(layout, rows) bf16_##layout##_##rows
#define TILE_SET gemm_tiles_avx512bf16_bf16
#define TILE_ROWS 14
#define TILE_HELD 7
#define DOT_B(b) const __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps((b) + 16);
#define DOT_ROW(p, q, x) /* one statement: gcc 12 moves single ones, and spills */ \
    { \
        __m512 a0; \
        __asm__ volatile("vbroadcastss %3, %2\n\tvdpbf16ps %4, %2, %0\n\tvdpbf16ps %5, %2, %1" \
                         : "+v"(p), "+v"(q), "=&v"(a0) \
                         : "m"(*(x)), "v"(b0), "v"(b1)); \
    }
#define STEP_B DOT_B
#define STEP_ROW DOT_ROW
#define CHAIN_ENTER
#define CHAIN_LEAVE
#define PIN(v)
extern const struct gemm_tiles gemm_tiles_avx512bf16_bf16;
#include "kernels/gemm/gemm_tile.inc"

#define TILE(layout, rows) b12_##layout##_##rows
#define TILE_SET gemm_tiles_avx512bf16_b12
#define TILE_ROWS 14
#define TILE_HELD 7
#define STEP_B DOT_B
#define STEP_ROW DOT_ROW
#define CHAIN_ENTER
#define CHAIN_LEAVE
#define PIN(v)
#define B12_PAIRED 8
#define B12_OPERANDS(v0, v1) const __m512 b0 = v0, b1 = v1;
extern const struct gemm_tiles gemm_tiles_avx512bf16_b12;
#include "kernels/gemm/b12_tile.inc"

/* Kinds of panels, by kind and dtype (gemm_core.h). */
extern const struct gemm_tiles gemm_tiles_avx512_f32_natural;
static const struct gemm_kind kinds[PANEL_KINDS][2] = {
    [PANEL_ROWS] = { [DT_F32] = { &gemm_tiles_avx512_f32_natural, NULL, gemm_unpack_rows_avx512 },
                     [DT_BF16] = { &gemm_tiles_avx512bf16_bf16_natural, NULL, gemm_unpack_rows_avx512 } },
    [PANEL_B12] = { [DT_BF16] = { &gemm_tiles_avx512bf16_b12, NULL, b12_unpack_avx512, 28 } }
};

GEMM_CLASS(gemm_avx512bf16, &gemm_tiles_avx512_f32, &gemm_tiles_avx512bf16_bf16, kinds)
