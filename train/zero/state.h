/* state.h - where a rank's masters and moments lie, and who walks over them in an update.
 *
 * zero.h knows the arithmetic: which gradients and which decay an element has, and where its weight goes. A
 * store knows the place: memory of the device (state_memory.c), memory of the host or files
 * (train/offload/). Both meet in these two tables. A store may also keep the summed gradients and the
 * weights of stage 3 (--offload-grads, --offload-params).
 *
 * An element of a vector is counted from the beginning of what this rank owns of it. States and gradients
 * are fp32, weights have the run's dtype. */
#ifndef SHARDLINE_TRAIN_ZERO_STATE_H
#define SHARDLINE_TRAIN_ZERO_STATE_H

#include <stdint.h>
#include "base/err.h"

enum zero_state { ZERO_WEIGHT, ZERO_MASTER, ZERO_EXP_AVG, ZERO_EXP_AVG_SQ, ZERO_STATES };

/* Elements [at, at + n) of vector v, where the store has them for a moment. */
struct state_piece {
    int v;
    int64_t at, n;
    float *state[ZERO_STATES]; /* masters and moments */
    const float *grads;        /* NULL: zero has them */
    void *weights;             /* NULL: zero has memory for them */
};

/* What zero does for a store. A store calls both from one thread at a time, which may be its own where it is
 * late. */
struct state_update {
    /* AdamW. */
    int (*run)(void *ctx, const struct state_piece *p, struct err *e);
    /* Sets the weights of these elements to their masters. */
    int (*restore)(void *ctx, const struct state_piece *p, struct err *e);
    void *ctx;
};

struct state_store;
struct state_ops {
    /* Device memory of a state of vector v; NULL: use read and write. */
    float *(*memory)(const struct state_store *s, int v, enum zero_state k);
    /* Elements [at, at + n) of state k of vector v, to and from the host's memory. Between updates only;
     * read waits for the end of the last one. Elements never written are 0. ZERO_WEIGHT: where the store
     * keeps weights. */
    int (*read)(struct state_store *s, int v, enum zero_state k, int64_t at, int64_t n, void *out,
                struct err *e);
    int (*write)(struct state_store *s, int v, enum zero_state k, int64_t at, int64_t n, const void *in,
                 struct err *e);

    /* An update. begin: every vector is to be updated. A late store returns before it is, and wait() returns
     * when the weights of vector v are there. wait NULL: begin returns when all are. */
    int (*begin)(struct state_store *s, struct err *e);
    int (*wait)(struct state_store *s, int v, struct err *e);

    /* Ahead of begin, of late stores: the gradients of vector v are final, so it may be updated already.
     * cancel, in place of begin or before it: undoes what was updated ahead. */
    void (*ahead)(struct state_store *s, int v);
    int (*cancel)(struct state_store *s, struct err *e);

    /* Gradients, where the store keeps them: partial sum `level` of vector v, a run that begins at a
     * multiple of s->run and is that long, but for the last one. put may return before it is written. */
    int (*put_grads)(struct state_store *s, int v, int level, int64_t at, int64_t n, const float *in,
                     struct err *e);
    int (*get_grads)(struct state_store *s, int v, int level, int64_t at, int64_t n, float *out,
                     struct err *e);

    /* Weights, where the store keeps them: fetch starts to bring all that this rank owns of vector v to
     * `to`, aligned to s->align and padded to it; fetched waits. slot: 0 .. STATE_FETCHES - 1, not in use. */
    int (*fetch)(struct state_store *s, int slot, int v, void *to, struct err *e);
    int (*fetched)(struct state_store *s, int slot, struct err *e);
};
enum { STATE_FETCHES = 8 };

struct state_store {
    const struct state_ops *ops;
    int late;                   /* updates go on after begin() */
    int has_grads, has_weights; /* keeps summed gradients; weights */
    int64_t run;                /* elements of a run of gradients */
    int64_t align;              /* bytes, of fetched weights */
    struct state_update update; /* set by zero_open */
};

#endif
