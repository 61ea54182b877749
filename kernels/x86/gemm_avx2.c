/* gemm_avx2.c - products with AVX2 and FMA: tiles of 6 rows x 16 columns, which is half a panel, long
 * contractions by steps whose part of a half fits the first cache (gemm.c); two rows and fewer, which wait
 * for memory, take both halves at once and all of the contraction.
 * bf16: A is widened to fp32 when it is packed, B in registers; two multiply-adds a pair under FTZ|DAZ, as
 * in gemm_avx512.c. */
#include <immintrin.h>
#include "kernels/gemm/gemm_core.h"
#include "kernels/x86/b12_avx2.h"

#define HALF 16  /* columns of a panel side by side */
#define STEP 256 /* units: 16 KiB of B */

/* vfmadd231ps: sum += a * b. One statement a row: gcc 12 moves single ones, and spills. */
#define FMA_ROW(p, q, x, b0, b1) \
    { \
        __m256 a0; \
        __asm__ volatile("vbroadcastss %3, %2\n\tvfmadd231ps %4, %2, %0\n\tvfmadd231ps %5, %2, %1" \
                         : "+x"(p), "+x"(q), "=&x"(a0) \
                         : "m"(*(x)), "x"(b0), "x"(b1)); \
    }

static inline __m256 upper(const float *pairs)
{
    return _mm256_and_ps(_mm256_loadu_ps(pairs), _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000)));
}
static inline __m256 lower(const float *pairs)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(_mm256_loadu_ps(pairs)), 16));
}

/* The mode of gemm_flush.h, which says why; it is dear to change and stays on over leaves that nothing older
 * is added to. */
#define FLUSH_STATE \
    unsigned mode, flushing, is_flushing = 0; \
    __asm__ volatile("stmxcsr %0" : "=m"(mode) : : "memory"); \
    flushing = mode | 0x8040u;
#define FLUSH_ENTER \
    if (!is_flushing) \
        __asm__ volatile("ldmxcsr %0" : : "m"(flushing) : "memory"); \
    is_flushing = 1;
#define FLUSH_LEAVE \
    if (s->merges[g] > 0 || g == s->n - 1) { \
        __asm__ volatile("ldmxcsr %0" : : "m"(mode) : "memory"); \
        is_flushing = 0; \
    }

/* ---- few rows: a vector is a half of a panel
 * -------------------------------------------------------------------------- */

struct half {
    __m256 low, high;
};
static inline struct half half_zero(void)
{
    return (struct half){ _mm256_setzero_ps(), _mm256_setzero_ps() };
}
static inline struct half half_load(const float *p)
{
    return (struct half){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}
static inline void half_store(float *p, struct half v)
{
    _mm256_storeu_ps(p, v.low), _mm256_storeu_ps(p + 8, v.high);
}
static inline struct half half_add(struct half a, struct half b)
{
    return (struct half){ _mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high) };
}

#define V struct half
#define V_WIDTH HALF
#define V_ZERO() half_zero()
#define V_LOAD(p) half_load(p)
#define V_STORE(p, v) half_store(p, v)
#define V_ADD(a, b) half_add(a, b)
#define SECOND(b) ((b) + TILE_UNITS * HALF)
#define HALVES_ROW(p, q, x) \
    FMA_ROW((p).low, (p).high, x, b0, b1) \
    FMA_ROW((q).low, (q).high, x, b2, b3)

#define TILE(layout, rows) few_f32_##layout##_##rows
#define TILE_SET gemm_tiles_avx2_f32_few
#define TILE_ROWS 2
#define TILE_HELD 0
#define TILE_PANEL HALF
#define STEP_B(b) \
    const __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps((b) + 8); \
    const __m256 b2 = _mm256_loadu_ps(SECOND(b)), b3 = _mm256_loadu_ps(SECOND(b) + 8);
#define CHAIN_ENTER
#define CHAIN_LEAVE
#define PIN(v)
#define STEP_ROW HALVES_ROW
extern const struct gemm_tiles gemm_tiles_avx2_f32_few;
#include "kernels/gemm/gemm_tile.inc"

#define TILE(layout, rows) few_bf16_##layout##_##rows
#define TILE_SET gemm_tiles_avx2_bf16_few
#define TILE_ROWS 2
#define TILE_HELD 0
#define TILE_PANEL HALF
#define STEP_B(b) \
    const __m256 b0 = upper(b), b1 = upper((b) + 8), b2 = upper(SECOND(b)), b3 = upper(SECOND(b) + 8);
#define STEP_B_LOWER(b) \
    const __m256 b0 = lower(b), b1 = lower((b) + 8), b2 = lower(SECOND(b)), b3 = lower(SECOND(b) + 8);
#define PIN_HALF(v) __asm__ volatile("" : "+x"((v).low), "+x"((v).high));
#define PIN PIN_HALF
#define CHAIN_STATE FLUSH_STATE
#define CHAIN_ENTER FLUSH_ENTER
#define CHAIN_LEAVE FLUSH_LEAVE
#define STEP_ROW HALVES_ROW
extern const struct gemm_tiles gemm_tiles_avx2_bf16_few;
#include "kernels/gemm/gemm_tile.inc"

/* strips of whole panels */
#define TILE(layout, rows) b12_##layout##_##rows
#define TILE_SET gemm_tiles_avx2_b12
#define TILE_ROWS 2
#define TILE_HELD 0
#define STEP_B(b) \
    const __m256 b0 = upper(b), b1 = upper((b) + 8), b2 = upper((b) + HALF), b3 = upper((b) + HALF + 8);
#define STEP_B_LOWER(b) \
    const __m256 b0 = lower(b), b1 = lower((b) + 8), b2 = lower((b) + HALF), b3 = lower((b) + HALF + 8);
#define PIN PIN_HALF
#define CHAIN_STATE FLUSH_STATE
#define CHAIN_ENTER FLUSH_ENTER
#define CHAIN_LEAVE FLUSH_LEAVE
#define STEP_ROW HALVES_ROW
#define B12_PAIRED 0
#define B12_RUN(ROWS) (void)pair;
extern const struct gemm_tiles gemm_tiles_avx2_b12;
#include "kernels/gemm/b12_tile.inc"

#undef V
#undef V_WIDTH
#undef V_ZERO
#undef V_LOAD
#undef V_STORE
#undef V_ADD

/* ---- any number of rows
 * ----------------------------------------------------------------------------------------------- */

#define V __m256
#define V_WIDTH 8
#define V_ZERO() _mm256_setzero_ps()
#define V_LOAD(p) _mm256_loadu_ps(p)
#define V_STORE(p, v) _mm256_storeu_ps((p), (v))
#define V_ADD(a, b) _mm256_add_ps((a), (b))

#define TILE(layout, rows) f32_##layout##_##rows
#define TILE_SET gemm_tiles_avx2_f32
#define TILE_ROWS 6
#define TILE_HELD 0
#define TILE_PANEL HALF
#define TILE_STEP STEP
#define TILE_FEW gemm_tiles_avx2_f32_few
#define STEP_B(b) const __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps((b) + 8);
#define STEP_ROW(p, q, x) FMA_ROW(p, q, x, b0, b1)
#define CHAIN_ENTER
#define CHAIN_LEAVE
#define PIN(v)
extern const struct gemm_tiles gemm_tiles_avx2_f32;
#include "kernels/gemm/gemm_tile.inc"

#define TILE(layout, rows) bf16_##layout##_##rows
#define TILE_SET gemm_tiles_avx2_bf16
#define TILE_ROWS 6
#define TILE_HELD 0
#define TILE_PANEL HALF
#define TILE_STEP STEP
#define TILE_FEW gemm_tiles_avx2_bf16_few
#define STEP_B(b) const __m256 b0 = upper(b), b1 = upper((b) + 8);
#define STEP_B_LOWER(b) const __m256 b0 = lower(b), b1 = lower((b) + 8);
#define STEP_ROW(p, q, x) FMA_ROW(p, q, x, b0, b1)
#define PIN(v) __asm__ volatile("" : "+x"(v));
#define CHAIN_STATE FLUSH_STATE
#define CHAIN_ENTER FLUSH_ENTER
#define CHAIN_LEAVE FLUSH_LEAVE
extern const struct gemm_tiles gemm_tiles_avx2_bf16;
#include "kernels/gemm/gemm_tile.inc"

/* Kinds of panels, by kind and dtype (gemm_core.h). */
static const struct gemm_kind kinds[PANEL_KINDS][2] = {
    [PANEL_ROWS] = { [DT_F32] = { &gemm_tiles_avx2_f32_natural, NULL, gemm_unpack_rows_plain },
                     [DT_BF16] = { &gemm_tiles_avx2_bf16_natural, NULL, gemm_unpack_rows_plain } },
    [PANEL_B12] = { [DT_BF16] = { &gemm_tiles_avx2_b12, NULL, b12_unpack_avx2, 2 } }
};

GEMM_CLASS(gemm_avx2, &gemm_tiles_avx2_f32, &gemm_tiles_avx2_bf16, kinds)
