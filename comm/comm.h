/* comm.h - groups of ranks: collective operations whose sums have one order, failures that every rank learns
 * of.
 *
 * Order of sums: Tree(size of the group) over its ranks in rank order (kernels/tree.h), so the bits are the
 * same on every transport. Unless a comment says "not collective", every rank of the group makes the call,
 * and all ranks make the same calls on a group in the same order.
 *
 * Errors: functions return 0 or -ERR_… and fill *e. -ERR_PEER: another rank failed, exited or hangs. After
 * any failure of a collective call the world has failed, and every later call on any of its groups returns
 * -ERR_PEER at once.
 *
 * Threads: one thread of a rank calls everything here; world_fail and world_stop_signal may be called by any.
 *
 * Buffers lie in host memory or in the memory of the world's device; comm looks where. */
#ifndef SHARDLINE_COMM_COMM_H
#define SHARDLINE_COMM_COMM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "base/err.h"
#include "base/mem.h"
#include "kernels/dev.h"

struct pool;
struct trace;
struct comm;  /* a group of ranks */
struct world; /* all ranks of the job */

/* ---- the world (launch.h: how programs start their own ranks) ---- */

/* Opens the world. Collective over all ranks of the job; called once per process, or again after world_close.
 * transport: "auto", "self" (one rank, MPI is not started), "shm" (all ranks on one machine), "mpi" or
 *            "nccl". auto takes the first of self, shm, mpi that fits; device memory goes over NCCL where the
 *            library is found and every rank has a GPU of its own, else through the host. nccl is auto, but
 *            an error where NCCL cannot be used.
 * timeout_s: seconds a device operation waits for a missing rank before the job is aborted; also the limit
 *            for creating an NCCL communicator. 0 means 600.
 * dev:       borrowed until world_close; NULL: buffers lie in host memory.
 * mem:       counts this rank's memory, borrowed until world_close; NULL: a count of the world's own.
 * ERR_USAGE: the transport does not exist or does not fit; ERR_PEER: MPI does not start. */
int world_open(struct world **out, const char *transport, int64_t timeout_s, struct dev *dev, struct mem *mem,
               struct err *e);

/* From now on a wait of this rank for messages of other machines that takes longer than `seconds` is an
 * error (ERR_PEER): the link is cut, or a machine is gone. 0: waits as long as it takes, as after world_open.
 * Call it around work in which every rank keeps sending. Not collective. */
void world_limit_waits(struct world *w, int64_t seconds);

/* Closes the world, after its groups. After a failure it does not wait for other ranks. */
void world_close(struct world *w);

/* This rank, and the number of ranks. Not collective. */
int world_rank(const struct world *w);
int world_size(const struct world *w);
/* Ranks of this machine. */
int world_node_size(const struct world *w);

/* Name of the transport in use. Not collective. */
const char *world_transport(const struct world *w);

/* How device memory travels between ranks, for the log: "by NCCL 2.28.9, a GPU a rank". NULL: the device has
 * no memory of its own, or there is one rank. Not collective. */
const char *world_device_route(const struct world *w);

/* Records the collectives and waits of this rank in t (base/trace.h, borrowed) from now on; NULL: stop.
 * Collective when recording starts: a barrier sets the clocks of all ranks to 0. */
void world_trace(struct world *w, struct trace *t);

/* Writes the events of all ranks into one file on rank 0 (Chrome trace). */
int world_trace_write(struct world *w, const struct trace *t, const char *path, struct err *e);

/* Binds the pool's threads to CPUs of this rank's own, where the ranks of the machine, with as many threads
 * each, have enough CPUs. Returns 1 when it did. Nothing is bound when threads outnumber CPUs, when a foreign
 * launcher started the ranks (it may have bound them), or with SHARDLINE_PIN=off. Not collective. */
int world_pin(const struct world *w, struct pool *p);

/* The transports of this program, and whether NCCL is found: for --version. Static text, not collective. */
const char *comm_transports(void);

/* Prints the line of --version: release, contract, CPU class, devices, transports. more: "", or text of the
 * program that ends with ", ". Not collective. */
void comm_version(FILE *out, const char *program, const char *more);

/* ---- groups ---- */

/* Axes of the mesh; neighbours along the first are the closest. */
enum mesh_axis { AXIS_TP, AXIS_CP, AXIS_DP, AXIS_PP, AXIS_COUNT };

/* rank = ((pp * n_dp + dp) * n_cp + cp) * n_tp + tp */
struct mesh {
    int size[AXIS_COUNT], at[AXIS_COUNT]; /* degrees, and this rank's coordinates */
    struct comm *axis[AXIS_COUNT];        /* the group along every axis, also where its size is 1 */
    struct comm *all;                     /* all ranks */
};

/* Opens the groups of a mesh of these degrees. ERR_USAGE: their product is not the number of ranks. */
int mesh_open(struct mesh *m, struct world *w, const int size[AXIS_COUNT], struct err *e);

/* Closes the groups of the mesh. */
void mesh_close(struct mesh *m);

/* Opens the group of all ranks of `parent` with the same colour, in parent's order. Collective over
 * parent. */
int comm_split(struct comm **out, struct comm *parent, int colour, struct err *e);

/* From now on sums of floats over the group are nested: Tree(inner) over every `inner` neighbours, then Tree
 * of these sums. inner divides the group's size. Not collective, but every rank calls it in front of the same
 * sum. */
void comm_nest(struct comm *c, int inner);

/* Closes a group; NULL is allowed. */
void comm_close(struct comm *c);

/* This rank within the group, and the number of its ranks. Not collective. */
int comm_rank(const struct comm *c);
int comm_size(const struct comm *c);

/* Number of ranks of the group on this rank's machine. Not collective. */
int comm_local_size(const struct comm *c);

/* "all", "tp", "cp", "dp" or "pp" for a group of a mesh, else "group". Not collective. */
const char *comm_name(const struct comm *c);

/* ---- memory ---- */

/* Bytes of the staging buffer that a rank allocates once when it passes memory from elsewhere. */
#define COMM_STAGE ((size_t)1 << 20)
/* Bytes that a group of so many ranks, all of one machine, takes of its first rank: for plans. */
size_t comm_group_bytes(int size);

/* Allocates memory that other ranks can read directly: device memory where the device has its own, else
 * shared memory (shm) or plain memory. Zeroed, 64-byte aligned. Collectives copy nothing from and to it;
 * other memory works too, through the staging buffer. NULL: out of memory. Not collective. */
void *comm_alloc(struct comm *c, enum mem_cat cat, size_t bytes);

/* Frees memory of comm_alloc; NULL is allowed. Not collective. */
void comm_free(struct comm *c, void *p);

/* Allocates memory that the ranks of c on one machine share: one copy a machine, for gathered parameters.
 * Zeroed. What one rank writes, the others see after the next collective call on c. Each rank counts its
 * share of the bytes. With a device that has memory of its own every rank gets memory of its own. ERR_MEMORY
 * on all ranks when one has none; the world has not failed then. */
int comm_alloc_shared(void **out, struct comm *c, enum mem_cat cat, size_t bytes, struct err *e);

/* Frees memory of comm_alloc_shared; NULL is allowed. Collective over c. */
int comm_free_shared(struct comm *c, void *p, struct err *e);

/* The ranks of c that share such memory with this one: this rank's index among them, and their number. Not
 * collective. */
void comm_shared_group(const struct comm *c, int *rank, int *size);

/* ---- collectives; they block, sizes are equal on all ranks, 0 is allowed ---- */

/* Returns when all ranks have called it. */
int comm_barrier(struct comm *c, struct err *e);

/* Copies buf [bytes] of rank root into buf of all ranks. */
int comm_broadcast(struct comm *c, void *buf, size_t bytes, int root, struct err *e);

/* buf[n] = Tree over ranks of their buf[n]. */
int comm_all_reduce(struct comm *c, float *buf, int64_t n, struct err *e);

/* out[n_each] = slice `rank` of Tree over ranks of in[size * n_each]. in is undefined afterwards. out may be
 * in + rank * n_each. */
int comm_reduce_scatter(struct comm *c, float *out, float *in, int64_t n_each, struct err *e);

/* out[size * bytes_each]: in[bytes_each] of every rank, in rank order. in may be out + rank * bytes_each. */
int comm_all_gather(struct comm *c, void *out, const void *in, size_t bytes_each, struct err *e);

/* The same into memory of comm_alloc_shared: a rank copies nothing that another rank of its machine wrote.
 * Either in is shared + rank * bytes_each on every rank, and nothing is copied inside of a machine; or on
 * none, and the call first waits for all ranks, so that none still reads the old contents. */
int comm_all_gather_shared(struct comm *c, void *shared, const void *in, size_t bytes_each, struct err *e);

/* buf[n] = maximum over ranks; NaN wins, +0 is above -0. */
int comm_all_reduce_max(struct comm *c, float *buf, int64_t n, struct err *e);

/* buf[n] = sum over ranks, modulo 2^64. */
int comm_all_reduce_i64(struct comm *c, int64_t *buf, int64_t n, struct err *e);

/* Gathers blobs of different sizes on rank root, in rank order. On root *out is malloc'd and owned by the
 * caller, and sizes[size] is filled; on other ranks *out is NULL and sizes may be NULL. */
int comm_gather_blobs(struct comm *c, const void *blob, size_t bytes, int root, void **out, size_t *sizes,
                      struct err *e);

/* Moves rows of row_bytes between all ranks: in holds the rows for rank 0, then those for rank 1, …, to[r]
 * rows for rank r; out receives from[r] rows of rank r, in rank order. from[r] must be what rank r passes as
 * its to[this rank]. row_bytes is the same on all ranks. Pure movement, nothing is added. */
int comm_all_to_all_v(struct comm *c, void *out, const int64_t *from, const void *in, const int64_t *to,
                      size_t row_bytes, struct err *e);

/* Agrees on success. Every rank passes its own rc (0, or negative with *e filled). All ranks get 0, or the
 * code and text of the lowest rank that failed ("rank 3: …", without that prefix when all ranks failed). A
 * rank that failed must still call it, so that all ranks stop or none does. An agreed error is no failure of
 * the world. */
int comm_agree(struct comm *c, int rc, struct err *e);
/* Agrees that all ranks have the n numbers (8 at most) of rank 0. Else ERR_CONFIG on every rank with the text
 * `differ` of a rank that has others. Collective. */
int comm_agree_alike(struct comm *c, const uint64_t *own, int n, const char *differ, struct err *e);

/* ---- messages between two ranks of a group ---- */

/* Sends. The message is copied, so two ranks may send to each other first and receive then. Blocks only while
 * 16 messages (shm) or 256 MiB (mpi) to that rank are not received yet. */
int comm_send(struct comm *c, const void *buf, size_t bytes, int to, struct err *e);

/* Receives the oldest message of rank `from`; bytes must be its size. */
int comm_recv(struct comm *c, void *buf, size_t bytes, int from, struct err *e);

/* ---- collectives that are started and finished later; the bits are those of the blocking ones ----
 *
 * A start tells the other ranks where the buffers are and returns. comm_progress, comm_finish and every call
 * that waits do the work; there is no helper thread. All ranks of a group start in the same order; they may
 * finish in any order, and other calls may come between. Buffers belong to the operation until comm_finish
 * returns. A start blocks while 8 operations of its group are not finished on some rank. */
struct comm_request;

/* comm_all_reduce. */
int comm_start_all_reduce(struct comm_request **q, struct comm *c, float *buf, int64_t n, struct err *e);

/* comm_reduce_scatter. */
int comm_start_reduce_scatter(struct comm_request **q, struct comm *c, float *out, float *in, int64_t n_each,
                              struct err *e);

/* comm_all_gather. */
int comm_start_all_gather(struct comm_request **q, struct comm *c, void *out, const void *in,
                          size_t bytes_each, struct err *e);

/* comm_all_to_all_v. from and to are copied: they may change before comm_finish. */
int comm_start_all_to_all_v(struct comm_request **q, struct comm *c, void *out, const int64_t *from,
                            const void *in, const int64_t *to, size_t row_bytes, struct err *e);

/* Work on gathered parts. run may be NULL; it makes no calls of this room. */
struct comm_callback {
    void (*run)(void *arg);
    void *arg;
};

/* comm_all_gather_shared, with `in` outside of `shared`. It begins when all ranks have started it, so that
 * none still reads the old contents. on_complete runs on every rank when all parts are there, inside of the
 * call that finds them complete; the operation ends when it has run on all ranks. It is for work on the parts
 * that these ranks share. Where several machines have such memory the start does it all. */
int comm_start_all_gather_shared(struct comm_request **q, struct comm *c, void *shared, const void *in,
                                 size_t bytes_each, struct comm_callback on_complete, struct err *e);

/* Does what is ready of all started operations of c's world, without waiting. Every other call begins with
 * it. Not collective. */
int comm_progress(struct comm *c, struct err *e);

/* Waits for the end of *q, frees it and sets it to NULL; NULL: does nothing. Collective over its group. */
int comm_finish(struct comm_request **q, struct err *e);

/* ---- failures ---- */

/* The signal (SIGTERM, SIGINT) that asked a rank of this machine to stop, or 0. Ranks may see it at different
 * times, so they agree before they act on it; read it once a step. Not collective. */
int world_stop_signal(const struct world *w);

/* line not NULL: until the next call a stop request ends this process at once, with that line on stderr, also
 * while the main thread allocates or reads. For a start that has nothing to save yet. NULL: ranks read
 * world_stop_signal() again. line: static text. Not collective. */
void world_end_on_stop(struct world *w, const char *line);

/* line not NULL: the machine of rank 0 prints it on stderr when the first stop request arrives, before any
 * rank acts on it. line: static text. Not collective. */
void world_answer_stop(struct world *w, const char *line);

/* Declares that this rank cannot go on: calls of the other ranks return ERR_PEER within 10 s. The first
 * failure of the world counts, later ones are ignored. Not collective. */
void world_fail(struct world *w, const struct err *e);

/* 1 for the first caller on this machine, which then prints the error that ends the job. 0 for all others,
 * and when the error is printed already (comm itself reports a dead or hanging rank). Not collective. */
int world_claim_report(struct world *w);

/* The end of main after an error: world_fail, and the line "program: rank 3: …" on stderr unless a rank of
 * this machine has printed one. Errors of usage and config, which all ranks have alike, name no rank. Returns
 * the exit status; world_close follows. Not collective. */
int world_report(struct world *w, const struct err *e, const char *program);

/* ---- counts, by operation and group ---- */

enum comm_op {
    COMM_ALL_REDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_BROADCAST,
    COMM_SEND,
    COMM_ALL_TO_ALL,
    COMM_OTHER,
    COMM_OPS
};

struct comm_count {
    int64_t calls;
    int64_t bytes;  /* sent by this rank, or read from other ranks */
    int64_t across; /* bytes sent to other machines */
    double seconds; /* inside of calls */
};

/* The counts of this rank since the group was opened. Not collective. */
void comm_counts(const struct comm *c, struct comm_count out[COMM_OPS]);

/* "all_reduce", … */
const char *comm_op_name(enum comm_op op);

#endif
