/* trace.h - what every thread of a rank did when: a ring of events a thread, written as a Chrome trace
 * (chrome://tracing, ui.perfetto.dev) at the end. An event costs two looks at the clock and 120 bytes; when
 * a ring is full the oldest events go. */
#ifndef SHARDLINE_BASE_TRACE_H
#define SHARDLINE_BASE_TRACE_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

enum trace_kind { TRACE_KERNEL, TRACE_COMM, TRACE_WAIT, TRACE_WORK, TRACE_PHASE, TRACE_KINDS };
struct trace_args { /* what is 0 is not shown */
    int64_t bytes;
    int n_ranks; /* of the group */
    int64_t shape[3];
};

struct trace; /* everywhere below NULL is a trace that is off: nothing is recorded */
int trace_open(struct trace **out, int n_threads, struct err *e);
void trace_close(struct trace *t);
/* Times count from now: called by all ranks at the same moment, so that their clocks agree. */
void trace_begin(struct trace *t);
int64_t trace_now(const struct trace *t); /* nanoseconds; 0 when off */
/* An event of the calling rank's main thread, from begin_ns (trace_now) to now. The name is copied; group
 * (may be NULL) must live as long as t. */
void trace_span(struct trace *t, enum trace_kind kind, const char *name, const char *group, int64_t begin_ns,
                struct trace_args args);
/* The same of thread `thread` of its pool; only that thread may call it. Threads the trace was not opened
 * for are not recorded. */
void trace_span_of(struct trace *t, int thread, enum trace_kind kind, const char *name, int64_t begin_ns);
/* What the pool's threads work on: the name of their next events. */
void trace_label(struct trace *t, const char *name);
const char *trace_label_now(const struct trace *t);
int64_t trace_dropped(const struct trace *t);
/* This rank's events, oldest first, as lines of a JSON array, each ended by ",\n" (malloc'd; trace_write
 * puts parts together). */
int trace_json(const struct trace *t, int rank, char **text, size_t *bytes, struct err *e);
/* One file of the ranks' parts, one behind the other in text. */
int trace_write(const char *path, const char *text, size_t bytes, struct err *e);

#endif
