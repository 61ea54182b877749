/* pool.h - one pool of threads per rank, which runs loops over tasks. One thread, the owner, calls everything
 * here but pool_relax and pool_unpin_self. */
#ifndef SHARDLINE_BASE_POOL_H
#define SHARDLINE_BASE_POOL_H

#include <stdint.h>
#include "base/err.h"

struct pool;
struct trace;

/* Starts n_threads - 1 threads (n_threads >= 1); the owner is thread 0. Idle threads poll, for longer when
 * pool_pin has bound them, then yield, then sleep (futex). ERR_MEMORY; ERR_FILE: the kernel starts no more
 * threads. */
int pool_open(struct pool **out, int n_threads, struct err *e);

/* Ends the threads. No job may be running. */
void pool_close(struct pool *p);

/* Binds every thread, the owner too, to CPUs of its own among those that the process may use: to one, or to
 * a nearly equal share where there are more CPUs than threads. Shares are spread over memory nodes, caches
 * and cores (base/memory/cpus.h): threads use all memory, and no two share a core where there are cores
 * enough and threads divide them evenly. n_pools pools of as many threads share these CPUs (ranks of one
 * machine that are not bound apart), in that order; this one is number `which`. Returns 1 when it did. 0:
 * there are fewer CPUs than threads, so the scheduler does better, and nothing is bound. Threads that the
 * owner starts later inherit its CPUs. */
int pool_pin(struct pool *p, int which, int n_pools);

/* Returns the calling thread, which a bound thread has started, to the CPUs that the process had before
 * pool_pin. */
void pool_unpin_self(const struct pool *p);

/* Number of threads, the owner included. */
int pool_threads(const struct pool *p);

/* Records the threads' work in t (base/trace.h, borrowed) from the next job on; NULL: stop recording. */
void pool_trace(struct pool *p, struct trace *t);

/* Calls fn(arg, task, thread) once for every task 0..n_tasks-1 and returns when all have ended. Tasks begin
 * in increasing order. Which thread runs which task is undefined, so results must not depend on it. fn must
 * not call pool_run. */
void pool_run(struct pool *p, int64_t n_tasks, void (*fn)(void *arg, int64_t task, int thread), void *arg);

/* The same for tasks that read memory one behind the other: of T threads, thread t goes through the tasks
 * [n_tasks t / T, n_tasks (t + 1) / T) in order, then takes the last tasks of other threads that are behind.
 * So tasks do not begin in increasing order. */
void pool_run_apart(struct pool *p, int64_t n_tasks, void (*fn)(void *arg, int64_t task, int thread),
                    void *arg);

/* From now on a thread that waits calls fn again and again until it returns 0, and looks for a task between
 * two calls: each should take well under a microsecond. Called by any thread of the pool until pool_close. */
typedef int pool_idle_fn(void *arg, int thread);
void pool_idle(struct pool *p, pool_idle_fn *fn, void *arg);

/* For a task that polls until an earlier task of the same job has ended: pauses between two polls. n_polls:
 * how often it has polled, from 0. */
void pool_relax(int64_t n_polls);

#endif
