/* gemm_core.h - what the parts of a product share: units, packed operands, the sum in a tile.
 *
 * C[m][n] = sum over e of A[m][e] * B[e][n]. The contraction is cut into leaves; a leaf is a whole number of
 * *units* of 4
 * bytes: one fp32 element, or two bf16 elements with the earlier one in the upper half (an odd leaf ends
 * with a zero half).
 *
 * packed B, a panel of 32 columns:     [unit][32], or for classes of narrower tiles [32 / C][unit][C]: C
 * columns side by side; other kinds of panels: gemm_kind
 * packed A, a tile of R rows, lines:   [unit / 16][R][16]     copied from row-major rows, 64 bytes at a time
 *                             columns: [unit][R]              copied from contraction-major rows (weight
 *                             gradients)
 * Some classes want the bf16 values of A widened to fp32: then a unit of A is two values, [unit /
 * 8][R][8][2] and [unit][2][R].
 *
 * The tile keeps its accumulators in registers over a leaf and merges leaves in the order of tree.h. A
 * class with a small first cache divides the contraction into steps; a step runs over all tiles while its
 * part of a panel stays in that cache. It is whole leaves, or a part of one, whose chains wait in memory.
 * So an output element is the same sequence of operations in every tile. */
#ifndef SHARDLINE_KERNELS_GEMM_GEMM_CORE_H
#define SHARDLINE_KERNELS_GEMM_GEMM_CORE_H

#include "kernels/gemm.h"
#include "kernels/order.h"

#define GEMM_COLS 32     /* columns of a panel */
#define GEMM_LINE 16     /* units of a line of A */
#define GEMM_ROWS_MAX 14 /* rows of the highest tile */

enum gemm_layout { GEMM_LINES, GEMM_COLUMNS, GEMM_LAYOUTS };

struct gemm_sum {
    int n;                         /* leaves */
    int depth_before, depth_after; /* entries on the stack in memory */
    /* entries that the call leaves as they are: it reads and writes those above */
    int depth_kept;
    int64_t *elem_end;   /* [n]: leaf i ends before this element of the contraction … */
    int64_t *end;        /* [n]: … and before this unit */
    uint8_t *merges;     /* [n]: additions of older sums after leaf i */
    int64_t panel_units; /* of all leaves: a panel's */
    /* the panel that a tile reads as it lies (gemm_kind.few); NULL: b is a plain panel */
    const struct gemm_panel *panel;
    int in; /* first column of the tile in the panel */
    /* a step of a longer sum (classes with step_units): */
    int64_t begin;    /* its first unit */
    int resumes;      /* its first leaf continues: the chains are at level[depth_before] */
    int n_out;        /* levels with the row stride of the output; those behind have … */
    int64_t spare_ld; /* … this one */
};

/* The segments of a leaf of linear_dx: first to last; altered gemm_dx_segments: last to first. */
static inline struct index_order segment_order(int n)
{
    return ORDER("gemm_dx_segments", forward_order(), backward_order(n));
}

/* One tile: adds the leaves to the stack level[0..], matrices with row stride ld; level already points at
 * the tile. */
typedef void gemm_tile_fn(const struct gemm_sum *s, float *const *level, int64_t ld, const float *a,
                          const float *b);

/* A block of weights in natural order becomes a piece of a panel: `units` units of 4 bytes at byte `off` of
 * rows row[0 .. n_rows) become to[units][cols]; columns without a row become +0. bf16: pairs are turned, the
 * earlier element goes to the upper half; is_single: the last unit has one element only. */
struct gemm_block {
    float *to;
    int cols;
    enum dtype dt;
    const char *const *row;
    int n_rows;
    int64_t row_bytes; /* from a row to the next one; 0: not known */
    int64_t off, units;
    int is_single;
};
/* Asks for what is read after the 64 bytes at byte `off` of the block's rows: so many bytes ahead in the
 * order of the file where rows lie a multiple of 4 KiB apart, else the same bytes of the rows after these. */
#define BLOCK_AHEAD (128 << 10)
#define BLOCK_FAR 4096
static inline __attribute__((always_inline)) void gemm_block_ahead(const struct gemm_block *b, int64_t off)
{
    const int in_order = b->row_bytes % BLOCK_FAR == 0;
    const char *p = b->row[0] + (in_order ? BLOCK_AHEAD + off * b->cols : off + b->cols * b->row_bytes);
    const int64_t step = in_order ? 64 : b->row_bytes;
    for (int i = 0; b->row_bytes && i < b->cols; i++, p += step)
        __builtin_prefetch(p, 0, 2);
}
typedef void gemm_block_fn(const struct gemm_block *b);
/* In plain C, for every class (gemm_pack.c). */
void gemm_block_plain(const struct gemm_block *b);

struct gemm_tiles { /* of one dtype and CPU class */
    int rows;       /* of the highest tile */
    /* … of the highest that holds a leaf's sum in registers until the next one's is there */
    int rows_held;
    int cols;       /* divides GEMM_COLS */
    int panel_cols; /* of a panel that lie side by side */
    int a_floats;   /* of a unit of packed A: 1, or 2 where bf16 is widened */
    int step_units; /* the most units of a step; 0: no steps */
    /* wider tiles for so many rows as they have, of the same packing; or NULL */
    const struct gemm_tiles *few;
    gemm_block_fn *block;                              /* for panel_cols columns */
    gemm_tile_fn *fn[GEMM_LAYOUTS][GEMM_ROWS_MAX + 1]; /* by height */
};
/* One panel of weights, as the functions of a kind see it. */
struct gemm_panel {
    const struct panels *w; /* all of them: kind, stride, codes, k, leaves */
    const char *p;          /* its first byte; PANEL_ROWS: its first row */
    int64_t first;          /* its first output, among those of w */
    int n;                  /* its outputs: 1 to 32 */
};

/* How products read panels that are not plain: of one kind, dtype and CPU class. */
struct gemm_kind {
    /* Tiles for products of few rows: they read the panel as it lies. b is its first byte, s->panel the rest.
     * NULL: panels are always unpacked. */
    const struct gemm_tiles *few;
    /* Tiles over unpacked panels; NULL: those of the class. */
    const struct gemm_tiles *many;
    /* Writes the panel's units as a plain panel of the class, [32 / cols][units of s][cols]; outputs from
     * from->n on are +0. A task unpacks its group of panels for a block of rows, on its thread. */
    void (*unpack)(float *to, int cols, const struct gemm_panel *from, const struct gemm_sum *s);
    int few_rows; /* the most rows for `few`; 0: those of one of its tiles */
};
/* Panels of w: a run begins with one of its own. */
int64_t gemm_panel_count(const struct panels *w);
/* Panel i; stride: panels_stride(w). */
struct gemm_panel gemm_panel_at(const struct panels *w, int64_t stride, int64_t i);
/* Units of all leaves. */
int64_t gemm_leaves_units(const struct leaves *l, enum dtype dt);

/* shared by the class with the bf16 instruction */
extern const struct gemm_tiles gemm_tiles_avx512_f32;

/* The ops over a class' tiles: tiles[DT_F32], tiles[DT_BF16]. */
void gemm_linear_pack(struct dev *d, const struct gemm_tiles *const *tiles, struct panels *p, int n_w,
                      const struct mat *w);
/* kinds: by kind and dtype; NULL: the class reads plain panels only */
void gemm_linear(struct dev *d, const struct gemm_tiles *const *tiles, const struct gemm_kind (*kinds)[2],
                 struct mat y, struct mat x, const struct panels *w);
void gemm_linear_dx(struct dev *d, const struct gemm_tiles *const *tiles, struct mat dx, int n_w,
                    const struct mat *dy, const struct mat *w, const struct leaves *l);
void gemm_linear_dw(struct dev *d, const struct gemm_tiles *const *tiles, const struct tree_acc *acc,
                    int64_t ld, struct mat dy, struct mat x, int n_seq, int64_t seq_len);
/* experts.c */
void gemm_linear_experts(struct dev *d, const struct gemm_tiles *const *tiles,
                         const struct gemm_kind (*kinds)[2], struct mat y, struct listed x,
                         const struct expert_rows *g, const struct panels *w);
void gemm_linear_dx_experts(struct dev *d, const struct gemm_tiles *const *tiles, struct mat dx, int n_w,
                            const struct listed *dy, const struct mat *w, const struct leaves *l,
                            const struct expert_rows *g);
void gemm_linear_dw_experts(struct dev *d, const struct gemm_tiles *const *tiles, const struct tree_acc *acc,
                            int64_t ld, struct listed dy, struct listed x, const struct expert_rows *g);

/* The table of one class, from its two sets of tiles and its kinds of panels. */
#define GEMM_CLASS(class, f32, bf16, kinds) \
    static const struct gemm_tiles *const class##_tiles[2] = { [DT_F32] = f32, [DT_BF16] = bf16 }; \
    static void class##_linear_pack(struct dev *d, struct panels *p, int n_w, const struct mat *w) \
    { \
        gemm_linear_pack(d, class##_tiles, p, n_w, w); \
    } \
    static void class##_linear(struct dev *d, struct mat y, struct mat x, const struct panels *w) \
    { \
        gemm_linear(d, class##_tiles, kinds, y, x, w); \
    } \
    static void class##_linear_dx(struct dev *d, struct mat dx, int n_w, const struct mat *dy, \
                                  const struct mat *w, const struct leaves *l) \
    { \
        gemm_linear_dx(d, class##_tiles, dx, n_w, dy, w, l); \
    } \
    static void class##_linear_dw(struct dev *d, const struct tree_acc *acc, int64_t ld, struct mat dy, \
                                  struct mat x, int n_seq, int64_t seq_len) \
    { \
        gemm_linear_dw(d, class##_tiles, acc, ld, dy, x, n_seq, seq_len); \
    } \
    static void class##_linear_experts(struct dev *d, struct mat y, struct listed x, \
                                       const struct expert_rows *g, const struct panels *w) \
    { \
        gemm_linear_experts(d, class##_tiles, kinds, y, x, g, w); \
    } \
    static void class##_linear_dx_experts(struct dev *d, struct mat dx, int n_w, const struct listed *dy, \
                                          const struct mat *w, const struct leaves *l, \
                                          const struct expert_rows *g) \
    { \
        gemm_linear_dx_experts(d, class##_tiles, dx, n_w, dy, w, l, g); \
    } \
    static void class##_linear_dw_experts(struct dev *d, const struct tree_acc *acc, int64_t ld, \
                                          struct listed dy, struct listed x, const struct expert_rows *g) \
    { \
        gemm_linear_dw_experts(d, class##_tiles, acc, ld, dy, x, g); \
    } \
    const struct gemm_ops class = { class##_linear_pack,      class##_linear, \
                                    class##_linear_dx,        class##_linear_dw, \
                                    class##_linear_experts,   class##_linear_dx_experts, \
                                    class##_linear_dw_experts };

/* gemm_kind.unpack of PANEL_ROWS, by the class' block. */
void gemm_unpack_rows(float *to, int cols, const struct gemm_panel *from, const struct gemm_sum *s,
                      gemm_block_fn *block);
void gemm_unpack_rows_plain(float *to, int cols, const struct gemm_panel *from, const struct gemm_sum *s);

/* Packing (gemm_pack.c). s gives leaves in elements and units; every function writes only what it names. */
static inline int64_t gemm_units(enum dtype dt, int64_t n_elems)
{
    return dt == DT_F32 ? n_elems : (n_elems + 1) / 2;
}
/* The columns of a panel that lie side by side in this class, from rows w[0 .. n_rows), each contiguous over
 * the contraction; n_rows is at most that many, and missing columns become +0. row_bytes: gemm_block. */
void gemm_pack_panel(float *panel, const struct gemm_tiles *tiles, enum dtype dt, const struct gemm_sum *s,
                     const char *const *w, int n_rows, int64_t row_bytes);
/* Row `row` as one of `rows` rows of a tile: its leaf g is leaf g (l[i]) of that row of every matrix
 * src[0..n_src) in turn. */
void gemm_pack_lines(float *line, int rows, const struct gemm_sum *s, int n_src, const struct listed *src,
                     const struct leaves *l, int64_t row);
void gemm_pack_lines_wide(float *line, int rows, const struct gemm_sum *s, int n_src,
                          const struct listed *src, const struct leaves *l, int64_t row); /* bf16 only */
/* Columns [col, col + n) of every row become out[unit][stride], n <= 32; with n < stride and fill, +0 behind
 * them. */
/* out[unit][2][stride] where wide (bf16 only) */
struct gemm_piece {
    float *out;
    int64_t col;
    int n, stride, fill;
};
/* Several pieces at once, so that a row is read in one go: row[element] points at the rows. */
void gemm_pack_columns(const struct gemm_piece *piece, int n_pieces, enum dtype dt, const struct gemm_sum *s,
                       const char *const *row);
void gemm_pack_columns_wide(const struct gemm_piece *piece, int n_pieces, const struct gemm_sum *s,
                            const char *const *row);

#endif
