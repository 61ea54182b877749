/* model.h - the computation: one forward pass for trainer and server, the backward pass, per rank of a tp
 * group.
 *
 * A model computes on rows (tokens of several sequences, one behind the other). Weights come by unit through
 * struct weights, so that they can be resident, gathered (ZeRO-3) or streamed. Activations lie in memory
 * that the caller measures and opens. Matrices are row-major; "dt" is the dtype of the arithmetic, fp32 or
 * bf16.
 *
 * Threads: one thread a rank calls these functions. Functions marked collective are called by all ranks of
 * the tp group, in the same order. Functions that return int return 0 or a negative code and fill *e
 * (base/err.h). */
#ifndef SHARDLINE_MODEL_MODEL_H
#define SHARDLINE_MODEL_MODEL_H

#include <signal.h>
#include "comm/comm.h"
#include "kernels/kernels.h"
#include "kernels/ring.h"
#include "model/config.h"
#include "model/params.h"

/* ---- the model of one rank ---- */

/* A run of layer units that one pipeline message enters and one leaves; the first and last stage have the
 * ends too. */
struct stage {
    int first_unit, last_unit, has_embed, has_head;
};

/* Losses of routers that training adds: their gradients are made of counts (integers) and the token's own
 * scores, so that no layout shows (kernels/NUMERICS.md, "Experts"). 0: none. */
struct router_losses {
    float sequence; /* dL/dp of an expert for every row of the sequence that chose it (DeepSeek-V3, 2.1.2) */
    /* device, [n_layers][n_experts], borrowed: counts in place of those of the sequence, for every row; NULL:
     * those of the sequence */
    const int32_t *counts;
    float z; /* dL/dlse is this times lse, lse = log sum exp of a token's logits (Zoph et al. 2022) */
};

/* cos and sin of positions, [max_pos][rope_dim / 2]; NULL: there are none. */
struct rope_table {
    float *cos, *sin;
};
/* ROPE_LOCAL: of layers with a window, where these have a theta of their own */
enum { ROPE_GLOBAL, ROPE_LOCAL, ROPE_TABLES };

/* Buffers of the products that adapters add (adapter.h), for calls of max_rows rows; NULL: adapter_rank is
 * 0. */
struct adapter_room {
    float *z;   /* [max_rows][3 ranks]: three matrices of one input at most */
    void *z_dt; /* the same, rounded to dt */
    float *d;   /* [some rows][the widest matrix] */
};

struct unit; /* units.h */
struct model {
    struct param_table table;
    struct params_local local;
    struct unit *unit; /* [table.n_units]: what each consists of on this rank */
    struct dev *dev;
    struct comm *tp;       /* borrowed */
    struct comm *kv_group; /* ranks that hold the same kv head; NULL when none is replicated */
    struct comm *ep;       /* borrowed: ranks that divide the experts of a layer; NULL: ep is 1 */
    struct comm *cp;       /* borrowed: ranks that divide the leaves of every sequence; NULL: cp is 1 */
    enum dtype dt;
    enum kv_kind kv; /* what pages of keys and values store; a plan sets it after model_shape() */
    int fast;        /* --numerics fast */
    int grain;       /* the GRAIN that runs (layout_grain) */
    int64_t hidden, n_layers, vocab;
    float embed_factor;           /* on the embedding, in dt; 0: none */
    int64_t vocab_begin, vocab_n; /* this rank's part of the vocabulary */
    struct leaves of_hidden;      /* blocks of the hidden size */
    struct leaves of_vocab;       /* this rank's blocks of the vocabulary */
    int n_chunks;                 /* virtual stages on this pipeline rank, 1 without interleaving */
    struct stage *chunk;          /* [n_chunks], the earlier layers first */
    int has_embed, has_head;      /* of any chunk */
    int shares; /* parts that a training sequence is cut in between bodies: tp with --sp, else 1 */

    /* from here on: set by model_open only */
    int64_t max_rows, max_pos;
    int learned_positions; /* a table of positions instead of RoPE */
    struct rope_table rope[ROPE_TABLES];
    int64_t rope_n; /* positions in the tables so far: they grow with use (a context may have millions) */
    /* [n_vectors]: memory of vectors with a dtype of their own (F32 alone is computed), NULL of the others;
     * for weights that bring none (struct unit_weights). No optimizer sees it: whoever fills the weights
     * fills it. */
    void **own;
    /* comm memory [max_rows][hidden]: partial sums over tp; then those of adapters, [max_rows][3 ranks] */
    float *sum_rows;
    int64_t adapter_rank; /* of struct model_open */
    void *adapter_memory; /* of: */
    struct adapter_room adapters;
    void *all_rows; /* dt [max_rows][hidden], once a machine: gathered rows; NULL: shares is 1 */
    float *stat;    /* comm memory [4][max_rows]: statistics of the cross-entropy */
    int32_t *pos;   /* [max_rows], of the host: positions of model_forward's rows; NULL: not learned */
    /* of the host, lists_bytes: lists of one layer's routed rows in model_forward; NULL: no experts */
    void *lists;
    size_t lists_bytes;
    struct router_losses losses; /* set by the trainer */
    /* S: neighbouring sequences whose rows are one leaf of an expert's weight gradients. 0: 1. Set by the
     * trainer: a power of two that divides the sequences that reach an expert in one call. */
    int expert_leaf;
    /* 1: rows of experts are waited for where they are sent, 0: where they are used. Set by the trainer. */
    int waits;
    /* C: leaves that a training sequence is cut into (kernels/attn_cut.h). 0: 1. Set by the trainer: a power
     * of two that cp divides. */
    int cp_grain;
    /* [n_layers][n_experts]: rows that chose an expert, added up by backward passes; NULL: no experts */
    int64_t *loads;
    /* [n_layers]: the most rounds that a backward of a layer took (dispatch.h), 0: none; with loads */
    float *rounds;
};

/* Sizes alone, no memory but the tables: what a plan needs. model_close after it. ERR_CONFIG: a family that
 * nothing computes; ERR_USAGE: a layout that does not fit the model. */
int model_shape(struct model *m, const struct model_config *cfg, const struct layout *lay, struct rank_at at,
                enum dtype dt, int fast, struct err *e);
/* How a model is opened. layout.tp is the size of tp. */
struct model_open {
    struct layout layout;
    struct dev *dev;
    struct comm *tp; /* borrowed */
    struct comm *ep; /* borrowed; NULL: layout.ep is 1 */
    struct comm *cp; /* borrowed; NULL: layout.cp is 1 */
    int tp_rank, pp_rank;
    enum dtype dt;
    enum kv_kind kv;      /* what pages of keys and values store; training: KV_OWN */
    int fast;             /* --numerics fast: one chain instead of GRAIN leaves */
    int64_t max_rows;     /* in one call */
    int64_t max_pos;      /* positions; 0: the config's max_position_embeddings */
    int64_t adapter_rank; /* the largest rank of adapters (adapter.h); 0: there are none */
};
/* Collective. ERR_MEMORY, ERR_USAGE (more positions than the model has learned), and those of model_shape. */
int model_open(struct model *m, const struct model_config *cfg, const struct model_open *how, struct err *e);
void model_close(struct model *m);
/* Bytes of the tables and row buffers of model_open() for that many rows and positions; not those of sequence
 * parallelism. m: from model_shape() too. */
size_t model_tables_measure(const struct model *m, int64_t rows, int64_t positions);

/* Index of the local part with this kind in `unit`, or -1. */
int model_part(const struct model *m, int unit, enum param_kind kind);
/* Memory of a part with a dtype of its own; NULL: the part has the run's dtype. */
void *model_own(const struct model *m, int part);
/* A part as a matrix inside a unit's flat vector (natural order, dt). */
struct mat model_mat(const struct model *m, const void *flat, int part);
/* A stored matrix's transpose, made at *to, which moves behind it. */
struct mat model_transposed(const struct model *m, struct mat stored, char **to);
/* Bytes of one layer in one 64-position page of keys and values on this rank. A page holds this rank's layers
 * of its group one behind the other. */
size_t model_page_bytes(const struct model *m);
/* Where a page of a group has the values on this rank. */
struct page_values model_page_values(const struct model *m, int group);
/* How many layers of a page group this rank has below `layer`; with layer n_layers: in all. */
int64_t model_page_layers(const struct model *m, int group, int64_t layer);
/* The same before there is a model. */
size_t model_page_bytes_of(const struct model_config *c, int tp, enum dtype dt, enum kv_kind kv);
/* Floating-point operations of one token's forward pass through the whole model: products, and attention
 * over `keys` keys. */
int model_flops(const struct model_config *cfg, double keys, double *flops, struct err *e);

/* What a unit moves over tp in one pass of training, in units of its rows: sums and gathers (with sp) of
 * [rows][hidden], and floats of norms' gradients that sp sums a sequence. deferred: gathers more where
 * weight gradients are deferred. */
struct unit_traffic {
    int sums_forward, sums_backward, gathers_forward, gathers_backward, gathers_deferred;
    int64_t norm_floats;
    int whole_forward, whole_backward; /* sums whose result every rank takes whole, with sp too */
    int64_t row_floats;                /* floats a row that ranks sum in backward */
    int64_t key_floats;                /* floats a row that ranks of cp sum in backward */
    int dispatched; /* experts of a token whose rows travel between the ranks of ep, there and back */
};
/* One unit of the model on this rank. */
struct unit_traffic model_traffic(const struct model *m, int unit);

/* ---- weights ---- */

/* Weights of one unit on this rank. at, pack: in the order of the parts of its vectors (model_place), and of
 * its packs. */
struct unit_weights {
    void *flat;          /* the unit's flat vector (params.h), dt; NULL where packs suffice */
    void *experts;       /* likewise, where its experts have a vector of their own */
    const void **at;     /* a part in natural order; NULL: only packed */
    struct panels *pack; /* matrices packed for the forward product */
    void *const *own;    /* [n_vectors] as model.own; NULL: those of the model */
};
/* Tables large enough for any unit of m; ERR_MEMORY. */
int unit_weights_open(struct unit_weights *uw, const struct model *m, struct err *e);
void unit_weights_close(struct unit_weights *uw);

/* Lends units to the computation: get borrows one, put releases it. Calls nest; at most two units are
 * borrowed at a time. backward: the natural order is needed, packs are not. soon (may be NULL): this unit is
 * the next to be borrowed, so it can be fetched meanwhile; called while the unit before it is borrowed. */
struct weights {
    int (*get)(struct weights *w, int unit, int backward, const struct unit_weights **out, struct err *e);
    void (*put)(struct weights *w, int unit);
    int (*soon)(struct weights *w, int unit, int backward, struct err *e);
};
static inline int weights_soon(struct weights *w, int unit, int backward, struct err *e)
{
    return w->soon ? w->soon(w, unit, backward, e) : 0;
}

/* Bytes of the packs of a vector (params.h): those of a unit, but for experts with a vector of their own. */
size_t model_pack_bytes(const struct model *m, int vector);
/* Where packs are made from. Ranks that share memory pack share 0 … n_shares - 1 of it each. */
struct pack_from {
    const void *flat; /* the vector */
    const void *tied; /* unit 0's, for the head of a tied model */
    int share, n_shares;
};
/* Packs a vector into `memory` (model_pack_bytes) and points uw->pack of its unit there; uw->pack is filled
 * whole for any share. */
void model_pack(const struct model *m, int vector, const struct pack_from *from, struct unit_weights *uw,
                void *memory);
/* One pack of a unit, by its index in struct unit_weights.pack. The first one of a vector from `pack` on; -1:
 * none. */
int model_vector_packs(const struct model *m, int vector, int pack);
/* Its shape, without memory; returns the bytes that it takes, a multiple of 64. m: from model_shape() too. */
size_t model_pack_shape(const struct model *m, int unit, int pack, struct panels *out);
/* Packs it to to->p. */
void model_pack_one(const struct model *m, int unit, int pack, const struct pack_from *from,
                    const struct panels *to);
/* The place of a part in uw->at. */
const void **model_place(const struct model *m, const struct unit_weights *uw, int part);
/* Points uw->flat or uw->experts, and uw->at, into a vector. */
void model_point(const struct model *m, int vector, void *flat, struct unit_weights *uw);

/* ---- resident weights: all in memory, read through a callback (the server, evaluation) ---- */

/* Brings the box of a parameter in dtype dt, row-major contiguous, to dst, memory of the ring's device,
 * through the ring. */
typedef int (*model_read)(void *ctx, const struct param *p, const struct box *b, struct ring *ring, void *dst,
                          enum dtype dt, struct err *e);
struct resident {
    struct weights w;
    struct model *m;
    struct unit_weights *unit; /* [n_units] */
    void **memory; /* [n_trained]: what stays in natural order, then packs; neither where it was pointed at */
    size_t *bytes; /* [n_trained] of these */
    void ***made;  /* [n_units][packs]: memory of packs that resident_replace brought */
    void **own;    /* [n_vectors] as model.own: another set of weights has other values */
};
/* Reads all weights through `read`, on the thread of the device. ERR_MEMORY names the unit; errors of
 * `read`. */
int resident_open(struct resident *r, struct model *m, model_read read, void *ctx, struct err *e);
/* Memory of weights that nothing reads any more, for the next ones of the same model on the same device:
 * pages that are fresh must be cleared first, which takes longer than filling them. Zeroes: none. */
struct resident_memory {
    int n;
    void **block; /* [n] as struct resident has them; NULL: taken */
    size_t *bytes;
    void *flat; /* of the parts of a unit in natural order, while they are read */
    size_t flat_bytes;
};
/* ring: bytes of a staging buffer that slices go through (kernels/ring.h); 0: RING_BUFFER_BYTES. executor:
 * for a thread that may not touch the device. */
struct resident_source {
    model_read read;
    void *ctx;
    struct dev_executor executor;
    size_t ring;
    /* A source may have weights in memory as the computation reads them (a mapped file), and point at them
     * instead of being read. NULL: it has none. The memory stays until resident_close. Both return 1, 0 where
     * the weights are to be read, or an error.
     * pack: of a unit, by its index in struct unit_weights.pack. *p comes as model_pack_shape gives it; kind,
     *       p or runs, stride and codes are to be set.
     * part: one that stays in natural order (a vector, a table that is looked up): *at is its address,
     *       row-major and contiguous in the model's dtype. */
    int (*pack)(void *ctx, int unit, int pack, struct panels *p, struct err *e);
    int (*part)(void *ctx, int part, const void **at, struct err *e);
    struct resident_memory *reuse; /* blocks are taken out of it, and come back after an error; or NULL */
};
/* As resident_open, for any thread, through from->executor. ERR_MEMORY names the unit; errors of `read`. */
int resident_fill(struct resident *r, struct model *m, const struct resident_source *from, struct err *e);
/* Bytes of weights and packs that resident_open() will take. *reading: bytes besides while it reads. m: from
 * model_shape() too. */
size_t resident_measure(const struct model *m, size_t *reading);
/* Puts other panels of the same weights in a pack's place, between two steps, on the thread that computes.
 * memory: of dev_alloc, or NULL; r frees it when the pack is replaced again, or in resident_close. What was
 * there before is not read any more when it returns. */
void resident_replace(struct resident *r, int unit, int pack, const struct panels *p, void *memory);
void resident_close(struct resident *r);
/* Bytes of r's own memory, without packs that were replaced. */
int64_t resident_bytes(const struct resident *r);
/* Closes r and keeps its memory in *to. Where there is none for the list, it is freed. */
void resident_retire(struct resident *r, struct resident_memory *to);
/* Memory for weights that resident_fill() reads whole for m, its pages touched. *stop not 0: ends early, with
 * what there is, as where memory runs out. Host memory only; any thread. x: zeroes. */
void resident_memory_open(struct resident_memory *x, const struct model *m,
                          const volatile sig_atomic_t *stop);
int64_t resident_memory_bytes(const struct resident_memory *x);
/* Frees it; d: the device, or another one with the same struct mem. */
void resident_memory_close(struct resident_memory *x, struct dev *d);

/* ---- rows of a call, and which of them a rank holds ---- */

/* n_seq sequences of len tokens, one behind the other. Products and attention see all rows. Between bodies
 * (norms, residuals) a rank holds own_len tokens of every sequence, one sequence behind the other too: all
 * of them, or with sequence parallelism its GRAIN / tp blocks. Source: Korthikanti et al. 2022, section
 * 4.2.2. Where training sequences are cut into leaves (model.cp_grain), a leaf counts as a sequence here:
 * `leaves` neighbours are those that this rank has of a sequence. */
struct seq_rows {
    int n_seq;
    int64_t len, own_len;
    int leaves;
};
static inline struct seq_rows rows_whole(int64_t n) { return (struct seq_rows){ 1, n, n, 1 }; }
static inline int64_t rows_all(const struct seq_rows *r) { return r->n_seq * r->len; }
static inline int64_t rows_own(const struct seq_rows *r) { return r->n_seq * r->own_len; }
static inline int rows_shared(const struct seq_rows *r) { return r->own_len < r->len; }

/* ---- forward without backward: the server, samples ---- */

/* For sequences of whose rows other ranks compute some, into pages that they all see. Every layer of this
 * rank's stage calls `stored` once, in order, when its keys and values are in the pages and before it reads
 * those of other rows: all of them are there when it returns. The layer lies in the pages of batch.seq, or
 * with `grouped` in those of batch.grouped: model_page_bytes from page_off on. */
struct key_exchange {
    int (*stored)(struct key_exchange *x, int grouped, size_t page_off, struct err *e);
};
struct adapter_rows; /* adapter.h */
struct batch {
    int64_t n_rows; /* 0 is allowed with an exchange, or with most_rows: then the rank only takes part */
    /* Rows of the rank that has most of those that divide experts, where they have different ones (ep more
     * than tp); 0: n_rows. */
    int64_t most_rows;
    const int32_t *ids; /* [n_rows], of the host */
    /* dt [n_rows][hidden], of the device: of model_config_next's models, the state of the token before each
     * row's token; else NULL */
    const void *states;
    int n_seq;
    /* [n_seq]. Without `grouped` a page holds all layers, model_page_bytes each, those of page group 0 first;
     * with it a page of seq holds the layers of group 0, a page of grouped those of group 1. */
    const struct attn_seq *seq, *grouped;
    struct key_exchange *exchange;       /* borrowed; NULL: every sequence's rows are all here */
    const struct adapter_rows *adapters; /* borrowed; NULL: no row has an adapter */
    int64_t n_want;                      /* rows whose logits are wanted; 0: no head */
    const int32_t *want;                 /* [n_want], of the host, ascending */
};
/* Work memory of model_forward: x the residual stream, the rest private to forward.c. */
struct forward_work {
    int64_t rows, logit_rows; /* most rows, most rows with logits */
    void *x;                  /* dt [rows][hidden] */
    void *layer_memory;       /* buffers of one layer: layer_bytes */
    size_t layer_bytes;
    void *picked, *norm_out; /* dt [logit_rows][hidden]: wanted rows, their norm */
    void *h;                 /* dt [rows][hidden] */
    float *stat;
    float *logits;      /* [logit_rows][vocab] */
    float *part_logits; /* this rank's columns, then all ranks'; NULL: tp is 1 */
};
/* Carves work memory. With arena base NULL it only measures. */
void forward_work_carve(const struct model *m, struct arena *a, int64_t rows, int64_t logit_rows,
                        struct forward_work *w);
/* logits: fp32 [n_want][vocab] of the whole vocabulary on every tp rank, inside the work memory, of the
 * device. max, sum: [n_want]. The log-prob of id v is (logits[v] - max) - log(sum), as KERNEL ce_logprob
 * computes it. */
struct head_out {
    const float *logits;
    const float *max, *sum;
    const void *rows; /* dt [n_want][hidden]: the final hidden states, behind the last norm */
};
/* Runs the rows through all layers (keys and values go to their pages), and the wanted rows through the
 * head. Collective over tp. ERR_MEMORY, ERR_PEER. */
int model_forward(struct model *m, struct weights *ws, const struct batch *b, struct forward_work *w,
                  struct head_out *out, struct err *e);
/* The same for one chunk of a pipeline rank: rows come in w->x but to the first chunk of all, and are left
 * there but by the last one, which alone fills *out. */
int model_forward_part(struct model *m, struct weights *ws, int chunk, const struct batch *b,
                       struct forward_work *w, struct head_out *out, struct err *e);

/* Units first … last of the model alone, without head: unit 0 is the embedding, unit i > 0 layer i - 1. Rows
 * come in w->x where first is not 0, and are left there, so that a pass over a batch can be cut into several
 * calls, with other calls between them that use other memory for x. One rank of pp. Collective over tp. */
int model_forward_units(struct model *m, struct weights *ws, int first, int last, const struct batch *b,
                        struct forward_work *w, struct err *e);

/* The parts of what becomes of wanted rows, for callers whose rows come from several ranks. Rows list[n] (of
 * the host) of `from` to `to`, both dt [][hidden] of the device, apart from each other. Not collective. */
void model_pick_rows(const struct model *m, void *to, const void *from, const int32_t *list, int64_t n);
/* Logits of the n rows in w->picked, on the stage with the head. Collective over tp. */
int model_forward_head(struct model *m, struct weights *ws, int64_t n, struct forward_work *w,
                       struct head_out *out, struct err *e);
/* After model_forward() of n rows by one rank of cp and pp: the final hidden states of all of them, behind
 * the last norm, dt [n][hidden] in w->h. Not collective. */
int model_final_states(struct model *m, struct weights *ws, int64_t n, struct forward_work *w, struct err *e);

/* ---- training: forward that keeps, backward that accumulates ---- */

struct train_work; /* activations of one micro-batch */
enum recompute {
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE, /* norms and activations are computed again */
    RECOMPUTE_FULL       /* all but a layer's input */
};
/* Where the inputs of layers that are computed again go between forward and backward (--recompute full with
 * --offload-activations). x: device memory of `bytes` bytes; work, unit: whose it is. put has read x when it
 * returns. soon: this one is the next to be asked for. */
struct input_store {
    int (*put)(struct input_store *s, int work, int unit, const void *x, size_t bytes, struct err *e);
    int (*soon)(struct input_store *s, int work, int unit, size_t bytes, struct err *e);
    int (*get)(struct input_store *s, int work, int unit, void *x, size_t bytes, struct err *e);
};

/* A micro-batch of n_seq sequences. documents: of one sequence at most, 1: attention reads whole sequences.
 * deferred_weights: a backward may leave its weight gradients for later (train_work_defer).
 * expert_buffer: with ep > 1, rows of experts that a rank has memory for, in multiples of an even load; 0:
 * for every choice. leaves: of the trees that gradients are added to (struct grads.n); 0: n_seq. sharers: of
 * train_work_measure, ranks of cp that share a machine's memory; 0: all. */
struct work_shape {
    int n_seq;
    int64_t seq_len;
    int documents;
    enum recompute recompute;
    int deferred_weights;
    double expert_buffer;
    int64_t leaves;
    int sharers;
    int spills; /* inputs of layers go to `inputs`; with RECOMPUTE_FULL only */
    struct input_store *inputs;
    int number;              /* of this micro-batch's memory, for the store */
    struct adapter *adapter; /* borrowed: of all rows, the base is frozen (adapter.h); NULL: none */
};
/* Of a layer of experts, all are alike: the rows that this rank has memory for; its even load; the most that
 * n_seq sequences (one leaf) can bring, for which there is always room. 0 where rows do not travel (ep 1). */
struct expert_room {
    int64_t rows, even, least;
    int n_seq;
};
/* Of micro-batches of this shape; after model_shape. */
struct expert_room model_expert_room(const struct model *m, const struct work_shape *s);
/* C by the contract's formula: the largest power of two up to 8 that gives chunks of 1024 tokens and more,
 * whole blocks of attention; 1 below 4096 tokens. */
int model_cp_grain(int64_t seq_len);
/* The leaves that this rank has of a training sequence: cp_grain / cp. */
int model_leaves(const struct model *m);
/* The token of a sequence of seq_len that row `row` of this rank's rows of it is. */
int64_t model_row_token(const struct model *m, int64_t seq_len, int64_t row);
/* ERR_USAGE: sequences of this length cannot be shared among the ranks, or cut into leaves. */
int train_work_check(const struct model *m, const struct work_shape *s, struct err *e);
/* Memory for one micro-batch in a chunk. ERR_MEMORY says what to use instead. */
int train_work_open(struct train_work **out, struct model *m, int chunk, const struct work_shape *s,
                    struct err *e);
void train_work_close(struct train_work *w);
/* Bytes that train_work_open takes; after model_shape. */
size_t train_work_measure(const struct model *m, int chunk, const struct work_shape *s);
/* Of these, with cp, pages of keys and values of whole sequences. */
size_t train_pages_measure(const struct model *m, int chunk, const struct work_shape *s);
/* Bytes of the device's scratch that the products of a step take: an estimate for plans. */
size_t train_scratch_measure(const struct model *m, const struct work_shape *s, int threads);

/* Where attention starts anew, for the next forward and its backward: sequence i begins n[i] documents, at
 * begin[i * documents] = 0, …. Positions count from a document's beginning. n NULL: whole sequences. */
void train_work_documents(struct train_work *w, const int *n, const int64_t *begin);
/* Between pipeline stages: what the previous stage sends forward goes into input (dt [own rows][hidden]);
 * output goes to the next one. The gradient of output goes into grad before backward, which leaves the
 * gradient of input there. */
void *train_work_input(struct train_work *w);
void *train_work_output(struct train_work *w);
void *train_work_grad(struct train_work *w);
size_t train_work_bytes(const struct train_work *w); /* of each of the three */

/* ids, targets: of this rank's rows of every sequence (model_row_token), of the host (ids for the first
 * stage, targets for the last). logprobs (may be NULL; last stage; of the host): of every target, on every tp
 * rank. Keeps what backward needs. Collective over tp and cp. */
int model_train_forward(struct weights *ws, struct train_work *w, const int32_t *ids, const int32_t *targets,
                        float *logprobs, struct err *e);
/* Where gradients go. level(vector, j): level j of the partial sums of a vector (params.h; n_trained: the
 * tied head's part, laid out as unit 0). Leaves [next, next + seq_rows.n_seq) of n are added, in a tree that
 * is nested by `inner` leaves of a sequence; of experts with a vector of their own those of all dp and cp
 * ranks of an expert group, `fold` times as many, of which inner * cp are of a sequence. done(unit): all
 * gradients of a unit are there. */
struct grads {
    int64_t n, next;
    int inner; /* 0: 1 */
    int fold;
    int n_levels; /* partial sums kept between calls: tree_levels(sequences, sequences a call) */
    float *(*level)(struct grads *g, int vector, int j);
    int (*done)(struct grads *g, int unit, struct err *e);
};
/* The backward pass of w's last forward. scale, of the host, multiplies every row of dlogits: the weight of
 * its target / targets of the global batch. A row of scale 0 contributes nothing. Collective over tp. */
int model_train_backward(struct weights *ws, struct train_work *w, const int32_t *ids, const int32_t *targets,
                         const float *scale, struct grads *g, struct err *e);

/* Weight gradients that a backward leaves for later, with copies of what it overwrites (zero-bubble
 * pipelines). */
struct deferred_grads;
int deferred_grads_open(struct deferred_grads **out, struct model *m, int chunk, const struct work_shape *s,
                        struct err *e);
void deferred_grads_close(struct deferred_grads *d);
/* Bytes of one; after model_shape. */
size_t deferred_grads_measure(const struct model *m, int chunk, const struct work_shape *s);
/* The next backward of w leaves its weight gradients in d; NULL (at first): it adds them. d is borrowed. */
void train_work_defer(struct train_work *w, struct deferred_grads *d);
/* Adds those that the last backward of w left in d; w has not been used since. Collective over tp. */
int model_train_deferred(struct train_work *w, struct deferred_grads *d, struct grads *g, struct err *e);

#endif
