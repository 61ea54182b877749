/* zero_update.c - AdamW on what this rank owns, wherever a store keeps it, and the way of new weights to the
 * other ranks. See zero.h. */
#include <string.h>
#include "train/zero/zero_priv.h"

/* Elements of a part in a range of what this rank owns of its vector. */
struct range {
    int64_t lo, n; /* in the vector */
    int64_t at;    /* of lo, from the beginning of the range */
};
static struct range range_of(const struct zero_vector *x, const struct part *p, int64_t at, int64_t n)
{
    int64_t begin = x->own_begin + at, end = begin + n;
    int64_t lo = begin > p->offset ? begin : p->offset;
    int64_t hi = end < p->offset + p->count ? end : p->offset + p->count;
    return (struct range){ lo, hi - lo, lo - begin };
}

static char *weight_at(const struct zero *z, const struct zero_vector *x, int64_t element)
{
    return (char *)x->weight + (element - x->weight_begin) * (int64_t)dtype_size(z->m->dt);
}

/* The weights of a range: of the piece, or in this rank's memory. */
static char *weights_of(const struct zero *z, const struct state_piece *p, const struct range *r)
{
    return p->weights ? (char *)p->weights + r->at * (int64_t)dtype_size(z->m->dt)
                      : weight_at(z, &z->vector[p->v], r->lo);
}

/* AdamW where gradients, states and weights lie in one kind of memory. */
static void update_here(struct zero *z, const struct state_piece *p, const struct range *r, const float *g,
                        const struct adamw *h)
{
    float *master = p->state[ZERO_MASTER] + r->at;
    char *weight = weights_of(z, p, r);
    int fp32 = z->m->dt == DT_F32;
    KERNEL(z->update_dev, adamw, master, fp32 ? NULL : weight, p->state[ZERO_EXP_AVG] + r->at,
           p->state[ZERO_EXP_AVG_SQ] + r->at, g, r->n, h);
    if (fp32 && (char *)master != weight)
        memcpy(weight, master, (size_t)r->n * sizeof *master);
}

/* AdamW of the host on states in its memory: gradients come down, weights go up. */
static void update_staged(struct zero *z, const struct state_piece *p, const struct range *r, const float *g,
                          const struct adamw *h)
{
    const size_t element = dtype_size(z->m->dt);
    char *weight = weights_of(z, p, r);
    for (int64_t at = 0, n; at < r->n; at += n) {
        float *master = p->state[ZERO_MASTER] + r->at + at;
        int fp32 = z->m->dt == DT_F32;
        n = r->n - at < STAGED ? r->n - at : STAGED;
        dev_read(z->m->dev, z->staged_grads, g + at, (size_t)n * sizeof *g);
        KERNEL(z->update_dev, adamw, master, fp32 ? NULL : z->staged_weights,
               p->state[ZERO_EXP_AVG] + r->at + at, p->state[ZERO_EXP_AVG_SQ] + r->at + at, z->staged_grads,
               n, h);
        dev_write(z->m->dev, weight + (size_t)at * element, fp32 ? (void *)master : z->staged_weights,
                  (size_t)n * element);
    }
}

/* A state_update.run. */
static int update_piece(void *ctx, const struct state_piece *p, struct err *e)
{
    struct zero *z = ctx;
    const struct unit_part *of = &z->m->local.unit[p->v];
    for (int i = of->first; i < of->first + of->n; i++) {
        const struct part *q = &z->m->local.part[i];
        struct range r = range_of(&z->vector[p->v], q, p->at, p->n);
        struct adamw h = z->adamw;
        h.weight_decay = z->m->table.p[q->param].decay ? z->weight_decay : 0.0f;
        if (r.n <= 0)
            continue;
        const float *g = p->grads ? p->grads + r.at : zero_summed(z, p->v, r.lo);
        (z->staged_grads ? update_staged : update_here)(z, p, &r, g, &h);
    }
    return z->staged_grads ? dev_check(z->m->dev, e) : 0;
}

/* A state_update.restore. */
static int restore_piece(void *ctx, const struct state_piece *p, struct err *e)
{
    struct zero *z = ctx;
    const struct range all = { z->vector[p->v].own_begin + p->at, p->n, 0 };
    (void)e;
    KERNEL(z->update_dev, round_to, weights_of(z, p, &all), z->m->dt, p->state[ZERO_MASTER], p->n);
    return 0;
}

/* ---- opening ---- */
int zero_open_update(struct zero *z, struct err *e)
{
    struct dev *d = z->m->dev;
    int in_memory = z->store == &z->in_memory, rc = 0;

    z->store->update = (struct state_update){ update_piece, restore_piece, z };
    z->update_dev = in_memory ? d : d->host;
    if (z->store->late)
        TRY(dev_open(&z->late_dev, "cpu", 1, d->mem, e));
    if (z->store->late)
        z->update_dev = z->late_dev;
    if (!in_memory && d->memory) {
        z->staged_grads = dev_pin(d, STAGED * sizeof *z->staged_grads);
        z->staged_weights = dev_pin(d, STAGED * dtype_size(z->m->dt));
        if (!z->staged_grads || !z->staged_weights)
            return err_set(e, ERR_MEMORY, "no pinned memory for gradients on their way to the host");
    }
out:
    return rc;
}

void zero_close_update(struct zero *z)
{
    dev_close(z->late_dev);
    if (z->staged_grads)
        dev_unpin(z->m->dev, z->staged_grads, STAGED * sizeof *z->staged_grads);
    if (z->staged_weights)
        dev_unpin(z->m->dev, z->staged_weights, STAGED * dtype_size(z->m->dt));
}

/* ---- new weights ---- */
/* Stages 1 and 2: every rank gets the other ranks' slices. */
static int gather(struct zero *z, int v, struct err *e)
{
    const struct unit_part *of = &z->m->local.unit[v];
    const struct zero_group *g = &z->group[of->group];
    size_t bytes = (size_t)(of->flat / g->size) * dtype_size(z->m->dt);
    char *weight = z->vector[v].weight;
    if (!bytes || (z->stage != 1 && z->stage != 2))
        return 0;
    int rc = comm_all_gather_shared(g->ranks, weight, weight + bytes * (size_t)g->rank, bytes, e);
    return rc < 0 ? rc : 0;
}

static int settle_vector(struct zero *z, int v, struct err *e)
{
    struct zero_vector *x = &z->vector[v];
    int rc = 0;
    if (v < 0 || !x->late)
        return 0;
    if (z->store->ops->wait)
        TRY(z->store->ops->wait(z->store, v, e));
    x->late = 0;
    rc = gather(z, v, e);
out:
    return rc < 0 ? err_add(e, "updating unit %d", z->m->local.unit[v].unit) : 0;
}

int zero_is_late(const struct zero *z, int u)
{
    int experts = z->m->local.experts_of[u];
    return z->vector[u].late || (experts >= 0 && z->vector[experts].late);
}

int zero_settle(struct zero *z, int u, struct err *e)
{
    int rc = 0;
    if (z->m->table.cfg.tied && u == z->m->n_layers + 1) /* the head is the embedding */
        TRY(settle_vector(z, 0, e));
    TRY(settle_vector(z, u, e));
    rc = settle_vector(z, z->m->local.experts_of[u], e);
out:
    return rc;
}

int zero_settle_all(struct zero *z, struct err *e)
{
    int rc = 0;
    for (int u = 0; rc >= 0 && u < z->n_units; u++)
        rc = zero_settle(z, u, e);
    return rc;
}

/* ---- ahead of the norm ---- */
void zero_expect(struct zero *z, const struct adamw *h, double weight_decay)
{
    z->expects = z->store->late && !z->was_clipped;
    z->expected = *h;
    z->expected_decay = (float)weight_decay;
}

void zero_sum_is_final(struct zero *z, int v)
{
    int tied = z->m->table.cfg.tied && (v == 0 || v == z->n_vectors);
    if (!z->expects || tied || z->super + 1 < z->plan.supers || !z->vector[v].own)
        return;
    if (!z->is_ahead) {
        z->adamw = z->expected;
        z->weight_decay = z->expected_decay;
        z->is_ahead = 1;
    }
    z->store->ops->ahead(z->store, v);
}

int zero_discard(struct zero *z, struct err *e)
{
    int rc = z->is_ahead ? z->store->ops->cancel(z->store, e) : 0;
    z->is_ahead = 0;
    return rc;
}

/* Whether what was updated ahead has the constants that the norm asks for. */
static int is_as_expected(const struct zero *z, const struct adamw *h, float weight_decay)
{
    const struct adamw *x = &z->adamw;
    return x->lr == h->lr && x->eps == h->eps && x->beta1 == h->beta1 && x->beta2 == h->beta2 &&
           x->bias1 == h->bias1 && x->bias2 == h->bias2 && x->clip == h->clip &&
           z->weight_decay == weight_decay;
}

int zero_update(struct zero *z, const struct adamw *h, double weight_decay, struct err *e)
{
    int rc = 0;
    z->was_clipped = h->clip != 1.0f;
    if (z->is_ahead && !is_as_expected(z, h, (float)weight_decay))
        TRY(zero_discard(z, e));
    z->is_ahead = 0;
    z->adamw = *h;
    z->weight_decay = (float)weight_decay;
    TRY(z->store->ops->begin(z->store, e));

    zero_forget_packs(z);
    for (int v = 0; v < z->n_vectors; v++)
        z->vector[v].late = 1;
    if (!z->store->late)
        rc = zero_settle_all(z, e);
out:
    return rc;
}
