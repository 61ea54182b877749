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

#include "base/memory/cpus.h"
#include "base/trace.h"

#define YIELD_NS 80000 /* of yields before a thread sleeps; a guess, to be measured in a training step */
#define SPINS 100      /* polls before a thread yields, which is a system call: about 2 us */
/* A thread that has a CPU to itself polls so long before it yields: a yield gives the CPU to any other
 * program for a time slice, and the next loop of a step comes within microseconds. */
#define SPIN_NS_BOUND 100000
/* polls of a task for an earlier one before it yields: about 100 us, a step of attention takes 20 */
#define TASK_SPINS 5000
#define MOST_TASKS (INT64_C(1) << 30) /* of one job: tasks left is half of the ticket */

typedef void task_fn(void *arg, int64_t task, int thread);

struct worker {
    struct pool *pool;
    int thread;
    pthread_t id;
};

/* The tasks of a thread that are left: first << 32 | end. */
struct range {
    _Alignas(64) _Atomic uint64_t left;
};

struct pool {
    int n_threads, n_started;
    struct worker *worker;
    struct range *range; /* [n_threads] of pool_run_apart, with … */
    task_fn *part_fn;    /* … its tasks */
    void *part_arg;
    _Atomic(pool_idle_fn *) idle; /* may be NULL */
    void *idle_arg;
    _Atomic uint64_t ticket; /* job number << 32 | tasks left */
    _Atomic(task_fn *) fn;   /* the job … */
    _Atomic(void *) arg;
    _Atomic int64_t first; /* … its tasks are first … first + n_tasks - 1 */
    _Atomic uint32_t n_tasks;
    _Alignas(64) _Atomic uint32_t n_done; /* the caller sleeps on this one */
    _Atomic int caller_sleeps;
    _Alignas(64) _Atomic uint32_t n_jobs; /* workers sleep on this one */
    _Atomic int n_sleepers, stop;
    struct trace *trace;     /* may be NULL; set between jobs */
    _Atomic int64_t spin_ns; /* polling beyond SPINS; 0: not bound */
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

/* What threads wait for: a worker for a task or the end, the owner for the end of n tasks. */
static int has_task(const struct pool *p, uint32_t n)
{
    (void)n;
    return left(p) || atomic_load(&p->stop);
}
static int all_done(const struct pool *p, uint32_t n) { return atomic_load(&p->n_done) == n; }

/* Polls, then yields, until `is_met` or YIELD_NS have passed. Returns whether it is met. */
static int wait_awake(const struct pool *p, int thread, int (*is_met)(const struct pool *, uint32_t),
                      uint32_t n)
{
    int64_t spin_until = 0, until, now;
    pool_idle_fn *const idle = atomic_load(&p->idle);
    while (idle && idle(p->idle_arg, thread))
        if (is_met(p, n))
            return 1;

    do {
        for (int i = 0; i < SPINS; i++) {
            if (is_met(p, n))
                return 1;
            pause_cpu();
        }
        now = clock_ns();
        spin_until = spin_until ? spin_until : now + atomic_load(&p->spin_ns);
    } while (now < spin_until);

    for (until = now + YIELD_NS; !is_met(p, n); now = clock_ns()) {
        if (now > until)
            return 0;
        sched_yield();
    }
    return 1;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    while (!atomic_load(&p->stop)) {
        work(p, w->thread);
        wait_awake(p, w->thread, has_task, 0);
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
    for (uint32_t done; !wait_awake(p, 0, all_done, n_tasks);) {
        atomic_store(&p->caller_sleeps, 1);
        done = atomic_load(&p->n_done);
        if (done != n_tasks)
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

/* Takes the first task of the range, or its last one. -1: none is left. */
static int64_t take(struct range *r, int last)
{
    uint64_t was = atomic_load(&r->left), now;
    do {
        if (was >> 32 >= (uint32_t)was)
            return -1;
        now = last ? was - 1 : was + (UINT64_C(1) << 32);
    } while (!atomic_compare_exchange_weak(&r->left, &was, now));
    return (int64_t)(last ? (uint32_t)now : was >> 32);
}

/* The thread's own tasks, then the last ones of others. */
static void run_part(void *arg, int64_t unused, int thread)
{
    struct pool *p = arg;
    (void)unused;
    for (int i = 0; i < p->n_threads; i++) {
        struct range *r = &p->range[(thread + i) % p->n_threads];
        for (int64_t task; (task = take(r, i > 0)) >= 0;)
            p->part_fn(p->part_arg, task, thread);
    }
}

void pool_run_apart(struct pool *p, int64_t n_tasks, task_fn *fn, void *arg)
{
    if (p->n_threads == 1 || n_tasks <= 1 || n_tasks > MOST_TASKS) {
        pool_run(p, n_tasks, fn, arg);
        return;
    }
    p->part_fn = fn;
    p->part_arg = arg;
    for (int i = 0; i < p->n_threads; i++) {
        const uint64_t first = (uint64_t)(n_tasks * i / p->n_threads),
                       end = (uint64_t)(n_tasks * (i + 1) / p->n_threads);
        atomic_store(&p->range[i].left, first << 32 | end);
    }
    pool_run(p, p->n_threads, run_part, p);
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
    p->range = aligned_alloc(64, (size_t)n_threads * sizeof *p->range);
    if (!p->worker || !p->range) {
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
    free(p->range);
    free(p);
}

int pool_pin(struct pool *p, int which, int n_pools)
{
    struct cpu_place place[CPU_SETSIZE];
    cpu_set_t all, part;
    if (sched_getaffinity(0, sizeof all, &all) < 0 || which < 0 || which >= n_pools)
        return 0;
    const int n = cpus_in_order(&all, place);
    if (n / n_pools / p->n_threads < 1)
        return 0;

    for (int i = 0; i < p->n_threads; i++) {
        cpus_part(place, n, which * p->n_threads + i, n_pools * p->n_threads, &part);
        if (pthread_setaffinity_np(i ? p->worker[i].id : pthread_self(), sizeof part, &part))
            return 0;
    }
    p->before = all;
    p->is_bound = 1;
    atomic_store(&p->spin_ns, SPIN_NS_BOUND);
    return 1;
}

void pool_unpin_self(const struct pool *p)
{
    if (p && p->is_bound)
        sched_setaffinity(0, sizeof p->before, &p->before);
}

void pool_idle(struct pool *p, pool_idle_fn *fn, void *arg)
{
    p->idle_arg = arg;
    atomic_store(&p->idle, fn);
}

int pool_threads(const struct pool *p) { return p->n_threads; }

void pool_trace(struct pool *p, struct trace *t) { p->trace = t; }
