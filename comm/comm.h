/* comm.h - ranks that agree: groups, collectives whose sums have one order, failures that reach everybody.
 *
 * Sums are Tree(size of the group) over its ranks in rank order (kernels/tree.h), the same bits on every
 * transport. Every call is collective over its group, in the same order on all its ranks. A call returns
 * ERR_PEER when another rank failed, died or did not answer; after that every call on any group of the world
 * returns ERR_PEER at once. */
#ifndef SHARDLINE_COMM_COMM_H
#define SHARDLINE_COMM_COMM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "base/err.h"
#include "base/mem.h"
#include "kernels/dev.h"

struct trace;
struct comm;  /* a group of ranks */
struct world; /* all ranks of the job */

/* fastest first */
enum mesh_axis { AXIS_TP, AXIS_CP, AXIS_DP, AXIS_PP, AXIS_COUNT };
struct mesh {                             /* rank = ((pp * n_dp + dp) * n_cp + cp) * n_tp + tp */
    int size[AXIS_COUNT], at[AXIS_COUNT]; /* degrees, and this rank's place on every axis */
    struct comm *axis[AXIS_COUNT];        /* the group along every axis; size 1 groups too */
    struct comm *all;
};

/* ---- start (launch.h: programs start their own ranks) ---- */
/* transport: "auto" | "self" | "shm" | "mpi" | "nccl". auto: self for one rank (MPI is not started), shm
 * when all ranks share one machine, else mpi; memory of a device goes over NCCL where it is there and every
 * rank has a GPU of its own, else through the host. nccl: as auto, but an error where NCCL cannot be used.
 * timeout_s (0: 600): so long a device may wait for a rank that does not come to an operation, and opening
 * NCCL for one that it cannot reach; then the job ends (of NCCL: others see that a rank is gone). dev is
 * used for tree_add; mem counts the segment. */
int world_open(struct world **out, const char *transport, int64_t timeout_s, struct dev *dev, struct mem *mem,
               struct err *e);
/* Collectives and waits of this rank go into t from now on (base/trace.h); NULL: no more. */
void world_trace(struct world *w, struct trace *t);
/* All ranks' events into one file, written by rank 0 (Chrome trace). Collective. */
int world_trace_write(struct world *w, const struct trace *t, const char *path, struct err *e);
/* Orderly end; safe after a failure (then it does not wait for the others). */
void world_close(struct world *w);
int world_rank(const struct world *w);
int world_size(const struct world *w);
const char *world_transport(const struct world *w);
/* How memory of the device goes between ranks, in words; NULL: it has none of its own, or there is one rank.
 * */
const char *world_device_route(const struct world *w);
/* For --version: what transports this program has, and whether NCCL is here. */
const char *comm_transports(void);
/* The line of --version, of every program: release, contract, CPU class, devices, transports. more: "" or
 * what is said besides, with ", " behind. */
void comm_version(FILE *out, const char *program, const char *more);
/* Ties the pool's threads to CPUs of this rank's own where the ranks of the machine, of as many threads
 * each, have CPUs enough: 1 when it did. Left alone: more threads than CPUs, ranks that a foreign launcher
 * started (it may have bound them), SHARDLINE_PIN=off. */
struct pool;
int world_pin(const struct world *w, struct pool *p);
/* ERR_USAGE when the product of the degrees is not the number of ranks. */
int mesh_open(struct mesh *m, struct world *w, const int size[AXIS_COUNT], struct err *e);
void mesh_close(struct mesh *m);
/* Ranks of `parent` with the same colour, in parent's order. Collective over parent. */
int comm_split(struct comm **out, struct comm *parent, int colour, struct err *e);
void comm_close(struct comm *c);

int comm_rank(const struct comm *c);
int comm_size(const struct comm *c);
/* "all", "tp", "cp", "dp", "pp" of a mesh, else "group" */
const char *comm_name(const struct comm *c);

/* ---- memory ---- */
/* bytes a rank takes once besides: a staging block, for memory from elsewhere */
#define COMM_STAGE ((size_t)1 << 20)
/* Memory that peers can read directly (in the shared segment; plain memory on other transports). Not
 * collective. Zeroed, 64-byte aligned. Collectives on it copy nothing; any other memory works too, through
 * staging. NULL: none left. */
void *comm_alloc(struct comm *c, enum mem_cat cat, size_t bytes);
void comm_free(struct comm *c, void *p);
/* Memory that the ranks of c on one machine have together, once a machine, not once a rank: for gathered
 * parameters. Zeroed; what one rank writes there the others see after the next collective call on c. Every
 * rank counts its share of the bytes. Collective over c, as is giving it back. */
int comm_alloc_shared(void **out, struct comm *c, enum mem_cat cat, size_t bytes, struct err *e);
int comm_free_shared(struct comm *c, void *p, struct err *e);
/* The ranks of c that have such memory together with this one: which of them it is, and how many they are. */
void comm_shared_group(const struct comm *c, int *rank, int *size);
/* The ranks of c on this rank's machine, whoever carries what goes between them; a device has no memory that
 * they share. */
int comm_local_size(const struct comm *c);

/* ---- collectives ---- */
int comm_barrier(struct comm *c, struct err *e);
int comm_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e);
/* buf[n] = Tree over ranks of their buf[n]. */
int comm_all_reduce(struct comm *c, float *buf, int64_t n, struct err *e);
/* out[n_each] = segment `rank` of Tree over ranks of in[size * n_each]. in is left undefined. out may be in
 * + rank * n_each. */
int comm_reduce_scatter(struct comm *c, float *out, float *in, int64_t n_each, struct err *e);
/* out[size * bytes_each], rank r's part from its in; in may be out + rank * bytes_each. */
int comm_all_gather(struct comm *c, void *out, const void *in, size_t bytes_each, struct err *e);
/* The same into shared memory: nobody copies what others on his machine wrote. On every rank in is shared +
 * rank * bytes_each, and then nothing is copied inside of a machine at all; or on none, and then the call
 * first waits until all ranks are in it, so that nobody still reads what was there before. */
int comm_all_gather_shared(struct comm *c, void *shared, const void *in, size_t bytes_each, struct err *e);
int comm_all_reduce_max(struct comm *c, float *buf, int64_t n, struct err *e);   /* NaN wins */
int comm_all_reduce_i64(struct comm *c, int64_t *buf, int64_t n, struct err *e); /* sums, exact */
/* A message is copied and on its way when comm_send returns: two ranks may send to each other first and
 * receive then. It waits only when 16 messages (shm) or 256 MiB (mpi) to that rank are not taken yet.
 * comm_recv: bytes must be what was sent. */
int comm_send(struct comm *c, const void *buf, size_t bytes, int to, struct err *e);
int comm_recv(struct comm *c, void *buf, size_t bytes, int from, struct err *e);
/* Rank root gets every rank's bytes, one behind the other: out (malloc'd, root only; others NULL),
 * sizes[size] (root only). */
int comm_gather_blobs(struct comm *c, const void *blob, size_t bytes, int root, void **out, size_t *sizes,
                      struct err *e);
/* Agreement: every rank brings its own rc (0 or negative, *e filled); every rank gets the rc and text of the
 * lowest failing rank ("rank 3: …"; without the name when all failed), or 0. A rank that failed must still
 * come here; then all stop or none. */
int comm_agree(struct comm *c, int rc, struct err *e);

/* ---- collectives that are started, and finished later: the same bits as above ----
 * Start tells the others where the buffers are and returns. The work is done by comm_progress, by any call
 * that waits and by comm_finish; no thread is behind it. All ranks of a group start in the same order;
 * finishing may be in any order, and other calls may come between. Buffers belong to the operation until
 * comm_finish returns; out of comm_alloc they are not copied. After 8 starts of a group that are not
 * finished anywhere a start waits. */
struct comm_request;
int comm_start_all_reduce(struct comm_request **out, struct comm *c, float *buf, int64_t n, struct err *e);
int comm_start_reduce_scatter(struct comm_request **q, struct comm *c, float *out, float *in, int64_t n_each,
                              struct err *e);
int comm_start_all_gather(struct comm_request **q, struct comm *c, void *out, const void *in,
                          size_t bytes_each, struct err *e);
/* The gather into memory that the ranks of a machine have together (in from elsewhere). It begins when all
 * ranks have started it, so that nobody still reads what was there. then (may be NULL) runs on every rank
 * when all parts are there, out of whatever call finds it so; the operation is over when it has run on all:
 * for work on the parts that these ranks share. It makes no calls of this room. Where several machines have
 * such memory the start does it all. */
struct comm_callback {
    void (*run)(void *arg);
    void *arg;
};
int comm_start_all_gather_shared(struct comm_request **q, struct comm *c, void *shared, const void *in,
                                 size_t bytes_each, struct comm_callback on_complete, struct err *e);
/* Does what is ready of all started operations of c's world and waits for nobody. Not collective. Every
 * other call begins with it. */
int comm_progress(struct comm *c, struct err *e);
/* Waits for the end of *q, frees it and sets it to NULL; NULL: nothing to do. Collective over its group. */
int comm_finish(struct comm_request **q, struct err *e);

/* ---- failures ---- */
/* A signal asked for an orderly end (SIGTERM, SIGINT) on any rank: 0 or the signal. The same answer on all
 * ranks only through an agreement; poll it once a step. */
int world_stop_signal(const struct world *w);
/* Says that this rank cannot go on: the others' calls return ERR_PEER within 10 s. Not collective. */
void world_fail(struct world *w, const struct err *e);
/* 1 for the one rank of a machine that should print the error that ends the job; 0 when that was said
 * already (a dead or stopped rank is reported by the room itself). */
int world_claim_report(struct world *w);
/* The end of main after an error: world_fail, and the line on stderr ("program: rank 3: …") when no other
 * rank of this machine has said one yet (a dead or stopped rank is reported by the room itself). Errors of
 * usage and config, which all ranks have alike, name no rank. Returns the exit status. Then world_close. */
int world_report(struct world *w, const struct err *e, const char *program);

/* ---- counts: elements and bytes this rank put on the wire or read from peers, by collective and group ----
 * */
enum comm_op {
    COMM_ALL_REDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_BROADCAST,
    COMM_SEND,
    COMM_OTHER,
    COMM_OPS
};
/* across: sent to other machines */
struct comm_count {
    int64_t calls, bytes, across;
    double seconds;
};
void comm_counts(const struct comm *c, struct comm_count out[COMM_OPS]);
const char *comm_op_name(enum comm_op op);

#endif
