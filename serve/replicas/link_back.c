/* link_back.c - a replica's end of a link: see link.h. */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "serve/replicas/request_wire.h"
#include "serve/replicas/link.h"
#include "serve/api/front.h"
#include "serve/replicas/socket_frames.h"

#define WAIT_MS 100   /* the thread looks for answered commands and sends metrics at least that often */
#define METRICS_S 0.2 /* seconds between two frames of metrics */

struct remote { /* a request from the front end */
    struct link_back *b;
    struct request *rq;
    uint64_t id;
    struct remote *next, *changed;
    int queued; /* in the list of changed requests */
};
struct link_back {
    struct router *rt;
    struct service *sv;
    struct frames frames;
    int wake_fd;
    int reload_pending; /* a reload command was posted and is not yet answered */
    pthread_t thread;
    struct remote *all;
    pthread_mutex_t lock; /* of changed */
    struct remote *changed;
    double metrics_sent_s;
    _Atomic int ends;
};

/* The request's wake: called by the engine's thread with the request's lock held. */
static void wake(struct request *rq)
{
    struct remote *r = rq->http;
    struct link_back *b = r->b;
    pthread_mutex_lock(&b->lock);
    if (!r->queued) {
        r->queued = 1;
        r->changed = b->changed;
        b->changed = r;
        eventfd_write(b->wake_fd, 1);
    }
    pthread_mutex_unlock(&b->lock);
}

/* Takes r out of the list of changed requests, if it is there. */
static void unqueue(struct link_back *b, struct remote *r)
{
    pthread_mutex_lock(&b->lock);
    for (struct remote **at = &b->changed; *at; at = &(*at)->changed)
        if (*at == r) {
            *at = r->changed;
            break;
        }
    pthread_mutex_unlock(&b->lock);
}

/* ---- from the front end ---- */

static void send_done(struct link_back *b, uint64_t id, uint32_t n_generated, const struct fault *f)
{
    frames_put(&b->frames, FRAME_DONE, n_generated, id, f, sizeof *f);
}

/* Gives a request to the engine; where that fails, answers it with the fault. */
static void begin(struct link_back *b, uint64_t id, const char *p, size_t n)
{
    struct fault f;
    struct request *rq = request_wire_read(b->sv, p, n, &f);
    struct remote *r = rq ? calloc(1, sizeof *r) : NULL;

    if (rq)
        fault_set(&f, 503, NULL, r ? "the server is stopping" : "no memory for this request");
    if (r) {
        *r = (struct remote){ .b = b, .rq = rq, .id = id, .next = b->all };
        rq->http = r;
        rq->wake = wake;
        atomic_fetch_add(&rq->refs, 1);
        b->all = r;
        if (inbox_put(&b->rt->replica->inbox, rq) == 0)
            return;
        b->all = r->next;
        free(r);
        request_release(rq);
    }

    request_release(rq);
    send_done(b, id, 0, &f);
}

/* A frame from the front end. */
static void take(void *arg, const struct frame_head *h, const char *p)
{
    struct link_back *b = arg;
    switch (h->kind) {
    case FRAME_REQUEST: begin(b, h->id, p, h->n); break;
    case FRAME_CANCEL:
        for (struct remote *r = b->all; r; r = r->next)
            if (r->id == h->id)
                atomic_store(&r->rq->cancelled, 1);
        break;
    case FRAME_RELOAD:
        if (h->n != RELOAD_PATH_MAX)
            break;
        reload_command_post(&b->rt->replica->reload_command, (enum reload_op)h->what, p);
        inbox_wake(&b->rt->replica->inbox);
        b->reload_pending = 1;
        break;
    case FRAME_STOP: atomic_store(&b->sv->state, SERVICE_DRAINING); break;
    }
}

/* ---- to the front end ---- */

/* Sends what is new in a request. 1: the request is done. */
static int send_changes(struct link_back *b, struct remote *r)
{
    struct request *rq = r->rq;
    struct fault f;

    pthread_mutex_lock(&rq->lock);
    int done = rq->done;
    f = rq->fault;
    if (done && !f.status && (!rq->stream || rq->store)) {
        struct json_out o = { 0 };
        front_answer(&o, rq);
        if (o.failed)
            fault_set(&f, 500, NULL, "no memory for the answer");
        else
            frames_put(&b->frames, FRAME_ANSWER, 0, r->id, o.p, o.n);
        json_out_free(&o);
    }
    if (rq->events.n) /* behind the answer: their end tells the client that it is kept */
        frames_put(&b->frames, FRAME_EVENTS, (uint32_t)rq->n_events, r->id, rq->events.p, rq->events.n);
    rq->events.n = 0;
    pthread_mutex_unlock(&rq->lock);

    if (done)
        send_done(b, r->id, (uint32_t)rq->n_generated, &f);
    return done;
}

/* Frees a request that is done, or that nothing is sent for any more. */
static void forget(struct link_back *b, struct remote *r)
{
    struct remote **at = &b->all;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    pthread_mutex_lock(&r->rq->lock); /* the engine may be in its last wake */
    r->rq->wake = NULL;
    pthread_mutex_unlock(&r->rq->lock);
    unqueue(b, r);
    request_release(r->rq);
    free(r);
}

/* Sends what is new in all changed requests. */
static void send_all_changes(struct link_back *b)
{
    for (;;) {
        pthread_mutex_lock(&b->lock);
        struct remote *r = b->changed;
        if (r) {
            b->changed = r->changed;
            r->queued = 0;
        }
        pthread_mutex_unlock(&b->lock);
        if (!r)
            return;
        if (send_changes(b, r))
            forget(b, r);
    }
}

/* Sends the answer to a reload command, and metrics when it is time. */
static void send_status(struct link_back *b)
{
    struct fault f;
    char fingerprint[64];
    if (b->reload_pending && reload_command_is_answered(&b->rt->replica->reload_command)) {
        b->reload_pending = 0;
        if (reload_command_wait(&b->rt->replica->reload_command, fingerprint, &f) == 0)
            memcpy(f.param, fingerprint, sizeof f.param); /* no fault: param is the fingerprint */
        frames_put(&b->frames, FRAME_RELOAD_DONE, 0, 0, &f, sizeof f);
    }
    if (clock_s() - b->metrics_sent_s < METRICS_S)
        return;
    b->metrics_sent_s = clock_s();
    frames_put(&b->frames, FRAME_METRICS, 0, 0, b->sv->metrics, sizeof *b->sv->metrics);
}

/* The link's thread. */
static void *run(void *arg)
{
    struct link_back *b = arg;
    int connected = 1;
    while (connected && !atomic_load(&b->ends)) {
        send_all_changes(b);
        send_status(b);
        connected = frames_exchange(&b->frames, b->wake_fd, WAIT_MS, take, b) == 0;
    }
    send_all_changes(b);
    if (connected)
        frames_exchange(&b->frames, -1, 0, take, b);
    atomic_store(&b->sv->state,
                 SERVICE_DRAINING); /* the front end has disconnected, or the engine has ended */
    return NULL;
}

int link_back_open(struct link_back **out, int fd, struct router *rt, struct service *sv, struct err *e)
{
    struct link_back *b = calloc(1, sizeof *b);

    *out = b;
    if (!b) {
        close(fd);
        return err_set(e, ERR_MEMORY, "no memory for a replica");
    }

    b->rt = rt;
    b->sv = sv;
    b->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&b->lock, NULL);
    int rc = frames_open(&b->frames, fd, e);
    if (rc >= 0 && (b->wake_fd < 0 || pthread_create(&b->thread, NULL, run, b) != 0))
        rc = err_set(e, ERR_MEMORY, "no thread for a replica: raise the limit of processes");
    if (rc < 0) {
        frames_close(&b->frames);
        close(b->wake_fd);
        pthread_mutex_destroy(&b->lock);
        free(b);
        *out = NULL;
    }

    return rc;
}

void link_back_close(struct link_back *b)
{
    if (!b)
        return;
    atomic_store(&b->ends, 1);
    eventfd_write(b->wake_fd, 1);
    pthread_join(b->thread, NULL);
    while (b->all)
        forget(b, b->all);
    frames_close(&b->frames);
    close(b->wake_fd);
    pthread_mutex_destroy(&b->lock);
    free(b);
}
