/* adapter.c - an adapter as a model of its own: its tables, its packs, and to which products of the base
 * they belong. See adapter.h. */
#include "model/adapter.h"

#include <stdlib.h>
#include <string.h>
#include "base/alter.h"
#include "model/units.h"

/* Slot k of an expert's pack is kind k. */
#define KINDS_8(k) (k), (k) + 1, (k) + 2, (k) + 3, (k) + 4, (k) + 5, (k) + 6, (k) + 7
static const enum param_kind kinds[] = { KINDS_8(0),  KINDS_8(8),  KINDS_8(16), KINDS_8(24),
                                         KINDS_8(32), KINDS_8(40), KINDS_8(48), KINDS_8(56),
                                         KINDS_8(64), KINDS_8(72), KINDS_8(80), KINDS_8(88) };
_Static_assert(sizeof kinds / sizeof *kinds >= P_KINDS_ALL, "kinds has every kind");
/* Its packs are those of A and B; it computes nothing by itself. */
static const struct sublayer_kind factors = {
    .name = "adapter", .slot = kinds, .out_bias = -1, .out_pack = -1
};

/* What stands beside the table while the units are made. */
struct making {
    struct adapter *a;
    const int *a_of;
    const float *scale;
};

/* Outputs of a part of the base. */
static int64_t outputs_of(const struct model *base, int part)
{
    const struct part *p = &base->local.part[part];
    const struct param *q = &base->table.p[p->param];
    return p->box.extent[q->stacked + (q->transposed ? 1 : 0)];
}

/* The base's part of a slot of a pack; of experts the first local one's. */
static int base_part(const struct model *base, const struct sublayer *s, const struct pack_plan *plan,
                     int slot)
{
    if (!plan->n_experts)
        return s->part[plan->slot[slot]];
    return params_part(&base->local, s->unit, s->kind->slot[plan->slot[slot]], plan->first_expert);
}

/* One matrix more: its B is a pack of its own, its A joins the pack of the As unless the tensor has one
 * there. */
static void add_output(const struct making *x, const struct sublayer *base, int pack, int slot,
                       int64_t y_begin, struct adapter_product *product)
{
    const struct model *m = &x->a->m;
    const struct pack_plan *plan = &base->pack[pack];
    const struct params_local *l = &x->a->base->local;
    enum param_kind kind = l->table->p[l->part[base_part(x->a->base, base, plan, slot)].param].kind;
    int part_b = params_part(&m->local, base->unit, P_LORA_B + kind,
                             plan->n_experts ? plan->first_expert : -1);
    const struct part *b = part_b < 0 ? NULL : &m->local.part[part_b];
    int row_a = b ? x->a_of[b->param] : -1, n = product->n;
    struct adapter_output *out = &product->out[n];

    if (!b)
        return;
    *out = (struct adapter_output){ .slot = slot,
                                    .rank = b->box.extent[m->table.p[b->param].stacked + 1],
                                    .z_begin = product->rank,
                                    .y_begin = y_begin,
                                    .y_n = b->box.extent[m->table.p[b->param].stacked],
                                    .scale = x->scale[b->param],
                                    .part_a = m->local.part_of[row_a],
                                    .part_b = part_b,
                                    .kind_a = m->table.p[row_a].kind,
                                    .kind_b = P_LORA_B + kind };
    for (int i = 0; i < n; i++)
        if (product->out[i].part_a == out->part_a)
            out->z_begin = product->out[i].z_begin;
    if (out->z_begin == product->rank)
        product->rank += out->rank;
    product->n++;
    x->a->rank = out->rank > x->a->rank ? out->rank : x->a->rank;
}

/* Slots of experts' packs are kinds: their parts are found by kind and expert. */
static int slot_of(struct sublayer *s, const struct pack_plan *base, int part, enum param_kind kind,
                   int *n_slots)
{
    if (base->n_experts)
        return (int)kind;
    s->part[*n_slots] = part;
    return (*n_slots)++;
}

/* The packs of a product: the As, then every B. Slots of the body are numbered as they come. */
static void add_packs(struct adapter_product *product, const struct pack_plan *base, struct sublayer *s,
                      int *n_slots)
{
    struct pack_plan *as = &s->pack[s->n_packs],
                     copy = { .first_expert = base->first_expert, .n_experts = base->n_experts };

    product->a = s->n_packs++;
    *as = copy;
    as->outputs = product->rank;
    as->inputs = base->inputs;
    as->leaves = leaves_cut(base->leaves, ALTERED("adapter_z_leaves"));
    for (int i = 0; i < product->n; i++) {
        struct adapter_output *out = &product->out[i];
        if (i && out->z_begin == product->out[i - 1].z_begin)
            continue;
        as->slot[as->n_slots++] = slot_of(s, base, out->part_a, out->kind_a, n_slots);
    }
    for (int i = 0; i < product->n; i++) {
        struct adapter_output *out = &product->out[i];
        struct pack_plan *b = &s->pack[s->n_packs];
        out->b = s->n_packs++;
        *b = copy;
        b->n_slots = 1;
        b->slot[0] = slot_of(s, base, out->part_b, out->kind_b, n_slots);
        b->outputs = out->y_n;
        b->inputs = out->rank;
        b->leaves = (struct leaves){ 1, { out->rank } };
    }
}

/* The body that holds the packs for one body of the base. */
static void add_body(const struct making *x, int unit, int branch)
{
    struct adapter *a = x->a;
    const struct sublayer *base = &a->base->unit[unit].branch[branch].body;
    struct unit *u = &a->m.unit[unit];
    struct sublayer *s = &u->branch[u->n_branches++].body;
    int n_slots = 0;

    s->kind = &factors;
    s->unit = unit;
    s->layer = base->layer;
    for (int k = 0; k < base->n_packs; k++) {
        const struct pack_plan *plan = &base->pack[k];
        struct adapter_product *product = &a->unit[unit].of[branch][k];
        int64_t y = 0;
        if (plan->tied || plan->n_heads)
            continue;
        for (int i = 0; i < plan->n_slots; i++) {
            add_output(x, base, k, i, y, product);
            y += outputs_of(a->base, base_part(a->base, base, plan, i));
        }
        if (product->n)
            add_packs(product, plan, s, &n_slots);
    }
    for (int k = 0; k < s->n_packs; k++) {
        s->pack_at[k] = u->n_packs;
        u->n_packs += s->pack[k].n_experts ? s->pack[k].n_experts : 1;
    }
}

/* Pack numbers of products are those among the unit's packs from here on. */
static void number_packs(struct adapter *a, int unit)
{
    for (int b = 0; b < a->m.unit[unit].n_branches; b++)
        for (int k = 0; k < SUBLAYER_PACKS; k++) {
            struct adapter_product *product = &a->unit[unit].of[b][k];
            const int *at = a->m.unit[unit].branch[b].body.pack_at;
            product->a = at[product->a];
            for (int i = 0; i < product->n; i++)
                product->out[i].b = at[product->out[i].b];
        }
}

static int open_units(const struct making *x, struct err *e)
{
    struct adapter *a = x->a;
    int n = a->base->table.n_units;

    a->m.unit = calloc((size_t)n, sizeof *a->m.unit);
    a->unit = calloc((size_t)n, sizeof *a->unit);
    if (!a->m.unit || !a->unit)
        return err_set(e, ERR_MEMORY, "no memory for the tables of %d units of an adapter", n);
    for (int u = 0; u < n; u++) {
        for (int b = 0; b < a->base->unit[u].n_branches; b++)
            add_body(x, u, b);
        number_packs(a, u);
    }
    return 0;
}

/* What a model of parameters alone has: no rows, no positions, no buffers. */
static void as_base(struct model *m, const struct model *base)
{
    m->dev = base->dev;
    m->tp = base->tp;
    m->ep = base->ep;
    m->cp = base->cp;
    m->dt = base->dt;
    m->fast = base->fast;
    m->grain = base->grain;
    m->hidden = base->hidden;
    m->n_layers = base->n_layers;
    m->vocab = base->vocab;
    m->shares = base->shares;
    m->cp_grain = base->cp_grain;
    m->expert_leaf = base->expert_leaf;
}

int adapter_open(struct adapter *a, const struct model *base, const struct adapter_matrix *list, int n,
                 struct err *e)
{
    struct making x = { .a = a };
    struct model *m = &a->m;
    int *a_of = NULL, rc;
    float *scale = NULL;

    *a = (struct adapter){ .base = base };
    as_base(m, base);
    TRY(adapter_table_open(&m->table, base, list, n, &a_of, &scale, e));
    x.a_of = a_of;
    x.scale = scale;
    TRY(params_local_open(&m->local, &m->table, &base->local.layout, base->local.at, e));
    TRY(model_set_stages(m, &base->local.layout, base->local.at.pp, e));
    TRY(open_units(&x, e));
    rc = 0;
out:
    free(a_of);
    free(scale);
    if (rc < 0)
        adapter_close(a);
    return rc;
}

void adapter_close(struct adapter *a)
{
    units_close(&a->m);
    params_local_close(&a->m.local);
    param_table_close(&a->m.table);
    free(a->m.chunk);
    free(a->unit);
    memset(a, 0, sizeof *a);
}

/* ---- memory of the base ---- */
/* Outputs or inputs of the widest matrix that an adapter may change. */
static int64_t widest(const struct model *m)
{
    int64_t most = m->hidden;
    for (int i = 0; i < m->local.n_parts; i++) {
        const struct param *p = &m->table.p[m->local.part[i].param];
        for (int d = p->stacked; d < p->stacked + 2 && adapter_computed(p); d++)
            most = m->local.part[i].box.extent[d] > most ? m->local.part[i].box.extent[d] : most;
    }
    return most;
}

int64_t adapter_room_carve(const struct model *m, struct arena *a, int64_t rows, int64_t rank,
                           struct adapter_room *room)
{
    size_t z = (size_t)(rows * 3 * rank);

    room->z = arena_take(a, z * sizeof(float));
    room->z_dt = arena_take(a, z * dtype_size(m->dt));
    room->d = arena_take(a, (size_t)(ADAPTER_ROWS * widest(m)) * sizeof(float));
    return rows * 3 * rank;
}

size_t adapter_room_measure(const struct model *m, int64_t rows, int64_t rank)
{
    struct arena a = { 0 };
    struct adapter_room room;
    int64_t sums = adapter_room_carve(m, &a, rows, rank, &room);
    return rank ? a.used + (size_t)sums * sizeof(float) : 0;
}
