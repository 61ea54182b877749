/* link_back.c - a replica's end of a link: see link.h. */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "serve/replicas/request_wire.h"
#include "serve/replicas/link.h"
#include "serve/api/openai.h"
#include "serve/replicas/socket_frames.h"

#define TURN_MS 100 /* at least that often: metrics, orders */
#define METRICS_S 0.2

struct remote { /* a request of the front */
    struct back *b;
    struct request *rq;
    uint64_t id;
    struct remote *next, *changed;
    int queued; /* in the list of changed ones */
};
struct back {
    struct router *rt;
    struct service *sv;
    struct wire wire;
    int wake_fd, ordered;
    pthread_t thread;
    struct remote *all;
    pthread_mutex_t lock; /* of the list of changed ones */
    struct remote *changed;
    double told_s;
    _Atomic int ends;
};

/* Behind the request's lock, the engine's thread. */
static void wake(struct request *rq)
{
    struct remote *r = rq->http;
    struct back *b = r->b;
    pthread_mutex_lock(&b->lock);
    if (!r->queued) {
        r->queued = 1;
        r->changed = b->changed;
        b->changed = r;
        eventfd_write(b->wake_fd, 1);
    }
    pthread_mutex_unlock(&b->lock);
}

static void unqueue(struct back *b, struct remote *r)
{
    pthread_mutex_lock(&b->lock);
    for (struct remote **at = &b->changed; *at; at = &(*at)->changed)
        if (*at == r) {
            *at = r->changed;
            break;
        }
    pthread_mutex_unlock(&b->lock);
}

/* ---- from the front ---- */

static void done(struct back *b, uint64_t id, uint32_t n_generated, const struct fault *f)
{
    wire_put(&b->wire, WIRE_DONE, n_generated, id, f, sizeof *f);
}

static void begin(struct back *b, uint64_t id, const char *p, size_t n)
{
    struct request *rq = carry_read(b->sv, p, n);
    struct remote *r = rq ? calloc(1, sizeof *r) : NULL;
    struct fault f;
    fault_set(&f, 503, NULL, r ? "the server is stopping" : "no memory for this request");
    if (r) {
        *r = (struct remote){ .b = b, .rq = rq, .id = id, .next = b->all };
        rq->http = r;
        rq->wake = wake;
        atomic_fetch_add(&rq->refs, 1);
        b->all = r;
        if (inbox_put(&b->rt->lane->inbox, rq) == 0)
            return;
        b->all = r->next;
        free(r);
        request_drop(rq);
    }
    request_drop(rq);
    done(b, id, 0, &f);
}

static void take(void *arg, const struct wire_head *h, const char *p)
{
    struct back *b = arg;
    if (h->kind == WIRE_REQUEST)
        begin(b, h->id, p, h->n);
    for (struct remote *r = b->all; h->kind == WIRE_CANCEL && r; r = r->next)
        if (r->id == h->id)
            atomic_store(&r->rq->cancelled, 1);
    if (h->kind == WIRE_ORDER && h->n == ORDER_TEXT) {
        order_give(&b->rt->lane->order, (enum order_what)h->what, p);
        b->ordered = 1;
    }
    if (h->kind == WIRE_STOP)
        atomic_store(&b->sv->state, SERVICE_DRAINING);
}

/* ---- to the front ---- */

/* What is new in a request; 1 when it is over. */
static int pass_on(struct back *b, struct remote *r)
{
    struct request *rq = r->rq;
    struct fault f;
    pthread_mutex_lock(&rq->lock);
    int over = rq->done;
    if (rq->ready.n)
        wire_put(&b->wire, WIRE_EVENTS, 0, r->id, rq->ready.p, rq->ready.n);
    rq->ready.n = 0;
    f = rq->fault;
    pthread_mutex_unlock(&rq->lock);
    if (over && !f.status && !rq->stream) {
        struct out o = { 0 };
        openai_answer(&o, rq);
        if (o.failed)
            fault_set(&f, 500, NULL, "no memory for the answer");
        else
            wire_put(&b->wire, WIRE_ANSWER, 0, r->id, o.p, o.n);
        out_free(&o);
    }
    if (over)
        done(b, r->id, (uint32_t)rq->n_generated, &f);
    return over;
}

static void forget(struct back *b, struct remote *r)
{
    struct remote **at = &b->all;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    pthread_mutex_lock(&r->rq->lock); /* the engine may be in its last wake */
    r->rq->wake = NULL;
    pthread_mutex_unlock(&r->rq->lock);
    unqueue(b, r);
    request_drop(r->rq);
    free(r);
}

static void pass_changes(struct back *b)
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
        if (pass_on(b, r))
            forget(b, r);
    }
}

static void tell_rest(struct back *b)
{
    struct fault f;
    char fingerprint[64];
    if (b->ordered && order_answered(&b->rt->lane->order)) {
        b->ordered = 0;
        if (order_wait(&b->rt->lane->order, fingerprint, &f) == 0)
            memcpy(f.param, fingerprint, sizeof f.param); /* done: the fingerprint travels there */
        wire_put(&b->wire, WIRE_ANSWERED, 0, 0, &f, sizeof f);
    }
    if (clock_s() - b->told_s < METRICS_S)
        return;
    b->told_s = clock_s();
    wire_put(&b->wire, WIRE_METRICS, 0, 0, b->sv->metrics, sizeof *b->sv->metrics);
}

static void *run(void *arg)
{
    struct back *b = arg;
    int here = 1;
    while (here && !atomic_load(&b->ends)) {
        pass_changes(b);
        tell_rest(b);
        here = wire_turn(&b->wire, b->wake_fd, TURN_MS, take, b) == 0;
    }
    pass_changes(b);
    if (here)
        wire_turn(&b->wire, -1, 0, take, b);
    atomic_store(&b->sv->state, SERVICE_DRAINING); /* the front is gone, or the engine has ended */
    return NULL;
}

int link_back_open(struct back **out, int fd, struct router *rt, struct service *sv, struct err *e)
{
    struct back *b = calloc(1, sizeof *b);
    *out = b;
    if (!b) {
        close(fd);
        return err_set(e, ERR_MEMORY, "no memory for a replica");
    }
    b->rt = rt;
    b->sv = sv;
    b->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&b->lock, NULL);
    int rc = wire_open(&b->wire, fd, e);
    if (rc >= 0 && (b->wake_fd < 0 || pthread_create(&b->thread, NULL, run, b) != 0))
        rc = err_set(e, ERR_MEMORY, "no thread for a replica: raise the limit of processes");
    if (rc < 0) {
        wire_close(&b->wire);
        close(b->wake_fd);
        pthread_mutex_destroy(&b->lock);
        free(b);
        *out = NULL;
    }
    return rc;
}

void link_back_close(struct back *b)
{
    if (!b)
        return;
    atomic_store(&b->ends, 1);
    eventfd_write(b->wake_fd, 1);
    pthread_join(b->thread, NULL);
    while (b->all)
        forget(b, b->all);
    wire_close(&b->wire);
    close(b->wake_fd);
    pthread_mutex_destroy(&b->lock);
    free(b);
}
