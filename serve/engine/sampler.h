/* sampler.h - the next token from a row of logits: argmax, or drawn with randomness that is a pure function
 * of the request's seed, the choice and the position. Nothing else enters: not the batch, not the layout,
 * not the time. */
#ifndef SHARDLINE_SERVE_ENGINE_SAMPLER_H
#define SHARDLINE_SERVE_ENGINE_SAMPLER_H

#include <stdint.h>

struct logit_bias {
    int32_t id;
    float add;
};
struct sampling {
    double temperature;  /* 0: the most likely token, the lowest id of equals */
    double top_p, min_p; /* 1 and 0: off */
    int64_t top_k;       /* 0: off */
    uint64_t seed;
    double presence, frequency, repetition; /* 0, 0, 1: off */
    int64_t min_tokens;                     /* that many are generated before one may end the answer */
    int n_bias;
    struct logit_bias *bias; /* added to logits; an id at most once */
};

/* What a choice has already: the prompt counts for the repetition penalty only. */
struct token_history {
    const int32_t *ids;
    int64_t n_prompt, n;
};
/* Ids that would end the answer, in two lists. */
struct end_ids {
    const int32_t *a, *b;
    int n_a, n_b;
};

/* logit_processors_sample differs from sample_token */
int logit_processors_active(const struct sampling *s, const struct token_history *h);
/* sample_token behind bias, min_tokens (ends are left out) and penalties, in this order (as vLLM's). */
int32_t logit_processors_sample(const struct sampling *s, int choice, const struct token_history *h,
                                const struct end_ids *ends, const float *logits, int64_t vocab);
/* 1 for the most likely id, the lower id first among equals. */
int64_t token_rank(const float *logits, int64_t vocab, int32_t id);

/* The n most likely ids, most likely first, the lower id first among equals. n <= vocab. */
void top_tokens(const float *logits, int64_t vocab, int n, int32_t *ids);
/* max: of the logits. -1: a logit is NaN, or all are -inf; -2: no memory. */
int32_t sample_token(const struct sampling *s, int choice, int64_t position, const float *logits,
                     int64_t vocab, float max);

#endif
