/* front.h - the form of answers, by the endpoint where a request came in: OpenAI's completions, chats and
 * responses, vLLM's tokens, Anthropic's messages. A row of the table in front.c an endpoint. */
#ifndef SHARDLINE_SERVE_API_FRONT_H
#define SHARDLINE_SERVE_API_FRONT_H

#include "serve/api/openai.h"

/* Append to o. A request's choices belong to the engine's thread until it is done. front_answer: the whole
 * answer. front_event: events of a stream about what is new in a choice; text_end: bytes of its text that may
 * be sent. front_end: the last events of a stream. front_stream_error: the last ones of a stream that failed.
 * front_error: the body of an answer with an error. */
void front_answer(struct json_out *o, const struct request *rq);
void front_event(struct json_out *o, struct choice *c, size_t text_end);
void front_end(struct json_out *o, struct request *rq);
void front_stream_error(struct json_out *o, struct request *rq, const struct fault *f);
void front_error(struct json_out *o, enum endpoint endpoint, const struct fault *f);

/* Keeps the answer of a request that is done, where it is to be kept: rq->answer has it then. The process
 * that speaks HTTP; once or more. */
void front_keep(struct request *rq);

#endif
