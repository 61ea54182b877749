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
#include "model/deferred_grads.h"
#include "model/sublayer/moe.h"

static const enum param_kind slots[SLOTS] = { P_ROUTER,      P_GATE,      P_UP,           P_DOWN,
                                              P_SHARED_GATE, P_SHARED_UP, P_SHARED_DOWN,  P_KINDS,
                                              P_KINDS,       P_KINDS,     P_SHARED_SCALE, P_ROUTER_BIAS };
/* A matrix that alternates is found by either of its kinds, as slot UP, too. */
static int first_input(const struct experts *x) { return act_inputs(x->act) == 2 ? GATE : UP; }

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
                                           .slot = { first_input(x), UP },
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
    int ep = m->local.layout.ep, each = m->grain / (ep > 1 ? 1 : m->local.layout.tp);
    int first = ep > 1 ? 0 : tp_rank * each;
    struct experts *x = &s->experts;

    x->act = spec->act;
    x->clamp = spec->clamp;
    x->router = family_router(c);
    x->correction = take_correction(s, m, ROUTER_BIAS);
    x->first = dispatch_first(c->n_experts, ep, m->local.at.ep);
    x->n_local = dispatch_first(c->n_experts, ep, m->local.at.ep + 1) - x->first;
    x->inter = block_begin(c->expert_inter, m->grain, first + each) -
               block_begin(c->expert_inter, m->grain, first);
    x->up_cols = act_values(x->act) * x->inter;
    x->of_inter = leaves_cut(leaves_of(c->expert_inter, m->grain, first, each),
                             m->fast || ALTERED("leaves_expert"));
    x->of_up = x->of_inter;
    for (int i = 0; i < x->of_up.n; i++) /* a block of alternating values is as long as all its values */
        x->of_up.end[i] *= act_values(x->act) / act_inputs(x->act);
    x->has_bias = params_part(&m->local, s->unit, P_DOWN_BIAS, x->first) >= 0;
    shape_packs(s, m);
    if (has_shared(s))
        shape_shared(s, m, tp_rank);
}

/* ---- forward ---- */

/* The router's choice for all rows, and the lists that follow from it. */
static int choose(const struct pass *p, const struct sublayer *s, struct experts_buf *b, struct mat h,
                  struct err *e)
{
    const struct model *m = p->m;
    const struct expert_router router = router_now(p, s);
    struct mat logits = rows_of(b->logits, DT_F32, h.rows, router.n_experts);
    struct share share = has_dispatch(m) ? experts_share(p) : (struct share){ 0, p->r.len };

    KERNEL(m->dev, linear, logits, h, weight_pack(p, s, PACK_ROUTER));
    walk_bias(p, s->part[ROUTER_BIAS], logits, 0, logits.cols);
    KERNEL(m->dev, route, &router, b->expert, b->weight, logits);
    dev_read(m->dev, b->routing.expert, b->expert, (size_t)(h.rows * router.k) * sizeof *b->expert);
    b->routing.home = share.first;
    b->routing.n_home = share.n;
    b->routing.leaf = 0;
    b->routing.n_routed = b->routing.n_leaves;
    routing_fill(&b->routing);
    b->n = b->routing.n;
    return has_dispatch(m) ? experts_find_rows(p, b, e) : 0;
}

static void activate(const struct pass *p, const struct sublayer *s, struct branch_buf *branch)
{
    const struct experts *x = &s->experts;
    struct experts_buf *b = &branch->experts;
    act_forward(p->m->dev, x->act, &x->clamp, grouped(b, b->act, p->m->dt, x->inter),
                grouped(b, b->gu, DT_F32, x->up_cols));
    if (has_shared(s))
        mlp_activate(p, &x->shared, &b->shared);
}

/* Adds the bias of a slot's matrix to its grouped outputs. */
static void add_biases(const struct pass *p, const struct sublayer *s, const struct experts_buf *b, int slot,
                       struct mat y)
{
    struct side side = experts_side(p, b, y, y.p);
    if (s->experts.has_bias)
        expert_bias_add(p, s, b, slots[slot], &side.groups, y);
}

/* b->sum, complete over tp where tp cuts the experts, and `more` floats behind it. */
static int sum_rows(const struct pass *p, const struct experts_buf *b, int64_t more, struct err *e)
{
    const struct model *m = p->m;
    return has_dispatch(m) ? 0 : comm_all_reduce(m->tp, b->sum, b->n * m->hidden + more, e);
}

/* b->sum, rounded into b->row. */
static void round_rows(const struct pass *p, const struct experts_buf *b)
{
    const struct model *m = p->m;
    if (m->dt != DT_F32)
        KERNEL(m->dev, round_to, b->row, m->dt, b->sum, b->n * m->hidden);
}

/* Up to the activation: b->gu, b->act. */
static void run_up(const struct pass *p, const struct sublayer *s, struct branch_buf *branch, struct mat h,
                   const struct panels *packs)
{
    const struct experts *x = &s->experts;
    struct experts_buf *b = &branch->experts;
    struct side side = experts_side(p, b, h, b->arrived);
    struct mat gu = grouped(b, b->gu, DT_F32, x->up_cols), act = grouped(b, b->act, p->m->dt, x->inter);

    KERNEL(p->m->dev, linear_experts, gu, side.in, &side.groups, packs);
    adapters_experts_add(p, s, PACK_UP, branch, side.in, gu);
    for (int i = 0, n = act_inputs(x->act); i < n; i++)
        add_biases(p, s, b, first_input(x) + i, mat_cols(gu, i * x->up_cols / n, x->up_cols / n));
    act_forward(p->m->dev, x->act, &x->clamp, act, gu);
}

static int run_experts(const struct pass *p, const struct sublayer *s, struct branch_buf *branch,
                       struct mat h, struct err *e)
{
    const struct model *m = p->m;
    const struct experts *x = &s->experts;
    struct experts_buf *b = &branch->experts;
    struct side side = experts_side(p, b, h, b->arrived);
    struct listed act = { grouped(b, b->act, m->dt, x->inter), NULL };
    struct mat sum = grouped(b, b->sum, DT_F32, m->hidden);

    run_up(p, s, branch, h, weight_pack(p, s, PACK_UP));
    KERNEL(m->dev, linear_experts, sum, act, &side.groups, weight_pack(p, s, PACK_DOWN));
    int rc = sum_rows(p, b, adapters_experts_begin(p, s, PACK_DOWN, branch, act.m), e);
    if (rc < 0)
        return rc;
    adapters_experts_end(p, s, PACK_DOWN, branch, sum);
    add_biases(p, s, b, DOWN, sum);
    round_rows(p, b);
    return 0;
}

static int run_shared(const struct pass *p, const struct sublayer *s, struct branch_buf *branch, struct mat h,
                      struct err *e)
{
    const struct model *m = p->m;
    struct experts_buf *b = &branch->experts;
    int64_t n = h.rows * m->hidden;

    mlp_forward(p, s, &s->experts.shared, &b->shared, branch, h);
    int rc = comm_all_reduce(m->tp, m->sum_rows, n + adapters_floats(p, s, PACK_SHARED_DOWN), e);
    if (rc < 0)
        return rc;
    adapters_end(p, s, PACK_SHARED_DOWN, branch, rows_of(m->sum_rows, DT_F32, h.rows, m->hidden));
    KERNEL(m->dev, round_to, b->shared_out, m->dt, m->sum_rows, n);
    if (has_scale(s))
        KERNEL(m->dev, linear, rows_of(b->shared_logit, DT_F32, h.rows, 1), h,
               weight_pack(p, s, PACK_SHARED_SCALE));
    return 0;
}

/* One round, to the results of its sequences. first: the shared expert runs while its rows travel. */
static int run_round(const struct pass *p, const struct sublayer *s, struct branch_buf *branch, int first,
                     struct mat h, struct err *e)
{
    const struct model *m = p->m;
    struct experts_buf *b = &branch->experts;
    const struct routing *r = &b->routing;
    int k = r->k, rc;
    struct mat results;

    TRY(experts_send(p, b, h, b->arrived, e));
    TRY(adapters_experts_send(p, s, b, e));
    if (first && has_shared(s))
        TRY(run_shared(p, s, branch, h, e));
    TRY(experts_arrive(b, 0, e));
    adapters_experts_arrived(p, s, b);
    TRY(run_experts(p, s, branch, h, e));
    TRY(experts_return(p, b, ALTERED("expert_unrounded"), &results, e));
    TRY(experts_arrive(b, 0, e));

    for (int i = r->leaf; i < r->leaf + r->n_routed; i++) {
        struct own_rows o = experts_own_rows(p, i);
        float *to = experts_results_in(p, b, m->sum_rows) + o.to * m->hidden;
        struct mat shared = rows_of(b->shared_out, m->dt, h.rows, m->hidden);
        shared = b->shared_out ? mat_rows(shared, o.from, o.n) : (struct mat){ 0 };
        KERNEL(m->dev, combine, rows_of(to, DT_F32, o.n, m->hidden), results, b->routing.place + o.from * k,
               b->weight + o.from * k, k, shared, b->shared_logit ? b->shared_logit + o.from : NULL);
    }
    rc = 0;
out:
    return rc;
}

/* The last round comes first: the buffers keep round 0, with which backward begins. */
static int forward(const struct pass *p, const struct sublayer *s, struct branch_buf *branch, struct mat h,
                   struct err *e)
{
    struct experts_buf *b = &branch->experts;
    int rc, n;

    TRY(choose(p, s, b, h, e));
    n = experts_rounds(b);
    for (int i = n - 1; i >= 0; i--) {
        TRY(experts_begin_round(p, b, i, e));
        TRY(run_round(p, s, branch, i == n - 1, h, e));
    }
    rc = experts_gather_results(p, b, p->m->sum_rows, e);
out:
    return rc < 0 ? experts_arrive(b, rc, e) : rc;
}

/* ---- backward ---- */

/* n_w matrices of every expert in natural order: w[e * n_w + i]. */
static const struct mat *expert_weights(const struct pass *p, const struct sublayer *s, struct experts_buf *b,
                                        int first_slot, int n_w)
{
    const struct model *m = p->m;
    struct mat *w = b->routing.mat;
    char *to = b->transposed;
    for (int x = 0; x < s->experts.n_local; x++)
        for (int i = 0; i < n_w; i++) {
            int part = params_part(&m->local, s->unit, slots[first_slot + i], s->experts.first + x);
            w[x * n_w + i] = weight_natural(p, part, &to);
        }
    return w;
}

/* The record of one matrix of every expert. */
static int emit_experts(const struct pass *p, const struct sublayer *s, struct experts_buf *b, int slot,
                        struct mat dy, struct mat x, struct err *e)
{
    return gradient_emit(p,
                         (struct gradient){ .kind = GRADIENT_BODY,
                                            .unit = s->unit,
                                            .part = { slot },
                                            .body = s,
                                            .dy = dy,
                                            .x = x,
                                            .experts = b,
                                            .round = b->arrivals.round },
                         e);
}

/* S of the contract. Altered: a leaf ends where the sequences of one rank end. */
static int sequences_a_leaf(const struct pass *p)
{
    int leaf = p->m->expert_leaf > 1 ? p->m->expert_leaf : 1;
    return ORDER("expert_leaf_ranks", leaf, p->r.n_seq < leaf ? p->r.n_seq : leaf);
}

struct mat experts_record_input(const struct pass *p, const struct experts_buf *b, struct mat x)
{
    return p->w->deferred && experts_rounds(b) > 1 ? deferred_copy(p->w->deferred, x) : gradient_input(p, x);
}

/* The part of the record's matrix of an expert; of an adapter's record part[0] is the kind. */
static int expert_part(const struct pass *p, const struct gradient *g, int expert)
{
    if (g->adapter)
        return params_part(&g->adapter->m.local, g->unit, (enum param_kind)g->part[0], expert);
    return params_part(&p->m->local, g->unit, slots[g->part[0]], expert);
}

static int weight_gradient(const struct pass *p, const struct gradient *g, struct err *e)
{
    const struct model *m = p->m, *of = g->adapter ? &g->adapter->m : m;
    const struct experts *x = &g->body->experts;
    struct experts_buf *b = g->experts;
    int64_t ld = 0;
    int turn = 0, leaf = sequences_a_leaf(p);

    (void)e;
    if (has_dispatch(m) && b->arrivals.round != g->round) {
        arrivals_select(&b->arrivals, g->round);
        b->n = b->arrivals.n;
    }
    struct side side = experts_side(p, b, g->x, g->x.p);
    int by_row = g->adapter ? g->part[1] : g->part[0] != DOWN; /* x has rows of the call, or what arrived */
    struct listed dy = { g->dy, NULL }, in = { g->x, by_row ? side.in.list : NULL };
    struct expert_rows groups = leaves_joined(&side.groups, leaf, b->joined_end);

    for (int i = 0; i < x->n_local; i++) {
        int part = expert_part(p, g, x->first + i);
        b->routing.acc[i] = expert_sums(p, of, b, g->unit, part);
        b->routing.acc[i].n /= leaf;
        b->routing.acc[i].next /= leaf;
        ld = model_mat(of, NULL, part).ld;
        turn = weight_is_transposed(of, part);
    }
    KERNEL(m->dev, linear_dw_experts, b->routing.acc, ld, turn ? in : dy, turn ? dy : in, &groups);
    if (x->has_bias && !g->adapter)
        expert_bias_gradient(p, g, slots[g->part[0]]);
    return 0;
}

/* Through down and the activation, a round's rows: b->dgu; b->d_slot, with ep > 1 on its way. dx: all rows of
 * the stream's gradient; with ep > 1 b->d_arrived has the rows that count. */
static int through_down(const struct pass *p, const struct sublayer *s, struct branch_buf *branch,
                        struct mat dx, struct err *e)
{
    const struct model *m = p->m;
    const struct experts *x = &s->experts;
    struct experts_buf *b = &branch->experts;
    struct mat d_act = grouped(b, b->d_act, DT_F32, x->inter), act = grouped(b, b->act, m->dt, x->inter);
    struct mat scaled = grouped(b, b->row, m->dt, m->hidden), in;
    struct side side = experts_side(p, b, dx, b->d_arrived);
    int rc;

    KERNEL(m->dev, linear_dx_experts, d_act, 1, &side.in, expert_weights(p, s, b, DOWN, 1), &m->of_hidden,
           &side.groups);
    adapters_experts_down(p, s, PACK_DOWN, branch, &side, d_act);

    /* an output's part in the loss is its weight times it: the weight's gradient, then the output's */
    if (ALTERED("expert_dot_scaled"))
        KERNEL(m->dev, scale_rows, d_act, side.weight, side.weight_list);
    KERNEL(m->dev, expert_dot, b->d_row, d_act, act, &x->of_inter);
    if (!has_dispatch(m))
        TRY(comm_all_reduce(m->tp, b->d_row, b->n, e));
    if (x->has_bias)
        expert_bias_dot(p, s, b, P_DOWN, &side.groups, side.in);
    TRY(experts_return_weight_gradients(p, b, e));
    if (!has_dispatch(m))
        experts_place_weight_gradients(p, b);
    KERNEL(m->dev, gather_scaled, scaled, side.in, side.weight, side.weight_list);
    in = experts_record_input(p, b, act);
    TRY(emit_experts(p, s, b, DOWN, scaled, in, e));
    TRY(adapters_experts_down_records(p, s, PACK_DOWN, branch, &side, scaled, in, e));
    KERNEL(m->dev, scale_rows, d_act, side.weight, side.weight_list);
    act_backward(m->dev, x->act, &x->clamp, grouped(b, b->dgu, m->dt, x->up_cols),
                 grouped(b, b->gu, DT_F32, x->up_cols), d_act);
    rc = 0;
out:
    return rc;
}

/* Through gate and up, a round's rows, h: all rows of the norm's output. b->dx: own rows of its sequences,
 * before experts_gather_results. */
static int through_up(const struct pass *p, const struct sublayer *s, struct branch_buf *branch, struct mat h,
                      struct err *e)
{
    const struct model *m = p->m;
    const struct experts *x = &s->experts;
    struct experts_buf *b = &branch->experts;
    struct side side = experts_side(p, b, h, b->arrived);
    struct mat dgu = grouped(b, b->dgu, m->dt, x->up_cols), results;
    struct mat in = has_dispatch(m) ? experts_record_input(p, b, side.in.m) : h;
    struct listed dy[2];
    struct leaves leaves[2] = { x->of_up, x->of_up };
    int n_in = act_inputs(x->act), first = first_input(x), k = b->routing.k, rc;
    int64_t columns = x->up_cols / n_in;

    for (int i = 0; i < n_in; i++)
        dy[i] = (struct listed){ mat_cols(dgu, i * columns, columns), NULL };
    KERNEL(m->dev, linear_dx_experts, grouped(b, b->sum, DT_F32, m->hidden), n_in, dy,
           expert_weights(p, s, b, first, n_in), leaves, &side.groups);
    TRY(sum_rows(p, b, adapters_experts_up(p, s, PACK_UP, branch, dy, leaves), e));
    TRY(adapters_experts_up_end(p, s, PACK_UP, branch, dy, in, e));
    round_rows(p, b);
    TRY(experts_return(p, b, ALTERED("expert_dx_unrounded"), &results, e));

    /* gradients of the matrices while the rows travel */
    for (int i = 0; i < n_in; i++)
        TRY(emit_experts(p, s, b, first + i, dy[i].m, in, e));
    TRY(experts_arrive(b, 0, e));
    if (has_dispatch(m))
        experts_place_weight_gradients(p, b);
    for (int i = b->routing.leaf; i < b->routing.leaf + b->routing.n_routed; i++) {
        struct own_rows o = experts_own_rows(p, i);
        float *to = experts_results_in(p, b, b->dx) + o.to * m->hidden;
        KERNEL(m->dev, combine_dx, rows_of(to, DT_F32, o.n, m->hidden), results,
               b->routing.place + o.from * k, k);
    }
    rc = 0;
out:
    return rc;
}

/* Round i > 0 of backward: what forward did not keep of it, again. *dx: all rows of the stream's gradient,
 * which with sp come through the same memory as the norm's output. */
static int run_again(const struct pass *p, const struct sublayer *s, struct branch_buf *branch, int round,
                     struct mat *dx, struct err *e)
{
    const struct model *m = p->m;
    struct experts_buf *b = &branch->experts;
    int64_t own = rows_own(&p->r);
    const struct panels *packs = b->packs ? b->packs : weight_pack(p, s, PACK_UP);
    struct mat h;
    int rc;

    TRY(experts_begin_round(p, b, round, e));
    TRY(rows_gather(m, &p->r, rows_of(branch->h, m->dt, own, m->hidden), &h, e));
    TRY(experts_send(p, b, h, b->arrived, e));
    if (b->packs && round == 1)
        weight_pack_now(p, s, PACK_UP, b->packs, b->pack_memory);
    TRY(experts_arrive(b, 0, e));
    run_up(p, s, branch, h, packs);
    adapters_experts_again(p, s, PACK_DOWN, branch, grouped(b, b->act, m->dt, s->experts.inter));
    rc = rows_gather(m, &p->r, rows_of(p->w->dx_body, m->dt, own, m->hidden), dx, e);
out:
    return rc;
}

/* Through the shared expert: b->shared_dx, and the gradient of its gate's logits. */
static int shared_backward(const struct pass *p, const struct sublayer *s, struct branch_buf *branch,
                           struct mat dx, struct err *e)
{
    const struct model *m = p->m;
    struct experts_buf *b = &branch->experts;
    struct mat shared = rows_of(b->shared_out, m->dt, dx.rows, m->hidden);
    struct mat d_shared = dx, d_logit = rows_of(b->d_shared_logit, m->dt, dx.rows, 1), own;
    int rc;

    if (has_scale(s)) {
        d_shared = rows_of(b->d_shared, m->dt, dx.rows, m->hidden);
        KERNEL(m->dev, gate_dx, d_logit, d_shared, dx, shared, b->shared_logit);
    }
    TRY(mlp_backward(p, s, &s->experts.shared, &b->shared, branch, d_shared, e));
    TRY(rows_sum(m, &p->r, adapters_dz_floats(p, s, 1u << PACK_SHARED), &own, e));
    TRY(adapters_dx(p, s, 1u << PACK_SHARED, p->w->input, adapters_dz_place(p, s, 0), own, e));
    dev_copy(m->dev, b->shared_dx, own.p, (size_t)(own.rows * m->hidden) * sizeof(float));
    rc = 0;
out:
    return rc;
}

/* Backward of rows that travel, round by round: b->d_slot of all rows, b->dx; and of the shared expert, while
 * the first round's gradients travel. dx: all rows of the stream's gradient. */
static int backward_rounds(const struct pass *p, const struct sublayer *s, struct branch_buf *branch,
                           struct mat dx, struct err *e)
{
    struct experts_buf *b = &branch->experts;
    int rc;

    for (int i = 0; i < experts_rounds(b); i++) {
        if (i > 0)
            TRY(run_again(p, s, branch, i, &dx, e));
        TRY(experts_send(p, b, dx, b->d_arrived, e));
        if (i == 0 && has_shared(s))
            TRY(shared_backward(p, s, branch, dx, e));
        TRY(experts_arrive(b, 0, e));
        TRY(through_down(p, s, branch, dx, e));
        TRY(through_up(p, s, branch, dx, e));
    }
    TRY(experts_gather_weight_gradients(p, b, e));
    rc = experts_gather_results(p, b, b->dx, e);
out:
    return rc < 0 ? experts_arrive(b, rc, e) : rc;
}

/* b->dx += x, own rows. */
static void add_dx(const struct pass *p, struct experts_buf *b, float *x)
{
    int64_t own = rows_own(&p->r), hidden = p->m->hidden;
    KERNEL(p->m->dev, add_to, rows_of(b->dx, DT_F32, own, hidden), rows_of(x, DT_F32, own, hidden));
}

/* b->dx += d_logits [rows][n] (dt) times a small matrix [n][hidden] that every rank has, own rows. */
static void add_small_dx(const struct pass *p, struct experts_buf *b, struct mat d_logits, int part)
{
    const struct model *m = p->m;
    char *none = NULL;
    struct mat w = weight_rows(p, part, 0, d_logits.cols, &none);
    struct leaves one = { 1, { d_logits.cols } };
    int64_t n = p->r.own_len;

    for (int i = 0; i < p->r.n_seq; i++) {
        struct mat dy = mat_rows(d_logits, i * p->r.len + rows_first(m, &p->r), n);
        KERNEL(m->dev, linear_dx, rows_of(b->part + i * n * m->hidden, DT_F32, n, m->hidden), 1, &dy, &w,
               &one);
    }
    add_dx(p, b, b->part);
}

/* count[leaves][n_experts] becomes [sequences][n_experts], in place. Returns the number of sequences. */
static int64_t join_leaves(const struct pass *p, int64_t n_experts, int32_t *count)
{
    int64_t n_seq = p->r.n_seq / p->r.leaves;
    for (int64_t s = 0; s < n_seq; s++)
        for (int64_t x = 0; x < n_experts; x++) {
            int32_t sum = 0;
            for (int64_t leaf = 0; leaf < p->r.leaves; leaf++)
                sum += count[(s * p->r.leaves + leaf) * n_experts + x];
            count[s * n_experts + x] = sum;
        }
    return n_seq;
}

/* n counts of the leaves of this rank become those of whole sequences. Altered: they stay. Collective over
 * cp. */
static int count_over_cp(const struct pass *p, struct experts_buf *b, int64_t n, struct err *e)
{
    struct comm *cp = p->m->cp;
    int rc;

    if (!cp || !p->m->losses.sequence || ALTERED("balance_leaves"))
        return 0;
    for (int64_t i = 0; i < n; i++)
        b->count_sum[i] = b->count_host[i];
    rc = comm_all_reduce_i64(cp, b->count_sum, n, e);
    for (int64_t i = 0; i < n; i++)
        b->count_host[i] = (int32_t)b->count_sum[i];
    return rc;
}

/* Counts of every sequence, for the router's losses and the layer's load. Collective over cp. */
static int count_choices(const struct pass *p, const struct sublayer *s, struct experts_buf *b,
                         struct balance *balance, struct err *e)
{
    const struct model *m = p->m;
    int64_t n_experts = s->experts.router.n_experts, n = p->r.n_seq * n_experts;
    int64_t *load = m->loads + s->layer * n_experts;
    int rc;

    if (m->rounds[s->layer] < (float)experts_rounds(b))
        m->rounds[s->layer] = (float)experts_rounds(b);
    routing_count(&b->routing, b->count_host);
    for (int64_t i = 0; i < n; i++)
        load[i % n_experts] += b->count_host[i];
    n = join_leaves(p, n_experts, b->count_host) * n_experts;
    if (!m->losses.counts && (rc = count_over_cp(p, b, n, e)) < 0)
        return rc;
    if (ALTERED("balance_batch"))
        for (int64_t i = n_experts; i < n; i++)
            b->count_host[i] += b->count_host[i - n_experts];
    dev_write(m->dev, b->count, b->count_host, (size_t)n * sizeof *b->count);
    *balance = (struct balance){ m->losses.sequence, m->losses.z, b->count,
                                 seqs_of((int)(n / n_experts), p->r.len * p->r.leaves, m->grain) };
    if (!m->losses.counts)
        return 0;
    balance->count = m->losses.counts + s->layer * n_experts;
    balance->s = (struct seqs){ 0 };
    if (ALTERED("balance_now")) { /* the counts of this step so far */
        for (int64_t x = 0; x < n_experts; x++)
            b->count_host[x] = (int32_t)load[x];
        dev_write(m->dev, b->count, b->count_host, (size_t)n_experts * sizeof *b->count);
        balance->count = b->count;
    }
    return 0;
}

static int backward(const struct pass *p, const struct sublayer *s, struct branch_buf *branch, struct err *e)
{
    struct model *m = p->m;
    const struct expert_router router = router_now(p, s);
    struct experts_buf *b = &branch->experts;
    int64_t rows = rows_all(&p->r);
    struct mat d_logits = rows_of(b->d_logits, m->dt, rows, router.n_experts);
    struct mat logits = rows_of(b->logits, DT_F32, rows, router.n_experts);
    struct mat d_scale = rows_of(b->d_shared_logit, m->dt, rows, 1), dx, h;
    struct balance balance;
    int rc;

    TRY(walk_dx(p, &dx, e));
    if (has_dispatch(m))
        TRY(backward_rounds(p, s, branch, dx, e));
    else
        TRY(through_down(p, s, branch, dx, e));
    TRY(count_choices(p, s, b, &balance, e));
    KERNEL(m->dev, route_dx, &router, d_logits, logits, b->expert, b->weight, b->d_slot,
           m->losses.sequence != 0 || m->losses.z != 0 ? &balance : NULL);
    if (has_shared(s) && !has_dispatch(m))
        TRY(shared_backward(p, s, branch, dx, e));

    /* the parts of dx, in the contract's order: experts, shared expert, its gate, router */
    TRY(walk_input(p, branch, &h, e));
    if (!has_dispatch(m))
        TRY(through_up(p, s, branch, h, e));
    if (ALTERED("expert_dx_router_first"))
        add_small_dx(p, b, d_logits, s->part[ROUTER]);
    if (has_shared(s))
        add_dx(p, b, b->shared_dx);
    if (has_scale(s)) {
        TRY(walk_product(p, s, SHARED_SCALE, NO_BIAS_1, d_scale, h, e));
        add_small_dx(p, b, d_scale, s->part[SHARED_SCALE]);
    }
    TRY(walk_product(p, s, ROUTER, ROUTER_BIAS, d_logits, h, e));
    if (!ALTERED("expert_dx_router_first"))
        add_small_dx(p, b, d_logits, s->part[ROUTER]);
    dev_copy(m->dev, m->sum_rows, b->dx, (size_t)(rows_own(&p->r) * m->hidden) * sizeof(float));
    rc = 0;
out:
    return rc;
}

const struct sublayer_kind sublayer_experts = {
    .name = "experts",
    .slot = slots,
    .n_slots = SLOTS,
    .out_bias = -1,
    .out_pack = -1,
    .complete = 1,
    .shape = shape,
    .carve = experts_carve,
    .forward = forward,
    .backward = backward,
    .recompute = activate,
    .weight_gradient = weight_gradient,
    .deferred_bytes = experts_deferred_bytes,
    .deferred_records = experts_deferred_records,
    .traffic = experts_traffic,
    .flops = experts_flops,
};
