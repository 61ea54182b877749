/* fake.h - a device for tests: the CPU's ops over memory that the host cannot touch, with every access
 * checked (fake_device.c). This header is for a library that works on the device's memory
 * (tests/devices/fake_nccl.c): dev_stream() returns a struct fake_stream. */
#ifndef SHARDLINE_TESTS_DEVICES_FAKE_H
#define SHARDLINE_TESTS_DEVICES_FAKE_H

#include "kernels/dev.h"

struct fake_stream {
    struct dev *d;
    enum dev_queue queue;
    /* Starts an op in the queue; the touch() calls that follow belong to it. */
    void (*begin)(struct fake_stream *s, const char *op);
    /* Declares that the op reads or writes these bytes and returns their address on the host. NULL: the
     * access is wrong; dev_check() reports it. */
    void *(*touch)(struct fake_stream *s, const char *arg, const void *p, size_t bytes, int writes);
    /* Runs task(arg) when the queue reaches it, then frees arg. */
    void (*run)(struct fake_stream *s, void (*task)(void *), void *arg);
    /* A task that waits for another rank calls this in its loop. 0: keep waiting; otherwise give up. */
    int (*idle)(struct fake_stream *s);
};

#endif
