/* background.h - long work of a rank in a thread of its own, beside its main thread, which alone makes
 * collective calls and touches the device.
 *
 * The function asks the main thread for either: background_on_device for what concerns this rank only,
 * background_collective for what all ranks of the group do in the same order. The main threads meet in background_sync
 * whenever they have time (between two steps), see who asks for what, and do it:
 *
 *     rank 0  function:  read … |together|         read … |together|      done
 *             main:      step  turn  step  turn(do)  step  turn  step  turn(do) … turn: over
 *
 * When one rank's function fails, or is cancelled, all of them hear of it in the next turn: `stop` is set,
 * those that wait are refused (ERR_STOPPED), and background_finish gives every rank the error of the one that
 * failed. Nobody needs to agree with anybody on the way. */
#ifndef SHARDLINE_SERVE_WEIGHTS_BACKGROUND_H
#define SHARDLINE_SERVE_WEIGHTS_BACKGROUND_H

#include <pthread.h>
#include <signal.h>
#include "base/pool.h"
#include "comm/comm.h"

struct background;
typedef int (*background_work)(struct background *a, void *arg, struct err *e);
typedef int (*background_call)(void *arg, struct err *e);

struct background {
    /* the function ends as soon as it can, with ERR_STOPPED or as it likes */
    volatile sig_atomic_t stop;
    /* behind lock: */
    enum {
        BACKGROUND_NONE,
        BACKGROUND_RUNNING,
        BACKGROUND_ON_DEVICE,
        BACKGROUND_COLLECTIVE,
        BACKGROUND_FINISHED
    } state;
    background_call call; /* that the main thread is to make */
    void *call_arg;
    struct err *call_err;
    int call_rc;
    pthread_mutex_t lock;
    pthread_cond_t asked, answered;
    /* the function's: */
    background_work work;
    void *arg;
    const struct pool *pool;
    pthread_t thread;
    int started, rc;
    struct err err; /* of rc */
    int cancelled;  /* the main thread's: by this rank */
};

/* Starts work(a, arg, e). pool: its threads may be tied to CPUs, this one is not to be; or NULL. A thread
 * that cannot be had is a failure as any
 * other: it shows in the turns, so that every rank comes to them. */
void background_start(struct background *a, background_work work, void *arg, const struct pool *pool);

/* The function: what fn returns, called by the main thread. background_collective: by the main threads of all
 * ranks; ERR_STOPPED when it does not come to that. fn says nothing before all have come, so what it brings
 * along must be ready. */
int background_on_device(struct background *a, background_call fn, void *arg, struct err *e);
int background_collective(struct background *a, background_call fn, void *arg, struct err *e);

/* The main thread. A turn: collective over all, of which group (all itself, or a part of it) is what
 * background_collective means. 1: all functions have
 * ended, 0: not yet, or an error of the transport. */
int background_sync(struct background *a, struct comm *group, struct comm *all, struct err *e);
int background_wants_sync(struct background *a); /* a turn may bring it further */
/* until it asks for the others, or that long; what concerns this rank only is done */
void background_wait(struct background *a, int ms);
void background_cancel(struct background *a); /* this rank wants no more of it */
/* Behind the turn that said 1: 0, or the error that ended it, the same on all ranks. Collective over all. */
int background_finish(struct background *a, struct comm *all, struct err *e);
/* Without the other ranks, which may be gone: stops it and waits for its end. Safe at any time, on zeroes
 * too. */
void background_abort(struct background *a);

#endif
