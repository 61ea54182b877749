/* moe_adapter.c - adapters of the routed experts of a mixture (--ep 1): forward and back.
 *
 * Rows are grouped by expert, and inside an expert ascending by row of the call, so the rows of one run are
 * neighbours in every group. They are taken together as groups of their own (struct some_rows): one product
 * of experts makes z of a run. B z is made for some rows at a time, which share m->adapters.d. */
#include "model/sublayer/moe.h"

/* Rows of a run: local expert e has the grouped rows [at[e], at[e] + begin[e + 1] - begin[e]). */
struct some_rows {
    struct expert_rows groups;
    const int64_t *at;
    const int32_t *list; /* [n]: the grouped rows */
    int64_t n;
};

void adapters_carve_experts(const struct sublayer *s, int64_t rank, const struct carver *from,
                            struct experts_buf *b)
{
    int n = s->experts.n_local;
    struct adapter_lists *l = &b->low;

    *l = (struct adapter_lists){ 0 };
    if (!rank)
        return;
    l->z = carve(from, LIFE_SCRATCH, b->capacity * 2 * rank, sizeof(float));
    l->z_dt = carve(from, LIFE_SCRATCH, b->capacity * 2 * rank, sizeof(float));
    l->begin = carve(from, LIFE_HOST, 2 * (n + 1), sizeof *l->begin);
    l->at = carve(from, LIFE_HOST, n + 1, sizeof *l->at);
    l->list = carve(from, LIFE_HOST, 2 * b->capacity, sizeof *l->list);
}

/* The first grouped row of [lo, hi) whose row of the call is at least `row`. */
static int64_t search(const int32_t *rows, int64_t lo, int64_t hi, int64_t row)
{
    while (lo < hi) {
        int64_t middle = lo + (hi - lo) / 2;
        if (rows[middle] < row)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

static struct some_rows rows_of_run(const struct experts_buf *b, const struct adapter_run *run)
{
    const struct routing *r = &b->routing;
    const struct adapter_lists *l = &b->low;
    struct some_rows s = { .groups = { .n = r->n_local, .begin = l->begin }, .at = l->at, .list = l->list };

    for (int e = 0; e < r->n_local; e++) {
        int64_t lo = search(r->row, r->begin[e], r->begin[e + 1], run->first);
        int64_t hi = search(r->row, lo, r->begin[e + 1], run->first + run->n);
        l->begin[e] = s.n;
        l->at[e] = lo;
        for (; lo < hi; lo++)
            l->list[s.n++] = (int32_t)lo;
    }
    l->begin[r->n_local] = s.n;
    return s;
}

/* The rows `s` of an operand of grouped rows; by_row: of one that has all rows of the call. */
static struct listed operand(const struct experts_buf *b, const struct some_rows *s, struct mat x, int by_row)
{
    int32_t *list = b->low.list + b->capacity;
    if (!by_row)
        return listed_of(x, s->list);
    for (int64_t i = 0; i < s->n; i++)
        list[i] = b->routing.row[s->list[i]];
    return listed_of(x, list);
}

/* ---- some rows at a time ---- */
/* Rows [row, row + n) of `s`: those of experts [first, first + groups.n). */
struct chunk {
    int first;
    int64_t row, n;
    struct expert_rows groups;
};

/* The next chunk; 0: there is none. */
static int next_chunk(const struct experts_buf *b, const struct some_rows *s, struct chunk *c)
{
    const int64_t *begin = s->groups.begin;
    int64_t *to = b->low.begin + s->groups.n + 1, row = c->row + c->n;
    int e = c->first, n = 0;

    if (row >= s->n)
        return 0;
    while (begin[e + 1] <= row)
        e++;
    *c = (struct chunk){ .first = e, .row = row, .groups = { .begin = to } };
    for (to[0] = 0; e + n < s->groups.n && c->n < ADAPTER_ROWS; n++) {
        int64_t end = begin[e + n + 1] - row;
        c->n = end < ADAPTER_ROWS ? end : ADAPTER_ROWS;
        to[n + 1] = c->n;
    }
    c->groups.n = n;
    return 1;
}

/* y += factor * d, the rows of a chunk; d: m->adapters.d. */
static void add_chunk(const struct pass *p, const struct some_rows *s, const struct chunk *c, struct mat y,
                      struct mat d, float factor)
{
    for (int i = 0; i < c->groups.n; i++) {
        int64_t lo = c->groups.begin[i], n = c->groups.begin[i + 1] - lo;
        int64_t at = s->at[c->first + i] + c->row + lo - s->groups.begin[c->first + i];
        if (n)
            KERNEL(p->m->dev, add_scaled, mat_rows(y, at, n), mat_rows(d, lo, n), factor);
    }
}

static void add_outputs(const struct pass *p, const struct experts_buf *b, const struct adapter *a,
                        const struct adapter_product *x, const struct some_rows *s, struct mat z,
                        struct mat y)
{
    const struct model *m = p->m;
    for (int i = 0; i < x->n; i++) {
        const struct adapter_output *out = &x->out[i];
        struct chunk c = { 0 };
        while (next_chunk(b, s, &c)) {
            struct mat d = rows_of(m->adapters.d, DT_F32, c.n, out->y_n);
            struct mat part = mat_cols(mat_rows(z, c.row, c.n), out->z_begin, out->rank);
            KERNEL(m->dev, linear_experts, d, listed_of(part, NULL), &c.groups,
                   &a->uw->pack[out->b + c.first]);
            add_chunk(p, s, &c, mat_cols(y, out->y_begin, out->y_n), d, out->scale);
        }
    }
}

/* ---- forward ---- */
static const struct adapter_product *product_of(const struct adapter_run *run, const struct sublayer *s,
                                                int k)
{
    return run->a && run->n ? adapter_product(run->a, s, k) : NULL;
}

/* Where the rounded z of a run lies: kept for backward, which has one run of all rows, or scratch. */
static struct mat z_of(const struct pass *p, int k, const struct branch_buf *branch,
                       const struct adapter_product *x, int64_t n)
{
    return rows_of(branch->z[k] ? branch->z[k] : branch->experts.low.z_dt, p->m->dt, n, x->rank);
}

void adapters_experts_add(const struct pass *p, const struct sublayer *s, int k,
                          const struct branch_buf *branch, struct mat x, struct mat y)
{
    const struct model *m = p->m;
    const struct experts_buf *b = &branch->experts;
    for (int i = 0; p->adapters && i < p->adapters->n; i++) {
        const struct adapter_run *run = &p->adapters->run[i];
        const struct adapter_product *product = product_of(run, s, k);
        if (!product)
            continue;
        struct some_rows rows = rows_of_run(b, run);
        struct mat z = z_of(p, k, branch, product, rows.n);
        KERNEL(m->dev, linear_experts, rows_of(b->low.z, DT_F32, rows.n, product->rank),
               operand(b, &rows, x, 1), &rows.groups, &run->a->uw->pack[product->a]);
        KERNEL(m->dev, round_to, z.p, m->dt, b->low.z, rows.n * product->rank);
        add_outputs(p, b, run->a, product, &rows, z, y);
    }
}

/* Parts of z lie behind the grouped rows of b->sum. */
int64_t adapters_experts_begin(const struct pass *p, const struct sublayer *s, int k,
                               const struct branch_buf *branch, struct mat x)
{
    const struct model *m = p->m;
    const struct experts_buf *b = &branch->experts;
    float *at = b->sum + b->n * m->hidden;
    for (int i = 0; p->adapters && i < p->adapters->n; i++) {
        const struct adapter_run *run = &p->adapters->run[i];
        const struct adapter_product *product = product_of(run, s, k);
        if (!product)
            continue;
        struct some_rows rows = rows_of_run(b, run);
        KERNEL(m->dev, linear_experts, rows_of(at, DT_F32, rows.n, product->rank), operand(b, &rows, x, 0),
               &rows.groups, &run->a->uw->pack[product->a]);
        at += rows.n * product->rank;
    }
    return at - (b->sum + b->n * m->hidden);
}

void adapters_experts_end(const struct pass *p, const struct sublayer *s, int k,
                          const struct branch_buf *branch, struct mat y)
{
    const struct model *m = p->m;
    const struct experts_buf *b = &branch->experts;
    const float *at = b->sum + b->n * m->hidden;
    for (int i = 0; p->adapters && i < p->adapters->n; i++) {
        const struct adapter_run *run = &p->adapters->run[i];
        const struct adapter_product *product = product_of(run, s, k);
        if (!product)
            continue;
        struct some_rows rows = rows_of_run(b, run);
        struct mat z = z_of(p, k, branch, product, rows.n);
        KERNEL(m->dev, round_to, z.p, m->dt, at, rows.n * product->rank);
        add_outputs(p, b, run->a, product, &rows, z, y);
        at += rows.n * product->rank;
    }
}

/* ---- backward: one run of all rows ---- */
static const struct adapter_product *product_at(const struct pass *p, const struct sublayer *s, int k)
{
    return p->w->adapter ? adapter_product(p->w->adapter, s, k) : NULL;
}

static int shares_a(const struct adapter_product *x, int i)
{
    return i && x->out[i].part_a == x->out[i - 1].part_a;
}

/* n_w factors of every expert: w[e * n_w + i], of kind[i]. */
static const struct mat *factors(const struct pass *p, const struct sublayer *s, const struct experts_buf *b,
                                 int n_w, const enum param_kind *kind)
{
    const struct adapter *a = p->w->adapter;
    struct mat *w = b->routing.mat;
    for (int e = 0; e < s->experts.n_local; e++)
        for (int i = 0; i < n_w; i++) {
            int part = params_part(&a->m.local, s->unit, kind[i], s->experts.first + e);
            const struct part *at = &a->m.local.part[part];
            w[e * n_w + i] = model_mat(&a->m, at->vector < a->m.local.n_units ? a->uw->flat : a->uw->experts,
                                       part);
        }
    return w;
}

/* by_row: x has all rows of the call. */
static int emit(const struct pass *p, const struct sublayer *s, struct experts_buf *b, enum param_kind kind,
                struct mat dy, struct mat x, int by_row, struct err *e)
{
    return gradient_emit(p,
                         (struct gradient){ .kind = GRADIENT_BODY,
                                            .unit = s->unit,
                                            .part = { (int)kind, by_row },
                                            .body = s,
                                            .adapter = p->w->adapter,
                                            .dy = dy,
                                            .x = x,
                                            .experts = b },
                         e);
}

static void scale_columns(const struct pass *p, const struct adapter_product *x, struct mat z)
{
    for (int i = 0; i < x->n; i++)
        if (!shares_a(x, i))
            KERNEL(p->m->dev, scale, mat_cols(z, x->out[i].z_begin, x->out[i].rank), x->out[i].scale);
}

static struct mat scaled_z(const struct pass *p, const struct adapter_product *x, struct branch_buf *branch,
                           int k)
{
    struct mat z = rows_of(branch->z[k], p->m->dt, branch->experts.n, x->rank);
    scale_columns(p, x, z);
    return gradient_input(p, z);
}

/* to (fp32, grouped) += the As' transposes times dz, rounded. */
static void add_dx(const struct pass *p, const struct sublayer *s, const struct branch_buf *branch,
                   const struct adapter_product *x, struct mat dz, struct mat to)
{
    const struct model *m = p->m;
    const struct experts_buf *b = &branch->experts;
    const struct adapter_run all = { p->w->adapter, 0, rows_all(&p->r) };
    struct some_rows rows = rows_of_run(b, &all);
    enum param_kind kind[3];
    struct leaves chain[3];
    struct chunk c = { 0 };
    int n = 0;

    for (int i = 0; i < x->n; i++)
        if (!shares_a(x, i)) {
            chain[n] = (struct leaves){ 1, { x->out[i].rank } };
            kind[n++] = x->out[i].kind_a;
        }
    const struct mat *w = factors(p, s, b, n, kind);
    while (next_chunk(b, &rows, &c)) {
        struct mat part = rows_of(m->adapters.d, DT_F32, c.n, to.cols);
        struct listed dy[3];
        for (int i = 0, j = 0; i < x->n; i++)
            if (!shares_a(x, i))
                dy[j++] = listed_of(mat_cols(mat_rows(dz, c.row, c.n), x->out[i].z_begin, x->out[i].rank),
                                    NULL);
        KERNEL(m->dev, linear_dx_experts, part, n, dy, w + c.first * n, chain, &c.groups);
        KERNEL(m->dev, add_to, mat_rows(to, c.row, c.n), part);
    }
}

void adapters_experts_down(const struct pass *p, const struct sublayer *s, int k, struct branch_buf *branch,
                           const struct side *side, struct mat d_act)
{
    const struct model *m = p->m;
    const struct adapter_product *x = product_at(p, s, k);
    struct experts_buf *b = &branch->experts;
    struct mat dz;

    if (!x)
        return;
    dz = rows_of(b->low.z, DT_F32, b->n, x->rank);
    KERNEL(m->dev, linear_dx_experts, dz, 1, &side->in, factors(p, s, b, 1, &x->out[0].kind_b), &m->of_hidden,
           &side->groups);
    scale_columns(p, x, dz);
    dz = rows_of(b->low.z_dt, m->dt, b->n, x->rank);
    KERNEL(m->dev, round_to, dz.p, m->dt, b->low.z, b->n * x->rank);
    add_dx(p, s, branch, x, dz, d_act);
}

int adapters_experts_down_records(const struct pass *p, const struct sublayer *s, int k,
                                  struct branch_buf *branch, const struct side *side, struct mat scaled,
                                  struct mat act, struct err *e)
{
    const struct model *m = p->m;
    const struct adapter_product *x = product_at(p, s, k);
    struct experts_buf *b = &branch->experts;
    int rc;

    if (!x)
        return 0;
    struct mat dz = rows_of(b->low.z_dt, m->dt, b->n, x->rank),
               weighted = rows_of(b->low.z, m->dt, b->n, x->rank);
    KERNEL(m->dev, gather_scaled, weighted, listed_of(dz, NULL), side->weight, side->weight_list);
    TRY(emit(p, s, b, x->out[0].kind_b, scaled, scaled_z(p, x, branch, k), 0, e));
    rc = emit(p, s, b, x->out[0].kind_a, weighted, gradient_input(p, act), 0, e);
out:
    return rc;
}

int64_t adapters_experts_up(const struct pass *p, const struct sublayer *s, int k, struct branch_buf *branch,
                            const struct listed *dy, const struct leaves *leaves)
{
    const struct adapter_product *x = product_at(p, s, k);
    struct experts_buf *b = &branch->experts;
    struct expert_rows groups = routing_groups(&b->routing);

    if (!x)
        return 0;
    struct mat dz = rows_of(b->sum + b->n * p->m->hidden, DT_F32, b->n, x->rank);
    for (int i = 0, n; i < x->n; i += n) {
        enum param_kind kind[3];
        struct listed part[3];
        struct leaves of[3];
        for (n = 0; n == 0 || (i + n < x->n && shares_a(x, i + n)); n++) {
            kind[n] = x->out[i + n].kind_b;
            part[n] = dy[x->out[i + n].slot];
            of[n] = leaves[x->out[i + n].slot];
        }
        KERNEL(p->m->dev, linear_dx_experts, mat_cols(dz, x->out[i].z_begin, x->out[i].rank), n, part,
               factors(p, s, b, n, kind), of, &groups);
    }
    return b->n * x->rank;
}

int adapters_experts_up_end(const struct pass *p, const struct sublayer *s, int k, struct branch_buf *branch,
                            const struct listed *dy, struct mat h, struct err *e)
{
    const struct model *m = p->m;
    const struct adapter_product *x = product_at(p, s, k);
    struct experts_buf *b = &branch->experts;
    struct mat dz, sum, z;
    int rc = 0;

    if (!x)
        return 0;
    sum = rows_of(b->sum + b->n * m->hidden, DT_F32, b->n, x->rank);
    scale_columns(p, x, sum);
    dz = rows_of(b->low.z_dt, m->dt, b->n, x->rank);
    KERNEL(m->dev, round_to, dz.p, m->dt, sum.p, b->n * x->rank);
    z = scaled_z(p, x, branch, k);
    for (int i = 0; i < x->n; i++) {
        const struct adapter_output *out = &x->out[i];
        TRY(emit(p, s, b, out->kind_b, dy[out->slot].m, mat_cols(z, out->z_begin, out->rank), 0, e));
        if (!shares_a(x, i))
            TRY(emit(p, s, b, out->kind_a, mat_cols(dz, out->z_begin, out->rank), h, 1, e));
    }
    add_dx(p, s, branch, x, dz, grouped(b, b->sum, DT_F32, m->hidden));
    rc = 0;
out:
    return rc;
}
