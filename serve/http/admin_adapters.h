/* admin_adapters.h - POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with vLLM's bodies and
 * answers. */
#ifndef SHARDLINE_SERVE_HTTP_ADMIN_ADAPTERS_H
#define SHARDLINE_SERVE_HTTP_ADMIN_ADAPTERS_H

#include "serve/api/json_out.h"
#include "serve/replicas/router.h"

/* body, n bytes: {"lora_name": NAME, "lora_path": folder or URL, "load_inplace": false}. Blocks until all
 * ranks have read it: call it in a worker's thread. 0 and a line in o, or -1 with *f: nothing has changed. */
int admin_load_adapter(struct service *sv, struct router *rt, const char *body, size_t n, struct json_out *o,
                       struct fault *f);
/* body: {"lora_name": NAME}. Requests that use the adapter go on to their end; then it is freed. */
int admin_unload_adapter(struct service *sv, const char *body, size_t n, struct json_out *o, struct fault *f);

#endif
