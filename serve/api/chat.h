/* chat.h - a conversation becomes a prompt: messages through the model's template, special tokens only where
 * the template wrote them. */
#ifndef SHARDLINE_SERVE_API_CHAT_H
#define SHARDLINE_SERVE_API_CHAT_H

#include <jansson.h>
#include "serve/service.h"

struct chat_options {
    int add_generation, continue_final, add_special,
        within_context; /* refuse what prompt_limit_check refuses */
};
/* body: of the request, of which messages and chat_template_kwargs are read. *ids: malloc'd. 0, or -1 with
 * *f: no template, a message that is none, a template that refuses. */
int chat_encode(const struct service *sv, const json_t *body, const struct chat_options *o, int32_t **ids,
                int64_t *n, struct fault *f);

#endif
