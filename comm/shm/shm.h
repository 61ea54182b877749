/* shm.h - what a group keeps in the segment, and its parts: collectives (shm.c), started ones
 * (shm_request.c), messages (shm_message.c).
 *
 *   block:  [ epoch, arrived | lanes | member 0: posts, two slots | member 1 … | channel 0 to 0 | 0 to 1 | …
 *           ]
 *
 * A post says where a rank's buffer lies; slots carry small operations whole; a lane is a started operation;
 * a channel is a ring of messages in one direction. */
#ifndef SHARDLINE_COMM_SHM_SHM_H
#define SHARDLINE_COMM_SHM_SHM_H

#include "comm/comm_priv.h"

#define SHM_SLOT 2048        /* bytes: up to here one sync does */
#define SHM_STAGE COMM_STAGE /* for buffers outside of the segment */
#define SHM_RING 16          /* messages under way on one channel before a send waits */
#define SHM_LANES 8          /* started operations under way in one group before a start waits */

struct shm_post {
    /* of the buffer, or of the staging block, from the base of the segment */
    _Alignas(64) int64_t off;
    int64_t bytes; /* of the call: must be the same on all ranks */
    int32_t what;  /* enum call, and its root: likewise */
    int32_t staged;
};
struct shm_slot {
    _Alignas(64) int64_t bytes;
    int32_t what;
    _Alignas(64) char data[SHM_SLOT];
};
struct shm_member {
    struct shm_post post;
    /* used in turn: one is read by the slow while the quick write the other */
    struct shm_slot slot[2];
    struct shm_post started[SHM_LANES];
};
struct shm_lane {               /* all count ranks, over all operations that used the lane */
    struct wait_counter posted; /* said where their buffer is */
    struct wait_counter worked; /* did their part, and need the others' buffers no more */
    /* and ran what follows (comm_callback); of other operations one with `worked` */
    struct wait_counter done;
};
struct shm_channel {
    struct wait_counter sent, taken; /* messages so far */
    struct {
        int64_t off, bytes;
    } message[SHM_RING];
};
struct shm_block {
    struct wait_counter epoch; /* syncs so far */
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic int users;
    struct shm_lane lane[SHM_LANES];
    struct shm_member member[]; /* [size], then channels [size][size] */
};

/* of a message sent: free when that many are taken */
struct shm_buffer {
    void *p;
    size_t capacity;
    uint32_t number;
};
struct shm_group { /* comm->priv */
    struct shm_block *block;
    uint32_t epoch, n_small;               /* syncs and small operations so far */
    int owner;                             /* the block lies in my region */
    struct shm_buffer (*outbox)[SHM_RING]; /* [size]; NULL until the first send */
};
struct shm_shared {
    struct shm_shared *next;
    void *p;
    int64_t counted;
    enum mem_cat cat;
};
struct shm_world {
    int spin;                   /* a core for every rank */
    char *stage;                /* NULL until first used */
    struct shm_block **retired; /* blocks of closed groups of mine that others may still look at */
    int n_retired;
    struct shm_shared *shared; /* memory once a machine that this rank has a share of */
};

/* One rank's share of a sum: elements [0, n) of every in[]. */
struct shm_slice {
    enum sum_kind kind;
    void **in;      /* [n_in] */
    int n_in, mine; /* mine: the sum goes there first … */
    int everywhere; /* … and then into all others */
    char *out;      /* or here, when not NULL */
    int64_t n;
};

size_t shm_block_bytes(int size);
struct shm_channel *shm_channel(const struct comm *c, int from, int to);
int shm_wait(struct comm *c, struct wait_counter *w, uint32_t target, struct err *e);
int shm_barrier(struct comm *c, struct err *e);
/* My staging block of SHM_STAGE bytes; NULL: no shared memory left. */
char *shm_stage(struct world *w, struct err *e);
/* buf as the others see it: where it lies, or my staging block. Nothing is said to the others yet. */
int shm_prepare(struct comm *c, struct shm_post *mine, int what, const void *buf, size_t bytes,
                struct err *e);
/* Tells the others and waits for their posts; returns whether any rank stages. */
int shm_post_sync(struct comm *c, const struct shm_post *mine, struct err *e);
const struct shm_post *shm_post_of(const struct comm *c, int r);
char *shm_at(const struct comm *c, const struct shm_post *p);
/* ERR_INTERNAL that names both calls when posts differ, r's against the first rank's. */
int shm_check_posts(struct comm *c, int r, const struct shm_post *p, const struct shm_post *first,
                    struct err *e);
/* First element of slice r of n. */
int64_t shm_slice_begin(int64_t n, int n_slices, int r);
void shm_sum_slice(struct comm *c, struct shm_slice *s);
int shm_send(struct comm *c, const void *buf, size_t bytes, int to, struct err *e);
int shm_recv(struct comm *c, void *buf, size_t bytes, int from, struct err *e);
void shm_outbox_close(struct comm *c);
/* shm_request.c */
int shm_start(struct comm_request *q, struct err *e);
int shm_step(struct comm_request *q, struct err *e);
int shm_finish(struct comm_request *q, struct err *e);
void shm_release(struct comm_request *q);

#endif
