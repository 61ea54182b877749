/* answer.h - inside of the answers: what completions (answer.c) and chats (answer_chat.c) write alike. */
#ifndef SHARDLINE_SERVE_API_ANSWER_H
#define SHARDLINE_SERVE_API_ANSWER_H

#include "serve/api/openai.h"

/* its bytes, or NULL */
const char *answer_token(const struct request *rq, int32_t id, size_t *n);
void answer_write_token(struct json_out *o, const struct request *rq, int32_t id);
void answer_write_ids(struct json_out *o, const int32_t *ids, int64_t n);
/* ,"finish_reason":…,"stop_reason":… */
void answer_write_finish(struct json_out *o, const struct choice *c);

void chat_write_choice(struct json_out *o, const struct choice *c); /* a whole choice */
/* a stream's first event of a choice */
void chat_write_role(struct json_out *o, const struct choice *c);
/* what is new: text, tokens from c->sent_ids on */
void chat_write_delta(struct json_out *o, const struct choice *c, const struct json_out *text);

#endif
