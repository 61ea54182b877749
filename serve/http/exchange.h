/* exchange.h - private to serve/http: an exchange is one request on a connection, from its first header to
 * the last byte of its answer. http_server.c has the library's callbacks, exchange.c moves an exchange on,
 * routes.c answers it, response.c sends, access_log.c writes a line about it.
 *
 *     body arrives -> exchange_answer -> route: answers at once, or reads the body (here, or in a worker's
 *     thread), then request -> router -> connection suspended -> (engine) wake -> exchange_continue: whole
 *     answer, or events until done
 *
 * Threads: an exchange belongs to the library's thread; while its job runs, to a worker's. The engine's
 * thread calls the request's wake with the request's lock held, and its disconnected, which takes the lock.
 * Suspending a connection takes the same lock, so that no wake is lost between looking and suspending. */
#ifndef SHARDLINE_SERVE_HTTP_EXCHANGE_H
#define SHARDLINE_SERVE_HTTP_EXCHANGE_H

#include <microhttpd.h>
#include "serve/http/connections.h"
#include "serve/http/request_head.h"
#include "serve/http/http_server.h"
#include "serve/api/front.h"
#include "serve/http/worker.h"

#define BODY_MAX ((size_t)64 << 20)

struct http_server {
    struct MHD_Daemon *daemon;
    struct service *sv;
    struct router *router;
    struct http_options o;
    struct host_names hosts;
    int fd, port, access_fd;
    char *cert, *cert_key;  /* PEM */
    _Atomic int in_flight;  /* exchanges */
    _Atomic int64_t serial; /* of exchanges whose client gave no name */
    struct worker worker;
    struct connections connections;
    struct body_budget bodies;
};

struct exchange {
    struct job job; /* first member: what a worker gets */
    struct http_server *h;
    struct MHD_Connection *conn;
    struct connection *from; /* NULL: there was no memory for it */
    int fd;
    const struct route *route; /* NULL: there is nothing at this path */
    char mode[16];             /* of the query; "": none */
    char method[16], path[256], id[REQUEST_NAME_MAX + 16];
    double begin_s; /* clock_s() */
    int key;        /* index of the client's key (on operators' routes: of theirs), or -1 */
    int holds_key;  /* it counts in that key's n_active */
    int status;     /* that was answered; 0: none yet */
    int bad_head;   /* where its body ends is not known */
    int is_last;    /* the connection closes after the answer */

    struct json_out body;
    int keeps_body; /* else it is read and thrown away */
    int too_large;
    struct body_owner owner; /* of the body's bytes, */
    int64_t body_held;       /* so many of the budget */

    /* what the route's work has set: */
    int worked;              /* it has begun */
    struct json_out answer;  /* an answer, */
    const char *answer_type; /* its content type; NULL: JSON */
    struct fault fault;      /* a fault, */
    struct request *rq;      /* or a request that the engine has */

    /* guarded by rq->lock: */
    int suspended;
    size_t taken; /* bytes of rq->events that were sent */
    int error_sent;
};

enum {
    ROUTE_PREFIX = 1, /* path is the beginning of what it matches */
    ROUTE_WHILE_LOADING = 2,
    ROUTE_OPEN = 4, /* needs no key */
    ROUTE_ALWAYS_WORKER = 8,
    ROUTE_ADMIN = 16 /* needs an operator's key */
};
struct route {
    const char *path, *methods;
    unsigned flags;
    enum MHD_Result (*answer)(struct exchange *x); /* answers at once; or NULL, and */
    void (*work)(struct exchange *x);              /* reads the body: sets answer, rq or fault; any thread */
    enum endpoint endpoint;                        /* in whose form errors are */
};
/* routes.c: the route of a path, or NULL. */
const struct route *route_find(const char *path);

/* response.c: queue an answer on x's connection. The library's thread. queue_body: o is taken over; type
 * NULL: JSON. allow: of the Allow header, or NULL. queue_static: p lives as long as the program.
 * queue_events: the events of x->rq, as they come. */
enum MHD_Result queue_body(struct exchange *x, int status, struct json_out *o, const char *type,
                           const char *allow);
enum MHD_Result queue_static(struct exchange *x, const char *p, size_t n, const char *type);
enum MHD_Result queue_fault(struct exchange *x, const struct fault *f, const char *allow);
enum MHD_Result queue_events(struct exchange *x);

/* exchange.c: a new exchange; NULL: no memory. The library's thread, as for all of these. */
struct exchange *exchange_new(struct http_server *h, struct MHD_Connection *conn, struct connection *from);
/* Reads the headers, and decides whether the body is kept. version: of the first line. */
void exchange_begin(struct exchange *x, const char *url, const char *method, const char *version);
/* Before the body: is the head refused, or can a client that waits for leave to send the body (Expect:
 * 100-continue) be answered already? */
int exchange_needs_no_body(struct exchange *x);
/* n more bytes of the body. */
void exchange_take_body(struct exchange *x, const char *data, size_t n);
/* The body is complete: checks key, method and state, then answers or begins the route's work. */
enum MHD_Result exchange_answer(struct exchange *x);
/* The route's work is done, or the engine woke the connection: answers, or suspends it once more. */
enum MHD_Result exchange_continue(struct exchange *x);
/* The exchange has ended, well or not: cancels its request if that is not done; frees x. */
void exchange_free(struct exchange *x);
/* Gives a parsed request to the router; takes over its reference. 0, or -1 with *f (x->rq is NULL then). Any
 * thread. */
int submit_request(struct exchange *x, struct request *rq, struct fault *f);

/* access_log.c: writes the line about an exchange that has ended. */
void access_write(const struct exchange *x);

#endif
