/* b12_avx512.h - reads weights in 12 bits (gemm/b12.h) with AVX-512BW: two units are three loads, two
 * look-ups of 64 codes and four interleavings. */
#ifndef SHARDLINE_KERNELS_X86_B12_AVX512_H
#define SHARDLINE_KERNELS_X86_B12_AVX512_H

#include <immintrin.h>
#include "kernels/gemm/b12.h"

/* 8 values, then the same with the sign. */
static inline __m512i b12_table(const char *values)
{
    const __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)values);
    return _mm512_broadcast_i32x4(_mm_unpacklo_epi64(v, _mm_or_si128(v, _mm_set1_epi8(-128))));
}

/* Two units: outputs 0 to 15 and 16 to 31 of each. */
struct b12_vectors {
    __m512i low0, high0, low1, high1;
};
static inline struct b12_vectors b12_decode(const char *block, __m512i table)
{
    const __m512i nibble = _mm512_set1_epi8(15), n = _mm512_loadu_si512(block);
    const __m512i l0 = _mm512_loadu_si512(block + 64), l1 = _mm512_loadu_si512(block + 128);
    const __m512i h0 = _mm512_shuffle_epi8(table, _mm512_and_si512(n, nibble));
    const __m512i h1 = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(n, 4), nibble));
    return (struct b12_vectors){ _mm512_unpacklo_epi8(l0, h0), _mm512_unpackhi_epi8(l0, h0),
                                 _mm512_unpacklo_epi8(l1, h1), _mm512_unpackhi_epi8(l1, h1) };
}

static inline void b12_pair(float *to, int64_t unit_step, int64_t half, const char *block, __m512i table)
{
    const struct b12_vectors v = b12_decode(block, table);
    _mm512_storeu_si512(to, v.low0);
    _mm512_storeu_si512(to + half, v.high0);
    _mm512_storeu_si512(to + unit_step, v.low1);
    _mm512_storeu_si512(to + unit_step + half, v.high1);
}

#define B12_TABLE_TYPE __m512i
#define B12_TABLE(t) b12_table(t)
#define B12_STATIC static
#define B12_UNPACK b12_unpack_avx512
#include "kernels/gemm/b12_read.inc"

/* Units `pair` and the next one, which have escapes. */
__attribute__((noinline, cold)) static struct b12_vectors b12_patched(struct b12_vectors v,
                                                                      struct b12_reader *r, int64_t pair)
{
    alignas(64) float two[2][GEMM_COLS];
    _mm512_store_si512(two[0], v.low0);
    _mm512_store_si512(two[0] + 16, v.high0);
    _mm512_store_si512(two[1], v.low1);
    _mm512_store_si512(two[1] + 16, v.high1);
    b12_patch(r, two[0], GEMM_COLS, GEMM_COLS / 2, pair, 2);
    return (struct b12_vectors){ _mm512_load_si512(two[0]), _mm512_load_si512(two[0] + 16),
                                 _mm512_load_si512(two[1]), _mm512_load_si512(two[1] + 16) };
}

/* For b12_tile.inc: n units from unit `pair` on. B12_OPERANDS(v0, v1): what STEP_B declares, of registers. */
#define B12_RUN(ROWS) \
    for (; n > 0; n -= 2, pair += 2, ap += 2 * unit_step, bp += B12_PAIR / 4) { \
        struct b12_vectors v = b12_decode((const char *)bp, reader.table); \
        if (__builtin_expect(b12_has_escape(&reader, pair + 2), 0)) \
            v = b12_patched(v, &reader, pair); \
        { \
            enum { j = 0 }; \
            B12_OPERANDS(_mm512_castsi512_ps(v.low0), _mm512_castsi512_ps(v.high0)) \
            ROWS(ROW_STEP) \
        } \
        { \
            enum { j = 1 }; \
            B12_OPERANDS(_mm512_castsi512_ps(v.low1), _mm512_castsi512_ps(v.high1)) \
            ROWS(ROW_STEP) \
        } \
    }

#endif
