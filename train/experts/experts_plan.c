/* experts_plan.c - see experts_plan.h. */
#include "train/experts/experts_plan.h"

#include "base/fmath.h"
#include "base/log.h"
#include "model/dispatch.h"

double experts_distinct(int n_experts, int k, double tokens)
{
    if (k >= n_experts)
        return tokens > 0 ? n_experts : 0;
    return n_experts * (1 - fm_pow(1 - (double)k / n_experts, tokens));
}

/* The first unit of this rank that has experts, and how many elements they have; 0: none. */
static double first_layer(const struct model *m, int *slices)
{
    int unit = -1;
    double n = 0;
    for (int i = 0; i < m->local.n_parts; i++) {
        const struct part *p = &m->local.part[i];
        const struct param *q = &m->table.p[p->param];
        if (q->group != GROUP_EXPERT || (unit >= 0 && q->unit != unit))
            continue;
        unit = q->unit;
        n += (double)p->count;
        *slices = m->local.unit[p->vector].n_slices;
    }
    return n;
}

void experts_plan_add(struct experts_plan *x, const struct model *m, const struct work_shape *s)
{
    const struct model_config *c = &m->table.cfg;
    const struct layout *l = &m->local.layout;
    int slices = 1, ep = l->ep > 1 ? l->ep : 1;
    double n = first_layer(m, &slices), el = (double)dtype_size(m->dt);

    if (!c->n_experts || n <= 0)
        return;
    x->n_experts = (int)c->n_experts;
    x->k = (int)c->experts_per_token;
    x->n_all = c->n_layers;
    x->n_layers = 0;
    for (int64_t i = 0; i < c->n_layers; i++)
        x->n_layers += model_has_experts(c, i);

    x->whole = ep > 1;
    x->local = dispatch_first(c->n_experts, ep, 1);
    x->weights = n * el / (l->zero == 3 ? slices : 1);
    x->optim = s->adapter ? 0 : n * (m->dt == DT_F32 ? 8 : 12) / (l->zero ? slices : 1);
    x->tokens = s->n_seq * s->seq_len * layout_fold(l);
    x->room = model_expert_room(m, s);
    x->cut = m->cp_grain > 1;
}

void experts_plan_print(const struct experts_plan *x, FILE *out)
{
    static const int64_t decoded[] = { 1, 4, 16, 64 };
    char weights[32], optim[32];
    if (!x->n_experts)
        return;

    log_bytes(weights, x->weights);
    log_bytes(optim, x->optim);
    fprintf(out,
            "experts      %d of %d a token, in %lld of %lld layers; a rank has %s%d of a layer: %s, and %s "
            "of optimizer\n",
            x->k, x->n_experts, (long long)x->n_layers, (long long)x->n_all, x->whole ? "" : "its part of ",
            x->local, weights, optim);
    fprintf(out, "distinct     experts of a layer that tokens choose together:");
    for (size_t i = 0; i < sizeof decoded / sizeof *decoded; i++)
        fprintf(out, " %.3g of %lld,", experts_distinct(x->n_experts, x->k, (double)decoded[i]),
                (long long)decoded[i]);
    fprintf(out, " %.4g of a micro-step's %lld\n", experts_distinct(x->n_experts, x->k, (double)x->tokens),
            (long long)x->tokens);
    const char *what = x->cut ? "leaf" : x->room.n_seq > 1 ? "sequences" : "sequence";
    if (x->room.rows)
        fprintf(out,
                "expert room  %lld rows a rank, layer and round; an even load: %lld, the most of %d %s: "
                "%lld\n",
                (long long)x->room.rows, (long long)x->room.even, x->room.n_seq, what,
                (long long)x->room.least);
}
