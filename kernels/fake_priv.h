/* fake_priv.h - inside of the fake device: its memory (fake.c) and its ops (fake_ops.c). */
#ifndef SHARDLINE_KERNELS_FAKE_PRIV_H
#define SHARDLINE_KERNELS_FAKE_PRIV_H

#include "kernels/fake.h"
#include "kernels/fake_order.h"

/* real NULL: freed */
struct block {
    char *at, *real;
    size_t bytes;
    struct spans spans;
};
/* work of a queue that nobody waited for yet */
struct late {
    void (*run)(void *);
    void *arg;
    int64_t number;
};
/* ascending by number */
struct lates {
    struct late *work;
    int n, cap;
};
struct pinned {
    char *p;
    size_t bytes;
};
enum { FAKE_PINS = 16 };
struct fake {
    char *base, *next;
    struct block *block; /* ascending by at */
    int n_blocks, cap;
    struct order order;
    struct lates late[DEV_QUEUES]; /* nothing in the compute queue's: it works at once */
    struct pinned pinned[FAKE_PINS];
    struct fake_stream stream[DEV_QUEUES];
    char identity[64];
    const char *op; /* that runs, and the queue it is in */
    enum dev_queue queue;
    int code;       /* what dev_check's error is: that, and */
    char what[256]; /* the first thing that was wrong since; "": nothing */
};
enum fake_how { READS, WRITES };

extern const struct kernel_ops fake_ops;
/* One more op in the queue in use. */
void fake_begin(struct dev *d, const char *op);
void fake_wrong(struct fake *f, const char *arg, const void *p, const char *why);
/* Where `bytes` of device memory at p really are, or NULL: then it was noted what is wrong, with the place
 * or with the order. */
void *fake_at(struct fake *f, const char *arg, const void *p, size_t bytes, enum fake_how how);
/* An argument that must be the host's own. */
const void *fake_hosts(struct fake *f, const char *arg, const void *p);
/* Runs task(arg) and frees arg: at once in the compute queue, in the others as late as anybody may expect
 * it. */
void fake_run(struct dev *d, enum dev_queue q, void (*task)(void *), void *arg);
/* Before something runs at once in the queue in use: what was put off in it. */
void fake_catch_up(struct dev *d);

#endif
