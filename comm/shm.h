/* shm.h - what a group keeps in the segment, and its two halves: collectives (shm.c), messages (shm_message.c).
 *
 *   block:  [ epoch, arrived | member 0: post, two slots | member 1 … | channel 0 to 0 | 0 to 1 | … ]
 *
 * A post says where a rank's buffer lies; slots carry small operations whole; a channel is a ring of messages in one direction. */
#ifndef SHARDLINE_COMM_SHM_H
#define SHARDLINE_COMM_SHM_H

#include "comm/comm_priv.h"

#define SHM_SLOT 2048              /* bytes: up to here one sync does */
#define SHM_STAGE ((size_t)1 << 20)/* bytes of a rank's staging block, for buffers outside of the segment */
#define SHM_RING 16                /* messages under way on one channel before a send waits */

struct shm_post {
    _Alignas(64) int64_t off;      /* of the buffer, or of the staging block, from the base of the segment */
    int64_t bytes;                 /* of the call: must be the same on all ranks */
    int32_t what;                  /* enum call, and its root: likewise */
    int32_t staged;
};
struct shm_slot {
    _Alignas(64) int64_t bytes;
    int32_t what;
    _Alignas(64) char data[SHM_SLOT];
};
struct shm_member {
    struct shm_post post;
    struct shm_slot slot[2];       /* used in turn: one is read by the slow while the quick write the other */
};
struct shm_channel {
    struct word sent, taken;       /* messages so far */
    struct { int64_t off, bytes; } message[SHM_RING];
};
struct shm_block {
    struct word epoch;             /* syncs so far */
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic int users;
    struct shm_member member[];    /* [size], then channels [size][size] */
};

struct shm_buffer { void *p; size_t room; uint32_t number; };      /* of a message sent: free when that many are taken */
struct shm_group {                 /* comm->priv */
    struct shm_block *block;
    uint32_t epoch, n_small;       /* syncs and small operations so far */
    int owner;                     /* the block lies in my region */
    struct shm_buffer (*outbox)[SHM_RING];                           /* [size]; NULL until the first send */
};
struct shm_world {                 /* world->priv */
    int spin;                      /* a core for every rank */
    char *stage;                   /* NULL until first used */
    struct shm_block **retired;    /* blocks of closed groups of mine that others may still look at */
    int n_retired;
};

size_t shm_block_bytes(int size);
struct shm_channel *shm_channel(const struct comm *c, int from, int to);
int shm_wait(struct comm *c, struct word *w, uint32_t target, struct err *e);
int shm_send(struct comm *c, const void *buf, size_t bytes, int to, struct err *e);
int shm_recv(struct comm *c, void *buf, size_t bytes, int from, struct err *e);
void shm_outbox_close(struct comm *c);

#endif
