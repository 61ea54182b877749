/* zero.h - who holds which slice of parameters, gradients and moments (ZeRO 0-3, Rajbhandari et al. 2020),
 * and how gradients are summed over the rows of the global batch in the contract's tree.
 *
 *   stage   weights        gradients after the sum   masters, moments
 *     0     all            all                       all
 *     1     all            own slice                 own slice
 *     2     all            own slice, summed step by step, all units use the same buffers
 *     3     own slice, gathered by unit when needed  own slice
 *
 * What all dp ranks have alike is in shared memory, once a machine: packed weights, natural weights from
 * stage 1 on, gathered units. Each rank of a machine packs a share of it.
 *
 * With overlap a unit's sum starts when backward has added its last gradients. It is finished at the end of
 * the step, or when its buffer is needed again. Stage 3 fetches the next unit while this one computes.
 *
 * Rows of the global batch G: a rank adds R rows locally before it reduces. Super-step s of S = G / (dp R)
 * has the rows from s dp R on, and dp rank d takes R of them, from s dp R + d R on. In stages 0 and 1, S =
 * 1. The local tree has R leaves, the sum over dp is Tree(dp), the counter over super-steps has S leaves:
 * together Tree(G), when R and dp R are nodes of it (batch_plan.in_tree). */
#ifndef SHARDLINE_TRAIN_ZERO_ZERO_H
#define SHARDLINE_TRAIN_ZERO_ZERO_H

#include "model/model.h"
#include "train/zero/state.h"

struct batch_plan {
    int64_t rows;   /* G, the global batch */
    int64_t local;  /* R, rows that a rank adds before it reduces */
    int64_t micro;  /* M, rows of one micro-batch; divides R */
    int64_t supers; /* S, super-steps in a step */
    int in_tree;    /* the sums are Tree(G): the same bits as on one rank */
};
/* zero: the ZeRO stage; micro 0: G / dp. ERR_USAGE: dp does not divide G, or M does not divide the rows of
 * a rank. */
int batch_plan(struct batch_plan *b, int64_t rows, int64_t micro, int dp, int zero, struct err *e);
/* The same for a layout. With ep > 1 rows are dealt as in stage 2 at every stage, and the rows of a
 * micro-batch of an expert group must be a node of the tree too. ERR_USAGE: a super-step would be several
 * micro-batches. */
int batch_plan_layout(struct batch_plan *b, int64_t rows, int64_t micro, const struct layout *l,
                      struct err *e);
/* The micro-batches of an evaluation: --micro-batch sequences, micro 0: as many as usual. */
int batch_plan_eval(struct batch_plan *b, int64_t micro, const struct layout *l, struct err *e);
/* ERR_USAGE: S = leaf sequences (--expert-leaf) do not divide those that an expert gets in one call. */
int batch_check_leaf(const struct batch_plan *b, const struct layout *l, int leaf, struct err *e);
/* The row of the global batch, 0 .. G-1, that dp rank d adds as its row j (0 .. R-1) of a super-step. */
int64_t batch_row(const struct batch_plan *b, int dp, int64_t super, int d, int64_t j);

struct zero;
struct zero_options {
    int stage, overlap;
    int frozen; /* weights alone, no gradients, no states; what they are packed into is work memory */
    struct state_store *store; /* of masters and moments, borrowed; NULL: the device's memory */
    /* for zero_measure: a store has masters and moments, summed gradients, weights of stage 3, in memory that
     * is counted apart */
    int elsewhere, no_grads, no_weights;
};
/* The groups that ZeRO works in, borrowed. */
struct zero_groups {
    struct comm *dp, *pp; /* dp: the ranks of dp and cp, cp fastest */
    struct comm *edp; /* the ranks that hold the same experts; NULL: experts belong to dp as all else does */
    struct comm *all; /* all ranks of the job */
};
/* Opens memory for the state of m, without values. Borrows m and the groups. Collective over dp: a rank that
 * cannot call it must not leave the others waiting (agree before). ERR_MEMORY. */
int zero_open(struct zero **out, struct model *m, const struct zero_groups *groups, struct zero_options how,
              const struct batch_plan *b, struct err *e);
void zero_close(struct zero *z);
/* Adds to bytes[] what zero_open will take. m: from model_shape; sharers: dp ranks that share a machine's
 * memory. */
void zero_measure(const struct model *m, int sharers, struct zero_options how, const struct batch_plan *b,
                  double bytes[MEM_CATS]);
/* The weights and gradients as the model borrows them; they belong to z. */
struct weights *zero_weights(struct zero *z);
struct grads *zero_grads(struct zero *z);

/* ---- filling: initial values, --init, --resume ---- */
/* Puts elements [lo, hi) (row-major in box b) of state s of parameter p into dst, as fp32. */
typedef int (*zero_fill)(void *ctx, enum zero_state s, const struct param *p, const struct box *b, int64_t lo,
                         int64_t hi, float *dst, struct err *e);
/* Calls fn for every part and state that this rank holds. have[s] 0: state s is not read. Moments then
 * stay 0, and masters (of a bf16 run) are fn's ZERO_WEIGHT values, not rounded. Frozen: the weights alone.
 * Not collective. */
int zero_load(struct zero *z, zero_fill fn, void *ctx, const int have[ZERO_STATES], struct err *e);
/* A zero_fill of initial values: a pure function of seed, tensor and element. ctx: const uint64_t *seed. */
int zero_init_values(void *ctx, enum zero_state s, const struct param *p, const struct box *b, int64_t lo,
                     int64_t hi, float *dst, struct err *e);

/* ---- a step ---- */
/* The next backward pass adds rows `row` .. of super-step `super`. A new super-step first finishes the
 * sums of the one before. */
int zero_begin_rows(struct zero *z, int64_t super, int64_t row, struct err *e);
/* Finishes all sums. *norm: of the whole gradient, exact, the same double on every rank. Collective over
 * the job. */
int zero_norm(struct zero *z, double *norm, struct err *e);
/* AdamW on the parameters that this rank holds; stages 1 and 2 gather the new weights. With a late store the
 * update only begins here: a unit's weights are waited for, and gathered, when they are borrowed, and all of
 * them before the next backward. Collective over dp. */
int zero_update(struct zero *z, const struct adamw *h, double weight_decay, struct err *e);
/* Waits for all weights that are late. Collective over dp. */
int zero_settle_all(struct zero *z, struct err *e);
/* The update of the step that begins will have these constants, if its gradients are not clipped: a late
 * store may update a unit as soon as its sum is final, and undoes that where they are. Not used after a
 * step whose gradients were clipped. */
void zero_expect(struct zero *z, const struct adamw *h, double weight_decay);
/* There is no update: undoes what was updated ahead. */
int zero_discard(struct zero *z, struct err *e);
/* Elements of vector v of which a rank of its group keeps the state. */
int64_t zero_own(const struct model *m, int stage, int v);
/* Partial sums over super-steps that a rank keeps of its slices. */
int zero_shard_levels(const struct batch_plan *b, int stage);

/* ---- saving ---- */
/* Device memory of one state of a piece (params_pieces); NULL: a store has it elsewhere. Only pieces that
 * this rank holds may be asked for, after zero_settle_all(). */
const void *zero_piece(const struct zero *z, enum zero_state s, const struct param_piece *p);
/* Elements [at, at + n) of a piece that is elsewhere, to the host's memory. */
int zero_read_piece(const struct zero *z, enum zero_state s, const struct param_piece *p, int64_t at,
                    int64_t n, void *out, struct err *e);

#endif
