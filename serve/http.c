/* http.c - see http.h.
 *
 * One exchange is one request on a connection:
 *
 *     body arrives -> route -> request in the inbox -> connection suspended -> (engine) wake -> whole answer, or events until done
 *
 * The lock order is simple: the engine calls wake and gone with the request's lock held; this file takes the same lock to
 * suspend, so a wake cannot fall between looking and sleeping. */
#define _GNU_SOURCE          /* POLLRDHUP */
#include "serve/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "serve/openai.h"
#include "serve/version.h"

#define BODY_MAX ((size_t)64 << 20)
#define IDLE_TIMEOUT_S 120           /* of a connection that nothing comes from */
#define EVENT_BLOCK 16384

struct http {
    struct MHD_Daemon *daemon;
    struct service *sv;
    struct inbox *inbox;
    int fd, port;
    _Atomic int in_flight;           /* exchanges */
};

struct exchange {
    struct http *h;
    struct MHD_Connection *conn;
    int fd;
    struct out body;
    int too_large;
    struct request *rq;
    /* behind rq->lock: */
    int suspended;
    size_t taken;                    /* bytes of rq->ready that went out */
    int error_told;
};

typedef enum MHD_Result answer_fn(struct exchange *x, const char *url);

/* ---- answers ---- */

/* Queues o (taken over) as JSON. */
static enum MHD_Result queue_json(struct exchange *x, int status, struct out *o, const char *allow)
{
    enum MHD_Result rc = MHD_NO;
    struct MHD_Response *r = o->failed ? NULL : MHD_create_response_from_buffer(o->n, o->p, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        out_free(o);
        return MHD_NO;                               /* the connection is closed: there is no memory to say why */
    }
    if (o->n)
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "application/json");
    if (x->rq)
        MHD_add_response_header(r, "x-request-id", x->rq->id);
    if (status == 503)
        MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (allow)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, allow);
    rc = MHD_queue_response(x->conn, (unsigned)status, r);
    MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result queue_fault(struct exchange *x, const struct fault *f, const char *allow)
{
    struct out o = { 0 };
    openai_error(&o, f);
    return queue_json(x, f->status, &o, allow);
}

static enum MHD_Result answer_health(struct exchange *x, const char *url)
{
    static const char *const why[] = { [SERVICE_LOADING] = "loading", [SERVICE_DRAINING] = "draining", [SERVICE_FAILED] = "failed" };
    int state = atomic_load(&x->h->sv->state);
    struct out o = { 0 };
    struct fault f;
    (void)url;
    if (state == SERVICE_READY)
        return queue_json(x, 200, &o, NULL);
    fault_set(&f, 503, NULL, "the server is not ready: %s", why[state]);
    return queue_fault(x, &f, NULL);
}

static enum MHD_Result answer_version(struct exchange *x, const char *url)
{
    struct out o = { 0 };
    (void)url;
    out_fmt(&o, "{\"version\":\"%s\"}", SERVE_VERSION);
    return queue_json(x, 200, &o, NULL);
}

static enum MHD_Result answer_models(struct exchange *x, const char *url)
{
    struct out o = { 0 };
    (void)url;
    openai_models(&o, x->h->sv);
    return queue_json(x, 200, &o, NULL);
}

static enum MHD_Result answer_model(struct exchange *x, const char *url)
{
    const char *name = url + strlen("/v1/models/");
    struct out o = { 0 };
    struct fault f;
    if (strcmp(name, x->h->sv->model)) {
        fault_set(&f, 404, "model", "model '%.100s' is not served here: use '%s'", name, x->h->sv->model);
        return queue_fault(x, &f, NULL);
    }
    openai_model(&o, x->h->sv);
    return queue_json(x, 200, &o, NULL);
}

/* ---- a completion ---- */

/* Behind the request's lock, engine's thread. */
static void wake(struct request *rq)
{
    struct exchange *x = rq->http;
    if (x->suspended) {
        x->suspended = 0;
        MHD_resume_connection(x->conn);
    }
}

/* Has the client closed its end? Only a suspended connection is looked at: nobody else reads from it then. */
static int gone(struct request *rq)
{
    pthread_mutex_lock(&rq->lock);
    struct exchange *x = rq->http;
    struct pollfd p = { .fd = x && x->suspended ? x->fd : -1, .events = POLLRDHUP };
    int n = poll(&p, 1, 0);
    pthread_mutex_unlock(&rq->lock);
    return n > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

/* Next bytes of a stream. */
static ssize_t read_events(void *arg, uint64_t pos, char *buf, size_t max)
{
    struct exchange *x = arg;
    struct request *rq = x->rq;
    ssize_t n = 0;
    (void)pos;
    pthread_mutex_lock(&rq->lock);
    if (x->taken == rq->ready.n && rq->done && rq->fault.status && !x->error_told) {
        x->error_told = 1;
        out_text(&rq->ready, "data: ");
        openai_error(&rq->ready, &rq->fault);
        out_text(&rq->ready, "\n\ndata: [DONE]\n\n");
    }
    if (x->taken < rq->ready.n) {
        n = (ssize_t)(rq->ready.n - x->taken < max ? rq->ready.n - x->taken : max);
        memcpy(buf, rq->ready.p + x->taken, (size_t)n);
        x->taken += (size_t)n;
        if (x->taken == rq->ready.n)
            x->taken = rq->ready.n = 0;
    } else if (rq->done) {
        n = rq->ready.failed ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        x->suspended = 1;
        MHD_suspend_connection(x->conn);
    }
    pthread_mutex_unlock(&rq->lock);
    return n;
}

static enum MHD_Result queue_stream(struct exchange *x)
{
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, EVENT_BLOCK, read_events, x, NULL);
    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream; charset=utf-8");
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    MHD_add_response_header(r, "x-request-id", x->rq->id);
    enum MHD_Result rc = MHD_queue_response(x->conn, 200, r);
    MHD_destroy_response(r);
    return rc;
}

/* Answers when there is something to say, else sleeps until the engine calls. */
static enum MHD_Result continue_completion(struct exchange *x)
{
    struct request *rq = x->rq;
    struct out o = { 0 };
    pthread_mutex_lock(&rq->lock);
    int done = rq->done, ready = done || (rq->stream && rq->begun), failed = rq->fault.status && !rq->begun;
    if (!ready) {
        x->suspended = 1;
        MHD_suspend_connection(x->conn);
    }
    pthread_mutex_unlock(&rq->lock);
    if (!ready)
        return MHD_YES;
    if (failed || (rq->fault.status && !rq->stream))
        return queue_fault(x, &rq->fault, NULL);
    if (rq->stream)
        return queue_stream(x);
    openai_answer(&o, rq);
    return queue_json(x, 200, &o, NULL);
}

static int is_json(struct MHD_Connection *conn)
{
    const char *type = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE), *want = "application/json";
    return !type || (!strncasecmp(type, want, strlen(want)) && strchr("; \t", type[strlen(want)]));
}

static enum MHD_Result answer_completion(struct exchange *x, const char *url)
{
    static const char *const why[] = { [SERVICE_LOADING] = "the model is loading", [SERVICE_DRAINING] = "the server is stopping",
                                       [SERVICE_FAILED] = "the server has failed: see its log" };
    int state = atomic_load(&x->h->sv->state);
    struct fault f = { 0 };
    (void)url;
    if (state != SERVICE_READY) {
        fault_set(&f, 503, NULL, "%s", why[state]);
    } else if (x->too_large) {
        fault_set(&f, 413, NULL, "the body is larger than %zu MiB: send fewer prompts at a time", BODY_MAX >> 20);
    } else if (!is_json(x->conn)) {
        fault_set(&f, 400, NULL, "the content type must be application/json");
    } else if (openai_parse(x->h->sv, x->body.p ? x->body.p : "", x->body.n, &x->rq, &f) == 0) {
        x->rq->http = x;
        x->rq->wake = wake;
        x->rq->gone = gone;
        atomic_fetch_add(&x->rq->refs, 1);
        if (inbox_put(x->h->inbox, x->rq) == 0) {
            out_free(&x->body);
            return continue_completion(x);
        }
        request_drop(x->rq);
        fault_set(&f, 503, NULL, "%s", why[SERVICE_DRAINING]);
    }
    return queue_fault(x, &f, NULL);
}

/* ---- routes ---- */

static const struct route { const char *path, *methods; int is_prefix, while_loading; answer_fn *answer; } routes[] = {
    { "/health", "GET, HEAD", 0, 1, answer_health },
    { "/version", "GET, HEAD", 0, 1, answer_version },
    { "/v1/models", "GET, HEAD", 0, 0, answer_models },
    { "/v1/models/", "GET, HEAD", 1, 0, answer_model },
    { "/v1/completions", "POST", 0, 1, answer_completion },
};

static int has_method(const char *list, const char *method)
{
    const char *at = strstr(list, method);
    size_t n = strlen(method);
    return at && n && (at == list || at[-1] == ' ') && (at[n] == 0 || at[n] == ',');
}

static enum MHD_Result answer(struct exchange *x, const char *url, const char *method)
{
    struct fault f;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        const struct route *r = &routes[i];
        if (r->is_prefix ? strncmp(url, r->path, strlen(r->path)) : strcmp(url, r->path))
            continue;
        if (!has_method(r->methods, method)) {
            fault_set(&f, 405, NULL, "%s takes %s, not %.20s", r->path, r->methods, method);
            return queue_fault(x, &f, r->methods);
        }
        if (!r->while_loading && atomic_load(&x->h->sv->state) == SERVICE_LOADING) {
            fault_set(&f, 503, NULL, "the model is loading");
            return queue_fault(x, &f, NULL);
        }
        return r->answer(x, url);
    }
    fault_set(&f, 404, NULL, "there is nothing at %.200s: see /v1/completions, /v1/models, /health, /version", url);
    return queue_fault(x, &f, NULL);
}

/* ---- libmicrohttpd's side ---- */

static struct exchange *exchange_new(struct http *h, struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->h = h;
    x->conn = conn;
    x->fd = fd ? fd->connect_fd : -1;
    atomic_fetch_add(&h->in_flight, 1);
    return x;
}

/* A body that is too large is read to its end all the same: a client that is still sending does not read an answer. */
static void take_body(struct exchange *x, const char *data, size_t n)
{
    x->too_large |= x->body.n + n > BODY_MAX;
    if (!x->too_large)
        out_bytes(&x->body, data, n);
    x->too_large |= x->body.failed;
    if (x->too_large)
        out_free(&x->body);
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *conn, const char *url, const char *method, const char *version,
                              const char *data, size_t *n, void **state)
{
    struct exchange *x = *state;
    (void)version;
    if (!x) {
        *state = x = exchange_new(arg, conn);
        return x ? MHD_YES : MHD_NO;
    }
    if (*n) {
        take_body(x, data, *n);
        *n = 0;
        return MHD_YES;
    }
    return x->rq ? continue_completion(x) : answer(x, url, method);
}

/* The exchange is over, well or not: the engine must not call any more, and need not go on. */
static void completed(void *arg, struct MHD_Connection *conn, void **state, enum MHD_RequestTerminationCode why)
{
    struct exchange *x = *state;
    (void)arg;
    (void)conn;
    (void)why;
    if (!x)
        return;
    if (x->rq) {
        pthread_mutex_lock(&x->rq->lock);
        x->rq->wake = NULL;
        x->rq->http = NULL;
        pthread_mutex_unlock(&x->rq->lock);
        atomic_store(&x->rq->cancelled, 1);
        request_drop(x->rq);
    }
    atomic_fetch_sub(&x->h->in_flight, 1);
    out_free(&x->body);
    free(x);
    *state = NULL;
}

/* ---- life ---- */

static int listen_on(const char *host, int port, int *bound_port, struct err *e)
{
    struct addrinfo want = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV }, *all, *a;
    struct sockaddr_storage got;
    socklen_t size = sizeof got;
    char text[16];
    int fd = -1, on = 1, rc;
    snprintf(text, sizeof text, "%d", port);
    if ((rc = getaddrinfo(host, text, &want, &all)) != 0)
        return err_set(e, ERR_USAGE, "--host %s: %s", host, gai_strerror(rc));
    for (a = all; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, SOMAXCONN) < 0 || getsockname(fd, (struct sockaddr *)&got, &size) < 0) {
            int why = errno;
            close(fd);
            fd = -1;
            errno = why;
        }
    }
    rc = errno;
    freeaddrinfo(all);
    errno = rc;
    if (fd < 0)
        return err_sys(e, "cannot listen on %s port %d (choose another --port, or 0 for a free one)", host, port);
    *bound_port = ntohs(got.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&got)->sin6_port : ((struct sockaddr_in *)&got)->sin_port);
    return fd;
}

static void no_log(void *arg, const char *fmt, va_list ap)
{
    (void)arg;
    (void)fmt;
    (void)ap;                        /* clients that hang up are no news */
}

int http_open(struct http **out, struct service *sv, struct inbox *inbox, const char *host, int port, struct err *e)
{
    struct http *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h)
        return err_set(e, ERR_MEMORY, "no memory for the http server");
    h->sv = sv;
    h->inbox = inbox;
    h->fd = listen_on(host, port, &h->port, e);
    if (h->fd < 0) {
        free(h);
        return -e->code;
    }
    h->daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG, 0, NULL, NULL, handle, h,
                                 MHD_OPTION_EXTERNAL_LOGGER, no_log, NULL, MHD_OPTION_LISTEN_SOCKET, h->fd, MHD_OPTION_NOTIFY_COMPLETED, completed, NULL,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_TIMEOUT_S, MHD_OPTION_CONNECTION_LIMIT, 4096u, MHD_OPTION_END);
    if (!h->daemon) {
        close(h->fd);
        free(h);
        return err_set(e, ERR_INTERNAL, "the http server does not start");
    }
    *out = h;
    return 0;
}

int http_port(const struct http *h) { return h->port; }

void http_close(struct http *h, double grace_s)
{
    static const struct timespec nap = { 0, 2000000 };
    double end = log_now_s() + grace_s;
    if (!h)
        return;
    int fd = MHD_quiesce_daemon(h->daemon);
    if (fd >= 0)
        close(fd);
    while (atomic_load(&h->in_flight) && log_now_s() < end)
        nanosleep(&nap, NULL);
    MHD_stop_daemon(h->daemon);
    free(h);
}
