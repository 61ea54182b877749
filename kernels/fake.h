/* fake.h - a device for tests: the CPU's ops over memory that the host cannot touch, in an order that is
 * checked, see fake.c. */
#ifndef SHARDLINE_KERNELS_FAKE_H
#define SHARDLINE_KERNELS_FAKE_H

#include "kernels/dev.h"

int fake_open(struct dev *d, struct err *e);

/* What dev_memory's stream() gives: all that a library for tests needs to work on this device's memory
 * (tests/devices/fake_nccl.c). */
struct fake_stream {
    struct dev *d;
    enum dev_queue queue;
    /* one more op in the queue; what it touches follows */
    void (*begin)(struct fake_stream *s, const char *op);
    /* where that is on the host; NULL: noted what is wrong */
    void *(*touch)(struct fake_stream *s, const char *arg, const void *p, size_t bytes, int writes);
    /* when the queue comes to it; frees arg */
    void (*run)(struct fake_stream *s, void (*task)(void *), void *arg);
    /* a task that waits for another rank: 0, or give up */
    int (*idle)(struct fake_stream *s);
};

#endif
