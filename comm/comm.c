/* comm.c - the beginning and end of every operation: empty calls return at once, a failed world is not
 * called, every call is counted and traced. An error of a transport becomes a failure of the world here,
 * because its group is out of step from then on. */
#include "comm/comm_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alter.h"
#include "base/clock.h"
#include "base/trace.h"

/* 1 when the world has several machines and these ranks are on one of them. */
static int on_one_node(const struct world *w, const int *member, int size)
{
    int same = w->at.node_size < w->at.size;
    for (int r = 1; r < size; r++)
        same &= w->at.node_of[member[r]] == w->at.node_of[member[0]];
    return same;
}

struct comm *comm_new(struct world *w, int *member, int size)
{
    struct comm *c = calloc(1, sizeof *c);
    if (!c) {
        free(member);
        return NULL;
    }
    const struct transport *t = size == 1                      ? &transport_self
                                : on_one_node(w, member, size) ? &transport_shm
                                                               : w->t;
    *c = (struct comm){ .t = t, .w = w, .size = size, .member = member, .name = "group" };
    while (c->member[c->rank] != w->at.rank)
        c->rank++;
    return c;
}

void comm_close(struct comm *c)
{
    if (!c)
        return;
    if (c->w->nccl)
        nccl_leave(c);
    c->t->group_leave(c);
    free(c->member);
    free(c);
}

int comm_rank(const struct comm *c) { return c->rank; }
int comm_size(const struct comm *c) { return c->size; }
const char *comm_name(const struct comm *c) { return c->name; }

/* The transport of a buffer: the device's where it lies in the device's own memory, else the group's. */
static const struct transport *transport_of(const struct comm *c, const void *buf)
{
    return c->w->device && dev_owns(c->w->dev, buf) ? c->w->device : c->t;
}

/* The transport that allocates memory which the ranks of a group share. */
static const struct transport *sharing(const struct comm *c) { return c->w->device ? c->w->device : c->t; }

void *comm_alloc(struct comm *c, enum mem_cat cat, size_t bytes)
{
    return c->w->device ? dev_alloc(c->w->dev, cat, bytes) : c->w->t->alloc(c->w, cat, bytes);
}

void comm_free(struct comm *c, void *p)
{
    if (c->w->device)
        dev_free(c->w->dev, p);
    else
        c->w->t->free(c->w, p);
}

/* ---- counts, and what an error means for the other ranks ---- */
/* When a call began. */
struct begun {
    int64_t ns, trace_ns, across;
};

static struct begun begin(const struct comm *c)
{
    return (struct begun){ clock_ns(), trace_now(c->w->trace), c->w->across_bytes };
}

/* Ends a call: counts and traces it, and makes an error a failure of the world. */
static int done(struct comm *c, enum comm_op op, int64_t bytes, struct begun b, int rc, struct err *e)
{
    struct comm_count *n = &c->count[op];
    n->calls++;
    n->seconds += (double)(clock_ns() - b.ns) * 1e-9;
    n->across += c->w->across_bytes - b.across;
    trace_span(c->w->trace, TRACE_COMM, comm_op_name(op), c->name, b.trace_ns,
               (struct trace_args){ .bytes = bytes, .n_ranks = c->size });
    if (rc < 0) {
        world_fail(c->w, e);
        return rc;
    }
    n->bytes += bytes;
    return 0;
}

/* Begins a call: returns the failure of a failed world, and advances started operations, because a rank that
 * computes has no other moment for them. */
static int enter(struct world *w, struct err *e)
{
    int rc = world_check(w, e);
    if (!w->requests || rc < 0)
        return rc;
    struct comm_count *n =
        &w->requests->c->count[w->requests->op]; /* the oldest one: most likely the one that advances */
    int64_t begin_ns = trace_now(w->trace), begin_time = clock_ns();
    if ((rc = comm_step_requests(w, e)) < 0)
        world_fail(w, e);
    n->seconds += (double)(clock_ns() - begin_time) * 1e-9;
    trace_span(w->trace, TRACE_COMM, "progress", NULL, begin_ns, (struct trace_args){ 0 });
    return rc < 0 ? rc : 0;
}

/* Runs a call of the transport between enter and done. bytes: read from other ranks and sent to them by this
 * rank. */
#define COUNTED(c, op, bytes, call) \
    do { \
        int rc_ = enter((c)->w, e); \
        if (rc_ < 0) \
            return rc_; \
        struct begun begin_ = begin(c); \
        return done((c), (op), (int64_t)(bytes), begin_, (call), e); \
    } while (0)

/* An empty call. */
static int nothing(struct comm *c, struct err *e) { return world_check(c->w, e); }

static int64_t others(const struct comm *c) { return c->size - 1; }

int comm_barrier(struct comm *c, struct err *e) { COUNTED(c, COMM_OTHER, 0, c->t->barrier(c, e)); }

int comm_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e)
{
    if (!bytes)
        return nothing(c, e);
    COUNTED(c, COMM_BROADCAST, c->size > 1 ? bytes : 0,
            transport_of(c, buf)->broadcast(c, buf, bytes, root, e));
}

int comm_all_reduce(struct comm *c, float *buf, int64_t n, struct err *e)
{
    if (!n)
        return nothing(c, e);
    COUNTED(c, COMM_ALL_REDUCE, 2 * others(c) * n * 4 / c->size,
            transport_of(c, buf)->all_reduce(c, SUM_TREE, buf, n, e));
}

int comm_all_reduce_max(struct comm *c, float *buf, int64_t n, struct err *e)
{
    if (!n)
        return nothing(c, e);
    COUNTED(c, COMM_ALL_REDUCE, 2 * others(c) * n * 4 / c->size,
            transport_of(c, buf)->all_reduce(c, SUM_MAX, buf, n, e));
}

int comm_all_reduce_i64(struct comm *c, int64_t *buf, int64_t n, struct err *e)
{
    if (!n)
        return nothing(c, e);
    COUNTED(c, COMM_ALL_REDUCE, 2 * others(c) * n * 8 / c->size,
            transport_of(c, buf)->all_reduce(c, SUM_I64, buf, n, e));
}

int comm_reduce_scatter(struct comm *c, float *out, float *in, int64_t n_each, struct err *e)
{
    if (!n_each)
        return nothing(c, e);
    COUNTED(c, COMM_REDUCE_SCATTER, others(c) * n_each * 4,
            transport_of(c, in)->reduce_scatter(c, out, in, n_each, e));
}

int comm_all_gather(struct comm *c, void *out, const void *in, size_t bytes_each, struct err *e)
{
    if (!bytes_each)
        return nothing(c, e);
    COUNTED(c, COMM_ALL_GATHER, (size_t)others(c) * bytes_each,
            transport_of(c, out)->all_gather(c, out, in, bytes_each, e));
}

int comm_all_gather_shared(struct comm *c, void *shared, const void *in, size_t bytes_each, struct err *e)
{
    if (!bytes_each)
        return nothing(c, e);
    COUNTED(c, COMM_ALL_GATHER, (size_t)others(c) * bytes_each,
            transport_of(c, shared)->all_gather_shared(c, shared, in, bytes_each, e));
}

/* The ranks agree: memory that one machine lacks is no failure of the world. */
int comm_alloc_shared(void **out, struct comm *c, enum mem_cat cat, size_t bytes, struct err *e)
{
    struct err ignored;
    *out = NULL;
    int rc = world_check(c->w, e);
    if (rc < 0)
        return rc;
    int mine = sharing(c)->alloc_shared(out, c, cat, bytes, e);
    rc = comm_agree(c, mine, e);
    if (rc < 0 && mine == 0 && *out)
        sharing(c)->free_shared(c, *out, &ignored);
    if (rc < 0)
        *out = NULL;
    return rc;
}

int comm_free_shared(struct comm *c, void *p, struct err *e)
{
    if (!p)
        return 0;
    if (c->size == 1) /* no other rank to agree with: frees in a failed world too */
        return sharing(c)->free_shared(c, p, e);
    COUNTED(c, COMM_OTHER, 0, sharing(c)->free_shared(c, p, e));
}

void comm_shared_group(const struct comm *c, int *rank, int *size)
{
    sharing(c)->shared_group(c, rank, size);
}

int comm_local_size(const struct comm *c)
{
    const struct topology *at = &c->w->at;
    int n = 0;
    for (int r = 0; r < c->size; r++)
        n += !at->node_of || at->node_of[c->member[r]] == at->node_of[at->rank];
    return n;
}

int comm_send(struct comm *c, const void *buf, size_t bytes, int to, struct err *e)
{
    COUNTED(c, COMM_SEND, bytes, transport_of(c, buf)->send(c, buf, bytes, to, e));
}

int comm_recv(struct comm *c, void *buf, size_t bytes, int from, struct err *e)
{
    COUNTED(c, COMM_SEND, bytes, transport_of(c, buf)->recv(c, buf, bytes, from, e));
}

/* ---- started and finished ---- */
int comm_step_requests(struct world *w, struct err *e)
{
    int n = w->t->poll ? w->t->poll(w, e) : 0;
    if (n < 0)
        return n;
    for (struct comm_request *q = w->requests; q; q = q->next) {
        int rc = q->done ? 0 : q->t->step(q, e);
        if (rc < 0)
            return rc;
        n += !q->done && q->t == q->c->t; /* a device advances by itself */
    }
    return n;
}

static int start(struct comm_request **out, struct comm *c, struct comm_request like, struct err *e)
{
    struct begun b = begin(c);
    int rc = world_check(c->w, e);
    size_t counts = like.to ? (size_t)c->size * sizeof *like.to : 0;
    struct comm_request *q = rc < 0 ? NULL : malloc(sizeof *q + 2 * counts), **last = &c->w->requests;
    *out = NULL;
    if (rc < 0)
        return rc;

    if (!q) {
        err_set(e, ERR_MEMORY, "no memory to start %s", comm_op_name(like.op));
        return done(c, like.op, 0, b, -ERR_MEMORY, e);
    }

    *q = like;
    if (counts) { /* behind the request */
        q->to = memcpy(q + 1, like.to, counts);
        q->from = memcpy((char *)(q + 1) + counts, like.from, counts);
    }
    q->c = c;
    q->done = !q->n;
    q->t = transport_of(c, q->in);
    if (q->n) {
        q->number = q->t == c->t ? c->n_started++ : 0;
        rc = q->t->start(q, e);
    }

    c->count[q->op].seconds += (double)(clock_ns() - b.ns) * 1e-9;
    c->count[q->op].across += c->w->across_bytes - b.across;
    trace_span(c->w->trace, TRACE_COMM, "start", c->name, b.trace_ns,
               (struct trace_args){ .bytes = q->bytes, .n_ranks = c->size });
    if (rc < 0) {
        q->t->release(q);
        free(q);
        world_fail(c->w, e);
        return rc;
    }

    while (*last)
        last = &(*last)->next;
    *last = q;
    *out = q;
    return 0;
}

int comm_start_all_reduce(struct comm_request **out, struct comm *c, float *buf, int64_t n, struct err *e)
{
    struct comm_request q = { .op = COMM_ALL_REDUCE,
                              .bytes = 2 * others(c) * n * 4 / c->size,
                              .what = CALL_REDUCE,
                              .out = buf,
                              .in = buf,
                              .n = n };
    return start(out, c, q, e);
}

int comm_start_reduce_scatter(struct comm_request **out, struct comm *c, float *to, float *in, int64_t n_each,
                              struct err *e)
{
    struct comm_request q = { .op = COMM_REDUCE_SCATTER,
                              .bytes = others(c) * n_each * 4,
                              .what = CALL_REDUCE_SCATTER,
                              .out = to,
                              .in = in,
                              .n = n_each };
    return start(out, c, q, e);
}

int comm_start_all_gather(struct comm_request **out, struct comm *c, void *to, const void *in,
                          size_t bytes_each, struct err *e)
{
    struct comm_request q = { .op = COMM_ALL_GATHER,
                              .bytes = others(c) * (int64_t)bytes_each,
                              .what = CALL_ALL_GATHER,
                              .out = to,
                              .in = in,
                              .n = (int64_t)bytes_each };
    return start(out, c, q, e);
}

int comm_start_all_gather_shared(struct comm_request **out, struct comm *c, void *shared, const void *in,
                                 size_t bytes_each, struct comm_callback on_complete, struct err *e)
{
    struct comm_request q = { .op = COMM_ALL_GATHER,
                              .bytes = others(c) * (int64_t)bytes_each,
                              .what = CALL_SHARED,
                              .out = shared,
                              .in = in,
                              .n = (int64_t)bytes_each,
                              .on_complete = on_complete };
    return start(out, c, q, e);
}

int comm_start_all_to_all_v(struct comm_request **out, struct comm *c, void *to_rows, const int64_t *from,
                            const void *in, const int64_t *to, size_t row_bytes, struct err *e)
{
    int64_t rows = rows_before(to, c->size) - to[c->rank];
    struct comm_request q = { .op = COMM_ALL_TO_ALL,
                              .bytes = rows * (int64_t)row_bytes,
                              .what = CALL_ALL_TO_ALL,
                              .out = to_rows,
                              .in = in,
                              .n = (int64_t)row_bytes,
                              .to = to,
                              .from = from };
    return start(out, c, q, e);
}

int comm_progress(struct comm *c, struct err *e) { return enter(c->w, e); }

int comm_finish(struct comm_request **out, struct err *e)
{
    struct comm_request *q = *out, **p;
    if (!q)
        return 0;
    struct comm *c = q->c;
    struct begun b = begin(c);
    int rc = world_check(c->w, e);
    if (rc == 0 && !q->done)
        rc = q->t->finish(q, e);

    for (p = &c->w->requests; *p != q; p = &(*p)->next)
        ;
    *p = q->next;

    q->t->release(q);
    *out = NULL;
    rc = done(c, q->op, q->bytes, b, rc, e);
    free(q);
    return rc;
}

int comm_all_to_all_v(struct comm *c, void *out, const int64_t *from, const void *in, const int64_t *to,
                      size_t row_bytes, struct err *e)
{
    struct comm_request *q;
    int rc = comm_start_all_to_all_v(&q, c, out, from, in, to, row_bytes, e);
    return rc < 0 ? rc : comm_finish(&q, e);
}

/* ---- made of the operations above ---- */
/* all[size] = the number of every rank. */
static int gather_numbers(struct comm *c, int64_t mine, int64_t *all, struct err *e)
{
    all[c->rank] = mine;
    COUNTED(c, COMM_OTHER, others(c) * 8, c->t->all_gather(c, all, &all[c->rank], sizeof *all, e));
}

static int64_t *numbers_new(const struct comm *c, struct err *e)
{
    int64_t *all = calloc((size_t)c->size, sizeof *all);
    if (!all)
        err_set(e, ERR_MEMORY, "no memory for %d numbers", c->size);
    return all;
}

static int gather_into(struct comm *c, const void *blob, const size_t *sizes, size_t sum, int root, char *out,
                       struct err *e)
{
    COUNTED(c, COMM_OTHER, c->rank == root ? sum - sizes[root] : sizes[c->rank],
            c->t->gather(c, blob, sizes, root, out, e));
}

int comm_gather_blobs(struct comm *c, const void *blob, size_t bytes, int root, void **out, size_t *sizes,
                      struct err *e)
{
    int64_t *all = numbers_new(c, e);
    size_t *size = calloc((size_t)c->size, sizeof *size), sum = 0;
    char *p = NULL;
    int rc = 0;
    *out = NULL;
    if (!all || !size) {
        rc = err_set(e, ERR_MEMORY, "no memory for the sizes of %d blobs", c->size);
        goto out;
    }

    TRY(gather_numbers(c, (int64_t)bytes, all, e));
    for (int r = 0; r < c->size; r++)
        sum += size[r] = (size_t)all[r];
    if (c->rank == root && !(p = malloc(sum ? sum : 1))) {
        rc = err_set(e, ERR_MEMORY, "no memory for %zu bytes from %d ranks", sum, c->size);
        goto out;
    }

    if (sum)
        TRY(gather_into(c, blob, size, sum, root, p, e));
    if (c->rank == root) {
        memcpy(sizes, size, (size_t)c->size * sizeof *size);
        *out = p;
        p = NULL;
    }
out:
    if (rc < 0)
        world_fail(c->w, e);
    free(p);
    free(size);
    free(all);
    return rc;
}

/* Only one rank is named: agreements nest (of a group, then of the world). */
void comm_name_rank(struct err *e, int rank)
{
    int named, n = 0;
    if (sscanf(e->text, "rank %d: %n", &named, &n) < 1 || !n)
        err_add(e, "rank %d", rank);
}

/* Gives all ranks the error of rank `from`. */
static int share_error(struct comm *c, int code, int from, int name_it, struct err *e)
{
    struct err x = { .code = code };
    if (c->rank == from)
        memcpy(x.text, e->text, sizeof x.text);
    int rc = comm_broadcast(c, x.text, sizeof x.text, from, e);
    if (rc < 0)
        return rc;
    x.text[sizeof x.text - 1] = 0;
    if (name_it) /* an error that all ranks found names none */
        comm_name_rank(&x, c->member[from]);
    *e = x;
    return -code;
}

int comm_agree(struct comm *c, int rc, struct err *e)
{
    struct err mine = { 0 };
    int64_t *all = c->size > 1 ? numbers_new(c, e) : NULL;
    int got = 0, from = 0, all_failed = 1;
    if (c->size == 1)
        return rc < 0 ? rc : 0;
    if (rc < 0)
        mine = *e;
    if (!all) {
        world_fail(c->w, e);
        return -ERR_MEMORY;
    }

    /* the code of every rank, and the first that failed */
    got = gather_numbers(c, rc < 0 ? -rc : 0, all, e);
    for (int r = 0; got == 0 && r < c->size; r++)
        all_failed &= all[r] != 0;
    while (got == 0 && from < c->size && !all[from])
        from++;

    if (got == 0 && from < c->size) {
        if (rc < 0)
            *e = mine;
        got = share_error(c, (int)all[from], from, !all_failed, e);
    }

    if (got == -ERR_PEER && rc < 0 && rc != -ERR_PEER && atomic_load(&c->w->board->failed)) {
        *e = mine; /* the agreement failed: this rank's own error tells more */
        got = rc;
    }
    free(all);
    return got;
}

int comm_agree_alike(struct comm *c, const uint64_t *own, int n, const char *differ, struct err *e)
{
    uint64_t first[8];
    size_t bytes = (size_t)n * sizeof *own;

    memcpy(first, own, bytes);
    int rc = comm_broadcast(c, first, bytes, 0, e);
    if (rc >= 0 && memcmp(first, own, bytes))
        rc = err_set(e, ERR_CONFIG, "%s", differ);
    return comm_agree(c, rc, e);
}

/* ---- groups ---- */
static struct comm *group_of(struct comm *parent, const int64_t *colour)
{
    int *member = malloc((size_t)parent->size * sizeof *member), n = 0;
    for (int r = 0; member && r < parent->size; r++)
        if (colour[r] == colour[parent->rank])
            member[n++] = parent->member[r];
    return member ? comm_new(parent->w, member, n) : NULL;
}

/* The parent's rank of the first member of this rank's group. */
static int leader_of(const struct comm *parent, const int64_t *colour)
{
    int r = 0;
    while (colour[r] != colour[parent->rank])
        r++;
    return r;
}

int comm_split(struct comm **out, struct comm *parent, int colour, struct err *e)
{
    int64_t *colours = numbers_new(parent, e), *number = numbers_new(parent, e), offered = -1;
    struct comm *c = NULL;
    int rc = 0, leader;
    *out = NULL;
    if (!colours || !number) {
        rc = -ERR_MEMORY;
        goto out;
    }

    /* who is in the group */
    TRY(gather_numbers(parent, colour, colours, e));
    leader = leader_of(parent, colours);
    if (!(c = group_of(parent, colours))) {
        rc = err_set(e, ERR_MEMORY, "no memory for a group of %d ranks", parent->size);
        goto out;
    }

    /* the number that names it, from its first rank */
    if (leader == parent->rank)
        TRY(c->t->group_propose(c, &offered, e));
    TRY(gather_numbers(parent, offered, number, e));
    TRY(c->t->group_join(c, number[leader], e));
    if (c->w->nccl)
        TRY(nccl_join(c, e));
    *out = c;
    c = NULL;
out:
    if (rc < 0)
        world_fail(parent->w, e);
    comm_close(c);
    free(colours);
    free(number);
    return rc;
}

/* A tree of 2^a ranks is nested by itself. */
void comm_nest(struct comm *c, int inner)
{
    int is_nested = (c->size & (c->size - 1)) == 0 || inner == c->size;
    c->inner = is_nested || ALTERED("comm_nested") ? 0 : inner;
}

void comm_counts(const struct comm *c, struct comm_count out[COMM_OPS])
{
    memcpy(out, c->count, sizeof c->count);
}

const char *comm_op_name(enum comm_op op)
{
    static const char *const name[COMM_OPS] = {
        [COMM_ALL_REDUCE] = "all_reduce",
        [COMM_REDUCE_SCATTER] = "reduce_scatter",
        [COMM_ALL_GATHER] = "all_gather",
        [COMM_BROADCAST] = "broadcast",
        [COMM_SEND] = "send",
        [COMM_ALL_TO_ALL] = "all_to_all",
        [COMM_OTHER] = "other",
    };
    return name[op];
}
