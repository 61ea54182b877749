/* engine.c - see engine.h. */
#include "serve/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"

#define IDLE_MS 200
#define DRAIN_MS 10 /* idle, but other replicas still work */
#define RELOAD_MS 2 /* idle, but weights are being read */
#define LOOK_S 0.1
#define TURN_S 0.05 /* a rank's failure to read is noticed as soon */

/* ---- life ---- */

static const int32_t *ids_of(const struct seq *q) { return ((const struct choice *)q->owner)->ids; }

int engine_open(struct engine *en, struct service *sv, struct world *w, struct comm *tp, struct model *m,
                struct weights *ws, const struct engine_size *size, struct router *router, struct err *e)
{
    struct sched_limits lim = { size->max_seqs, size->chunk, size->max_wants, size->window };
    struct arena a = { 0 };
    int rc;
    memset(en, 0, sizeof *en);
    en->sv = sv;
    en->world = w;
    en->tp = tp;
    en->m = m;
    en->ws = ws;
    en->size = *size;
    en->router = router;
    en->inbox = router ? &router->lane[0].inbox : NULL;
    TRY(kv_open(&en->kv, m->dev, size->n_pages, model_page_bytes(m) * (size_t)m->n_layers, e));
    TRY(plan_open(&en->plan, size->max_seqs, e));
    forward_work_carve(m, &a, engine_max_rows(size), size->max_wants, &en->work);
    en->work_memory = dev_alloc(m->dev, MEM_WORK, a.used);
    if (!en->work_memory) {
        rc = err_set(e, ERR_MEMORY,
                     "no memory for steps of %lld rows (%zu MiB): lower --prefill-chunk or --max-batch",
                     (long long)engine_max_rows(size), a.used >> 20);
        goto out;
    }
    a = (struct arena){ .base = en->work_memory, .size = a.used };
    forward_work_carve(m, &a, engine_max_rows(size), size->max_wants, &en->work);
    if (router) {
        TRY(sched_open(&en->sched, &lim, size->n_pages, e));
        if (size->prefix_cache)
            TRY(sched_open_prefix(&en->sched, ids_of, e));
        TRY(emit_open(&en->emit, m->dev, size->max_wants, m->vocab, e));
    }
    rc = 0;
out:
    if (rc < 0)
        engine_close(en);
    return rc;
}

void engine_close(struct engine *en)
{
    if (!en->m)
        return;
    reload_close(&en->reload);
    sched_close(&en->sched);
    emit_close(&en->emit);
    plan_close(&en->plan);
    kv_close(&en->kv);
    dev_free(en->m->dev, en->work_memory);
    memset(en, 0, sizeof *en);
}

/* ---- requests ---- */

static void start_request(struct engine *en, struct request *rq)
{
    rq->next = en->active;
    en->active = rq;
    snprintf(rq->fingerprint, sizeof rq->fingerprint, "%s", en->sv->fingerprint);
    for (int i = 0; i < rq->n_choices; i++) {
        struct choice *c = &rq->choice[i];
        if (c->finish == FINISH_NONE) {
            sched_add(&en->sched, &c->seq);
            c->queued = 1;
        }
    }
}

/* What a request that leaves was like. */
static void count_request(struct metrics *m, const struct request *rq)
{
    for (int i = 0; i < rq->n_choices; i++) {
        const struct choice *c = &rq->choice[i];
        metric_add(m,
                   c->finish == FINISH_STOP     ? COUNT_ENDED_STOP
                   : c->finish == FINISH_LENGTH ? COUNT_ENDED_LENGTH
                                                : COUNT_ENDED_ABORT,
                   1);
        if (c->finish == FINISH_NONE)
            continue;
        metric_observe(m, HIST_ANSWER_LEN, (double)(c->n_ids - c->prompt->n));
        metric_observe(m, HIST_PROMPT_LEN, (double)c->prompt->n);
        if (!c->first_s)
            continue;
        metric_observe(m, HIST_QUEUE, c->step_s - rq->begin_s);
        metric_observe(m, HIST_PREFILL, c->first_s - c->step_s);
        metric_observe(m, HIST_DECODE, c->last_s - c->first_s);
        metric_observe(m, HIST_E2E, c->last_s - rq->begin_s);
    }
}

/* Takes finished choices out of the schedule; a request that is complete, failed or given up leaves with all
 * of them. */
static void sweep(struct engine *en, int all, const struct fault *f)
{
    for (struct request **at = &en->active, *rq; (rq = *at);) {
        int out = all || rq->done || !rq->n_open || atomic_load(&rq->cancelled);
        for (int i = 0; i < rq->n_choices; i++) {
            struct choice *c = &rq->choice[i];
            if (c->queued && (out || c->finish != FINISH_NONE)) {
                sched_remove(&en->sched, &c->seq);
                c->queued = 0;
            }
        }
        if (!out) {
            at = &rq->next;
            continue;
        }
        *at = rq->next;
        en->n_answered++;
        inbox_leave(en->inbox, rq);
        count_request(en->sv->metrics, rq);
        if (f && rq->n_open)
            request_fail(rq, f);
        else
            emit_end(rq);
        request_drop(rq);
    }
}

/* Clients that hung up while nothing is written to them are found by looking. */
static void look_for_gone(struct engine *en)
{
    double now = clock_s();
    if (now - en->looked_s < LOOK_S)
        return;
    en->looked_s = now;
    for (struct request *rq = en->active; rq; rq = rq->next)
        if (rq->gone && rq->gone(rq))
            atomic_store(&rq->cancelled, 1);
}

/* Requests that have had their time. Before every step, so that pages and places are free for it. */
static void look_for_late(struct engine *en)
{
    double limit_s = en->sv->request_timeout_s, now = clock_s();
    struct fault f;
    for (struct request *rq = limit_s > 0 ? en->active : NULL; rq; rq = rq->next) {
        if (rq->done || now - rq->begin_s < limit_s)
            continue;
        fault_set(&f, 503, NULL,
                  "this request has taken the %g s that requests may take here (--request-timeout): ask for "
                  "fewer tokens, or try again later",
                  limit_s);
        request_fail(rq, &f);
        metric_add(en->sv->metrics, COUNT_LATE, 1);
    }
}

/* ---- steps ---- */

static void show_state(struct engine *en)
{
    struct metrics *m = en->sv->metrics;
    const struct sched *s = &en->sched;
    int64_t held = s->pages.n_pages - pages_free(&s->pages);
    metric_set(m, GAUGE_RUNNING, s->running.n);
    metric_set(m, GAUGE_WAITING, s->waiting.n);
    metric_set(m, GAUGE_KV_CACHED, s->ids_of ? s->prefix.n_idle : 0);
    metric_set(m, GAUGE_KV_PAGES, s->pages.n_pages);
    metric_set(m, GAUGE_KV_USAGE_PPM, held * 1000000 / s->pages.n_pages);
    metric_add(m, COUNT_PREEMPTED, s->n_preempted - en->n_preempted_told);
    en->n_preempted_told = s->n_preempted;
    metric_add(m, COUNT_PREFIX_ASKED, s->n_asked - en->n_asked_told);
    en->n_asked_told = s->n_asked;
    metric_add(m, COUNT_PREFIX_HIT, s->n_found - en->n_found_told);
    en->n_found_told = s->n_found;
}

/* Requests that are in work when weights change say so. */
static void mark_swap(struct engine *en)
{
    const char *now = en->sv->fingerprint;
    for (struct request *rq = en->active; rq; rq = rq->next) {
        int begun = 0;
        for (int i = 0; i < rq->n_choices; i++)
            begun |= rq->choice[i].step_s != 0;
        if (!begun || !now[0] || !rq->fingerprint[0])
            snprintf(rq->fingerprint, sizeof rq->fingerprint, "%s", now);
        else
            snprintf(rq->fingerprint + strcspn(rq->fingerprint, "+"), 65, "+%s", now);
    }
}

/* Rank 0: what became of an order. */
static void answer_order(struct engine *en, int rc, const struct err *e)
{
    struct fault f = { 0 };
    if (rc < 0)
        fault_set(&f, rc == -ERR_MEMORY || rc == -ERR_STOPPED ? 503 : 400, "checkpoint", "%s", e->text);
    order_answer(&en->router->lane[0].order, en->sv->fingerprint, rc < 0 ? &f : NULL);
}

/* The ranks meet about what they load. Only what ends the engine is an error here. */
static int turn_reload(struct engine *en, struct err *e)
{
    int rc = reload_turn(&en->reload, e);
    if (rc <= 0)
        return rc;
    rc = reload_end(&en->reload, e);
    if (rc == -ERR_PEER || !en->inbox)
        return rc == -ERR_PEER ? rc : 0;
    if (en->log)
        log_line(en->log, rc < 0 ? "a reload is refused after %.2f s: %s" : "loaded in %.2f s: %s",
                 clock_s() - en->reload.begin_s, rc < 0 ? e->text : en->reload.path);
    answer_order(en, rc, e);
    return 0;
}

static void swap(struct engine *en)
{
    if (en->inbox)
        sched_restart(&en->sched);
    reload_swap(&en->reload, en->sv->fingerprint);
    if (!en->inbox)
        return;
    mark_swap(en);
    metric_add(en->sv->metrics, COUNT_RELOADS, 1);
}

/* An order, on all ranks; that to load is answered later. */
static int run_order(struct engine *en, struct err *e)
{
    enum plan_op op = en->plan.op;
    if (op == PLAN_TURN)
        return turn_reload(en, e);
    if (op == PLAN_LOAD) {
        reload_begin(&en->reload, en->loaded, plan_text(&en->plan), en->n_here);
        return 0;
    }
    if (op == PLAN_SWAP)
        swap(en);
    else
        reload_drop(&en->reload);
    if (en->inbox)
        answer_order(en, 0, e);
    return 0;
}

/* Rank 0: a reload is going on, and its threads may need the ranks; a step goes between two turns. 1: the
 * plan is a turn. */
static int plan_turn(struct engine *en, int ends)
{
    double now = clock_s();
    if (!en->reload.works)
        return 0;
    if (ends)
        aside_cancel(&en->reload.aside);
    if ((en->turned && !sched_idle(&en->sched)) ||
        (!aside_asks(&en->reload.aside) && now - en->turned_s < TURN_S)) {
        en->turned = 0;
        return 0;
    }
    en->turned = 1;
    en->turned_s = now;
    step_plan_order(&en->plan, PLAN_TURN, "");
    return 1;
}

/* Rank 0: an order goes before a step. 1: the plan holds one. */
static int plan_order(struct engine *en)
{
    static const enum plan_op ops[] = {
        [ORDER_LOAD] = PLAN_LOAD, [ORDER_SWAP] = PLAN_SWAP, [ORDER_DROP] = PLAN_DROP
    };
    char text[ORDER_TEXT];
    enum order_what what = order_take(&en->router->lane[0].order, text);
    if (what != ORDER_NONE)
        step_plan_order(&en->plan, ops[what], text);
    return what != ORDER_NONE;
}

/* Rank 0: what comes next. */
static int next_op(struct engine *en, int64_t limit, enum plan_op *op, struct err *e)
{
    int rc = 0;
    if (!en->follows && world_stop_signal(en->world))
        atomic_store(&en->sv->state, SERVICE_DRAINING);
    int ends = (limit && en->n_answered >= limit) || atomic_load(&en->sv->state) == SERVICE_DRAINING;
    int wait_ms = en->active          ? 0
                  : en->reload.works  ? RELOAD_MS
                  : !ends             ? IDLE_MS
                  : en->router->n > 1 ? DRAIN_MS
                                      : 0;
    for (struct request *rq = inbox_take(en->inbox, wait_ms), *next; rq; rq = next) {
        next = rq->next;
        start_request(en, rq);
    }
    look_for_gone(en);
    look_for_late(en);
    sweep(en, 0, NULL);
    *op = PLAN_IDLE;
    if (plan_order(en) || plan_turn(en, ends))
        return 0;
    if (ends && !en->active && !en->reload.works && router_shut(en->router, 0)) {
        *op = PLAN_STOP;
    } else if (!sched_idle(&en->sched)) {
        TRY(sched_plan(&en->sched, e));
        *op = rc ? PLAN_STEP : PLAN_IDLE;
    }
    show_state(en);
    rc = step_plan_make(&en->plan, *op, &en->sched, ids_of, e);
out:
    return rc < 0 ? rc : 0;
}

static void count_step(struct engine *en)
{
    struct metrics *m = en->sv->metrics;
    const struct sched *s = &en->sched;
    double now = clock_s();
    for (int i = 0; i < s->n_items; i++) {
        struct choice *c = s->item[i].seq->owner;
        if (c->step_s)
            continue;
        c->step_s = now;
        metric_add(m, COUNT_PROMPT_TOKENS, c->prompt->n);
    }
    metric_add(m, COUNT_STEPS, 1);
    metric_add(m, COUNT_ROWS, en->plan.n_rows);
    metric_observe(m, HIST_STEP_ROWS, (double)en->plan.n_rows);
}

static int run_step(struct engine *en, struct err *e)
{
    struct plan *p = &en->plan;
    struct batch b = { .n_rows = p->n_rows,
                       .ids = p->ids,
                       .n_seq = p->n_seq,
                       .seq = p->seq,
                       .page_layer_bytes = model_page_bytes(en->m) };
    struct head_out head = { 0 };
    int rc = plan_place(p, &en->kv, e);
    if (rc < 0)
        return rc;
    if (en->inbox)
        count_step(en);
    rc = model_forward(en->m, en->ws, &b, &en->work, p->want, p->n_want, &head, e);
    if (rc < 0 || !en->inbox)
        return rc;
    en->n_steps++;
    en->n_rows += p->n_rows;
    emit_expect(&en->emit, &en->sched);
    sched_done(&en->sched);
    en->emit.now_s = clock_s();
    emit_tokens(&en->emit, en->m->dev, &head, en->m->vocab);
    return 0;
}

static int run_steps(struct engine *en, int64_t limit, struct err *e)
{
    enum plan_op op = PLAN_IDLE;
    int rc = 0;
    while (op != PLAN_STOP) {
        if (en->inbox)
            TRY(next_op(en, limit, &op, e));
        TRY(plan_share(&en->plan, en->tp, e));
        op = en->plan.op;
        if (op == PLAN_STEP)
            TRY(run_step(en, e));
        if (op > PLAN_STOP)
            TRY(run_order(en, e));
    }
out:
    return rc < 0 ? rc : 0;
}

int engine_run(struct engine *en, int64_t limit, struct err *e)
{
    struct fault f;
    int rc = run_steps(en, limit, e);
    if (rc < 0)
        world_fail(en->world, e);
    if (!en->inbox)
        return rc;
    if (rc < 0)
        atomic_store(&en->sv->state, SERVICE_FAILED);
    router_shut(en->router, 1);
    order_shut(&en->router->lane[0].order);
    for (struct request *rq = inbox_take(en->inbox, 0), *next; rq; rq = next) {
        next = rq->next;
        start_request(en, rq);
    }
    fault_set(&f, 503, NULL, "the server is stopping: %s", rc < 0 ? e->text : "try again later");
    sweep(en, 1, &f);
    return rc;
}
