/* shm_message.c - send and receive between two ranks of a machine. The sender copies into a buffer of its own
 * region, puts it on the channel's ring and returns: two ranks may send to each other at the same time
 * without waiting. A buffer is used again once its message is taken; a pipeline with two messages under way
 * uses two. */
#include "comm/shm/shm.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static int is_taken(const struct shm_channel *ch, const struct shm_buffer *b)
{
    return (int32_t)(atomic_load_explicit(&ch->taken.value, memory_order_acquire) - b->number) >= 0;
}

/* A buffer that is no longer read: one that is large enough, else any other, which the caller replaces. There
 * is one, because the ring is not full. */
static struct shm_buffer *free_buffer(struct shm_buffer *box, const struct shm_channel *ch, size_t bytes)
{
    struct shm_buffer *any = NULL;
    for (int i = 0; i < SHM_RING; i++) {
        if (box[i].p && !is_taken(ch, &box[i]))
            continue;
        if (box[i].p && box[i].capacity >= bytes)
            return &box[i];
        if (!any || (any->p && !box[i].p))
            any = &box[i];
    }
    return any;
}

static struct shm_buffer *buffer_for(struct comm *c, struct shm_channel *ch, int to, size_t bytes,
                                     struct err *e)
{
    struct shm_group *g = c->priv;
    if (!g->outbox && !(g->outbox = calloc((size_t)c->size, sizeof *g->outbox))) {
        err_set(e, ERR_MEMORY, "no memory for messages to %d ranks", c->size);
        return NULL;
    }
    struct shm_buffer *b = free_buffer(g->outbox[to], ch, bytes);
    if (b->p && b->capacity >= bytes)
        return b;
    segment_free(&c->w->seg, b->p);
    b->capacity = mem_round_up(bytes ? bytes : 1, 4096);
    b->p = segment_alloc(&c->w->seg, MEM_COMM, b->capacity);
    if (!b->p) {
        err_set(e, ERR_MEMORY, "no shared memory for a message of %zu bytes", bytes);
        return NULL;
    }
    return b;
}

int shm_send(struct comm *c, const void *buf, size_t bytes, int to, struct err *e)
{
    struct shm_channel *ch = shm_channel(c, c->rank, to);
    uint32_t n = atomic_load_explicit(&ch->sent.value,
                                      memory_order_relaxed); /* this rank is its only writer */
    int rc = shm_wait(c, &ch->taken, n + 1 - SHM_RING, e);
    if (rc < 0)
        return rc;
    struct shm_buffer *b = buffer_for(c, ch, to, bytes, e);
    if (!b)
        return -e->code;
    memcpy(b->p, buf, bytes);
    b->number = n + 1;
    ch->message[n % SHM_RING].off = (char *)b->p - c->w->seg.base;
    ch->message[n % SHM_RING].bytes = (int64_t)bytes;
    wait_counter_set(&ch->sent, n + 1);
    return 0;
}

int shm_recv(struct comm *c, void *buf, size_t bytes, int from, struct err *e)
{
    struct shm_channel *ch = shm_channel(c, from, c->rank);
    uint32_t n = atomic_load_explicit(&ch->taken.value, memory_order_relaxed);
    int rc = shm_wait(c, &ch->sent, n + 1, e);
    if (rc < 0)
        return rc;
    int64_t got = ch->message[n % SHM_RING].bytes;
    if (got != (int64_t)bytes)
        return err_set(e, ERR_INTERNAL,
                       "rank %d sent %lld bytes, %zu are received: sends and receives must pair up",
                       c->member[from], (long long)got, bytes);
    memcpy(buf, c->w->seg.base + ch->message[n % SHM_RING].off, bytes);
    wait_counter_set(&ch->taken, n + 1);
    return 0;
}

/* Messages not taken yet keep their buffers until the world ends. */
void shm_outbox_close(struct comm *c)
{
    struct shm_group *g = c->priv;
    for (int to = 0; g->outbox && to < c->size; to++)
        for (int i = 0; i < SHM_RING; i++)
            if (g->outbox[to][i].p && is_taken(shm_channel(c, c->rank, to), &g->outbox[to][i]))
                segment_free(&c->w->seg, g->outbox[to][i].p);
    free(g->outbox);
}
