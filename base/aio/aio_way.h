/* aio_way.h - private to aio/: one row for each way of reading and writing blocks. */
#ifndef SHARDLINE_BASE_AIO_AIO_WAY_H
#define SHARDLINE_BASE_AIO_AIO_WAY_H

#include "base/aio.h"

enum { AIO_BLOCKS = 64 }; /* most blocks under way */

struct aio_block {
    struct aio_job *job;
    size_t at, bytes; /* range in the job that is left */
    long result;      /* bytes, or -errno */
    int next;         /* in a list of blocks, -1: the last */
};

struct aio_way_ops {
    const char *name;
    /* *state: of this way. ERR_FILE: the system refuses it. ERR_MEMORY. */
    int (*open)(void **state, struct err *e);
    /* Starts block number i. Never more than AIO_BLOCKS are under way. */
    void (*submit)(void *state, int i, struct aio_block *b);
    /* Waits for a block, sets its result, returns its number. */
    int (*reap)(void *state, struct aio_block *blocks);
    void (*close)(void *state);
};
extern const struct aio_way_ops aio_ring, aio_threads;

#endif
