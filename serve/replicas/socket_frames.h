/* socket_frames.h - messages between the front of a server and its other replicas, over a stream socket of
 * this machine: a head and its bytes. One thread owns an end; both ends buffer what the other does not take
 * yet, so that neither waits for the other to read. */
#ifndef SHARDLINE_SERVE_REPLICAS_SOCKET_FRAMES_H
#define SHARDLINE_SERVE_REPLICAS_SOCKET_FRAMES_H

#include <stdint.h>
#include "base/err.h"
#include "serve/api/json_out.h"

enum wire_kind {
    WIRE_HELLO, /* replica: its number is the id */
    WIRE_REQUEST,
    WIRE_CANCEL,
    WIRE_ORDER,
    WIRE_STOP, /* front */
    WIRE_EVENTS,
    WIRE_ANSWER,
    WIRE_FAULT,
    WIRE_DONE,
    WIRE_ANSWERED,
    WIRE_METRICS /* replica */
};
struct wire_head {
    uint32_t kind, what;
    uint64_t id, n;
};
struct wire {
    int fd;
    struct out in, out;
    size_t sent;
};

/* fd is the wire's from now on. */
int wire_open(struct wire *w, int fd, struct err *e);
void wire_close(struct wire *w); /* safe on a wire of fd -1 */
void wire_put(struct wire *w, enum wire_kind kind, uint32_t what, uint64_t id, const void *p, size_t n);
/* Sends and receives what goes; with nothing to do waits up to wait_ms, or until wake_fd (an eventfd, or -1)
 * is written to. take gets every message that is whole. 0, or -1: the other end is gone, or there is no
 * memory. */
int wire_turn(struct wire *w, int wake_fd, int wait_ms,
              void (*take)(void *arg, const struct wire_head *h, const char *p), void *arg);
static inline int wire_pending(const struct wire *w) { return w->sent < w->out.n; }

#endif
