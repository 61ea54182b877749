/* restore.c - see restore.h. */
#include "train/checkpoint/restore.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/quant_view.h"
#include "model/family.h"
#include "train/elastic/note.h"

/* ---- finding ---- */
int64_t checkpoint_step(const char *name)
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
        int64_t s = checkpoint_step(x->d_name);
        best = s > best && s < below ? s : best;
    }
    if (d)
        closedir(d);
    return best;
}

/* Step of the newest checkpoint in OUT whose every byte is right; -1: OUT has none at all, -2: none that is
 * whole. One rank looks. */
static int64_t newest_whole(const char *out, struct log *term)
{
    int64_t none = -1;
    for (int64_t s = INT64_MAX; (s = step_below(out, s)) >= 0;) {
        char path[4096];
        struct ckpt *c = NULL;
        struct err why;
        snprintf(path, sizeof path, "%s/step-%lld", out, (long long)s);
        int rc = ckpt_open(&c, path, NULL, &why);
        if (rc >= 0)
            rc = ckpt_verify(c, 0, &why);
        ckpt_close(c);
        if (rc >= 0)
            return s;
        log_line(term, "passing over %s: %s", path, why.text);
        none = -2;
    }
    return none;
}

/* --resume auto: opens the newest whole checkpoint. 1: found; 0: there is none. */
static int open_newest(struct run *run, const struct ranks *ranks, struct log *term, struct err *e)
{
    int64_t step = ranks_is_first(ranks) ? newest_whole(run->o.out, term) : 0;
    char path[4096];
    int rc;
    TRY(comm_broadcast(ranks->mesh.all, &step, sizeof step, 0, e));
    if (step == -2)
        return err_set(e, ERR_INTEGRITY,
                       "--resume auto: no checkpoint in %s is whole: repair or remove them, a run does not "
                       "begin anew over them",
                       run->o.out);
    if (step < 0)
        return 0;
    snprintf(path, sizeof path, "%s/step-%lld", run->o.out, (long long)step);
    TRY(ckpt_open(&run->source, path, NULL, e));
    return 1;
out:
    return rc;
}

static int read_config(struct run *run, struct err *e)
{
    struct model_config c;
    const char *text = ckpt_config_json(run->source);
    char what[4200];
    int rc;
    snprintf(what, sizeof what, "%s/config.json", ckpt_path(run->source));
    if (!text && run->o.model && run->cfg.hidden)
        return 0; /* run->cfg is that of --model */
    if (!text)
        return err_set(e, ERR_CONFIG, "%s has no config.json: give --model config.json",
                       ckpt_path(run->source));
    TRY(model_config_parse(&c, text, what, e));
    if (run->is_preset) /* its vocabulary is the tokenizer's */
        run->cfg.vocab = c.vocab;
    if (run->o.model && run->cfg.hidden)
        TRY(model_config_same(&c, &run->cfg, "--model (which may be left out)", e));
    run->cfg = c;
out:
    return rc;
}

static int open_source(struct run *run, const struct ranks *ranks, struct log *term, struct err *e)
{
    /* what folders of other frameworks may lack */
    const char *config = run->o.model && io_exists(run->o.model) ? run->o.model : NULL;
    int rc = 0;
    if (run->o.resume && !strcmp(run->o.resume, "auto")) {
        TRY(open_newest(run, ranks, term, e));
        run->resumes_newest = rc > 0;
        if (!rc)
            run->o.resume = NULL;
    } else if (run->o.resume) {
        TRY(ckpt_open(&run->source, run->o.resume, &(struct ckpt_open_opts){ .config_path = config }, e));
        run->resumes_newest = note_is_kept(run->o.resume);
    }
    if (!run->source && run->o.init)
        TRY(ckpt_open(&run->source, run->o.init, &(struct ckpt_open_opts){ .config_path = config }, e));
    if (run->source)
        TRY(quant_refuse(run->source, e));
out:
    return rc < 0 ? rc : 0;
}

int restore_find(struct run *run, const struct ranks *ranks, struct log *term, struct err *e)
{
    int rc = open_source(run, ranks, term, e);
    struct ckpt *source = run->source;
    if (rc < 0 || !source)
        return rc;
    if (run->o.resume && !ckpt_state(source)->has_state)
        return err_set(e, ERR_USAGE, "%s has no optimizer state to resume: start from its weights with --%s",
                       ckpt_path(source), peft_is(source) ? "lora-init" : "init");
    if (!run->o.resume && peft_is(source))
        return err_set(e, ERR_USAGE,
                       "--init %s is an adapter: name the model's weights with --init and the adapter with "
                       "--lora-init",
                       ckpt_path(source));
    if (ckpt_remark(source))
        log_line(term, "%s", ckpt_remark(source));
    TRY(read_config(run, e));
    if (run->cfg.tied && ranks_is_first(ranks) && !peft_is(source))
        TRY(ckpt_check_tied(source, run->cfg.family->first->name, "lm_head.weight", e));
out:
    return rc < 0 ? rc : 0;
}

int restore_same_version(const struct ckpt *c, const struct ranks *ranks, struct err *e)
{
    uint64_t own[8] = { 0 }; /* "" where c has no versions */
    snprintf((char *)own, sizeof own, "%s", ckpt_version(c));
    int rc = comm_agree_alike(ranks->mesh.all, own, 8,
                              "the version changed while ranks opened it: start again", e);
    return rc < 0 ? err_add(e, "%s", ckpt_path(c)) : 0;
}

void restore_report(const struct ckpt *source, struct log *term)
{
    const struct ckpt_state *s = ckpt_state(source);
    if (s->epoch || s->sample)
        log_line(term, "written by %s; data go on where its run was", ckpt_writer(source));
    else
        log_line(term, "written by %s; data begin at the first sequence: where its run was is not in it",
                 ckpt_writer(source));
    if (s->run_json)
        log_line(term, "its settings, where the command line has none: %s", s->run_json);
    else
        log_line(term,
                 "it holds no settings: learning rate and AdamW's constants are those of the command line");
    if (ckpt_note(source))
        log_line(term, "%s", ckpt_note(source));
}

/* ---- reading ---- */
#define CHUNK_ELEMENTS ((int64_t)4 << 20) /* of weights that must be rounded */
static const enum ckpt_role role_of[ZERO_STATES] = { ROLE_WEIGHT, ROLE_MASTER, ROLE_EXP_AVG,
                                                     ROLE_EXP_AVG_SQ };

/* Where a parameter is read from: a checkpoint, and the adapter that it is, or NULL. */
struct origin {
    struct ckpt *c;
    const struct lora *adapter;
    const struct work *w;
};

/* The number of a parameter's tensor, or -1. */
static int tensor_of(const struct origin *from, enum ckpt_role role, const struct param *p)
{
    int i = from->adapter ? lora_tensor(from->adapter, p) : 0;
    if (!from->adapter)
        return ckpt_find(from->c, role, p->name);
    return i < 0 || role == ROLE_WEIGHT ? i : ckpt_find(from->c, role, ckpt_tensor(from->c, i)->name);
}

static int find_tensor(const struct origin *from, enum ckpt_role role, const struct param *p, struct err *e)
{
    struct ckpt *source = from->c;
    int i = tensor_of(from, role, p);
    const struct ckpt_tensor *x;
    char how[320];
    if (i < 0)
        return err_set(e, ERR_FORMAT, "%s: %s%s is missing: does config.json belong to these weights",
                       ckpt_path(source), ckpt_role_prefix[role], p->name);
    x = ckpt_tensor(source, i);
    if (!param_shape_fits(p, x->n_dims, x->shape))
        return err_set(e, ERR_FORMAT, "%s: %s %s", ckpt_path(source), p->name,
                       param_shape_differs(p, x->n_dims, x->shape, how));
    if (x->dtype != STORED_F32 && x->dtype != STORED_BF16 && x->dtype != STORED_F16)
        return err_set(e, ERR_FORMAT, "%s: %s is %s: fp32, bf16 and fp16 are read", ckpt_path(source),
                       p->name, stored_dtype_name(x->dtype));
    return i;
}

static enum dtype dtype_of(enum stored_dtype x)
{
    return x == STORED_F32 ? DT_F32 : x == STORED_BF16 ? DT_BF16 : DT_F16;
}

/* Elements [lo, hi) of box b as fp32, whatever the file holds. */
static int read_floats(const struct origin *from, enum ckpt_role role, const struct param *p,
                       const struct box *b, int64_t lo, int64_t hi, float *dst, struct err *e)
{
    struct ckpt *source = from->c;
    int i = find_tensor(from, role, p, e), rc;
    if (i < 0)
        return i;
    enum stored_dtype have = ckpt_tensor(source, i)->dtype;
    if (have == STORED_F32)
        return ckpt_read_range(source, i, b, lo, hi, dst, e);
    void *narrow = malloc((size_t)(hi - lo) * 2 + 1);
    if (!narrow)
        return err_set(e, ERR_MEMORY, "no memory to widen %s", p->name);
    rc = ckpt_read_range(source, i, b, lo, hi, narrow, e);
    if (rc >= 0)
        KERNEL(from->w->ranks->dev->host, widen, dst, narrow, dtype_of(have), hi - lo);
    free(narrow);
    return rc;
}

/* A zero_fill; ctx: struct origin. */
static int fill(void *ctx, enum zero_state s, const struct param *p, const struct box *b, int64_t lo,
                int64_t hi, float *dst, struct err *e)
{
    return read_floats(ctx, role_of[s], p, b, lo, hi, dst, e);
}

static int read_param(const struct origin *from, const struct param *p, const struct box *b,
                      struct ring *ring, void *dst, enum dtype dt, struct err *e)
{
    const size_t element = dtype_size(dt);
    int64_t n = box_count(b), most = dt == DT_F32 ? n : CHUNK_ELEMENTS, got;
    float *buf = dt == DT_F32 ? NULL : malloc(CHUNK_ELEMENTS * sizeof *buf);
    int rc = buf || dt == DT_F32 ? 0 : err_set(e, ERR_MEMORY, "no memory to read %s", p->name);
    for (int64_t lo = 0; rc >= 0 && lo < n; lo += got) {
        void *place;
        got = ring_take(ring, (char *)dst + (size_t)lo * element, n - lo < most ? n - lo : most, element,
                        &place, e);
        float *wide = buf ? buf : place;
        rc = got < 0 ? (int)got : read_floats(from, ROLE_WEIGHT, p, b, lo, lo + got, wide, e);
        if (rc >= 0 && buf)
            KERNEL(from->w->ranks->dev->host, round_to, place, dt, buf, got);
    }
    free(buf);
    return rc;
}

int restore_read_param(void *ctx, const struct param *p, const struct box *b, struct ring *ring, void *dst,
                       enum dtype dt, struct err *e)
{
    const struct work *w = ctx;
    return read_param(&(struct origin){ w->run->source, NULL, w }, p, b, ring, dst, dt, e);
}

int restore_read_adapter(void *ctx, const struct param *p, const struct box *b, struct ring *ring, void *dst,
                         enum dtype dt, struct err *e)
{
    const struct work *w = ctx;
    const struct lora *l = &w->run->lora;
    return read_param(&(struct origin){ l->peft.c, l, w }, p, b, ring, dst, dt, e);
}

/* A resumed checkpoint must hold weights and moments of the run's dtype, so that nothing is lost. */
static int check_resume(const struct origin *from, const struct param *first, int have[ZERO_STATES],
                        struct err *e)
{
    const struct run *run = from->w->run;
    struct ckpt *source = from->c;
    int i = find_tensor(from, ROLE_WEIGHT, first, e);
    if (i < 0)
        return i;
    enum dtype stored = dtype_of(ckpt_tensor(source, i)->dtype);
    if (stored != run->dt)
        return err_set(
            e, ERR_USAGE,
            "%s is %s and --dtype says %s: leave --dtype out, or start from its weights with --init",
            ckpt_path(source), dtype_name(stored), dtype_name(run->dt));
    have[ZERO_EXP_AVG] = have[ZERO_EXP_AVG_SQ] = 1;
    have[ZERO_MASTER] = run->dt != DT_F32;
    return 0;
}

/* No tensor of the model has the same first word: a buffer of other training code, which is not read. */
static int is_buffer(const struct param_table *table, const char *name)
{
    size_t n = strcspn(name, ".");
    for (int i = 0; i < table->n; i++)
        if (strcspn(table->p[i].name, ".") == n && !memcmp(table->p[i].name, name, n))
            return 0;
    return 1;
}

static int check_names(const struct ckpt *source, const struct param_table *table, struct err *e)
{
    for (int i = 0; i < ckpt_n_tensors(source); i++) {
        const char *name = ckpt_tensor(source, i)->name;
        int tied_head = table->cfg.tied && !strcmp(name, "lm_head.weight");
        if (param_find(table, name) < 0 && !tied_head && !param_is_derived(name) && !is_buffer(table, name))
            return err_set(e, ERR_FORMAT,
                           "%s: tensor %s is not part of a %s model as config.json describes it",
                           ckpt_path(source), name, table->cfg.family->name);
    }
    return 0;
}

/* All ranks have read what they need: the rest, in shares. */
static int check_rest(const struct work *w, struct ckpt *c, struct err *e)
{
    struct world *world = w->ranks->world;
    int rc = ckpt_check_rest(c, world_rank(world), world_size(world), e);
    ckpt_release_files(c); /* --keep may remove it */
    return rc;
}

/* The weights under an adapter. */
static int load_frozen(struct work *w, struct err *e)
{
    const int weights[ZERO_STATES] = { 1, 0, 0, 0 };
    struct ckpt *base = w->run->lora.base;
    struct origin from = { base, NULL, w };
    int rc;
    TRY(check_names(base, &w->model.table, e));
    TRY(zero_load(w->frozen, fill, &from, weights, e));
    rc = check_rest(w, base, e);
out:
    return rc;
}

int restore_load(struct work *w, struct err *e)
{
    const struct run *run = w->run;
    const struct lora *l = &run->lora;
    const struct param_table *table = &work_trained(w)->table;
    struct origin from = { l->n ? l->peft.c : run->source, l->n ? l : NULL, w };
    int have[ZERO_STATES] = { 1, 0, 0, 0 }, rc = 0;
    uint64_t seed = (uint64_t)run->o.seed;
    if (l->n)
        TRY(load_frozen(w, e));
    if (!from.c)
        return zero_load(w->zero, zero_init_values, &seed, have, e);

    if (!l->n)
        TRY(check_names(from.c, table, e));
    if (run->o.resume)
        TRY(check_resume(&from, &table->p[0], have, e));
    TRY(zero_load(w->zero, fill, &from, have, e));
    TRY(check_rest(w, from.c, e));

    if (run->o.resume) {
        const struct ckpt_state *s = ckpt_state(from.c);
        w->at.step = w->at.first_step = s->step;
        w->at.first_sample = s->epoch * data_windows(w->data) + s->sample;
        TRY(balance_restore(w, &s->counts, ckpt_path(from.c), e));
    }
out:
    return rc;
}
