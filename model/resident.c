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

/* Vectors, and tables that are looked up, stay in natural order in front of the packs. */
static int stays(const struct model *m, int part)
{
    const struct param *p = &m->table.p[m->local.part[part].param];
    return (p->unit == 0 && p->kind != P_NEXT_JOIN) || param_is_vector(p);
}

static size_t part_bytes(const struct model *m, int part)
{
    return ((size_t)m->local.part[part].count * dtype_size(m->dt) + 63) / 64 * 64;
}

static size_t staying_bytes(const struct model *m, int vector)
{
    const struct unit_part *u = &m->local.unit[vector];
    size_t n = 0;
    for (int i = u->first; i < u->first + u->n; i++)
        n += stays(m, i) ? part_bytes(m, i) : 0;
    return n;
}

size_t resident_measure(const struct model *m, size_t *reading)
{
    int64_t most = 0;
    size_t bytes = 0;
    for (int v = 0; v < m->local.n_trained; v++) {
        most = m->local.unit[v].flat > most ? m->local.unit[v].flat : most;
        bytes += staying_bytes(m, v) + model_pack_bytes(m, v);
    }
    *reading = (size_t)most * dtype_size(m->dt);
    return bytes;
}

/* ---- filling: memory and packs are the device's business, the reading is not ---- */

struct filling {
    struct resident *r;
    const struct resident_source *from;
    struct ring ring;
    void *flat; /* the present vector in natural order */
    int vector;
};

static int by_device(struct filling *f, int (*fn)(void *arg, struct err *e), struct err *e)
{
    return dev_execute(&f->from->executor, fn, f, e);
}

static int begin(void *arg, struct err *e)
{
    struct filling *f = arg;
    const struct model *m = f->r->m;
    int64_t most = 0;
    for (int v = 0; v < m->local.n_trained; v++)
        most = m->local.unit[v].flat > most ? m->local.unit[v].flat : most;
    f->flat = dev_alloc(m->dev, MEM_WORK, (size_t)most * dtype_size(m->dt));
    if (!f->flat)
        return err_set(e, ERR_MEMORY, "no memory to load a unit of %lld elements", (long long)most);
    return ring_open(&f->ring, m->dev, &f->from->executor, f->from->ring ? f->from->ring : RING_BUFFER_BYTES,
                     e);
}

static int begin_unit(void *arg, struct err *e)
{
    struct filling *f = arg;
    const struct model *m = f->r->m;
    size_t bytes = staying_bytes(m, f->vector) + model_pack_bytes(m, f->vector);
    f->r->memory[f->vector] = dev_alloc(m->dev, MEM_PARAMS, bytes);
    if (!f->r->memory[f->vector])
        return err_set(e, ERR_MEMORY, "no memory for the weights of unit %d (%zu MiB): use more tp ranks",
                       m->local.unit[f->vector].unit, bytes >> 20);
    return 0;
}

/* Parameters with a dtype of their own, of the unit whose first vector is read. */
static int read_own(struct filling *f, struct err *e)
{
    const struct model *m = f->r->m;
    int rc = 0;
    for (int v = m->local.n_trained; rc >= 0 && v < m->local.n_vectors; v++) {
        const struct unit_part *u = &m->local.unit[v];
        for (int i = u->first; rc >= 0 && u->unit == f->vector && i < u->first + u->n; i++) {
            const struct param *q = &m->table.p[m->local.part[i].param];
            rc = f->from->read(f->from->ctx, q, &m->local.part[i].box, &f->ring, model_own(m, i), DT_F32, e);
            if (rc < 0)
                return err_add(e, "loading %s", q->name);
        }
    }
    return rc;
}

static int read_unit(struct filling *f, struct err *e)
{
    const struct model *m = f->r->m;
    const struct unit_part *u = &m->local.unit[f->vector];
    for (int i = u->first; i < u->first + u->n; i++) {
        const struct part *p = &m->local.part[i];
        const struct param *q = &m->table.p[p->param];
        int rc = p->count
                     ? f->from->read(f->from->ctx, q, &p->box, &f->ring, model_mat(m, f->flat, i).p, m->dt, e)
                     : 0;
        if (rc < 0)
            return err_add(e, "loading %s", q->name);
    }
    return 0;
}

/* Points at what stays of a vector: copies in front of the packs. */
static void keep_parts(struct filling *f, struct unit_weights *uw, char *at)
{
    const struct model *m = f->r->m;
    const struct unit_part *u = &m->local.unit[f->vector];
    for (int i = u->first; i < u->first + u->n; i++) {
        const void **place = model_place(m, uw, i);
        const void *from = *place;
        *place = NULL;
        if (!stays(m, i))
            continue;
        dev_copy(m->dev, at, from, (size_t)m->local.part[i].count * dtype_size(m->dt));
        *place = at;
        at += part_bytes(m, i);
    }
}

/* A tied head's pack is made from what stays of unit 0, whose table comes first there as in the flat
 * vector. */
static int settle_unit(void *arg, struct err *e)
{
    struct filling *f = arg;
    const struct model *m = f->r->m;
    struct unit_weights *uw = &f->r->unit[m->local.unit[f->vector].unit];
    char *memory = f->r->memory[f->vector];
    int rc = ring_settle(&f->ring, e);
    if (rc < 0)
        return rc;
    model_point(m, f->vector, f->flat, uw);
    struct pack_from packs = { .flat = f->flat, .tied = f->r->memory[0], .n_shares = 1 };
    model_pack(m, f->vector, &packs, uw, memory + staying_bytes(m, f->vector));
    keep_parts(f, uw, memory);
    uw->flat = uw->experts = NULL;
    return 0;
}

static int end(void *arg, struct err *e)
{
    struct filling *f = arg;
    const struct model *m = f->r->m;
    (void)e;
    ring_close(&f->ring);
    dev_free(m->dev, f->flat);
    return 0;
}

static int give_up(void *arg, struct err *e)
{
    struct filling *f = arg;
    (void)e;
    resident_close(f->r);
    return 0;
}

int resident_fill(struct resident *r, struct model *m, const struct resident_source *from, struct err *e)
{
    struct filling f = { .r = r, .from = from };
    struct err ignored;
    int rc;
    *r = (struct resident){ .w = { .get = get_unit, .put = put_unit }, .m = m };
    r->unit = calloc((size_t)m->local.n_units, sizeof *r->unit);
    r->memory = calloc((size_t)m->local.n_trained, sizeof *r->memory);
    if (!r->unit || !r->memory) {
        rc = err_set(e, ERR_MEMORY, "no memory for the table of %d units", m->local.n_units);
        goto out;
    }
    for (int u = 0; u < m->local.n_units; u++)
        TRY(unit_weights_open(&r->unit[u], m, e));
    TRY(by_device(&f, begin, e));
    for (; f.vector < m->local.n_trained; f.vector++) {
        TRY(by_device(&f, begin_unit, e));
        TRY(read_unit(&f, e));
        TRY(read_own(&f, e));
        TRY(by_device(&f, settle_unit, e));
    }
    rc = 0;
out:
    by_device(&f, end, &ignored);
    if (rc < 0)
        by_device(&f, give_up, &ignored);
    return rc;
}

int resident_open(struct resident *r, struct model *m, model_read read, void *ctx, struct err *e)
{
    return resident_fill(r, m, &(struct resident_source){ .read = read, .ctx = ctx }, e);
}

void resident_close(struct resident *r)
{
    for (int v = 0; r->memory && r->m && v < r->m->local.n_trained; v++)
        dev_free(r->m->dev, r->memory[v]);
    for (int u = 0; r->unit && r->m && u < r->m->local.n_units; u++)
        unit_weights_close(&r->unit[u]);
    free(r->memory);
    free(r->unit);
    memset(r, 0, sizeof *r);
}
