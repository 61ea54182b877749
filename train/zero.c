/* zero.c - see zero.h. Memory and gathering here; gradients and the update in zero_step.c. */
#include "train/zero_priv.h"

#include <stdlib.h>
#include <string.h>
#include "base/rnd.h"

static int64_t slice_of(const struct zero *z, int u) { return z->m->local.unit[u].flat / z->n_dp; }

/* ---- lending units ---- */
static void pack_unit(struct zero *z, int u, void *flat, void *head_flat, struct unit_weights *uw, void *memory)
{
    model_point(z->m, u, flat, uw);
    model_pack(z->m, u, flat, head_flat, uw, memory);
}

static int get_resident(struct weights *w, int u, int backward, const struct unit_weights **out, struct err *e)
{
    struct zero *z = (struct zero *)w;
    struct zero_unit *x = &z->unit[u];
    (void)e;
    if (!backward && !x->packed) {
        pack_unit(z, u, x->weight, z->m->table.cfg.tied ? z->unit[0].weight : x->weight, &x->uw, x->packs);
        x->packed = 1;
    }
    *out = &x->uw;
    return 0;
}

static void put_resident(struct weights *w, int u)
{
    (void)w;
    (void)u;
}

static struct zero_slot *slot_for(struct zero *z, int u)
{
    struct zero_slot *best = NULL;
    for (int i = 0; i < ZERO_SLOTS; i++) {
        if (z->slot[i].unit == u)
            return &z->slot[i];
        if (!z->slot[i].lent && (!best || z->slot[i].used < best->used))
            best = &z->slot[i];
    }
    return best;
}

static int get_gathered(struct weights *w, int u, int backward, const struct unit_weights **out, struct err *e)
{
    struct zero *z = (struct zero *)w;
    struct zero_slot *s = slot_for(z, u);
    int rc;
    if (!s)
        return err_set(e, ERR_INTERNAL, "unit %d asked for while %d units are lent", u, ZERO_SLOTS);
    s->lent++;
    s->used = ++z->clock;
    if (s->unit != u) {
        s->unit = u;
        s->packed = 0;
        memset(&s->uw, 0, sizeof s->uw);
        rc = comm_all_gather(z->dp, s->flat, z->unit[u].weight, (size_t)slice_of(z, u) * dtype_size(z->m->dt), e);
        if (rc < 0) {
            s->unit = -1;
            s->lent--;
            return err_add(e, "gathering unit %d", u);
        }
        model_point(z->m, u, s->flat, &s->uw);
    }
    if (!backward && !s->packed) {
        const struct unit_weights *table = NULL;
        int tied_head = z->m->table.cfg.tied && u == z->m->n_layers + 1;
        if (tied_head && (rc = get_gathered(w, 0, 1, &table, e)) < 0)
            return rc;
        pack_unit(z, u, s->flat, tied_head ? table->flat : s->flat, &s->uw, s->packs);
        s->packed = 1;
        if (tied_head)
            w->put(w, 0);
    }
    *out = &s->uw;
    return 0;
}

static void put_gathered(struct weights *w, int u)
{
    struct zero *z = (struct zero *)w;
    for (int i = 0; i < ZERO_SLOTS; i++)
        if (z->slot[i].unit == u && z->slot[i].lent)
            z->slot[i].lent--;
}

void zero_forget_packs(struct zero *z)
{
    for (int u = 0; u < z->n_units; u++)
        z->unit[u].packed = 0;
    for (int i = 0; i < ZERO_SLOTS; i++)
        z->slot[i].unit = -1;
}

/* ---- memory ---- */
static int missing(struct err *e, const char *what)
{
    return err_set(e, ERR_MEMORY, "no memory for %s: use more ranks, a higher --zero or a smaller model", what);
}

static int open_unit(struct zero *z, int u, struct err *e)
{
    struct zero_unit *x = &z->unit[u];
    int64_t flat = z->m->local.unit[u].flat, slice = flat / z->n_dp;
    size_t el = dtype_size(z->m->dt);
    x->own_begin = z->stage ? slice * z->d : 0;
    x->own = z->stage ? slice : flat;
    x->weight_begin = z->stage == 3 ? x->own_begin : 0;
    x->weight = comm_alloc(z->dp, MEM_PARAMS, (size_t)(z->stage == 3 ? slice : flat) * el + 64);
    x->exp_avg = dev_alloc(z->m->dev, MEM_OPTIM, (size_t)x->own * 4 + 64);
    x->exp_avg_sq = dev_alloc(z->m->dev, MEM_OPTIM, (size_t)x->own * 4 + 64);
    if (z->m->dt != DT_F32)
        x->master = dev_alloc(z->m->dev, MEM_OPTIM, (size_t)x->own * 4 + 64);
    if (!x->weight || !x->exp_avg || !x->exp_avg_sq || (z->m->dt != DT_F32 && !x->master))
        return missing(e, "weights and optimizer state");
    if (z->m->dt == DT_F32)              /* the weights are their own master */
        x->master = (float *)x->weight + (x->own_begin - x->weight_begin);
    if (z->stage < 3) {
        x->packs = dev_alloc(z->m->dev, MEM_PARAMS, model_pack_bytes(z->m, u) + 64);
        if (!x->packs)
            return missing(e, "packed weights");
        model_point(z->m, u, x->weight, &x->uw);
    }
    return 0;
}

static int open_slots(struct zero *z, struct err *e)
{
    int64_t flat = 0;
    size_t packs = 0;
    for (int u = 0; u < z->n_units; u++) {
        size_t p = model_pack_bytes(z->m, u);
        flat = z->m->local.unit[u].flat > flat ? z->m->local.unit[u].flat : flat;
        packs = p > packs ? p : packs;
    }
    for (int i = 0; i < ZERO_SLOTS; i++) {
        z->slot[i].unit = -1;
        if (z->stage < 3)
            continue;
        z->slot[i].flat = comm_alloc(z->dp, MEM_PARAMS, (size_t)flat * dtype_size(z->m->dt) + 64);
        z->slot[i].packs = dev_alloc(z->m->dev, MEM_PARAMS, packs + 64);
        if (!z->slot[i].flat || !z->slot[i].packs)
            return missing(e, "gathered units");
    }
    return 0;
}

int zero_open(struct zero **out, struct model *m, struct comm *dp, struct comm *pp, struct comm *all, int stage, const struct batch_plan *b, struct err *e)
{
    struct zero *z = calloc(1, sizeof *z);
    int rc;
    if (!z)
        return missing(e, "the optimizer");
    z->w = stage == 3 ? (struct weights){ get_gathered, put_gathered } : (struct weights){ get_resident, put_resident };
    z->m = m;
    z->dp = dp;
    z->pp = pp;
    z->all = all;
    z->stage = stage;
    z->plan = *b;
    z->d = comm_rank(dp);
    z->n_dp = comm_size(dp);
    z->n_units = m->local.n_units;
    z->unit = calloc((size_t)z->n_units + 1, sizeof *z->unit);
    if (!z->unit) {
        rc = missing(e, "units");
        goto out;
    }
    for (int u = 0; u < z->n_units; u++)
        TRY(open_unit(z, u, e));
    TRY(open_slots(z, e));
    TRY(zero_open_grads(z, e));
    *out = z;
    return 0;
out:
    zero_close(z);
    return rc;
}

void zero_close(struct zero *z)
{
    if (!z)
        return;
    zero_close_grads(z);
    for (int u = 0; z->unit && u < z->n_units; u++) {
        struct zero_unit *x = &z->unit[u];
        if (z->m->dt != DT_F32)
            dev_free(z->m->dev, x->master);
        dev_free(z->m->dev, x->exp_avg);
        dev_free(z->m->dev, x->exp_avg_sq);
        dev_free(z->m->dev, x->packs);
        comm_free(z->dp, x->weight);
    }
    for (int i = 0; i < ZERO_SLOTS; i++) {
        comm_free(z->dp, z->slot[i].flat);
        dev_free(z->m->dev, z->slot[i].packs);
    }
    free(z->unit);
    free(z);
}

struct weights *zero_weights(struct zero *z) { return &z->w; }

/* ---- filling ---- */
#define CHUNK (1 << 16)

int zero_init_values(void *ctx, enum zero_state s, const struct param *p, const struct box *b, int64_t lo, int64_t hi, float *dst, struct err *e)
{
    uint64_t seed = *(const uint64_t *)ctx, stream = rnd_stream(p->name);
    int64_t cols = b->n_dims == 2 ? b->extent[1] : 1, whole = b->n_dims == 2 ? p->shape[1] : 1;
    (void)s;
    (void)e;
    for (int64_t i = lo; i < hi;) {              /* run by run inside a row */
        double normal[256] = { 0 };
        int64_t row = i / cols + b->start[0], col = i % cols + (b->n_dims == 2 ? b->start[1] : 0), n = cols - i % cols;
        n = n < hi - i ? n : hi - i;
        n = n < 256 ? n : 256;
        if (p->init == INIT_NORMAL || p->init == INIT_RESIDUAL)
            rnd_normals(seed, stream, (uint64_t)(row * whole + col), n, normal);
        for (int64_t j = 0; j < n; j++)
            dst[i - lo + j] = p->init == INIT_ONES ? 1.0f : (float)(p->init_range * normal[j]);
        i += n;
    }
    return 0;
}

/* One state of one part: elements that this rank holds, in chunks. */
static int load_state(struct zero *z, enum zero_state s, int part, zero_fill fn, void *ctx, int from_weight, float *buf, struct err *e)
{
    const struct part *p = &z->m->local.part[part];
    const struct param *q = &z->m->table.p[p->param];
    struct zero_unit *x = &z->unit[q->unit];
    int weight = s == ZERO_WEIGHT;
    int64_t begin = weight ? x->weight_begin : x->own_begin, n = weight && z->stage < 3 ? z->m->local.unit[q->unit].flat : x->own;
    int64_t lo = begin - p->offset, hi = lo + n;
    float *state[] = { NULL, x->master, x->exp_avg, x->exp_avg_sq };
    lo = lo < 0 ? 0 : lo;
    hi = hi > p->count ? p->count : hi;
    for (; lo < hi; lo += CHUNK) {
        int64_t end = lo + CHUNK < hi ? lo + CHUNK : hi, at = p->offset + lo - begin;
        int rc = fn(ctx, from_weight ? ZERO_WEIGHT : s, q, &p->box, lo, end, buf, e);
        if (rc < 0)
            return rc;
        if (weight)
            KERNEL(z->m->dev, round_to, (char *)x->weight + at * (int64_t)dtype_size(z->m->dt), z->m->dt, buf, end - lo);
        else
            memcpy(state[s] + at, buf, (size_t)(end - lo) * 4);
    }
    return 0;
}

int zero_load(struct zero *z, zero_fill fn, void *ctx, const int have[ZERO_STATES], struct err *e)
{
    float *buf = malloc(CHUNK * sizeof *buf);
    int rc = 0;
    if (!buf)
        return missing(e, "a chunk of a checkpoint");
    for (enum zero_state s = 0; s < ZERO_STATES; s++) {      /* a state after the other: that is how files hold them */
        int is_master = s == ZERO_MASTER && z->m->dt != DT_F32;
        if (!(s == ZERO_MASTER ? is_master : have[s]))
            continue;
        for (int i = 0; i < z->m->local.n_parts; i++)
            TRY(load_state(z, s, i, fn, ctx, is_master && !have[s], buf, e));
    }
    zero_forget_packs(z);
out:
    free(buf);
    return rc;
}

const void *zero_piece(const struct zero *z, enum zero_state s, const struct param_piece *p)
{
    int u = z->m->table.p[z->m->local.part[p->part].param].unit;
    const struct zero_unit *x = &z->unit[u];
    switch (s) {
    case ZERO_WEIGHT: return (char *)x->weight + (p->flat - x->weight_begin) * (int64_t)dtype_size(z->m->dt);
    case ZERO_MASTER: return x->master + (p->flat - x->own_begin);
    case ZERO_EXP_AVG: return x->exp_avg + (p->flat - x->own_begin);
    case ZERO_EXP_AVG_SQ: return x->exp_avg_sq + (p->flat - x->own_begin);
    default: return NULL;
    }
}
