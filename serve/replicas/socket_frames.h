/* socket_frames.h - frames (a head and n bytes) between the front end of a server and its other replicas,
 * over a stream socket of this machine. One thread owns an end. Both ends buffer what the other has not read
 * yet, so that neither blocks until the other reads. */
#ifndef SHARDLINE_SERVE_REPLICAS_SOCKET_FRAMES_H
#define SHARDLINE_SERVE_REPLICAS_SOCKET_FRAMES_H

#include <stdint.h>
#include "base/err.h"
#include "serve/api/json_out.h"

enum frame_kind {
    /* from the front end: */
    FRAME_REQUEST, /* id, request_wire.h */
    FRAME_CANCEL,  /* id */
    FRAME_RELOAD,  /* what: enum reload_op; its text */
    FRAME_STOP,
    /* from the replica: */
    FRAME_EVENTS,      /* id, events of a stream */
    FRAME_ANSWER,      /* id, a whole answer */
    FRAME_DONE,        /* id, struct fault; what: tokens generated */
    FRAME_RELOAD_DONE, /* struct fault; its param is the fingerprint where it is no fault */
    FRAME_METRICS      /* struct metrics */
};
struct frame_head {
    uint32_t kind, what;
    uint64_t id, n; /* of a request; bytes that follow */
};
struct frames {
    int fd;
    struct json_out in, out; /* received and not yet a whole frame; not yet sent */
    size_t sent;             /* bytes of out that were sent */
};

/* Called for every whole frame; its h->n bytes at p are valid during the call. */
typedef void (*frames_take)(void *arg, const struct frame_head *h, const char *p);

/* Sets up one end; fd is owned by w from now on, also after an error. */
int frames_open(struct frames *w, int fd, struct err *e);
/* Closes fd and frees the buffers. Safe where fd is -1. */
void frames_close(struct frames *w);
/* Queues a frame, to be sent by frames_exchange(). Out of memory shows there. */
void frames_put(struct frames *w, enum frame_kind kind, uint32_t what, uint64_t id, const void *p, size_t n);
/* Sends and receives as much as possible without blocking, and calls take for every whole frame; with nothing
 * to do waits up to wait_ms milliseconds, or until wake_fd (an eventfd, or -1) is written to. 0, or -1: the
 * other end has disconnected, or there is no memory. */
int frames_exchange(struct frames *w, int wake_fd, int wait_ms, frames_take take, void *arg);
/* Are there bytes to be sent? */
static inline int frames_pending(const struct frames *w) { return w->sent < w->out.n; }

#endif
