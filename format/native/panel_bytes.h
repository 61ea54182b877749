/* panel_bytes.h - private to format/: the elements of panels as bytes. Pure functions: any thread.
 *
 * A leaf of n elements of the contraction, 32 outputs:
 *
 *     plain, F32     [n][32] elements
 *     plain, BF16    [ceil(n / 2)][32] words of 4 bytes: element 2i in the upper half, 2i + 1 in the lower
 *                    one, which is 0 behind the last element of an odd leaf
 *     b12            panel_b12.h */
#ifndef SHARDLINE_FORMAT_PANEL_BYTES_H
#define SHARDLINE_FORMAT_PANEL_BYTES_H

#include "format/panels_file.h"

#define PANEL_OUTPUTS 32

/* The kind of this name in a manifest, or -1. */
int panel_kind_find(const char *word);
/* 1: panels of this kind can hold this dtype. */
int panel_kind_takes(enum ckpt_panel_kind kind, enum stored_dtype dtype);
/* A leaf has fewer elements than this. */
int64_t panel_kind_most(enum ckpt_panel_kind kind);
/* Fills offset[n_leaves + 1]; the last one is the bytes of a panel. */
void panel_leaves(enum ckpt_panel_kind kind, enum stored_dtype dtype, int n_leaves, const int64_t *leaf_end,
                  int64_t *offset);

/* Elements in memory: that of output o and contraction element i lies at p + o * out + i * in (bytes). */
struct panel_view {
    char *p;
    int64_t out, in;
};
/* Makes a whole panel of n_out outputs. -1: the kind cannot hold these values. */
int panel_encode(const struct ckpt_pack *k, struct panel_view from, int n_out, char *panel);
/* Bytes [begin, end) of a panel. */
struct panel_span {
    int64_t begin, end;
};
/* Those that hold elements [begin, end) of the contraction. */
struct panel_span panel_span_of(const struct ckpt_pack *k, int64_t begin, int64_t end);
/* Takes elements [begin, end) of outputs [first, first + n_out) out of such a span: output `first` and
 * element `begin` go to to.p. */
void panel_decode(const struct ckpt_pack *k, const char *span, int64_t begin, int64_t end, int first,
                  int n_out, struct panel_view to);

#endif
