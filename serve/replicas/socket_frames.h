/* socket_frames.h - messages between the front of a server and its other replicas, over a stream socket of
 * this machine: a head and its bytes. One thread owns an end; both ends buffer what the other does not take
 * yet, so that neither waits for the other to read. */
#ifndef SHARDLINE_SERVE_REPLICAS_SOCKET_FRAMES_H
#define SHARDLINE_SERVE_REPLICAS_SOCKET_FRAMES_H

#include <stdint.h>
#include "base/err.h"
#include "serve/api/json_out.h"

enum frame_kind {
    FRAME_HELLO, /* replica: its number is the id */
    FRAME_REQUEST,
    FRAME_CANCEL,
    FRAME_RELOAD,
    FRAME_STOP, /* front */
    FRAME_EVENTS,
    FRAME_ANSWER,
    FRAME_FAULT,
    FRAME_DONE,
    FRAME_RELOAD_DONE,
    FRAME_METRICS /* replica */
};
struct frame_head {
    uint32_t kind, what;
    uint64_t id, n;
};
struct frames {
    int fd;
    struct json_out in, out;
    size_t sent;
};

/* fd is the wire's from now on. */
int frames_open(struct frames *w, int fd, struct err *e);
void frames_close(struct frames *w); /* safe on a wire of fd -1 */
void frames_put(struct frames *w, enum frame_kind kind, uint32_t what, uint64_t id, const void *p, size_t n);
/* Sends and receives what goes; with nothing to do waits up to wait_ms, or until wake_fd (an eventfd, or -1)
 * is written to. take gets every message that is whole. 0, or -1: the other end is gone, or there is no
 * memory. */
int frames_exchange(struct frames *w, int wake_fd, int wait_ms,
                    void (*take)(void *arg, const struct frame_head *h, const char *p), void *arg);
static inline int frames_pending(const struct frames *w) { return w->sent < w->out.n; }

#endif
