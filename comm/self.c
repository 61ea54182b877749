/* self.c - the transport of one rank, and of every group of one: it never waits and adds nothing. */
#include "comm/comm_priv.h"

#include <string.h>

static void self_close(struct world *w, int orderly)
{
    (void)w;
    (void)orderly;
}

static void *self_alloc(struct world *w, enum mem_cat cat, size_t bytes)
{
    return mem_alloc(w->mem, cat, bytes);
}

static void self_free(struct world *w, void *p) { mem_free(w->mem, p); }

static int self_group_propose(struct comm *c, int64_t *number, struct err *e)
{
    (void)c;
    (void)e;
    *number = 0;
    return 0;
}

static int self_group_join(struct comm *c, int64_t number, struct err *e)
{
    (void)c;
    (void)number;
    (void)e;
    return 0;
}

static void self_group_leave(struct comm *c) { (void)c; }

static int self_barrier(struct comm *c, struct err *e)
{
    (void)c;
    (void)e;
    return 0;
}

static int self_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e)
{
    (void)c;
    (void)buf;
    (void)bytes;
    (void)root;
    (void)e;
    return 0;
}

/* The sum of one array is that array; the maximum still replaces NaNs by the quiet one. */
static int self_all_reduce(struct comm *c, enum sum_kind kind, void *buf, int64_t n, struct err *e)
{
    (void)c;
    (void)e;
    sum_over(kind, buf, &buf, 1, 0, n);
    return 0;
}

static int self_reduce_scatter(struct comm *c, float *out, float *in, int64_t n_each, struct err *e)
{
    (void)c;
    (void)e;
    memmove(out, in, (size_t)n_each * sizeof *out);
    return 0;
}

static int self_all_gather(struct comm *c, void *out, const void *in, size_t bytes_each, struct err *e)
{
    (void)c;
    (void)e;
    memmove(out, in, bytes_each);
    return 0;
}

static int self_gather(struct comm *c, const void *blob, const size_t *sizes, int root, char *out,
                       struct err *e)
{
    (void)c;
    (void)root;
    (void)e;
    memcpy(out, blob, sizes[0]);
    return 0;
}

static int self_send(struct comm *c, const void *buf, size_t bytes, int to, struct err *e)
{
    (void)c;
    (void)buf;
    return err_set(e, ERR_INTERNAL, "send of %zu bytes to rank %d of a group of one", bytes, to);
}

static int self_recv(struct comm *c, void *buf, size_t bytes, int from, struct err *e)
{
    (void)c;
    (void)buf;
    return err_set(e, ERR_INTERNAL, "receive of %zu bytes from rank %d of a group of one", bytes, from);
}

static int self_alloc_shared(void **out, struct comm *c, enum mem_cat cat, size_t bytes, struct err *e)
{
    *out = comm_alloc(c, cat, bytes);
    return *out ? 0 : err_set(e, ERR_MEMORY, "no memory for %zu bytes", bytes);
}

static int self_free_shared(struct comm *c, void *p, struct err *e)
{
    (void)e;
    comm_free(c, p);
    return 0;
}

static void self_shared_group(const struct comm *c, int *rank, int *size)
{
    *rank = c->rank;
    *size = c->size;
}

/* An operation of one rank ends when it starts. */
static int self_start(struct comm_request *q, struct err *e)
{
    (void)e;
    int64_t bytes = q->what == CALL_REDUCE_SCATTER ? q->n * (int64_t)sizeof(float)
                    : q->what == CALL_ALL_TO_ALL   ? q->n * q->to[0]
                                                   : q->n;
    if (q->what != CALL_REDUCE && bytes)
        memmove(q->out, q->in, (size_t)bytes);
    if (q->on_complete.run)
        q->on_complete.run(q->on_complete.arg);
    q->done = 1;
    return 0;
}

const struct transport transport_self = {
    .name = "self",
    .close = self_close,
    .alloc = self_alloc,
    .free = self_free,
    .group_propose = self_group_propose,
    .group_join = self_group_join,
    .group_leave = self_group_leave,
    .barrier = self_barrier,
    .broadcast = self_broadcast,
    .all_reduce = self_all_reduce,
    .reduce_scatter = self_reduce_scatter,
    .all_gather = self_all_gather,
    .gather = self_gather,
    .send = self_send,
    .recv = self_recv,
    .alloc_shared = self_alloc_shared,
    .free_shared = self_free_shared,
    .shared_group = self_shared_group,
    .all_gather_shared = self_all_gather,
    .start = self_start,
    .step = immediate_step,
    .finish = immediate_step,
    .release = immediate_release,
};
