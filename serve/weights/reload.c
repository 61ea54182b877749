/* reload.c - see reload.h. */
#define _GNU_SOURCE /* gettid */
#include "serve/weights/reload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/machine.h"
#include "serve/weights/mapped_weights.h"
#include "serve/weights/repack.h"
#include "serve/weights/weights.h"

#define NICE_PREPARING 15
#define NICE 5                           /* steps go first where CPUs are few */
#define READ_BUFFERS ((int64_t)64 << 20) /* memory that reading takes besides the weights */

/* Bytes of all weights of the model in the dtype of its files. */
static int64_t bytes_at_url(const struct model_info *l)
{
    int64_t n = 0;
    for (int i = 0; i < l->m.table.n; i++) {
        const struct param *p = &l->m.table.p[i];
        const struct box whole = box_whole(p->n_dims, p->shape);
        n += box_count(&whole) * (int64_t)dtype_size(l->stored);
    }
    return n;
}

/* Where the memory is missing, the reload is refused: overcommitted memory would end the process later. */
static int check_memory(const struct reload *r, struct err *e)
{
    struct dev *d = r->now->m.dev;
    size_t reading;
    resident_measure(&r->now->m, &reading);
    int64_t need = weights_bytes(&r->now->m) + (int64_t)reading + READ_BUFFERS,
            free_bytes = d->memory ? (int64_t)d->memory->free_bytes(d) : machine_memory_free();
    need -= resident_memory_bytes(&r->spare);
    need = need > 0 ? need : 0;
    need *= d->memory ? 1 : r->n_here;
    if (r->order.live && r->fresh.ckpt &&
        ckpt_cache(r->fresh.ckpt)) /* what the machine's ranks receive stays in its memory */
        need += bytes_at_url(r->now);
    if (need <= free_bytes)
        return 0;
    return err_set(e, ERR_MEMORY,
                   "a reload holds both weights for a while: %lld MiB more are needed, there are %lld: use "
                   "more ranks, or start another server",
                   (long long)(need >> 20), (long long)(free_bytes >> 20));
}

/* A single rank reads straight from its connection. Several ranks share the files that they receive. */
static enum live_reading reading_of(const struct reload *r)
{
    if (!r->order.live)
        return LIVE_NO;
    return r->n_here == 1 && comm_size(r->all) == 1 ? LIVE_ALONE : LIVE_SHARED;
}

/* The memory of these weights is kept when they are given up: another version comes soon. */
static int keeps_memory(const struct reload *r) { return r->order.live && !r->now->m.dev->memory; }

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
    TRY(dev_open(&r->host, "cpu", pool_threads(d->pool), d->mem, e));
    dev_numerics(r->host, r->now->m.fast);
    TRY(model_info_open(&r->fresh, r->order.path, reading_of(r), &a->stop, e));
    if (r->order.live && !d->memory && ckpt_cache(r->fresh.ckpt))
        TRY(check_memory(r, e));
    rc = model_config_same(&r->fresh.cfg, &r->now->cfg, "the model that is served", e);
    if (rc < 0) {
        err_add(e, "%s", r->order.path);
        goto out;
    }

    r->fresh.at_once = 1;
    r->fresh.counts_all = *r->order.digest != 0;
    r->fresh.reuse = d->memory ? NULL : &r->spare;
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

/* ---- the old weights ---- */

struct old_weights {
    struct model_info info;
    struct resident_memory *keep; /* or NULL */
};

static void close_weights(struct model_info *l, struct resident_memory *keep)
{
    if (l->has_weights && keep) {
        resident_retire(&l->weights, keep);
        l->has_weights = 0;
    }
    model_info_close(l);
}

static void *free_weights(void *arg)
{
    struct old_weights *old = arg;
    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    close_weights(&old->info, old->keep);
    free(old);
    return NULL;
}

static void wait_freeing(struct reload *r)
{
    r->hurry = 1;
    if (r->is_freeing)
        pthread_join(r->freeing, NULL);
    r->is_freeing = 0;
    r->hurry = 0;
}

static void *prepare(void *arg)
{
    struct reload *r = arg;
    pool_unpin_self(r->now->m.dev->pool);
    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE_PREPARING);
    resident_memory_open(&r->spare, &r->now->m, &r->hurry);
    return NULL;
}

void reload_prepare(struct reload *r, struct model_info *now)
{
    size_t reading;
    if (now->m.dev->memory)
        return;
    r->now = now;
    r->kept_bytes = (int64_t)resident_measure(&now->m, &reading);
    r->kept_bytes += (int64_t)reading;
    r->is_freeing = pthread_create(&r->freeing, NULL, prepare, r) == 0;
}

/* Gigabytes take tens of milliseconds to give back, which no step waits for. A device with memory of its own
 * belongs to the main thread. */
static void free_old(struct reload *r)
{
    struct old_weights *old = r->now->m.dev->memory ? NULL : malloc(sizeof *old);
    wait_freeing(r);
    if (old) {
        *old = (struct old_weights){ r->fresh, keeps_memory(r) ? &r->spare : NULL };
        r->is_freeing = pthread_create(&r->freeing, NULL, free_weights, old) == 0;
    }
    if (!r->is_freeing) {
        free(old);
        model_info_close(&r->fresh);
        r->kept_bytes = 0;
    }
    memset(&r->fresh, 0, sizeof r->fresh);
}

/* ---- reading ---- */

/* The version of an order must be newer than that of other weights, or one name would stand for both. digest:
 * of the new weights. */
static int check_version(struct reload *r, const char *digest, struct err *e)
{
    char now[33];
    ckpt_digest_hex(r->now->identity, now);
    if (r->order.version < 0 || r->order.version > r->version || !strcmp(digest, now))
        return 0;
    r->param = "version";
    return err_set(
        e, ERR_CONFIG,
        "%s: version %lld with weights_digest %s is older than version %lld, which is served with %s: "
        "give a higher version",
        r->order.path, (long long)r->order.version, digest, (long long)r->version, now);
}

void reload_begin(struct reload *r, struct model_info *now, const char *order, int64_t version,
                  struct comm *all, int n_here)
{
    struct err e;
    if (r->now)
        reload_drop(r);
    wait_freeing(r);
    const struct reload before = *r;
    memset(r, 0, sizeof *r);
    r->spare = before.spare;
    r->now = now;
    r->all = all;
    r->n_here = n_here;
    r->version = version;
    r->begin_s = clock_s();
    r->running = 1;
    if (reload_order_read(&r->order, order) < 0)
        err_set(&r->refused, ERR_INTERNAL, "an order to reload cannot be read: please report it");
    else if (comm_rank(all) == 0 && *r->order.digest && check_version(r, r->order.digest, &e) < 0)
        r->refused = e; /* before anything is read */
    else
        check_memory(r, &r->refused);
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

/* The version of weights whose order names none. No number goes back, and none names two sets of weights. */
static int64_t version_without(const struct reload *r, const char *digest)
{
    const int64_t step = ckpt_state(r->fresh.ckpt)->step;
    char now[33];
    ckpt_digest_hex(r->now->identity, now);
    if (step > r->version)
        return step;
    return r->version + (step <= 0 || strcmp(digest, now) != 0);
}

/* The weights that were read must be those that the order is about. The same on every rank. */
static int check_order(struct reload *r, struct err *e)
{
    char digest[33];
    ckpt_digest_hex(r->fresh.identity, digest);
    if (*r->order.digest && strcmp(digest, r->order.digest)) {
        r->param = "expect_digest";
        return err_set(e, ERR_INTEGRITY,
                       "%s has weights_digest %s, %s is expected: is it another version, or another run's",
                       r->order.path, digest, r->order.digest);
    }
    /* the first rank alone knows a digest that was made behind serving */
    int rc = comm_rank(r->all) == 0 ? check_version(r, digest, e) : 0;
    rc = comm_agree(r->all, rc, e);
    if (rc < 0)
        return rc;
    r->version = r->order.version >= 0 ? r->order.version : version_without(r, digest);
    return comm_broadcast(r->all, &r->version, sizeof r->version, 0, e);
}

static int count_moved(struct reload *r, struct err *e)
{
    int64_t n[2] = { ckpt_received(r->fresh.ckpt),
                     ckpt_is_shared(r->fresh.ckpt) ? ckpt_bytes_read(r->fresh.ckpt) : 0 };
    int rc = comm_all_reduce_i64(r->all, n, 2, e);
    r->moved = (struct reload_moved){ n[0], n[1] };
    return rc;
}

int reload_end(struct reload *r, struct err *e)
{
    int rc = background_finish(&r->background, r->all, e);
    over(r);
    if (rc >= 0)
        rc = weights_identify(&r->fresh, &r->now->m, r->all, e);
    if (rc >= 0)
        rc = check_order(r, e);
    if (rc >= 0)
        rc = count_moved(r, e);
    if (rc < 0)
        reload_drop(r);
    return rc;
}

/* Copies what belongs to one set of weights. */
static void take_set(struct model_info *to, const struct model_info *from)
{
    to->weights = from->weights;
    to->codes = from->codes;
    to->rows = from->rows;
    to->mapped = from->mapped;
    to->ckpt = from->ckpt;
    to->is_quantised = from->is_quantised;
    memcpy(to->quantised, from->quantised, sizeof to->quantised);
    to->identity = from->identity;
}

void reload_swap(struct reload *r, char fingerprint[64])
{
    struct model_info *l = r->now, old = { 0 };
    struct err ignored; /* weights that cannot be packed are served as they are */

    repack_close(l->repack);
    l->repack = NULL;
    mapped_weights_stop(l->mapped);
    take_set(&old, l);
    take_set(l, &r->fresh);
    take_set(&r->fresh, &old);
    r->kept_bytes = resident_memory_bytes(&r->spare);
    r->kept_bytes += keeps_memory(r) ? resident_bytes(&r->fresh.weights) : 0;
    free_old(r);
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

void reload_drop(struct reload *r) { close_weights(&r->fresh, r->now && keeps_memory(r) ? &r->spare : NULL); }

void reload_close(struct reload *r)
{
    background_abort(&r->background);
    over(r);
    reload_drop(r);
    wait_freeing(r);
    if (r->now)
        resident_memory_close(&r->spare, r->now->m.dev);
}
