/* reload.c - see reload.h. */
#define _GNU_SOURCE /* gettid */
#include "serve/weights/reload.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/machine.h"
#include "serve/weights/mapped_weights.h"
#include "serve/weights/repack.h"
#include "serve/weights/weights.h"

#define NICE 5                           /* steps go first where CPUs are few */
#define READ_BUFFERS ((int64_t)64 << 20) /* memory that reading takes besides the weights */

/* Where the memory is missing, the reload is refused: overcommitted memory would end the process later. */
static int check_memory(const struct reload *r, int n_here, struct err *e)
{
    struct dev *d = r->now->m.dev;
    int64_t need = weights_bytes(&r->now->m) + READ_BUFFERS,
            free_bytes = d->memory ? (int64_t)d->memory->free_bytes(d) : machine_memory_free();
    need *= d->memory ? 1 : n_here;
    if (need <= free_bytes)
        return 0;
    return err_set(e, ERR_MEMORY,
                   "a reload holds both weights for a while: %lld MiB more are needed, there are %lld: use "
                   "more ranks, or start another server",
                   (long long)(need >> 20), (long long)(free_bytes >> 20));
}

static int work(struct background *a, void *arg, struct err *e)
{
    struct reload *r = arg;
    struct dev *d = r->now->m.dev;
    int rc;

    if (r->refused.code) {
        *e = r->refused;
        return -e->code;
    }

    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    TRY(dev_open(&r->host, "cpu", 1, d->mem, e));
    dev_numerics(r->host, r->now->m.fast);
    TRY(model_info_open(&r->fresh, r->path, &a->stop, e));
    rc = model_config_same(&r->fresh.cfg, &r->now->cfg, "the model that is served", e);
    if (rc < 0) {
        err_add(e, "%s", r->path);
        goto out;
    }

    r->fresh.at_once = 1;
    r->fresh.counts_dense = r->now->counts_dense;
    r->fresh.counts_experts = r->now->counts_experts;
    r->fresh.wish = r->now->wish;
    r->beside = r->now->m;
    r->beside.dev = d->memory ? d : r->host;
    rc = weights_read(a, &r->fresh, &r->beside, r->host, NULL, e);
    r->fresh.weights.m = &r->now->m;
out:
    return rc;
}

void reload_begin(struct reload *r, struct model_info *now, const char *path, struct comm *all, int n_here)
{
    reload_drop(r);
    memset(r, 0, sizeof *r);
    r->now = now;
    r->all = all;
    r->n_here = n_here;
    r->begin_s = clock_s();
    r->running = 1;
    snprintf(r->path, sizeof r->path, "%s", path);
    check_memory(r, n_here, &r->refused);
    background_start(&r->background, work, r, now->m.dev->pool);
}

int reload_sync(struct reload *r, struct err *e)
{
    return background_sync(&r->background, r->now->m.tp, r->all, e);
}

static void over(struct reload *r)
{
    if (r->host)
        dev_close(r->host);
    r->host = NULL;
    r->running = 0;
}

int reload_end(struct reload *r, struct err *e)
{
    int rc = background_finish(&r->background, r->all, e);
    over(r);
    if (rc >= 0)
        rc = weights_identify(&r->fresh, &r->now->m, r->all, e);
    if (rc < 0)
        reload_drop(r);
    return rc;
}

void reload_swap(struct reload *r, char fingerprint[64])
{
    struct model_info *l = r->now, *fresh = &r->fresh;
    struct resident weights = l->weights;
    struct row_source *rows = l->rows;
    struct mapped_weights *mapped = l->mapped;
    struct ckpt *ckpt = l->ckpt;
    struct err ignored; /* weights that cannot be packed are served as they are */

    repack_close(l->repack);
    l->repack = NULL;
    mapped_weights_stop(mapped);
    l->weights = fresh->weights;
    l->rows = fresh->rows;
    l->mapped = fresh->mapped;
    l->ckpt = fresh->ckpt;
    l->identity = fresh->identity;
    fresh->weights = weights;
    fresh->rows = rows;
    fresh->mapped = mapped;
    fresh->ckpt = ckpt;
    model_info_close(fresh);
    ckpt_close(l->source);
    l->source = NULL;
    ckpt_end_reading(l->ckpt);
    memset(&l->late, 0, sizeof l->late);
    repack_open(l, 0, &ignored);
    if (l->mapped)
        mapped_weights_begin(l->mapped, &l->weights, NULL, r->n_here, &ignored);
    if (!l->m.fast && l->m.grain == l->cfg.grain)
        model_info_fingerprint(l, l->m.dt, l->m.kv, fingerprint);
}

void reload_drop(struct reload *r) { model_info_close(&r->fresh); }

void reload_close(struct reload *r)
{
    background_abort(&r->background);
    over(r);
    reload_drop(r);
}
