/* torch_run.c - reads the settings of a run of another framework: learning rate and its schedule, AdamW's
 * constants, clipping. ptrain --resume uses them where the command line has no value. What ptrain does not
 * support as the source did becomes a note.
 *
 *     every optimizer      param_groups: lr, initial_lr, betas, eps, weight_decay
 *     DeepSpeed            ds_config: scheduler {type, params}, gradient_clipping
 *     Megatron             opt_param_scheduler (counts samples), args.clip_grad
 *     torch schedulers     T_max, eta_min, base_lrs, last_epoch as members of a state_dict (dcp.c)
 * Source: deepspeed/runtime/lr_schedules.py, megatron/core/optimizer_param_scheduler.py (described, not
 * copied). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* vasprintf */
#endif
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/torch/torch_build.h"

void run_value(struct run *r, enum run_value which, double v)
{
    if (!(v >= 0 && v < 1e9))
        return; /* not a setting */
    if (!r->value[which].has || v < r->value[which].least)
        r->value[which].least = v;
    if (!r->value[which].has || v > r->value[which].most)
        r->value[which].most = v;
    r->value[which].mixed = r->value[which].least < r->value[which].most;
    r->value[which].has = 1;
}

/* A number, or a tensor of one element. */
static int number_of(struct torch_file *t, const struct pk *p, double *out)
{
    struct err e;
    return p && torch_number(t, p, "a setting", out, &e) > 0;
}

static double number_or(struct torch_file *t, const struct pk *dict, const char *key, double otherwise)
{
    double v;
    const struct pk *p = pk_get(dict, key);
    return number_of(t, p ? p : pk_attr(dict, key), &v) ? v : otherwise;
}

void run_group(struct run *r, struct torch_file *t, const struct pk *group)
{
    static const struct {
        const char *key;
        enum run_value which;
    } members[] = {
        { "lr", RUN_LR },
        { "initial_lr", RUN_FIRST_LR },
        { "eps", RUN_EPS },
        { "weight_decay", RUN_DECAY },
    };

    const struct pk *betas = pk_get(group, "betas");
    double v;
    if (!group || group->kind != PK_DICT)
        return;
    /* Megatron's scheduler multiplies the decay by wd_mult at run time */
    int undecayed = number_or(t, group, "wd_mult", 1) == 0;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (number_of(t, pk_get(group, members[i].key), &v))
            run_value(r, members[i].which, members[i].which == RUN_DECAY && undecayed ? 0 : v);
    for (int i = 0; i < 2; i++)
        if (number_of(t, pk_at(betas, (uint32_t)i), &v))
            run_value(r, i ? RUN_BETA2 : RUN_BETA1, v);
}

void run_schedule(struct run *r, const char *kind, double lr, double min_lr, int64_t warmup, int64_t steps)
{
    if (!(lr >= 0 && lr < 1e6 && min_lr >= 0 && min_lr < 1e6) || warmup < 0 || warmup > (int64_t)1e12 ||
        steps < 1 || steps > (int64_t)1e12) {
        run_unknown(r, kind, (int)strlen(kind));
        return;
    }
    r->schedule = kind;
    r->min_lr = min_lr;
    r->warmup = warmup;
    r->steps = steps;
    r->value[RUN_FIRST_LR].has = 1;
    r->value[RUN_FIRST_LR].least = r->value[RUN_FIRST_LR].most = lr;
}

void run_unknown(struct run *r, const char *what, int n)
{
    int at = 0;
    /* the name comes from a file and becomes part of a line: keep printable characters only */
    for (int i = 0; i < n && at + 1 < (int)sizeof r->unknown; i++)
        if (what[i] >= ' ' && what[i] < 127)
            r->unknown[at++] = what[i];
    r->unknown[at] = 0;
    if (!at)
        snprintf(r->unknown, sizeof r->unknown, "of an unknown kind");
}

/* DeepSpeed's schedulers are one update behind ptrain's and start at 0: with a warm-up of one more update
 * they are equal after it. */
void run_deepspeed(struct run *r, struct torch_file *t, const struct pk *config, const struct pk *scheduler)
{
    const struct pk *s = pk_get(config, "scheduler"), *type = pk_get(s, "type"), *p = pk_get(s, "params");
    double clip = number_or(t, config, "gradient_clipping", -1),
           lr = number_or(t, p, "warmup_max_lr", r->value[RUN_LR].most);
    double warmup = number_or(t, p, "warmup_num_steps", 1000), total = number_or(t, p, "total_num_steps", 0);

    if (config && config->kind == PK_DICT)
        run_value(r, RUN_CLIP, clip < 0 ? 0 : clip);
    if (!type || type->kind != PK_TEXT) {
        if (scheduler && scheduler->kind != PK_NONE)
            run_unknown(r, "", 0);
        return;
    }

    /* log is DeepSpeed's default */
    int logs = pk_is_text(pk_get(p, "warmup_type"), "log") || !pk_get(p, "warmup_type");
    r->warmup_differs = 1 + logs;
    if (pk_is_text(type, "WarmupDecayLR"))
        run_schedule(r, "linear", lr, 0, (int64_t)warmup + 1, (int64_t)total + 1);
    else if (pk_is_text(type, "WarmupLR"))
        run_schedule(r, "constant", lr, 0, (int64_t)warmup + 1, (int64_t)warmup + 2);
    else if (pk_is_text(type, "WarmupCosineLR") && r->value[RUN_LR].has)
        run_unknown(r, "WarmupCosineLR", 14); /* the highest rate is not in the file */
    else
        run_unknown(r, type->text, (int)type->n);
}

/* Megatron counts samples; its warm-up starts at 0, one update behind ptrain's. */
void run_megatron(struct run *r, struct torch_file *t, const struct pk *args, const struct pk *s,
                  int64_t iteration)
{
    static const struct {
        const char *theirs, *ours;
    } kinds[] = { { "constant", "constant" }, { "linear", "linear" }, { "cosine", "cosine" } };
    const struct pk *style = pk_get(s, "lr_decay_style");
    double done = number_or(t, s, "num_steps", 0),
           batch = iteration > 0 ? done / (double)iteration : number_or(t, args, "global_batch_size", 0);
    double clip = number_or(t, args, "clip_grad", -1), warmup = number_or(t, s, "lr_warmup_steps", 0),
           total = number_or(t, s, "lr_decay_steps", 0);
    if (clip >= 0)
        run_value(r, RUN_CLIP, clip);
    if (!style || style->kind != PK_TEXT)
        return;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (pk_is_text(style, kinds[i].theirs) && batch >= 1 && total >= 1 && fmod(warmup, batch) == 0 &&
            fmod(total, batch) == 0) {
            r->warmup_differs = 1;
            run_schedule(r, kinds[i].ours, number_or(t, s, "max_lr", -1), number_or(t, s, "min_lr", 0),
                         (int64_t)(warmup / batch), (int64_t)(total / batch));
            return;
        }
    run_unknown(r, style->text, (int)style->n);
}

int build_note(struct ckpt *c, struct err *e, const char *fmt, ...)
{
    va_list a;
    char *text = NULL, *joined = NULL;

    va_start(a, fmt);
    if (vasprintf(&text, fmt, a) < 0)
        text = NULL;
    va_end(a);
    joined = text && c->note ? build_text("%s; %s", c->note, text) : NULL;
    if (!text || (c->note && !joined)) {
        free(text);
        return err_set(e, ERR_MEMORY, "%s: no memory for a note", c->path);
    }

    free(c->note);
    c->note = joined ? joined : text;
    if (joined)
        free(text);
    return 0;
}

int build_writer(struct ckpt *c, const char *what, const struct pk *version, int n_ranks, struct err *e)
{
    char *v = pk_strdup(version);
    for (char *p = v; p && *p; p++)
        *p = *p > ' ' && *p < 127 ? *p : '?';
    c->n_ranks = n_ranks ? n_ranks : c->n_ranks;
    if (!c->writer)
        c->writer = v ? build_text("%s (version %.40s)", what, v) : strdup(what);
    free(v);
    return c->writer ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for a name", c->path);
}

static int add_notes(const struct run *r, struct ckpt *c, struct err *e)
{
    static const struct {
        enum run_value which;
        const char *what;
    } mixed[] = {
        { RUN_LR, "learning rate" },
        { RUN_BETA1, "beta1" },
        { RUN_BETA2, "beta2" },
        { RUN_EPS, "eps" },
    };

    int rc = 0;
    if (*r->unknown)
        rc = build_note(c, e,
                        "the learning-rate schedule (%s) cannot be carried over: resuming keeps the rate of "
                        "the last update, %.9g",
                        r->unknown, r->value[RUN_LR].most);
    else if (r->schedule && r->warmup_differs && c->state.step < r->warmup)
        rc = build_note(c, e,
                        "saved inside its warm-up, which is not the same update by update as that of ptrain");
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed && rc >= 0; i++)
        if (r->value[mixed[i].which].mixed)
            rc = build_note(
                c, e, "groups of parameters differ in %s (%.9g to %.9g): resuming takes the largest for all",
                mixed[i].what, r->value[mixed[i].which].least, r->value[mixed[i].which].most);
    if (rc >= 0 && r->value[RUN_DECAY].has && !r->value[RUN_DECAY].mixed && r->value[RUN_DECAY].most > 0)
        rc = build_note(c, e, "weight decay was on vectors too: resuming decays matrices only");
    return rc < 0 ? rc : 0;
}

/* Numbers with as few digits as read back to the same values. */
static char *shortest_text(const json_t *o)
{
    char *text = NULL;
    for (size_t digits = 6; digits <= 17; digits++) {
        free(text);
        text = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(digits));
        json_t *back = text ? json_loads(text, 0, NULL) : NULL;
        int same = back && json_equal(o, back);
        json_decref(back);
        if (same)
            break;
    }
    return text;
}

int run_finish(struct run *r, struct ckpt *c, struct err *e)
{
    static const struct {
        enum run_value which;
        const char *option;
    } rows[] = {
        { RUN_BETA1, "beta1" },        { RUN_BETA2, "beta2" }, { RUN_EPS, "eps" },
        { RUN_DECAY, "weight-decay" }, { RUN_CLIP, "clip" },
    };

    int ours = r->schedule && !*r->unknown;
    if (!c->state.has_state || !r->value[RUN_LR].has)
        return 0;
    json_t *o = json_object();
    json_object_set_new(o, "lr", json_real(ours ? r->value[RUN_FIRST_LR].most : r->value[RUN_LR].most));
    json_object_set_new(o, "lr-schedule", json_string(ours ? r->schedule : "constant"));
    json_object_set_new(o, "min-lr", json_real(ours ? r->min_lr : 0));
    json_object_set_new(o, "warmup", json_integer(ours ? r->warmup : 0));
    if (ours && strcmp(r->schedule, "constant"))
        json_object_set_new(o, "steps", json_integer(r->steps));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (r->value[rows[i].which].has)
            json_object_set_new(o, rows[i].option, json_real(r->value[rows[i].which].most));
    c->run_json = o ? shortest_text(o) : NULL;
    json_decref(o);
    if (!c->run_json)
        return err_set(e, ERR_MEMORY, "%s: no memory for its settings", c->path);
    c->state.run_json = c->run_json;
    return add_notes(r, c, e);
}
