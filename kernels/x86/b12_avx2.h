/* b12_avx2.h - reads weights in 12 bits (gemm/b12.h) with AVX2: half of the bytes of two units at a time. */
#ifndef SHARDLINE_KERNELS_X86_B12_AVX2_H
#define SHARDLINE_KERNELS_X86_B12_AVX2_H

#include <immintrin.h>
#include "kernels/gemm/b12.h"

static inline __m256i b12_load(const char *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
static inline void b12_store(float *p, __m256i v) { _mm256_storeu_si256((__m256i *)(void *)p, v); }

/* 8 values, then the same with the sign. */
static inline __m256i b12_table(const char *values)
{
    const __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)values);
    return _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(v, _mm_or_si128(v, _mm_set1_epi8(-128))));
}

static inline void b12_pair(float *to, int64_t unit_step, int64_t half, const char *block, __m256i table)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int i = 0; i < 2; i++) {
        const __m256i n = b12_load(block + 32 * i), l0 = b12_load(block + 64 + 32 * i),
                      l1 = b12_load(block + 128 + 32 * i);
        const __m256i h0 = _mm256_shuffle_epi8(table, _mm256_and_si256(n, nibble));
        const __m256i h1 = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(n, 4), nibble));
        b12_store(to + 8 * i, _mm256_unpacklo_epi8(l0, h0));
        b12_store(to + 8 * i + half, _mm256_unpackhi_epi8(l0, h0));
        b12_store(to + 8 * i + unit_step, _mm256_unpacklo_epi8(l1, h1));
        b12_store(to + 8 * i + unit_step + half, _mm256_unpackhi_epi8(l1, h1));
    }
}

#define B12_TABLE_TYPE __m256i
#define B12_TABLE(t) b12_table(t)
#define B12_STATIC static
#define B12_UNPACK b12_unpack_avx2
#include "kernels/gemm/b12_read.inc"

#endif
