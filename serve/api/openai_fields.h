/* openai_fields.h - private to serve/api: the fields of a completion request, one by one. */
#ifndef SHARDLINE_SERVE_API_OPENAI_FIELDS_H
#define SHARDLINE_SERVE_API_OPENAI_FIELDS_H

#include "serve/api/request.h"

/* Reads the field called name into rq. Fields that need others (prompt, messages) are left to openai.c. 0, or
 * -1 with *f: unknown, of a wrong kind, or out of range. */
int openai_read_field(struct request *rq, const char *name, const json_t *v, struct fault *f);
/* The same for a field of a chat, which a request of another form says in other words. */
int openai_read_chat_field(struct request *rq, const char *name, const json_t *v, struct fault *f);
/* Reads sampling_params, the object in which a request of /inference/v1/generate has its fields about
 * sampling; NULL or null: none. 0, or -1 with *f. */
int openai_read_sampling(struct request *rq, const json_t *params, struct fault *f);
/* A list of token ids: *ids gets *n of them, malloc'd, also after an error. what: the field's name in
 * messages, with an index. 0, or -1 with *f. */
int openai_read_ids(const struct service *sv, const json_t *v, const char *what, int32_t **ids, int64_t *n,
                    struct fault *f);

#endif
