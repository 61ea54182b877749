/* made_up.c - drafters for tests (SHARDLINE_DRAFTER): ids by chance, and answers that were given before, with
 * a wrong id now and then. */
#include <stdlib.h>
#include <string.h>
#include "base/rnd.h"
#include "serve/api/request.h"
#include "serve/draft/drafters.h"

/* ---- by chance ---- */

struct by_chance {
    int64_t vocab;
    uint64_t at;
};

static int open_random(void **state, const struct draft_open *how, struct err *e)
{
    struct by_chance *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_MEMORY, "no memory for drafts");
    x->vocab = how->vocab;
    *state = x;
    return 0;
}

static uint64_t roll(struct by_chance *x, uint64_t n) { return rnd_u64(1, 2, x->at++) % n; }

static int propose_random(void *state, struct draft_ask *ask, int n, struct err *e)
{
    struct by_chance *x = state;
    (void)e;
    for (int i = 0; i < n; i++) {
        struct draft_ask *a = &ask[i];
        a->n = (int)roll(x, (uint64_t)a->most + 1);
        for (int k = 0; k < a->n; k++)
            a->guess[k] = (int32_t)roll(x, (uint64_t)x->vocab);
    }
    return 0;
}

static void close_random(void *state) { free(state); }

const struct drafter drafter_random = {
    .name = "random", .most = 3, .open = open_random, .close = close_random, .propose = propose_random
};

/* ---- answers that were given before ---- */

enum { REPLAY_ANSWERS = 512, REPLAY_WRONG = 8 /* one guess of so many */ };
struct replay {
    struct by_chance chance;
    struct {
        int32_t *ids;
        int64_t n;
    } answer[REPLAY_ANSWERS];
    int next;
};

static int open_replay(void **state, const struct draft_open *how, struct err *e)
{
    struct replay *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_MEMORY, "no memory for drafts");
    x->chance.vocab = how->vocab;
    *state = x;
    return 0;
}

static int propose_replay(void *state, struct draft_ask *ask, int n, struct err *e)
{
    struct replay *x = state;
    (void)e;
    for (int i = 0; i < n; i++) {
        struct draft_ask *a = &ask[i];
        for (int k = 0; k < REPLAY_ANSWERS && !a->n; k++) {
            int64_t more = x->answer[k].n - a->n_ids;
            if (more <= 0 || memcmp(x->answer[k].ids, a->ids, sizeof *a->ids * (size_t)a->n_ids) != 0)
                continue;
            a->n = more < a->most ? (int)more : a->most;
            memcpy(a->guess, x->answer[k].ids + a->n_ids, sizeof *a->guess * (size_t)a->n);
        }
        for (int k = 0; k < a->n; k++)
            if (!roll(&x->chance, REPLAY_WRONG))
                a->guess[k] = (int32_t)roll(&x->chance, (uint64_t)x->chance.vocab);
    }
    return 0;
}

static void end_replay(void *state, struct choice *c)
{
    struct replay *x = state;
    int32_t *ids = malloc(sizeof *ids * (size_t)(c->n_ids + 1));
    if (!ids)
        return;
    memcpy(ids, c->ids, sizeof *ids * (size_t)c->n_ids);
    free(x->answer[x->next].ids);
    x->answer[x->next].ids = ids;
    x->answer[x->next].n = c->n_ids;
    x->next = (x->next + 1) % REPLAY_ANSWERS;
}

static void close_replay(void *state)
{
    struct replay *x = state;
    for (int i = 0; x && i < REPLAY_ANSWERS; i++)
        free(x->answer[i].ids);
    free(x);
}

const struct drafter drafter_replay = { .name = "replay",
                                        .most = 5,
                                        .open = open_replay,
                                        .close = close_replay,
                                        .propose = propose_replay,
                                        .end = end_replay };
