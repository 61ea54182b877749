/* draft_model.c - a small model of the same tokenizer guesses (Leviathan et al. 2023): it runs on the
 * engine's rank, or on the first ranks of its stage (--speculate-tp), with pages of its own, and draws from
 * its logits as the request draws from the model's. Both draw with the same random number, so the guesses of
 * a model that agrees are right at any temperature.
 *
 *     round 0   what each sequence lacks: its new tokens, or a chunk of its prompt  -> first guess
 *     round k   the guess before                                                     -> guess k
 *
 * It plans with a scheduler of its own (scheduler.h), whose sequences have the choice's tokens and, while
 * guesses are made, those. Before the next round 0 a sequence goes back to its last token that is sure.
 *
 * Of several ranks the first one plans and draws. A round is a step message like the engine's, which the
 * other ranks meet in the engine's loop: they run their part of the draft model and go on waiting. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/machine.h"
#include "serve/api/request.h"
#include "serve/draft/draft_model.h"
#include "serve/weights/weights.h"

#define WAIT_MS 20 /* while weights are read: how soon a signal is noticed */

static const int32_t *ids_of(const struct seq *q)
{
    return ((const struct choice *)q->owner)->ids + q->shift;
}

/* ---- open and close ---- */

static struct step_limits limits(const struct draft_model *x)
{
    return (struct step_limits){ x->how.max_seqs, x->how.max_seqs + x->how.chunk, x->how.max_seqs };
}

/* Refuses a model of other tokens. */
static int check_tokens(const struct draft_model *x, struct err *e)
{
    char mine[33], served[33];
    int rc = model_info_tokenizer_digest(&x->info, mine, e);
    if (rc >= 0)
        rc = model_info_tokenizer_digest(x->how.served, served, e);
    if (rc >= 0 && strcmp(mine, served) != 0)
        rc = err_set(e, ERR_USAGE,
                     "--speculate %s: its tokenizer is %s, that of the model is %s: give a model of the same "
                     "tokenizer",
                     ckpt_path(x->info.ckpt), mine, served);
    return rc;
}

/* Weights, keys and values, in a device's or this machine's memory, which its ranks share. m: from
 * model_shape(). */
static int check_memory(const struct draft_model *x, const struct model *m, struct err *e)
{
    struct dev *d = x->how.dev;
    size_t reading;
    int64_t need = (int64_t)resident_measure(m, &reading) +
                   (int64_t)x->how.n_pages * (int64_t)model_page_bytes(m) * m->n_layers;
    if (!d->memory)
        need *= comm_local_size(x->how.ranks);
    int64_t room = d->memory ? (int64_t)d->memory->free_bytes(d) : machine_memory_free() - x->how.kv_bytes;
    char needed[32], there[32];

    if (need <= room)
        return 0;
    log_bytes(needed, (double)need);
    log_bytes(there, (double)(room > 0 ? room : 0));
    return err_set(e, ERR_MEMORY,
                   "--speculate %s: its weights, keys and values need %s and %s are free: lower --kv-memory, "
                   "or give a smaller model",
                   ckpt_path(x->info.ckpt), needed, there);
}

/* That of its files where the served model has that of its own. */
static enum dtype own_dtype(const struct draft_open *how, const struct model_info *info)
{
    return how->dt == how->served->stored ? info->stored : how->dt;
}

static struct layout layout_of(int tp)
{
    return (struct layout){ .tp = tp, .pp = 1, .cp = 1, .dp = 1, .ep = 1 };
}

/* No rank takes memory before all have looked whether there is enough. */
static int all_checked(void *arg, struct err *e)
{
    (void)arg;
    (void)e;
    return 0;
}

static int read_weights(struct background *a, void *arg, struct err *e)
{
    struct draft_model *x = arg;
    int rc = model_info_open(&x->info, x->how.path, LIVE_NO, &a->stop, e);
    if (rc < 0)
        return rc;
    struct model *m = &x->info.m;
    const struct layout cut = layout_of(x->how.tp);
    const struct rank_at here = { .tp = comm_rank(x->how.ranks) };
    struct step_limits step = limits(x);
    const enum dtype dt = own_dtype(&x->how, &x->info);
    struct model_open how = { .layout = cut,
                              .dev = x->how.dev,
                              .tp = x->how.ranks,
                              .tp_rank = here.tp,
                              .dt = dt,
                              .kv = x->how.kv,
                              .fast = x->how.served->m.fast,
                              .max_rows = step_model_rows(&x->ranks, &step) };
    TRY(x->form->config ? x->form->config(x, e) : 0);
    TRY(check_tokens(x, e));
    TRY(model_shape(m, &x->info.cfg, &cut, here, dt, how.fast, e));
    m->kv = how.kv;
    rc = check_memory(x, m, e);
    model_close(m);
    TRY(rc);
    TRY(background_collective(a, all_checked, x, e));
    x->ctx = x->info.cfg.max_pos < x->how.ctx ? x->info.cfg.max_pos : x->how.ctx;
    how.max_pos = x->ctx;
    TRY(model_open(m, &x->info.cfg, &how, e));
    x->info.has_model = 1;
    if (x->form->opened)
        x->form->opened(x);
    x->info.copied = 1; /* no background task packs a draft model's weights */
    rc = weights_read(a, &x->info, m, x->how.dev->host, NULL, e);
out:
    return rc;
}

/* Reads the checkpoint in a thread beside, so that a signal ends it. */
static int load(struct draft_model *x, struct err *e)
{
    int rc;
    background_start(&x->background, read_weights, x, x->how.dev->pool);
    do {
        if (x->how.stopped && x->how.stopped(x->how.world))
            background_cancel(&x->background);
        background_wait(&x->background, WAIT_MS);
        rc = background_sync(&x->background, x->how.ranks, x->how.ranks, e);
    } while (rc == 0);
    if (rc < 0) {
        background_abort(&x->background);
        return rc;
    }
    return background_finish(&x->background, x->how.ranks, e);
}

/* Pages are not released behind windows: a sequence may go back. */
static int open_pages(struct draft_model *x, struct sched_limits *lim, struct err *e)
{
    struct model *m = &x->info.m;
    for (int g = 0; g < PAGE_GROUPS; g++) {
        int64_t layers = model_page_layers(m, g, m->n_layers);
        const struct page_values values = model_page_values(m, g);
        if (!layers)
            break;
        lim->pool[g] = (struct kv_pool){ x->how.n_pages, 0 };
        int rc = kv_open(&x->kv[g], m->dev, NULL, x->how.n_pages, model_page_bytes(m) * (size_t)layers, e);
        if (rc >= 0)
            rc = kv_open_clear(&x->kv[g], &values, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void draft_model_close(void *state)
{
    struct draft_model *x = state;
    if (!x)
        return;
    outputs_close(&x->outputs);
    step_work_close(&x->work);
    step_message_close(&x->message);
    sched_close(&x->sched);
    for (int g = 0; g < PAGE_GROUPS; g++)
        kv_close(&x->kv[g]);
    if (x->states)
        dev_free(x->how.dev, x->states);
    model_info_close(&x->info);
    free(x->padded);
    free(x);
}

/* Memory for the states of a step's rows. */
static int open_states(struct draft_model *x, int64_t rows, struct err *e)
{
    const struct model *m = &x->info.m;
    x->work.states = x->states = dev_alloc(m->dev, MEM_WORK, (size_t)(rows * m->hidden) * dtype_size(m->dt));
    return x->states ? 0 : err_set(e, ERR_MEMORY, "no memory for states of %lld rows", (long long)rows);
}

/* What the rank that plans needs besides. */
static int open_planner(struct draft_model *x, const struct sched_limits *lim, struct err *e)
{
    const struct draft_open *how = &x->how;
    int rc;

    TRY(sched_open(&x->sched, lim, e));
    TRY(step_message_open(&x->message, how->max_seqs, e));
    TRY(outputs_open(&x->outputs, how->dev, how->max_seqs, x->info.m.vocab, e));
    if (x->info.m.vocab != how->vocab)
        x->padded = calloc((size_t)(how->max_seqs * how->vocab), sizeof *x->padded);
    if (x->info.m.vocab != how->vocab && !x->padded)
        rc = err_set(e, ERR_MEMORY, "no memory for the logits of a draft model");
out:
    return rc;
}

int draft_model_open(void **state, const struct draft_open *how, const struct draft_form *form, struct err *e)
{
    struct draft_model *x = calloc(1, sizeof *x);
    struct sched_limits lim = { .max_seqs = how->max_seqs, .chunk = how->chunk, .max_wants = how->max_seqs };
    struct step_limits step;
    int rc;

    *state = x;
    if (!x)
        return err_set(e, ERR_MEMORY, "no memory for a draft model");
    x->how = *how;
    x->form = form;
    x->ranks = (struct replica_ranks){ .all = how->ranks, .tp = how->ranks, .stage = how->ranks };
    step = limits(x);
    TRY(load(x, e));
    TRY(open_pages(x, &lim, e));
    TRY(step_work_open(&x->work, &x->info.m, &x->ranks, &step, e));
    if (form->before)
        TRY(open_states(x, step.rows, e));
    if (comm_rank(how->ranks) == 0)
        TRY(open_planner(x, &lim, e));
    ckpt_end_reading(x->info.ckpt);
out:
    return rc < 0 ? rc : 0;
}

/* ---- guesses ---- */

/* The logits as if this model had the other one's vocabulary: tables are padded to different lengths. */
static struct head_out of_served(struct draft_model *x, const struct head_out *head)
{
    int64_t from = x->info.m.vocab, to = x->how.vocab, both = from < to ? from : to;
    if (!x->padded)
        return *head;
    for (int64_t i = 0; i < x->outputs.n; i++) {
        float *row = x->padded + i * to;
        memcpy(row, head->logits + i * from, sizeof *row * (size_t)both);
        for (int64_t v = both; v < to; v++)
            row[v] = -INFINITY;
    }
    return (struct head_out){ x->padded, head->max, head->sum };
}

/* Takes the guesses of a step; each runs in the next one, if another guess is wanted behind it. */
static void take_guesses(struct draft_model *x)
{
    for (int64_t i = 0; i < x->outputs.n; i++) {
        const struct output_row *r = &x->outputs.row[i];
        struct guessed *g = r->c->draft.own;
        struct draft_ask *a = g->ask;
        if (!a || r->id < 0 || r->id >= x->how.vocab || r->pos + 1 != a->n_ids + a->n || a->n >= a->most)
            continue;
        a->guess[a->n++] = r->id;
        g->seq.n_ids += a->n < a->most;
        if (x->form->guessed)
            x->form->guessed(x, g, i);
    }
}

/* One step of all sequences. 0: there was nothing to do. */
static int run_step(struct draft_model *x, struct err *e)
{
    struct model *m = &x->info.m;
    struct head_out head = { 0 }, here;
    int rc, n;

    TRY(n = sched_next_step(&x->sched, e));
    if (!n)
        return 0;
    TRY(step_message_make(&x->message, STEP_GUESS, &x->sched, ids_of, e));
    if (x->how.tp > 1)
        TRY(step_message_broadcast(&x->message, x->how.stage, e));
    if (x->form->before)
        x->form->before(x);
    TRY(step_run(&x->work, m, &x->info.weights.w, &x->message, x->kv, &head, e));
    outputs_expect(&x->outputs, &x->sched);
    sched_step_done(&x->sched);
    if (x->outputs.n) {
        here = outputs_read(&x->outputs, m->dev, &head, m->vocab);
        here = of_served(x, &here);
        outputs_sample(&x->outputs, m->dev, &here, x->how.vocab);
        take_guesses(x);
    }
    rc = 1;
out:
    return rc;
}

/* Brings a sequence to the tokens that are sure; a new one comes into the scheduler. */
static int begin_ask(struct draft_model *x, struct draft_ask *a)
{
    struct guessed *g;

    a->n = a->class = 0;
    if (!a->most || a->n_ids + a->most > x->ctx)
        return 0;
    g = x->form->find(x, a);
    if (!g)
        return 0;
    int64_t n_ids = a->n_ids - g->seq.shift;
    g->ask = a;
    g->seq.n_ids = n_ids;
    g->seq.n_kv = g->seq.n_kv < n_ids - 1 ? g->seq.n_kv : n_ids - 1;
    g->seq.first_want = n_ids - 1;
    if (!g->queued)
        sched_add(&x->sched, &g->seq);
    g->queued = 1;
    return 1;
}

int draft_model_propose(void *state, struct draft_ask *ask, int n, struct err *e)
{
    struct draft_model *x = state;
    int rc = 0, rounds = 0;

    for (int i = 0; i < n; i++)
        if (begin_ask(x, &ask[i]) && ask[i].most > rounds)
            rounds = ask[i].most;
    for (int k = 0; k < rounds; k++) {
        x->sched.lim.chunk = k ? 0 : x->how.chunk;
        rc = run_step(x, e);
        if (rc <= 0)
            break;
    }
    for (int i = 0; i < n; i++)
        if (ask[i].c->draft.own)
            ((struct guessed *)ask[i].c->draft.own)->ask = NULL;
    return rc < 0 ? err_add(e, "guessing tokens") : 0;
}

static int follow(void *state, struct step_message *p, struct err *e)
{
    struct draft_model *x = state;
    struct head_out head = { 0 };
    return step_run(&x->work, &x->info.m, &x->info.weights.w, p, x->kv, &head, e);
}

void draft_model_end(void *state, struct choice *c)
{
    struct draft_model *x = state;
    struct guessed *g = c->draft.own;
    if (!g)
        return;
    if (g->queued)
        sched_remove(&x->sched, &g->seq);
    if (x->form->end)
        x->form->end(g);
    free(g);
    c->draft.own = NULL;
}

/* ---- a model of its own ---- */

static struct guessed *find(struct draft_model *x, const struct draft_ask *a)
{
    struct draft_state *own = &a->c->draft;
    struct guessed *g = own->own;
    (void)x;
    if (g)
        return g;
    own->own = g = calloc(1, sizeof *g);
    if (g)
        g->seq.owner = a->c;
    return g;
}

static int64_t page_bytes(const struct draft_open *how, struct err *e)
{
    struct model_info info;
    int rc = model_info_open(&info, how->path, LIVE_NO, NULL, e);
    if (rc < 0)
        return err_add(e, "the checkpoint of --speculate (or ngram, suffix, mtp, forced)");
    const struct layout cut = layout_of(how->tp);
    int64_t bytes = (int64_t)model_page_bytes_of(&info.cfg, how->tp, own_dtype(how, &info), how->kv) *
                    how->tp * info.cfg.n_layers;
    rc = layout_check(&cut, &info.cfg, e);
    model_info_close(&info);
    return rc < 0 ? err_add(e, "--speculate-tp, a draft model's tp") : bytes;
}

static int open_model(void **state, const struct draft_open *how, struct err *e)
{
    static const struct draft_form form = { .find = find };
    return draft_model_open(state, how, &form, e);
}

const struct drafter drafter_model = { .name = "CKPT",
                                       .most = 3,
                                       .costly = 1,
                                       .needs_ranks = 1,
                                       .page_bytes = page_bytes,
                                       .open = open_model,
                                       .close = draft_model_close,
                                       .propose = draft_model_propose,
                                       .follow = follow,
                                       .end = draft_model_end };
