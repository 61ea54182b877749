/* dcp_write_meta.c - writes .metadata: the shape and chunks of every tensor, the place of every chunk; and
 * the objects that are not tensors.
 *
 * Equal objects are stored once under many keys: the step of all parameters; the options of AdamW by group
 * (0, 1) and by the parameter's name (flatten_optimizer_state_dict), so that both ways of loading find
 * them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/dcp/dcp_put.h"
#include "format/torch/run_state.h"
#include "format/hf/small_files.h"
#include "format/torch/crc32.h"

#define OBJECTS DCP_OBJECTS
#define KEY_ROOM (FMT_NAME_MAX + 64)

/* An object: its bytes in file OBJECTS, its keys. */
enum { OF_STATE, OF_STEP, OF_GROUP, OF_PARAMS };
struct object {
    int of, group;
    const char *option;
    int64_t at, length;
};
#define OBJECTS_MAX 40
struct table {
    const struct dcp_write *w;
    const struct ckpt_meta *meta;
    struct adamw adamw;
    int knows_adamw, n_groups;
    char *state; /* text */
    struct object object[OBJECTS_MAX];
    int n_objects;
    int fd;
    char *path;
    int64_t bytes; /* of OBJECTS so far */
    struct pkw p;  /* .metadata */
    struct dcp_chunks chunks;
};

static const char *const state_suffix[ROLE_COUNT] = { "", "master_param", "exp_avg", "exp_avg_sq" };

/* ---- which parameters, which group ---- */

/* 1: the optimizer has a state for this weight. Tensors are sorted by role and name. */
static int is_trained(const struct dcp_write *w, const struct ckpt_tensor *weight)
{
    return fmt_find_tensor(w->t, w->n, ROLE_EXP_AVG, weight->name) != NULL;
}

/* The group of a parameter: matrices have weight decay, vectors have not; without decay there is one
 * group. */
static int group_of(const struct table *b, const struct ckpt_tensor *t)
{
    return b->n_groups > 1 && t->n_dims < 2;
}

/* ---- objects ---- */

typedef void value_writer(const struct table *b, const struct object *x, struct pkw *p);
static void value_lr(const struct table *b, const struct object *x, struct pkw *p)
{
    (void)x;
    pkw_float(p, b->adamw.lr);
}
static void value_eps(const struct table *b, const struct object *x, struct pkw *p)
{
    (void)x;
    pkw_float(p, b->adamw.eps);
}
static void value_decay(const struct table *b, const struct object *x, struct pkw *p)
{
    pkw_float(p, x->group ? 0 : b->adamw.weight_decay);
}
static void value_true(const struct table *b, const struct object *x, struct pkw *p)
{
    (void)b;
    (void)x;
    pkw_op(p, PKW_TRUE);
}
static void value_false(const struct table *b, const struct object *x, struct pkw *p)
{
    (void)b;
    (void)x;
    pkw_op(p, PKW_FALSE);
}
static void value_none(const struct table *b, const struct object *x, struct pkw *p)
{
    (void)b;
    (void)x;
    pkw_op(p, PKW_NONE);
}
static void value_betas(const struct table *b, const struct object *x, struct pkw *p)
{
    (void)x;
    pkw_op(p, PKW_MARK);
    pkw_float(p, b->adamw.beta1);
    pkw_float(p, b->adamw.beta2);
    pkw_op(p, PKW_TUPLE);
}

/* The options of torch.optim.AdamW; learning-rate schedulers add initial_lr. */
static const struct {
    const char *name;
    value_writer *write;
} options[] = {
    { "lr", value_lr },
    { "initial_lr", value_lr },
    { "betas", value_betas },
    { "eps", value_eps },
    { "weight_decay", value_decay },
    { "amsgrad", value_false },
    { "maximize", value_false },
    { "foreach", value_none },
    { "capturable", value_false },
    { "differentiable", value_false },
    { "fused", value_none },
    { "decoupled_weight_decay", value_true },
};
#define N_OPTIONS ((int)(sizeof options / sizeof *options))

static void write_params(const struct table *b, int group, struct pkw *p)
{
    const struct dcp_write *w = b->w;
    pkw_op(p, PKW_LIST);
    pkw_op(p, PKW_MARK);
    for (int i = 0; i < w->n && w->t[i].role == ROLE_WEIGHT; i++)
        if (is_trained(w, &w->t[i]) && group_of(b, &w->t[i]) == group)
            pkw_text(p, w->t[i].name);
    pkw_op(p, PKW_APPENDS);
}

/* Appends one object to OBJECTS, as a file of torch.save. A step is a tensor, the others are plain values. */
static int add_object(struct table *b, struct object x, int option, struct err *e)
{
    struct pkw p = { 0 };
    float step = (float)b->meta->state.step;
    struct torch_part part = { sizeof step, 0, fmt_crc32(0, &step, sizeof step) };
    struct torch_out z = { .root = "archive", .n = x.of == OF_STEP, .part = &part };
    int rc = 0;

    pkw_begin(&p);
    if (x.of == OF_STATE)
        pkw_text(&p, b->state);
    else if (x.of == OF_STEP)
        pkw_tensor(&p, STORED_F32, 0, NULL, 0);
    else if (x.of == OF_PARAMS)
        write_params(b, x.group, &p);
    else
        options[option].write(b, &x, &p);
    TRY(pkw_end(&p, e));
    z.pickle = p.b.p;
    z.n_pickle = p.b.n;
    TRY(torch_out_plan(&z, e));
    if (z.n)
        TRY(io_pwrite(b->fd, b->path, &step, sizeof step, b->bytes + part.at, e));
    TRY(torch_out_frame(&z, b->fd, b->path, b->bytes, e));
    x.at = b->bytes;
    x.length = z.length;
    b->object[b->n_objects++] = x;
    b->bytes += z.length;
out:
    pkw_free(&p);
    return rc < 0 ? rc : 0;
}

static int write_objects(struct table *b, struct err *e)
{
    int rc = 0;
    b->path = io_join(b->w->dir, OBJECTS);
    if (!b->path)
        return err_set(e, ERR_MEMORY, "no memory for the path of " OBJECTS);
    TRY(b->fd = io_create(b->path, e));
    TRY(add_object(b, (struct object){ OF_STATE, 0, RUN_STATE_KEY, 0, 0 }, 0, e));
    if (b->meta->state.has_state)
        TRY(add_object(b, (struct object){ OF_STEP, 0, "step", 0, 0 }, 0, e));
    for (int g = 0; g < b->n_groups; g++) {
        for (int i = 0; i < N_OPTIONS; i++)
            TRY(add_object(b, (struct object){ OF_GROUP, g, options[i].name, 0, 0 }, i, e));
        TRY(add_object(b, (struct object){ OF_PARAMS, g, "params", 0, 0 }, 0, e));
    }

    rc = io_sync_close(b->fd, b->path, e);
    b->fd = -1;
out:
    return rc < 0 ? rc : 0;
}

/* ---- keys ---- */

/* Every key of every object in turn: call next_key until it returns NULL. The path is the value's place in
 * the state_dict, words and numbers (a word that is NULL is a number). */
struct keys {
    int object, tensor;
    char key[KEY_ROOM], last[KEY_ROOM];
    const char *path[4];
    int n_path, number;
};

static const struct object *next_key(const struct table *b, struct keys *k)
{
    const struct dcp_write *w = b->w;
    for (; k->object < b->n_objects; k->object++, k->tensor = -1) {
        const struct object *x = &b->object[k->object];
        int alone = x->of == OF_STATE || x->of == OF_PARAMS;
        if (k->tensor < 0) { /* of a group, or of no tensor */
            k->tensor = 0;
            k->number = x->group;
            if (x->of == OF_STATE) {
                snprintf(k->key, sizeof k->key, "%s", x->option);
                k->path[0] = x->option;
                k->n_path = 1;
                return x;
            }
            if (x->of != OF_STEP) {
                snprintf(k->key, sizeof k->key, "optim.param_groups.%d.%s", x->group, x->option);
                memcpy(k->path, (const char *[]){ "optim", "param_groups", NULL, x->option }, sizeof k->path);
                k->n_path = 4;
                return x;
            }
        }
        for (; !alone && k->tensor < w->n && w->t[k->tensor].role == ROLE_WEIGHT; k->tensor++) {
            const struct ckpt_tensor *t = &w->t[k->tensor];
            if (!is_trained(w, t) || (x->of == OF_GROUP && group_of(b, t) != x->group))
                continue;
            k->tensor++;
            if (x->of == OF_STEP) {
                snprintf(k->key, sizeof k->key, "optim.state.%s.step", t->name);
                memcpy(k->path, (const char *[]){ "optim", "state", t->name, "step" }, sizeof k->path);
                k->n_path = 4;
            } else {
                snprintf(k->last, sizeof k->last, "param_groups.%s.%s", t->name, x->option);
                snprintf(k->key, sizeof k->key, "optim.%.*s", KEY_ROOM - 7, k->last);
                memcpy(k->path, (const char *[]){ "optim", k->last }, 2 * sizeof *k->path);
                k->n_path = 2;
            }
            return x;
        }
    }
    return NULL;
}

static void tensor_key(const struct ckpt_tensor *t, char out[KEY_ROOM])
{
    if (t->role == ROLE_WEIGHT)
        snprintf(out, KEY_ROOM, "model.%s", t->name);
    else
        snprintf(out, KEY_ROOM, "optim.state.%s.%s", t->name, state_suffix[t->role]);
}

/* ---- state_dict_metadata ---- */

static void put_contents(void *arg)
{
    struct table *b = arg;
    const struct dcp_write *w = b->w;
    struct keys k = { .tensor = -1 };
    const struct object *x;
    char key[KEY_ROOM];

    for (int i = 0; i < w->n; i++) {
        const struct ckpt_tensor *t = &w->t[i];
        tensor_key(t, key);
        pkw_text(&b->p, key);
        dcp_put_tensor(&b->p, w, &b->chunks, i);
    }

    while ((x = next_key(b, &k))) {
        pkw_text(&b->p, k.key);
        if (x->of == OF_STEP) {
            dcp_put_scalar(&b->p, STORED_F32);
        } else {
            dcp_put_object(&b->p);
        }
    }
}

/* ---- planner_data: the path in the state_dict of every flat key ---- */

static void put_paths(void *arg)
{
    struct table *b = arg;
    const struct dcp_write *w = b->w;
    struct keys k = { .tensor = -1 };
    char key[KEY_ROOM];

    for (int i = 0; i < w->n; i++) {
        const struct ckpt_tensor *t = &w->t[i];
        tensor_key(t, key);
        pkw_text(&b->p, key);
        pkw_op(&b->p, PKW_MARK);
        pkw_word(&b->p, t->role == ROLE_WEIGHT ? "model" : "optim");
        if (t->role != ROLE_WEIGHT)
            pkw_word(&b->p, "state");
        pkw_text(&b->p, t->name);
        if (t->role != ROLE_WEIGHT)
            pkw_word(&b->p, state_suffix[t->role]);
        pkw_op(&b->p, PKW_TUPLE);
    }

    while (next_key(b, &k)) {
        pkw_text(&b->p, k.key);
        pkw_op(&b->p, PKW_MARK);
        for (int i = 0; i < k.n_path; i++)
            if (k.path[i])
                pkw_text(&b->p, k.path[i]);
            else
                pkw_int(&b->p, k.number);
        pkw_op(&b->p, PKW_TUPLE);
    }
}

/* ---- storage_data ---- */

static void put_places(void *arg)
{
    struct table *b = arg;
    const struct dcp_write *w = b->w;
    struct keys k = { .tensor = -1 };
    const struct object *x;
    char key[KEY_ROOM];

    for (int i = 0; i < w->n; i++) {
        tensor_key(&w->t[i], key);
        dcp_put_tensor_places(&b->p, w, &b->chunks, i, key);
    }
    while ((x = next_key(b, &k)))
        dcp_put_place(&b->p, k.key, x->of == OF_STEP ? 0 : -1, NULL, OBJECTS, x->at, x->length);
}

/* ---- the whole ---- */

int dcp_write_seal(struct dcp_write *w, const struct ckpt_meta *meta, struct err *e)
{
    struct table b = { .w = w, .meta = meta, .fd = -1 };
    int rc = 0;

    b.knows_adamw = run_adamw(&meta->state, &b.adamw);
    b.n_groups = !b.knows_adamw ? 0 : b.adamw.weight_decay != 0 ? 2 : 1;
    if (!(b.state = run_state_text(&meta->state, e))) {
        rc = -e->code;
        goto out;
    }

    TRY(dcp_chunks_sort(&b.chunks, w, e));
    TRY(write_objects(&b, e));
    TRY(small_files_write(w->dir, meta, e));
    TRY(dcp_put_metadata(&b.p, w->dir, &(struct dcp_sections){ &b, put_contents, put_paths, put_places }, e));
    TRY(io_sync_dir(w->dir, e));
out:
    io_close(b.fd);
    pkw_free(&b.p);
    free(b.state);
    free(b.path);
    dcp_chunks_free(&b.chunks);
    if (rc < 0)
        ckpt_abandon(w->dir, -1);
    return rc < 0 ? rc : 0;
}
