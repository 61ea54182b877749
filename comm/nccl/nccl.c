/* nccl.c - operations on device memory over NCCL, one GPU a rank. The host waits for nothing. A blocking
 * operation goes into the device's compute queue, behind the ops that make what is sent and before those that
 * read what is received. A started one goes into the communication queue, behind a mark of the compute queue,
 * and runs beside the ops that follow; finishing it makes the compute queue wait for its mark.
 *
 *     compute  … dW ──mark──────── more dW ───────wait── update
 *     comm            └wait── slices, tree_add, slices ──mark┘
 *
 * NCCL does not sum: slice r of all ranks goes to rank r, which adds in tree order (the op tree_add) and
 * sends the sum to all.
 *
 *     buf  [ slice 0 | slice 1 | slice 2 ]   --grouped send and recv-->   scratch [ mine of rank 0 | … ]
 *     --tree_add--> buf, my slice --> all
 *
 * With --numerics fast (dev_numerics) NCCL sums. Messages (pipelines) go through the host (staged.c): ranks
 * may send to each other first and receive then, which a stream cannot. */
#include "comm/nccl/nccl.h"
#include "kernels/kernels.h"

#define SCRATCH 7 /* slot of the device's scratch */

static void *stream_of(const struct comm *c) { return dev_stream(c->w->dev, c->w->dev->queue); }

/* One operation: `submit` between nccl_begin and nccl_submitted. */
#define OPERATION(c, what, submit) \
    do { \
        struct nccl_group *g_ = (c)->device; \
        int rc_ = nccl_begin(g_, (what), e); \
        if (rc_ >= 0 && (rc_ = (submit)) >= 0) \
            nccl_submitted(g_); \
        return rc_; \
    } while (0)

static int completed(struct comm *c, int rc, const char *what, struct err *e)
{
    return nccl_complete(c->device, rc, what, e);
}
static nccl_comm comm_of(const struct comm *c) { return ((struct nccl_group *)c->device)->comm; }

/* The communicator may have been aborted while the device was waited for. */
static int begin_group(struct comm *c, struct err *e)
{
    int rc = nccl_alive(c->device, e);
    return rc < 0 ? rc : nccl_check(c->w->nccl, c->w->nccl->GroupStart(), "beginning", e);
}

/* ---- sums ---- */
static int64_t slice_begin(const struct comm *c, int64_t n, int r)
{
    return n / c->size * r + (n % c->size < r ? n % c->size : r);
}

/* Sends slice r of buf to rank r. in[r]: where this rank's slice of rank r lies afterwards. */
static int slices_to_owners(struct comm *c, float *buf, int64_t n, float *scratch, const float **in,
                            struct err *e)
{
    struct nccl *x = c->w->nccl;
    const int64_t mine = slice_begin(c, n, c->rank), len = slice_begin(c, n, c->rank + 1) - mine;
    int rc = begin_group(c, e);
    if (rc < 0)
        return rc;
    for (int r = 0; r < c->size; r++)
        in[r] = r == c->rank ? buf + mine : scratch + r * len;
    for (int r = 0; r < c->size && rc == 0; r++) {
        const int64_t begin = slice_begin(c, n, r), count = slice_begin(c, n, r + 1) - begin;
        if (r != c->rank && count)
            rc = nccl_check(x, x->Send(buf + begin, (size_t)count, NCCL_FLOATS, r, comm_of(c), stream_of(c)),
                            "sending a slice", e);
        if (r != c->rank && len && rc == 0)
            rc = nccl_check(x,
                            x->Recv(scratch + r * len, (size_t)len, NCCL_FLOATS, r, comm_of(c), stream_of(c)),
                            "receiving a slice", e);
    }
    int end = x->GroupEnd();
    return rc < 0 ? rc : completed(c, end, "slices", e);
}

static int owners_to_all(struct comm *c, float *buf, int64_t n, struct err *e)
{
    struct nccl *x = c->w->nccl;
    const int64_t mine = slice_begin(c, n, c->rank), len = slice_begin(c, n, c->rank + 1) - mine;
    int rc = begin_group(c, e);
    if (rc < 0)
        return rc;
    for (int r = 0; r < c->size && rc == 0; r++) {
        const int64_t begin = slice_begin(c, n, r), count = slice_begin(c, n, r + 1) - begin;
        if (r != c->rank && len)
            rc = nccl_check(x, x->Send(buf + mine, (size_t)len, NCCL_FLOATS, r, comm_of(c), stream_of(c)),
                            "sending a sum", e);
        if (r != c->rank && count && rc == 0)
            rc = nccl_check(x, x->Recv(buf + begin, (size_t)count, NCCL_FLOATS, r, comm_of(c), stream_of(c)),
                            "receiving a sum", e);
    }
    int end = x->GroupEnd();
    return rc < 0 ? rc : completed(c, end, "sums", e);
}

/* The tree over ranks, or a nested one, whose inner sums replace the first array of each. */
static void add_arrays(struct comm *c, float *out, const float **in, int64_t len)
{
    int n = c->size;
    for (int i = 0; c->inner && i * c->inner < c->size; i++) {
        const float **of = in + i * c->inner;
        KERNEL(c->w->dev, tree_add, (float *)(uintptr_t)of[0], of, c->inner, len);
        in[i] = of[0];
        n = i + 1;
    }
    KERNEL(c->w->dev, tree_add, out, in, n, len);
}

/* out: this rank's slice of the sum. */
static int sum_my_slice(struct comm *c, float *out, float *buf, int64_t n, struct err *e)
{
    const int64_t len = slice_begin(c, n, c->rank + 1) - slice_begin(c, n, c->rank);
    const float *in[SUM_RANKS_MAX];
    float *scratch = dev_scratch(c->w->dev, SCRATCH, (size_t)(len * c->size) * sizeof *scratch);
    int rc = scratch ? 0 : err_set(e, ERR_MEMORY, "no memory on the device for a sum of %d ranks", c->size);
    TRY(rc);
    TRY(slices_to_owners(c, buf, n, scratch, in, e));
    if (len)
        add_arrays(c, out, in, len);
    rc = 0;
out:
    return rc;
}

static int sum_in_order(struct comm *c, float *buf, int64_t n, struct err *e)
{
    int rc = sum_my_slice(c, buf + slice_begin(c, n, c->rank), buf, n, e);
    return rc < 0 ? rc : owners_to_all(c, buf, n, e);
}

static int sum_by_nccl(struct comm *c, float *buf, int64_t n, struct err *e)
{
    return completed(c,
                     c->w->nccl->AllReduce(buf, buf, (size_t)n, NCCL_FLOATS, NCCL_SUM, comm_of(c),
                                           stream_of(c)),
                     "a sum", e);
}

static int my_sum_by_nccl(struct comm *c, float *out, float *in, int64_t n_each, struct err *e)
{
    return completed(c,
                     c->w->nccl->ReduceScatter(in, out, (size_t)n_each, NCCL_FLOATS, NCCL_SUM, comm_of(c),
                                               stream_of(c)),
                     "a sum", e);
}

static int nccl_all_reduce(struct comm *c, enum sum_kind kind, void *buf, int64_t n, struct err *e)
{
    if (c->size == 1 || kind != SUM_TREE)
        return transport_staged.all_reduce(c, kind, buf, n, e);
    OPERATION(c, "all_reduce", (c->w->dev->fast ? sum_by_nccl : sum_in_order)(c, buf, n, e));
}

static int nccl_reduce_scatter(struct comm *c, float *out, float *in, int64_t n_each, struct err *e)
{
    if (c->size == 1)
        return transport_staged.reduce_scatter(c, out, in, n_each, e);
    OPERATION(c, "reduce_scatter",
              c->w->dev->fast ? my_sum_by_nccl(c, out, in, n_each, e)
                              : sum_my_slice(c, out, in, n_each * c->size, e));
}

/* ---- copies ---- */
static int nccl_all_gather(struct comm *c, void *out, const void *in, size_t bytes_each, struct err *e)
{
    if (c->size == 1)
        return transport_staged.all_gather(c, out, in, bytes_each, e);
    OPERATION(c, "all_gather",
              completed(c, c->w->nccl->AllGather(in, out, bytes_each, NCCL_BYTES, comm_of(c), stream_of(c)),
                        "gathering", e));
}

static int nccl_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e)
{
    if (c->size == 1)
        return 0;
    OPERATION(c, "broadcast",
              completed(c, c->w->nccl->Broadcast(buf, buf, bytes, NCCL_BYTES, root, comm_of(c), stream_of(c)),
                        "a broadcast", e));
}

/* This rank's own rows, in the queue in use. */
static void copy_own_rows(const struct comm_request *q)
{
    const int me = q->c->rank;
    const size_t in = (size_t)(rows_before(q->to, me) * q->n),
                 out = (size_t)(rows_before(q->from, me) * q->n);
    if (q->to[me])
        dev_copy(q->c->w->dev, (char *)q->out + out, (const char *)q->in + in, (size_t)(q->to[me] * q->n));
}

/* Rows of every rank to every other rank. */
static int rows_to_ranks(const struct comm_request *q, struct err *e)
{
    struct comm *c = q->c;
    struct nccl *x = c->w->nccl;
    const char *in = q->in;
    char *out = q->out;
    int rc = begin_group(c, e);
    if (rc < 0)
        return rc;
    for (int r = 0; r < c->size && rc == 0; r++) {
        const size_t sent = (size_t)(q->to[r] * q->n), got = (size_t)(q->from[r] * q->n);
        if (r != c->rank && sent)
            rc = nccl_check(x, x->Send(in, sent, NCCL_BYTES, r, comm_of(c), stream_of(c)), "sending rows", e);
        if (r != c->rank && got && rc == 0)
            rc = nccl_check(x, x->Recv(out, got, NCCL_BYTES, r, comm_of(c), stream_of(c)), "receiving rows",
                            e);
        in += sent;
        out += got;
    }
    int end = x->GroupEnd();
    return rc < 0 ? rc : completed(c, end, "rows", e);
}

static int nccl_all_to_all(const struct comm_request *q, struct err *e)
{
    OPERATION(q->c, "all_to_all", rows_to_ranks(q, e));
}

/* ---- started and finished ---- */
static int nccl_start(struct comm_request *q, struct err *e)
{
    struct dev *d = q->c->w->dev;
    if (q->c->size == 1)
        return immediate_start(q, e);
    if (q->what == CALL_ALL_TO_ALL)
        copy_own_rows(q);
    dev_wait(d, DEV_COMM, dev_mark(d, DEV_COMPUTE));
    enum dev_queue before = dev_use(d, DEV_COMM);
    int rc = q->what == CALL_REDUCE       ? nccl_all_reduce(q->c, SUM_TREE, q->out, q->n, e)
             : q->what == CALL_ALL_TO_ALL ? nccl_all_to_all(q, e)
             : q->what == CALL_REDUCE_SCATTER
                 ? nccl_reduce_scatter(q->c, q->out, (float *)(uintptr_t)q->in, q->n, e)
                 : nccl_all_gather(q->c, q->out, q->in, (size_t)q->n, e);
    q->mark = rc < 0 ? 0 : dev_mark(d, DEV_COMM);
    dev_use(d, before);
    return rc;
}

/* The host does not wait. on_complete submits its work to the compute queue, behind the parts. */
static int nccl_finish(struct comm_request *q, struct err *e)
{
    (void)e;
    dev_wait(q->c->w->dev, DEV_COMPUTE, q->mark);
    if (q->on_complete.run)
        q->on_complete.run(q->on_complete.arg);
    q->done = 1;
    return 0;
}

const struct transport transport_nccl = {
    .name = "nccl",
    .broadcast = nccl_broadcast,
    .all_reduce = nccl_all_reduce,
    .reduce_scatter = nccl_reduce_scatter,
    .all_gather = nccl_all_gather,
    .send = staged_send,
    .recv = staged_recv,
    .alloc_shared = staged_alloc_shared,
    .free_shared = staged_free_shared,
    .shared_group = staged_shared_group,
    .all_gather_shared = nccl_all_gather,
    .start = nccl_start,
    .step = immediate_step,
    .finish = nccl_finish,
    .release = immediate_release,
};
