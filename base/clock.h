/* clock.h - the monotonic clock: nothing but differences of it mean anything. */
#ifndef SHARDLINE_BASE_CLOCK_H
#define SHARDLINE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define SECOND_NS INT64_C(1000000000) /* of clock_ns */

static inline int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND_NS + t.tv_nsec;
}

static inline double clock_s(void) { return (double)clock_ns() * 1e-9; }

/* So many nanoseconds from now, as pthread_cond_timedwait of a condition on this clock wants it. */
static inline struct timespec clock_in(int64_t ns)
{
    ns += clock_ns();
    return (struct timespec){ (time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS) };
}

#endif
