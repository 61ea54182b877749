/* pool.c - see pool.h.
 *
 * A job is opened by one store of `ticket` = (job number, tasks left); a thread takes a task by lowering
 * tasks left with a compare-and-swap. The fields of a job are written only while nothing is left and
 * everything is done, so a swap that succeeds proves that the fields read before it belong to that job. A
 * thread that wakes too late finds no task left, and no other thread waits for it. */
#define _GNU_SOURCE /* CPU sets */
#include "base/clock.h"
#include "base/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/trace.h"

#define YIELD_NS 80000 /* of yields before a thread sleeps; a guess, to be measured in a training step */
#define SPINS 100      /* polls before a thread yields, which is a system call: about 2 us */
/* polls of a task for an earlier one before it yields: about 100 us, a step of attention takes 20 */
#define TASK_SPINS 5000
#define MOST_TASKS (INT64_C(1) << 30) /* of one job: tasks left is half of the ticket */

typedef void task_fn(void *arg, int64_t task, int thread);

struct worker {
    struct pool *pool;
    int thread;
    pthread_t id;
};

struct pool {
    int n_threads, n_started;
    struct worker *worker;
    _Atomic uint64_t ticket; /* job number << 32 | tasks left */
    _Atomic(task_fn *) fn;   /* the job … */
    _Atomic(void *) arg;
    _Atomic int64_t first; /* … its tasks are first … first + n_tasks - 1 */
    _Atomic uint32_t n_tasks;
    _Alignas(64) _Atomic uint32_t n_done; /* the caller sleeps on this one */
    _Atomic int caller_sleeps;
    _Alignas(64) _Atomic uint32_t n_jobs; /* workers sleep on this one */
    _Atomic int n_sleepers, stop;
    struct trace *trace; /* may be NULL; set between jobs */
    int is_bound;
    cpu_set_t before; /* the CPUs of the process before pool_pin */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static uint32_t left(const struct pool *p) { return (uint32_t)atomic_load(&p->ticket); }

/* Runs tasks until none is left, and counts them only then: each thread touches the counter once. */
static void work(struct pool *p, int thread)
{
    uint32_t n_mine = 0, n_tasks = 0;
    uint64_t t = atomic_load(&p->ticket);
    int64_t begin = (uint32_t)t ? trace_now(p->trace) : 0;
    while ((uint32_t)t) {
        task_fn *fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        int64_t first = atomic_load_explicit(&p->first, memory_order_relaxed);
        uint32_t n = atomic_load_explicit(&p->n_tasks, memory_order_relaxed);
        if (!atomic_compare_exchange_weak(&p->ticket, &t, t - 1))
            continue;
        fn(arg, first + (n - (uint32_t)t), thread);
        n_tasks = n;
        n_mine++;
        t = atomic_load(&p->ticket);
        /* no other job begins before this thread has counted its tasks: t belongs to the same job */
    }
    if (n_mine && thread) /* the owner's part is in the event of its call */
        trace_span_of(p->trace, thread, TRACE_WORK, trace_label_now(p->trace), begin);
    if (n_mine && atomic_fetch_add(&p->n_done, n_mine) + n_mine == n_tasks && atomic_load(&p->caller_sleeps))
        futex_wake(&p->n_done, 1);
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Polls, then yields, until there is a task or YIELD_NS have passed. */
static void idle(struct pool *p)
{
    for (int i = 0; i < SPINS && !left(p) && !atomic_load(&p->stop); i++)
        pause_cpu();
    int64_t until = clock_ns() + YIELD_NS;
    while (!left(p) && !atomic_load(&p->stop)) {
        if (clock_ns() > until)
            return;
        sched_yield();
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    while (!atomic_load(&p->stop)) {
        work(p, w->thread);
        idle(p);
        uint32_t seen = atomic_load(&p->n_jobs);
        atomic_fetch_add(&p->n_sleepers, 1);
        if (!left(p) && !atomic_load(&p->stop))
            futex_wait(&p->n_jobs, seen);
        atomic_fetch_sub(&p->n_sleepers, 1);
    }
    return NULL;
}

static void call_workers(struct pool *p, int n)
{
    atomic_fetch_add(&p->n_jobs, 1);
    if (atomic_load(&p->n_sleepers))
        futex_wake(&p->n_jobs, n);
}

static void wait_done(struct pool *p, uint32_t n_tasks)
{
    int64_t until = 0;
    for (int i = 0; i < SPINS && atomic_load(&p->n_done) != n_tasks; i++)
        pause_cpu();
    for (uint32_t done; (done = atomic_load(&p->n_done)) != n_tasks;) {
        if (!until)
            until = clock_ns() + YIELD_NS;
        if (clock_ns() < until) {
            sched_yield();
            continue;
        }
        atomic_store(&p->caller_sleeps, 1);
        futex_wait(&p->n_done, done);
        atomic_store(&p->caller_sleeps, 0);
    }
}

static void run_job(struct pool *p, int64_t first, uint32_t n_tasks, task_fn *fn, void *arg)
{
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->first, first, memory_order_relaxed);
    atomic_store_explicit(&p->n_tasks, n_tasks, memory_order_relaxed);
    atomic_store(&p->n_done, 0);

    uint64_t job = (atomic_load(&p->ticket) >> 32) + 1;
    atomic_store(&p->ticket, job << 32 | n_tasks);

    uint32_t others = n_tasks - 1;
    call_workers(p, others < (uint32_t)p->n_started ? (int)others : p->n_started);
    work(p, 0);
    wait_done(p, n_tasks);
}

void pool_run(struct pool *p, int64_t n_tasks, task_fn *fn, void *arg)
{
    if (p->n_threads == 1 || n_tasks <= 1) {
        for (int64_t i = 0; i < n_tasks; i++)
            fn(arg, i, 0);
        return;
    }
    for (int64_t i = 0; i < n_tasks; i += MOST_TASKS)
        run_job(p, i, (uint32_t)(n_tasks - i < MOST_TASKS ? n_tasks - i : MOST_TASKS), fn, arg);
}

void pool_relax(int64_t n_polls)
{
    if (n_polls < TASK_SPINS)
        pause_cpu();
    else
        sched_yield();
}

int pool_open(struct pool **out, int n_threads, struct err *e)
{
    if (n_threads < 1)
        return err_set(e, ERR_USAGE, "%d threads: at least 1 is needed", n_threads);
    struct pool *p = aligned_alloc(64, sizeof *p);
    if (!p)
        return err_set(e, ERR_MEMORY, "no memory for a pool of %d threads", n_threads);

    memset(p, 0, sizeof *p);
    p->n_threads = n_threads;
    p->worker = calloc((size_t)n_threads, sizeof *p->worker);
    if (!p->worker) {
        pool_close(p);
        return err_set(e, ERR_MEMORY, "no memory for a pool of %d threads", n_threads);
    }

    for (int i = 1; i < n_threads; i++) {
        struct worker *w = &p->worker[i];
        *w = (struct worker){ .pool = p, .thread = i };
        int n = pthread_create(&w->id, NULL, worker_main, w);
        if (n) {
            pool_close(p);
            errno = n;
            return err_sys(e, "cannot start thread %d of %d: use --threads", i, n_threads);
        }
        p->n_started = i;
    }
    *out = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, 1);
    call_workers(p, p->n_started);
    for (int i = 1; i <= p->n_started; i++)
        pthread_join(p->worker[i].id, NULL);
    free(p->worker);
    free(p);
}

int pool_pin(struct pool *p, int which, int n_pools)
{
    cpu_set_t all, one;
    int cpu[CPU_SETSIZE], n = 0;
    if (sched_getaffinity(0, sizeof all, &all) < 0)
        return 0;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all))
            cpu[n++] = i;

    int each = n_pools > 0 ? n / n_pools / p->n_threads : 0;
    if (which < 0 || which >= n_pools || !each)
        return 0;

    for (int i = 0; i < p->n_threads; i++) {
        CPU_ZERO(&one);
        for (int k = 0; k < each; k++)
            CPU_SET(cpu[(which * p->n_threads + i) * each + k], &one);
        if (pthread_setaffinity_np(i ? p->worker[i].id : pthread_self(), sizeof one, &one))
            return 0;
    }
    p->before = all;
    p->is_bound = 1;
    return 1;
}

void pool_unpin_self(const struct pool *p)
{
    if (p && p->is_bound)
        sched_setaffinity(0, sizeof p->before, &p->before);
}

int pool_threads(const struct pool *p) { return p->n_threads; }

void pool_trace(struct pool *p, struct trace *t) { p->trace = t; }
