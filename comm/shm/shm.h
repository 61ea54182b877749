/* shm.h - inside of the transport shm: what a group keeps in the segment, and the parts of the transport:
 * collectives (shm.c), started operations (shm_request.c), messages (shm_message.c).
 *
 *   block:  [ epoch, arrived | lanes | member 0: posts, two slots | member 1 … | channel 0-0 | 0-1 | … ]
 *
 * A post tells where a rank's buffer lies. Slots hold small operations whole. A lane is a started operation.
 * A channel is a ring of messages in one direction, and where the rows of all-to-alls lie.
 *
 * mpi/mpi_nodes.c uses these functions for the ranks of one machine. Functions of a group are collective over
 * it, as their operations are in comm.h, where nothing else is said. */
#ifndef SHARDLINE_COMM_SHM_SHM_H
#define SHARDLINE_COMM_SHM_SHM_H

#include "comm/comm_priv.h"

#define SHM_SLOT 2048        /* bytes: up to here one barrier is enough for an operation */
#define SHM_STAGE COMM_STAGE /* for buffers outside of the segment */
#define SHM_RING 16          /* messages under way on one channel before a send waits */
#define SHM_LANES 8          /* started operations under way in one group before a start waits */

struct shm_post {
    _Alignas(64) int64_t off; /* of the buffer, or of the staging buffer, from the base of the segment */
    int64_t bytes;            /* of the call: the same on all ranks */
    int32_t what;             /* enum call, and its root in bits 8 and up: the same on all ranks */
    int32_t staged;
};

struct shm_slot {
    _Alignas(64) int64_t bytes;
    int32_t what;
    _Alignas(64) char data[SHM_SLOT];
};

struct shm_member {
    struct shm_post post;
    struct shm_slot slot[2]; /* alternate: slow ranks read one while fast ranks write the other */
    struct shm_post started[SHM_LANES];
};

/* Counts of ranks, added up over all operations that used the lane. */
struct shm_lane {
    struct wait_counter posted; /* ranks that wrote their post */
    struct wait_counter worked; /* ranks that did their part and read no more buffers of others */
    struct wait_counter done;   /* ranks that also ran on_complete, if the operation has one */
};

struct shm_channel {
    struct wait_counter sent, taken; /* messages so far */
    struct {
        int64_t off, bytes;
    } message[SHM_RING];
    struct {
        int64_t off, bytes; /* from the base of the segment */
    } rows[SHM_LANES];      /* of a started all-to-all: those from one rank to the other */
};

struct shm_block {
    struct wait_counter epoch; /* barriers so far */
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic int users;
    struct shm_lane lane[SHM_LANES];
    struct shm_member member[]; /* [size], then channels [size][size] */
};

/* The buffer of a sent message: free when the channel's `taken` has reached number. */
struct shm_buffer {
    void *p;
    size_t capacity;
    uint32_t number;
};

struct shm_group { /* comm->priv */
    struct shm_block *block;
    uint32_t epoch, n_small;               /* barriers and small operations so far */
    int owner;                             /* the block lies in this rank's region */
    struct shm_buffer (*outbox)[SHM_RING]; /* [size]; NULL until the first send */
};

/* This rank's share of memory that the ranks of a machine have together. */
struct shm_shared {
    struct shm_shared *next;
    void *p;
    int64_t counted;
    enum mem_cat cat;
};

struct shm_world {
    int spin;                   /* every rank has a core */
    char *stage;                /* the staging buffer; NULL until first used */
    struct shm_block **retired; /* own blocks of closed groups that other ranks may still read */
    int n_retired;
    struct shm_shared *shared;
};

/* One rank's part of a sum: elements [0, n) of every in[]. */
struct shm_slice {
    enum sum_kind kind;
    void **in;      /* [n_in] */
    int n_in, mine; /* mine: index of the array that gets the sum first … */
    int everywhere; /* … and 1 when all other arrays get it too */
    int inner;      /* of sum_over */
    char *out;      /* gets the sum instead, when not NULL */
    int64_t n;
};

/* ---- shm.c ---- */

/* Size of the block of a group. */
size_t shm_block_bytes(int size);

/* The channel from one rank of the group to another. Not collective. */
struct shm_channel *shm_channel(const struct comm *c, int from, int to);

/* Waits until the counter has reached the target, and advances started operations meanwhile. Not
 * collective. */
int shm_wait(struct comm *c, struct wait_counter *w, uint32_t target, struct err *e);

/* A barrier of the group. */
int shm_barrier(struct comm *c, struct err *e);

/* This rank's staging buffer of SHM_STAGE bytes. NULL: ERR_MEMORY. Not collective. */
char *shm_stage(struct world *w, struct err *e);

/* Fills *mine with the place where the other ranks find buf: in the segment, or the staging buffer. Not
 * collective: the other ranks learn of it in shm_post_sync. */
int shm_prepare(struct comm *c, struct shm_post *mine, int what, const void *buf, size_t bytes,
                struct err *e);

/* Writes this rank's post, waits for all posts and checks them. Returns 1 when some rank uses its staging
 * buffer, so that all go piece by piece; else 0. */
int shm_post_sync(struct comm *c, const struct shm_post *mine, struct err *e);

/* The post of rank r. Not collective. */
const struct shm_post *shm_post_of(const struct comm *c, int r);

/* Address of a posted buffer in this process. Not collective. */
char *shm_at(const struct comm *c, const struct shm_post *p);

/* ERR_INTERNAL that names both calls when rank r's post differs from the first rank's. Not collective. */
int shm_check_posts(struct comm *c, int r, const struct shm_post *p, const struct shm_post *first,
                    struct err *e);

/* First element of slice r of n. */
int64_t shm_slice_begin(int64_t n, int n_slices, int r);

/* Sums a slice, with the pool's threads where it is large. Not collective. */
void shm_sum_slice(struct comm *c, struct shm_slice *s);

/* ---- shm_message.c ---- */

/* comm_send and comm_recv. */
int shm_send(struct comm *c, const void *buf, size_t bytes, int to, struct err *e);
int shm_recv(struct comm *c, void *buf, size_t bytes, int from, struct err *e);

/* Frees the buffers of messages that were taken. Not collective. */
void shm_outbox_close(struct comm *c);

/* ---- shm_request.c: started operations (struct transport) ---- */
int shm_start(struct comm_request *q, struct err *e);
int shm_step(struct comm_request *q, struct err *e);
int shm_finish(struct comm_request *q, struct err *e);
void shm_release(struct comm_request *q);

#endif
