/* responses.h - OpenAI's /v1/responses: requests become chats (responses.c), answers items and numbered
 * events (responses_answer.c). Conversations may be sent whole, or go on behind a response that is kept
 * (response_store.h). */
#ifndef SHARDLINE_SERVE_DOORS_RESPONSES_H
#define SHARDLINE_SERVE_DOORS_RESPONSES_H

#include "serve/api/openai.h"

/* The body of a chat with the conversation, tools and choices of a responses' body, whose simple fields rq
 * has already. Sets rq->about and rq->history. A new reference; NULL: *f says why. Any thread. */
json_t *responses_chat(struct request *rq, const json_t *body, struct fault *f);

/* As in front.h. */
void responses_answer(struct json_out *o, const struct request *rq);
void responses_event(struct json_out *o, struct choice *c, size_t text_end);
void responses_end(struct json_out *o, struct request *rq);
void responses_stream_error(struct json_out *o, struct request *rq, const struct fault *f);

/* A kept response, as it was answered, or an answer that it is kept no more. 0, or -1 with *f: there is none
 * for this key. */
int responses_read(const struct service *sv, int key, const char *id, struct json_out *o, struct fault *f);
int responses_delete(const struct service *sv, int key, const char *id, struct json_out *o, struct fault *f);

#endif
