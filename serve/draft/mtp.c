/* mtp.c - the layer for multi-token prediction that a checkpoint carries guesses (DeepSeek-V3, 2024, section
 * 2.2): from the state that the model has left of a token, behind its last norm, and the token after it, the
 * layer predicts the next one. Further guesses take the layer's own states.
 *
 *     tokens   t0 t1 t2 t3            the model has run t0 t1 t2 and drawn t3
 *     states   h0 h1 h2
 *     pairs    h0t1 h1t2 h2t3 | a d0 | b d1      the last pair gives d0 and the state a; a and d0 give d1 …
 *
 * It runs on the engine's rank as a model of one layer (draft_model.c). Its sequence of a choice begins where
 * states come without a gap: behind what the prefix cache had, and with --cp or --pp at the last token of the
 * prompt, as only states of rows with logits come to that rank. */
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "model/family.h"
#include "serve/api/request.h"
#include "serve/draft/draft_model.h"

#define STATES_MOST 4096 /* that a sequence keeps until they are run; of a longer prompt the last ones */

/* The states of a choice's sequence; seq.shift - 1 is the position of the first one in the choice. */
struct next {
    struct guessed g;
    int64_t from, n; /* state[0 .. n) are those of places [from, from + n) of the sequence; guesses' follow */
    int64_t cap;
    int lost; /* a state was missing */
    char *state;
};

static size_t state_bytes(const struct draft_model *x)
{
    return (size_t)x->info.m.hidden * dtype_size(x->info.m.dt);
}

/* ---- open ---- */

static int next_config(struct draft_model *x, struct err *e)
{
    struct model_config c = x->info.cfg;
    json_t *o = jx_parse(ckpt_config_json(x->info.ckpt), strlen(ckpt_config_json(x->info.ckpt)),
                         "config.json", e);
    int64_t n = 0;
    int rc = o ? jx_int(o, "config.json", "num_nextn_predict_layers", &n, e) : -e->code;

    json_decref(o);
    if (rc < 0)
        return rc;
    if (n < 1)
        return err_set(
            e, ERR_USAGE,
            "--speculate mtp: config.json has num_nextn_predict_layers %lld, so the checkpoint has "
            "no layer to guess with: use ngram, suffix or a smaller model",
            (long long)n);
    return model_config_next(&x->info.cfg, &c, e);
}

/* A table that the checkpoint does not store twice is the model's. */
static void share_table(struct draft_model *x, int unit, enum param_kind kind, const char *shared)
{
    struct param_table *t = &x->info.m.table;
    struct param *p = &t->p[param_at(t, unit, kind, -1)];
    if (ckpt_find(x->info.ckpt, ROLE_WEIGHT, p->name) < 0)
        snprintf(p->name, sizeof p->name, "%s", shared);
}

static void share_tables(struct draft_model *x)
{
    const struct model_config *c = &x->how.served->cfg;
    const struct param_row *head = c->family->last;
    while (head->kind != P_HEAD)
        head++;
    share_table(x, 0, P_EMBED, c->family->first->name);
    share_table(x, x->info.m.table.n_units - 1, P_HEAD, c->tied ? c->family->first->name : head->name);
}

/* ---- states ---- */

/* The sequence begins at the state of position pos. */
static void begin_at(struct draft_model *x, struct next *s, int64_t pos)
{
    if (s->g.queued)
        sched_remove(&x->sched, &s->g.seq);
    s->g.queued = s->lost = 0;
    s->g.seq.shift = pos + 1;
    s->g.seq.n_kv = s->from = s->n = 0;
}

static struct next *new_next(struct draft_model *x, struct choice *c, int64_t pos)
{
    struct next *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->g.seq.owner = c;
    begin_at(x, s, pos);
    c->draft.own = s;
    return s;
}

/* Has memory for one state more, and those of guesses. */
static int reserve(struct draft_model *x, struct next *s)
{
    int64_t need = s->n + 1 + DRAFT_MOST, cap = need + need / 2;
    char *more = need > s->cap ? realloc(s->state, (size_t)cap * state_bytes(x)) : s->state;
    if (!more)
        return 0;
    s->cap = need > s->cap ? cap : s->cap;
    s->state = more;
    return 1;
}

/* The oldest states go, of a sequence that has not run yet; another one begins anew. */
static void make_room(struct draft_model *x, struct next *s, int64_t pos)
{
    int64_t drop = STATES_MOST / 2;
    if (s->g.queued) {
        begin_at(x, s, pos);
        return;
    }
    s->n -= drop;
    s->g.seq.shift += drop;
    memmove(s->state, s->state + (size_t)drop * state_bytes(x), (size_t)s->n * state_bytes(x));
}

/* Rows come in the order of positions; a sequence that was preempted brings some again. */
static void took(void *state, struct choice *c, int64_t pos, const void *row)
{
    struct draft_model *x = state;
    struct next *s = c->draft.own;
    if (!s && !(s = new_next(x, c, pos)))
        return;
    int64_t expected = s->g.seq.shift - 1 + s->from + s->n;
    if (pos < expected)
        return;
    if (pos > expected || s->lost)
        begin_at(x, s, pos);
    else if (s->n == STATES_MOST)
        make_room(x, s, pos);
    if (reserve(x, s))
        dev_read(x->how.dev, s->state + (size_t)s->n++ * state_bytes(x), row, state_bytes(x));
}

/* ---- guesses ---- */

/* Forgets the states of places that have been run, but for the last one. */
static struct guessed *find(struct draft_model *x, const struct draft_ask *a)
{
    struct next *s = a->c->draft.own;
    int64_t n = s ? a->n_ids - s->g.seq.shift : 0, drop;

    if (n < 1 || s->lost || s->from + s->n != n)
        return NULL;
    drop = (s->g.seq.n_kv < n - 1 ? s->g.seq.n_kv : n - 1) - s->from;
    if (drop > 0) {
        memmove(s->state, s->state + (size_t)drop * state_bytes(x), (size_t)(s->n - drop) * state_bytes(x));
        s->from += drop;
        s->n -= drop;
    }
    return &s->g;
}

/* Pages may have been taken from a sequence, whose first states are gone then. */
static void before(struct draft_model *x)
{
    char *to = x->states;
    for (int i = 0; i < x->sched.n_items; i++) {
        const struct sched_item *it = &x->sched.item[i];
        struct next *s = ((struct choice *)it->seq->owner)->draft.own;
        size_t bytes = (size_t)it->n_rows * state_bytes(x);
        int64_t at = it->pos - s->from;
        if (at < 0 || at + it->n_rows > s->n + DRAFT_MOST) {
            s->lost = 1;
            dev_fill(x->how.dev, to, 0, bytes);
        } else {
            dev_write(x->how.dev, to, s->state + (size_t)at * state_bytes(x), bytes);
        }
        to += bytes;
    }
}

static void guessed(struct draft_model *x, struct guessed *g, int64_t i)
{
    struct next *s = (struct next *)g;
    const char *picked = x->work.forward.picked;
    dev_read(x->how.dev, s->state + (size_t)(s->n + g->ask->n - 1) * state_bytes(x),
             picked + (size_t)i * state_bytes(x), state_bytes(x));
}

static void end_next(struct guessed *g) { free(((struct next *)g)->state); }

static int64_t page_bytes(const struct draft_open *how, struct err *e)
{
    (void)e;
    return (int64_t)model_page_bytes_of(&how->served->cfg, 1, how->dt, how->kv);
}

static int open_next(void **state, const struct draft_open *how, struct err *e)
{
    static const struct draft_form form = { .config = next_config,
                                            .opened = share_tables,
                                            .find = find,
                                            .before = before,
                                            .guessed = guessed,
                                            .end = end_next };
    struct draft_open here = *how;
    here.path = ckpt_opened(how->served->ckpt);
    return draft_model_open(state, &here, &form, e);
}

const struct drafter drafter_mtp = { .name = "mtp",
                                     .most = 2,
                                     .costly = 1,
                                     .needs_ranks = 1,
                                     .page_bytes = page_bytes,
                                     .open = open_next,
                                     .close = draft_model_close,
                                     .propose = draft_model_propose,
                                     .took = took,
                                     .end = draft_model_end };
