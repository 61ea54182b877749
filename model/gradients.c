/* gradients.c - gradients of weights, from the records that bodies and the walker emit: added to the trees
 * of sums at once, or later (deferred_grads.c). See units.h.
 *
 * Every matrix's gradient goes to the tree of its unit, one leaf a sequence, or a leaf of it (cp_grain); the
 * tied head has a tree of its own, unit n_units, laid out as unit 0. */
#include "base/alter.h"
#include "model/deferred_grads.h"
#include "model/units.h"

struct tree_acc gradient_sums_of(const struct pass *p, const struct model *of, int unit, int part)
{
    const struct params_local *l = &of->local;
    int vector = unit == l->n_units ? l->n_trained : l->part[part].vector;
    int of_experts = vector >= l->n_units && vector < l->n_trained;
    int fold = of_experts ? p->g->fold : 1, cp = of_experts ? l->layout.cp : 1;
    int inner = p->g->inner * ORDER("cp_experts_inside", cp, 1);
    struct tree_acc acc = { .n = p->g->n * fold,
                            .next = p->g->next * fold,
                            .inner = ORDER("cp_leaves_inside", inner, 0) };
    for (int j = 0; j < p->g->n_levels; j++)
        acc.level[j] = p->g->level(p->g, vector, j) + l->part[part].offset;
    return acc;
}

struct tree_acc gradient_sums(const struct pass *p, int unit, int part)
{
    return gradient_sums_of(p, p->m, unit, part);
}

/* The gradient of a bias: plain sums of dy over tokens, in `grain` blocks of every sequence. */
static void bias_gradient(const struct pass *p, int unit, int part, struct mat dy, int grain)
{
    struct tree_acc acc = gradient_sums(p, unit, part);
    KERNEL(p->m->dev, bias_dw, &acc, dy, p->m->dt, seqs_of(p->r.n_seq, p->r.len, grain));
}

static int product_gradient(const struct pass *p, const struct gradient *g, struct err *e)
{
    const struct model *m = g->adapter ? &g->adapter->m : p->m;
    int part = g->part[0];
    struct tree_acc acc = gradient_sums_of(p, m, g->unit, part);
    int64_t ld = m->local.part[part].box.extent[1];

    (void)e;
    if (m->table.p[m->local.part[part].param].transposed)
        KERNEL(m->dev, linear_dw, &acc, ld, g->x, g->dy, p->r.n_seq, p->r.len);
    else
        KERNEL(m->dev, linear_dw, &acc, ld, g->dy, g->x, p->r.n_seq, p->r.len);
    if (g->part[1] >= 0)
        bias_gradient(p, g->unit, g->part[1], g->dy, ORDER("bias_blocks", m->grain, 1));
    return 0;
}

/* ---- norms ---- */
/* Altered sp_leaves: two sequences are added before the sum over tp. */
static void join_two_leaves(float *leaf, int64_t width)
{
    for (int64_t i = 0; i < width; i++) {
        leaf[i] += leaf[width + i];
        leaf[width + i] = 0;
    }
}

/* One sequence's own rows: this rank's node of the sequence's leaf, at `leaf` [weight | bias]. */
static void norm_leaf(const struct pass *p, const struct gradient *g, int seq, float *leaf, int grain)
{
    const struct model *m = p->m;
    int64_t own = p->r.own_len, first = seq * own;
    struct mat dy = mat_rows(g->dy, first, own), x = mat_rows(g->x, first, own);
    struct tree_acc weight = { .n = 1, .level = { leaf } }, bias = { .n = 1, .level = { leaf + m->hidden } };
    const float *roots = g->stat + first, *means = g->stat + rows_own(&p->r) + first;

    if (g->norm.kind == NORM_LAYER) {
        KERNEL(m->dev, layer_norm_dw, &weight, dy, x, means, roots, seqs_of(1, own, grain));
        KERNEL(m->dev, bias_dw, &bias, dy, m->dt, seqs_of(1, own, grain));
    } else {
        KERNEL(m->dev, rms_norm_dw, &weight, dy, x, roots, seqs_of(1, own, grain));
    }
}

/* Tokens shared among ranks: a rank's blocks of every sequence are a node of the sequence's leaf. The leaves
 * are completed over tp, then join the tree. */
static int shared_norm_gradient(const struct pass *p, const struct gradient *g, struct err *e)
{
    const struct model *m = p->m;
    float *leaf = p->w->norm_leaf;
    int64_t width = norm_width(&g->norm, m);
    int n_seq = p->r.n_seq, grain = ORDER("sp_blocks", m->grain / m->shares, 1);
    const int part[2] = { g->norm.weight, g->norm.bias };

    for (int s = 0; s < n_seq; s++)
        norm_leaf(p, g, s, leaf + s * width, grain);
    if (ALTERED("sp_leaves") && n_seq > 1)
        join_two_leaves(leaf, width);
    int rc = comm_all_reduce(m->tp, leaf, n_seq * width, e);
    for (int i = 0; rc >= 0 && i * m->hidden < width; i++) {
        struct tree_acc acc = gradient_sums(p, g->unit, part[i]);
        KERNEL(m->dev, add_leaves, &acc, leaf + i * m->hidden, width, m->hidden, n_seq);
    }
    return rc;
}

static int norm_gradient(const struct pass *p, const struct gradient *g, struct err *e)
{
    const struct model *m = p->m;
    struct seqs seqs = seqs_of(p->r.n_seq, p->r.len, ORDER("norm_blocks", m->grain, 1));

    if (rows_shared(&p->r))
        return shared_norm_gradient(p, g, e);
    struct tree_acc acc = gradient_sums(p, g->unit, g->norm.weight);
    if (g->norm.kind == NORM_LAYER)
        KERNEL(m->dev, layer_norm_dw, &acc, g->dy, g->x, g->stat + rows_own(&p->r), g->stat, seqs);
    else
        KERNEL(m->dev, rms_norm_dw, &acc, g->dy, g->x, g->stat, seqs);
    if (g->norm.bias >= 0)
        bias_gradient(p, g->unit, g->norm.bias, g->dy, ORDER("bias_blocks", m->grain, 1));
    return 0;
}

/* ---- one table ---- */
static int body_gradient(const struct pass *p, const struct gradient *g, struct err *e)
{
    return g->body->kind->weight_gradient(p, g, e);
}

static int gather_rows(const struct pass *p, const struct gradient *g, struct err *e)
{
    struct mat all;
    return rows_gather(p->m, &p->r, g->dy, &all, e);
}

static int unit_done(const struct pass *p, const struct gradient *g, struct err *e)
{
    return p->g->done(p->g, g->unit, e);
}

int gradient_make(const struct pass *p, const struct gradient *g, struct err *e)
{
    static int (*const make[])(const struct pass *, const struct gradient *, struct err *) = {
        [GRADIENT_PRODUCT] = product_gradient, [GRADIENT_NORM] = norm_gradient,
        [GRADIENT_BODY] = body_gradient,       [GRADIENT_GATHER] = gather_rows,
        [GRADIENT_DONE] = unit_done,
    };
    return make[g->kind](p, g, e);
}

/* With an adapter the base is frozen: no gradient of its own, nor a tied head that ends apart. */
static int is_frozen(const struct pass *p, const struct gradient *g)
{
    int gathers = g->kind == GRADIENT_GATHER, ends = g->kind == GRADIENT_DONE;
    return p->w->adapter && !g->adapter && !gathers && !(ends && g->unit < p->m->local.n_units);
}

int gradient_emit(const struct pass *p, struct gradient g, struct err *e)
{
    if (is_frozen(p, &g))
        return 0;
    if (!p->w->deferred)
        return gradient_make(p, &g, e);
    deferred_add(p->w->deferred, g);
    return 0;
}

struct mat gradient_input(const struct pass *p, struct mat x)
{
    const char *at = x.p;
    const struct train_work *w = p->w;
    int overwritten = at >= w->again && at < w->again + w->again_bytes;
    return w->deferred && overwritten ? deferred_copy(w->deferred, x) : x;
}
