/* comm_priv.h - inside of the room: a world, its groups, and the table of functions that a transport
 * fills. */
#ifndef SHARDLINE_COMM_COMM_PRIV_H
#define SHARDLINE_COMM_COMM_PRIV_H

#include "base/err.h"
#include "base/mem.h"
#include "comm/failure_board.h"
#include "comm/comm.h"
#include "comm/reduce.h"
#include "comm/segment.h"
#include "comm/wait_counter.h"
#include "comm/watch.h"

/* The operation of a call. Ranks exchange it at the first barrier of an operation, so that calls that do not
 * match are an error. */
enum call {
    CALL_BARRIER = 1,
    CALL_BROADCAST,
    CALL_REDUCE,
    CALL_REDUCE_SCATTER,
    CALL_ALL_GATHER,
    CALL_GATHER,
    CALL_SLICES,
    CALL_SHARED,
    CALL_ALL_TO_ALL
};

/* One transport. comm.c calls its operations with groups of 2 and more ranks, n and bytes > 0, in a world
 * that has not failed. An operation that returns -ERR_… leaves its group out of step; comm.c makes that a
 * failure of the world. Shapes and meaning are those of comm.h. */
struct transport {
    const char *name;
    void (*close)(struct world *w, int orderly);

    /* Memory of comm_alloc. */
    void *(*alloc)(struct world *w, enum mem_cat cat, size_t bytes);
    void (*free)(struct world *w, void *p);

    /* Advances sends that need this rank's help; returns how many are left. May be NULL. */
    int (*poll)(struct world *w, struct err *e);
    /* Sends a failure to ranks that do not see the board. May be NULL. */
    void (*report_failure)(struct world *w, const char *text);

    /* A new group: its first rank proposes a number, every rank joins with it. A number names one group. */
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

    /* Memory that the ranks of a machine share; a group of one has its own. */
    int (*alloc_shared)(void **out, struct comm *c, enum mem_cat cat, size_t bytes, struct err *e);
    int (*free_shared)(struct comm *c, void *p, struct err *e);
    void (*shared_group)(const struct comm *c, int *rank, int *size);
    int (*all_gather_shared)(struct comm *c, void *shared, const void *in, size_t bytes_each, struct err *e);

    /* Started operations. start tells the other ranks where the buffers are. step does what is ready without
     * waiting, and sets q->done at the end. finish waits for that. release frees what start and step
     * allocated, also after a failure. */
    int (*start)(struct comm_request *q, struct err *e);
    int (*step)(struct comm_request *q, struct err *e);
    int (*finish)(struct comm_request *q, struct err *e);
    void (*release)(struct comm_request *q);
};
extern const struct transport transport_self, transport_shm, transport_mpi;

/* Transports of buffers in device memory that the host cannot reach (dev.h). They have operations only;
 * groups are those of the transport beside them. */
extern const struct transport transport_staged, transport_nccl;

/* ---- staged.c: rows that transport_nccl has in common with transport_staged ---- */
int staged_send(struct comm *c, const void *buf, size_t bytes, int to, struct err *e);
int staged_recv(struct comm *c, void *buf, size_t bytes, int from, struct err *e);
int staged_alloc_shared(void **out, struct comm *c, enum mem_cat cat, size_t bytes, struct err *e);
int staged_free_shared(struct comm *c, void *p, struct err *e);
void staged_shared_group(const struct comm *c, int *rank, int *size);

/* Frees the staging buffer of device memory. */
void staged_close_world(struct world *w);

/* Started operations for transports in which nothing advances by itself: the start does all, by the
 * transport's own blocking operation. */
int immediate_start(struct comm_request *q, struct err *e);
int immediate_step(struct comm_request *q, struct err *e);
void immediate_release(struct comm_request *q);

/* ---- nccl/ ---- */

/* Makes NCCL the transport of device memory, where every rank has a GPU of its own and the library; else
 * leaves w->device as it is, which is an error when `asked`. Fills w->device_route. timeout_s: as in
 * world_open. Collective over w->all. */
int nccl_open_world(struct world *w, int asked, int64_t timeout_s, struct err *e);

/* Frees NCCL's part of the world; its groups are closed. */
void nccl_close_world(struct world *w);

/* Makes a communicator for a new group. Collective over it. */
int nccl_join(struct comm *c, struct err *e);

/* Closes a group's communicator; aborts it after a failure. */
void nccl_leave(struct comm *c);

/* ---- the world ---- */

/* Where this rank is among the others (bootstrap.c). */
struct topology {
    int rank, size;           /* in the world */
    int node_rank, node_size; /* among the ranks of this machine, in the order of their world ranks */
    int with_mpi;             /* MPI was started */
    int *node_of;             /* [size] lowest world rank on that rank's machine; NULL: one machine */
};

struct comm_request {
    struct comm_request *next; /* in the world's list, in the order of the starts */
    struct comm *c;
    const struct transport *t; /* on which it was started */
    enum comm_op op;
    int64_t bytes;
    int what;  /* enum call */
    void *out; /* all-reduce: the buffer, in and out */
    const void *in;
    /* all-reduce: elements; reduce-scatter: elements of a slice; all-gathers: bytes of a part; all-to-all:
     * bytes of a row */
    int64_t n;
    const int64_t *to, *from;         /* all-to-all: [size] rows to and from every rank, else NULL */
    struct comm_callback on_complete; /* of a gather into shared memory */
    uint64_t number;                  /* among the group's started operations, from 0 */
    int stage;                        /* the transport's own */
    int done;
    int64_t mark; /* nccl.c: the device's mark behind it */
    void *priv;   /* the transport's own */
};

struct world {
    const struct transport *t;
    struct topology at;
    struct dev *dev;                /* may be NULL */
    const struct transport *device; /* of buffers in device memory; NULL: the device has none of its own */
    void *stage;                    /* staged.c: host buffer between device and transport */
    size_t stage_bytes;
    struct nccl *nccl;      /* nccl.h; NULL: not used */
    char device_route[256]; /* how device memory travels between ranks; "": through the host */
    struct mem *mem, own_mem;
    struct segment seg;          /* of this machine's ranks: the board, and (shm) their memory */
    struct failure_board *board; /* == seg.base */
    struct watch *watch;
    struct comm *all;
    struct shm_world *shm; /* of the transports; mpi has both when machines have several ranks */
    struct mpi_world *mpi;
    struct comm_request *requests; /* started and not finished */
    int64_t across_bytes;          /* sent to other machines so far */
    int64_t wait_limit_ns;         /* world_limit_waits; 0: none */
    struct trace *trace;           /* may be NULL */
};

struct comm {
    const struct transport *t; /* of the operations: self for a group of one */
    struct world *w;
    int rank, size;
    int inner;    /* comm_nest; 0: sums are not nested */
    int *member;  /* [size] world ranks */
    void *priv;   /* the transport's */
    void *device; /* nccl.h: its struct nccl_group */
    const char *name;
    uint64_t n_started;
    struct comm_count count[COMM_OPS];
};

/* Rows to or from ranks 0 … r - 1: where those of rank r begin. */
static inline int64_t rows_before(const int64_t *rows, int r)
{
    int64_t sum = 0;
    for (int i = 0; i < r; i++)
        sum += rows[i];
    return sum;
}

/* A group of the given world ranks; owns member (malloc'd), also on failure. The transport's state is not
 * made yet. NULL: out of memory. */
struct comm *comm_new(struct world *w, int *member, int size);

/* Puts "rank N: " in front of the text, unless it begins with a rank. */
void comm_name_rank(struct err *e, int rank);

/* What every wait does meanwhile: steps all started operations and messages under way. Returns how many are
 * left, or -ERR_…. */
int comm_step_requests(struct world *w, struct err *e);

/* Opens and closes the parts of a world that belong to the transports shm and mpi. */
int shm_open_world(struct world *w, struct err *e);
void shm_close_world(struct world *w);
int mpi_open_world(struct world *w, struct err *e);

/* 0, or -ERR_PEER with the text of the failure when the world has failed (world.c). */
int world_check(struct world *w, struct err *e);

#endif
