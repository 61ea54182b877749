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

static int is_due(const struct log *l, double now)
{
    return !l->quiet && now - l->last_s >= (l->tty ? TTY_EVERY_S : PLAIN_EVERY_S);
}

void log_progress(struct log *l, int last, const char *fmt, ...)
{
    va_list ap;
    double now = log_now_s();
    if (l->quiet || (!last && !is_due(l, now)))
        return;
    va_start(ap, fmt);
    put(l->tty ? "\r\033[K" : "", l->program, fmt, ap, l->tty && !last ? "" : "\n");
    va_end(ap);
    l->drawn = l->tty && !last;
    l->last_s = now;
}

void log_rate(struct log *l, const char *done_word, double done, double all, double start_s)
{
    char have[32], whole[32], rate[32];
    double now = log_now_s(), s = now - start_s, left;
    if (!is_due(l, now))        /* called for every chunk: no text that nobody sees */
        return;
    s = s > 1e-3 ? s : 1e-3;
    left = done > 0 ? (all - done) / done * s : 0;
    log_bytes(have, done);
    log_bytes(whole, all);
    log_bytes(rate, done / s);
    log_progress(l, 0, left < 100 ? "%s %s of %s, %s/s, %.0f s left" : "%s %s of %s, %s/s, %.0f min left", done_word, have, whole, rate,
                 left < 100 ? left : left / 60);
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
