/* drafters.h - what guesses the next tokens of a sequence: one row a kind. A drafter may be wrong at no cost
 * but time; it never changes an answer. Rank 0, the engine's thread; the other ranks of a model that guesses
 * open it, follow, and close it. */
#ifndef SHARDLINE_SERVE_DRAFT_DRAFTERS_H
#define SHARDLINE_SERVE_DRAFT_DRAFTERS_H

#include "serve/engine/draft.h"

struct step_message;

/* A sequence that guesses are asked for. */
struct draft_ask {
    struct choice *c;
    const int32_t *ids; /* [n_ids] its tokens; guesses follow them in memory, for at least `most` */
    int64_t n_ids;
    int most;  /* guesses wanted */
    int n;     /* out: how many there are */
    int class; /* out: how sure they are, 0 to DRAFT_CLASSES - 1, or DRAFT_FORCED */
    int32_t *guess;
};
struct drafter {
    const char *name;
    int most;        /* guesses where K is not given */
    int costly;      /* guessing takes time: lengths are chosen before */
    int needs_ranks; /* struct draft_open's ranks: one, or as --speculate-tp says where there is `follow` */
    /* Bytes of a page of keys and values that it will have for each page of group 0; NULL: 0. Of `how`
     * served, dt, kv, tp and path are set. */
    int64_t (*page_bytes)(const struct draft_open *how, struct err *e);
    /* NULL: there is nothing to open, close, or note. */
    int (*open)(void **state, const struct draft_open *how, struct err *e);
    void (*close)(void *state);
    /* Sets n, class and guess of every ask. */
    int (*propose)(void *state, struct draft_ask *ask, int n, struct err *e);
    /* The other ranks of struct draft_open's ranks: a step that propose() runs on all of them. */
    int (*follow)(void *state, struct step_message *p, struct err *e);
    /* The final hidden state of a row: of the token at position pos of c, behind which there is another one.
     * row: dt [hidden] of the device. */
    void (*took)(void *state, struct choice *c, int64_t pos, const void *row);
    /* The choice gets no more tokens. */
    void (*end)(void *state, struct choice *c);
};
/* drafter_model is for any other name: a checkpoint. */
extern const struct drafter drafter_ngram, drafter_suffix, drafter_model, drafter_mtp, drafter_forced,
    drafter_random, drafter_replay;

/* The end of a sequence that is looked for among earlier tokens, at most and at least. */
enum { MATCH_MOST = 16, MATCH_LEAST = 2 };
/* How many of the tokens up to a[i] and b[j] are equal, at most MATCH_MOST. */
static inline int draft_match(const int32_t *a, int64_t i, const int32_t *b, int64_t j)
{
    int n = 0;
    while (n < MATCH_MOST && i >= n && j >= n && a[i - n] == b[j - n])
        n++;
    return n;
}
/* The class of guesses behind so many equal tokens. */
static inline int draft_match_class(int n) { return n >= 16 ? 3 : n >= 8 ? 2 : n >= 4; }
/* Where the longest match of a sequence's end lies in the sequence itself: its last token, the latest of
 * equals. Returns its length, 0: none of MATCH_LEAST. */
int draft_match_own(const int32_t *ids, int64_t n_ids, int64_t *at);

#endif
