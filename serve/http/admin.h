/* admin.h - what operators and trainers may do about the weights: POST /admin/reload, and the routes of vLLM
 * and SGLang whose meaning is the same. Every function works on the body of n bytes and blocks until its work
 * is done: call it in a worker's thread. 0 and an answer in o, or -1 with *f. */
#ifndef SHARDLINE_SERVE_HTTP_ADMIN_H
#define SHARDLINE_SERVE_HTTP_ADMIN_H

#include "serve/api/json_out.h"
#include "serve/replicas/router.h"

/* Replaces the weights on all replicas (reload_all.h). body: {"checkpoint" or "path": PATH or URL,
 * "expect_digest", "version", "mode"}. 409: another reload is running. */
int admin_reload(struct service *sv, struct router *rt, const char *body, size_t n, struct json_out *o,
                 struct fault *f);
/* SGLang's /update_weights_from_disk: the same with its members and its answer. */
int admin_update_from_disk(struct service *sv, struct router *rt, const char *body, size_t n,
                           struct json_out *o, struct fault *f);
/* vLLM's /pause and /resume; mode: of the query, "" for its default, abort. */
int admin_pause(struct router *rt, const char *mode, struct json_out *o, struct fault *f);
int admin_resume(struct router *rt, struct json_out *o, struct fault *f);
/* SGLang's /pause_generation and /continue_generation. */
int admin_pause_generation(struct router *rt, const char *body, size_t n, struct json_out *o,
                           struct fault *f);
int admin_continue_generation(struct router *rt, struct json_out *o, struct fault *f);
/* Why a route of theirs is not here, for the path of one; NULL: it is not in the list. */
const char *admin_refusal(const char *path);

#endif
