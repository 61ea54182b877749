/* universal_write.c - see universal_write.h. */
#include "format/universal_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/fmt.h"
#include "format/quant_view.h"
#include "format/torch/run_state.h"
#include "format/hf/small_files.h"
#include "format/torch/torch_write.h"
#include "format/torch/crc32.h"

/* The version whose files these are: older engines and converters look at it. */
#define DS_VERSION "0.19.8"
#define MODEL_STATES "mp_rank_00_model_states.pt"
#define MODEL_STATES_3 "zero_pp_rank_0_mp_rank_00_model_states.pt"

/* Where a tensor goes: a file of its own below zero/NAME, or a storage of the model file. */
struct place {
    const char *file; /* "fp32.pt", …; NULL: the model file */
    int storage;      /* of the model file */
    char *path;
    int fd;
    int64_t bytes, done, at; /* at: of the elements in the file */
    uint32_t crc;
};
struct universal_write {
    char *dir, *tag, *zero; /* folders */
    char name[48];          /* of the tag */
    int n, n_storages;
    const struct ckpt_tensor *t;
    const struct ckpt_state *state;
    struct place *place;
    struct torch_part *part; /* storages of the model file */
    struct pkw model;        /* its pickle */
    char *model_path;
    int model_fd;
    struct adamw adamw;
    int knows_adamw, n_groups;
};

static const char *const role_file[ROLE_COUNT] = { "fp32.pt", "fp32.pt", "exp_avg.pt", "exp_avg_sq.pt" };

/* ---- which tensor is what ---- */

static const struct ckpt_tensor *find(const struct universal_write *w, enum ckpt_role role,
                                      const struct ckpt_tensor *t)
{
    return fmt_find_tensor(w->t, w->n, role, t->name);
}

static int has_state(const struct universal_write *w) { return w->n && w->t[w->n - 1].role != ROLE_WEIGHT; }

/* A parameter: the optimizer knows it; without any optimizer state all weights that can be trained are taken
 * for one. Scales that --dequantize kept are none. */
static int is_param(const struct universal_write *w, const struct ckpt_tensor *weight)
{
    if (has_state(w))
        return find(w, ROLE_EXP_AVG, weight) || find(w, ROLE_MASTER, weight);
    if (!strncmp(weight->name, QUANT_KEPT_PREFIX, strlen(QUANT_KEPT_PREFIX)))
        return 0;
    return weight->dtype == STORED_F32 || weight->dtype == STORED_BF16 || weight->dtype == STORED_F16;
}

static int check_tensor(const struct universal_write *w, const struct ckpt_tensor *t, int *narrow, int *wide,
                        struct err *e)
{
    int rc = fmt_file_name_check(t->name, "--format deepspeed-universal", e), master;
    if (rc < 0)
        return err_set(e, ERR_USAGE,
                       "%s: --format deepspeed-universal has a folder of this name for it, which cannot be",
                       t->name);
    if ((rc = pkw_check_dtype(t, "deepspeed-universal", e)) < 0)
        return rc;
    if (t->role != ROLE_WEIGHT || !is_param(w, t))
        return 0;
    master = find(w, ROLE_MASTER, t) != NULL;
    if (!master && t->dtype != STORED_F32)
        return err_set(e, ERR_USAGE,
                       "%s is %s without an fp32 master: --format deepspeed-universal holds fp32 weights: "
                       "add --dtype fp32",
                       t->name, stored_dtype_name(t->dtype));
    if (master && t->dtype == STORED_F32)
        return err_set(e, ERR_USAGE,
                       "%s is F32 and has a master too: --format deepspeed-universal holds one of them: add "
                       "--dtype fp32",
                       t->name);
    *(master ? narrow : wide) = 1;
    return *narrow && *wide ? err_set(e, ERR_USAGE,
                                      "%s is %s, others are not: --format deepspeed-universal holds weights "
                                      "of one dtype: add --dtype fp32",
                                      t->name, stored_dtype_name(t->dtype))
                            : 0;
}

static int place_tensors(struct universal_write *w, struct err *e)
{
    int narrow = 0, wide = 0, rc = 0;
    for (int i = 0; i < w->n && rc >= 0; i++) {
        const struct ckpt_tensor *t = &w->t[i];
        struct box b = box_whole(t->n_dims, t->shape);
        struct place *p = &w->place[i];
        rc = check_tensor(w, t, &narrow, &wide, e);
        *p = (struct place){ .storage = -1, .fd = -1, .bytes = stored_bytes(t->dtype, box_count(&b)) };
        if (t->role == ROLE_WEIGHT && (!is_param(w, t) || find(w, ROLE_MASTER, t)))
            p->storage = w->n_storages++;
        else
            p->file = role_file[t->role];
    }
    return rc;
}

/* ---- the model file ---- */

static void put_none(struct pkw *p, const char *key)
{
    pkw_text(p, key);
    pkw_op(p, PKW_NONE);
}

static void put_number(struct pkw *p, const char *key, int64_t v)
{
    pkw_text(p, key);
    pkw_int(p, v);
}

static void begin_ordered(struct pkw *p)
{
    pkw_global(p, "collections", "OrderedDict");
    pkw_op(p, PKW_EMPTY_TUPLE);
    pkw_op(p, PKW_REDUCE);
    pkw_op(p, PKW_MARK);
}

static int group_of(const struct universal_write *w, const struct ckpt_tensor *t)
{
    return w->n_groups > 1 && t->n_dims < 2;
}

static void put_shapes(const struct universal_write *w, struct pkw *p)
{
    pkw_text(p, "param_shapes");
    pkw_op(p, PKW_LIST);
    pkw_op(p, PKW_MARK);
    for (int g = 0; g == 0 || g < w->n_groups; g++) {
        begin_ordered(p);
        for (int i = 0; i < w->n && w->t[i].role == ROLE_WEIGHT; i++)
            if (is_param(w, &w->t[i]) && group_of(w, &w->t[i]) == g) {
                pkw_text(p, w->t[i].name);
                pkw_size(p, w->t[i].n_dims, w->t[i].shape);
            }
        pkw_op(p, PKW_SETITEMS);
    }
    pkw_op(p, PKW_APPENDS);
}

/* Weights in the working dtype, and what is no parameter; the latter are named as buffers too. */
static void put_module(const struct universal_write *w, int whole, struct pkw *p)
{
    pkw_text(p, "module");
    begin_ordered(p);
    for (int i = 0; i < w->n && whole; i++)
        if (w->place[i].storage >= 0) {
            pkw_text(p, w->t[i].name);
            pkw_tensor(p, w->t[i].dtype, w->t[i].n_dims, w->t[i].shape, w->place[i].storage);
        }
    pkw_op(p, PKW_SETITEMS);
    pkw_text(p, "buffer_names");
    pkw_op(p, PKW_LIST);
    pkw_op(p, PKW_MARK);
    for (int i = 0; i < w->n && whole; i++)
        if (w->place[i].storage >= 0 && !is_param(w, &w->t[i]))
            pkw_text(p, w->t[i].name);
    pkw_op(p, PKW_APPENDS);
}

/* whole 0: without the module, for engines of stage 3, which do not read it. */
static int model_pickle(const struct universal_write *w, int whole, struct pkw *p, struct err *e)
{
    static const char *const nothing[] = { "optimizer", "frozen_param_shapes", "frozen_param_fragments",
                                           "data_sampler", "random_ltd" };
    char *state = run_state_text(w->state, e);

    if (!state)
        return -e->code;
    pkw_begin(p);
    pkw_op(p, PKW_DICT);
    pkw_op(p, PKW_MARK);
    put_module(w, whole, p);
    put_shapes(w, p);
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
        put_none(p, nothing[i]);
    pkw_text(p, "shared_params");
    pkw_op(p, PKW_DICT);

    /* where DeepSpeed's schedules go on; the schedule is the engine's */
    pkw_text(p, "lr_scheduler");
    pkw_op(p, PKW_DICT);
    pkw_op(p, PKW_MARK);
    put_number(p, "last_batch_iteration", w->state->step - 1);
    pkw_op(p, PKW_SETITEMS);
    put_number(p, "skipped_steps", 0);
    put_number(p, "global_steps", w->state->step);
    put_number(p, "dp_world_size", 1);
    put_number(p, "mp_world_size", 1);
    pkw_text(p, "ds_version");
    pkw_text(p, DS_VERSION);
    pkw_text(p, "universal_checkpoint_info");
    pkw_op(p, PKW_DICT);
    pkw_op(p, PKW_MARK);
    pkw_text(p, "universal_checkpoint_version");
    pkw_float(p, 0.4);
    pkw_op(p, PKW_SETITEMS);
    pkw_text(p, RUN_STATE_KEY);
    pkw_text(p, state);
    pkw_op(p, PKW_SETITEMS);
    free(state);
    return pkw_end(p, e);
}

/* Its storages come as the stream brings them, so its layout is needed at once. */
static int start_model(struct universal_write *w, struct err *e)
{
    int rc = 0;
    w->part = calloc((size_t)w->n_storages + 1, sizeof *w->part);
    w->model_path = io_join(w->tag, MODEL_STATES);
    if (!w->part || !w->model_path)
        return err_set(e, ERR_MEMORY, "no memory for a model file of %d tensors", w->n_storages);
    for (int i = 0; i < w->n; i++)
        if (w->place[i].storage >= 0)
            w->part[w->place[i].storage].bytes = w->place[i].bytes;
    TRY(model_pickle(w, 1, &w->model, e));
    struct torch_out z = { .root = "mp_rank_00_model_states",
                           .pickle = w->model.b.p,
                           .n_pickle = w->model.b.n,
                           .n = w->n_storages,
                           .part = w->part };
    TRY(torch_out_plan(&z, e));
    for (int i = 0; i < w->n; i++)
        if (w->place[i].storage >= 0)
            w->place[i].at = w->part[w->place[i].storage].at;
    TRY(w->model_fd = io_create(w->model_path, e));
out:
    return rc < 0 ? rc : 0;
}

static int end_model(struct universal_write *w, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < w->n; i++)
        if (w->place[i].storage >= 0)
            w->part[w->place[i].storage].crc = w->place[i].crc;
    struct torch_out z = { .root = "mp_rank_00_model_states",
                           .pickle = w->model.b.p,
                           .n_pickle = w->model.b.n,
                           .n = w->n_storages,
                           .part = w->part };
    TRY(torch_out_plan(&z, e));
    TRY(torch_out_frame(&z, w->model_fd, w->model_path, 0, e));
    int fd = w->model_fd;
    w->model_fd = -1;
    TRY(io_sync_close(fd, w->model_path, e));
out:
    return rc < 0 ? rc : 0;
}

/* ---- opening ---- */

/* A folder a parameter. */
static int make_folders(const struct universal_write *w, struct err *e)
{
    int rc = 0;
    TRY(io_mkdir(w->tag, e));
    TRY(io_mkdir(w->zero, e));
    for (int i = 0; i < w->n && w->t[i].role == ROLE_WEIGHT; i++) {
        char *path = is_param(w, &w->t[i]) ? io_join(w->zero, w->t[i].name) : NULL;
        if (is_param(w, &w->t[i]))
            rc = path ? io_mkdir(path, e)
                      : err_set(e, ERR_MEMORY, "no memory for the path of %s", w->t[i].name);
        free(path);
        TRY(rc);
    }
out:
    return rc < 0 ? rc : 0;
}

int universal_write_open(struct universal_write **out, const char *dir, int n, const struct ckpt_tensor *t,
                         const struct ckpt_state *state, struct err *e)
{
    struct universal_write *w = calloc(1, sizeof *w);
    int rc = 0;

    if (!w)
        return err_set(e, ERR_MEMORY, "no memory to write %d tensors", n);
    w->n = n;
    w->t = t;
    w->state = state;
    w->model_fd = -1;
    snprintf(w->name, sizeof w->name, "global_step%lld_universal", (long long)state->step);
    w->knows_adamw = run_adamw(state, &w->adamw);
    w->n_groups = w->knows_adamw && w->adamw.weight_decay != 0 ? 2 : 1;
    w->dir = strdup(dir);
    w->tag = io_join(dir, w->name);
    w->zero = w->tag ? io_join(w->tag, "zero") : NULL;
    w->place = calloc((size_t)n + 1, sizeof *w->place);
    if (!w->dir || !w->zero || !w->place) {
        rc = err_set(e, ERR_MEMORY, "no memory to write %d tensors", n);
        goto out;
    }

    TRY(place_tensors(w, e));
    TRY(make_folders(w, e));
    TRY(start_model(w, e));
out:
    if (rc < 0)
        universal_write_free(w);
    else
        *out = w;
    return rc < 0 ? rc : 0;
}

void universal_write_free(struct universal_write *w)
{
    if (!w)
        return;
    for (int i = 0; w->place && i < w->n; i++) {
        io_close(w->place[i].fd);
        free(w->place[i].path);
    }
    io_close(w->model_fd);
    pkw_free(&w->model);
    free(w->model_path);
    free(w->part);
    free(w->place);
    free(w->dir);
    free(w->tag);
    free(w->zero);
    free(w);
}

/* ---- the files of the parameters ---- */

static char *path_of(const struct universal_write *w, const char *param, const char *file)
{
    char *folder = io_join(w->zero, param), *path = folder ? io_join(folder, file) : NULL;
    free(folder);
    return path;
}

static int plan_file(const struct universal_write *w, int i, struct pkw *p, struct torch_part *part,
                     struct torch_out *z, struct err *e)
{
    const struct ckpt_tensor *t = &w->t[i];
    static const char *const root[ROLE_COUNT] = { "fp32", "fp32", "exp_avg", "exp_avg_sq" };
    pkw_begin(p);
    pkw_op(p, PKW_DICT);
    pkw_op(p, PKW_MARK);
    pkw_text(p, "param");
    pkw_tensor(p, t->dtype, t->n_dims, t->shape, 0);
    put_number(p, "cat_dim", 0);
    pkw_op(p, PKW_SETITEMS);
    int rc = pkw_end(p, e);
    *part = (struct torch_part){ w->place[i].bytes, 0, w->place[i].crc };
    *z = (struct torch_out){
        .root = root[t->role], .pickle = p->b.p, .n_pickle = p->b.n, .n = 1, .part = part
    };
    return rc < 0 ? rc : torch_out_plan(z, e);
}

static int start_file(struct universal_write *w, int i, struct err *e)
{
    struct place *p = &w->place[i];
    struct pkw text = { 0 };
    struct torch_part part;
    struct torch_out z;
    int rc = plan_file(w, i, &text, &part, &z, e);
    pkw_free(&text);
    if (rc < 0)
        return rc;
    p->at = part.at;
    if (!(p->path = path_of(w, w->t[i].name, p->file)))
        return err_set(e, ERR_MEMORY, "no memory for the path of %s", w->t[i].name);
    p->fd = io_create(p->path, e);
    return p->fd < 0 ? p->fd : 0;
}

static int end_file(struct universal_write *w, int i, struct err *e)
{
    struct place *p = &w->place[i];
    struct pkw text = { 0 };
    struct torch_part part;
    struct torch_out z;
    int fd = p->fd, rc = plan_file(w, i, &text, &part, &z, e);
    if (rc >= 0)
        rc = torch_out_frame(&z, fd, p->path, 0, e);
    pkw_free(&text);
    if (rc < 0)
        return rc;
    p->fd = -1;
    return io_sync_close(fd, p->path, e);
}

/* A file is open from its first element to its last: as many at once as there are threads. */
int universal_write_put(struct universal_write *w, int i, const void *data, int64_t n_elements, struct err *e)
{
    struct place *p = &w->place[i];
    int64_t bytes = stored_bytes(w->t[i].dtype, n_elements);
    int rc = 0;
    if (bytes > p->bytes - p->done)
        return err_set(e, ERR_INTERNAL, "more elements than %s has: please report it", w->t[i].name);
    if (p->file && p->fd < 0)
        TRY(start_file(w, i, e));
    TRY(io_pwrite(p->file ? p->fd : w->model_fd, p->file ? p->path : w->model_path, data, (size_t)bytes,
                  p->at + p->done, e));
    p->crc = fmt_crc32(p->crc, data, (size_t)bytes);
    p->done += bytes;
    if (p->file && p->done == p->bytes)
        TRY(end_file(w, i, e));
out:
    return rc < 0 ? rc : 0;
}

/* ---- what is beside tensors ---- */

/* A scalar tensor, as torch's AdamW keeps it. */
static int write_steps(const struct universal_write *w, struct err *e)
{
    const float step = (float)w->state->step;
    const void *data[] = { &step };
    const int64_t bytes[] = { sizeof step };
    struct pkw p = { 0 };
    int rc = 0;

    pkw_begin(&p);
    pkw_tensor(&p, STORED_F32, 0, NULL, 0);
    TRY(pkw_end(&p, e));
    for (int i = 0; i < w->n && w->t[i].role == ROLE_WEIGHT; i++) {
        if (!find(w, ROLE_EXP_AVG, &w->t[i]))
            continue;
        char *path = path_of(w, w->t[i].name, "step.pt");
        rc = path ? torch_out_file(path, "step", &p, 1, data, bytes, e)
                  : err_set(e, ERR_MEMORY, "no memory for the path of %s", w->t[i].name);
        free(path);
        TRY(rc);
    }
out:
    pkw_free(&p);
    return rc < 0 ? rc : 0;
}

/* The groups of the optimizer: matrices decay, vectors do not. Engines of stage 3 take the first one for
 * all. */
static void put_groups(const struct universal_write *w, struct pkw *p)
{
    const struct {
        const char *name;
        double v;
    } rows[] = { { "lr", w->adamw.lr }, { "eps", w->adamw.eps } };
    pkw_text(p, "param_groups");
    pkw_op(p, PKW_LIST);
    pkw_op(p, PKW_MARK);
    for (int g = 0; g < w->n_groups; g++) {
        pkw_op(p, PKW_DICT);
        pkw_op(p, PKW_MARK);
        for (size_t i = 0; w->knows_adamw && i < sizeof rows / sizeof *rows; i++) {
            pkw_text(p, rows[i].name);
            pkw_float(p, rows[i].v);
        }
        if (w->knows_adamw) {
            pkw_text(p, "weight_decay");
            pkw_float(p, g ? 0 : w->adamw.weight_decay);
            pkw_text(p, "betas");
            pkw_op(p, PKW_MARK);
            pkw_float(p, w->adamw.beta1);
            pkw_float(p, w->adamw.beta2);
            pkw_op(p, PKW_TUPLE);
        }
        pkw_text(p, "params");
        pkw_op(p, PKW_LIST);
        pkw_op(p, PKW_MARK);
        pkw_int(p, g);
        pkw_op(p, PKW_APPENDS);
        pkw_op(p, PKW_SETITEMS);
    }
    pkw_op(p, PKW_APPENDS);
}

/* Stages 1 and 2 read the top, stage 3 the optimizer_state_dict in it. */
static int write_optimizer(const struct universal_write *w, struct err *e)
{
    const float step = (float)w->state->step;
    const void *data[] = { &step };
    const int64_t bytes[] = { sizeof step };
    char *path = io_join(w->zero, "optimizer_state.pt");
    struct pkw p = { 0 };
    int rc = 0;

    pkw_begin(&p);
    pkw_op(&p, PKW_DICT);
    pkw_op(&p, PKW_MARK);
    pkw_text(&p, "ds_version");
    pkw_text(&p, DS_VERSION);
    pkw_text(&p, "clip_grad");
    pkw_float(&p, w->adamw.clip);
    put_groups(w, &p);
    pkw_text(&p, "optimizer_state_dict");
    pkw_op(&p, PKW_DICT);
    pkw_op(&p, PKW_MARK);
    put_groups(w, &p);
    pkw_text(&p, "state");
    pkw_op(&p, PKW_DICT);
    pkw_op(&p, PKW_MARK);
    pkw_int(&p, 0);
    pkw_op(&p, PKW_DICT);
    pkw_op(&p, PKW_MARK);
    pkw_text(&p, "step");
    pkw_tensor(&p, STORED_F32, 0, NULL, 0);
    pkw_op(&p, PKW_SETITEMS);
    pkw_op(&p, PKW_SETITEMS);
    pkw_op(&p, PKW_SETITEMS);
    pkw_op(&p, PKW_SETITEMS);
    TRY(pkw_end(&p, e));
    rc = path ? torch_out_file(path, "optimizer_state", &p, 1, data, bytes, e)
              : err_set(e, ERR_MEMORY, "no memory for the path of optimizer_state.pt");
out:
    pkw_free(&p);
    free(path);
    return rc < 0 ? rc : 0;
}

static int write_model_3(const struct universal_write *w, struct err *e)
{
    char *path = io_join(w->tag, MODEL_STATES_3);
    struct pkw p = { 0 };
    int rc = path ? model_pickle(w, 0, &p, e)
                  : err_set(e, ERR_MEMORY, "no memory for the path of " MODEL_STATES_3);
    if (rc >= 0)
        rc = torch_out_file(path, "zero_pp_rank_0_mp_rank_00_model_states", &p, 0, NULL, NULL, e);
    pkw_free(&p);
    free(path);
    return rc < 0 ? rc : 0;
}

static int write_tag(const struct universal_write *w, struct err *e)
{
    char *path = io_join(w->dir, "latest_universal");
    int rc = path ? io_write_file(path, w->name, strlen(w->name), e)
                  : err_set(e, ERR_MEMORY, "no memory for the path of latest_universal");
    free(path);
    return rc < 0 ? rc : 0;
}

static int sync_folders(const struct universal_write *w, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < w->n && w->t[i].role == ROLE_WEIGHT; i++) {
        char *path = is_param(w, &w->t[i]) ? io_join(w->zero, w->t[i].name) : NULL;
        rc = path                    ? io_sync_dir(path, e)
             : is_param(w, &w->t[i]) ? err_set(e, ERR_MEMORY, "no memory for the path of %s", w->t[i].name)
                                     : 0;
        free(path);
        TRY(rc);
    }
    TRY(io_sync_dir(w->zero, e));
    TRY(io_sync_dir(w->tag, e));
    TRY(io_sync_dir(w->dir, e));
out:
    return rc < 0 ? rc : 0;
}

static int check_done(struct universal_write *w, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < w->n; i++) {
        struct place *p = &w->place[i];
        if (p->bytes == 0 && p->file) /* nothing was ever put */
            TRY(universal_write_put(w, i, "", 0, e));
        if (p->done != p->bytes)
            return err_set(e, ERR_INTERNAL, "%s got %lld of %lld bytes: please report it", w->t[i].name,
                           (long long)p->done, (long long)p->bytes);
    }
out:
    return rc < 0 ? rc : 0;
}

int universal_write_seal(struct universal_write *w, const struct ckpt_meta *meta, struct err *e)
{
    int rc = 0;
    TRY(check_done(w, e));
    TRY(end_model(w, e));
    TRY(write_model_3(w, e));
    TRY(write_steps(w, e));
    TRY(write_optimizer(w, e));
    TRY(small_files_write(w->dir, meta, e));
    TRY(write_tag(w, e));
    TRY(sync_folders(w, e));
out:
    if (rc < 0)
        ckpt_abandon(w->dir, -1);
    return rc < 0 ? rc : 0;
}
