/* read_ahead.c - see read_ahead.h. */
#include "kernels/gemm/read_ahead.h"

#include <stdatomic.h>
#include <stdlib.h>

#define SEEN 1024          /* products of a step that are remembered; more begin again */
#define AHEAD_BYTES 262144 /* a thread: part of a second cache of 512 KiB to 2 MiB */
#define LINE 64
#define LINES 16 /* between two looks for a task */

/* A reading that a waiting thread may look at while the owner replaces it: then a hint is wrong. */
struct seen {
    _Atomic(const char *) p;
    _Atomic int64_t n, bytes, stride;
};

/* How far a thread has come; its own. */
struct cursor {
    _Alignas(64) int of; /* which reading */
    int64_t asked;       /* bytes of it */
};

struct read_ahead {
    int n_threads, n_seen, at; /* at: the product that began last; -1: none */
    _Atomic int next;          /* the one that threads ask for; -1: none */
    struct cursor *cursor;     /* [n_threads] */
    struct seen seen[SEEN];
};

/* Asks for the next lines of the thread's part. 0: it has asked for all. */
static int ask(void *arg, int thread)
{
    struct read_ahead *a = arg;
    struct cursor *c = &a->cursor[thread];
    const int next = atomic_load_explicit(&a->next, memory_order_acquire);
    if (next != c->of)
        *c = (struct cursor){ .of = next };
    if (next < 0 || c->asked >= AHEAD_BYTES)
        return 0;

    struct seen *s = &a->seen[next];
    const int64_t n = atomic_load(&s->n), bytes = atomic_load(&s->bytes), stride = atomic_load(&s->stride);
    const int64_t first = n * thread / a->n_threads, end = n * (thread + 1) / a->n_threads;
    const int64_t panel = first + c->asked / bytes, in = c->asked % bytes;
    if (panel >= end) {
        c->asked = AHEAD_BYTES;
        return 0;
    }
    const char *p = atomic_load(&s->p) + panel * stride + in;
    for (int i = 0; i < LINES; i++)
        __builtin_prefetch(p + (int64_t)i * LINE, 0, 2);
    c->asked += in + LINES * LINE < bytes ? LINES * LINE : bytes - in;
    return 1;
}

struct read_ahead *read_ahead_open(struct pool *p)
{
    const int n = pool_threads(p);
    struct read_ahead *a = n > 1 ? calloc(1, sizeof *a) : NULL;
    if (!a)
        return NULL;
    a->cursor = aligned_alloc(64, (size_t)n * sizeof *a->cursor);
    if (!a->cursor) {
        free(a);
        return NULL;
    }
    for (int i = 0; i < n; i++)
        a->cursor[i] = (struct cursor){ .of = -1 };
    a->n_threads = n;
    a->at = -1;
    atomic_init(&a->next, -1);
    pool_idle(p, ask, a);
    return a;
}

void read_ahead_close(struct read_ahead *a)
{
    if (!a)
        return;
    free(a->cursor);
    free(a);
}

/* The entry of these weights: the one after the last, another, or a new one. */
static int entry_of(struct read_ahead *a, const struct reading *now)
{
    int i = a->at + 1 < a->n_seen ? a->at + 1 : 0;
    if (i < a->n_seen && atomic_load(&a->seen[i].p) == (const char *)now->p)
        return i;
    for (i = 0; i < a->n_seen; i++)
        if (atomic_load(&a->seen[i].p) == (const char *)now->p)
            return i;
    if (a->n_seen == SEEN)
        a->n_seen = 0;
    return a->n_seen++;
}

void read_ahead_begin(struct read_ahead *a, const struct reading *now)
{
    if (!a || now->bytes <= 0)
        return;
    a->at = entry_of(a, now);
    struct seen *s = &a->seen[a->at];
    atomic_store(&s->p, (const char *)now->p);
    atomic_store(&s->n, now->n);
    atomic_store(&s->bytes, now->bytes);
    atomic_store(&s->stride, now->stride);
    atomic_store_explicit(&a->next, a->at + 1 < a->n_seen ? a->at + 1 : 0, memory_order_release);
}

int read_ahead_next(const struct read_ahead *a, struct reading *out)
{
    const int next = a ? atomic_load(&a->next) : -1;
    if (next < 0)
        return 0;
    const struct seen *s = &a->seen[next];
    *out = (struct reading){ atomic_load(&s->p), atomic_load(&s->n), atomic_load(&s->bytes),
                             atomic_load(&s->stride) };
    return 1;
}
