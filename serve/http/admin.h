/* admin.h - what operators ask for: POST /admin/reload. */
#ifndef SHARDLINE_SERVE_HTTP_ADMIN_H
#define SHARDLINE_SERVE_HTTP_ADMIN_H

#include "serve/api/json_out.h"
#include "serve/replicas/router.h"

/* {"checkpoint": PATH or URL}: every replica loads it beside its weights; when all have, all take it between
 * two steps; when one refuses, all keep what they have. Waits for the end. 0 and an answer in o, or -1 with
 * *f. */
int admin_reload(struct router *rt, const char *body, size_t n, struct json_out *o, struct fault *f);

#endif
