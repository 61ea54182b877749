/* prompt_text.h - the text of a request becomes tokens, within the context and the time that a request may
 * take. All texts of requests come through here: prompts, conversations, /tokenize. */
#ifndef SHARDLINE_SERVE_API_PROMPT_TEXT_H
#define SHARDLINE_SERVE_API_PROMPT_TEXT_H

#include <stddef.h>
#include "serve/service.h"

/* Ids of a text or list that is refused unread: so many for each token of the context. */
#define PROMPT_FAR_TOO_LONG 4

struct prompt_text {
    const char *text; /* [n] */
    size_t n;
    const struct text_span *user; /* [n_user] untrusted parts, see text.h */
    size_t n_user;
    const char *param, *what; /* the field, and the text's name in messages */
    int add_special;
    int within_context;             /* refuse a text far too long for the context by its beginning */
    const struct work_limit *limit; /* from prompt_work_limit() */
};

/* When work on a request that began at begin_s ends: at --request-timeout, after a minute, or when the server
 * is stopping. */
struct work_limit prompt_work_limit(const struct service *sv, double begin_s);
/* *ids: the *n tokens of a text, malloc'd. 0, or -1 with *f. Any thread. */
int prompt_encode(const struct service *sv, const struct prompt_text *p, int32_t **ids, int64_t *n,
                  struct fault *f);
/* Sets *f to an error of work on a text: a 503 where its limit ended it. rc: of the failed call.
 * Returns -1. */
int prompt_fault(const struct service *sv, int rc, const struct err *e, const char *param, struct fault *f);

#endif
