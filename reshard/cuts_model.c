/* cuts_model.c - see cuts.h: the parameters of a checkpoint's tensors under a cut table. */
#include <stdlib.h>
#include <string.h>
#include "reshard/cuts.h"

#define PARAMS_MAX (1 << 22)

/* A tensor and the row that it is in. */
struct placed {
    const struct ckpt_tensor *t;
    const struct cut_row *row; /* NULL: in none */
    int64_t layer, expert;     /* -1: none */
    int unit;
    int64_t n_experts; /* of its layer */
    int64_t values;    /* of the cut dim, in the weight of a companion; 0: see values_of() */
};

/* What all messages about a tensor begin with. */
#define ROW_AT "%s: line %d: %s: "
#define ROW(c, q) (c)->what, (q)->row->line, (q)->t->name

/* ---- which row ---- */

static int has_shape(const struct cut_row *r, const struct ckpt_tensor *t)
{
    int same = !r->n_shape || r->n_shape == t->n_dims;
    for (int d = 0; d < r->n_shape; d++)
        same = same && (!r->shape[d] || r->shape[d] == t->shape[d]);
    return same;
}

/* A matrix that lies turned round would be cut the wrong way. */
static int shape_wrong(const struct cuts *c, const struct cut_row *r, const struct ckpt_tensor *t,
                       struct err *e)
{
    char have[BOX_DIMS * 24] = "", want[BOX_DIMS * 24] = "";
    int have_at = 0, want_at = 0;
    for (int d = 0; d < t->n_dims; d++)
        have_at += sprintf(have + have_at, "%s%lld", d ? "," : "", (long long)t->shape[d]);
    for (int d = 0; d < r->n_shape; d++)
        want_at += r->shape[d] ? sprintf(want + want_at, "%s%lld", d ? "," : "", (long long)r->shape[d])
                               : sprintf(want + want_at, "%s*", d ? "," : "");
    return err_set(e, ERR_CONFIG,
                   "%s: line %d: %s: is [%s], the row says [%s]: is it turned round, or of another model",
                   c->what, r->line, t->name, have, want);
}

static int find_row(struct cuts *c, struct placed *q, struct err *e)
{
    const struct cut_row *other = NULL; /* fits the name, but not the shape */
    for (int i = 0; i < c->n; i++) {
        int64_t layer, expert;
        if (!cuts_row_match(&c->row[i], q->t->name, &layer, &expert))
            continue;
        if (!has_shape(&c->row[i], q->t)) {
            other = &c->row[i];
            continue;
        }
        if (q->row && q->row->n_shape && c->row[i].n_shape)
            continue;
        if (q->row)
            return err_set(e, ERR_CONFIG,
                           "%s: %s is in lines %d and %d: narrow one of the patterns, or remove the line",
                           c->what, q->t->name, q->row->line, c->row[i].line);
        c->row[i].n_matched++;
        q->row = &c->row[i];
        q->layer = layer;
        q->expert = expert;
    }
    return !q->row && other ? shape_wrong(c, other, q->t, e) : 0;
}

static int check_rows(const struct cuts *c, struct err *e)
{
    for (int i = 0; i < c->n; i++)
        if (!c->row[i].n_matched && !c->row[i].optional)
            return err_set(e, ERR_CONFIG,
                           "%s: line %d: no tensor fits %.80s: correct the pattern, or add the word optional",
                           c->what, c->row[i].line, c->row[i].pattern);
    return 0;
}

/* ---- sizes of the model ---- */

static int compare_placed(const void *pa, const void *pb)
{
    const struct placed *a = pa, *b = pb;
    return a->unit != b->unit ? (a->unit > b->unit) - (a->unit < b->unit) : strcmp(a->t->name, b->t->name);
}

/* Units: the first one, the layers, the last one. */
static void set_units(struct cut_model *m, struct placed *q, int n)
{
    int64_t layers = 1; /* no layer: one empty one */
    for (int i = 0; i < n; i++)
        layers = q[i].layer >= layers ? q[i].layer + 1 : layers;
    m->table.cfg.n_layers = layers;
    m->table.n_units = (int)layers + 2;
    for (int i = 0; i < n; i++)
        q[i].unit = q[i].layer >= 0 ? (int)q[i].layer + 1 : q[i].row && q[i].row->last ? (int)layers + 1 : 0;
    qsort(q, (size_t)n, sizeof *q, compare_placed);
}

static int is_stacked(const struct placed *q) { return q->row && q->row->stacked; }

/* How many experts a layer has: numbers at {expert}, or dim 0. q is sorted by units. The table's number is
 * that of the layer with the fewest. */
static void count_experts(struct cut_model *m, struct placed *q, int n)
{
    int64_t *fewest = &m->table.cfg.n_experts;
    for (int i = 0, end; i < n; i = end) {
        int64_t count = 0;
        for (end = i; end < n && q[end].unit == q[i].unit; end++) {
            int64_t have = is_stacked(&q[end]) ? q[end].t->shape[0] : q[end].expert + 1;
            count = have > count ? have : count;
        }
        for (int k = i; k < end; k++)
            q[k].n_experts = count;
        if (count && (!*fewest || count < *fewest))
            *fewest = count;
    }
}

/* ---- one tensor ---- */

static int64_t n_params(const struct placed *q)
{
    return q->row ? q->row->n_parts * (q->row->stacked ? q->t->shape[0] : 1) : 1;
}

static int64_t parts_sum(const struct cut_row *r)
{
    int64_t sum = 0;
    for (int k = 0; k < r->n_parts; k++)
        sum += r->part[k];
    return sum;
}

static int64_t values_of(const struct placed *q)
{
    if (q->values)
        return q->values;
    return q->row->values ? q->row->values : q->t->shape[q->row->dim] * q->row->block;
}

static int64_t unit_of(const struct cut_row *r, int part) { return r->unit[r->n_units > 1 ? part : 0]; }

/* One part of the tensor: does tp divide its units? */
static int check_units(const struct cuts *c, const struct placed *q, int part, int64_t size,
                       const struct layout *l, struct err *e)
{
    const struct cut_row *r = q->row;
    int64_t n = size / r->interleave, unit = unit_of(r, part), units = n / unit;
    if (n % unit)
        return err_set(e, ERR_CONFIG, ROW_AT "%lld values of dim %d are no multiple of unit %lld", ROW(c, q),
                       (long long)n, r->dim, (long long)unit);
    if (((r->stacked || q->expert >= 0) && l->ep > 1) || units % l->tp == 0)
        return 0;
    if (r->copies && l->tp % units == 0)
        return 0;
    return err_set(e, ERR_USAGE,
                   ROW_AT "--tp %d does not divide the %lld units of dim %d: use a divisor, or give the row "
                          "blocks (uneven parts) or copies (fewer units than ranks)",
                   ROW(c, q), l->tp, (long long)units, r->dim);
}

static int check_tensor(const struct cuts *c, const struct placed *q, const struct layout *l, struct err *e)
{
    const struct cut_row *r = q->row;
    int rc = 0;
    if (!r || r->rule == CUT_WHOLE)
        return 0;
    if (r->dim >= q->t->n_dims)
        return err_set(e, ERR_CONFIG, ROW_AT "has %d dims, the row cuts dim %d: dims count from 0", ROW(c, q),
                       q->t->n_dims, r->dim);

    int64_t values = values_of(q), sum = parts_sum(r), have = q->t->shape[r->dim];
    if ((values + r->block - 1) / r->block != have)
        return err_set(e, ERR_CONFIG, ROW_AT "%lld values in blocks of %d are not the %lld indices of dim %d",
                       ROW(c, q), (long long)values, r->block, (long long)have, r->dim);
    if (values % sum)
        return err_set(e, ERR_CONFIG, ROW_AT "the %lld values of dim %d are no multiple of the parts' %lld",
                       ROW(c, q), (long long)values, r->dim, (long long)sum);
    for (int k = 0; k < r->n_parts && rc >= 0; k++) {
        int64_t size = values / sum * r->part[k];
        if (size % r->interleave || (r->n_parts > 1 && size % r->block))
            return err_set(e, ERR_CONFIG,
                           ROW_AT "part %d has %lld values, no multiple of interleave %d and block %d",
                           ROW(c, q), k, (long long)size, r->interleave, r->block);
        rc = r->rule == CUT_UNITS ? check_units(c, q, k, size, l, e) : 0;
    }
    return rc;
}

static void add_param(struct cut_model *m, const struct placed *q, int64_t expert, int k, int64_t begin,
                      int64_t size)
{
    static const enum param_split split[] = {
        [CUT_WHOLE] = SPLIT_COPY, [CUT_UNITS] = SPLIT_UNITS, [CUT_BLOCKS] = SPLIT_BLOCKS
    };
    static const struct cut_row whole = {
        .n_units = 1, .unit = { 1 }, .n_parts = 1, .interleave = 1, .block = 1
    };
    const struct cut_row *r = q->row ? q->row : &whole;
    struct param *p = &m->table.p[m->table.n];
    m->name[m->table.n++] = q->t->name;

    *p = (struct param){ .unit = q->unit,
                         .layer = (int)q->layer,
                         .expert = (int)expert,
                         .n_experts = (int)q->n_experts,
                         .group = expert >= 0 ? GROUP_EXPERT : GROUP_DENSE,
                         .n_dims = q->t->n_dims,
                         .stacked = r->stacked,
                         .split = split[r->rule],
                         .split_unit = unit_of(r, k),
                         .split_dim = r->stacked && r->rule == CUT_WHOLE ? q->t->n_dims - 1 : r->dim,
                         .begin = begin,
                         .size = size,
                         .block = r->block,
                         .n_fused = k ? 0 : r->n_parts,
                         .n_alternating = r->interleave,
                         .companion = -1,
                         .companion_of = -1 };
    memcpy(p->shape, q->t->shape, sizeof p->shape);
    if (stored_dtype_bits(q->t->dtype) % 8) /* ZeRO does not cut inside bytes */
        p->dtype = stored_dtype_name(q->t->dtype);
    if (r->rule == CUT_WHOLE)
        p->size = p->shape[p->split_dim];
}

static void add_tensor(struct cut_model *m, const struct placed *q)
{
    const struct cut_row *r = q->row;
    int64_t n_experts = r && r->stacked ? q->t->shape[0] : 1;
    for (int64_t x = 0; x < n_experts; x++) {
        int64_t expert = r && r->stacked ? x : q->expert, begin = 0;
        for (int k = 0; k < (r ? r->n_parts : 1); k++) {
            int64_t size = r && r->rule != CUT_WHOLE ? values_of(q) / parts_sum(r) * r->part[k] : 0;
            add_param(m, q, expert, k, begin, size);
            begin += size;
        }
    }
}

/* ---- companions ---- */

/* The pattern with the numbers of q. */
static void weight_name(const struct placed *q, char out[1024])
{
    size_t at = 0;
    for (const char *s = q->row->companion; *s && at < 1000;) {
        int is_layer = !strncmp(s, "{layer}", 7), is_expert = !strncmp(s, "{expert}", 8);
        if (is_layer || is_expert)
            at += (size_t)sprintf(out + at, "%lld", (long long)(is_layer ? q->layer : q->expert));
        else
            out[at++] = *s;
        s += is_layer ? 7 : is_expert ? 8 : 1;
    }
    out[at] = 0;
}

/* The values of companions, from their weights. q is sorted by name. */
static int find_weights(const struct cuts *c, struct placed *q, int n, struct err *e)
{
    for (int i = 0; i < n; i++) {
        char name[1024];
        if (!q[i].row || !q[i].row->companion)
            continue;
        weight_name(&q[i], name);
        struct ckpt_tensor t = { .name = name };
        struct placed key = { .t = &t };
        const struct placed *w = bsearch(&key, q, (size_t)n, sizeof *q, compare_placed);
        if (!w)
            return err_set(e, ERR_CONFIG, ROW_AT "there is no %.200s, whose companion this is", ROW(c, &q[i]),
                           name);
        if (q[i].row->rule != CUT_WHOLE && w->row && w->t->n_dims > w->row->dim)
            q[i].values = values_of(w);
    }
    return 0;
}

/* ---- all tensors ---- */

static int check_layout(struct cut_model *m, const struct layout *l, struct err *e)
{
    m->table.cfg.n_heads = m->table.cfg.n_kv = l->tp; /* rows say what tp divides */
    return layout_check(l, &m->table.cfg, e);
}

static int make(struct cut_model *m, struct cuts *c, struct placed *q, int n, const struct layout *l,
                struct err *e)
{
    int64_t total = 0;
    int rc = 0;
    for (int i = 0; i < n && rc >= 0; i++)
        rc = find_row(c, &q[i], e);
    TRY(rc);
    TRY(check_rows(c, e));
    qsort(q, (size_t)n, sizeof *q, compare_placed);
    TRY(find_weights(c, q, n, e));
    set_units(m, q, n);
    count_experts(m, q, n);
    for (int i = 0; i < n; i++) {
        TRY(check_tensor(c, &q[i], l, e));
        if (!q[i].row && !m->n_unmatched++)
            m->unmatched = q[i].t->name;
        total += n_params(&q[i]);
        if (total > PARAMS_MAX)
            return err_set(e, ERR_CONFIG, "%s: %s makes more than %d parameters: is dim 0 the experts",
                           c->what, q[i].t->name, PARAMS_MAX);
    }
    m->table.cfg.grain = c->grain ? c->grain : 1;
    TRY(check_layout(m, l, e));

    m->table.p = calloc((size_t)total + 1, sizeof *m->table.p);
    m->name = calloc((size_t)total + 1, sizeof *m->name);
    if (!m->table.p || !m->name)
        return err_set(e, ERR_MEMORY, "no memory for a table of %lld parameters", (long long)total);
    for (int i = 0; i < n; i++)
        add_tensor(m, &q[i]);
out:
    return rc < 0 ? rc : 0;
}

int cut_model_open(struct cut_model *m, struct cuts *c, const struct ckpt_tensor *const *t, int n,
                   const struct layout *l, struct err *e)
{
    struct placed *q = calloc((size_t)n + 1, sizeof *q);
    memset(m, 0, sizeof *m);
    if (!q)
        return err_set(e, ERR_MEMORY, "no memory for a plan of %d tensors", n);
    for (int i = 0; i < n; i++)
        q[i] = (struct placed){ .t = t[i], .layer = -1, .expert = -1 };
    for (int i = 0; i < c->n; i++)
        c->row[i].n_matched = 0;
    int rc = make(m, c, q, n, l, e);
    free(q);
    if (rc < 0)
        cut_model_close(m);
    return rc;
}

void cut_model_close(struct cut_model *m)
{
    param_table_close(&m->table);
    free(m->name);
    memset(m, 0, sizeof *m);
}
