/* moe.c - a mixture of experts: a router chooses k of E experts for every token; the experts are MLPs, and
 * their outputs are added with the router's weights. Beside them there may be an expert that every token
 * takes. Shazeer et al. 2017; Fedus et al. 2021 (routing by token); numerics: kernels/NUMERICS.md, "Experts".
 *
 *     h ── router ── choice ──┐                      lists (routing.h)
 *      └── rows, grouped ── gate, up ── act ── down ── sum over tp ── round ── weighted sum by id ──(+)
 *      └── shared: gate, up ── act ── down ── sum over tp ── round ─────────────────────────────────┘
 *
 * tp cuts every expert as an MLP: gate and up by rows, down by columns. An expert's output is complete and
 * rounded before the weighted sum, so this rank's rows of the result are complete as well. */
#include "base/alter.h"
#include "model/units.h"

enum {
    ROUTER,
    GATE,
    UP,
    DOWN,
    SHARED_GATE,
    SHARED_UP,
    SHARED_DOWN,
    NO_BIAS_1,
    NO_BIAS_2,
    NO_BIAS_3,
    SHARED_SCALE,
    SLOTS
};
static const enum param_kind slots[SLOTS] = { P_ROUTER,      P_GATE,      P_UP,          P_DOWN,
                                              P_SHARED_GATE, P_SHARED_UP, P_SHARED_DOWN, P_KINDS,
                                              P_KINDS,       P_KINDS,     P_SHARED_SCALE };
enum { PACK_ROUTER, PACK_UP, PACK_DOWN, PACK_SHARED, PACK_SHARED_DOWN, PACK_SHARED_SCALE, PACKS };

static int has_shared(const struct sublayer *s) { return s->part[SHARED_DOWN] >= 0; }
static int has_scale(const struct sublayer *s) { return s->part[SHARED_SCALE] >= 0; }

/* ---- sizes ---- */

static void shape_packs(struct sublayer *s, const struct model *m)
{
    const struct experts *x = &s->experts;
    int n_in = act_inputs(x->act);

    s->pack[PACK_ROUTER] = (struct pack_plan){ .n_slots = 1,
                                               .slot = { ROUTER },
                                               .outputs = x->router.n_experts,
                                               .inputs = m->hidden,
                                               .leaves = m->of_hidden };
    s->pack[PACK_UP] = (struct pack_plan){ .n_slots = n_in,
                                           .slot = { GATE, UP },
                                           .outputs = x->up_cols,
                                           .inputs = m->hidden,
                                           .leaves = m->of_hidden,
                                           .first_expert = x->first,
                                           .n_experts = x->n_local };
    s->pack[PACK_DOWN] = (struct pack_plan){ .n_slots = 1,
                                             .slot = { DOWN },
                                             .outputs = m->hidden,
                                             .inputs = x->inter,
                                             .leaves = x->of_inter,
                                             .first_expert = x->first,
                                             .n_experts = x->n_local };
    s->n_packs = PACK_SHARED;
}

static void shape_shared(struct sublayer *s, const struct model *m, int tp_rank)
{
    struct experts *x = &s->experts;
    x->shared = (struct mlp){ .slot = SHARED_GATE, .pack = PACK_SHARED };
    mlp_shape(s, &x->shared, m, x->act, m->table.cfg.shared_inter, tp_rank);
    s->n_packs = PACK_SHARED_SCALE;
    if (!has_scale(s))
        return;
    s->pack[PACK_SHARED_SCALE] = (struct pack_plan){
        .n_slots = 1, .slot = { SHARED_SCALE }, .outputs = 1, .inputs = m->hidden, .leaves = m->of_hidden
    };
    s->n_packs = PACKS;
}

static void shape(struct sublayer *s, const struct model *m, const struct branch_spec *spec, int tp_rank)
{
    const struct model_config *c = &m->table.cfg;
    int each = m->grain / m->local.layout.tp, first = tp_rank * each;
    struct experts *x = &s->experts;

    x->act = spec->act;
    x->router = family_router(c);
    x->n_local = (int)c->n_experts;
    x->inter = block_begin(c->expert_inter, m->grain, first + each) -
               block_begin(c->expert_inter, m->grain, first);
    x->up_cols = act_inputs(x->act) * x->inter;
    x->of_inter = leaves_cut(leaves_of(c->expert_inter, m->grain, first, each),
                             m->fast || ALTERED("leaves_inter"));
    shape_packs(s, m);
    if (has_shared(s))
        shape_shared(s, m, tp_rank);
}

/* ---- memory ---- */

static void carve_shared(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                         const struct carver *from, struct experts_buf *b)
{
    size_t el = dtype_size(m->dt);
    mlp_carve(s, &s->experts.shared, m, c, from, &b->shared);
    b->shared_out = carve(from, LIFE_COSTLY, c->rows * m->hidden, el);
    if (!has_scale(s))
        return;
    b->shared_logit = carve(from, LIFE_COSTLY, c->rows, sizeof(float));
    if (c->training) {
        b->d_shared = carve(from, LIFE_SCRATCH, c->rows * m->hidden, el);
        b->d_shared_logit = carve(from, LIFE_SCRATCH, c->rows, el);
    }
}

static void carve_backward(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                           const struct carver *from, struct experts_buf *b)
{
    const struct experts *x = &s->experts;
    int64_t n = c->rows * x->router.k;
    size_t el = dtype_size(m->dt);

    b->d_act = carve(from, LIFE_SCRATCH, n * x->inter, sizeof(float));
    b->dgu = carve(from, LIFE_SCRATCH, n * x->up_cols, el);
    b->d_row = carve(from, LIFE_COMM, n, sizeof(float));
    b->d_slot = carve(from, LIFE_SCRATCH, n, sizeof(float));
    b->d_logits = carve(from, LIFE_SCRATCH, c->rows * x->router.n_experts, el);
    b->dx = carve(from, LIFE_SCRATCH, c->own * m->hidden, sizeof(float));
    b->part = carve(from, LIFE_SCRATCH, c->own * m->hidden, sizeof(float));
}

static void carve_experts(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                          const struct carver *from, struct branch_buf *branch)
{
    const struct experts *x = &s->experts;
    struct experts_buf *b = &branch->experts;
    int64_t n = c->rows * x->router.k;
    size_t el = dtype_size(m->dt);

    b->routing = (struct routing){ .n_experts = x->router.n_experts,
                                   .k = x->router.k,
                                   .first = x->first,
                                   .n_local = x->n_local,
                                   .n_leaves = c->n_seq,
                                   .rows = c->rows,
                                   .leaf_rows = c->rows / c->n_seq };
    routing_carve(&b->routing, from->of[LIFE_HOST]);
    b->logits = carve(from, LIFE_COSTLY, c->rows * x->router.n_experts, sizeof(float));
    b->expert = carve(from, LIFE_COSTLY, n, sizeof *b->expert);
    b->weight = carve(from, LIFE_COSTLY, n, sizeof(float));
    b->gu = carve(from, LIFE_COSTLY, n * x->up_cols, sizeof(float));
    b->act = carve(from, LIFE_CHEAP, n * x->inter, el);
    b->sum = carve(from, LIFE_COMM, n * m->hidden, sizeof(float));
    b->row = m->dt == DT_F32 ? b->sum : carve(from, LIFE_SCRATCH, n * m->hidden, el);
    if (has_shared(s))
        carve_shared(s, m, c, from, b);
    if (c->training)
        carve_backward(s, m, c, from, b);
}

/* ---- forward ---- */

static struct mat grouped(const struct experts_buf *b, const void *p, enum dtype dt, int64_t cols)
{
    return rows_of(p, dt, b->routing.n, cols);
}

/* One sequence's rows between bodies: all rows [from, from + n) are own rows [to, to + n). */
struct own_rows {
    int64_t from, to, n;
};
static struct own_rows own_rows(const struct pass *p, int seq)
{
    return (struct own_rows){ seq * p->r.len + rows_first(p->m, &p->r), seq * p->r.own_len, p->r.own_len };
}

/* The router's choice for all rows, and the lists that follow from it. */
static void choose(const struct pass *p, const struct sublayer *s, struct experts_buf *b, struct mat h)
{
    const struct model *m = p->m;
    const struct expert_router *router = &s->experts.router;
    struct mat logits = rows_of(b->logits, DT_F32, h.rows, router->n_experts);

    KERNEL(m->dev, linear, logits, h, weight_pack(p, s, PACK_ROUTER));
    KERNEL(m->dev, route, router, b->expert, b->weight, logits);
    dev_read(m->dev, b->routing.expert, b->expert, (size_t)(h.rows * router->k) * sizeof *b->expert);
    routing_fill(&b->routing);
}

static void activate(const struct pass *p, const struct sublayer *s, struct branch_buf *branch)
{
    const struct experts *x = &s->experts;
    struct experts_buf *b = &branch->experts;
    act_forward(p->m->dev, x->act, grouped(b, b->act, p->m->dt, x->inter),
                grouped(b, b->gu, DT_F32, x->up_cols));
    if (has_shared(s))
        mlp_activate(p, &x->shared, &b->shared);
}

/* b->sum, complete over tp, then rounded into b->row. */
static int complete_rows(const struct pass *p, struct experts_buf *b, struct err *e)
{
    const struct model *m = p->m;
    int64_t n = b->routing.n * m->hidden;
    int rc = comm_all_reduce(m->tp, b->sum, n, e);
    if (rc >= 0 && m->dt != DT_F32)
        KERNEL(m->dev, round_to, b->row, m->dt, b->sum, n);
    return rc;
}

static int run_experts(const struct pass *p, const struct sublayer *s, struct branch_buf *branch,
                       struct mat h, struct err *e)
{
    const struct model *m = p->m;
    const struct experts *x = &s->experts;
    struct experts_buf *b = &branch->experts;
    struct expert_rows groups = routing_groups(&b->routing);
    struct listed in = { h, b->routing.row }, act = { grouped(b, b->act, m->dt, x->inter), NULL };

    KERNEL(m->dev, linear_experts, grouped(b, b->gu, DT_F32, x->up_cols), in, &groups,
           weight_pack(p, s, PACK_UP));
    act_forward(m->dev, x->act, act.m, grouped(b, b->gu, DT_F32, x->up_cols));
    KERNEL(m->dev, linear_experts, grouped(b, b->sum, DT_F32, m->hidden), act, &groups,
           weight_pack(p, s, PACK_DOWN));
    return complete_rows(p, b, e);
}

static int run_shared(const struct pass *p, const struct sublayer *s, struct branch_buf *branch, struct mat h,
                      struct err *e)
{
    const struct model *m = p->m;
    struct experts_buf *b = &branch->experts;
    int64_t n = h.rows * m->hidden;

    mlp_forward(p, s, &s->experts.shared, &b->shared, h);
    int rc = comm_all_reduce(m->tp, m->sum_rows, n, e);
    if (rc < 0)
        return rc;
    KERNEL(m->dev, round_to, b->shared_out, m->dt, m->sum_rows, n);
    if (has_scale(s))
        KERNEL(m->dev, linear, rows_of(b->shared_logit, DT_F32, h.rows, 1), h,
               weight_pack(p, s, PACK_SHARED_SCALE));
    return 0;
}

static int forward(const struct pass *p, const struct sublayer *s, struct branch_buf *branch, struct mat h,
                   struct err *e)
{
    const struct model *m = p->m;
    struct experts_buf *b = &branch->experts;
    int k = s->experts.router.k, rc;

    choose(p, s, b, h);
    TRY(run_experts(p, s, branch, h, e));
    if (has_shared(s))
        TRY(run_shared(p, s, branch, h, e));

    for (int i = 0; i < p->r.n_seq; i++) {
        struct own_rows o = own_rows(p, i);
        struct mat out = rows_of(m->sum_rows + o.to * m->hidden, DT_F32, o.n, m->hidden);
        struct mat shared = rows_of(b->shared_out, m->dt, h.rows, m->hidden);
        shared = b->shared_out ? mat_rows(shared, o.from, o.n) : (struct mat){ 0 };
        KERNEL(m->dev, combine, out, grouped(b, b->row, m->dt, m->hidden), b->routing.place + o.from * k,
               b->weight + o.from * k, k, shared, b->shared_logit ? b->shared_logit + o.from : NULL);
    }
    rc = 0;
out:
    return rc;
}

/* ---- backward ---- */

/* A matrix of every expert in natural order, and n_w - 1 more slots after it: w[e * n_w + i]. */
static const struct mat *expert_weights(const struct pass *p, const struct sublayer *s, struct experts_buf *b,
                                        int first_slot, int n_w)
{
    const struct model *m = p->m;
    struct mat *w = b->routing.mat;
    for (int x = 0; x < b->routing.n_local; x++)
        for (int i = 0; i < n_w; i++) {
            int part = params_part(&m->local, s->unit, slots[first_slot + i], b->routing.first + x);
            w[x * n_w + i] = model_mat(m, p->uw->flat, part);
        }
    return w;
}

/* The record of one matrix of every expert. */
static int emit_experts(const struct pass *p, const struct sublayer *s, const struct experts_buf *b, int slot,
                        struct mat dy, struct mat x, struct err *e)
{
    return gradient_emit(p,
                         (struct gradient){ .kind = GRADIENT_BODY,
                                            .unit = s->unit,
                                            .part = { slot },
                                            .body = s,
                                            .dy = dy,
                                            .x = x,
                                            .routing = &b->routing },
                         e);
}

static int weight_gradient(const struct pass *p, const struct gradient *g, struct err *e)
{
    const struct model *m = p->m;
    const struct routing *r = g->routing;
    struct expert_rows groups = routing_groups(r);
    struct listed dy = { g->dy, NULL }, x = { g->x, g->part[0] == DOWN ? NULL : r->row };
    int64_t ld = 0;

    (void)e;
    for (int i = 0; i < r->n_local; i++) {
        int part = params_part(&m->local, g->unit, slots[g->part[0]], r->first + i);
        r->acc[i] = gradient_sums(p, g->unit, part);
        ld = m->local.part[part].box.extent[1];
    }
    KERNEL(m->dev, linear_dw_experts, r->acc, ld, dy, x, &groups);
    return 0;
}

/* Through down and the activation: b->dgu; b->d_slot, the gradients of the router's weights. */
static int through_down(const struct pass *p, const struct sublayer *s, struct experts_buf *b, struct mat dx,
                        struct err *e)
{
    const struct model *m = p->m;
    const struct experts *x = &s->experts;
    const struct routing *r = &b->routing;
    struct expert_rows groups = routing_groups(r);
    struct listed dy = { dx, r->row };
    struct mat d_act = grouped(b, b->d_act, DT_F32, x->inter), act = grouped(b, b->act, m->dt, x->inter);
    struct mat scaled = grouped(b, b->row, m->dt, m->hidden);
    int rc;

    KERNEL(m->dev, linear_dx_experts, d_act, 1, &dy, expert_weights(p, s, b, DOWN, 1), &m->of_hidden,
           &groups);

    /* an output's part in the loss is its weight times it: the weight's gradient, then the output's */
    KERNEL(m->dev, expert_dot, b->d_row, d_act, act, &x->of_inter);
    TRY(comm_all_reduce(m->tp, b->d_row, r->n, e));
    KERNEL(m->dev, embed, rows_of(b->d_slot, DT_F32, r->rows * r->k, 1), rows_of(b->d_row, DT_F32, r->n, 1),
           0, r->place);

    KERNEL(m->dev, gather_scaled, scaled, dy, b->weight, r->slot);
    TRY(emit_experts(p, s, b, DOWN, scaled, gradient_input(p, act), e));
    KERNEL(m->dev, scale_rows, d_act, b->weight, r->slot);
    act_backward(m->dev, x->act, grouped(b, b->dgu, m->dt, x->up_cols), grouped(b, b->gu, DT_F32, x->up_cols),
                 d_act);
    rc = 0;
out:
    return rc;
}

/* Through gate and up, h: all rows of the norm's output. b->dx: own rows. */
static int through_up(const struct pass *p, const struct sublayer *s, struct experts_buf *b, struct mat h,
                      struct err *e)
{
    const struct model *m = p->m;
    const struct experts *x = &s->experts;
    struct expert_rows groups = routing_groups(&b->routing);
    struct mat dgu = grouped(b, b->dgu, m->dt, x->up_cols);
    struct listed dy[2];
    struct leaves leaves[2] = { x->of_inter, x->of_inter };
    int n_in = act_inputs(x->act), first = n_in == 2 ? GATE : UP, k = b->routing.k, rc;

    for (int i = 0; i < n_in; i++) {
        dy[i] = (struct listed){ mat_cols(dgu, i * x->inter, x->inter), NULL };
        TRY(emit_experts(p, s, b, first + i, dy[i].m, h, e));
    }
    KERNEL(m->dev, linear_dx_experts, grouped(b, b->sum, DT_F32, m->hidden), n_in, dy,
           expert_weights(p, s, b, first, n_in), leaves, &groups);
    TRY(complete_rows(p, b, e));
    for (int i = 0; i < p->r.n_seq; i++) {
        struct own_rows o = own_rows(p, i);
        KERNEL(m->dev, combine_dx, rows_of(b->dx + o.to * m->hidden, DT_F32, o.n, m->hidden),
               grouped(b, b->row, m->dt, m->hidden), b->routing.place + o.from * k, k);
    }
    rc = 0;
out:
    return rc;
}

/* b->dx += d_logits [rows][n] (dt) times a small matrix [n][hidden] that every rank has, own rows. */
static void add_small_dx(const struct pass *p, struct experts_buf *b, struct mat d_logits, int part)
{
    const struct model *m = p->m;
    char *none = NULL;
    struct mat w = weight_rows(p, part, 0, d_logits.cols, &none);
    struct leaves one = { 1, { d_logits.cols } };

    for (int i = 0; i < p->r.n_seq; i++) {
        struct own_rows o = own_rows(p, i);
        struct mat dy = mat_rows(d_logits, o.from, o.n);
        KERNEL(m->dev, linear_dx, rows_of(b->part + o.to * m->hidden, DT_F32, o.n, m->hidden), 1, &dy, &w,
               &one);
    }
    KERNEL(m->dev, add_to, rows_of(b->dx, DT_F32, rows_own(&p->r), m->hidden),
           rows_of(b->part, DT_F32, rows_own(&p->r), m->hidden));
}

/* The shared expert's part, and that of its gate. */
static int shared_backward(const struct pass *p, const struct sublayer *s, struct branch_buf *branch,
                           struct mat dx, struct err *e)
{
    const struct model *m = p->m;
    struct experts_buf *b = &branch->experts;
    struct mat shared = rows_of(b->shared_out, m->dt, dx.rows, m->hidden);
    struct mat d_shared = dx, d_logit = rows_of(b->d_shared_logit, m->dt, dx.rows, 1);
    int rc;

    if (has_scale(s)) {
        d_shared = rows_of(b->d_shared, m->dt, dx.rows, m->hidden);
        KERNEL(m->dev, gate_dx, d_logit, d_shared, dx, shared, b->shared_logit);
    }
    TRY(mlp_backward(p, s, &s->experts.shared, &b->shared, branch, d_shared, e));
    rc = 0;
out:
    return rc;
}

static int backward(const struct pass *p, const struct sublayer *s, struct branch_buf *branch, struct err *e)
{
    struct model *m = p->m;
    const struct expert_router *router = &s->experts.router;
    struct experts_buf *b = &branch->experts;
    int64_t rows = rows_all(&p->r), own = rows_own(&p->r);
    struct mat d_logits = rows_of(b->d_logits, m->dt, rows, router->n_experts);
    struct mat logits = rows_of(b->logits, DT_F32, rows, router->n_experts);
    struct mat d_scale = rows_of(b->d_shared_logit, m->dt, rows, 1), dx, h;
    int rc;

    TRY(walk_dx(p, &dx, e));
    TRY(through_down(p, s, b, dx, e));
    KERNEL(m->dev, route_dx, router, d_logits, logits, b->expert, b->weight, b->d_slot, NULL);
    if (has_shared(s))
        TRY(shared_backward(p, s, branch, dx, e));

    TRY(walk_input(p, branch, &h, e));
    TRY(through_up(p, s, b, h, e));
    if (has_shared(s)) {
        TRY(comm_all_reduce(m->tp, m->sum_rows, rows * m->hidden, e));
        for (int i = 0; i < p->r.n_seq; i++) {
            struct own_rows o = own_rows(p, i);
            KERNEL(m->dev, add_to, rows_of(b->dx + o.to * m->hidden, DT_F32, o.n, m->hidden),
                   rows_of(m->sum_rows + o.from * m->hidden, DT_F32, o.n, m->hidden));
        }
    }
    if (has_scale(s)) {
        TRY(walk_product(p, s, SHARED_SCALE, NO_BIAS_1, d_scale, h, e));
        add_small_dx(p, b, d_scale, s->part[SHARED_SCALE]);
    }
    TRY(walk_product(p, s, ROUTER, NO_BIAS_1, d_logits, h, e));
    add_small_dx(p, b, d_logits, s->part[ROUTER]);
    dev_copy(m->dev, m->sum_rows, b->dx, (size_t)(own * m->hidden) * sizeof(float));
    rc = 0;
out:
    return rc;
}

/* ---- plans ---- */

/* Copies of dgu and of the scaled gradient of outputs; of act, where layers share its buffer; of the small
 * products' gradients. */
static size_t deferred_bytes(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                             enum recompute recompute)
{
    const struct experts *x = &s->experts;
    size_t el = dtype_size(m->dt);
    int64_t columns = x->up_cols + m->hidden + (recompute != RECOMPUTE_NONE ? x->inter : 0);
    size_t sum = (size_t)(c->rows * x->router.k * columns) * el + 6 * 64;

    sum += (size_t)(c->rows * (x->router.n_experts + 1)) * el;
    if (has_shared(s))
        sum += mlp_deferred_bytes(&x->shared, m, c, recompute) + (size_t)(c->rows * m->hidden) * el;
    return sum;
}

/* Each of a token's experts is summed by itself. */
static void traffic(const struct sublayer *s, struct unit_traffic *t)
{
    int sums = s->experts.router.k + has_shared(s);
    t->whole_forward += sums;
    t->whole_backward += sums;
    t->row_floats += s->experts.router.k;
    t->gathers_backward += has_shared(s);
    t->gathers_deferred += has_shared(s);
}

static double flops(const struct sublayer *s, const struct model *m, double keys)
{
    const struct experts *x = &s->experts;
    double columns = (double)(x->router.k * (x->up_cols + x->inter) + x->router.n_experts);
    (void)keys;
    columns += (double)(x->shared.up_cols + x->shared.inter + has_scale(s));
    return 2.0 * (double)m->hidden * columns;
}

const struct sublayer_kind sublayer_experts = {
    .name = "experts",
    .slot = slots,
    .n_slots = SLOTS,
    .out_bias = -1,
    .complete = 1,
    .shape = shape,
    .carve = carve_experts,
    .forward = forward,
    .backward = backward,
    .recompute = activate,
    .weight_gradient = weight_gradient,
    .deferred_bytes = deferred_bytes,
    .traffic = traffic,
    .flops = flops,
};
