/* mpi_request.c - started operations over messages. An all-reduce has two stages: slices to their ranks, then
 * sums to all. The second begins on every rank in the order of the starts, so that messages of the same kind
 * arrive in order. */
#include "comm/mpi/mpi_group.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/shm/shm.h"

/* request.stage */
enum { FIRST, SUMS };

struct under_way { /* request.priv */
    MPI_Request *req;
    int n_req;
    char *scratch;
};

static size_t n_pieces(size_t bytes) { return (bytes + PIECE - 1) / PIECE; }

static int is_small(const struct comm_request *q) { return (size_t)q->n * 4 <= SMALL; }

static int is_gather(const struct comm_request *q)
{
    return q->what == CALL_ALL_GATHER || q->what == CALL_SHARED;
}

static int sums(const struct comm_request *q)
{
    return q->what == CALL_REDUCE || q->what == CALL_REDUCE_SCATTER;
}

/* Rows of the largest message of an all-to-all. */
static int64_t most_rows(const struct comm_request *q)
{
    int64_t most = 0;
    for (int r = 0; r < q->c->size; r++) {
        most = q->to[r] > most ? q->to[r] : most;
        most = q->from[r] > most ? q->from[r] : most;
    }
    return most;
}

/* Bytes of the largest message, to size the requests by. */
static size_t most_bytes(const struct comm_request *q)
{
    size_t n = (size_t)q->n;
    if (q->what == CALL_ALL_TO_ALL)
        return (size_t)most_rows(q) * n;
    return is_gather(q)                                    ? n
           : q->what == CALL_REDUCE_SCATTER || is_small(q) ? n * 4
                                                           : (size_t)mpi_slice_begin(q->n, q->c->size, 1) * 4;
}

static void post(struct comm_request *q, int sends, void *p, size_t bytes, int peer, int kind)
{
    struct under_way *u = q->priv;
    struct mpi_group *g = q->c->priv;
    MPI_Comm comm = q->c->w->mpi->comm;
    int rank = q->c->member[peer], tag = TAG_OF(g, kind);
    for (size_t lo = 0; lo < bytes; lo += PIECE) {
        char *piece = (char *)p + lo;
        int n = (int)(bytes - lo < PIECE ? bytes - lo : PIECE);
        if (sends)
            MPI_Isend(piece, n, MPI_BYTE, rank, tag, comm, &u->req[u->n_req++]);
        else
            MPI_Irecv(piece, n, MPI_BYTE, rank, tag, comm, &u->req[u->n_req++]);
    }
    if (sends)
        mpi_count_across(q->c, bytes, peer);
}

/* Sends this rank's part to every rank, and receives theirs: that of rank r to `to` + r * stride. */
static void exchange(struct comm_request *q, char *mine, size_t bytes, char *to, size_t stride, int kind)
{
    for (int r = 0; r < q->c->size; r++)
        if (r != q->c->rank) {
            post(q, 0, to + (size_t)r * stride, bytes, r, kind);
            post(q, 1, mine, bytes, r, kind);
        }
}

/* Sends slice r of buf to rank r, and receives this rank's slices. equal: slices of q->n elements each. */
static void scatter_slices(struct comm_request *q, char *buf, int equal)
{
    struct under_way *u = q->priv;
    int size = q->c->size, me = q->c->rank;
    int64_t mine = equal ? q->n : mpi_slice_begin(q->n, size, me + 1) - mpi_slice_begin(q->n, size, me);
    for (int r = 0; r < size; r++) {
        int64_t b = equal ? q->n * r : mpi_slice_begin(q->n, size, r),
                end = equal ? b + q->n : mpi_slice_begin(q->n, size, r + 1);
        if (r == me)
            continue;
        post(q, 0, u->scratch + (size_t)(r * mine) * 4, (size_t)mine * 4, r, KIND_STARTED);
        post(q, 1, buf + (size_t)b * 4, (size_t)(end - b) * 4, r, KIND_STARTED);
    }
}

/* Sends the rows for every rank, and receives those from it. */
static void exchange_rows(struct comm_request *q)
{
    char *in = (char *)(uintptr_t)q->in, *out = q->out;
    for (int r = 0; r < q->c->size; r++) {
        size_t sent = (size_t)(q->to[r] * q->n), got = (size_t)(q->from[r] * q->n);
        if (r != q->c->rank) {
            post(q, 0, out, got, r, KIND_STARTED);
            post(q, 1, in, sent, r, KIND_STARTED);
        }
        in += sent;
        out += got;
    }
}

static void copy_own_rows(const struct comm_request *q)
{
    int me = q->c->rank;
    if (q->to[me])
        memcpy((char *)q->out + rows_before(q->from, me) * q->n,
               (const char *)q->in + rows_before(q->to, me) * q->n, (size_t)(q->to[me] * q->n));
}

/* A gather into memory that several ranks of a machine share: the start does all of it, and waits until
 * on_complete has run on all ranks of this machine. */
static int share_now(struct comm_request *q, struct err *e)
{
    int rc = mpi_nodes_all_gather_shared(q->c, q->out, q->in, (size_t)q->n, e);
    if (rc == 0 && q->on_complete.run) {
        q->on_complete.run(q->on_complete.arg);
        rc = shm_barrier(mpi_node(q->c), e);
    }
    q->done = rc == 0;
    return rc;
}

int mpi_start(struct comm_request *q, struct err *e)
{
    if (q->what == CALL_SHARED && mpi_has_nodes(q->c))
        return share_now(q, e);
    size_t most = most_bytes(q), size = (size_t)q->c->size;
    struct under_way *u = calloc(1, sizeof *u);
    if (u) {
        u->req = calloc(2 * size * n_pieces(most) + 1, sizeof *u->req);
        u->scratch = sums(q) ? malloc(size * most) : NULL;
    }
    q->priv = u;
    if (!u || !u->req || (sums(q) && !u->scratch))
        return err_set(e, ERR_MEMORY, "no memory for %zu bytes from the other ranks", size * most);
    if (is_gather(q))
        exchange(q, (char *)(uintptr_t)q->in, most, q->out, most, KIND_STARTED);
    else if (q->what == CALL_ALL_TO_ALL)
        exchange_rows(q);
    else if (q->what == CALL_REDUCE && is_small(q))
        exchange(q, q->out, most, u->scratch, most, KIND_STARTED);
    else
        scatter_slices(q, (char *)(uintptr_t)q->in, q->what == CALL_REDUCE_SCATTER);
    return 0;
}

/* ---- once the messages have arrived ---- */
static void send_sums(struct comm_request *q)
{
    struct under_way *u = q->priv;
    int size = q->c->size, me = q->c->rank;
    int64_t begin = mpi_slice_begin(q->n, size, me), n = mpi_slice_begin(q->n, size, me + 1) - begin;
    float *buf = q->out;
    if (n)
        mpi_sum_scratch(q->c, SUM_TREE, buf + begin, buf + begin, u->scratch, n);
    u->n_req = 0;
    for (int r = 0; r < size; r++) {
        int64_t b = mpi_slice_begin(q->n, size, r), end = mpi_slice_begin(q->n, size, r + 1);
        if (r == me)
            continue;
        post(q, 0, buf + b, (size_t)(end - b) * 4, r, KIND_SUMS);
        post(q, 1, buf + begin, (size_t)n * 4, r, KIND_SUMS);
    }
    q->stage = SUMS;
}

static void end(struct comm_request *q)
{
    struct under_way *u = q->priv;
    int me = q->c->rank;
    if (q->what == CALL_REDUCE && q->stage == FIRST)
        mpi_sum_scratch(q->c, SUM_TREE, q->out, q->out, u->scratch, q->n);
    if (q->what == CALL_REDUCE_SCATTER)
        mpi_sum_scratch(q->c, SUM_TREE, q->out, (float *)(uintptr_t)q->in + q->n * me, u->scratch, q->n);
    if (is_gather(q) && (char *)q->out + q->n * me != q->in)
        memmove((char *)q->out + q->n * me, q->in, (size_t)q->n);
    if (q->what == CALL_ALL_TO_ALL)
        copy_own_rows(q);
    if (q->on_complete.run)
        q->on_complete.run(q->on_complete.arg);
    q->done = 1;
}

/* 1 while an earlier all-reduce of the group has not sent its sums. */
static int must_wait(const struct comm_request *q)
{
    for (const struct comm_request *x = q->c->w->requests; x && x != q; x = x->next)
        if (x->c == q->c && x->what == CALL_REDUCE && x->stage == FIRST && !is_small(x) && !x->done)
            return 1;
    return 0;
}

int mpi_step(struct comm_request *q, struct err *e)
{
    struct under_way *u = q->priv;
    struct world *w = q->c->w;
    int there = 0, two_stages = q->what == CALL_REDUCE && !is_small(q);
    int n_status = !q->done && u->n_req <= 4 * w->at.size ? u->n_req : 0;
    if (q->done)
        return 0;
    int rc = MPI_Testall(u->n_req, u->req, &there, n_status ? w->mpi->status : MPI_STATUSES_IGNORE);
    if (rc != MPI_SUCCESS)
        return mpi_lost(w, rc, n_status, e);
    if (!there)
        return 0;
    if (!two_stages || q->stage == SUMS)
        end(q);
    else if (!must_wait(q))
        send_sums(q);
    return 0;
}

int mpi_finish(struct comm_request *q, struct err *e)
{
    int64_t begin = clock_ns();
    int rc = mpi_step(q, e);
    while (rc == 0 && !q->done)
        rc = mpi_meanwhile(q->c->w, begin, e);
    return rc;
}

/* After a failure MPI may still use the memory: it stays allocated. */
void mpi_release(struct comm_request *q)
{
    struct under_way *u = q->priv;
    if (!u || (!q->done && u->n_req))
        return;
    free(u->scratch);
    free(u->req);
    free(u);
}
