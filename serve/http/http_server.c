/* http_server.c - see http_server.h.
 *
 * One exchange is one request on a connection:
 *
 *     body arrives -> route -> router: request in an inbox -> connection suspended -> (engine) wake -> whole
 *     answer, or events until done
 *
 * The lock order is simple: the engine calls wake and gone with the request's lock held; this file takes the
 * same lock to suspend, so a wake cannot fall between looking and sleeping. */
#define _GNU_SOURCE /* POLLRDHUP */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "serve/http/exchange.h"

#define BODY_MAX ((size_t)64 << 20)
#define SMALL_BODY 4096    /* read by the HTTP thread itself */
#define IDLE_TIMEOUT_S 120 /* of a connection that nothing comes from */
#define EVENT_BLOCK 16384
#define PEM_MAX ((size_t)1 << 20)

/* ---- answers ---- */

/* Is this origin in the list? */
static int origin_allowed(const char *list, const char *origin)
{
    size_t n = strlen(origin);
    for (const char *p = list; p && *p; p += strcspn(p, ","), p += *p == ',')
        if (n == strcspn(p, ",") && !memcmp(p, origin, n))
            return 1;
    return !strcmp(list, "*");
}

static void add_cors(struct exchange *x, struct MHD_Response *r)
{
    const char *list = x->h->o.cors_origin,
               *origin = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN);
    if (!list || !origin || !origin_allowed(list, origin))
        return;
    MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN, strcmp(list, "*") ? origin : "*");
    MHD_add_response_header(r, MHD_HTTP_HEADER_VARY, "Origin");
    MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_EXPOSE_HEADERS, "x-request-id, retry-after");
    if (strcmp(x->method, "OPTIONS"))
        return;
    MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_METHODS,
                            x->route ? x->route->methods : "GET, POST");
    MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_HEADERS,
                            "authorization, content-type, x-api-key, x-request-id");
    MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_MAX_AGE, "600");
}

/* Sends r (given back) with the headers that all answers have. */
static enum MHD_Result queue(struct exchange *x, int status, struct MHD_Response *r)
{
    if (!r)
        return MHD_NO; /* the connection is closed: there is no memory to say why */
    if (!x->id[0] && x->rq)
        snprintf(x->id, sizeof x->id, "%s", x->rq->id);
    else if (!x->id[0])
        snprintf(x->id, sizeof x->id, "req-%llx-%lld", (unsigned long long)x->h->sv->created,
                 (long long)atomic_fetch_add(&x->h->serial, 1));
    MHD_add_response_header(r, "x-request-id", x->id);
    add_cors(x, r);
    if (status == 503 || status == 429)
        MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (status == 401)
        MHD_add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    x->status = status;
    enum MHD_Result rc = MHD_queue_response(x->conn, (unsigned)status, r);
    MHD_destroy_response(r);
    return rc;
}

enum MHD_Result queue_body(struct exchange *x, int status, struct json_out *o, const char *type,
                           const char *allow)
{
    struct MHD_Response *r = o->failed ? NULL
                                       : MHD_create_response_from_buffer(o->n, o->p, MHD_RESPMEM_MUST_FREE);
    if (!r)
        json_out_free(o);
    if (r && o->n)
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type ? type : "application/json");
    if (r && allow)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, allow);
    memset(o, 0, sizeof *o);
    return queue(x, status, r);
}

enum MHD_Result queue_static(struct exchange *x, const char *p, size_t n, const char *type)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(n, (void *)(uintptr_t)p, MHD_RESPMEM_PERSISTENT);
    if (r)
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (r)
        MHD_add_response_header(r, "Content-Security-Policy",
                                "default-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                                "img-src data:; frame-ancestors 'none'");
    return queue(x, 200, r);
}

enum MHD_Result queue_fault(struct exchange *x, const struct fault *f, const char *allow)
{
    struct json_out o = { 0 };
    openai_error(&o, f);
    return queue_body(x, f->status, &o, NULL, allow);
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
    if (x->taken == rq->events.n && rq->done && rq->fault.status && !x->error_sent) {
        x->error_sent = 1;
        json_out_text(&rq->events, "data: ");
        openai_error(&rq->events, &rq->fault);
        json_out_text(&rq->events, "\n\ndata: [DONE]\n\n");
    }
    if (x->taken < rq->events.n) {
        n = (ssize_t)(rq->events.n - x->taken < max ? rq->events.n - x->taken : max);
        memcpy(buf, rq->events.p + x->taken, (size_t)n);
        x->taken += (size_t)n;
        if (x->taken == rq->events.n)
            x->taken = rq->events.n = 0;
    } else if (rq->done) {
        n = rq->events.failed ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        x->suspended = 1;
        MHD_suspend_connection(x->conn);
    }
    pthread_mutex_unlock(&rq->lock);
    return n;
}

static enum MHD_Result queue_stream(struct exchange *x)
{
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, EVENT_BLOCK, read_events, x,
                                                               NULL);
    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream; charset=utf-8");
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    return queue(x, 200, r);
}

/* Answers when there is something to say, else sleeps until the engine calls. */
static enum MHD_Result continue_completion(struct exchange *x)
{
    struct request *rq = x->rq;
    struct json_out o = { 0 };
    pthread_mutex_lock(&rq->lock);
    int done = rq->done, ready = done || (rq->stream && rq->started),
        failed = rq->fault.status && !rq->started;
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
    if (rq->answer.n || rq->answer.failed) /* another process has written it */
        return queue_body(x, 200, &rq->answer, NULL, NULL);
    openai_answer(&o, rq);
    return queue_body(x, 200, &o, NULL, NULL);
}

int submit_request(struct exchange *x, struct request *rq, struct fault *f)
{
    rq->http = x;
    rq->wake = wake;
    rq->disconnected = gone;
    x->rq = rq;
    atomic_fetch_add(&rq->refs, 1);
    if (router_put(x->h->router, rq) == 0)
        return 0;
    x->rq = NULL;
    request_release(rq);
    request_release(rq);
    return fault_set(f, 503, NULL, "the server is stopping");
}

/* ---- before and behind the route's work ---- */

static int is_json(struct MHD_Connection *conn)
{
    const char *type = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE),
               *want = "application/json";
    return !type || (!strncasecmp(type, want, strlen(want)) && strchr("; \t", type[strlen(want)]));
}

static int reject(struct exchange *x, int status, const char *text, long long n)
{
    metric_add(x->h->sv->metrics, COUNT_REJECTED, 1);
    return fault_set(&x->fault, status, NULL, "%s (%lld): try again later", text, n);
}

/* Is there room for one more? Looked at before the body is read: a full server must not spend time on
 * tokens. */
static int check_capacity(struct exchange *x)
{
    const struct http_options *o = &x->h->o;
    int64_t requests = router_live(x->h->router), tokens = router_live_tokens(x->h->router);
    if (o->max_requests && requests >= o->max_requests)
        return reject(x, 503, "the server is full: requests in work", requests);
    if (o->max_waiting_tokens && tokens >= o->max_waiting_tokens)
        return reject(x, 503, "the server is full: prompt tokens in work", tokens);
    if (o->keys && o->max_per_key && x->key >= 0) {
        if (atomic_fetch_add(&o->keys->key[x->key].n_active, 1) >= o->max_per_key) {
            atomic_fetch_sub(&o->keys->key[x->key].n_active, 1);
            return reject(x, 429, "this key has as many requests in work as it may have", o->max_per_key);
        }
        x->holds_key = 1;
    }
    return 0;
}

static int is_admin(const struct exchange *x) { return x->route && x->route->flags & ROUTE_ADMIN; }

static int check_request(struct exchange *x)
{
    static const char *const why[] = { [SERVICE_LOADING] = "the model is loading",
                                       [SERVICE_DRAINING] = "the server is stopping",
                                       [SERVICE_FAILED] = "the server has failed: see its log" };
    int state = atomic_load(&x->h->sv->state);
    if (state != SERVICE_READY)
        return fault_set(&x->fault, 503, NULL, "%s", why[state]);
    if (x->too_large)
        return fault_set(&x->fault, 413, NULL,
                         "the body is larger than %zu MiB: send fewer prompts at a time", BODY_MAX >> 20);
    if (!is_json(x->conn))
        return fault_set(&x->fault, 400, NULL, "the content type must be application/json");
    const char *coding = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND,
                                                     MHD_HTTP_HEADER_CONTENT_ENCODING);
    if (coding && strcasecmp(coding, "identity"))
        return fault_set(&x->fault, 400, NULL,
                         "the content encoding %.40s is not read here: send the JSON as it is", coding);
    return is_admin(x) ? 0 : check_capacity(x);
}

static enum MHD_Result finish_work(struct exchange *x)
{
    if (x->fault.status)
        return queue_fault(x, &x->fault, NULL);
    return x->rq ? continue_completion(x) : queue_body(x, 200, &x->answer, NULL, NULL);
}

/* A worker's thread. */
static void run_job(struct job *j)
{
    struct exchange *x = (struct exchange *)(void *)j;
    struct MHD_Connection *conn = x->conn;
    x->route->work(x);
    json_out_free(&x->body);
    MHD_resume_connection(conn); /* last: it may be over at once */
}

static enum MHD_Result begin_work(struct exchange *x)
{
    x->worked = 1;
    if (check_request(x) < 0)
        return finish_work(x);
    if (x->body.n > SMALL_BODY || (x->route->flags & ROUTE_ALWAYS_WORKER)) {
        MHD_suspend_connection(x->conn);
        x->job.run = run_job;
        worker_put(&x->h->worker, &x->job);
        return MHD_YES;
    }
    x->route->work(x);
    json_out_free(&x->body);
    return finish_work(x);
}

/* ---- routes ---- */

static int has_method(const char *list, const char *method)
{
    const char *at = strstr(list, method);
    size_t n = strlen(method);
    return at && n && (at == list || at[-1] == ' ') && (at[n] == 0 || at[n] == ',');
}

static int needs_key(const struct exchange *x)
{
    if (is_admin(x))
        return x->h->o.admin_keys && x->key < 0;
    return x->h->o.keys && x->key < 0 && !(x->route && x->route->flags & ROUTE_OPEN) &&
           strcmp(x->method, "OPTIONS");
}

static enum MHD_Result answer(struct exchange *x)
{
    const struct route *r = x->route;
    struct json_out none = { 0 };
    if (needs_key(x))
        fault_set(&x->fault, 401, NULL,
                  "a key is needed: send Authorization: Bearer KEY with one of the server's keys");
    else if (!r)
        fault_set(&x->fault, 404, NULL, "there is nothing at %.200s: see /openapi.json", x->path);
    else if (!strcmp(x->method, "OPTIONS") && x->h->o.cors_origin)
        return queue_body(x, 204, &none, NULL, r->methods);
    else if (!has_method(r->methods, x->method))
        fault_set(&x->fault, 405, NULL, "%s takes %s, not %.20s", r->path, r->methods, x->method);
    else if (is_admin(x) && !x->h->o.admin_keys)
        fault_set(&x->fault, 403, NULL, "nobody may do this here: start the server with --admin-key-file");
    else if (!(r->flags & ROUTE_WHILE_LOADING) && atomic_load(&x->h->sv->state) == SERVICE_LOADING)
        fault_set(&x->fault, 503, NULL, "the model is loading");
    if (x->fault.status)
        return queue_fault(x, &x->fault, x->fault.status == 405 ? r->methods : NULL);
    return r->work ? begin_work(x) : r->answer(x);
}

/* ---- libmicrohttpd's side ---- */

/* The client's name of the request, if it is one that can stand in a log and a header. */
static void take_id(struct exchange *x)
{
    const char *id = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "X-Request-Id");
    if (id && request_name_valid(id))
        snprintf(x->id, sizeof x->id, "%s", id);
}

static struct exchange *exchange_new(struct http_server *h, struct MHD_Connection *conn, const char *url,
                                     const char *method)
{
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->h = h;
    x->conn = conn;
    x->fd = fd ? fd->connect_fd : -1;
    x->begin_s = clock_s();
    x->route = route_find(url);
    snprintf(x->method, sizeof x->method, "%s", method);
    snprintf(x->path, sizeof x->path, "%s", url);
    struct keys *keys = is_admin(x) ? h->o.admin_keys : h->o.keys;
    x->key = !keys ? -1
                   : keys_find(keys,
                               MHD_lookup_connection_value(conn, MHD_HEADER_KIND,
                                                           MHD_HTTP_HEADER_AUTHORIZATION),
                               MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "X-Api-Key"));
    take_id(x);
    atomic_fetch_add(&h->in_flight, 1);
    return x;
}

/* A body that is too large is read to its end all the same: a client that is still sending does not read an
 * answer. */
static void take_body(struct exchange *x, const char *data, size_t n)
{
    if (!x->route || !x->route->work || needs_key(x))
        return;
    x->too_large |= x->body.n + n > BODY_MAX;
    if (!x->too_large)
        json_out_bytes(&x->body, data, n);
    x->too_large |= x->body.failed;
    if (x->too_large)
        json_out_free(&x->body);
}

static struct arrival *arrival_of(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i ? i->socket_context : NULL;
}

static void connected(void *arg, struct MHD_Connection *conn, void **context,
                      enum MHD_ConnectionNotificationCode what)
{
    struct http_server *h = arg;
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        *context = fd ? arrival_new(&h->arrivals, fd->connect_fd) : NULL;
    else
        arrival_closed(&h->arrivals, *context);
}

/* The first line of a request is there. */
static void *first_line(void *arg, const char *uri, struct MHD_Connection *conn)
{
    struct http_server *h = arg;
    (void)uri;
    arrival_begin(&h->arrivals, arrival_of(conn));
    return NULL;
}

static size_t declared_body(struct MHD_Connection *conn)
{
    const char *n = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return n ? strtoull(n, NULL, 10) : 0;
}

/* Before the body: may a client that asks for leave to send it (Expect: 100-continue) be answered already? */
static int needs_no_body(struct exchange *x)
{
    const char *expect = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_EXPECT);
    if (!expect || strcasecmp(expect, "100-continue"))
        return 0;
    x->too_large = declared_body(x->conn) > BODY_MAX;
    return x->too_large || !x->route || needs_key(x) || !has_method(x->route->methods, x->method);
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *conn, const char *url, const char *method,
                              const char *version, const char *data, size_t *n, void **state)
{
    struct exchange *x = *state;
    (void)version;
    if (!x) {
        *state = x = exchange_new(arg, conn, url, method);
        return !x ? MHD_NO : needs_no_body(x) ? answer(x) : MHD_YES;
    }
    if (*n) {
        take_body(x, data, *n);
        *n = 0;
        return MHD_YES;
    }
    arrival_complete(&x->h->arrivals, arrival_of(conn));
    return x->worked ? finish_work(x) : answer(x);
}

/* The exchange is over, well or not: the engine must not call any more, and need not go on. */
static void completed(void *arg, struct MHD_Connection *conn, void **state,
                      enum MHD_RequestTerminationCode why)
{
    struct exchange *x = *state;
    struct http_server *h = arg;
    (void)why;
    arrival_answered(&h->arrivals, arrival_of(conn));
    if (!x)
        return;
    access_write(x);
    if (x->holds_key)
        atomic_fetch_sub(&x->h->o.keys->key[x->key].n_active, 1);
    if (x->rq) {
        pthread_mutex_lock(&x->rq->lock);
        x->rq->wake = NULL;
        x->rq->http = NULL;
        pthread_mutex_unlock(&x->rq->lock);
        atomic_store(&x->rq->cancelled, 1);
        request_release(x->rq);
    }
    atomic_fetch_sub(&x->h->in_flight, 1);
    json_out_free(&x->body);
    json_out_free(&x->answer);
    free(x);
    *state = NULL;
}

/* ---- life ---- */

static int listen_on(const char *host, int port, int *bound_port, struct err *e)
{
    struct addrinfo want = { .ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV },
                    *all, *a;
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
        if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, SOMAXCONN) < 0 ||
            getsockname(fd, (struct sockaddr *)&got, &size) < 0) {
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
        return err_sys(e, "cannot listen on %s port %d (choose another --port, or 0 for a free one)", host,
                       port);
    *bound_port = ntohs(got.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&got)->sin6_port
                                                  : ((struct sockaddr_in *)&got)->sin_port);
    return fd;
}

static void no_log(void *arg, const char *fmt, va_list ap)
{
    (void)arg;
    (void)fmt;
    (void)ap; /* clients that hang up are no news */
}

/* Where access lines go: fd, -1 for nowhere. */
static int open_access(const char *path, int *fd, struct err *e)
{
    *fd = !path                ? -1
          : !strcmp(path, "-") ? dup(STDERR_FILENO)
                               : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    return path && *fd < 0 ? err_sys(e, "cannot write the access log %s", path) : 0;
}

/* A PEM file as text; NULL: none is asked for. */
static int read_pem(const char *path, char **text, struct err *e)
{
    void *data = NULL;
    size_t n;
    int rc = path ? io_read_file(path, PEM_MAX, &data, &n, e) : 0;
    if (rc < 0 || !path)
        return rc;
    *text = strndup(data, n);
    free(data);
    return *text ? 0 : err_set(e, ERR_MEMORY, "no memory for %s", path);
}

static void http_server_free(struct http_server *h)
{
    if (h->cert_key)
        explicit_bzero(h->cert_key, strlen(h->cert_key));
    free(h->cert);
    free(h->cert_key);
    if (h->access_fd >= 0)
        close(h->access_fd);
    free(h);
}

static int start_daemon(struct http_server *h, struct err *e)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                     MHD_USE_ERROR_LOG | (h->cert ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls[] = { { MHD_OPTION_HTTPS_MEM_CERT, 0, h->cert },
                                    { MHD_OPTION_HTTPS_MEM_KEY, 0, h->cert_key },
                                    { MHD_OPTION_END, 0, NULL } };
    if (h->cert && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return err_set(e, ERR_CONFIG, "--tls-cert: this libmicrohttpd was built without TLS");
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, handle, h, MHD_OPTION_ARRAY, h->cert ? tls : &tls[2],
                                 MHD_OPTION_EXTERNAL_LOGGER, no_log, NULL, MHD_OPTION_LISTEN_SOCKET, h->fd,
                                 MHD_OPTION_NOTIFY_COMPLETED, completed, h, MHD_OPTION_NOTIFY_CONNECTION,
                                 connected, h, MHD_OPTION_URI_LOG_CALLBACK, first_line, h,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_TIMEOUT_S,
                                 MHD_OPTION_CONNECTION_LIMIT, 4096u, MHD_OPTION_END);
    if (!h->daemon && h->cert)
        return err_set(e, ERR_CONFIG,
                       "%s and %s are not taken: they must be a certificate and its private key, both PEM",
                       h->o.tls_cert, h->o.tls_key);
    return h->daemon ? 0 : err_set(e, ERR_INTERNAL, "the http server does not start");
}

int http_server_open(struct http_server **out, struct service *sv, struct router *router,
                     const struct http_options *o, struct err *e)
{
    struct http_server *h = calloc(1, sizeof *h);
    int rc;
    *out = NULL;
    if (!h)
        return err_set(e, ERR_MEMORY, "no memory for the http server");
    h->sv = sv;
    h->router = router;
    h->o = *o;
    h->fd = -1;
    h->access_fd = -1;
    TRY(read_pem(o->tls_cert, &h->cert, e));
    TRY(read_pem(o->tls_key, &h->cert_key, e));
    TRY(open_access(o->access_log, &h->access_fd, e));
    TRY(h->fd = listen_on(o->host, o->port, &h->port, e));
    TRY(worker_open(&h->worker, e));
    rc = arrivals_open(&h->arrivals, o->receive_timeout_s, IDLE_TIMEOUT_S, e);
    rc = rc < 0 ? rc : start_daemon(h, e);
    if (rc < 0) {
        worker_close(&h->worker);
        arrivals_close(&h->arrivals);
    }
out:
    if (rc < 0) {
        if (h->fd >= 0)
            close(h->fd);
        http_server_free(h);
        return rc;
    }
    *out = h;
    return 0;
}

int http_server_port(const struct http_server *h) { return h->port; }

void http_server_close(struct http_server *h, double grace_s)
{
    static const struct timespec nap = { 0, 2000000 };
    double end = clock_s() + grace_s;
    if (!h)
        return;
    int fd = MHD_quiesce_daemon(h->daemon);
    if (fd >= 0)
        close(fd);
    while (atomic_load(&h->in_flight) && clock_s() < end)
        nanosleep(&nap, NULL);
    worker_close(&h->worker);
    MHD_stop_daemon(h->daemon);
    arrivals_close(&h->arrivals);
    http_server_free(h);
}
