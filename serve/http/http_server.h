/* http_server.h - the server's sockets: libmicrohttpd in a thread of its own. It reads bodies, asks routes.c
 * what they mean, hands requests to the router, and sleeps (suspended connections) until the engine wakes
 * them. */
#ifndef SHARDLINE_SERVE_HTTP_HTTP_SERVER_H
#define SHARDLINE_SERVE_HTTP_HTTP_SERVER_H

#include "base/err.h"
#include "serve/http/admin.h"
#include "serve/replicas/router.h"
#include "serve/http/keys.h"
#include "serve/service.h"

struct http_options {
    const char *host;
    int port;                       /* 0: a free one */
    struct keys *keys;              /* NULL: everybody may ask */
    struct keys *admin_keys;        /* NULL: nobody may ask for what operators ask for */
    const char *tls_cert, *tls_key; /* PEM files; both NULL: plain HTTP */
    /* origins that browsers may ask from: "*", or some with commas between; NULL: none */
    const char *cors_origin;
    const char *access_log;     /* file, "-": stderr, NULL: none */
    double receive_timeout_s;   /* for a request to arrive; 0: no limit */
    int64_t max_requests;       /* in work and waiting; 0: no limit */
    int64_t max_waiting_tokens; /* of their prompts; 0: no limit */
    int64_t max_per_key;        /* requests of one key at a time; 0: no limit */
};
struct http_server;
/* Listens at once: until the state is ready nearly everything answers 503. */
int http_server_open(struct http_server **out, struct service *sv, struct router *router,
                     const struct http_options *o, struct err *e);
int http_server_port(const struct http_server *h);
/* Gives answers in flight up to `grace_s` to leave, then closes all connections. The engine must have ended.
 * NULL is fine. */
void http_server_close(struct http_server *h, double grace_s);

#endif
