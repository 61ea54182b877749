/* adapter_back_test.c - adapters going back, product by product, against the definition (head of
 * model/adapter/adapter_back.c): dz, the part of dX, dA and dB. */
#include "tests/unit/model/adapter_rig.h"

enum { RANK = 5, SEQS = 2, LEN = 7, ROWS = SEQS * LEN };

/* A matrix of dt and its values. */
struct values {
    struct mat m;
    float *x;
};

static float as_dt(enum dtype dt, float x) { return dt == DT_BF16 ? fn_round_bf16(x) : x; }

static void store(struct mat m, const float *x)
{
    for (int64_t i = 0; i < m.rows * m.cols; i++)
        if (m.dt == DT_BF16)
            ((uint16_t *)m.p)[i] = fn_to_bf16(x[i]);
        else
            ((float *)m.p)[i] = x[i];
}

static struct values random_values(enum dtype dt, int64_t cols, uint64_t seed)
{
    struct values v = { rows_of(malloc((size_t)(ROWS * cols) * sizeof(float)), dt, ROWS, cols),
                        malloc((size_t)(ROWS * cols) * sizeof(float)) };
    for (int64_t i = 0; i < ROWS * cols; i++)
        v.x[i] = as_dt(dt, (float)rnd_normal(seed, 8, (uint64_t)i));
    store(v.m, v.x);
    return v;
}

static void free_values(struct values v)
{
    free(v.m.p);
    free(v.x);
}

struct back {
    struct tuned t;
    struct pass p;
    const struct sublayer *s;
    struct branch_buf *b;
    struct values z[SUBLAYER_PACKS], dy[SUBLAYER_PACKS]; /* dy: of all slots of a pack, side by side */
    float dz[3 * (RANK + 1)];                            /* of one row */
};

/* An element of a factor that this rank has. */
static float factor(const struct back *c, int part, int64_t row, int64_t col)
{
    const struct part *q = &c->t.f.a.m.local.part[part];
    const struct param *of = &c->t.f.a.m.table.p[q->param];
    return factor_value(of->name, c->t.f.seed, index_in_tensor(of, &q->box, row * q->box.extent[1] + col),
                        c->t.r.m.dt);
}

/* Columns of y that a slot of the pack has, with their leaves. */
static struct adapter_dy columns(const struct back *c, int k, int slot)
{
    const struct sublayer *s = c->s;
    const struct model *m = &c->t.r.m;
    int64_t begin = 0;
    for (int i = 0; i < slot; i++)
        begin += m->local.part[s->part[s->pack[k].slot[i]]].box.extent[0];
    struct leaves l = s->kind == &sublayer_mlp ? s->mlp.of_inter
                      : slot                   ? s->attention.of_kv
                                               : s->attention.of_heads;
    return (struct adapter_dy){ mat_cols(c->dy[k].m, begin, l.end[l.n - 1]), 0, l };
}

/* Leaf g of dz [row][j] of the matrices of a pack that share an A with output `first`. */
static float leaf_of_dz(const struct back *c, int k, int first, int64_t row, int64_t j, int g)
{
    const struct adapter_product *x = adapter_product(&c->t.f.a, c->s, k);
    float sum = 0;
    for (int i = first; i < x->n && x->out[i].part_a == x->out[first].part_a; i++) {
        struct adapter_dy at = { c->dy[k].m, 0, c->t.r.m.of_hidden };
        if (k != c->s->kind->out_pack)
            at = columns(c, k, x->out[i].slot);
        for (int64_t o = g ? at.leaves.end[g - 1] : 0; o < at.leaves.end[g]; o++)
            sum = fmaf(c->dy[k].x[row * c->dy[k].m.cols + x->out[i].y_begin + o],
                       factor(c, x->out[i].part_b, o, j), sum);
    }
    return sum;
}

/* c->dz of one row and pack, at `to`: rounded and with the scale. */
static void dz_of(struct back *c, int k, int64_t row, float *to)
{
    const struct adapter_product *x = adapter_product(&c->t.f.a, c->s, k);
    for (int i = 0; i < x->n; i++) {
        int n = c->t.r.m.of_hidden.n;
        if (i && x->out[i].part_a == x->out[i - 1].part_a)
            continue;
        for (int64_t j = 0; j < x->out[i].rank; j++) {
            float leaf[GRAIN_MAX];
            for (int g = 0; g < n; g++)
                leaf[g] = leaf_of_dz(c, k, i, row, j, g);
            to[x->out[i].z_begin + j] = as_dt(c->t.r.m.dt, tree_sum(n, leaf, 1) * x->out[i].scale);
        }
    }
}

/* dW[o][i] of dy[.][o], x[.][i]: a chain a sequence, then both added. */
static float dw_of(const float *dy, int64_t dy_cols, const float *x, int64_t x_cols)
{
    float leaf[SEQS];
    for (int s = 0; s < SEQS; s++) {
        leaf[s] = 0;
        for (int t = s * LEN; t < (s + 1) * LEN; t++)
            leaf[s] = fmaf(dy[t * dy_cols], x[t * x_cols], leaf[s]);
    }
    return leaf[0] + leaf[1];
}

/* dz: of all rows, [ROWS][rank of the pack]; x: the pack's input. */
static void check_gradients(struct back *c, int k, const float *dz, const struct values *x)
{
    const struct adapter_product *product = adapter_product(&c->t.f.a, c->s, k);
    enum dtype dt = c->t.r.m.dt;
    for (int i = 0; i < product->n; i++) {
        const struct adapter_output *out = &product->out[i];
        const float *a = tuned_grad(&c->t, out->part_a), *b = tuned_grad(&c->t, out->part_b);
        for (int64_t j = 0; j < out->rank; j++) {
            float z[ROWS];
            for (int t = 0; t < ROWS; t++)
                z[t] = as_dt(dt, c->z[k].x[t * product->rank + out->z_begin + j] * out->scale);
            for (int64_t o = 0; o < out->y_n; o++)
                CHECK_BITS(b[o * out->rank + j], dw_of(c->dy[k].x + out->y_begin + o, c->dy[k].m.cols, z, 1));
            for (int64_t o = 0; o < x->m.cols; o++)
                CHECK_BITS(a[j * x->m.cols + o],
                           dw_of(dz + out->z_begin + j, product->rank, x->x + o, x->m.cols));
        }
    }
}

/* What is added to dX [row][i] by a pack, in a chain that goes on. */
static float dx_of(const struct back *c, int k, const float *dz, int64_t i, float sum)
{
    const struct adapter_product *x = adapter_product(&c->t.f.a, c->s, k);
    for (int o = 0; o < x->n; o++)
        for (int64_t j = 0; j < x->out[o].rank && !(o && x->out[o].part_a == x->out[o - 1].part_a); j++)
            sum = fmaf(dz[x->out[o].z_begin + j], factor(c, x->out[o].part_a, j, i), sum);
    return sum;
}

static void check_pack(struct back *c, int k)
{
    struct model *m = &c->t.r.m;
    const struct pack_plan *plan = &c->s->pack[k];
    const struct adapter_product *product = adapter_product(&c->t.f.a, c->s, k);
    struct values x = random_values(m->dt, plan->inputs, 1), dx = random_values(DT_F32, plan->inputs, 2);
    float *dz = malloc((size_t)(ROWS * product->rank) * sizeof *dz);
    struct err e;

    c->dy[k] = random_values(m->dt, plan->outputs, 3);
    c->z[k] = random_values(m->dt, product->rank, 4);
    memcpy(c->b->z[k], c->z[k].m.p, (size_t)(ROWS * product->rank) * dtype_size(m->dt));
    for (int64_t row = 0; row < ROWS; row++) {
        dz_of(c, k, row, dz + row * product->rank);
        for (int64_t i = 0; i < plan->inputs; i++)
            dx.x[row * plan->inputs + i] += dx_of(c, k, dz + row * product->rank, i, 0);
    }

    if (k == c->s->kind->out_pack) {
        CHECK_INT(adapters_back_out(&c->p, c->s, k, c->b, c->dy[k].m, x.m, dx.m, &e), 0);
    } else {
        struct adapter_dy dy[3];
        float *to = adapters_dz_place(&c->p, c->s, k);
        for (int i = 0; i < plan->n_slots; i++)
            dy[i] = columns(c, k, i);
        CHECK_INT(adapters_dz(&c->p, c->s, k, c->b, dy, to, &e), 0);
        CHECK_INT(adapters_dx(&c->p, c->s, c->s->kind->in_packs, x.m, to, dx.m, &e), 0);
    }
    CHECK_SAME(dx.m.p, dx.x, (size_t)(ROWS * plan->inputs) * sizeof(float));
    check_gradients(c, k, dz, &x);
    free_values(x);
    free_values(dx);
    free_values(c->dy[k]);
    free_values(c->z[k]);
    free(dz);
}

/* Returns the products that were checked. */
static int check_model(const struct model_config *cfg, enum dtype dt)
{
    struct back c = { 0 };
    struct err e;
    int n = 0;
    tuned_open(&c.t, cfg, dt, RANK, (struct work_shape){ .n_seq = SEQS, .seq_len = LEN });
    c.p = train_pass(c.t.work, zero_weights(c.t.r.z), c.t.r.ids, c.t.r.targets);
    c.p.g = zero_grads(c.t.z);
    for (int u = 1; u <= c.t.r.m.n_layers; u++)
        for (int i = 0; i < c.t.r.m.unit[u].n_branches; i++) {
            c.s = &c.t.r.m.unit[u].branch[i].body;
            c.b = &train_unit(c.t.work, u)->branch[i];
            for (int k = 0; k < c.s->n_packs; k++) {
                if (!adapter_product(&c.t.f.a, c.s, k))
                    continue;
                CHECK_INT(zero_begin_rows(c.t.z, 0, 0, &e), 0);
                CHECK_INT(adapters_get(&c.p, u, 1, &e), 0);
                check_pack(&c, k);
                adapters_put(&c.p, u);
                n++;
            }
        }
    tuned_close(&c.t);
    return n;
}

TEST(each_product_of_an_adapter_going_back_is_its_definition)
{
    struct model_config c = rig_config(0, 0.15);
    CHECK_INT(check_model(&c, DT_F32), 8);
    CHECK_INT(check_model(&c, DT_BF16), 8);
}
