/* attn_avx512.c - attention for AVX-512: 6 rows x 64 columns in 24 of the 32 registers. */
#include <immintrin.h>

#define V __m512
#define VW 16
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_STORE(p, v) _mm512_storeu_ps(p, v)
#define V_SET1(x) _mm512_set1_ps(x)
#define V_ZERO() _mm512_setzero_ps()
#define V_ADD(a, b) _mm512_add_ps(a, b)
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define V_FMA_FLUSH(a, b, c) _mm512_fmadd_ps(a, b, c)
#define FLUSH_BITS 0x8040u                      /* FTZ | DAZ */
#define FLUSH_BEGIN() _mm_setcsr(_mm_getcsr() | FLUSH_BITS)
#define FLUSH_END() _mm_setcsr(_mm_getcsr() & ~FLUSH_BITS)

#define TILE_LIST(T) TILES_OF(T, 4) TILES_OF(T, 1) T(1, 8)
#define TILE_TABLE                                                                                                       \
    {                                                                                                                    \
        { 128, 1, { { tile_plain_1x8 }, { tile_flush_1x8 } } },                                                          \
        { 64, ANY_ROWS, { TILE_NAMES(plain, 4), TILE_NAMES(flush, 4) } },                                               \
        { 16, ANY_ROWS, { TILE_NAMES(plain, 1), TILE_NAMES(flush, 1) } },                                               \
    }
#define ATTN_OPS attn_avx512
#include "kernels/attn_text.h"
