/* wait_counter.c - see wait_counter.h. The one place where a rank waits for another of its machine. */
#define _GNU_SOURCE
#include "comm/wait_counter.h"
#include "base/clock.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 100          /* pauses, about 2.5 us */
#define YIELD_NS 300000    /* then yields: one takes 0.1 us on an idle machine, much longer under load */
#define SLEEP_NS 100000000 /* then sleeps, with a look at the board after each */

int wait_counter_reached(const struct wait_counter *w, uint32_t target)
{
    return (int32_t)(atomic_load_explicit(&w->value, memory_order_acquire) - target) >= 0;
}

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

/* The count of waiters goes up before the last look at the number: a writer that sees no waiter has written
 * the number before that look. */
int wait_counter_for(struct wait_counter *w, uint32_t target, int64_t ns)
{
    struct timespec limit = { ns / SECOND_NS, ns % SECOND_NS };
    atomic_fetch_add(&w->waiters, 1);
    uint32_t seen = atomic_load(&w->value);
    if ((int32_t)(seen - target) < 0)
        syscall(SYS_futex, &w->value, FUTEX_WAIT, seen, &limit, NULL, 0);
    atomic_fetch_sub(&w->waiters, 1);
    return wait_counter_reached(w, target);
}

int wait_counter_until(struct failure_board *b, struct wait_counter *w, uint32_t target, int spin,
                       struct err *e)
{
    for (int i = 0; spin && i < SPINS; i++) {
        if (wait_counter_reached(w, target))
            return 0;
        pause_cpu();
    }
    if (wait_counter_reached(w, target))
        return 0;

    for (int64_t end = clock_ns() + YIELD_NS; clock_ns() < end;) {
        for (int i = 0; i < 8; i++) {
            sched_yield();
            if (wait_counter_reached(w, target))
                return 0;
        }
    }

    while (!wait_counter_reached(w, target)) {
        int rc = failure_board_check(b, e);
        if (rc < 0)
            return rc;
        wait_counter_for(w, target, SLEEP_NS);
    }
    return 0;
}

static void wake(struct wait_counter *w)
{
    if (atomic_load(&w->waiters))
        syscall(SYS_futex, &w->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void wait_counter_set(struct wait_counter *w, uint32_t value)
{
    atomic_store(&w->value, value);
    wake(w);
}

void wait_counter_add(struct wait_counter *w, uint32_t n)
{
    atomic_fetch_add(&w->value, n);
    wake(w);
}
