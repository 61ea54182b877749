/* attn_avx2.c - attention for AVX2 and FMA: 6 rows x 16 columns in 12 of the 16 registers. */
#include <immintrin.h>

#include "kernels/fn.h"

#define V __m256
#define VW 8
#define V_LOAD(p) _mm256_loadu_ps(p)
#define V_STORE(p, v) _mm256_storeu_ps(p, v)
#define V_SET1(x) _mm256_set1_ps(x)
#define V_ZERO() _mm256_setzero_ps()
#define V_ADD(a, b) _mm256_add_ps(a, b)
#define V_SUB(a, b) _mm256_sub_ps(a, b)
#define V_MUL(a, b) _mm256_mul_ps(a, b)
#define V_MAX(a, b) _mm256_max_ps(a, b)
#define V_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define V_FMA_FLUSH(a, b, c) _mm256_fmadd_ps(a, b, c)
#define FLUSH_BITS 0x8040u /* FTZ | DAZ */
#define FLUSH_BEGIN() _mm_setcsr(_mm_getcsr() | FLUSH_BITS)
#define FLUSH_END() _mm_setcsr(_mm_getcsr() & ~FLUSH_BITS)

#define OPS static inline __attribute__((always_inline))

/* p * 2^n, n in the low bits of t */
OPS V lanes_add_exponent(V p, V t)
{
    const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32((int)fn_bits(FN_MAGIC)));
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(n, 23)));
}

/* fn_exp of every lane that is not above 0 (or is NaN): its text in vectors, so that it does not depend on
 * what the compiler vectorises. */
OPS V lanes_exp_down(V x)
{
    const V magic = V_SET1(FN_MAGIC);
    const V t = V_FMA(x, V_SET1(0x1.715476p+0f), magic), n = V_SUB(t, magic);
    const V r = V_FMA(n, V_SET1(-0x1.7f7d1cp-20f), V_FMA(n, V_SET1(-0x1.62e4p-1f), x));
    V q = V_FMA(V_SET1(0x1.6a2434p-10f), r, V_SET1(0x1.1239e2p-7f));
    q = V_FMA(q, r, V_SET1(0x1.5558f2p-5f));
    q = V_FMA(q, r, V_SET1(0x1.555492p-3f));
    q = V_FMA(q, r, V_SET1(0x1.fffffcp-2f));
    const V p = V_ADD(V_SET1(1), V_FMA(V_MUL(r, r), q, r));
    const V y = _mm256_and_ps(_mm256_cmp_ps(x, V_SET1(-87), _CMP_NLT_UQ), lanes_add_exponent(p, t));
    return _mm256_blendv_ps(y, _mm256_add_ps(x, x), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

OPS V lanes_exp(V x)
{
    return _mm256_blendv_ps(lanes_exp_down(x), V_SET1(FN_INF),
                            _mm256_cmp_ps(x, V_SET1(0x1.62e42ep+6f), _CMP_GT_OQ));
}

/* fn_round_bf16 of every lane */
OPS V lanes_round(V x)
{
    const __m256i b = _mm256_castps_si256(x), high = _mm256_set1_epi32((int)0xffff0000u),
                  a = _mm256_and_si256(b, _mm256_set1_epi32(0x7fffffff));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    const __m256i near = _mm256_and_si256(_mm256_add_epi32(_mm256_add_epi32(b, _mm256_set1_epi32(0x7fff)),
                                                           odd),
                                          high);
    const __m256i zero = _mm256_and_si256(b, _mm256_set1_epi32((int)0x80000000u));
    const __m256i nan = _mm256_or_si256(_mm256_and_si256(b, high), _mm256_set1_epi32(0x00400000));
    const __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), a),
                  is_nan = _mm256_cmpgt_epi32(a, _mm256_set1_epi32(0x7f800000));
    return _mm256_castsi256_ps(_mm256_blendv_epi8(_mm256_blendv_epi8(near, zero, is_tiny), nan, is_nan));
}

OPS float lanes_fold_add(V v)
{
    const __m128 y = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)),
                 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}

OPS float lanes_fold_max(V v)
{
    const __m128 y = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)),
                 z = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

/* The folds of 8 vectors together, the same order in each: the halves of two are put side by side, and so
 * on; one permutation puts the rows in order. */
#define FOLD_ROWS(op, x) \
    do { \
        V y[4], z[2]; \
        for (int i = 0; i < 4; i++) /* rows 2i, 2i + 1: 4 lanes each */ \
            y[i] = op(_mm256_permute2f128_ps(x[2 * i], x[2 * i + 1], 0x20), \
                      _mm256_permute2f128_ps(x[2 * i], x[2 * i + 1], 0x31)); \
        for (int i = 0; i < 2; i++) \
            z[i] = op(_mm256_shuffle_ps(y[2 * i], y[2 * i + 1], 0x44), \
                      _mm256_shuffle_ps(y[2 * i], y[2 * i + 1], 0xee)); \
        const V all = op(_mm256_shuffle_ps(z[0], z[1], 0x88), _mm256_shuffle_ps(z[0], z[1], 0xdd)); \
        return _mm256_permutevar8x32_ps(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); \
    } while (0)
OPS V lanes_fold_add_rows(const V *x) { FOLD_ROWS(V_ADD, x); }
OPS V lanes_fold_max_rows(const V *x) { FOLD_ROWS(V_MAX, x); }

/* the first n lanes of a, then those of b */
OPS V lanes_keep(V a, int64_t n, V b)
{
    const int few = n < 0 ? 0 : n > VW ? VW : (int)n;
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(few), index)));
}

/* kv_from_fp8 of 8 codes: fp16 with another bias, which flushing does not touch; 480 there is NaN here */
OPS V lanes_from_fp8(const char *p)
{
    const __m128i c = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p)), 7);
    const V y = V_MUL(_mm256_cvtph_ps(_mm_and_si128(c, _mm_set1_epi16((int16_t)0xbfff))), V_SET1(256));
    const V sign = V_SET1(-0.0f);
    const V nan = _mm256_cmp_ps(_mm256_andnot_ps(sign, y), V_SET1(480), _CMP_EQ_OQ);
    return _mm256_blendv_ps(y, _mm256_or_ps(_mm256_and_ps(sign, y), V_SET1(FN_NAN)), nan);
}
#define V_FROM_FP8(p) lanes_from_fp8(p)
#define V_FROM_INT8(p) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p))))
#define V_KEEP(x, n, y) lanes_keep(x, n, y)
#define V_EXP(x) lanes_exp(x)
#define V_EXP_DOWN(x) lanes_exp_down(x)
#define V_ROUND(x) lanes_round(x)
#define V_FOLD_ADD(x) lanes_fold_add(x)
#define V_FOLD_MAX(x) lanes_fold_max(x)
#define V_FOLD_ADD_ROWS(x) lanes_fold_add_rows(x)
#define V_FOLD_MAX_ROWS(x) lanes_fold_max_rows(x)
#define V_HAS_MINUS_ZERO(x) \
    (_mm256_movemask_epi8( \
         _mm256_cmpeq_epi32(_mm256_castps_si256(x), _mm256_set1_epi32((int)0x80000000u))) != 0)

#define HAVE_PAIRS 0
#define HAVE_DIRECT 1
#define V_LOAD_DIRECT(p, next) \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))), 16))
#define TILE_LIST(kind, T) TILES_OF(kind, T, 2) T(kind, 1, 8)
#define TILE_KINDS(n) \
    { \
        TILE_NAMES(plain, n), TILE_NAMES(flush, n), { NULL }, TILE_NAMES(direct, n), TILE_NAMES(stream, n), \
            TILE_NAMES(int8, n), TILE_NAMES(fp8, n) \
    }
#define TILE_TABLE \
    { \
        { 64, \
          1, \
          { { tile_plain_1x8 }, \
            { tile_flush_1x8 }, \
            { NULL }, \
            { tile_direct_1x8 }, \
            { tile_stream_1x8 }, \
            { tile_int8_1x8 }, \
            { tile_fp8_1x8 } } }, \
            { 16, ANY_ROWS, TILE_KINDS(2) }, \
    }
#define ATTN_OPS attn_avx2
#include "kernels/attn/attn.inc"
