/* attn_avx2.c - attention for AVX2 and FMA: 6 rows x 16 columns in 12 of the 16 registers. */
#include <immintrin.h>

#define V __m256
#define VW 8
#define V_LOAD(p) _mm256_loadu_ps(p)
#define V_STORE(p, v) _mm256_storeu_ps(p, v)
#define V_SET1(x) _mm256_set1_ps(x)
#define V_ZERO() _mm256_setzero_ps()
#define V_ADD(a, b) _mm256_add_ps(a, b)
#define V_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define V_FMA_FLUSH(a, b, c) _mm256_fmadd_ps(a, b, c)
#define FLUSH_BITS 0x8040u                      /* FTZ | DAZ */
#define FLUSH_BEGIN() _mm_setcsr(_mm_getcsr() | FLUSH_BITS)
#define FLUSH_END() _mm_setcsr(_mm_getcsr() & ~FLUSH_BITS)

#define TILE_LIST(T) TILES_OF(T, 2) T(1, 8)
#define TILE_TABLE                                                                                                       \
    {                                                                                                                    \
        { 64, 1, { { tile_plain_1x8 }, { tile_flush_1x8 } } },                                                           \
        { 16, ANY_ROWS, { TILE_NAMES(plain, 2), TILE_NAMES(flush, 2) } },                                               \
    }
#define ATTN_OPS attn_avx2
#include "kernels/attn_text.h"
