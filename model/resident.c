/* resident.c - all weights in memory: packed as they are read (at most one unit exists twice), or pointed at
 * where a source has them as the computation reads them. See model.h. */
#include <stdlib.h>
#include <string.h>
#include "model/units.h"

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

/* Of a vector with a dtype of its own. */
static size_t own_bytes(const struct model *m, int vector)
{
    return m->local.unit[vector].dtype ? (size_t)m->local.unit[vector].flat * sizeof(float) : 0;
}

size_t resident_measure(const struct model *m, size_t *reading)
{
    int64_t most = 0;
    size_t bytes = 0;
    for (int v = 0; v < m->local.n_trained; v++) {
        most = m->local.unit[v].flat > most ? m->local.unit[v].flat : most;
        bytes += staying_bytes(m, v) + model_pack_bytes(m, v);
    }
    for (int v = m->local.n_trained; v < m->local.n_vectors; v++)
        bytes += own_bytes(m, v);
    *reading = (size_t)most * dtype_size(m->dt);
    return bytes;
}

/* ---- filling: memory and packs are the device's business, the reading is not ---- */

struct filling {
    struct resident *r;
    const struct resident_source *from;
    struct ring ring;
    void *flat; /* the present vector in natural order; NULL until a vector is read */
    size_t flat_bytes;
    int vector;
    int n_packs;        /* of the present vector, those that are made here … */
    size_t stays_bytes; /* … and its parts in natural order that are kept here */
};

static int by_device(struct filling *f, int (*fn)(void *arg, struct err *e), struct err *e)
{
    return dev_execute(&f->from->executor, fn, f, e);
}

static struct unit_weights *unit_of(const struct filling *f)
{
    return &f->r->unit[f->r->m->local.unit[f->vector].unit];
}

static int is_pointed(const struct panels *p) { return p->p || p->n_runs; }

static int begin(void *arg, struct err *e)
{
    struct filling *f = arg;
    const struct model *m = f->r->m;
    for (int v = m->local.n_trained; v < m->local.n_vectors; v++) {
        const size_t bytes = own_bytes(m, v);
        f->r->own[v] = bytes ? dev_alloc(m->dev, MEM_PARAMS, bytes) : NULL;
        if (bytes && !f->r->own[v])
            return err_set(e, ERR_MEMORY, "no memory for parameters with a dtype of their own");
    }
    return ring_open(&f->ring, f->r->m->dev, &f->from->executor,
                     f->from->ring ? f->from->ring : RING_BUFFER_BYTES, e);
}

/* Takes the addresses that the source gives. Counts the packs that must be made here. Returns their bytes. */
static int64_t point_unit(struct filling *f, struct err *e)
{
    const struct model *m = f->r->m;
    const struct unit_part *u = &m->local.unit[f->vector];
    struct unit_weights *uw = unit_of(f);
    int64_t bytes = 0;
    int rc;

    f->n_packs = 0;
    f->stays_bytes = 0;
    for (int i = u->first; i < u->first + u->n; i++) {
        const void *at = NULL;
        if (!stays(m, i))
            continue;
        rc = f->from->part && m->local.part[i].count ? f->from->part(f->from->ctx, i, &at, e) : 0;
        if (rc < 0)
            return err_add(e, "loading %s", m->table.p[m->local.part[i].param].name);
        *model_place(m, uw, i) = rc ? at : NULL;
        f->stays_bytes += rc ? 0 : part_bytes(m, i);
    }

    for (int i = -1; (i = model_vector_packs(m, f->vector, i + 1)) >= 0;) {
        struct panels *p = &uw->pack[i];
        size_t size = model_pack_shape(m, u->unit, i, p);
        rc = f->from->pack ? f->from->pack(f->from->ctx, u->unit, i, p, e) : 0;
        if (rc < 0)
            return rc;
        f->n_packs += !rc;
        bytes += rc ? 0 : (int64_t)size;
    }
    return bytes;
}

/* Is a part of the present vector read? Matrices are read where a pack is made of them. */
static int is_read(const struct filling *f, int part)
{
    const struct model *m = f->r->m;
    if (!m->local.part[part].count)
        return 0;
    return stays(m, part) ? !*model_place(m, unit_of(f), part) : f->n_packs > 0;
}

/* Memory of that size out of what is kept, or fresh. Kept memory has the bytes of the same packs of other
 * weights: what packing leaves out (padding) is zero there as in fresh memory. */
static void *take_block(struct filling *f, size_t bytes)
{
    struct resident_memory *x = f->from->reuse;
    void *block = x && f->vector < x->n ? x->block[f->vector] : NULL;
    if (block)
        x->block[f->vector] = NULL;
    if (block && x->bytes[f->vector] == bytes)
        return block;
    dev_free(f->r->m->dev, block);
    return dev_alloc(f->r->m->dev, MEM_PARAMS, bytes);
}

static void *take_flat(struct filling *f, size_t bytes)
{
    struct resident_memory *x = f->from->reuse;
    void *flat = x ? x->flat : NULL;
    f->flat_bytes = bytes;
    if (flat)
        x->flat = NULL;
    if (flat && x->flat_bytes == bytes)
        return flat;
    dev_free(f->r->m->dev, flat);
    return dev_alloc(f->r->m->dev, MEM_WORK, bytes);
}

static int begin_unit(void *arg, struct err *e)
{
    struct filling *f = arg;
    const struct model *m = f->r->m;
    int64_t packs = point_unit(f, e), most = 0;
    if (packs < 0)
        return (int)packs;

    size_t bytes = f->stays_bytes + (size_t)packs;
    f->r->memory[f->vector] = bytes ? take_block(f, bytes) : NULL;
    f->r->bytes[f->vector] = bytes;
    if (bytes && !f->r->memory[f->vector])
        return err_set(e, ERR_MEMORY, "no memory for the weights of unit %d (%zu MiB): use more tp ranks",
                       m->local.unit[f->vector].unit, bytes >> 20);

    for (int v = 0; v < m->local.n_trained; v++)
        most = m->local.unit[v].flat > most ? m->local.unit[v].flat : most;
    if (bytes && !f->flat)
        f->flat = take_flat(f, (size_t)most * dtype_size(m->dt));
    if (bytes && !f->flat)
        return err_set(e, ERR_MEMORY, "no memory to load a unit of %lld elements", (long long)most);
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
            rc = f->from->read(f->from->ctx, q, &m->local.part[i].box, &f->ring,
                               (float *)f->r->own[v] + m->local.part[i].offset, DT_F32, e);
            if (rc < 0)
                return err_add(e, "loading %s", q->name);
        }
    }
    return rc;
}

/* What stays of a vector goes to its place in front of the packs, the matrices of packs to f->flat. */
static int read_unit(struct filling *f, struct err *e)
{
    const struct model *m = f->r->m;
    const struct unit_part *u = &m->local.unit[f->vector];
    char *at = f->r->memory[f->vector];
    for (int i = u->first; i < u->first + u->n; i++) {
        const struct part *p = &m->local.part[i];
        const struct param *q = &m->table.p[p->param];
        const int kept = stays(m, i) && !*model_place(m, unit_of(f), i), read = is_read(f, i);
        void *dst = kept ? at : read ? model_mat(m, f->flat, i).p : NULL;
        int rc = read ? f->from->read(f->from->ctx, q, &p->box, &f->ring, dst, m->dt, e) : 0;
        if (rc < 0)
            return err_add(e, "loading %s", q->name);
        at += kept ? part_bytes(m, i) : 0;
    }
    return 0;
}

static void place_parts(struct filling *f, char *at)
{
    const struct model *m = f->r->m;
    const struct unit_part *u = &m->local.unit[f->vector];
    struct unit_weights *uw = unit_of(f);
    for (int i = u->first; i < u->first + u->n; i++) {
        const void **place = model_place(m, uw, i);
        if (!stays(m, i) || *place)
            continue;
        *place = at;
        at += part_bytes(m, i);
    }
}

/* Makes the packs that were not pointed at. A tied head's is made from what stays of unit 0, whose table is
 * the first part there. */
static void make_packs(struct filling *f, char *at)
{
    const struct model *m = f->r->m;
    const struct unit_part *table = &m->local.unit[0];
    struct unit_weights *uw = unit_of(f);
    const struct pack_from from = {
        .flat = f->flat,
        .tied = table->n ? *model_place(m, &f->r->unit[0], table->first) : NULL,
        .n_shares = 1,
    };
    for (int i = -1; (i = model_vector_packs(m, f->vector, i + 1)) >= 0;) {
        struct panels shape;
        size_t bytes = model_pack_shape(m, m->local.unit[f->vector].unit, i, &shape);
        if (is_pointed(&uw->pack[i]))
            continue;
        uw->pack[i].p = at;
        model_pack_one(m, m->local.unit[f->vector].unit, i, &from, &uw->pack[i]);
        at += bytes;
    }
}

static int settle_unit(void *arg, struct err *e)
{
    struct filling *f = arg;
    char *memory = f->r->memory[f->vector];
    int rc = ring_settle(&f->ring, e);
    if (rc < 0)
        return rc;
    place_parts(f, memory);
    make_packs(f, memory + f->stays_bytes);
    return 0;
}

static int end(void *arg, struct err *e)
{
    struct filling *f = arg;
    const struct model *m = f->r->m;
    (void)e;
    ring_close(&f->ring);
    if (f->from->reuse && f->flat) {
        dev_free(m->dev, f->from->reuse->flat);
        f->from->reuse->flat = f->flat;
        f->from->reuse->flat_bytes = f->flat_bytes;
    } else
        dev_free(m->dev, f->flat);
    return 0;
}

static int give_up(void *arg, struct err *e)
{
    struct filling *f = arg;
    (void)e;
    if (f->from->reuse)
        resident_retire(f->r, f->from->reuse);
    else
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
    r->bytes = calloc((size_t)m->local.n_trained + 1, sizeof *r->bytes);
    r->made = calloc((size_t)m->local.n_units, sizeof *r->made);
    r->own = calloc((size_t)m->local.n_vectors + 1, sizeof *r->own);
    if (!r->unit || !r->memory || !r->bytes || !r->made || !r->own) {
        rc = err_set(e, ERR_MEMORY, "no memory for the table of %d units", m->local.n_units);
        goto out;
    }
    for (int u = 0; u < m->local.n_units; u++) {
        TRY(unit_weights_open(&r->unit[u], m, e));
        r->unit[u].own = r->own;
        r->made[u] = calloc((size_t)m->unit[u].n_packs + 1, sizeof **r->made);
        TRY(r->made[u] ? 0
                       : err_set(e, ERR_MEMORY, "no memory for the table of %d packs", m->unit[u].n_packs));
    }
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

void resident_replace(struct resident *r, int unit, int pack, const struct panels *p, void *memory)
{
    void **made = &r->made[unit][pack];
    r->unit[unit].pack[pack] = *p;
    dev_free(r->m->dev, *made);
    *made = memory;
}

static void free_made(struct resident *r, int unit)
{
    for (int i = 0; r->made && r->made[unit] && i < r->m->unit[unit].n_packs; i++)
        dev_free(r->m->dev, r->made[unit][i]);
    if (r->made)
        free(r->made[unit]);
}

void resident_close(struct resident *r)
{
    for (int v = 0; r->memory && r->m && v < r->m->local.n_trained; v++)
        dev_free(r->m->dev, r->memory[v]);
    for (int v = 0; r->own && r->m && v < r->m->local.n_vectors; v++)
        dev_free(r->m->dev, r->own[v]);
    for (int u = 0; r->unit && r->m && u < r->m->local.n_units; u++) {
        unit_weights_close(&r->unit[u]);
        free_made(r, u);
    }
    free(r->made);
    free(r->own);
    free(r->memory);
    free(r->bytes);
    free(r->unit);
    memset(r, 0, sizeof *r);
}

/* ---- memory kept for the next weights ---- */

int64_t resident_bytes(const struct resident *r)
{
    int64_t n = 0;
    for (int v = 0; r->bytes && r->m && v < r->m->local.n_trained; v++)
        n += (int64_t)r->bytes[v];
    return n;
}

static int open_kept(struct resident_memory *x, int n)
{
    if (x->block && x->bytes)
        return x->n == n;
    x->block = calloc((size_t)n + 1, sizeof *x->block);
    x->bytes = calloc((size_t)n + 1, sizeof *x->bytes);
    x->n = n;
    return x->block && x->bytes;
}

/* A write to every page makes it this process's own. */
#define PAGE ((size_t)4096)
static void *touched(const struct model *m, enum mem_cat cat, size_t bytes, const volatile sig_atomic_t *stop)
{
    volatile char *p = bytes ? dev_alloc(m->dev, cat, bytes) : NULL;
    for (size_t i = 0; p && i < bytes && !*stop; i += PAGE)
        p[i] = 0;
    return (void *)(uintptr_t)p;
}

void resident_memory_open(struct resident_memory *x, const struct model *m, const volatile sig_atomic_t *stop)
{
    size_t reading;
    if (!open_kept(x, m->local.n_trained))
        return;
    resident_measure(m, &reading);
    for (int v = 0; v < x->n && !*stop; v++) {
        x->bytes[v] = staying_bytes(m, v) + model_pack_bytes(m, v);
        x->block[v] = touched(m, MEM_PARAMS, x->bytes[v], stop);
    }
    if (!*stop) {
        x->flat_bytes = reading;
        x->flat = touched(m, MEM_WORK, reading, stop);
    }
}

void resident_retire(struct resident *r, struct resident_memory *to)
{
    const int n = r->m ? r->m->local.n_trained : 0;
    for (int v = 0; r->memory && r->bytes && open_kept(to, n) && v < n; v++) {
        if (!r->memory[v])
            continue;
        dev_free(r->m->dev, to->block[v]);
        to->block[v] = r->memory[v];
        to->bytes[v] = r->bytes[v];
        r->memory[v] = NULL;
    }
    resident_close(r);
}

int64_t resident_memory_bytes(const struct resident_memory *x)
{
    int64_t n = x->flat ? (int64_t)x->flat_bytes : 0;
    for (int v = 0; x->block && x->bytes && v < x->n; v++)
        n += x->block[v] ? (int64_t)x->bytes[v] : 0;
    return n;
}

void resident_memory_close(struct resident_memory *x, struct dev *d)
{
    for (int v = 0; x->block && v < x->n; v++)
        dev_free(d, x->block[v]);
    dev_free(d, x->flat);
    free(x->block);
    free(x->bytes);
    memset(x, 0, sizeof *x);
}
