/* fake_order.h - the fake device's book of order: who touched which bytes last, and whether who touches them
 * now is sure to come behind.
 *
 * Every op has a number in its queue. A queue knows how far it comes behind each other queue (a vector
 * clock): marks carry that from one queue to another, what the host waits for carries it to all. An access
 * is in order when its queue comes behind the last writer of every byte, and, if it writes, behind the last
 * readers too. Method: vector clocks, Mattern 1989. */
#ifndef SHARDLINE_KERNELS_FAKE_ORDER_H
#define SHARDLINE_KERNELS_FAKE_ORDER_H

#include "kernels/dev.h"

/* behind the first at[q] ops of queue q */
struct clock {
    int64_t at[DEV_QUEUES];
};
/* number 0: nobody */
struct touch {
    int64_t number;
    enum dev_queue queue;
    const char *op;
};
struct span {
    size_t begin, end;
    struct touch write, read[DEV_QUEUES];
};
/* of one piece of memory: ascending, without gaps between them or overlaps */
struct spans {
    struct span *span;
    int n, cap;
};
struct order {
    /* what a queue comes behind; of[q].at[q]: ops of its own so far */
    struct clock of[DEV_QUEUES];
    struct clock *mark;
    int n_marks, cap;
};

/* One more op in queue q. */
void fake_order_op(struct order *o, enum dev_queue q);
/* Marks count from 1; 0: no memory. */
int fake_order_mark(struct order *o, enum dev_queue q);
void fake_order_wait(struct order *o, enum dev_queue q, int mark);
/* The host waited for all of queue q so far, or only for a mark: everything called later comes behind. */
void fake_order_sync(struct order *o, enum dev_queue q);
void fake_order_sync_mark(struct order *o, int mark);
void fake_order_close(struct order *o);

/* The newest op of queue q touches bytes [begin, end). 0: in order; 1: not behind *who, who wrote there
 * (*wrote) or reads there; -1: no memory. */
int spans_touch(struct spans *s, const struct order *o, enum dev_queue q, const char *op, size_t begin,
                size_t end, int writes, struct touch *who, int *wrote);
void spans_close(struct spans *s);

#endif
