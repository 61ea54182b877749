/* moe_bias.c - biases of the experts of a mixture (moe.c): of what feeds the activation, of the output. */
#include "model/units.h"

/* The bias that goes with a matrix, of every expert of this rank. */
static const void *const *biases(const struct pass *p, const struct sublayer *s, const struct experts_buf *b,
                                 enum param_kind matrix)
{
    const struct experts *x = &s->experts;
    for (int i = 0; i < x->n_local; i++) {
        int part = params_part(&p->m->local, s->unit, param_bias(matrix), x->first + i);
        b->routing.bias[i] = weight_at(p, part);
    }
    return b->routing.bias;
}

void expert_bias_add(const struct pass *p, const struct sublayer *s, const struct experts_buf *b,
                     enum param_kind matrix, const struct expert_rows *groups, struct mat y)
{
    KERNEL(p->m->dev, add_bias_experts, y, biases(p, s, b, matrix), p->m->dt, groups);
}

void expert_bias_dot(const struct pass *p, const struct sublayer *s, const struct experts_buf *b,
                     enum param_kind matrix, const struct expert_rows *groups, struct listed dout)
{
    KERNEL(p->m->dev, dot_bias_experts, b->d_row, dout, biases(p, s, b, matrix), groups);
}

void expert_bias_gradient(const struct pass *p, const struct gradient *g, enum param_kind matrix)
{
    const struct model *m = p->m;
    const struct experts *x = &g->body->experts;
    const struct experts_buf *b = g->experts;
    int has_dispatch = m->local.layout.ep > 1;
    struct expert_rows blocks = has_dispatch ? arrivals_blocks(&b->arrivals) : routing_blocks(&b->routing);
    int leaves = blocks.n_leaves / m->grain;
    int64_t n = g->dy.cols;

    KERNEL(m->dev, bias_dw_experts, b->bias_leaf, g->dy, m->dt, &blocks, m->grain);
    for (int i = 0; i < x->n_local; i++) {
        int part = params_part(&m->local, g->unit, param_bias(matrix), x->first + i);
        struct tree_acc acc = expert_sums(p, p->m, b, g->unit, part);
        KERNEL(m->dev, add_leaves, &acc, b->bias_leaf + i * leaves * n, n, n, leaves);
    }
}
