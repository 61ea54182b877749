/* memory.c - a bound for all grammars of a program together: see text/grammar.h.
 *
 * most = a quarter for what is compiled, the rest for machines: their states and masks. With k machines in
 * use each may hold 3/8 of most / k before new matchers get another one, and twice as much before its own
 * matchers leave it. Machines that no matcher uses go as soon as the space is short.
 *
 * Locks: a grammar's, then the memory's. The other way only by pthread_mutex_trylock(). */
#include <stdlib.h>
#include "text/grammar/matching.h"

/* The space is short from here on: what a call adds is noted behind it. */
#define SHORT(y) ((y)->most / 16 * 15)
#define LEAST_SHARE ((size_t)256 << 10) /* of a machine */

int grammar_memory_open(struct grammar_memory **out, size_t most, struct err *e)
{
    struct grammar_memory *y = calloc(1, sizeof *y);
    *out = y;
    if (!y || pthread_mutex_init(&y->lock, NULL)) {
        free(y);
        *out = NULL;
        return err_set(e, ERR_MEMORY, "no memory for grammars");
    }
    y->most = most;
    y->refs = 1;
    return 0;
}

static void release(struct grammar_memory *y)
{
    pthread_mutex_lock(&y->lock);
    int refs = --y->refs;
    pthread_mutex_unlock(&y->lock);
    if (refs)
        return;
    pthread_mutex_destroy(&y->lock);
    free(y);
}

void grammar_memory_close(struct grammar_memory *y)
{
    if (y)
        release(y);
}

size_t grammar_memory_used(struct grammar_memory *y) { return atomic_load(&y->used); }

int grammar_count_in(struct grammar *g, struct grammar_memory *y, struct err *e)
{
    size_t bytes = sizeof *g + program_size(&g->program);
    pthread_mutex_lock(&y->lock);
    int fits = y->programs + bytes <= y->most / 4;
    size_t others = y->programs;
    if (fits) {
        y->programs += bytes;
        atomic_fetch_add(&y->used, bytes);
        y->refs++;
        g->memory = y;
        g->bytes = bytes;
        g->next = y->first;
        y->first = g;
    }
    pthread_mutex_unlock(&y->lock);
    if (fits)
        return 0;
    return err_set(
        e, ERR_MEMORY,
        "the grammar takes %.1f MB, those in use take %.1f MB, and %.1f MB is the limit for all of "
        "them: ask again later, or make it smaller",
        (double)bytes / 1e6, (double)others / 1e6, (double)(y->most / 4) / 1e6);
}

void memory_leave(struct grammar *g)
{
    struct grammar_memory *y = g->memory;
    if (!y)
        return;
    pthread_mutex_lock(&y->lock);
    struct grammar **at = &y->first;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    y->programs -= g->bytes;
    pthread_mutex_unlock(&y->lock);
    atomic_fetch_sub(&y->used, g->bytes);
    release(y);
}

/* Frees machines that no matcher uses, but `self`, whose lock the caller holds. */
static void free_unused(struct grammar_memory *y, const struct grammar *self)
{
    pthread_mutex_lock(&y->lock);
    for (struct grammar *g = y->first; g && atomic_load(&y->used) > SHORT(y); g = g->next) {
        if (g == self || pthread_mutex_trylock(&g->lock))
            continue;
        if (g->now && !g->now->matchers)
            shared_drop(g);
        pthread_mutex_unlock(&g->lock);
    }
    pthread_mutex_unlock(&y->lock);
}

void memory_note(struct shared_machine *s)
{
    struct grammar_memory *y = s->g->memory;
    size_t bytes = machine_size(s->m), before = s->bytes;
    s->bytes = bytes;
    if (!y)
        return;
    atomic_fetch_add(&y->used, bytes - before);
    if (bytes > before && atomic_load(&y->used) > SHORT(y))
        free_unused(y, s->g);
}

void memory_forget(const struct shared_machine *s)
{
    struct grammar_memory *y = s->g->memory;
    if (y)
        atomic_fetch_sub(&y->used, s->bytes);
}

void memory_machines(const struct grammar *g, int more)
{
    if (g->memory)
        atomic_fetch_add(&g->memory->machines, more);
}

size_t memory_share(const struct grammar *g)
{
    struct grammar_memory *y = g->memory;
    size_t share = MACHINE_BYTES;
    if (y) {
        int k = atomic_load(&y->machines);
        size_t equal = y->most / 8 * 3 / (size_t)(k > 1 ? k : 1);
        share = equal < share ? equal : share;
    }
    return share < LEAST_SHARE ? LEAST_SHARE : share;
}

int memory_is_short(const struct grammar *g)
{
    return g->memory && atomic_load(&g->memory->used) > SHORT(g->memory);
}
