/* gemm_avx512bf16.c - bf16 products with the dot instruction vdpbf16ps; fp32 is that of AVX-512F. */
#include <immintrin.h>
#include "kernels/gemm_core.h"

#define V __m512
#define V_WIDTH 16
#define V_ZERO() _mm512_setzero_ps()
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_STORE(p, v) _mm512_storeu_ps((p), (v))
#define V_ADD(a, b) _mm512_add_ps((a), (b))

#define TILE(layout, rows) bf16_##layout##_##rows
#define TILE_SET gemm_tiles_avx512bf16_bf16
#define TILE_ROWS 14
#define STEP_B(b) const __m512bh b0 = (__m512bh)_mm512_loadu_ps(b), b1 = (__m512bh)_mm512_loadu_ps((b) + 16);
#define STEP_ROW(p, q, x)                                                                                                \
    {                                                                                                                    \
        __m512bh a0 = (__m512bh)_mm512_set1_ps(*(x));                                                                    \
        p = _mm512_dpbf16_ps(p, a0, b0);                                                                                 \
        q = _mm512_dpbf16_ps(q, a0, b1);                                                                                 \
    }
#define CHAIN_ENTER
#define CHAIN_LEAVE
#define PIN(v)
extern const struct gemm_tiles gemm_tiles_avx512bf16_bf16;
#include "kernels/gemm_tile.h"

GEMM_CLASS(gemm_avx512bf16, &gemm_tiles_avx512_f32, &gemm_tiles_avx512bf16_bf16)
