/* trace.c - see trace.h. */
#include "base/clock.h"
#include "base/io.h"
#include "base/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define RING (1 << 16) /* events a thread: some hundred steps of a small model, some ten of a large one */

#define NAME 48 /* bytes of a name that are kept */

struct event {
    char name[NAME];
    const char *group;
    int64_t begin_ns, end_ns;
    struct trace_args args;
    enum trace_kind kind;
};

struct ring {
    struct event *event; /* [RING] */
    uint64_t n;          /* recorded so far; the last RING of them are kept */
};

struct trace {
    int n_threads;
    int64_t zero_ns;
    const char *label;
    struct ring ring[];
};

int trace_open(struct trace **out, int n_threads, struct err *e)
{
    struct trace *t = calloc(1, sizeof *t + (size_t)n_threads * sizeof *t->ring);
    int missing = !t;
    *out = t;
    for (int i = 0; t && i < n_threads; i++) {
        /* the kernel gives pages as they are used */
        t->ring[i].event = calloc(RING, sizeof *t->ring[i].event);
        t->n_threads = i + 1;
        missing |= !t->ring[i].event;
    }
    if (missing) {
        trace_close(t);
        *out = NULL;
        return err_set(e, ERR_MEMORY, "no memory for the trace of %d threads: leave --trace out", n_threads);
    }
    trace_begin(t);
    return 0;
}

void trace_close(struct trace *t)
{
    for (int i = 0; t && i < t->n_threads; i++)
        free(t->ring[i].event);
    free(t);
}

void trace_begin(struct trace *t)
{
    if (t)
        t->zero_ns = clock_ns();
}

int64_t trace_now(const struct trace *t) { return t ? clock_ns() - t->zero_ns : 0; }

static void record(struct trace *t, int thread, const char *name, struct event x)
{
    struct ring *r = &t->ring[thread];
    struct event *slot = &r->event[r->n++ % RING];
    x.end_ns = trace_now(t);
    *slot = x;
    for (int i = 0; i < NAME - 1 && name[i]; i++)
        slot->name[i] = name[i];
}

void trace_span(struct trace *t, enum trace_kind kind, const char *name, const char *group, int64_t begin_ns,
                struct trace_args args)
{
    if (t)
        record(t, 0, name,
               (struct event){ .group = group, .begin_ns = begin_ns, .args = args, .kind = kind });
}

void trace_span_of(struct trace *t, int thread, enum trace_kind kind, const char *name, int64_t begin_ns)
{
    if (t && thread < t->n_threads)
        record(t, thread, name, (struct event){ .begin_ns = begin_ns, .kind = kind });
}

void trace_label(struct trace *t, const char *name)
{
    if (t)
        t->label = name;
}

const char *trace_label_now(const struct trace *t) { return t && t->label ? t->label : "task"; }

static uint64_t first_of(const struct ring *r) { return r->n > RING ? r->n - RING : 0; }

int64_t trace_dropped(const struct trace *t)
{
    int64_t n = 0;
    for (int i = 0; i < t->n_threads; i++)
        n += (int64_t)first_of(&t->ring[i]);
    return n;
}

/* ---- writing ---- */
static void put_text(FILE *f, const char *s)
{
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            fputc('\\', f);
        if ((unsigned char)*s >= ' ')
            fputc(*s, f);
    }
}

static void put_args(FILE *f, const struct event *x)
{
    const struct trace_args *a = &x->args;
    const char *sep = "";
    if (a->shape[0]) {
        fprintf(f, "\"shape\":\"%" PRId64, a->shape[0]);
        for (int i = 1; i < 3 && a->shape[i]; i++)
            fprintf(f, "x%" PRId64, a->shape[i]);
        fputc('"', f);
        sep = ",";
    }
    if (a->bytes)
        fprintf(f, "%s\"bytes\":%" PRId64, sep, a->bytes), sep = ",";
    if (x->group) {
        fprintf(f, "%s\"group\":\"", sep);
        put_text(f, x->group);
        fputc('"', f);
        sep = ",";
    }
    if (a->n_ranks)
        fprintf(f, "%s\"ranks\":%d", sep, a->n_ranks);
}

static void put_event(FILE *f, const struct event *x, int rank, int thread)
{
    static const char *const kinds[TRACE_KINDS] = { "kernel", "comm", "wait", "work", "phase" };
    fputs("{\"name\":\"", f);
    put_text(f, x->name);
    fprintf(f, "\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d,\"args\":{",
            kinds[x->kind], (double)x->begin_ns * 1e-3, (double)(x->end_ns - x->begin_ns) * 1e-3, rank,
            thread);
    put_args(f, x);
    fputs("}},\n", f);
}

int trace_json(const struct trace *t, int rank, char **text, size_t *bytes, struct err *e)
{
    FILE *f = open_memstream(text, bytes);
    if (!f)
        return err_sys(e, "no memory for the text of the trace");
    fprintf(f,
            "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"rank "
            "%d\",\"events_dropped\":%" PRId64 "}},\n",
            rank, rank, trace_dropped(t));
    for (int i = 0; i < t->n_threads; i++) {
        const struct ring *r = &t->ring[i];
        fprintf(f,
                "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"thread "
                "%d\"}},\n",
                rank, i, i);
        for (uint64_t k = first_of(r); k < r->n; k++)
            put_event(f, &r->event[k % RING], rank, i);
    }
    if (ferror(f) | fclose(f)) {
        free(*text);
        *text = NULL;
        return err_set(e, ERR_MEMORY, "no memory for the text of the trace");
    }
    return 0;
}

/* Leaves the comma behind the last event out: a JSON array ends without one. */
int trace_write(const char *path, const char *text, size_t bytes, struct err *e)
{
    FILE *f = io_write_text(path, 0, e);
    if (!f)
        return err_add(e, "the trace");
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", f);
    fwrite(text, 1, bytes > 2 ? bytes - 2 : 0, f);
    fputs("\n]}\n", f);
    if (ferror(f) | fclose(f))
        return err_sys(e, "%s: cannot write the trace", path);
    return 0;
}
