/* background.h - a long task of one rank in a thread of its own, beside the rank's main thread. Only the main
 * thread makes collective calls and touches a device with memory of its own.
 *
 * The task asks the main thread for both: background_on_device() for a call that concerns this rank only,
 * background_collective() for a call that all ranks of the group make in the same order. The main threads
 * synchronise in background_sync() whenever they have time (between two steps), find out which tasks have
 * asked for what, and make the calls:
 *
 *     rank 0  task:  read … |collective|           read … |collective|        finished
 *             main:  step  sync  step  sync(call)  step  sync  step  sync(call) … sync: all finished
 *
 * When the task of one rank fails or is cancelled, the next sync stops all of them: `stop` is set, waiting
 * collective calls are refused with ERR_STOPPED, and background_finish() gives every rank the error of the
 * rank that failed. The tasks need no agreement of their own. */
#ifndef SHARDLINE_SERVE_WEIGHTS_BACKGROUND_H
#define SHARDLINE_SERVE_WEIGHTS_BACKGROUND_H

#include <pthread.h>
#include <signal.h>
#include "base/pool.h"
#include "comm/comm.h"

struct background;
/* The task, in its own thread. 0, or an error. */
typedef int (*background_work)(struct background *a, void *arg, struct err *e);
/* A call that the main thread makes for the task. 0 or more, or an error. */
typedef int (*background_call)(void *arg, struct err *e);

struct background {
    volatile sig_atomic_t stop; /* the task must end soon, with ERR_STOPPED or an error of its own */

    /* guarded by lock: */
    enum {
        BACKGROUND_NONE,
        BACKGROUND_RUNNING,
        BACKGROUND_ON_DEVICE,  /* the task waits for call on this rank */
        BACKGROUND_COLLECTIVE, /* the task waits for call on all ranks */
        BACKGROUND_FINISHED
    } state;
    background_call call;
    void *call_arg;
    struct err *call_err;
    int call_rc;
    pthread_mutex_t lock;
    pthread_cond_t asked, answered;

    /* of the task: */
    background_work work;
    void *arg;
    const struct pool *pool;
    pthread_t thread;
    int started, rc;
    struct err err; /* of rc */

    int cancelled; /* main thread: by background_cancel() on this rank */
};

/* Starts work(a, arg, e) in a thread of its own. pool: the pool whose threads may be pinned to CPUs, so that
 * the new thread is unpinned; or NULL. When no thread can be created the task has failed with ERR_MEMORY,
 * which the next sync shows, so that every rank takes part in it. Main thread, not collective. Always ended
 * by background_finish() or background_abort(). */
void background_start(struct background *a, background_work work, void *arg, const struct pool *pool);

/* Called by the task: has the main thread call fn, and returns what fn returned. background_on_device: on
 * this rank, soon. background_collective: on all ranks of the group, once the task of every rank has asked;
 * what fn sends must be ready when its task asks. ERR_STOPPED: the call will not be made. */
int background_on_device(struct background *a, background_call fn, void *arg, struct err *e);
int background_collective(struct background *a, background_call fn, void *arg, struct err *e);

/* One synchronisation of the main threads. group: the ranks that background_collective() is about, `all` or a
 * part of it. 1: all tasks have finished; 0: not yet; or an error of the transport. Collective over all. */
int background_sync(struct background *a, struct comm *group, struct comm *all, struct err *e);
/* 1: a sync may get this rank's task further. Main thread, not collective. */
int background_wants_sync(struct background *a);
/* Waits up to ms milliseconds, or until the task has finished or asks for a collective call; makes its device
 * calls meanwhile. Main thread, not collective. */
void background_wait(struct background *a, int ms);
/* Stops the tasks of all ranks at the next sync. Main thread, not collective. */
void background_cancel(struct background *a);
/* After the sync that returned 1: joins the thread. 0, or the error that ended the tasks, the same on all
 * ranks. Collective over all. */
int background_finish(struct background *a, struct comm *all, struct err *e);
/* Stops the task and joins its thread without the other ranks, which may have exited. Safe at any time, also
 * on a zeroed struct. Main thread, not collective. */
void background_abort(struct background *a);

#endif
