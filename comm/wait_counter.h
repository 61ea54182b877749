/* wait_counter.h - numbers in shared memory that ranks of one machine wait for (futex). Any rank may call any
 * function. */
#ifndef SHARDLINE_COMM_WAIT_COUNTER_H
#define SHARDLINE_COMM_WAIT_COUNTER_H

#include "comm/failure_board.h"

/* A number that only grows, modulo 2^32. It has a cache line of its own, so that writers of other numbers do
 * not disturb the waiting. */
struct wait_counter {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t waiters;
};

/* 1 when the number has reached the target. */
int wait_counter_reached(const struct wait_counter *w, uint32_t target);

/* Waits until the number has reached the target. spin: poll without yielding at first, for ranks that have a
 * core each. -ERR_PEER: the world failed meanwhile. */
int wait_counter_until(struct failure_board *b, struct wait_counter *w, uint32_t target, int spin,
                       struct err *e);

/* Sleeps until the number changes, at most ns, without a look at the board. Returns wait_counter_reached. */
int wait_counter_for(struct wait_counter *w, uint32_t target, int64_t ns);

/* Sets the number, for its only writer, and wakes the ranks that wait. */
void wait_counter_set(struct wait_counter *w, uint32_t value);

/* Adds n, for one of several writers, and wakes the ranks that wait. */
void wait_counter_add(struct wait_counter *w, uint32_t n);

#endif
