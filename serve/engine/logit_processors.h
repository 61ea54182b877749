/* logit_processors.h - what a request changes in the logits before a token is drawn: allowed_token_ids,
 * bad_words, logit_bias, end tokens before min_tokens, penalties; in this order, as vLLM; then the grammar
 * of a constrained answer. Pure functions, any thread. */
#ifndef SHARDLINE_SERVE_ENGINE_LOGIT_PROCESSORS_H
#define SHARDLINE_SERVE_ENGINE_LOGIT_PROCESSORS_H

#include "serve/engine/sampler.h"

/* The tokens of a choice so far: the prompt counts for the repetition penalty only. */
struct token_history {
    const int32_t *ids; /* [n] */
    int64_t n_prompt, n;
    const uint32_t *mask; /* a bit an id: those that a grammar allows; NULL: all */
};
/* Ids that would end the answer, in two lists: the model's and the request's. */
struct end_ids {
    const int32_t *a, *b;
    int n_a, n_b;
};

/* 1: some processor changes the logits, so that logit_processors_sample() and sample_token() can differ. */
int logit_processors_active(const struct sampling *s, const struct token_history *h);
/* sample_token() on a copy of the logits that the processors have changed; the position is h->n. -3: the
 * processors leave no token. */
int32_t logit_processors_sample(const struct sampling *s, int choice, const struct token_history *h,
                                const struct end_ids *ends, const float *logits, int64_t vocab);

#endif
