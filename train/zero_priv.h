/* zero_priv.h - inside zero: memory of a unit, gathered slots, the gradients' trees. */
#ifndef SHARDLINE_TRAIN_ZERO_PRIV_H
#define SHARDLINE_TRAIN_ZERO_PRIV_H

#include "train/zero.h"

struct zero_unit {
    int64_t own_begin, own;              /* this rank's range of masters and moments in the flat vector */
    int64_t weight_begin;                /* first element of `weight` in the flat vector */
    void *weight;                        /* comm memory, dtype of the arithmetic */
    float *master, *exp_avg, *exp_avg_sq;
    float *level[TREE_DEPTH_MAX];        /* comm memory: partial sums over this rank's rows, whole flat vector */
    float *shard[TREE_DEPTH_MAX];        /* own slice: partial sums over super-steps (stage 2, 3) */
    void *packs;
    struct unit_weights uw;
    int packed;
};
struct zero_slot { int unit, lent, packed; int64_t used; void *flat, *packs; struct unit_weights uw; };

struct zero {
    struct weights w;                    /* first: get and put cast back */
    struct grads g;
    struct model *m;
    struct comm *dp, *pp, *all;
    int stage, d, n_dp, n_units;
    struct batch_plan plan;
    int64_t super;                       /* the super-step that runs */
    int n_levels, n_shards;              /* partial sums kept a unit, local and of slices */
    int shared;                          /* stage 2, 3 with one micro-batch a super-step: one buffer serves all units */
    float *buffer;                       /* that buffer */
    struct zero_unit *unit;              /* [n_units + 1]: the last holds only the tied head's gradients */
    struct zero_slot slot[ZERO_SLOTS];
    int64_t clock;
};

int zero_open_grads(struct zero *z, struct err *e);
void zero_close_grads(struct zero *z);
void zero_forget_packs(struct zero *z);

#endif
