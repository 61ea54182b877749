/* region.h - private to the room: a part of a quantised weight in memory, as its stored tensors have it, and
 * the walk from an element range to such parts. */
#ifndef SHARDLINE_FORMAT_QUANT_REGION_H
#define SHARDLINE_FORMAT_QUANT_REGION_H

#include "format/ckpt.h"
#include "format/quant.h"
#include "format/quant/codec.h"

/* A weight and where its stored tensors are in a checkpoint. */
struct region_weight {
    const struct quant_weight *w;
    int tensor[QUANT_STORED_MAX]; /* number in the checkpoint of w->stored[i]; -1: not there */
    enum stored_dtype codes;      /* dtype of the codes */
    enum stored_dtype to;         /* of the values */
};

/* Rows n0 .. n1 - 1 and columns k0 .. k1 - 1 of expert e. The dims of a weight without experts: e is 0. */
struct patch {
    int64_t e, n0, n1, k0, k1;
};

/* What of a weight is in memory. Scale and zero point of (n, k): number
 * (n * n_indices / n_values - n_first) * n_step + the same of k. */
struct region_axis {
    int64_t values, indices, first, step;
};
struct region {
    const struct region_weight *w;
    struct patch p;
    char *codes; /* NULL: only scales were asked for */
    struct box codes_box;
    float *scale; /* the global scale included */
    struct region_axis scale_n, scale_k;
    int16_t *zero; /* [n][group] or, of GPTQ and AWQ, [group][n]; NULL: `mid` for all */
    int64_t zero_step_n, zero_step_k;
    int mid;
    int32_t *g_idx; /* of columns k0 .. k1 - 1; NULL: no order of its own */
};

/* Reads a part of a weight. with_codes 0: only what turns codes into values. *r is freed by region_free,
 * after an error too. ERR_FORMAT: g_idx names a group that is not there. */
int region_load(struct region *r, struct ckpt *c, const struct region_weight *w, const struct patch *p,
                int with_codes, struct err *e);
void region_free(struct region *r); /* a zeroed one is fine */

/* 1: the stored tensors have N last (GPTQ, AWQ), and not K. */
int region_n_last(const struct quant_weight *w);
/* The codec of integers and floats of a weight, without scale and zero point. */
struct codec region_codec(const struct region_weight *w);
/* The codec at (n, k). */
struct codec region_codec_at(const struct region *r, int64_t n, int64_t k);
/* Columns from k on, at most to k1, that have the scale of (n, k). */
int64_t region_same_k(const struct region *r, int64_t k, int64_t k1);

/* The values of a part p of what r holds, in the order of the stored tensors: [n][k], of GPTQ and AWQ [k][n];
 * row-major, without gaps. */
int region_values(const struct region *r, const struct patch *p, void *out, struct err *e);

/* All codes of r, as [n][k] whatever the stored order, one a byte; those of integers are unsigned. */
void region_codes(const struct region *r, uint8_t *out);

/* ---- from an element range to rectangles ---- */

/* The elements [lo, hi) of the row-major order of a box of 1 to 3 dims, as rectangles of its last two dims:
 * whole rows, or a part of one. */
struct rect_walk {
    struct box box;
    int64_t lo, at, hi;
};
struct rect {
    int64_t e, r0, r1, c0, c1; /* indices of the tensor: first dim of three, row, column */
    int64_t first;             /* its first element, counted from lo */
};
/* Where to begin. */
struct rect_walk rect_walk(const struct box *b, int64_t lo, int64_t hi);
/* most: elements of a rectangle, where a row is no longer. 0: the end. */
int rect_next(struct rect_walk *w, int64_t most, struct rect *out);

#endif
