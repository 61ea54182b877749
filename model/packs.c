/* packs.c - see packs.h. */
#include "model/packs.h"

#include <string.h>
#include "model/units.h"

int model_n_packs(const struct model *m, int unit) { return m->unit[unit].n_packs; }

/* The rows of head h that the plan takes of a matrix. */
static void take_head(struct pack_matrix *x, const struct pack_plan *plan, int rows_dim, int h)
{
    x->box.start[rows_dim] += h * plan->head_rows + plan->first_row;
    x->box.extent[rows_dim] = plan->turned ? plan->inputs : plan->outputs;
}

static struct pack_matrix matrix_of(const struct model *m, const struct sublayer *s,
                                    const struct pack_plan *plan, int slot, int copy)
{
    int part = pack_part(m, s, plan, slot, copy);
    const struct part *p = &m->local.part[part];
    const struct param *q = &m->table.p[p->param];
    int turned = plan->n_heads ? plan->turned : q->transposed;
    struct pack_matrix x = {
        .param = p->param, .box = p->box, .out_dim = q->stacked + turned, .in_dim = q->stacked + !turned
    };
    if (plan->n_heads)
        take_head(&x, plan, q->stacked, copy);
    return x;
}

void model_pack_info(const struct model *m, int unit, int pack, struct pack_info *out)
{
    const struct pack_found found = pack_find(m, unit, pack);
    const struct pack_plan *plan = found.plan;

    *out = (struct pack_info){ .tied = plan->tied,
                               .expert = plan->n_experts ? plan->first_expert + found.copy : -1,
                               .n = plan->n_slots,
                               .outputs = plan->outputs,
                               .inputs = plan->inputs,
                               .leaves = plan->leaves };
    for (int i = 0; i < plan->n_slots; i++)
        out->matrix[i] = matrix_of(m, found.s, plan, plan->slot[i], found.copy);
}
