/* merge_fit.c - which tensor of the model takes which part of an adapter; see merge_priv.h. */
#include <stdio.h>
#include <string.h>
#include "format/fmt.h"
#include "format/hf/fused_experts.h"
#include "format/peft/merge_priv.h"

static int find_module(const struct peft_merge *m, const char *name, int is_param)
{
    int lo = 0, hi = m->a.n;
    while (lo < hi) {
        int mid = (lo + hi) / 2, c = strcmp(m->a.module[mid].name, name);
        if (c == 0)
            return m->a.module[mid].is_param == is_param ? mid : -1;
        *(c < 0 ? &lo : &hi) = c < 0 ? mid + 1 : mid;
    }
    return -1;
}

static int find_saved(const struct peft_merge *m, const char *name)
{
    int lo = 0, hi = m->a.n_saved;
    while (lo < hi) {
        int mid = (lo + hi) / 2, c = strcmp(m->a.saved[mid].name, name);
        if (c == 0)
            return mid;
        *(c < 0 ? &lo : &hi) = c < 0 ? mid + 1 : mid;
    }
    return -1;
}

/* The module of a tensor of that name: "X.weight" of the module X, or the parameter itself. */
static int module_of(const struct peft_merge *m, const char *name)
{
    char x[700];
    size_t n = strlen(name);
    int at = find_module(m, name, 1);
    if (at >= 0 || n <= 7 || strcmp(name + n - 7, ".weight"))
        return at;
    snprintf(x, sizeof x, "%.*s", (int)(n - 7), name);
    return find_module(m, x, 0);
}

static const char *shape_text(int n, const int64_t *s, char out[80])
{
    size_t at = (size_t)snprintf(out, 80, "[");
    for (int d = 0; d < n && at < 60; d++)
        at += (size_t)snprintf(out + at, 80 - at, "%s%lld", d ? "," : "", (long long)s[d]);
    snprintf(out + at, 80 - at, "]");
    return out;
}

static int another_model(const struct merge_job *j, int tensor, struct err *e)
{
    char ours[80], theirs[80];
    const struct ckpt_tensor *a = ckpt_tensor(j->m->adapter, tensor);
    const char *base = j->m->a.config.base;
    return err_set(e, ERR_CONFIG,
                   "%s: %s is %s, %s of the model is %s: is the adapter of another model%s%.200s%s",
                   j->m->path, a->name, shape_text(a->n_dims, a->shape, ours), j->t->name,
                   shape_text(j->t->n_dims, j->t->shape, theirs), base && *base ? " (its base is " : "",
                   base && *base ? base : "", base && *base ? ")" : "");
}

/* Matrices that lie as [in, out]: transformers' Conv1D. */
static int is_conv1d(const struct peft_merge *m, const char *name)
{
    static const char *const types[] = { "gpt2", "openai-gpt", "imagegpt", "decision_transformer" };
    static const char *const ends[] = { ".c_attn.weight", ".c_proj.weight", ".c_fc.weight",
                                        ".q_attn.weight" };
    size_t n = strlen(name);
    int by_type = !*m->type && m->a.config.fan_in_fan_out, by_name = 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        by_type |= !strcmp(m->type, types[i]);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        by_name |= n > strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i]);
    return by_type && by_name;
}

/* 1: PEFT takes the experts of this model as [in, out]; 0: as [out, in]; -1: its version is not known. */
static int experts_turned(const struct peft_merge *m)
{
    static const char *const types[] = { "gpt_oss", "openai_privacy_filter" };
    if (m->a.config.experts != PEFT_EXPERTS_BY_MODULE)
        return m->a.config.experts == PEFT_EXPERTS_IN_OUT ? 1 : -1;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(m->type, types[i]))
            return 1;
    return 0;
}

/* Fits the module to the matrices of a tensor, rows x cols in the module; sets which dim is which. The shapes
 * say it, but for square matrices. */
static int fit(struct merge_job *j, int64_t rows, int64_t cols, int is_experts, struct err *e)
{
    const struct peft_module *m = j->mod;
    const int straight = m->out == rows && m->in == cols, turned = m->in == rows && m->out == cols;
    if (m->is_embedding && turned)
        return 0;
    if (m->is_embedding || (!straight && !turned))
        return another_model(j, m->is_embedding ? m->a : straight ? m->a : m->b, e);

    int wants = is_experts ? experts_turned(j->m) : is_conv1d(j->m, j->t->name);
    if (straight && turned && wants < 0)
        return err_set(e, ERR_FORMAT,
                       "%s: " PEFT_CONFIG
                       " has no peft_version, and %s is square: its versions before 0.19 turn "
                       "such matrices round: add the version",
                       j->m->path, m->name);
    if (turned && !straight && !is_experts && !is_conv1d(j->m, j->t->name))
        return another_model(j, m->a, e);
    j->transposed = straight && turned ? wants : turned;
    return 0;
}

/* place: of a tensor of one expert in the fused form, or NULL. */
static int fit_module(struct merge_job *j, const struct fused_place *place, struct err *e)
{
    const struct ckpt_tensor *t = j->t;
    const struct peft_module *m = j->mod;
    const int stacked = t->n_dims == 3 && m->is_param;
    if (!stored_is_float(t->dtype))
        return err_set(e, ERR_USAGE,
                       "%s: %s of the model is stored as %s: give --dequantize bf16, or a model in floats",
                       j->m->path, t->name, stored_dtype_name(t->dtype));
    if (!stored_is_float(ckpt_tensor(j->m->adapter, m->a)->dtype) ||
        !stored_is_float(ckpt_tensor(j->m->adapter, m->b)->dtype))
        return err_set(e, ERR_FORMAT, "%s: the factors of %s are no floats: is the file damaged", j->m->path,
                       m->name);
    if (t->n_dims != (stacked ? 3 : 2) || (stacked && t->shape[0] != m->n_experts) ||
        (place && place->expert >= m->n_experts) || (!place && !stacked && m->n_experts != 1))
        return another_model(j, m->a, e);

    j->expert = place ? place->expert : stacked ? -1 : 0;
    int n_parts = place ? place->n_parts : 1;
    int rc = fit(j, t->shape[t->n_dims - 2] * n_parts, t->shape[t->n_dims - 1], place || stacked, e);
    j->n_parts = n_parts;
    if (place)
        j->first_row = t->shape[0] * place->part;
    return rc;
}

/* 1: tensor i takes something of the adapter, *j says what. */
static int find_job(struct peft_merge *m, const struct ckpt *c, int i, const struct expert_form *form,
                    struct merge_job *j, struct err *e)
{
    struct fused_place place = { .expert = -1 };
    const struct ckpt_tensor *t = ckpt_tensor(c, i);
    int is_part = 0, mod = module_of(m, t->name), saved = find_saved(m, t->name), rc = 0;
    *j = (struct merge_job){ .m = m, .t = t, .from = i, .saved = -1 };
    if (form && (rc = fused_experts_place(form, t->name, &place, e)) < 0)
        return rc;
    if (mod < 0 && form) {
        mod = module_of(m, place.name);
        is_part = mod >= 0 && place.expert >= 0;
    }
    if (saved < 0 && form && place.expert < 0)
        saved = find_saved(m, place.name);

    if (saved >= 0) {
        const struct ckpt_tensor *s = ckpt_tensor(m->adapter, m->a.saved[saved].tensor);
        j->saved = m->a.saved[saved].tensor;
        m->is_used[m->a.n + saved] = 1;
        if (s->n_dims != t->n_dims || memcmp(s->shape, t->shape, sizeof *s->shape * (size_t)s->n_dims))
            return another_model(j, j->saved, e);
        if (s->dtype != t->dtype && (!stored_is_float(s->dtype) || !stored_is_float(t->dtype)))
            return err_set(e, ERR_USAGE, "%s: %s is %s, in the model %s: one cannot become the other",
                           m->path, s->name, stored_dtype_name(s->dtype), stored_dtype_name(t->dtype));
    }
    if (mod >= 0) {
        j->mod = &m->a.module[mod];
        m->is_used[mod] = 1;
        m->n_used[mod]++;
        rc = fit_module(j, is_part ? &place : NULL, e);
    }
    return rc < 0 ? rc : mod >= 0 || saved >= 0;
}

/* Everything of the adapter must have found its place. */
static int check_used(const struct peft_merge *m, struct err *e)
{
    const char *base = *m->a.config.base ? m->a.config.base : "unknown";
    for (int i = 0; i < m->a.n + m->a.n_saved; i++) {
        if (m->is_used[i])
            continue;
        const char *name = i < m->a.n ? m->a.module[i].name : m->a.saved[i - m->a.n].name,
                   *end = i < m->a.n && !m->a.module[i].is_param ? ".weight" : "";
        if (m->config && strstr(m->config, "\"quantization_config\""))
            return err_set(e, ERR_USAGE,
                           "%s: the model has no weight %s%s, and is quantised: give --dequantize bf16 too",
                           m->path, name, end);
        return err_set(e, ERR_CONFIG,
                       "%s: the model has no weight %s%s (a tied one has another name): is the adapter of "
                       "another model (its base is %.200s)",
                       m->path, name, end, base);
    }
    return 0;
}

/* Of a parameter of experts all experts, and all parts of them. */
static int check_experts(const struct peft_merge *m, const struct merge_job *list, int n, struct err *e)
{
    for (int i = 0; i < n; i++) {
        const struct peft_module *mod = list[i].mod;
        int64_t used = mod ? m->n_used[mod - m->a.module] : 0;
        if (mod && list[i].expert >= 0 && used != mod->n_experts * list[i].n_parts)
            return err_set(
                e, ERR_CONFIG,
                "%s: %s has %lld experts, the model %lld tensors for them: is the adapter of another "
                "model",
                m->path, mod->name, (long long)mod->n_experts, (long long)used);
    }
    return 0;
}

int merge_find_jobs(struct peft_merge *m, const struct ckpt *c, struct err *e)
{
    const struct expert_form *form = expert_form_of(m->config);
    int rc = 0;
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        if (ckpt_tensor(c, i)->role != ROLE_WEIGHT)
            continue;
        if ((rc = find_job(m, c, i, form, &m->job[m->n_jobs], e)) < 0)
            return rc;
        m->n_jobs += rc;
    }
    rc = check_used(m, e);
    return rc < 0 ? rc : check_experts(m, m->job, m->n_jobs, e);
}
