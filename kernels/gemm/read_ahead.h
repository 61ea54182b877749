/* read_ahead.h - threads that wait for the next product ask memory for the weights that it begins with.
 *
 * A product of few rows takes as long as its weights take to come from memory. Between two products the
 * threads compute norms, RoPE and attention, or wait, and memory has nothing to do. The weights that come
 * next are those that came next the last time: the products themselves tell the order, so no model does.
 * Addresses are hints. No bit depends on them, and a prefetch of memory that was freed does nothing.
 *
 * The owner of the pool calls open, begin and close; a pool has at most one. */
#ifndef SHARDLINE_KERNELS_GEMM_READ_AHEAD_H
#define SHARDLINE_KERNELS_GEMM_READ_AHEAD_H

#include <stdint.h>
#include "base/pool.h"

struct read_ahead;

/* The weights of a product: n panels of `bytes` bytes, `stride` bytes from one to the next. */
struct reading {
    const void *p;
    int64_t n, bytes, stride;
};

/* NULL: the pool has one thread, or no memory; begin and close take it. The pool's threads call into it until
 * the pool is closed. */
struct read_ahead *read_ahead_open(struct pool *p);

/* A product over these weights begins, of which thread t of T reads panels [n t / T, n (t + 1) / T). A thread
 * that waits from now on asks for its part of the weights that followed the last time. */
void read_ahead_begin(struct read_ahead *a, const struct reading *now);

/* The weights that waiting threads ask for; 0: none. */
int read_ahead_next(const struct read_ahead *a, struct reading *out);

/* After pool_close. */
void read_ahead_close(struct read_ahead *a);

#endif
