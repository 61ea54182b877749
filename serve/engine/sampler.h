/* sampler.h - the next token from a row of logits: the most likely one, or one drawn with randomness that is
 * a pure function of the request's seed, the choice and the position. Nothing else enters: not the batch, not
 * the layout, not the time. Pure functions, any thread. */
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
    double presence, frequency, repetition; /* penalties; 0, 0, 1: off */
    int64_t min_tokens;                     /* generated before a token may end the answer */
    int n_bias;
    struct logit_bias *bias; /* [n_bias], owned; added to logits, an id at most once */
    int n_allowed, n_bad;
    int32_t *allowed; /* [n_allowed], owned; no other ids may be generated; none: all may */
    int32_t *bad;     /* [n_bad], owned; sequences that may not be generated, a -1 behind each */
};

/* The n most likely ids to ids[n], most likely first, the lower id first among equals. n <= vocab. */
void top_tokens(const float *logits, int64_t vocab, int n, int32_t *ids);
/* Rank of an id: 1 for the most likely one, the lower id first among equals. */
int64_t token_rank(const float *logits, int64_t vocab, int32_t id);
/* The next token, at `position` of choice number `choice`. max: the largest of the logits. -1: a logit is
 * NaN, or all are -inf; -2: no memory. */
int32_t sample_token(const struct sampling *s, int choice, int64_t position, const float *logits,
                     int64_t vocab, float max);

#endif
