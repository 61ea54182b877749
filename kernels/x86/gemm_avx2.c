/* gemm_avx2.c - products with AVX2 and FMA, half a panel wide; bf16 as in gemm_avx512.c. */
#include <immintrin.h>
#include "kernels/gemm_core.h"

#define V __m256
#define V_WIDTH 8
#define V_ZERO() _mm256_setzero_ps()
#define V_LOAD(p) _mm256_loadu_ps(p)
#define V_STORE(p, v) _mm256_storeu_ps((p), (v))
#define V_ADD(a, b) _mm256_add_ps((a), (b))

#define FMA(sum, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));      /* sum += a * b */

#define TILE(layout, rows) f32_##layout##_##rows
#define TILE_SET gemm_tiles_avx2_f32
#define TILE_ROWS 6
#define TILE_HELD 0
#define STEP_B(b) const __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps((b) + 8);
#define STEP_ROW(p, q, x)                                                                                                \
    {                                                                                                                    \
        __m256 a0 = _mm256_broadcast_ss(x);                                                                              \
        FMA(p, a0, b0)                                                                                                   \
        FMA(q, a0, b1)                                                                                                   \
    }
#define CHAIN_ENTER
#define CHAIN_LEAVE
#define PIN(v)
extern const struct gemm_tiles gemm_tiles_avx2_f32;
#include "kernels/gemm_tile.h"

static inline __m256 upper(__m256 pairs)
{
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs), _mm256_set1_epi32((int)0xffff0000)));
}
static inline __m256 lower(__m256 pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16)); }

#define TILE(layout, rows) bf16_##layout##_##rows
#define TILE_SET gemm_tiles_avx2_bf16
#define TILE_ROWS 4
#define TILE_HELD 0
#define STEP_B(b)                                                                                                        \
    const __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps((b) + 8);                                                 \
    const __m256 b0u = upper(b0), b0l = lower(b0), b1u = upper(b1), b1l = lower(b1);
#define STEP_ROW(p, q, x)                                                                                                \
    {                                                                                                                    \
        __m256 a0 = _mm256_broadcast_ss(x), a0u = upper(a0), a0l = lower(a0);                                            \
        FMA(p, a0u, b0u)                                                                                                 \
        FMA(q, a0u, b1u)                                                                                                 \
        FMA(p, a0l, b0l)                                                                                                 \
        FMA(q, a0l, b1l)                                                                                                 \
    }
#include "kernels/gemm_flush.h"
extern const struct gemm_tiles gemm_tiles_avx2_bf16;
#include "kernels/gemm_tile.h"

GEMM_CLASS(gemm_avx2, &gemm_tiles_avx2_f32, &gemm_tiles_avx2_bf16)
