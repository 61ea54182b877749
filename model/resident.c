/* resident.c - all weights in memory, packed as they are read: at most one unit exists twice. See model.h. */
#include <stdlib.h>
#include <string.h>
#include "model/model.h"

static int get_unit(struct weights *w, int unit, int backward, const struct unit_weights **out, struct err *e)
{
    struct resident *r = (struct resident *)w;
    if (backward)
        return err_set(e, ERR_INTERNAL, "resident weights have no natural order: they cannot be trained");
    *out = &r->unit[unit];
    return 0;
}

static void put_unit(struct weights *w, int unit)
{
    (void)w;
    (void)unit;
}

/* Vectors, and unit 0 whole, stay in natural order in front of the packs. */
static int stays(const struct model *m, int part) { return m->table.p[m->local.part[part].param].unit == 0 || m->table.p[m->local.part[part].param].n_dims == 1; }

static size_t part_bytes(const struct model *m, int part) { return ((size_t)m->local.part[part].count * dtype_size(m->dt) + 63) / 64 * 64; }

static size_t staying_bytes(const struct model *m, int unit)
{
    const struct unit_part *u = &m->local.unit[unit];
    size_t n = 0;
    for (int i = u->first; i < u->first + u->n; i++)
        n += stays(m, i) ? part_bytes(m, i) : 0;
    return n;
}

/* The box of a part, read into its place at `to`, device memory. */
static int load_part(const struct model *m, const struct part *p, void *to, model_read read, void *ctx, struct err *e)
{
    const struct param *q = &m->table.p[p->param];
    size_t bytes = (size_t)p->count * dtype_size(m->dt);
    void *host = p->count ? dev_stage(m->dev, to, bytes) : NULL;
    int rc = !p->count ? 0 : host ? read(ctx, q, &p->box, host, m->dt, e) : err_set(e, ERR_MEMORY, "no memory for %zu MiB", bytes >> 20);
    dev_unstage(m->dev, to, host, bytes);
    return rc < 0 ? err_add(e, "loading %s", q->name) : 0;
}

/* A tied head's pack is made from what stays of unit 0, whose table comes first there as in the flat vector. */
static int load_unit(struct resident *r, int unit, void *flat, model_read read, void *ctx, struct err *e)
{
    struct model *m = r->m;
    const struct unit_part *u = &m->local.unit[unit];
    size_t keep = staying_bytes(m, unit);
    struct unit_weights *uw = &r->unit[unit];
    char *memory = r->memory[unit] = dev_alloc(m->dev, MEM_PARAMS, keep + model_pack_bytes(m, unit)), *at = memory;
    if (!memory)
        return err_set(e, ERR_MEMORY, "no memory for the weights of unit %d (%zu MiB): use more tp ranks", unit, (keep + model_pack_bytes(m, unit)) >> 20);
    for (int i = u->first; i < u->first + u->n; i++) {
        int rc = load_part(m, &m->local.part[i], model_mat(m, flat, i).p, read, ctx, e);
        if (rc < 0)
            return rc;
    }
    model_point(m, unit, flat, uw);
    model_pack(m, unit, flat, m->table.cfg.tied ? r->memory[0] : flat, uw, memory + keep, 0, 1);
    for (int i = u->first; i < u->first + u->n; i++) {
        const void **place = &uw->at[m->table.p[m->local.part[i].param].kind];
        const void *from = *place;
        *place = NULL;
        if (!stays(m, i))
            continue;
        dev_copy(m->dev, at, from, (size_t)m->local.part[i].count * dtype_size(m->dt));
        *place = at;
        at += part_bytes(m, i);
    }
    uw->flat = NULL;
    return 0;
}

int resident_open(struct resident *r, struct model *m, model_read read, void *ctx, struct err *e)
{
    int64_t most = 0;
    void *flat;
    int rc;
    *r = (struct resident){ .w = { .get = get_unit, .put = put_unit }, .m = m };
    r->unit = calloc((size_t)m->local.n_units, sizeof *r->unit);
    r->memory = calloc((size_t)m->local.n_units, sizeof *r->memory);
    for (int u = 0; u < m->local.n_units; u++)
        most = m->local.unit[u].flat > most ? m->local.unit[u].flat : most;
    flat = dev_alloc(m->dev, MEM_WORK, (size_t)most * dtype_size(m->dt));
    if (!r->unit || !r->memory || !flat) {
        rc = err_set(e, ERR_MEMORY, "no memory to load a unit of %lld elements", (long long)most);
        goto out;
    }
    for (int u = 0; u < m->local.n_units; u++)
        TRY(load_unit(r, u, flat, read, ctx, e));
    rc = 0;
out:
    dev_free(m->dev, flat);
    if (rc < 0)
        resident_close(r);
    return rc;
}

void resident_close(struct resident *r)
{
    for (int u = 0; r->memory && r->m && u < r->m->local.n_units; u++)
        dev_free(r->m->dev, r->memory[u]);
    free(r->memory);
    free(r->unit);
    memset(r, 0, sizeof *r);
}
