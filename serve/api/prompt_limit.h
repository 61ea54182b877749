/* prompt_limit.h - a text far too long for the context is refused by its beginning, before 60 MB have become
 * tokens. */
#ifndef SHARDLINE_SERVE_API_PROMPT_LIMIT_H
#define SHARDLINE_SERVE_API_PROMPT_LIMIT_H

#include <stddef.h>
#include "serve/service.h"

/* 0: text, n bytes, may fit, so encode it; -1: *f says that it does not. param: the field; what: the text's
 * name in the message. Any thread. */
int prompt_limit_check(const struct service *sv, const char *text, size_t n, const char *param,
                       const char *what, struct fault *f);

#endif
