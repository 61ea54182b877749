/* setup.c - opens the parts of a run in order, and closes them. Ranks agree after every part, so that a
 * rank that fails alone does not leave the others waiting in the next collective call. */
#include "train/ptrain.h"

#include "train/checkpoint/publisher.h"
#include "train/checkpoint/restore.h"
#include "train/elastic/note.h"
#include "train/elastic/relayout.h"
#include "train/elastic/turn.h"
#include "train/memory_check.h"
#include "train/run_lock.h"

static int open_files(struct ptrain *p, struct err *e)
{
    int rc;
    TRY(run_open(&p->run, &p->ranks, &p->log.term, e));
    TRY(work_open_data(&p->work, e));
    TRY(run_open_files(&p->run, e));
    TRY(work_open_tokenizer(&p->work, e));
out:
    return rc;
}

static int open_state(struct ptrain *p, struct err *e)
{
    int rc;
    TRY(work_open_state(&p->work, &p->log.term, e));
    if (p->run.o.eval_only)
        return 0;
    const struct train_opts *o = &p->run.o;
    const struct save_place to = { o->out, o->keep, o->save_async, "save" };
    TRY(save_open(&p->save, &p->work, &p->log, &to, e));
    TRY(relayout_open(&p->work.relayout, &p->work, &p->log, e));
    rc = restore_load(&p->work, e);
out:
    return rc;
}

/* What the run is, on the terminal and as the first line of the log. */
static int open_log(struct ptrain *p, struct err *e)
{
    struct facts facts = { 0 };
    int rank, sharers, rc = 0;
    comm_shared_group(ranks_zero(&p->ranks), &rank, &sharers);
    if (ranks_is_first(&p->ranks)) {
        TRY(facts_collect(&facts, &p->work, sharers, e));
        facts_show(&facts, &p->log.term);
    }
    rc = runlog_open(&p->log, &p->work, &facts, e);
out:
    return rc;
}

int ptrain_open(struct ptrain *p, int argc, char **argv, struct err *e)
{
    struct run *run = &p->run;
    struct ranks *ranks = &p->ranks;
    struct log *term = &p->log.term;
    run->lock = -1;
    int rc = run_parse(run, argc, argv, e);
    if (rc)
        return rc;
    p->work.run = run;
    p->work.ranks = ranks;
    p->log.run = run;
    p->log.ranks = ranks;

    TRY(run_check_options(run, e));
    TRY(ranks_open(ranks, &run->o, run->given, argv, term, e));
    /* state in memory ends with the first process: a step is done, and it is saved */
    if (!note_is_kept(run->o.resume))
        world_end_on_stop(ranks->world,
                          "stopped by a signal before the first step: nothing was trained or saved");
    TRY(turn_wait(ranks, e));
    if (rc) /* it has none */
        return rc;
    TRY(run_lock(run, ranks, term, e)); /* before --resume auto looks for the newest checkpoint */
    rc = open_files(p, e);
    TRY(comm_agree(ranks->mesh.all, rc, e));
    if (run->o.dry_run)
        return 0;
    if (run->source)
        TRY(restore_same_version(run->source, ranks, e));
    if (run->lora.owns_base)
        TRY(restore_same_version(run->lora.base, ranks, e));
    TRY(lora_check_base(run, ranks, e));
    TRY(run_lock(run, ranks, term, e)); /* OUT is new: open_files made it */

    TRY(memory_check(run, ranks, term, e));
    rc = work_open(&p->work, term, e);
    TRY(comm_agree(ranks->mesh.all, rc, e));
    rc = open_state(p, e);
    TRY(comm_agree(ranks->mesh.all, rc, e));

    /* reported only now: all ranks have read and checked their parts */
    if (run->source)
        ckpt_end_reading(run->source);
    if (p->work.at.step)
        log_line(term, "resumed %s at step %lld", ckpt_path(run->source), (long long)p->work.at.step);
    if (p->work.at.step && ckpt_writer(run->source))
        restore_report(run->source, term);
    TRY(open_log(p, e));
    if (run->o.publish && !run->o.eval_only) {
        TRY(publish_open(&p->work.publish, &p->work, &p->log, e));
        TRY(publish_start(p->work.publish, e));
    }
    if (run->expert_leaf > 1)
        log_line(term, "orders: %d sequences a leaf of experts' weight gradients", run->expert_leaf);
    if (run->cp_grain > 1)
        log_line(term, "orders: %d leaves a sequence", run->cp_grain);
    world_answer_stop(ranks->world,
                      "stopping after this step, saving; a second Ctrl-C ends the run without saving");
    world_end_on_stop(ranks->world,
                      run->o.eval_only ? "stopped by a signal: the evaluation is not finished" : NULL);
out:
    return rc;
}

void ptrain_close(struct ptrain *p)
{
    runlog_close(&p->log);
    relayout_close(p->work.relayout);
    save_close(p->save);
    publish_close(p->work.publish);
    work_close(&p->work);
    ckpt_close(p->run.source);
    ranks_close(&p->ranks);
    run_unlock(&p->run);
    relayout_pass(p->work.relayout);
    run_close(&p->run);
}
