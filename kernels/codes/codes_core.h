/* codes_core.h - products over quantised panels: what their parts share. Private to kernels/.
 *
 * The contraction is cut into *cuts*: the pieces of panel_codes.h and, in class int, pieces cut with groups
 * of activations. Activations are packed by tiles of rows: a unit of all rows of the tile side by side.
 *
 *     deq, grp   a unit is two bf16 elements, the earlier one in the upper half. A cut begins with a unit of
 *                its own; an odd one ends with a zero half
 *     int        two int16 elements, the earlier one in the upper half (pairs), or two units of int8: bytes
 *                are elements 1 0 3 2 (quads). What lies outside of the cut is zero there */
#ifndef SHARDLINE_KERNELS_CODES_CODES_CORE_H
#define SHARDLINE_KERNELS_CODES_CODES_CORE_H

#include "kernels/dev.h"
#include "kernels/gemm.h"
#include "kernels/panel_codes.h"

#define CODES_COLS 32
#define CODES_ACT_GROUP 128 /* activations under one scale, counted from the leaf's start */
#define CODES_ROWS_MAX 14

struct codes_cut {
    int64_t begin, end;    /* elements of the rank's contraction */
    int64_t head;          /* bytes from the panel's first byte to the piece's */
    int64_t unit, n_units; /* of the piece; a multiple of two where rows lie as quads */
    int64_t a;             /* the first of its packed units (quads), counted over the contraction */
    int skip;              /* elements of its first unit (quad) before `begin` */
};
struct codes_cuts {
    int n, n_leaves;
    int leaf[GRAIN_MAX + 1]; /* first cut of each leaf */
    int64_t n_a;             /* packed units (quads) of a row */
    struct codes_cut *cut;
};
/* Fills x; x->cut NULL: counts. step: elements of a packed unit, 2 or 4. */
void codes_cut(struct codes_cuts *x, const struct panel_codes *c, const struct leaves *l, int step);

/* Bytes of a piece's parts. */
int64_t code_scale_bytes(enum code_scale s);
int64_t codes_head_bytes(const struct panel_codes *c);
static inline int64_t codes_min_offset(const struct panel_codes *c) { return code_scale_bytes(c->scale); }
static inline int64_t codes_zero_offset(const struct panel_codes *c)
{
    return code_scale_bytes(c->scale) * (c->has_mins ? 2 : 1);
}
static inline int codes_are_bytes(enum code_kind k) { return k == CODE_S8 || k == CODE_E4M3; }
/* The zero point where none are stored. */
static inline int codes_zero(const struct panel_codes *c)
{
    return c->kind == CODE_U4 && !c->has_mins ? 8 : 0;
}
/* A stored scale as a number. */
float code_scale_at(enum code_scale s, const uint8_t *head, int col);
/* The number of a code: e4m3 or e2m1. */
float code_number(enum code_kind k, int code);

/* The sums of one leaf of one panel, for a tile of rows. */
struct codes_job {
    const struct panel_codes *codes;
    const struct codes_cut *cut; /* of the leaf */
    int n_cuts, rows;
    int64_t first_a; /* the leaf's first packed unit */
    const uint8_t *panel;
    const uint32_t *a;     /* the tile's packed rows: unit u of row r is a[u * rows + r] */
    const float *factor;   /* int: scale of the activations, [cut][rows] */
    const float *sum;      /* grp with mins: sum of the activations, [cut][rows] */
    const int32_t *isum;   /* int: the same of their codes */
    const uint32_t *plain; /* the leaf's units as bf16 pairs [unit][32]; NULL: read the panel */
    float *out;            /* [rows][32]: the leaf's sums */
    const uint8_t *panel1; /* sums_two: another panel, */
    float *out1;           /* and its sums */
};
struct codes_ops {
    const char *name;
    int (*here)(void);
    int step;     /* elements of a unit of packed rows in class int */
    int rows;     /* of the highest tile */
    int rows_few; /* up to so many the panel is read directly; beyond, a leaf is unpacked first */
    int rows_int; /* of the highest tile in class int, which reads the panel */
    /* Up to so many rows two panels are read side by side; 0: never. NULL: no form is. */
    int (*rows_two)(const struct panel_codes *c);
    void (*unpack)(const struct codes_job *j, uint32_t *plain);
    void (*sums)(const struct codes_job *j);     /* deq, grp */
    void (*sums_two)(const struct codes_job *j); /* the same of two panels */
    void (*sums_int)(const struct codes_job *j); /* int */
    void (*add)(float *to, const float *from, int64_t n);
};
extern const struct codes_ops codes_portable, codes_avx2, codes_avx512vnni;
/* The best one for the CPU class `isa` that this machine has and that gives codes_portable's bits. */
const struct codes_ops *codes_choose(struct dev *d, const char *isa);

/* Rows of x from `first` on, as one tile. factor, sum, isum as of codes_job, for all cuts. */
struct codes_rows {
    const struct listed *x;
    int64_t first;
    int rows;
    uint32_t *a;
    float *factor, *sum;
    int32_t *isum;
};
/* Packs the tile's rows for products over these cuts; step: elements of a unit in class int. */
void codes_pack_rows(const struct codes_rows *t, const struct panel_codes *c, const struct codes_cuts *cuts,
                     const struct leaves *l, int step);

/* linear of kernels.h by these ops: y, x and w of n experts (rows g), or of one product (g NULL). */
void codes_product(struct dev *d, const struct codes_ops *ops, struct mat y, struct listed x,
                   const struct expert_rows *g, const struct panels *w);

#endif
