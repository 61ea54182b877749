/* clock.h - the monotonic clock. Only differences of its times have a meaning. */
#ifndef SHARDLINE_BASE_CLOCK_H
#define SHARDLINE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define SECOND_NS INT64_C(1000000000) /* of clock_ns */

/* Nanoseconds since an arbitrary moment. */
static inline int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND_NS + t.tv_nsec;
}

/* The same in seconds. */
static inline double clock_s(void) { return (double)clock_ns() * 1e-9; }

/* The time ns from now, in the form that pthread_cond_timedwait takes for a condition on this clock. */
static inline struct timespec clock_in(int64_t ns)
{
    ns += clock_ns();
    return (struct timespec){ (time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS) };
}

#endif
