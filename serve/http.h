/* http.h - the server's sockets: libmicrohttpd in a thread of its own. It reads bodies, asks openai.c what they mean, hands requests
 * to the engine's inbox, and sleeps (suspended connections) until the engine wakes them. */
#ifndef SHARDLINE_SERVE_HTTP_H
#define SHARDLINE_SERVE_HTTP_H

#include "base/err.h"
#include "serve/engine.h"
#include "serve/service.h"

struct http;
/* Listens at once: until the state is ready everything but /version answers 503. port 0: a free one. */
int http_open(struct http **out, struct service *sv, struct inbox *inbox, const char *host, int port, struct err *e);
int http_port(const struct http *h);
/* Gives answers in flight up to `grace_s` to leave, then closes all connections. The engine must have ended. NULL is fine. */
void http_close(struct http *h, double grace_s);

#endif
