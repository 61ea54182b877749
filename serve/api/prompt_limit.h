/* prompt_limit.h - a text far too long for the context is refused by its beginning: nobody waits until 60 MB
 * have become tokens. */
#ifndef SHARDLINE_SERVE_API_PROMPT_LIMIT_H
#define SHARDLINE_SERVE_API_PROMPT_LIMIT_H

#include <stddef.h>
#include "serve/service.h"

/* 0: it may fit, encode it; -1: *f says by how much it does not. what: how the message names the text. */
int prompt_limit_check(const struct service *sv, const char *text, size_t n, const char *param,
                       const char *what, struct fault *f);

#endif
