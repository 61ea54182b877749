/* gemm_block_avx512.h - a block of rows in natural order becomes a piece of a panel of 32 columns: 16 rows x
 * 16 units are transposed in registers by 64 shuffles.
 *
 * First words of two rows are put side by side, then pairs of four rows; after that a quarter of a register
 * holds one unit of four rows, and quarters are exchanged. */
#ifndef SHARDLINE_KERNELS_X86_GEMM_BLOCK_AVX512_H
#define SHARDLINE_KERNELS_X86_GEMM_BLOCK_AVX512_H

#include <immintrin.h>
#include "kernels/gemm/gemm_core.h"

#define BLOCK_SIDE 16

/* Units of a row, which `mask` names. turned: the halves of a unit change places. */
static inline __m512i block_row(const char *p, __mmask16 mask, int turned)
{
    const __m512i v = _mm512_maskz_loadu_epi32(mask, p);
    return turned ? _mm512_rol_epi32(v, 16) : v;
}

#define BLOCK_PAIRS(i, a, b) \
    const __m512i lo##i = _mm512_unpacklo_epi32(a, b), hi##i = _mm512_unpackhi_epi32(a, b);
/* Four rows: quarter q of f<i>u holds unit 4q + u of them. */
#define BLOCK_FOURS(i, j) \
    const __m512i f##i##0 = _mm512_unpacklo_epi64(lo##i, lo##j), \
                  f##i##1 = _mm512_unpackhi_epi64(lo##i, lo##j), \
                  f##i##2 = _mm512_unpacklo_epi64(hi##i, hi##j), \
                  f##i##3 = _mm512_unpackhi_epi64(hi##i, hi##j);
/* Units u, 4 + u, 8 + u, 12 + u of all 16 rows. */
#define BLOCK_STORE(u) \
    { \
        const __m512i a = _mm512_shuffle_i32x4(f0##u, f2##u, 0x44), \
                      b = _mm512_shuffle_i32x4(f0##u, f2##u, 0xee), \
                      c = _mm512_shuffle_i32x4(f4##u, f6##u, 0x44), \
                      d = _mm512_shuffle_i32x4(f4##u, f6##u, 0xee); \
        const __m512i out[4] = { _mm512_shuffle_i32x4(a, c, 0x88), _mm512_shuffle_i32x4(a, c, 0xdd), \
                                 _mm512_shuffle_i32x4(b, d, 0x88), _mm512_shuffle_i32x4(b, d, 0xdd) }; \
        for (int q = 0; q < 4; q++) \
            if (u + 4 * q < units) \
                _mm512_storeu_si512(to + (u + 4 * q) * GEMM_COLS, out[q]); \
    }
#define BLOCK_ROW(i) block_row(row[i] + off, mask, turned)

/* `units` units (16 at most) of 16 rows. */
static inline __attribute__((always_inline)) void block_16(float *to, const char *const *row, int64_t off,
                                                           int units, int turned)
{
    const __mmask16 mask = (__mmask16)(0xffffu >> (BLOCK_SIDE - units));
    BLOCK_PAIRS(0, BLOCK_ROW(0), BLOCK_ROW(1))
    BLOCK_PAIRS(1, BLOCK_ROW(2), BLOCK_ROW(3))
    BLOCK_PAIRS(2, BLOCK_ROW(4), BLOCK_ROW(5))
    BLOCK_PAIRS(3, BLOCK_ROW(6), BLOCK_ROW(7))
    BLOCK_FOURS(0, 1)
    BLOCK_FOURS(2, 3)
    BLOCK_PAIRS(4, BLOCK_ROW(8), BLOCK_ROW(9))
    BLOCK_PAIRS(5, BLOCK_ROW(10), BLOCK_ROW(11))
    BLOCK_PAIRS(6, BLOCK_ROW(12), BLOCK_ROW(13))
    BLOCK_PAIRS(7, BLOCK_ROW(14), BLOCK_ROW(15))
    BLOCK_FOURS(4, 5)
    BLOCK_FOURS(6, 7)
    BLOCK_STORE(0)
    BLOCK_STORE(1)
    BLOCK_STORE(2)
    BLOCK_STORE(3)
}

static inline __attribute__((always_inline)) void block_32(const struct gemm_block *b, int turned)
{
    for (int64_t u = 0; u < b->units; u += BLOCK_SIDE) {
        const int64_t left = b->units - u;
        float *to = b->to + u * GEMM_COLS;
        gemm_block_ahead(b, b->off + 4 * u);
        for (int half = 0; half < GEMM_COLS; half += BLOCK_SIDE)
            if (left >= BLOCK_SIDE)
                block_16(to + half, b->row + half, b->off + 4 * u, BLOCK_SIDE, turned);
            else
                block_16(to + half, b->row + half, b->off + 4 * u, (int)left, turned);
    }
}

static void gemm_block_avx512(const struct gemm_block *b)
{
    const int turned = b->dt == DT_BF16 && ORDER("gemm_bf16_pair", 1, 0);
    if (b->n_rows < GEMM_COLS || b->is_single)
        gemm_block_plain(b);
    else if (turned)
        block_32(b, 1);
    else
        block_32(b, 0);
}

static void gemm_unpack_rows_avx512(float *to, int cols, const struct gemm_panel *from,
                                    const struct gemm_sum *s)
{
    gemm_unpack_rows(to, cols, from, s, gemm_block_avx512);
}

#endif
