/* block.h - inside model/: one decoder layer and the head, forward, as the trainer and the server both run
 * them. */
#ifndef SHARDLINE_MODEL_BLOCK_H
#define SHARDLINE_MODEL_BLOCK_H

#include "model/family.h"
#include "model/model.h"

/* Buffers of one layer. The trainer has a set per layer (backward reads them), the server one for all. x, xm
 * and x_out may be the same memory when nothing is kept. "dt" is the dtype of the arithmetic; "own" are the
 * rows that the rank holds between products. */
struct layer_buf {
    void *x;      /* dt [own][hidden]: the residual stream coming in */
    void *h1;     /* dt [own][hidden]: its norm */
    float *stat1; /* [own] roots of the norm; layer norms: then [own] means */
    /* [rows][(n_heads + 2 n_kv) head_dim], scratch; kept where heads are normed */
    float *qkv;
    void *q, *o; /* dt [rows][n_heads head_dim] */
    float *lse;  /* [rows][n_heads], or NULL when nothing is kept */
    void *xm;    /* dt [own][hidden]: the residual stream after attention */
    void *h2;    /* h2, stat2: of its norm */
    float *stat2;
    float *gu; /* [rows][up_cols]: gate and up, or up */
    void *act; /* dt [rows][inter] */
};

int block_forward(const struct model *m, const struct unit_weights *uw, const struct attn *a,
                  const struct layer_buf *b, void *x_out, const struct seq_rows *r, struct err *e);
/* pos: positions of all rows (model_positions); NULL where none are learned. x: own rows. */
int embed_forward(const struct model *m, const struct unit_weights *uw, const int32_t *ids,
                  const int32_t *pos, void *x, const struct seq_rows *r, struct err *e);
/* Final norm of x (own rows) and local logits of all rows, then max and sum over the whole vocabulary
 * (m->stat rows 0 and 1). */
int head_forward(const struct model *m, const struct unit_weights *uw, const void *x, void *hf, float *stat,
                 float *logits, int64_t logits_ld, const struct seq_rows *r, struct err *e);
/* rows.c: what goes into a product and what comes out of one, over tp. *all: all rows of what every rank
 * holds own rows of, until the next call; own itself where nothing is shared. */
int rows_gather(const struct model *m, const struct seq_rows *r, struct mat own, struct mat *all,
                struct err *e);
/* *own: the sums over tp of this rank's own rows of m->sum_rows, which lie in it. */
int rows_sum(const struct model *m, const struct seq_rows *r, struct mat *own, struct err *e);
/* where rows_gather puts them */
struct mat rows_gathered(const struct model *m, const struct seq_rows *r);
/* of a sequence: this rank's first own row */
int64_t rows_first(const struct model *m, const struct seq_rows *r);
/* sizes, scale, window; the sequences are the caller's */
struct attn model_attn(const struct model *m, int layer);
/* Position of every row of the sequences. */
void model_positions(const struct attn_seq *seq, int n_seq, int32_t *pos);
/* Pieces that backward computes again. kind: the norm's weight. */
void norm_forward(const struct model *m, const struct unit_weights *uw, enum param_kind kind, void *y,
                  float *stat, const void *x, int64_t rows);
void act_forward(const struct model *m, void *act, float *gu, int64_t rows);
static inline int64_t norm_grads(const struct model *m)
{
    return m->features & F_LAYER_NORM ? 2 * m->hidden : m->hidden;
}
static inline int64_t norm_stats(const struct model *m, int64_t rows)
{
    return m->features & F_LAYER_NORM ? 2 * rows : rows;
}
/* Weights of the heads' norms, or q NULL. */
struct head_norm model_head_norm(const struct model *m, const struct unit_weights *uw);

/* Positions 0 .. n - 1 are in the tables of cos and sin afterwards. ROPE_FIRST: those that are there from
 * the start. */
#define ROPE_FIRST 2048
int model_turns_upto(struct model *m, int64_t n, struct err *e);

#endif
