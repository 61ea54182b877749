/* relayout.c - see relayout.h. */
#include "train/elastic/relayout.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "base/clock.h"
#include "comm/relay.h"
#include "train/checkpoint/save.h"
#include "train/elastic/kept_digest.h"
#include "train/elastic/machines.h"
#include "train/elastic/turn.h"
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

    /* rank 0, from the moment that a change is asked for to the end of the step */
    struct train_opts wish;
    int takes;      /* wish is a layout to change to */
    struct err why; /* code 0: else it is the present one */
    int64_t turn;   /* of the ranks that start early; 0: none do */
    int alone;      /* they are on one machine, as this job is, and find the state where it is */
    int left;       /* the change is under way: this rank ends */
};

/* ---- what the file asks for: rank 0 ---- */

static int same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* The file has changed, or SIGHUP came. */
static int is_asked(const struct relayout *x)
{
    struct stat now;
    return atomic_load(&x->note->hangups) != x->note->heard ||
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

/* Reads and checks the file. 1: x->wish is a layout to change to; 0: it is the present one, or x->why says
 * why it is refused. */
static int read_wish(struct relayout *x)
{
    const int64_t hangups = atomic_load(&x->note->hangups);
    char args[LAYOUT_ARGS_BYTES];
    struct train_opts now = options_now(x), *o = &x->wish;
    *o = now;
    x->why.code = 0;
    if (hangups != x->note->heard)
        x->note->refused[0] = 0;
    x->note->heard = hangups;
    if (stat(o->layout_file, &x->seen) < 0)
        memset(&x->seen, 0, sizeof x->seen);
    int rc = layout_file_read(o->layout_file, o, &x->why);
    layout_args(o, args);
    if (rc >= 0 && (layout_file_same(o, &now) || !strcmp(args, x->note->refused)))
        return 0;
    return rc >= 0 && check(x, o, &x->why) >= 0;
}

int relayout_is_asked(struct relayout *x)
{
    char args[LAYOUT_ARGS_BYTES];
    struct err ignored;
    if (!x || !x->note || !x->run->o.layout_file || !is_asked(x))
        return 0;
    x->takes = read_wish(x);
    layout_args(&x->wish, args);
    /* a device's memory is free only when the ranks that have it are gone */
    x->turn = x->takes && !x->ranks->dev->memory ? turn_ask(x->note, args, x->w->at.step + 1) : 0;
    x->alone = x->note->n_machines < 2 && machines_count(x->wish.ranks, x->wish.ranks_per_node, &ignored) < 2;
    return 1;
}

/* ---- between two steps ---- */

/* Keeps the state in memory, unless this step's is there. All ranks have an error, which leaves nothing. */
static int keep(struct relayout *x, struct err *e)
{
    int rc;
    if (x->kept == x->w->at.step)
        return 0;
    TRY(save_start(x->save, 1, e));
    rc = machines_spread(x->note, x->ranks, (int)x->run->o.ranks_per_node, x->dir, x->w->at.step, e);
    if (rc < 0 && x->note)
        machines_drop(x->note, x->w->at.step - 1, 0);
    TRY(rc);
    x->kept = x->w->at.step;
    if (x->note)
        machines_drop(x->note, x->kept, 1);
out:
    return rc;
}

/* What did not work is said, and the run goes on, unless ranks are lost. */
static int pass_over(struct relayout *x, const char *what, struct err *e)
{
    if (e->code != ERR_FILE && e->code != ERR_MEMORY && e->code != ERR_SPACE)
        return -e->code;
    log_line(&x->log->term, "step %lld: %s: %s", (long long)x->w->at.step, what, e->text);
    return 0;
}

/* Leaves the new layout for the first process, when it has taken the change before. */
static void leave(struct relayout *x, int64_t began)
{
    static const struct timespec nap = { 0, 2000000 };
    struct note *note = x->note;
    struct train_opts now = options_now(x);
    while (atomic_load(&note->change))
        nanosleep(&nap, NULL);
    layout_args(&x->wish, note->args);
    layout_words(&now, note->from);
    layout_words(&x->wish, note->to);
    note->changed_at = x->w->at.step;
    note->end_ns = began;
    note->resumed = 1;
    x->left = 1;
    atomic_store(&note->change, 1);
    log_line(&x->log->term, "step %lld: the ranks end and go on as %s", (long long)x->w->at.step, note->to);
}

/* The change that rank 0 has read. 1: the ranks end. */
static int change(struct relayout *x, int64_t began, struct err *e)
{
    int64_t taken = x->takes;
    int rc = 0;
    if (x->note && x->why.code)
        log_line(&x->log->term, "step %lld: the layout stays: %s", (long long)x->w->at.step, x->why.text);
    TRY(comm_broadcast(x->ranks->mesh.all, &taken, sizeof taken, 0, e));
    if (!taken)
        return 0;
    rc = keep(x, e);
    if (x->note && rc >= 0)
        leave(x, began);
    else if (x->note)
        turn_call_off(x->note, x->turn);
    return rc >= 0 ? 1 : pass_over(x, "the layout stays", e);
out:
    return rc;
}

void relayout_count_step(struct relayout *x)
{
    if (x && x->note)
        atomic_store(&x->note->step, x->w->at.step);
}

int relayout_after_step(struct relayout *x, int asked, struct err *e)
{
    const int64_t began = clock_ns();
    int rc = 0;
    if (!x)
        return 0;
    if (x->run->o.memory_every && x->w->at.step % x->run->o.memory_every == 0 && keep(x, e) < 0)
        TRY(pass_over(x, "the state is not kept", e));
    return asked ? change(x, began, e) : 0;
out:
    return rc;
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
    if (x->note)
        snprintf(x->note->tokenizer, sizeof x->note->tokenizer, "%s", o->tokenizer);
    TRY(save_open(&x->save, w, log, &(struct save_place){ x->dir, 0, 0, "keep" }, e));
out:
    return rc < 0 ? rc : 0;
}

void relayout_close(struct relayout *x)
{
    if (!x)
        return;
    save_close(x->save);
    x->save = NULL;
}

void relayout_pass(struct relayout *x)
{
    if (x && x->left && x->alone)
        turn_pass(x->note, x->turn);
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
