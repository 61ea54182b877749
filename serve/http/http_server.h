/* http_server.h - the HTTP server: libmicrohttpd in a thread of its own. It reads bodies, gives them to their
 * route (routes.c), hands requests to the router, and suspends their connections until the engine wakes
 * them. */
#ifndef SHARDLINE_SERVE_HTTP_HTTP_SERVER_H
#define SHARDLINE_SERVE_HTTP_HTTP_SERVER_H

#include "base/err.h"
#include "serve/http/admin.h"
#include "serve/replicas/router.h"
#include "serve/http/keys.h"
#include "serve/service.h"

#define HTTP_CONNECTIONS_MAX 4096

struct http_options {
    const char *host;
    int port;                       /* 0: a free one */
    struct keys *keys;              /* NULL: no key is needed */
    struct keys *admin_keys;        /* NULL: no client may use the operators' routes */
    const char *tls_cert, *tls_key; /* PEM files; both NULL: plain HTTP */
    const char *cors_origin;  /* origins that browsers may send requests from: "*", or some, separated by
                                     * commas; NULL: none */
    const char *allow_host;   /* names, separated by commas, besides loopback's that a Host header may give;
                                     * NULL: any, but on loopback without keys none */
    const char *access_log;   /* file; "-": stderr; NULL: none */
    double receive_timeout_s; /* for a request to arrive; 0: no limit */
    int max_connections;      /* 0: HTTP_CONNECTIONS_MAX */
    int max_connections_per_address; /* 0: no limit of its own */
    int64_t max_body_memory;         /* bytes of bodies that are arriving; 0: no limit */
    int64_t max_requests;            /* running and waiting; 0: no limit */
    int64_t max_waiting_tokens;      /* of their prompts; 0: no limit */
    int64_t max_per_key;             /* requests of one key at a time, arriving or in work; 0: no limit */
};
struct http_server;

/* Listens from now on: until sv->state is SERVICE_READY nearly everything is answered with 503. sv, router
 * and what o points to are borrowed until http_server_close(). ERR_USAGE, ERR_CONFIG, ERR_MEMORY or of the
 * system (the port is taken). Main thread. */
int http_server_open(struct http_server **out, struct service *sv, struct router *router,
                     const struct http_options *o, struct err *e);
/* The port that it listens on. */
int http_server_port(const struct http_server *h);
/* Files that max_connections need open. */
int http_server_files(int64_t max_connections);
/* Waits up to grace_s seconds for answers that are being sent, then closes all connections and frees h. The
 * engine must have ended. NULL is fine. Main thread. */
void http_server_close(struct http_server *h, double grace_s);

#endif
