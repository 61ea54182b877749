/* log.c - see log.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/log.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TTY_EVERY_S 0.1
#define PLAIN_EVERY_S 10.0

double log_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void log_open(struct log *l, const char *program, int quiet, int tty)
{
    *l = (struct log){ .program = program, .quiet = quiet, .tty = tty, .last_s = -INFINITY };
}

/* One write a line: the lines of several ranks do not mix. */
static void put(const char *before, const char *program, const char *fmt, va_list ap, const char *after)
{
    char *text = NULL;
    if (vasprintf(&text, fmt, ap) < 0)
        return;
    fprintf(stderr, "%s%s: %s%s", before, program, text, after);
    fflush(stderr);
    free(text);
}

void log_line(struct log *l, const char *fmt, ...)
{
    va_list ap;
    if (l->quiet)
        return;
    va_start(ap, fmt);
    put(l->drawn ? "\r\033[K" : "", l->program, fmt, ap, "\n");
    va_end(ap);
    l->drawn = 0;
}

void log_progress(struct log *l, int last, const char *fmt, ...)
{
    va_list ap;
    double now = log_now_s();
    if (l->quiet || (!last && now - l->last_s < (l->tty ? TTY_EVERY_S : PLAIN_EVERY_S)))
        return;
    va_start(ap, fmt);
    put(l->tty ? "\r\033[K" : "", l->program, fmt, ap, l->tty && !last ? "" : "\n");
    va_end(ap);
    l->drawn = l->tty && !last;
    l->last_s = now;
}

void log_close(struct log *l)
{
    if (l->drawn)
        fputc('\n', stderr);
    l->drawn = 0;
}

void log_bytes(char out[32], double bytes)
{
    static const char *const unit[] = { "B", "kB", "MB", "GB", "TB", "PB" };
    int u = 0;
    /* 999.995 and more would be printed as 1000.00 */
    for (; u < 5 && fabs(bytes) >= (u ? 999.995 : 999.5); u++)
        bytes /= 1000;
    snprintf(out, 32, u ? "%.2f %s" : "%.0f %s", bytes, unit[u]);
}
