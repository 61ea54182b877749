/* admin.h - what operators may do: POST /admin/reload. */
#ifndef SHARDLINE_SERVE_HTTP_ADMIN_H
#define SHARDLINE_SERVE_HTTP_ADMIN_H

#include "serve/api/json_out.h"
#include "serve/replicas/router.h"

/* Replaces the weights. body: {"checkpoint": PATH or URL}, n bytes. Every replica loads it beside its present
 * weights; when all have, each swaps it in between two steps; when one refuses, all keep what they have.
 * Blocks until that is done: call it in a worker's thread. 0 and an answer in o, or -1 with *f (409: another
 * reload is running). */
int admin_reload(struct router *rt, const char *body, size_t n, struct json_out *o, struct fault *f);

#endif
