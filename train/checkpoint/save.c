/* save.c - see save.h. The walk of a save:
 *
 *   begin, agree -> snapshot -> assembly.h: write the pieces, publish (rank 0) -> digests
 * With --save-async the phases of the assembly run on a thread, on a copy of the pieces, while training goes
 * on: the main thread asks between steps whether a phase has ended on all ranks (save_poll). Without it
 * the main thread runs the same phases in place. All ranks agree about a failed save. It leaves nothing, and
 * ends the run only with --on-save-error stop, or when it was the last one. */
#include "train/checkpoint/save.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/io.h"
#include "train/checkpoint/assembly.h"
#include "train/checkpoint/pieces.h"
#include "train/checkpoint/restore.h"
#include "train/lora/lora_save.h"

struct save {
    const struct run *run;
    struct ranks *ranks;
    const struct work *work;
    struct runlog *log;
    struct save_place place;
    struct pieces pieces;     /* of this rank */
    struct lora_save adapter; /* of a run with --lora */
    char *snapshot;           /* --save-async: memory for a copy of them */
    struct assembly files;

    /* the save under way */
    int must;                  /* its failure ends the run */
    int64_t step, sample;      /* position of the run that it holds */
    struct ckpt_counts counts; /* likewise; in memory of the save */
    int64_t *counts_memory;    /* NULL: the run keeps none */
    char tmp[4096], dst[4096];
    char note[1200]; /* printed when it is done */
    int lock;        /* of the folder tmp (rank 0), else -1 */
    struct ckpt_digests digests;
    double stall_s, snapshot_s, write_s;

    /* the last one that was published */
    struct ckpt_digests last_digests;
    char last[4096];
};

/* ---- phases: what a thread may do ---- */

static int put(struct save *s, int i, struct ckpt_shard *f, struct err *e)
{
    const struct ckpt_piece *p = &s->pieces.piece[i];
    return s->snapshot ? ckpt_shard_put(f, i, s->snapshot + s->pieces.at[i], p->hi - p->lo, e)
                       : pieces_put(&s->pieces, i, f, e);
}

static int write_pieces(void *arg, void **table, size_t *bytes, struct err *e)
{
    struct save *s = arg;
    struct ckpt_shard *f = NULL;
    double began = clock_s();
    int rc = 0;
    if (!s->pieces.n)
        return 0;
    TRY(ckpt_shard_open_named(&f, s->tmp, world_rank(s->ranks->world),
                              s->pieces.n_given ? PEFT_TENSORS : NULL, s->pieces.n, s->pieces.piece, e));
    for (int i = 0; i < s->pieces.n; i++)
        TRY(put(s, i, f, e));
    struct ckpt_shard *closing = f;
    f = NULL;
    TRY(ckpt_shard_close(closing, table, bytes, e));
out:
    ckpt_shard_abort(f);
    s->write_s = clock_s() - began;
    return rc;
}

/* The lowest step above `above` that has a folder in OUT, and the number of such folders. *step -1: none. */
static int64_t count_steps(const char *out, int64_t above, int64_t *step)
{
    DIR *d = opendir(out);
    struct dirent *x;
    int64_t n = 0;
    *step = -1;
    while (d && (x = readdir(d))) {
        int64_t s = checkpoint_step(x->d_name);
        if (s <= above)
            continue;
        n++;
        *step = *step < 0 || s < *step ? s : *step;
    }
    if (d)
        closedir(d);
    return n;
}

/* Removes all but the newest K checkpoints of OUT, and never this one. What cannot be removed is passed
 * over, and the last such message is kept for the log. */
static void drop_old(struct save *s)
{
    const struct save_place *to = &s->place;
    char path[4200];
    struct err e;
    for (int64_t at = -1; count_steps(to->dir, at, &at) > to->keep && at != s->step;) {
        snprintf(path, sizeof path, "%s/step-%lld", to->dir, (long long)at);
        if (ckpt_remove(path, &e) < 0)
            snprintf(s->note, sizeof s->note, "--keep %lld: %s", (long long)to->keep, e.text);
    }
}

static struct ckpt_meta meta_of(const struct save *s, const char *config)
{
    const struct run *run = s->run;
    const struct layout *l = &s->ranks->layout;
    int64_t windows = data_windows(s->work->data);
    return (struct ckpt_meta){
        .layout = { l->tp, l->pp, l->cp, l->dp, l->ep, l->zero, l->vpp },
        .state = { .has_state = 1,
                   .step = s->step,
                   .seed = (uint64_t)run->o.seed,
                   .epoch = s->sample / windows,
                   .sample = s->sample % windows,
                   .grain = run->cfg.grain,
                   .expert_leaf = run->expert_leaf,
                   .cp_grain = run->cp_grain,
                   .run_json = run->stored_json,
                   .counts = s->counts },
        .config_json = config,
        .n_extra = run->files.n,
        .extra_name = run->files.name,
        .extra_data = run->files.data,
        .extra_bytes = run->files.bytes,
    };
}

/* Rank 0: makes one checkpoint of all ranks' files. */
static int publish(void *arg, int n, void *const *table, const size_t *bytes, struct err *e)
{
    struct save *s = arg;
    int rc;
    char *config = model_config_json(&s->run->cfg, s->run->dt == DT_BF16 ? "bfloat16" : "float32");
    if (!config)
        return err_set(e, ERR_MEMORY, "no memory for the manifest");
    struct ckpt_meta meta = meta_of(s, config);
    TRY(ckpt_publish(s->tmp, s->dst, n, table, bytes, &meta, &s->digests, e));
    if (s->place.keep)
        drop_old(s);
out:
    free(config);
    return rc;
}

static const struct assembly_ops ops = { write_pieces, publish };

/* ---- the walk: collective, on the main thread ---- */

static void forget(struct save *s)
{
    assembly_forget(&s->files);
    io_close(s->lock);
    s->lock = -1;
}

static void abandon(struct save *s)
{
    ckpt_abandon(s->tmp, s->lock);
    s->lock = -1;
}

/* All ranks call it with the same error. Returns 0 when training goes on. */
static int failed(struct save *s, struct err *e)
{
    struct err ignored;
    assembly_wait(&s->files, &ignored);
    if (ranks_is_first(s->ranks) && s->tmp[0])
        abandon(s);
    forget(s);
    err_add(e, "saving %s", s->dst);
    /* no rank exits before the folder is removed: a launcher may stop the others when the first one exits */
    int rc = comm_barrier(s->ranks->mesh.all, &ignored);
    if (rc < 0 || s->must || s->run->o.on_save_error == SAVE_ERROR_STOP)
        return -e->code;

    char *name = runlog_quote(s->dst), *why = runlog_quote(e->text);
    log_line(&s->log->term, "%s: training goes on", e->text);
    runlog_event(s->log, s->step, "save_failed", "\"checkpoint\":%s,\"error\":%s", name ? name : "null",
                 why ? why : "null");
    free(name);
    free(why);
    return 0;
}

/* Reports the slowest rank's times, and the bytes of all. */
static int done(struct save *s, struct err *e)
{
    struct comm *all = s->ranks->mesh.all;
    float worst[3] = { (float)s->stall_s, (float)s->snapshot_s, (float)s->write_s };
    int64_t bytes = (int64_t)s->pieces.bytes;
    int rc = 0;
    TRY(comm_broadcast(all, &s->digests, sizeof s->digests, 0, e));
    TRY(comm_all_reduce_max(all, worst, 3, e));
    TRY(comm_all_reduce_i64(all, &bytes, 1, e));
    s->last_digests = s->digests;
    memcpy(s->last, s->dst, sizeof s->last);

    char *name = runlog_quote(s->dst);
    runlog_event(s->log, s->step, s->place.event,
                 "\"checkpoint\":%s,\"async\":%s,\"stall_ms\":%.6g,\"snapshot_ms\":%.6g,\"write_s\":%.3g,"
                 "\"bytes\":%lld",
                 name ? name : "null", s->snapshot ? "true" : "false", 1e3 * (double)worst[0],
                 1e3 * (double)worst[1], (double)worst[2], (long long)bytes);
    free(name);
    if (s->note[0])
        log_line(&s->log->term, "%s", s->note);
out:
    forget(s);
    return rc;
}

/* Ends the phase, and starts the next one. */
static int advance(struct save *s, struct err *e)
{
    double began = clock_s();
    int rc = assembly_advance(&s->files, e);
    if (rc > 0)
        return done(s, e);
    s->stall_s += clock_s() - began;
    return rc < 0 ? failed(s, e) : 0;
}

int save_poll(struct save *s, struct err *e)
{
    int64_t busy;
    int rc;
    if (s->files.phase == ASSEMBLY_IDLE)
        return 0;
    TRY(assembly_is_busy(&s->files, &busy, e));
    return busy ? 0 : advance(s, e);
out:
    return rc;
}

int save_wait(struct save *s, struct err *e)
{
    int rc = 0;
    while (rc >= 0 && s->files.phase != ASSEMBLY_IDLE)
        rc = advance(s, e);
    return rc;
}

static void copy_task(void *arg, int64_t i, int thread)
{
    struct save *s = arg;
    (void)thread;
    pieces_copy(&s->pieces, (int)i, s->snapshot + s->pieces.at[i]);
}

/* Copies the pieces as they are now; afterwards training may change them. */
static void take_snapshot(struct save *s)
{
    double began = clock_s();
    pool_run(s->ranks->dev->pool, s->pieces.n, copy_task, s);
    s->snapshot_s = clock_s() - began;
}

/* Training may change the counts while they are written. */
static void copy_counts(struct save *s)
{
    struct ckpt_counts now = balance_kept(s->work);
    s->counts = (struct ckpt_counts){ 0 };
    if (!now.count || !s->counts_memory)
        return;
    memcpy(s->counts_memory, now.count, sizeof *now.count * (size_t)(now.n_layers * now.n_experts));
    s->counts = (struct ckpt_counts){ now.n_layers, now.n_experts, s->counts_memory };
}

int save_start(struct save *s, int must, struct err *e)
{
    struct comm *all = s->ranks->mesh.all;
    double began = clock_s();
    int rc = save_wait(s, e); /* for the save before */
    if (rc < 0)
        return rc;
    s->must = must;
    s->step = s->work->at.step;
    s->sample = work_sample(s->work);
    copy_counts(s);
    s->tmp[0] = s->note[0] = 0;
    s->snapshot_s = s->write_s = 0;
    snprintf(s->dst, sizeof s->dst, "%s/step-%lld", s->place.dir, (long long)s->step);

    if (ranks_is_first(s->ranks))
        rc = ckpt_begin(s->dst, s->tmp, &s->lock, &s->log->term, e);
    TRY(comm_agree(all, rc, e));
    TRY(comm_broadcast(all, s->tmp, sizeof s->tmp, 0, e));
    rc = zero_settle_all(s->work->zero, e);
    TRY(comm_agree(all, rc, e));
    if (s->run->lora.n)
        TRY(lora_save_gather(&s->adapter, e));
    if (s->snapshot)
        take_snapshot(s);
    assembly_start(&s->files);
out:
    s->stall_s = clock_s() - began;
    if (rc < 0)
        return failed(s, e);
    return s->snapshot ? 0 : save_wait(s, e);
}

const char *save_last(const struct save *s, struct ckpt_digests *digests)
{
    *digests = s->last_digests;
    return s->last;
}

/* ---- opening and closing ---- */

/* N of the names "step-N.tmp-save", "step-N.2.tmp-save", "step-N.removed.tmp-old"; -1: another name. */
static int64_t step_of_place(const char *name)
{
    const char *dot = strchr(name, '.'), *end = strrchr(name, '.');
    char step[64];
    if (!end || dot - name >= (int)sizeof step || (strcmp(end, ".tmp-save") && strcmp(end, ".tmp-old")))
        return -1;
    snprintf(step, sizeof step, "%.*s", (int)(dot - name), name);
    return checkpoint_step(step);
}

/* Removes what runs that died left in OUT, and says what stays. */
static void drop_left(const char *out, struct log *term)
{
    DIR *d = opendir(out);
    struct dirent *x;
    char path[4400];
    while (d && (x = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", out, x->d_name);
        if (step_of_place(x->d_name) >= 0)
            ckpt_drop_left(path, term);
    }
    if (d)
        closedir(d);
}

static size_t kept_counts(const struct work *w)
{
    return (size_t)(w->model.n_layers * w->model.table.cfg.n_experts);
}

int save_open(struct save **out, const struct work *w, struct runlog *log, const struct save_place *to,
              struct err *e)
{
    struct save *s = *out = calloc(1, sizeof *s);
    struct ranks *ranks = w->ranks;
    int rc = 0;
    if (!s)
        return err_set(e, ERR_MEMORY, "no memory for saves");
    s->run = w->run;
    s->ranks = ranks;
    s->work = w;
    s->log = log;
    s->lock = -1;
    s->place = *to;
    if (ranks_is_first(ranks))
        drop_left(to->dir, &log->term);

    if (s->run->lora.n)
        TRY(lora_save_open(&s->adapter, &s->pieces, w, e));
    else
        TRY(pieces_open(&s->pieces, &w->model, w->zero, comm_rank(ranks_zero(ranks)), ranks->layout.zero, e));
    TRY(assembly_open(&s->files, ranks, to->async, &ops, s, e));
    if (w->balance.before)
        s->counts_memory = calloc(kept_counts(w), sizeof *s->counts_memory);
    if (w->balance.before && !s->counts_memory)
        return err_set(e, ERR_MEMORY, "no memory for saves");
    if (!to->async)
        return 0;
    s->snapshot = mem_alloc(&ranks->mem, MEM_SAVE, s->pieces.bytes);
    if (!s->snapshot)
        return err_set(e, ERR_MEMORY,
                       "no memory for a copy of %zu bytes: use more ranks, or leave --save-async out",
                       s->pieces.bytes);
    memset(s->snapshot, 0, s->pieces.bytes); /* the first snapshot must not wait for pages */
out:
    return rc;
}

void save_close(struct save *s)
{
    struct err ignored;
    if (!s)
        return;
    assembly_wait(&s->files, &ignored);
    if (s->files.phase != ASSEMBLY_IDLE && ranks_is_first(s->ranks))
        abandon(s); /* the run ended by an error while it was written */
    forget(s);
    assembly_close(&s->files);
    mem_free(&s->ranks->mem, s->snapshot);
    free(s->counts_memory);
    pieces_close(&s->pieces);
    lora_save_close(&s->adapter);
    free(s);
}
