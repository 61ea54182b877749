/* socket_frames.c - see socket_frames.h. */
#include "serve/replicas/socket_frames.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCK 65536 /* bytes of one read */
#define FRAME_MAX ((uint64_t)1 << 31)

int frames_open(struct frames *w, int fd, struct err *e)
{
    memset(w, 0, sizeof *w);
    w->fd = fd;
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
        return err_sys(e, "cannot set up the socket between replicas");
    return 0;
}

void frames_close(struct frames *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
    json_out_free(&w->in);
    json_out_free(&w->out);
}

void frames_put(struct frames *w, enum frame_kind kind, uint32_t what, uint64_t id, const void *p, size_t n)
{
    struct frame_head h = { (uint32_t)kind, what, id, n };
    json_out_bytes(&w->out, (const char *)&h, sizeof h);
    json_out_bytes(&w->out, p, n);
}

static int again(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

static int send_some(struct frames *w)
{
    while (frames_pending(w)) {
        ssize_t n = send(w->fd, w->out.p + w->sent, w->out.n - w->sent, MSG_NOSIGNAL);
        if (n < 0)
            return again() ? 0 : -1;
        w->sent += (size_t)n;
    }
    w->sent = w->out.n = 0;
    return 0;
}

static int receive_some(struct frames *w)
{
    char buf[BLOCK];
    ssize_t n;
    while ((n = recv(w->fd, buf, sizeof buf, 0)) > 0)
        json_out_bytes(&w->in, buf, (size_t)n);
    return n < 0 && again() ? 0 : -1;
}

/* Hands over the whole frames, keeps the rest. */
static int split(struct frames *w, frames_take take, void *arg)
{
    struct frame_head h;
    size_t at = 0;

    while (w->in.n - at >= sizeof h) {
        memcpy(&h, w->in.p + at, sizeof h);
        if (h.n > FRAME_MAX)
            return -1;
        if (w->in.n - at - sizeof h < h.n)
            break;
        take(arg, &h, w->in.p + at + sizeof h);
        at += sizeof h + (size_t)h.n;
    }

    if (at) {
        memmove(w->in.p, w->in.p + at, w->in.n - at);
        w->in.n -= at;
    }

    return 0;
}

int frames_exchange(struct frames *w, int wake_fd, int wait_ms, frames_take take, void *arg)
{
    struct pollfd p[2] = { { .fd = w->fd }, { .fd = wake_fd, .events = POLLIN } };
    uint64_t ignored;
    if (send_some(w) < 0 || w->out.failed || w->in.failed)
        return -1;
    p[0].events = (short)(POLLIN | (frames_pending(w) ? POLLOUT : 0));
    if (poll(p, 2, wait_ms) < 0 && errno != EINTR)
        return -1;
    if (p[1].revents & POLLIN && read(wake_fd, &ignored, sizeof ignored) < 0 && !again())
        return -1;
    int rc = p[0].revents ? receive_some(w) : 0;
    if (split(w, take, arg) < 0 || send_some(w) < 0)
        return -1;
    return rc;
}
