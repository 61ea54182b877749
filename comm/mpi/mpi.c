/* mpi.c - the transport between machines. It sends messages from point to point only, so that the order of
 * every sum is ours.
 *
 * all-reduce: slice r of all ranks goes to rank r, which adds in tree order and sends the sum to all: as many
 * bytes as a ring. A wait looks at the board of this machine, and for the message of a failed rank on
 * another. After a failure MPI is not called any more: it may still hold buffers that belong to the
 * callers. */
#include "comm/mpi/mpi_group.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/trace.h"
#include "comm/shm/shm.h"

#define SUM_PIECE ((int64_t)1 << 22)  /* elements of a sum at a time: bounds the scratch */
#define UNDER_WAY ((size_t)256 << 20) /* bytes sent and not received before a send waits */
#define YIELD_NS 10000000  /* then naps: a long message is many small ones, which need both sides awake */
#define IDLE_NS 1000000000 /* then longer naps */
#define TAG_FAILED 0
/* ---- the world ---- */
int mpi_open_world(struct world *w, struct err *e)
{
    struct mpi_world *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_MEMORY, "no memory for the transport");
    m->last = &m->first;
    w->mpi = m;
    m->status = calloc(4 * (size_t)w->at.size, sizeof *m->status);
    if (!m->status)
        return err_set(e, ERR_MEMORY, "no memory for the transport");
    if (MPI_Comm_dup(MPI_COMM_WORLD, &m->comm) != MPI_SUCCESS)
        return err_set(e, ERR_PEER, "MPI cannot make a communicator");
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    return 0;
}

/* Frees the sends that MPI has delivered. */
static void reap(struct mpi_world *m)
{
    struct outgoing **p = &m->first, *o;
    int sent;
    while ((o = *p) != NULL) {
        if (MPI_Test(&o->req, &sent, MPI_STATUS_IGNORE) != MPI_SUCCESS || !sent) {
            p = &o->next;
            continue;
        }
        m->under_way -= o->bytes;
        *p = o->next;
        free(o);
    }
    m->last = p;
}

static void mpi_close(struct world *w, int orderly)
{
    struct mpi_world *m = w->mpi;
    if (!m) {
        shm_close_world(w);
        return;
    }
    if (orderly) {
        reap(m);
        /* else a message was never received: its communicator stays */
        if (!m->first)
            MPI_Comm_free(&m->comm);
    }
    free(m->scratch);
    free(m->node_scratch);
    free(m->status);
    free(m);
    w->mpi = NULL;
    shm_close_world(w);
}

/* In the segment when the machine has one: groups that lie on the machine sum there. */
static void *mpi_alloc(struct world *w, enum mem_cat cat, size_t bytes)
{
    return w->shm ? segment_alloc(&w->seg, cat, bytes) : mem_alloc(w->mem, cat, bytes);
}

static void mpi_free(struct world *w, void *p)
{
    if (w->shm)
        segment_free(&w->seg, p);
    else
        mem_free(w->mem, p);
}

/* Sends the failure to ranks of other machines; those of this machine read it on the board. The requests are
 * freed unfinished: a short message arrives without further calls. */
static void mpi_report_failure(struct world *w, const char *text)
{
    static _Thread_local char copy[1024]; /* must outlive the request */
    struct mpi_world *m = w->mpi;
    MPI_Request req;
    if (!m || w->at.node_size == w->at.size)
        return;
    strncpy(copy, text, sizeof copy - 1);
    for (int r = 0; r < w->at.size; r++)
        if (r != w->at.rank &&
            MPI_Isend(copy, sizeof copy, MPI_CHAR, r, TAG_FAILED, m->comm, &req) == MPI_SUCCESS)
            MPI_Request_free(&req);
}

/* ---- waiting ---- */
/* Looks for a failure that another machine has sent. */
static int hear_failure(struct world *w, struct err *e)
{
    struct mpi_world *m = w->mpi;
    char text[1024];
    MPI_Status from;
    int there = 0;
    if (w->at.node_size == w->at.size ||
        MPI_Iprobe(MPI_ANY_SOURCE, TAG_FAILED, m->comm, &there, &from) != MPI_SUCCESS || !there)
        return 0;
    MPI_Recv(text, sizeof text, MPI_CHAR, from.MPI_SOURCE, TAG_FAILED, m->comm, MPI_STATUS_IGNORE);
    text[sizeof text - 1] = 0;
    failure_board_fail(w->board, text);
    return failure_board_check(w->board, e);
}

static void nap(int64_t waited_ns)
{
    struct timespec t = { 0, waited_ns > IDLE_NS ? 1000000 : 50000 };
    if (waited_ns < YIELD_NS)
        sched_yield();
    else
        nanosleep(&t, NULL);
}

/* Called while a rank waits in shared memory: some of its messages leave only when MPI is called. */
static int mpi_poll(struct world *w, struct err *e)
{
    struct mpi_world *m = w->mpi;
    int n = 0, rc = hear_failure(w, e);
    if (rc < 0)
        return rc;
    if (m->first)
        reap(m);
    for (struct outgoing *o = m->first; o; o = o->next)
        n++;
    return n;
}

/* The connection may break before the watch reports the cause, so this waits a moment for a text on the
 * board. */
int mpi_lost(struct world *w, int mpi_rc, int n, struct err *e)
{
    struct mpi_world *m = w->mpi;
    int class = MPI_ERR_OTHER;
    MPI_Error_class(mpi_rc, &class);
    for (int i = 0; class == MPI_ERR_IN_STATUS && i < n; i++)
        if (m->status[i].MPI_ERROR != MPI_SUCCESS && m->status[i].MPI_ERROR != MPI_ERR_PENDING)
            MPI_Error_class(m->status[i].MPI_ERROR, &class);
    if (class == MPI_ERR_TRUNCATE)
        return err_set(
            e, ERR_INTERNAL,
            "a longer message came than was expected: all ranks of a group must make the same calls");
    for (int64_t end = clock_ns() + IDLE_NS; clock_ns() < end; nap(YIELD_NS)) {
        int rc = failure_board_check(w->board, e);
        if (rc < 0)
            return rc;
    }
    return err_set(e, ERR_PEER, "the connection to another rank broke");
}

/* ERR_PEER when a wait for another machine has taken longer than its limit. */
static int check_limit(const struct world *w, int64_t begin_ns, struct err *e)
{
    const int64_t waited_ns = clock_ns() - begin_ns;
    char host[64] = "";
    if (!w->wait_limit_ns || waited_ns < w->wait_limit_ns || w->at.node_size == w->at.size)
        return 0;
    gethostname(host, sizeof host - 1);
    return err_set(
        e, ERR_PEER,
        "rank %d on %s has waited %d s for ranks of other machines: is the network between them up",
        w->at.rank, host, (int)(waited_ns / SECOND_NS));
}

int mpi_meanwhile(struct world *w, int64_t begin_ns, struct err *e)
{
    int rc = failure_board_check(w->board, e);
    if (rc == 0)
        rc = comm_step_requests(w, e);
    if (rc >= 0 && check_limit(w, begin_ns, e) < 0)
        return -e->code;
    nap(clock_ns() - begin_ns);
    return rc < 0 ? rc : 0;
}

/* Waits for n requests, n <= 4 * size of the world. */
static int finish(struct world *w, MPI_Request *req, int n, const char *group, struct err *e)
{
    struct mpi_world *m = w->mpi;
    int64_t begin = clock_ns(), seen = trace_now(w->trace);
    int waited = 0;
    for (int done = 0;;) {
        int rc = MPI_Testall(n, req, &done, m->status);
        if (rc != MPI_SUCCESS)
            return mpi_lost(w, rc, n, e);
        if (done)
            break;
        if ((rc = mpi_meanwhile(w, begin, e)) < 0)
            return rc;
        waited = 1;
    }
    if (waited)
        trace_span(w->trace, TRACE_WAIT, "wait", group, seen, (struct trace_args){ 0 });
    return 0;
}

/* ---- groups ---- */
/* A multiple of the world's size, plus this rank: different first ranks never propose the same number. 0 is
 * the group of all ranks. */
static int mpi_group_propose(struct comm *c, int64_t *number, struct err *e)
{
    struct mpi_world *m = c->w->mpi;
    *number = c->w->at.size * ++m->n_offered + c->w->at.rank;
    if (*number > INT_MAX / KINDS - KINDS)
        return err_set(e, ERR_INTERNAL, "more than %lld groups were made", (long long)m->n_offered);
    return 0;
}

static int mpi_group_join(struct comm *c, int64_t number, struct err *e)
{
    struct mpi_group *g = calloc(1, sizeof *g);
    if (g)
        g->req = calloc(4 * (size_t)c->size, sizeof *g->req);
    if (!g || !g->req) {
        free(g);
        return err_set(e, ERR_MEMORY, "no memory for a group of %d ranks", c->size);
    }
    g->id = number;
    c->priv = g;
    return mpi_nodes_open(c, e);
}

static void mpi_group_leave(struct comm *c)
{
    struct mpi_group *g = c->priv;
    if (!g)
        return;
    comm_close(g->node);
    comm_close(g->across);
    free(g->req);
    free(g);
    c->priv = NULL;
}

/* ---- a batch of messages of one group: posted, then finished ---- */
void mpi_post_send(struct comm *c, const void *p, size_t bytes, int to)
{
    struct mpi_group *g = c->priv;
    struct mpi_world *m = c->w->mpi;
    mpi_count_across(c, bytes, to);
    if (bytes)
        MPI_Isend(p, (int)bytes, MPI_BYTE, c->member[to], TAG_OF(g, KIND_COLLECTIVE), m->comm,
                  &g->req[g->n_req++]);
}

void mpi_post_recv(struct comm *c, void *p, size_t bytes, int from)
{
    struct mpi_group *g = c->priv;
    struct mpi_world *m = c->w->mpi;
    if (bytes)
        MPI_Irecv(p, (int)bytes, MPI_BYTE, c->member[from], TAG_OF(g, KIND_COLLECTIVE), m->comm,
                  &g->req[g->n_req++]);
}

int mpi_finish_batch(struct comm *c, struct err *e)
{
    struct mpi_group *g = c->priv;
    int n = g->n_req;
    g->n_req = 0;
    return finish(c->w, g->req, n, c->name, e);
}

static char *scratch(struct comm *c, size_t bytes, struct err *e)
{
    struct mpi_world *m = c->w->mpi;
    if (bytes > m->scratch_bytes) {
        char *p = realloc(m->scratch, bytes);
        if (!p) {
            err_set(e, ERR_MEMORY, "no memory for %zu bytes from the other ranks", bytes);
            return NULL;
        }
        m->scratch = p;
        m->scratch_bytes = bytes;
    }
    return m->scratch;
}

/* ---- collectives ---- */
/* Dissemination: step k exchanges with the ranks 2^k away. */
static int mpi_barrier(struct comm *c, struct err *e)
{
    if (mpi_has_nodes(c))
        return mpi_nodes_barrier(c, e);
    char out = 0, in;
    int rc = 0;
    for (int k = 1; rc == 0 && k < c->size; k *= 2) {
        mpi_post_recv(c, &in, 1, (c->rank - k + c->size) % c->size);
        mpi_post_send(c, &out, 1, (c->rank + k) % c->size);
        rc = mpi_finish_batch(c, e);
    }
    return rc;
}

/* Binomial tree: a rank receives from the rank without its lowest bit, then sends to the ranks with one lower
 * bit more. */
static int broadcast_piece(struct comm *c, char *buf, size_t bytes, int root, struct err *e)
{
    int me = (c->rank - root + c->size) % c->size, bit = 1, rc = 0;
    while (bit < c->size && !(me & bit))
        bit *= 2;
    if (me) {
        mpi_post_recv(c, buf, bytes, ((me & ~bit) + root) % c->size);
        rc = mpi_finish_batch(c, e);
    }
    for (bit /= 2; bit; bit /= 2)
        if (me + bit < c->size)
            mpi_post_send(c, buf, bytes, (me + bit + root) % c->size);
    return rc < 0 ? rc : mpi_finish_batch(c, e);
}

static int mpi_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e)
{
    int rc = 0;
    if (mpi_has_nodes(c))
        return mpi_nodes_broadcast(c, buf, bytes, root, e);
    for (size_t lo = 0; rc == 0 && lo < bytes; lo += PIECE)
        rc = broadcast_piece(c, (char *)buf + lo, bytes - lo < PIECE ? bytes - lo : PIECE, root, e);
    return rc;
}

static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

int64_t mpi_slice_begin(int64_t n, int n_slices, int r)
{
    return min_of((n + n_slices - 1) / n_slices * r, n);
}

void mpi_sum_scratch(struct comm *c, enum sum_kind kind, void *out, void *mine, char *s, int64_t n)
{
    void *in[SUM_RANKS_MAX];
    for (int r = 0; r < c->size; r++)
        in[r] = r == c->rank ? mine : s + (size_t)(r * n) * sum_size(kind);
    sum_over(kind, out, in, c->size, c->inner, n);
}

/* Every rank receives all arrays and sums them itself. */
static int small_reduce(struct comm *c, enum sum_kind kind, void *buf, int64_t n, struct err *e)
{
    size_t bytes = (size_t)n * sum_size(kind);
    char *s = scratch(c, (size_t)c->size * bytes, e);
    int rc;
    if (!s)
        return -e->code;
    for (int r = 0; r < c->size; r++)
        if (r != c->rank) {
            mpi_post_recv(c, s + (size_t)r * bytes, bytes, r);
            mpi_post_send(c, buf, bytes, r);
        }
    rc = mpi_finish_batch(c, e);
    if (rc == 0)
        mpi_sum_scratch(c, kind, buf, buf, s, n);
    return rc;
}

static int reduce_piece(struct comm *c, enum sum_kind kind, char *buf, int64_t n, struct err *e)
{
    size_t size = sum_size(kind);
    int64_t begin = mpi_slice_begin(n, c->size, c->rank),
            mine = mpi_slice_begin(n, c->size, c->rank + 1) - begin;
    char *s = scratch(c, (size_t)(c->size * mine) * size + 1, e), *my = buf + (size_t)begin * size;
    int rc = s ? 0 : -e->code;
    for (int r = 0; s && r < c->size; r++) {
        int64_t b = mpi_slice_begin(n, c->size, r), count = mpi_slice_begin(n, c->size, r + 1) - b;
        if (r == c->rank)
            continue;
        mpi_post_recv(c, s + (size_t)(r * mine) * size, (size_t)mine * size, r);
        mpi_post_send(c, buf + (size_t)b * size, (size_t)count * size, r);
    }
    if (rc < 0 || (rc = mpi_finish_batch(c, e)) < 0)
        return rc;
    if (mine)
        mpi_sum_scratch(c, kind, my, my, s, mine);
    for (int r = 0; r < c->size; r++) {
        int64_t b = mpi_slice_begin(n, c->size, r), count = mpi_slice_begin(n, c->size, r + 1) - b;
        if (r == c->rank)
            continue;
        mpi_post_recv(c, buf + (size_t)b * size, (size_t)count * size, r);
        mpi_post_send(c, my, (size_t)mine * size, r);
    }
    return mpi_finish_batch(c, e);
}

static int mpi_all_reduce(struct comm *c, enum sum_kind kind, void *buf, int64_t n, struct err *e)
{
    size_t size = sum_size(kind);
    int rc = 0;
    if (mpi_nodes_sum(c))
        return mpi_nodes_all_reduce(c, kind, buf, n, e);
    if ((size_t)n * size <= SMALL)
        return small_reduce(c, kind, buf, n, e);
    for (int64_t lo = 0; rc == 0 && lo < n; lo += SUM_PIECE)
        rc = reduce_piece(c, kind, (char *)buf + (size_t)lo * size, min_of(SUM_PIECE, n - lo), e);
    return rc;
}

static int mpi_reduce_scatter(struct comm *c, float *out, float *in, int64_t n_each, struct err *e)
{
    int64_t step = SUM_PIECE / c->size + 1;
    int rc = 0;
    if (mpi_nodes_sum(c))
        return mpi_nodes_reduce_scatter(c, out, in, n_each, e);
    for (int64_t lo = 0; rc == 0 && lo < n_each; lo += step) {
        int64_t n = min_of(step, n_each - lo);
        char *s = scratch(c, (size_t)(c->size * n) * 4, e);
        if (!s)
            return -e->code;
        for (int r = 0; r < c->size; r++)
            if (r != c->rank) {
                mpi_post_recv(c, s + (size_t)(r * n) * 4, (size_t)n * 4, r);
                mpi_post_send(c, in + r * n_each + lo, (size_t)n * 4, r);
            }
        rc = mpi_finish_batch(c, e);
        if (rc == 0)
            mpi_sum_scratch(c, SUM_TREE, out + lo, in + c->rank * n_each + lo, s, n);
    }
    return rc;
}

static int mpi_all_gather(struct comm *c, void *out, const void *in, size_t each, struct err *e)
{
    char *o = out;
    int rc = 0;
    if (mpi_has_nodes(c))
        return mpi_nodes_all_gather(c, out, in, each, e);
    for (size_t lo = 0; rc == 0 && lo < each; lo += PIECE) {
        size_t n = each - lo < PIECE ? each - lo : PIECE;
        for (int r = 0; r < c->size; r++)
            if (r != c->rank) {
                mpi_post_recv(c, o + (size_t)r * each + lo, n, r);
                mpi_post_send(c, (const char *)in + lo, n, r);
            }
        rc = mpi_finish_batch(c, e);
    }
    if (rc == 0 && o + (size_t)c->rank * each != in)
        memmove(o + (size_t)c->rank * each, in, each);
    return rc;
}

/* ---- memory that a machine shares: where the group is regular (mpi_nodes.c); else every rank has its own
 * ---- */
static int mpi_alloc_shared(void **out, struct comm *c, enum mem_cat cat, size_t bytes, struct err *e)
{
    if (mpi_has_nodes(c))
        return transport_shm.alloc_shared(out, mpi_node(c), cat, bytes, e);
    *out = mpi_alloc(c->w, cat, bytes);
    return *out ? 0 : err_set(e, ERR_MEMORY, "no memory for %zu bytes", bytes);
}

static int mpi_free_shared(struct comm *c, void *p, struct err *e)
{
    if (mpi_has_nodes(c))
        return transport_shm.free_shared(mpi_node(c), p, e);
    mpi_free(c->w, p);
    return 0;
}

static void mpi_shared_group(const struct comm *c, int *rank, int *size)
{
    *rank = mpi_has_nodes(c) ? mpi_node(c)->rank : 0;
    *size = mpi_has_nodes(c) ? mpi_node(c)->size : 1;
}

static int mpi_all_gather_shared(struct comm *c, void *shared, const void *in, size_t each, struct err *e)
{
    return mpi_has_nodes(c) ? mpi_nodes_all_gather_shared(c, shared, in, each, e)
                            : mpi_all_gather(c, shared, in, each, e);
}

static int mpi_gather(struct comm *c, const void *blob, const size_t *sizes, int root, char *out,
                      struct err *e)
{
    size_t to = 0;
    int rc = 0;
    for (int r = 0; rc == 0 && r < c->size; to += sizes[r++])
        for (size_t lo = 0; rc == 0 && lo < sizes[r]; lo += PIECE) {
            size_t n = sizes[r] - lo < PIECE ? sizes[r] - lo : PIECE;
            if (r == root && c->rank == root)
                memcpy(out + to + lo, (const char *)blob + lo, n);
            else if (c->rank == root)
                mpi_post_recv(c, out + to + lo, n, r);
            else if (c->rank == r)
                mpi_post_send(c, (const char *)blob + lo, n, root);
            rc = mpi_finish_batch(c, e);
        }
    return rc;
}

/* ---- messages: the length first, so that the receiver can check it ---- */
/* Sends a copy of one piece. */
static int post(struct comm *c, const void *p, size_t bytes, int to, struct err *e)
{
    struct mpi_world *m = c->w->mpi;
    struct outgoing *o = malloc(sizeof *o + bytes);
    if (!o)
        return err_set(e, ERR_MEMORY, "no memory for a message of %zu bytes", bytes);
    *o = (struct outgoing){ .bytes = bytes };
    mpi_count_across(c, bytes, to);
    memcpy(o->data, p, bytes);
    int rc = MPI_Isend(o->data, (int)bytes, MPI_BYTE, c->member[to],
                       TAG_OF((struct mpi_group *)c->priv, KIND_MESSAGE), m->comm, &o->req);
    if (rc != MPI_SUCCESS) {
        free(o);
        return mpi_lost(c->w, rc, 0, e);
    }
    *m->last = o;
    m->last = &o->next;
    m->under_way += bytes;
    return 0;
}

static int mpi_send(struct comm *c, const void *buf, size_t bytes, int to, struct err *e)
{
    struct mpi_world *m = c->w->mpi;
    uint64_t length = bytes;
    int rc = 0;
    reap(m);
    while (m->first && m->under_way + bytes > UNDER_WAY) {
        TRY(finish(c->w, &m->first->req, 1, c->name, e));
        reap(m);
    }
    TRY(post(c, &length, sizeof length, to, e));
    for (size_t lo = 0; lo < bytes; lo += PIECE)
        TRY(post(c, (const char *)buf + lo, bytes - lo < PIECE ? bytes - lo : PIECE, to, e));
out:
    return rc;
}

static int recv_piece(struct comm *c, void *p, size_t bytes, int from, struct err *e)
{
    struct mpi_world *m = c->w->mpi;
    MPI_Request req;
    int rc = MPI_Irecv(p, (int)bytes, MPI_BYTE, c->member[from],
                       TAG_OF((struct mpi_group *)c->priv, KIND_MESSAGE), m->comm, &req);
    return rc == MPI_SUCCESS ? finish(c->w, &req, 1, c->name, e) : mpi_lost(c->w, rc, 0, e);
}

static int mpi_recv(struct comm *c, void *buf, size_t bytes, int from, struct err *e)
{
    uint64_t length = 0;
    int rc = 0;
    TRY(recv_piece(c, &length, sizeof length, from, e));
    if (length != bytes)
        return err_set(e, ERR_INTERNAL,
                       "rank %d sent %llu bytes, %zu are received: sends and receives must pair up",
                       c->member[from], (unsigned long long)length, bytes);
    for (size_t lo = 0; lo < bytes; lo += PIECE)
        TRY(recv_piece(c, (char *)buf + lo, bytes - lo < PIECE ? bytes - lo : PIECE, from, e));
out:
    return rc;
}

const struct transport transport_mpi = {
    .name = "mpi",
    .close = mpi_close,
    .alloc = mpi_alloc,
    .free = mpi_free,
    .poll = mpi_poll,
    .report_failure = mpi_report_failure,
    .group_propose = mpi_group_propose,
    .group_join = mpi_group_join,
    .group_leave = mpi_group_leave,
    .barrier = mpi_barrier,
    .broadcast = mpi_broadcast,
    .all_reduce = mpi_all_reduce,
    .reduce_scatter = mpi_reduce_scatter,
    .all_gather = mpi_all_gather,
    .gather = mpi_gather,
    .send = mpi_send,
    .recv = mpi_recv,
    .alloc_shared = mpi_alloc_shared,
    .free_shared = mpi_free_shared,
    .shared_group = mpi_shared_group,
    .all_gather_shared = mpi_all_gather_shared,
    .start = mpi_start,
    .step = mpi_step,
    .finish = mpi_finish,
    .release = mpi_release,
};
