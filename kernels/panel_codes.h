/* panel_codes.h - quantised weights that products read as they lie (PANEL_CODES in panels.h).
 *
 * A weight is (code - zero) * scale - min. A *group* is the elements of an output's contraction that share a
 * scale: elements [g group, (g + 1) group) by their index in the whole contraction, whatever part of it a
 * rank has. A *piece* is a group cut with a leaf, of 32 outputs.
 *
 * A panel is 32 outputs. It is its pieces in order of the contraction; a leaf begins at a multiple of 64
 * bytes. So a rank with some leaves points into the panel and keeps the stride of whole panels. A piece:
 *
 *     scales [32]    fp32, bf16, fp16, or E8M0 bytes
 *     mins [32]      where has_mins; of the same type
 *     zeros [32]     where has_zeros; int8 for CODE_S8, else a byte 0..15
 *     ...            zero bytes up to a multiple of 32
 *     lines          64 bytes: a unit (two elements) of codes of 8 bits, two units of codes of 4 bits;
 *                    an even number of units
 *
 * Byte 16 q + 8 h + 2 c + s of a line (q, c 0..3, h, s 0..1) is of output 16 h + 4 q + c, and s 1 is the
 * earlier element of the unit. Low nibbles are of the first unit. Elements behind the piece and outputs
 * behind n are codes of zero value. All numbers are little-endian; every CPU class reads the same bytes.
 *
 * Classes (kernels/NUMERICS.md, Stored weights): a leaf's sum is
 *     CODES_DEQ    the bf16 chain over round_bf16(fp32(code * scale)): the dequantised weights' bits
 *     CODES_GRP    by pieces in order: leaf = fma(scale, chain over bf16(code - zero) from +0, leaf)
 *     CODES_INT    the same with activations in 8 bits: exact integer sums */
#ifndef SHARDLINE_KERNELS_PANEL_CODES_H
#define SHARDLINE_KERNELS_PANEL_CODES_H

#include <stddef.h>
#include "kernels/kernels.h"

enum code_kind {
    CODE_S8,   /* int8 */
    CODE_U4,   /* 0..15; zero point 8 where none are stored, 0 where there are mins */
    CODE_E4M3, /* 0x7f and 0xff are NaN */
    CODE_E2M1, /* 0 0.5 1 1.5 2 3 4 6, then the negative ones */
    CODE_KINDS
};
enum code_class { CODES_DEQ, CODES_GRP, CODES_INT };
enum code_scale { CODE_SCALE_F32, CODE_SCALE_BF16, CODE_SCALE_F16, CODE_SCALE_E8M0, CODE_SCALES };

struct panel_codes {
    enum code_kind kind;
    enum code_class class; /* may be changed between CODES_GRP and CODES_INT at any time */
    enum code_scale scale; /* of scales and mins in memory */
    int has_zeros, has_mins;
    int64_t group; /* elements under a scale; 0: all of the contraction */
    int64_t first; /* the index of the rank's first element in the whole contraction */
};

/* What is wrong with c for a contraction with these leaves, for a message; NULL: nothing. CODES_DEQ takes
 * E4M3 and E2M1, the other classes S8 and U4. A leaf of CODES_DEQ must not be cut at an odd element. */
const char *codes_misfit(const struct panel_codes *c, const struct leaves *l);
/* "int8" "int4" "e4m3" "e2m1"; "deq" "grp" "int" */
const char *code_kind_name(enum code_kind k);
const char *code_class_name(enum code_class c);

/* Bytes from a panel's first byte to leaf g; g = l->n: of a whole panel. */
int64_t codes_leaf_offset(const struct panel_codes *c, const struct leaves *l, int g);
/* Bytes of panels of n outputs, one behind the other. */
size_t codes_bytes(int64_t n, const struct panel_codes *c, const struct leaves *l);

/* One matrix in natural order: outputs are rows. Scales, zeros and mins lie alike: output i has row
 * (scale_first + i) / scale_rows of theirs, and column 0 is the group of element panel_codes.first. */
struct codes_source {
    int64_t n;           /* outputs */
    const uint8_t *code; /* [n][code_ld], one a byte, of the rank's part of the contraction */
    int64_t code_ld;
    const float *scale;  /* in the stored type without rounding */
    const int16_t *zero; /* in the numbers of the codes; NULL: none stored */
    const float *min;    /* NULL: none */
    int64_t scale_rows, scale_first, scale_ld;
};
/* Writes the panels of n_w matrices, stacked over their outputs, to w->p with w->stride; w gives n, k, leaves
 * and codes. The pool of d shares the work. */
void codes_pack(struct dev *d, const struct panels *w, int n_w, const struct codes_source *source);
#endif
