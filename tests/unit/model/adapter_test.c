/* adapter_test.c - adapters in the forward pass: each product against the definition (kernels/NUMERICS.md,
 * "Adapters"), and rows of one batch against the same rows alone. */
#include "tests/unit/model/adapter_rig.h"

enum { RANK = 5 };

static float as_dt(enum dtype dt, float x) { return dt == DT_BF16 ? fn_round_bf16(x) : x; }

/* ---- one product ---- */
struct product_case {
    struct rig *r;
    const struct filled *f;
    const struct sublayer *s;
    int pack;
    int64_t rows;
    float *x, *y; /* [rows][inputs], [rows][outputs] */
    void *x_dt;
};

/* z of one row and one matrix, rounded; then the row of y. */
static void row_by_definition(const struct product_case *c, const struct adapter_output *out, const float *x,
                              float *y)
{
    const struct model *m = &c->r->m;
    const struct pack_plan *plan = &c->s->pack[c->pack];
    const struct params_local *l = &c->f->a.m.local;
    const struct param *a = &c->f->a.m.table.p[l->part[out->part_a].param];
    const struct param *b = &c->f->a.m.table.p[l->part[out->part_b].param];
    int64_t first = l->part[out->part_b].box.start[0];
    float z[RANK + 1];
    for (int64_t i = 0; i < out->rank; i++) {
        float leaf[GRAIN_MAX];
        int64_t k = 0;
        for (int g = 0; g < plan->leaves.n; g++)
            for (leaf[g] = 0; k < plan->leaves.end[g]; k++)
                leaf[g] = fmaf(x[k], factor_value(a->name, c->f->seed, i * plan->inputs + k, m->dt), leaf[g]);
        z[i] = as_dt(m->dt, tree_sum(plan->leaves.n, leaf, 1));
    }
    for (int64_t j = 0; j < out->y_n; j++) {
        float d = 0;
        for (int64_t i = 0; i < out->rank; i++)
            d = fmaf(z[i], factor_value(b->name, c->f->seed, (first + j) * out->rank + i, m->dt), d);
        y[out->y_begin + j] = fmaf(out->scale, d, y[out->y_begin + j]);
    }
}

/* All rows but the first three and the last two have the adapter. */
static void check_product(struct product_case *c)
{
    struct model *m = &c->r->m;
    const struct pack_plan *plan = &c->s->pack[c->pack];
    const struct adapter_product *product = adapter_product(&c->f->a, c->s, c->pack);
    struct adapter_run run = { (struct adapter *)(uintptr_t)&c->f->a, 3, c->rows - 5 };
    const struct adapter_rows rows = { 1, &run };
    struct pass p = { .m = m, .r = rows_whole(c->rows), .adapters = &rows };
    struct branch_buf b = { 0 };
    struct mat x = mat_of(c->x_dt, m->dt, c->rows, plan->inputs, plan->inputs);
    float *want = malloc((size_t)(c->rows * plan->outputs) * sizeof *want);
    struct err e;

    memcpy(want, c->y, (size_t)(c->rows * plan->outputs) * sizeof *want);
    for (int64_t row = run.first; row < run.first + run.n; row++)
        for (int i = 0; i < product->n; i++)
            row_by_definition(c, &product->out[i], c->x + row * plan->inputs, want + row * plan->outputs);

    CHECK_INT(adapters_get(&p, c->s->unit, 0, &e), 0);
    if (c->s->kind->out_pack == c->pack) {
        struct mat own;
        memcpy(m->sum_rows, c->y, (size_t)(c->rows * m->hidden) * sizeof(float));
        adapters_begin(&p, c->s, c->pack, x);
        CHECK_INT(walk_sum(&p, c->s, adapters_floats(&p, c->s, c->pack), &own, &e), 0);
        adapters_end(&p, c->s, c->pack, &b, own);
        memcpy(c->y, own.p, (size_t)(c->rows * m->hidden) * sizeof(float));
    } else {
        adapters_add(&p, c->s, c->pack, &b, x, mat_of(c->y, DT_F32, c->rows, plan->outputs, plan->outputs));
    }
    adapters_put(&p, c->s->unit);
    CHECK_SAME(c->y, want, (size_t)(c->rows * plan->outputs) * sizeof *want);
    free(want);
}

static int check_family(const struct model_config *cfg, enum dtype dt, int64_t n_rows)
{
    struct rig r;
    struct filled f;
    int n = 0;
    rig_open(&r, cfg, dt, 1, n_rows);
    filled_open(&f, &r.m, RANK, 3, NULL);
    for (int u = 1; u <= r.m.n_layers; u++)
        for (int i = 0; i < r.m.unit[u].n_branches; i++)
            for (int k = 0; k < r.m.unit[u].branch[i].body.n_packs; k++) {
                const struct sublayer *s = &r.m.unit[u].branch[i].body;
                struct product_case c = { &r, &f, s, k, n_rows, NULL, NULL, NULL };
                int64_t in = n_rows * s->pack[k].inputs, out = n_rows * s->pack[k].outputs;
                if (s->pack[k].n_experts || !adapter_product(&f.a, s, k))
                    continue;
                c.x = malloc((size_t)in * sizeof *c.x);
                c.x_dt = malloc((size_t)in * sizeof *c.x);
                c.y = malloc((size_t)out * sizeof *c.y);
                for (int64_t j = 0; j < in; j++) {
                    c.x[j] = as_dt(dt, (float)rnd_normal(1, (uint64_t)k, (uint64_t)j));
                    if (dt == DT_BF16)
                        ((uint16_t *)c.x_dt)[j] = fn_to_bf16(c.x[j]);
                    else
                        ((float *)c.x_dt)[j] = c.x[j];
                }
                for (int64_t j = 0; j < out; j++)
                    c.y[j] = (float)rnd_normal(2, (uint64_t)k, (uint64_t)j);
                check_product(&c);
                n += adapter_product(&f.a, s, k)->n;
                free(c.x);
                free(c.x_dt);
                free(c.y);
            }
    filled_close(&f);
    rig_close(&r);
    return n;
}

TEST(each_product_of_an_adapter_is_its_definition)
{
    struct model_config c = rig_config(0, 0.15);
    rig_adapter_rank = RANK + 1;
    for (int t = 0; t < 2; t++) {
        enum dtype dt = t ? DT_BF16 : DT_F32;
        CHECK_INT(check_family(&c, dt, 270), 14);
        for (int i = 0; i < RIG_FAMILIES; i++) {
            struct model_config family = rig_family_config(i);
            CHECK(check_family(&family, dt, 12) > 0);
        }
    }
}

/* ---- a batch of rows with different adapters ---- */
enum { SEQS = 5, LEN = 9, VOCAB = 701 };

struct served {
    struct rig r;
    struct forward_work w;
    void *memory;
    char *page[SEQS];
};

static void served_open(struct served *d, const struct model_config *c, enum dtype dt)
{
    struct arena a = { 0 };
    rig_open(&d->r, c, dt, SEQS, LEN);
    forward_work_carve(&d->r.m, &a, SEQS * LEN, SEQS, &d->w);
    d->memory = dev_alloc(d->r.dev, MEM_WORK, a.used);
    a = (struct arena){ d->memory, 0, a.used };
    forward_work_carve(&d->r.m, &a, SEQS * LEN, SEQS, &d->w);
    for (int i = 0; i < SEQS; i++)
        d->page[i] = dev_alloc(d->r.dev, MEM_KV, model_page_bytes(&d->r.m) * (size_t)d->r.m.n_layers);
}

static void served_close(struct served *d)
{
    for (int i = 0; i < SEQS; i++)
        dev_free(d->r.dev, d->page[i]);
    dev_free(d->r.dev, d->memory);
    rig_close(&d->r);
}

/* Sequences [first, first + n), each with adapter[i] (NULL: none); logits of every last row. */
static void serve(struct served *d, int first, int n, struct adapter *const *adapter, float *logits)
{
    struct attn_seq seq[SEQS];
    struct adapter_run run[SEQS];
    int32_t want[SEQS];
    struct adapter_rows rows = { 0, run };
    struct head_out h = { 0 };
    struct err e = { 0 };
    int any = 0;
    for (int i = 0; i < n; i++) {
        seq[i] = (struct attn_seq){ i * LEN, LEN, 0, &d->page[first + i] };
        want[i] = (i + 1) * LEN - 1;
        any |= adapter[i] != NULL;
        if (adapter[i])
            run[rows.n++] = (struct adapter_run){ adapter[i], i * LEN, LEN };
    }
    struct batch b = { .n_rows = n * LEN,
                       .ids = d->r.ids + first * LEN,
                       .n_seq = n,
                       .seq = seq,
                       .n_want = n,
                       .want = want,
                       .adapters = any ? &rows : NULL };
    CHECK_INT(model_forward(&d->r.m, zero_weights(d->r.z), &b, &d->w, &h, &e), 0);
    dev_read(d->r.dev, logits, h.logits, (size_t)(n * VOCAB) * sizeof *logits);
}

static int is_o(const struct param *p) { return p->kind == P_O; }

static void check_mixed(const struct model_config *cfg, enum dtype dt)
{
    struct served d;
    struct filled f[3];
    float together[SEQS * VOCAB], alone[VOCAB], none[VOCAB];
    served_open(&d, cfg, dt);
    filled_open(&f[0], &d.r.m, 3, 11, NULL);
    filled_open(&f[1], &d.r.m, RANK, 12, NULL);
    filled_open(&f[2], &d.r.m, 1, 13, is_o);
    struct adapter *const has[SEQS] = { &f[1].a, NULL, &f[0].a, &f[2].a, &f[1].a };

    serve(&d, 0, SEQS, has, together);
    for (int i = 0; i < SEQS; i++) {
        struct adapter *const nobody = NULL;
        serve(&d, i, 1, &has[i], alone);
        serve(&d, i, 1, &nobody, none);
        CHECK_SAME(together + i * VOCAB, alone, sizeof alone);
        CHECK_INT(memcmp(alone, none, sizeof none) == 0, has[i] == NULL);
    }
    for (int i = 0; i < 3; i++)
        filled_close(&f[i]);
    served_close(&d);
}

TEST(rows_of_a_batch_with_different_adapters_are_those_rows_alone)
{
    struct model_config c = rig_config(0, 0.15);
    rig_adapter_rank = RANK + 1;
    check_mixed(&c, DT_F32);
    check_mixed(&c, DT_BF16);
    for (int i = 0; i < RIG_FAMILIES; i++) {
        struct model_config family = rig_family_config(i);
        check_mixed(&family, DT_BF16);
    }
}

/* ---- what is refused ---- */
/* Opens an adapter of n matrices of a model; its error. */
static const char *refused(const struct model_config *c, const struct adapter_matrix *list, int n)
{
    static struct err e;
    const struct layout lay = { .tp = 1, .pp = 1, .cp = 1, .dp = 1, .ep = 1 };
    struct model m;
    struct adapter a;
    e = (struct err){ 0 };
    CHECK_INT(model_shape(&m, c, &lay, (struct rank_at){ 0 }, DT_BF16, 0, &e), 0);
    CHECK(adapter_open(&a, &m, list, n, &e) < 0);
    adapter_close(&a);
    model_close(&m);
    return e.text;
}

static int first_of(const struct model_config *c, enum param_kind kind, int expert)
{
    struct param_table t;
    struct err e;
    int at;
    CHECK_INT(param_table_open(&t, c, &e), 0);
    at = param_at(&t, (int)c->n_layers, kind, expert);
    if (at < 0)
        at = param_at(&t, 0, kind, expert);
    param_table_close(&t);
    return at;
}

TEST(what_no_adapter_is_computed_for_is_refused_by_name)
{
    struct model_config llama = rig_config(0, 0.1), mixtral = rig_family_config(5), latent = llama;
    struct adapter_matrix x[2] = { { 0, 4, 1 }, { 0, 4, 1 } }, experts[8];
    for (int i = 0; i < RIG_FAMILIES; i++)
        if (strstr(rig_families[i].name, "q not compressed"))
            latent = rig_family_config(i);

    x[0].param = first_of(&llama, P_EMBED, -1);
    CHECK_HAS(refused(&llama, x, 1), "model.embed_tokens.weight: adapters of this matrix are not computed");
    x[0].param = first_of(&latent, P_KV_B, -1);
    CHECK_HAS(refused(&latent, x, 1), "kv_b_proj.weight: adapters of this matrix of latent attention");
    x[0].param = first_of(&mixtral, P_ROUTER, -1);
    CHECK_HAS(refused(&mixtral, x, 1), "gate.weight: adapters of this matrix are not computed");
    x[0].param = first_of(&llama, P_NORM_MLP, -1);
    CHECK_HAS(refused(&llama, x, 1), "layernorm.weight: adapters of vectors are not computed");

    x[0].param = x[1].param = first_of(&llama, P_Q, -1);
    CHECK_HAS(refused(&llama, x, 2), "q_proj.weight: an adapter changes it twice");
    x[0].rank = 0;
    CHECK_HAS(refused(&llama, x, 1), "a rank of 0");
    x[0] = (struct adapter_matrix){ x[0].param, 4, INFINITY };
    CHECK_HAS(refused(&llama, x, 1), "the factor of its adapter is inf");

    x[0] = (struct adapter_matrix){ first_of(&mixtral, P_DOWN, 2), 4, 1 };
    CHECK_HAS(refused(&mixtral, x, 1), "all experts of a layer with one rank, or none");
    for (int i = 0; i < mixtral.n_experts; i++)
        experts[i] = (struct adapter_matrix){ first_of(&mixtral, P_DOWN, i), 4, i == 3 ? 2 : 1 };
    CHECK_HAS(refused(&mixtral, experts, (int)mixtral.n_experts),
              "the factor of its adapter is 2, that of expert 0 is 1");
}

TEST(a_rank_above_the_room_is_refused)
{
    struct model_config c = rig_config(0, 0.1);
    struct adapter_matrix x = { 0, 9, 1 };
    struct adapter a;
    struct err e = { 0 };
    struct rig r;
    rig_adapter_rank = 8;
    rig_open(&r, &c, DT_BF16, 1, 8);
    x.param = first_of(&c, P_Q, -1);
    CHECK_INT(adapter_open(&a, &r.m, &x, 1, &e), -ERR_USAGE);
    CHECK_HAS(e.text, "rank 9, adapters of a rank up to 8 have room here");
    adapter_close(&a);
    rig_close(&r);
}
