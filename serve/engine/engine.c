/* engine.c - see engine.h. */
#include "serve/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "serve/weights/mapped_weights.h"

/* how long rank 0 waits for a request when there is nothing to compute: */
#define IDLE_MS 200
#define DRAIN_MS 10 /* while other replicas still work */
#define RELOAD_MS 2 /* while weights are being read */
#define HELD_MS 50  /* while requests are held: some may have ended */

#define DISCONNECT_CHECK_S 0.1 /* between two looks for disconnected clients */
#define SYNC_S 0.05 /* between two syncs of a reload: a rank's failure to read is noticed as soon */

/* ---- life ---- */

static const int32_t *ids_of(const struct seq *q) { return ((const struct choice *)q->owner)->ids; }

static int open_drafts(struct engine *en, struct model *m, struct err *e)
{
    const struct engine_size *size = &en->in.size;
    struct draft_open how = { .max_seqs = size->max_seqs,
                              .vocab = m->vocab,
                              .ctx = en->in.sv->ctx,
                              .chunk = size->chunk,
                              .n_pages = size->pool[0].n_pages,
                              .dev = m->dev,
                              .ranks = en->in.draft_ranks,
                              .stage = en->in.ranks.stage,
                              .tp = en->in.draft_ranks ? comm_size(en->in.draft_ranks) : 1,
                              .served = en->in.loaded,
                              .dt = m->dt,
                              .kv = m->kv,
                              .world = en->in.world,
                              .stopped = world_stop_signal };
    for (int g = 0; g < PAGE_GROUPS; g++)
        how.kv_bytes += (int64_t)en->kv[g].page_bytes * en->kv[g].n_pages * en->in.n_here;
    return drafts_open(&en->drafts, &en->in.drafts, &how, e);
}

/* What only the rank that plans needs. */
static int open_planner(struct engine *en, struct model *m, struct err *e)
{
    const struct engine_size *size = &en->in.size;
    struct sched_limits lim = { .max_seqs = size->max_seqs,
                                .chunk = size->chunk,
                                .max_wants = size->max_wants,
                                .drafts = size->drafts,
                                .pool = { size->pool[0], size->pool[1] } };
    int rc;
    en->inbox = &en->in.router->replica[0].inbox;
    TRY(sched_open(&en->sched, &lim, e));
    if (size->prefix_cache)
        TRY(sched_open_prefix(&en->sched, ids_of, e));
    if (!en->in.ranks.cp && !en->in.ranks.pp)
        TRY(carry_open(&en->carry, &en->sched, ids_of, (int)m->n_layers, engine_step(size).carried, e));
    TRY(outputs_open(&en->outputs, m->dev, size->max_wants, m->vocab, e));
    en->outputs.drafts = &en->drafts;
    en->drafts.metrics = en->in.sv->metrics;
    en->in.sv->drafts = en->drafts.most;
out:
    return rc;
}

int engine_open(struct engine *en, const struct engine_setup *in, struct err *e)
{
    struct model *m = &in->loaded->m;
    struct step_limits step = engine_step(&in->size);
    int rc;
    memset(en, 0, sizeof *en);
    en->in = *in;
    for (int g = 0; g < PAGE_GROUPS && in->size.pool[g].n_pages; g++) {
        int64_t layers = model_page_layers(m, g, m->n_layers);
        const struct page_values values = model_page_values(m, g);
        TRY(kv_open(&en->kv[g], m->dev, in->ranks.cp, in->size.pool[g].n_pages,
                    model_page_bytes(m) * (size_t)layers, e));
        if (in->size.drafts)
            TRY(kv_open_clear(&en->kv[g], &values, e));
    }
    TRY(step_message_open(&en->message, in->size.max_seqs, e));
    TRY(step_work_open(&en->work, m, &in->ranks, &step, e));
    en->work.adapters = in->adapters;
    rc = in->size.drafts && (in->router || in->draft_ranks) ? open_drafts(en, m, e) : 0;
    if (in->size.drafts)
        TRY(comm_agree(in->ranks.all, rc, e));
    if (in->router)
        TRY(open_planner(en, m, e));
    TRY(in->kv_disk ? engine_open_pages(en, e) : 0);
    if (in->is_pushed)
        reload_prepare(&en->reload, in->loaded);
    if (in->router)
        metric_set(in->sv->metrics, GAUGE_WEIGHTS_KEPT, en->reload.kept_bytes);
    rc = 0;
out:
    return rc;
}

void engine_close(struct engine *en)
{
    if (!en->in.loaded)
        return;
    reload_close(&en->reload);
    carry_close(&en->carry);
    sched_close(&en->sched);
    drafts_close(&en->drafts);
    outputs_close(&en->outputs);
    step_message_close(&en->message);
    kv_plan_close(&en->plan);
    kv_disk_close(&en->disk);
    for (int g = 0; g < PAGE_GROUPS; g++)
        kv_close(&en->kv[g]);
    step_work_close(&en->work);
    memset(en, 0, sizeof *en);
}

/* ---- requests ---- */

/* Counts a prompt whose answers c[0..n-1] have all ended in the metrics; not one that was given up. */
static void count_prompt(struct metrics *m, const struct choice *c, int64_t n)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t len = c[i].n_ids - c[i].prompt->n;
        if (c[i].finish == FINISH_NONE)
            return;
        longest = len > longest ? len : longest;
    }
    metric_observe(m, HIST_PARAM_N, (double)n);
    metric_observe(m, HIST_MAX_ANSWER_LEN, (double)longest);
}

/* Counts an ended request in the metrics. */
static void count_request(struct metrics *m, const struct request *rq)
{
    static const enum counter by_finish[] = { [FINISH_NONE] = COUNT_ENDED_ABORT,
                                              [FINISH_STOP] = COUNT_ENDED_STOP,
                                              [FINISH_LENGTH] = COUNT_ENDED_LENGTH,
                                              [FINISH_ABORT] = COUNT_ENDED_ABORT };
    for (int i = 0; i < rq->n_prompts; i++)
        count_prompt(m, rq->choice + i * rq->n, rq->n);
    for (int i = 0; i < rq->n_choices; i++) {
        const struct choice *c = &rq->choice[i];
        metric_add(m, by_finish[c->finish], 1);
        if (c->finish == FINISH_NONE)
            continue;

        metric_observe(m, HIST_ANSWER_LEN, (double)(c->n_ids - c->prompt->n));
        metric_observe(m, HIST_PROMPT_LEN, (double)c->prompt->n);
        metric_observe(m, HIST_PARAM_MAX_TOKENS, (double)rq->max_tokens);
        if (!c->first_s)
            continue;

        metric_observe(m, HIST_QUEUE, c->step_s - rq->begin_s);
        metric_observe(m, HIST_PREFILL, c->first_s - c->step_s);
        metric_observe(m, HIST_DECODE, c->last_s - c->first_s);
        metric_observe(m, HIST_INFERENCE, c->last_s - c->step_s);
        metric_observe(m, HIST_E2E, c->last_s - rq->begin_s);
        int64_t after_first = c->n_ids - c->prompt->n - 1;
        if (after_first > 0)
            metric_observe(m, HIST_TPOT, (c->last_s - c->first_s) / (double)after_first);
    }
}

/* Takes a request's finished choices, or all of them, out of the scheduler. */
static void remove_choices(struct engine *en, struct request *rq, int all)
{
    for (int i = 0; i < rq->n_choices; i++) {
        struct choice *c = &rq->choice[i];
        if (c->queued && (all || c->finish != FINISH_NONE)) {
            sched_remove(&en->sched, &c->seq);
            drafts_end(&en->drafts, c);
            c->queued = 0;
        }
    }
}

/* Ends a request that is not active any more. f: its fault if it is not complete, or NULL. */
static void end_request(struct engine *en, struct request *rq, const struct fault *f)
{
    en->n_answered++;
    inbox_leave(en->inbox, rq);
    count_request(en->in.sv->metrics, rq);
    if (f && rq->n_open)
        request_fail(rq, f);
    else
        outputs_end_request(rq);
    request_release(rq);
}

/* Takes finished choices out of the scheduler, and ends requests that are complete, failed or cancelled (with
 * all: every request). f: the fault of those that are not complete, or NULL. */
static void retire_requests(struct engine *en, int all, const struct fault *f)
{
    struct request **at = &en->active;
    while (*at) {
        struct request *rq = *at;
        int ends = all || rq->done || !rq->n_open || atomic_load(&rq->cancelled);
        remove_choices(en, rq, ends);
        if (ends) {
            *at = rq->next;
            end_request(en, rq, f);
        } else {
            at = &rq->next;
        }
    }
}

/* Cancels requests whose client has disconnected: while nothing is written to it, no error shows that. */
static void cancel_disconnected(struct engine *en)
{
    double now = clock_s();
    if (now - en->disconnect_check_s < DISCONNECT_CHECK_S)
        return;
    en->disconnect_check_s = now;
    for (struct request *rq = en->active; rq; rq = rq->next)
        if (rq->disconnected && rq->disconnected(rq))
            atomic_store(&rq->cancelled, 1);
}

/* Fails requests that have reached --request-timeout. Before every step, so that their pages are free for
 * it. */
static void fail_timed_out(struct engine *en)
{
    double limit_s = en->in.sv->request_timeout_s, now = clock_s();
    struct fault f;
    for (struct request *rq = limit_s > 0 ? en->active : NULL; rq; rq = rq->next) {
        if (rq->done || now - rq->begin_s < limit_s)
            continue;
        fault_set_late(&f, limit_s);
        request_fail(rq, &f);
        metric_add(en->in.sv->metrics, COUNT_TIMED_OUT, 1);
    }
}

/* ---- steps ---- */

/* The slots of the adapters of a list of sequences, as bits. */
static void set_adapters(_Atomic int64_t bits[ADAPTERS_MAX / 64], const struct seq_list *l)
{
    uint64_t now[ADAPTERS_MAX / 64] = { 0 };
    for (const struct seq *q = l->first; q; q = q->next)
        if (q->adapter)
            now[(q->adapter - 1) / 64] |= (uint64_t)1 << (q->adapter - 1) % 64;
    for (int i = 0; i < ADAPTERS_MAX / 64; i++)
        atomic_store_explicit(&bits[i], (int64_t)now[i], memory_order_relaxed);
}

/* Brings the metrics up to date. */
static void update_metrics(struct engine *en)
{
    struct metrics *m = en->in.sv->metrics;
    const struct sched *s = &en->sched;
    int64_t usage = 0; /* of the fuller pool */
    for (int g = 0; g < s->n_groups; g++) {
        int64_t n = s->pages[g].n_pages, used = (n - pages_free(&s->pages[g])) * 1000000 / n;
        usage = used > usage ? used : usage;
    }
    if (m) {
        set_adapters(m->adapters[METRIC_ADAPTERS_RUNNING], &s->running);
        set_adapters(m->adapters[METRIC_ADAPTERS_WAITING], &s->waiting);
    }
    metric_set(m, GAUGE_RUNNING, s->running.n);
    metric_set(m, GAUGE_WAITING, s->waiting.n);
    metric_set(m, GAUGE_KV_CACHED, s->ids_of ? s->prefix.idle[0].n : 0);
    metric_set(m, GAUGE_KV_PAGES, s->pages[0].n_pages);
    metric_set(m, GAUGE_KV_USAGE_PPM, usage);
    metric_add(m, COUNT_PREEMPTED, s->n_preempted - en->n_preempted_reported);
    en->n_preempted_reported = s->n_preempted;
    metric_add(m, COUNT_PREFIX_LOOKED_UP, s->n_looked_up - en->n_looked_up_reported);
    en->n_looked_up_reported = s->n_looked_up;
    metric_add(m, COUNT_PREFIX_HIT, s->n_found - en->n_found_reported);
    en->n_found_reported = s->n_found;
}

/* The weights have changed: requests that have begun get both fingerprints, the others the new one. Those
 * that have ended keep theirs. */
static void mark_swap(struct engine *en)
{
    char now[FINGERPRINT_MAX];
    for (struct request *rq = en->active; rq; rq = rq->next) {
        int started = 0;
        if (!rq->n_open || rq->done)
            continue;
        engine_fingerprint(en, rq, now);
        for (int i = 0; i < rq->n_choices; i++)
            started |= rq->choice[i].step_s != 0;
        if (!started || !now[0] || !rq->fingerprint[0])
            snprintf(rq->fingerprint, sizeof rq->fingerprint, "%s", now);
        else
            snprintf(rq->fingerprint + strcspn(rq->fingerprint, "+"), FINGERPRINT_MAX + 1, "+%s", now);
    }
}

/* Rank 0: answers a command about the field `what` of its body. */
static void answer_command(struct engine *en, const char *what, const char *answer, int rc,
                           const struct err *e)
{
    struct fault f = { 0 };
    if (rc < 0)
        fault_set(&f, rc == -ERR_MEMORY || rc == -ERR_STOPPED ? 503 : 400, what, "%s", e->text);
    reload_command_answer(&en->in.router->replica[0].reload_command, answer, rc < 0 ? &f : NULL);
}

/* Synchronises the ranks about the weights that they read. A failed reload is answered; only what ends the
 * engine is an error here. */
static int sync_reload(struct engine *en, struct err *e)
{
    int rc = reload_sync(&en->reload, e);
    if (rc <= 0)
        return rc;
    rc = reload_end(&en->reload, e);
    if (rc == -ERR_PEER || !en->inbox)
        return rc == -ERR_PEER ? rc : 0;
    if (en->in.log && !en->reload.order.quiet)
        log_line(en->in.log, rc < 0 ? "a reload is refused after %.2f s: %s" : "loaded in %.2f s: %s",
                 clock_s() - en->reload.begin_s, rc < 0 ? e->text : en->reload.order.path);
    answer_command(en, en->reload.param ? en->reload.param : "checkpoint", en->in.sv->fingerprint, rc, e);
    return 0;
}

/* The same about an adapter that they read. */
static int sync_adapter(struct engine *en, struct err *e)
{
    struct adapter_set *s = en->in.adapters;
    char digest[64] = "";
    int rc = adapter_sync(s, e);
    if (rc <= 0)
        return rc;
    rc = adapter_end(s, digest, e);
    if (rc == -ERR_PEER || !en->inbox)
        return rc == -ERR_PEER ? rc : 0;
    if (en->in.log)
        log_line(en->in.log, rc < 0 ? "an adapter is refused after %.2f s: %s" : "adapter read in %.2f s: %s",
                 clock_s() - s->begin_s, rc < 0 ? e->text : s->path);
    answer_command(en, "lora_path", digest, rc, e);
    return 0;
}

/* Answers name these weights from now on. */
static void set_served(struct engine *en, int64_t version)
{
    char digest[33];
    ckpt_digest_hex(en->in.loaded->identity, digest);
    served_set(&en->in.sv->served, version, digest);
}

/* Takes the new weights; rank 0 has what is running, and was not carried over, computed again with them. */
static void swap(struct engine *en)
{
    if (en->inbox)
        sched_requeue_all(&en->sched);
    reload_swap(&en->reload, en->in.sv->fingerprint);
    set_served(en, en->reload.version);
    if (!en->inbox)
        return;
    engine_name_pages(en);
    struct load_progress *v = &en->in.sv->verify; /* a reload checks before it swaps */
    atomic_store(&v->done, atomic_load(&v->total));
    mark_swap(en);
    engine_swapped(en);
    metric_add(en->in.sv->metrics, COUNT_RELOADS, 1);
    metric_add(en->in.sv->metrics, COUNT_RECOMPUTED, en->sched.n_recomputed);
    en->sched.n_recomputed = 0;
    metric_add(en->in.sv->metrics, COUNT_RELOAD_RECEIVED, en->reload.moved.received);
    metric_add(en->in.sv->metrics, COUNT_RELOAD_HERE, en->reload.moved.here);
    metric_set(en->in.sv->metrics, GAUGE_WEIGHTS_KEPT, en->reload.kept_bytes);
}

/* Runs a reload command on all ranks. STEP_LOAD is answered later, by sync_reload(). */
static int run_command(struct engine *en, struct err *e)
{
    enum step_op op = en->message.op;
    if (op == STEP_PAGES)
        return engine_obey_pages(en, e);
    if (op == STEP_CARRY)
        return engine_run_slice(en, e);
    if (op == STEP_SYNC)
        return en->reload.running ? sync_reload(en, e) : sync_adapter(en, e);
    if (op == STEP_LOAD) {
        reload_begin(&en->reload, en->in.loaded, step_message_text(&en->message), en->in.sv->served.version,
                     en->in.ranks.all, en->in.n_here);
        return 0;
    }
    if (op == STEP_ADAPTER || op == STEP_ADAPTER_DROP) {
        char *path;
        int32_t slot = (int32_t)strtol(step_message_text(&en->message), &path, 10);
        if (op == STEP_ADAPTER) {
            adapter_begin(en->in.adapters, slot, path + 1, NULL);
            return 0;
        }
        adapter_drop(en->in.adapters, slot);
    } else if (op == STEP_SWAP) {
        swap(en);
    } else if (!en->reload.running) {
        reload_drop(&en->reload);
    }
    if (en->inbox)
        answer_command(en, NULL, en->in.sv->fingerprint, 0, e);
    return 0;
}

/* What reads weights or an adapter now; NULL: nothing does. */
static struct background *reading(struct engine *en)
{
    if (en->reload.running)
        return &en->reload.background;
    return en->in.adapters && en->in.adapters->running ? &en->in.adapters->background : NULL;
}

/* Rank 0: while weights are read, their threads may need a sync of the ranks; between two syncs there is a
 * step, if there is work. 1: the message is a sync. */
static int make_sync(struct engine *en, int ends)
{
    double now = clock_s();
    struct background *task = reading(en);
    if (!task)
        return 0;
    if (ends)
        background_cancel(task);
    if ((en->synced && !sched_idle(&en->sched)) ||
        (!background_wants_sync(task) && now - en->synced_s < SYNC_S)) {
        en->synced = 0;
        return 0;
    }
    en->synced = 1;
    en->synced_s = now;
    step_message_command(&en->message, STEP_SYNC, "");
    return 1;
}

/* Rank 0: a reload command goes before a step. 1: the message is one. */
static int make_command(struct engine *en)
{
    static const enum step_op ops[] = { [RELOAD_LOAD] = STEP_LOAD,
                                        [RELOAD_SWAP] = STEP_SWAP,
                                        [RELOAD_DROP] = STEP_DROP,
                                        [RELOAD_ADAPTER] = STEP_ADAPTER,
                                        [RELOAD_ADAPTER_DROP] = STEP_ADAPTER_DROP };
    char text[RELOAD_PATH_MAX] = "";
    int is_due = engine_hold_over(en);
    enum reload_op what = is_due ? RELOAD_SWAP
                                 : reload_command_take(&en->in.router->replica[0].reload_command, text);
    const int holds = what == RELOAD_SWAP || what == RELOAD_PAUSE || what == RELOAD_RESUME;
    if (what == RELOAD_NONE || (holds && !is_due && !engine_hold_command(en, what, text)))
        return 0;
    step_message_command(&en->message, ops[what], text);
    return 1;
}

/* How long rank 0 may wait for a request before the next message. */
static int idle_ms(struct engine *en, int ends)
{
    const int held = engine_is_held(en);
    if (en->active && !held)
        return 0;
    if (reading(en))
        return RELOAD_MS;
    if (held)
        return HELD_MS;
    if (!ends)
        return IDLE_MS;
    return en->in.router->n > 1 ? DRAIN_MS : 0;
}

/* Rank 0: takes new requests out of the inbox, and starts them. */
static void take_requests(struct engine *en, int wait_ms)
{
    struct request *rq = inbox_take(en->inbox, wait_ms);
    while (rq) {
        struct request *next = rq->next;
        engine_start(en, rq);
        rq = next;
    }
}

/* Rank 0: takes new requests, ends old ones, and makes the next message. */
static int next_op(struct engine *en, int64_t limit, enum step_op *op, struct err *e)
{
    int rc = 0;

    if (!en->in.is_follower && world_stop_signal(en->in.world))
        atomic_store(&en->in.sv->state, SERVICE_DRAINING);
    int ends = (limit && en->n_answered >= limit) || atomic_load(&en->in.sv->state) == SERVICE_DRAINING;
    if (ends && atomic_load(&en->in.sv->paused) && router_resume_others(en->in.router))
        engine_resume(en);
    take_requests(en, idle_ms(en, ends));
    cancel_disconnected(en);
    fail_timed_out(en);
    retire_requests(en, 0, NULL);

    *op = STEP_IDLE;
    if (make_command(en) || make_sync(en, ends))
        return 0;
    TRY(engine_make_slice(en, e));
    if (rc)
        return 0;
    carry_step(&en->carry);
    retire_requests(en, 0, NULL); /* what a pause has aborted */
    if (ends && !en->active && !reading(en) && router_stop(en->in.router, 0)) {
        *op = STEP_STOP;
        TRY(engine_save_cached(en, e));
    } else if (!sched_idle(&en->sched) && !en->frozen) {
        TRY(drafts_propose(&en->drafts, &en->sched, e));
        TRY(engine_load_pages(en, e));
        TRY(sched_next_step(&en->sched, e));
        *op = rc ? STEP_RUN : STEP_IDLE;
        TRY(engine_save_evicted(en, e));
    }

    update_metrics(en);
    rc = step_message_make(&en->message, *op, &en->sched, ids_of, e);
out:
    return rc < 0 ? rc : 0;
}

/* Rank 0: counts a step in the metrics, and when each of its choices began. */
static void count_step(struct engine *en)
{
    struct metrics *m = en->in.sv->metrics;
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
    metric_add(m, COUNT_ROWS, en->message.n_rows);
    metric_observe(m, HIST_STEP_ROWS, (double)en->message.n_rows);
}

/* Rank 0: final hidden states for the drafter that needs them. */
static int give_states(struct engine *en, const struct head_out *head, struct err *e)
{
    struct model *m = &en->in.loaded->m;
    size_t row_bytes = (size_t)m->hidden * dtype_size(m->dt);
    int rc = 0;

    if (!drafts_want_rows(&en->drafts))
        return 0;
    if (en->in.ranks.cp || en->in.ranks.pp) {
        drafts_took(&en->drafts, &en->outputs, head->rows, row_bytes);
        return 0;
    }
    rc = model_final_states(m, &en->in.loaded->weights.w, en->message.n_rows, &en->work.forward, e);
    if (rc >= 0)
        drafts_took_all(&en->drafts, &en->sched, en->work.forward.h, row_bytes);
    return rc;
}

/* What goes on behind serving for the weights (repack.h): packed ones are put in place, and answers get the
 * fingerprint that is known late. */
static int take_repacked(struct engine *en, struct err *e)
{
    const struct model_info *l = en->in.loaded;
    int rc = repack_switch(l->repack, e);
    if (rc <= 0 || !en->inbox || l->m.fast || l->m.grain != l->cfg.grain)
        return rc;
    model_info_fingerprint(l, l->m.dt, l->m.kv, en->in.sv->fingerprint);
    set_served(en, en->in.sv->served.version);
    mark_swap(en);
    return 0;
}

/* Computes the step of the message; rank 0 makes tokens of its logits. */
static int run_step(struct engine *en, struct err *e)
{
    struct model *m = &en->in.loaded->m;
    struct step_message *p = &en->message;
    struct head_out head = { 0 };
    double begin_s = clock_s();

    if (en->inbox)
        count_step(en);
    int rc = step_run(&en->work, m, &en->in.loaded->weights.w, p, en->kv, &head, e);
    if (rc < 0 || !en->inbox)
        return rc;
    en->n_steps++;
    en->n_rows += p->n_rows;
    outputs_expect(&en->outputs, &en->sched);
    en->outputs.now_s = clock_s();
    outputs_process(&en->outputs, m, &head);
    rc = give_states(en, &head, e);
    if (rc < 0)
        return rc;
    drafts_timed(&en->drafts, &en->sched, clock_s() - begin_s);
    kv_plan_timed(&en->plan, p->n_rows, clock_s() - begin_s);
    sched_step_done(&en->sched);
    return 0;
}

static int run_steps(struct engine *en, int64_t limit, struct err *e)
{
    enum step_op op = STEP_IDLE;
    int rc = 0;
    while (op != STEP_STOP) {
        if (en->inbox)
            TRY(next_op(en, limit, &op, e));
        TRY(step_message_pass(&en->message, &en->in.ranks, e));
        op = en->message.op;
        if (op == STEP_GUESS) {
            TRY(drafts_follow(&en->drafts, &en->message, e));
            continue;
        }
        TRY(take_repacked(en, e));
        if (en->in.loaded->mapped)
            TRY(mapped_weights_step(en->in.loaded->mapped, e));
        if (op == STEP_RUN)
            TRY(run_step(en, e));
        if (op > STEP_STOP)
            TRY(run_command(en, e));
    }
out:
    return rc < 0 ? rc : 0;
}

int engine_run(struct engine *en, int64_t limit, struct err *e)
{
    struct fault f;
    int rc = run_steps(en, limit, e);

    if (rc < 0)
        world_fail(en->in.world, e);
    if (!en->inbox)
        return rc;

    /* nothing is accepted any more; what is still there is answered with a 503 */
    if (rc < 0)
        atomic_store(&en->in.sv->state, SERVICE_FAILED);
    router_stop(en->in.router, 1);
    reload_command_disable(&en->in.router->replica[0].reload_command);
    take_requests(en, 0);
    fault_set(&f, 503, NULL, "the server is stopping: %s", rc < 0 ? e->text : "try again later");
    retire_requests(en, 1, &f);
    return rc;
}
