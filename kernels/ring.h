/* ring.h - slices on their way from files to device memory, through a small ring of pinned memory: a rank
 * never holds more of a model on the host.
 *
 *     reader    | fill half 0 | fill half 1 | fill half 0, when the device has taken it | …
 *     device                  | copy half 0 | copy half 1 …                                    (the copy
 *     queue)
 *
 * A reader asks where a slice belongs (ring_take) and reads it there: into the ring, or, where device and
 * host are one, to its place at once. It may be another thread than the device's: then it knocks at a door
 * whenever a half is full. */
#ifndef SHARDLINE_KERNELS_RING_H
#define SHARDLINE_KERNELS_RING_H

#include "kernels/dev.h"

/* For a thread that may not touch the device: fn(arg) is made by the one that may; what it returns is
 * returned. call NULL: this one may. */
struct dev_door {
    int (*call)(void *ctx, int (*fn)(void *arg, struct err *e), void *arg, struct err *e);
    void *ctx;
};
int dev_through(const struct dev_door *door, int (*fn)(void *arg, struct err *e), void *arg, struct err *e);

enum { RING_PIECES = 64 };
/* bytes of a half, for whom there is no reason to choose others */
#define RING_HALF ((size_t)16 << 20)
struct ring {
    struct dev *d;
    struct dev_door door;
    char *half[2];      /* NULL: there is none, the memory is the host's */
    size_t bytes, used; /* of a half; of the one that is filled */
    int now;            /* that is filled */
    int64_t mark[2];    /* behind the copies of a half */
    struct ring_piece {
        char *to;
        size_t at, bytes;
    } piece[RING_PIECES];
    int n; /* pieces of the half that is filled */
};

/* Into memory of d that whoever used it has used in the compute queue. half: bytes of one; a multiple of 64.
 * Open, settle and close by the thread that may touch the device. ERR_MEMORY. */
int ring_open(struct ring *r, struct dev *d, const struct dev_door *door, size_t half, struct err *e);
/* A place for the next of n > 0 elements that belong to p, device memory: 1..n of them, returned. *host is
 * to be filled before the next call. An error: a half could not be sent. */
int64_t ring_take(struct ring *r, void *p, int64_t n, size_t element, void **host, struct err *e);
/* The same for bytes that are there already. */
int ring_put(struct ring *r, void *p, const void *from, size_t bytes, struct err *e);
/* All that was filled is on its way; ops called in the compute queue from now on find it there. */
int ring_settle(struct ring *r, struct err *e);
void ring_close(struct ring *r); /* what was not settled may be missing; on zeroes, nothing */

#endif
