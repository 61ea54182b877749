/* mpi_group.h - inside of the transport mpi: messages (mpi.c), sums inside a machine first (mpi_nodes.c),
 * started operations (mpi_request.c). */
#ifndef SHARDLINE_COMM_MPI_MPI_GROUP_H
#define SHARDLINE_COMM_MPI_MPI_GROUP_H

#include <mpi.h>
#include "comm/comm_priv.h"

#define PIECE ((size_t)256 << 20) /* bytes of one message */
#define SMALL 4096                /* bytes: up to here everybody sends all to all */
/* Messages of one kind between two ranks arrive in the order of sending, so each stage of an operation has
 * its own. */
enum { KIND_COLLECTIVE, KIND_MESSAGE, KIND_STARTED, KIND_SUMS, KINDS };
#define TAG_OF(group, kind) ((int)(KINDS * (group)->id + 1 + (kind)))

/* a message on its way */
struct outgoing {
    struct outgoing *next;
    MPI_Request req;
    size_t bytes;
    char data[];
};
struct mpi_world {
    MPI_Comm comm;
    MPI_Status *status; /* [4 * size], of the requests that are waited for */
    int64_t n_offered;
    char *scratch, *node_scratch;
    size_t scratch_bytes, node_scratch_bytes;
    struct outgoing *first, **last;
    size_t under_way;
};
struct mpi_group {
    int64_t id;
    MPI_Request *req; /* [4 * size] */
    int n_req;
    /* NULL: the group is not the same number of neighbours on 2, 4, 8 … machines */
    struct comm *node, *across;
};

void mpi_post_send(struct comm *c, const void *p, size_t bytes, int to);
void mpi_post_recv(struct comm *c, void *p, size_t bytes, int from);
int mpi_finish_batch(struct comm *c, struct err *e);
void mpi_count_across(struct comm *c, size_t bytes, int to);
int mpi_lost(struct world *w, int mpi_rc, int n, struct err *e);
/* What a wait does between two looks: failures, started operations, a nap. */
int mpi_meanwhile(struct world *w, int64_t begin_ns, struct err *e);
int64_t mpi_slice_begin(int64_t n, int n_slices, int r);
/* Sums n elements of mine with what lies in s, one array a rank (my own place there is empty). */
void mpi_sum_scratch(struct comm *c, enum sum_kind kind, void *out, void *mine, char *s, int64_t n);
/* mpi_nodes.c */
int mpi_nodes_open(struct comm *c, struct err *e);
int mpi_has_nodes(const struct comm *c);
struct comm *mpi_node(const struct comm *c);
int mpi_nodes_barrier(struct comm *c, struct err *e);
int mpi_nodes_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e);
int mpi_nodes_all_reduce(struct comm *c, enum sum_kind kind, void *buf, int64_t n, struct err *e);
int mpi_nodes_reduce_scatter(struct comm *c, float *out, float *in, int64_t n_each, struct err *e);
int mpi_nodes_all_gather(struct comm *c, void *out, const void *in, size_t each, struct err *e);
int mpi_nodes_all_gather_shared(struct comm *c, void *shared, const void *in, size_t each, struct err *e);
/* mpi_request.c */
int mpi_start(struct comm_request *q, struct err *e);
int mpi_step(struct comm_request *q, struct err *e);
int mpi_finish(struct comm_request *q, struct err *e);
void mpi_release(struct comm_request *q);

#endif
