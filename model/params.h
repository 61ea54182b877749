/* params.h - the parameter table: every tensor of a model, and what each rank holds of it.
 *
 * A *tensor* is what a file holds: a Hugging Face name, a shape, a dtype. A *parameter* is what the
 * arithmetic takes: one kind (the query matrix) in one unit, for one expert where a layer has experts. A
 * parameter is a box of one tensor. A *part* is what one rank holds of a parameter. family.h declares the
 * tensors of a model family; everything else follows from the table: what a rank allocates, writes, reads
 * and sends.
 *
 * How parameters lie in a tensor:
 *
 *     alone         q_proj [heads * d, H]             the parameter is the tensor
 *     fused         c_attn [H, q | k | v]             side by side along the dim that tp splits
 *     stacked       experts.gate_up_proj [E, 2I, H]   index e of dim 0 is expert e; gate and up are fused
 *     alternating   experts.gate_up_proj [E, H, 2I]   gate at the even columns, up at the odd ones: one
 *                                                     parameter with two components (struct component)
 *     transposed    c_fc [in, out]                    and lies so in memory too
 *     in blocks     down_proj_blocks [E, H, I/32, 16] one index of a dim stands for 32 values
 *
 * A quantised weight has a *companion*, its scales: a parameter of its own, cut as the weight is.
 *
 * Cuts. tp splits dim `split_dim` by heads, by kv heads or by GRAIN blocks. The cut is made in values: a
 * rank gets [begin, end) of them. Where the dim is stored in blocks of n values the rank holds the blocks
 * [begin / n, ceil(end / n)). A block that a cut divides lies on both ranks, and the rank on which it
 * begins writes it: engines that refuse such cuts do so for their kernels' sake, no byte asks for it. The
 * same holds where n values lie in m indices: then x * m / n stands for x / n.
 * Expert e belongs to the ep rank floor(e * ep / E), which holds it whole; with ep 1 tp splits every
 * expert.
 *
 * A *unit* is what ZeRO gathers at once: 0 the embedding, 1..L the layers, L+1 final norm and head. In a
 * rank's memory it is one flat vector:
 *
 *     [ part | pad | part | pad | ... | pad ]         every part starts at a multiple of 64 elements; the
 *     [ slice 0 | slice 1 | ... | slice n - 1 ]       whole is a multiple of 64 * n; slice d is dp rank d's
 *
 * A unit has further vectors where one does not do: experts with ep > 1, whose slices belong to another
 * group of ranks, and parameters with a dtype of their own, which the optimizer does not see and which have
 * one slice. */
#ifndef SHARDLINE_MODEL_PARAMS_H
#define SHARDLINE_MODEL_PARAMS_H

#include <stdint.h>
#include "base/box.h"
#include "base/err.h"
#include "model/config.h"

enum param_split {
    SPLIT_COPY,   /* every tp rank has all of it */
    SPLIT_HEADS,  /* by query heads */
    SPLIT_KV,     /* by kv heads; with fewer kv heads than tp, tp / n_kv neighbours hold the same one */
    SPLIT_BLOCKS, /* by GRAIN blocks (intermediate size, vocabulary) */
    SPLIT_UNITS   /* at multiples of split_unit values; with fewer units than tp as by kv heads */
};
/* What a parameter is in its unit. New kinds go before P_KINDS: recorded bits in tests are ordered by
 * kind. */
enum param_kind {
    P_EMBED,
    P_NORM_ATTN,
    P_Q,
    P_K,
    P_V,
    P_O,
    P_NORM_MLP,
    P_GATE,
    P_UP,
    P_DOWN,
    P_NORM,
    P_HEAD,
    P_POS,
    P_NORM_ATTN_BIAS,
    P_Q_BIAS,
    P_K_BIAS,
    P_V_BIAS,
    P_O_BIAS,
    P_Q_NORM,
    P_K_NORM,
    P_NORM_MLP_BIAS,
    P_GATE_BIAS,
    P_UP_BIAS,
    P_DOWN_BIAS,
    P_NORM_BIAS,
    P_QKV, /* head by head in one: each head's q, k and v rows */
    P_QKV_BIAS,
    P_NORM_ATTN_POST,
    P_NORM_MLP_POST,
    P_ROUTER,
    P_ROUTER_BIAS, /* added to the logits (gpt-oss) or to the scores that choose (DeepSeek) */
    P_GATE_UP,     /* gate and up, alternating */
    P_GATE_UP_BIAS,
    P_SHARED_GATE, /* of the shared experts, which every token takes */
    P_SHARED_UP,
    P_SHARED_DOWN,
    P_SHARED_SCALE, /* one row: hidden -> the logit that scales the shared experts' output */
    P_SINKS,        /* one logit a head in the denominator of the softmax */
    P_Q_A,          /* latent attention: hidden -> compressed q */
    P_Q_A_NORM,     /* its norm */
    P_Q_B,          /* compressed q -> heads */
    P_KV_A,         /* hidden -> compressed k and v, and the rotary part of k that all heads share */
    P_KV_A_NORM,
    P_KV_B,            /* compressed k and v -> heads, each its k rows and its v rows */
    P_NEXT_TOKEN_NORM, /* a layer that predicts a further token: norm of the embedding, … */
    P_NEXT_STATE_NORM, /* … of the state of the token before it, … */
    P_NEXT_JOIN,       /* … both, side by side -> hidden */
    P_KINDS,
    /* In the table of an adapter (adapter.h) a matrix's kind is that of its A; P_LORA_B + kind is its B. */
    P_LORA_B = P_KINDS,
    P_KINDS_ALL = 2 * P_KINDS
};
enum param_init {
    INIT_NORMAL,
    INIT_UNIFORM,  /* in [-init_range, init_range) */
    INIT_RESIDUAL, /* normal, smaller with the number of layers */
    INIT_ONES,
    INIT_ZEROS
};
/* The ranks that hold the same part and divide its gradient and optimizer state among them: the dp ranks,
 * or for experts the ranks with the same experts (struct rank_at's edp). With ep 1 both are the same
 * ranks. */
enum param_group { GROUP_DENSE, GROUP_EXPERT };

#define PARTS_MAX 6     /* parameters that are fused, at most */
#define ALTERNATE_MAX 2 /* components of an alternating parameter */

struct param {
    char name[80]; /* of the tensor, as Hugging Face names it */
    enum param_kind kind;
    int unit, layer; /* layer -1: none */
    int expert;      /* -1: belongs to no expert */
    int n_experts;   /* of its layer, where layers differ; 0: the config's */
    enum param_group group;

    /* The tensor. Indices of `shape` past n_dims are 1. */
    int n_dims;
    int64_t shape[BOX_DIMS];
    const char *dtype; /* as safetensors names it ("F32", "F8_E4M3", "U8"); NULL: the run's */
    int n_sharing;     /* parameters in the tensor, at the first of them; 0 at the others */

    /* The parameter in its tensor: values [begin, begin + size) of split_dim, index `expert` of dim 0 where
     * it is stacked, and all of the other dims. */
    int stacked;
    enum param_split split;
    int64_t split_unit; /* of SPLIT_UNITS; tables of families do not have it */
    int split_dim; /* the dim that tp splits; also the one along which parameters are fused or alternate */
    int64_t begin, size;
    int block;         /* values that one index of split_dim stands for */
    int indices;       /* so many indices hold `block` values (dense words of 3-bit codes: 32 in 3); 0: one */
    int n_fused;       /* parameters side by side from this one on, at the first of them; 0 at the others */
    int n_alternating; /* value i of split_dim belongs to component i % n_alternating; 1: one component */
    enum param_kind alternating[ALTERNATE_MAX];
    int transposed; /* a matrix that the tensor holds as [in][out] */

    /* Indices in the table, -1: none. */
    int companion;    /* the scales of this weight */
    int companion_of; /* the weight of these scales */

    enum param_init init;
    double init_range; /* deviation, or half the width, of the initial values, where they are random */
    int decay;         /* weight decay: a matrix that the optimizer sees */
};

/* Where the parameters of one kind in one unit stand in the table: first + i * step for expert i. */
struct kind_at {
    int n, first, step;
};
struct param_table {
    struct model_config cfg;
    int n, n_units;
    struct param *p;    /* in the order of units */
    int *slot;          /* names by hash: an index in p, or -1 */
    uint32_t slot_mask; /* slots - 1 */
    struct kind_at *at; /* [n_units][P_KINDS_ALL] */
};
/* The table of a model. ERR_CONFIG: too many tensors. ERR_MEMORY. param_table_close() frees it. */
int param_table_open(struct param_table *t, const struct model_config *cfg, struct err *e);
void param_table_close(struct param_table *t);
/* For tables that follow from another one: memory for n parameters (t->n is 0, cfg and n_units are set), and
 * the look-ups of parameter i, which is filled. ERR_MEMORY. */
int param_table_alloc(struct param_table *t, int64_t n, struct err *e);
void param_table_note(struct param_table *t, int i);
/* Index of the parameter of this tensor, the first one where several share it, or -1. One hash look-up. */
int param_find(const struct param_table *t, const char *name);
/* Index of the parameter of this kind in a unit, or of the alternating one that contains it; -1: there is
 * none. expert: ignored where the kind is there once. A companion is found by its weight. Constant time. */
int param_at(const struct param_table *t, int unit, enum param_kind kind, int expert);
/* 1: a table that follows from the config and that checkpoints carry all the same: rotary frequencies,
 * GPT-2's causal masks. */
int param_is_derived(const char *tensor);
/* the bias that goes with a matrix or norm, or P_KINDS */
enum param_kind param_bias(enum param_kind kind);
/* One row of values: a bias, the weight of a norm; of one expert where the tensor stacks them. */
static inline int param_is_vector(const struct param *p) { return p->n_dims - p->stacked == 1; }
/* The index of split_dim in which value v begins, and the first one that holds no value below v. */
static inline int64_t param_index(const struct param *p, int64_t v)
{
    return v * (p->indices ? p->indices : 1) / p->block;
}
static inline int64_t param_index_end(const struct param *p, int64_t v)
{
    return (v * (p->indices ? p->indices : 1) + p->block - 1) / p->block;
}
/* The whole parameter, in its tensor. */
struct box param_box(const struct param *p);
int64_t param_count(const struct param *p); /* elements of param_box() */

/* Is this the shape of the parameter's tensor? */
int param_shape_fits(const struct param *p, int n_dims, const int64_t *shape);
/* For messages: how a file's tensor differs, "is [..], config.json says [..]: …". A matrix in the other
 * orientation is named as that; where both sizes of one matrix agree, another tensor of the same experts
 * shows it. Returns out. */
char *param_shape_differs(const struct param *p, int n_dims, const int64_t *shape, char out[320]);

/* One kind's values in its tensor, whatever the tensor's form. Value (i, j, ...) of the component lies at
 * box.start + (i, j, ...), but at box.start + i * stride in dim split_dim. box.extent counts values.
 * Reshaping between the forms of a model (experts in one tensor or in many) pairs components; a transposed
 * one has its two last dims in the other order. */
struct component {
    int param;
    struct box box;
    int64_t stride;
};
/* The component of this kind, as param_at() finds it. 0: there is none. */
int param_component(const struct param_table *t, int unit, enum param_kind kind, int expert,
                    struct component *out);

/* Degrees. vpp: parts of the model a pipeline rank holds (virtual stages), 0 and 1 mean one. Virtual stage
 * v = chunk * pp + rank. sp: sequence parallel, the ranks of tp divide the tokens of every sequence where
 * tp does not split the arithmetic. */
struct layout {
    int tp, pp, cp, dp, ep, zero, vpp, sp;
};
static inline int layout_chunks(const struct layout *l) { return l->vpp > 1 ? l->vpp : 1; }
/* Why this layout cannot be run or written for this model (ERR_USAGE, with what to change), or 0. */
int layout_check(const struct layout *l, const struct model_config *cfg, struct err *e);
/* Why cp cannot divide the cp_grain leaves of a sequence (ERR_USAGE), or 0. */
int layout_check_leaves(const struct layout *l, int cp_grain, struct err *e);
/* The GRAIN that runs at this tp: cfg->grain, or tp itself where tp cuts the tree elsewhere (then the bits
 * are this layout's own). */
int layout_grain(const struct layout *l, const struct model_config *cfg);
static inline int layout_ranks(const struct layout *l) { return l->tp * l->pp * l->cp * l->dp; }
/* The neighbouring dp ranks of an expert group; 1 with ep 1. */
static inline int layout_fold(const struct layout *l)
{
    int fold = l->ep / (l->tp * l->cp);
    return l->ep > 1 && fold > 1 ? fold : 1;
}
/* The ranks of an expert group that have rows of their own, tp ranks counted as one: those of cp in the
 * neighbouring dp ranks; 1 with ep 1. */
static inline int layout_expert_sources(const struct layout *l)
{
    return l->ep > 1 ? layout_fold(l) * l->cp : 1;
}
/* Ranks that divide dense parameters among them (ZeRO): those of dp and cp, cp fastest. */
static inline int layout_slices(const struct layout *l) { return l->dp * l->cp; }
/* A rank's place on every axis. ep: its place among the ranks that divide the experts of a layer. edp: its
 * place among the ranks that hold the same experts. An expert group is j neighbouring dp ranks with all
 * their tp and cp ranks: ep is 1 or tp * cp * j, where j divides dp. */
struct rank_at {
    int tp, cp, dp, pp, ep, edp;
};
/* The ranks lie tp fastest, then cp, dp, pp. */
struct rank_at layout_at(const struct layout *l, int rank);

struct part {
    int param;             /* index in the table */
    int vector;            /* index in params_local.unit */
    struct box box;        /* in the whole tensor */
    int64_t offset, count; /* in the vector, elements */
    /* Values of the first block of split_dim that belong to the rank below, which writes this block: value
     * i of the part lies in its block (skip + i) / block. 0 unless tp cuts inside a block. Where a block is
     * several indices: not 0 when the first index holds bits of the rank below. */
    int64_t skip;
    int owner; /* 1: this tp rank is the lowest that holds these values (writes them, counts them in norms) */
};
/* A flat vector: parts [first, first + n). n 0: the unit is not on this stage. */
struct unit_part {
    int first, n;
    int64_t flat; /* elements, padded */
    int unit;
    enum param_group group;
    const char *dtype; /* NULL: the run's */
    int n_slices;      /* ranks of the group; 1 for a dtype of its own: every rank holds all of it */
};
struct params_local {
    const struct param_table *table;
    struct layout layout;
    struct rank_at at;
    int n_parts, n_units, n_vectors;
    int n_trained; /* the first vectors have the run's dtype; no optimizer sees those of other dtypes */
    struct part *part;
    /* [n_vectors]: first the n_units vectors of the units' dense parameters in the run's dtype (with ep 1 the
     * experts are among them), then the further ones. */
    struct unit_part *unit;
    int *part_of;       /* [table->n]: a parameter's part, or -1 */
    int *experts_of;    /* [n_units]: the vector of a unit's experts in the run's dtype (ep > 1), or -1 */
    int64_t flat_total; /* elements of all vectors of the run's dtype */
};
/* The parts of one rank (of `at`: tp, pp, ep). t must outlive l. params_local_close() frees it. */
int params_local_open(struct params_local *l, const struct param_table *t, const struct layout *lay,
                      struct rank_at at, struct err *e);
void params_local_close(struct params_local *l);
/* This rank's part of param_at(unit, kind, expert), or -1. Constant time. */
int params_part(const struct params_local *l, int unit, enum param_kind kind, int expert);
/* The virtual stage, 0 .. pp * vpp - 1, that owns a unit, and the rank it lies on. The last one holds a copy
 * of a tied embedding besides. */
int params_stage(const struct param_table *t, const struct layout *l, int unit);
int params_stage_rank(const struct param_table *t, const struct layout *l, int unit);

/* One contiguous range of what a rank writes: elements [lo, hi) of a box of the tensor. */
struct param_piece {
    int part, n_parts; /* the box holds n_parts fused parts side by side, from `part` on */
    struct box box;
    int64_t lo, hi;
    /* of element lo in the vector; -1: the box is not contiguous there (its rows lack a block of the rank
     * below) */
    int64_t flat;
};
/* What rank `zero_rank` of layout_slices() writes to a checkpoint, of the parts in l. sliced 0: whole boxes
 * (by the first rank of the group; the others write none). sliced 1: its ZeRO slice of every box; vectors of
 * a dtype of their own are written whole all the same. Weights: sliced when zero == 3; optimizer state
 * (masters, moments): when zero >= 1. Boxes that another rank owns and empty ranges are left out. Fused
 * parameters that this rank holds whole are one piece where it writes whole boxes. out: [local->n_parts].
 * Returns how many. */
int params_pieces(const struct params_local *l, int zero_rank, int sliced, struct param_piece *out);

#endif
