/* messages.h - Anthropic's /v1/messages: requests become chats (messages.c), answers content blocks and named
 * events, errors of that API's form (messages_answer.c). */
#ifndef SHARDLINE_SERVE_DOORS_MESSAGES_H
#define SHARDLINE_SERVE_DOORS_MESSAGES_H

#include "serve/api/openai.h"

/* The body of a chat with the conversation, tools and choices of a messages' body, whose simple fields rq has
 * already. A new reference; NULL: *f says why. Any thread. */
json_t *messages_chat(struct request *rq, const json_t *body, struct fault *f);
/* Appends the answer to a request of /v1/messages/count_tokens, whose body has n bytes: how many tokens the
 * conversation has. 0, or -1 with *f. Any thread. */
int messages_count(const struct service *sv, const char *body, size_t n, struct json_out *o, struct fault *f);

/* As in front.h. */
void messages_answer(struct json_out *o, const struct request *rq);
void messages_event(struct json_out *o, struct choice *c, size_t text_end);
void messages_end(struct json_out *o, struct request *rq);
void messages_stream_error(struct json_out *o, struct request *rq, const struct fault *f);
void messages_error(struct json_out *o, const struct fault *f);

#endif
