/* answer.h - private to serve/api: what the answers of completions (answer.c) and chats (answer_chat.c)
 * share. */
#ifndef SHARDLINE_SERVE_API_ANSWER_H
#define SHARDLINE_SERVE_API_ANSWER_H

#include "serve/api/openai.h"

/* The *n bytes of a token, borrowed from the tokenizer; NULL: it has none. */
const char *answer_token(const struct request *rq, int32_t id, size_t *n);
/* Appends a token as JSON: its text, or token_id:N where that was asked for or there is no text. */
void answer_write_token(struct json_out *o, const struct request *rq, int32_t id);
/* Appends a list of n ids. */
void answer_write_ids(struct json_out *o, const int32_t *ids, int64_t n);
/* Appends ,"finish_reason":…,"stop_reason":… */
void answer_write_finish(struct json_out *o, const struct choice *c);

/* Chats: append a whole choice; the first event of a choice in a stream; what is new in a stream, that is
 * text and the tokens from c->sent_ids on. */
void chat_write_choice(struct json_out *o, const struct choice *c);
void chat_write_role(struct json_out *o, const struct choice *c);
void chat_write_delta(struct json_out *o, const struct choice *c, const struct json_out *text);

#endif
