/* b12.h - bf16 weights in 12 bits, lossless: PANEL_B12. The layout is one for all CPU classes.
 *
 * A bf16 is a low byte (the exponent's lowest bit, 7 bits of mantissa) and a high byte (sign, the exponent's
 * upper 7 bits). Trained weights hold few values of those 7 bits: a piece keeps the low byte as it is and,
 * in a nibble, the sign and an index into a table of 8 values. Elements of another value are *escapes*: their
 * high bytes stand in a list.
 *
 * Numbers are little-endian. A *piece* is a panel's 32 outputs x a leaf of e elements, u = ceil(e / 2) units;
 * a panel is its pieces, leaf after leaf. Sizes depend on e only:
 *
 *     lines = 1 + 32 e / 4096                   lines of 64 bytes of the head, rounded down
 *     bytes = 64 lines + 192 ceil(u / 2)
 *
 * Head: table[8], a byte an entry; unused ones repeat table[0]; 8 bytes 0; then 16 lines - 4 words of 32
 * bits: the escapes, position << 8 | high byte, ascending, position = element * 32 + output; behind them all
 * words, and at least one, are 0xffffffff.
 * Body: for each two units (elements 4 i to 4 i + 3) 64 bytes N, 64 bytes L0, 64 bytes L1. Byte j of L0 is
 * the low byte of an element of unit 2 i, of L1 of unit 2 i + 1; the low nibble of N[j] is the former's code,
 * the high one the latter's. j = 16 q + 8 h + 2 c + s is output 16 h + 4 q + c; s 1: the unit's earlier
 * element, 0: the later one. So interleaving the bytes of L0 and of the looked-up N gives a plain panel.
 * Code: sign in bit 3, index in bits 0 to 2. An escape's code is 0; so are code and low byte of elements from
 * e on and of outputs that the panel does not have, which readers ignore.
 *
 * The table holds the most frequent values of the piece, the most frequent first, of equal counts the larger
 * value. A piece of more escapes than its head holds, or of more than 2^18 elements, does not fit: the matrix
 * stays plain. Idea: DFloat11 (arXiv 2504.11651), with a fixed width. */
#ifndef SHARDLINE_KERNELS_GEMM_B12_H
#define SHARDLINE_KERNELS_GEMM_B12_H

#include "kernels/gemm/gemm_core.h"

#define B12_PAIR 192     /* bytes of two units */
#define B12_STRIP 8      /* units that a tile decodes at a time */
#define B12_HEAD_WORDS 4 /* before the escapes */
#define B12_LEAF_MAX ((int64_t)1 << 18)

static inline int64_t b12_lines(int64_t n_elems) { return 1 + 32 * n_elems / 4096; }
static inline int64_t b12_piece_bytes(int64_t n_elems)
{
    return 64 * b12_lines(n_elems) + B12_PAIR * ((n_elems + 3) / 4);
}

/* Bytes of a panel over s. */
static inline int64_t b12_panel_bytes(const struct gemm_sum *s)
{
    int64_t bytes = 0;
    for (int g = 0; g < s->n; g++)
        bytes += b12_piece_bytes(s->elem_end[g] - (g ? s->elem_end[g - 1] : 0));
    return bytes;
}

/* Packs a panel of the rows w[0..n), n <= 32, each contiguous over the contraction of s, to `to`; NULL: only
 * counts. Returns the escapes; -1: a piece does not fit, and what was written is not defined. */
int64_t b12_pack_panel(char *to, const struct gemm_sum *s, const char *const *w, int n);
/* gemm_kind.unpack in plain C. */
void b12_unpack(float *to, int cols, const struct gemm_panel *from, const struct gemm_sum *s);

#endif
