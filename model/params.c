/* params.c - see params.h: the table, made from a family's rows. */
#include "model/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model/family.h"

#define PARAMS_MAX (1 << 22)

/* ---- sizes of rows ---- */

static int64_t dim_size(const struct model_config *c, int dim)
{
    switch (DIM_OF(dim)) {
    case D_HIDDEN: return c->hidden;
    case D_HIDDEN_TWICE: return 2 * c->hidden;
    case D_VOCAB: return c->vocab;
    case D_HEADS: return c->n_heads;
    case D_Q: return c->n_heads * c->head_dim;
    case D_KV: return c->n_kv * c->head_dim;
    case D_QKV: return (c->n_heads + 2 * c->n_kv) * c->head_dim;
    case D_INTER: return c->inter;
    case D_HEAD: return c->head_dim;
    case D_POS: return c->max_pos;
    case D_EXPERTS: return c->n_experts;
    case D_EXPERT_INTER: return c->expert_inter;
    case D_SHARED_INTER: return c->shared_inter;
    case D_Q_RANK: return c->latent.q_rank;
    case D_KV_RANK: return c->latent.kv_rank;
    case D_KV_A: return c->latent.kv_rank + c->latent.rope_dim;
    case D_KV_B: return c->n_heads * (c->latent.nope_dim + c->latent.v_dim);
    case D_V_HEADS: return c->n_heads * c->latent.v_dim;
    case D_FIXED: return DIM_NUMBER(dim);
    default: return 0;
    }
}

/* Values that one index of the dim stands for. */
static int dim_block(int dim) { return DIM_OF(dim) != D_FIXED && DIM_NUMBER(dim) ? DIM_NUMBER(dim) : 1; }

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int n_alternating(const struct param_row *r) { return r->alternating[1] ? ALTERNATE_MAX : 1; }

/* How many parameters a row is in this layer (-1: none). */
static int64_t row_count(const struct model_config *c, const struct param_row *r, int layer)
{
    int sparse = layer >= 0 && model_has_experts(c, layer);
    if (!family_has(c, r->need) || (r->unless && family_has(c, r->unless)))
        return 0;
    switch (r->of) {
    case OF_DENSE: return !sparse;
    case OF_SPARSE: return sparse;
    case OF_EXPERT: return sparse ? c->n_experts : 0;
    default: return 1;
    }
}

static int64_t count_params(const struct model_config *c, const struct param_row *rows, int layer)
{
    int64_t n = 0;
    for (const struct param_row *r = rows; r->name; r++)
        n += row_count(c, r, layer) * (r->companion.name ? 2 : 1);
    return n;
}

/* ---- look-ups ---- */

/* FNV-1a. */
static uint32_t name_hash(const char *name)
{
    uint32_t h = 2166136261u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    return h ^ h >> 15;
}

/* The slot of this name: an index in t->p, or -1 where the name can be put. */
static int *find_slot(const struct param_table *t, const char *name)
{
    uint32_t i = name_hash(name) & t->slot_mask;
    while (t->slot[i] >= 0 && strcmp(t->p[t->slot[i]].name, name))
        i = (i + 1) & t->slot_mask;
    return &t->slot[i];
}

int param_find(const struct param_table *t, const char *name) { return t->n ? *find_slot(t, name) : -1; }

static struct kind_at *kind_slot(const struct param_table *t, int unit, enum param_kind kind)
{
    return &t->at[(size_t)unit * P_KINDS_ALL + kind];
}

int param_at(const struct param_table *t, int unit, enum param_kind kind, int expert)
{
    const struct kind_at *k = kind_slot(t, unit, kind);
    if (k->n < 2)
        return k->n ? k->first : -1;
    return expert >= 0 && expert < k->n ? k->first + expert * k->step : -1;
}

/* The first two parameters of a kind say where all the others stand: every expert has the same rows. */
static void note_kind(struct param_table *t, int unit, enum param_kind kind, int param)
{
    struct kind_at *k = kind_slot(t, unit, kind);
    if (k->n == 0)
        k->first = param;
    else if (k->n == 1)
        k->step = param - k->first;
    k->n++;
}

int param_component(const struct param_table *t, int unit, enum param_kind kind, int expert,
                    struct component *out)
{
    int param = param_at(t, unit, kind, expert);
    if (param < 0)
        return 0;

    const struct param *p = &t->p[param];
    *out = (struct component){ param, param_box(p), p->n_alternating };
    out->box.extent[p->split_dim] /= p->n_alternating;
    for (int k = 0; k < p->n_alternating; k++)
        if (p->kind != kind && p->alternating[k] == kind)
            out->box.start[p->split_dim] += k;
    return 1;
}

/* ---- making the table ---- */

/* Rows of one name, one behind the other, in one unit: the tensors that they share, one or one an expert. */
struct row_group {
    const struct param_row *row[PARTS_MAX];
    int n, unit, layer;
    int64_t n_each;     /* parameters of each row */
    int64_t total_size; /* of split_dim, in values, over the rows */
};

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

/* The tensor's dims: those of one parameter, the split dim that of all rows together, the experts before them
 * where they are stacked. */
static void set_shape(struct param *p, const struct model_config *c, const struct row_group *g,
                      const int *shape)
{
    for (int d = 0; d < BOX_DIMS; d++)
        p->shape[d] = 1;
    if (p->stacked)
        p->shape[p->n_dims++] = c->n_experts;
    for (int d = 0; d < BOX_DIMS && shape[d] != D_NONE; d++) {
        int64_t size = dim_size(c, shape[d]);
        if (p->n_dims == p->split_dim) {
            size = g->total_size;
            p->block = dim_block(shape[d]);
        }
        p->shape[p->n_dims++] = ceil_div(size, dim_block(shape[d]));
    }
}

/* Row k of the group for one expert: its parameter, or the companion of it. begin: of its values of
 * split_dim. */
static struct param *add_param(struct param_table *t, const struct row_group *g, int k, int expert,
                               int64_t begin, int is_companion)
{
    const struct param_row *r = g->row[k];
    const int *shape = is_companion ? r->companion.shape : r->shape;
    struct param *p = &t->p[t->n++];

    int64_t number = t->cfg.first_layer + (g->layer > 0 ? g->layer : 0);
    set_name(p, is_companion ? r->companion.name : r->name, (int)number, expert);
    p->kind = r->kind;
    p->unit = g->unit;
    p->layer = g->layer;
    p->expert = r->of == OF_EXPERT ? expert : -1;
    p->group = r->of == OF_EXPERT ? GROUP_EXPERT : GROUP_DENSE;
    p->dtype = is_companion ? r->companion.dtype : r->dtype;

    p->stacked = r->stacked;
    p->split = r->split;
    p->split_dim = r->split_dim + r->stacked;
    p->begin = begin;
    p->n_alternating = n_alternating(r);
    p->size = dim_size(&t->cfg, r->shape[r->split_dim]) * p->n_alternating;
    memcpy(p->alternating, r->alternating, sizeof p->alternating);
    p->transposed = r->transposed;
    set_shape(p, &t->cfg, g, shape);
    p->n_fused = k ? 0 : g->n;
    p->n_sharing = k || (p->stacked && expert) ? 0 : g->n * (int)(p->stacked ? g->n_each : 1);
    p->companion = p->companion_of = -1;

    p->init = is_companion ? INIT_ONES : r->init;
    p->init_range = t->cfg.init_range;
    if (r->init == INIT_RESIDUAL)
        p->init_range /= sqrt(2.0 * (double)t->cfg.n_layers);
    p->decay = !p->dtype && r->shape[1] != D_NONE;
    if (p->n_sharing)
        *find_slot(t, p->name) = t->n - 1;
    return p;
}

/* The parameters of a group, expert by expert: fused ones are neighbours, the companions follow. */
static void add_group(struct param_table *t, const struct row_group *g)
{
    for (int64_t x = 0; x < g->n_each; x++) {
        int first = t->n;
        int64_t begin = 0;
        for (int k = 0; k < g->n; k++) {
            struct param *p = add_param(t, g, k, (int)x, begin, 0);
            begin += p->size;
            note_kind(t, g->unit, p->kind, t->n - 1);
            for (int j = 0; p->n_alternating > 1 && j < p->n_alternating; j++)
                note_kind(t, g->unit, p->alternating[j], t->n - 1);
        }
        for (int k = 0; k < g->n; k++) {
            struct param *of = &t->p[first + k];
            if (!g->row[k]->companion.name)
                continue;
            of->companion = t->n;
            add_param(t, g, k, (int)x, of->begin, 1)->companion_of = first + k;
        }
    }
}

static void add_rows(struct param_table *t, const struct param_row *rows, int unit, int layer)
{
    for (const struct param_row *r = rows; r->name;) {
        const char *name = r->name;
        struct row_group g = { .unit = unit, .layer = layer };
        for (; r->name && !strcmp(r->name, name) && g.n < PARTS_MAX; r++) {
            int64_t n = row_count(&t->cfg, r, layer);
            if (!n)
                continue;
            g.row[g.n++] = r;
            g.n_each = n;
            g.total_size += dim_size(&t->cfg, r->shape[r->split_dim]) * n_alternating(r);
        }
        add_group(t, &g);
    }
}

int param_table_alloc(struct param_table *t, int64_t n, struct err *e)
{
    uint32_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    t->p = calloc((size_t)n, sizeof *t->p);
    t->slot = malloc(slots * sizeof *t->slot);
    t->at = calloc((size_t)t->n_units * P_KINDS_ALL, sizeof *t->at);
    if (!t->p || !t->slot || !t->at) {
        int layers = (int)t->cfg.n_layers;
        param_table_close(t);
        return err_set(e, ERR_MEMORY, "no memory for the table of a model of %d layers", layers);
    }
    memset(t->slot, -1, slots * sizeof *t->slot);
    t->slot_mask = slots - 1;
    return 0;
}

void param_table_note(struct param_table *t, int i)
{
    const struct param *p = &t->p[i];
    note_kind(t, p->unit, p->kind, i);
    if (p->n_sharing)
        *find_slot(t, p->name) = i;
}

int param_table_open(struct param_table *t, const struct model_config *cfg, struct err *e)
{
    const struct family *f = cfg->family;
    const struct param_row *first = cfg->first_layer ? f->next_first : f->first;
    const struct param_row *last = cfg->first_layer ? f->next_last : f->last;
    int L = (int)cfg->n_layers;
    int64_t n = count_params(cfg, first, -1) + count_params(cfg, last, -1);
    memset(t, 0, sizeof *t);
    t->cfg = *cfg;
    t->n_units = L + 2;

    for (int l = 0; l < L; l++)
        for (int k = 0; k < ROW_LISTS && f->layer[k]; k++)
            n += count_params(cfg, f->layer[k], l);
    if (n > PARAMS_MAX)
        return err_set(e, ERR_CONFIG,
                       "config.json: %d layers of %lld experts make %lld tensors: at most %d are taken", L,
                       (long long)cfg->n_experts, (long long)n, PARAMS_MAX);
    if (param_table_alloc(t, n, e) < 0)
        return -e->code;

    add_rows(t, first, 0, -1);
    for (int l = 0; l < L; l++)
        for (int k = 0; k < ROW_LISTS && f->layer[k]; k++)
            add_rows(t, f->layer[k], l + 1, l);
    add_rows(t, last, L + 1, -1);
    return 0;
}

void param_table_close(struct param_table *t)
{
    free(t->p);
    free(t->slot);
    free(t->at);
    memset(t, 0, sizeof *t);
}

/* ---- one parameter ---- */

struct box param_box(const struct param *p)
{
    struct box b = box_whole(p->n_dims, p->shape);
    if (p->stacked) {
        b.start[0] = p->expert;
        b.extent[0] = 1;
    }
    b.start[p->split_dim] = param_index(p, p->begin);
    b.extent[p->split_dim] = param_index_end(p, p->begin + p->size) - param_index(p, p->begin);
    return b;
}

int64_t param_count(const struct param *p)
{
    struct box b = param_box(p);
    return box_count(&b);
}

int param_shape_fits(const struct param *p, int n_dims, const int64_t *shape)
{
    return n_dims == p->n_dims && !memcmp(shape, p->shape, sizeof *shape * (size_t)n_dims);
}

static void shape_text(int n, const int64_t *shape, char out[96])
{
    int at = 0;
    out[0] = 0;
    for (int i = 0; i < n && at < 90; i++)
        at += snprintf(out + at, 96 - (size_t)at, "%s%lld", i ? "," : "[", (long long)shape[i]);
    snprintf(out + (at < 94 ? at : 94), 2, "]");
}

/* The same shape but for the order of the two dims of the matrix. */
static int is_turned(const struct param *p, int n_dims, const int64_t *shape)
{
    int last = p->n_dims - 1;
    return n_dims == p->n_dims && !param_is_vector(p) && last > 0 && shape[last] == p->shape[last - 1] &&
           shape[last - 1] == p->shape[last] && !memcmp(shape, p->shape, sizeof *shape * (size_t)(last - 1));
}

char *param_shape_differs(const struct param *p, int n_dims, const int64_t *shape, char out[320])
{
    char have[96], want[96];
    const char *why = "is it the config of another model";
    if (is_turned(p, n_dims, shape))
        why = p->transposed ? "its matrices are [out][in], this family stores [in][out]"
                            : "its matrices are [in][out], this family stores [out][in]";
    shape_text(n_dims, shape, have);
    shape_text(p->n_dims, p->shape, want);
    snprintf(out, 320, "is %s, config.json says %s: %s", have, want, why);
    return out;
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
    return kind < P_KINDS && bias[kind] ? bias[kind] : P_KINDS;
}
