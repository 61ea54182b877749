/* train_priv.h - inside model/: the activations of one micro-batch on one pipeline stage. */
#ifndef SHARDLINE_MODEL_TRAIN_PRIV_H
#define SHARDLINE_MODEL_TRAIN_PRIV_H

#include "model/block.h"

/* A weight gradient that waits for its turn, with what it needs. stays: nothing overwrites dy, it need not
 * be copied. LATE_GATHER: all rows of dy come together, for the gradients behind it. */
enum late_op { LATE_PRODUCT, LATE_NORM, LATE_HEADS, LATE_EMBED, LATE_TIED, LATE_GATHER, LATE_DONE };
struct late {
    enum late_op op;
    int unit, grad_unit, stays;
    enum param_kind kind;
    struct mat dy, x;
    const float *stat;
    const int32_t *ids;
};
/* at most: seven products, two norms and those of the heads, four gathers, the end */
#define LATE_OF_LAYER 15
struct train_late {
    struct model *m;
    struct late *note; /* [n_notes] in use */
    char *kept;        /* copies of what the rest of the backward pass overwrites */
    size_t n_kept;     /* bytes of it in use */
    int n_notes;
};

struct train_work {
    struct model *m;
    struct stage at; /* the part of the model that it runs through */
    void *memory;    /* of everything below but dkv */
    void *scratch;   /* [rows]: q k v before they are turned, fp32, or dh */
    enum recompute recompute;
    int n_seq, n_layers, late_weights;
    int64_t seq_len, rows, own; /* own: rows that this rank holds between products */
    struct seq_rows r;          /* of n_seq sequences of seq_len */
    /* [n_layers]; buffers that are computed again are one set, shared */
    struct layer_buf *layer;
    int documents, n_attn; /* of a sequence at most; of all sequences now */
    /* [n_layers][n_seq][pages]; a document begins with a page of its own */
    char **page;
    struct attn_seq *seq; /* [n_layers][n_seq * documents], n_attn of them in use */
    int32_t *pos;         /* [rows], of the host; NULL: no learned positions */
    void *x_last, *hf;    /* dt: what comes out of the last layer, its norm */
    float *stat_last, *logits;
    float *max, *sum; /* [rows]: statistics of the cross-entropy */
    void *dlogits;    /* dt; fp32: the logits' own memory */
    void *dx, *dh;    /* dt [own][hidden] ; dt scratch [rows][widest of qkv, up_cols] */
    float *d_act;     /* fp32 scratch [rows][widest of heads, inter] */
    float *dq;
    float *dkv; /* comm memory: dk then dv, [rows][n_kv head_dim] each */
    void *dout; /* dt [rows][heads] */
    /* borrowed: where the next backward leaves its weight gradients; NULL: none are late */
    struct train_late *late;
    /* what computing a layer again overwrites, of the layer before … */
    char *again;
    size_t again_bytes; /* … 0: nothing is computed again */
    /* comm memory [n_seq][width]: a norm's gradients that ranks of tp add up, leaf by leaf; NULL: none */
    float *leaf;
    /* dt: matrices of one product, transposed; NULL: none are stored so */
    void *turned;
};

static inline int64_t heads_of(const struct model *m) { return m->n_heads * m->head_dim; }
static inline int64_t kv_of(const struct model *m) { return m->n_kv * m->head_dim; }
static inline int64_t qkv_of(const struct model *m) { return heads_of(m) + 2 * kv_of(m); }
static inline struct layer_buf *layer_of(const struct train_work *w, int unit)
{
    return &w->layer[unit - w->at.first_unit];
}
struct attn train_attn(const struct train_work *w, int unit);
void train_clean_pages(const struct train_work *w, const struct attn *a);
/* The sizes of a micro-batch; train.c carves its memory, late.c that of its late weight gradients. */
struct train_work train_work_of(const struct model *m, int chunk, const struct work_shape *s);
/* late.c: notes r with a copy of dy; x, or a copy where the backward pass of another layer will overwrite it
 * before its turn. */
void late_note(struct train_late *late, struct late r);
struct mat late_input(const struct train_work *w, struct mat x);

#endif
