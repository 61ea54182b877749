/* engine_hold.c - requests beside a swap of weights, and a pause: who begins, who waits, who ends. See
 * engine.h. Rank 0, the engine's thread. */
#include <stdio.h>
#include <string.h>
#include "base/alter.h"
#include "base/clock.h"
#include "serve/engine/engine.h"

void engine_fingerprint(const struct engine *en, const struct request *rq, char out[FINGERPRINT_MAX])
{
    const char *now = en->in.sv->fingerprint;
    snprintf(out, FINGERPRINT_MAX, *now && rq->adapter ? "%s-lora-%s" : "%s", now, rq->adapter_digest);
}

/* 1: a step has computed something for one of its choices. */
static int has_steps(const struct request *rq)
{
    int has = 0;
    for (int i = 0; i < rq->n_choices; i++)
        has |= rq->choice[i].step_s != 0;
    return has;
}

static void schedule(struct engine *en, struct request *rq)
{
    rq->held = 0;
    if (!has_steps(rq))
        engine_fingerprint(en, rq, rq->fingerprint);
    for (int i = 0; i < rq->n_choices; i++) {
        struct choice *c = &rq->choice[i];
        c->seq.wants_rows |= drafts_want_rows(&en->drafts);
        if (c->finish == FINISH_NONE) {
            sched_add(&en->sched, &c->seq);
            kv_plan_ask_ahead(&en->plan, &en->sched, &c->seq);
            c->queued = 1;
        }
    }
}

static int is_paused(const struct engine *en) { return atomic_load(&en->in.sv->paused); }

void engine_start(struct engine *en, struct request *rq)
{
    rq->next = en->active;
    en->active = rq;
    rq->held = en->swap_waits || is_paused(en);
    if (!rq->held)
        schedule(en, rq);
}

int engine_has_begun(const struct engine *en)
{
    for (const struct request *rq = en->active; rq; rq = rq->next)
        if (!rq->held)
            return 1;
    return 0;
}

/* Starts those that were held, in the order in which they came: the list has the last one first. */
static void release_held(struct engine *en)
{
    struct request *rq = en->active, *first = NULL, *next;
    for (; rq; rq = next) {
        next = rq->next;
        rq->next = first;
        first = rq;
    }
    en->active = NULL;
    for (rq = first; rq; rq = next) {
        next = rq->next;
        rq->next = en->active;
        en->active = rq;
        if (rq->held && !rq->done)
            schedule(en, rq);
    }
}

/* Ends what has begun, with what there is of it. Vectors are computed again: half of one is of no use. */
static void abort_begun(struct engine *en)
{
    for (struct request *rq = en->active; rq; rq = rq->next)
        for (int i = 0; i < rq->n_choices && rq->endpoint != ENDPOINT_EMBEDDINGS; i++)
            if (!rq->done && rq->choice[i].queued && rq->choice[i].step_s)
                outputs_abort(&rq->choice[i]);
}

/* Takes what is left of requests that have not begun out of the scheduler, until the end of the pause. A
 * request of which a choice computes a vector goes on. */
static void hold_queued(struct engine *en)
{
    for (struct request *rq = en->active; rq; rq = rq->next) {
        int runs = 0;
        for (int i = 0; i < rq->n_choices; i++)
            runs |= rq->choice[i].finish == FINISH_NONE && rq->choice[i].step_s != 0;
        if (runs || rq->held || rq->done || !rq->n_open)
            continue;
        rq->held = 1;
        for (int i = 0; i < rq->n_choices; i++) {
            struct choice *c = &rq->choice[i];
            if (c->queued && c->finish == FINISH_NONE) {
                sched_remove(&en->sched, &c->seq);
                c->queued = 0;
            }
        }
    }
}

/* ---- commands ---- */

static void answer(struct engine *en, const struct fault *f)
{
    reload_command_answer(&en->in.router->replica[0].reload_command, en->in.sv->fingerprint, f);
}

void engine_resume(struct engine *en)
{
    if (!is_paused(en))
        return;
    atomic_store(&en->in.sv->paused, 0);
    en->frozen = 0;
    if (!en->swap_waits)
        release_held(en);
}

static void pause_all(struct engine *en, enum reload_mode mode)
{
    atomic_store(&en->in.sv->paused, 1);
    en->frozen = mode == RELOAD_KEEP;
    if (mode == RELOAD_ABORT) {
        abort_begun(en);
        hold_queued(en);
    }
    en->pause_waits = mode != RELOAD_KEEP;
    if (!en->pause_waits)
        answer(en, NULL);
}

int engine_hold_command(struct engine *en, enum reload_op what, const char *text)
{
    const int mode = reload_mode_find(text);
    struct fault f;
    if (what == RELOAD_PAUSE) {
        pause_all(en, (enum reload_mode)mode);
        return 0;
    }
    if (what == RELOAD_RESUME) {
        engine_resume(en);
        answer(en, NULL);
        return 0;
    }
    if (mode == RELOAD_WAIT && en->frozen) { /* whatever runs here: all replicas answer alike */
        fault_set(&f, 409, "mode",
                  "the server is paused with mode keep, in which nothing that runs ends: resume it "
                  "first, or give mode keep or abort");
        answer(en, &f);
        return 0;
    }
    if (mode == RELOAD_ABORT)
        abort_begun(en);
    if (mode == RELOAD_KEEP && !is_paused(en) && carry_begin(&en->carry))
        return 0;
    en->swap_waits = mode == RELOAD_WAIT && engine_has_begun(en);
    return !en->swap_waits;
}

int engine_hold_over(struct engine *en)
{
    if (carry_is_due(&en->carry))
        return 1;
    if (engine_has_begun(en))
        return 0;
    if (en->pause_waits) {
        en->pause_waits = 0;
        answer(en, NULL);
    }
    return en->swap_waits;
}

void engine_swapped(struct engine *en)
{
    en->swap_waits = 0;
    if (!is_paused(en))
        release_held(en);
}

int engine_is_held(const struct engine *en) { return en->active && (en->frozen || !engine_has_begun(en)); }

/* ---- running sequences are carried over to the new weights ---- */

int engine_make_slice(struct engine *en, struct err *e)
{
    struct carry *c = &en->carry;
    int rc;

    if (!carry_slice(c))
        return 0;
    TRY(engine_save_evicted(en, e));
    TRY(step_message_make(&en->message, STEP_CARRY, &c->plan, carry_ids, e));
    step_message_set_units(&en->message, c->first_unit, c->last_unit);
    rc = 1;
out:
    return rc;
}

int engine_run_slice(struct engine *en, struct err *e)
{
    struct weights *ws = ORDER("carry_weights", &en->reload.fresh.weights.w, &en->in.loaded->weights.w);
    const double begin_s = clock_s();
    const int64_t was = en->carry.n_rows;
    int rc = step_run_slice(&en->work, &en->in.loaded->m, ws, &en->message, en->kv, e);

    if (rc < 0 || !en->inbox)
        return rc;
    dev_sync(en->in.loaded->m.dev); /* the time is that of the work, not of asking for it */
    carry_slice_done(&en->carry, clock_s() - begin_s);
    metric_add(en->in.sv->metrics, COUNT_CARRIED, en->carry.n_rows - was);
    return 0;
}
