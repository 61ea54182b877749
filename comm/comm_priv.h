/* comm_priv.h - inside of the room: a world, its groups, and the table that a transport fills. */
#ifndef SHARDLINE_COMM_COMM_PRIV_H
#define SHARDLINE_COMM_COMM_PRIV_H

#include "base/err.h"
#include "base/mem.h"
#include "comm/failure_board.h"
#include "comm/comm.h"
#include "comm/reduce.h"
#include "comm/segment.h"
#include "comm/watch.h"

/* What a rank tells the others at the first sync of an operation, so that calls that do not fit are found. */
enum call {
    CALL_BARRIER = 1,
    CALL_BROADCAST,
    CALL_REDUCE,
    CALL_REDUCE_SCATTER,
    CALL_ALL_GATHER,
    CALL_GATHER,
    CALL_SLICES,
    CALL_SHARED
};

/* One transport. Operations get groups of 2 and more ranks, n and bytes > 0, a world that has not failed
 * (comm.c sees to that); on an error they return -ERR_…, and the group is then out of step: comm.c makes it
 * a failure of the world. */
struct transport {
    const char *name;
    void (*close)(struct world *w, int orderly);
    void *(*alloc)(struct world *w, enum mem_cat cat, size_t bytes);
    void (*free)(struct world *w, void *p);
    /* sends that need this rank's help: how many are left; may be NULL */
    int (*poll)(struct world *w, struct err *e);
    /* a failure, to ranks that do not see the board; may be NULL */
    void (*report_failure)(struct world *w, const char *text);
    /* A group is born: its first rank offers a number, every rank takes it (the number is the same on all
     * its ranks). */
    int (*group_propose)(struct comm *c, int64_t *number, struct err *e);
    int (*group_join)(struct comm *c, int64_t number, struct err *e);
    void (*group_leave)(struct comm *c);
    int (*barrier)(struct comm *c, struct err *e);
    int (*broadcast)(struct comm *c, void *buf, size_t bytes, int root, struct err *e);
    int (*all_reduce)(struct comm *c, enum sum_kind kind, void *buf, int64_t n, struct err *e);
    int (*reduce_scatter)(struct comm *c, float *out, float *in, int64_t n_each, struct err *e);
    int (*all_gather)(struct comm *c, void *out, const void *in, size_t bytes_each, struct err *e);
    int (*gather)(struct comm *c, const void *blob, const size_t *sizes, int root, char *out, struct err *e);
    int (*send)(struct comm *c, const void *buf, size_t bytes, int to, struct err *e);
    int (*recv)(struct comm *c, void *buf, size_t bytes, int from, struct err *e);
    /* Memory once a machine; the group of one has its own. */
    int (*alloc_shared)(void **out, struct comm *c, enum mem_cat cat, size_t bytes, struct err *e);
    int (*free_shared)(struct comm *c, void *p, struct err *e);
    /* of the ranks that have it together: this one, how many */
    void (*shared_group)(const struct comm *c, int *rank, int *size);
    int (*all_gather_shared)(struct comm *c, void *shared, const void *in, size_t bytes_each, struct err *e);
    /* Started operations: start says where the buffers are; step does what is ready, never waits, and sets
     * q->done at the end; finish waits for that; drop gives back what start and step took, also after a
     * failure. */
    int (*start)(struct comm_request *q, struct err *e);
    int (*step)(struct comm_request *q, struct err *e);
    int (*finish)(struct comm_request *q, struct err *e);
    void (*release)(struct comm_request *q);
};
extern const struct transport transport_self, transport_shm, transport_mpi;
/* Of buffers in the memory of a device that the host cannot reach (dev.h): operations alone, groups are
 * those of the transport beside it. */
extern const struct transport transport_staged, transport_nccl;
int staged_send(struct comm *c, const void *buf, size_t bytes, int to, struct err *e);
int staged_recv(struct comm *c, void *buf, size_t bytes, int from, struct err *e);
int staged_alloc_shared(void **out, struct comm *c, enum mem_cat cat, size_t bytes, struct err *e);
int staged_free_shared(struct comm *c, void *p, struct err *e);
void staged_shared_group(const struct comm *c, int *rank, int *size);
/* Started operations that are over when they start: the transport's own blocking ones. */
int immediate_start(struct comm_request *q, struct err *e);
int immediate_step(struct comm_request *q, struct err *e);
void immediate_release(struct comm_request *q);
void staged_close_world(struct world *w);
/* Where every rank has a GPU of its own and the library, operations on its memory are NCCL's from now on,
 * and w->device_route says so; else not: an error where it was asked for. Collective over w->all. */
int nccl_open_world(struct world *w, int asked, int64_t timeout_s, struct err *e);
void nccl_close_world(struct world *w);
/* a communicator for a new group; collective over it */
int nccl_join(struct comm *c, struct err *e);
void nccl_leave(struct comm *c);

/* Where this process stands among the others (bootstrap.c finds out). */
struct topology {
    int rank, size;           /* in the world */
    int node_rank, node_size; /* among the ranks of this machine, in the order of their world ranks */
    int with_mpi;             /* MPI was started */
    /* [size] the lowest world rank on that rank's machine; NULL: all on one */
    int *node_of;
};

struct comm_request {
    struct comm_request *next; /* in the world's list, in the order of starting */
    struct comm *c;
    const struct transport *t; /* that it was started on */
    enum comm_op op;
    int64_t bytes;
    int what;  /* enum call */
    void *out; /* all-reduce: the buffer, in and out */
    const void *in;
    /* all-reduce: elements; reduce-scatter: of a segment; all-gathers: bytes of a part */
    int64_t n;
    struct comm_callback on_complete; /* of a gather into shared memory */
    uint64_t number;                  /* of the group's started operations, from 0 */
    int stage, done;                  /* stage: the transport's own */
    int64_t mark;                     /* nccl.c: behind it on the device */
    void *priv;                       /* likewise the transport's own */
};

struct world {
    const struct transport *t;
    struct topology at;
    struct dev *dev;                /* may be NULL */
    const struct transport *device; /* of buffers in its memory; NULL: it has none of its own */
    void *stage;                    /* staged.c: host memory between */
    size_t stage_bytes;
    struct nccl *nccl;      /* nccl.h; NULL: not used */
    char device_route[256]; /* how such memory goes between ranks; "": there is none */
    struct mem *mem, own_mem;
    struct segment seg;          /* of this machine's ranks: the board, and (shm) their memory */
    struct failure_board *board; /* == seg.base */
    struct watch *watch;
    struct comm *all;
    struct shm_world *shm; /* of the transports; mpi has both when machines have several ranks */
    struct mpi_world *mpi;
    struct comm_request *requests; /* started and not finished */
    int64_t across_bytes;          /* sent to other machines so far */
    struct trace *trace;           /* may be NULL */
};

struct comm {
    const struct transport *t; /* of the operations: self for a group of one */
    struct world *w;
    int rank, size;
    int *member;  /* [size] world ranks */
    void *priv;   /* the transport's */
    void *device; /* nccl.h: its struct nccl_group */
    const char *name;
    uint64_t n_started;
    struct comm_count count[COMM_OPS];
};

/* comm.c: a group of the given world ranks (malloc'd, taken over); the transport's state is not made yet. */
struct comm *comm_new(struct world *w, int *member, int size);
/* "rank N: " in front, unless a rank is named there already */
void comm_name_rank(struct err *e, int rank);
/* What every wait does meanwhile: open requests, messages under way. Returns how many are left, or -ERR_…. */
int comm_step_requests(struct world *w, struct err *e);
int shm_open_world(struct world *w, struct err *e);
void shm_close_world(struct world *w);
int mpi_open_world(struct world *w, struct err *e);
/* world.c */
/* -ERR_PEER when the world has failed, with its text */
int world_check(struct world *w, struct err *e);
#endif
