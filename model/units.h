/* units.h - inside model/: what a unit is made of, and the walk through it.
 *
 * A unit (embedding, a decoder layer, the head) is a list of branches. A branch is a norm and a body:
 *
 *     x ──┬── norm ── gather over sp ── body ── sum over tp (tree order) ── bias ── (norm) ──(+)── next x
 *         └───────────────────────────────────────────────────────────────────────────────┘
 *
 * In a parallel unit all branches read the same x, and their outputs are added to it together.
 *
 * The walker (walker.c) owns everything between bodies, in both directions. A body is one file in sublayer/
 * and one row, struct sublayer_kind; it owns its weights, packs, buffers and gradients. Which branches a
 * layer has is the family's decision (family.h, family_layer). */
#ifndef SHARDLINE_MODEL_UNITS_H
#define SHARDLINE_MODEL_UNITS_H

#include "model/adapter.h"
#include "model/family.h"
#include "model/dispatch.h"
#include "model/model.h"
#include "model/routing.h"

/* ---- what a unit is made of, fixed by model_shape ---- */

/* A norm of the residual stream. weight, bias: parts (params.h); bias -1: none. */
struct norm {
    enum norm_kind kind;
    int weight, bias;
};

/* Matrices of a sublayer, stacked over their outputs and packed for the forward product: one pack, or one for
 * each of the rank's experts. */
struct pack_plan {
    int n_slots, slot[3];
    int64_t outputs, inputs;
    struct leaves leaves;        /* of the inputs */
    int tied;                    /* the matrix is unit 0's */
    int first_expert, n_experts; /* n_experts 0: the matrices belong to no expert */
    /* n_heads > 0: a pack for each head, of rows [head * head_rows + first_row, …) of the only slot:
     * `outputs` of them, or `inputs` where the pack is of their transpose. */
    int n_heads, turned;
    int64_t head_rows, first_row;
};

#define SUBLAYER_SLOTS 16
#define SUBLAYER_PACKS 12
#define UNIT_BRANCHES 2

/* Where a layer's keys and values lie in a page of its group, and where the group begins in a page that holds
 * all layers: layers before. */
struct page_place {
    int group;
    int64_t before, group_before;
};
/* Attention on this rank. */
struct attention {
    int n_heads, n_kv, head_dim;
    int64_t window;       /* positions that a token sees, 0: all */
    float scale, softcap; /* of the scores (struct attn) */
    int rope;             /* which of the model's tables */
    struct page_place page;
    struct leaves of_heads; /* this rank's blocks of the query rows */
    struct leaves of_kv;    /* this rank's blocks of the kv rows, counted from kv_begin */
    int64_t kv_begin;       /* first kv row to contract in dX, from this rank's first kv row */
};
/* Latent attention on this rank. */
struct latent {
    int n_heads;
    int64_t nope, rope, v, q_rank, kv_rank; /* struct model_config; q_rank 0: q is not compressed */
    float scale;
    int64_t window;
    struct page_place page;
    struct leaves of_heads, of_values; /* this rank's blocks of the rows of q, of the columns of o */
    struct leaves of_q_a, of_kv_a;     /* of rows that all ranks have, counted from … */
    int64_t q_a_begin, kv_a_begin;     /* … these */
};
/* An MLP on this rank, a body of its own or the shared expert of a mixture. */
struct mlp {
    enum act act;
    int64_t inter, up_cols; /* up_cols: what goes into the activation, 2 inter (gate, up) or inter */
    struct leaves of_inter;
    int slot; /* of gate; up, down and their biases follow */
    int pack; /* of gate and up; down's follows */
};
/* A mixture of experts on this rank. */
struct experts {
    struct expert_router router;
    int correction;     /* part of the router's correction bias, -1: none */
    int n_local, first; /* experts [first, first + n_local) are computed here */
    enum act act;
    struct clamp clamp;
    int64_t inter, up_cols; /* of one expert, as those of an MLP */
    struct leaves of_inter;
    struct leaves of_up; /* of the columns of one matrix that feeds the activation */
    int has_bias;        /* every expert has biases on what feeds the activation and on its output */
    struct mlp shared;   /* inter 0: none */
};

struct sublayer_kind;
struct sublayer {
    const struct sublayer_kind *kind;
    int unit, layer;          /* layer -1: not in a decoder layer */
    int part[SUBLAYER_SLOTS]; /* by the kind's slot: the parameter's part, -1: none */
    int n_packs;
    struct pack_plan pack[SUBLAYER_PACKS];
    int pack_at[SUBLAYER_PACKS]; /* among the unit's packs: the first one of a plan */
    union {
        struct attention attention;
        struct latent latent;
        struct mlp mlp;
        struct experts experts;
    };
};

enum flow {
    FLOW_START, /* makes the residual stream: no norm; writes this rank's rows, already summed over tp */
    FLOW_ADD,   /* adds to the stream */
    FLOW_END    /* reads the stream: the head */
};
struct branch {
    enum flow flow;
    struct norm norm;
    struct norm after; /* of the body's output, before it is added; NORM_NONE: none */
    struct sublayer body;
};
struct unit {
    int n_branches, n_packs;
    int parallel; /* all branches read the stream that the unit begins with */
    struct branch branch[UNIT_BRANCHES];
};

/* ---- memory ---- */

/* How long a buffer lives. What is computed again under a recompute policy is one set for all layers. */
enum life {
    LIFE_KEPT,    /* from forward to backward */
    LIFE_COSTLY,  /* kept, but for --recompute full */
    LIFE_CHEAP,   /* kept with --recompute none only */
    LIFE_SCRATCH, /* inside one body's forward or backward */
    LIFE_COMM,    /* scratch that ranks of tp add up: comm memory */
    LIFE_HOST,    /* lists that the host makes and reads, from forward to backward: host memory */
    LIFE_PAGES,   /* as LIFE_COSTLY; with cp memory that its ranks share */
    LIFE_INPUT,   /* a layer's input: kept, or with a store of inputs the walk's */
    LIVES
};
/* Where buffers are taken from. The same walk measures (bases NULL) and carves. */
struct carver {
    struct arena *of[LIVES];
};
static inline void *carve(const struct carver *c, enum life life, int64_t n, size_t size)
{
    return arena_take(c->of[life], (size_t)n * size);
}

/* What a carving walk needs to know of a call. rows: all; own: those that this rank holds between bodies. */
struct call_shape {
    int n_seq;
    int64_t rows, own,
        pages;              /* pages: 64-position pages of keys and values to take, 0: the caller has them */
    int64_t most_rows;      /* without a backward pass: of any rank of an expert group; 0: rows */
    int64_t logit_ld;       /* the head: columns between rows of logits, 0: no logits */
    int training, deferred; /* with a backward pass; which may leave weight gradients for later */
    double expert_buffer;   /* struct work_shape; 0 without a backward pass */
    int64_t leaves;         /* of the trees of gradients, in sequences */
    int inner;              /* leaves of a sequence among n_seq */
    const struct adapter *adapter; /* of training; NULL: none */
};

/* Gradients by keys: dk, then dv. With cp the ranks exchange one kv head at a time, so none holds all heads
 * of all keys at once. */
struct key_grads {
    int64_t n;  /* floats of dk and dv of all keys, of the kv heads that are made at once */
    float *all; /* comm memory: these */
    float *own; /* own rows of all kv heads; NULL: one kv head or no cp, then they lie in all */
    float *lse; /* [own rows][query heads of a kv head], with own */
    /* Where ranks hold query heads of one kv head and sequences have several leaves: gradients of one leaf's
     * queries, complete over these ranks (comm memory), and the levels of the tree over leaves behind the
     * first. leaf NULL: not needed. */
    float *leaf, *level[TREE_DEPTH_MAX];
};
struct attention_buf {
    float *qkv;  /* [rows][(n_heads + 2 n_kv) head_dim]; kept where heads are normed, else scratch */
    void *q, *o; /* dt [rows][n_heads head_dim] */
    float *lse;  /* [rows][n_heads], or NULL when nothing is kept */
    /* backward */
    void *dqkv;     /* dt, as qkv */
    float *d_out;   /* [rows][n_heads head_dim] */
    void *d_out_dt; /* the same in dt, where dt is not fp32 */
    float *dq;      /* [rows][n_heads head_dim] */
    struct key_grads by_key;
    float *sink_leaf; /* [n_seq][n_heads]: the sinks' gradients; NULL: there are none */
    float *head_leaf; /* comm memory [n_seq][q head_dim, then k head_dim]; NULL: heads are not normed */
    void *transposed; /* dt: matrices of one product, transposed; NULL: none are stored so */
};
/* key: kv_rank + rope, a cached token. "raw" is q before RoPE, [rows][n_heads (nope + rope)]. */
struct latent_buf {
    void *q_a, *q_a_norm, *raw_dt; /* dt [rows][q_rank], its norm; raw */
    void *kv_a_dt;                 /* dt [rows][key] */
    float *q_a_stat, *kv_a_stat;   /* [rows]: roots of the norms */
    void *q, *out;                 /* dt [rows][n_heads key], [rows][n_heads kv_rank]: attention's */
    void *values;                  /* dt [rows][n_heads v] */
    float *lse;                    /* [rows][n_heads], or NULL */
    /* scratch */
    float *raw;      /* raw, then [rows][q_rank] */
    float *kv_a;     /* [rows][key] */
    void *latent;    /* dt [rows][kv_rank] */
    float *absorbed; /* [rows][n_heads kv_rank] */
    float *values_fp32;
    /* backward, of the same shapes */
    float *d_values, *d_out, *dq, *d_latent;
    void *d_values_dt, *d_out_dt, *dq_dt, *d_raw_dt, *d_q_a_dt, *d_kv_a_dt;
    void *turned;            /* dt: one head's k rows of kv_b, transposed */
    float *d_q_a;            /* comm memory [rows][q_rank]: a sum over heads */
    struct key_grads by_key; /* sums over heads */
};
struct mlp_buf {
    float *gu; /* [rows][up_cols]: gate and up, or up */
    void *act; /* dt [rows][inter] */
    /* backward */
    void *dgu;    /* dt, as gu */
    float *d_act; /* [rows][inter] */
    void *transposed;
};
/* For adapters of experts; NULL: there are none. z, z_dt: [capacity][2 ranks]. */
struct adapter_lists {
    float *z;
    void *z_dt;
    int64_t *begin; /* of the host: [2][n_local + 1] */
    int32_t *list;  /* of the host: [2][capacity] */
    /* ep > 1, without a backward pass: numbers of adapters (struct adapter) of rows [rows], of home rows
     * [home rows k], of arrived rows [capacity]; copies of the first and the last of the host */
    float *number, *home, *arrived;
    float *number_host, *arrived_host;
};
/* n: routed rows that this rank computes, grouped by expert; capacity: at most so many. With ep > 1 they are
 * those of one round (dispatch.h), behind forward of round 0. */
struct experts_buf {
    struct routing routing;
    struct arrivals arrivals; /* ep > 1 */
    int64_t capacity, n;
    float *logits;   /* [rows][n_experts] */
    int32_t *expert; /* [rows][k]: the choice, and its weights */
    float *weight;
    float *gu;     /* [capacity][up_cols], grouped, as are the next three */
    void *act;     /* dt [capacity][inter] */
    float *sum;    /* comm memory [capacity][hidden]: experts' outputs; backward: gradients of their inputs */
    void *row;     /* dt [capacity][hidden]: these, rounded */
    void *home;    /* ep > 1: dt [home rows k][hidden]: by expert, sent or returned */
    void *arrived; /* ep > 1: dt [capacity][hidden] */
    float *arrived_weight;          /* ep > 1: [capacity] */
    void *moved;                    /* ep > 1: dt [capacity][hidden]: rows in the order of arrival */
    float *home_out;                /* ep > 1: [home rows][hidden]: results, to be gathered over tp */
    float *home_weight;             /* ep > 1: [home rows k]: weights by expert; backward: their gradients */
    struct comm_request *moving[3]; /* ep > 1: rows, their numbers, their adapters under way (moe_rows.c) */
    int32_t *spread; /* ep > 1: [rows] of the host: a row's place in home_out, -1: another rank's */
    struct adapter_lists low;
    struct mlp_buf shared;
    float *shared_logit; /* [rows]: of the shared expert's gate */
    void *shared_out;    /* dt [rows][hidden] */
    /* backward */
    int64_t *joined_end;   /* of the host: ends of leaves of several sequences, see leaves_joined */
    float *d_act;          /* [capacity][inter] */
    void *dgu;             /* dt [capacity][up_cols] */
    float *d_row, *d_slot; /* comm memory: gradients of weights, [capacity] grouped, [rows k] by slot */
    int32_t *count_host;   /* [n_seq][n_experts] of the host: rows of a sequence that chose an expert */
    int32_t *count;        /* the same of the device */
    int64_t *count_sum;    /* with cp: [n_seq][n_experts] of the host, added over its ranks */
    float *d_moved;        /* ep > 1: [capacity]: in the order of arrival */
    void *d_arrived;       /* ep > 1: dt [capacity][hidden] */
    void *d_logits;        /* dt [rows][n_experts] */
    void *d_shared;        /* dt [rows][hidden] */
    void *d_shared_logit;  /* dt [rows] */
    float *shared_dx;      /* [rows][hidden]: through the shared expert, own rows */
    float *dx;             /* [rows][hidden]: gradient of the norm's output, own rows */
    float *part;           /* [rows][hidden]: what is added to it */
    void *transposed;      /* dt: one matrix of every expert, transposed; NULL: none are stored so */
    float *bias_leaf; /* [n_local][leaves][columns of the widest bias]: gradients of biases; NULL: none */
    /* where rounds may be several: n_partial more levels of partial sums of the experts' gradients, behind
     * those of struct grads, [n_partial][elements of the experts' vector that is trained]; ZeRO-3, of the
     * host: packs of gate and up for a backward, which gathers none, and where they are made */
    int n_partial;
    float *partial;
    struct panels *packs;
    void *pack_memory;
};
struct embed_buf {
    void *joined; /* dt [rows][2 hidden]: norms of embeddings and states; NULL: there are no states */
};
struct head_buf {
    float *logits; /* [rows][logit_ld], this rank's columns */
    int64_t logit_ld;
    void *dlogits;    /* dt; fp32: the logits' own memory */
    float *max, *sum; /* [rows]: statistics of the cross-entropy, kept for backward */
};
/* Buffers of one branch. "dt" is the dtype of the arithmetic, "own" the rows that the rank holds between
 * bodies.
 * Forward without backward: one set for all layers, x the same memory in all. */
struct branch_buf {
    void *x;     /* dt [own][hidden]: the residual stream coming in */
    void *h;     /* dt [own][hidden]: its norm */
    float *stat; /* [own] roots of the norm; layer norms: then [own] means */
    void *o;     /* dt [own][hidden]: the body's output, where a norm comes after it */
    float *o_stat;
    char *kv; /* attention: pages of keys and values, or NULL */
    /* training with an adapter, for each pack that it changes: dt [rows][columns of z]; else NULL */
    void *z[SUBLAYER_PACKS];
    union {
        struct attention_buf attention;
        struct latent_buf latent;
        struct mlp_buf mlp;
        struct experts_buf experts;
        struct head_buf head;
        struct embed_buf embed;
    };
};
struct unit_buf {
    struct branch_buf branch[UNIT_BRANCHES];
    /* dt [own][hidden], where branches are parallel or norms come after bodies. Forward: the first branch's
     * output. Backward: the gradient of a body's output. */
    void *side;
};

/* ---- one pass over rows ---- */
struct deferred_grads;
struct pass {
    struct model *m;
    struct seq_rows r;
    int64_t most_rows;          /* struct batch */
    const int32_t *ids, *pos;   /* [rows] of the host; pos NULL: no learned positions */
    const void *states;         /* struct batch */
    const struct attn_seq *seq; /* of the unit's layer */
    int n_seq;
    struct attn_cut cut;            /* training: sequences that are cut into leaves */
    const struct attn_seq *own_seq; /* training with cp: seq in the pages where this rank stores; else NULL */
    int whole_pages;                /* pages hold all layers of a group, or all layers */
    const struct attn_seq *grouped; /* the sequences in the pages of group 1; NULL: seq's hold all layers */
    struct key_exchange *exchange;  /* struct batch */
    const struct unit_weights *uw;  /* of the unit */
    const struct adapter_rows *adapters; /* NULL: no row has an adapter */
    /* training */
    struct train_work *w;
    struct weights *ws;
    struct grads *g;
    const int32_t *targets;
    const float *scale; /* of the rows of dlogits, of the host */
};

/* A gradient of weights: made now, or later (deferred_grads.c). kind says which fields count. */
enum gradient_kind {
    GRADIENT_PRODUCT, /* part[0]: a matrix, part[1]: its bias or -1; dy, x: all rows */
    GRADIENT_NORM,    /* of `norm`; dy (fp32), x, stat: own rows */
    GRADIENT_BODY,    /* the kind's weight_gradient makes it */
    GRADIENT_GATHER,  /* all rows of dy come together, for the records behind it */
    GRADIENT_DONE     /* nothing more comes for the unit */
};
struct gradient {
    enum gradient_kind kind;
    int unit; /* where the sums lie: the unit, or n_units for the tied head */
    int part[2];
    struct norm norm;
    const struct sublayer *body;
    const struct adapter *adapter; /* GRADIENT_PRODUCT: part[0] is one of its factors; NULL: the model's */
    int stays;                     /* nothing overwrites dy: a deferred record need not copy it */
    struct mat dy, x;
    const float *stat;
    const int32_t *ids;
    struct experts_buf *experts; /* GRADIENT_BODY of experts: slot part[0] of every expert */
    int round;                   /* of their rows, with ep > 1 */
};

/* ---- a kind of body ---- */
struct sublayer_kind {
    const char *name;
    const enum param_kind *slot; /* the parameter of each slot */
    int n_slots;
    int out_bias;      /* slot of the bias that the walker adds behind the sum over tp, or -1 */
    unsigned in_packs; /* packs whose input is the norm's output, as bits: adapters' part of its gradient */
    int out_pack;      /* pack of the product whose sum over tp the walker completes, or -1 */
    /* What the body leaves in m->sum_rows is complete: its own rows, already summed over tp. Else it is this
     * rank's part of all rows. */
    int complete;
    /* Sizes, leaves and packs on this rank; part[] is filled. */
    void (*shape)(struct sublayer *s, const struct model *m, const struct branch_spec *spec, int tp_rank);
    void (*carve)(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                  const struct carver *from, struct branch_buf *b);
    /* h: all rows of the norm's output. FLOW_ADD leaves the part of this rank in m->sum_rows; FLOW_START its
     * own rows of the stream in b->x; FLOW_END what it makes in b. */
    int (*forward)(const struct pass *p, const struct sublayer *s, struct branch_buf *b, struct mat h,
                   struct err *e);
    /* Leaves this rank's part of d(norm's output) in m->sum_rows (FLOW_START: nothing) and emits records. It
     * asks for the stream's gradient (walk_dx) and the norm's output (walk_input) when it needs them: both
     * come through the same memory where tokens are shared (sp). */
    int (*backward)(const struct pass *p, const struct sublayer *s, struct branch_buf *b, struct err *e);
    /* --recompute selective: what LIFE_CHEAP buffers of the body hold, again. NULL: nothing. */
    void (*recompute)(const struct pass *p, const struct sublayer *s, struct branch_buf *b);
    /* A record of kind GRADIENT_BODY. NULL: it emits none. */
    int (*weight_gradient)(const struct pass *p, const struct gradient *g, struct err *e);
    /* Bytes that deferred records of one backward copy, at most; and gathers that they need. */
    size_t (*deferred_bytes)(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                             enum recompute recompute);
    /* Records of one backward besides one a part of the unit, at most. NULL: none. */
    int (*deferred_records)(const struct sublayer *s, const struct model *m, const struct call_shape *c);
    /* Adds what the body itself moves over tp. NULL: it leaves this rank's part of one sum a pass. */
    void (*traffic)(const struct sublayer *s, const struct model *m, struct unit_traffic *t);
    /* Products of one token forward, and attention over `keys` keys: floating-point operations on this
     * rank. */
    double (*flops)(const struct sublayer *s, const struct model *m, double keys);
};
extern const struct sublayer_kind sublayer_embed, sublayer_attention, sublayer_latent, sublayer_mlp,
    sublayer_experts, sublayer_head;

/* to = norm of from, own rows (dt). stat: what backward needs. */
void norm_apply(const struct pass *p, const struct norm *n, void *to, const void *from, float *stat);

/* ---- sublayer/mlp.c: an MLP inside of a body. Slot and pack numbers are set. ---- */
/* Sizes, and the plans of its two packs. */
void mlp_shape(struct sublayer *s, struct mlp *mlp, const struct model *m, enum act act, int64_t inter,
               int tp_rank);
void mlp_carve(const struct sublayer *s, const struct mlp *mlp, const struct model *m,
               const struct call_shape *c, const struct carver *from, struct mlp_buf *buf);
/* Leaves this rank's part in m->sum_rows. */
void mlp_forward(const struct pass *p, const struct sublayer *s, const struct mlp *mlp, struct mlp_buf *buf,
                 const struct branch_buf *b, struct mat h);
/* What --recompute selective dropped. */
void mlp_activate(const struct pass *p, const struct mlp *mlp, struct mlp_buf *buf);
/* dx: all rows of the gradient of its output (dt). Leaves this rank's part of d(h) in m->sum_rows; emits its
 * records; asks for the norm's output in b. */
int mlp_backward(const struct pass *p, const struct sublayer *s, const struct mlp *mlp, struct mlp_buf *buf,
                 const struct branch_buf *b, struct mat dx, struct err *e);
size_t mlp_deferred_bytes(const struct mlp *mlp, const struct model *m, const struct call_shape *c,
                          enum recompute recompute);
/* Matrices that feed an activation, and how many of their values make one; the op and its gradient. c: of
 * ACT_SWIGLU_CLAMPED, else NULL. */
int act_inputs(enum act act);
int act_values(enum act act);
void act_forward(struct dev *d, enum act act, const struct clamp *c, struct mat to, struct mat in);
void act_backward(struct dev *d, enum act act, const struct clamp *c, struct mat d_in, struct mat in,
                  struct mat d_act);

/* ---- sublayer/moe_rows.c ---- */
/* gradient_sums_of a part of an expert: leaves begin with the round's first one; with the levels that rounds
 * need. */
struct tree_acc expert_sums(const struct pass *p, const struct model *of, const struct experts_buf *b,
                            int unit, int part);

/* ---- sublayer/moe_bias.c: biases of experts. matrix: the kind of the matrix that a bias goes with; groups:
 * the rows of this rank's experts ---- */
/* y (fp32, grouped) += the biases. */
void expert_bias_add(const struct pass *p, const struct sublayer *s, const struct experts_buf *b,
                     enum param_kind matrix, const struct expert_rows *groups, struct mat y);
/* b->d_row += the dot of dout and the bias: its part of the gradient of a weight w_e. */
void expert_bias_dot(const struct pass *p, const struct sublayer *s, const struct experts_buf *b,
                     enum param_kind matrix, const struct expert_rows *groups, struct listed dout);
/* The gradients of the biases that go with the matrices of a record, a leaf a sequence. */
void expert_bias_gradient(const struct pass *p, const struct gradient *g, enum param_kind matrix);

/* ---- units.c ---- */
int units_open(struct model *m, int tp_rank, struct err *e);
void units_close(struct model *m);
/* l, or one leaf instead of all (--numerics fast, altered builds). */
struct leaves leaves_cut(struct leaves l, int one);
/* Position of every row of the sequences: pos[row], of the host. */
void positions_of(const struct attn_seq *seq, int n_seq, int32_t *pos);
struct page_place page_place(const struct model *m, int64_t layer);
/* Sets a's sequences, and where the layer begins in their pages. */
void page_point(const struct pass *p, const struct page_place *at, struct attn *a);
/* A parameter's weights in natural order, NULL: none of this unit, or a matrix that is only packed. */
const void *weight_at(const struct pass *p, int part);
/* A parameter with a dtype of its own, NULL: none. */
const void *weight_own(const struct pass *p, int part);
/* Of a mixture: a router's bias with a dtype of its own is not added to the logits, it corrects the scores
 * that choose. Takes it from its slot; returns its part, -1: none. And the router with the weights at hand.
 * */
int take_correction(struct sublayer *s, const struct model *m, int slot);
struct expert_router router_now(const struct pass *p, const struct sublayer *s);
/* Pack k of a body; of experts: the first of n_experts. */
const struct panels *weight_pack(const struct pass *p, const struct sublayer *s, int k);
/* Pack k of experts with a vector of their own, made now from that vector: to[n_experts], in memory of
 * weight_pack_bytes. */
void weight_pack_now(const struct pass *p, const struct sublayer *s, int k, struct panels *to, void *memory);
size_t weight_pack_bytes(const struct model *m, const struct sublayer *s, int k);
/* Packs of one plan; the part of its slot for one of them, this rank's. */
int pack_n_copies(const struct pack_plan *plan);
int pack_part(const struct model *m, const struct sublayer *s, const struct pack_plan *plan, int slot,
              int copy);
struct pack_found {
    const struct sublayer *s;
    const struct pack_plan *plan;
    int copy;
};
/* Which of which plan's packs a pack is. pack: an index in unit_weights.pack. */
struct pack_found pack_find(const struct model *m, int unit, int pack);
/* A parameter of the unit in natural order, as it is stored. */
struct mat weight_mat(const struct pass *p, int part);
/* 1: the part is a matrix that its tensor holds as [in][out]; part -1: 0. */
int weight_is_transposed(const struct model *m, int part);
/* A whole matrix as [outputs][inputs], made at *to where it is stored transposed. */
struct mat weight_natural(const struct pass *p, int part, char **to);
/* Outputs [first, first + n) of a matrix in natural order: [n][inputs]. Made at *to, which moves behind it,
 * where the tensor is stored transposed. */
struct mat weight_rows(const struct pass *p, int part, int64_t first, int64_t n, char **to);
/* Bytes for the matrices of one product, transposed; 0: none of them is stored so. */
size_t transposed_bytes(const struct sublayer *s, const struct model *m, int first_slot, int n_slots);
static inline struct mat rows_of(const void *p, enum dtype dt, int64_t rows, int64_t cols)
{
    return mat_of((void *)(uintptr_t)p, dt, rows, cols, cols);
}

/* ---- walker.c ---- */
/* The walker's own buffers of a unit's branches, then the bodies'. One set of buffers a unit. */
void unit_carve(const struct model *m, const struct unit *u, const struct call_shape *c,
                const struct carver *from, struct unit_buf *b);
/* Does the unit use unit_buf.side? */
int unit_has_side(const struct unit *u);
/* Forward of a unit. x_out: where the stream goes behind its last branch (FLOW_END: unused). */
int unit_forward(struct pass *p, const struct unit *u, struct unit_buf *b, void *x_out, struct err *e);
/* Backward: p->w's dx is the gradient of the stream behind the unit, then that before it. */
int unit_backward(struct pass *p, const struct unit *u, struct unit_buf *b, struct err *e);
/* What forward did not keep, again: the same bits from the same inputs. */
int unit_recompute(struct pass *p, const struct unit *u, struct unit_buf *b, enum recompute how,
                   struct err *e);
/* For bodies, in backward: all rows of the gradient of their output; all rows of the norm's output, for
 * products and weight gradients. With sequence parallelism both use one buffer: the next call overwrites
 * it. */
int walk_dx(const struct pass *p, struct mat *dx, struct err *e);
int walk_input(const struct pass *p, const struct branch_buf *b, struct mat *h, struct err *e);
/* The record of a product, and dX of matrices that share their input: into m->sum_rows, one accumulator. */
int walk_product(const struct pass *p, const struct sublayer *s, int weight, int bias, struct mat dy,
                 struct mat x, struct err *e);
void walk_dx_of(const struct pass *p, int n, const struct mat *dy, const struct mat *w,
                const struct leaves *l);
/* Adds a bias (part, -1: none) to columns [c0, c0 + n) of y. */
void walk_bias(const struct pass *p, int part, struct mat y, int64_t c0, int64_t n);
/* The sums over tp of what a body left in m->sum_rows: this rank's own rows. more: of rows_sum. */
int walk_sum(const struct pass *p, const struct sublayer *s, int64_t more, struct mat *own, struct err *e);
size_t norm_stats(const struct norm *n, int64_t rows);           /* floats */
int64_t norm_width(const struct norm *n, const struct model *m); /* floats of a norm's gradients */

/* ---- adapter/: what adapters add to the products of a unit ---- */
/* A matrix among those of one pack: its columns of z and y; packs and parts of the adapter's unit. */
struct adapter_output {
    int slot; /* among those of the pack */
    int64_t rank, z_begin, y_begin, y_n;
    float scale;
    int b, part_a, part_b; /* of experts: the first local one's */
    enum param_kind kind_a, kind_b;
};
/* One pack of the base. rank: columns of z, those of all As; 0: nothing is changed. a: the pack of the As. */
struct adapter_product {
    int64_t rank;
    int a, n;
    struct adapter_output out[3];
};
struct adapter_unit {
    struct adapter_product of[UNIT_BRANCHES][SUBLAYER_PACKS];
};
/* Rows of the table, in the order of the base's parameters. a_of[i], scale[i]: of each B, the row of its A,
 * its scale; -1 of an A. Both are [t->n], owned by the caller. */
int adapter_table_open(struct param_table *t, const struct model *base, const struct adapter_matrix *list,
                       int n, int **a_of, float **scale, struct err *e);
/* What the adapter adds to pack k of a body; NULL: nothing. */
const struct adapter_product *adapter_product(const struct adapter *a, const struct sublayer *s, int k);
/* Columns of z of that; a NULL: 0. */
int64_t adapter_columns(const struct adapter *a, const struct sublayer *s, int k);
/* Borrows the unit of every adapter of the pass, and gives it back. */
int adapters_get(const struct pass *p, int unit, int backward, struct err *e);
void adapters_put(const struct pass *p, int unit);
/* Pack k made y (all its columns) from x, which has all inputs: adds what adapters add. */
void adapters_add(const struct pass *p, const struct sublayer *s, int k, const struct branch_buf *b,
                  struct mat x, struct mat y);
/* The same where x has this rank's inputs and y is summed over tp. Before the sum: leaves the parts of z
 * behind all rows of m->sum_rows, that many floats. After the sum: own rows. */
void adapters_begin(const struct pass *p, const struct sublayer *s, int k, struct mat x);
int64_t adapters_floats(const struct pass *p, const struct sublayer *s, int k);
void adapters_end(const struct pass *p, const struct sublayer *s, int k, const struct branch_buf *b,
                  struct mat own);
/* Takes the model's buffers for adapters; returns the floats that m->sum_rows needs more. */
#define ADAPTER_ROWS 256 /* rows of adapter_room.d */
int64_t adapter_room_carve(const struct model *m, struct arena *a, int64_t rows, int64_t rank,
                           struct adapter_room *room);
/* Memory of training: b->z. */
void adapters_carve(const struct adapter *a, const struct sublayer *s, int64_t rows,
                    const struct carver *from, struct branch_buf *b);
/* Going back; dy: what a rank has of the gradient of a matrix's outputs (dt), by slot of the pack: it
 * contracts columns [first, first + end of the leaves). */
struct adapter_dy {
    struct mat dy;
    int64_t first;
    struct leaves leaves;
};
/* Pack k has all inputs: emits the records of its Bs; the parts of dz go to `to`, as many floats as
 * adapters_dz_floats has for this pack. Those of kind->in_packs belong at adapters_dz_place: the walker
 * completes them. */
int adapters_dz(const struct pass *p, const struct sublayer *s, int k, const struct branch_buf *b,
                const struct adapter_dy *dy, float *to, struct err *e);
float *adapters_dz_place(const struct pass *p, const struct sublayer *s, int k);
/* packs: a set of them, bit k is pack k. */
int64_t adapters_dz_floats(const struct pass *p, const struct sublayer *s, unsigned packs);
/* Packs that share the input h (all rows, as records take it): dz is summed over tp. Emits the records of
 * the As; adds to the gradient of h, all rows or own ones. */
int adapters_dx(const struct pass *p, const struct sublayer *s, unsigned packs, struct mat h, float *dz,
                struct mat own, struct err *e);
/* Pack k has this rank's inputs x, and dy is complete: emits the records of A and B, adds to dx (fp32). */
int adapters_back_out(const struct pass *p, const struct sublayer *s, int k, const struct branch_buf *b,
                      struct mat dy, struct mat x, struct mat dx, struct err *e);
size_t adapters_deferred_bytes(const struct sublayer *s, const struct call_shape *c);
/* model.c: chunks and stages, which a model of adapters has too. */
int model_set_stages(struct model *m, const struct layout *l, int pp_rank, struct err *e);

/* ---- row_shares.c: what goes into a product and what comes out of one, over tp ---- */
/* *all: all rows of what every rank holds own rows of, until the next call; own itself where nothing is
 * shared. */
int rows_gather(const struct model *m, const struct seq_rows *r, struct mat own, struct mat *all,
                struct err *e);
/* *own: the sums over tp of this rank's own rows of m->sum_rows, which lie in it. more: floats behind all
 * rows of it that are summed too, complete on every rank. */
int rows_sum(const struct model *m, const struct seq_rows *r, int64_t more, struct mat *own, struct err *e);
struct mat rows_gathered(const struct model *m, const struct seq_rows *r); /* where rows_gather puts them */
int64_t rows_first(const struct model *m,
                   const struct seq_rows *r); /* of a sequence: this rank's first own row */

/* ---- gradients.c ---- */
/* Makes a record's gradient now, or leaves it in the pass's deferred list. */
int gradient_emit(const struct pass *p, struct gradient g, struct err *e);
int gradient_make(const struct pass *p, const struct gradient *g, struct err *e);
/* The tree of a part's gradient inside the levels of `unit`; of: the model, or an adapter's. */
struct tree_acc gradient_sums_of(const struct pass *p, const struct model *of, int unit, int part);
struct tree_acc gradient_sums(const struct pass *p, int unit, int part);
/* x, or a copy where the backward pass of another layer overwrites it before a deferred record's turn. */
struct mat gradient_input(const struct pass *p, struct mat x);

/* ---- sublayer/leaf_keys.c: keys and values of sequences that are cut into leaves ---- */
/* Ranks of cp that may still read pages are done with them: before rope_store. *store: a, in the pages where
 * this rank stores. Collective over cp. */
int keys_begin(const struct pass *p, const struct attn *a, struct attn *store, struct err *e);
/* This rank's keys and values of the layer are stored: waits until those of all ranks are in the pages (kv:
 * of one sequence, in training; not read with a key_exchange). Collective over cp. */
int keys_gather(const struct pass *p, const struct page_place *at, const struct attn *a, char *kv,
                struct err *e);
/* What attn_dx takes and gives. group: ranks that hold other query heads of the same kv heads, NULL: none. */
struct keys_back {
    const struct attn *a;
    struct mat dq, dout;
    struct attn_kept kept;
    struct key_grads *grads;
    struct comm *group;
    struct mat dk, dv;
};
/* dk and dv, fp32, of all keys of the kv heads that are made at once, in grads. */
void keys_all(const struct pass *p, const struct attn *a, const struct key_grads *grads, struct mat *dk,
              struct mat *dv);
/* attn_dx, complete over group, leaves and cp: *dk, *dv become this rank's own rows of all kv heads, which
 * lie in grads. Collective over group and cp. */
int keys_backward(const struct pass *p, struct keys_back *k, struct err *e);
/* Heads of this rank, and components of keys and values; apart: there is a group, which has one kv head. */
struct key_sizes {
    int64_t n_heads, n_kv, key, value;
    int apart;
};
/* Takes the memory of keys_backward. */
void key_grads_carve(const struct model *m, const struct call_shape *c, const struct carver *from,
                     const struct key_sizes *s, struct key_grads *g);

/* ---- rope.c ---- */
/* Positions 0 .. n - 1 are in the tables of cos and sin afterwards. ROPE_FIRST: those that are there from
 * the start. */
#define ROPE_FIRST 2048
int rope_extend(struct model *m, int64_t n, struct err *e);

/* ---- forward.c ---- */
/* Bytes of the lists that one layer takes in host memory for so many rows. */
size_t forward_lists_bytes(const struct model *m, int64_t rows);

/* ---- key_pages.c: with cp, of the one sequence of a micro-batch ---- */
/* A page made of two: positions [0, n_first) of the block from one, the others from the second. */
struct joined_page {
    int64_t to, first, second;
    int n_first;
};
/* Places of pages, counted in pages from the beginning of a unit's. */
struct page_map {
    int64_t each;        /* pages of every rank */
    int64_t *read, *own; /* of the documents' pages, in order: where all read, where this rank stores */
    int n_joined;
    struct joined_page *joined;
    int64_t *count; /* [cp]: pages of a rank */
};
struct train_work;
/* The most pages that documents of w take, those of all ranks. */
int64_t page_map_pages(const struct train_work *w);
/* n: pages of the documents at most. 0: no memory. */
int page_map_open(struct page_map *map, const struct train_work *w, int64_t n);
void page_map_close(struct page_map *map);
/* n documents, which begin at begin[1 .. n). */
void page_map_make(struct page_map *map, const struct train_work *w, int n, const int64_t *begin);
/* The cp rank that has a token of a sequence. */
int page_rank(const struct train_work *w, int64_t token);

/* ---- train_work.c ---- */
/* The activations of one micro-batch on one pipeline stage. */
struct train_work {
    struct model *m;
    struct stage at; /* the units it runs through */
    enum recompute recompute;
    struct call_shape shape;
    struct seq_rows r;
    int n_seq;                                     /* sequences, of … */
    int64_t seq_len;                               /* … so many tokens, those of other cp ranks included */
    int documents;                                 /* of a sequence, at most */
    int n_docs;                                    /* of all sequences now */
    int n_attn;                                    /* runs of them among this rank's rows */
    int n_units;                                   /* from at.first_unit */
    void *memory;                                  /* of all buffers but comm memory */
    void *comm_memory, *host_memory, *page_memory; /* page_memory: with cp */
    struct unit_buf *unit;                         /* [n_units] */
    struct unit_buf head;
    char *again;             /* buffers that computing a layer again overwrites … */
    size_t again_bytes;      /* … 0: nothing is computed again */
    struct adapter *adapter; /* of all rows; NULL: none */
    struct mat input;        /* what walk_input gave last */
    struct adapter_run run;
    struct adapter_rows adapters; /* this run */
    char **page;                  /* [n_units][n_seq][pages]; a document begins with a page of its own */
    struct attn_seq *doc;         /* [n_units][n_seq * documents], n_docs of them in use */
    struct attn_seq *seq;         /* [n_units][n_seq * runs_of]: the runs, n_attn of them in use */
    /* with cp: the same in the pages where this rank stores; else NULL */
    struct page_map map;
    char **own_page;
    struct attn_seq *own_doc, *own_seq;
    int32_t *pos;               /* [rows], of the host; NULL: no learned positions */
    struct input_store *inputs; /* borrowed; NULL: inputs of layers are kept */
    int number, spills;         /* of struct work_shape */
    void *x_last;               /* dt [own][hidden]: the stream behind the last layer */
    void *dx;                   /* dt [own][hidden] */
    void *dx_body; /* dt [own][hidden]: the gradient of the output of the body at hand, dx or another */
    /* comm memory [n_seq][width]: a norm's gradients, leaf by leaf; NULL: tokens are not shared */
    float *norm_leaf;
    /* borrowed: where the next backward leaves its weight gradients; NULL: nowhere */
    struct deferred_grads *deferred;
};
/* The sizes of a micro-batch, without memory. */
struct train_work train_work_of(const struct model *m, int chunk, const struct work_shape *s);
static inline struct unit_buf *train_unit(const struct train_work *w, int unit)
{
    return &w->unit[unit - w->at.first_unit];
}
/* A pass over the micro-batch; g and scale are the caller's. */
struct pass train_pass(struct train_work *w, struct weights *ws, const int32_t *ids, const int32_t *targets);
/* Gives p the sequences of a layer's unit. */
void train_pass_layer(struct pass *p, int unit);
/* Keys of another micro-batch may lie behind a document's last one, where attention wants zeros. With cp it
 * does nothing: keys_begin cleans this rank's own pages. */
void train_clean_pages(const struct pass *p, int unit);
void train_clean_own_pages(const struct pass *p);

#endif
