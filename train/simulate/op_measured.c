/* op_measured.c - see op_measured.h. The order of the lists is that of model/walker.c and model/sublayer/. */
#include "train/simulate/op_measured.h"

#include <math.h>
#include "model/family.h"

static enum sim_dtype dtype_of(const struct sim_run *r) { return r->dtype == SIM_F32 ? SIM_F32 : SIM_BF16; }

/* Work of a call, in whatever unit: times of two calls of one kernel have this ratio. */
static double work_of(const struct cluster_op *o)
{
    double work = o->rows * (o->cols > 0 ? o->cols : 1);
    switch (o->name) {
    case SIM_OP_linear:
    case SIM_OP_linear_dx:
    case SIM_OP_linear_dw: return work * (o->other > 0 ? o->other : 1);
    case SIM_OP_attn:
    case SIM_OP_attn_dx: return work * (o->seq_len > 0 ? o->seq_len : 1);
    default: return work;
    }
}

/* How far a measured call is from the one that is asked for. Widths count more than rows, of sequences only
 * the length that is another, and how many took turns only between calls of one shape. */
static double distance(const struct cluster_op *o, const struct cluster_op *ask, double cores)
{
    static const double weight[] = { 1, 3, 3, 0.5, 0.01 };
    const double a[] = { o->rows, o->cols, o->other, o->seq_len, o->at_once > cores ? o->at_once : cores };
    const double b[] = { ask->rows, ask->cols, ask->other, ask->seq_len,
                         ask->at_once > cores ? ask->at_once : cores };
    double sum = 0;
    for (int i = 0; i < 5; i++)
        sum += a[i] > 0 && b[i] > 0 ? weight[i] * fabs(log(a[i] / b[i])) : 0;
    return sum;
}

static double busy_threads(const struct sim_run *r, const struct cluster *c)
{
    return (r->threads > 0 ? r->threads : 1) * op_at_once(r, c);
}

double op_measured_call(const struct sim_run *r, const struct cluster *c, const struct cluster_op *ask)
{
    const struct cluster_op *best = NULL;
    double least = 0, cores = c->cores > 0 ? c->cores : 1;
    struct cluster_op like = *ask;
    like.at_once = busy_threads(r, c);
    for (int i = 0; i < c->n_ops; i++) {
        if (c->op[i].name != ask->name || c->op[i].dtype != ask->dtype)
            continue;
        double far = distance(&c->op[i], &like, cores);
        if (!best || far < least)
            best = &c->op[i], least = far;
    }
    if (!best)
        return 0;

    double threads = r->threads > 0 ? r->threads : 1, one = best->seconds;
    threads = threads < cores ? threads : cores;
    if (threads == 1 && cores > 1 && best->alone_s > 0 && busy_threads(r, c) <= 1)
        one = best->alone_s;
    /* between one thread and all of them: what threads lose grows with their number */
    double all = best->all_s > 0 ? best->all_s : one / cores;
    double lost = cores > 1 ? (all * cores / one - 1) * (threads - 1) / (cores - 1) : 0;
    return one / threads * (1 + lost) * work_of(ask) / work_of(best) * c->measured;
}

/* ---- lists ---- */
struct list {
    const struct sim_run *r;
    const struct cluster *c;
    double tokens, own; /* rows of products; of norms and residuals */
    int all_there;
};

static void add(struct list *l, struct op_times *to, enum op_kind kind, enum sim_op name, double rows,
                double cols, double other)
{
    struct cluster_op ask = { .name = name,
                              .dtype = dtype_of(l->r),
                              .rows = rows,
                              .cols = cols,
                              .other = other,
                              .seq_len = (double)l->r->seq_len };
    double s = op_measured_call(l->r, l->c, &ask), speed = op_speed(l->r, l->c);
    /* what a trace lacks */
    if (s <= 0 && kind == OP_PRODUCTS)
        s = op_product_s(l->c, ask.dtype, 1, rows, cols, other) / speed;
    else if (s <= 0 && kind == OP_ROWS)
        s = 4 * rows * (cols + other > 0 ? cols + other : 1) / l->c->hbm_bytes_per_s / speed;
    l->all_there &= s > 0;
    to->s[kind] += s;
}

static void norm(struct list *l, struct part_times *t)
{
    double h = (double)l->r->cfg->hidden;
    add(l, &t->forward, OP_ROWS, SIM_OP_rms_norm, l->own, h, 0);
    add(l, &t->backward_input, OP_ROWS, SIM_OP_rms_norm_dx, l->own, h, h);
    add(l, &t->backward_weight, OP_ROWS, SIM_OP_rms_norm_dw, l->own, h, h);
}

static void residual(struct list *l, struct part_times *t)
{
    double h = (double)l->r->cfg->hidden;
    add(l, &t->forward, OP_ROWS, SIM_OP_copy, l->own, h, 0);
    add(l, &t->forward, OP_ROWS, SIM_OP_add_rounded, l->own, h, h);
}

/* n outputs in `parts` matrices, of which the last `parts - 1` have `small` outputs each. */
static void product(struct list *l, struct part_times *t, double n, double k, int parts, double small)
{
    add(l, &t->forward, OP_PRODUCTS, SIM_OP_linear, l->tokens, n, k);
    add(l, &t->backward_input, OP_PRODUCTS, SIM_OP_linear_dx, l->tokens, k, n);
    for (int i = 0; i < parts && !l->r->frozen; i++)
        add(l, &t->backward_weight, OP_PRODUCTS, SIM_OP_linear_dw, l->tokens,
            i ? small : n - (parts - 1) * small, k);
}

static void layer(struct list *l, struct part_times *t)
{
    const struct model_config *m = l->r->cfg;
    double tp = l->r->tp, h = (double)m->hidden, q = (double)(m->n_heads * m->head_dim) / tp;
    double heads = (double)m->n_kv / tp, kv = (heads < 1 ? 1 : heads) * (double)m->head_dim;
    double inter = (double)m->inter / tp;
    norm(l, t);
    product(l, t, q + 2 * kv, h, 3, kv);
    add(l, &t->forward, OP_ROWS, SIM_OP_rope_store, l->tokens, q, q + 2 * kv);
    add(l, &t->forward, OP_ATTENTION, SIM_OP_attn, l->tokens, q, 0);
    add(l, &t->backward_input, OP_ATTENTION, SIM_OP_attn_dx, l->tokens, q, kv);
    add(l, &t->backward_input, OP_ROWS, SIM_OP_rope_dx, l->tokens, q + 2 * kv, q);
    if (l->r->dtype != SIM_F32)
        add(l, &t->backward_input, OP_ROWS, SIM_OP_round_to, l->tokens * q, 0, 0);
    product(l, t, h, q, 1, 0);
    residual(l, t);
    norm(l, t);
    product(l, t, 2 * inter, h, 2, inter);
    add(l, &t->forward, OP_ROWS, SIM_OP_swiglu, l->tokens, inter, 2 * inter);
    add(l, &t->backward_input, OP_ROWS, SIM_OP_swiglu_dx, l->tokens, 2 * inter, 2 * inter);
    product(l, t, h, inter, 1, 0);
    residual(l, t);
}

static void head(struct list *l, struct part_times *t)
{
    double h = (double)l->r->cfg->hidden, n = (double)l->r->cfg->vocab / l->r->tp;
    norm(l, t);
    product(l, t, n, h, 1, 0);
    add(l, &t->forward, OP_ROWS, SIM_OP_ce_max, l->tokens, n, 0);
    add(l, &t->forward, OP_ROWS, SIM_OP_ce_sum, l->tokens, n, 0);
    add(l, &t->backward_input, OP_ROWS, SIM_OP_ce_dx, l->tokens, n, n);
}

static void embedding(struct list *l, struct part_times *t)
{
    double h = (double)l->r->cfg->hidden;
    add(l, &t->forward, OP_ROWS, SIM_OP_embed, l->tokens, h, h);
    add(l, &t->backward_weight, OP_ROWS, SIM_OP_embed_dw, l->tokens, h, 0);
}

static int is_known(const struct model_config *m)
{
    static const enum feature other[] = { F_LAYER_NORM, F_POSITIONS, F_POST_NORM, F_PARALLEL,
                                          F_LATENT,     F_QK_NORM,   F_MLP_BIAS };
    int known = !m->n_experts && family_has(m, F_GATE);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        known &= !family_has(m, other[i]);
    return known;
}

void op_measure(struct part_times *t, const struct sim_run *r, const struct cluster *c, enum op_place part)
{
    static void (*const lists[])(struct list *, struct part_times *) = {
        [OP_LAYER] = layer, [OP_EMBEDDING] = embedding, [OP_HEAD] = head
    };
    double tokens = (double)(r->micro * r->seq_len) / r->cp;
    struct list l = { r, c, tokens, r->sp ? tokens / r->tp : tokens, 1 };
    struct part_times sum = { 0 };
    struct op_times *to[] = { &t->forward, &t->backward_input, &t->backward_weight };
    const struct op_times *from[] = { &sum.forward, &sum.backward_input, &sum.backward_weight };

    if (!c->n_ops || !is_known(r->cfg) || r->engine.ring || r->engine.unfused)
        return;
    lists[part](&l, &sum);
    for (int i = 0; i < 3 && l.all_there; i++)
        for (int k = OP_PRODUCTS; k <= OP_ROWS; k++)
            to[i]->s[k] = from[i]->s[k];
}

static double elements(const struct sim_run *r, const struct cluster *c, enum sim_op name, double n)
{
    struct cluster_op ask = { .name = name, .dtype = dtype_of(r), .rows = n };
    return n > 0 ? op_measured_call(r, c, &ask) : 0;
}

double op_measured_pack(const struct sim_run *r, const struct cluster *c, double n)
{
    double h = (double)r->cfg->hidden;
    struct cluster_op ask = { .name = SIM_OP_linear_pack, .dtype = dtype_of(r), .rows = n / h, .cols = h };
    return n > 0 ? op_measured_call(r, c, &ask) : 0;
}

double op_measured_update(const struct sim_run *r, const struct cluster *c, double own, double counted,
                          double packed)
{
    double s = elements(r, c, SIM_OP_adamw, own);
    return s > 0 ? s + elements(r, c, SIM_OP_sum_squares, counted) + op_measured_pack(r, c, packed) : 0;
}
