/* block.h - inside model/: one decoder layer and the head, forward, as the trainer and the server both run them. */
#ifndef SHARDLINE_MODEL_BLOCK_H
#define SHARDLINE_MODEL_BLOCK_H

#include "model/model.h"

/* Buffers of one layer. The trainer has a set per layer (backward reads them), the server one for all. x, xm and x_out may be the
 * same memory when nothing is kept. "dt" is the dtype of the arithmetic. */
struct layer_buf {
    void *x;                             /* dt [rows][hidden]: the residual stream coming in */
    void *h1;                            /* dt: its norm */
    float *rstd1;                        /* [rows] */
    float *qkv;                          /* [rows][(n_heads + 2 n_kv) head_dim], scratch */
    void *q, *o;                         /* dt [rows][n_heads head_dim] */
    float *lse;                          /* [rows][n_heads], or NULL when nothing is kept */
    void *xm;                            /* dt: the residual stream after attention */
    void *h2;
    float *rstd2;
    float *gu;                           /* [rows][2 inter] */
    void *act;                           /* dt [rows][inter] */
};

int block_forward(const struct model *m, const struct unit_weights *uw, const struct attn *a, const struct layer_buf *b, void *x_out,
                  int64_t rows, struct err *e);
int embed_forward(const struct model *m, const struct unit_weights *uw, const int32_t *ids, void *x, int64_t rows, struct err *e);
/* Final norm and local logits of rows of x, then max and sum over the whole vocabulary (m->stat rows 0 and 1). */
int head_forward(const struct model *m, const struct unit_weights *uw, const void *x, void *hf, float *rstd, float *logits,
                 int64_t logits_ld, int64_t rows, struct err *e);
struct attn model_attn(const struct model *m);       /* sizes and scale; the sequences are the caller's */

#endif
