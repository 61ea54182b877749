/* gemm_avx512.c - products with AVX-512F; bf16 pairs are widened in registers and multiplied under
 * FTZ|DAZ. */
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

#define FMA(sum, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); /* sum += a * b */

#define TILE(layout, rows) f32_##layout##_##rows
#define TILE_SET gemm_tiles_avx512_f32
#define TILE_ROWS 14
#define TILE_HELD 7
#define STEP_B(b) const __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps((b) + 16);
#define STEP_ROW(p, q, x) /* one statement: gcc 12 moves single ones, and spills */ \
    { \
        __m512 a0; \
        __asm__ volatile("vbroadcastss %3, %2\n\tvfmadd231ps %4, %2, %0\n\tvfmadd231ps %5, %2, %1" \
                         : "+v"(p), "+v"(q), "=&v"(a0) \
                         : "m"(*(x)), "v"(b0), "v"(b1)); \
    }
#define CHAIN_ENTER
#define CHAIN_LEAVE
#define PIN(v)
#include "kernels/gemm/gemm_tile.inc"

static inline __m512 upper(__m512 pairs)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32((int)0xffff0000)));
}
static inline __m512 lower(__m512 pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}

#define TILE(layout, rows) bf16_##layout##_##rows
#define TILE_SET gemm_tiles_avx512_bf16
#define TILE_ROWS 12
#define TILE_HELD 0
#define WIDE_B(b) \
    const __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps((b) + 16); \
    const __m512 b0u = upper(b0), b0l = lower(b0), b1u = upper(b1), b1l = lower(b1);
#define WIDE_ROW(p, q, x) \
    { \
        __m512 a0 = _mm512_set1_ps(*(x)), a0u = upper(a0), a0l = lower(a0); \
        FMA(p, a0u, b0u) \
        FMA(q, a0u, b1u) \
        FMA(p, a0l, b0l) \
        FMA(q, a0l, b1l) \
    }
#define STEP_B WIDE_B
#define STEP_ROW WIDE_ROW
#include "kernels/gemm/gemm_flush.h"
extern const struct gemm_tiles gemm_tiles_avx512_bf16;
#include "kernels/gemm/gemm_tile.inc"

#define TILE(layout, rows) b12_##layout##_##rows
#define TILE_SET gemm_tiles_avx512_b12
#define TILE_ROWS 12
#define TILE_HELD 0
#define STEP_B WIDE_B
#define STEP_ROW WIDE_ROW
#define B12_PAIRED 8
#define B12_OPERANDS(v0, v1) const __m512 b0u = upper(v0), b0l = lower(v0), b1u = upper(v1), b1l = lower(v1);
#include "kernels/gemm/gemm_flush.h"
extern const struct gemm_tiles gemm_tiles_avx512_b12;
#include "kernels/gemm/b12_tile.inc"

/* Kinds of panels, by kind and dtype (gemm_core.h). */
static const struct gemm_kind kinds[PANEL_KINDS][2] = {
    [PANEL_ROWS] = { [DT_F32] = { &gemm_tiles_avx512_f32_natural, NULL, gemm_unpack_rows_avx512 },
                     [DT_BF16] = { &gemm_tiles_avx512_bf16_natural, NULL, gemm_unpack_rows_avx512 } },
    [PANEL_B12] = { [DT_BF16] = { &gemm_tiles_avx512_b12, NULL, b12_unpack_avx512, 24 } }
};

GEMM_CLASS(gemm_avx512, &gemm_tiles_avx512_f32, &gemm_tiles_avx512_bf16, kinds)
