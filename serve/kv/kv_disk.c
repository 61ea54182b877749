/* kv_disk.c - see kv_disk.h. */
#include "serve/kv/kv_disk.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* What a record's key is made of. */
static struct kv_key record_key(const struct kv_disk *d, int group, struct kv_key name, int stage, int head)
{
    const struct {
        struct kv_key name;
        int32_t group, stage, n_stages, head;
    } is = { name, group, stage, d->n_stages, head };
    const XXH128_hash_t h = XXH3_128bits(&is, sizeof is);
    return (struct kv_key){ { h.low64, h.high64 } };
}

/* A stage without a layer of the group writes a byte: the page is complete. */
static size_t record_bytes(const struct kv_records *r)
{
    return r->layers ? (size_t)r->layers * r->head_bytes : 1;
}

static char *head_at(const struct kv_records *r, int32_t page, int64_t layer, int head)
{
    return kv_page(r->kv, page) + (size_t)layer * r->layer_bytes + (size_t)head * r->head_bytes;
}

static void save(struct kv_disk *d, int group, int32_t page, struct kv_key name)
{
    const struct kv_records *r = &d->group[group];
    for (int h = 0; h < r->n_heads; h++) {
        struct kv_key key = record_key(d, group, name, d->stage, d->first_head + h);
        if (kv_files_has(d->files, key))
            continue;
        for (int64_t l = 0; l < r->layers; l++)
            dev_read(d->dev, d->record + (size_t)l * r->head_bytes, head_at(r, page, l, h), r->head_bytes);
        kv_files_write(d->files, key, d->record, record_bytes(r));
    }
}

/* 0: a record is not there, or damaged. */
static int load(struct kv_disk *d, int group, int32_t page, struct kv_key name)
{
    const struct kv_records *r = &d->group[group];
    for (int h = 0; h < r->n_heads; h++) {
        const char *from = kv_files_read(d->files, record_key(d, group, name, d->stage, d->first_head + h),
                                         record_bytes(r));
        if (!from)
            return 0;
        for (int64_t l = 0; l < r->layers; l++)
            dev_write(d->dev, head_at(r, page, l, h), from + (size_t)l * r->head_bytes, r->head_bytes);
    }
    return 1;
}

int kv_disk_run(struct kv_disk *d, const struct kv_order *o, int64_t n, int64_t *ok, struct err *e)
{
    int n_loads = 0, rc = 0;
    for (int64_t i = 0; i < n; i++) {
        ok[i] = 0; /* ranks that failed */
        if (o[i].deed == KV_SAVE && d->saves)
            save(d, o[i].group, o[i].page, kv_order_name(&o[i]));
        if (o[i].deed == KV_LOAD && d->loads)
            ok[i] = !load(d, o[i].group, o[i].page, kv_order_name(&o[i]));
        n_loads += o[i].deed == KV_LOAD;
    }
    if (n_loads)
        rc = comm_all_reduce_i64(d->all, ok, n, e);
    for (int64_t i = 0; i < n; i++)
        ok[i] = !ok[i];
    return rc;
}

/* Calls `each` for the records of a page, until one gives 0. */
static int all_records(struct kv_disk *d, int group, struct kv_key name,
                       int (*each)(struct kv_files *f, struct kv_key key))
{
    for (int stage = 0; stage < d->n_stages; stage++)
        for (int h = 0; h < d->all_heads; h++)
            if (!each(d->files, record_key(d, group, name, stage, h)))
                return 0;
    return 1;
}

static int ask(struct kv_files *f, struct kv_key key)
{
    kv_files_ask_ahead(f, key);
    return 1;
}

int kv_disk_has(struct kv_disk *d, int group, struct kv_key name)
{
    return all_records(d, group, name, kv_files_has);
}

void kv_disk_ask_ahead(struct kv_disk *d, int group, struct kv_key name) { all_records(d, group, name, ask); }

int kv_disk_open(struct kv_disk *d, const struct kv_disk_open *how, struct err *e)
{
    const struct model *m = how->m;
    const struct replica_ranks *r = how->ranks;
    const int n_kv = m->table.cfg.latent.kv_rank ? 1 : (int)m->table.cfg.n_kv, tp = comm_size(r->tp),
              rank = comm_rank(r->tp), copies = tp > n_kv ? tp / n_kv : 1;
    size_t most = 0;

    *d = (struct kv_disk){ .dev = m->dev,
                           .all = r->all,
                           .stage = replica_pp_rank(r),
                           .n_stages = replica_pp(r),
                           .first_head = tp > n_kv ? rank / copies : rank * (n_kv / tp),
                           .all_heads = n_kv };
    for (int g = 0; g < PAGE_GROUPS && how->kv[g].dev; g++) {
        struct kv_records *x = &d->group[g];
        *x = (struct kv_records){ .kv = &how->kv[g],
                                  .layers = model_page_layers(m, g, m->n_layers),
                                  .layer_bytes = model_page_bytes(m),
                                  .n_heads = tp > n_kv ? 1 : n_kv / tp };
        x->head_bytes = x->layer_bytes / (size_t)x->n_heads;
        most = record_bytes(x) > most ? record_bytes(x) : most;
        d->n_groups = g + 1;
    }
    d->saves = rank % copies == 0 && replica_cp_rank(r) == 0;
    d->loads = how->kv[0].rank == 0;
    d->record = calloc(1, most);
    if (!d->record)
        return err_set(e, ERR_MEMORY, "no memory for --kv-disk");
    return kv_files_open(&d->files, how->dir, how->limit, most, how->log, e);
}

void kv_disk_close(struct kv_disk *d)
{
    kv_files_close(d->files);
    free(d->record);
    *d = (struct kv_disk){ 0 };
}
