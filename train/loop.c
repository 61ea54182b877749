/* loop.c - the run: steps, evaluation, samples, checkpoints, an orderly end when a signal asks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"
#include "train/layout_plan.h"
#include "train/trainer.h"

static int due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

static int evaluate(struct trainer *t, struct err *e)
{
    double loss;
    int rc = trainer_eval(t, &loss, NULL, e);
    if (rc < 0)
        return rc;
    log_line(&t->log, "step %lld: evaluation loss %.6f, perplexity %.4f", (long long)t->step, loss,
             exp(loss));
    runlog_event(t, "eval", "\"eval_loss\":%.9g", loss);
    return 0;
}

static int eval_only(struct trainer *t, struct err *e)
{
    FILE *f = NULL;
    double loss;
    int rc = 0, first = world_rank(t->world) == 0;
    if (first && t->o.eval_logprobs && !(f = fopen(t->o.eval_logprobs, "w")))
        rc = err_sys(e, "%s: cannot write", t->o.eval_logprobs);
    TRY(comm_agree(t->mesh.all, rc, e));
    TRY(trainer_eval(t, &loss, f, e));
    if (f && fclose(f))
        rc = err_sys(e, "%s: cannot write", t->o.eval_logprobs);
    f = NULL;
    if (first && rc >= 0)
        printf("{\"loss\":%.9g,\"perplexity\":%.9g,\"windows\":%lld,\"tokens\":%lld}\n", loss, exp(loss),
               (long long)data_windows(t->eval), (long long)(data_windows(t->eval) * t->o.seq_len));
    if (first && rc >= 0 && fflush(stdout))
        rc = err_sys(e, "cannot write the result to stdout");
out:
    if (f)
        fclose(f);
    return rc;
}

/* What the pipeline's ranks waited, beside what their schedule waits when a forward takes 1 and a backward
 * 2. */
static int report_bubble(struct trainer *t, struct err *e)
{
    struct pipe_shape s = train_plan_schedule(&t->plan, &t->layout, (enum pipe_kind)t->o.pipeline);
    struct pipe_report plan;
    int64_t us[2] = { (int64_t)(t->all_waited_s * 1e6), (int64_t)(t->all_steps_s * 1e6) };
    int rc = 0;
    if (t->layout.pp == 1 || t->step < t->first_step + 2)
        return 0;
    TRY(train_plan_pipeline(&plan, &s, NULL, e));
    TRY(comm_all_reduce_i64(t->mesh.all, us, 2, e));
    double measured = us[1] > 0 ? (double)us[0] / (double)us[1] : 0;
    log_line(&t->log, "pipeline: ranks waited %.1f %% of their time, the schedule waits %.1f %%",
             100 * measured, 100 * plan.bubble);
    runlog_event(t, "pipeline", "\"bubble\":%.4g,\"bubble_planned\":%.4g", measured, plan.bubble);
out:
    return rc;
}

static int report(struct trainer *t, const struct step_result *r, struct err *e)
{
    char weights[33], state[33], loss[32], *name;
    uint32_t bits;
    if (world_rank(t->world))
        return 0;
    memcpy(&bits, &r->loss, 4);
    ckpt_digest_hex(t->digests.weights, weights);
    ckpt_digest_hex(t->digests.state, state);
    name = runlog_quote(t->last_checkpoint);
    printf("{\"steps\":%lld,\"loss\":%s,\"loss_bits\":\"%08x\",\"weights_digest\":\"%s\",\"state_digest\":\"%"
           "s\",\"checkpoint\":%s}\n",
           (long long)t->step, jx_float32(r->loss, loss), bits, weights, state, name ? name : "null");
    free(name);
    return fflush(stdout) ? err_sys(e, "cannot write the result to stdout") : 0;
}

int trainer_plan(struct trainer *t, struct err *e)
{
    int sharers = !strcmp(t->o.transport, "mpi") && !t->o.ranks_per_node
                      ? 1
                      : train_plan_sharers(&t->layout, (int)t->o.ranks_per_node);
    struct run_ask ask = { t->cfg,
                           t->layout,
                           t->o.global_batch,
                           t->o.micro_batch,
                           t->o.seq_len,
                           t->dt,
                           (enum recompute)t->o.recompute,
                           (enum pipe_kind)t->o.pipeline,
                           sharers,
                           opts_overlap(&t->o, t->given, t->layout.dp, sharers),
                           t->o.save_async,
                           (int)t->o.documents,
                           pool_threads(t->dev->pool) };
    FILE *out = world_rank(t->world) ? NULL : stdout;
    struct run_plan p;
    int rc = train_plan_make(&p, &ask, out, e);
    if (rc >= 0 && out)
        train_plan_print(&p, &ask, out);
    return rc;
}

int64_t trainer_end(const struct trainer *t)
{
    return t->o.stop_after && t->o.stop_after < t->o.steps ? t->o.stop_after : t->o.steps;
}

int trainer_run(struct trainer *t, struct err *e)
{
    struct step_result r = { 0 };
    int64_t end = trainer_end(t);
    int rc;
    if (t->o.eval_only)
        return eval_only(t, e);
    /* a scheduler that starts a finished run again finds it finished */
    if (t->step >= end && t->resume_auto) {
        log_line(&t->log, "%s is at step %lld: the run is finished", ckpt_path(t->source),
                 (long long)t->step);
        return 0;
    }
    if (t->step >= end) {
        rc = err_set(e, ERR_USAGE,
                     "%s is at step %lld already, the run ends at step %lld: raise --steps or --stop-after",
                     ckpt_path(t->source), (long long)t->step, (long long)end);
        goto out;
    }
    while (t->step < end && !r.stop) {
        TRY(step_run(t, &r, e));
        runlog_step(t, &r);
        if (t->step == t->first_step + 1)
            TRY(runlog_memory(t, "first step", e));
        if (t->eval && due(t->o.eval_every, t->step))
            TRY(evaluate(t, e));
        if (due(t->o.sample_every, t->step))
            TRY(trainer_sample(t, e));
        if (due(t->o.save_every, t->step) || r.stop || t->step == end)
            TRY(trainer_save(t, r.stop || t->step == end, e));
        else
            TRY(trainer_save_poll(t, e));
    }
    TRY(trainer_save_wait(t, e));
    TRY(runlog_memory(t, "end", e));
    TRY(report_bubble(t, e));
    if (r.stop)
        log_line(&t->log, "stopped by a signal at step %lld; continue with --resume %s", (long long)t->step,
                 t->last_checkpoint);
    TRY(report(t, &r, e));
    rc = t->trace ? world_trace_write(t->world, t->trace, t->o.trace, e) : 0;
out:
    /* all ranks are here with it: the save before is not lost */
    if (rc < 0 && e->code == ERR_NUMBER) {
        struct err late;
        trainer_save_wait(t, &late);
    }
    return rc;
}
