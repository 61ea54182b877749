/* exchange.c - an exchange from its headers to its answer: see exchange.h. */
#define _GNU_SOURCE /* POLLRDHUP */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/clock.h"
#include "serve/http/exchange.h"

#define SMALL_BODY 4096   /* bytes that the library's thread parses itself */
#define SHORT_BODY 131072 /* bytes of a body whose work ends soon */

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
    front_keep(rq);
    if (rq->answer.n || rq->answer.failed) /* written by the replica's process, or to be kept */
        return queue_body(x, 200, &rq->answer, NULL, NULL);
    front_answer(&o, rq);
    return queue_body(x, 200, &o, NULL, NULL);
}

/* ---- may the body be sent? ---- */

static int is_admin(const struct exchange *x) { return x->route && x->route->flags & ROUTE_ADMIN; }

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

/* Bytes of the body, as the client announces them; 0: not known. */
static size_t declared_body(struct MHD_Connection *conn)
{
    const char *n = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return n ? strtoull(n, NULL, 10) : 0;
}

/* Bytes that a body may have. */
static size_t body_max(const struct http_server *h)
{
    size_t share = (size_t)body_budget_share(&h->bodies);
    return share < BODY_MAX ? share : BODY_MAX;
}

/* Frees the body. Any thread. */
static void drop_body(struct exchange *x)
{
    json_out_free(&x->body);
    body_budget_add(&x->h->bodies, x->owner, -x->body_held);
    x->body_held = 0;
}

/* A fault because of too many requests or tokens, n of them. */
static int reject(struct exchange *x, int status, const char *text, long long n)
{
    metric_add(x->h->sv->metrics, COUNT_REJECTED, 1);
    return fault_set(&x->fault, status, NULL, "%s (%lld): try again later", text, n);
}

/* Counts the request as one of its key's. */
static int take_key(struct exchange *x)
{
    const struct http_options *o = &x->h->o;

    if (!o->keys || !o->max_per_key || x->key < 0 || is_admin(x))
        return 0;
    if (atomic_fetch_add(&o->keys->key[x->key].n_active, 1) >= o->max_per_key) {
        atomic_fetch_sub(&o->keys->key[x->key].n_active, 1);
        return reject(x, 429, "this key has as many requests as it may have", o->max_per_key);
    }
    x->holds_key = 1;
    return 0;
}

/* May the client send the body of a request that has a route to work on it? 0, or -1 with the fault, or where
 * x->too_large. */
static int admit_body(struct exchange *x)
{
    size_t n = declared_body(x->conn);

    x->too_large = n > body_max(x->h);
    if (x->too_large)
        return -1;
    if (x->is_last)
        return reject(x, 503,
                      "too many connections are being answered (--max-connections, or those per address)",
                      atomic_load(&x->h->in_flight));
    if (body_budget_check(&x->h->bodies, x->owner, 0, (int64_t)n, &x->fault) < 0) {
        metric_add(x->h->sv->metrics, COUNT_REJECTED, 1);
        return -1;
    }
    return take_key(x);
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
    return 0;
}

/* Is the server at work? 0, or -1 with the fault set. */
static int check_state(struct exchange *x)
{
    static const char *const why[] = { [SERVICE_LOADING] = "the model is loading",
                                       [SERVICE_DRAINING] = "the server is stopping",
                                       [SERVICE_FAILED] = "the server has failed: see its log" };
    int state = atomic_load(&x->h->sv->state);

    return state == SERVICE_READY ? 0 : fault_set(&x->fault, 503, NULL, "%s", why[state]);
}

/* Sets the fault of an exchange whose work may not begin. 0, or -1. */
static int check_request(struct exchange *x)
{
    if (check_state(x) < 0)
        return -1;
    if (x->too_large)
        return fault_set(&x->fault, 413, NULL,
                         "the body is larger than %zu KiB: send fewer prompts at a time",
                         body_max(x->h) >> 10);
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
    return x->rq ? continue_completion(x) : queue_body(x, 200, &x->answer, x->answer_type, NULL);
}

/* The job of a worker's thread. */
static void run_job(struct job *j)
{
    struct exchange *x = (struct exchange *)(void *)j;
    struct MHD_Connection *conn = x->conn;
    if (is_admin(x) || check_state(x) == 0) /* it may have waited while the server was stopped */
        x->route->work(x);
    drop_body(x);
    MHD_resume_connection(conn); /* last: the library's thread may free x at once */
}

/* Does the body of a completion ask for a grammar, which may take long to compile? It may also only say these
 * words, or have escapes that hide them. */
static int may_have_grammar(const struct exchange *x)
{
    static const char *const words[] = { "structured_outputs", "response_format", "\\u" };
    for (size_t i = 0; x->body.n && i < sizeof words / sizeof *words; i++)
        if (memmem(x->body.p, x->body.n, words[i], strlen(words[i])))
            return 1;
    return 0;
}

/* Runs the route's work: of a small body here, else in a worker's thread. */
static enum MHD_Result begin_work(struct exchange *x)
{
    x->worked = 1;
    if (check_request(x) < 0)
        return exchange_continue(x);
    if (x->body.n > SMALL_BODY || (x->route->flags & ROUTE_ALWAYS_WORKER) || may_have_grammar(x)) {
        MHD_suspend_connection(x->conn);
        x->job.run = run_job;
        x->job.is_short = x->body.n <= SHORT_BODY && !is_admin(x);
        worker_put(&x->h->worker, &x->job);
        return MHD_YES;
    }
    x->route->work(x);
    drop_body(x);
    return exchange_continue(x);
}

/* ---- the route ---- */

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

struct exchange *exchange_new(struct http_server *h, struct MHD_Connection *conn, struct connection *from)
{
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct exchange *x = calloc(1, sizeof *x);

    if (!x)
        return NULL;
    x->h = h;
    x->conn = conn;
    x->from = from;
    x->fd = fd ? fd->connect_fd : -1;
    x->begin_s = clock_s();
    atomic_fetch_add(&h->in_flight, 1);
    return x;
}

void exchange_begin(struct exchange *x, const char *url, const char *method, const char *version)
{
    struct http_server *h = x->h;
    const char *bearer = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    const char *x_api_key = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, "X-Api-Key");
    const char *mode = MHD_lookup_connection_value(x->conn, MHD_GET_ARGUMENT_KIND, "mode");

    x->route = route_find(url);
    snprintf(x->method, sizeof x->method, "%s", method);
    snprintf(x->path, sizeof x->path, "%s", url);
    snprintf(x->mode, sizeof x->mode, "%s", mode ? mode : "");
    struct keys *keys = is_admin(x) ? h->o.admin_keys : h->o.keys;
    x->key = keys ? keys_find(keys, bearer, x_api_key) : -1;
    take_id(x);

    x->bad_head = request_head_check(x->conn, version, &h->hosts, &x->fault) < 0;
    x->is_last = x->bad_head || (x->from && x->from->is_extra);
    if (!x->bad_head && x->route && x->route->work && !needs_key(x) &&
        has_method(x->route->methods, method)) {
        x->owner.address = x->from ? &x->from->address->bodies : NULL;
        x->owner.key = x->key >= 0 ? &keys->key[x->key].bodies : NULL;
        x->keeps_body = admit_body(x) == 0;
    }
}

/* ---- the body ---- */

/* A body that is not kept is read to its end all the same: a client that is still sending does not read an
 * answer. */
void exchange_take_body(struct exchange *x, const char *data, size_t n)
{
    if (!x->keeps_body)
        return;
    x->too_large |= x->body.n + n > body_max(x->h);
    if (!x->too_large &&
        body_budget_check(&x->h->bodies, x->owner, x->body_held, (int64_t)n, &x->fault) == 0) {
        body_budget_add(&x->h->bodies, x->owner, (int64_t)n);
        x->body_held += (int64_t)n;
        json_out_bytes(&x->body, data, n);
        x->too_large |= x->body.failed;
    }
    if (x->fault.status)
        metric_add(x->h->sv->metrics, COUNT_REJECTED, 1);
    if (x->too_large || x->fault.status) {
        x->keeps_body = 0;
        drop_body(x);
    }
}

int exchange_needs_no_body(struct exchange *x)
{
    const char *expect = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND, MHD_HTTP_HEADER_EXPECT);
    return x->bad_head || (expect && !strcasecmp(expect, "100-continue") && !x->keeps_body);
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
    drop_body(x);
    json_out_free(&x->answer);
    free(x);
}
