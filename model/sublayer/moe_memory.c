/* moe_memory.c - the buffers of a mixture of experts, and what plans ask of it: copies that deferred
 * gradients keep, traffic over tp, operations. */
#include "model/sublayer/moe.h"

static void carve_shared(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                         const struct carver *from, struct experts_buf *b)
{
    size_t el = dtype_size(m->dt);
    mlp_carve(s, &s->experts.shared, m, c, from, &b->shared);
    b->shared_out = carve(from, LIFE_COSTLY, c->rows * m->hidden, el);
    if (has_scale(s))
        b->shared_logit = carve(from, LIFE_COSTLY, c->rows, sizeof(float));
    if (!c->training)
        return;
    b->shared_dx = carve(from, LIFE_SCRATCH, c->own * m->hidden, sizeof(float));
    if (has_scale(s)) {
        b->d_shared = carve(from, LIFE_SCRATCH, c->rows * m->hidden, el);
        b->d_shared_logit = carve(from, LIFE_SCRATCH, c->rows, el);
    }
}

/* The transpose of a slot's matrix of one expert; 0: the matrix is not stored transposed. */
static size_t transpose_bytes(const struct sublayer *s, const struct model *m, int slot)
{
    int part = params_part(&m->local, s->unit, s->kind->slot[slot], s->experts.first);
    return weight_is_transposed(m, part) ? (size_t)m->local.part[part].count * dtype_size(m->dt) : 0;
}

/* What the gradients of inputs need: the matrices of one product, of every expert. */
static void carve_transposed(const struct sublayer *s, const struct model *m, const struct carver *from,
                             struct experts_buf *b)
{
    size_t up = transpose_bytes(s, m, UP) * (size_t)act_inputs(s->experts.act);
    size_t down = transpose_bytes(s, m, DOWN), most = up > down ? up : down;
    b->transposed = most ? carve(from, LIFE_SCRATCH, s->experts.n_local, most) : NULL;
}

/* Sequences whose rows come to this rank's experts. */
static int64_t leaves_of_experts(const struct model *m, const struct call_shape *c)
{
    return layout_fold(&m->local.layout) * c->n_seq;
}

static void carve_backward(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                           const struct carver *from, struct experts_buf *b)
{
    const struct experts *x = &s->experts;
    int64_t n = b->capacity;
    size_t el = dtype_size(m->dt);

    b->count_host = carve(from, LIFE_HOST, c->n_seq * x->router.n_experts, sizeof *b->count_host);
    b->count = carve(from, LIFE_SCRATCH, c->n_seq * x->router.n_experts, sizeof *b->count);
    b->joined_end = carve(from, LIFE_HOST, x->n_local * leaves_of_experts(m, c), sizeof *b->joined_end);
    b->d_act = carve(from, LIFE_SCRATCH, n * x->inter, sizeof(float));
    b->dgu = carve(from, LIFE_SCRATCH, n * x->up_cols, el);
    b->d_row = carve(from, LIFE_COMM, n, sizeof(float));
    b->d_slot = carve(from, LIFE_COMM, c->rows * x->router.k, sizeof(float));
    b->d_logits = carve(from, LIFE_SCRATCH, c->rows * x->router.n_experts, el);
    b->dx = carve(from, LIFE_SCRATCH, c->own * m->hidden, sizeof(float));
    b->part = carve(from, LIFE_SCRATCH, c->own * m->hidden, sizeof(float));
    carve_transposed(s, m, from, b);
    b->bias_leaf = NULL;
    if (x->has_bias) {
        int64_t widest = x->up_cols > m->hidden ? x->up_cols : m->hidden;
        int64_t leaves = x->n_local * leaves_of_experts(m, c);
        b->bias_leaf = carve(from, LIFE_SCRATCH, leaves * widest, sizeof(float));
    }
    if (!has_dispatch(m))
        return;
    b->d_moved = carve(from, LIFE_COMM, n, sizeof(float));
    b->d_arrived = carve(from, LIFE_SCRATCH, n * m->hidden, el);
}

/* The most rows that can come to this rank: every token of the expert group chooses experts of this rank
 * alone. */
static int64_t capacity_of(const struct sublayer *s, const struct model *m, const struct call_shape *c)
{
    int k = s->experts.router.k, n_local = s->experts.n_local;
    return layout_fold(&m->local.layout) * c->rows * (k < n_local ? k : n_local);
}

static void carve_dispatch(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                           const struct carver *from, struct experts_buf *b)
{
    const struct layout *l = &m->local.layout;
    size_t el = dtype_size(m->dt);

    b->arrivals = (struct arrivals){ .ep = l->ep,
                                     .tp = l->tp * l->cp,
                                     .rank = m->local.at.ep,
                                     .n_experts = s->experts.router.n_experts,
                                     .n_seq = c->n_seq,
                                     .parts = s->experts.has_bias ? m->grain / (l->tp * l->cp) : 1,
                                     .capacity = b->capacity };
    arrivals_carve(&b->arrivals, from->of[LIFE_HOST]);
    b->spread = carve(from, LIFE_HOST, c->rows, sizeof *b->spread);
    b->home = carve(from, LIFE_COMM, c->rows * s->experts.router.k * m->hidden, el);
    b->arrived = carve(from, LIFE_COSTLY, b->capacity * m->hidden, el);
    b->arrived_weight = carve(from, LIFE_COSTLY, b->capacity, sizeof(float));
    b->moved = carve(from, LIFE_COMM, b->capacity * m->hidden, el);
    b->home_out = carve(from, LIFE_COMM, c->rows * m->hidden, sizeof(float));
    b->home_weight = carve(from, LIFE_COMM, c->rows * s->experts.router.k, sizeof(float));
}

void experts_carve(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                   const struct carver *from, struct branch_buf *branch)
{
    const struct experts *x = &s->experts;
    struct experts_buf *b = &branch->experts;
    int64_t n_slots = c->rows * x->router.k;
    int all = has_dispatch(m); /* the lists are of home rows, for all experts */
    size_t el = dtype_size(m->dt);

    b->capacity = capacity_of(s, m, c);
    b->routing = (struct routing){ .n_experts = x->router.n_experts,
                                   .k = x->router.k,
                                   .first = all ? 0 : x->first,
                                   .n_local = all ? x->router.n_experts : x->n_local,
                                   .n_leaves = c->n_seq,
                                   .grain = x->has_bias ? m->grain : 0,
                                   .rows = c->rows,
                                   .leaf_rows = c->rows / c->n_seq };
    routing_carve(&b->routing, from->of[LIFE_HOST]);
    b->logits = carve(from, LIFE_COSTLY, c->rows * x->router.n_experts, sizeof(float));
    b->expert = carve(from, LIFE_COSTLY, n_slots, sizeof *b->expert);
    b->weight = carve(from, LIFE_COSTLY, n_slots, sizeof(float));
    b->gu = carve(from, LIFE_COSTLY, b->capacity * x->up_cols, sizeof(float));
    b->act = carve(from, LIFE_CHEAP, b->capacity * x->inter, el);
    b->sum = carve(from, LIFE_COMM, b->capacity * m->hidden, sizeof(float));
    b->row = m->dt == DT_F32 ? b->sum : carve(from, LIFE_SCRATCH, b->capacity * m->hidden, el);
    if (has_dispatch(m))
        carve_dispatch(s, m, c, from, b);
    if (has_shared(s))
        carve_shared(s, m, c, from, b);
    if (c->training)
        carve_backward(s, m, c, from, b);
}

/* ---- plans ---- */

/* Copies of dgu and of the scaled gradient of outputs; of act, where layers share its buffer; of the small
 * products' gradients. */
size_t experts_deferred_bytes(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                              enum recompute recompute)
{
    const struct experts *x = &s->experts;
    size_t el = dtype_size(m->dt);
    int64_t columns = x->up_cols + m->hidden + (recompute != RECOMPUTE_NONE ? x->inter : 0);
    columns += has_dispatch(m) && recompute == RECOMPUTE_FULL ? m->hidden : 0;
    size_t sum = (size_t)(capacity_of(s, m, c) * columns) * el + 7 * 64;

    sum += (size_t)(c->rows * (x->router.n_experts + 1)) * el;
    if (has_shared(s))
        sum += mlp_deferred_bytes(&x->shared, m, c, recompute) + (size_t)(c->rows * m->hidden) * el;
    return sum;
}

/* With ep 1 each of a token's experts is summed over tp by itself. */
void experts_traffic(const struct sublayer *s, const struct model *m, struct unit_traffic *t)
{
    int k = s->experts.router.k, shared = has_shared(s), scattered = m->shares == 1;
    int sums = has_dispatch(m) ? scattered : k;

    t->whole_forward += sums + shared;
    t->whole_backward += sums;
    t->sums_backward += shared;
    t->row_floats += k;
    t->gathers_backward += shared;
    t->gathers_deferred += shared;
    t->dispatched += has_dispatch(m) ? k : 0;
}

double experts_flops(const struct sublayer *s, const struct model *m, double keys)
{
    const struct experts *x = &s->experts;
    double columns = (double)(x->router.k * (x->up_cols + x->inter) + x->router.n_experts);
    (void)keys;
    columns += (double)(x->shared.up_cols + x->shared.inter + has_scale(s));
    return 2.0 * (double)m->hidden * columns;
}
