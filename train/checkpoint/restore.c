/* restore.c - where a run starts: a checkpoint of any layout (--resume: all of it, --init: weights), or
 * initial values. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "model/family.h"
#include "train/trainer.h"

/* ---- finding ---- */
int64_t trainer_step_of(const char *name)
{
    char *end;
    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9' || (name[5] == '0' && name[6]))
        return -1;
    int64_t n = strtoll(name + 5, &end, 10);
    return *end ? -1 : n;
}

/* The highest step below `below` that has a folder in OUT, or -1. */
static int64_t step_below(const char *out, int64_t below)
{
    DIR *d = opendir(out);
    struct dirent *x;
    int64_t best = -1;
    while (d && (x = readdir(d))) {
        int64_t s = trainer_step_of(x->d_name);
        best = s > best && s < below ? s : best;
    }
    if (d)
        closedir(d);
    return best;
}

/* Step of the newest checkpoint in OUT whose every byte is right; -1: OUT has none at all, -2: none that is
 * whole. One rank looks. */
static int64_t newest_whole(struct trainer *t)
{
    int64_t none = -1;
    for (int64_t s = INT64_MAX; (s = step_below(t->o.out, s)) >= 0;) {
        char path[4096];
        struct ckpt *c = NULL;
        struct err why;
        snprintf(path, sizeof path, "%s/step-%lld", t->o.out, (long long)s);
        int rc = ckpt_open(&c, path, &why);
        if (rc >= 0)
            rc = ckpt_verify(c, 0, &why);
        ckpt_close(c);
        if (rc >= 0)
            return s;
        log_line(&t->log, "passing over %s: %s", path, why.text);
        none = -2;
    }
    return none;
}

/* --resume auto: 1 found (opened), 0 none. */
static int open_newest(struct trainer *t, struct err *e)
{
    int64_t step = world_rank(t->world) ? 0 : newest_whole(t);
    char path[4096];
    int rc;
    TRY(comm_broadcast(t->mesh.all, &step, sizeof step, 0, e));
    if (step == -2)
        return err_set(e, ERR_INTEGRITY,
                       "--resume auto: no checkpoint in %s is whole: repair or remove them, a run does not "
                       "begin anew over them",
                       t->o.out);
    if (step < 0)
        return 0;
    snprintf(path, sizeof path, "%s/step-%lld", t->o.out, (long long)step);
    TRY(ckpt_open(&t->source, path, e));
    return 1;
out:
    return rc;
}

static int read_config(struct trainer *t, struct err *e)
{
    struct model_config c;
    const char *text = ckpt_config_json(t->source);
    char what[4200];
    int rc;
    snprintf(what, sizeof what, "%s/config.json", ckpt_path(t->source));
    if (!text && t->o.model && t->cfg.hidden)
        return 0; /* --model FILE says it */
    if (!text)
        return err_set(e, ERR_CONFIG, "%s has no config.json: give --model config.json",
                       ckpt_path(t->source));
    TRY(model_config_parse(&c, text, what, e));
    if (t->o.model && t->cfg.hidden)
        TRY(model_config_same(&c, &t->cfg, "--model (which may be left out)", e));
    t->cfg = c;
out:
    return rc;
}

int trainer_find_source(struct trainer *t, struct err *e)
{
    /* what folders of other frameworks may lack */
    const char *config = t->o.model && io_exists(t->o.model) ? t->o.model : NULL;
    int rc = 0;
    if (t->o.resume && !strcmp(t->o.resume, "auto")) {
        TRY(open_newest(t, e));
        t->resume_auto = rc > 0;
        if (!rc)
            t->o.resume = NULL;
    } else if (t->o.resume) {
        TRY(ckpt_open_config(&t->source, t->o.resume, config, e));
    }
    if (!t->source && t->o.init)
        TRY(ckpt_open_config(&t->source, t->o.init, config, e));
    if (t->source && t->o.resume && !ckpt_state(t->source)->has_state) {
        rc = err_set(e, ERR_USAGE, "%s has no optimizer state to resume: start from its weights with --init",
                     ckpt_path(t->source));
        goto out;
    }
    if (t->source && ckpt_remark(t->source))
        log_line(&t->log, "%s", ckpt_remark(t->source));
    if (t->source)
        TRY(read_config(t, e));
    if (t->source && t->cfg.tied && world_rank(t->world) == 0)
        TRY(ckpt_check_tied(t->source, t->cfg.family->first->name, "lm_head.weight", e));
out:
    return rc < 0 ? rc : 0;
}

/* ---- reading ---- */
#define CHUNK_ELEMENTS ((int64_t)4 << 20) /* of weights that must be rounded */
static const enum ckpt_role role_of[ZERO_STATES] = { ROLE_WEIGHT, ROLE_MASTER, ROLE_EXP_AVG,
                                                     ROLE_EXP_AVG_SQ };

static int find_tensor(struct trainer *t, enum ckpt_role role, const struct param *p, struct err *e)
{
    int i = ckpt_find(t->source, role, p->name);
    const struct ckpt_tensor *x;
    if (i < 0)
        return err_set(e, ERR_FORMAT, "%s: %s%s is missing: does config.json belong to these weights",
                       ckpt_path(t->source), ckpt_role_prefix[role], p->name);
    x = ckpt_tensor(t->source, i);
    if (x->n_dims != p->n_dims || x->shape[0] != p->shape[0] ||
        (p->n_dims == 2 && x->shape[1] != p->shape[1]))
        return err_set(e, ERR_FORMAT, "%s: %s is [%lld,%lld], config.json says [%lld,%lld]",
                       ckpt_path(t->source), p->name, (long long)x->shape[0],
                       (long long)(x->n_dims > 1 ? x->shape[1] : 1), (long long)p->shape[0],
                       (long long)p->shape[1]);
    if (x->dtype != CK_F32 && x->dtype != CK_BF16 && x->dtype != CK_F16)
        return err_set(e, ERR_FORMAT, "%s: %s is %s: fp32, bf16 and fp16 are read", ckpt_path(t->source),
                       p->name, ckpt_dtype_name(x->dtype));
    return i;
}

static enum dtype dtype_of(enum ckpt_dtype x)
{
    return x == CK_F32 ? DT_F32 : x == CK_BF16 ? DT_BF16 : DT_F16;
}

/* Elements as fp32, whatever the file holds. */
static int read_floats(struct trainer *t, enum ckpt_role role, const struct param *p, const struct box *b,
                       int64_t lo, int64_t hi, float *dst, struct err *e)
{
    int i = find_tensor(t, role, p, e), rc;
    if (i < 0)
        return i;
    enum ckpt_dtype have = ckpt_tensor(t->source, i)->dtype;
    if (have == CK_F32)
        return ckpt_read_range(t->source, i, b, lo, hi, dst, e);
    void *narrow = malloc((size_t)(hi - lo) * 2 + 1);
    if (!narrow)
        return err_set(e, ERR_MEMORY, "no memory to widen %s", p->name);
    rc = ckpt_read_range(t->source, i, b, lo, hi, narrow, e);
    if (rc >= 0)
        KERNEL(t->dev->host, widen, dst, narrow, dtype_of(have), hi - lo);
    free(narrow);
    return rc;
}

static int fill(void *ctx, enum zero_state s, const struct param *p, const struct box *b, int64_t lo,
                int64_t hi, float *dst, struct err *e)
{
    return read_floats(ctx, role_of[s], p, b, lo, hi, dst, e);
}

int trainer_read_param(void *ctx, const struct param *p, const struct box *b, struct ring *ring, void *dst,
                       enum dtype dt, struct err *e)
{
    struct trainer *t = ctx;
    const size_t element = dtype_size(dt);
    int64_t n = box_count(b), most = dt == DT_F32 ? n : CHUNK_ELEMENTS, got;
    float *buf = dt == DT_F32 ? NULL : malloc(CHUNK_ELEMENTS * sizeof *buf);
    int rc = buf || dt == DT_F32 ? 0 : err_set(e, ERR_MEMORY, "no memory to read %s", p->name);
    for (int64_t lo = 0; rc >= 0 && lo < n; lo += got) {
        void *place;
        got = ring_take(ring, (char *)dst + (size_t)lo * element, n - lo < most ? n - lo : most, element,
                        &place, e);
        float *wide = buf ? buf : place;
        rc = got < 0 ? (int)got : read_floats(t, ROLE_WEIGHT, p, b, lo, lo + got, wide, e);
        if (rc >= 0 && buf)
            KERNEL(t->dev->host, round_to, place, dt, buf, got);
    }
    free(buf);
    return rc;
}

/* Weights and moments of a resumed run must be there, and of a kind that loses nothing. */
static int check_resume(struct trainer *t, int have[ZERO_STATES], struct err *e)
{
    const struct param *p = &t->model.table.p[0];
    int i = find_tensor(t, ROLE_WEIGHT, p, e);
    if (i < 0)
        return i;
    enum dtype stored = dtype_of(ckpt_tensor(t->source, i)->dtype);
    if (stored != t->dt)
        return err_set(
            e, ERR_USAGE,
            "%s is %s and --dtype says %s: leave --dtype out, or start from its weights with --init",
            ckpt_path(t->source), dtype_name(stored), dtype_name(t->dt));
    have[ZERO_EXP_AVG] = have[ZERO_EXP_AVG_SQ] = 1;
    have[ZERO_MASTER] = t->dt != DT_F32;
    return 0;
}

/* No tensor of the model begins with the same word: a buffer of other training code, which is left where it
 * is. */
static int is_buffer(const struct trainer *t, const char *name)
{
    size_t n = strcspn(name, ".");
    for (int i = 0; i < t->model.table.n; i++)
        if (strcspn(t->model.table.p[i].name, ".") == n && !memcmp(t->model.table.p[i].name, name, n))
            return 0;
    return 1;
}

static int check_names(struct trainer *t, struct err *e)
{
    for (int i = 0; i < ckpt_n_tensors(t->source); i++) {
        const struct ckpt_tensor *x = ckpt_tensor(t->source, i);
        if (param_find(&t->model.table, x->name) < 0 &&
            !(t->cfg.tied && !strcmp(x->name, "lm_head.weight")) && !param_is_derived(x->name) &&
            !is_buffer(t, x->name))
            return err_set(e, ERR_FORMAT,
                           "%s: tensor %s is not part of a %s model as config.json describes it",
                           ckpt_path(t->source), x->name, t->cfg.family->name);
    }
    return 0;
}

int trainer_load(struct trainer *t, struct err *e)
{
    int have[ZERO_STATES] = { 1, 0, 0, 0 }, rc;
    uint64_t seed = (uint64_t)t->o.seed;
    if (!t->source)
        return zero_load(t->zero, zero_init_values, &seed, have, e);
    TRY(check_names(t, e));
    if (t->o.resume)
        TRY(check_resume(t, have, e));
    TRY(zero_load(t->zero, fill, t, have, e));
    TRY(ckpt_check_rest(t->source, world_rank(t->world), world_size(t->world), e));
    ckpt_let_go(t->source); /* --keep may remove it */
    if (t->o.resume) {
        const struct ckpt_state *s = ckpt_state(t->source);
        t->step = t->first_step = s->step;
        t->first_sample = s->epoch * data_windows(t->data) + s->sample;
    }
out:
    return rc;
}
