/* adapter_rig.h - adapters whose values are a function of name and index, for tests of the computation. */
#ifndef SHARDLINE_TESTS_UNIT_MODEL_ADAPTER_RIG_H
#define SHARDLINE_TESTS_UNIT_MODEL_ADAPTER_RIG_H

#include "kernels/fn.h"
#include "model/units.h"
#include "tests/unit/model/model_rig.h"

/* An element of A or B: of the tensor, by its index in the whole tensor; rounded to dt. */
static inline float factor_value(const char *name, uint64_t seed, int64_t index, enum dtype dt)
{
    float v = 0.2f * (float)rnd_normal(seed, rnd_stream(name), (uint64_t)index);
    return dt == DT_BF16 ? fn_round_bf16(v) : v;
}

/* The index in the whole tensor of element i of a box, row-major. */
static inline int64_t index_in_tensor(const struct param *p, const struct box *b, int64_t i)
{
    int64_t at[BOX_DIMS], index = 0;
    for (int d = p->n_dims - 1; d >= 0; d--) {
        at[d] = b->start[d] + i % b->extent[d];
        i /= b->extent[d];
    }
    for (int d = 0; d < p->n_dims; d++)
        index = index * p->shape[d] + at[d];
    return index;
}

struct filled {
    struct adapter a;
    struct resident weights;
    uint64_t seed;
};

static inline int read_factor(void *ctx, const struct param *p, const struct box *b, struct ring *ring,
                              void *dst, enum dtype dt, struct err *e)
{
    const struct filled *f = ctx;
    int64_t n = box_count(b);
    float *values = malloc((size_t)n * sizeof *values);
    uint16_t *half = malloc((size_t)n * sizeof *half);
    (void)ring;
    (void)e;
    for (int64_t i = 0; i < n; i++) {
        values[i] = factor_value(p->name, f->seed, index_in_tensor(p, b, i), dt);
        half[i] = fn_to_bf16(values[i]);
    }
    dev_write(f->a.m.dev, dst, dt == DT_BF16 ? (void *)half : (void *)values, (size_t)n * dtype_size(dt));
    free(values);
    free(half);
    return 0;
}

/* An adapter of every matrix whose kind passes `takes` (NULL: all for which one is computed). Ranks are
 * rank, rank + 1, rank, … by layer; scales are no powers of two. */
static inline void filled_tables(struct filled *f, struct model *m, int64_t rank,
                                 int (*takes)(const struct param *p))
{
    struct adapter_matrix *list = calloc((size_t)m->table.n, sizeof *list);
    struct err e = { 0 };
    int n = 0;
    for (int i = 0; i < m->table.n; i++) {
        const struct param *p = &m->table.p[i];
        int of = p->expert < 0 ? i : (int)p->kind; /* one factor for all experts */
        if (adapter_computed(p) && p->n_fused && (!takes || takes(p)))
            list[n++] = (struct adapter_matrix){ i, rank + p->unit % 2, 1.3f + 0.1f * (float)(of % 3) };
    }
    if (adapter_open(&f->a, m, list, n, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    free(list);
}

static inline void filled_open(struct filled *f, struct model *m, int64_t rank, uint64_t seed,
                               int (*takes)(const struct param *p))
{
    struct err e = { 0 };
    *f = (struct filled){ .seed = seed };
    filled_tables(f, m, rank, takes);
    if (resident_open(&f->weights, &f->a.m, read_factor, f, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    f->a.w = &f->weights.w;
}

static inline void filled_close(struct filled *f)
{
    resident_close(&f->weights);
    adapter_close(&f->a);
}

/* A rig whose model is frozen, under an adapter with weights and gradients of its own. */
struct tuned {
    struct rig r;
    struct filled f; /* the adapter; f.weights is not used */
    struct zero *z;
    struct train_work *work;
    struct deferred_grads *deferred;
};

static inline float *tuned_weight(struct tuned *t, int part)
{
    const struct part *p = &t->f.a.m.local.part[part];
    return (float *)t->z->vector[p->vector].weight + p->offset;
}

static inline float *tuned_grad(struct tuned *t, int part)
{
    const struct part *p = &t->f.a.m.local.part[part];
    return zero_grads(t->z)->level(zero_grads(t->z), p->vector, 0) + p->offset;
}

static inline int tuned_values(void *ctx, enum zero_state s, const struct param *p, const struct box *b,
                               int64_t lo, int64_t hi, float *dst, struct err *e)
{
    const struct tuned *t = ctx;
    (void)s;
    (void)e;
    for (int64_t i = lo; i < hi; i++)
        dst[i - lo] = factor_value(p->name, t->f.seed, index_in_tensor(p, b, i), t->r.m.dt);
    return 0;
}

static inline void tuned_open(struct tuned *t, const struct model_config *c, enum dtype dt, int64_t rank,
                              struct work_shape shape)
{
    const int have[ZERO_STATES] = { 1, 0, 0, 0 };
    struct err e = { 0 };
    memset(t, 0, sizeof *t);
    rig_adapter_rank = rank + 1;
    rig_open(&t->r, c, dt, shape.n_seq, shape.seq_len);
    if (dt == DT_F32)
        rig_shake(&t->r);
    t->f.seed = 21;
    filled_tables(&t->f, &t->r.m, rank, NULL);
    shape.adapter = &t->f.a;
    struct zero_groups groups = { .dp = t->r.mesh.axis[AXIS_DP],
                                  .pp = t->r.mesh.axis[AXIS_PP],
                                  .all = t->r.mesh.all };
    if (zero_open(&t->z, &t->f.a.m, &groups, (struct zero_options){ 0 }, &t->r.plan, &e) < 0 ||
        zero_load(t->z, tuned_values, t, have, &e) < 0 ||
        train_work_open(&t->work, &t->r.m, 0, &shape, &e) < 0 ||
        (shape.deferred_weights && deferred_grads_open(&t->deferred, &t->r.m, 0, &shape, &e) < 0)) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    t->f.a.w = zero_weights(t->z);
}

static inline void tuned_close(struct tuned *t)
{
    deferred_grads_close(t->deferred);
    train_work_close(t->work);
    zero_close(t->z);
    adapter_close(&t->f.a);
    rig_close(&t->r);
}

#endif
