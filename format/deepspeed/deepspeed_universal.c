/* deepspeed_universal.c - DeepSpeed's universal form: one folder for each parameter, one file for each state.
 *
 *     zero/NAME/fp32.pt, exp_avg.pt, exp_avg_sq.pt    {"param": tensor, …}, or a bare flat tensor (if
 *                                                     converted from ZeRO-3)
 *     zero/NAME/step.pt                               absent if converted from ZeRO-3: the step is then in
 *                                                     zero/optimizer_state.pt
 *     …_model_states.pt                               shapes, weights in the working dtype, buffers */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/deepspeed/deepspeed.h"
#include "format/torch/run_state.h"

struct universal {
    struct build *b;
    const char *sub;
    struct ds_model model;
    struct ds_params params;
    struct ds_experts experts;
    int narrow;
};
static const struct {
    const char *file;
    enum ckpt_role role;
} states[FLATS] = {
    { "fp32.pt", ROLE_WEIGHT },
    { "exp_avg.pt", ROLE_EXP_AVG },
    { "exp_avg_sq.pt", ROLE_EXP_AVG_SQ },
};

static int open_at(struct universal *u, struct torch_file *t, const char *name, const char *file,
                   struct err *e)
{
    struct ckpt *c = u->b->c;
    char *full = build_text("%szero/%s%s%s", u->sub, name, *name ? "/" : "", file);
    int f = full ? build_file(c, full, e) : err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    free(full);
    return f < 0 ? f : torch_open(t, c, f, 0, c->file[f].bytes, e);
}

static int exists_at(const struct universal *u, const char *name, const char *file)
{
    char *full = build_text("%szero/%s%s%s", u->sub, name, *name ? "/" : "", file);
    int yes = full && build_exists(u->b->c, full);
    free(full);
    return yes;
}

static const struct ds_param *param_of(const struct universal *u, const char *name)
{
    for (int i = 0; i < u->params.n; i++)
        if (u->params.p[i].n_name == (int)strlen(name) && !memcmp(u->params.p[i].name, name, strlen(name)))
            return &u->params.p[i];
    return NULL;
}

/* Adds one state of a parameter. A bare flat tensor has its shape in param_shapes. */
static int add_state(struct universal *u, const char *name, int s, struct err *e)
{
    struct torch_file t = { 0 };
    struct torch_tensor x;
    const struct ds_param *p = param_of(u, name);
    enum ckpt_role role = s == FLAT_PARAM && u->narrow && p ? ROLE_MASTER : states[s].role;
    int rc = open_at(u, &t, name, states[s].file, e), i;

    if (rc < 0)
        return rc;
    const struct pk *v = t.root->kind == PK_DICT ? pk_get(t.root, "param") : t.root;
    TRY(torch_tensor(&t, v, name, &x, e));
    TRY(ds_experts_universal(t.root, &x, u->b->c->file[t.file].path, e));
    if (p && x.n_dims == 1 && p->n_dims != 1) {
        if (x.n != p->n || !x.contiguous || x.dtype != TORCH_F32) {
            rc = err_set(e, ERR_FORMAT,
                         "%s: has %lld elements, param_shapes says %lld: is it of another model",
                         u->b->c->file[t.file].path, (long long)x.n, (long long)p->n);
            goto out;
        }
        TRY(i = build_tensor(u->b, role, name, (int)strlen(name), STORED_F32, p->n_dims, p->shape, e));
        struct box whole = box_whole(u->b->c->tensor[i].n_dims, u->b->c->tensor[i].shape);
        TRY(build_piece(u->b, i, t.file, x.offset, &whole, 0, x.n, e));
    } else {
        TRY(build_whole(u->b, role, name, (int)strlen(name), &t, &x, e));
    }
out:
    torch_close(&t);
    return rc < 0 ? rc : 0;
}

static int add_param(struct universal *u, const char *name, struct err *e)
{
    struct torch_file t = { 0 };
    double step;
    int rc = 0;
    for (int s = 0; s < FLATS; s++)
        if (s == FLAT_PARAM || exists_at(u, name, states[s].file))
            TRY(add_state(u, name, s, e));
    if (exists_at(u, name, "step.pt")) {
        TRY(open_at(u, &t, name, "step.pt", e));
        TRY(torch_number(&t, t.root, name, &step, e));
        if (rc)
            TRY(build_step(u->b, step, name, e));
    }
out:
    torch_close(&t);
    return rc < 0 ? rc : 0;
}

/* Reads rank 0's optimizer state: the step, if the parameters have none, and the settings of the groups. */
static int read_leftover(struct universal *u, struct err *e)
{
    struct torch_file t = { 0 };
    double step;
    int rc = 0;

    if (!exists_at(u, "", "optimizer_state.pt"))
        return 0;
    TRY(open_at(u, &t, "", "optimizer_state.pt", e));
    const struct pk *base = pk_get(t.root, "optimizer_state_dict"),
                    *g0 = pk_get_int(pk_get(base ? base : t.root, "state"), 0);
    const struct pk *p = pk_get(g0, "step"), *group = pk_at(pk_get(base ? base : t.root, "param_groups"), 0);
    TRY(torch_number(&t, p ? p : pk_get(group, "step"), "optimizer_state.pt", &step, e));
    if (rc && !u->b->has_step)
        TRY(build_step(u->b, step, "optimizer_state.pt", e));
    for (uint32_t i = 0; (group = pk_at(pk_get(base ? base : t.root, "param_groups"), i)); i++)
        run_group(&u->b->run, &t, group);
out:
    torch_close(&t);
    return rc < 0 ? rc : 0;
}

/* Reads the model file of rank 0. Its weights in the working dtype are used unless model-parallel ranks
 * cut them. */
static int read_model(struct universal *u, const struct names *files, struct err *e)
{
    const char *first = NULL;
    int n_mp = 0, rc;

    for (int i = 0; i < files->n; i++) {
        size_t n = strlen(files->name[i]);
        if (n < 16 || strcmp(files->name[i] + n - 16, "_model_states.pt"))
            continue;
        first = first ? first : files->name[i];
        n_mp += !strncmp(files->name[i], "mp_rank_", 8);
    }

    if (!first)
        return 0;
    char *full = build_text("%s%s", u->sub, first);
    rc = full ? ds_model_open(&u->model, u->b->c, full, e)
              : err_set(e, ERR_MEMORY, "%s: no memory for a path", u->b->c->path);
    free(full);
    if (rc < 0)
        return rc;
    const char *path = u->b->c->file[u->model.t.file].path;
    if ((rc = ds_params_read(&u->params, u->model.t.root, path, e)) < 0 ||
        (rc = ds_experts_find(&u->experts, &u->params, pk_get(u->model.t.root, "ds_autoep_layers"), path,
                              e)) < 0)
        return rc;
    for (int i = 0; i < u->experts.n; i++)
        if (!u->experts.layer[i].is_stacked)
            return err_set(
                e, ERR_FORMAT,
                "%s: has experts of deepspeed.moe, and ds_to_universal does not join those of different "
                "ranks: give the folder that it was made from",
                path);
    if (u->experts.n)
        u->narrow = -1; /* the converter keeps no weights of experts but the fp32 ones */
    if ((rc = build_writer(u->b->c, "DeepSpeed, universal form", pk_get(u->model.t.root, "ds_version"), 0,
                           e)) < 0)
        return rc;
    return n_mp > 1 ? 0 : ds_model_add(u->b, &u->model, &u->params, &u->narrow, e);
}

int ds_universal_open(struct build *b, const char *sub, const struct names *files, struct err *e)
{
    struct universal u = { .b = b, .sub = sub };
    struct names l = { 0 };
    char *zero = build_text("%szero", sub), *path, of[FMT_NAME_MAX + 8];
    int rc = zero ? names_read(&l, b->c, zero, e)
                  : err_set(e, ERR_MEMORY, "%s: no memory for a path", b->c->path);

    if (rc < 0)
        goto out;
    TRY(read_model(&u, files, e));
    for (int i = 0; i < l.n; i++) {
        path = build_text("%s/%s/%s", b->c->dir, zero, l.name[i]);
        int folder = path && io_is_dir(path);
        free(path);
        if (folder &&
            !(ds_router_copy(l.name[i], (int)strlen(l.name[i]), of) && exists_at(&u, of, "fp32.pt")))
            TRY(add_param(&u, l.name[i], e));
    }

    TRY(ds_router_names(b->c, e));
    TRY(read_leftover(&u, e));
    const struct pk *ours = pk_get(u.model.t.root, RUN_STATE_KEY);
    if (ours)
        memset(&b->run, 0, sizeof b->run); /* the run state has more than the optimizer's groups */
    else if (u.model.t.root)
        run_deepspeed(&b->run, &u.model.t, pk_get(u.model.t.root, "ds_config"),
                      pk_get(u.model.t.root, "lr_scheduler"));
    TRY(build_finish(b, e));
    TRY(run_state_read(b->c, ours, e));
out:
    torch_close(&u.model.t);
    ds_params_free(&u.params);
    ds_experts_free(&u.experts);
    names_free(&l);
    free(zero);
    return rc < 0 ? rc : 0;
}
