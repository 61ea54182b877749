/* adapter_back.c - adapters going back, in training: all rows have one adapter, the base is frozen.
 *
 *     dz = round(scale * Tree(GRAIN) of B^T dy)
 *     dB = dy^T round(scale * z), dA = dz^T x
 *     dX = (the base's dX) + a chain over the rank of A^T dz, in fp32, before it is rounded; where several As
 *          have one input, a chain through the ranks of all, in the order of the packs
 *
 * dA and dB are gradients of matrices, with the contract's leaves over tokens. Where tp cuts the outputs, the
 * parts of dz travel with the base's sum of dX, behind its rows; where it cuts the inputs, every rank has all
 * of dy and so all of dz. The scale is on the small operands: a power of two changes no bit there. */
#include "base/alter.h"
#include "model/sublayer/moe.h"

/* A or B in natural order. */
static struct mat factor_at(const struct adapter *a, int part) { return model_mat(&a->m, a->uw->flat, part); }

static const struct adapter_product *product_at(const struct pass *p, const struct sublayer *s, int k)
{
    return p->w->adapter ? adapter_product(p->w->adapter, s, k) : NULL;
}

/* 1: output i of a product has the A of the one before it. */
static int shares_a(const struct adapter_product *x, int i)
{
    return i && x->out[i].part_a == x->out[i - 1].part_a;
}

static int emit(const struct pass *p, const struct sublayer *s, int part, struct mat dy, struct mat x,
                struct err *e)
{
    return gradient_emit(p,
                         (struct gradient){ .kind = GRADIENT_PRODUCT,
                                            .unit = s->unit,
                                            .part = { part, -1 },
                                            .dy = dy,
                                            .x = x,
                                            .stays = dy.p == p->m->all_rows,
                                            .adapter = p->w->adapter },
                         e);
}

/* The columns of every A times its scale. */
static void scale_columns(const struct pass *p, const struct adapter_product *x, struct mat z)
{
    for (int i = 0; i < x->n; i++)
        if (!shares_a(x, i))
            KERNEL(p->m->dev, scale, mat_cols(z, x->out[i].z_begin, x->out[i].rank), x->out[i].scale);
}

/* z of the forward pass, times the scale: its last use. */
static struct mat scaled_z(const struct pass *p, const struct adapter_product *x, const struct branch_buf *b,
                           int k)
{
    struct mat z = rows_of(b->z[k], p->m->dt, rows_all(&p->r), x->rank);
    scale_columns(p, x, z);
    return gradient_input(p, z);
}

/* ---- tp cuts the outputs, or nothing ---- */
int adapters_dz(const struct pass *p, const struct sublayer *s, int k, const struct branch_buf *b,
                const struct adapter_dy *dy, float *to, struct err *e)
{
    const struct adapter_product *x = product_at(p, s, k);
    struct mat dz, z;
    int rc = 0;

    if (!x)
        return 0;
    dz = rows_of(to, DT_F32, rows_all(&p->r), x->rank);
    z = scaled_z(p, x, b, k);
    for (int i = 0, n; i < x->n; i += n) {
        struct mat own[3], factor[3];
        struct leaves leaves[3];
        for (n = 0; n == 0 || (i + n < x->n && shares_a(x, i + n)); n++) {
            const struct adapter_output *out = &x->out[i + n];
            const struct adapter_dy *at = &dy[out->slot];
            TRY(emit(p, s, out->part_b, at->dy, mat_cols(z, out->z_begin, out->rank), e));
            own[n] = mat_cols(at->dy, at->first, at->leaves.end[at->leaves.n - 1]);
            factor[n] = mat_rows(factor_at(p->w->adapter, out->part_b), at->first, own[n].cols);
            leaves[n] = leaves_cut(at->leaves, ALTERED("adapter_dz_leaves"));
        }
        KERNEL(p->m->dev, linear_dx, mat_cols(dz, x->out[i].z_begin, x->out[i].rank), n, own, factor, leaves);
    }
    rc = 0;
out:
    return rc;
}

int64_t adapters_dz_floats(const struct pass *p, const struct sublayer *s, unsigned packs)
{
    int64_t sum = 0;
    for (int k = 0; k < s->n_packs; k++) {
        const struct adapter_product *x = packs >> k & 1 ? product_at(p, s, k) : NULL;
        sum += x ? rows_all(&p->r) * x->rank : 0;
    }
    return sum;
}

float *adapters_dz_place(const struct pass *p, const struct sublayer *s, int k)
{
    unsigned below = s->kind->in_packs & ((1u << k) - 1);
    return p->m->sum_rows + rows_all(&p->r) * p->m->hidden + adapters_dz_floats(p, s, below);
}

enum { JOINED_MOST = 6 };
/* The matrices that share an input, with their dz: one contraction. */
struct joined {
    int n;
    struct mat dz[JOINED_MOST], a[JOINED_MOST];
    struct leaves chain[JOINED_MOST];
};

static void join(struct joined *j, struct mat dz, struct mat a)
{
    j->dz[j->n] = dz;
    j->a[j->n] = a;
    j->chain[j->n++] = (struct leaves){ 1, { dz.cols } };
}

/* to += A^T dz of rows [first, first + to.rows), some at a time. */
static void add_dx(const struct pass *p, const struct joined *j, int64_t first, struct mat to)
{
    const struct model *m = p->m;
    int each = ORDER("adapter_dx_together", j->n, 1);
    for (int64_t row = 0; row < to.rows; row += ADAPTER_ROWS) {
        int64_t n = to.rows - row < ADAPTER_ROWS ? to.rows - row : ADAPTER_ROWS;
        struct mat part = rows_of(m->adapters.d, DT_F32, n, to.cols), dz[JOINED_MOST];
        for (int i = 0; i < j->n; i++)
            dz[i] = mat_rows(j->dz[i], first + row, n);
        for (int i = 0; i < j->n; i += each) {
            KERNEL(m->dev, linear_dx, part, each, dz + i, j->a + i, j->chain + i);
            KERNEL(m->dev, add_to, mat_rows(to, row, n), part);
        }
    }
}

/* own: all rows, or those between bodies. */
static void add_own_dx(const struct pass *p, const struct joined *j, struct mat own)
{
    struct seq_rows whole = rows_whole(rows_all(&p->r)), r = own.rows < whole.len ? p->r : whole;
    for (int s = 0; s < r.n_seq && j->n; s++)
        add_dx(p, j, s * r.len + rows_first(p->m, &r), mat_rows(own, s * r.own_len, r.own_len));
}

int adapters_dx(const struct pass *p, const struct sublayer *s, unsigned packs, struct mat h, float *dz,
                struct mat own, struct err *e)
{
    const struct model *m = p->m;
    char *to = m->adapters.z_dt;
    struct joined j = { 0 };
    int rc = 0;

    for (int k = 0; k < s->n_packs; k++) {
        const struct adapter_product *x = packs >> k & 1 ? product_at(p, s, k) : NULL;
        if (!x)
            continue;
        struct mat sum = rows_of(dz, DT_F32, rows_all(&p->r), x->rank), z = sum;
        z.p = to;
        z.dt = m->dt;
        scale_columns(p, x, sum);
        KERNEL(m->dev, round_to, z.p, m->dt, dz, z.rows * z.cols);
        for (int i = 0; i < x->n; i++) {
            const struct adapter_output *out = &x->out[i];
            struct mat columns = mat_cols(z, out->z_begin, out->rank);
            if (shares_a(x, i))
                continue;
            TRY(emit(p, s, out->part_a, columns, h, e));
            join(&j, columns, factor_at(p->w->adapter, out->part_a));
        }
        dz += z.rows * z.cols;
        to += (size_t)(z.rows * z.cols) * dtype_size(m->dt);
    }
    add_own_dx(p, &j, own);
    rc = 0;
out:
    return rc;
}

/* ---- tp cuts the inputs ---- */
int adapters_back_out(const struct pass *p, const struct sublayer *s, int k, const struct branch_buf *b,
                      struct mat dy, struct mat x, struct mat dx, struct err *e)
{
    const struct model *m = p->m;
    const struct adapter_product *product = product_at(p, s, k);
    struct joined j = { 0 };
    struct mat z, dz, factor;
    int rc;

    if (!product)
        return 0;
    z = scaled_z(p, product, b, k);
    dz = rows_of(m->adapters.z, DT_F32, dy.rows, product->rank);
    factor = factor_at(p->w->adapter, product->out[0].part_b);
    TRY(emit(p, s, product->out[0].part_b, dy, z, e));
    KERNEL(m->dev, linear_dx, dz, 1, &dy, &factor, &m->of_hidden);
    scale_columns(p, product, dz);
    KERNEL(m->dev, round_to, m->adapters.z_dt, m->dt, m->adapters.z, dz.rows * dz.cols);
    dz = rows_of(m->adapters.z_dt, m->dt, dy.rows, product->rank);
    TRY(emit(p, s, product->out[0].part_a, dz, gradient_input(p, x), e));
    join(&j, dz, factor_at(p->w->adapter, product->out[0].part_a));
    add_dx(p, &j, 0, dx);
    rc = 0;
out:
    return rc;
}

/* Of records that wait: z and dz; inputs that the base's records copy too. Experts have one copy of them. */
size_t adapters_deferred_bytes(const struct sublayer *s, const struct call_shape *c)
{
    size_t sum = 0;
    for (int k = 0; c->adapter && k < s->n_packs; k++) {
        const struct adapter_product *x = adapter_product(c->adapter, s, k);
        const struct model *m = c->adapter->base;
        int is_experts = s->pack[k].n_experts > 0, rounds = is_experts ? experts_most_rounds(s, m, c) : 1;
        int64_t inputs = is_experts || s->kind->in_packs >> k & 1 ? 0 : s->pack[k].inputs;
        int64_t rows = is_experts ? experts_rows(s, m, c) : c->rows;
        if (x)
            sum += (size_t)(rows * (2 * x->rank + inputs)) * dtype_size(m->dt) + (size_t)rounds * 8 * 64;
    }
    return sum;
}
