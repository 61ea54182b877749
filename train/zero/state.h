/* state.h - where a rank's masters and moments lie, and who walks over them in an update.
 *
 * zero.h knows the arithmetic: which gradients and which decay an element has, and where its weight goes. A
 * store knows the place: memory of the device (state_memory.c), memory of the host or files
 * (train/offload/). Both meet in these two tables.
 *
 * An element of a vector is counted from the beginning of what this rank owns of it. States are fp32. */
#ifndef SHARDLINE_TRAIN_ZERO_STATE_H
#define SHARDLINE_TRAIN_ZERO_STATE_H

#include <stdint.h>
#include "base/err.h"

enum zero_state { ZERO_WEIGHT, ZERO_MASTER, ZERO_EXP_AVG, ZERO_EXP_AVG_SQ, ZERO_STATES };

/* What zero does for a store. A store calls both from one thread at a time, which may be its own where it is
 * late. */
struct state_update {
    /* AdamW on elements [at, at + n) of vector v. state[]: masters and moments of these elements. */
    int (*run)(void *ctx, int v, int64_t at, int64_t n, float *const state[ZERO_STATES], struct err *e);
    /* Sets the weights of these elements to their masters. */
    int (*restore)(void *ctx, int v, int64_t at, int64_t n, const float *master, struct err *e);
    void *ctx;
};

struct state_store;
struct state_ops {
    /* Device memory of a state of vector v; NULL: use read and write. */
    float *(*memory)(const struct state_store *s, int v, enum zero_state k);
    /* Elements [at, at + n) of state k of vector v, to and from the host's memory. Between updates only;
     * read waits for the end of the last one. Elements never written are 0. */
    int (*read)(struct state_store *s, int v, enum zero_state k, int64_t at, int64_t n, float *out,
                struct err *e);
    int (*write)(struct state_store *s, int v, enum zero_state k, int64_t at, int64_t n, const float *in,
                 struct err *e);

    /* An update. begin: every vector is to be updated. A late store returns before it is, and wait() returns
     * when the weights of vector v are there. */
    int (*begin)(struct state_store *s, struct err *e);
    int (*wait)(struct state_store *s, int v, struct err *e);

    /* Ahead of begin, of late stores: the gradients of vector v are final, so it may be updated already.
     * cancel, in place of begin or before it: undoes what was updated ahead. */
    void (*ahead)(struct state_store *s, int v);
    int (*cancel)(struct state_store *s, struct err *e);
};

struct state_store {
    const struct state_ops *ops;
    int late;                   /* updates go on after begin() */
    struct state_update update; /* set by zero_open */
};

#endif
