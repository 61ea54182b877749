/* log.h - what a person reads on stderr: log lines, and one live progress line on a terminal (plain lines
 * otherwise). */
#ifndef SHARDLINE_BASE_LOG_H
#define SHARDLINE_BASE_LOG_H

#include <stdint.h>

struct log {
    const char *program; /* put in front of lines */
    int quiet;           /* ranks other than 0 */
    int tty;             /* stderr is a terminal: progress is redrawn in place */
    int drawn;           /* a progress line stands on the terminal */
    double last_s;       /* when the last one was drawn */
};
void log_open(struct log *l, const char *program, int quiet, int tty);
void log_line(struct log *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Redraws the live line at most 10 times a second, cut to the terminal's width as it is then: whole fields,
 * with two spaces between, from the left. On no terminal prints a plain line at most every 10 seconds. last:
 * always, and whole. */
void log_progress(struct log *l, int last, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same for work that is counted in bytes and began at start_s (clock_s): "written 1.20 GB of 4.00 GB,
 * 1.80 GB/s, 2 s left". */
void log_rate(struct log *l, const char *done_word, double done, double all, double start_s);
void log_fit(char *text, int columns);      /* cuts it in place to less than so many columns */
void log_close(struct log *l);              /* ends a live line */
void log_bytes(char out[32], double bytes); /* "1.50 GB" */

#endif
