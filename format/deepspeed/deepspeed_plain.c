/* deepspeed_plain.c - DeepSpeed's experts without ZeRO: an ordinary optimizer for each expert-parallel rank.
 *
 *     mp_rank_00_model_states.pt                   module: what belongs to no expert
 *     layer_L_expert_E_mp_rank_00_model_states.pt  experts (deepspeed_experts.c)
 *     expp_rank_R_mp_rank_00_optim_states.pt       state by number: the state_dict of the optimizer, or of
 *                                                  the one around it, whose fp32_groups are masters
 * The numbers of a group follow the model; a group is of experts (moe) or of the rest. Of several groups of
 * one kind matrices come before vectors, or after. Shapes must fit, else the state is left out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/deepspeed/deepspeed.h"

struct plain {
    struct build *b;
    const char *sub;
    const struct names *files;
    struct ds_model model;
    struct ds_params params; /* those of the module, then those of a rank's experts, in the model's order */
    struct ds_experts experts;
    char **text; /* [n_text] names of experts' parameters */
    int n_text, n_dense, ep, narrow;
};

static int no_memory(const struct plain *z, struct err *e)
{
    return err_set(e, ERR_MEMORY, "%s: no memory for its parameters", z->b->c->path);
}

static int open_named(struct plain *z, struct torch_file *t, const char *name, struct err *e)
{
    struct ckpt *c = z->b->c;
    char *full = build_text("%s%s", z->sub, name);
    int file = full ? build_file(c, full, e) : no_memory(z, e);
    free(full);
    return file < 0 ? file : torch_open(t, c, file, 0, c->file[file].bytes, e);
}

/* ---- parameters ---- */

/* Appends a parameter; lead: experts that its first dim stacks, 0: it is none. */
static int add_param(struct plain *z, const char *name, int n, const struct torch_tensor *x, int64_t lead,
                     struct err *e)
{
    struct ds_param *grown = realloc(z->params.p, sizeof *grown * (size_t)(z->params.n + 1));
    if (!grown)
        return no_memory(z, e);
    z->params.p = grown;
    struct ds_param *p = &grown[z->params.n++];
    *p = (struct ds_param){ .name = name, .n_name = n, .n = x->n, .layer = -1, .local = -1 };
    if (x->n_dims + (lead > 0) > BOX_DIMS)
        return err_set(e, ERR_FORMAT, "%s: %.*s has %d dims: is the file damaged", z->b->c->path, n, name,
                       x->n_dims);
    if (lead) {
        p->shape[p->n_dims++] = lead;
        p->n *= lead;
    }
    for (int d = 0; d < x->n_dims; d++)
        p->shape[p->n_dims++] = x->shape[d];
    return 0;
}

static int is_buffer(const struct plain *z, const struct pk *key)
{
    const struct pk *one;
    for (uint32_t i = 0; (one = pk_at(z->model.buffers, i)); i++)
        if (one->kind == PK_TEXT && one->n == key->n && !memcmp(one->text, key->text, key->n))
            return 1;
    return 0;
}

/* Adds the module's tensors as weights, and lists its parameters. */
static int read_module(struct plain *z, struct err *e)
{
    const struct pk *m = z->model.module;
    char name[FMT_NAME_MAX + 1], of[FMT_NAME_MAX + 8];
    struct torch_tensor x;
    int rc = 0;
    for (uint32_t i = 0; m && m->kind == PK_DICT && i < m->n && rc >= 0; i++) {
        const struct pk *key = m->item[2 * i], *v = m->item[2 * i + 1];
        if (key->kind != PK_TEXT || !torch_is_tensor(v) ||
            (ds_router_copy(key->text, (int)key->n, of) && pk_get(m, of)))
            continue;
        snprintf(name, sizeof name, "%.*s", (int)key->n, key->text);
        if ((rc = torch_tensor(&z->model.t, v, name, &x, e)) < 0 ||
            (rc = build_whole(z->b, ROLE_WEIGHT, key->text, (int)key->n, &z->model.t, &x, e)) < 0)
            break;
        if (is_buffer(z, key))
            continue;
        z->narrow |= x.dtype != TORCH_F32;
        rc = add_param(z, key->text, (int)key->n, &x, 0, e);
    }
    z->n_dense = z->params.n;
    return rc < 0 ? rc : 0;
}

static int count_files(const struct plain *z, int layer)
{
    int n = 0, l, expert, mp;
    for (int i = 0; i < z->files->n; i++)
        n += ds_expert_file(z->files->name[i], &l, &expert, &mp) && l == layer;
    return n;
}

/* Lists the parameters of a rank's experts of one layer, from the file of expert 0. */
static int list_layer(struct plain *z, int layer, int n_experts, struct err *e)
{
    static const char moe[] = "deepspeed_experts.0.";
    struct torch_file t = { 0 };
    struct torch_tensor x;
    char file[80];
    int rc = 0, own = n_experts / z->ep;

    snprintf(file, sizeof file, "layer_%d_expert_0_mp_rank_00_model_states.pt", layer);
    if (own * z->ep != n_experts)
        return err_set(e, ERR_FORMAT,
                       "%s: layer %d has files of %d experts, which %d ranks cannot share: is one missing",
                       z->b->c->path, layer, n_experts, z->ep);
    TRY(open_named(z, &t, file, e));
    for (int i = 0; i < own; i++)
        for (uint32_t k = 0; t.root->kind == PK_DICT && k < t.root->n; k++) {
            char *key = pk_strdup(t.root->item[2 * k]), *at = key ? strstr(key, moe) : NULL, *name = NULL;
            char **grown = realloc(z->text, sizeof *grown * (size_t)(z->n_text + 1));
            z->text = grown ? grown : z->text;
            if (key && at)
                name = build_text("%.*sdeepspeed_experts.%d.%s", (int)(at - key), key, i, at + strlen(moe));
            else if (key && i == 0 && strlen(key) > 2)
                name = build_text("%.*s", (int)strlen(key) - 2, key); /* PREFIX.w1.0 */
            free(key);
            if (!grown || (!name && (at || i == 0))) {
                free(name);
                rc = no_memory(z, e);
                goto out;
            }
            if (!name)
                continue;
            z->text[z->n_text++] = name;
            TRY(torch_tensor(&t, t.root->item[2 * k + 1], name, &x, e));
            TRY(add_param(z, name, (int)strlen(name), &x, at ? 0 : own, e));
        }
out:
    torch_close(&t);
    return rc < 0 ? rc : 0;
}

static int list_experts(struct plain *z, struct err *e)
{
    const char *path = z->b->c->path;
    int rc = 0, n;
    for (int l = 0; (n = count_files(z, l)) && rc >= 0; l++)
        rc = list_layer(z, l, n, e);
    if (rc >= 0)
        rc = ds_experts_find(&z->experts, &z->params, pk_get(z->model.t.root, "ds_autoep_layers"), path, e);
    for (int i = z->n_dense; i < z->params.n && rc >= 0; i++)
        rc = ds_experts_degree(&z->experts, &z->params.p[i], z->ep, path, e);
    return rc < 0 ? rc : ds_experts_read(&z->experts, z->b, z->sub, z->files, 1, e);
}

/* ---- optimizer ---- */

/* Fills by_id[i], the parameter of number i of the groups of one kind, in the order of these groups. Returns
 * how many, -1: the groups' sizes do not tell. */
static int number_kind(const struct plain *z, const struct pk *groups, int is_moe,
                       const struct ds_param **by_id)
{
    int from = is_moe ? z->n_dense : 0, to = is_moe ? z->params.n : z->n_dense, matrices = 0,
        sizes[2] = { 0 }, n = 0, at = 0;
    for (uint32_t k = 0; pk_at(groups, k); k++) {
        const struct pk *g = pk_at(groups, k), *moe = pk_get(g, "moe"), *ids = pk_get(g, "params");
        if ((moe && moe->kind == PK_BOOL && moe->i) != is_moe || !ids || ids->kind != PK_LIST || !ids->n)
            continue;
        /* experts are cut in groups by size: neighbours follow each other, unless vectors follow matrices */
        if (!is_moe && n == 2)
            return -1;
        sizes[n < 2 && !is_moe ? n++ : 0] += (int)ids->n;
    }
    for (int i = from; i < to; i++)
        matrices += z->params.p[i].n_dims > 1;
    int vectors = to - from - matrices, apart = sizes[1] > 0;
    int first = sizes[0] == matrices && sizes[1] == vectors   ? 1
                : sizes[0] == vectors && sizes[1] == matrices ? 0
                                                              : -1;
    if (sizes[0] + sizes[1] != to - from || (apart && first < 0))
        return -1;
    for (int pass = 0; pass < 1 + apart; pass++)
        for (int i = from; i < to; i++)
            if (!apart || (z->params.p[i].n_dims > 1) == (pass == 0 ? first : !first))
                by_id[at++] = &z->params.p[i];
    return at;
}

/* Adds one state of parameter p of rank r, in the parts that it has of tensors. Returns 1: added, 0: its
 * shape is not that of p. */
static int add_state(struct plain *z, struct torch_file *t, const struct pk *v, const struct ds_param *p,
                     int r, enum ckpt_role role, struct err *e)
{
    struct torch_tensor x;
    struct ds_part part;
    int rc = torch_tensor(t, v, "a state of the optimizer", &x, e);

    if (rc < 0)
        return rc;
    if (x.n_dims != p->n_dims || memcmp(x.shape, p->shape, sizeof *p->shape * (size_t)p->n_dims) ||
        !x.contiguous || x.dtype != TORCH_F32)
        return 0;
    for (int64_t k = 0; k < ds_experts_parts(&z->experts, p) && rc >= 0; k++) {
        if ((rc = ds_experts_part(&z->experts, p, r, k, &part, z->b->c->path, e)) < 0)
            break;
        int i = rc = build_tensor(z->b, role, part.name, (int)strlen(part.name), STORED_F32, part.n_dims,
                                  part.shape, e);
        if (rc >= 0)
            rc = build_piece(z->b, i, t->file, x.offset + part.lo * 4, &part.box, 0, part.hi - part.lo, e);
    }
    return rc < 0 ? rc : 1;
}

/* One number of the optimizer of rank r. 0: a shape does not fit. */
static int add_number(struct plain *z, struct torch_file *t, const struct pk *state, const struct pk *master,
                      const struct ds_param *p, int r, struct err *e)
{
    double step;
    char name[80];
    snprintf(name, sizeof name, "%.*s", p->n_name < 79 ? p->n_name : 79, p->name);
    int rc = torch_number(t, pk_get(state, "step"), name, &step, e);
    if (rc > 0)
        rc = build_step(z->b, step, name, e);
    if (rc < 0 || (r && p->layer < 0))
        return rc < 0 ? rc : 1; /* the rest is on every rank */
    if (z->narrow && (rc = add_state(z, t, master, p, r, ROLE_MASTER, e)) <= 0)
        return rc;
    if ((rc = add_state(z, t, pk_get(state, "exp_avg"), p, r, ROLE_EXP_AVG, e)) <= 0)
        return rc;
    return add_state(z, t, pk_get(state, "exp_avg_sq"), p, r, ROLE_EXP_AVG_SQ, e);
}

static int left_out(struct plain *z, struct err *e)
{
    return build_note(
        z->b->c, e,
        "optimizer state left out: the groups in expp_rank files do not tell which parameter is which "
        "(save it with ZeRO)");
}

/* Adds the state of rank r. Returns 1; 0: it cannot be told apart. */
static int read_optimizer(struct plain *z, int r, struct err *e)
{
    struct torch_file t = { 0 };
    char file[80];
    const struct ds_param **by_id = calloc((size_t)z->params.n + 1, sizeof *by_id);
    int rc = by_id ? 0 : no_memory(z, e), dense = 0, moe = 0;

    snprintf(file, sizeof file, "expp_rank_%d_mp_rank_00_optim_states.pt", r);
    TRY(rc);
    TRY(open_named(z, &t, file, e));
    const struct pk *o = pk_get(t.root, "optimizer"), *inner = pk_get(o, "optimizer_state_dict"),
                    *own = inner ? inner : o, *groups = pk_get(own, "param_groups"),
                    *state = pk_get(own, "state");
    dense = number_kind(z, groups, 0, by_id);
    moe = dense < 0 ? -1 : number_kind(z, groups, 1, by_id + dense);
    rc = moe >= 0;
    int at[2] = { 0, dense }; /* the next parameter of each kind */
    for (uint32_t k = 0; rc > 0 && pk_at(groups, k); k++) {
        const struct pk *g = pk_at(groups, k), *flag = pk_get(g, "moe"), *ids = pk_get(g, "params");
        int is_moe = flag && flag->kind == PK_BOOL && flag->i;
        if (r == 0)
            run_group(&z->b->run, &t, g);
        for (uint32_t i = 0; rc > 0 && pk_at(ids, i); i++) {
            int64_t id = -1;
            if (!pk_int(pk_at(ids, i), &id) || !pk_get_int(state, id))
                rc = 0;
            else
                rc = add_number(z, &t, pk_get_int(state, id), pk_at(pk_at(pk_get(o, "fp32_groups"), k), i),
                                by_id[at[is_moe]++], r, e);
        }
    }
out:
    torch_close(&t);
    free(by_id);
    return rc;
}

int ds_plain_open(struct build *b, const char *sub, const struct names *files, struct err *e)
{
    struct plain z = { .b = b, .sub = sub, .files = files };
    char *full = build_text("%smp_rank_00_model_states.pt", sub);
    int rank, used, rc = full ? 0 : no_memory(&z, e);

    for (int i = 0; i < files->n; i++) {
        used = 0;
        if (sscanf(files->name[i], "expp_rank_%d_mp_rank_00_optim_states.pt%n", &rank, &used) == 1 && used &&
            !files->name[i][used] && rank >= z.ep && rank < files->n)
            z.ep = rank + 1;
    }
    TRY(rc);
    TRY(ds_model_open(&z.model, b->c, full, e));
    TRY(read_module(&z, e));
    TRY(list_experts(&z, e));
    for (int r = 0; r < z.ep; r++) {
        if ((rc = read_optimizer(&z, r, e)) < 0)
            goto out;
        if (!rc && r) {
            rc = err_set(e, ERR_FORMAT,
                         "%s: the optimizer of expert-parallel rank %d does not fit the model, that of "
                         "rank 0 does: is the file of another run",
                         b->c->path, r);
            goto out;
        }
        if (!rc) {
            TRY(left_out(&z, e));
            break;
        }
    }
    run_deepspeed(&b->run, &z.model.t, pk_get(z.model.t.root, "ds_config"),
                  pk_get(z.model.t.root, "lr_scheduler"));
    TRY(ds_router_names(b->c, e));
    TRY(build_writer(b->c, "DeepSpeed", pk_get(z.model.t.root, "ds_version"), 0, e));
out:
    torch_close(&z.model.t);
    ds_params_free(&z.params);
    ds_experts_free(&z.experts);
    for (int i = 0; i < z.n_text; i++)
        free(z.text[i]);
    free(z.text);
    free(full);
    return rc < 0 ? rc : 0;
}
