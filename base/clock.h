/* clock.h - the monotonic clock, of whose times only differences have a meaning, and the clock on the
 * wall. */
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

/* Seconds since 1970, of the clock on the wall: for a reader, never for a difference. */
static inline double clock_wall_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The time ns from now, in the form that pthread_cond_timedwait takes for a condition on this clock. */
static inline struct timespec clock_in(int64_t ns)
{
    ns += clock_ns();
    return (struct timespec){ (time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS) };
}

#endif
