/* zero.h - who holds which slice of parameters, gradients and moments (ZeRO 0-3, Rajbhandari et al. 2020),
 * and how gradients are summed over the rows of the global batch in the contract's tree.
 *
 *   stage   weights        gradients after the sum   masters, moments
 *     0     all            all                       all
 *     1     all            own slice                 own slice
 *     2     all            own slice, summed step by step, all units use the same buffers
 *     3     own slice, gathered by unit when needed  own slice
 *
 * What is the same on every dp rank lies once a machine: packed weights, the natural ones from stage 1 on,
 * gathered units. The ranks of a machine pack a share each.
 * Overlapped (struct zero_how): a unit's sum is started when backward has added its last gradients and
 * finished at the end of the step, or when its buffer is needed again; stage 3 fetches the unit that comes
 * next while this one computes.
 *
 * Rows of the global batch G: R = rows a rank adds locally before it reduces; super-step s (of S = G / (dp
 * R)) has rows s dp R .. , of which dp rank d takes the R rows from s dp R + d R. Stage 0/1: S = 1. The
 * local tree has R leaves, the sum over dp is Tree(dp), the counter over super-steps S leaves: together
 * Tree(G), when R and dp R are nodes of it (batch_plan says). */
#ifndef SHARDLINE_TRAIN_ZERO_ZERO_H
#define SHARDLINE_TRAIN_ZERO_ZERO_H

#include "model/model.h"

struct batch_plan {
    int64_t rows;                 /* G, the global batch */
    int64_t local, micro, supers; /* R, M, S */
    int in_tree;                  /* the sums are Tree(G): the bits of one rank */
};
/* ERR_USAGE: dp does not divide G, or M does not divide the rows of a rank. micro 0: G / dp. */
int batch_plan(struct batch_plan *b, int64_t rows, int64_t micro, int dp, int zero, struct err *e);
/* Row (0..G-1) of micro-step i of super-step s, sequence j of it, at dp rank d. */
int64_t batch_row(const struct batch_plan *b, int dp, int64_t super, int d, int64_t j);

struct zero;
struct zero_how {
    int stage, overlap;
};
/* Collective over dp: a rank that cannot go there must not leave the others waiting (agree before). */
int zero_open(struct zero **out, struct model *m, struct comm *dp, struct comm *pp, struct comm *all,
              struct zero_how how, const struct batch_plan *b, struct err *e);
void zero_close(struct zero *z);
/* What zero_open will take a category, in bytes, from model_shape. sharers: dp ranks that share a machine's
 * memory. */
void zero_measure(const struct model *m, int dp, int sharers, struct zero_how how, const struct batch_plan *b,
                  double bytes[MEM_CATS]);
struct weights *zero_weights(struct zero *z);
struct grads *zero_grads(struct zero *z);

/* ---- filling: init, --init, --resume ---- */
enum zero_state { ZERO_WEIGHT, ZERO_MASTER, ZERO_EXP_AVG, ZERO_EXP_AVG_SQ, ZERO_STATES };
/* fn gives elements [lo, hi) (row-major in the part's box) of state `s` of a parameter, as fp32 (or, for
 * weights of a bf16 run when raw is not NULL, bf16 into raw). Called for every part and state this rank
 * holds. masters 0: masters are not read but widened from the weights that fn gives in fp32. */
typedef int (*zero_fill)(void *ctx, enum zero_state s, const struct param *p, const struct box *b, int64_t lo,
                         int64_t hi, float *dst, struct err *e);
int zero_load(struct zero *z, zero_fill fn, void *ctx, const int have[ZERO_STATES], struct err *e);
/* Counter-based initial values: a pure function of seed, tensor and element. ctx: const uint64_t *seed. */
int zero_init_values(void *ctx, enum zero_state s, const struct param *p, const struct box *b, int64_t lo,
                     int64_t hi, float *dst, struct err *e);

/* ---- a step ---- */
/* The next backward pass adds leaves row .. of super-step super. */
int zero_begin_rows(struct zero *z, int64_t super, int64_t row, struct err *e);
/* Waits for the sums under way, then the norm of the whole gradient, exact: the same double on every rank. */
int zero_norm(struct zero *z, double *norm, struct err *e);
int zero_update(struct zero *z, const struct adamw *h, double weight_decay, struct err *e);

/* ---- saving ---- */
/* Memory, of the device, of a piece (params_pieces) of one state; NULL when this rank does not hold it. */
const void *zero_piece(const struct zero *z, enum zero_state s, const struct param_piece *p);

#endif
