/* walker.c - the walk through a unit's branches: what lies between bodies, forward, backward and again. See
 * units.h.
 *
 * Tensor parallel (Shoeybi et al. 2019, section 3): a body leaves a partial sum; the ranks' parts are added
 * in tree order, the bias of the body's last product after it, rounded once, then added to the residual
 * stream. Which rows a rank holds between bodies is row_shares.c's decision. */
#include <string.h>
#include "base/alter.h"
#include "model/units.h"

size_t norm_stats(const struct norm *n, int64_t rows)
{
    return (size_t)(n->kind == NORM_LAYER ? 2 * rows : rows);
}

int64_t norm_width(const struct norm *n, const struct model *m)
{
    return n->kind == NORM_LAYER ? 2 * m->hidden : m->hidden;
}

/* ---- memory ---- */
/* The first branch's input is kept under every policy: a layer is computed again from it. The head is never
 * computed again. Its input is the last layer's output. */
static void carve_branch(const struct model *m, const struct branch *br, int first,
                         const struct call_shape *c, const struct carver *from, struct branch_buf *b)
{
    size_t el = dtype_size(m->dt);
    int64_t stream = c->own * m->hidden;
    int ends = br->flow == FLOW_END;

    if (br->flow == FLOW_ADD && !b->x)
        b->x = carve(from, first ? LIFE_INPUT : LIFE_COSTLY, stream, el);
    if (br->norm.kind != NORM_NONE) {
        b->h = carve(from, ends ? LIFE_KEPT : LIFE_CHEAP, stream, el);
        b->stat = carve(from, ends ? LIFE_KEPT : LIFE_COSTLY, (int64_t)norm_stats(&br->norm, c->own),
                        sizeof(float));
    }
    if (br->after.kind != NORM_NONE) {
        b->o = carve(from, LIFE_COSTLY, stream, el);
        b->o_stat = carve(from, LIFE_COSTLY, (int64_t)norm_stats(&br->after, c->own), sizeof(float));
    }
}

int unit_has_side(const struct unit *u)
{
    int has = u->parallel;
    for (int i = 0; i < u->n_branches; i++)
        has |= u->branch[i].after.kind != NORM_NONE;
    return has;
}

void unit_carve(const struct model *m, const struct unit *u, const struct call_shape *c,
                const struct carver *from, struct unit_buf *b)
{
    struct arena *shared[2] = { from->of[LIFE_SCRATCH], from->of[LIFE_COMM] };
    size_t begin[2], most[2];

    memset(b, 0, sizeof *b);
    if (unit_has_side(u))
        b->side = carve(from, LIFE_SCRATCH, c->own * m->hidden, dtype_size(m->dt));
    for (int k = 0; k < 2; k++)
        begin[k] = most[k] = shared[k]->used;

    for (int i = 0; i < u->n_branches; i++) {
        const struct branch *br = &u->branch[i];
        if (u->parallel && i > 0)
            b->branch[i].x = b->branch[0].x;
        carve_branch(m, br, i == 0, c, from, &b->branch[i]);
        br->body.kind->carve(&br->body, m, c, from, &b->branch[i]);
        if (c->adapter)
            adapters_carve(c->adapter, &br->body, c->rows, from, &b->branch[i]);

        /* scratch is free again behind a body */
        for (int k = 0; k < 2; k++) {
            most[k] = shared[k]->used > most[k] ? shared[k]->used : most[k];
            shared[k]->used = begin[k];
        }
    }
    for (int k = 0; k < 2; k++)
        shared[k]->used = most[k];
}

/* ---- forward ---- */
void norm_apply(const struct pass *p, const struct norm *n, void *to, const void *from, float *stat)
{
    const struct model *m = p->m;
    int64_t rows = rows_own(&p->r);
    struct mat y = rows_of(to, m->dt, rows, m->hidden), x = rows_of(from, m->dt, rows, m->hidden);
    const void *weight = weight_at(p, n->weight), *bias = weight_at(p, n->bias);
    float eps = (float)m->table.cfg.norm_eps;

    if (n->kind == NORM_LAYER)
        KERNEL(m->dev, layer_norm, y, stat + rows, stat, x, weight, bias, eps);
    else
        KERNEL(m->dev, rms_norm, y, stat, x, weight, n->kind == NORM_RMS_ONE, eps);
}

static void norm_forward(const struct pass *p, const struct norm *n, struct branch_buf *b)
{
    norm_apply(p, n, b->h, b->x, b->stat);
}

void walk_bias(const struct pass *p, int part, struct mat y, int64_t c0, int64_t n)
{
    const void *bias = weight_at(p, part);
    if (bias)
        KERNEL(p->m->dev, add_bias, mat_cols(y, c0, n), bias, p->m->dt);
}

/* Altered round_before_tree: what a sum over tp in bf16 would see. */
static void cut_to_bf16(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, sizeof u);
        u &= 0xffff0000u;
        memcpy(x + i, &u, sizeof u);
    }
}

int walk_sum(const struct pass *p, const struct sublayer *s, int64_t more, struct mat *own, struct err *e)
{
    const struct model *m = p->m;
    if (!s->kind->complete)
        return rows_sum(m, &p->r, more, own, e);
    *own = rows_of(m->sum_rows, DT_F32, rows_own(&p->r), m->hidden);
    return 0;
}

/* What a body adds to the stream, own rows: Tree over tp of the parts and the body's last bias, in fp32; or,
 * where a norm comes after it, the norm of that rounded, in dt. */
static int body_output(const struct pass *p, const struct branch *br, struct branch_buf *b, struct mat *out,
                       struct err *e)
{
    const struct model *m = p->m;
    const struct sublayer *s = &br->body;

    if (ALTERED("round_before_tree"))
        cut_to_bf16(m->sum_rows, (s->kind->complete ? rows_own(&p->r) : rows_all(&p->r)) * m->hidden);
    int rc = walk_sum(p, s, adapters_floats(p, s, s->kind->out_pack), out, e);
    if (rc < 0)
        return rc;
    adapters_end(p, s, s->kind->out_pack, b, *out);
    if (s->kind->out_bias >= 0)
        walk_bias(p, s->part[s->kind->out_bias], *out, 0, m->hidden);
    if (br->after.kind == NORM_NONE)
        return 0;
    KERNEL(m->dev, round_to, b->o, m->dt, out->p, out->rows * m->hidden);
    *out = rows_of(out->p, m->dt, out->rows, m->hidden);
    norm_apply(p, &br->after, out->p, b->o, b->o_stat);
    return 0;
}

/* x_out = round(x + round(output)), own rows. Parallel branches: the first one's output stays aside, rounded;
 * the last one's makes x_out = round((x + round(first)) + round(last)). */
static int add_to_stream(const struct pass *p, const struct unit *u, int i, struct unit_buf *b, void *x_out,
                         struct err *e)
{
    const struct model *m = p->m;
    const void *x = b->branch[i].x;
    struct mat out;
    int rc = body_output(p, &u->branch[i], &b->branch[i], &out, e);

    if (rc < 0)
        return rc;
    if (u->parallel && i + 1 < u->n_branches) {
        KERNEL(m->dev, round_to, b->side, m->dt, out.p, out.rows * m->hidden);
        return 0;
    }
    if (x_out != x)
        dev_copy(m->dev, x_out, x, (size_t)(out.rows * m->hidden) * dtype_size(m->dt));
    if (u->parallel)
        KERNEL(m->dev, add_both, rows_of(x_out, m->dt, out.rows, m->hidden),
               rows_of(b->side, m->dt, out.rows, m->hidden), out);
    else
        KERNEL(m->dev, add_rounded, rows_of(x_out, m->dt, out.rows, m->hidden), out);
    return 0;
}

static int branch_forward(struct pass *p, const struct unit *u, int i, struct unit_buf *b, void *x_out,
                          struct err *e)
{
    const struct model *m = p->m;
    const struct branch *br = &u->branch[i];
    struct branch_buf *buf = &b->branch[i];
    struct mat h = { 0 };
    int rc;

    if (br->norm.kind != NORM_NONE) {
        norm_forward(p, &br->norm, buf);
        TRY(rows_gather(m, &p->r, rows_of(buf->h, m->dt, rows_own(&p->r), m->hidden), &h, e));
    }
    TRY(br->body.kind->forward(p, &br->body, buf, h, e));
    if (br->flow == FLOW_ADD)
        TRY(add_to_stream(p, u, i, b, x_out, e));
    rc = 0;
out:
    return rc;
}

int unit_forward(struct pass *p, const struct unit *u, struct unit_buf *b, void *x_out, struct err *e)
{
    int rc = 0;
    for (int i = 0; rc >= 0 && i < u->n_branches; i++) {
        void *next = i + 1 < u->n_branches ? b->branch[i + 1].x : x_out;
        rc = branch_forward(p, u, i, b, next, e);
    }
    return rc;
}

int unit_recompute(struct pass *p, const struct unit *u, struct unit_buf *b, enum recompute how,
                   struct err *e)
{
    if (how == RECOMPUTE_FULL)
        return unit_forward(p, u, b, p->w->x_last, e);
    for (int i = 0; how == RECOMPUTE_SELECTIVE && i < u->n_branches; i++) {
        const struct branch *br = &u->branch[i];
        norm_forward(p, &br->norm, &b->branch[i]);
        if (br->body.kind->recompute)
            br->body.kind->recompute(p, &br->body, &b->branch[i]);
    }
    return 0;
}

/* ---- backward ---- */
/* All rows of `own` for the weight gradients that come next, now or later. */
static int gather_for_weights(const struct pass *p, struct mat own, int stays, struct mat *all, struct err *e)
{
    *all = own;
    if (!rows_shared(&p->r))
        return 0;
    *all = rows_gathered(p->m, &p->r);
    return gradient_emit(p, (struct gradient){ .kind = GRADIENT_GATHER, .dy = own, .stays = stays }, e);
}

/* The norm's output: still valid, or copied, when a deferred gradient is made from it. */
int walk_input(const struct pass *p, const struct branch_buf *b, struct mat *h, struct err *e)
{
    struct mat own = rows_of(b->h, p->m->dt, rows_own(&p->r), p->m->hidden);
    int rc = gather_for_weights(p, gradient_input(p, own), 1, h, e);
    p->w->input = *h;
    return rc;
}

int walk_dx(const struct pass *p, struct mat *dx, struct err *e)
{
    struct mat own = rows_of(p->w->dx_body, p->m->dt, rows_own(&p->r), p->m->hidden);
    int rc = p->w->deferred ? gather_for_weights(p, own, 0, dx, e) : 0;
    return rc < 0 ? rc : rows_gather(p->m, &p->r, own, dx, e);
}

int walk_product(const struct pass *p, const struct sublayer *s, int weight, int bias, struct mat dy,
                 struct mat x, struct err *e)
{
    int stays = dy.p == p->m->all_rows; /* gathered again where it is deferred */
    return gradient_emit(p,
                         (struct gradient){ .kind = GRADIENT_PRODUCT,
                                            .unit = s->unit,
                                            .part = { s->part[weight], s->part[bias] },
                                            .dy = dy,
                                            .x = x,
                                            .stays = stays },
                         e);
}

/* One accumulator for all matrices. */
static void dx_joined(const struct model *m, int n, const struct mat *dy, const struct mat *w,
                      const struct leaves *l)
{
    KERNEL(m->dev, linear_dx, rows_of(m->sum_rows, DT_F32, dy[0].rows, m->hidden), n, dy, w, l);
}

/* Altered dx_together: each matrix by itself, then added. */
static void dx_apart(const struct model *m, int n, const struct mat *dy, const struct mat *w,
                     const struct leaves *l)
{
    int64_t rows = dy[0].rows;
    struct mat sum = rows_of(m->sum_rows, DT_F32, rows, m->hidden), part = sum;

    KERNEL(m->dev, linear_dx, sum, 1, dy, w, l);
    part.p = dev_scratch(m->dev, 4, (size_t)(rows * m->hidden) * sizeof(float));
    for (int i = 1; i < n; i++) {
        const float *in[2] = { sum.p, part.p };
        KERNEL(m->dev, linear_dx, part, 1, dy + i, w + i, l + i);
        KERNEL(m->dev, tree_add, sum.p, in, 2, rows * m->hidden);
    }
}

void walk_dx_of(const struct pass *p, int n, const struct mat *dy, const struct mat *w,
                const struct leaves *l)
{
    ORDER("dx_together", dx_joined, dx_apart)(p->m, n, dy, w, l);
}

/* A norm's place in the walk: its input and statistics, the gradient of its output, and to which gradient
 * (dt) that of its input is added. Own rows. */
struct norm_place {
    const struct norm *norm;
    const void *x;
    const float *stat;
    struct mat dy;
    void *dx;
};

/* Emits the gradients of the norm's own weights, then adds the norm's backward to dx. */
static int norm_back(const struct pass *p, int unit, struct norm_place at, struct err *e)
{
    const struct model *m = p->m;
    const struct norm *n = at.norm;
    int64_t own = rows_own(&p->r), stats = (int64_t)norm_stats(n, own);
    struct mat dx = rows_of(at.dx, m->dt, own, m->hidden);
    struct mat x = gradient_input(p, rows_of(at.x, m->dt, own, m->hidden));
    const float *stat = gradient_input(p, rows_of(at.stat, DT_F32, 1, stats)).p;
    int rc = gradient_emit(p,
                           (struct gradient){ .kind = GRADIENT_NORM,
                                              .unit = unit,
                                              .norm = *n,
                                              .dy = at.dy,
                                              .x = x,
                                              .stat = stat },
                           e);

    if (rc < 0)
        return rc;
    if (n->kind == NORM_LAYER)
        KERNEL(m->dev, layer_norm_dx, dx, at.dy, x, weight_at(p, n->weight), stat + own, stat);
    else
        KERNEL(m->dev, rms_norm_dx, dx, at.dy, x, weight_at(p, n->weight), n->kind == NORM_RMS_ONE, stat);
    return 0;
}

/* Sums the ranks' parts of the gradient of the norm's output over tp, then goes back through the norm. */
static int norm_backward(const struct pass *p, const struct branch *br, struct branch_buf *b, struct err *e)
{
    struct norm_place at = { .norm = &br->norm, .x = b->x, .stat = b->stat, .dx = p->w->dx };
    const struct sublayer *s = &br->body;
    unsigned packs = s->kind->in_packs;
    int rc = walk_sum(p, s, adapters_dz_floats(p, s, packs), &at.dy, e);

    if (rc >= 0)
        rc = adapters_dx(p, s, packs, p->w->input, adapters_dz_place(p, s, 0), at.dy, e);
    return rc < 0 ? rc : norm_back(p, s->unit, at, e);
}

/* Back through the norm behind a body: w->dx_body is the gradient of the body's output, round(+0 + ...). */
static int after_backward(const struct pass *p, const struct branch *br, struct branch_buf *b, void *side,
                          struct err *e)
{
    const struct model *m = p->m;
    int64_t own = rows_own(&p->r);
    struct norm_place at = { .norm = &br->after,
                             .x = b->o,
                             .stat = b->o_stat,
                             .dy = rows_of(p->w->dx, m->dt, own, m->hidden),
                             .dx = side };

    dev_fill(m->dev, side, 0, (size_t)(own * m->hidden) * dtype_size(m->dt));
    p->w->dx_body = side;
    return norm_back(p, br->body.unit, at, e);
}

int unit_backward(struct pass *p, const struct unit *u, struct unit_buf *b, struct err *e)
{
    size_t stream = (size_t)(rows_own(&p->r) * p->m->hidden) * dtype_size(p->m->dt);
    int rc = 0;

    /* bodies of parallel branches have one gradient of their outputs; dx changes branch by branch */
    p->w->dx_body = u->parallel ? b->side : p->w->dx;
    if (u->parallel)
        dev_copy(p->m->dev, b->side, p->w->dx, stream);
    for (int i = u->n_branches - 1; i >= 0; i--) {
        const struct branch *br = &u->branch[i];
        if (br->after.kind != NORM_NONE)
            TRY(after_backward(p, br, &b->branch[i], b->side, e));
        TRY(br->body.kind->backward(p, &br->body, &b->branch[i], e));
        if (br->flow == FLOW_END) /* the stream's gradient begins here */
            dev_fill(p->m->dev, p->w->dx, 0, stream);
        if (br->flow != FLOW_START)
            TRY(norm_backward(p, br, &b->branch[i], e));
    }
    rc = 0;
out:
    return rc;
}

/* ---- what the walk moves over tp ---- */
struct unit_traffic model_traffic(const struct model *m, int unit)
{
    const struct unit *u = &m->unit[unit];
    struct unit_traffic t = { 0 };

    for (int i = 0; i < u->n_branches; i++) {
        const struct branch *br = &u->branch[i];
        int start = br->flow == FLOW_START, add = br->flow == FLOW_ADD;
        if (br->body.kind->traffic) {
            br->body.kind->traffic(&br->body, m, &t);
        } else {
            t.sums_forward += start || add;
            t.sums_backward += !start;
        }
        t.gathers_forward += !start;
        t.gathers_backward += add ? 2 : 1;
        t.gathers_deferred += add;
        t.norm_floats += start ? 0 : norm_width(&br->norm, m);
        t.norm_floats += br->after.kind == NORM_NONE ? 0 : norm_width(&br->after, m);
    }
    return t;
}
