/* trace.h - what every thread of a rank did when: a ring of events per thread, written at the end as a Chrome
 * trace (chrome://tracing, ui.perfetto.dev). An event costs two readings of the clock and 120 bytes. A full
 * ring overwrites its oldest events.
 *
 * Every function takes NULL for a trace that is off: it then does nothing. A ring belongs to one thread and
 * has no lock; trace_dropped and trace_json are called when all threads rest. */
#ifndef SHARDLINE_BASE_TRACE_H
#define SHARDLINE_BASE_TRACE_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

enum trace_kind { TRACE_KERNEL, TRACE_COMM, TRACE_WAIT, TRACE_WORK, TRACE_PHASE, TRACE_KINDS };

/* Details of an event; a detail of 0 is not shown. */
struct trace_args {
    int64_t bytes;
    int n_ranks; /* of the group */
    int64_t shape[3];
};

struct trace;

/* Opens a trace for n_threads threads and starts its clock. ERR_MEMORY. */
int trace_open(struct trace **out, int n_threads, struct err *e);

/* Frees the trace. */
void trace_close(struct trace *t);

/* Restarts the clock. All ranks call it right after a barrier, so that their times agree. */
void trace_begin(struct trace *t);

/* Nanoseconds on the trace's clock; 0 when off. */
int64_t trace_now(const struct trace *t);

/* Records an event of the rank's main thread, from begin_ns (trace_now) to now. name is copied; group (may be
 * NULL) is borrowed until trace_close. */
void trace_span(struct trace *t, enum trace_kind kind, const char *name, const char *group, int64_t begin_ns,
                struct trace_args args);

/* The same for thread `thread` of the rank's pool; only that thread may call it. Threads beyond n_threads are
 * not recorded. */
void trace_span_of(struct trace *t, int thread, enum trace_kind kind, const char *name, int64_t begin_ns);

/* Names the next job of the pool: its threads' events get this name, which is borrowed. */
void trace_label(struct trace *t, const char *name);

/* That name; "task" when there is none. */
const char *trace_label_now(const struct trace *t);

/* Number of events that were overwritten. t is not NULL here and below. */
int64_t trace_dropped(const struct trace *t);

/* This rank's events, oldest first, as lines of a JSON array, each ended by ",\n". *text: malloc'd, *bytes
 * long. */
int trace_json(const struct trace *t, int rank, char **text, size_t *bytes, struct err *e);

/* Writes one file of the texts of all ranks, which follow each other in `text`. */
int trace_write(const char *path, const char *text, size_t bytes, struct err *e);

#endif
