/* embeddings.h - OpenAI's /v1/embeddings: a vector a text. Its requests are completions of no token whose
 * last or all hidden states are pooled (engine/pooling.h). */
#ifndef SHARDLINE_SERVE_DOORS_EMBEDDINGS_H
#define SHARDLINE_SERVE_DOORS_EMBEDDINGS_H

#include "serve/api/openai.h"

/* The fields pooling and encoding_format. 0, or -1 with *f. */
int embeddings_read_pooling(struct request *rq, const json_t *v, struct fault *f);
int embeddings_read_encoding(struct request *rq, const json_t *v, struct fault *f);

/* As in front.h; there are no streams. */
void embeddings_answer(struct json_out *o, const struct request *rq);

#endif
