/* log.h - what a person reads on stderr: log lines and one live progress line, which is redrawn in place on a
 * terminal and printed as plain lines elsewhere. One thread at a time uses a struct log. */
#ifndef SHARDLINE_BASE_LOG_H
#define SHARDLINE_BASE_LOG_H

#include <stdint.h>

struct log {
    const char *program; /* printed in front of every line */
    int quiet;           /* print nothing: ranks other than 0 */
    int tty;             /* stderr is a terminal that can erase a line */
    int drawn;           /* a progress line is on the terminal */
    double last_s;       /* clock_s of the last progress line */
};

/* Initialises *l. tty: stderr is a terminal; TERM=dumb overrides it. */
void log_open(struct log *l, const char *program, int quiet, int tty);

/* Prints one line, in one write, so that lines of several ranks do not mix. */
void log_line(struct log *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Redraws the progress line at most 10 times a second, cut to the current width of the terminal. The text is
 * a list of fields with two spaces between them; whole fields are cut off at the right. Without a terminal:
 * prints a plain line at most every 10 seconds. last: prints in any case, uncut, and ends the line. */
void log_progress(struct log *l, int last, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Progress of work on `all` bytes that began at start_s (clock_s) and has done `done` of them:
 * "written 1.20 GB of 4.00 GB, 1.80 GB/s, 2 s left". done_word: "written". */
void log_rate(struct log *l, const char *done_word, double done, double all, double start_s);

/* Cuts UTF-8 text in place to less than `columns` characters, between fields where it has any. */
void log_fit(char *text, int columns);

/* Ends a progress line. */
void log_close(struct log *l);

/* Prints a number of bytes: "1.50 GB". */
void log_bytes(char out[32], double bytes);

#endif
