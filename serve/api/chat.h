/* chat.h - a conversation becomes a prompt: messages through the model's template, special tokens only where
 * the template wrote them. */
#ifndef SHARDLINE_SERVE_API_CHAT_H
#define SHARDLINE_SERVE_API_CHAT_H

#include <jansson.h>
#include "serve/service.h"

struct chat_options {
    int add_generation, continue_final, add_special;
    int within_context;  /* see prompt_text.h */
    const json_t *tools; /* NULL: none */
    int *in_reasoning;   /* set: the prompt opened the model's reasoning; may be NULL */
    double begin_s;      /* clock_s() when the request came */
};
/* Encodes messages, tools and chat_template_kwargs of a request's body. *ids: *n tokens, malloc'd. 0, or -1
 * with *f: there is no template, a message is malformed, or the template refuses it. Any thread. */
int chat_encode(const struct service *sv, const json_t *body, const struct chat_options *o, int32_t **ids,
                int64_t *n, struct fault *f);
/* The text of the last message of a body that chat_encode() has taken, where it is an assistant's: *text,
 * malloc'd, *n bytes and a NUL; else an empty one. 0, or -1 with *f: no memory. */
int chat_last_text(const json_t *body, char **text, size_t *n, struct fault *f);

#endif
