/* adapter_table.c - the parameter table of an adapter, made from that of its base: see adapter.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model/units.h"

int adapter_computed(const struct param *p)
{
    static const char computed[P_KINDS] = {
        [P_Q] = 1,    [P_K] = 1,       [P_V] = 1,           [P_O] = 1,         [P_QKV] = 1,
        [P_GATE] = 1, [P_UP] = 1,      [P_DOWN] = 1,        [P_Q_A] = 1,       [P_Q_B] = 1,
        [P_KV_A] = 1, [P_GATE_UP] = 1, [P_SHARED_GATE] = 1, [P_SHARED_UP] = 1, [P_SHARED_DOWN] = 1,
    };
    return p->kind < P_KINDS && computed[p->kind] && !p->dtype && !param_is_vector(p);
}

static const char *why_not(const struct param *p)
{
    if (p->kind == P_KV_B)
        return "this matrix of latent attention";
    return param_is_vector(p) ? "vectors" : "this matrix";
}

/* Dims of a matrix in its tensor: outputs and inputs. */
static int out_dim(const struct param *p) { return p->stacked + (p->transposed ? 1 : 0); }
static int in_dim(const struct param *p) { return p->stacked + (p->transposed ? 0 : 1); }

/* "X.weight" -> "X.lora_A.weight", "X" -> "X.lora_A". */
static int set_name(struct param *p, const struct param *base, char factor, struct err *e)
{
    size_t n = strlen(base->name), end = strlen(".weight");
    int has = n > end && !strcmp(base->name + n - end, ".weight");
    int length = snprintf(p->name, sizeof p->name, "%.*s.lora_%c%s", (int)(has ? n - end : n), base->name,
                          factor, has ? ".weight" : "");
    if (length >= (int)sizeof p->name)
        return err_set(e, ERR_CONFIG, "%s: this name is too long for an adapter (%d characters, at most %d)",
                       base->name, length, (int)sizeof p->name - 1);
    return 0;
}

/* A factor of one parameter, not cut by tp: rows x cols, row-major. */
static struct param factor_of(const struct param *base, enum param_kind kind, int64_t rows, int64_t cols)
{
    struct param p = { .kind = kind,
                       .unit = base->unit,
                       .layer = base->layer,
                       .expert = base->expert,
                       .n_experts = base->n_experts,
                       .group = base->group,
                       .n_dims = base->stacked + 2,
                       .stacked = base->stacked,
                       .split = SPLIT_COPY,
                       .split_unit = base->split_unit,
                       .split_dim = base->stacked,
                       .size = rows,
                       .block = 1,
                       .n_alternating = 1,
                       .n_fused = 1,
                       .n_sharing = !base->stacked || !base->expert,
                       .companion = -1,
                       .companion_of = -1,
                       .decay = 1 };
    for (int d = 0; d < BOX_DIMS; d++)
        p.shape[d] = 1;
    p.shape[0] = base->shape[0];
    p.shape[p.stacked] = rows;
    p.shape[p.stacked + 1] = cols;
    return p;
}

/* Cuts dim `dim` of a factor as the base is cut. */
static void cut_as(struct param *p, const struct param *base, int dim)
{
    p->split = base->split;
    p->split_dim = p->stacked + dim;
    p->begin = base->begin;
    p->size = base->size;
    p->n_alternating = base->n_alternating;
    memcpy(p->alternating, base->alternating, sizeof p->alternating);
}

/* A of a tensor, then B of each of its parameters from `first` on. */
static int add_tensor(struct param_table *t, const struct model *base, const struct adapter_matrix *x,
                      int *a_of, float *scale, struct err *e)
{
    const struct param *q = &base->table.p[x->param];
    int64_t in = q->shape[in_dim(q)], out = q->shape[out_dim(q)];
    int by_inputs = q->split != SPLIT_COPY && q->split_dim == in_dim(q), a = t->n;
    int n = q->n_fused > 1 ? q->n_fused : 1;

    for (int k = -1; k < n; k++) {
        const struct param *of = q + (k < 0 ? 0 : k);
        int is_b = k >= 0;
        struct param p = is_b ? factor_of(of, P_LORA_B + of->kind, out, x->rank)
                              : factor_of(of, of->kind, x->rank, in);
        if (is_b ? !by_inputs : by_inputs)
            cut_as(&p, of, is_b ? 0 : 1);
        if (is_b) {
            p.n_fused = of->n_fused;
            p.n_sharing = of->n_sharing;
        }
        p.init = is_b ? INIT_ZEROS : INIT_UNIFORM;
        p.init_range = 1.0 / sqrt((double)in); /* kaiming_uniform_ with a = sqrt 5, as in PEFT */
        if (set_name(&p, of, is_b ? 'B' : 'A', e) < 0)
            return -e->code;
        a_of[t->n] = is_b ? a : -1;
        scale[t->n] = x->scale;
        t->p[t->n] = p;
        param_table_note(t, t->n++);
    }
    return 0;
}

/* ---- the list ---- */

static int by_param(const void *a, const void *b)
{
    const struct adapter_matrix *x = a, *y = b;
    return (x->param > y->param) - (x->param < y->param);
}

static int check_matrix(const struct model *base, const struct adapter_matrix *x, struct err *e)
{
    const struct param *q = &base->table.p[x->param];

    if (!adapter_computed(q))
        return err_set(e, ERR_CONFIG,
                       "%s: adapters of %s are not computed: merge the adapter into the model (reshard cp "
                       "--merge)",
                       q->name, why_not(q));
    if (x->rank < 1)
        return err_set(e, ERR_USAGE, "%s: a rank of %lld: an adapter has a rank of 1 at least", q->name,
                       (long long)x->rank);
    if (!isfinite(x->scale))
        return err_set(e, ERR_CONFIG,
                       "%s: the factor of its adapter is %g, which fp32 does not hold: lower alpha", q->name,
                       (double)x->scale);
    if (base->dev && x->rank > base->adapter_rank)
        return err_set(e, ERR_USAGE, "%s: rank %lld, adapters of a rank up to %lld have room here", q->name,
                       (long long)x->rank, (long long)base->adapter_rank);
    return 0;
}

/* A sorted copy of the list, checked; *rows: parameters of the table. */
static struct adapter_matrix *sorted(const struct model *base, const struct adapter_matrix *list, int n,
                                     int64_t *rows, struct err *e)
{
    struct adapter_matrix *x = malloc((size_t)(n + 1) * sizeof *x);
    if (!x) {
        err_set(e, ERR_MEMORY, "no memory for a list of %d matrices", n);
        return NULL;
    }
    *rows = 0;
    memcpy(x, list, (size_t)n * sizeof *x);
    qsort(x, (size_t)n, sizeof *x, by_param);
    for (int i = 0; i < n; i++) {
        const struct param *q = &base->table.p[x[i].param];
        int rc = check_matrix(base, &x[i], e);
        if (rc >= 0 && i && x[i].param == x[i - 1].param)
            rc = err_set(e, ERR_CONFIG, "%s: an adapter changes it twice", q->name);
        if (rc < 0) {
            free(x);
            return NULL;
        }
        *rows += 1 + (q->n_fused > 1 ? q->n_fused : 1);
    }
    return x;
}

/* Experts of a layer are one product: all of them are changed, alike. scale: of the rows of t. */
static int check_experts(const struct param_table *t, const float *scale, const struct adapter_matrix *list,
                         int n, const struct param_table *base, struct err *e)
{
    for (int i = 0; i < n; i++) {
        const struct param *q = &base->p[list[i].param];
        int first = param_at(t, q->unit, q->kind, 0);
        int64_t all = q->n_experts ? q->n_experts : base->cfg.n_experts;
        if (q->expert < 0)
            continue;
        int last = param_at(t, q->unit, q->kind, (int)all - 1);
        if (last < 0 || t->p[last].expert != all - 1 || t->p[first].shape[q->stacked] != list[i].rank)
            return err_set(e, ERR_CONFIG,
                           "%s: an adapter changes all experts of a layer with one rank, or none of them",
                           q->name);
        if (scale[first] != list[i].scale)
            return err_set(
                e, ERR_CONFIG,
                "%s: the factor of its adapter is %g, that of expert 0 is %g: adapters are computed "
                "for experts with one factor (reshard cp --merge takes others)",
                q->name, (double)list[i].scale, (double)scale[first]);
    }
    return 0;
}

int adapter_table_open(struct param_table *t, const struct model *base, const struct adapter_matrix *list,
                       int n, int **a_of, float **scale, struct err *e)
{
    int64_t rows;
    struct adapter_matrix *x = sorted(base, list, n, &rows, e);
    int rc;

    memset(t, 0, sizeof *t);
    *a_of = NULL;
    *scale = NULL;
    if (!x)
        return -e->code;
    t->cfg = base->table.cfg;
    t->cfg.tied = 0;
    t->n_units = base->table.n_units;
    *a_of = malloc((size_t)(rows + 1) * sizeof **a_of);
    *scale = malloc((size_t)(rows + 1) * sizeof **scale);
    rc = *a_of && *scale ? param_table_alloc(t, rows + 1, e)
                         : err_set(e, ERR_MEMORY, "no memory for the table of an adapter");
    for (int i = 0; rc >= 0 && i < n; i++)
        rc = add_tensor(t, base, &x[i], *a_of, *scale, e);
    if (rc >= 0)
        rc = check_experts(t, *scale, x, n, &base->table, e);
    free(x);
    return rc;
}
