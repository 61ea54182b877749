/* ngram.c - the end of a sequence has often stood in it before: what followed there is the guess (prompt
 * lookup decoding, Saxena 2023). For edits, retrieval, code and JSON. Keeps nothing: a search goes through
 * the sequence once. */
#include "serve/draft/drafters.h"

int draft_match_own(const int32_t *ids, int64_t n_ids, int64_t *at)
{
    const int64_t last = n_ids - 1;
    int best = MATCH_LEAST - 1;

    for (int64_t i = last - 1; i > 0 && best < MATCH_MOST; i--) {
        if (ids[i] != ids[last] || ids[i - 1] != ids[last - 1])
            continue;
        int n = draft_match(ids, i, ids, last);
        if (n > best) {
            best = n;
            *at = i;
        }
    }
    return best < MATCH_LEAST ? 0 : best;
}

static int propose(void *state, struct draft_ask *ask, int n, struct err *e)
{
    (void)state;
    (void)e;
    for (int i = 0; i < n; i++) {
        struct draft_ask *a = &ask[i];
        int64_t at;
        int match = draft_match_own(a->ids, a->n_ids, &at);
        a->n = match ? a->most : 0;
        a->class = draft_match_class(match);
        /* where what followed is shorter, it is repeated: guesses follow the tokens in memory */
        for (int k = 0; k < a->n; k++)
            a->guess[k] = a->ids[at + 1 + k];
    }
    return 0;
}

const struct drafter drafter_ngram = { .name = "ngram", .most = 6, .propose = propose };
