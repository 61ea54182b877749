/* params.c - see params.h. */
#include "model/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/tree.h"
#include "model/family.h"

#define ALIGN 64
#define PARAMS_MAX (1 << 22)

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

static int64_t dim_size(const struct model_config *c, enum dim d)
{
    switch (d) {
    case D_HIDDEN: return c->hidden;
    case D_VOCAB: return c->vocab;
    case D_Q: return c->n_heads * c->head_dim;
    case D_KV: return c->n_kv * c->head_dim;
    case D_QKV: return (c->n_heads + 2 * c->n_kv) * c->head_dim;
    case D_INTER: return c->inter;
    case D_HEAD: return c->head_dim;
    case D_POS: return c->max_pos;
    case D_EXPERTS: return c->n_experts;
    case D_EXPERT_INTER: return c->expert_inter;
    default: return 0;
    }
}

/* How many parameters a row is in this layer (-1: none). */
static int64_t row_count(const struct model_config *c, const struct param_row *r, int layer)
{
    int sparse = layer >= 0 && model_has_experts(c, layer);
    if ((c->features & r->need) != r->need || (r->of == OF_DENSE && sparse) ||
        (r->of != OF_ANY && r->of != OF_DENSE && !sparse))
        return 0;
    return r->of == OF_EXPERT ? c->n_experts : 1;
}

static int64_t count_rows(const struct model_config *c, const struct param_row *rows, int layer)
{
    int64_t n = 0;
    for (; rows->name; rows++)
        n += row_count(c, rows, layer);
    return n;
}

static void set_name(struct param *p, const char *pattern, int layer, int expert)
{
    const char *mark = strstr(pattern, "%d"), *second = mark ? strstr(mark + 2, "%d") : NULL;
    if (second)
        snprintf(p->name, sizeof p->name, "%.*s%d%.*s%d%s", (int)(mark - pattern), pattern, layer,
                 (int)(second - mark - 2), mark + 2, expert, second + 2);
    else if (mark)
        snprintf(p->name, sizeof p->name, "%.*s%d%s", (int)(mark - pattern), pattern, layer, mark + 2);
    else
        snprintf(p->name, sizeof p->name, "%s", pattern);
}

/* p lies in the tensor of the parameters before it: all of them get its grown shape. */
static void join_tensor(struct param_table *t, struct param *p)
{
    struct param *first = p - 1;
    while (!first->n_sharing)
        first--;
    p->begin = first->shape[p->split_dim];
    p->n_sharing = 0;
    first->n_sharing++;
    for (struct param *q = first; q < t->p + t->n; q++)
        q->shape[p->split_dim] = p->begin + p->size;
}

static void add_param(struct param_table *t, const struct param_row *r, int unit, int layer, int expert)
{
    struct param *p = &t->p[t->n++];
    set_name(p, r->name, layer, expert);
    p->kind = r->kind;
    p->n_dims = r->dim1 == D_NONE ? 1 : 2;
    p->shape[0] = dim_size(&t->cfg, r->dim0);
    p->shape[1] = p->n_dims == 2 ? dim_size(&t->cfg, r->dim1) : 1;
    p->split = r->split;
    p->split_dim = r->split_dim;
    p->size = p->shape[p->split_dim];
    p->n_sharing = 1;
    p->unit = unit;
    p->layer = layer;
    p->expert = expert;
    p->init = r->init;
    p->init_range = t->cfg.init_range;
    if (r->init == INIT_RESIDUAL)
        p->init_range /= sqrt(2.0 * (double)t->cfg.n_layers);
    p->decay = p->n_dims >= 2;
    p->transposed = p->decay && layer >= 0 && t->cfg.features & F_TRANSPOSED;
    if (t->n > 1 && !strcmp(p[-1].name, p->name))
        join_tensor(t, p);
}

static void add_rows(struct param_table *t, const struct param_row *rows, int unit, int layer)
{
    for (const struct param_row *r = rows; r->name; r++)
        for (int64_t i = 0; i < row_count(&t->cfg, r, layer); i++)
            add_param(t, r, unit, layer, r->of == OF_EXPERT ? (int)i : -1);
}

int param_table_open(struct param_table *t, const struct model_config *cfg, struct err *e)
{
    const struct family *f = cfg->family;
    int L = (int)cfg->n_layers;
    int64_t n = count_rows(cfg, f->first, -1) + count_rows(cfg, f->last, -1);
    memset(t, 0, sizeof *t);
    t->cfg = *cfg;
    t->n_units = L + 2;
    for (int l = 0; l < L; l++)
        n += count_rows(cfg, f->layer, l);
    if (n > PARAMS_MAX)
        return err_set(e, ERR_CONFIG,
                       "config.json: %d layers of %lld experts make %lld tensors: at most %d are taken", L,
                       (long long)cfg->n_experts, (long long)n, PARAMS_MAX);
    t->p = calloc((size_t)n, sizeof *t->p);
    if (!t->p)
        return err_set(e, ERR_MEMORY, "no memory for the table of a model of %d layers", L);
    add_rows(t, f->first, 0, -1);
    for (int l = 0; l < L; l++)
        add_rows(t, f->layer, l + 1, l);
    add_rows(t, f->last, L + 1, -1);
    return 0;
}

void param_table_close(struct param_table *t)
{
    free(t->p);
    memset(t, 0, sizeof *t);
}

int param_find(const struct param_table *t, const char *name)
{
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->p[i].name, name))
            return i;
    return -1;
}

int param_is_derived(const char *tensor)
{
    static const char *const endings[] = { ".rotary_emb.inv_freq", ".attention.bias",
                                           ".attention.masked_bias", ".attn.bias", ".attn.masked_bias" };
    size_t n = strlen(tensor);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (n > strlen(endings[i]) && !strcmp(tensor + n - strlen(endings[i]), endings[i]))
            return 1;
    return 0;
}

enum param_kind param_bias(enum param_kind kind)
{
    static const enum param_kind bias[P_KINDS] = {
        [P_NORM_ATTN] = P_NORM_ATTN_BIAS,
        [P_NORM_MLP] = P_NORM_MLP_BIAS,
        [P_NORM] = P_NORM_BIAS,
        [P_Q] = P_Q_BIAS,
        [P_K] = P_K_BIAS,
        [P_V] = P_V_BIAS,
        [P_O] = P_O_BIAS,
        [P_GATE] = P_GATE_BIAS,
        [P_UP] = P_UP_BIAS,
        [P_DOWN] = P_DOWN_BIAS,
    };
    return bias[kind] ? bias[kind] : P_KINDS;
}

int64_t param_count(const struct param *p)
{
    return p->size * (p->n_dims == 2 ? p->shape[1 - p->split_dim] : 1);
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
    if (l->ep > 1)
        return err_set(e, ERR_USAGE, "--ep %d: this model has no experts, use --ep 1", l->ep);
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

int layout_grain(const struct layout *l, const struct model_config *c)
{
    return c->grain % l->tp == 0 && tree_is_node(c->grain, 0, c->grain / l->tp) ? c->grain : l->tp;
}

/* The neighbouring dp ranks that share the experts out. */
static int expert_fold(const struct layout *l)
{
    int j = l->ep / (l->tp * l->cp);
    return l->ep > 1 && j > 1 ? j : 1;
}

struct rank_at layout_at(const struct layout *l, int rank)
{
    struct rank_at a;
    a.tp = rank % l->tp;
    a.cp = rank / l->tp % l->cp;
    a.dp = rank / l->tp / l->cp % l->dp;
    a.pp = rank / l->tp / l->cp / l->dp;
    int j = expert_fold(l);
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

/* The range of the parameter's part of dim `split_dim` that tp rank r holds, and whether r is the lowest
 * rank that holds it. */
static void split_range(const struct param *p, const struct layout *l, const struct model_config *c, int r,
                        int64_t *begin, int64_t *end, int *owner)
{
    int64_t n = p->size;
    *owner = 1;
    switch (p->split) {
    case SPLIT_COPY:
        *begin = 0;
        *end = n;
        *owner = r == 0;
        return;
    case SPLIT_KV:
        if (l->tp > c->n_kv) {
            int64_t copies = l->tp / c->n_kv, head = r / copies;
            *begin = head * c->head_dim;
            *end = *begin + c->head_dim;
            *owner = r % copies == 0;
            return;
        }
        /* fall through */
    case SPLIT_HEADS:
        *begin = n / l->tp * r;
        *end = n / l->tp * (r + 1);
        return;
    case SPLIT_BLOCKS: {
        int g = layout_grain(l, c), each = g / l->tp;
        *begin = block_begin(n, g, r * each);
        *end = block_begin(n, g, (r + 1) * each);
        return;
    }
    }
}

static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

int params_local_open(struct params_local *l, const struct param_table *t, const struct layout *lay,
                      struct rank_at at, struct err *e)
{
    memset(l, 0, sizeof *l);
    l->table = t;
    l->layout = *lay;
    l->at = at;
    l->n_units = t->n_units;
    l->part = calloc((size_t)t->n, sizeof *l->part);
    l->unit = calloc((size_t)t->n_units, sizeof *l->unit);
    if (!l->part || !l->unit) {
        params_local_close(l);
        return err_set(e, ERR_MEMORY, "no memory for a table of %d parameters", t->n);
    }
    for (int i = 0; i < t->n; i++) {
        const struct param *p = &t->p[i];
        struct unit_part *u = &l->unit[p->unit];
        int home = params_stage_rank(t, lay, p->unit),
            tied_copy = t->cfg.tied && p->unit == 0 && at.pp == lay->pp - 1;
        if (home != at.pp && !tied_copy)
            continue;
        struct part *q = &l->part[l->n_parts];
        int64_t begin = 0, end = 0;
        q->param = i;
        q->box = box_whole(p->n_dims, p->shape);
        split_range(p, lay, &t->cfg, at.tp, &begin, &end, &q->owner);
        q->owner &= home == at.pp;
        q->box.start[p->split_dim] = p->begin + begin;
        q->box.extent[p->split_dim] = end - begin;
        q->count = box_count(&q->box);
        q->offset = u->flat;
        u->flat += round_up(q->count, ALIGN);
        u->first = u->n++ ? u->first : l->n_parts;
        l->n_parts++;
    }
    for (int i = 0; i < t->n_units; i++) {
        l->unit[i].flat = round_up(l->unit[i].flat, (int64_t)ALIGN * lay->dp);
        l->flat_total += l->unit[i].flat;
    }
    return 0;
}

void params_local_close(struct params_local *l)
{
    free(l->part);
    free(l->unit);
    memset(l, 0, sizeof *l);
}

/* The tensor of the parameters of parts [i, i + n_sharing) as one piece, where this rank holds all of it. 0:
 * it does not. */
static int whole_tensor(const struct params_local *l, int i, struct param_piece *out)
{
    const struct part *p = &l->part[i];
    const struct param *q = &l->table->p[p->param];
    struct box whole = box_whole(q->n_dims, q->shape);
    if (q->n_sharing < 2 || l->layout.tp > 1 || !p->owner)
        return 0;
    *out = (struct param_piece){ i, q->n_sharing, whole, 0, box_count(&whole), p->offset };
    return q->n_sharing;
}

int params_pieces(const struct params_local *l, int dp_rank, int sliced, struct param_piece *out)
{
    int n = 0, joined;
    if (!sliced && dp_rank)
        return 0;
    for (int i = 0; i < l->n_parts; i++) {
        const struct part *p = &l->part[i];
        int64_t slice = l->unit[l->table->p[p->param].unit].flat / l->layout.dp;
        int64_t lo = sliced ? slice * dp_rank - p->offset : 0, hi = sliced ? lo + slice : p->count;
        if (!sliced && (joined = whole_tensor(l, i, &out[n]))) {
            n++;
            i += joined - 1;
            continue;
        }
        lo = lo < 0 ? 0 : lo;
        hi = hi > p->count ? p->count : hi;
        if (!p->owner || lo >= hi)
            continue;
        out[n++] = (struct param_piece){ i, 1, p->box, lo, hi, p->offset + lo };
    }
    return n;
}
