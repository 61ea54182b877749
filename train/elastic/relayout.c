/* relayout.c - see relayout.h. */
#include "train/elastic/relayout.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/clock.h"
#include "comm/relay.h"
#include "train/checkpoint/save.h"
#include "train/elastic/kept_digest.h"
#include "train/elastic/machines.h"
#include "train/layout_plan.h"
#include "train/memory_check.h"

struct relayout {
    const struct run *run;
    struct ranks *ranks;
    const struct work *w;
    struct runlog *log;
    struct note *note; /* rank 0 */
    char dir[MEMORY_PATH_BYTES];
    int64_t kept;      /* the step of the newest set */
    struct save *save; /* of sets in memory */
    struct stat seen;  /* the file, when it was read last */
    int64_t hangups;
};

/* ---- what the file asks for: rank 0 ---- */

static int same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

int relayout_is_asked(struct relayout *x)
{
    struct stat now;
    if (!x || !x->note || !x->run->o.layout_file)
        return 0;
    return atomic_load(&x->note->hangups) != x->hangups ||
           (stat(x->run->o.layout_file, &now) == 0 && !same_file(&now, &x->seen));
}

/* The layout, batch and schedule fit each other, and the bits stay. */
static int check_plan(const struct relayout *x, const struct run *run, const struct ranks *ranks,
                      struct err *e)
{
    const struct layout *l = &ranks->layout;
    const int sharers = layout_plan_sharers(l, (int)run->o.ranks_per_node);
    struct layout_spec ask = memory_check_spec(run, ranks, sharers);
    struct layout_plan plan;
    int rc = 0;
    TRY(layout_check(l, &run->cfg, e));
    TRY(layout_check_leaves(l, run->cp_grain, e));
    TRY(layout_plan_make(&plan, &ask, NULL, e));
    TRY(batch_check_leaf(&plan.batch, l, run->expert_leaf, e));
    const int grows = layout_grain(l, &run->cfg) != run->cfg.grain;
    if ((plan.batch.in_tree && !grows && x->w->plan.in_tree && run->o.numerics == NUMERICS_EXACT) ||
        run->o.any_bits)
        return 0;
    if (grows)
        return err_set(e, ERR_USAGE, "tp %d cuts the tree of grain %d elsewhere, and would change the bits",
                       l->tp, run->cfg.grain);
    if (!plan.batch.in_tree)
        return err_set(e, ERR_USAGE,
                       "dp %d cuts the tree of %lld sequences elsewhere, and would change the bits", l->dp,
                       (long long)plan.batch.rows);
    return err_set(e, ERR_USAGE, "the bits of this run are its present layout's own");
out:
    return rc;
}

static int check(const struct relayout *x, const struct train_opts *o, struct err *e)
{
    struct run run = *x->run;
    struct ranks ranks = *x->ranks;
    int rc;
    run.o = *o;
    ranks.layout = ranks_layout(o, (int)(o->ranks / (o->tp * o->pp * o->cp)));
    TRY(machines_count(o->ranks, o->ranks_per_node, e));
    TRY(run_check_options(&run, e));
    if (o->overlap == OVERLAP_ON && opts_given(run.given, "overlap") && layout_slices(&ranks.layout) < 2 &&
        o->ep < 2)
        return err_set(e, ERR_USAGE, "--overlap on of the command line needs dp, cp or ep above 1");
    rc = check_plan(x, &run, &ranks, e);
    if (rc < 0)
        err_add(e, "%s", o->layout_file);
out:
    return rc;
}

/* The options of this run as its ranks are. */
static struct train_opts options_now(const struct relayout *x)
{
    struct train_opts o = x->run->o;
    o.ranks = world_size(x->ranks->world);
    return o;
}

/* Reads and checks the file. 1: *o is a layout to change to; 0: it is the present one, or refused, which is
 * said. */
static int read_wish(struct relayout *x, struct train_opts *o)
{
    const int64_t hangups = atomic_load(&x->note->hangups);
    char args[LAYOUT_ARGS_BYTES];
    struct train_opts now = options_now(x);
    struct err e;
    *o = now;
    if (hangups != x->hangups)
        x->note->refused[0] = 0;
    x->hangups = hangups;
    if (stat(o->layout_file, &x->seen) < 0)
        memset(&x->seen, 0, sizeof x->seen);
    int rc = layout_file_read(o->layout_file, o, &e);
    layout_args(o, args);
    if (rc >= 0 && (layout_file_same(o, &now) || !strcmp(args, x->note->refused)))
        return 0;
    if (rc >= 0)
        rc = check(x, o, &e);
    if (rc >= 0)
        return 1;
    log_line(&x->log->term, "step %lld: the layout stays: %s", (long long)x->w->at.step, e.text);
    return 0;
}

/* ---- between two steps ---- */

/* Keeps the state in memory, unless this step's is there. */
static int keep(struct relayout *x, struct err *e)
{
    int rc;
    if (x->kept == x->w->at.step)
        return 0;
    TRY(save_start(x->save, 1, e));
    x->kept = x->w->at.step;
    TRY(machines_spread(x->note, x->ranks, (int)x->run->o.ranks_per_node, x->dir, x->kept, e));
    if (x->note)
        machines_drop(x->note, x->kept, 1);
out:
    return rc;
}

/* Leaves the new layout for the first process. */
static void leave(struct relayout *x, const struct train_opts *o, int64_t began)
{
    struct note *note = x->note;
    struct train_opts now = options_now(x);
    layout_args(o, note->args);
    layout_words(&now, note->from);
    layout_words(o, note->to);
    note->end_ns = began;
    atomic_store(&note->change, 1);
    log_line(&x->log->term, "step %lld: the ranks end and go on as %s", (long long)x->w->at.step, note->to);
}

int relayout_after_step(struct relayout *x, int asked, struct err *e)
{
    struct train_opts o;
    int64_t taken = 0, began = clock_ns();
    int rc = 0;
    if (!x)
        return 0;
    if (x->note)
        atomic_store(&x->note->step, x->w->at.step);
    if (x->run->o.memory_every && x->w->at.step % x->run->o.memory_every == 0)
        TRY(keep(x, e));
    if (!asked)
        return 0;
    if (x->note)
        taken = read_wish(x, &o);
    TRY(comm_broadcast(x->ranks->mesh.all, &taken, sizeof taken, 0, e));
    if (!taken)
        return 0;
    TRY(keep(x, e));
    if (x->note)
        leave(x, &o, began);
    return 1;
out:
    return rc < 0 ? rc : 0;
}

/* ---- opening ---- */

int relayout_open(struct relayout **out, const struct work *w, struct runlog *log, struct err *e)
{
    const struct train_opts *o = &w->run->o;
    struct relayout *x;
    int rc = 0;
    if (!o->memory_every && !o->layout_file)
        return 0;
    if (!(x = *out = calloc(1, sizeof *x)))
        return err_set(e, ERR_MEMORY, "no memory for an elastic run");
    x->run = w->run;
    x->ranks = w->ranks;
    x->w = w;
    x->log = log;
    x->kept = -1;
    if (ranks_is_first(x->ranks)) {
        x->note = relay_open(sizeof *x->note);
        if (x->note)
            memcpy(x->dir, x->note->dir, sizeof x->dir);
        else
            rc = err_set(e, ERR_USAGE,
                         "--%s needs ranks that ptrain starts: leave the launcher out, or the option",
                         o->layout_file ? "layout-file" : "memory-every");
    }
    TRY(comm_agree(x->ranks->mesh.all, rc, e));
    TRY(comm_broadcast(x->ranks->mesh.all, x->dir, sizeof x->dir, 0, e));
    if (x->note) {
        x->hangups = atomic_load(&x->note->hangups);
        snprintf(x->note->tokenizer, sizeof x->note->tokenizer, "%s", o->tokenizer);
    }
    TRY(save_open(&x->save, w, log, &(struct save_place){ x->dir, 0, 0, "keep" }, e));
out:
    return rc < 0 ? rc : 0;
}

void relayout_close(struct relayout *x)
{
    if (!x)
        return;
    save_close(x->save);
    free(x);
}

int relayout_begin(struct relayout *x, struct err *e)
{
    char digest[33];
    int64_t resumed = 0;
    int rc = 0;
    if (!x)
        return 0;
    if (x->note)
        machines_drop(x->note, x->w->at.step, 0);
    if (note_is_kept(x->run->o.resume))
        x->kept = x->w->at.step;
    resumed = x->note ? x->note->resumed : 0;
    TRY(comm_broadcast(x->ranks->mesh.all, &resumed, sizeof resumed, 0, e));
    if (resumed == 1)
        TRY(kept_digest_check(x->w, digest, e));
    if (!x->note || !resumed)
        return 0;

    struct note *note = x->note;
    const double s = (double)(clock_ns() - note->end_ns) / SECOND_NS;
    note->resumed = 0;
    if (resumed == 1) {
        log_line(&x->log->term, "layout: %s -> %s at step %lld, digest %s before and after, %.2f s",
                 note->from, note->to, (long long)x->w->at.step, digest, s);
        runlog_event(x->log, x->w->at.step, "layout",
                     "\"from\":\"%s\",\"to\":\"%s\",\"state_digest\":\"%s\",\"seconds\":%.3f", note->from,
                     note->to, digest, s);
    } else {
        log_line(&x->log->term, "restarted at step %lld, %lld finished steps again, %.2f s",
                 (long long)x->w->at.step, (long long)(atomic_load(&note->step) - x->w->at.step), s);
        runlog_event(x->log, x->w->at.step, "restart", "\"seconds\":%.3f,\"again\":%lld", s,
                     (long long)(atomic_load(&note->step) - x->w->at.step));
    }
out:
    return rc;
}
