/* units.c - the units of a model on this rank: branches by the family's decision, parts by the parameter
 * table, packs by the bodies. See units.h. */
#include "model/units.h"

#include <stdlib.h>
#include <string.h>

static const struct sublayer_kind *const kind_of[] = {
    [BODY_ATTENTION] = &sublayer_attention,
    [BODY_LATENT] = &sublayer_latent,
    [BODY_MLP] = &sublayer_mlp,
    [BODY_EXPERTS] = &sublayer_experts,
};

static struct norm norm_of(const struct model *m, int unit, enum norm_kind kind, enum param_kind weight)
{
    struct norm n = { kind, -1, -1 };
    if (n.kind == NORM_NONE)
        return n;
    n.weight = model_part(m, unit, weight);
    n.bias = model_part(m, unit, param_bias(weight));
    return n;
}

int pack_n_copies(const struct pack_plan *plan)
{
    return plan->n_experts ? plan->n_experts : plan->n_heads ? plan->n_heads : 1;
}

/* One branch more: its parts looked up, its sizes on this rank. */
static void add_branch(struct model *m, int unit, enum flow flow, const struct sublayer_kind *kind,
                       const struct branch_spec *spec, int tp_rank)
{
    struct unit *u = &m->unit[unit];
    struct branch *b = &u->branch[u->n_branches++];
    struct sublayer *s = &b->body;

    b->flow = flow;
    b->norm = norm_of(m, unit, spec->norm, spec->norm_weight);
    b->after = norm_of(m, unit, spec->norm_after, spec->norm_after_weight);
    s->kind = kind;
    s->unit = unit;
    s->layer = unit > 0 && unit <= m->n_layers ? unit - 1 : -1;
    for (int i = 0; i < SUBLAYER_SLOTS; i++)
        s->part[i] = i < kind->n_slots && kind->slot[i] < P_KINDS ? model_part(m, unit, kind->slot[i]) : -1;
    kind->shape(s, m, spec, tp_rank);
    for (int k = 0; k < s->n_packs; k++) {
        s->pack_at[k] = u->n_packs;
        u->n_packs += pack_n_copies(&s->pack[k]);
    }
}

int units_open(struct model *m, int tp_rank, struct err *e)
{
    const struct model_config *c = &m->table.cfg;
    const struct branch_spec none = { 0 };
    struct branch_spec head = { .norm = family_norm(c), .norm_weight = P_NORM };
    int last = m->table.n_units - 1;

    m->unit = calloc((size_t)m->table.n_units, sizeof *m->unit);
    if (!m->unit)
        return err_set(e, ERR_MEMORY, "no memory for the tables of %d units", m->table.n_units);
    if (m->local.unit[0].n)
        add_branch(m, 0, FLOW_START, &sublayer_embed, &none, tp_rank);
    for (int u = 1; u < last; u++) {
        struct layer_spec spec;
        family_layer(c, u - 1, &spec);
        m->unit[u].parallel = spec.parallel;
        for (int i = 0; m->local.unit[u].n && i < spec.n; i++)
            add_branch(m, u, FLOW_ADD, kind_of[spec.branch[i].body], &spec.branch[i], tp_rank);
    }
    if (m->local.unit[last].n)
        add_branch(m, last, FLOW_END, &sublayer_head, &head, tp_rank);
    return 0;
}

void units_close(struct model *m)
{
    free(m->unit);
    m->unit = NULL;
}

struct leaves leaves_cut(struct leaves l, int one)
{
    return one ? (struct leaves){ 1, { l.end[l.n - 1] } } : l;
}

void positions_of(const struct attn_seq *seq, int n_seq, int32_t *pos)
{
    for (int s = 0; s < n_seq; s++)
        for (int64_t i = 0; i < seq[s].n_rows; i++)
            pos[seq[s].row + i] = (int32_t)(seq[s].pos + i);
}

/* ---- pages ---- */
int64_t model_page_layers(const struct model *m, int group, int64_t layer)
{
    int64_t n = 0;
    for (int64_t i = 0; i < layer; i++)
        n += m->local.unit[i + 1].n && model_page_group(&m->table.cfg, i) == group;
    return n;
}

struct page_place page_place(const struct model *m, int64_t layer)
{
    int group = model_page_group(&m->table.cfg, layer);
    int64_t before = group ? model_page_layers(m, 0, m->n_layers) : 0;
    return (struct page_place){ group, model_page_layers(m, group, layer), before };
}

void page_point(const struct pass *p, const struct page_place *at, struct attn *a)
{
    int moved = at->group && p->grouped;
    int64_t layers = at->before + (moved ? 0 : at->group_before);
    a->n_seq = p->n_seq;
    a->seq = moved ? p->grouped : p->seq;
    a->page_off = p->whole_pages ? model_page_bytes(p->m) * (size_t)layers : 0;
    a->kv = p->m->kv;
    a->cut = p->cut;
}

/* ---- weights ---- */
/* Parts of a unit in its vectors before this one. */
static int parts_before(const struct model *m, int unit, int vector)
{
    int n = vector > unit ? m->local.unit[unit].n : 0;
    for (int v = m->local.n_units; v < vector; v++)
        n += m->local.unit[v].unit == unit ? m->local.unit[v].n : 0;
    return n;
}

int unit_weights_open(struct unit_weights *uw, const struct model *m, struct err *e)
{
    int parts = 1, packs = 1;
    for (int u = 0; u < m->local.n_units; u++) {
        int n = parts_before(m, u, m->local.n_vectors);
        parts = n > parts ? n : parts;
        packs = m->unit[u].n_packs > packs ? m->unit[u].n_packs : packs;
    }
    *uw = (struct unit_weights){ .at = calloc((size_t)parts, sizeof *uw->at),
                                 .pack = calloc((size_t)packs, sizeof *uw->pack) };
    if (uw->at && uw->pack)
        return 0;
    unit_weights_close(uw);
    return err_set(e, ERR_MEMORY, "no memory for the table of %d weights", parts);
}

void unit_weights_close(struct unit_weights *uw)
{
    free(uw->at);
    free(uw->pack);
    *uw = (struct unit_weights){ 0 };
}

const void **model_place(const struct model *m, const struct unit_weights *uw, int part)
{
    int vector = m->local.part[part].vector;
    const struct unit_part *v = &m->local.unit[vector];
    return &uw->at[part - v->first + (vector < m->local.n_units ? 0 : parts_before(m, v->unit, vector))];
}

void model_point(const struct model *m, int vector, void *flat, struct unit_weights *uw)
{
    const struct unit_part *u = &m->local.unit[vector];
    *(vector < m->local.n_units ? &uw->flat : &uw->experts) = flat;
    for (int i = u->first; i < u->first + u->n; i++)
        *model_place(m, uw, i) = model_mat(m, flat, i).p;
}

const void *weight_at(const struct pass *p, int part)
{
    return part < 0 ? NULL : *model_place(p->m, p->uw, part);
}

const void *weight_own(const struct pass *p, int part)
{
    const struct model *m = p->m;
    const struct part *at = part < 0 ? NULL : &m->local.part[part];
    void *const *own = p->uw->own ? p->uw->own : m->own;
    return at ? (const char *)own[at->vector] + at->offset * (int64_t)sizeof(float) : NULL;
}

int take_correction(struct sublayer *s, const struct model *m, int slot)
{
    int part = s->part[slot];
    if (part < 0 || !m->table.p[m->local.part[part].param].dtype)
        return -1;
    s->part[slot] = -1;
    return part;
}

struct expert_router router_now(const struct pass *p, const struct sublayer *s)
{
    struct expert_router r = s->experts.router;
    r.bias = weight_own(p, s->experts.correction);
    return r;
}

const struct panels *weight_pack(const struct pass *p, const struct sublayer *s, int k)
{
    return &p->uw->pack[s->pack_at[k]];
}

int weight_is_transposed(const struct model *m, int part)
{
    return part >= 0 && m->table.p[m->local.part[part].param].transposed;
}

struct mat weight_mat(const struct pass *p, int part)
{
    int own_vector = p->m->local.part[part].vector >= p->m->local.n_units;
    return model_mat(p->m, own_vector ? p->uw->experts : p->uw->flat, part);
}

struct mat weight_rows(const struct pass *p, int part, int64_t first, int64_t n, char **to)
{
    struct mat w = weight_mat(p, part);
    if (weight_is_transposed(p->m, part))
        return model_transposed(p->m, mat_cols(w, first, n), to);
    return mat_rows(w, first, n);
}

struct mat weight_natural(const struct pass *p, int part, char **to)
{
    struct mat stored = weight_mat(p, part);
    return weight_is_transposed(p->m, part) ? model_transposed(p->m, stored, to) : stored;
}

size_t transposed_bytes(const struct sublayer *s, const struct model *m, int first_slot, int n_slots)
{
    size_t sum = 0;
    for (int i = first_slot; i < first_slot + n_slots; i++)
        if (weight_is_transposed(m, s->part[i]))
            sum += (size_t)m->local.part[s->part[i]].count * dtype_size(m->dt);
    return sum;
}

/* ---- packs ---- */
static size_t pack_bytes(const struct model *m, const struct pack_plan *k)
{
    return (panels_bytes(k->outputs, k->inputs, m->dt, &k->leaves) + 63) / 64 * 64;
}

/* Is the plan's pack made from this vector? */
static int is_of_vector(const struct model *m, const struct pack_plan *plan, int vector)
{
    const struct unit_part *v = &m->local.unit[vector];
    int of_experts = plan->n_experts && m->local.experts_of[v->unit] >= 0;
    return of_experts == (vector >= m->local.n_units);
}

size_t weight_pack_bytes(const struct model *m, const struct sublayer *s, int k)
{
    return pack_bytes(m, &s->pack[k]) * (size_t)pack_n_copies(&s->pack[k]);
}

size_t model_pack_bytes(const struct model *m, int vector)
{
    const struct unit *u = &m->unit[m->local.unit[vector].unit];
    size_t sum = 0;
    for (int b = 0; b < u->n_branches; b++)
        for (int k = 0; k < u->branch[b].body.n_packs; k++)
            if (is_of_vector(m, &u->branch[b].body.pack[k], vector))
                sum += weight_pack_bytes(m, &u->branch[b].body, k);
    return sum;
}

/* A matrix as it is stored: [outputs][inputs], or transposed. */
struct stored {
    struct mat m;
    int transposed;
};

/* Rows [begin, end) of the matrices w[0..n) stacked, as stored: how many there are. */
static int stacked_rows(struct stored *out, const struct stored *w, int n, int64_t begin, int64_t end)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        int64_t rows = w[i].transposed ? w[i].m.cols : w[i].m.rows;
        int64_t lo = begin > 0 ? begin : 0, hi = end < rows ? end : rows;

        if (lo < hi) {
            struct mat part = w[i].transposed ? mat_cols(w[i].m, lo, hi - lo) : mat_rows(w[i].m, lo, hi - lo);
            out[count++] = (struct stored){ part, w[i].transposed };
        }
        begin -= rows;
        end -= rows;
    }
    return count;
}

/* A panel is 32 rows of the matrices, panels stand one behind the other: a share is some of them, as a pack
 * of its own. */
static void pack_share(const struct model *m, const struct panels *whole, const struct stored *w, int n,
                       int share, int n_shares)
{
    enum { ROWS = 32 };
    int64_t panels = (whole->n + ROWS - 1) / ROWS, first = panels * share / n_shares * ROWS;
    int64_t end = panels * (share + 1) / n_shares * ROWS;
    struct panels p = *whole;
    struct stored part[3];
    struct mat rows[3];
    char *to = NULL;

    end = end < whole->n ? end : whole->n;
    p.n = end - first;
    p.p = (char *)whole->p + panels_bytes(first, whole->k, whole->dt, &whole->leaves);
    if (p.n <= 0)
        return;
    n = stacked_rows(part, w, n, first, end);
    if (part[0].transposed && !(to = dev_scratch(m->dev, 5, (size_t)(p.n * p.k) * dtype_size(p.dt)))) {
        /* NaN: nothing may go on with numbers that were not computed */
        dev_fill(m->dev, p.p, 0xff, panels_bytes(p.n, p.k, p.dt, &p.leaves));
        return;
    }
    for (int i = 0; i < n; i++)
        rows[i] = part[i].transposed ? model_transposed(m, part[i].m, &to) : part[i].m;
    KERNEL(m->dev, linear_pack, &p, n, rows);
}

struct mat model_transposed(const struct model *m, struct mat stored, char **to)
{
    struct mat t = mat_of(*to, stored.dt, stored.cols, stored.rows, stored.rows);
    KERNEL(m->dev, transpose, t, stored);
    *to += (size_t)(t.rows * t.cols) * dtype_size(t.dt);
    return t;
}

/* Head h's rows of a matrix. */
static struct stored head_stored(const struct pack_plan *plan, struct mat whole, int h)
{
    int64_t n = plan->turned ? plan->inputs : plan->outputs;
    return (struct stored){ mat_rows(whole, h * plan->head_rows + plan->first_row, n), plan->turned };
}

int pack_part(const struct model *m, const struct sublayer *s, const struct pack_plan *plan, int slot,
              int copy)
{
    return plan->n_experts ? params_part(&m->local, s->unit, s->kind->slot[slot], plan->first_expert + copy)
                           : s->part[slot];
}

/* Pack i of a plan: of expert first_expert + i, or of head i. */
static void pack_matrices(const struct model *m, const struct sublayer *s, const struct pack_plan *plan,
                          int copy, const struct pack_from *from, const struct panels *to)
{
    struct stored w[3];
    for (int i = 0; i < plan->n_slots; i++) {
        int part = pack_part(m, s, plan, plan->slot[i], copy);
        struct mat stored = model_mat(m, plan->tied ? from->tied : from->flat, part);
        w[i] = (struct stored){ stored, weight_is_transposed(m, part) };
        if (plan->n_heads)
            w[i] = head_stored(plan, stored, copy);
    }
    pack_share(m, to, w, plan->n_slots, from->share, from->n_shares);
}

/* All copies of a plan, to[pack_n_copies], one behind the other from `memory` on. Returns what is behind
 * them. */
static char *pack_copies(const struct model *m, const struct sublayer *s, int k, const struct pack_from *from,
                         struct panels *to, char *memory)
{
    const struct pack_plan *plan = &s->pack[k];
    for (int i = 0; i < pack_n_copies(plan); i++) {
        to[i] = (struct panels){ memory, plan->outputs, plan->inputs, m->dt, plan->leaves };
        pack_matrices(m, s, plan, i, from, &to[i]);
        memory += pack_bytes(m, plan);
    }
    return memory;
}

void weight_pack_now(const struct pass *p, const struct sublayer *s, int k, struct panels *to, void *memory)
{
    struct pack_from from = { .flat = p->uw->experts, .n_shares = 1 };
    pack_copies(p->m, s, k, &from, to, memory);
}

void model_pack(const struct model *m, int vector, const struct pack_from *from, struct unit_weights *uw,
                void *memory)
{
    const struct unit *u = &m->unit[m->local.unit[vector].unit];
    char *at = memory;
    for (int b = 0; b < u->n_branches; b++) {
        const struct sublayer *s = &u->branch[b].body;
        for (int k = 0; k < s->n_packs; k++)
            if (is_of_vector(m, &s->pack[k], vector))
                at = pack_copies(m, s, k, from, &uw->pack[s->pack_at[k]], at);
    }
}

struct pack_found pack_find(const struct model *m, int unit, int pack)
{
    const struct unit *u = &m->unit[unit];
    struct pack_found f = { 0 };
    for (int b = 0; b < u->n_branches; b++)
        for (int k = 0; k < u->branch[b].body.n_packs; k++) {
            const struct sublayer *s = &u->branch[b].body;
            int copy = pack - s->pack_at[k];
            if (copy >= 0 && copy < pack_n_copies(&s->pack[k]))
                f = (struct pack_found){ s, &s->pack[k], copy };
        }
    return f;
}

int model_vector_packs(const struct model *m, int vector, int pack)
{
    int unit = m->local.unit[vector].unit;
    for (; pack < m->unit[unit].n_packs; pack++)
        if (is_of_vector(m, pack_find(m, unit, pack).plan, vector))
            return pack;
    return -1;
}

size_t model_pack_shape(const struct model *m, int unit, int pack, struct panels *out)
{
    const struct pack_plan *plan = pack_find(m, unit, pack).plan;
    *out = (struct panels){ .n = plan->outputs, .k = plan->inputs, .dt = m->dt, .leaves = plan->leaves };
    return pack_bytes(m, plan);
}

void model_pack_one(const struct model *m, int unit, int pack, const struct pack_from *from,
                    const struct panels *to)
{
    struct pack_found f = pack_find(m, unit, pack);
    pack_matrices(m, f.s, f.plan, f.copy, from, to);
}

/* The whole model is the model of a rank that has all of it. */
int model_flops(const struct model_config *cfg, double keys, double *flops, struct err *e)
{
    const struct layout alone = { .tp = 1, .pp = 1, .cp = 1, .dp = 1, .ep = 1 };
    struct model m;
    int rc = model_shape(&m, cfg, &alone, (struct rank_at){ 0 }, DT_F32, 0, e);

    if (rc < 0)
        return rc;
    *flops = 0;
    for (int unit = 0; unit < m.table.n_units; unit++)
        for (int b = 0; b < m.unit[unit].n_branches; b++) {
            const struct sublayer *s = &m.unit[unit].branch[b].body;
            *flops += s->kind->flops(s, &m, keys);
        }
    model_close(&m);
    return 0;
}
