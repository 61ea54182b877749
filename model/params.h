/* params.h - the one table of parameters, and everything that follows from it: what a rank holds, writes,
 * reads.
 *
 * A parameter is declared once (family.c): name, shape, which dim tp splits and how, which unit it belongs
 * to. Several parameters may
 * share a tensor, side by side along the dim that tp splits: GPT-2 keeps q, k and v in one. A *unit* is what
 * ZeRO gathers at
 * once: 0 the embedding, 1..L the layers, L+1 final norm and head. In a rank's memory a unit is one flat
 * vector:
 *
 *     [ tensor | pad | tensor | pad | … | pad ]     every tensor starts at a multiple of 64 elements; the
 *     whole is a multiple of
 *     [ slice of dp 0 | slice of dp 1 | … ]         64 * dp, so that dp rank d owns elements [d * flat/dp,
 *     (d+1) * flat/dp)   */
#ifndef SHARDLINE_MODEL_PARAMS_H
#define SHARDLINE_MODEL_PARAMS_H

#include <stdint.h>
#include "base/box.h"
#include "base/err.h"
#include "model/config.h"

enum param_split {
    SPLIT_COPY,  /* every tp rank has all of it */
    SPLIT_HEADS, /* dim `split_dim` in blocks of query heads */
    /* dim `split_dim` in kv heads; fewer kv heads than tp: replicated within tp / n_kv neighbours */
    SPLIT_KV,
    SPLIT_BLOCKS /* dim `split_dim` in GRAIN blocks (intermediate, vocabulary) */
};
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
    P_QKV,
    P_QKV_BIAS,
    P_NORM_ATTN_POST,
    P_NORM_MLP_POST,
    P_ROUTER,
    P_KINDS
};
enum param_init {
    INIT_NORMAL,
    INIT_RESIDUAL /* normal, smaller with the number of layers */,
    INIT_ONES,
    INIT_ZEROS
};

#define PARTS_MAX 4 /* parameters that share a tensor, at most */

struct param {
    char name[80]; /* of the tensor, as Hugging Face names it */
    enum param_kind kind;
    int n_dims;
    int64_t shape[2]; /* of the tensor */
    enum param_split split;
    int split_dim;
    int64_t begin, size; /* indices of split_dim that are this parameter's */
    int n_sharing;       /* parameters in the tensor, at the first of them; 0 at the others */
    int unit, layer;     /* layer -1: none */
    int expert;          /* -1: belongs to all */
    int transposed;      /* a matrix that the tensor holds as [in][out] */
    enum param_init init;
    double init_range; /* deviation of the initial values, where they are random */
    int decay;         /* weight decay: two or more dimensions */
};
struct param_table {
    struct model_config cfg;
    int n, n_units;
    struct param *p; /* in the order of units */
};
int param_table_open(struct param_table *t, const struct model_config *cfg, struct err *e);
void param_table_close(struct param_table *t);
/* 1: a table that follows from the config and that checkpoints carry all the same: rotary frequencies,
 * GPT-2's causal masks. */
int param_is_derived(const char *tensor);
/* index (of the first that share the tensor) or -1 */
int param_find(const struct param_table *t, const char *name);
/* the bias that goes with a matrix or norm, or P_KINDS */
enum param_kind param_bias(enum param_kind kind);
int64_t param_count(const struct param *p); /* elements */

/* vpp: parts of the model a pipeline rank holds (virtual stages), 0 and 1 mean one. Virtual stage v = chunk
 * * pp + rank. sp: sequence parallel, the ranks of tp share the tokens of every sequence where tp does not
 * split the arithmetic. */
struct layout {
    int tp, pp, cp, dp, ep, zero, vpp, sp;
};
static inline int layout_chunks(const struct layout *l) { return l->vpp > 1 ? l->vpp : 1; }
/* Why this layout cannot be run or written for this model (ERR_USAGE, says what to change), or 0. */
int layout_check(const struct layout *l, const struct model_config *cfg, struct err *e);
/* The GRAIN that runs at this tp: cfg->grain, or tp itself where tp cuts the tree elsewhere (then the bits
 * are this layout's own). */
int layout_grain(const struct layout *l, const struct model_config *cfg);
static inline int layout_ranks(const struct layout *l) { return l->tp * l->pp * l->cp * l->dp; }
/* A rank's place on every axis. ep: its place among the ranks that divide the experts of a layer. edp: its
 * place among the ranks that hold the same experts. An expert group is j neighbouring dp ranks with all their
 * tp and cp ranks: ep is 1 or tp * cp * j, where j divides dp. */
struct rank_at {
    int tp, cp, dp, pp, ep, edp;
};
/* The ranks lie tp fastest, then cp, dp, pp. */
struct rank_at layout_at(const struct layout *l, int rank);

struct part {              /* what one (tp, pp) place holds of one parameter */
    int param;             /* index in the table */
    struct box box;        /* in the whole tensor */
    int64_t offset, count; /* in the unit's flat vector, elements */
    /* 1: this tp rank is the lowest that holds this box (writes it, counts it in norms) */
    int owner;
};
/* parts [first, first + n); flat length, padded. n 0: not on this stage */
struct unit_part {
    int first, n;
    int64_t flat;
};
struct params_local {
    const struct param_table *table;
    struct layout layout;
    struct rank_at at;
    int n_parts, n_units;
    struct part *part;
    struct unit_part *unit; /* [table->n_units] */
    int64_t flat_total;     /* of all units here */
};
int params_local_open(struct params_local *l, const struct param_table *t, const struct layout *lay,
                      struct rank_at at, struct err *e);
void params_local_close(struct params_local *l);
/* The virtual stage, 0 .. pp * vpp - 1, that owns a unit, and the rank it lies on. The last one holds a copy
 * of a tied embedding besides. */
int params_stage(const struct param_table *t, const struct layout *l, int unit);
int params_stage_rank(const struct param_table *t, const struct layout *l, int unit);

/* What rank `at` writes to a checkpoint. sliced 0: whole boxes (dp rank 0 only, others none); sliced 1: its
 * ZeRO slice of every box.
 * Weights: sliced when zero == 3; optimizer state (masters, moments): when zero >= 1. Boxes whose owner is
 * another rank and empty ranges are left out. A tensor that this rank holds whole is one piece, also where
 * several parameters share it: then n_parts says how many, and its rows are those of the parts side by side.
 * out: room for local->n_parts. Returns how many. */
struct param_piece {
    int part, n_parts;
    struct box box;
    int64_t lo, hi;
    int64_t flat; /* of element lo in the unit's flat vector */
};
int params_pieces(const struct params_local *l, int dp_rank, int sliced, struct param_piece *out);

#endif
