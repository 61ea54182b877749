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

/* Sequences, or leaves of them, whose rows come to this rank's experts. */
static int leaves_of_experts(const struct model *m, const struct call_shape *c)
{
    return layout_expert_sources(&m->local.layout) * c->n_seq;
}

/* The travel of rows, without its lists. */
static struct arrivals arrivals_of(const struct sublayer *s, const struct model *m,
                                   const struct call_shape *c)
{
    const struct layout *l = &m->local.layout;
    return (struct arrivals){ .ep = l->ep,
                              .tp = l->tp,
                              .rank = m->local.at.ep,
                              .n_experts = s->experts.router.n_experts,
                              .k = s->experts.router.k,
                              .n_seq = c->n_seq,
                              .leaf_rows = (c->most_rows ? c->most_rows : c->rows) / c->n_seq,
                              .buffer = c->expert_buffer,
                              .joined = m->expert_leaf > 1 ? m->expert_leaf : 1,
                              .parts = s->experts.has_bias ? m->grain / l->tp : 1 };
}

/* The most rows that can come to this rank in a call; in a round. With ep 1 every token's choices are
 * computed here, as far as they are this rank's. */
static int64_t worst_of(const struct sublayer *s, const struct model *m, const struct call_shape *c)
{
    struct arrivals a = arrivals_of(s, m, c);
    return has_dispatch(m) ? arrivals_worst(&a, a.rank) : c->rows * s->experts.router.k;
}

static int64_t capacity_of(const struct sublayer *s, const struct model *m, const struct call_shape *c)
{
    struct arrivals a = arrivals_of(s, m, c);
    return has_dispatch(m) ? arrivals_room(&a, a.rank) : worst_of(s, m, c);
}

int64_t experts_rows(const struct sublayer *s, const struct model *m, const struct call_shape *c)
{
    return worst_of(s, m, c);
}

/* Can one rank of the group have too little room for a call? All ranks go the same rounds. */
static int has_rounds(const struct sublayer *s, const struct model *m, const struct call_shape *c)
{
    struct arrivals a = arrivals_of(s, m, c);
    int has = 0;
    for (int rank = 0; has_dispatch(m) && rank < a.ep; rank++)
        has |= arrivals_room(&a, rank) < arrivals_worst(&a, rank);
    return has;
}

int experts_most_rounds(const struct sublayer *s, const struct model *m, const struct call_shape *c)
{
    return has_rounds(s, m, c) ? leaves_of_experts(m, c) : 1;
}

/* Elements of the vector of a unit's experts that are trained. */
static int64_t trained_elements(const struct sublayer *s, const struct model *m, const struct call_shape *c)
{
    const struct params_local *l = c->adapter ? &c->adapter->m.local : &m->local;
    int vector = l->experts_of[s->unit];
    return vector < 0 ? 0 : l->unit[vector].flat;
}

/* What the backward of several rounds needs besides: levels of partial sums between rounds of one leaf each,
 * and packs. */
static void carve_rounds(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                         const struct carver *from, struct experts_buf *b)
{
    const struct params_local *l = &m->local;
    int fold = layout_fold(&l->layout), joined = m->expert_leaf > 1 ? m->expert_leaf : 1;
    int inner = c->inner * l->layout.cp; /* leaves of a sequence that meet here */

    b->n_partial = tree_levels(c->leaves * fold, joined) - tree_levels(c->leaves, c->n_seq / c->inner);
    b->n_partial += inner > 1 ? tree_depth(inner) : 0;
    b->n_partial = b->n_partial > 0 ? b->n_partial : 0;
    b->partial = carve(from, LIFE_SCRATCH, b->n_partial * trained_elements(s, m, c), sizeof(float));
    if (l->layout.zero < 3 && !c->adapter) /* frozen weights may be sliced at every stage */
        return;
    b->packs = carve(from, LIFE_HOST, s->experts.n_local, sizeof *b->packs);
    b->pack_memory = carve(from, LIFE_SCRATCH, 1, weight_pack_bytes(m, s, PACK_UP));
}

static void carve_backward(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                           const struct carver *from, struct experts_buf *b)
{
    const struct experts *x = &s->experts;
    int64_t n = b->capacity;
    size_t el = dtype_size(m->dt);

    b->count_host = carve(from, LIFE_HOST, c->n_seq * x->router.n_experts, sizeof *b->count_host);
    b->count_sum = carve(from, LIFE_HOST, m->local.layout.cp > 1 ? c->n_seq * x->router.n_experts : 0,
                         sizeof *b->count_sum);
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
    if (has_rounds(s, m, c))
        carve_rounds(s, m, c, from, b);
}

/* The most home rows of a rank: its blocks of every sequence (experts_share), the same number on all. */
static int64_t home_rows(const struct model *m, const struct call_shape *c)
{
    int64_t len = c->rows / c->n_seq, share = block_size(len, m->grain) * (m->grain / m->local.layout.tp);
    return c->n_seq * (share < len ? share : len);
}

/* What travels with a server's rows: which adapter each has. home: home rows times experts a token. */
static void carve_adapters_dispatch(const struct call_shape *c, int64_t home, const struct carver *from,
                                    struct experts_buf *b)
{
    struct adapter_lists *l = &b->low;
    l->number = carve(from, LIFE_SCRATCH, c->rows, sizeof *l->number);
    l->home = carve(from, LIFE_COMM, home, sizeof *l->home);
    l->arrived = carve(from, LIFE_COMM, b->capacity, sizeof *l->arrived);
    l->number_host = carve(from, LIFE_HOST, c->rows, sizeof *l->number_host);
    l->arrived_host = carve(from, LIFE_HOST, b->capacity, sizeof *l->arrived_host);
}

/* rank: of adapters, 0: there are none. */
static void carve_dispatch(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                           int64_t rank, const struct carver *from, struct experts_buf *b)
{
    size_t el = dtype_size(m->dt);
    int64_t home = home_rows(m, c), n = home * s->experts.router.k;
    int gathers = m->local.layout.tp > 1 && c->own == c->rows; /* results of home rows, over tp */

    b->arrivals = arrivals_of(s, m, c);
    arrivals_carve(&b->arrivals, from->of[LIFE_HOST]);
    b->spread = carve(from, LIFE_HOST, c->rows, sizeof *b->spread);
    b->home = carve(from, LIFE_COMM, n * m->hidden, el);
    b->arrived = carve(from, LIFE_COSTLY, b->capacity * m->hidden, el);
    b->arrived_weight = carve(from, LIFE_COSTLY, b->capacity, sizeof(float));
    b->moved = carve(from, LIFE_COMM, b->capacity * m->hidden, el);
    b->home_out = carve(from, LIFE_COMM, gathers ? home * m->hidden : 0, sizeof(float));
    b->home_weight = carve(from, LIFE_COMM, n, sizeof(float));
    if (rank && !c->training)
        carve_adapters_dispatch(c, n, from, b);
}

void experts_carve(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                   const struct carver *from, struct branch_buf *branch)
{
    const struct experts *x = &s->experts;
    struct experts_buf *b = &branch->experts;
    int64_t n_slots = c->rows * x->router.k;
    int all = has_dispatch(m); /* the lists are of home rows, for all experts */
    size_t el = dtype_size(m->dt);
    int64_t rank = c->training ? (c->adapter ? c->adapter->rank : 0) : m->adapter_rank;

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
    b->sum = carve(from, LIFE_COMM, b->capacity * (m->hidden + 2 * rank), sizeof(float));
    b->row = m->dt == DT_F32 ? b->sum : carve(from, LIFE_SCRATCH, b->capacity * m->hidden, el);
    adapters_carve_experts(s, rank, from, b);
    if (has_dispatch(m))
        carve_dispatch(s, m, c, rank, from, b);
    if (has_shared(s))
        carve_shared(s, m, c, from, b);
    if (c->training)
        carve_backward(s, m, c, from, b);
}

/* ---- plans ---- */

/* Copies of dgu and of the scaled gradient of outputs; of act and the experts' inputs, where layers or rounds
 * share their buffers; of the small products' gradients; of the shared expert's input, which the record of
 * the router copies once more. Records wait with all rows of a call, however many rounds these came in. */
size_t experts_deferred_bytes(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                              enum recompute recompute)
{
    const struct experts *x = &s->experts;
    size_t el = dtype_size(m->dt);
    int rounds = has_rounds(s, m, c);
    int64_t columns = x->up_cols + m->hidden + (rounds || recompute != RECOMPUTE_NONE ? x->inter : 0);
    columns += rounds || (has_dispatch(m) && recompute == RECOMPUTE_FULL) ? m->hidden : 0;
    size_t sum = (size_t)(worst_of(s, m, c) * columns) * el;
    sum += (size_t)(3 + 5 * experts_most_rounds(s, m, c)) * 64;

    sum += (size_t)(c->rows * (x->router.n_experts + 1)) * el;
    if (has_shared(s)) {
        sum += mlp_deferred_bytes(&x->shared, m, c, recompute) + (size_t)(c->rows * m->hidden) * el;
        sum += recompute != RECOMPUTE_NONE ? (size_t)(c->own * m->hidden) * el + 64 : 0;
    }
    return sum;
}

int experts_deferred_records(const struct sublayer *s, const struct model *m, const struct call_shape *c)
{
    int matrices = (1 + act_inputs(s->experts.act)) * (c->adapter ? 2 : 1); /* A and B of each */
    return 1 + experts_most_rounds(s, m, c) * matrices;
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

struct expert_room model_expert_room(const struct model *m, const struct work_shape *s)
{
    struct train_work w = train_work_of(m, 0, s);
    struct expert_room most = { 0 };

    for (int u = 1; has_dispatch(m) && u <= m->n_layers; u++)
        for (int i = 0; i < m->unit[u].n_branches; i++) {
            const struct sublayer *body = &m->unit[u].branch[i].body;
            if (body->kind != &sublayer_experts)
                continue;
            struct arrivals a = arrivals_of(body, m, &w.shape);
            most = (struct expert_room){ arrivals_room(&a, a.rank), arrivals_even(&a, a.rank),
                                         arrivals_least(&a, a.rank), a.joined };
        }
    return most;
}
