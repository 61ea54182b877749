/* work_limit.h - ends long work on a request early: at a time, or when the program is stopping. */
#ifndef SHARDLINE_BASE_WORK_LIMIT_H
#define SHARDLINE_BASE_WORK_LIMIT_H

#include <stdatomic.h>
#include "base/clock.h"
#include "base/err.h"

struct work_limit {
    double end_s;             /* clock_s() at which the work must end; 0: no such time */
    const _Atomic int *state; /* the work ends when this state is stop_at or more; NULL: no such state */
    int stop_at;
};

/* 0: the work may go on; -ERR_STOPPED: it must end. limit NULL: it may always go on. Reads the clock, so call
 * it about every 0.1 ms of work. Any thread. */
static inline int work_check(const struct work_limit *limit, struct err *e)
{
    if (limit && limit->state && atomic_load(limit->state) >= limit->stop_at)
        return err_set(e, ERR_STOPPED, "the program is stopping");
    if (limit && limit->end_s > 0 && clock_s() >= limit->end_s)
        return err_set(e, ERR_STOPPED, "the time for this work is over");
    return 0;
}

#endif
