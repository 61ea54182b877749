/* zero.c - see zero.h: memory, filling and saving. Borrowing units is in zero_borrow.c, gradients and the
 * update in zero_step.c. */
#include "train/zero/zero_priv.h"

#include <stdlib.h>
#include <string.h>
#include "base/rnd.h"

/* ---- memory ---- */
static int missing(struct err *e, const char *what)
{
    return err_set(e, ERR_MEMORY, "no memory for %s: use more ranks, a higher --zero or a smaller model",
                   what);
}

static const struct zero_group *group_of(const struct zero *z, int v)
{
    return &z->group[z->m->local.unit[v].group];
}

static int open_state(struct zero *z, int v, struct err *e)
{
    struct zero_vector *x = &z->vector[v];
    const struct zero_group *g = group_of(z, v);
    int64_t flat = z->m->local.unit[v].flat, slice = flat / g->size;
    int here = z->store == &z->in_memory && !z->frozen;
    int weights = z->stage == 0 || (z->stage == 3 && !z->store->has_weights);

    x->own_begin = z->stage ? slice * g->rank : 0;
    x->own = z->stage ? slice : flat;
    x->weight_begin = z->stage == 3 ? x->own_begin : 0;
    if (here) {
        x->exp_avg = dev_alloc(z->m->dev, MEM_OPTIM, (size_t)x->own * 4 + 64);
        x->exp_avg_sq = dev_alloc(z->m->dev, MEM_OPTIM, (size_t)x->own * 4 + 64);
    }
    if (here && z->m->dt != DT_F32)
        x->master = dev_alloc(z->m->dev, MEM_OPTIM, (size_t)x->own * 4 + 64);
    if (weights)
        x->weight = comm_alloc(g->ranks, MEM_PARAMS,
                               (size_t)(z->stage == 3 ? slice : flat) * dtype_size(z->m->dt) + 64);
    if ((here && (!x->exp_avg || !x->exp_avg_sq || (z->m->dt != DT_F32 && !x->master))) ||
        (weights && !x->weight))
        return missing(e, "weights and optimizer state");
    return 0;
}

/* Memory that a machine has once. Collective over the vector's group. */
static int open_shared(struct zero *z, int v, struct err *e)
{
    struct zero_vector *x = &z->vector[v];
    const struct unit_part *of = &z->m->local.unit[v];
    struct comm *ranks = group_of(z, v)->ranks;
    int rc = 0;

    if (z->stage == 1 || z->stage == 2)
        TRY(comm_alloc_shared(&x->weight, ranks, MEM_PARAMS, (size_t)of->flat * dtype_size(z->m->dt) + 64,
                              e));
    if (z->stage < 3) {
        if (v < z->n_units)
            TRY(unit_weights_open(&z->uw[v], z->m, e));
        TRY(comm_alloc_shared(&x->packs, ranks, MEM_PARAMS, model_pack_bytes(z->m, v) + 64, e));
        model_point(z->m, v, x->weight, &z->uw[of->unit]);
    }
    if (z->m->dt == DT_F32 && z->store == &z->in_memory) /* the weights are their own master */
        x->master = (float *)x->weight + (x->own_begin - x->weight_begin);
out:
    return rc;
}

static int open_all(struct zero *z, struct err *e)
{
    int rc = 0;
    for (int v = 0; rc >= 0 && v < z->n_vectors; v++)
        rc = open_state(z, v, e);
    if (rc >= 0)
        rc = zero_open_grads(z, e);
    if (rc >= 0)
        rc = zero_open_update(z, e);
    if (rc >= 0)
        rc = zero_open_spill(z, e);
    TRY(comm_agree(z->group[GROUP_DENSE].ranks, rc, e));
    for (int v = 0; v < z->n_vectors; v++)
        TRY(open_shared(z, v, e));
    rc = zero_open_slots(z, e);
out:
    return rc;
}

static struct zero_group group_open(struct comm *ranks)
{
    struct zero_group g = { .ranks = ranks, .rank = comm_rank(ranks), .size = comm_size(ranks) };
    comm_shared_group(ranks, &g.share, &g.n_shares);
    return g;
}

int zero_open(struct zero **out, struct model *m, const struct zero_groups *groups, struct zero_options how,
              const struct batch_plan *b, struct err *e)
{
    struct zero *z = calloc(1, sizeof *z);
    int rc = 0;

    if (z) {
        z->vector = calloc((size_t)m->local.n_trained + 1, sizeof *z->vector);
        z->uw = calloc((size_t)m->local.n_units, sizeof *z->uw);
    }
    if (!z || !z->vector || !z->uw)
        rc = missing(e, "the optimizer");
    TRY(comm_agree(groups->dp, rc, e));

    z->in_memory.ops = &state_in_memory;
    z->store = how.store ? how.store : &z->in_memory;
    z->w = how.stage == 3 ? zero_borrow_gathered : z->store->late ? zero_borrow_late : zero_borrow_resident;
    z->m = m;
    z->pp = groups->pp;
    z->all = groups->all;
    z->group[GROUP_DENSE] = group_open(groups->dp);
    z->group[GROUP_EXPERT] = group_open(groups->edp ? groups->edp : groups->dp);
    z->stage = how.stage;
    z->overlap = how.overlap;
    z->frozen = how.frozen;
    z->plan = *b;
    z->n_units = m->local.n_units;
    z->n_vectors = m->local.n_trained;

    TRY(open_all(z, e));
    *out = z;
    return 0;
out:
    zero_close(z);
    return rc;
}

static void close_vector(struct zero *z, int v)
{
    struct zero_vector *x = &z->vector[v];
    struct comm *ranks = group_of(z, v)->ranks;
    struct err ignored;

    if (z->m->dt != DT_F32)
        dev_free(z->m->dev, x->master);
    dev_free(z->m->dev, x->exp_avg);
    dev_free(z->m->dev, x->exp_avg_sq);
    comm_free_shared(ranks, x->packs, &ignored);
    if (z->stage == 1 || z->stage == 2)
        comm_free_shared(ranks, x->weight, &ignored);
    else
        comm_free(ranks, x->weight);
}

void zero_close(struct zero *z)
{
    if (!z)
        return;
    if (z->m) {
        zero_close_grads(z);
        zero_close_slots(z);
        zero_close_update(z);
        zero_close_spill(z);
    }
    for (int v = 0; z->m && v < z->n_vectors; v++)
        close_vector(z, v);
    for (int u = 0; z->m && z->uw && u < z->n_units; u++)
        unit_weights_close(&z->uw[u]);
    free(z->vector);
    free(z->uw);
    free(z);
}

struct weights *zero_weights(struct zero *z) { return &z->w; }

/* ---- filling ---- */
#define CHUNK (1 << 16)

int zero_init_values(void *ctx, enum zero_state s, const struct param *p, const struct box *b, int64_t lo,
                     int64_t hi, float *dst, struct err *e)
{
    uint64_t seed = *(const uint64_t *)ctx, stream = rnd_stream(p->name);
    struct box whole = box_whole(p->n_dims, p->shape);
    struct box_walk w = { 0 };
    struct box_run run;
    (void)s;
    (void)e;

    /* A value is a function of its index in the whole tensor. */
    while (box_next_run(b, lo, hi, &whole, &w, &run)) {
        for (int64_t i = 0, n; i < run.count; i += n) {
            double drawn[256] = { 0 };
            n = run.count - i < 256 ? run.count - i : 256;
            if (p->init == INIT_NORMAL || p->init == INIT_RESIDUAL)
                rnd_normals(seed, stream, (uint64_t)(run.part_off + i), n, drawn);
            for (int64_t j = 0; p->init == INIT_UNIFORM && j < n; j++)
                drawn[j] = 2 * rnd_unit(seed, stream, (uint64_t)(run.part_off + i + j)) - 1;
            for (int64_t j = 0; j < n; j++)
                dst[run.of_off - lo + i + j] = p->init == INIT_ONES ? 1.0f
                                                                    : (float)(p->init_range * drawn[j]);
        }
    }
    return 0;
}

/* What a load goes through: the ring to the device, and CHUNK elements of fp32 for weights before they are
 * rounded. */
struct filling {
    struct ring ring;
    float *buf;
    float *rounded; /* weights for a store */
};

/* Loads one state of one part: the elements that this rank holds, in chunks. Weights are rounded before
 * they reach their memory, because other ranks of the machine may share it. from_weight: masters from fn's
 * weights. */
static int load_state(struct zero *z, enum zero_state s, int part, zero_fill fn, void *ctx, int from_weight,
                      struct filling *to, struct err *e)
{
    const struct part *p = &z->m->local.part[part];
    const struct param *q = &z->m->table.p[p->param];
    struct zero_vector *x = &z->vector[p->vector];
    int weight = s == ZERO_WEIGHT;
    int64_t begin = weight ? x->weight_begin : x->own_begin;
    int64_t n = weight && z->stage < 3 ? z->m->local.unit[p->vector].flat : x->own;
    int64_t lo = begin - p->offset, hi = lo + n; /* of this rank, in the part; cut to the part below */
    void *state = weight ? x->weight : z->store->ops->memory(z->store, p->vector, s);
    size_t element = weight ? dtype_size(z->m->dt) : sizeof(float);
    lo = lo < 0 ? 0 : lo;
    hi = hi > p->count ? p->count : hi;

    for (int64_t got; lo < hi; lo += got) {
        if (!state) {
            got = hi - lo < CHUNK ? hi - lo : CHUNK;
            int rc = fn(ctx, from_weight ? ZERO_WEIGHT : s, q, &p->box, lo, lo + got, to->buf, e);
            if (rc >= 0 && weight)
                KERNEL(z->m->dev->host, round_to, to->rounded, z->m->dt, to->buf, got);
            if (rc >= 0)
                rc = z->store->ops->write(z->store, p->vector, s, p->offset + lo - begin, got,
                                          weight ? to->rounded : to->buf, e);
            if (rc < 0)
                return rc;
            continue;
        }
        char *at = (char *)state + (size_t)(p->offset + lo - begin) * element;
        void *place;
        got = ring_take(&to->ring, at, hi - lo < CHUNK ? hi - lo : CHUNK, element, &place, e);
        int rc = got < 0 ? (int)got
                         : fn(ctx, from_weight ? ZERO_WEIGHT : s, q, &p->box, lo, lo + got,
                              weight ? to->buf : place, e);
        if (rc < 0)
            return rc;
        if (weight)
            KERNEL(z->m->dev->host, round_to, place, z->m->dt, to->buf, got);
    }
    return 0;
}

/* A part with a dtype of its own, which lies in the model's memory: its weights, whole. */
static int load_own(struct zero *z, int part, zero_fill fn, void *ctx, struct filling *to, struct err *e)
{
    const struct part *p = &z->m->local.part[part];
    const struct param *q = &z->m->table.p[p->param];
    float *own = model_own(z->m, part);

    for (int64_t lo = 0, got; lo < p->count; lo += got) {
        void *place;
        got = ring_take(&to->ring, (char *)(own + lo), p->count - lo < CHUNK ? p->count - lo : CHUNK,
                        sizeof *own, &place, e);
        int rc = got < 0 ? (int)got : fn(ctx, ZERO_WEIGHT, q, &p->box, lo, lo + got, place, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int zero_load(struct zero *z, zero_fill fn, void *ctx, const int have[ZERO_STATES], struct err *e)
{
    const struct dev_executor mine = { 0 };
    struct filling to = { .buf = malloc(CHUNK * sizeof *to.buf), .rounded = malloc(CHUNK * sizeof *to.buf) };
    int rc = to.buf && to.rounded ? 0 : missing(e, "a chunk of a checkpoint");
    TRY(rc);
    TRY(ring_open(&to.ring, z->m->dev, &mine, RING_BUFFER_BYTES, e));
    /* one state after the other: files hold them in this order */
    for (enum zero_state s = 0; s < ZERO_STATES; s++) {
        int is_master = s == ZERO_MASTER && (z->m->dt != DT_F32 || z->store != &z->in_memory);
        if (!(s == ZERO_MASTER ? is_master : have[s]) || (z->frozen && s != ZERO_WEIGHT))
            continue;
        for (int i = 0; i < z->m->local.n_parts; i++)
            if (!model_own(z->m, i))
                TRY(load_state(z, s, i, fn, ctx, is_master && !have[s], &to, e));
            else if (s == ZERO_WEIGHT)
                TRY(load_own(z, i, fn, ctx, &to, e));
    }
    TRY(ring_settle(&to.ring, e));
    zero_forget_packs(z);
out:
    ring_close(&to.ring);
    free(to.buf);
    free(to.rounded);
    return rc;
}

const void *zero_piece(const struct zero *z, enum zero_state s, const struct param_piece *p)
{
    const struct zero_vector *x = &z->vector[z->m->local.part[p->part].vector];
    const float *own = model_own(z->m, p->part);
    if (own)
        return s == ZERO_WEIGHT ? own + (p->flat - z->m->local.part[p->part].offset) : NULL;
    if (s == ZERO_WEIGHT)
        return !x->weight ? NULL
                          : (char *)x->weight + (p->flat - x->weight_begin) * (int64_t)dtype_size(z->m->dt);
    const float *state = z->store->ops->memory(z->store, z->m->local.part[p->part].vector, s);
    return state ? state + (p->flat - x->own_begin) : NULL;
}

int zero_read_piece(const struct zero *z, enum zero_state s, const struct param_piece *p, int64_t at,
                    int64_t n, void *out, struct err *e)
{
    int v = z->m->local.part[p->part].vector;
    return z->store->ops->read(z->store, v, s, p->flat - z->vector[v].own_begin + at, n, out, e);
}

int64_t zero_own(const struct model *m, int stage, int v)
{
    const struct unit_part *of = &m->local.unit[v];
    return stage ? of->flat / of->n_slices : of->flat;
}
