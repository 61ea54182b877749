/* reload.h - replacing the weights of a running engine: other weights of the same model are read while the
 * present ones serve, and then swapped in between two steps, or dropped.
 *
 * Every function but reload_close() is called on all ranks of a replica, in the same order, by their main
 * threads. Between reload_begin() and reload_end() the ranks synchronise in reload_sync() as often as they
 * like. Both sets of weights are in memory from begin to swap or drop; where a URL is followed, the memory of
 * one set is kept for the next version, because fresh pages take longer to clear than to fill. */
#ifndef SHARDLINE_SERVE_WEIGHTS_RELOAD_H
#define SHARDLINE_SERVE_WEIGHTS_RELOAD_H

#include "serve/weights/background.h"
#include "serve/weights/model_info.h"
#include "serve/weights/reload_order.h"

/* Bytes of the last version that was read, on all ranks together. */
struct reload_moved {
    int64_t received; /* over connections */
    int64_t here;     /* read from the files of a pshare of this machine */
};
struct reload {
    struct background background;
    int running; /* between reload_begin() and reload_end() */
    struct model_info *now, fresh;
    struct comm *all;    /* of the replica; borrowed */
    struct model beside; /* a copy of now->m that computes on host: steps use the other device object */
    struct dev *host;    /* a CPU of the task's own */
    int n_here;
    struct err refused; /* found before anything was read; code 0: nothing */
    struct reload_order order;
    int64_t version;             /* of the weights that are served now; after reload_end() of the new ones */
    const char *param;           /* after an error: the member of the order that it is about */
    double begin_s;              /* clock_s() */
    pthread_t freeing;           /* frees the weights before the last swap, or makes `spare` ready, … */
    int is_freeing;              /* … when set */
    volatile sig_atomic_t hurry; /* the thread ends soon */

    /* Of a version that was followed: the memory of the weights before it, for the next one (host memory). */
    struct resident_memory spare;
    int64_t kept_bytes; /* after reload_swap(): of `spare`, which the old weights' thread fills */
    struct reload_moved moved;
};

/* The server follows a URL: a thread makes the memory for the first version ready, where it is the host's.
 * r: zeroes. */
void reload_prepare(struct reload *r, struct model_info *now);
/* Begins to read the weights of an order (reload_order_write()) beside now, in a background task. version: of
 * those that are served. all: the ranks of the replica; n_here: ranks of this machine that do the same. Where
 * memory for both is missing, the task ends with ERR_MEMORY before anything is read. */
void reload_begin(struct reload *r, struct model_info *now, const char *order, int64_t version,
                  struct comm *all, int n_here);
/* 1: the task has ended on all ranks; 0: not yet; or an error of the transport. Collective. */
int reload_sync(struct reload *r, struct err *e);
/* After reload_sync() returned 1. 0: the new weights are in memory, and what was read of them on all ranks
 * has the digest that the order demands. An error (ERR_CONFIG: another model, or an older version;
 * ERR_INTEGRITY: another digest) is the same on all ranks and leaves everything as it was. Collective. */
int reload_end(struct reload *r, struct err *e);
/* Puts the new weights into *now; a thread frees the old ones where they are in the host's memory, which
 * takes longer than a step. fingerprint: set to the new weights'; unchanged where the bits are not the
 * contract's (fast numerics, another grain). */
void reload_swap(struct reload *r, char fingerprint[64]);
/* Frees the new weights; nothing to do where there are none. */
void reload_drop(struct reload *r);
/* Stops a running task and frees everything. Safe at any time and on zeroes; not collective. */
void reload_close(struct reload *r);

#endif
