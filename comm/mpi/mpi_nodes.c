/* mpi_nodes.c - groups over several machines with several ranks on each: sums inside a machine first, over
 * its shared memory, then between machines.
 *
 *   2 machines x 2:   ranks 0 1 | 2 3     node: {0 1}, {2 3}     across: {0 2}, {1 3}
 * All-reduce of a piece: local rank j sums slice j of its machine's buffers, sums that with local ranks j of
 * the other machines (flat), and all copy the slices of their neighbours: 2 (N - 1) buffers cross between N
 * machines instead of 2 (P - 1).
 *
 * Tree(P) is Tree(N) over the trees of N groups of P/N neighbours exactly when N is a power of two
 * (kernels/tree.h): then the bits are those of the flat sum. Else, and when machines have different numbers
 * of the group's ranks, the group is flat. */
#include "comm/mpi/mpi_group.h"

#include <stdlib.h>
#include <string.h>

#include "base/alter.h"
#include "comm/shm/shm.h"

static struct mpi_group *group(const struct comm *c) { return c->priv; }

int mpi_has_nodes(const struct comm *c) { return group(c)->node != NULL; }
struct comm *mpi_node(const struct comm *c) { return group(c)->node; }

/* The tree over inner sums is a tree over machines too: they are a power of two. */
int mpi_nodes_sum(const struct comm *c)
{
    struct comm *node = group(c)->node;
    if (!node || (c->inner && node->size % c->inner))
        return 0;
    node->inner = c->inner;
    return 1;
}

void mpi_count_across(struct comm *c, size_t bytes, int to)
{
    const struct topology *at = &c->w->at;
    if (at->node_of[c->member[to]] != at->node_of[at->rank])
        c->w->across_bytes += (int64_t)bytes;
}

/* The number of ranks on every machine, when they are neighbours and equally many on all; else 0. */
static int ranks_a_node(const struct comm *c)
{
    const int *node = c->w->at.node_of;
    int n = 0;
    while (n < c->size && node[c->member[n]] == node[c->member[0]])
        n++;
    if (c->size % n)
        return 0;
    for (int r = 0; r < c->size; r++) {
        int is_first = r % n == 0;
        if (r && (node[c->member[r]] != node[c->member[r - 1]]) != is_first)
            return 0;
    }
    for (int a = 0; a < c->size; a += n) /* two runs on one machine: not neighbours */
        for (int b = 0; b < a; b += n)
            if (node[c->member[a]] == node[c->member[b]])
                return 0;
    return n;
}

static int is_power_of_2(int n) { return (n & (n - 1)) == 0; }

int mpi_nodes_open(struct comm *c, struct err *e)
{
    struct mpi_group *g = c->priv;
    struct comm *node = NULL, *across = NULL;
    int n = c->w->shm ? ranks_a_node(c) : 0, rc = 0;
    if (n < 2 || n == c->size || !(is_power_of_2(c->size / n) || ALTERED("comm_nodes")))
        return 0;
    TRY(comm_split(&node, c, c->rank / n, e));
    TRY(comm_split(&across, c, c->rank % n, e));
    node->name = across->name = c->name;
    g->node = node;
    g->across = across;
    return 0;
out:
    comm_close(node);
    return rc;
}

/* First a barrier of the machine, then one across: its ranks have passed the barriers of their machines. */
int mpi_nodes_barrier(struct comm *c, struct err *e)
{
    int rc = shm_barrier(group(c)->node, e);
    return rc < 0 ? rc : group(c)->across->t->barrier(group(c)->across, e);
}

int mpi_nodes_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e)
{
    struct comm *node = group(c)->node, *across = group(c)->across;
    int rc = node->rank == root % node->size ? across->t->broadcast(across, buf, bytes, root / node->size, e)
                                             : 0;
    return rc < 0 ? rc : node->t->broadcast(node, buf, bytes, root % node->size, e);
}

/* ---- sums ---- */
/* Sums this rank's slice of all neighbours' pieces into its own piece, where no other rank touches it. */
static void reduce_slice(struct comm *node, enum sum_kind kind, int64_t n)
{
    void *in[SUM_RANKS_MAX];
    int64_t begin = shm_slice_begin(n, node->size, node->rank),
            end = shm_slice_begin(n, node->size, node->rank + 1);
    for (int r = 0; r < node->size; r++)
        in[r] = shm_at(node, shm_post_of(node, r)) + (size_t)begin * sum_size(kind);
    struct shm_slice s = {
        .kind = kind, .in = in, .n_in = node->size, .mine = node->rank, .inner = node->inner, .n = end - begin
    };
    shm_sum_slice(node, &s);
}

static void copy_slices(struct comm *node, enum sum_kind kind, char *piece, int64_t n)
{
    size_t size = sum_size(kind);
    for (int k = 1; k < node->size; k++) {
        int r = (node->rank + k) % node->size;
        size_t begin = (size_t)shm_slice_begin(n, node->size, r) * size,
               end = (size_t)shm_slice_begin(n, node->size, r + 1) * size;
        memcpy(piece + begin, shm_at(node, shm_post_of(node, r)) + begin, end - begin);
    }
}

/* piece lies in the segment. */
static int reduce_piece(struct comm *c, enum sum_kind kind, char *piece, int64_t n, struct err *e)
{
    struct comm *node = group(c)->node, *across = group(c)->across;
    int64_t begin = shm_slice_begin(n, node->size, node->rank),
            mine = shm_slice_begin(n, node->size, node->rank + 1) - begin;
    struct shm_post post;
    int rc;
    TRY(shm_prepare(node, &post, CALL_SLICES, piece, (size_t)n * sum_size(kind), e));
    TRY(shm_post_sync(node, &post, e));
    reduce_slice(node, kind, n);
    if (mine)
        TRY(across->t->all_reduce(across, kind, piece + (size_t)begin * sum_size(kind), mine, e));
    TRY(shm_barrier(node, e));
    copy_slices(node, kind, piece, n);
    rc = shm_barrier(node, e);
out:
    return rc;
}

int mpi_nodes_all_reduce(struct comm *c, enum sum_kind kind, void *buf, int64_t n, struct err *e)
{
    struct comm *node = group(c)->node, *across = group(c)->across;
    size_t size = sum_size(kind);
    int64_t step = (int64_t)(SHM_STAGE / size);
    int rc = 0, staged = segment_offset(&c->w->seg, buf, (size_t)n * size) < 0;
    /* every rank of a machine sums across: more bytes, but no third stage */
    if ((size_t)n * size <= SMALL) {
        rc = node->t->all_reduce(node, kind, buf, n, e);
        return rc < 0 ? rc : across->t->all_reduce(across, kind, buf, n, e);
    }
    char *stage = staged ? shm_stage(c->w, e) : NULL;
    if (staged && !stage)
        return -e->code;
    for (int64_t lo = 0; rc == 0 && lo < n; lo += step) {
        char *piece = (char *)buf + (size_t)lo * size;
        int64_t count = n - lo < step ? n - lo : step;
        if (staged)
            memcpy(stage, piece, (size_t)count * size);
        rc = reduce_piece(c, kind, staged ? stage : piece, count, e);
        if (staged && rc == 0)
            memcpy(piece, stage, (size_t)count * size);
    }
    return rc;
}

static char *node_scratch(struct world *w, size_t bytes, struct err *e)
{
    struct mpi_world *m = w->mpi;
    char *p = bytes > m->node_scratch_bytes ? realloc(m->node_scratch, bytes) : m->node_scratch;
    if (!p) {
        err_set(e, ERR_MEMORY, "no memory for %zu bytes of sums", bytes);
        return NULL;
    }
    m->node_scratch_bytes = bytes > m->node_scratch_bytes ? bytes : m->node_scratch_bytes;
    m->node_scratch = p;
    return p;
}

/* out[N][n]: this machine's sums of elements [lo, lo + n) of the segment that belongs to the rank in the same
 * place on machine k, k = 0 … N-1. */
static void scatter_inside(struct comm *c, float *out, int64_t n_each, int64_t step, int64_t lo, int64_t n)
{
    struct comm *node = group(c)->node;
    void *in[SUM_RANKS_MAX];
    for (int k = 0; k < group(c)->across->size; k++) {
        int64_t segment = k * node->size + node->rank;
        for (int r = 0; r < node->size; r++) {
            const struct shm_post *p = shm_post_of(node, r);
            in[r] = (float *)shm_at(node, p) + (p->staged ? segment * step : segment * n_each + lo);
        }
        struct shm_slice s = { .kind = SUM_TREE,
                               .in = in,
                               .n_in = node->size,
                               .mine = node->rank,
                               .inner = node->inner,
                               .out = (char *)(out + k * n),
                               .n = n };
        shm_sum_slice(node, &s);
    }
}

int mpi_nodes_reduce_scatter(struct comm *c, float *out, float *in, int64_t n_each, struct err *e)
{
    struct comm *node = group(c)->node, *across = group(c)->across;
    int64_t step = (int64_t)(SHM_STAGE / sizeof *in) / c->size;
    float *sums = (float *)node_scratch(c->w, (size_t)(step * across->size) * sizeof *sums, e);
    struct shm_post mine;
    int rc = sums ? 0 : -e->code;
    TRY(rc);
    TRY(shm_prepare(node, &mine, CALL_REDUCE_SCATTER, in, (size_t)(n_each * c->size) * sizeof *in, e));
    for (int64_t lo = 0; lo < n_each; lo += step) {
        int64_t n = n_each - lo < step ? n_each - lo : step;
        for (int r = 0; mine.staged && r < c->size; r++)
            memcpy(shm_at(node, &mine) + (size_t)(r * step) * 4, in + r * n_each + lo, (size_t)n * 4);
        TRY(shm_post_sync(node, &mine, e));
        scatter_inside(c, sums, n_each, step, lo, n);
        TRY(shm_barrier(node, e));
        TRY(across->t->reduce_scatter(across, out + lo, sums, n, e));
    }
out:
    return rc < 0 ? rc : 0;
}

/* ---- copies ---- */
/* Through the staging buffers: each rank receives from the other machines, and all ranks of its machine read
 * it there. */
int mpi_nodes_all_gather(struct comm *c, void *out, const void *in, size_t each, struct err *e)
{
    struct comm *node = group(c)->node, *across = group(c)->across;
    size_t step = SHM_STAGE / (size_t)across->size;
    char *stage = shm_stage(c->w, e), *o = out;
    struct shm_post post = { .bytes = (int64_t)each, .what = CALL_ALL_GATHER, .staged = 1 };
    int rc = stage ? 0 : -e->code;
    TRY(rc);
    post.off = stage - c->w->seg.base;
    for (size_t lo = 0; lo < each; lo += step) {
        size_t n = each - lo < step ? each - lo : step;
        TRY(across->t->all_gather(across, stage, (const char *)in + lo, n, e));
        TRY(shm_post_sync(node, &post, e));
        for (int r = 0; r < node->size; r++)
            for (int k = 0; k < across->size; k++)
                memcpy(o + (size_t)(k * node->size + r) * each + lo,
                       shm_at(node, shm_post_of(node, r)) + (size_t)k * n, n);
        TRY(shm_barrier(node, e));
    }
out:
    return rc < 0 ? rc : 0;
}

/* Each rank receives the parts of the ranks in the same place on other machines, directly into the shared
 * memory. */
int mpi_nodes_all_gather_shared(struct comm *c, void *shared, const void *in, size_t each, struct err *e)
{
    struct comm *node = group(c)->node, *across = group(c)->across;
    char *s = shared, *mine = s + (size_t)c->rank * each;
    int rc = shm_barrier(node, e); /* no rank of this machine still reads the old contents */
    if (rc == 0 && mine != in)
        memcpy(mine, in, each);
    for (size_t lo = 0; rc == 0 && lo < each; lo += PIECE) {
        size_t n = each - lo < PIECE ? each - lo : PIECE;
        for (int k = 0; k < across->size; k++)
            if (k != across->rank) {
                mpi_post_recv(across, s + (size_t)(k * node->size + node->rank) * each + lo, n, k);
                mpi_post_send(across, mine + lo, n, k);
            }
        rc = mpi_finish_batch(across, e);
    }
    return rc < 0 ? rc : shm_barrier(node, e);
}
