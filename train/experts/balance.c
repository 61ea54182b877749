/* balance.c - see balance.h. */
#include "train/experts/balance.h"

#include <stdlib.h>
#include <string.h>
#include "base/alter.h"
#include "model/family.h"
#include "train/work.h"

static int64_t n_counts(const struct model *m) { return m->n_layers * m->table.cfg.n_experts; }

/* ---- opening ---- */

/* 1: routers of the model have a bias that the choice alone sees. */
static int has_correction(const struct param_table *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->p[i].kind == P_ROUTER_BIAS && t->p[i].dtype)
            return 1;
    return 0;
}

static int check(const struct work *w, struct err *e)
{
    const struct train_opts *o = &w->run->o;
    const struct model_config *c = &w->run->cfg;

    if (!c->n_experts)
        return err_set(e, ERR_USAGE, "--balance and --z-loss are for routers, and this model has no experts");
    if (o->balance == BALANCE_BIAS && !has_correction(&w->model.table))
        return err_set(e, ERR_USAGE,
                       "--balance bias: the routers of a %s model have no correction bias "
                       "(e_score_correction_bias) that the choice alone sees: use global or sequence",
                       c->family->name);
    if (o->balance == BALANCE_GLOBAL && w->plan.rows * o->seq_len > INT32_MAX)
        return err_set(e, ERR_USAGE,
                       "--balance global: a batch of %lld tokens, counts hold %d: use a smaller "
                       "--global-batch, or --balance sequence",
                       (long long)(w->plan.rows * o->seq_len), INT32_MAX);
    return 0;
}

/* Means over the sequences and tokens of the global batch. */
static void set_factors(struct work *w)
{
    const struct train_opts *o = &w->run->o;
    const struct model_config *c = &w->run->cfg;
    double T = (double)o->seq_len, rows = (double)w->plan.rows;

    if (o->balance == BALANCE_SEQUENCE)
        w->model.losses.sequence = (float)(o->balance_rate * (double)c->n_experts /
                                           ((double)c->experts_per_token * T * T * rows));
    w->model.losses.z = (float)(2 * o->z_loss / (T * rows));
}

int balance_open(struct work *w, struct err *e)
{
    const struct train_opts *o = &w->run->o;
    struct balance_counts *b = &w->balance;
    size_t n = (size_t)n_counts(&w->model);
    int rc, ok = 1;

    if (o->eval_only)
        return 0;
    if (o->balance != BALANCE_NONE || o->z_loss > 0) {
        TRY(check(w, e));
        set_factors(w);
    }
    if (!w->model.loads)
        return 0;

    b->loads = calloc(n, sizeof *b->loads);
    if (o->balance == BALANCE_GLOBAL) {
        b->before = calloc(n, sizeof *b->before);
        b->host = calloc(n, sizeof *b->host);
        b->device = dev_alloc(w->model.dev, MEM_WORK, n * sizeof *b->device);
        ok = b->before && b->host && b->device;
    }
    if (!b->loads || !ok)
        return err_set(e, ERR_MEMORY, "no memory for the loads of %zu experts", n);
    rc = 0;
out:
    return rc;
}

void balance_close(struct work *w)
{
    struct balance_counts *b = &w->balance;
    if (b->device)
        dev_free(w->model.dev, b->device);
    free(b->loads);
    free(b->before);
    free(b->host);
    memset(b, 0, sizeof *b);
}

/* ---- a step ---- */

/* The loss is rate * E / k * sum of f_e P_e: f_e is expert e's share of the rows of the step before, P_e the
 * mean of its probability over the N tokens of this step. So dL/dp_e of a token is count_e times
 * rate * E / (N * all counts). */
static float factor(const struct work *w, int64_t all)
{
    const struct train_opts *o = &w->run->o;
    double tokens = (double)w->plan.rows * (double)o->seq_len;
    return (float)(o->balance_rate * (double)w->run->cfg.n_experts / (tokens * (double)all));
}

void balance_begin_step(struct work *w)
{
    struct balance_counts *b = &w->balance;
    struct model *m = &w->model;
    int64_t n_experts = m->table.cfg.n_experts, most = 0;

    if (!b->before || !b->has_before)
        return;
    /* every layer with experts has the same sum */
    for (int64_t l = 0; l < m->n_layers; l++) {
        int64_t all = 0;
        for (int64_t x = 0; x < n_experts; x++)
            all += b->before[l * n_experts + x];
        most = all > most ? all : most;
    }
    for (int64_t i = 0; i < n_counts(m); i++)
        b->host[i] = (int32_t)b->before[i];
    dev_write(m->dev, b->device, b->host, (size_t)n_counts(m) * sizeof *b->device);
    m->losses.sequence = most ? factor(w, most) : 0;
    m->losses.counts = b->device;
}

int balance_sum(struct work *w, struct err *e)
{
    struct model *m = &w->model;
    const struct mesh *mesh = &w->ranks->mesh;
    int64_t *loads = w->balance.loads, n = n_counts(m);

    if (!loads)
        return 0;
    /* the tp ranks of a group have counted the same rows */
    memset(loads, 0, sizeof *loads * (size_t)n);
    if (!mesh->at[AXIS_TP] || ALTERED("counts_rank"))
        memcpy(loads, m->loads, sizeof *loads * (size_t)n);
    memset(m->loads, 0, sizeof *m->loads * (size_t)n);
    return ALTERED("counts_rank") ? 0 : comm_all_reduce_i64(mesh->all, loads, n, e);
}

void balance_move(float *bias, const int64_t *count, int n, float rate)
{
    int64_t all = 0;
    for (int x = 0; x < n; x++)
        all += count[x];
    for (int x = 0; x < n; x++) {
        int64_t mine = count[x] * n, mean = all;
        if (ALTERED("bias_mean")) { /* a mean that is rounded down */
            mine = count[x];
            mean = all / n;
        }
        if (mine < mean)
            bias[x] = bias[x] + rate;
        else if (mine > mean)
            bias[x] = bias[x] - rate;
    }
}

/* Every rank that has a layer holds its biases, and all of them move in the same way. */
static void move_biases(struct work *w)
{
    struct model *m = &w->model;
    int n = (int)m->table.cfg.n_experts;
    float bias[ROUTER_EXPERTS_MAX];

    for (int64_t l = 0; l < m->n_layers; l++) {
        int part = model_part(m, (int)l + 1, P_ROUTER_BIAS);
        float *own = part >= 0 ? model_own(m, part) : NULL;
        if (!own)
            continue;
        dev_read(m->dev, bias, own, sizeof *bias * (size_t)n);
        balance_move(bias, w->balance.loads + l * n, n, (float)w->run->o.balance_rate);
        dev_write(m->dev, own, bias, sizeof *bias * (size_t)n);
    }
}

void balance_update(struct work *w)
{
    struct balance_counts *b = &w->balance;
    if (w->run->o.balance == BALANCE_BIAS && b->loads)
        move_biases(w);
    if (!b->before)
        return;
    memcpy(b->before, b->loads, sizeof *b->before * (size_t)n_counts(&w->model));
    b->has_before = 1;
}

/* ---- checkpoints ---- */

struct ckpt_counts balance_kept(const struct work *w)
{
    const struct balance_counts *b = &w->balance;
    if (!b->before || !b->has_before)
        return (struct ckpt_counts){ 0 };
    return (struct ckpt_counts){ w->model.n_layers, w->model.table.cfg.n_experts, b->before };
}

int balance_restore(struct work *w, const struct ckpt_counts *counts, const char *path, struct err *e)
{
    struct balance_counts *b = &w->balance;
    const struct model *m = &w->model;
    int64_t n = n_counts(m), most = 0;

    if (!counts->count || !b->before)
        return 0;
    if (counts->n_layers != m->n_layers || counts->n_experts != m->table.cfg.n_experts)
        return err_set(e, ERR_FORMAT,
                       "%s: expert_counts has %lld layers of %lld experts, the model %lld of %lld", path,
                       (long long)counts->n_layers, (long long)counts->n_experts, (long long)m->n_layers,
                       (long long)m->table.cfg.n_experts);
    for (int64_t i = 0; i < n; i++)
        most = counts->count[i] > most ? counts->count[i] : most;
    if (most > INT32_MAX)
        return err_set(e, ERR_FORMAT, "%s: expert_counts holds %lld, a step has %d tokens at most", path,
                       (long long)most, INT32_MAX);
    memcpy(b->before, counts->count, sizeof *b->before * (size_t)n);
    b->has_before = 1;
    return 0;
}
