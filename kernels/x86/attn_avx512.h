/* attn_avx512.h - vectors and tiles of attention for AVX-512, without and with the bf16 dot instruction: 6
 * rows x 64 columns in 24 of the 32 registers. */
#ifndef SHARDLINE_KERNELS_X86_ATTN_AVX512_H
#define SHARDLINE_KERNELS_X86_ATTN_AVX512_H

#include <immintrin.h>

#include "kernels/fn.h"

#define V __m512
#define VW 16
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_STORE(p, v) _mm512_storeu_ps(p, v)
#define V_SET1(x) _mm512_set1_ps(x)
#define V_ZERO() _mm512_setzero_ps()
#define V_ADD(a, b) _mm512_add_ps(a, b)
#define V_SUB(a, b) _mm512_sub_ps(a, b)
#define V_MUL(a, b) _mm512_mul_ps(a, b)
#define V_MAX(a, b) _mm512_max_ps(a, b)
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define V_FMA_FLUSH(a, b, c) _mm512_fmadd_ps(a, b, c)
#define FLUSH_BITS 0x8040u /* FTZ | DAZ */
#define FLUSH_BEGIN() _mm_setcsr(_mm_getcsr() | FLUSH_BITS)
#define FLUSH_END() _mm_setcsr(_mm_getcsr() & ~FLUSH_BITS)

#define OPS static inline __attribute__((always_inline))

/* fn_exp of every lane that is not above 0 (or is NaN): its text in vectors, so that it does not depend on
 * what the compiler vectorises; scalef multiplies by 2^n exactly, as adding to the exponent does. */
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
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, V_SET1(-87), _CMP_NLT_UQ), p, n);
}

OPS V lanes_exp(V x)
{
    return _mm512_mask_mov_ps(lanes_exp_down(x), _mm512_cmp_ps_mask(x, V_SET1(0x1.62e42ep+6f), _CMP_GT_OQ),
                              V_SET1(FN_INF));
}

/* fn_round_bf16 of every lane */
OPS V lanes_round(V x)
{
    const __m512i b = _mm512_castps_si512(x), high = _mm512_set1_epi32((int)0xffff0000u),
                  a = _mm512_and_si512(b, _mm512_set1_epi32(0x7fffffff));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_and_si512(_mm512_add_epi32(_mm512_add_epi32(b, _mm512_set1_epi32(0x7fff)), odd), high);
    r = _mm512_mask_and_epi32(r, _mm512_cmplt_epu32_mask(a, _mm512_set1_epi32(0x00800000)), b,
                              _mm512_set1_epi32((int)0x80000000u));
    const __m512i nan = _mm512_or_si512(_mm512_and_si512(b, high), _mm512_set1_epi32(0x00400000));
    return _mm512_castsi512_ps(
        _mm512_mask_mov_epi32(r, _mm512_cmpgt_epu32_mask(a, _mm512_set1_epi32(0x7f800000)), nan));
}

OPS float lanes_fold_add(V v)
{
    const __m256 x = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)),
                 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}

OPS float lanes_fold_max(V v)
{
    const __m256 x = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)),
                 z = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

/* The folds of 16 vectors together, the same order in each: the halves of two are put side by side, and so
 * on; one permutation puts the rows in order. */
#define FOLD_ROWS(op, x) \
    do { \
        V y[8], z[4], u[2]; \
        for (int i = 0; i < 8; i++) /* rows 2i, 2i + 1: 8 lanes each */ \
            y[i] = op(_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x44), \
                      _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xee)); \
        for (int i = 0; i < 4; i++) /* rows 4i .. 4i + 3: 4 lanes each */ \
            z[i] = op(_mm512_shuffle_f32x4(y[2 * i], y[2 * i + 1], 0x88), \
                      _mm512_shuffle_f32x4(y[2 * i], y[2 * i + 1], 0xdd)); \
        for (int i = 0; i < 2; i++) \
            u[i] = op(_mm512_shuffle_ps(z[2 * i], z[2 * i + 1], 0x44), \
                      _mm512_shuffle_ps(z[2 * i], z[2 * i + 1], 0xee)); \
        const V all = op(_mm512_shuffle_ps(u[0], u[1], 0x88), _mm512_shuffle_ps(u[0], u[1], 0xdd)); \
        return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, \
                                                       15), \
                                     all); \
    } while (0)
OPS V lanes_fold_add_rows(const V *x) { FOLD_ROWS(V_ADD, x); }
OPS V lanes_fold_max_rows(const V *x) { FOLD_ROWS(V_MAX, x); }

/* the first n lanes of a, then those of b */
OPS V lanes_keep(V a, int64_t n, V b)
{
    return _mm512_mask_mov_ps(b, (__mmask16)(n < 0 ? 0 : n > VW ? 0xffff : (1u << n) - 1), a);
}

/* kv_from_fp8 of 16 codes: fp16 with another bias, which flushing does not touch; 480 there is NaN here */
OPS V lanes_from_fp8(const char *p)
{
    const __m256i c = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    const __m512i y = _mm512_castps_si512(
        V_MUL(_mm512_cvtph_ps(_mm256_and_si256(c, _mm256_set1_epi16((int16_t)0xbfff))), V_SET1(256)));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(c, _mm256_set1_epi16(0x3fff)),
                                                  _mm256_set1_epi16(0x3f80));
    const __m512i sign = _mm512_and_si512(y, _mm512_set1_epi32((int)0x80000000u));
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(y, nan, sign, _mm512_set1_epi32(0x7fc00000)));
}
#define V_FROM_FP8(p) lanes_from_fp8(p)
#define V_FROM_INT8(p) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p))))
#define V_KEEP(x, n, y) lanes_keep(x, n, y)
#define V_EXP(x) lanes_exp(x)
#define V_EXP_DOWN(x) lanes_exp_down(x)
#define V_ROUND(x) lanes_round(x)
#define V_FOLD_ADD(x) lanes_fold_add(x)
#define V_FOLD_MAX(x) lanes_fold_max(x)
#define V_FOLD_ADD_ROWS(x) lanes_fold_add_rows(x)
#define V_FOLD_MAX_ROWS(x) lanes_fold_max_rows(x)
#define V_HAS_MINUS_ZERO(x) \
    (_mm512_cmpeq_epi32_mask(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000u)) != 0)

#define V_WIDE_HALVES(p) _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p)))
#define HAVE_DIRECT 1
#ifdef __AVX512BF16__
#define HAVE_PAIRS 1
#define V_STORE_HALVES(p, low, high) _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(high, low))
#define V_STORE_PAIRS(p, low, high) \
    _mm512_storeu_si512(p, _mm512_rol_epi32((__m512i)_mm512_cvtne2ps_pbh(high, low), 16))
#define V_FMA_PAIRS(a, b, c) _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))
/* x and y are exact in bf16 */
#define V_PAIR(x, y) \
    _mm512_castsi512_ps( \
        _mm512_or_si512(_mm512_castps_si512(x), _mm512_srli_epi32(_mm512_castps_si512(y), 16)))
#define V_LOAD_DIRECT(p, next) \
    _mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(V_WIDE_HALVES(p), 16), V_WIDE_HALVES((p) + (next))))
/* Pairs of two rows of fp8 codes, as words: what is normal is moved, what is not is looked up. The table goes
 * by the low 5 bits: 0 to 7 are the codes below 2^-6, 31 is NaN. */
OPS V lanes_pairs_fp8(const char *x, const char *y)
{
    const __m512i table = _mm512_set_epi16(0x7fc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                           0, 0, 0, 0x3c60, 0x3c40, 0x3c20, 0x3c00, 0x3bc0, 0x3b80, 0x3b00,
                                           0);
    const __m512i c =
        _mm512_or_si512(_mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)x)), 16),
                        _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)y)));
    const __m512i m = _mm512_and_si512(c, _mm512_set1_epi16(0x7f));
    const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(m, 4), _mm512_set1_epi16(0x3c00));
    const __mmask32 other = _mm512_cmpgt_epu16_mask(_mm512_sub_epi16(m, _mm512_set1_epi16(8)),
                                                    _mm512_set1_epi16(118));
    const __m512i b = _mm512_mask_permutexvar_epi16(normal, other, m, table);
    /* (c << 8 & 0x8000) | b */
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(_mm512_slli_epi16(c, 8), _mm512_set1_epi16((int16_t)0x8000), b, 0xea));
}
#define V_PAIRS_FP8(x, y) lanes_pairs_fp8(x, y)
/* the same from rows of bf16, the second one may be missing */
#define V_LOAD_PAIRS(p, next, is_pair) \
    _mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(V_WIDE_HALVES(p), 16), \
                                        (is_pair) ? V_WIDE_HALVES((p) + (next)) : _mm512_setzero_si512()))
#define TILE_KINDS(n) \
    { \
        TILE_NAMES(plain, n), TILE_NAMES(flush, n), TILE_NAMES(pairs, n), TILE_NAMES(direct, n), \
            TILE_NAMES(stream, n), TILE_NAMES(int8, n), TILE_NAMES(fp8, n) \
    }
#define TILE_ONE \
    { \
        { tile_plain_1x8 }, { tile_flush_1x8 }, { tile_pairs_1x8 }, { tile_direct_1x8 }, \
            { tile_stream_1x8 }, { tile_int8_1x8 }, \
        { \
            tile_fp8_1x8 \
        } \
    }
#else
#define HAVE_PAIRS 0
#define V_LOAD_DIRECT(p, next) _mm512_castsi512_ps(_mm512_slli_epi32(V_WIDE_HALVES(p), 16))
#define TILE_KINDS(n) \
    { \
        TILE_NAMES(plain, n), TILE_NAMES(flush, n), { NULL }, TILE_NAMES(direct, n), TILE_NAMES(stream, n), \
            TILE_NAMES(int8, n), TILE_NAMES(fp8, n) \
    }
#define TILE_ONE \
    { \
        { tile_plain_1x8 }, { tile_flush_1x8 }, { NULL }, { tile_direct_1x8 }, { tile_stream_1x8 }, \
            { tile_int8_1x8 }, \
        { \
            tile_fp8_1x8 \
        } \
    }
#endif
#define TILE_LIST(kind, T) TILES_OF(kind, T, 4) TILES_OF(kind, T, 2) TILES_OF(kind, T, 1) T(kind, 1, 8)
#define TILE_TABLE \
    { \
        { 128, 1, TILE_ONE }, { 64, ANY_ROWS, TILE_KINDS(4) }, { 32, ANY_ROWS, TILE_KINDS(2) }, \
        { \
            16, ANY_ROWS, TILE_KINDS(1) \
        } \
    }

#endif
