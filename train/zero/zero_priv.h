/* zero_priv.h - private to zero/: memory of a vector (params.h), slots of gathered units, buffers of
 * gradients. A unit has one vector, and a second one where its experts belong to another group of ranks. */
#ifndef SHARDLINE_TRAIN_ZERO_ZERO_PRIV_H
#define SHARDLINE_TRAIN_ZERO_ZERO_PRIV_H

#include "train/zero/zero.h"

/* Gradient buffers that the vectors of a group use in rotation, with their sizes in elements; the last one
 * is large enough for every vector. n 0: every vector has buffers of its own. */
enum { MOST_ROTATING = 2, GROUPS = 2 };
struct rotation {
    int n;
    int64_t flat[MOST_ROTATING];
    int next; /* the buffer that the next vector's gradients go to */
    float *buffer[MOST_ROTATING];
};

/* The ranks that divide vectors among them (enum param_group), and this rank's place. */
struct zero_group {
    struct comm *ranks; /* borrowed */
    int rank, size;
    int share, n_shares; /* this rank's number among those of its machine, and how many they are */
};

struct zero_vector {
    int64_t own_begin, own; /* this rank's range of masters and moments in the flat vector */
    int64_t weight_begin;   /* first element of `weight` in the flat vector */
    void *weight;           /* dtype of the arithmetic; comm memory, once a machine in stages 1 and 2 */
    float *master, *exp_avg, *exp_avg_sq;
    float *level[TREE_DEPTH_MAX]; /* comm memory: partial sums over this rank's rows, whole flat vector */
    float *shard[TREE_DEPTH_MAX]; /* own slice: partial sums over super-steps (stages 2, 3) */
    int packed;                   /* with a late store: of a unit, its packs are those of its weights */
    int late;                     /* the store updates it, or its new weights are not gathered yet */
    struct comm_request *sum;     /* under way; NULL: none */
    float *sum_of;                /* the buffer that is being summed; NULL: none */
    void *packs;                  /* once a machine */
};

/* A gathered unit of stage 3, in memory once a machine. Layers have two slots: one borrowed, the next
 * being fetched, or still there when backward begins. Embedding and head may be much larger: they share
 * one slot, or have one each when they are tied, because then both are needed at once. */
enum { SLOT_OF_LAYERS = 0, SLOT_OF_ENDS = 2, ZERO_SLOTS = 4 };
struct zero_slot;
struct slot_vector {
    struct zero_slot *slot;
    int vector; /* the one last fetched */
    void *flat, *packs;
    void *memory;                /* flat lies in it, aligned for a store that has the weights */
    void *own, *own_memory;      /* this rank's slice on its way from such a store; with other ranks only */
    int reading;                 /* from the store */
    struct comm_request *gather; /* under way; NULL: none */
};
struct zero_slot {
    struct zero *z;
    int unit;       /* the unit whose current weights the slot holds or receives; -1: none */
    int n_borrowed; /* borrowed so many times and not released */
    int holds;      /* the unit last fetched, also when its weights have changed since */
    int packed;     /* its packs are made, or will be when its gathers end */
    int64_t used;   /* z->clock when it was last used */
    struct slot_vector of[GROUPS];
    struct unit_weights uw;
};

struct zero {
    struct weights w; /* first: its functions cast back */
    struct grads g;
    struct model *m;
    struct comm *pp, *all; /* borrowed */
    struct zero_group group[GROUPS];
    int stage, overlap, frozen, n_units, n_vectors;
    struct batch_plan plan;
    struct xsum squares;    /* of this step's gradients that a store has */
    float *spilled[2];      /* runs of them on their way; NULL: none */
    int64_t super;          /* the super-step that runs */
    int n_levels, n_shards; /* partial sums kept a vector: of whole vectors, of slices */
    int packed;             /* stages 0 to 2: packs are those of the current weights */
    struct rotation rotation[GROUPS];
    struct zero_vector *vector; /* [n_vectors + 1]: the last holds only the tied head's gradients */
    struct unit_weights *uw;    /* [n_units]; stages 0 to 2 */
    struct zero_slot slot[ZERO_SLOTS];
    int64_t clock;

    /* the update (zero_update.c) */
    struct state_store *store, in_memory;
    struct adamw adamw;                /* its constants, but for the decay */
    float weight_decay;                /* of parts that decay */
    struct dev *update_dev, *late_dev; /* that runs AdamW; of a late store's thread, else NULL */
    float *staged_grads;               /* pinned, [STAGED]; NULL: states and gradients are in one memory */
    void *staged_weights;              /* likewise, in the run's dtype */
    int expects, is_ahead;             /* may update ahead; does */
    int was_clipped;                   /* the gradients of the last update */
    struct adamw expected;
    float expected_decay;
};
#define STAGED ((int64_t)1 << 20)

/* The vector of a unit in a group, or -1. */
static inline int zero_vector_of(const struct model *m, int unit, int group)
{
    return group == GROUP_DENSE ? unit : m->local.experts_of[unit];
}

/* ---- zero_borrow.c ---- */
/* What zero_weights() gives: of stages 0 to 2, there also with a late store, and of stage 3. */
extern const struct weights zero_borrow_resident, zero_borrow_late, zero_borrow_gathered;

/* What a slot must hold of a group's vectors: elements, bytes of packs. */
struct slot_size {
    int64_t flat;
    size_t packs;
};
/* The sizes of all slots of stage 3. in_place: they hold packs alone, one slot those of a layer. */
void zero_slot_sizes(const struct model *m, int in_place, struct slot_size size[ZERO_SLOTS][GROUPS]);
/* Memory of the slots (stage 3). Collective over dp. */
int zero_open_slots(struct zero *z, struct err *e);
void zero_close_slots(struct zero *z); /* collective over dp */
/* The weights have changed: packs and gathered units are no longer theirs. */
void zero_forget_packs(struct zero *z);

/* ---- zero_step.c ---- */
/* Memory of the gradients. ERR_MEMORY. */
int zero_open_grads(struct zero *z, struct err *e);
void zero_close_grads(struct zero *z); /* also finishes sums under way */
/* Summed gradients of vector v from element `begin` on, where they are in memory. */
float *zero_summed(const struct zero *z, int v, int64_t begin);

/* How super-step s of S joins the sums before it: `merges` additions, beginning with partial sum depth -
 * 1; the sum is then partial sum depth - merges. */
struct joining {
    int depth, merges;
};
/* Of the super-step that runs. */
struct joining zero_joining(const struct zero *z);
/* First and last pipeline rank exchange their parts of the tied embedding's gradient. */
int zero_swap_tied(struct zero *z, float *look_up, float *head, int64_t n, struct err *e);
/* Adds the squares of elements [begin, begin + n) of vector v to those of the step. */
void zero_add_squares(struct zero *z, int v, int64_t begin, int64_t n, const float *g);

/* ---- zero_spill.c: gradients that a store keeps ---- */
int zero_open_spill(struct zero *z, struct err *e);
void zero_close_spill(struct zero *z);
double zero_spill_bytes(void);
/* Adds sum[n], elements [begin, begin + n) of the super-step that runs, to the vector's counter. Changes
 * sum. */
int zero_spill(struct zero *z, int v, int64_t begin, int64_t n, float *sum, struct err *e);
/* Adds the tied head's part to the look-up part. Collective over pp. */
int zero_join_spilled(struct zero *z, struct err *e);

/* ---- zero_update.c ---- */
extern const struct state_ops state_in_memory; /* state_memory.c */
/* What updates use. Not collective. ERR_MEMORY. */
int zero_open_update(struct zero *z, struct err *e);
void zero_close_update(struct zero *z);
/* 1: unit u has weights that are late. The same on all ranks of its groups. */
int zero_is_late(const struct zero *z, int u);
/* Waits for the late weights of unit u, and gathers them. Collective over the groups. */
int zero_settle(struct zero *z, int u, struct err *e);
/* The sum of vector v's gradients is final in this super-step: it may be updated ahead. */
void zero_sum_is_final(struct zero *z, int v);

#endif
