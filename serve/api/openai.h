/* openai.h - the wire: a completion request out of JSON, answers and events into JSON. No HTTP and no model
 * here.
 *
 * Strict: a field that is not known is a 400 that names it, so that nobody believes in an option that does
 * nothing (null and neutral values pass; with --lenient all of them are ignored). */
#ifndef SHARDLINE_SERVE_API_OPENAI_H
#define SHARDLINE_SERVE_API_OPENAI_H

#include "serve/api/json_out.h"
#include "serve/api/request.h"
#include "serve/service.h"

#define CHOICES_MAX 4096 /* prompts times n of one request */

/* Parses and checks the body of POST /v1/completions or, chat, of POST /v1/chat/completions; *out is ready
 * for the engine (one reference). 0, or -1 with *f. */
int openai_parse(const struct service *sv, int chat, const char *body, size_t n, struct request **out,
                 struct fault *f);

/* The whole answer; of a stream: an event that carries what is new in a choice (text_end: bytes of its text
 * that may be sent), the last event with the usage, an error event. */
void openai_answer(struct json_out *o, const struct request *rq);
void openai_event(struct json_out *o, struct choice *c, size_t text_end);
void openai_usage_event(struct json_out *o, const struct request *rq);
void openai_error(struct json_out *o, const struct fault *f);
void openai_model(struct json_out *o, const struct service *sv); /* the model object */
void openai_models(struct json_out *o, const struct service *sv);

#endif
