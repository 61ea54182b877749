/* ranks: 4 */
/* adapter_ep_test.c - adapters of experts that expert parallelism divides, at ep 2 and 4, against ep 1: the
 * same bits of logits of a batch with several adapters, of the norm of the gradients, and of those of the
 * experts' A and B. Ranks of an expert group share all rows (tp), or have rows of their own (dp): then a rank
 * computes rows with adapters that none of its own has. Every rank computes ep 1 itself. */
#include "tests/unit/model/adapter_rig.h"

enum { RANK = 3, SEQS = 4, LEN = 16, VOCAB = 701, ADAPTERS = 2 };

struct layout_case {
    int tp, dp;
    double buffer; /* room for rows of experts: several rounds in training */
    enum recompute recompute;
};

/* A model on the ranks of one expert group, with the weights of a run and adapters. */
struct side {
    struct mem mem;
    struct dev *dev;
    struct mesh mesh;
    struct comm *all, *alone; /* the expert group; this rank */
    struct model m;
    struct batch_plan plan;
    struct zero *base, *trained;
    struct train_work *work;
    struct filled f[ADAPTERS], tuned;
    int n_seq, first; /* this rank's sequences */
    double norm;
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

static void open_mesh(struct side *x, const struct layout_case *at)
{
    int size[AXIS_COUNT] = { [AXIS_TP] = at->tp, [AXIS_CP] = 1, [AXIS_DP] = at->dp };
    struct err e = { 0 };
    size[AXIS_PP] = world_size(world) / (at->tp * at->dp); /* the same again and again */
    must(mesh_open(&x->mesh, world, size, &e), &e);
    must(comm_split(&x->all, x->mesh.all, comm_rank(x->mesh.axis[AXIS_PP]), &e), &e);
    must(comm_split(&x->alone, x->mesh.all, comm_rank(x->mesh.all), &e), &e);
    x->n_seq = SEQS / at->dp;
    x->first = comm_rank(x->mesh.axis[AXIS_DP]) * x->n_seq;
}

static void side_open(struct side *x, const struct model_config *c, enum dtype dt,
                      const struct layout_case *at)
{
    const int have[ZERO_STATES] = { 1, 0, 0, 0 };
    int ep = at->tp * at->dp;
    uint64_t seed = 5;
    struct err e = { 0 };

    memset(x, 0, sizeof *x);
    must(dev_open(&x->dev, "cpu", 1, &x->mem, &e), &e);
    open_mesh(x, at);
    struct model_open how = { .layout = { .tp = at->tp, .pp = 1, .cp = 1, .dp = at->dp, .ep = ep },
                              .dev = x->dev,
                              .tp = x->mesh.axis[AXIS_TP],
                              .ep = ep > 1 ? x->all : NULL,
                              .tp_rank = comm_rank(x->mesh.axis[AXIS_TP]),
                              .dt = dt,
                              .max_rows = SEQS * LEN,
                              .max_pos = LEN,
                              .adapter_rank = RANK + 1 };
    must(model_open(&x->m, c, &how, &e), &e);
    must(batch_plan_layout(&x->plan, SEQS, x->n_seq, &how.layout, &e), &e);
    struct zero_groups groups = {
        .dp = x->mesh.axis[AXIS_DP], .pp = x->alone, .edp = ep > 1 ? x->alone : NULL, .all = x->all
    };
    must(zero_open(&x->base, &x->m, &groups, (struct zero_options){ .frozen = 1 }, &x->plan, &e), &e);
    must(zero_load(x->base, zero_init_values, &seed, have, &e), &e);
    filled_tables(&x->tuned, &x->m, RANK, NULL);
    must(zero_open(&x->trained, &x->tuned.a.m, &groups, (struct zero_options){ 0 }, &x->plan, &e), &e);
    must(zero_load(x->trained, side_values, x, have, &e), &e);
    x->tuned.a.w = zero_weights(x->trained);
    struct work_shape shape = { .n_seq = x->n_seq,
                                .seq_len = LEN,
                                .leaves = x->plan.local,
                                .expert_buffer = at->buffer,
                                .recompute = at->recompute,
                                .adapter = &x->tuned.a };
    must(train_work_open(&x->work, &x->m, 0, &shape, &e), &e);
    for (int i = 0; i < ADAPTERS; i++) {
        filled_open(&x->f[i], &x->m, RANK - i, 7 + (uint64_t)i, NULL);
        x->f[i].a.number = 1 + i;
    }
}

static void side_close(struct side *x)
{
    for (int i = 0; i < ADAPTERS; i++)
        filled_close(&x->f[i]);
    train_work_close(x->work);
    zero_close(x->trained);
    adapter_close(&x->tuned.a);
    zero_close(x->base);
    model_close(&x->m);
    comm_close(x->alone);
    comm_close(x->all);
    mesh_close(&x->mesh);
    dev_close(x->dev);
}

/* Of this rank's sequences. */
static void inputs(const struct side *x, int32_t *ids, int32_t *targets)
{
    for (int i = 0; i < x->n_seq * LEN; i++) {
        int at = x->first * LEN + i;
        ids[i] = at * 7919 % VOCAB;
        targets[i] = (at * 104729 + 13) % VOCAB;
    }
}

/* The runs of all rows that are this rank's, and the adapters that none of these has. */
static int own_runs(struct side *x, struct adapter_run *run)
{
    const struct {
        int adapter, first, n;
    } all[] = { { 0, 3, LEN - 3 }, { 1, LEN, LEN + 5 }, { 0, 3 * LEN + 2, 4 } };
    int n = 0, begin = x->first * LEN, end = begin + x->n_seq * LEN, seen[ADAPTERS] = { 0 };

    for (int i = 0; i < 3; i++) {
        int lo = all[i].first > begin ? all[i].first : begin, hi = all[i].first + all[i].n;
        hi = hi < end ? hi : end;
        if (lo >= hi)
            continue;
        run[n++] = (struct adapter_run){ &x->f[all[i].adapter].a, lo - begin, hi - lo };
        seen[all[i].adapter] = 1;
    }
    for (int i = 0; i < ADAPTERS; i++)
        if (!seen[i])
            run[n++] = (struct adapter_run){ .a = &x->f[i].a };
    return n;
}

static void serve(struct side *x)
{
    struct forward_work w;
    struct arena a = { 0 };
    struct attn_seq seq[SEQS];
    struct adapter_run run[3 + ADAPTERS];
    const struct adapter_rows rows = { own_runs(x, run), run };
    int32_t ids[SEQS * LEN], targets[SEQS * LEN], want[SEQS];
    char *page[SEQS];
    struct head_out h = { 0 };
    struct err e = { 0 };

    inputs(x, ids, targets);
    forward_work_carve(&x->m, &a, SEQS * LEN, SEQS, &w);
    a = (struct arena){ dev_alloc(x->dev, MEM_WORK, a.used), 0, a.used };
    forward_work_carve(&x->m, &a, SEQS * LEN, SEQS, &w);
    for (int i = 0; i < x->n_seq; i++) {
        page[i] = dev_alloc(x->dev, MEM_KV, model_page_bytes(&x->m) * (size_t)x->m.n_layers);
        seq[i] = (struct attn_seq){ i * LEN, LEN, 0, &page[i] };
        want[i] = i * LEN + LEN - 1;
    }
    struct batch b = { .n_rows = x->n_seq * LEN,
                       .most_rows = x->n_seq * LEN,
                       .ids = ids,
                       .n_seq = x->n_seq,
                       .seq = seq,
                       .n_want = x->n_seq,
                       .want = want,
                       .adapters = &rows };
    must(model_forward(&x->m, zero_weights(x->base), &b, &w, &h, &e), &e);
    memcpy(x->logits + x->first * VOCAB, h.logits, (size_t)(x->n_seq * VOCAB) * sizeof *h.logits);
    for (int i = 0; i < x->n_seq; i++)
        dev_free(x->dev, page[i]);
    dev_free(x->dev, a.base);
}

static void train(struct side *x)
{
    int32_t ids[SEQS * LEN], targets[SEQS * LEN];
    float scale[SEQS * LEN];
    struct err e = { 0 };

    inputs(x, ids, targets);
    for (int i = 0; i < SEQS * LEN; i++)
        scale[i] = 1.0f / (SEQS * LEN);
    must(model_train_forward(zero_weights(x->base), x->work, ids, targets, NULL, &e), &e);
    must(zero_begin_rows(x->trained, 0, 0, &e), &e);
    must(model_train_backward(zero_weights(x->base), x->work, ids, targets, scale, zero_grads(x->trained),
                              &e),
         &e);
    must(zero_norm(x->trained, &x->norm, &e), &e);
    CHECK(x->norm > 0);
}

static const float *grad_of(struct side *x, int part)
{
    const struct part *p = &x->tuned.a.m.local.part[part];
    return zero_grads(x->trained)->level(zero_grads(x->trained), p->vector, 0) + p->offset;
}

/* Logits of this rank's sequences; gradients of its experts. */
static void compare(struct side *got, struct side *want, const char *name)
{
    const struct params_local *l = &got->tuned.a.m.local, *all = &want->tuned.a.m.local;
    size_t own = (size_t)(got->n_seq * VOCAB) * sizeof *got->logits;
    int n_experts = 0;

    CHECK_SAME(got->logits + got->first * VOCAB, want->logits + got->first * VOCAB, own);
    CHECK_SAME(&got->norm, &want->norm, sizeof got->norm);
    for (int i = 0; i < l->n_parts; i++) {
        const struct part *p = &l->part[i];
        const struct param *of = &got->tuned.a.m.table.p[p->param];
        int64_t bytes = p->count * (int64_t)sizeof(float);
        if (of->expert < 0)
            continue;
        n_experts++;
        if (memcmp(grad_of(got, i), grad_of(want, all->part_of[p->param]), (size_t)bytes))
            test_fail(__FILE__, __LINE__, "%s, tp %d dp %d: %s differs", name, got->m.local.layout.tp,
                      got->m.local.layout.dp, of->name);
    }
    CHECK(n_experts > 0);
}

static const struct layout_case cases[] = {
    { 2, 1, 0, RECOMPUTE_NONE },        { 1, 2, 0, RECOMPUTE_FULL }, { 4, 1, 0, RECOMPUTE_NONE },
    { 1, 4, 0.5, RECOMPUTE_SELECTIVE }, { 2, 2, 0, RECOMPUTE_NONE }, { 1, 2, 0.5, RECOMPUTE_FULL },
};

/* Every `step`-th case. */
static void check_config(const struct model_config *c, enum dtype dt, int step, const char *name)
{
    static const struct layout_case one = { 1, 1, 0, RECOMPUTE_NONE };
    static struct side alone, cut;
    side_open(&alone, c, dt, &one);
    serve(&alone);
    train(&alone);
    for (int k = 0; k < (int)(sizeof cases / sizeof cases[0]); k += step) {
        side_open(&cut, c, dt, &cases[k]);
        serve(&cut);
        train(&cut);
        compare(&cut, &alone, name);
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

TEST(adapters_of_whole_experts_have_the_bits_of_one_rank)
{
    int n = 0;
    open_world();
    for (int i = 0; i < RIG_FAMILIES; i++) {
        struct model_config family = rig_family_config(i);
        if (!family.n_experts)
            continue;
        check_config(&family, n % 2 ? DT_F32 : DT_BF16, n < 2 ? 1 : 5, rig_families[i].name);
        n++;
    }
    CHECK(n > 3);
}
