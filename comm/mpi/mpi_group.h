/* mpi_group.h - inside of the transport mpi: messages (mpi.c), sums inside of a machine first (mpi_nodes.c),
 * started operations (mpi_request.c). */
#ifndef SHARDLINE_COMM_MPI_MPI_GROUP_H
#define SHARDLINE_COMM_MPI_MPI_GROUP_H

#include <mpi.h>
#include "comm/comm_priv.h"

#define PIECE ((size_t)256 << 20) /* most bytes of one message */
#define SMALL 4096                /* bytes: up to here every rank sends all it has to every rank */

/* Messages of one kind between two ranks arrive in the order of sending, so each stage of an operation has a
 * kind of its own. */
enum { KIND_COLLECTIVE, KIND_MESSAGE, KIND_STARTED, KIND_SUMS, KINDS };
#define TAG_OF(group, kind) ((int)(KINDS * (group)->id + 1 + (kind)))

/* A sent message that MPI has not delivered yet. */
struct outgoing {
    struct outgoing *next;
    MPI_Request req;
    size_t bytes;
    char data[];
};

struct mpi_world {
    MPI_Comm comm;
    MPI_Status *status; /* [4 * size of the world], of the requests that are waited for */
    int64_t n_offered;  /* groups that this rank proposed */
    char *scratch, *node_scratch;
    size_t scratch_bytes, node_scratch_bytes;
    struct outgoing *first, **last;
    size_t under_way; /* bytes of the list */
};

struct mpi_group {
    int64_t id;
    MPI_Request *req; /* [4 * size] */
    int n_req;
    struct comm *node, *across; /* NULL: the group is not equally many neighbours on 2, 4, 8 … machines */
};

/* ---- mpi.c ---- */

/* Add a send or a receive to the group's batch. Buffers belong to MPI until mpi_finish_batch. */
void mpi_post_send(struct comm *c, const void *p, size_t bytes, int to);
void mpi_post_recv(struct comm *c, void *p, size_t bytes, int from);

/* Waits for all messages of the batch. */
int mpi_finish_batch(struct comm *c, struct err *e);

/* The error for a failed call of MPI; n: how many rows of status it filled. Waits a moment for a better text
 * on the board. */
int mpi_lost(struct world *w, int mpi_rc, int n, struct err *e);

/* One round of a wait that began at begin_ns: looks for failures, advances started operations, naps. */
int mpi_meanwhile(struct world *w, int64_t begin_ns, struct err *e);

/* First element of slice r of n. */
int64_t mpi_slice_begin(int64_t n, int n_slices, int r);

/* Sums n elements of `mine` with those in s, which has an array a rank; the array of this rank there is not
 * read. */
void mpi_sum_scratch(struct comm *c, enum sum_kind kind, void *out, void *mine, char *s, int64_t n);

/* ---- mpi_nodes.c ---- */

/* Counts bytes that go to another machine. */
void mpi_count_across(struct comm *c, size_t bytes, int to);

/* Opens the groups `node` and `across` where the group is regular. Collective over c. */
int mpi_nodes_open(struct comm *c, struct err *e);

/* 1 when c has these groups. */
int mpi_has_nodes(const struct comm *c);

/* 1 when it has them and sums inside a machine first: an inner sum (comm_nest) does not cross machines. */
int mpi_nodes_sum(const struct comm *c);

/* The ranks of c on this machine. */
struct comm *mpi_node(const struct comm *c);

/* Operations of struct transport for groups that have them. */
int mpi_nodes_barrier(struct comm *c, struct err *e);
int mpi_nodes_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e);
int mpi_nodes_all_reduce(struct comm *c, enum sum_kind kind, void *buf, int64_t n, struct err *e);
int mpi_nodes_reduce_scatter(struct comm *c, float *out, float *in, int64_t n_each, struct err *e);
int mpi_nodes_all_gather(struct comm *c, void *out, const void *in, size_t each, struct err *e);
int mpi_nodes_all_gather_shared(struct comm *c, void *shared, const void *in, size_t each, struct err *e);

/* ---- mpi_request.c: started operations (struct transport) ---- */
int mpi_start(struct comm_request *q, struct err *e);
int mpi_step(struct comm_request *q, struct err *e);
int mpi_finish(struct comm_request *q, struct err *e);
void mpi_release(struct comm_request *q);

#endif
