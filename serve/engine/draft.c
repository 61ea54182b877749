/* draft.c - see draft.h. */
#include "serve/engine/draft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/test_hooks.h"
#include "serve/api/request.h"
#include "serve/draft/drafters.h"
#include "serve/engine/outputs.h"
#include "serve/metrics.h"
#include "text/grammar.h"

#define RATE_FIRST 0.6F     /* of a server that has not compared a guess yet, */
#define RATE_FORCED 0.9F    /* and where a grammar forces it */
#define RATE_STEP 0.0625F   /* what one guess counts in a sequence's rate, */
#define RATE_STEP_ALL 0.02F /* and in the server's */
#define COST_STEP 0.02      /* by how much a step moves the time of its rows up; three times that down */
#define COST_MOST 32        /* steps of as many rows that count, at most … */
#define COST_FORGETS 64     /* … of which one is forgotten every so many steps */
#define COST_LEAST 8        /* steps, before their times count */
#define ROW_COST 0.1        /* of a step, where it is not known */
#define WORTH 1.1           /* a draft promises so many times what it costs */
#define COST_DRAWN 0.5      /* how much that counts: as rows that differ by so much, squared */
#define GUESS_STEP 0.1      /* what one time of a costly drafter counts */
#define LOOK_EVERY 16       /* one step of so many asks a costly drafter that does not pay */

static const struct drafter *const drafters[] = { &drafter_ngram,  &drafter_suffix, &drafter_mtp,
                                                  &drafter_forced, &drafter_random, &drafter_replay };

/* A name that is none of the table's is a checkpoint's. */
static const struct drafter *find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof drafters / sizeof drafters[0]; i++)
        if (strlen(drafters[i]->name) == n && !memcmp(drafters[i]->name, name, n))
            return drafters[i];
    return &drafter_model;
}

/* ---- open and close ---- */

/* Where ":K" begins in CKPT[:K]; NULL: there is none. The port of a URL without a path is none. */
static const char *length_in(const char *text)
{
    const char *colon = strrchr(text, ':'), *host = strstr(text, "://");
    if (!colon || !colon[1] || colon[1 + strspn(colon + 1, "0123456789")])
        return NULL;
    return host && !strchr(host + 3, '/') ? NULL : colon;
}

int draft_spec_parse(struct draft_spec *spec, const char *text, struct err *e)
{
    const char *colon = length_in(text);
    long most = colon ? strtol(colon + 1, NULL, 10) : 0;

    *spec = (struct draft_spec){ text, (int)(colon ? (size_t)(colon - text) : strlen(text)), 0 };
    if (colon && (most < 1 || most > DRAFT_MOST))
        return err_set(e, ERR_USAGE, "--speculate %s: %s tokens ahead, must be 1 to %d", text, colon + 1,
                       DRAFT_MOST);
    spec->most = (int)most;
    if (!spec->n_kind)
        return err_set(e, ERR_USAGE, "--speculate %s: give ngram, suffix, mtp, forced or a checkpoint", text);
    return 0;
}

int draft_needs_ranks(const struct draft_spec *spec)
{
    return spec->kind && find(spec->kind, (size_t)spec->n_kind)->needs_ranks;
}

int draft_check_tp(const struct draft_spec *spec, int64_t tp, int64_t n, struct err *e)
{
    if (tp == 1)
        return 0;
    if (!spec->kind || !find(spec->kind, (size_t)spec->n_kind)->follow)
        return err_set(
            e, ERR_USAGE,
            "--speculate-tp %lld divides a draft model, and --speculate names none: give a checkpoint",
            (long long)tp);
    if (n % tp)
        return err_set(
            e, ERR_USAGE,
            "--speculate-tp %lld does not divide the %lld ranks of a stage (--tp times --cp): use a "
            "divisor of %lld",
            (long long)tp, (long long)n, (long long)n);
    return 0;
}

int64_t draft_page_bytes(const struct draft_spec *spec, const struct model_info *served, int tp,
                         enum dtype dt, enum kv_kind kv, struct err *e)
{
    char path[sizeof((struct drafts *)0)->path];
    struct draft_open how = { .served = served, .tp = tp, .dt = dt, .kv = kv, .path = path };
    const struct drafter *kind = spec->kind ? find(spec->kind, (size_t)spec->n_kind) : NULL;

    if (!kind || !kind->page_bytes)
        return 0;
    snprintf(path, sizeof path, "%.*s", spec->n_kind, spec->kind);
    return kind->page_bytes(&how, e);
}

int drafts_open(struct drafts *d, const struct draft_spec *spec, const struct draft_open *in, struct err *e)
{
    const char *test = hook_drafter();
    struct draft_open how = *in;

    *d = (struct drafts){ .always = test != NULL };
    snprintf(d->path, sizeof d->path, "%.*s", spec->n_kind, spec->kind);
    d->kind = find(d->path, strlen(d->path));
    if (test && !d->kind->needs_ranks)
        d->kind = find(test, strlen(test));
    how.path = d->path;
    how.most = d->most = spec->most ? spec->most : d->kind->most;
    for (int i = 0; i < DRAFT_CLASSES; i++)
        d->rate[i] = RATE_FIRST;
    d->rate[DRAFT_FORCED] = RATE_FORCED;
    d->ask = calloc((size_t)in->max_seqs, sizeof *d->ask);
    if (!d->ask)
        return err_set(e, ERR_MEMORY, "no memory for drafts of %d sequences: lower --max-batch",
                       in->max_seqs);
    return d->kind->open ? d->kind->open(&d->state, &how, e) : 0;
}

void drafts_close(struct drafts *d)
{
    if (d->kind && d->kind->close)
        d->kind->close(d->state);
    free(d->ask);
    memset(d, 0, sizeof *d);
}

int drafts_follow(struct drafts *d, struct step_message *p, struct err *e)
{
    return d->kind && d->kind->follow ? d->kind->follow(d->state, p, e) : 0;
}

void drafts_end(struct drafts *d, struct choice *c)
{
    if (d->kind && d->kind->end)
        d->kind->end(d->state, c);
}

int drafts_want_rows(const struct drafts *d) { return d->kind && d->kind->took; }

/* Rows of drafts that were wrong have left states of no tokens. */
static void take_state(struct drafts *d, struct choice *c, int64_t pos, const void *row)
{
    const struct request *rq = c->rq;
    if (c->finish == FINISH_NONE && !rq->done && rq->endpoint != ENDPOINT_EMBEDDINGS && pos <= c->n_ids - 2)
        d->kind->took(d->state, c, pos, row);
}

void drafts_took(struct drafts *d, const struct outputs *o, const void *rows, size_t row_bytes)
{
    for (int64_t i = 0; i < o->n; i++)
        take_state(d, o->row[i].c, o->row[i].pos, (const char *)rows + (size_t)i * row_bytes);
}

void drafts_took_all(struct drafts *d, const struct sched *s, const void *rows, size_t row_bytes)
{
    const char *row = rows;
    for (int i = 0; i < s->n_items; i++) {
        const struct sched_item *it = &s->item[i];
        for (int64_t r = 0; r < it->n_rows; r++, row += row_bytes)
            take_state(d, it->seq->owner, it->pos + r, row);
    }
}

/* ---- what a row costs ---- */

void drafts_timed(struct drafts *d, const struct sched *s, double seconds)
{
    struct draft_cost *c = &d->cost;
    int64_t rows = 0;

    for (int i = 0; i < s->n_items; i++) {
        const struct sched_item *it = &s->item[i];
        if (it->n_rows - it->n_drafts != 1)
            return;
        rows += it->n_rows;
    }
    if (!d->kind || rows < 1 || rows > COST_ROWS)
        return;
    double *t = &c->time_s[rows];
    if (!c->n[rows])
        *t = seconds;
    *t *= seconds < *t ? 1 - 3 * COST_STEP : 1 + COST_STEP;
    c->n[rows] += c->n[rows] < COST_MOST;
    for (int r = 1; r <= COST_ROWS && d->n_steps % COST_FORGETS == 0; r++)
        c->n[r] -= c->n[r] > 0;
}

/* How much a row more makes a step of n rows longer, as a part of its time: the slope of a straight line
 * through the times of n / 2 to `most` rows, drawn towards ROW_COST. Sets *step_s, the time of n rows; 0: it
 * is not known. */
static double row_cost(const struct draft_cost *c, int n, int most, double *step_s)
{
    double w = 0, x = 0, y = 0, xx = 0, xy = 0;

    for (int r = n / 2 + 1; r <= COST_ROWS && r <= most; r++) {
        double k = c->n[r];
        w += k, x += k * r, y += k * c->time_s[r];
        xx += k * r * r, xy += k * r * c->time_s[r];
    }
    *step_s = 0;
    if (w < COST_LEAST)
        return ROW_COST;
    x /= w, y /= w;
    double spread = xx / w - x * x,
           slope = (xy / w - x * y + ROW_COST * y * COST_DRAWN) / (spread + COST_DRAWN);
    *step_s = y + slope * (n - x);
    if (slope <= 0 || *step_s <= 0)
        return 0;
    return slope / *step_s < 1.0 / n ? slope / *step_s : 1.0 / n;
}

/* ---- how many drafts ---- */

static float rate_of(const struct draft_ask *a) { return a->c->draft.rate[a->class]; }

/* Drafts of a sequence that promise at least `least` tokens each. */
static int worth(const struct draft_ask *a, double least)
{
    double promise = rate_of(a);
    int n = 0;
    for (; n < a->n && promise >= least; n++)
        promise *= rate_of(a);
    return n;
}

/* Lowers the n of every ask to what promises more tokens a second: a draft is worth its row where the chance
 * that it is used is larger than what the row costs of the tokens of the step. */
static void choose_lengths(struct drafts *d, int n_seqs)
{
    double tokens = n_seqs, rows = n_seqs;
    double step_s, cost = row_cost(&d->cost, n_seqs, n_seqs * (1 + d->most), &step_s), least;
    int looks = d->n_steps % LOOK_EVERY == 0;

    if (d->always)
        return;
    if (d->kind->costly && step_s > 0)
        cost += d->guess_s / d->n_asks / step_s;
    for (int round = 0; round < 3; round++) {
        least = WORTH * cost * tokens / (1 + cost * (rows - n_seqs));
        tokens = rows = n_seqs;
        for (int i = 0; i < d->n_asks; i++) {
            struct draft_ask *a = &d->ask[i];
            double promise = 1;
            a->most = worth(a, least);
            rows += a->most;
            for (int k = 0; k < a->most; k++)
                tokens += promise *= rate_of(a);
        }
    }
    for (int i = 0; i < d->n_asks && d->kind->costly && looks; i++)
        d->ask[i].most += !d->ask[i].most; /* else nothing would be compared any more */
}

/* ---- guesses ---- */

/* Asks for guesses of a sequence, if it decodes and its answer takes more than a token. */
static void add_ask(struct drafts *d, struct seq *q)
{
    struct choice *c = q->owner;
    struct draft_state *own = &c->draft;
    int64_t left = c->rq->max_tokens - (c->n_ids - c->prompt->n) - 1;
    int64_t most = left < d->most ? left : d->most;
    int alone = own->alone;

    q->n_drafts = own->n = own->alone = 0;
    if (alone || q->n_ids - q->n_kv != 1 || most < 1 || c->finish != FINISH_NONE ||
        choice_reserve(c, c->n_ids + most) < 0)
        return;
    if (!own->known)
        memcpy(own->rate, d->rate, sizeof own->rate);
    own->known = 1;
    d->ask[d->n_asks++] = (struct draft_ask){
        .c = c, .ids = c->ids, .n_ids = c->n_ids, .most = (int)most, .guess = c->ids + c->n_ids
    };
}

/* Guesses where a grammar leaves no choice. These asks go behind the others, whose number is returned. */
static int guess_forced(struct drafts *d)
{
    int n = d->n_asks;
    for (int i = 0; i < n;) {
        struct draft_ask a = d->ask[i];
        struct err none;
        a.n = a.c->matcher ? matcher_forced(a.c->matcher, a.guess, a.most, &none) : 0;
        a.class = DRAFT_FORCED;
        if (a.n > 0) {
            d->ask[i] = d->ask[--n];
            d->ask[n] = a;
        } else {
            i++;
        }
    }
    return n;
}

/* Lets the drafter guess; of a costly one, only what is worth its time, which is measured. */
static int guess(struct drafts *d, int n_seqs, struct err *e)
{
    double begin_s, each_s;
    int most = 0, rc, n = guess_forced(d);

    for (int i = 0; i < n && d->kind->costly; i++)
        d->ask[i].n = d->ask[i].most;
    for (int i = n; i < d->n_asks; i++)
        d->ask[i].most = d->ask[i].n;
    if (d->kind->costly && d->n_asks)
        choose_lengths(d, n_seqs);
    begin_s = clock_s();
    rc = n ? d->kind->propose(d->state, d->ask, n, e) : 0;
    for (int i = 0; i < n; i++) {
        most = d->ask[i].n > most ? d->ask[i].n : most;
        d->ask[i].most = d->ask[i].n;
    }
    if (rc < 0)
        return rc;
    if (!d->kind->costly && d->n_asks) {
        choose_lengths(d, n_seqs);
    } else if (most) {
        each_s = (clock_s() - begin_s) / most;
        d->guess_s += (each_s - d->guess_s) * (d->guess_s > 0 ? GUESS_STEP : 1);
    }
    return 0;
}

int drafts_propose(struct drafts *d, struct sched *s, struct err *e)
{
    int rc, n_seqs = 0;

    if (!d->kind)
        return 0;
    d->n_asks = 0;
    d->n_steps++;
    for (struct seq *q = s->running.first; q; q = q->next, n_seqs++)
        add_ask(d, q);
    rc = guess(d, n_seqs, e);
    if (rc < 0)
        return rc;
    for (int i = 0; i < d->n_asks; i++) {
        struct draft_ask *a = &d->ask[i];
        a->c->draft.n = a->n;
        a->c->draft.class = a->class;
        a->c->seq.n_drafts = a->most;
    }
    return 0;
}

static void move_rate(float *rate, int right, float step) { *rate += ((float)right - *rate) * step; }

void drafts_compare(struct drafts *d, struct choice *c, int nth, int ran, int32_t id)
{
    struct draft_state *own = &c->draft;
    int right = nth < own->n && c->ids[c->n_ids] == id;

    own->right = right;
    if (nth < own->n) {
        move_rate(&own->rate[own->class], right, RATE_STEP);
        move_rate(&d->rate[own->class], right, RATE_STEP_ALL);
    }
    if (!nth && ran) {
        metric_add(d->metrics, COUNT_DRAFTS, 1);
        metric_add(d->metrics, COUNT_DRAFT_TOKENS, ran);
        metric_add(d->metrics, COUNT_FORCED, own->class == DRAFT_FORCED ? ran : 0);
    }
    if (right && nth < ran) {
        metric_add(d->metrics, COUNT_ACCEPTED, 1);
        metric_add(d->metrics, (enum counter)(COUNT_ACCEPTED_0 + nth), 1);
    }
}
