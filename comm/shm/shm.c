/* shm.c - collectives of ranks that share a machine: every rank reads the buffers of all where they lie.
 *
 * Small (to SHM_SLOT bytes): each rank copies into its slot; one barrier; each sums all slots itself. Larger:
 * each rank posts where its buffer is; barrier; each works on its slice of all buffers; barrier. A buffer
 * outside of the segment goes through a staging buffer, piece by piece; then all ranks go piece by piece,
 * which they learn from the posts.
 *
 * all-reduce of a piece, 3 ranks: rank r reads slice r of all buffers, adds in tree order, stores the sum
 *     into all buffers.
 *     rank 0 [ 0 | 1 | 2 ]     no other rank touches slice r meanwhile, so two barriers are enough */
#define _GNU_SOURCE
#include "comm/shm/shm.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/pool.h"
#include "base/trace.h"
#include "kernels/dev.h"

/* elements summed at a time and then copied to the others while they are in the cache */
#define CHUNK 2048
#define WORKING_YIELD_NS 300000 /* as in wait_counter_until */
#define WORKING_NAP_NS 1000000  /* another counter than the one slept on may need this rank */
#define SLICE_ALIGN 16          /* elements: slices begin on a cache line of their own */
#define POOL_MIN 65536          /* elements of a slice from which the pool's threads are woken for it */

/* ---- the part of the world ---- */
static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int shm_open_world(struct world *w, struct err *e)
{
    struct shm_world *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_MEMORY, "no memory for the transport");
    s->spin = w->at.node_size <= cores();
    w->shm = s;
    return 0;
}

void shm_close_world(struct world *w)
{
    for (struct shm_shared *s = w->shm ? w->shm->shared : NULL, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    if (w->shm)
        free(w->shm->retired);
    free(w->shm);
    w->shm = NULL;
}

static void shm_close(struct world *w, int orderly)
{
    (void)orderly;
    shm_close_world(w);
}

static void *shm_alloc(struct world *w, enum mem_cat cat, size_t bytes)
{
    return segment_alloc(&w->seg, cat, bytes);
}
static void shm_free(struct world *w, void *p) { segment_free(&w->seg, p); }

/* ---- groups ---- */
size_t shm_block_bytes(int size)
{
    size_t n = (size_t)size;
    return sizeof(struct shm_block) + n * sizeof(struct shm_member) + n * n * sizeof(struct shm_channel);
}

struct shm_channel *shm_channel(const struct comm *c, int from, int to)
{
    struct shm_group *g = c->priv;
    return (struct shm_channel *)&g->block->member[c->size] + (size_t)from * (size_t)c->size + (size_t)to;
}

/* Frees the blocks that all ranks have left; called whenever a new one is made. */
static void sweep(struct world *w)
{
    struct shm_world *s = w->shm;
    int kept = 0;
    for (int i = 0; i < s->n_retired; i++) {
        if (atomic_load(&s->retired[i]->users) == 0)
            segment_free(&w->seg, s->retired[i]);
        else
            s->retired[kept++] = s->retired[i];
    }
    s->n_retired = kept;
}

static int shm_group_propose(struct comm *c, int64_t *number, struct err *e)
{
    sweep(c->w);
    struct shm_block *b = segment_alloc(&c->w->seg, MEM_COMM, shm_block_bytes(c->size));
    if (!b)
        return err_set(e, ERR_MEMORY, "no shared memory for a group of %d ranks", c->size);
    atomic_store(&b->users, c->size);
    *number = (char *)b - c->w->seg.base;
    return 0;
}

/* Number 0 is the group of all ranks, whose block lies behind the board. */
static int shm_group_join(struct comm *c, int64_t number, struct err *e)
{
    struct shm_group *g = calloc(1, sizeof *g);
    size_t off = number ? (size_t)number : failure_board_bytes(c->w->at.node_size);
    if (!g || number < 0) {
        free(g);
        return err_set(e, ERR_MEMORY, "no memory for a group of %d ranks", c->size);
    }
    g->block = (struct shm_block *)(c->w->seg.base + off);
    g->owner = number != 0 && segment_offset(&c->w->seg, g->block, 1) >= 0;
    c->priv = g;
    return 0;
}

static void retire(struct world *w, struct shm_block *b)
{
    struct shm_world *s = w->shm;
    struct shm_block **p = realloc(s->retired, (size_t)(s->n_retired + 1) * sizeof *p);
    if (!p)
        return; /* the block stays until the world ends */
    s->retired = p;
    s->retired[s->n_retired++] = b;
}

static void shm_group_leave(struct comm *c)
{
    struct shm_group *g = c->priv;
    if (!g)
        return;
    shm_outbox_close(c);
    if (g->owner)
        retire(c->w, g->block);
    atomic_fetch_sub(&g->block->users, 1);
    free(g);
    c->priv = NULL;
}

/* ---- barriers ---- */
/* Waits and advances started operations: other ranks may wait for this rank's part of them. */
static int wait_working(struct comm *c, struct wait_counter *w, uint32_t target, struct err *e)
{
    int64_t begin = clock_ns();
    while (!wait_counter_reached(w, target)) {
        int left = comm_step_requests(c->w, e), rc = left < 0 ? left : failure_board_check(c->w->board, e);
        if (rc < 0)
            return rc;
        if (clock_ns() - begin < WORKING_YIELD_NS)
            sched_yield();
        else
            wait_counter_for(w, target, left ? WORKING_NAP_NS : 100 * WORKING_NAP_NS);
    }
    return 0;
}

int shm_wait(struct comm *c, struct wait_counter *w, uint32_t target, struct err *e)
{
    if (wait_counter_reached(w, target))
        return 0;
    int64_t begin = trace_now(c->w->trace);
    int rc = c->w->requests || c->w->mpi ? wait_working(c, w, target, e)
                                         : wait_counter_until(c->w->board, w, target, c->w->shm->spin, e);
    trace_span(c->w->trace, TRACE_WAIT, "wait", c->name, begin, (struct trace_args){ .n_ranks = c->size });
    return rc;
}

int shm_barrier(struct comm *c, struct err *e)
{
    struct shm_group *g = c->priv;
    uint32_t next = ++g->epoch;
    if (atomic_fetch_add(&g->block->arrived, 1) + 1 < (uint32_t)c->size)
        return shm_wait(c, &g->block->epoch, next, e);
    /* the last one resets the count before any rank can arrive at the next barrier */
    atomic_store(&g->block->arrived, 0);
    wait_counter_set(&g->block->epoch, next);
    return 0;
}

static const char *call_name(int what)
{
    static const char *const name[] = { "?",          "barrier",        "broadcast",
                                        "all_reduce", "reduce_scatter", "all_gather",
                                        "gather",     "node's slices",  "all_gather_shared",
                                        "all_to_all" };
    int call = what & 0xff;
    return call < (int)(sizeof name / sizeof *name) ? name[call] : name[0];
}

static int misfit(struct comm *c, int r, int what_r, int64_t bytes_r, int what_0, int64_t bytes_0,
                  struct err *e)
{
    return err_set(
        e, ERR_INTERNAL,
        "rank %d calls %s of %lld bytes, rank %d %s of %lld: all ranks of a group must make the same calls",
        c->member[r], call_name(what_r), (long long)bytes_r, c->member[0], call_name(what_0),
        (long long)bytes_0);
}

int shm_check_posts(struct comm *c, int r, const struct shm_post *p, const struct shm_post *first,
                    struct err *e)
{
    return p->what == first->what && p->bytes == first->bytes
               ? 0
               : misfit(c, r, p->what, p->bytes, first->what, first->bytes, e);
}

/* ---- small operations: one barrier ---- */
static struct shm_slot *slot(const struct comm *c, int r)
{
    struct shm_group *g = c->priv;
    return &g->block->member[r].slot[g->n_small & 1];
}

/* Exchanges small data through the slots. data NULL: this rank has none, its slot keeps what it holds. */
static int small_sync(struct comm *c, int what, const void *data, size_t bytes, struct err *e)
{
    struct shm_group *g = c->priv;
    g->n_small++;
    struct shm_slot *mine = slot(c, c->rank), *first = slot(c, 0);
    mine->what = what;
    mine->bytes = (int64_t)bytes;
    if (data)
        memcpy(mine->data, data, bytes);
    int rc = shm_barrier(c, e);
    for (int r = 1; rc == 0 && r < c->size; r++)
        if (slot(c, r)->what != first->what || slot(c, r)->bytes != first->bytes)
            rc = misfit(c, r, slot(c, r)->what, slot(c, r)->bytes, first->what, first->bytes, e);
    return rc;
}

/* ---- larger ones: posts, pieces, two barriers a piece ---- */
char *shm_stage(struct world *w, struct err *e)
{
    struct shm_world *s = w->shm;
    if (!s->stage && !(s->stage = segment_alloc(&w->seg, MEM_COMM, SHM_STAGE)))
        err_set(e, ERR_MEMORY, "no shared memory for a staging buffer of %zu bytes", SHM_STAGE);
    return s->stage;
}

int shm_prepare(struct comm *c, struct shm_post *mine, int what, const void *buf, size_t bytes, struct err *e)
{
    *mine = (struct shm_post){ .off = segment_offset(&c->w->seg, buf, bytes),
                               .bytes = (int64_t)bytes,
                               .what = what };
    if (mine->off >= 0)
        return 0;
    char *s = shm_stage(c->w, e);
    if (!s)
        return -e->code;
    mine->off = s - c->w->seg.base;
    mine->staged = 1;
    return 0;
}

const struct shm_post *shm_post_of(const struct comm *c, int r)
{
    return &((struct shm_group *)c->priv)->block->member[r].post;
}

int shm_post_sync(struct comm *c, const struct shm_post *mine, struct err *e)
{
    struct shm_group *g = c->priv;
    const struct shm_post *first = shm_post_of(c, 0);
    int any = 0;
    g->block->member[c->rank].post = *mine;
    int rc = shm_barrier(c, e);
    if (rc < 0)
        return rc;
    for (int r = 0; rc == 0 && r < c->size; r++) {
        rc = shm_check_posts(c, r, shm_post_of(c, r), first, e);
        any |= shm_post_of(c, r)->staged;
    }
    return rc < 0 ? rc : any;
}

char *shm_at(const struct comm *c, const struct shm_post *p) { return c->w->seg.base + p->off; }

static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- sums ---- */
static void sum_chunk(const struct shm_slice *s, int64_t begin, int64_t n)
{
    size_t size = sum_size(s->kind), off = (size_t)begin * size;
    void *in[SUM_RANKS_MAX];
    for (int r = 0; r < s->n_in; r++)
        in[r] = (char *)s->in[r] + off;
    char *out = s->out ? s->out + off : in[s->mine];
    sum_over(s->kind, out, in, s->n_in, s->inner, n);
    for (int r = 0; s->everywhere && r < s->n_in; r++)
        if (r != s->mine)
            memcpy(in[r], out, (size_t)n * size);
}

static void sum_task(void *arg, int64_t task, int thread)
{
    const struct shm_slice *s = arg;
    int64_t begin = task * CHUNK;
    (void)thread;
    sum_chunk(s, begin, min_of(CHUNK, s->n - begin));
}

void shm_sum_slice(struct comm *c, struct shm_slice *s)
{
    struct pool *pool = c->w->dev ? c->w->dev->pool : NULL;
    int64_t n_tasks = (s->n + CHUNK - 1) / CHUNK;
    if (pool && pool_threads(pool) > 1 && s->n >= POOL_MIN)
        pool_run(pool, n_tasks, sum_task, s);
    else
        for (int64_t t = 0; t < n_tasks; t++)
            sum_task(s, t, 0);
}

int64_t shm_slice_begin(int64_t n, int n_slices, int r)
{
    int64_t each = ((n + n_slices - 1) / n_slices + SLICE_ALIGN - 1) / SLICE_ALIGN * SLICE_ALIGN;
    return min_of(each * r, n);
}

static int small_reduce(struct comm *c, enum sum_kind kind, void *buf, int64_t n, struct err *e)
{
    void *in[SUM_RANKS_MAX];
    int rc = small_sync(c, CALL_REDUCE, buf, (size_t)n * sum_size(kind), e);
    for (int r = 0; rc == 0 && r < c->size; r++)
        in[r] = slot(c, r)->data;
    if (rc == 0)
        sum_over(kind, buf, in, c->size, c->inner, n);
    return rc;
}

static int small_scatter(struct comm *c, float *out, const float *buf, int64_t n_each, struct err *e)
{
    void *in[SUM_RANKS_MAX];
    int rc = small_sync(c, CALL_REDUCE_SCATTER, buf, (size_t)(n_each * c->size) * 4, e);
    for (int r = 0; rc == 0 && r < c->size; r++)
        in[r] = slot(c, r)->data + (size_t)(n_each * c->rank) * 4;
    if (rc == 0)
        sum_over(SUM_TREE, out, in, c->size, c->inner, n_each);
    return rc;
}

/* Sums this rank's slice of elements [lo, lo + n) into all buffers. */
static void reduce_piece(struct comm *c, enum sum_kind kind, int64_t lo, int64_t n)
{
    void *in[SUM_RANKS_MAX];
    int64_t begin = shm_slice_begin(n, c->size, c->rank), end = shm_slice_begin(n, c->size, c->rank + 1);
    for (int r = 0; r < c->size; r++) {
        const struct shm_post *p = shm_post_of(c, r);
        in[r] = shm_at(c, p) + (size_t)(begin + (p->staged ? 0 : lo)) * sum_size(kind);
    }
    struct shm_slice s = { .kind = kind,
                           .in = in,
                           .n_in = c->size,
                           .mine = c->rank,
                           .everywhere = 1,
                           .inner = c->inner,
                           .n = end - begin };
    shm_sum_slice(c, &s);
}

static int shm_all_reduce(struct comm *c, enum sum_kind kind, void *buf, int64_t n, struct err *e)
{
    size_t size = sum_size(kind);
    int64_t step = (int64_t)(SHM_STAGE / size);
    struct shm_post mine;
    int rc = 0, any = 0;
    if ((size_t)n * size <= SHM_SLOT)
        return small_reduce(c, kind, buf, n, e);
    TRY(shm_prepare(c, &mine, CALL_REDUCE, buf, (size_t)n * size, e));
    for (int64_t lo = 0; lo < n; lo += step) {
        char *piece = (char *)buf + (size_t)lo * size;
        if (mine.staged)
            memcpy(shm_at(c, &mine), piece, (size_t)min_of(step, n - lo) * size);
        TRY(lo ? shm_barrier(c, e) : (any = shm_post_sync(c, &mine, e)));
        if (!any)
            step = n; /* all in the segment: one piece */
        reduce_piece(c, kind, lo, min_of(step, n - lo));
        TRY(shm_barrier(c, e));
        if (mine.staged)
            memcpy(piece, shm_at(c, &mine), (size_t)min_of(step, n - lo) * size);
    }
    rc = 0;
out:
    return rc;
}

/* Sums elements [lo, lo + n) of this rank's segment of all inputs. A staging buffer holds `step` elements of
 * every segment. */
static void scatter_piece(struct comm *c, float *out, int64_t n_each, int64_t step, int64_t lo, int64_t n)
{
    void *in[SUM_RANKS_MAX];
    for (int r = 0; r < c->size; r++) {
        const struct shm_post *p = shm_post_of(c, r);
        in[r] = (float *)shm_at(c, p) + (p->staged ? c->rank * step : c->rank * n_each + lo);
    }
    struct shm_slice s = { .kind = SUM_TREE,
                           .in = in,
                           .n_in = c->size,
                           .mine = c->rank,
                           .inner = c->inner,
                           .out = (char *)(out + lo),
                           .n = n };
    shm_sum_slice(c, &s);
}

static int shm_reduce_scatter(struct comm *c, float *out, float *in, int64_t n_each, struct err *e)
{
    int64_t step = (int64_t)(SHM_STAGE / sizeof *in) / c->size, n;
    struct shm_post mine;
    int rc = 0, any = 0;
    if ((size_t)(n_each * c->size) * 4 <= SHM_SLOT)
        return small_scatter(c, out, in, n_each, e);
    TRY(shm_prepare(c, &mine, CALL_REDUCE_SCATTER, in, (size_t)(n_each * c->size) * sizeof *in, e));
    for (int64_t lo = 0; lo < n_each; lo += n) {
        n = min_of(step, n_each - lo);
        for (int r = 0; mine.staged && r < c->size; r++)
            memcpy(shm_at(c, &mine) + (size_t)(r * step) * 4, in + r * n_each + lo, (size_t)n * 4);
        TRY(lo ? shm_barrier(c, e) : (any = shm_post_sync(c, &mine, e)));
        if (!any)
            n = n_each;
        scatter_piece(c, out, n_each, step, lo, n);
        TRY(shm_barrier(c, e));
    }
    rc = 0;
out:
    return rc;
}

/* ---- copies ---- */
static int small_gather(struct comm *c, char *out, const void *in, size_t each, struct err *e)
{
    int rc = small_sync(c, CALL_ALL_GATHER, in, each, e);
    for (int r = 0; rc == 0 && r < c->size; r++)
        memcpy(out + (size_t)r * each, slot(c, r)->data, each);
    return rc;
}

static int shm_all_gather(struct comm *c, void *out, const void *in, size_t each, struct err *e)
{
    struct shm_post mine;
    size_t step = SHM_STAGE;
    char *o = out;
    int rc = 0, any = 0;
    if (each <= SHM_SLOT)
        return small_gather(c, out, in, each, e);
    TRY(shm_prepare(c, &mine, CALL_ALL_GATHER, in, each, e));
    for (size_t lo = 0; lo < each; lo += step) {
        if (mine.staged)
            memcpy(shm_at(c, &mine), (const char *)in + lo, each - lo < step ? each - lo : step);
        TRY(lo ? shm_barrier(c, e) : (any = shm_post_sync(c, &mine, e)));
        if (!any)
            step = each;
        /* begins with the next rank, so that not all read from the same one at once */
        for (int k = 1; k < c->size; k++) {
            int r = (c->rank + k) % c->size;
            const struct shm_post *p = shm_post_of(c, r);
            memcpy(o + (size_t)r * each + lo, shm_at(c, p) + (p->staged ? 0 : lo),
                   each - lo < step ? each - lo : step);
        }
        TRY(shm_barrier(c, e));
    }
    rc = 0;
    if (o + (size_t)c->rank * each != in)
        memmove(o + (size_t)c->rank * each, in, each);
out:
    return rc;
}

static int small_broadcast(struct comm *c, void *buf, size_t bytes, int root, int what, struct err *e)
{
    int rc = small_sync(c, what, c->rank == root ? buf : NULL, bytes, e);
    if (rc == 0 && c->rank != root)
        memcpy(buf, slot(c, root)->data, bytes);
    return rc;
}

/* ---- memory that a machine shares: it lies in the region of the group's first rank ---- The region counts
 * all of it for its rank. Every rank's count is corrected to its share before the allocation, so that no peak
 * shows the whole, and until the memory is freed. Without memory for the record (48 bytes) the first rank
 * fails for all; another rank's share is not counted. */
static struct shm_shared *count_share(struct comm *c, enum mem_cat cat, size_t bytes)
{
    struct shm_shared *s = malloc(sizeof *s);
    int64_t share = (int64_t)bytes / c->size, first = (int64_t)bytes - share * (c->size - 1);
    if (!s)
        return NULL;
    *s = (struct shm_shared){ c->w->shm->shared, NULL, c->rank == 0 ? first - (int64_t)bytes : share, cat };
    c->w->shm->shared = s;
    mem_count(c->w->seg.mem, cat, s->counted);
    return s;
}

static void uncount_share(struct comm *c, const void *p)
{
    for (struct shm_shared **at = &c->w->shm->shared, *s; (s = *at) != NULL; at = &s->next)
        if (s->p == p) {
            mem_count(c->w->seg.mem, s->cat, -s->counted);
            *at = s->next;
            free(s);
            return;
        }
}

static int shm_alloc_shared(void **out, struct comm *c, enum mem_cat cat, size_t bytes, struct err *e)
{
    struct shm_shared *note = count_share(c, cat, bytes);
    int64_t off = -1;
    int rc;
    if (c->rank == 0 && note && (*out = segment_alloc(&c->w->seg, cat, bytes)) != NULL)
        off = (char *)*out - c->w->seg.base;
    TRY(small_broadcast(c, &off, sizeof off, 0, CALL_SHARED, e));
    *out = off < 0 ? NULL : c->w->seg.base + off;
    if (!*out)
        rc = err_set(e, ERR_MEMORY, "no shared memory for %zu bytes of %d ranks", bytes, c->size);
out:
    if (note && rc >= 0)
        note->p = *out;
    if (rc < 0)
        uncount_share(c, NULL);
    return rc;
}

static int shm_free_shared(struct comm *c, void *p, struct err *e)
{
    int rc = shm_barrier(c, e); /* no rank reads it any more */
    uncount_share(c, p);
    if (c->rank == 0)
        segment_free(&c->w->seg, p);
    return rc;
}

static void shm_shared_group(const struct comm *c, int *rank, int *size)
{
    *rank = c->rank;
    *size = c->size;
}

static int shm_all_gather_shared(struct comm *c, void *shared, const void *in, size_t each, struct err *e)
{
    char *mine = (char *)shared + (size_t)c->rank * each;
    int copies = mine != in, rc;
    TRY(small_sync(c, CALL_SHARED | copies << 8, NULL, each, e));
    if (copies) {
        memcpy(mine, in, each);
        TRY(shm_barrier(c, e));
    }
    rc = 0;
out:
    return rc;
}

static int shm_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e)
{
    int rc = 0, any = 0, what = CALL_BROADCAST | root << 8, is_root = c->rank == root;
    struct shm_post mine = { .bytes = (int64_t)bytes, .what = what };
    size_t step = SHM_STAGE, n;
    if (bytes <= SHM_SLOT)
        return small_broadcast(c, buf, bytes, root, what, e);
    if (is_root)
        TRY(shm_prepare(c, &mine, what, buf, bytes, e));
    for (size_t lo = 0; lo < bytes; lo += step) {
        n = bytes - lo < step ? bytes - lo : step;
        if (is_root && mine.staged)
            memcpy(shm_at(c, &mine), (char *)buf + lo, n);
        TRY(lo ? shm_barrier(c, e) : (any = shm_post_sync(c, &mine, e)));
        if (!any)
            n = step = bytes;
        if (!is_root)
            memcpy((char *)buf + lo, shm_at(c, shm_post_of(c, root)) + (any ? 0 : lo), n);
        TRY(shm_barrier(c, e));
    }
    rc = 0;
out:
    return rc;
}

/* Always through the staging buffers: sizes differ, and the call is rare. */
static int shm_gather(struct comm *c, const void *blob, const size_t *sizes, int root, char *out,
                      struct err *e)
{
    struct shm_post mine = { .what = CALL_GATHER | root << 8, .staged = 1 };
    size_t most = 0;
    int rc = 0;
    char *s = shm_stage(c->w, e);
    if (!s)
        return -e->code;
    mine.off = s - c->w->seg.base;
    for (int r = 0; r < c->size; r++)
        most = sizes[r] > most ? sizes[r] : most;
    for (size_t lo = 0; lo < most; lo += SHM_STAGE) {
        size_t left = sizes[c->rank] > lo ? sizes[c->rank] - lo : 0, to = 0;
        if (left)
            memcpy(s, (const char *)blob + lo, left < SHM_STAGE ? left : SHM_STAGE);
        TRY(shm_post_sync(c, &mine, e));
        for (int r = 0; c->rank == root && r < c->size; to += sizes[r++])
            if (sizes[r] > lo)
                memcpy(out + to + lo, shm_at(c, shm_post_of(c, r)),
                       sizes[r] - lo < SHM_STAGE ? sizes[r] - lo : SHM_STAGE);
        TRY(shm_barrier(c, e));
    }
    rc = 0;
out:
    return rc;
}

const struct transport transport_shm = {
    .name = "shm",
    .close = shm_close,
    .alloc = shm_alloc,
    .free = shm_free,
    .group_propose = shm_group_propose,
    .group_join = shm_group_join,
    .group_leave = shm_group_leave,
    .barrier = shm_barrier,
    .broadcast = shm_broadcast,
    .all_reduce = shm_all_reduce,
    .reduce_scatter = shm_reduce_scatter,
    .all_gather = shm_all_gather,
    .gather = shm_gather,
    .send = shm_send,
    .recv = shm_recv,
    .alloc_shared = shm_alloc_shared,
    .free_shared = shm_free_shared,
    .shared_group = shm_shared_group,
    .all_gather_shared = shm_all_gather_shared,
    .start = shm_start,
    .step = shm_step,
    .finish = shm_finish,
    .release = shm_release,
};
