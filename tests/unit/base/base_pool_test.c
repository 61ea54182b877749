/* base_pool_test.c - every task runs once, whatever the number of threads, also when threads sleep in
 * between. */
#define _GNU_SOURCE /* CPU sets */
#include "tests/test.h"

#include <stdatomic.h>
#include <unistd.h>
#include "base/pool.h"

#include <sched.h>

#define N 1000

struct seen {
    _Atomic int n[N];
    int n_threads, wrong_thread;
};

static void mark(void *arg, int64_t task, int thread)
{
    struct seen *s = arg;
    atomic_fetch_add(&s->n[task], 1);
    if (thread < 0 || thread >= s->n_threads)
        s->wrong_thread = 1;
}

static int all_once(struct seen *s, int64_t n)
{
    for (int64_t i = 0; i < N; i++)
        if (s->n[i] != (i < n))
            return 0;
    return !s->wrong_thread;
}

TEST(every_task_runs_once)
{
    static const int64_t count[] = { 0, 1, 2, 3, 7, N };
    struct err e;
    for (int threads = 1; threads <= 5; threads++) {
        struct pool *p;
        CHECK_INT(pool_open(&p, threads, &e), 0);
        CHECK_INT(pool_threads(p), threads);
        for (size_t c = 0; c < sizeof count / sizeof *count; c++) {
            struct seen s = { .n_threads = threads };
            pool_run(p, count[c], mark, &s);
            CHECK(all_once(&s, count[c]));
        }
        pool_close(p);
    }
}

TEST(every_task_runs_once_where_threads_have_their_own)
{
    static const int64_t count[] = { 0, 1, 2, 3, 7, N };
    struct err e;
    for (int threads = 1; threads <= 5; threads++) {
        struct pool *p;
        CHECK_INT(pool_open(&p, threads, &e), 0);
        for (int i = 0; i < 200; i++) {
            struct seen s = { .n_threads = threads };
            const int64_t n = count[i % (sizeof count / sizeof *count)];
            pool_run_apart(p, n, mark, &s);
            CHECK(all_once(&s, n));
        }
        pool_close(p);
    }
}

struct idle_calls {
    _Atomic int n, left;
};

/* Work for 1,000 calls. */
static int count_idle(void *arg, int thread)
{
    struct idle_calls *c = arg;
    (void)thread;
    atomic_fetch_add(&c->n, 1);
    return atomic_fetch_sub(&c->left, 1) > 1;
}

TEST(threads_that_wait_call_the_idle_function)
{
    struct idle_calls c = { .left = 1000 };
    struct pool *p;
    struct err e;
    CHECK_INT(pool_open(&p, 3, &e), 0);
    pool_idle(p, count_idle, &c);
    for (int i = 0; i < 1000 && c.n < 1000; i++) {
        struct seen s = { .n_threads = 3 };
        pool_run(p, 7, mark, &s);
        CHECK(all_once(&s, 7));
        usleep(1000); /* threads sleep meanwhile, and wake */
    }
    CHECK(c.n >= 1000);
    pool_close(p);
}

static void add(void *arg, int64_t task, int thread)
{
    (void)thread;
    atomic_fetch_add((_Atomic int64_t *)arg, task + 1);
}

TEST(jobs_that_follow_at_once_do_not_mix)
{
    struct pool *p;
    struct err e;
    CHECK_INT(pool_open(&p, 3, &e), 0);
    for (int i = 0; i < 20000; i++) {
        _Atomic int64_t sum = 0;
        int64_t n = 2 + i % 5;
        pool_run(p, n, add, &sum);
        if (sum != n * (n + 1) / 2) {
            CHECK_INT(sum, n * (n + 1) / 2);
            break;
        }
    }
    pool_close(p);
}

TEST(sleeping_threads_are_woken)
{
    struct pool *p;
    struct err e;
    CHECK_INT(pool_open(&p, 4, &e), 0);
    for (int i = 0; i < 50; i++) {
        _Atomic int64_t sum = 0;
        usleep(i % 2 ? 300 : 1000);
        pool_run(p, 8, add, &sum);
        CHECK_INT(sum, 36);
    }
    pool_close(p);
}

static void meet(void *arg, int64_t task, int thread)
{
    _Atomic int *here = arg;
    (void)task, (void)thread;
    atomic_fetch_add(here, 1);
    for (int i = 0; i < 5000 && atomic_load(here) < 3; i++)
        usleep(1000);
}

TEST(as_many_tasks_as_threads_run_at_the_same_time)
{
    struct pool *p;
    struct err e;
    _Atomic int here = 0;
    CHECK_INT(pool_open(&p, 3, &e), 0);
    usleep(2000);
    pool_run(p, 3, meet, &here);
    CHECK_INT(here, 3);
    pool_close(p);
}

static void nap(void *arg, int64_t task, int thread)
{
    (void)arg, (void)thread;
    usleep(task == 1 ? 20000 : 1);
}

TEST(the_caller_waits_for_a_slow_task_of_another)
{
    struct pool *p;
    struct err e;
    CHECK_INT(pool_open(&p, 2, &e), 0);
    for (int i = 0; i < 20; i++)
        pool_run(p, 2, nap, NULL);
    pool_close(p);
}

TEST(no_threads_is_an_error)
{
    struct pool *p;
    struct err e;
    CHECK_INT(pool_open(&p, 0, &e), -ERR_USAGE);
    CHECK_HAS(e.text, "0 threads");
}

struct cpus {
    _Atomic int n_single;
    _Atomic uint64_t which;
};

static void where(void *arg, int64_t task, int thread)
{
    struct cpus *c = arg;
    cpu_set_t set;
    (void)task, (void)thread;
    sched_getaffinity(0, sizeof set, &set);
    if (CPU_COUNT(&set) == 1)
        atomic_fetch_add(&c->n_single, 1);
    atomic_fetch_or(&c->which, UINT64_C(1) << sched_getcpu() % 64);
    usleep(2000); /* so that every thread takes a task */
}

TEST(pinned_threads_have_a_cpu_each_and_too_many_are_left_alone)
{
    cpu_set_t before, after;
    struct pool *p;
    struct err e;
    CHECK_INT(sched_getaffinity(0, sizeof before, &before), 0);
    int n = CPU_COUNT(&before) < 4 ? CPU_COUNT(&before) : 4;
    CHECK_INT(pool_open(&p, n + 1, &e), 0);
    CHECK_INT(pool_pin(p, 0, CPU_COUNT(&before)), 0);
    CHECK_INT(pool_pin(p, 1, 1), 0);
    sched_getaffinity(0, sizeof after, &after);
    CHECK(CPU_EQUAL(&before, &after));
    pool_close(p);
    CHECK_INT(pool_open(&p, 1, &e), 0); /* one thread, all CPUs are its part */
    CHECK_INT(pool_pin(p, 0, 1), 1);
    sched_getaffinity(0, sizeof after, &after);
    CHECK(CPU_EQUAL(&before, &after));
    pool_close(p);
    after = before;
    for (int i = 0; CPU_COUNT(&after) > n; i++)
        CPU_CLR(i, &after);
    CHECK_INT(sched_setaffinity(0, sizeof after, &after), 0);
    CHECK_INT(pool_open(&p, n, &e), 0);
    CHECK_INT(pool_pin(p, 0, 1), 1);
    struct cpus c = { 0 };
    pool_run(p, 4 * n, where, &c);
    CHECK_INT(c.n_single, 4 * n);
    pool_close(p);
    CHECK_INT(sched_setaffinity(0, sizeof before, &before), 0);
}
