/* suffix.c - the end of a sequence has often stood in it before, or in an answer that was given lately
 * (agents and samples of one prompt repeat each other): what followed the longest match is the guess (suffix
 * decoding, Oliaro et al. 2024; the search is that of a Lempel-Ziv encoder, by chains of places with equal
 * hashes).
 *
 *     ring    … answer -1 answer -1 answer      the oldest tokens are overwritten
 *     head    hash of three tokens -> the last place where they end; before: the place before that
 *
 * Answers under another cache_salt, or of another adapter, are not looked at: how fast an answer comes must
 * not tell what others asked. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "serve/api/request.h"
#include "serve/draft/drafters.h"

enum {
    RING = 1 << 19,  /* tokens */
    HEADS = 1 << 17, /* hashes */
    HASHED = 3,      /* tokens of a hash */
    CANDIDATES = 64  /* places that are compared, at most */
};
struct suffix {
    int64_t n; /* tokens that were ever put in; place p is at p % RING */
    int32_t id[RING];
    uint32_t salt[RING];
    int64_t before[RING]; /* the place before with the same hash, + 1; 0: none */
    int64_t head[HEADS];  /* as before */
};

static int open_suffix(void **state, const struct draft_open *how, struct err *e)
{
    (void)how;
    *state = calloc(1, sizeof(struct suffix));
    return *state ? 0 : err_set(e, ERR_MEMORY, "no memory for drafts (%zu bytes)", sizeof(struct suffix));
}

static void close_suffix(void *state) { free(state); }

static uint32_t salt_of(const struct choice *c)
{
    const char *salt = c->rq->cache_key;
    return salt ? (uint32_t)XXH3_64bits(salt, strlen(salt)) | 1 : 0;
}

/* The chain of the tokens that end at *last. */
static int64_t *chain_of(struct suffix *x, const int32_t *last, uint32_t salt)
{
    return &x->head[XXH3_64bits_withSeed(last - HASHED + 1, sizeof *last * HASHED, salt) % HEADS];
}

/* ---- answers that were given ---- */

static void put(struct suffix *x, int32_t id, uint32_t salt)
{
    x->id[x->n % RING] = id;
    x->salt[x->n % RING] = salt;
    x->before[x->n % RING] = 0;
    x->n++;
}

/* The answer, and the end of its prompt. */
static void end_suffix(void *state, struct choice *c)
{
    struct suffix *x = state;
    const uint32_t salt = salt_of(c);
    int64_t from = c->prompt->n > MATCH_MOST ? c->prompt->n - MATCH_MOST : 0;

    from = c->n_ids - from < RING / 2 ? from : c->n_ids - RING / 2;
    for (int64_t i = from; i < c->n_ids; i++) {
        put(x, c->ids[i], salt);
        if (i < from + HASHED - 1)
            continue;
        int64_t *head = chain_of(x, c->ids + i, salt);
        x->before[(x->n - 1) % RING] = *head;
        *head = x->n;
    }
    put(x, -1, salt);
}

/* ---- guesses ---- */

/* How many of the tokens up to place p are those up to *last, of n_ids. */
static int match_at(const struct suffix *x, int64_t p, const int32_t *last, int64_t n_ids)
{
    int n = 0;
    while (n < MATCH_MOST && n < n_ids && n <= p && p - n > x->n - RING && x->id[(p - n) % RING] == last[-n])
        n++;
    return n;
}

/* The place where the longest match ends, the latest of equals. Returns its length. */
static int match_answers(struct suffix *x, const struct draft_ask *a, int64_t *at)
{
    const int32_t *last = a->ids + a->n_ids - 1;
    const uint32_t salt = salt_of(a->c);
    int64_t p = a->n_ids < HASHED ? 0 : *chain_of(x, last, salt);
    int best = 0;

    /* places in a chain become older; one that was overwritten ends it */
    for (int k = 0; k < CANDIDATES && p-- > 0 && p > x->n - RING && best < MATCH_MOST; k++) {
        int n = x->salt[p % RING] == salt ? match_at(x, p, last, a->n_ids) : 0;
        if (n > best) {
            best = n;
            *at = p;
        }
        p = x->before[p % RING];
    }
    return best < MATCH_LEAST ? 0 : best;
}

static int propose(void *state, struct draft_ask *ask, int n, struct err *e)
{
    struct suffix *x = state;
    (void)e;
    for (int i = 0; i < n; i++) {
        struct draft_ask *a = &ask[i];
        int64_t own_at, at;
        int own = draft_match_own(a->ids, a->n_ids, &own_at), match = match_answers(x, a, &at);
        a->class = draft_match_class(own < match ? match : own);
        if (own && own >= match) {
            for (a->n = 0; a->n < a->most; a->n++)
                a->guess[a->n] = a->ids[own_at + 1 + a->n];
            continue;
        }
        for (a->n = 0; match && a->n < a->most && at + 1 + a->n < x->n; a->n++) {
            a->guess[a->n] = x->id[(at + 1 + a->n) % RING];
            if (a->guess[a->n] < 0) /* the answer ended */
                break;
        }
    }
    return 0;
}

const struct drafter drafter_suffix = { .name = "suffix",
                                        .most = 8,
                                        .open = open_suffix,
                                        .close = close_suffix,
                                        .propose = propose,
                                        .end = end_suffix };
