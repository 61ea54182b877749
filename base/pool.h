/* pool.h - one pool of threads per rank: a loop over tasks, spread over the threads. */
#ifndef SHARDLINE_BASE_POOL_H
#define SHARDLINE_BASE_POOL_H

#include <stdint.h>
#include "base/err.h"

struct pool;
/* n_threads >= 1; the caller's thread is thread 0. Waiting threads yield, then sleep (futex). */
int pool_open(struct pool **out, int n_threads, struct err *e);
void pool_close(struct pool *p);
/* Ties every thread, the caller's too, to CPUs of its own among those that this process may use: one, or its
 * part where there are more CPUs than threads. n_pools pools of as many threads share these CPUs (ranks on a
 * machine that are not bound to different ones), this is number `which`. 0, and nothing is tied, where there
 * are fewer CPUs than threads: then the scheduler does better. Threads made later by the caller inherit its
 * CPUs. */
int pool_pin(struct pool *p, int which, int n_pools);
/* Gives the calling thread, one that a tied thread has made, back the CPUs that the process had before
 * pool_pin. */
void pool_unpin_self(const struct pool *p);
int pool_threads(const struct pool *p);
/* The threads' work goes into t (base/trace.h) from the next job on; NULL: no more. */
struct trace;
void pool_trace(struct pool *p, struct trace *t);
/* Calls fn(arg, task, thread) once for every task 0..n_tasks-1, then returns. Tasks begin in increasing
 * order; which thread takes
 * which is not defined: results must not depend on it. Not reentrant: fn must not call pool_run. */
void pool_run(struct pool *p, int64_t n_tasks, void (*fn)(void *arg, int64_t task, int thread), void *arg);
/* For a task that waits for an earlier one of the same job: call it between its looks, which it counts from
 * 0. */
void pool_relax(int64_t n_looks);

#endif
