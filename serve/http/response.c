/* response.c - answers on their way to the client: headers, JSON, files, events of a stream. See
 * exchange.h. */
#include <string.h>
#include "serve/http/exchange.h"

#define EVENT_BLOCK 16384 /* bytes of a stream that the library asks for at a time */

/* ---- headers that all answers have ---- */

/* Is this origin in the list of --cors-origin? */
static int origin_allowed(const char *list, const char *origin)
{
    size_t n = strlen(origin);
    const char *p = list;
    while (*p) {
        size_t k = strcspn(p, ",");
        if (k == n && !memcmp(p, origin, n))
            return 1;
        p += k;
        p += *p == ',';
    }
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

    /* a browser asks before it sends */
    MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_METHODS,
                            x->route ? x->route->methods : "GET, POST");
    MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_HEADERS,
                            "authorization, content-type, x-api-key, x-request-id");
    MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_MAX_AGE, "600");
}

/* Queues r with these headers, and releases it. */
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
    if (x->is_last)
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    x->status = status;
    enum MHD_Result rc = MHD_queue_response(x->conn, (unsigned)status, r);
    MHD_destroy_response(r);
    return rc;
}

/* ---- whole answers ---- */

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
    front_error(&o, x->route ? x->route->endpoint : ENDPOINT_COMPLETION, f);
    return queue_body(x, f->status, &o, NULL, allow);
}

/* ---- streams ---- */

/* Called by the library for the next bytes of a stream; suspends the connection where there are none yet. */
static ssize_t read_events(void *arg, uint64_t pos, char *buf, size_t max)
{
    struct exchange *x = arg;
    struct request *rq = x->rq;
    ssize_t n = 0;

    (void)pos;
    pthread_mutex_lock(&rq->lock);
    if (x->taken == rq->events.n && rq->done && rq->fault.status && !x->error_sent) {
        x->error_sent = 1;
        front_stream_error(&rq->events, rq, &rq->fault);
    }
    if (rq->done || rq->answer.n) /* before the end is sent: the client may go on at once */
        front_keep(rq);

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

enum MHD_Result queue_events(struct exchange *x)
{
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, EVENT_BLOCK, read_events, x,
                                                               NULL);
    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream; charset=utf-8");
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    return queue(x, 200, r);
}
