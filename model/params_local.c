/* params_local.c - see params.h: layouts, and what a rank holds and writes. */
#include "model/params.h"

#include <stdlib.h>
#include <string.h>
#include "kernels/tree.h"

#define ALIGN 64
#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* ---- layouts ---- */

static int check_experts(const struct layout *l, const struct model_config *c, struct err *e)
{
    int each = l->tp * l->cp, fold = l->ep / each;

    if (!c->n_experts)
        return err_set(e, ERR_USAGE, "--ep %d: this model has no experts, use --ep 1", l->ep);
    if (l->ep % each || l->dp % fold)
        return err_set(
            e, ERR_USAGE,
            "--ep %d: an expert group is tp x cp = %d ranks times a divisor of dp %d: use 1 or such a "
            "product",
            l->ep, each, l->dp);
    if (l->ep > c->n_experts)
        return err_set(e, ERR_USAGE,
                       "--ep %d for %lld experts: a rank needs at least one, use --ep %lld or less", l->ep,
                       (long long)c->n_experts, (long long)c->n_experts);
    return 0;
}

int layout_check(const struct layout *l, const struct model_config *c, struct err *e)
{
    const struct {
        const char *name;
        int n;
    } degree[] = { { "tp", l->tp }, { "pp", l->pp }, { "cp", l->cp }, { "dp", l->dp }, { "ep", l->ep } };
    for (int i = 0; i < COUNT(degree); i++)
        if (degree[i].n < 1 || degree[i].n > 1 << 16)
            return err_set(e, ERR_USAGE, "--%s %d: a degree is 1 or more", degree[i].name, degree[i].n);
    if (l->ep > 1 && check_experts(l, c, e) < 0)
        return -e->code;
    if (l->zero < 0 || l->zero > 3)
        return err_set(e, ERR_USAGE, "--zero %d: the stages are 0, 1, 2, 3", l->zero);
    if (l->sp && l->tp < 2)
        return err_set(e, ERR_USAGE,
                       "--sp shares the tokens of a sequence among the ranks of tp: use --tp 2 or more, or "
                       "leave it out");
    if (c->n_heads % l->tp)
        return err_set(e, ERR_USAGE,
                       "--tp %d does not divide the %lld attention heads: use a divisor of %lld", l->tp,
                       (long long)c->n_heads, (long long)c->n_heads);
    if (c->n_kv % l->tp && l->tp % c->n_kv)
        return err_set(e, ERR_USAGE,
                       "--tp %d neither divides the %lld kv heads nor is a multiple of them: use another tp",
                       l->tp, (long long)c->n_kv);
    if (l->tp > GRAIN_MAX)
        return err_set(e, ERR_USAGE, "--tp %d: at most %d are supported", l->tp, GRAIN_MAX);
    if ((int64_t)l->pp * layout_chunks(l) > c->n_layers)
        return err_set(e, ERR_USAGE, "--pp %d stages%s for %lld layers: use at most one stage a layer",
                       l->pp * layout_chunks(l), layout_chunks(l) > 1 ? " times --virtual-stages" : "",
                       (long long)c->n_layers);
    return 0;
}

int layout_check_leaves(const struct layout *l, int cp_grain, struct err *e)
{
    int leaves = cp_grain > 1 ? cp_grain : 1;
    if (leaves % l->cp == 0)
        return 0;
    return err_set(e, ERR_USAGE,
                   "--cp %d does not divide the %d leaves of a sequence: use a divisor, or a "
                   "larger --cp-grain",
                   l->cp, leaves);
}

int layout_grain(const struct layout *l, const struct model_config *c)
{
    return c->grain % l->tp == 0 && tree_is_node(c->grain, 0, c->grain / l->tp) ? c->grain : l->tp;
}

struct rank_at layout_at(const struct layout *l, int rank)
{
    struct rank_at a;
    a.tp = rank % l->tp;
    a.cp = rank / l->tp % l->cp;
    a.dp = rank / l->tp / l->cp % l->dp;
    a.pp = rank / l->tp / l->cp / l->dp;
    int j = layout_fold(l);
    a.ep = l->ep > 1 ? (a.dp % j * l->cp + a.cp) * l->tp + a.tp : 0;
    a.edp = a.dp / j;
    return a;
}

int params_stage(const struct param_table *t, const struct layout *l, int unit)
{
    int64_t L = t->cfg.n_layers, stages = (int64_t)l->pp * layout_chunks(l);
    if (unit == 0)
        return 0;
    if (unit == L + 1)
        return (int)stages - 1;
    int s = 0;
    while ((int64_t)(s + 1) * L / stages <= unit - 1)
        s++;
    return s;
}

int params_stage_rank(const struct param_table *t, const struct layout *l, int unit)
{
    return params_stage(t, l, unit) % l->pp;
}

/* ---- cuts ---- */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t x, int64_t to) { return ceil_div(x, to) * to; }

/* With ep > 1 a rank holds whole experts. */
static int is_whole_expert(const struct param *p, const struct layout *l)
{
    return p->group == GROUP_EXPERT && l->ep > 1;
}

/* The values [begin, end) of n that tp rank r holds, in whole units. Either number of units and ranks divides
 * the other. */
static void split_units(int64_t n, int64_t unit, int tp, int r, int64_t *begin, int64_t *end, int *owner)
{
    int64_t n_units = n / unit, copies = n_units && tp > n_units ? tp / n_units : 1;
    int64_t each = copies > 1 ? unit : n / tp;
    *begin = each * (r / copies);
    *end = *begin + each;
    *owner = r % copies == 0;
}

/* The values [begin, end) of the parameter's split_dim that tp rank r holds, and whether r is the lowest rank
 * that holds them. */
static void split_range(const struct param *p, const struct layout *l, const struct model_config *c, int r,
                        int64_t *begin, int64_t *end, int *owner)
{
    int64_t n = p->size / p->n_alternating; /* of each component: they are cut alike */
    *owner = 1;
    switch (is_whole_expert(p, l) ? SPLIT_COPY : p->split) {
    case SPLIT_COPY:
        *begin = 0;
        *end = n;
        *owner = r == 0 || is_whole_expert(p, l);
        break;
    case SPLIT_KV:
        if (l->tp > c->n_kv) {
            int64_t copies = l->tp / c->n_kv, head = r / copies;
            *begin = head * c->head_dim;
            *end = *begin + c->head_dim;
            *owner = r % copies == 0;
            break;
        }
        /* fall through */
    case SPLIT_HEADS:
        *begin = n / l->tp * r;
        *end = n / l->tp * (r + 1);
        break;
    case SPLIT_UNITS: split_units(n, p->split_unit, l->tp, r, begin, end, owner); break;
    case SPLIT_BLOCKS: {
        int g = layout_grain(l, c), each = g / l->tp;
        *begin = block_begin(n, g, r * each);
        *end = block_begin(n, g, (r + 1) * each);
        break;
    }
    }
    *begin *= p->n_alternating;
    *end *= p->n_alternating;
}

/* What the rank holds of parameter i. */
static struct part cut(const struct params_local *l, int i)
{
    const struct param *p = &l->table->p[i];
    int home = params_stage_rank(l->table, &l->layout, p->unit), d = p->split_dim;
    struct part q = { .param = i, .box = param_box(p) };
    int64_t begin = 0, end = 0;

    split_range(p, &l->layout, &l->table->cfg, l->at.tp, &begin, &end, &q.owner);
    q.owner &= home == l->at.pp;
    begin += p->begin;
    end += p->begin;
    q.skip = begin * (p->indices ? p->indices : 1) % p->block;
    q.box.start[d] = param_index(p, begin);
    q.box.extent[d] = end > begin ? param_index_end(p, end) - q.box.start[d] : 0;
    q.count = box_count(&q.box);
    return q;
}

/* ---- a rank's vectors ---- */

static int is_here(const struct params_local *l, const struct param *p)
{
    const struct layout *lay = &l->layout;
    int tied_copy = l->table->cfg.tied && p->unit == 0 && l->at.pp == lay->pp - 1;
    int64_t n_experts = p->n_experts ? p->n_experts : l->table->cfg.n_experts;
    if (is_whole_expert(p, lay) && (int64_t)p->expert * lay->ep / n_experts != l->at.ep)
        return 0;
    return params_stage_rank(l->table, lay, p->unit) == l->at.pp || tied_copy;
}

/* The vector of a parameter: the unit's first one, or one of those that were added for this unit; a new one
 * where there is none yet. */
static int vector_of(struct params_local *l, const struct param *p)
{
    enum param_group group = is_whole_expert(p, &l->layout) ? GROUP_EXPERT : GROUP_DENSE;
    int slices = group == GROUP_EXPERT ? l->layout.dp / layout_fold(&l->layout) : layout_slices(&l->layout);
    if (group == GROUP_DENSE && !p->dtype)
        return p->unit;

    for (int v = l->n_vectors - 1; v >= l->n_units && l->unit[v].unit == p->unit; v--) {
        const char *dtype = l->unit[v].dtype;
        if (l->unit[v].group == group && (p->dtype ? dtype && !strcmp(dtype, p->dtype) : !dtype))
            return v;
    }
    if (group == GROUP_EXPERT && !p->dtype)
        l->experts_of[p->unit] = l->n_vectors;
    l->unit[l->n_vectors] = (struct unit_part){
        .unit = p->unit, .group = group, .dtype = p->dtype, .n_slices = p->dtype ? 1 : slices
    };
    return l->n_vectors++;
}

/* Parameters of the run's dtype, or those with a dtype of their own. */
static void count_vectors_of(struct params_local *l, int own_dtype)
{
    for (int i = 0; i < l->table->n; i++) {
        const struct param *p = &l->table->p[i];
        if ((p->dtype != NULL) != own_dtype)
            continue;
        l->part_of[i] = is_here(l, p) ? vector_of(l, p) : -1;
        if (l->part_of[i] >= 0)
            l->unit[l->part_of[i]].n++;
    }
}

/* Counts the parts of every vector; part_of is the vector of each parameter until place_parts(). */
static void count_parts(struct params_local *l)
{
    for (int u = 0; u < l->n_units; u++)
        l->unit[u] = (struct unit_part){ .unit = u, .n_slices = layout_slices(&l->layout) };
    l->n_vectors = l->n_units;
    count_vectors_of(l, 0);
    l->n_trained = l->n_vectors;
    count_vectors_of(l, 1);
}

static void place_parts(struct params_local *l)
{
    for (int v = 0; v < l->n_vectors; v++) {
        l->unit[v].first = l->n_parts;
        l->n_parts += l->unit[v].n;
        l->unit[v].n = 0;
    }
    for (int i = 0; i < l->table->n; i++) {
        if (l->part_of[i] < 0)
            continue;
        struct unit_part *u = &l->unit[l->part_of[i]];
        int at = u->first + u->n++;
        l->part[at] = cut(l, i);
        l->part[at].vector = l->part_of[i];
        l->part[at].offset = u->flat;
        u->flat += round_up(l->part[at].count, ALIGN);
        l->part_of[i] = at;
    }
    for (int v = 0; v < l->n_vectors; v++) {
        l->unit[v].flat = round_up(l->unit[v].flat, (int64_t)ALIGN * l->unit[v].n_slices);
        l->flat_total += l->unit[v].dtype ? 0 : l->unit[v].flat;
    }
}

/* Vectors at most: beside its first one a unit has one for its experts and one for each dtype of its own. A
 * parameter that opens a new one is the first of its group and dtype in the unit. */
static int count_vectors(const struct param_table *t)
{
    int n = t->n_units;
    for (int i = 0; i < t->n; i++) {
        const struct param *p = &t->p[i], *before = i ? p - 1 : NULL;
        int further = p->dtype || p->group == GROUP_EXPERT;
        int same = before && before->unit == p->unit && before->group == p->group &&
                   before->dtype == p->dtype;
        n += further && !same;
    }
    return n;
}

int params_local_open(struct params_local *l, const struct param_table *t, const struct layout *lay,
                      struct rank_at at, struct err *e)
{
    *l = (struct params_local){ .table = t, .layout = *lay, .at = at, .n_units = t->n_units };
    l->part = calloc((size_t)t->n, sizeof *l->part);
    l->unit = calloc((size_t)count_vectors(t), sizeof *l->unit);
    l->part_of = malloc((size_t)t->n * sizeof *l->part_of);
    l->experts_of = malloc((size_t)t->n_units * sizeof *l->experts_of);
    if (!l->part || !l->unit || !l->part_of || !l->experts_of) {
        params_local_close(l);
        return err_set(e, ERR_MEMORY, "no memory for a table of %d parameters", t->n);
    }
    for (int u = 0; u < t->n_units; u++)
        l->experts_of[u] = -1;
    count_parts(l);
    place_parts(l);
    return 0;
}

void params_local_close(struct params_local *l)
{
    free(l->part);
    free(l->unit);
    free(l->part_of);
    free(l->experts_of);
    memset(l, 0, sizeof *l);
}

int params_part(const struct params_local *l, int unit, enum param_kind kind, int expert)
{
    int param = param_at(l->table, unit, kind, expert);
    return param < 0 ? -1 : l->part_of[param];
}

/* ---- what a rank writes ---- */

/* Fused parameters from part i on, as one piece, where this rank holds all of each. Returns how many, or
 * 0. */
static int join_fused(const struct params_local *l, int i, struct param_piece *out)
{
    const struct part *p = &l->part[i];
    const struct param *q = &l->table->p[p->param];
    struct box whole = p->box;
    if (q->n_fused < 2 || !p->owner)
        return 0;

    for (int k = 0; k < q->n_fused; k++) {
        struct box of_param = param_box(&q[k]);
        if (!box_equal(&of_param, &p[k].box) || p[k].skip)
            return 0;
        whole.extent[q->split_dim] = of_param.start[q->split_dim] + of_param.extent[q->split_dim] -
                                     whole.start[q->split_dim];
    }
    *out = (struct param_piece){ i, q->n_fused, whole, 0, box_count(&whole), p->offset };
    return q->n_fused;
}

/* Elements before element x of a box with rows of n that are left when each row loses its first `gone`. */
static int64_t left_before(int64_t x, int64_t n, int64_t gone)
{
    int64_t in_row = x % n;
    return x / n * (n - gone) + (in_row > gone ? in_row - gone : 0);
}

/* The range [lo, hi) of part i as a piece. A first block that the rank below writes is left out. 0: nothing
 * is left. */
static int add_piece(const struct params_local *l, int i, int64_t lo, int64_t hi, struct param_piece *out)
{
    const struct part *p = &l->part[i];
    int d = l->table->p[p->param].split_dim;
    if (!p->owner || lo >= hi)
        return 0;
    *out = (struct param_piece){ i, 1, p->box, lo, hi, p->offset + lo };
    if (!p->skip)
        return 1;

    int64_t outer = 1, inner = 1;
    for (int k = 0; k < p->box.n_dims; k++) {
        outer *= k < d ? p->box.extent[k] : 1;
        inner *= k > d ? p->box.extent[k] : 1;
    }
    int64_t row = p->box.extent[d] * inner;
    out->box.start[d]++;
    out->box.extent[d]--;
    out->lo = left_before(lo, row, inner);
    out->hi = left_before(hi, row, inner);
    out->flat = outer == 1 ? p->offset + inner + out->lo : -1;
    return out->hi > out->lo;
}

int params_pieces(const struct params_local *l, int zero_rank, int sliced, struct param_piece *out)
{
    int n = 0, joined;
    for (int i = 0; i < l->n_parts; i++) {
        const struct part *p = &l->part[i];
        const struct unit_part *u = &l->unit[p->vector];
        int slice = u->group == GROUP_EXPERT ? zero_rank / layout_expert_sources(&l->layout) : zero_rank;
        int64_t each = u->flat / u->n_slices, lo = each * slice - p->offset, hi = lo + each;

        if (sliced && !u->dtype) {
            n += add_piece(l, i, lo < 0 ? 0 : lo, hi > p->count ? p->count : hi, &out[n]);
        } else if (slice == 0 && (joined = join_fused(l, i, &out[n]))) {
            n++;
            i += joined - 1;
        } else if (slice == 0) {
            n += add_piece(l, i, 0, p->count, &out[n]);
        }
    }
    return n;
}
