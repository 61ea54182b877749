/* save.c - a checkpoint: every rank writes its own pieces, rank 0 publishes what all have sealed.
 *
 *   begin, agree -> snapshot -> write the pieces -> agree, gather tables -> publish (rank 0) -> agree,
 *                               digests
 *                               `--- phase ----'                            `--- phase ---'
 * With --save-async a phase is run by a thread of its own, on a copy of the pieces, while training goes on.
 * That thread calls nothing of comm/: the main thread asks between steps whether the phase is over on all
 * ranks (trainer_save_poll), and only then takes the next agreement. Without, the same phases are run in
 * place. A failed save is agreed by all ranks, leaves nothing, and ends the run only where
 * --on-save-error stop says so, or when it was the last one. */
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/io.h"
#include "train/checkpoint/pieces.h"
#include "train/trainer.h"

enum phase { IDLE, WRITING, PUBLISHING };
struct save {
    struct trainer *t;
    enum phase phase;
    int must;                                   /* the run is not done without this one */
    int64_t step, sample;                       /* what it holds */
    char tmp[4096], dst[4096], note[1200];      /* note: said when it is done */
    int lock;                                   /* of the folder tmp (rank 0), else -1 */
    struct pieces pieces;                       /* of this rank */
    char *snapshot;                             /* --save-async: room for a copy of them */
    int (*work)(struct save *s, struct err *e); /* the phase */
    pthread_t thread;
    int has_thread, rc; /* rc, err: how the phase ended */
    struct err err;
    _Atomic int running;
    void *table, *blobs; /* of this rank's files; of all ranks' (rank 0) */
    size_t table_bytes, *sizes;
    struct ckpt_digests digests;
    double stall_s, snapshot_s, write_s;
};

/* ---- phases: what a thread may do ---- */

static int put(struct save *s, int i, struct ckpt_shard *f, struct err *e)
{
    const struct ckpt_piece *p = &s->pieces.piece[i];
    return s->snapshot ? ckpt_shard_put(f, i, s->snapshot + s->pieces.at[i], p->hi - p->lo, e)
                       : pieces_put(&s->pieces, i, f, e);
}

static int write_pieces(struct save *s, struct err *e)
{
    struct ckpt_shard *f = NULL;
    double began = clock_s();
    int rc = 0;
    if (!s->pieces.n)
        return 0;
    TRY(ckpt_shard_open(&f, s->tmp, world_rank(s->t->world), s->pieces.n, s->pieces.piece, e));
    for (int i = 0; i < s->pieces.n; i++)
        TRY(put(s, i, f, e));
    struct ckpt_shard *closing = f;
    f = NULL;
    TRY(ckpt_shard_close(closing, &s->table, &s->table_bytes, e));
out:
    ckpt_shard_abort(f);
    s->write_s = clock_s() - began;
    return rc;
}

/* Removes all but the newest K checkpoints of OUT, and never this one. */
static void drop_old(struct save *s)
{
    const struct train_opts *o = &s->t->o;
    for (;;) {
        DIR *d = opendir(o->out);
        struct dirent *x;
        int64_t oldest = INT64_MAX, n = 0;
        char path[4200];
        struct err e;
        while (d && (x = readdir(d))) {
            int64_t step = trainer_step_of(x->d_name);
            if (step < 0)
                continue;
            n++;
            oldest = step < oldest ? step : oldest;
        }
        if (d)
            closedir(d);
        if (n <= o->keep || oldest == s->step)
            return;
        snprintf(path, sizeof path, "%s/step-%lld", o->out, (long long)oldest);
        if (ckpt_remove(path, &e) < 0) {
            snprintf(s->note, sizeof s->note, "--keep %lld: %s", (long long)o->keep, e.text);
            return;
        }
    }
}

static int publish(struct save *s, struct err *e)
{
    struct trainer *t = s->t;
    int n = world_size(t->world), used = 0, rc;
    void **table = calloc((size_t)n, sizeof *table);
    size_t *bytes = calloc((size_t)n, sizeof *bytes);
    char *config = model_config_json(&t->cfg, t->dt == DT_BF16 ? "bfloat16" : "float32"), *at = s->blobs;
    struct ckpt_meta meta = {
        .layout = { t->layout.tp, t->layout.pp, t->layout.cp, t->layout.dp, t->layout.ep, t->layout.zero,
                    t->layout.vpp },
        .state = { .has_state = 1,
                   .step = s->step,
                   .seed = (uint64_t)t->o.seed,
                   .epoch = s->sample / data_windows(t->data),
                   .sample = s->sample % data_windows(t->data),
                   .grain = t->cfg.grain,
                   .run_json = t->run_json },
        .config_json = config,
        .n_extra = t->n_extra,
        .extra_name = t->extra_name,
        .extra_data = t->extra_data,
        .extra_bytes = t->extra_bytes,
    };
    if (!table || !bytes || !config) {
        rc = err_set(e, ERR_MEMORY, "no memory for the manifest");
        goto out;
    }
    for (int r = 0; r < n; at += s->sizes[r++]) {
        if (!s->sizes[r])
            continue;
        table[used] = at;
        bytes[used++] = s->sizes[r];
    }
    TRY(ckpt_publish(s->tmp, s->dst, used, table, bytes, &meta, &s->digests, e));
    if (t->o.keep)
        drop_old(s);
out:
    free(config);
    free(table);
    free(bytes);
    return rc;
}

/* ---- running a phase ---- */

static void *run_phase(void *arg)
{
    struct save *s = arg;
    if (s->snapshot) /* a thread of its own: not on the CPU that computes */
        pool_unpin_self(s->t->dev->pool);
    s->rc = s->work(s, &s->err);
    atomic_store(&s->running, 0);
    return NULL;
}

static void start_phase(struct save *s, enum phase phase, int (*work)(struct save *s, struct err *e))
{
    s->phase = phase;
    s->work = work;
    s->rc = 0;
    if (!s->snapshot) {
        run_phase(s);
        return;
    }
    atomic_store(&s->running, 1);
    int rc = pthread_create(&s->thread, NULL, run_phase, s);
    s->has_thread = rc == 0;
    if (rc) {
        atomic_store(&s->running, 0);
        s->rc = err_set(&s->err, ERR_MEMORY, "cannot start the thread that writes: %s", strerror(rc));
    }
}

/* Waits for its end. */
static int end_phase(struct save *s, struct err *e)
{
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    s->has_thread = 0;
    if (s->rc < 0)
        *e = s->err;
    return s->rc;
}

/* ---- the walk: collective, on the main thread ---- */

static void forget(struct save *s)
{
    free(s->table);
    free(s->blobs);
    io_close(s->lock);
    s->lock = -1;
    s->table = s->blobs = NULL;
    s->table_bytes = 0;
    s->phase = IDLE;
}

static void abandon(struct save *s)
{
    ckpt_abandon(s->tmp, s->lock);
    s->lock = -1;
}

/* All ranks are here with the same error. Returns 0 when training goes on. */
static int failed(struct trainer *t, struct err *e)
{
    struct save *s = t->save;
    struct err late;
    end_phase(s, &late);
    if (world_rank(t->world) == 0 && s->tmp[0])
        abandon(s);
    forget(s);
    err_add(e, "saving %s", s->dst);
    /* nobody leaves before the folder is gone: a launcher may stop the others at the first end */
    if (comm_barrier(t->mesh.all, &late) < 0 || s->must || t->o.on_save_error == SAVE_ERROR_STOP)
        return -e->code;
    char *name = runlog_quote(s->dst), *why = runlog_quote(e->text);
    log_line(&t->log, "%s: training goes on", e->text);
    runlog_event_at(t, s->step, "save_failed", "\"checkpoint\":%s,\"error\":%s", name ? name : "null",
                    why ? why : "null");
    free(name);
    free(why);
    return 0;
}

static int done(struct trainer *t, struct err *e)
{
    struct save *s = t->save;
    float worst[3] = { (float)s->stall_s, (float)s->snapshot_s, (float)s->write_s };
    int64_t bytes = (int64_t)s->pieces.bytes;
    int rc = 0;
    TRY(comm_broadcast(t->mesh.all, &s->digests, sizeof s->digests, 0, e));
    TRY(comm_all_reduce_max(t->mesh.all, worst, 3, e));
    TRY(comm_all_reduce_i64(t->mesh.all, &bytes, 1, e));
    t->digests = s->digests;
    memcpy(t->last_checkpoint, s->dst, sizeof t->last_checkpoint);
    char *name = runlog_quote(s->dst);
    runlog_event_at(t, s->step, "save",
                    "\"checkpoint\":%s,\"async\":%s,\"stall_ms\":%.6g,\"snapshot_ms\":%.6g,\"write_s\":%.3g,"
                    "\"bytes\":%lld",
                    name ? name : "null", s->snapshot ? "true" : "false", 1e3 * (double)worst[0],
                    1e3 * (double)worst[1], (double)worst[2], (long long)bytes);
    free(name);
    if (s->note[0])
        log_line(&t->log, "%s", s->note);
out:
    forget(s);
    return rc;
}

/* Ends the phase, and starts the next one. */
static int advance(struct trainer *t, struct err *e)
{
    struct save *s = t->save;
    double began = clock_s();
    int rc = end_phase(s, e);
    TRY(comm_agree(t->mesh.all, rc, e));
    if (s->phase == PUBLISHING)
        return done(t, e);
    TRY(comm_gather_blobs(t->mesh.all, s->table, s->table_bytes, 0, &s->blobs, s->sizes, e));
    s->phase = PUBLISHING;
    if (world_rank(t->world) == 0)
        start_phase(s, PUBLISHING, publish);
out:
    s->stall_s += clock_s() - began;
    return rc < 0 ? failed(t, e) : 0;
}

int trainer_save_poll(struct trainer *t, struct err *e)
{
    struct save *s = t->save;
    int64_t busy;
    int rc;
    if (s->phase == IDLE)
        return 0;
    busy = atomic_load(&s->running);
    TRY(comm_all_reduce_i64(t->mesh.all, &busy, 1, e));
    return busy ? 0 : advance(t, e);
out:
    return rc;
}

int trainer_save_wait(struct trainer *t, struct err *e)
{
    int rc = 0;
    while (rc >= 0 && t->save->phase != IDLE)
        rc = advance(t, e);
    return rc;
}

static void copy_task(void *arg, int64_t i, int thread)
{
    struct save *s = arg;
    (void)thread;
    pieces_copy(&s->pieces, (int)i, s->snapshot + s->pieces.at[i]);
}

/* The pieces as they are now; from here on training may change them. */
static void take_snapshot(struct save *s)
{
    double began = clock_s();
    pool_run(s->t->dev->pool, s->pieces.n, copy_task, s);
    s->snapshot_s = clock_s() - began;
}

int trainer_save(struct trainer *t, int must, struct err *e)
{
    struct save *s = t->save;
    double began = clock_s();
    int rc = trainer_save_wait(t, e); /* of the one before */
    if (rc < 0)
        return rc;
    s->must = must;
    s->step = t->step;
    s->sample = t->first_sample + (t->step - t->first_step) * t->plan.rows;
    s->tmp[0] = s->note[0] = 0;
    s->snapshot_s = s->write_s = 0;
    snprintf(s->dst, sizeof s->dst, "%s/step-%lld", t->o.out, (long long)t->step);
    if (world_rank(t->world) == 0)
        rc = ckpt_begin(s->dst, s->tmp, &s->lock, e);
    TRY(comm_agree(t->mesh.all, rc, e));
    TRY(comm_broadcast(t->mesh.all, s->tmp, sizeof s->tmp, 0, e));
    if (s->snapshot)
        take_snapshot(s);
    start_phase(s, WRITING, write_pieces);
out:
    s->stall_s = clock_s() - began;
    if (rc < 0)
        return failed(t, e);
    return s->snapshot ? 0 : trainer_save_wait(t, e);
}

/* ---- the room for it ---- */

/* Folders of saves that no process works on any more: what runs that died left. */
static void drop_left(struct trainer *t)
{
    DIR *d = opendir(t->o.out);
    struct dirent *x;
    while (d && (x = readdir(d))) {
        char name[256], path[4400], *end;
        struct err e;
        int busy, fd;
        snprintf(name, sizeof name, "%s", x->d_name);
        if (!(end = strstr(name, ".tmp-save")) || strcmp(end, ".tmp-save"))
            continue;
        *end = 0;
        snprintf(path, sizeof path, "%s/%s", t->o.out, x->d_name);
        if (trainer_step_of(name) < 0 || (fd = io_lock_dir(path, &busy, &e)) < 0)
            continue;
        int rc = io_remove_tree(path, &e);
        io_close(fd);
        if (rc < 0)
            log_line(&t->log, "%s, left by a run that died, cannot be removed: %s", path, e.text);
        else
            log_line(&t->log, "%s, left by a run that died, is removed", path);
    }
    if (d)
        closedir(d);
}

int trainer_save_open(struct trainer *t, struct err *e)
{
    struct save *s = t->save = calloc(1, sizeof *s);
    int rc = 0;
    if (!s)
        return err_set(e, ERR_MEMORY, "no memory for saves");
    s->t = t;
    s->lock = -1;
    if (world_rank(t->world) == 0)
        drop_left(t);
    TRY(pieces_open(&s->pieces, &t->model, t->zero, t->mesh.at[AXIS_DP], t->layout.zero, e));
    s->sizes = calloc((size_t)world_size(t->world), sizeof *s->sizes);
    if (!s->sizes)
        return err_set(e, ERR_MEMORY, "no memory for saves");
    if (!t->o.save_async)
        return 0;
    s->snapshot = mem_alloc(&t->mem, MEM_SAVE, s->pieces.bytes);
    if (!s->snapshot)
        return err_set(e, ERR_MEMORY,
                       "no memory for a copy of %zu bytes: use more ranks, or leave --save-async out",
                       s->pieces.bytes);
    memset(s->snapshot, 0, s->pieces.bytes); /* the first snapshot must not wait for pages */
out:
    return rc;
}

void trainer_save_close(struct trainer *t)
{
    struct save *s = t->save;
    struct err e;
    if (!s)
        return;
    end_phase(s, &e);
    if (s->phase != IDLE && world_rank(t->world) == 0)
        abandon(s); /* the run ended by an error while it was written */
    forget(s);
    mem_free(&t->mem, s->snapshot);
    free(s->sizes);
    pieces_close(&s->pieces);
    free(s);
    t->save = NULL;
}
