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

struct filled {
    struct adapter a;
    struct resident weights;
    uint64_t seed;
};

static inline int read_factor(void *ctx, const struct param *p, const struct box *b, struct ring *ring,
                              void *dst, enum dtype dt, struct err *e)
{
    const struct filled *f = ctx;
    int64_t n = box_count(b), cols = b->extent[1], k = 0;
    float *values = malloc((size_t)n * sizeof *values);
    uint16_t *half = malloc((size_t)n * sizeof *half);
    (void)ring;
    (void)e;
    for (int64_t i = b->start[0]; i < b->start[0] + b->extent[0]; i++)
        for (int64_t j = b->start[1]; j < b->start[1] + cols; j++, k++) {
            values[k] = factor_value(p->name, f->seed, i * p->shape[1] + j, dt);
            half[k] = fn_to_bf16(values[k]);
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
        if (adapter_computed(p) && p->n_fused && (!takes || takes(p)))
            list[n++] = (struct adapter_matrix){ i, rank + p->unit % 2, 1.3f + 0.1f * (float)(i % 3) };
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

#endif
