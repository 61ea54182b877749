/* deepspeed.c - DeepSpeed folders: finds the tag and the kind, and reads the model files of both kinds.
 *
 *     latest                    the tag, "global_step4"; latest_universal: the tag of a converted save
 *     TAG/mp_rank_00_model_states.pt, TAG/zero_pp_rank_R_mp_rank_00_optim_states.pt, … (deepspeed_zero.c)
 *     TAG/zero/NAME/fp32.pt, … (deepspeed_universal.c) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/deepspeed/deepspeed.h"

#define TIED_HEAD "lm_head.weight"

static int ends(const char *name, const char *suffix)
{
    size_t n = strlen(name), k = strlen(suffix);
    return n >= k && !strcmp(name + n - k, suffix);
}

int deepspeed_probe(const struct ckpt *c, int is_folder)
{
    struct names l;
    struct err e;
    int yes = is_folder &&
              (build_exists(c, "latest") || build_exists(c, "latest_universal") || build_exists(c, "zero"));
    if (!is_folder || yes || names_read(&l, c, "", &e) < 0)
        return yes;
    for (int i = 0; i < l.n; i++)
        yes |= ends(l.name[i], "_optim_states.pt") || ends(l.name[i], "_model_states.pt");
    names_free(&l);
    return yes;
}

/* ---- the tag ---- */

static int no_tag(const struct ckpt *c, const char *file, const char *tag, struct err *e)
{
    struct names l;
    char list[200] = "";
    size_t at = 0;
    if (names_read(&l, c, "", e) >= 0) {
        for (int i = 0; i < l.n; i++) {
            char *path = io_join(c->dir, l.name[i]);
            if (path && io_is_dir(path) && at + strlen(l.name[i]) + 3 < sizeof list)
                at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", l.name[i]);
            free(path);
        }
        names_free(&l);
    }
    return err_set(e, ERR_FORMAT,
                   "%s: %s names %.100s, which is not there (there is: %s): give the folder of a whole save",
                   c->path, file, tag, at ? list : "nothing");
}

/* sub: "" when c is the folder of a tag, else "TAG/"; malloc'd. */
static int find_tag(const struct ckpt *c, char **sub, struct err *e)
{
    static const char *const pointers[] = { "latest", "latest_universal" };
    const char *file = NULL;
    char *tag = NULL, *path = NULL;
    int rc = 0;

    for (size_t i = 0; i < 2 && !file; i++)
        file = build_exists(c, pointers[i]) ? pointers[i] : NULL;
    if (!file)
        return (*sub = strdup("")) ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    TRY(build_line(c, file, &tag, e));
    TRY(fmt_file_name_check(tag, file, e));
    path = io_join(c->dir, tag);
    if (!path || !io_is_dir(path))
        rc = no_tag(c, file, tag, e);
    else if (!(*sub = build_text("%s/", tag)))
        rc = err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
out:
    free(path);
    free(tag);
    return rc < 0 ? rc : 0;
}

int deepspeed_open(struct ckpt *c, int is_folder, struct err *e)
{
    struct build b = { .c = c };
    struct names files = { 0 };
    char *sub = NULL, *zero = NULL;
    int rc = 0, universal;
    (void)is_folder;

    TRY(build_config(c, e));
    TRY(find_tag(c, &sub, e));
    TRY(names_read(&files, c, sub, e));
    zero = build_text("%s/%szero", c->dir, sub);
    universal = zero && io_is_dir(zero);
    c->driver = universal ? "deepspeed-universal" : "deepspeed";
    int (*open)(struct build *, const char *, const struct names *, struct err *) = ds_zero_open;
    for (int i = 0; i < files.n; i++)
        if (!strncmp(files.name[i], "expp_rank_", 10))
            open = ds_plain_open;
    TRY(universal ? ds_universal_open(&b, sub, &files, e) : open(&b, sub, &files, e));
    if (!universal)
        TRY(build_finish(&b, e));
    TRY(build_writer(c, universal ? "DeepSpeed, universal form" : "DeepSpeed", NULL, 0, e));
out:
    free(zero);
    free(sub);
    names_free(&files);
    build_free(&b);
    return rc < 0 ? rc : 0;
}

/* ---- shapes ---- */

int ds_shape(const struct pk *size, const char *path, const char *name, int n_name, int64_t shape[BOX_DIMS],
             int *n_dims, int64_t *n, struct err *e)
{
    int ok = size && size->kind == PK_TUPLE && size->n <= BOX_DIMS;
    *n = 1;
    *n_dims = ok ? (int)size->n : 0;
    for (int d = 0; d < *n_dims && ok; d++)
        ok = pk_int(size->item[d], &shape[d]) && shape[d] >= 0 && !__builtin_mul_overflow(*n, shape[d], n) &&
             *n < (int64_t)1 << 58;
    return ok ? 0
              : err_set(e, ERR_FORMAT,
                        "%s: the shape of %.*s in param_shapes makes no sense: is the file damaged", path,
                        n_name, name);
}

static int read_group(struct ds_params *l, const struct pk *g, const char *path, struct err *e)
{
    if (!g || g->kind != PK_DICT)
        return err_set(e, ERR_FORMAT,
                       "%s: param_shapes is not a list of names and shapes: is the file damaged", path);
    struct ds_param *grown = realloc(l->p, sizeof *grown * ((size_t)l->n + g->n + 1));
    if (!grown)
        return err_set(e, ERR_MEMORY, "%s: no memory for %u parameters", path, g->n);
    l->p = grown;
    for (uint32_t i = 0; i < g->n; i++) {
        const struct pk *key = g->item[2 * i];
        struct ds_param *p = &l->p[l->n];
        memset(p, 0, sizeof *p);
        if (key->kind != PK_TEXT)
            return err_set(e, ERR_FORMAT, "%s: param_shapes has a name that is not text: is the file damaged",
                           path);
        p->layer = p->local = -1;
        p->name = key->text;
        p->n_name = (int)key->n;
        p->group = l->n_groups;
        int rc = ds_shape(g->item[2 * i + 1], path, p->name, p->n_name, p->shape, &p->n_dims, &p->n, e);
        if (rc < 0)
            return rc;
        l->n++;
    }

    l->n_groups++;
    return 0;
}

int ds_params_read(struct ds_params *l, const struct pk *model, const char *path, struct err *e)
{
    const struct pk *shapes = pk_get(model, "param_shapes");
    int rc = 0;
    memset(l, 0, sizeof *l);
    if (!shapes)
        return err_set(e, ERR_FORMAT,
                       "%s: has no param_shapes, without them the flat buffers have no names: was it saved "
                       "by an old DeepSpeed",
                       path);
    if (shapes->kind == PK_DICT) /* old versions: one group */
        return read_group(l, shapes, path, e);
    for (uint32_t i = 0; pk_at(shapes, i) && rc >= 0; i++)
        rc = read_group(l, pk_at(shapes, i), path, e);
    return rc;
}

void ds_params_free(struct ds_params *l)
{
    free(l->p);
    memset(l, 0, sizeof *l);
}

/* ---- the model file ---- */

int ds_model_open(struct ds_model *m, struct ckpt *c, const char *name, struct err *e)
{
    int file = build_file(c, name, e), rc = file;
    memset(m, 0, sizeof *m);
    if (rc < 0 || (rc = torch_open(&m->t, c, file, 0, c->file[file].bytes, e)) < 0)
        return rc;
    m->module = pk_get(m->t.root, "module");
    m->buffers = pk_get(m->t.root, "buffer_names");
    m->shared = pk_get(m->t.root, "shared_params");
    m->frozen = pk_get(m->t.root, "frozen_param_shapes");
    return 0;
}

static int add_named(struct build *b, struct ds_model *m, const char *name, int n_name,
                     const struct pk *value, struct err *e)
{
    struct torch_tensor x;
    char shown[FMT_NAME_MAX + 1];
    snprintf(shown, sizeof shown, "%.*s", n_name < FMT_NAME_MAX ? n_name : FMT_NAME_MAX, name);
    int rc = torch_tensor(&m->t, value, shown, &x, e);
    return rc < 0 ? rc : build_whole(b, ROLE_WEIGHT, name, n_name, &m->t, &x, e);
}

static const struct pk *member(const struct pk *module, const char *name, int n_name)
{
    for (uint32_t i = 0; module && module->kind == PK_DICT && i < module->n; i++) {
        const struct pk *key = module->item[2 * i];
        if (key->kind == PK_TEXT && (int)key->n == n_name && !memcmp(key->text, name, key->n))
            return module->item[2 * i + 1];
    }
    return NULL;
}

/* *narrow: 1 if the parameters of the module are whole and not fp32: they are the weights, the fp32 ones
 * masters. */
static int is_narrow(struct ds_model *m, const struct ds_params *l, int *narrow, struct err *e)
{
    const struct ds_param *p = NULL;
    for (int i = 0; i < l->n && !p; i++)
        p = l->p[i].layer < 0 ? &l->p[i] : NULL;
    const struct pk *v = p ? member(m->module, p->name, p->n_name) : NULL;
    struct torch_tensor x;
    *narrow = 0;
    if (!v || !torch_is_tensor(v))
        return 0;
    int rc = torch_tensor(&m->t, v, "module", &x, e);
    *narrow = rc >= 0 && x.n == p->n && x.dtype != TORCH_F32;
    return rc;
}

int ds_model_add(struct build *b, struct ds_model *m, const struct ds_params *l, int *narrow, struct err *e)
{
    int never = *narrow < 0, rc = is_narrow(m, l, narrow, e);
    const struct pk *name, *v;
    *narrow = *narrow && !never;
    for (int i = 0; i < l->n && *narrow && rc >= 0; i++) {
        const struct ds_param *p = &l->p[i];
        if (p->layer >= 0)
            continue; /* of experts: in files of their own */
        if (!(v = member(m->module, p->name, p->n_name)))
            return err_set(e, ERR_FORMAT, "%s: the module has no %.*s, param_shapes has: is the file damaged",
                           b->c->file[m->t.file].path, p->n_name, p->name);
        rc = add_named(b, m, p->name, p->n_name, v, e);
    }
    for (uint32_t i = 0; (name = pk_at(m->buffers, i)) && rc >= 0; i++)
        if (name->kind == PK_TEXT && (v = member(m->module, name->text, (int)name->n)))
            rc = add_named(b, m, name->text, (int)name->n, v, e);
    return rc < 0 ? rc : 0;
}

static int is_listed(const struct ds_model *m, const struct ds_params *l, const struct pk *name)
{
    for (int i = 0; i < l->n; i++)
        if (l->p[i].n_name == (int)name->n && !memcmp(l->p[i].name, name->text, name->n))
            return 1;
    for (uint32_t i = 0; pk_at(m->buffers, i); i++)
        if (pk_at(m->buffers, i)->kind == PK_TEXT && pk_at(m->buffers, i)->n == name->n &&
            !memcmp(pk_at(m->buffers, i)->text, name->text, name->n))
            return 1;
    return member(m->shared, name->text, (int)name->n) || member(m->frozen, name->text, (int)name->n);
}

int ds_model_add_rest(struct build *b, struct ds_model *m, const struct ds_params *l, struct err *e)
{
    char of[FMT_NAME_MAX + 8];
    int rc = 0;
    for (uint32_t i = 0; m->module && m->module->kind == PK_DICT && i < m->module->n && rc >= 0; i++) {
        const struct pk *key = m->module->item[2 * i], *v = m->module->item[2 * i + 1];
        if (key->kind == PK_TEXT && torch_is_tensor(v) && !is_listed(m, l, key) &&
            !(ds_router_copy(key->text, (int)key->n, of) && pk_get(m->module, of)))
            rc = add_named(b, m, key->text, (int)key->n, v, e);
    }
    return rc < 0 ? rc : 0;
}

/* ---- aliases: other names of the same tensor ---- */

static int config_says_untied(const struct ckpt *c)
{
    struct err e;
    int tied = 1;
    json_t *o = c->config ? jx_parse(c->config, strlen(c->config), FMT_CONFIG, &e) : NULL;
    jx_bool(o, FMT_CONFIG, "tie_word_embeddings", &tied, &e);
    json_decref(o);
    return !tied;
}

const struct pk *ds_alias(const struct ckpt *c, const struct ds_model *m, const struct ds_param *owner,
                          uint32_t *i)
{
    for (; m->shared && m->shared->kind == PK_DICT && *i < m->shared->n; (*i)++) {
        const struct pk *alias = m->shared->item[2 * *i], *of = m->shared->item[2 * *i + 1];
        if (of->kind == PK_TEXT && (int)of->n == owner->n_name && !memcmp(of->text, owner->name, of->n) &&
            alias->kind == PK_TEXT && (!pk_is_text(alias, TIED_HEAD) || config_says_untied(c))) {
            (*i)++;
            return alias;
        }
    }
    return NULL;
}

int ds_aliases_check(const struct ckpt *c, const struct ds_model *m, const struct ds_params *l, struct err *e)
{
    for (uint32_t i = 0; m->shared && m->shared->kind == PK_DICT && i < m->shared->n; i++) {
        const struct pk *of = m->shared->item[2 * i + 1];
        int found = 0;
        for (int k = 0; k < l->n && of->kind == PK_TEXT; k++)
            found |= l->p[k].n_name == (int)of->n && !memcmp(l->p[k].name, of->text, of->n);
        if (!found && !(of->kind == PK_TEXT && m->frozen && member(m->frozen, of->text, (int)of->n)))
            return err_set(e, ERR_FORMAT,
                           "%s: shared_params says that a parameter is the same as %.*s, which is not one: "
                           "is the file damaged",
                           c->path, of->kind == PK_TEXT ? (int)of->n : 1,
                           of->kind == PK_TEXT ? of->text : "?");
    }
    return 0;
}
