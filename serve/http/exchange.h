/* exchange.h - inside of HTTP: one request on a connection, from its first header to its last byte. http.c
 * moves it, routes.c answers it, access.c tells about it. */
#ifndef SHARDLINE_SERVE_HTTP_EXCHANGE_H
#define SHARDLINE_SERVE_HTTP_EXCHANGE_H

#include <microhttpd.h>
#include "serve/http/arrival.h"
#include "serve/http/http_server.h"
#include "serve/api/openai.h"
#include "serve/http/worker.h"

struct http_server {
    struct MHD_Daemon *daemon;
    struct service *sv;
    struct router *router;
    struct http_options o;
    int fd, port, access_fd;
    char *cert, *cert_key;  /* PEM */
    _Atomic int in_flight;  /* exchanges */
    _Atomic int64_t serial; /* of exchanges that name themselves */
    struct worker worker;
    struct arrivals arrivals;
};

struct exchange {
    struct job job; /* first member: what a worker gets */
    struct http_server *h;
    struct MHD_Connection *conn;
    int fd;
    const struct route *route; /* NULL: nothing is there */
    char method[16], path[256], id[REQUEST_NAME_MAX + 16];
    double begin_s;
    /* index or -1 (of an operator's key on their routes); it counts against that key */
    int key, holds_key;
    int status; /* that was answered */
    struct json_out body;
    int too_large;
    /* what a worker found, or the HTTP thread in its place: */
    int worked;
    struct json_out answer;
    struct fault fault;
    struct request *rq;
    /* behind rq->lock: */
    int suspended;
    size_t taken; /* bytes of rq->events that went out */
    int error_sent;
};

enum {
    ROUTE_PREFIX = 1,
    ROUTE_WHILE_LOADING = 2,
    ROUTE_OPEN = 4,
    ROUTE_ALWAYS_WORKER = 8,
    ROUTE_ADMIN = 16 /* its keys are the operators' */
};
struct route {
    const char *path, *methods;
    unsigned flags;
    enum MHD_Result (*answer)(struct exchange *x); /* at once; or NULL, and */
    /* from the body: sets answer, rq or fault; any thread */
    void (*work)(struct exchange *x);
};
const struct route *route_find(const char *path);

/* http.c: what routes answer with. o is taken over; type NULL: JSON. */
enum MHD_Result queue_body(struct exchange *x, int status, struct json_out *o, const char *type,
                           const char *allow);
enum MHD_Result queue_static(struct exchange *x, const char *p, size_t n, const char *type);
enum MHD_Result queue_fault(struct exchange *x, const struct fault *f, const char *allow);
/* Gives a request that was parsed to the engine. 0, or -1: f says why not (then x->rq is NULL). */
int submit_request(struct exchange *x, struct request *rq, struct fault *f);

/* access.c: the line about an exchange that is over. */
void access_write(const struct exchange *x);

#endif
