/* logit_processors.c - logits that a request changes before a token is drawn: bias, ends that may not come
 * yet, penalties. See sampler.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "serve/engine/sampler.h"

int logit_processors_active(const struct sampling *s, const struct token_history *h)
{
    return s->n_bias || s->presence != 0 || s->frequency != 0 || s->repetition != 1 ||
           h->n - h->n_prompt < s->min_tokens;
}

static void leave_out(float *l, int64_t vocab, const int32_t *ids, int n)
{
    for (int i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < vocab)
            l[ids[i]] = -INFINITY;
}

/* seen: times an id was generated; an id of the prompt alone counts as seen 0 times, but is in the text. */
struct seen {
    int32_t generated, in_text;
};

static void penalise(const struct sampling *s, const struct token_history *h, struct seen *seen, float *l)
{
    for (int64_t i = 0; i < h->n; i++) {
        seen[h->ids[i]].in_text = 1;
        seen[h->ids[i]].generated += i >= h->n_prompt;
    }
    for (int64_t i = 0; i < h->n; i++) {
        int32_t id = h->ids[i];
        struct seen *x = &seen[id];
        if (!x->in_text) /* every id once */
            continue;
        float repetition = (float)s->repetition;
        l[id] = l[id] > 0 ? l[id] / repetition : l[id] * repetition;
        if (x->generated)
            l[id] -= (float)s->frequency * (float)x->generated + (float)s->presence;
        x->in_text = 0;
    }
}

int32_t logit_processors_sample(const struct sampling *s, int choice, const struct token_history *h,
                                const struct end_ids *ends, const float *logits, int64_t vocab)
{
    float *l = malloc(sizeof *l * (size_t)vocab), max = -INFINITY;
    struct seen *seen = calloc((size_t)vocab, sizeof *seen);
    int32_t id = -2;
    if (!l || !seen)
        goto out;
    memcpy(l, logits, sizeof *l * (size_t)vocab);
    for (int i = 0; i < s->n_bias; i++)
        l[s->bias[i].id] += s->bias[i].add;
    if (h->n - h->n_prompt < s->min_tokens) {
        leave_out(l, vocab, ends->a, ends->n_a);
        leave_out(l, vocab, ends->b, ends->n_b);
    }
    if (s->presence != 0 || s->frequency != 0 || s->repetition != 1)
        penalise(s, h, seen, l);
    for (int64_t v = 0; v < vocab; v++) {
        if (l[v] != l[v]) { /* a NaN would hide behind the maximum */
            max = l[v];
            break;
        }
        max = l[v] > max ? l[v] : max;
    }
    id = sample_token(s, choice, h->n, l, vocab, max);
out:
    free(l);
    free(seen);
    return id;
}

int64_t token_rank(const float *logits, int64_t vocab, int32_t id)
{
    int64_t rank = 1;
    for (int32_t v = 0; v < vocab; v++)
        rank += logits[v] > logits[id] || (logits[v] == logits[id] && v < id);
    return rank;
}
