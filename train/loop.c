/* loop.c - the run: steps, evaluation, samples, checkpoints, an orderly end when a signal asks for it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/io.h"
#include "base/jx.h"
#include "train/checkpoint/publisher.h"
#include "train/elastic/relayout.h"
#include "train/eval.h"
#include "train/layout_plan.h"
#include "train/memory_check.h"
#include "train/ptrain.h"
#include "train/simulate/sim_plan.h"
#include "train/step.h"

static int due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

/* ---- evaluation ---- */
static int evaluate(struct work *w, struct runlog *log, struct err *e)
{
    double loss;
    int rc = eval_run(w, &log->term, &loss, NULL, e);
    if (rc < 0)
        return rc;
    if (rc) {
        log_line(&log->term, "step %lld: the evaluation is left unfinished", (long long)w->at.step);
        return 0;
    }
    log_line(&log->term, "step %lld: evaluation loss %.6f, perplexity %.4f", (long long)w->at.step, loss,
             exp(loss));
    runlog_event(log, w->at.step, "eval", "\"eval_loss\":%.9g,\"windows\":%lld", loss,
                 (long long)eval_windows(w));
    return 0;
}

/* --eval-only: the result, and with --eval-logprobs the log-probs of every token. */
static int eval_only(struct work *w, struct log *term, struct err *e)
{
    const struct train_opts *o = &w->run->o;
    FILE *f = NULL;
    double loss;
    int rc = 0, first = ranks_is_first(w->ranks);
    if (first && o->eval_logprobs && !(f = io_write_text(o->eval_logprobs, 0, e)))
        rc = -e->code;
    TRY(comm_agree(w->ranks->mesh.all, rc, e));
    term->last_s = clock_s(); /* the first plain line comes after ten seconds: short evaluations have ended */
    TRY(eval_run(w, term, &loss, f, e));
    log_close(term); /* the result begins a line of its own */

    if (f && fclose(f))
        rc = err_sys(e, "%s: cannot write", o->eval_logprobs);
    f = NULL;
    if (first && rc >= 0) {
        int64_t windows = eval_windows(w);
        printf("{\"loss\":%.9g,\"perplexity\":%.9g,\"windows\":%lld,\"tokens\":%lld}\n", loss, exp(loss),
               (long long)windows, (long long)(windows * o->seq_len));
        if (fflush(stdout))
            rc = err_sys(e, "cannot write the result to stdout");
    }
out:
    if (f)
        fclose(f);
    return rc;
}

/* ---- reports at the end ---- */
/* The share of time that pipeline ranks waited, and the share that their schedule waits when a forward
 * takes 1 and a backward 2. */
static int report_bubble(const struct work *w, struct runlog *log, struct err *e)
{
    const struct layout *layout = &w->ranks->layout;
    enum pipe_kind kind = (enum pipe_kind)w->run->o.pipeline;
    struct pipe_shape s = layout_plan_schedule(&w->plan, layout, kind);
    struct pipe_report plan;
    int64_t us[2] = { (int64_t)(w->all_waited_s * 1e6), (int64_t)(w->all_steps_s * 1e6) };
    int rc = 0;
    if (layout->pp == 1 || w->at.step < w->at.first_step + 2)
        return 0;
    TRY(layout_plan_pipeline(&plan, &s, NULL, e));
    TRY(comm_all_reduce_i64(w->ranks->mesh.all, us, 2, e));
    double measured = us[1] > 0 ? (double)us[0] / (double)us[1] : 0;
    log_line(&log->term, "pipeline: ranks waited %.1f %% of their time, the schedule waits %.1f %%",
             100 * measured, 100 * plan.bubble);
    runlog_event(log, w->at.step, "pipeline", "\"bubble\":%.4g,\"bubble_planned\":%.4g", measured,
                 plan.bubble);
out:
    return rc;
}

/* What the disk did for --offload DIR, and the share of it that training did not wait for. */
static int report_offload(const struct work *w, struct runlog *log, struct err *e)
{
    struct offload_count c;
    char moved[32];
    int rc = 0;
    if (!w->offload)
        return 0;
    c = offload_count(w->offload);
    int64_t bytes = c.read_bytes + c.written_bytes;
    TRY(comm_all_reduce_i64(w->ranks->mesh.all, &bytes, 1, e));
    if (!c.updates || !bytes)
        return 0;
    double hidden = c.disk_s > c.waited_s ? 1 - c.waited_s / c.disk_s : 0;
    log_bytes(moved, (double)bytes);
    log_line(&log->term, "offload: %s a step read and written, %.3g s of disk a step, %.0f %% hidden", moved,
             c.disk_s / (double)c.updates, 100 * hidden);
    runlog_event(log, w->at.step, "offload",
                 "\"bytes\":%lld,\"side_bytes\":%lld,\"updates\":%lld,\"redone\":%lld,\"disk_s\":%.6g,"
                 "\"waited_s\":%.6g",
                 (long long)bytes, (long long)c.side_bytes, (long long)c.updates, (long long)c.redone,
                 c.disk_s, c.waited_s);
out:
    return rc;
}

/* The run's result, one line of JSON on stdout. */
static int print_result(int64_t step, float last_loss, const struct save *s, struct err *e)
{
    struct ckpt_digests digests;
    char weights[33], state[33], loss[32], *name = runlog_quote(save_last(s, &digests));
    uint32_t bits;
    memcpy(&bits, &last_loss, 4);
    ckpt_digest_hex(digests.weights, weights);
    ckpt_digest_hex(digests.state, state);
    printf("{\"steps\":%lld,\"loss\":%s,\"loss_bits\":\"%08x\",\"weights_digest\":\"%s\","
           "\"state_digest\":\"%s\",\"checkpoint\":%s}\n",
           (long long)step, jx_float32(last_loss, loss), bits, weights, state, name ? name : "null");
    free(name);
    return fflush(stdout) ? err_sys(e, "cannot write the result to stdout") : 0;
}

/* ---- the run ---- */
/* After a step: what is due at it. must_save: the run ends here. */
static int after_step(struct ptrain *p, int must_save, struct err *e)
{
    const struct train_opts *o = &p->run.o;
    struct work *w = &p->work;
    int64_t step = w->at.step;
    int rc = 0;
    TRY(publish_wait(w->publish, e));
    if (step == w->at.first_step + 1)
        TRY(runlog_memory(&p->log, step, "first step", e));
    if (w->eval && due(o->eval_every, step))
        TRY(evaluate(w, &p->log, e));
    if (due(o->sample_every, step))
        TRY(sample_run(w, &p->log.term, e));
    if (w->publish && (must_save || due(o->publish_every, step)))
        TRY(publish_start(w->publish, e));
    if (must_save || due(o->save_every, step))
        TRY(save_start(p->save, must_save, e));
    else
        TRY(save_poll(p->save, e));
out:
    return rc;
}

static int train(struct ptrain *p, int64_t end, struct err *e)
{
    struct work *w = &p->work;
    struct step_result r = { 0 };
    struct ckpt_digests ignored;
    int rc = 0;
    TRY(relayout_begin(w->relayout, e));
    for (;;) {
        world_limit_waits(p->ranks.world, p->run.o.rank_timeout_s); /* a step keeps every rank sending */
        TRY(step_run(w, &p->log, &r, e));
        world_limit_waits(p->ranks.world, 0);
        relayout_count_step(w->relayout);
        runlog_step(&p->log, w->at.step, &r);
        TRY(after_step(p, r.stop || w->at.step == end, e));
        if (w->at.step == end || r.stop)
            break;
        TRY(relayout_after_step(w->relayout, r.relayout, e));
        if (rc) { /* the run goes on in other ranks */
            TRY(publish_wait(w->publish, e));
            return save_wait(p->save, e);
        }
    }

    TRY(publish_wait(w->publish, e));
    TRY(save_wait(p->save, e));
    TRY(runlog_memory(&p->log, w->at.step, "end", e));
    TRY(report_bubble(w, &p->log, e));
    TRY(report_offload(w, &p->log, e));
    if (r.stop)
        log_line(&p->log.term, "stopped by a signal at step %lld; continue with --resume %s",
                 (long long)w->at.step, save_last(p->save, &ignored));
    if (ranks_is_first(&p->ranks))
        TRY(print_result(w->at.step, r.loss, p->save, e));
    if (p->ranks.trace)
        rc = world_trace_write(p->ranks.world, p->ranks.trace, p->run.o.trace, e);
out:
    return rc;
}

int ptrain_run(struct ptrain *p, struct err *e)
{
    const struct ckpt *source = p->run.source;
    int64_t end = run_end_step(&p->run), step = p->work.at.step;
    if (p->run.o.eval_only)
        return eval_only(&p->work, &p->log.term, e);
    /* a scheduler that starts a finished run again finds it finished */
    if (step >= end && p->run.resumes_newest) {
        log_line(&p->log.term, "%s is at step %lld: the run is finished", ckpt_path(source), (long long)step);
        return 0;
    }
    if (step >= end)
        return err_set(e, ERR_USAGE,
                       "%s is at step %lld already, the run ends at step %lld: raise --steps or --stop-after",
                       ckpt_path(source), (long long)step, (long long)end);

    int rc = train(p, end, e);
    /* all ranks have this error, so they can finish the save that is under way: it is not lost */
    if (rc < 0 && e->code == ERR_NUMBER) {
        struct err ignored;
        save_wait(p->save, &ignored);
    }
    return rc;
}

int ptrain_plan(struct ptrain *p, struct err *e)
{
    const struct train_opts *o = &p->run.o;
    const struct layout *layout = &p->ranks.layout;
    int one_machine = strcmp(o->transport, "mpi") || o->ranks_per_node;
    int sharers = one_machine ? layout_plan_sharers(layout, (int)o->ranks_per_node) : 1;
    struct layout_spec ask = memory_check_spec(&p->run, &p->ranks, sharers);
    FILE *out = ranks_is_first(&p->ranks) ? stdout : NULL;

    struct layout_plan plan;
    int rc = 0;
    if (o->simulate)
        TRY(sim_plan_show(o->simulate, &ask, out, e));
    TRY(layout_plan_make(&plan, &ask, out, e));
    if (out)
        layout_plan_print(&plan, &ask, out);
out:
    return rc;
}
