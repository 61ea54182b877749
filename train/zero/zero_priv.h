/* zero_priv.h - inside zero: memory of a unit, gathered slots, the gradients' trees. */
#ifndef SHARDLINE_TRAIN_ZERO_ZERO_PRIV_H
#define SHARDLINE_TRAIN_ZERO_ZERO_PRIV_H

#include "train/zero/zero.h"

/* Buffers of gradients that all units use in turn, flat[i] elements each; the last one is large enough for
 * every unit. n 0: there are none. */
enum { MOST_TURNS = 2 };
struct turns {
    int n;
    int64_t flat[MOST_TURNS];
};
struct zero_unit {
    int64_t own_begin, own; /* this rank's range of masters and moments in the flat vector */
    int64_t weight_begin;   /* first element of `weight` in the flat vector */
    /* dtype of the arithmetic; comm memory, once a machine in stages 1 and 2 */
    void *weight;
    float *master, *exp_avg, *exp_avg_sq;
    /* comm memory: partial sums over this rank's rows, whole flat vector */
    float *level[TREE_DEPTH_MAX];
    float *shard[TREE_DEPTH_MAX]; /* own slice: partial sums over super-steps (stage 2, 3) */
    struct comm_request *sum;     /* under way; NULL: none */
    float *sum_of;                /* its buffer */
    void *packs;                  /* once a machine */
    struct unit_weights uw;
};
/* A gathered unit of stage 3; memory once a machine. Layers have two slots, one lent and the next on its
 * way, or still there when backward turns round; embedding and head, which may be much larger, have one
 * (tied: one each, for both are needed at once). */
enum { SLOT_OF_LAYERS = 0, SLOT_OF_ENDS = 2, ZERO_SLOTS = 4 };
struct slot_room {
    int64_t flat;
    size_t packs;
};
void zero_slot_rooms(const struct model *m, struct slot_room room[ZERO_SLOTS]);
struct zero_slot {
    struct zero *z;
    int unit, lent; /* unit: whose weights of now these are; -1: nobody's */
    /* what lies there, and whether packed; also what `gather` brings while it is under way */
    int holds, packed;
    int64_t used;
    void *flat, *packs;
    struct comm_request *gather; /* under way; NULL: none */
    struct unit_weights uw;
};

struct zero {
    struct weights w; /* first: get and put cast back */
    struct grads g;
    struct model *m;
    struct comm *dp, *pp, *all;
    int stage, overlap, d, n_dp, n_units;
    int share, n_shares; /* of the dp ranks on this machine: this one, how many */
    struct batch_plan plan;
    int64_t super;          /* the super-step that runs */
    int n_levels, n_shards; /* partial sums kept a unit, local and of slices */
    int packed;             /* stages 0 to 2: packs are those of the weights */
    struct turns turns;     /* stage 2, 3 with one micro-batch a super-step; else none */
    int turn;
    float *buffer[MOST_TURNS];
    struct zero_unit *unit; /* [n_units + 1]: the last holds only the tied head's gradients */
    struct zero_slot slot[ZERO_SLOTS];
    int64_t clock;
};

/* zero_lend.c */
extern const struct weights zero_lends_resident, zero_lends_gathered;
int zero_open_slots(struct zero *z, struct err *e);
void zero_close_slots(struct zero *z);
/* zero_step.c */
int zero_open_grads(struct zero *z, struct err *e);
void zero_close_grads(struct zero *z);
void zero_forget_packs(struct zero *z); /* zero_lend.c: weights have changed */

#endif
