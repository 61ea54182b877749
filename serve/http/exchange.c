/* exchange.c - an exchange from its headers to its answer: see exchange.h. */
#define _GNU_SOURCE /* POLLRDHUP */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/clock.h"
#include "serve/http/exchange.h"

#define SMALL_BODY 4096 /* bytes that the library's thread parses itself */

/* ---- a request that the engine computes ---- */

/* The request has changed: called by the engine's thread with the request's lock held. */
static void wake(struct request *rq)
{
    struct exchange *x = rq->http;
    if (x->suspended) {
        x->suspended = 0;
        MHD_resume_connection(x->conn);
    }
}

/* Has the client closed its end? Only a suspended connection can be looked at: the library does not read from
 * it. The engine's or a link's thread. */
static int disconnected(struct request *rq)
{
    pthread_mutex_lock(&rq->lock);
    struct exchange *x = rq->http;
    struct pollfd p = { .fd = x && x->suspended ? x->fd : -1, .events = POLLRDHUP };
    int n = poll(&p, 1, 0);
    pthread_mutex_unlock(&rq->lock);
    return n > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

int submit_request(struct exchange *x, struct request *rq, struct fault *f)
{
    rq->http = x;
    rq->wake = wake;
    rq->disconnected = disconnected;
    x->rq = rq;
    atomic_fetch_add(&rq->refs, 1);
    if (router_put(x->h->router, rq) == 0)
        return 0;
    x->rq = NULL;
    request_release(rq);
    request_release(rq);
    return fault_set(f, 503, NULL, "the server is stopping");
}

/* Answers when there is something to send; else suspends the connection until the engine's wake. */
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
        return queue_events(x);
    if (rq->answer.n || rq->answer.failed) /* written by the replica's process */
        return queue_body(x, 200, &rq->answer, NULL, NULL);
    openai_answer(&o, rq);
    return queue_body(x, 200, &o, NULL, NULL);
}

/* ---- may the route's work begin? ---- */

/* Is the body declared as JSON? A client with a key may leave the declaration out. Without keys it may not: a
 * browser asks no leave to send a page's request whose content type is not JSON to another site. */
static int is_json(const struct exchange *x)
{
    const char *type = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE),
               *want = "application/json";
    if (!type)
        return x->key >= 0;
    return !strncasecmp(type, want, strlen(want)) && strchr("; \t", type[strlen(want)]);
}

/* A fault because of too many requests or tokens, n of them. */
static int reject(struct exchange *x, int status, const char *text, long long n)
{
    metric_add(x->h->sv->metrics, COUNT_REJECTED, 1);
    return fault_set(&x->fault, status, NULL, "%s (%lld): try again later", text, n);
}

/* Can the server take one more request? Checked before the body is parsed: a full server must not spend time
 * on tokens. */
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

/* Sets the fault of an exchange whose work may not begin. 0, or -1. */
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
    if (!is_json(x))
        return fault_set(&x->fault, 400, NULL,
                         "the content type must be application/json: send the header Content-Type");
    const char *coding = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND,
                                                     MHD_HTTP_HEADER_CONTENT_ENCODING);
    if (coding && strcasecmp(coding, "identity"))
        return fault_set(&x->fault, 400, NULL,
                         "the content encoding %.40s is not read here: send the JSON as it is", coding);
    return is_admin(x) ? 0 : check_capacity(x);
}

/* ---- the route's work ---- */

enum MHD_Result exchange_continue(struct exchange *x)
{
    if (x->fault.status)
        return queue_fault(x, &x->fault, NULL);
    return x->rq ? continue_completion(x) : queue_body(x, 200, &x->answer, NULL, NULL);
}

/* The job of a worker's thread. */
static void run_job(struct job *j)
{
    struct exchange *x = (struct exchange *)(void *)j;
    struct MHD_Connection *conn = x->conn;
    x->route->work(x);
    json_out_free(&x->body);
    MHD_resume_connection(conn); /* last: the library's thread may free x at once */
}

/* Runs the route's work: of a small body here, else in a worker's thread. */
static enum MHD_Result begin_work(struct exchange *x)
{
    x->worked = 1;
    if (check_request(x) < 0)
        return exchange_continue(x);
    if (x->body.n > SMALL_BODY || (x->route->flags & ROUTE_ALWAYS_WORKER)) {
        MHD_suspend_connection(x->conn);
        x->job.run = run_job;
        worker_put(&x->h->worker, &x->job);
        return MHD_YES;
    }
    x->route->work(x);
    json_out_free(&x->body);
    return exchange_continue(x);
}

/* ---- the route ---- */

/* Is the method in the list ("GET, HEAD")? */
static int has_method(const char *list, const char *method)
{
    const char *at = strstr(list, method);
    size_t n = strlen(method);
    return at && n && (at == list || at[-1] == ' ') && (at[n] == 0 || at[n] == ',');
}

/* Is a key needed that the client did not give? */
static int needs_key(const struct exchange *x)
{
    if (is_admin(x))
        return x->h->o.admin_keys && x->key < 0;
    return x->h->o.keys && x->key < 0 && !(x->route && x->route->flags & ROUTE_OPEN) &&
           strcmp(x->method, "OPTIONS");
}

enum MHD_Result exchange_answer(struct exchange *x)
{
    const struct route *r = x->route;
    struct json_out none = { 0 };

    if (x->fault.status)
        ; /* the head was refused */
    else if (needs_key(x))
        fault_set(&x->fault, 401, NULL,
                  "a key is needed: send Authorization: Bearer KEY with one of the server's keys");
    else if (!r)
        fault_set(&x->fault, 404, NULL, "there is nothing at %.200s: see /openapi.json", x->path);
    else if (!strcmp(x->method, "OPTIONS") && x->h->o.cors_origin)
        return queue_body(x, 204, &none, NULL, r->methods);
    else if (!has_method(r->methods, x->method))
        fault_set(&x->fault, 405, NULL, "%s takes %s, not %.20s", r->path, r->methods, x->method);
    else if (is_admin(x) && !x->h->o.admin_keys)
        fault_set(&x->fault, 403, NULL, "no client may do this here: start the server with --admin-key-file");
    else if (!(r->flags & ROUTE_WHILE_LOADING) && atomic_load(&x->h->sv->state) == SERVICE_LOADING)
        fault_set(&x->fault, 503, NULL, "the model is loading");

    if (x->fault.status)
        return queue_fault(x, &x->fault, x->fault.status == 405 ? r->methods : NULL);
    return r->work ? begin_work(x) : r->answer(x);
}

/* ---- begin and end ---- */

/* The client's name of the request (X-Request-Id), if it is valid in a log and a header. */
static void take_id(struct exchange *x)
{
    const char *id = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "X-Request-Id");
    if (id && request_name_valid(id))
        snprintf(x->id, sizeof x->id, "%s", id);
}

struct exchange *exchange_new(struct http_server *h, struct MHD_Connection *conn, const char *url,
                              const char *method, const char *version)
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
    const char *bearer = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    const char *x_api_key = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "X-Api-Key");
    x->key = keys ? keys_find(keys, bearer, x_api_key) : -1;
    take_id(x);
    x->is_last = request_head_check(conn, version, &h->hosts, &x->fault) < 0;
    atomic_fetch_add(&h->in_flight, 1);
    return x;
}

/* A body that is too large is read to its end all the same: a client that is still sending does not read an
 * answer. */
void exchange_take_body(struct exchange *x, const char *data, size_t n)
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

/* Bytes of the body, as the client announces them. */
static size_t declared_body(struct MHD_Connection *conn)
{
    const char *n = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return n ? strtoull(n, NULL, 10) : 0;
}

int exchange_needs_no_body(struct exchange *x)
{
    const char *expect = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_EXPECT);
    if (x->fault.status)
        return 1;
    if (!expect || strcasecmp(expect, "100-continue"))
        return 0;
    x->too_large = declared_body(x->conn) > BODY_MAX;
    return x->too_large || !x->route || needs_key(x) || !has_method(x->route->methods, x->method);
}

void exchange_free(struct exchange *x)
{
    struct http_server *h = x->h;

    access_write(x);
    if (x->holds_key)
        atomic_fetch_sub(&h->o.keys->key[x->key].n_active, 1);

    /* the engine must not call wake any more, and need not go on */
    if (x->rq) {
        pthread_mutex_lock(&x->rq->lock);
        x->rq->wake = NULL;
        x->rq->http = NULL;
        pthread_mutex_unlock(&x->rq->lock);
        atomic_store(&x->rq->cancelled, 1);
        request_release(x->rq);
    }

    atomic_fetch_sub(&h->in_flight, 1);
    json_out_free(&x->body);
    json_out_free(&x->answer);
    free(x);
}
