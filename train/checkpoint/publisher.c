/* publisher.c - see publisher.h. The walk is that of a save (save.c), for weights alone and into memory:
 *
 *     begin, agree -> write this rank's pieces -> agree, gather tables -> manifest (rank 0) -> agree
 * The version before stays until the new one is whole; readers that have it open keep it longer. */
#include "train/checkpoint/publisher.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/io.h"
#include "comm/launch.h"
#include "store/memory.h"
#include "train/checkpoint/pieces.h"
#include "train/checkpoint/publisher_names.h"

struct publish {
    const struct run *run;
    struct ranks *ranks;
    const struct work *work;
    struct runlog *log;
    struct pieces pieces; /* weights of this rank */
    int64_t keeper;       /* PID of the process that keeps versions */
    int64_t newest;       /* the last version; -1: none yet */
    void *table, *blobs;  /* as of struct save */
    size_t table_bytes, *sizes;
    char dst[MEMORY_PATH_BYTES];
};

/* ---- finding the keeper ---- */

/* Rank 0: the launcher, or this process. */
static int find_keeper(const struct train_opts *o, int64_t *pid, struct err *e)
{
    *pid = launch_parent();
    if (*pid && keeper_is_at((pid_t)*pid))
        return 0;
    *pid = getpid();
    return publish_serve(o, e);
}

static void name_version(char path[MEMORY_PATH_BYTES], int64_t keeper, int64_t step)
{
    snprintf(path, MEMORY_PATH_BYTES, "mem:%lld/" PUBLISH_SETS "step-%lld", (long long)keeper,
             (long long)step);
}

/* Rank 0: the newest version that an earlier job of the same launcher has left; drops the others. */
static int64_t newest_version(int64_t keeper)
{
    char(*name)[MEMORY_NAME_BYTES] = NULL;
    char path[MEMORY_PATH_BYTES];
    struct err ignored;
    int n = 0;
    long long newest = -1, step;
    if (memory_list((pid_t)keeper, &name, &n, &ignored) < 0)
        return -1;
    for (int i = 0; i < n; i++)
        if (sscanf(name[i], PUBLISH_SETS "step-%lld", &step) == 1 && step > newest)
            newest = step;
    for (int i = 0; i < n; i++)
        if (sscanf(name[i], PUBLISH_SETS "step-%lld", &step) == 1 && step != newest) {
            name_version(path, keeper, step);
            memory_drop(path, &ignored);
        }
    free(name);
    return newest;
}

int publish_open(struct publish **out, const struct work *w, struct runlog *log, struct err *e)
{
    struct publish *p = *out = calloc(1, sizeof *p);
    struct ranks *ranks = w->ranks;
    struct comm *all = ranks->mesh.all;
    int rc = 0;
    if (!p)
        return err_set(e, ERR_MEMORY, "no memory for --publish");
    p->run = w->run;
    p->ranks = ranks;
    p->work = w;
    p->log = log;
    p->newest = -1;
    p->sizes = calloc((size_t)world_size(ranks->world), sizeof *p->sizes);
    if (!p->sizes)
        rc = err_set(e, ERR_MEMORY, "no memory for --publish");
    if (rc >= 0)
        rc = pieces_open_weights(&p->pieces, &w->model, w->zero, comm_rank(ranks_zero(ranks)),
                                 ranks->layout.zero, e);
    if (rc >= 0 && ranks_is_first(ranks))
        rc = find_keeper(&w->run->o, &p->keeper, e);
    TRY(comm_agree(all, rc, e));
    TRY(comm_broadcast(all, &p->keeper, sizeof p->keeper, 0, e));
    if (!keeper_is_at((pid_t)p->keeper))
        rc = err_set(e, ERR_USAGE, "--publish: rank %d is not on the machine of rank 0: leave --publish out",
                     world_rank(ranks->world));
    TRY(comm_agree(all, rc, e));
    if (ranks_is_first(ranks))
        p->newest = newest_version(p->keeper);
    TRY(comm_broadcast(all, &p->newest, sizeof p->newest, 0, e));
out:
    return rc < 0 ? rc : 0;
}

void publish_close(struct publish *p)
{
    if (!p)
        return;
    pieces_close(&p->pieces);
    free(p->sizes);
    free(p);
}

/* ---- one version ---- */

static int write_pieces(struct publish *p, struct err *e)
{
    struct ckpt_shard *f = NULL;
    int rc = 0;
    if (!p->pieces.n)
        return 0;
    TRY(ckpt_shard_open(&f, p->dst, world_rank(p->ranks->world), p->pieces.n, p->pieces.piece, e));
    for (int i = 0; i < p->pieces.n; i++)
        TRY(pieces_put(&p->pieces, i, f, e));
    struct ckpt_shard *closing = f;
    f = NULL;
    TRY(ckpt_shard_close(closing, &p->table, &p->table_bytes, e));
out:
    ckpt_shard_abort(f);
    return rc < 0 ? rc : 0;
}

/* Rank 0: the manifest, with which the version is there. */
static int seal(struct publish *p, struct ckpt_digests *digests, struct err *e)
{
    const struct run *run = p->run;
    const struct layout *l = &p->ranks->layout;
    int n = world_size(p->ranks->world), used = 0, rc = 0;
    void **table = calloc((size_t)n, sizeof *table);
    size_t *bytes = calloc((size_t)n, sizeof *bytes);
    char *config = model_config_json(&run->cfg, run->dt == DT_BF16 ? "bfloat16" : "float32"), *at = p->blobs;
    const struct ckpt_meta meta = {
        .layout = { l->tp, l->pp, l->cp, l->dp, l->ep, l->zero, l->vpp },
        .state = { .grain = run->cfg.grain },
        .config_json = config,
        .n_extra = run->files.n,
        .extra_name = run->files.name,
        .extra_data = run->files.data,
        .extra_bytes = run->files.bytes,
    };
    if (!table || !bytes || !config) {
        rc = err_set(e, ERR_MEMORY, "no memory for the manifest");
        goto out;
    }
    for (int r = 0; r < n; at += p->sizes[r++]) {
        if (!p->sizes[r])
            continue;
        table[used] = at;
        bytes[used++] = p->sizes[r];
    }
    rc = ckpt_seal(p->dst, used, table, bytes, &meta, digests, e);
out:
    free(config);
    free(table);
    free(bytes);
    return rc < 0 ? rc : 0;
}

/* All ranks have the same error. */
static void failed(struct publish *p, int64_t step, struct err *e)
{
    struct err ignored;
    if (ranks_is_first(p->ranks))
        memory_drop(p->dst, &ignored);
    err_add(e, "publishing version %lld", (long long)step);
    log_line(&p->log->term, "%s: training goes on", e->text);
    char *why = runlog_quote(e->text);
    runlog_event(p->log, step, "publish_failed", "\"error\":%s", why ? why : "null");
    free(why);
}

static void done(struct publish *p, int64_t step, const struct ckpt_digests *digests, double began)
{
    char hex[33], old[MEMORY_PATH_BYTES];
    struct err ignored;
    if (ranks_is_first(p->ranks) && p->newest >= 0) {
        name_version(old, p->keeper, p->newest);
        memory_drop(old, &ignored);
    }
    p->newest = step;
    ckpt_digest_hex(digests->weights, hex);
    runlog_event(p->log, step, "publish", "\"weights_digest\":\"%s\",\"stall_ms\":%.6g", hex,
                 1e3 * (clock_s() - began));
}

int publish_version(struct publish *p, struct err *e)
{
    struct comm *all = p->ranks->mesh.all;
    struct ckpt_digests digests = { 0 };
    int64_t step = p->work->at.step;
    double began = clock_s();
    int rc = 0;
    if (step <= p->newest) /* the same bits are there already */
        return 0;
    name_version(p->dst, p->keeper, step);
    if (ranks_is_first(p->ranks))
        rc = memory_begin(p->dst, e);
    TRY(comm_agree(all, rc, e)); /* all ranks settle, or none */
    rc = zero_settle_all(p->work->zero, e);
    TRY(comm_agree(all, rc, e));
    rc = write_pieces(p, e);
    TRY(comm_agree(all, rc, e));
    TRY(comm_gather_blobs(all, p->table, p->table_bytes, 0, &p->blobs, p->sizes, e));
    if (ranks_is_first(p->ranks))
        rc = seal(p, &digests, e);
    TRY(comm_agree(all, rc, e));
    done(p, step, &digests, began);
out:
    free(p->table);
    free(p->blobs);
    p->table = p->blobs = NULL;
    p->table_bytes = 0;
    if (rc < 0 && e->code != ERR_PEER && e->code != ERR_STOPPED) {
        failed(p, step, e);
        rc = 0;
    }
    return rc < 0 ? rc : 0;
}
