/* adapter_pass.c - the products that adapters add to those of the base, forward: see adapter.h.
 *
 * A row of y depends on its own adapter only: every run of rows is a product of its own. */
#include "model/units.h"

#include "base/alter.h"

const struct adapter_product *adapter_product(const struct adapter *a, const struct sublayer *s, int k)
{
    const struct unit *u = &a->base->unit[s->unit];
    for (int i = 0; i < u->n_branches; i++)
        if (&u->branch[i].body == s) {
            const struct adapter_product *x = &a->unit[s->unit].of[i][k];
            return x->rank ? x : NULL;
        }
    return NULL;
}

int64_t adapter_columns(const struct adapter *a, const struct sublayer *s, int k)
{
    const struct adapter_product *x = a ? adapter_product(a, s, k) : NULL;
    return x ? x->rank : 0;
}

static const struct adapter_product *product_of(const struct adapter_run *run, const struct sublayer *s,
                                                int k)
{
    return run->a && run->n ? adapter_product(run->a, s, k) : NULL;
}

/* ---- weights ---- */
static int has_unit(const struct adapter *a, int unit) { return a->m.unit[unit].n_packs > 0; }

/* With ep > 1 the backward pass runs further rounds of rows forward, so it needs packs. */
static int packs_backward(const struct adapter *a, int unit)
{
    return a->base->local.layout.ep > 1 && a->m.local.experts_of[unit] >= 0;
}

int adapters_get(const struct pass *p, int unit, int backward, struct err *e)
{
    int rc = 0;
    for (int i = 0; p->adapters && i < p->adapters->n && rc >= 0; i++) {
        struct adapter *a = p->adapters->run[i].a;
        if (a && !a->uw && has_unit(a, unit))
            rc = a->w->get(a->w, unit, backward && !packs_backward(a, unit), &a->uw, e);
    }
    if (rc < 0)
        adapters_put(p, unit);
    return rc;
}

void adapters_put(const struct pass *p, int unit)
{
    for (int i = 0; p->adapters && i < p->adapters->n; i++) {
        struct adapter *a = p->adapters->run[i].a;
        if (a && a->uw)
            a->w->put(a->w, unit);
        if (a)
            a->uw = NULL;
    }
}

/* ---- forward ---- */
/* Where the rounded z of a run lies: kept for backward, or scratch. */
static struct mat z_of(const struct pass *p, int k, const struct branch_buf *b,
                       const struct adapter_product *x, const struct adapter_run *run)
{
    const struct model *m = p->m;
    if (!b->z[k])
        return rows_of(m->adapters.z_dt, m->dt, run->n, x->rank);
    return mat_rows(rows_of(b->z[k], m->dt, run->first + run->n, x->rank), run->first, run->n);
}

/* y = fma(scale, B z, y), all matrices of the product; some rows at a time, which share m->adapters.d. */
static void add_outputs(const struct pass *p, const struct adapter *a, const struct adapter_product *x,
                        struct mat z, struct mat y)
{
    const struct model *m = p->m;
    for (int i = 0; i < x->n; i++) {
        const struct adapter_output *out = &x->out[i];
        for (int64_t row = 0; row < y.rows; row += ADAPTER_ROWS) {
            int64_t n = y.rows - row < ADAPTER_ROWS ? y.rows - row : ADAPTER_ROWS;
            struct mat d = rows_of(m->adapters.d, DT_F32, n, out->y_n);
            KERNEL(m->dev, linear, d, mat_cols(mat_rows(z, row, n), out->z_begin, out->rank),
                   &a->uw->pack[out->b]);
            KERNEL(m->dev, add_scaled, mat_cols(mat_rows(y, row, n), out->y_begin, out->y_n), d, out->scale);
        }
    }
}

void adapters_add(const struct pass *p, const struct sublayer *s, int k, const struct branch_buf *b,
                  struct mat x, struct mat y)
{
    const struct model *m = p->m;
    for (int i = 0; p->adapters && i < p->adapters->n; i++) {
        const struct adapter_run *run = &p->adapters->run[i];
        const struct adapter_product *product = product_of(run, s, k);
        if (!product)
            continue;
        struct mat z = z_of(p, k, b, product, run);
        KERNEL(m->dev, linear, rows_of(m->adapters.z, DT_F32, run->n, product->rank),
               mat_rows(x, run->first, run->n), &run->a->uw->pack[product->a]);
        KERNEL(m->dev, round_to, z.p, m->dt, m->adapters.z, run->n * product->rank);
        add_outputs(p, run->a, product, z, mat_rows(y, run->first, run->n));
    }
}

/* ---- forward, where tp cuts the inputs ---- */
int64_t adapters_floats(const struct pass *p, const struct sublayer *s, int k)
{
    int64_t sum = 0;
    for (int i = 0; p->adapters && k >= 0 && i < p->adapters->n; i++) {
        const struct adapter_product *product = product_of(&p->adapters->run[i], s, k);
        sum += product ? p->adapters->run[i].n * product->rank : 0;
    }
    return sum;
}

/* Runs lie one behind the other, behind all rows of the sums. */
static float *parts_of_z(const struct pass *p) { return p->m->sum_rows + rows_all(&p->r) * p->m->hidden; }

void adapters_begin(const struct pass *p, const struct sublayer *s, int k, struct mat x)
{
    const struct model *m = p->m;
    float *at = parts_of_z(p);
    for (int i = 0; p->adapters && i < p->adapters->n; i++) {
        const struct adapter_run *run = &p->adapters->run[i];
        const struct adapter_product *product = product_of(run, s, k);
        if (!product)
            continue;
        KERNEL(m->dev, linear, rows_of(at, DT_F32, run->n, product->rank), mat_rows(x, run->first, run->n),
               &run->a->uw->pack[product->a]);
        at += run->n * product->rank;
    }
}

/* The rows of a run in own: all rows, or those that this rank holds between bodies, sequence by sequence.
 * z: of the run. */
static void add_to_own(const struct pass *p, const struct adapter_run *run,
                       const struct adapter_product *product, struct mat z, struct mat own)
{
    struct seq_rows whole = rows_whole(rows_all(&p->r)), r = own.rows < whole.len ? p->r : whole;
    for (int s = 0; s < r.n_seq; s++) {
        int64_t begin = s * r.len + rows_first(p->m, &r), lo = begin, hi = begin + r.own_len;
        lo = lo > run->first ? lo : run->first;
        hi = hi < run->first + run->n ? hi : run->first + run->n;
        if (lo < hi)
            add_outputs(p, run->a, product, mat_rows(z, lo - run->first, hi - lo),
                        mat_rows(own, s * r.own_len + lo - begin, hi - lo));
    }
}

void adapters_end(const struct pass *p, const struct sublayer *s, int k, const struct branch_buf *b,
                  struct mat own)
{
    const struct model *m = p->m;
    const float *at = parts_of_z(p);
    for (int i = 0; p->adapters && i < p->adapters->n; i++) {
        const struct adapter_run *run = &p->adapters->run[i];
        const struct adapter_product *product = product_of(run, s, k);
        if (!product)
            continue;
        struct mat z = z_of(p, k, b, product, run);
        KERNEL(m->dev, round_to, z.p, m->dt, at, run->n * product->rank);
        add_to_own(p, run, product, z, own);
        at += run->n * product->rank;
    }
}

void adapters_carve(const struct adapter *a, const struct sublayer *s, int64_t rows,
                    const struct carver *from, struct branch_buf *b)
{
    for (int k = 0; k < s->n_packs; k++) {
        const struct adapter_product *x = adapter_product(a, s, k);
        int64_t n = s->pack[k].n_experts ? b->experts.capacity : rows;
        b->z[k] = x ? carve(from, LIFE_COSTLY, n * x->rank, dtype_size(a->m.dt)) : NULL;
    }
}
