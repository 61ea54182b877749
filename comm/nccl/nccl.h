/* nccl.h - inside of the transport nccl: the library (nccl_lib.c), groups (nccl_group.c), the watch over the
 * device while it works for several ranks (nccl_watch.c), operations (nccl.c). */
#ifndef SHARDLINE_COMM_NCCL_NCCL_H
#define SHARDLINE_COMM_NCCL_NCCL_H

#include "comm/comm_priv.h"

/* Values of nccl.h of the library: ncclInt8, ncclFloat32, ncclSum, ncclInProgress. */
enum { NCCL_BYTES = 0, NCCL_FLOATS = 7, NCCL_SUM = 0, NCCL_IN_PROGRESS = 7 };

struct nccl_id {
    char bytes[128];
};
typedef void *nccl_comm;
/* The beginning of ncclConfig_t, as in 2.14; the library treats the rest as not set. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

/* X(call, arguments): the calls that are used, each named ncclCALL in the library. */
#define NCCL_LIST(X) \
    X(GetVersion, (int *)) \
    X(GetUniqueId, (struct nccl_id *)) \
    X(CommInitRankConfig, (nccl_comm *, int, struct nccl_id, int, struct nccl_config *)) \
    X(CommFinalize, (nccl_comm)) \
    X(CommDestroy, (nccl_comm)) \
    X(CommAbort, (nccl_comm)) \
    X(CommGetAsyncError, (nccl_comm, int *)) \
    X(AllReduce, (const void *, void *, size_t, int, int, nccl_comm, void *)) \
    X(ReduceScatter, (const void *, void *, size_t, int, int, nccl_comm, void *)) \
    X(AllGather, (const void *, void *, size_t, int, nccl_comm, void *)) \
    X(Broadcast, (const void *, void *, size_t, int, int, nccl_comm, void *)) \
    X(Send, (const void *, size_t, int, int, nccl_comm, void *)) \
    X(Recv, (void *, size_t, int, int, nccl_comm, void *)) \
    X(GroupStart, (void)) \
    X(GroupEnd, (void))

/* The communicator of a group. */
struct nccl_group {
    struct nccl_group *next;
    struct comm *c;
    nccl_comm comm;  /* NULL: aborted */
    int slot;        /* on the board, the same on all its ranks; BOARD_GROUPS and more: not on the board */
    int64_t entered; /* operations of the group that this rank has entered */
    int64_t last;    /* the device's mark behind the newest operation */
};

/* An operation that the device may not have finished. */
struct nccl_operation {
    struct nccl_group *g;
    const char *what;
    int64_t number, mark; /* mark 0: not all of it was submitted to the device yet */
};

/* How many of the newest operations are followed. */
enum { NCCL_OPERATIONS = 64 };

struct nccl {
#define X(name, args) int(*name) args;
    NCCL_LIST(X)
#undef X
    const char *(*text)(int rc);
    void *library;
    struct world *w;
    struct nccl_group *groups;
    int next_slot;
    struct nccl_operation operation[NCCL_OPERATIONS];
    int64_t n_begun, n_over; /* operation[n % NCCL_OPERATIONS], n_over <= n < n_begun */
    int64_t oldest, since_ns, polled_ns, limit_ns;
};

/* ---- nccl_lib.c ---- */

/* Opens the library. ERR_DEVICE: not found or too old; the text tells what to do. */
int nccl_load(struct nccl *n, const struct dev *d, struct err *e);

/* 0 when a call succeeded or is in progress; else ERR_DEVICE with the library's text. what: for the text. */
int nccl_check(const struct nccl *n, int rc, const char *what, struct err *e);

/* ---- nccl_watch.c; every function may find that the world has failed: ERR_PEER ---- */

/* Waits until the group has completed the call that returned rc; communicators do not block. */
int nccl_complete(struct nccl_group *g, int rc, const char *what, struct err *e);

/* ERR_PEER when the group's communicator was aborted. */
int nccl_alive(const struct nccl_group *g, struct err *e);

/* Enters the next operation of the group, which the other ranks see on the board. The caller then submits it
 * to the device and calls nccl_submitted. */
int nccl_begin(struct nccl_group *g, const char *what, struct err *e);
void nccl_submitted(struct nccl_group *g);

/* Looks for a reason to stop waiting: a failed world, an error of the library, a rank that does not enter an
 * operation. On an error the world has failed and all communicators are aborted. The device calls it while
 * the host waits for the device. */
int nccl_poll(struct world *w, struct err *e);

/* Aborts all communicators. */
void nccl_abort_all(struct nccl *n);

#endif
