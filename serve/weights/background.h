/* background.h - long work of a rank in a thread of its own, beside its main thread, which alone makes
 * collective calls and touches the device.
 *
 * The function asks the main thread for either: aside_device for what concerns this rank only,
 * aside_together for what all ranks of the group do in the same order. The main threads meet in aside_turn
 * whenever they have time (between two steps), see who asks for what, and do it:
 *
 *     rank 0  function:  read … |together|         read … |together|      done
 *             main:      step  turn  step  turn(do)  step  turn  step  turn(do) … turn: over
 *
 * When one rank's function fails, or is cancelled, all of them hear of it in the next turn: `stop` is set,
 * those that wait are refused (ERR_STOPPED), and aside_end gives every rank the error of the one that
 * failed. Nobody needs to agree with anybody on the way. */
#ifndef SHARDLINE_SERVE_WEIGHTS_BACKGROUND_H
#define SHARDLINE_SERVE_WEIGHTS_BACKGROUND_H

#include <pthread.h>
#include <signal.h>
#include "base/pool.h"
#include "comm/comm.h"

struct aside;
typedef int (*aside_work)(struct aside *a, void *arg, struct err *e);
typedef int (*aside_call)(void *arg, struct err *e);

struct aside {
    /* the function ends as soon as it can, with ERR_STOPPED or as it likes */
    volatile sig_atomic_t stop;
    /* behind lock: */
    enum { ASIDE_NONE, ASIDE_WORKS, ASIDE_DEVICE, ASIDE_TOGETHER, ASIDE_OVER } state;
    aside_call call; /* that the main thread is to make */
    void *call_arg;
    struct err *call_err;
    int call_rc;
    pthread_mutex_t lock;
    pthread_cond_t asked, answered;
    /* the function's: */
    aside_work work;
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
void aside_begin(struct aside *a, aside_work work, void *arg, const struct pool *pool);

/* The function: what fn returns, called by the main thread. aside_together: by the main threads of all
 * ranks; ERR_STOPPED when it does not come to that. fn says nothing before all have come, so what it brings
 * along must be ready. */
int aside_device(struct aside *a, aside_call fn, void *arg, struct err *e);
int aside_together(struct aside *a, aside_call fn, void *arg, struct err *e);

/* The main thread. A turn: collective over all, of which group (all itself, or a part of it) is what
 * aside_together means. 1: all functions have
 * ended, 0: not yet, or an error of the transport. */
int aside_turn(struct aside *a, struct comm *group, struct comm *all, struct err *e);
int aside_asks(struct aside *a); /* a turn may bring it further */
/* until it asks for the others, or that long; what concerns this rank only is done */
void aside_rest(struct aside *a, int ms);
void aside_cancel(struct aside *a); /* this rank wants no more of it */
/* Behind the turn that said 1: 0, or the error that ended it, the same on all ranks. Collective over all. */
int aside_end(struct aside *a, struct comm *all, struct err *e);
/* Without the other ranks, which may be gone: stops it and waits for its end. Safe at any time, on zeroes
 * too. */
void aside_abandon(struct aside *a);

#endif
