/* fake_nccl.c - a libnccl.so.2 for tests: the calls that comm/ looks up, between processes of one machine,
 * on the fake device's memory.
 *
 * A communicator is a piece of shared memory with a channel of bytes from every rank to every other. A
 * call declares at once what it accesses, so that the fake device checks the order, and works when its
 * queue reaches it; in a group all sends and receives proceed side by side. Sums are chains in rank order,
 * not in the tree's, so a sum by this library is visible in the bits. Every third call returns "in
 * progress", as non-blocking communicators may.
 *
 * FAKE_NCCL_FAULT=KIND:RANK:CALL makes rank RANK of the job fail at its CALL-th call: async (the
 * library's threads meet an error), refuse (the call fails), hang (in the call, for an hour), stay (as
 * long, behind the call), kill (SIGKILL), apart (it never joins its CALL-th communicator). */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/devices/fake/fake.h"

enum { OK = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID = 4, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { CHANNEL = 1 << 16, MOST_RANKS = 16, MOST_MOVES = 2 * MOST_RANKS };

struct channel {
    _Atomic uint64_t written, read;
    char data[CHANNEL];
};
/* [from * n + to] */
struct shared {
    _Atomic int joined;
    struct channel channel[];
};
struct comm {
    struct shared *s;
    size_t bytes;
    int n, rank, aborted, later, progress, calls;
};

/* One transfer: bytes to or from a peer. */
struct move {
    char *p;
    size_t bytes, done;
    struct channel *over;
    int sends;
};
struct job {
    struct fake_stream *stream;
    struct comm *c;
    struct move move[MOST_MOVES];
    int n_moves;
    /* a sum when all have come; from[rank] NULL: sum_in itself */
    float *sum_out, *sum_in, *from[MOST_RANKS];
    size_t n_sum;
    char *copy_to, *copy_from;
    size_t copy_bytes;
};

static struct job *group; /* between GroupStart and GroupEnd */
static int in_group;
static int stays; /* at the next question for errors */
static int joins; /* communicators that this rank has joined */

/* ---- faults ---- */
static int fault_is(const char *kind, int call)
{
    const char *f = getenv("FAKE_NCCL_FAULT"), *me = getenv("OMPI_COMM_WORLD_RANK");
    char name[16];
    int rank, at;
    return f && sscanf(f, "%15[a-z]:%d:%d", name, &rank, &at) == 3 && !strcmp(name, kind) &&
           rank == (me ? atoi(me) : 0) && at == call;
}

/* What becomes of a call: 0, or the error that it returns. */
static int calls;
static int fault(struct comm *c)
{
    calls++;
    if (fault_is("kill", calls))
        raise(SIGKILL);
    if (fault_is("hang", calls))
        sleep(3600);
    if (fault_is("async", calls))
        c->later = REMOTE_ERROR;
    return fault_is("refuse", calls) ? INTERNAL_ERROR : OK;
}

static int answer(struct comm *c, int rc)
{
    if (rc == OK && !stays && ++c->calls % 3 == 0)
        c->progress = 2; /* and returns it twice more */
    return rc == OK && c->progress ? IN_PROGRESS : rc;
}

/* ---- work ---- */
static size_t step(struct move *m)
{
    struct channel *o = m->over;
    uint64_t w = atomic_load(&o->written), r = atomic_load(&o->read), at = m->sends ? w : r;
    size_t n = m->bytes - m->done, space = m->sends ? (size_t)(CHANNEL - (w - r)) : (size_t)(w - r),
           flat = CHANNEL - (size_t)(at % CHANNEL);
    n = n < space ? n : space;
    n = n < flat ? n : flat;
    if (!n)
        return 0;
    if (m->sends)
        memcpy(o->data + at % CHANNEL, m->p + m->done, n);
    else
        memcpy(m->p + m->done, o->data + at % CHANNEL, n);
    atomic_store(m->sends ? &o->written : &o->read, at + n);
    m->done += n;
    return n;
}

static int all_moved(struct job *j)
{
    for (int idle = 0;;) {
        size_t left = 0, moved = 0;
        for (int i = 0; i < j->n_moves; i++) {
            moved += step(&j->move[i]);
            left += j->move[i].bytes - j->move[i].done;
        }
        if (!left)
            return 1;
        idle = moved ? 0 : idle + 1;
        if (idle && (j->c->aborted || j->stream->idle(j->stream)))
            return 0;
        if (idle > 20)
            usleep(100);
        else if (idle)
            sched_yield();
    }
}

static void add_up(struct job *j)
{
    for (size_t i = 0; i < j->n_sum; i++) {
        float sum = j->from[0] ? j->from[0][i] : j->sum_in[i];
        for (int r = 1; r < j->c->n; r++)
            sum += j->from[r] ? j->from[r][i] : j->sum_in[i];
        j->sum_out[i] = sum;
    }
}

static void work(void *arg)
{
    struct job *j = arg;
    int well = !j->c->aborted && all_moved(j);
    if (well && j->copy_bytes)
        memmove(j->copy_to, j->copy_from, j->copy_bytes);
    if (well && j->n_sum)
        add_up(j);
    for (int r = 0; r < MOST_RANKS; r++)
        free(j->from[r]);
}

static struct job *job_new(struct comm *c, struct fake_stream *s, const char *op)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        abort();
    j->stream = s;
    j->c = c;
    s->begin(s, op);
    return j;
}

static int launch(struct job *j)
{
    struct comm *c = j->c;
    int rc = c->later ? INVALID : fault(c);
    if (rc == OK)
        j->stream->run(j->stream, work, j);
    else
        free(j);
    stays = fault_is("stay", calls);
    return answer(c, rc);
}

static void add_move(struct job *j, char *p, size_t bytes, int peer, int sends)
{
    struct comm *c = j->c;
    if (peer == c->rank || peer < 0 || peer >= c->n || j->n_moves == MOST_MOVES || !p)
        return;
    j->move[j->n_moves++] = (struct move){
        p, bytes, 0, &c->s->channel[sends ? c->rank * c->n + peer : peer * c->n + c->rank], sends
    };
}

/* ---- calls ---- */
typedef struct {
    char bytes[128];
} id_type;
struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
};
#define CALL __attribute__((visibility("default")))
#define SIZE_OF(type) ((type) == 7 ? 4u : 1u)

CALL int ncclGetVersion(int *v);
CALL const char *ncclGetErrorString(int rc);
CALL int ncclGetUniqueId(id_type *id);
CALL int ncclCommInitRankConfig(void **out, int n, id_type id, int rank, struct config *f);
CALL int ncclCommGetAsyncError(void *comm, int *out);
CALL int ncclCommFinalize(void *comm);
CALL int ncclCommDestroy(void *comm);
CALL int ncclCommAbort(void *comm);
CALL int ncclGroupStart(void);
CALL int ncclGroupEnd(void);
CALL int ncclSend(const void *p, size_t n, int type, int peer, void *comm, void *stream);
CALL int ncclRecv(void *p, size_t n, int type, int peer, void *comm, void *stream);
CALL int ncclAllGather(const void *in, void *out, size_t n, int type, void *comm, void *stream);
CALL int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, void *comm, void *stream);
CALL int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *comm, void *stream);
CALL int ncclReduceScatter(const void *in, void *out, size_t n_each, int type, int op, void *comm,
                           void *stream);

int ncclGetVersion(int *v)
{
    *v = 22809;
    return OK;
}

const char *ncclGetErrorString(int rc)
{
    static const char *const text[] = { "no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "in progress" };
    return rc >= 0 && rc < 8 ? text[rc] : "unknown";
}

int ncclGetUniqueId(id_type *id)
{
    static int n;
    snprintf(id->bytes, sizeof id->bytes, "/shardline-fake-nccl-%d-%d", (int)getpid(), n++);
    return OK;
}

int ncclCommInitRankConfig(void **out, int n, id_type id, int rank, struct config *f)
{
    struct comm *c = calloc(1, sizeof *c);
    int fd = -1;
    *out = c;
    if (!c || n > MOST_RANKS || f->magic != 0xcafebeef || f->blocking != 0 || f->size < sizeof *f)
        return INVALID;
    *c = (struct comm){ .bytes = sizeof(struct shared) + sizeof(struct channel) * (size_t)(n * n),
                        .n = n,
                        .rank = rank };
    fd = shm_open(id.bytes, O_CREAT | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)c->bytes) < 0)
        return SYSTEM_ERROR;
    c->s = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (c->s == MAP_FAILED)
        return SYSTEM_ERROR;
    if (fault_is("apart", ++joins)) {
        shm_unlink(id.bytes);
        return IN_PROGRESS;
    }
    if (atomic_fetch_add(&c->s->joined, 1) + 1 == n)
        shm_unlink(id.bytes);
    return IN_PROGRESS;
}

int ncclCommGetAsyncError(void *comm, int *out)
{
    struct comm *c = comm;
    if (stays)
        sleep(3600);
    *out = c->later ? c->later : atomic_load(&c->s->joined) < c->n || c->progress ? IN_PROGRESS : OK;
    c->progress -= c->progress > 0;
    return OK;
}

int ncclCommFinalize(void *comm) { return answer(comm, OK); }

int ncclCommDestroy(void *comm)
{
    struct comm *c = comm;
    munmap(c->s, c->bytes);
    free(c);
    return OK;
}

/* What is under way may still look at it. */
int ncclCommAbort(void *comm)
{
    ((struct comm *)comm)->aborted = 1;
    return OK;
}

int ncclGroupStart(void)
{
    in_group = 1;
    return OK;
}

int ncclGroupEnd(void)
{
    struct job *j = group;
    in_group = 0;
    group = NULL;
    return j ? launch(j) : OK;
}

static int one_move(const void *p, size_t bytes, int peer, struct comm *c, struct fake_stream *s, int sends)
{
    if (!in_group || (group && (group->c != c || group->stream != s)))
        return INVALID; /* comm/nccl always groups them, one communicator at a time */
    if (!group)
        group = job_new(c, s, "ncclGroup");
    add_move(group, s->touch(s, sends ? "what is sent" : "what is received", p, bytes, !sends), bytes, peer,
             sends);
    return OK;
}

int ncclSend(const void *p, size_t n, int type, int peer, void *comm, void *stream)
{
    return one_move(p, n * SIZE_OF(type), peer, comm, stream, 1);
}
int ncclRecv(void *p, size_t n, int type, int peer, void *comm, void *stream)
{
    return one_move(p, n * SIZE_OF(type), peer, comm, stream, 0);
}

int ncclAllGather(const void *in, void *out, size_t n, int type, void *comm, void *stream)
{
    struct comm *c = comm;
    struct fake_stream *s = stream;
    struct job *j = job_new(c, s, "ncclAllGather");
    size_t bytes = n * SIZE_OF(type);
    char *from = s->touch(s, "in", in, bytes, 0), *to = s->touch(s, "out", out, bytes * (size_t)c->n, 1);
    for (int r = 0; r < c->n && from && to; r++) {
        add_move(j, from, bytes, r, 1);
        add_move(j, to + bytes * (size_t)r, bytes, r, 0);
    }
    j->copy_from = from;
    j->copy_to = to ? to + bytes * (size_t)c->rank : NULL;
    j->copy_bytes = from && to ? bytes : 0;
    return launch(j);
}

int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, void *comm, void *stream)
{
    struct comm *c = comm;
    struct fake_stream *s = stream;
    struct job *j = job_new(c, s, "ncclBroadcast");
    size_t bytes = n * SIZE_OF(type);
    char *from = c->rank == root ? s->touch(s, "in", in, bytes, 0) : NULL,
         *to = s->touch(s, "out", out, bytes, 1);
    for (int r = 0; r < c->n && c->rank == root; r++)
        add_move(j, from, bytes, r, 1);
    if (c->rank != root)
        add_move(j, to, bytes, root, 0);
    return launch(j);
}

/* Everybody's part `r` of n elements to rank r (each), or everything to all; the sum of what comes. */
static int reduce(const char *op, const float *in, float *out, size_t n, int each, struct comm *c,
                  struct fake_stream *s)
{
    struct job *j = job_new(c, s, op);
    const size_t bytes = n * sizeof *in, all = each ? bytes * (size_t)c->n : bytes;
    char *from = s->touch(s, "in", in, all, 0), *to = s->touch(s, "out", out, bytes, 1);
    for (int r = 0; r < c->n && from && to; r++) {
        add_move(j, from + (each ? bytes * (size_t)r : 0), bytes, r, 1);
        j->from[r] = r == c->rank ? NULL : malloc(bytes);
        add_move(j, (char *)j->from[r], bytes, r, 0);
    }
    j->sum_in = from ? (float *)(void *)(from + (each ? bytes * (size_t)c->rank : 0)) : NULL;
    j->sum_out = (float *)(void *)to;
    j->n_sum = from && to ? n : 0;
    return launch(j);
}

int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *comm, void *stream)
{
    return type == 7 && op == 0 ? reduce("ncclAllReduce", in, out, n, 0, comm, stream) : INVALID;
}

int ncclReduceScatter(const void *in, void *out, size_t n_each, int type, int op, void *comm, void *stream)
{
    return type == 7 && op == 0 ? reduce("ncclReduceScatter", in, out, n_each, 1, comm, stream) : INVALID;
}
