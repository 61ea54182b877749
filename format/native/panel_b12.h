/* panel_b12.h - private to format/: 32 outputs of a leaf, bf16 in 12 bits, lossless (FORMAT.md, "Panels").
 * The same bytes as PANEL_B12 of kernels/panels.h has in memory. Pure functions: any thread. */
#ifndef SHARDLINE_FORMAT_PANEL_B12_H
#define SHARDLINE_FORMAT_PANEL_B12_H

#include "format/native/panel_bytes.h"

#define B12_ELEMENTS (((int64_t)1 << 18) + 1) /* a leaf has fewer */

/* Bytes of a leaf of n elements. */
int64_t b12_leaf_bytes(int64_t n);
/* Escapes that a leaf of n elements has room for. */
int64_t b12_room(int64_t n);
/* Values of n elements of n_out outputs that the table of their leaf does not hold. */
int64_t b12_escapes(struct panel_view from, int n_out, int64_t n);
/* Writes a leaf. -1: its escapes do not fit. */
int b12_encode(char *to, struct panel_view from, int n_out, int64_t n);
/* Elements [begin, end) of outputs [first, first + n_out) of a leaf of n elements, to to.p. */
void b12_decode(const char *from, int64_t n, int64_t begin, int64_t end, int first, int n_out,
                struct panel_view to);

#endif
