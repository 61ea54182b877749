/* staged.c - operations on device memory through the host: read, the group's own transport, written back. For
 * several ranks on one GPU and for machines without NCCL. A start does the whole operation. Shared memory is
 * memory of the rank's own. */
#include "comm/comm_priv.h"

/* Host memory of the transport's own kind, so that shm does not copy it once more. */
static void *stage(struct world *w, size_t bytes, struct err *e)
{
    if (bytes > w->stage_bytes) {
        if (w->stage)
            w->t->free(w, w->stage);
        w->stage = w->t->alloc(w, MEM_COMM, bytes);
        w->stage_bytes = w->stage ? bytes : 0;
    }
    if (!w->stage)
        err_set(e, ERR_MEMORY,
                "no memory to pass %zu MiB of the device through the host: use smaller micro-batches",
                bytes >> 20);
    return w->stage;
}

void staged_close_world(struct world *w)
{
    if (w->stage)
        w->t->free(w, w->stage);
    w->stage = NULL;
}

static int staged_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e)
{
    void *h = c->size > 1 ? stage(c->w, bytes, e) : NULL;
    if (c->size == 1 || !h)
        return c->size == 1 ? 0 : -e->code;
    if (c->rank == root)
        dev_read(c->w->dev, h, buf, bytes);
    int rc = c->t->broadcast(c, h, bytes, root, e);
    if (rc >= 0 && c->rank != root)
        dev_write(c->w->dev, buf, h, bytes);
    return rc;
}

static int staged_all_reduce(struct comm *c, enum sum_kind kind, void *buf, int64_t n, struct err *e)
{
    size_t bytes = (size_t)n * sum_size(kind);
    void *h = c->size > 1 ? stage(c->w, bytes, e) : NULL;
    if (c->size == 1 || !h)
        return c->size == 1 ? 0 : -e->code;
    dev_read(c->w->dev, h, buf, bytes);
    int rc = c->t->all_reduce(c, kind, h, n, e);
    if (rc >= 0)
        dev_write(c->w->dev, buf, h, bytes);
    return rc;
}

static int staged_reduce_scatter(struct comm *c, float *out, float *in, int64_t n_each, struct err *e)
{
    size_t each = (size_t)n_each * sizeof *out;
    float *h = c->size > 1 ? stage(c->w, each * (size_t)c->size, e) : NULL;
    if (c->size == 1 && out != in)
        dev_copy(c->w->dev, out, in, each);
    if (c->size == 1 || !h)
        return c->size == 1 ? 0 : -e->code;
    dev_read(c->w->dev, h, in, each * (size_t)c->size);
    int rc = c->t->reduce_scatter(c, h + c->rank * n_each, h, n_each, e);
    if (rc >= 0)
        dev_write(c->w->dev, out, h + c->rank * n_each, each);
    return rc;
}

static int staged_all_gather(struct comm *c, void *out, const void *in, size_t bytes_each, struct err *e)
{
    char *h = c->size > 1 ? stage(c->w, bytes_each * (size_t)c->size, e) : NULL;
    if (c->size == 1 && out != in)
        dev_copy(c->w->dev, out, in, bytes_each);
    if (c->size == 1 || !h)
        return c->size == 1 ? 0 : -e->code;
    dev_read(c->w->dev, h + bytes_each * (size_t)c->rank, in, bytes_each);
    int rc = c->t->all_gather(c, h, h + bytes_each * (size_t)c->rank, bytes_each, e);
    if (rc >= 0)
        dev_write(c->w->dev, out, h, bytes_each * (size_t)c->size);
    return rc;
}

int staged_send(struct comm *c, const void *buf, size_t bytes, int to, struct err *e)
{
    void *h = stage(c->w, bytes, e);
    if (!h)
        return -e->code;
    dev_read(c->w->dev, h, buf, bytes);
    return c->t->send(c, h, bytes, to, e);
}

int staged_recv(struct comm *c, void *buf, size_t bytes, int from, struct err *e)
{
    void *h = stage(c->w, bytes, e);
    int rc = h ? c->t->recv(c, h, bytes, from, e) : -e->code;
    if (rc >= 0)
        dev_write(c->w->dev, buf, h, bytes);
    return rc;
}

/* The group's own transport moves the rows from one part of the staging buffer to the other. */
static int staged_all_to_all(struct comm_request *q, struct err *e)
{
    struct comm *c = q->c;
    size_t sent = (size_t)(rows_before(q->to, c->size) * q->n);
    size_t got = (size_t)(rows_before(q->from, c->size) * q->n);
    char *h = c->size > 1 ? stage(c->w, sent + got + 1, e) : NULL;
    if (c->size == 1 && sent)
        dev_copy(c->w->dev, q->out, q->in, sent);
    if (c->size == 1 || !h)
        return c->size == 1 ? 0 : -e->code;

    struct comm_request host = *q;
    host.t = c->t;
    host.number = c->n_started++;
    host.in = h;
    host.out = h + sent;
    if (sent)
        dev_read(c->w->dev, h, q->in, sent);
    int rc = host.t->start(&host, e);
    if (rc >= 0 && !host.done)
        rc = host.t->finish(&host, e);
    host.t->release(&host);
    if (rc >= 0 && got)
        dev_write(c->w->dev, q->out, h + sent, got);
    return rc;
}

int staged_alloc_shared(void **out, struct comm *c, enum mem_cat cat, size_t bytes, struct err *e)
{
    *out = dev_alloc(c->w->dev, cat, bytes);
    return *out ? 0 : err_set(e, ERR_MEMORY, "no memory on the device for %zu MiB", bytes >> 20);
}

int staged_free_shared(struct comm *c, void *p, struct err *e)
{
    (void)e;
    dev_free(c->w->dev, p);
    return 0;
}

void staged_shared_group(const struct comm *c, int *rank, int *size)
{
    (void)c;
    *rank = 0;
    *size = 1;
}

/* ---- started operations for transports in which nothing advances by itself ---- */
int immediate_start(struct comm_request *q, struct err *e)
{
    int rc = q->what == CALL_REDUCE       ? q->t->all_reduce(q->c, SUM_TREE, q->out, q->n, e)
             : q->what == CALL_ALL_TO_ALL ? staged_all_to_all(q, e)
             : q->what == CALL_REDUCE_SCATTER
                 ? q->t->reduce_scatter(q->c, q->out, (float *)(uintptr_t)q->in, q->n, e)
                 : q->t->all_gather(q->c, q->out, q->in, (size_t)q->n, e);
    if (rc < 0)
        return rc;
    if (q->on_complete.run)
        q->on_complete.run(q->on_complete.arg);
    q->done = 1;
    return 0;
}

int immediate_step(struct comm_request *q, struct err *e)
{
    (void)q;
    (void)e;
    return 0;
}

void immediate_release(struct comm_request *q) { (void)q; }

/* The missing rows are never called: groups and host memory belong to the other transport. */
const struct transport transport_staged = {
    .name = "staged",
    .broadcast = staged_broadcast,
    .all_reduce = staged_all_reduce,
    .reduce_scatter = staged_reduce_scatter,
    .all_gather = staged_all_gather,
    .send = staged_send,
    .recv = staged_recv,
    .alloc_shared = staged_alloc_shared,
    .free_shared = staged_free_shared,
    .shared_group = staged_shared_group,
    .all_gather_shared = staged_all_gather,
    .start = immediate_start,
    .step = immediate_step,
    .finish = immediate_step,
    .release = immediate_release,
};
