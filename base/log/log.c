/* log.c - see log.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"

#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define TTY_EVERY_S 0.1
#define PLAIN_EVERY_S 10.0

void log_open(struct log *l, const char *program, int quiet, int tty)
{
    const char *term = env_get(ENV_TERM);
    int draws = tty && !(term && !strcmp(term, "dumb")); /* a dumb terminal cannot erase a line */
    *l = (struct log){ .program = program, .quiet = quiet, .tty = draws, .last_s = -INFINITY };
}

/* Columns of the terminal now: it may be resized at any time. Ranks under a launcher write into a pipe, so
 * they ask the terminal of the session. */
static int columns(void)
{
    struct winsize w = { 0 };
    if (ioctl(2, TIOCGWINSZ, &w) < 0) {
        int fd = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
        if (fd >= 0) {
            if (ioctl(fd, TIOCGWINSZ, &w) < 0)
                w.ws_col = 0;
            close(fd);
        }
    }
    return w.ws_col ? w.ws_col : 80;
}

void log_fit(char *text, int columns)
{
    size_t n = 0, bytes = 0, field = 0;
    for (; text[bytes]; bytes++) {
        int begins = (text[bytes] & 0xc0) != 0x80; /* the first byte of a character of UTF-8 */
        if (begins && ++n > (size_t)(columns > 1 ? columns - 1 : 1))
            break;
        if (!strncmp(text + bytes, "  ", 2))
            field = bytes;
    }
    /* the last column stays free: some terminals wrap when it is written */
    if (text[bytes])
        text[field && strncmp(text + bytes, "  ", 2) ? field : bytes] = 0;
}

/* One write a line, so that lines of several ranks do not mix. live: the line must not wrap, or it could not
 * be redrawn. */
static void put(const char *before, int live, const char *program, const char *fmt, va_list ap,
                const char *after)
{
    char *text = NULL, *line = NULL;
    if (vasprintf(&text, fmt, ap) >= 0 && asprintf(&line, "%s: %s", program, text) >= 0) {
        if (live)
            log_fit(line, columns());
        fprintf(stderr, "%s%s%s", before, line, after);
        fflush(stderr);
        free(line);
    }
    free(text);
}

void log_line(struct log *l, const char *fmt, ...)
{
    va_list ap;
    if (l->quiet)
        return;
    va_start(ap, fmt);
    put(l->drawn ? "\r\033[K" : "", 0, l->program, fmt, ap, "\n");
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
    double now = clock_s();
    if (l->quiet || (!last && !is_due(l, now)))
        return;
    va_start(ap, fmt);
    put(l->tty ? "\r\033[K" : "", l->tty && !last, l->program, fmt, ap, l->tty && !last ? "" : "\n");
    va_end(ap);
    l->drawn = l->tty && !last;
    l->last_s = now;
}

void log_rate(struct log *l, const char *done_word, double done, double all, double start_s)
{
    char have[32], whole[32], rate[32];
    double now = clock_s(), s = now - start_s, left;
    if (!is_due(l, now)) /* called for every chunk: make no text that is not printed */
        return;
    s = s > 1e-3 ? s : 1e-3;
    left = done > 0 ? (all - done) / done * s : 0;
    log_bytes(have, done);
    log_bytes(whole, all);
    log_bytes(rate, done / s);
    log_progress(l, 0, left < 100 ? "%s %s of %s, %s/s, %.0f s left" : "%s %s of %s, %s/s, %.0f min left",
                 done_word, have, whole, rate, left < 100 ? left : left / 60);
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
