/* fake_order.h - the fake device's order checker: which op touched which bytes last, and whether a new access
 * is ordered behind it.
 *
 * Every op has a number in its queue. Each queue has a vector clock: how many ops of every other queue are
 * ordered before its next op. Marks carry a clock from one queue to another; a wait of the host carries it
 * to all queues. An access is in order when its queue's clock covers the last write of every byte and, for a
 * write, the last reads too. Method: vector clocks, Mattern 1989. */
#ifndef SHARDLINE_TESTS_DEVICES_FAKE_ORDER_H
#define SHARDLINE_TESTS_DEVICES_FAKE_ORDER_H

#include "kernels/dev.h"

/* The first at[q] ops of queue q are ordered before. */
struct clock {
    int64_t at[DEV_QUEUES];
};
/* One access; number 0: there was none. */
struct touch {
    int64_t number;
    enum dev_queue queue;
    const char *op;
};
/* Bytes [begin, end) with the same last accesses. */
struct span {
    size_t begin, end;
    struct touch write, read[DEV_QUEUES];
};
/* The spans of one allocation: ascending, without gaps or overlaps. */
struct spans {
    struct span *span;
    int n, cap;
};
struct order {
    struct clock of[DEV_QUEUES]; /* the queues' clocks; of[q].at[q]: ops of queue q so far */
    struct clock *mark;
    int n_marks, cap;
};

/* Counts one more op in queue q. */
void fake_order_op(struct order *o, enum dev_queue q);
/* Records queue q's clock. Returns the mark's number, from 1; 0: out of memory. */
int fake_order_mark(struct order *o, enum dev_queue q);
/* Orders queue q behind the mark. */
void fake_order_wait(struct order *o, enum dev_queue q, int mark);
/* The host waited for all ops of queue q so far: later ops of every queue are ordered behind them. */
void fake_order_sync(struct order *o, enum dev_queue q);
/* The same for a mark. */
void fake_order_sync_mark(struct order *o, int mark);
/* Frees the marks. */
void fake_order_close(struct order *o);

/* Records that the newest op of queue q touches bytes [begin, end). Returns 0: in order; 1: the op is not
 * ordered behind *who, which wrote (*wrote 1) or reads (0) some of them; -1: out of memory. */
int spans_touch(struct spans *s, const struct order *o, enum dev_queue q, const char *op, size_t begin,
                size_t end, int writes, struct touch *who, int *wrote);
/* Frees the spans. */
void spans_close(struct spans *s);

#endif
