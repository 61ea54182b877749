/* model.h - the computation: one forward pass for trainer and server, the backward pass, per rank of a tp
 * group.
 *
 * A model computes on rows (tokens of several sequences, one behind the other). Weights come by unit through
 * a small interface (weights.h) so that they can be resident, gathered (ZeRO-3) or streamed. Activations
 * live in arenas of the caller. */
#ifndef SHARDLINE_MODEL_MODEL_H
#define SHARDLINE_MODEL_MODEL_H

#include "comm/comm.h"
#include "kernels/kernels.h"
#include "kernels/ring.h"
#include "model/config.h"
#include "model/params.h"

/* ---- weights of one unit, as this rank holds them ---- */
enum pack { PACK_QKV, PACK_O, PACK_GU, PACK_DOWN, PACK_HEAD, PACK_COUNT };
struct unit_weights {
    /* natural order, the unit's flat vector (params.h), dtype of the arithmetic; may be NULL when packs
     * suffice */
    void *flat;
    /* parameters in natural order; NULL: none of this unit, or a matrix that is only packed */
    const void *at[P_KINDS];
    struct panels pack[PACK_COUNT]; /* p NULL: not a pack of this unit */
};
/* Lends units. get/put nest; at most two units are lent at a time. backward: the natural order is needed,
 * packs are not. soon (may be NULL): this unit will be asked for next, so that it can be fetched meanwhile;
 * said while the unit before it is lent. */
struct weights {
    int (*get)(struct weights *w, int unit, int backward, const struct unit_weights **out, struct err *e);
    void (*put)(struct weights *w, int unit);
    int (*soon)(struct weights *w, int unit, int backward, struct err *e);
};
static inline int weights_soon(struct weights *w, int unit, int backward, struct err *e)
{
    return w->soon ? w->soon(w, unit, backward, e) : 0;
}

/* A run of layer units that one pipeline message enters and one leaves; the first and last stage of all have
 * the ends besides. */
struct stage {
    int first_unit, last_unit, has_embed, has_head;
};

struct model {
    struct param_table table;
    struct params_local local;
    struct dev *dev;
    struct comm *tp; /* borrowed */
    /* ranks that hold the same kv head; NULL when none is replicated */
    struct comm *kv_group;
    enum dtype dt; /* of the arithmetic */
    int fast;      /* --numerics fast */
    int grain;     /* that runs (layout_grain) */
    int64_t hidden, head_dim, n_layers, vocab;
    int n_heads, n_kv;                   /* local */
    int64_t inter, vocab_begin, vocab_n; /* local */
    unsigned features;                   /* enum feature (family.h) */
    int64_t up_cols;                     /* what goes into the activation: 2 inter (gate, up) or inter */
    /* blocks of the hidden size: forward of q k v gate up head, dX of o and down */
    struct leaves of_hidden;
    struct leaves of_heads, of_inter, of_vocab; /* this rank's blocks */
    /* this rank's blocks of the kv rows, counted from kv_begin */
    struct leaves of_kv;
    int64_t kv_begin; /* first kv row to contract in dX, from this rank's first kv row */
    /* virtual stages on this pipeline rank, 1 without interleaving … */
    int n_chunks;
    struct stage *chunk;     /* … [n_chunks], the earlier layers first */
    int has_embed, has_head; /* of any of them: first and last rank */
    int64_t max_pos;
    float *rope_cos, *rope_sin; /* [max_pos][head_dim / 2]; NULL: positions are learned */
    /* positions that are in the tables so far: a context of millions must not be waited for at the start */
    int64_t rope_n;
    /* parts that the tokens of a training sequence are cut in between products: tp with --sp, else 1 */
    int shares;
    float *sum_rows; /* comm memory [max_rows][hidden]: partial sums over tp */
    /* dt [max_rows][hidden], once a machine: rows gathered for a product; NULL: shares is 1 */
    void *all_rows;
    float *stat; /* comm memory [4][max_rows]: statistics of the cross-entropy */
    /* [max_rows], of the host: positions of model_forward's rows; NULL: not learned */
    int32_t *pos;
    int64_t max_rows;
};

/* Sizes alone, no memory but the tables: what a plan needs. model_close after it. */
int model_shape(struct model *m, const struct model_config *cfg, const struct layout *lay, int tp_rank,
                int pp_rank, enum dtype dt, int fast, struct err *e);
/* fast: --numerics fast, one chain instead of GRAIN leaves. max_rows: rows in one call at most; max_pos:
 * positions (0: the config's max_position_embeddings). layout: tp is the size of tp. */
int model_open(struct model *m, const struct model_config *cfg, const struct layout *lay, struct dev *dev,
               struct comm *tp, int tp_rank, int pp_rank, enum dtype dt, int fast, int64_t max_rows,
               int64_t max_pos, struct err *e);
void model_close(struct model *m);

/* Index of the local part with this kind in `unit`, or -1; its natural matrix inside flat. */
int model_part(const struct model *m, int unit, enum param_kind kind);
struct mat model_mat(const struct model *m, const void *flat, int part);
/* A stored matrix's transpose, made at *room, which moves behind it. */
struct mat model_transposed(const struct model *m, struct mat stored, char **room);
/* Packs of a unit: bytes needed (tied: the head's pack comes from unit 0's flat), and packing from a natural
 * flat vector. */
size_t model_pack_bytes(const struct model *m, int unit);
/* head_flat: the flat vector that holds lm_head (the unit's own, or the embedding's when tied). Ranks that
 * share memory pack share 0 … n_shares - 1 of it each; uw is filled whole. */
void model_pack(const struct model *m, int unit, const void *flat, const void *head_flat,
                struct unit_weights *uw, void *memory, int share, int n_shares);
/* Points uw->flat and uw->at into a natural flat vector. */
void model_point(const struct model *m, int unit, void *flat, struct unit_weights *uw);

/* ---- resident weights: everything in memory, read through a callback (the server, evaluation) ---- */
/* Brings the box of a parameter as fp32 or bf16 (the model's dt), row-major contiguous, to dst, memory of
 * the ring's device, through the ring. */
typedef int (*model_read)(void *ctx, const struct param *p, const struct box *b, struct ring *ring, void *dst,
                          enum dtype dt, struct err *e);
struct resident {
    struct weights w;
    struct model *m;
    struct unit_weights *unit;
    void **memory; /* packs and norms of a unit */
};
int resident_open(struct resident *r, struct model *m, model_read read, void *ctx, struct err *e);
/* ring: bytes of a half of the ring that slices go through; 0: RING_HALF. door: for a thread that may not
 * touch the device. */
struct resident_source {
    model_read read;
    void *ctx;
    struct dev_door door;
    size_t ring;
};
int resident_fill(struct resident *r, struct model *m, const struct resident_source *from, struct err *e);
void resident_close(struct resident *r);

/* ---- rows of a call, and which of them a rank holds ---- */
/* n_seq sequences of len tokens, one behind the other. Products and attention see all rows; between them
 * (norms, residuals) a rank holds
 * own_len tokens of every sequence, one sequence behind the other too: all of them, or with sequence
 * parallelism (Korthikanti et al. 2022, section 4.2.2) its GRAIN / tp blocks. */
struct seq_rows {
    int n_seq;
    int64_t len, own_len;
};
static inline struct seq_rows rows_whole(int64_t n) { return (struct seq_rows){ 1, n, n }; }
static inline int64_t rows_all(const struct seq_rows *r) { return r->n_seq * r->len; }
static inline int64_t rows_own(const struct seq_rows *r) { return r->n_seq * r->own_len; }
static inline int rows_shared(const struct seq_rows *r) { return r->own_len < r->len; }

/* ---- batches ---- */
struct batch {
    int64_t n_rows;
    const int32_t *ids; /* [n_rows] */
    int n_seq;
    struct attn_seq *seq; /* pages set for layer 0; layer l is page_layer_bytes further */
    /* bytes between layers inside a page (server); 0: the page pointers change (trainer) */
    size_t page_layer_bytes;
};
/* of one layer: one 64-position page of this rank's kv heads */
size_t model_page_bytes(const struct model *m);

/* ---- forward without backward: the server, evaluation ---- */
/* Work memory: carve with arena base NULL first to learn its size for (max_rows, max logit rows). */
struct forward_work {
    void *x, *h;
    float *stat;
    float *qkv;
    void *q, *o;
    float *gu;
    void *act;
    void *hf;
    float *logits;
    float *part_logits;
    int64_t rows, logit_rows;
};
void forward_work_carve(const struct model *m, struct arena *a, int64_t rows, int64_t logit_rows,
                        struct forward_work *w);
/* Runs the rows through all layers (keys and values go to their pages) and the head for the rows in
 * want[0..n_want) (ascending).
 * *logits: fp32 [n_want][vocab] of the whole vocabulary on every tp rank, inside w, memory of the device;
 * max, sum: [n_want] (log-prob of id v = (logits[v] - max) - log(sum), as KERNEL ce_logprob does). n_want 0:
 * no head. Collective over tp. */
struct head_out {
    const float *logits;
    const float *max, *sum;
};
int model_forward(struct model *m, struct weights *ws, const struct batch *b, struct forward_work *w,
                  const int32_t *want, int64_t n_want, struct head_out *out, struct err *e);
/* The part of it that is this rank's chunk, as a pipeline runs it: the rows come in w->x but to the first
 * part, and are left there but by the last, which alone has an out. */
int model_forward_part(struct model *m, struct weights *ws, int chunk, const struct batch *b,
                       struct forward_work *w, const int32_t *want, int64_t n_want, struct head_out *out,
                       struct err *e);

/* ---- training: forward that keeps, backward that accumulates ---- */
struct train_work; /* activations of one micro-batch, model/train.c */
enum recompute {
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE /* norms and act(gate) up */,
    RECOMPUTE_FULL /* all but a layer's input */
};
/* What a micro-batch is: documents, of one sequence at most, 1: attention reads whole sequences. */
/* late_weights: a backward may leave them (train_work_leave). */
struct work_shape {
    int n_seq;
    int64_t seq_len;
    int documents;
    enum recompute recompute;
    int late_weights;
};
/* ERR_USAGE: sequences of this length cannot be shared among the ranks. */
int train_work_check(const struct model *m, const struct work_shape *s, struct err *e);
int train_work_open(struct train_work **out, struct model *m, int chunk, const struct work_shape *s,
                    struct err *e);
void train_work_close(struct train_work *w);
/* What all products of a step take of the device's scratch, about. */
size_t train_scratch_measure(const struct model *m, const struct work_shape *s, int threads);
/* bytes of one, from model_shape */
size_t train_work_measure(const struct model *m, int chunk, const struct work_shape *s);
/* Where attention starts anew, for the next forward and its backward: sequence i begins n[i] documents, at
 * begin[i * documents] = 0, …. Positions count from a document's beginning. n NULL: whole sequences. */
void train_work_documents(struct train_work *w, const int *n, const int64_t *begin);
/* Between pipeline stages: what the previous stage sends forward is put into input (dt [own rows][hidden]),
 * output is what the next one needs; the gradient of output is put into grad before backward, which leaves
 * the gradient of input there. */
void *train_work_input(struct train_work *w);
void *train_work_output(struct train_work *w);
void *train_work_grad(struct train_work *w);
size_t train_work_bytes(const struct train_work *w); /* of each of the three */
/* ids, targets: [n_seq][seq_len] (ids for the first stage, targets for the last). logprobs (may be NULL;
 * last stage; of the host): [rows] of every target, on every tp rank. Keeps what backward needs. */
int model_train_forward(struct model *m, struct weights *ws, struct train_work *w, const int32_t *ids,
                        const int32_t *targets, float *logprobs, struct err *e);
/* grads->level(unit, j) gives the flat vector of level j of a unit's partial sums (unit n_units: the tied
 * head's part, laid out as unit 0); leaves [next, next + n_seq) of n are added. done(unit) is called when
 * all gradients of a unit have been added. */
struct grads {
    int64_t n, next;
    /* partial sums kept between calls: tree_levels(n, sequences a call) */
    int n_levels;
    float *(*level)(struct grads *g, int unit, int j);
    int (*done)(struct grads *g, int unit, struct err *e);
};
int model_train_backward(struct model *m, struct weights *ws, struct train_work *w, const int32_t *ids,
                         const int32_t *targets, float scale, struct grads *g, struct err *e);
/* Weight gradients that a backward leaves for later, with copies of what it overwrites (zero-bubble
 * pipelines). */
struct train_late;
int train_late_open(struct train_late **out, struct model *m, int chunk, const struct work_shape *s,
                    struct err *e);
void train_late_close(struct train_late *l);
/* bytes of one, from model_shape */
size_t train_late_measure(const struct model *m, int chunk, const struct work_shape *s);
/* The next backward of w leaves its weight gradients in l; NULL (at first): it adds them. */
void train_work_leave(struct train_work *w, struct train_late *l);
/* Those that the last backward of w left in l; w with its ids must not have been used since. */
int model_train_late_weights(struct model *m, struct train_work *w, struct train_late *l, struct grads *g,
                             struct err *e);

#endif
