/* nccl.c - operations on device memory over NCCL, one GPU a rank: `--transport nccl`. Everything is put into the device's own stream, behind the ops
 * that make what is sent and before those that read what comes, so nothing is waited for on the host.
 *
 * Sums are the room's, not NCCL's: slice r of all ranks goes to rank r, which adds in tree order (the op tree_add) and sends the sum to all.
 *
 *     buf  [ slice 0 | slice 1 | slice 2 ]   --grouped send and recv-->   scratch [ mine of rank 0 | … ] --tree_add--> buf, my slice --> all
 *
 * Messages (pipelines) go through the host (staged.c): ranks may send to each other first and receive then, which a stream cannot. NCCL is opened
 * when it is asked for; its calls are declared here, so that it is not needed to build. */
#include <dlfcn.h>
#include <stdlib.h>

#include "comm/comm_priv.h"
#include "kernels/cuda/cuda.h"
#include "kernels/kernels.h"

#define SCRATCH 7                        /* slot of the device's scratch */
enum { NCCL_BYTES = 0, NCCL_FLOATS = 7, NCCL_IN_PROGRESS = 7 };          /* ncclInt8, ncclFloat32, ncclInProgress */

struct nccl_id { char bytes[128]; };
typedef void *nccl_comm;

#define NCCL_LIST(X)                                                                                                     \
    X(GetUniqueId, (struct nccl_id *))                                                                                   \
    X(CommInitRank, (nccl_comm *, int, struct nccl_id, int))                                                             \
    X(CommDestroy, (nccl_comm))                                                                                          \
    X(CommAbort, (nccl_comm))                                                                                            \
    X(CommGetAsyncError, (nccl_comm, int *))                                                                             \
    X(AllGather, (const void *, void *, size_t, int, nccl_comm, void *))                                                 \
    X(Broadcast, (const void *, void *, size_t, int, int, nccl_comm, void *))                                            \
    X(Send, (const void *, size_t, int, int, nccl_comm, void *))                                                         \
    X(Recv, (void *, size_t, int, int, nccl_comm, void *))                                                               \
    X(GroupStart, (void))                                                                                                \
    X(GroupEnd, (void))

struct nccl {
    void *library, *stream;
#define X(name, args) int (*name) args;
    NCCL_LIST(X)
#undef X
    const char *(*text)(int rc);
};

static int well(const struct nccl *n, int rc, const char *what, struct err *e)
{
    return rc == 0 ? 0 : err_set(e, ERR_DEVICE, "NCCL: %s: %s", what, n->text(rc));
}

/* ---- the library ---- */
static int find_calls(struct nccl *n)
{
    int all = 1;
#define X(name, args) all &= (*(void **)&n->name = dlsym(n->library, "nccl" #name)) != NULL;
    NCCL_LIST(X)
#undef X
    return all & ((*(void **)&n->text = dlsym(n->library, "ncclGetErrorString")) != NULL);
}

int nccl_open_world(struct world *w, struct err *e)
{
    struct nccl *n = calloc(1, sizeof *n);
    if (!n)
        return err_set(e, ERR_MEMORY, "no memory for NCCL's table");
    w->nccl = n;
    n->stream = w->dev ? cuda_stream_of(w->dev) : NULL;
    if (!n->stream)
        return err_set(e, ERR_USAGE, "transport nccl needs a GPU: use --device cuda, or --transport auto");
    if (!(n->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL)))
        return err_set(e, ERR_DEVICE, "libnccl.so.2 is not here: install NCCL, put it on LD_LIBRARY_PATH, or use --transport auto");
    if (!find_calls(n))
        return err_set(e, ERR_DEVICE, "libnccl.so.2 is too old: 2.7 or later is needed, or use --transport auto");
    return 0;
}

void nccl_close_world(struct world *w)
{
    free(w->nccl);                       /* the library stays: its threads end with the process */
    w->nccl = NULL;
}

/* ---- groups ---- */
/* The group's communicator. Its id travels over the group's own transport. */
int nccl_take(struct comm *c, struct err *e)
{
    struct nccl *n = c->w->nccl;
    struct nccl_id id = { { 0 } };
    int rc = 0;
    if (c->size == 1)
        return 0;
    if (c->rank == 0)
        rc = well(n, n->GetUniqueId(&id), "a group's name", e);
    TRY(comm_agree(c, rc, e));
    TRY(comm_broadcast(c, &id, sizeof id, 0, e));
    rc = well(n, n->CommInitRank(&c->device, c->size, id, c->rank), "joining a group (one GPU a rank? else use --transport auto)", e);
    rc = comm_agree(c, rc, e);
out:
    return rc;
}

void nccl_leave(struct comm *c)
{
    if (!c->device)
        return;
    if (atomic_load(&c->w->board->failed))
        c->w->nccl->CommAbort(c->device);            /* a destroy would wait for who is gone */
    else
        c->w->nccl->CommDestroy(c->device);
    c->device = NULL;
}

/* Errors that NCCL's own threads met since. */
static int look(struct comm *c, struct err *e)
{
    int later = 0, rc = well(c->w->nccl, c->w->nccl->CommGetAsyncError(c->device, &later), "asking for errors", e);
    if (rc < 0 || later == NCCL_IN_PROGRESS)
        return rc;
    return well(c->w->nccl, later, "an operation under way", e);
}

/* ---- sums ---- */
static int64_t slice_begin(const struct comm *c, int64_t n, int r) { return n / c->size * r + (n % c->size < r ? n % c->size : r); }

/* Slice r of everybody to rank r: in[r] is where mine of rank r lies then. */
static int slices_to_owners(struct comm *c, float *buf, int64_t n, float *room, const float **in, struct err *e)
{
    struct nccl *x = c->w->nccl;
    const int64_t mine = slice_begin(c, n, c->rank), len = slice_begin(c, n, c->rank + 1) - mine;
    int rc = well(x, x->GroupStart(), "beginning", e);
    for (int r = 0; r < c->size; r++)
        in[r] = r == c->rank ? buf + mine : room + r * len;
    for (int r = 0; r < c->size && rc == 0; r++) {
        const int64_t begin = slice_begin(c, n, r), count = slice_begin(c, n, r + 1) - begin;
        if (r != c->rank && count)
            rc = well(x, x->Send(buf + begin, (size_t)count, NCCL_FLOATS, r, c->device, x->stream), "sending a slice", e);
        if (r != c->rank && len && rc == 0)
            rc = well(x, x->Recv(room + r * len, (size_t)len, NCCL_FLOATS, r, c->device, x->stream), "receiving a slice", e);
    }
    int end = x->GroupEnd();
    return rc < 0 ? rc : well(x, end, "slices", e);
}

static int owners_to_all(struct comm *c, float *buf, int64_t n, struct err *e)
{
    struct nccl *x = c->w->nccl;
    const int64_t mine = slice_begin(c, n, c->rank), len = slice_begin(c, n, c->rank + 1) - mine;
    int rc = well(x, x->GroupStart(), "beginning", e);
    for (int r = 0; r < c->size && rc == 0; r++) {
        const int64_t begin = slice_begin(c, n, r), count = slice_begin(c, n, r + 1) - begin;
        if (r != c->rank && len)
            rc = well(x, x->Send(buf + mine, (size_t)len, NCCL_FLOATS, r, c->device, x->stream), "sending a sum", e);
        if (r != c->rank && count && rc == 0)
            rc = well(x, x->Recv(buf + begin, (size_t)count, NCCL_FLOATS, r, c->device, x->stream), "receiving a sum", e);
    }
    int end = x->GroupEnd();
    return rc < 0 ? rc : well(x, end, "sums", e);
}

/* out: my slice of the sum. */
static int sum_my_slice(struct comm *c, float *out, float *buf, int64_t n, struct err *e)
{
    const int64_t len = slice_begin(c, n, c->rank + 1) - slice_begin(c, n, c->rank);
    const float *in[SUM_RANKS_MAX];
    float *room = dev_scratch(c->w->dev, SCRATCH, (size_t)(len * c->size) * sizeof *room);
    int rc = room ? look(c, e) : err_set(e, ERR_MEMORY, "no memory on the device for a sum of %d ranks", c->size);
    TRY(rc);
    TRY(slices_to_owners(c, buf, n, room, in, e));
    if (len)
        KERNEL(c->w->dev, tree_add, out, in, c->size, len);
    rc = 0;
out:
    return rc;
}

static int nccl_all_reduce(struct comm *c, enum sum_kind kind, void *buf, int64_t n, struct err *e)
{
    if (c->size == 1 || kind != SUM_TREE)
        return transport_staged.all_reduce(c, kind, buf, n, e);
    int rc = sum_my_slice(c, (float *)buf + slice_begin(c, n, c->rank), buf, n, e);
    return rc < 0 ? rc : owners_to_all(c, buf, n, e);
}

static int nccl_reduce_scatter(struct comm *c, float *out, float *in, int64_t n_each, struct err *e)
{
    return c->size == 1 ? transport_staged.reduce_scatter(c, out, in, n_each, e) : sum_my_slice(c, out, in, n_each * c->size, e);
}

/* ---- copies ---- */
static int nccl_all_gather(struct comm *c, void *out, const void *in, size_t bytes_each, struct err *e)
{
    struct nccl *x = c->w->nccl;
    if (c->size == 1)
        return transport_staged.all_gather(c, out, in, bytes_each, e);
    int rc = look(c, e);
    return rc < 0 ? rc : well(x, x->AllGather(in, out, bytes_each, NCCL_BYTES, c->device, x->stream), "gathering", e);
}

static int nccl_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e)
{
    struct nccl *x = c->w->nccl;
    int rc = c->size > 1 ? look(c, e) : 0;
    return rc < 0 || c->size == 1 ? rc : well(x, x->Broadcast(buf, buf, bytes, NCCL_BYTES, root, c->device, x->stream), "a broadcast", e);
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
    .shared_by = staged_shared_by,
    .all_gather_shared = nccl_all_gather,
    .start = at_once_start,
    .step = at_once_step,
    .finish = at_once_step,
    .drop = at_once_drop,
};
