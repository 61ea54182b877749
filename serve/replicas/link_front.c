/* link_front.c - the front end's side of the links: see link.h. */
#define _GNU_SOURCE /* accept4 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "serve/replicas/request_wire.h"
#include "serve/replicas/link.h"
#include "serve/replicas/socket_frames.h"

#define CONNECT_MS 10000
#define LOOK_MS 100 /* how often disconnected clients are looked for */

struct link { /* to one replica */
    struct replica *replica;
    struct frames frames;
    int wake_fd;
    pthread_t thread;
    int started;
    struct request *active; /* sent and not answered yet */
    _Atomic int ends;
};
struct link_front {
    int n;
    struct link *link;
};

/* ---- answers ---- */

/* The request that a frame is about. Its id is its address, which the replica only sends back. */
static struct request **find(struct link *x, uint64_t id)
{
    struct request **at = &x->active;
    while (*at && (uint64_t)(uintptr_t)*at != id)
        at = &(*at)->next;
    return at;
}

/* Ends a request: with a fault, or well (f NULL). */
static void end_request(struct link *x, struct request **at, const struct fault *f)
{
    struct request *rq = *at;
    *at = rq->next;
    inbox_leave(&x->replica->inbox, rq);
    if (f)
        request_fail(rq, f);
    else
        request_finish(rq);
    request_release(rq);
}

static void add_bytes(struct request *rq, struct json_out *o, const char *p, size_t n)
{
    pthread_mutex_lock(&rq->lock);
    json_out_bytes(o, p, n);
    pthread_mutex_unlock(&rq->lock);
}

/* A frame from the replica. */
static void take(void *arg, const struct frame_head *h, const char *p)
{
    struct link *x = arg;
    struct request **at = find(x, h->id), *rq = *at;
    struct fault f = { 0 };

    if (h->kind == FRAME_METRICS && h->n == sizeof(struct metrics)) {
        metrics_copy(&x->replica->metrics, p);
    } else if (h->kind == FRAME_RELOAD_DONE && h->n == sizeof f) {
        memcpy(&f, p, sizeof f);
        reload_command_answer(&x->replica->reload_command, f.param, f.status ? &f : NULL);
    } else if (!rq) {
        return; /* a request that has ended here already */
    } else if (h->kind == FRAME_EVENTS) {
        rq->n_events = h->what;
        add_bytes(rq, &rq->events, p, h->n);
        request_begin(rq);
    } else if (h->kind == FRAME_ANSWER) {
        add_bytes(rq, &rq->answer, p, h->n);
    } else if (h->kind == FRAME_DONE && h->n == sizeof f) {
        memcpy(&f, p, sizeof f);
        rq->n_generated = h->what;
        end_request(x, at, f.status ? &f : NULL);
    }
}

/* ---- requests ---- */

/* Sends new requests and a reload command. */
static void send_new(struct link *x)
{
    char text[RELOAD_PATH_MAX];
    for (struct request *rq = inbox_take(&x->replica->inbox, 0), *next; rq; rq = next) {
        struct json_out o = { 0 };
        next = rq->next;
        rq->next = x->active;
        x->active = rq;
        request_wire_write(&o, rq);
        frames_put(&x->frames, FRAME_REQUEST, 0, (uint64_t)(uintptr_t)rq, o.p, o.n);
        x->frames.out.failed |= o.failed;
        json_out_free(&o);
    }

    enum reload_op what = reload_command_take(&x->replica->reload_command, text);
    if (what != RELOAD_NONE)
        frames_put(&x->frames, FRAME_RELOAD, what, 0, text, sizeof text);
}

/* Tells the replica about requests whose client has disconnected. */
static void send_cancels(struct link *x)
{
    for (struct request *rq = x->active; rq; rq = rq->next) {
        if (rq->disconnected && rq->disconnected(rq))
            atomic_store(&rq->cancelled, 1);
        if (atomic_load(&rq->cancelled) && !rq->cancel_sent) {
            rq->cancel_sent = 1;
            frames_put(&x->frames, FRAME_CANCEL, 0, (uint64_t)(uintptr_t)rq, NULL, 0);
        }
    }
}

/* The replica has disconnected, or the server ends: no client may wait for ever. */
static void fail_all(struct link *x)
{
    struct fault f;
    fault_set(&f, 503, NULL, "the server is stopping: a replica has ended");
    pthread_mutex_lock(&x->replica->inbox.lock);
    x->replica->inbox.closed = 1;
    pthread_mutex_unlock(&x->replica->inbox.lock);
    reload_command_disable(&x->replica->reload_command);
    send_new(x);
    while (x->active)
        end_request(x, &x->active, &f);
}

/* The link's thread. */
static void *run(void *arg)
{
    struct link *x = arg;
    double looked = 0;
    while (!atomic_load(&x->ends)) {
        send_new(x);
        if (clock_s() - looked >= LOOK_MS / 1e3) {
            looked = clock_s();
            send_cancels(x);
        }
        if (frames_exchange(&x->frames, x->wake_fd, LOOK_MS, take, x) < 0)
            break;
    }

    frames_put(&x->frames, FRAME_STOP, 0, 0, NULL, 0);
    frames_exchange(&x->frames, -1, 0, take, x);
    fail_all(x);
    return NULL;
}

/* ---- connecting ---- */

/* Takes over fd, a replica that has connected: its first 8 bytes are its number. Starts the link's thread. */
static int add_link(struct link_front *f, int fd, struct router *rt, struct err *e)
{
    uint64_t replica = 0;

    if (recv(fd, &replica, sizeof replica, MSG_WAITALL) != (ssize_t)sizeof replica || replica < 1 ||
        replica >= (uint64_t)rt->n || f->link[replica - 1].replica) {
        close(fd);
        return err_set(e, ERR_INTERNAL, "a replica introduced itself as number %llu of %d",
                       (unsigned long long)replica, rt->n);
    }

    struct link *x = &f->link[replica - 1];
    x->replica = &rt->replica[replica];
    x->wake_fd = x->replica->inbox.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (frames_open(&x->frames, fd, e) < 0)
        return -e->code;
    if (x->wake_fd < 0 || pthread_create(&x->thread, NULL, run, x) != 0)
        return err_set(e, ERR_MEMORY, "no thread for a replica: raise the limit of processes");
    x->started = 1;
    return 0;
}

static int accept_all(struct link_front *f, int listener, struct router *rt, struct err *e)
{
    int rc = 0;
    for (int i = 1; rc >= 0 && i < rt->n; i++) {
        struct pollfd p = { .fd = listener, .events = POLLIN };
        int fd = poll(&p, 1, CONNECT_MS) > 0 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        rc = fd < 0 ? err_set(e, ERR_PEER, "a replica does not connect") : add_link(f, fd, rt, e);
    }
    return rc;
}

/* Listens on a Unix socket in a new temporary folder, whose name goes to folder. Returns the socket. */
static int listen_in(char *folder, struct sockaddr_un *a, struct err *e)
{
    const char *tmp = env_get(ENV_TMPDIR);

    snprintf(folder, sizeof a->sun_path - 8, "%s/pserve-XXXXXX", tmp && strlen(tmp) < 80 ? tmp : "/tmp");
    if (!mkdtemp(folder)) {
        *folder = 0;
        return err_sys(e, "cannot make a folder for the replicas' socket");
    }

    if ((size_t)snprintf(a->sun_path, sizeof a->sun_path, "%s/s", folder) >= sizeof a->sun_path)
        return err_set(e, ERR_USAGE, "%s: too long for a socket's path: set TMPDIR", folder);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)a, sizeof *a) < 0 || listen(fd, SOMAXCONN) < 0) {
        err_sys(e, "cannot listen on %s for the replicas", a->sun_path);
        if (fd >= 0)
            close(fd);
        return -e->code;
    }

    return fd;
}

/* Connects replica to the front end at a. Returns the socket. */
static int connect_to(const struct sockaddr_un *a, int replica, struct err *e)
{
    uint64_t number = (uint64_t)replica;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)a, sizeof *a) == 0 &&
        send(fd, &number, sizeof number, MSG_NOSIGNAL) == (ssize_t)sizeof number)
        return fd;
    err_sys(e, "cannot connect to rank 0 for the replicas' requests");
    if (fd >= 0)
        close(fd);
    return -e->code;
}

/* Rank 0: accepts all replicas. */
static int open_front(struct link_front **out, int listener, struct router *rt, struct err *e)
{
    struct link_front *f = calloc(1, sizeof *f);
    *out = f;
    if (f)
        f->link = calloc((size_t)rt->n, sizeof *f->link);
    if (!f || !f->link)
        return err_set(e, ERR_MEMORY, "no memory for %d replicas", rt->n);
    for (int i = 0; i < rt->n; i++)
        f->link[i].frames.fd = f->link[i].wake_fd = -1;
    f->n = rt->n - 1;
    return accept_all(f, listener, rt, e);
}

int link_open(struct link_front **out, int *fd, struct comm *all, int replica, int first, struct router *rt,
              struct err *e)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    char folder[sizeof a.sun_path] = "";
    int listener = -1, rc = 0, is_front = comm_rank(all) == 0;

    *out = NULL;
    *fd = -1;
    if (is_front)
        rc = listener = listen_in(folder, &a, e);
    TRY(comm_agree(all, rc < 0 ? rc : 0, e));
    TRY(comm_broadcast(all, &a, sizeof a, 0, e));

    if (first && !is_front)
        rc = *fd = connect_to(&a, replica, e);
    if (is_front)
        rc = open_front(out, listener, rt, e);
    TRY(comm_agree(all, rc < 0 ? rc : 0, e));
out:
    if (listener >= 0)
        close(listener);
    if (is_front && *folder) {
        unlink(a.sun_path);
        rmdir(folder);
    }

    return rc;
}

void link_front_close(struct link_front *f)
{
    for (int i = 0; f && i < f->n; i++) {
        struct link *x = &f->link[i];
        atomic_store(&x->ends, 1);
        if (x->started) {
            eventfd_write(x->wake_fd, 1);
            pthread_join(x->thread, NULL);
        }
        frames_close(&x->frames);
        if (x->wake_fd >= 0) {
            x->replica->inbox.wake_fd = -1;
            close(x->wake_fd);
        }
    }
    free(f ? f->link : NULL);
    free(f);
}
