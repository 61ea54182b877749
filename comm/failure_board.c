/* failure_board.c - the failure record of one machine's ranks, and the one place where a rank waits for
 * another. */
#define _GNU_SOURCE
#include "comm/failure_board.h"
#include "base/clock.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 100 /* pauses, about 2.5 us */
/* then yields, bounded by time: a yield is 0.1 us alone, much longer under load */
#define YIELD_NS 300000
#define SLEEP_NS 100000000 /* then sleeps, looking at the board in between */

size_t failure_board_bytes(int n_ranks)
{
    return sizeof(struct failure_board) + (size_t)n_ranks * sizeof(struct failure_board_rank);
}

int failure_board_fail(struct failure_board *b, const char *text)
{
    int well = BOARD_HEALTHY;
    if (!atomic_compare_exchange_strong(&b->failed, &well, BOARD_WRITING))
        return 0;
    snprintf(b->text, sizeof b->text, "%s", text);
    atomic_store(&b->failed, BOARD_FAILED);
    return 1;
}

int failure_board_check(struct failure_board *b, struct err *e)
{
    int f = atomic_load_explicit(&b->failed, memory_order_acquire);
    if (f == BOARD_HEALTHY)
        return 0;
    /* the writer may have been killed while writing */
    for (int i = 0; f == BOARD_WRITING && i < 1000; i++) {
        sched_yield();
        f = atomic_load(&b->failed);
    }
    return err_set(e, ERR_PEER, "%s", f == BOARD_FAILED ? b->text : "another rank failed");
}

int failure_board_claim_report(struct failure_board *b) { return !atomic_exchange(&b->reported, 1); }

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

/* Sleeps until somebody sets the word. The count of waiters goes up before the last look at the number: a
 * setter that sees no waiter has set the number before that look. */
int wait_counter_for(struct wait_counter *w, uint32_t target, int64_t ns)
{
    struct timespec limit = { ns / 1000000000, ns % 1000000000 };
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

void wait_counter_set(struct wait_counter *w, uint32_t value)
{
    atomic_store(&w->value, value);
    if (atomic_load(&w->waiters))
        syscall(SYS_futex, &w->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void wait_counter_add(struct wait_counter *w, uint32_t n)
{
    atomic_fetch_add(&w->value, n);
    if (atomic_load(&w->waiters))
        syscall(SYS_futex, &w->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
