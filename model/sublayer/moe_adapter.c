/* moe_adapter.c - adapters of the routed experts of a mixture: forward and back.
 *
 * Rows are grouped by expert. The grouped rows of one adapter form groups of their own (struct some_rows),
 * and one product of experts makes z of them. With ep 1 the rows of a run are neighbours in every group,
 * because these are ascending by row of the call. With ep > 1 rows come from several ranks, in a server with
 * the number of their adapter. B z is made for some rows at a time, which share m->adapters.d. */
#include "model/sublayer/moe.h"

/* Grouped rows of one adapter. */
struct some_rows {
    struct expert_rows groups;
    const int32_t *list; /* [n]: ascending */
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
    l->list = carve(from, LIFE_HOST, 2 * b->capacity, sizeof *l->list);
}

/* ---- which rows have which adapter ---- */

/* Do numbers of adapters travel? All ranks of the expert group list the same adapters, so they agree. */
static int has_numbers(const struct pass *p, const struct sublayer *s)
{
    if (p->w || !has_dispatch(p->m))
        return 0;
    for (int i = 0; p->adapters && i < p->adapters->n; i++) {
        const struct adapter *a = p->adapters->run[i].a;
        if (a && (adapter_product(a, s, PACK_UP) || adapter_product(a, s, PACK_DOWN)))
            return 1;
    }
    return 0;
}

int adapters_experts_send(const struct pass *p, const struct sublayer *s, struct experts_buf *b,
                          struct err *e)
{
    return has_numbers(p, s) ? experts_send_adapters(p, b, e) : 0;
}

void adapters_experts_arrived(const struct pass *p, const struct sublayer *s, struct experts_buf *b)
{
    if (has_numbers(p, s))
        dev_read(p->m->dev, b->low.arrived_host, b->low.arrived, (size_t)b->n * sizeof *b->low.arrived);
}

/* All rows that this rank's experts compute. */
static struct expert_rows groups_of(const struct pass *p, const struct experts_buf *b)
{
    return has_dispatch(p->m) ? arrivals_groups(&b->arrivals) : routing_groups(&b->routing);
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

/* ep > 1: does a grouped row have the adapter of the run? In training all have it. */
static int has_adapter(const struct pass *p, const struct experts_buf *b, const struct adapter_run *run,
                       int64_t row)
{
    return p->w || b->low.arrived_host[b->arrivals.list[row]] == (float)run->a->number;
}

static struct some_rows rows_of_run(const struct pass *p, const struct experts_buf *b,
                                    const struct adapter_run *run)
{
    const struct routing *r = &b->routing;
    const struct adapter_lists *l = &b->low;
    int travels = has_dispatch(p->m);
    struct expert_rows all = groups_of(p, b);
    struct some_rows s = { .groups = { .n = all.n, .begin = l->begin }, .list = l->list };

    for (int e = 0; e < all.n; e++) {
        int64_t lo = all.begin[e], hi = all.begin[e + 1];
        if (!travels) {
            lo = search(r->row, lo, hi, run->first);
            hi = search(r->row, lo, hi, run->first + run->n);
        }
        l->begin[e] = s.n;
        for (; lo < hi; lo++)
            if (!travels || has_adapter(p, b, run, lo))
                l->list[s.n++] = (int32_t)lo;
    }
    l->begin[all.n] = s.n;
    return s;
}

/* The rows `s` of an operand whose grouped rows are x. */
static struct listed operand(const struct experts_buf *b, const struct some_rows *s, struct listed x)
{
    int32_t *list = b->low.list + b->capacity;
    if (!x.list)
        return listed_of(x.m, s->list);
    for (int64_t i = 0; i < s->n; i++)
        list[i] = x.list[s->list[i]];
    return listed_of(x.m, list);
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

/* y += factor * d, the rows of a chunk, neighbours together; d: m->adapters.d. */
static void add_chunk(const struct pass *p, const struct some_rows *s, const struct chunk *c, struct mat y,
                      struct mat d, float factor)
{
    const int32_t *row = s->list + c->row;
    for (int64_t i = 0, n; i < c->n; i += n) {
        for (n = 1; i + n < c->n && row[i + n] == row[i] + n;)
            n++;
        KERNEL(p->m->dev, add_scaled, mat_rows(y, row[i], n), mat_rows(d, i, n), factor);
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
/* What run i of the pass adds; NULL: nothing. With ep > 1 the first run of an adapter stands for all. */
static const struct adapter_product *product_of(const struct pass *p, int i, const struct sublayer *s, int k)
{
    const struct adapter_run *run = &p->adapters->run[i];
    for (int j = 0; has_dispatch(p->m) && j < i; j++)
        if (p->adapters->run[j].a == run->a)
            return NULL;
    return run->a && (run->n || has_dispatch(p->m)) ? adapter_product(run->a, s, k) : NULL;
}

/* Where the rounded z of a run lies: kept for backward, which has one run of all rows, or scratch. */
static struct mat z_of(const struct pass *p, int k, const struct branch_buf *branch,
                       const struct adapter_product *x, int64_t n)
{
    return rows_of(branch->z[k] ? branch->z[k] : branch->experts.low.z_dt, p->m->dt, n, x->rank);
}

/* z of some rows, from an operand that has all inputs. */
static struct mat make_z(const struct pass *p, const struct adapter *a, const struct adapter_product *product,
                         int k, const struct branch_buf *branch, const struct some_rows *rows,
                         struct listed x)
{
    const struct model *m = p->m;
    const struct experts_buf *b = &branch->experts;
    struct mat z = z_of(p, k, branch, product, rows->n);
    KERNEL(m->dev, linear_experts, rows_of(b->low.z, DT_F32, rows->n, product->rank), operand(b, rows, x),
           &rows->groups, &a->uw->pack[product->a]);
    KERNEL(m->dev, round_to, z.p, m->dt, b->low.z, rows->n * product->rank);
    return z;
}

void adapters_experts_add(const struct pass *p, const struct sublayer *s, int k,
                          const struct branch_buf *branch, struct listed x, struct mat y)
{
    const struct experts_buf *b = &branch->experts;
    for (int i = 0; p->adapters && i < p->adapters->n; i++) {
        const struct adapter_run *run = &p->adapters->run[i];
        const struct adapter_product *product = product_of(p, i, s, k);
        if (!product)
            continue;
        struct some_rows rows = rows_of_run(p, b, run);
        struct mat z = make_z(p, run->a, product, k, branch, &rows, x);
        add_outputs(p, b, run->a, product, &rows, z, y);
    }
}

void adapters_experts_again(const struct pass *p, const struct sublayer *s, int k,
                            const struct branch_buf *branch, struct mat x)
{
    const struct adapter_product *product = p->adapters ? product_of(p, 0, s, k) : NULL;
    if (!product)
        return;
    struct some_rows rows = rows_of_run(p, &branch->experts, &p->adapters->run[0]);
    make_z(p, p->adapters->run[0].a, product, k, branch, &rows, listed_of(x, NULL));
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
        const struct adapter_product *product = product_of(p, i, s, k);
        if (!product)
            continue;
        struct some_rows rows = rows_of_run(p, b, run);
        KERNEL(m->dev, linear_experts, rows_of(at, DT_F32, rows.n, product->rank),
               operand(b, &rows, listed_of(x, NULL)), &rows.groups, &run->a->uw->pack[product->a]);
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
        const struct adapter_product *product = product_of(p, i, s, k);
        if (!product)
            continue;
        struct some_rows rows = rows_of_run(p, b, run);
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

/* by_row: x has all rows of the call, with ep > 1 those that arrived. */
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
                                            .experts = b,
                                            .round = b->arrivals.round },
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
    return experts_record_input(p, &branch->experts, z);
}

/* to (fp32, grouped) += the As' transposes times dz, rounded. */
static void add_dx(const struct pass *p, const struct sublayer *s, const struct branch_buf *branch,
                   const struct adapter_product *x, struct mat dz, struct mat to)
{
    const struct model *m = p->m;
    const struct experts_buf *b = &branch->experts;
    struct some_rows rows = rows_of_run(p, b, &p->adapters->run[0]);
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
    rc = emit(p, s, b, x->out[0].kind_a, weighted, act, 0, e);
out:
    return rc;
}

int64_t adapters_experts_up(const struct pass *p, const struct sublayer *s, int k, struct branch_buf *branch,
                            const struct listed *dy, const struct leaves *leaves)
{
    const struct adapter_product *x = product_at(p, s, k);
    struct experts_buf *b = &branch->experts;
    struct expert_rows groups = groups_of(p, b);

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
