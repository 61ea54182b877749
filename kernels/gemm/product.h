/* product.h - one product as gemm.c runs it, for the files that put products together. Private to
 * kernels/gemm. */
#ifndef SHARDLINE_KERNELS_GEMM_PRODUCT_H
#define SHARDLINE_KERNELS_GEMM_PRODUCT_H

#include "kernels/gemm/gemm_core.h"

struct product {
    /* filled by the op: */
    const struct gemm_tiles *tiles;
    enum gemm_layout layout;
    enum dtype dt;
    int64_t m, n; /* of the output */
    int n_src;    /* A in lines: matrices and their leaves */
    const struct listed *src;
    const struct leaves *leaves;
    const struct panels *w;       /* B in panels, or NULL: rows of the contraction (b_rows) */
    const struct gemm_kind *kind; /* of w; NULL: plain */
    int64_t n_a_rows, n_b_rows;   /* pointers to rows of the contraction that A, B need */
    float *const *level;          /* the stack of sums, fp32 [m][n] */
    int64_t ld;
    struct gemm_sum sum;
    /* product_open: */
    int in_place;        /* tiles read w as it lies; 0: a task packs or unpacks its group of panels */
    int64_t stride;      /* of w: bytes */
    int64_t panel_units; /* of a plain panel as it lies: those of all leaves, of other ranks too */
    int64_t n_units, n_tiles, n_panels;
    int rows;               /* of the highest tile used */
    int64_t low, n_high;    /* rows of a tile; the first n_high tiles have one more */
    int64_t tile, tile_end; /* those at hand: A is packed for `block` tiles at a time */
    int64_t block;
    int64_t a_row; /* row r of packed A begins a tile at a + r * a_row */
    int64_t group, n_groups, parts;
    int64_t step_units; /* the most of a step; 0: all at once */
    int64_t spare_ld;
    int n_spares, n_levels; /* levels of a thread beyond the n_levels in the output: [CHUNK_ROWS][spare_ld] */
    /* products_take: */
    float *a;
    const char **a_rows, **b_rows; /* filled by the op */
    float *buffers;                /* a thread: `own` floats: a group of panels, then its spare levels */
    int64_t own;
};

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* Tasks that `threads` threads share well. */
int64_t product_tasks(int threads);
/* Fills what says where the weights of a forward product lie. 0: the class has no such kind. */
int product_weights(struct product *p, const struct gemm_kind (*kinds)[2], const struct panels *w);
/* Divides the product into about `tasks` tasks. 0: it has no elements or no leaves. */
int product_open(struct product *p, int threads, int64_t tasks);
/* Bytes of scratch that product p needs for itself: packed A and pointers. */
size_t product_bytes(const struct product *p);
/* Takes the scratch of n products that run together. 0: no memory, and the results are NaN. */
int products_take(struct dev *d, struct product *p, int n);
/* Sets the results to NaN: nothing may go on with numbers that were not computed. */
void product_poison(const struct product *p);

/* Makes the tiles from p->tile on the ones at hand. Returns the tasks that pack their rows; 0: A needs no
 * packing. */
int64_t product_next(struct product *p);
/* Tasks for pool_run, for the tiles at hand: product_pack, and when all have ended product_task, of which
 * there are n_groups * parts. */
void product_pack(void *product, int64_t task, int thread);
void product_task(void *product, int64_t task, int thread);
/* Units of A at hand, packed by one thread where waking the pool costs more. */
int product_packs_alone(int64_t units);
/* All of one product. */
void product_run(struct dev *d, struct product *p);

/* The cut points of a sum of few leaves, and the memory of them. */
struct few_leaves {
    int64_t elem_end[GRAIN_MAX], end[GRAIN_MAX];
    uint8_t merges[GRAIN_MAX];
};
/* Fills s and cuts for a product over features: leaf g holds leaf g of every l[0..n_l). */
void sum_of_leaves(struct gemm_sum *s, struct few_leaves *cuts, enum dtype dt, int n_l,
                   const struct leaves *l);
/* Fills what follows from s->n, elem_end, merges and depth_before. */
void sum_close(struct gemm_sum *s, enum dtype dt);
/* Rows of the contraction of linear_dx, in its order: leaf by leaf, segment by segment. */
void segment_rows(const char **rows, int n_w, const struct mat *w, const struct leaves *l, int n_leaves);

/* Row i of an operand. */
static inline const char *listed_row(const struct listed *x, int64_t i)
{
    return (const char *)x->m.p + (x->list ? x->list[i] : i) * x->m.ld * (int64_t)dtype_size(x->m.dt);
}

#endif
