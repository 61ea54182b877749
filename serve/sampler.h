/* sampler.h - the next token from a row of logits: argmax, or drawn with randomness that is a pure function of the request's
 * seed, the choice and the position. Nothing else enters: not the batch, not the layout, not the time. */
#ifndef SHARDLINE_SERVE_SAMPLER_H
#define SHARDLINE_SERVE_SAMPLER_H

#include <stdint.h>

struct sampling {
    double temperature;              /* 0: the most likely token, the lowest id of equals */
    double top_p, min_p;             /* 1 and 0: off */
    int64_t top_k;                   /* 0: off */
    uint64_t seed;
};

/* The n most likely ids, most likely first, the lower id first among equals. n <= vocab. */
void top_tokens(const float *logits, int64_t vocab, int n, int32_t *ids);
/* max: of the logits. -1: a logit is NaN, or all are -inf; -2: no memory. */
int32_t sample_token(const struct sampling *s, int choice, int64_t position, const float *logits, int64_t vocab, float max);

#endif
