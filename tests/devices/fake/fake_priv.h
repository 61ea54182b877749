/* fake_priv.h - the fake device's state, shared by its memory (fake_device.c) and its ops (fake_ops.c). */
#ifndef SHARDLINE_TESTS_DEVICES_FAKE_PRIV_H
#define SHARDLINE_TESTS_DEVICES_FAKE_PRIV_H

#include "kernels/dev_library.h"
#include "tests/devices/fake/fake.h"
#include "tests/devices/fake/fake_order.h"

/* One allocation: device address, memory of the host behind it (NULL: freed). */
struct block {
    char *at, *real;
    size_t bytes;
    struct spans spans;
};
/* An op that has not run yet. */
struct deferred {
    void (*run)(void *);
    void *arg;
    int64_t number;
};
/* Ascending by number. */
struct deferred_list {
    struct deferred *work;
    int n, cap;
};
struct pinned {
    char *p;
    size_t bytes;
};
enum { FAKE_PINS = 16 };
struct fake {
    const struct dev_program *program;
    char *base, *next;
    struct block *block; /* ascending by at */
    int n_blocks, cap;
    struct order order;
    struct deferred_list deferred[DEV_QUEUES]; /* DEV_COMPUTE's is empty: that queue runs at once */
    struct pinned pinned[FAKE_PINS];
    struct fake_stream stream[DEV_QUEUES];
    char identity[64];
    const char *op; /* the op that runs, and its queue */
    enum dev_queue queue;
    int code;       /* the error code that dev_check reports; 0: ERR_INTERNAL */
    char what[256]; /* the first mistake since the last dev_check; "": none */
};
enum fake_how { READS, WRITES };

extern const struct kernel_ops fake_ops;
/* Starts an op in the queue in use. */
void fake_begin(struct dev *d, const char *op);
/* Records that argument `arg` of the running op is wrong. Only the first mistake is kept. */
void fake_wrong(struct fake *f, const char *arg, const void *p, const char *why);
/* The address on the host of `bytes` bytes of device memory at p. NULL: the address or the order is wrong,
 * which is recorded. */
void *fake_at(struct fake *f, const char *arg, const void *p, size_t bytes, enum fake_how how);
/* An argument that must be host memory: p, or NULL when it is the device's, which is recorded. */
const void *fake_hosts(struct fake *f, const char *arg, const void *p);
/* Runs task(arg) and frees arg: at once in the compute queue, as late as possible in the others. */
void fake_run(struct dev *d, enum dev_queue q, void (*task)(void *), void *arg);
/* Runs the deferred ops of the queue in use, before an op that runs at once. */
void fake_catch_up(struct dev *d);

#endif
