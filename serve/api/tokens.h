/* tokens.h - the tokenizer over HTTP: /tokenize, /detokenize, /tokenizer_info. */
#ifndef SHARDLINE_SERVE_API_TOKENS_H
#define SHARDLINE_SERVE_API_TOKENS_H

#include "serve/api/json_out.h"
#include "serve/service.h"

/* body: the request's JSON, n bytes; the answer's JSON is appended to o. 0, or -1 with *f. Any thread. */
int tokens_encode(const struct service *sv, const char *body, size_t n, struct json_out *o, struct fault *f);
int tokens_decode(const struct service *sv, const char *body, size_t n, struct json_out *o, struct fault *f);
int tokens_info(const struct service *sv, struct json_out *o, struct fault *f);

#endif
