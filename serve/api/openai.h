/* openai.h - the OpenAI API, and vLLM's /inference/v1/generate, which takes and gives token ids: a request
 * from JSON, answers and events to JSON. No HTTP and no model here.
 *
 * Strict: an unknown field is a 400 that names it, so that no client believes in an option that does nothing
 * (null and neutral values pass; with --lenient all of them are ignored). */
#ifndef SHARDLINE_SERVE_API_OPENAI_H
#define SHARDLINE_SERVE_API_OPENAI_H

#include "serve/api/json_out.h"
#include "serve/api/request.h"
#include "serve/service.h"

#define CHOICES_MAX 4096 /* prompts times n of one request */
/* In one body: a list or an object takes up to 250 bytes of memory, another value 40, so 3 MB of "{},"
 * would take 250 MB. */
#define BODY_LISTS_MAX 400000
#define BODY_VALUES_MAX 6000000

/* Parses the JSON of a request's body, n bytes. A new reference; NULL: *f says why. Any thread. */
json_t *openai_body(const char *body, size_t n, struct fault *f);

/* Parses and checks the body, n bytes, of a POST to the endpoint. *out: ready for the engine, one reference,
 * the caller's. 0, or -1 with *f and *out NULL. Any thread. key: of the client, as in struct request; without
 * it -1. */
int openai_parse(const struct service *sv, enum endpoint endpoint, const char *body, size_t n,
                 struct request **out, struct fault *f);
int openai_parse_of(const struct service *sv, enum endpoint endpoint, int key, const char *body, size_t n,
                    struct request **out, struct fault *f);

/* Append to o. A request's choices belong to the engine's thread until it is done. openai_answer: the whole
 * answer. openai_event: an event of a stream with what is new in a choice; text_end: bytes of its text that
 * may be sent. openai_end: the last events of a stream. openai_stream_error: the last one of a stream that
 * failed. openai_error: an error object. openai_model: the model or adapter of that name; 0, or -1: there is
 * none. openai_models: the list of all. */
void openai_answer(struct json_out *o, const struct request *rq);
void openai_event(struct json_out *o, struct choice *c, size_t text_end);
void openai_end(struct json_out *o, struct request *rq);
void openai_stream_error(struct json_out *o, const struct request *rq, const struct fault *f);
void openai_error(struct json_out *o, const struct fault *f);
int openai_model(struct json_out *o, const struct service *sv, const char *name);
void openai_models(struct json_out *o, const struct service *sv);

#endif
