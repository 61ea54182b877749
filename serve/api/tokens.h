/* tokens.h - the tokenizer over HTTP: /tokenize, /detokenize, /tokenizer_info. JSON in, JSON out; 0, or -1
 * with *f. */
#ifndef SHARDLINE_SERVE_API_TOKENS_H
#define SHARDLINE_SERVE_API_TOKENS_H

#include "serve/api/json_out.h"
#include "serve/service.h"

int tokens_encode(const struct service *sv, const char *body, size_t n, struct json_out *o, struct fault *f);
int tokens_decode(const struct service *sv, const char *body, size_t n, struct json_out *o, struct fault *f);
int tokens_info(const struct service *sv, struct json_out *o, struct fault *f);

#endif
