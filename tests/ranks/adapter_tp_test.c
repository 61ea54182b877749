/* ranks: 8 */
/* adapter_tp_test.c - adapters at tp 2, 4 and 8, with and without shared tokens (sp), against tp 1: the same
 * bits of logits of a batch with several adapters, and of the gradients of A and B. Every rank computes tp 1
 * itself. */
#include "tests/unit/model/adapter_rig.h"

enum { RANK = 3, SEQS = 2, LEN = 16, VOCAB = 701 };

/* A model on one rank of tp, with the weights of a run and adapters. */
struct side {
    struct mem mem;
    struct dev *dev;
    struct mesh mesh;
    struct model m;
    struct batch_plan plan;
    struct zero *base, *trained;
    struct train_work *work;
    struct filled f[2], tuned;
    float logits[SEQS * VOCAB];
};

static struct world *world;
static struct mem mem;

static void must(int rc, const struct err *e)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "%s\n", e->text);
    abort();
}

static int side_values(void *ctx, enum zero_state s, const struct param *p, const struct box *b, int64_t lo,
                       int64_t hi, float *dst, struct err *e)
{
    const struct side *x = ctx;
    (void)s;
    (void)e;
    for (int64_t i = lo; i < hi; i++)
        dst[i - lo] = factor_value(p->name, 5, index_in_tensor(p, b, i), x->m.dt);
    return 0;
}

static void side_open(struct side *x, const struct model_config *c, enum dtype dt, int tp, int sp)
{
    const int have[ZERO_STATES] = { 1, 0, 0, 0 };
    int size[AXIS_COUNT] = { tp, 1, 1, 1 };
    struct work_shape shape = { .n_seq = SEQS, .seq_len = LEN, .adapter = &x->tuned.a };
    uint64_t seed = 5;
    struct err e = { 0 };

    memset(x, 0, sizeof *x);
    must(dev_open(&x->dev, "cpu", 1, &x->mem, &e), &e);
    size[AXIS_PP] = world_size(world) / tp; /* the same again and again */
    must(mesh_open(&x->mesh, world, size, &e), &e);
    struct model_open how = { .layout = { .tp = tp, .pp = 1, .cp = 1, .dp = 1, .ep = 1, .sp = sp },
                              .dev = x->dev,
                              .tp = x->mesh.axis[AXIS_TP],
                              .tp_rank = comm_rank(x->mesh.axis[AXIS_TP]),
                              .dt = dt,
                              .max_rows = SEQS * LEN,
                              .max_pos = LEN,
                              .adapter_rank = RANK + 1 };
    must(model_open(&x->m, c, &how, &e), &e);
    must(batch_plan(&x->plan, SEQS, SEQS, 1, 0, &e), &e);
    struct zero_groups groups = { .dp = x->mesh.axis[AXIS_DP],
                                  .pp = x->mesh.axis[AXIS_DP],
                                  .all = x->mesh.all };
    must(zero_open(&x->base, &x->m, &groups, (struct zero_options){ 0 }, &x->plan, &e), &e);
    must(zero_load(x->base, zero_init_values, &seed, have, &e), &e);
    filled_tables(&x->tuned, &x->m, RANK, NULL);
    must(zero_open(&x->trained, &x->tuned.a.m, &groups, (struct zero_options){ 0 }, &x->plan, &e), &e);
    must(zero_load(x->trained, side_values, x, have, &e), &e);
    x->tuned.a.w = zero_weights(x->trained);
    must(train_work_open(&x->work, &x->m, 0, &shape, &e), &e);
    for (int i = 0; i < 2; i++)
        filled_open(&x->f[i], &x->m, RANK - i, 7 + (uint64_t)i, NULL);
}

static void side_close(struct side *x)
{
    for (int i = 0; i < 2; i++)
        filled_close(&x->f[i]);
    train_work_close(x->work);
    zero_close(x->trained);
    adapter_close(&x->tuned.a);
    zero_close(x->base);
    model_close(&x->m);
    mesh_close(&x->mesh);
    dev_close(x->dev);
}

static void inputs(int32_t *ids, int32_t *targets)
{
    for (int i = 0; i < SEQS * LEN; i++) {
        ids[i] = i * 7919 % VOCAB;
        targets[i] = (i * 104729 + 13) % VOCAB;
    }
}

/* Three rows of the first sequence have no adapter, its others the first one; the second has the second. */
static void serve(struct side *x)
{
    struct forward_work w;
    struct arena a = { 0 };
    struct attn_seq seq[SEQS];
    struct adapter_run run[2] = { { &x->f[0].a, 3, LEN - 3 }, { &x->f[1].a, LEN, LEN } };
    const struct adapter_rows rows = { 2, run };
    int32_t ids[SEQS * LEN], targets[SEQS * LEN], want[SEQS] = { LEN - 1, 2 * LEN - 1 };
    char *page[SEQS];
    struct head_out h = { 0 };
    struct err e = { 0 };

    inputs(ids, targets);
    forward_work_carve(&x->m, &a, SEQS * LEN, SEQS, &w);
    a = (struct arena){ dev_alloc(x->dev, MEM_WORK, a.used), 0, a.used };
    forward_work_carve(&x->m, &a, SEQS * LEN, SEQS, &w);
    for (int i = 0; i < SEQS; i++) {
        page[i] = dev_alloc(x->dev, MEM_KV, model_page_bytes(&x->m) * (size_t)x->m.n_layers);
        seq[i] = (struct attn_seq){ i * LEN, LEN, 0, &page[i] };
    }
    struct batch b = { .n_rows = SEQS * LEN,
                       .ids = ids,
                       .n_seq = SEQS,
                       .seq = seq,
                       .n_want = SEQS,
                       .want = want,
                       .adapters = &rows };
    must(model_forward(&x->m, zero_weights(x->base), &b, &w, &h, &e), &e);
    memcpy(x->logits, h.logits, sizeof x->logits);
    for (int i = 0; i < SEQS; i++)
        dev_free(x->dev, page[i]);
    dev_free(x->dev, a.base);
}

static void train(struct side *x)
{
    int32_t ids[SEQS * LEN], targets[SEQS * LEN];
    float scale[SEQS * LEN];
    struct err e = { 0 };
    double norm;

    inputs(ids, targets);
    for (int i = 0; i < SEQS * LEN; i++)
        scale[i] = 1.0f / (SEQS * LEN);
    must(model_train_forward(zero_weights(x->base), x->work, ids, targets, NULL, &e), &e);
    must(zero_begin_rows(x->trained, 0, 0, &e), &e);
    must(model_train_backward(zero_weights(x->base), x->work, ids, targets, scale, zero_grads(x->trained),
                              &e),
         &e);
    must(zero_norm(x->trained, &norm, &e), &e);
    CHECK(norm > 0);
}

static const float *grad_of(struct side *x, int part)
{
    const struct part *p = &x->tuned.a.m.local.part[part];
    return zero_grads(x->trained)->level(zero_grads(x->trained), p->vector, 0) + p->offset;
}

/* Every element of a part against the same element of the whole. */
static void compare(struct side *got, struct side *want)
{
    const struct params_local *l = &got->tuned.a.m.local, *all = &want->tuned.a.m.local;
    CHECK_SAME(got->logits, want->logits, sizeof got->logits);
    for (int i = 0; i < l->n_parts; i++) {
        const struct part *p = &l->part[i], *q = &all->part[all->part_of[p->param]];
        const struct param *of = &got->tuned.a.m.table.p[p->param];
        const float *mine = grad_of(got, i), *whole = grad_of(want, all->part_of[p->param]);
        int64_t first = index_in_tensor(of, &q->box, 0), n = 0;
        for (int64_t k = 0; k < p->count; k++)
            n += memcmp(mine + k, whole + index_in_tensor(of, &p->box, k) - first, sizeof *mine) != 0;
        if (n)
            test_fail(__FILE__, __LINE__, "tp %d: %s: %lld of %lld elements differ", got->m.local.layout.tp,
                      of->name, (long long)n, (long long)p->count);
    }
}

/* Cases 0 to 5: tp 2, 4, 8, each without and with sp; every `step`-th one. */
static void check_config(const struct model_config *c, enum dtype dt, int step)
{
    static struct side alone, cut;
    side_open(&alone, c, dt, 1, 0);
    serve(&alone);
    train(&alone);
    for (int k = 0; k < 6; k += step) {
        side_open(&cut, c, dt, 2 << k / 2, k % 2);
        if (k % 2 == 0)
            serve(&cut);
        else
            memcpy(cut.logits, alone.logits, sizeof cut.logits);
        train(&cut);
        compare(&cut, &alone);
        side_close(&cut);
    }
    side_close(&alone);
}

static void close_world(void) { world_close(world); }

static void open_world(void)
{
    struct err e = { 0 };
    if (world)
        return;
    must(world_open(&world, "auto", 0, NULL, &mem, &e), &e);
    atexit(close_world);
}

TEST(adapters_of_a_llama_have_the_same_bits_at_every_tp)
{
    struct model_config c = rig_config(0, 0.15);
    open_world();
    check_config(&c, DT_F32, 1);
    check_config(&c, DT_BF16, 5);
}

TEST(adapters_of_other_families_have_the_same_bits_at_every_tp)
{
    open_world();
    for (int i = 0; i < RIG_FAMILIES; i++) {
        struct model_config family = rig_family_config(i);
        int latent = family_has(&family, F_LATENT), fused = family.features & F_POSITIONS;
        if (latent || fused || family.n_experts || family_has(&family, F_PARALLEL))
            check_config(&family, DT_BF16, 5);
    }
}
