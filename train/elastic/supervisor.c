/* supervisor.c - see supervisor.h.
 *
 * A job that ended by a change of layout (struct note) goes on in the new one. A job that failed goes on from
 * the newest set in memory, or from the newest checkpoint in --out where that is newer. Failures are counted
 * while no newer set follows: up to --restarts of them, or KEPT_TRIES where state is kept in memory. A new
 * layout whose ranks fail before their first step gives way to the old one. */
#define _GNU_SOURCE
#include "train/elastic/supervisor.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/relay.h"
#include "train/checkpoint/restore.h"
#include "train/elastic/machines.h"
#include "train/elastic/turn.h"

#define KEPT_TRIES 3

/* Arguments of a job: its layout, and where it goes on. */
struct words {
    char resume[MEMORY_PATH_BYTES + 64]; /* an argument */
    char split[LAYOUT_ARGS_BYTES];       /* words of the layout */
    char *more[LAYOUT_ARGS + 5];
    int n;
};

struct supervisor {
    const struct train_opts *o;
    struct keeper *keeper;
    struct note *note;                 /* NULL: no state in memory */
    char layout[2][LAYOUT_ARGS_BYTES]; /* of the job that runs, and of the one before; "": as at first */
    int first_ranks;
    int ranks[2];       /* of both */
    int64_t since;      /* the newest state when the job began */
    int unproven;       /* the layout is new, and no step is done in it */
    int64_t changed_at; /* the last step before it */
    int tries;          /* failures since a newer state */
    int keeper_tries;   /* starts of keepers that ended before a step was done */
    int64_t keeper_at;  /* the last finished step when they were started */
    struct words words; /* of the job that is started */
    struct early {
        int64_t turn, step;
        int waits;  /* 1: they were started */
        int is_job; /* 1: they are the job that runs */
        char args[LAYOUT_ARGS_BYTES];
        struct words words;
    } early;
};

int supervisor_is_needed(const struct train_opts *o)
{
    return o->restarts || o->memory_every || o->layout_file;
}

/* ---- what is there to go on from ---- */

/* The newest checkpoint of --out, by its name; -1: none. */
static int64_t newest_saved(const struct supervisor *k)
{
    DIR *d = k->o->out ? opendir(k->o->out) : NULL;
    struct dirent *x;
    int64_t best = -1;
    while (d && (x = readdir(d))) {
        int64_t s = checkpoint_step(x->d_name);
        best = s > best ? s : best;
    }
    if (d)
        closedir(d);
    return best;
}

/* The newest whole set that is kept here; -1: none. */
static int64_t newest_kept(const struct supervisor *k) { return k->note ? machines_collect(k->note) : -1; }

static int64_t newest(const struct supervisor *k)
{
    const int64_t saved = newest_saved(k), kept = newest_kept(k);
    return saved > kept ? saved : kept;
}

/* Keepers for the machines of the next job. */
static int start_machines(struct supervisor *k, struct err *e)
{
    const int machines = machines_count(k->ranks[0] ? k->ranks[0] : k->first_ranks, k->o->ranks_per_node, e);
    return machines < 0 ? machines : machines_start(k->note, machines, e);
}

/* The words of a layout, "" for none. */
static void put_layout(struct words *w, const char *layout)
{
    char *rest, *word;
    w->n = 0;
    snprintf(w->split, sizeof w->split, "%s", layout);
    for (word = strtok_r(w->split, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        w->more[w->n++] = word;
    w->more[w->n] = NULL;
}

static char resume[] = "--resume";

/* Goes on from the set of a step in memory. */
static void put_kept(struct words *w, struct note *note, int64_t step)
{
    static char tokenizer[] = "--tokenizer";
    snprintf(w->resume, sizeof w->resume, "%s/" NOTE_SET "%lld", note->dir, (long long)step);
    w->more[w->n++] = resume;
    w->more[w->n++] = w->resume;
    if (note->tokenizer[0]) {
        w->more[w->n++] = tokenizer;
        w->more[w->n++] = note->tokenizer;
    }
    w->more[w->n] = NULL;
}

/* The arguments of the next job: its layout, and where it goes on. */
static void make_more(struct supervisor *k, struct launch_next *n)
{
    static char from_out[] = "auto";
    int64_t kept = newest_kept(k), saved = newest_saved(k);
    struct words *w = &k->words;
    struct err e;
    put_layout(w, k->layout[0]);
    if (kept >= 0 && kept >= saved) {
        put_kept(w, k->note, kept);
    } else if (saved >= 0) {
        w->more[w->n++] = resume;
        w->more[w->n++] = from_out;
    } /* else the run begins as it did */
    w->more[w->n] = NULL;
    k->since = kept > saved ? kept : saved;
    k->early.is_job = 0;
    k->keeper_tries = 0;
    if (k->note && start_machines(k, &e) < 0)
        fprintf(stderr, "%s\n", e.text);
    *n = (struct launch_next){ k->ranks[0], w->more, 0 };
}

/* ---- ranks that start early ---- */

static int ranks_of(const char *args) { return atoi(args + sizeof "--ranks=" - 1); }

static int early(void *ctx, struct launch_next *n)
{
    struct supervisor *k = ctx;
    struct note *note = k->note;
    const int64_t turn = note ? atomic_load(&note->asked) : 0;
    if (turn <= k->early.turn || turn <= atomic_load(&note->called_off))
        return 0;
    k->early.turn = turn;
    k->early.waits = 1;
    k->early.step = note->asked_step;
    memcpy(k->early.args, note->asked_args, sizeof k->early.args);
    put_layout(&k->early.words, k->early.args);
    put_kept(&k->early.words, note, k->early.step);
    *n = (struct launch_next){ ranks_of(k->early.args), k->early.words.more, (int)turn };
    return 1;
}

/* The ranks that wait are the job of *n, if rank 0 has passed the turn, or if they go on where it does.
 * Others end. */
static void take_early(struct supervisor *k, struct launch_next *n)
{
    struct early *x = &k->early;
    struct note *note = k->note;
    const int passed = atomic_load(&note->passed) == x->turn, off = atomic_load(&note->called_off) >= x->turn,
              same = !strcmp(x->args, k->layout[0]) && !strcmp(x->words.resume, k->words.resume);
    if (!x->waits || (!passed && (off || !same))) {
        turn_call_off(note, atomic_load(&note->asked));
        return;
    }
    x->waits = 0;
    x->is_job = 1;
    n->turn = (int)x->turn;
    turn_pass(note, x->turn);
}

/* ---- the decision ---- */

static int take_change(struct supervisor *k, struct launch_next *n)
{
    struct note *note = k->note;
    memcpy(k->layout[1], k->layout[0], sizeof k->layout[0]);
    memcpy(k->layout[0], note->args, sizeof k->layout[0]);
    k->ranks[1] = k->ranks[0];
    k->ranks[0] = ranks_of(note->args);
    k->unproven = 1;
    k->changed_at = note->changed_at;
    k->tries = 0;
    make_more(k, n);
    take_early(k, n);
    atomic_store(&note->change, 0);
    return 1;
}

/* The ranks of a new layout did not come to their first step. */
static int take_back(struct supervisor *k, int status, struct launch_next *n)
{
    fprintf(stderr,
            "the new layout (%s) ended with status %d before its first step: back to the old one (%s)\n",
            k->note->to, status, k->note->from);
    memcpy(k->note->refused, k->layout[0], sizeof k->note->refused);
    memcpy(k->layout[0], k->layout[1], sizeof k->layout[0]);
    k->ranks[0] = k->ranks[1];
    k->unproven = 0;
    k->note->resumed = 0;
    make_more(k, n);
    return 1;
}

/* Ranks of a new layout that were started early may have failed for want of what the old ones had. */
static int start_in_turn(struct supervisor *k, int status, struct launch_next *n)
{
    fprintf(stderr,
            "the ranks that started early ended with status %d before their first step: started again\n",
            status);
    k->note->resumed = 1;
    make_more(k, n);
    return 1;
}

static int next(void *ctx, int status, int stopped, struct launch_next *n)
{
    struct supervisor *k = ctx;
    const int most = k->note && k->o->memory_every && k->o->restarts < KEPT_TRIES ? KEPT_TRIES
                                                                                  : (int)k->o->restarts;
    /* a stop that came meanwhile is for the next ranks: nothing of the state is on the disk yet */
    if (k->note && atomic_load(&k->note->change) && stopped < 2)
        return take_change(k, n);
    if (k->note)
        turn_call_off(k->note, atomic_load(&k->note->asked));
    if (k->unproven && atomic_load(&k->note->step) > k->changed_at)
        k->unproven = 0;
    if (k->unproven && k->early.is_job && status && stopped < 2)
        return start_in_turn(k, status, n);
    if (k->unproven && status && stopped < 2)
        return take_back(k, status, n);
    if (newest(k) > k->since)
        k->tries = 0;
    if (!launch_is_failure(status) || stopped || k->tries == most)
        return 0;
    k->tries++;
    if (k->note) {
        k->note->resumed = 2;
        k->note->end_ns = clock_ns();
    }
    make_more(k, n);
    fprintf(stderr, "the job ended with status %d: started again, %d of %d\n", status, k->tries, most);
    return 1;
}

static void ended(void *ctx, long pid)
{
    struct supervisor *k = ctx;
    for (int m = 0; k->note && m < k->note->n_machines; m++)
        if (k->note->keeper[m] == pid) {
            k->note->keeper[m] = 0;
            if (atomic_load(&k->note->step) > k->keeper_at)
                k->keeper_tries = 0;
        }
}

/* Starts keepers that have ended again. They get copies with the next set. */
static void tick(void *ctx)
{
    struct supervisor *k = ctx;
    struct err ignored;
    if (!k->note || k->keeper_tries > KEPT_TRIES || !machines_lack(k->note))
        return;
    if (k->keeper_tries++ < KEPT_TRIES) {
        k->keeper_at = atomic_load(&k->note->step);
        start_machines(k, &ignored);
    }
    if (k->keeper_tries > KEPT_TRIES)
        fprintf(stderr,
                "keepers of machines ended %d times at once: none is started, and no state kept, until ranks "
                "start again\n",
                KEPT_TRIES);
}

static void hangup(void *ctx)
{
    struct supervisor *k = ctx;
    atomic_fetch_add(&k->note->hangups, 1);
}

int supervisor_open(struct launch_keeper *out, const struct train_opts *o, int ranks, struct err *e)
{
    static struct supervisor k;
    void *page = NULL;
    int rc = 0;
    k.o = o;
    k.since = newest_saved(&k);
    *out = (struct launch_keeper){ next, early, ended, tick, o->layout_file ? hangup : NULL, &k };
    if (!o->memory_every && !o->layout_file)
        return 0;
    TRY(relay_make(&page, sizeof *k.note, e));
    k.note = page;
    snprintf(k.note->dir, sizeof k.note->dir, "mem:%ld", (long)getpid());
    k.first_ranks = ranks;
    TRY(start_machines(&k, e));
    if (!keeper_is_at(getpid())) /* --publish has made one */
        rc = keeper_open(&k.keeper, NULL, e);
out:
    return rc;
}
