/* logit_processors.c - see logit_processors.h. */
#include "serve/engine/logit_processors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int logit_processors_active(const struct sampling *s, const struct token_history *h)
{
    return s->n_bias || s->n_allowed || s->n_bad || s->presence != 0 || s->frequency != 0 ||
           s->repetition != 1 || h->mask || h->n - h->n_prompt < s->min_tokens;
}

/* Makes ids impossible. */
static void exclude(float *l, int64_t vocab, const int32_t *ids, int n)
{
    for (int i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < vocab)
            l[ids[i]] = -INFINITY;
}

/* Makes all other ids impossible. */
static void restrict_to(float *l, const float *logits, int64_t vocab, const int32_t *ids, int n)
{
    for (int64_t v = 0; v < vocab; v++)
        l[v] = -INFINITY;
    for (int i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < vocab)
            l[ids[i]] = logits[ids[i]];
}

/* Makes impossible the last id of every sequence whose other ids have just been generated. */
static void exclude_bad(const struct sampling *s, const struct token_history *h, float *l, int64_t vocab)
{
    for (int i = 0, end; i < s->n_bad; i = end + 1) {
        for (end = i; s->bad[end] >= 0;)
            end++;
        int64_t before = end - i - 1;
        if (before >= 0 && before <= h->n - h->n_prompt &&
            !memcmp(h->ids + h->n - before, s->bad + i, sizeof *s->bad * (size_t)before))
            exclude(l, vocab, s->bad + end - 1, 1);
    }
}

/* Of an id: how often it was generated, and whether it stands in prompt or answer. */
struct seen {
    int32_t generated, in_text;
};

/* Repetition penalty for ids of prompt and answer, presence and frequency penalties for ids of the answer.
 * seen: [vocab] zeroes. */
static void penalise(const struct sampling *s, const struct token_history *h, struct seen *seen, float *l)
{
    for (int64_t i = 0; i < h->n; i++) {
        seen[h->ids[i]].in_text = 1;
        seen[h->ids[i]].generated += i >= h->n_prompt;
    }
    for (int64_t i = 0; i < h->n; i++) {
        int32_t id = h->ids[i];
        struct seen *x = &seen[id];
        if (!x->in_text) /* it had its penalty already */
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
    if (s->n_allowed)
        restrict_to(l, logits, vocab, s->allowed, s->n_allowed);
    exclude_bad(s, h, l, vocab);
    for (int i = 0; i < s->n_bias; i++)
        l[s->bias[i].id] += s->bias[i].add;
    if (h->n - h->n_prompt < s->min_tokens) {
        exclude(l, vocab, ends->a, ends->n_a);
        exclude(l, vocab, ends->b, ends->n_b);
    }

    if (s->presence != 0 || s->frequency != 0 || s->repetition != 1)
        penalise(s, h, seen, l);
    for (int64_t v = 0; h->mask && v < vocab; v++)
        if (!(h->mask[v / 32] >> (v % 32) & 1))
            l[v] = -INFINITY;

    for (int64_t v = 0; v < vocab; v++) {
        if (l[v] != l[v]) { /* no comparison finds a NaN: sample_token must see it */
            max = l[v];
            break;
        }
        max = l[v] > max ? l[v] : max;
    }

    id = max == -INFINITY ? -3 : sample_token(s, choice, h->n, l, vocab, max);
out:
    free(l);
    free(seen);
    return id;
}
