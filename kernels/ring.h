/* ring.h - carries slices from files to device memory through two pinned staging buffers, so that a rank
 * never holds more of a model on the host.
 *
 *     reader       | fill buffer 0 | fill buffer 1 | fill buffer 0, when the device has copied it | …
 *     copy queue                   | copy buffer 0 | copy buffer 1 …
 *
 * A reader asks where a slice belongs (ring_take) and reads it there: into a buffer or, where device and
 * host memory are one, to its final place. The reader may be another thread than the one that calls into
 * the device: it then hands full buffers over through a struct dev_executor. */
#ifndef SHARDLINE_KERNELS_RING_H
#define SHARDLINE_KERNELS_RING_H

#include "kernels/dev.h"

/* How a thread that may not call into the device runs fn(arg): call() has the device's thread run it and
 * returns its result. call NULL: this thread is the one. */
struct dev_executor {
    int (*call)(void *ctx, int (*fn)(void *arg, struct err *e), void *arg, struct err *e);
    void *ctx;
};
/* Runs fn(arg) in the thread that may call into the device; returns its result. */
int dev_execute(const struct dev_executor *x, int (*fn)(void *arg, struct err *e), void *arg, struct err *e);

enum { RING_PIECES = 64 };
/* the usual size of a staging buffer */
#define RING_BUFFER_BYTES ((size_t)16 << 20)
struct ring {
    struct dev *d;
    struct dev_executor executor;
    char *buffer[2]; /* NULL: there are none, the device's memory is the host's */
    size_t bytes;    /* of a buffer */
    size_t used;     /* of the buffer that is being filled */
    int now;         /* its index */
    int64_t mark[2]; /* behind the copies from a buffer */
    struct ring_piece {
        char *to;
        size_t at, bytes;
    } piece[RING_PIECES];
    int n; /* pieces of the buffer that is being filled */
};

/* Opens a ring to memory of d that earlier calls used in the compute queue only. buffer_bytes: of one
 * buffer, a multiple of 64. The thread that may call into the device opens, settles and closes.
 * ERR_MEMORY. */
int ring_open(struct ring *r, struct dev *d, const struct dev_executor *x, size_t buffer_bytes,
              struct err *e);
/* Sets *host to memory for the next of n > 0 elements that belong at p in device memory; the caller fills
 * it before the next call. Returns their number, 1..n, or an error when a full buffer could not be copied. */
int64_t ring_take(struct ring *r, void *p, int64_t n, size_t element, void **host, struct err *e);
/* The same for bytes that exist already: copies them. */
int ring_put(struct ring *r, void *p, const void *from, size_t bytes, struct err *e);
/* Sends what was filled; later ops in the compute queue find all of it in place. */
int ring_settle(struct ring *r, struct err *e);
/* Frees the buffers. What was not settled may be missing. A ring of zeroes: nothing. */
void ring_close(struct ring *r);

#endif
