/* nccl.h - inside of the NCCL transport: the library (nccl_lib.c), groups and what is watched meanwhile
 * (nccl_group.c, nccl_watch.c), operations (nccl.c). */
#ifndef SHARDLINE_COMM_NCCL_NCCL_H
#define SHARDLINE_COMM_NCCL_NCCL_H

#include "comm/comm_priv.h"

/* ncclInt8, ncclFloat32, ncclSum, ncclInProgress */
enum { NCCL_BYTES = 0, NCCL_FLOATS = 7, NCCL_SUM = 0, NCCL_IN_PROGRESS = 7 };

struct nccl_id {
    char bytes[128];
};
typedef void *nccl_comm;
/* The head of ncclConfig_t, as 2.14 has it; the library takes the rest as not set. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

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

/* A group's communicator; comm NULL: aborted. */
struct nccl_group {
    struct nccl_group *next;
    struct comm *c;
    nccl_comm comm;
    /* of the board, the same on all its ranks; BOARD_GROUPS and more: none */
    int slot;
    int64_t entered; /* operations of it that this rank came to */
    int64_t last;    /* mark behind the newest */
};

/* An operation that the device may not be through with. */
/* mark 0: not all of it was given to the device yet */
struct nccl_operation {
    struct nccl_group *g;
    const char *what;
    int64_t number, mark;
};
/* of the newest ones are known */
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
/* ERR_DEVICE: not here, too old; says what to do */
int nccl_load(struct nccl *n, const struct dev *d, struct err *e);
/* What a call returned: 0, ERR_DEVICE with the library's words. NCCL_IN_PROGRESS is well. */
int nccl_check(const struct nccl *n, int rc, const char *what, struct err *e);

/* ---- nccl_watch.c ---- */
/* Communicators do not block: waits until the group has done what the call that returned rc began, as long
 * as the world is well. */
int nccl_complete(struct nccl_group *g, int rc, const char *what, struct err *e);
/* ERR_PEER when its communicator was aborted meanwhile. */
int nccl_alive(const struct nccl_group *g, struct err *e);
/* This rank comes to its next operation of the group: the others can see that. Then it is given to the
 * device, and then: */
int nccl_begin(struct nccl_group *g, const char *what, struct err *e);
void nccl_submitted(struct nccl_group *g);
/* Is waiting still worth while? Looks for a failed world, errors of the library's own, a rank that does not
 * come; then the world has failed and all communicators are aborted. The device calls it while the host
 * waits for it. */
int nccl_poll(struct world *w, struct err *e);
void nccl_abort_all(struct nccl *n);

#endif
