/* publisher.c - see publisher.h. The walk is that of a save (assembly.h), for weights alone and into memory:
 *
 *     publish_start: begin, agree -> settle -> threads write the ranks' pieces and seal the version, which
 *                    drops the one before, while the next step computes
 *     publish_release, before the update: waits for the threads, agree
 * Without threads (offload, a device's memory) publish_start does all of it. A version that readers have open
 * stays in memory until they close it. */
#include "train/checkpoint/publisher.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/io.h"
#include "comm/launch.h"
#include "store/memory.h"
#include "train/checkpoint/assembly.h"
#include "train/checkpoint/pieces.h"
#include "train/checkpoint/publisher_names.h"

struct publish {
    const struct run *run;
    struct ranks *ranks;
    const struct work *work;
    struct runlog *log;
    struct pieces pieces; /* weights of this rank */
    struct assembly files;
    struct board *board; /* NULL: no thread writes */
    int64_t keeper;      /* PID of the process that keeps versions */
    int64_t newest;      /* the last version; -1: none yet */
    int64_t counted;     /* bytes of its copy, where this process made it */

    /* the version under way */
    int64_t step;
    char dst[MEMORY_PATH_BYTES];
    struct ckpt_digests digests; /* rank 0 */
    double stall_s, copy_s;
};

static void name_version(char path[MEMORY_PATH_BYTES], int64_t keeper, int64_t step)
{
    snprintf(path, MEMORY_PATH_BYTES, "mem:%lld/" PUBLISH_SETS "step-%lld", (long long)keeper,
             (long long)step);
}

/* ---- phases: what a thread may do ---- */

static void count_copy(const struct publish *p, int64_t bytes) { mem_count(&p->ranks->mem, MEM_SAVE, bytes); }

static int write_pieces(void *arg, void **table, size_t *bytes, struct err *e)
{
    struct publish *p = arg;
    struct ckpt_shard *f = NULL;
    double began = clock_s();
    int rc = 0;
    if (!p->pieces.n)
        return 0;
    TRY(ckpt_shard_open(&f, p->dst, world_rank(p->ranks->world), p->pieces.n, p->pieces.piece, e));
    for (int i = 0; i < p->pieces.n; i++)
        TRY(pieces_put(&p->pieces, i, f, e));
    struct ckpt_shard *closing = f;
    f = NULL;
    TRY(ckpt_shard_close(closing, table, bytes, e));
out:
    ckpt_shard_abort(f);
    p->copy_s = clock_s() - began;
    return rc < 0 ? rc : 0;
}

/* Rank 0: the manifest, with which the version is there; the version before is dropped. */
static int seal(void *arg, int n, void *const *table, const size_t *bytes, struct err *e)
{
    struct publish *p = arg;
    const struct run *run = p->run;
    const struct layout *l = &p->ranks->layout;
    char old[MEMORY_PATH_BYTES];
    struct err ignored;
    char *config = model_config_json(&run->cfg, run->dt == DT_BF16 ? "bfloat16" : "float32");
    const struct ckpt_meta meta = {
        .layout = { l->tp, l->pp, l->cp, l->dp, l->ep, l->zero, l->vpp },
        .state = { .grain = run->cfg.grain },
        .config_json = config,
        .n_extra = run->files.n,
        .extra_name = run->files.name,
        .extra_data = run->files.data,
        .extra_bytes = run->files.bytes,
    };
    int rc = config ? ckpt_seal(p->dst, n, table, bytes, &meta, &p->digests, e)
                    : err_set(e, ERR_MEMORY, "no memory for the manifest");
    free(config);
    if (rc >= 0 && p->newest >= 0) {
        name_version(old, p->keeper, p->newest);
        memory_drop(old, &ignored);
    }
    return rc;
}

static const struct assembly_ops ops = { write_pieces, seal };

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

/* Weights that lie in the host's memory and change in zero_update alone are copied beside the next step. */
static int runs_beside(const struct work *w) { return !w->offload && !w->ranks->dev->memory; }

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
    rc = assembly_open(&p->files, ranks, runs_beside(w), &ops, p, e);
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
    if (p->files.on_thread) {
        TRY(board_open(&p->board, all, e));
        p->files.board = p->board;
    }
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
    count_copy(p, -p->counted - (p->files.phase == ASSEMBLY_IDLE ? 0 : (int64_t)p->pieces.bytes));
    assembly_close(&p->files);
    board_close(p->board);
    pieces_close(&p->pieces);
    free(p);
}

/* ---- one version ---- */

/* All ranks have the same error. Returns 0 when training goes on. */
static int failed(struct publish *p, struct err *e)
{
    struct err ignored;
    assembly_wait(&p->files, &ignored);
    assembly_forget(&p->files);
    if (e->code == ERR_PEER || e->code == ERR_STOPPED)
        return -e->code;
    count_copy(p, -(int64_t)p->pieces.bytes);
    if (ranks_is_first(p->ranks))
        memory_drop(p->dst, &ignored);
    err_add(e, "publishing version %lld", (long long)p->step);
    log_line(&p->log->term, "%s: training goes on", e->text);
    char *why = runlog_quote(e->text);
    runlog_event(p->log, p->step, "publish_failed", "\"error\":%s", why ? why : "null");
    free(why);
    return 0;
}

/* The version is there. Reports the slowest rank's times. */
static int done(struct publish *p, struct err *e)
{
    char hex[33];
    float worst[2] = { (float)p->stall_s, (float)p->copy_s };
    assembly_forget(&p->files);
    count_copy(p, -p->counted);
    p->counted = (int64_t)p->pieces.bytes;
    p->newest = p->step;
    int rc = comm_all_reduce_max(p->ranks->mesh.all, worst, 2, e);
    ckpt_digest_hex(p->digests.weights, hex);
    runlog_event(p->log, p->step, "publish", "\"weights_digest\":\"%s\",\"stall_ms\":%.6g,\"copy_ms\":%.6g",
                 hex, 1e3 * (double)worst[0], 1e3 * (double)worst[1]);
    return rc < 0 ? rc : 0;
}

/* Ends a phase, and starts the next one. */
static int advance(struct publish *p, struct err *e)
{
    double began = clock_s();
    int rc = assembly_advance(&p->files, e);
    p->stall_s += clock_s() - began;
    return rc < 0 ? failed(p, e) : rc ? done(p, e) : 0;
}

int publish_release(struct publish *p, struct err *e)
{
    return p && p->files.phase == ASSEMBLY_WRITING ? advance(p, e) : 0;
}

int publish_wait(struct publish *p, struct err *e)
{
    int rc = 0;
    while (p && rc >= 0 && p->files.phase != ASSEMBLY_IDLE)
        rc = advance(p, e);
    return rc;
}

int publish_start(struct publish *p, struct err *e)
{
    struct comm *all = p->ranks->mesh.all;
    double began = clock_s();
    int rc = publish_wait(p, e);
    if (rc < 0 || p->work->at.step <= p->newest) /* the same bits are there already */
        return rc;
    p->step = p->work->at.step;
    p->copy_s = 0;
    count_copy(p, (int64_t)p->pieces.bytes);
    name_version(p->dst, p->keeper, p->step);
    if (p->board)
        board_clear(p->board);
    if (ranks_is_first(p->ranks))
        rc = memory_begin(p->dst, e);
    TRY(comm_agree(all, rc, e)); /* all ranks settle, or none */
    rc = zero_settle_all(p->work->zero, e);
    TRY(comm_agree(all, rc, e));
    assembly_start(&p->files);
out:
    p->stall_s = clock_s() - began;
    if (rc < 0)
        return failed(p, e);
    return p->files.on_thread ? 0 : publish_wait(p, e);
}
