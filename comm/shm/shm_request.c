/* shm_request.c - started operations of ranks that share a machine, without a thread behind them.
 *
 * The k-th started operation of a group uses lane k mod SHM_LANES. A start writes a post and counts the rank
 * in the lane's `posted`. A rank that finds all ranks there (in a step, a wait, or finish) does its own slice
 * and counts itself in `worked`, and in `done` when the operation has no on_complete. on_complete runs when
 * all ranks have worked. When all are done, the operation has ended and the lane is free. A slow rank delays
 * the others only when they finish. */
#include "comm/shm/shm.h"

#include <string.h>

/* request.stage */
enum { POSTED, WORKED, FOLLOWED };

static struct shm_lane *lane_of(const struct comm_request *q)
{
    return &((struct shm_group *)q->c->priv)->block->lane[q->number % SHM_LANES];
}

static struct shm_post *post_of(const struct comm_request *q, int r)
{
    return &((struct shm_group *)q->c->priv)->block->member[r].started[q->number % SHM_LANES];
}

/* What the lane's counters show when all ranks have counted themselves for q. */
static uint32_t full(const struct comm_request *q)
{
    return (uint32_t)(q->number / SHM_LANES + 1) * (uint32_t)q->c->size;
}

static size_t in_bytes(const struct comm_request *q)
{
    size_t n = (size_t)q->n;
    if (q->what == CALL_ALL_TO_ALL)
        return (size_t)rows_before(q->to, q->c->size) * n;
    return q->what == CALL_REDUCE ? n * 4 : q->what == CALL_REDUCE_SCATTER ? n * 4 * (size_t)q->c->size : n;
}

static const void *in_of(const struct comm_request *q) { return q->what == CALL_REDUCE ? q->out : q->in; }

/* Copies a buffer that lies outside of the segment as a whole: the other ranks may read it at any time. */
static int stage_whole(struct comm_request *q, struct shm_post *mine, struct err *e)
{
    size_t bytes = in_bytes(q);
    if (!bytes)
        return 0;
    mine->off = segment_offset(&q->c->w->seg, in_of(q), bytes);
    if (mine->off >= 0 || q->what == CALL_SHARED) /* every rank copies its own part there */
        return 0;
    q->priv = segment_alloc(&q->c->w->seg, MEM_COMM, bytes);
    if (!q->priv)
        return err_set(e, ERR_MEMORY, "no shared memory for a copy of %zu bytes", bytes);
    memcpy(q->priv, in_of(q), bytes);
    mine->off = (char *)q->priv - q->c->w->seg.base;
    return 0;
}

/* Tells every rank where its rows of this rank's buffer lie. */
static void post_rows(const struct comm_request *q, int64_t off)
{
    for (int r = 0; r < q->c->size; r++) {
        int64_t bytes = q->to[r] * q->n;
        struct shm_channel *to = shm_channel(q->c, q->c->rank, r);
        to->rows[q->number % SHM_LANES].off = off;
        to->rows[q->number % SHM_LANES].bytes = bytes;
        off += bytes;
    }
}

int shm_start(struct comm_request *q, struct err *e)
{
    int64_t same = q->what == CALL_ALL_TO_ALL ? q->n : (int64_t)in_bytes(q);
    struct shm_post mine = { .bytes = same, .what = q->what };
    int rc = 0;
    if (q->number >= SHM_LANES)
        TRY(shm_wait(q->c, &lane_of(q)->done, full(q) - (uint32_t)q->c->size, e));
    TRY(stage_whole(q, &mine, e));
    *post_of(q, q->c->rank) = mine;
    if (q->what == CALL_ALL_TO_ALL)
        post_rows(q, mine.off);
    wait_counter_add(&lane_of(q)->posted, 1);
out:
    return rc;
}

static void reduce_mine(const struct comm_request *q)
{
    struct comm *c = q->c;
    int all = q->what == CALL_REDUCE;
    int64_t begin = all ? shm_slice_begin(q->n, c->size, c->rank) : q->n * c->rank;
    int64_t n = all ? shm_slice_begin(q->n, c->size, c->rank + 1) - begin : q->n;
    void *in[SUM_RANKS_MAX];
    for (int r = 0; r < c->size; r++)
        in[r] = (float *)(c->w->seg.base + post_of(q, r)->off) + begin;
    struct shm_slice s = { .kind = SUM_TREE,
                           .in = in,
                           .n_in = c->size,
                           .mine = c->rank,
                           .everywhere = all,
                           .inner = c->inner,
                           .out = all ? NULL : q->out,
                           .n = n };
    shm_sum_slice(c, &s);
}

static void gather_mine(const struct comm_request *q)
{
    struct comm *c = q->c;
    size_t each = (size_t)q->n;
    char *out = q->out;
    for (int k = 1; k < c->size; k++) {
        int r = (c->rank + k) % c->size;
        memcpy(out + (size_t)r * each, c->w->seg.base + post_of(q, r)->off, each);
    }
    if (out + (size_t)c->rank * each != q->in)
        memmove(out + (size_t)c->rank * each, q->in, each);
}

/* Reads this rank's rows of all ranks where they lie. */
static int read_rows(const struct comm_request *q, struct err *e)
{
    struct comm *c = q->c;
    for (int k = 0; k < c->size; k++) {
        int r = (c->rank + k) % c->size;
        const struct shm_channel *from = shm_channel(c, r, c->rank);
        int64_t off = from->rows[q->number % SHM_LANES].off, sent = from->rows[q->number % SHM_LANES].bytes,
                bytes = q->from[r] * q->n;
        if (sent != bytes)
            return err_set(e, ERR_INTERNAL,
                           "rank %d sends %lld bytes of rows to rank %d, which expects %lld: counts of an "
                           "all_to_all must agree",
                           c->member[r], (long long)sent, c->member[c->rank], (long long)bytes);
        if (bytes)
            memcpy((char *)q->out + rows_before(q->from, r) * q->n, c->w->seg.base + off, (size_t)bytes);
    }
    return 0;
}

static void share_mine(const struct comm_request *q)
{
    char *part = (char *)q->out + (size_t)q->c->rank * (size_t)q->n;
    if (part != q->in)
        memcpy(part, q->in, (size_t)q->n);
}

static int work(struct comm_request *q, struct err *e)
{
    int rc = 0;
    for (int r = 1; r < q->c->size && rc == 0; r++)
        rc = shm_check_posts(q->c, r, post_of(q, r), post_of(q, 0), e);
    if (rc == 0 && q->what == CALL_ALL_TO_ALL)
        rc = read_rows(q, e);
    if (rc < 0)
        return rc;

    if (q->what == CALL_SHARED)
        share_mine(q);
    else if (q->what == CALL_ALL_GATHER)
        gather_mine(q);
    else if (q->what != CALL_ALL_TO_ALL)
        reduce_mine(q);
    q->stage = q->on_complete.run ? WORKED : FOLLOWED;
    wait_counter_add(&lane_of(q)->worked, 1);
    if (!q->on_complete.run)
        wait_counter_add(&lane_of(q)->done, 1);
    return 0;
}

static void follow(struct comm_request *q)
{
    q->on_complete.run(q->on_complete.arg);
    q->stage = FOLLOWED;
    wait_counter_add(&lane_of(q)->done, 1);
}

int shm_step(struct comm_request *q, struct err *e)
{
    int rc = 0;
    if (q->stage == POSTED && wait_counter_reached(&lane_of(q)->posted, full(q)))
        rc = work(q, e);
    if (rc == 0 && q->stage == WORKED && wait_counter_reached(&lane_of(q)->worked, full(q)))
        follow(q);
    if (rc == 0 && q->stage == FOLLOWED && wait_counter_reached(&lane_of(q)->done, full(q))) {
        if (q->priv && q->what == CALL_REDUCE)
            memcpy(q->out, q->priv, in_bytes(q));
        q->done = 1;
    }
    return rc;
}

/* A wait advances all started operations, this one too. */
int shm_finish(struct comm_request *q, struct err *e)
{
    struct wait_counter *const stages[] = { &lane_of(q)->posted, &lane_of(q)->worked, &lane_of(q)->done };
    int rc = shm_step(q, e);
    for (int i = 0; rc == 0 && !q->done && i < 3; i++) {
        TRY(shm_wait(q->c, stages[i], full(q), e));
        rc = shm_step(q, e);
    }
out:
    return rc;
}

/* After a failure other ranks may still read the copy: it stays until the world ends. */
void shm_release(struct comm_request *q)
{
    if (q->done)
        segment_free(&q->c->w->seg, q->priv);
}
