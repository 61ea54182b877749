/* setup.c - from a command line to a trainer that is ready: options, ranks, model, data, state. */
#define _GNU_SOURCE
#include <jansson.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/io.h"
#include "base/jx.h"
#include "comm/launch.h"
#include "model/family.h"
#include "train/layout_plan.h"
#include "train/trainer.h"

/* ---- options ---- */
static int parse(struct trainer *t, int argc, char **argv, struct err *e)
{
    struct opt_args args = { 0 };
    int rc = opt_parse(&ptrain_program, argc, argv, &t->o, &args, t->given, e);
    free(args.item);
    return rc;
}

/* Its tokenizer travels with a checkpoint: that is what it says, wherever the files came from. */
#define CARRIED_TOKENIZER "tokenizer.json"
static char *run_options(const struct train_opts *o)
{
    struct train_opts kept = *o;
    if (strcmp(o->tokenizer, "bytes"))
        kept.tokenizer = CARRIED_TOKENIZER;
    return opt_json(&ptrain_program, &kept);
}

/* One option of the resumed run, which lies at `from`, as a command line has it: NULL where the key is none
 * of those, or has no such form. */
static int stored_arg(char **arg, const char *key, const json_t *v, const char *from)
{
    *arg = NULL;
    if (!opts_stored(key)) /* a checkpoint names no paths and no ranks */
        return 0;
    if (!strcmp(key, "tokenizer") && json_is_string(v) && strcmp(json_string_value(v), "bytes")) {
        char path[4200];
        snprintf(path, sizeof path, "%s/" CARRIED_TOKENIZER, from);
        if (io_exists(path))
            return asprintf(arg, "--tokenizer=%s", from);
    }
    if (json_is_string(v))
        return asprintf(arg, "--%s=%s", key, json_string_value(v));
    if (json_is_integer(v))
        return asprintf(arg, "--%s=%lld", key, (long long)json_integer_value(v));
    if (json_is_real(v))
        return asprintf(arg, "--%s=%.17g", key, json_real_value(v));
    return json_is_true(v) ? asprintf(arg, "--%s", key) : 0;
}

/* Options that the command line left out take the values that the resumed run had: parsed again with those
 * in front. */
static int inherit(struct trainer *t, int argc, char **argv, struct err *e)
{
    const char *key, *text = t->source && t->o.resume ? ckpt_state(t->source)->run_json : NULL,
                     *resume = t->o.resume;
    unsigned char given[GIVEN_MAX];
    json_t *o, *v;
    char **all;
    int n = 0, rc;
    if (!text)
        return 0;
    o = jx_parse(text, strlen(text), ckpt_path(t->source), e);
    all = o ? calloc(json_object_size(o) + (size_t)argc + 1, sizeof *all) : NULL;
    t->inherited = all;
    if (!all) {
        json_decref(o);
        return o ? err_set(e, ERR_MEMORY, "no memory for options") : -e->code;
    }
    memcpy(given, t->given, sizeof given);
    all[n++] = argv[0];
    json_object_foreach(o, key, v) {
        char *arg;
        if (stored_arg(&arg, key, v, ckpt_path(t->source)) < 0) {
            t->n_inherited = n;
            json_decref(o);
            return err_set(e, ERR_MEMORY, "no memory for options");
        }
        if (arg)
            all[n++] = arg;
    }
    t->n_inherited = n;
    memcpy(all + n, argv + 1, sizeof *all * (size_t)(argc - 1));
    opt_free(&ptrain_program, &t->o, NULL);
    rc = parse(t, n + argc - 1, all, e);
    memcpy(t->given, given, sizeof given);
    t->o.resume = resume;
    json_decref(o);
    return rc < 0 ? err_add(e, "%s", ckpt_path(t->source)) : 0;
}

/* ---- ranks and device ---- */
static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int open_ranks(struct trainer *t, char **argv, struct err *e)
{
    struct train_opts *o = &t->o;
    int64_t inner = o->tp * o->pp * o->cp;
    static char resume[] = "--resume", newest[] = "auto";
    char *const resume_args[] = { resume, newest, NULL };
    int rc, size[AXIS_COUNT];
    int ranks = (int)(o->ranks || launch_under_launcher() ? o->ranks : inner),
        alone = o->dry_run && !launch_under_launcher();
    launch_ranks_per_node((int)o->ranks_per_node);
    TRY(launch_ranks_again(alone ? 1 : ranks, argv, alone ? 0 : (int)o->restarts, resume_args, e));
    TRY(dev_open(&t->dev, o->device, 1, &t->mem, e));
    TRY(world_open(&t->world, o->transport, o->rank_timeout_s, t->dev, &t->mem, e));
    log_open(&t->log, "ptrain", world_rank(t->world) != 0, launch_stderr_is_tty());
    if (world_device_says(t->world))
        log_line(&t->log, "the device's memory goes between ranks %s", world_device_says(t->world));
    int n = alone ? ranks : world_size(t->world), threads = o->threads        ? (int)o->threads
                                                            : cores() / n > 1 ? cores() / n
                                                                              : 1;
    if (n % inner) {
        rc = err_set(e, ERR_USAGE,
                     "%d ranks are not a multiple of tp %lld x pp %lld x cp %lld: use --ranks %lld", n,
                     (long long)o->tp, (long long)o->pp, (long long)o->cp,
                     (long long)(inner * (n / inner + 1)));
        goto out;
    }
    if (threads > 1) { /* the thread pool comes after MPI has started */
        TRY(dev_threads(t->dev, threads, e));
    }
    world_pin(t->world, t->dev->pool);
    if (o->trace) {
        TRY(trace_open(&t->trace, threads, e));
        t->dev->trace = t->trace;
        pool_trace(t->dev->pool, t->trace);
        world_trace(t->world, t->trace);
    }
    t->layout = (struct layout){ (int)o->tp,
                                 (int)o->pp,
                                 (int)o->cp,
                                 (int)(n / inner),
                                 (int)o->ep,
                                 (int)o->zero,
                                 (int)o->virtual_stages,
                                 o->sp };
    size[AXIS_TP] = t->layout.tp;
    size[AXIS_CP] = t->layout.cp;
    size[AXIS_DP] = t->layout.dp;
    size[AXIS_PP] = t->layout.pp;
    if (o->overlap == OVERLAP_ON && opts_given(t->given, "overlap") && t->layout.dp == 1) {
        rc = err_set(e, ERR_USAGE,
                     "--overlap on: at dp 1 there is nothing to sum or gather over dp: use more ranks, or "
                     "leave it out");
        goto out;
    }
    for (int a = 0; alone && a < AXIS_COUNT; a++)
        size[a] = 1; /* the plan is of the layout; nothing is started */
    TRY(mesh_open(&t->mesh, t->world, size, e));
out:
    return rc;
}

/* ---- model and data ---- */
static int read_model(struct trainer *t, struct err *e)
{
    const char *name = t->o.model;
    void *text = NULL;
    size_t n;
    int rc;
    if (!name)
        return t->source ? 0 : model_config_preset(&t->cfg, "tiny", e);
    if (!io_exists(name))
        return model_config_preset(&t->cfg, name, e);
    TRY(io_read_file(name, 1 << 20, &text, &n, e));
    TRY(model_config_parse(&t->cfg, text, name, e));
out:
    free(text);
    return rc;
}

static int set_grain(struct trainer *t, struct err *e)
{
    int g = (int)t->o.grain;
    if (g && t->source && t->o.resume && g != t->cfg.grain)
        return err_set(
            e, ERR_USAGE,
            "--grain %d: the checkpoint was trained with grain %d, which cannot change: leave --grain out", g,
            t->cfg.grain);
    if (g && t->cfg.n_heads % g)
        return err_set(e, ERR_USAGE, "--grain %d does not divide the %lld attention heads: use a divisor", g,
                       (long long)t->cfg.n_heads);
    if (g)
        t->cfg.grain = g;
    if (layout_grain(&t->layout, &t->cfg) != t->cfg.grain)
        log_line(
            &t->log,
            "tp %d cuts the tree of grain %d elsewhere: deterministic, but the bits are this layout's own",
            t->layout.tp, t->cfg.grain);
    return 0;
}

/* The dtype of the arithmetic: --dtype, or what a resumed or evaluated checkpoint holds. */
static void set_dtype(struct trainer *t)
{
    int first = t->source ? ckpt_find(t->source, ROLE_WEIGHT, t->cfg.family->first->name) : -1;
    t->dt = t->o.dtype ? DT_BF16 : DT_F32;
    if (first >= 0 && !opts_given(t->given, "dtype") && (t->o.resume || t->o.eval_only))
        t->dt = ckpt_tensor(t->source, first)->dtype == CK_BF16 ? DT_BF16 : DT_F32;
}

static int open_data(struct trainer *t, struct err *e)
{
    int rc = 0;
    if (!t->o.eval_only && t->o.data.n)
        TRY(data_open(&t->data, &t->o.data, t->o.tokenizer, t->o.data_order, t->o.data_mix, t->o.seq_len,
                      t->cfg.vocab, (uint64_t)t->o.seed, e));
    if (t->data && t->o.documents && !data_knows_documents(t->data)) {
        rc = err_set(e, ERR_USAGE,
                     "--documents: no --data file says where documents end: make one with ptok prepare");
        goto out;
    }
    if (t->o.eval_data.n)
        TRY(data_open(&t->eval, &t->o.eval_data, t->o.tokenizer, "stride:1", NULL, t->o.seq_len, t->cfg.vocab,
                      0, e));
out:
    return rc;
}

/* Tokenizer files travel with the checkpoint: from --tokenizer's folder, else from the checkpoint we start
 * from. */
static int carry_extras(struct trainer *t, struct err *e)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                         "generation_config.json" };
    int n = t->source ? ckpt_n_extra(t->source) : 0, most = n > 4 ? n : 4, rc = 0;
    t->extra_name = calloc((size_t)most, sizeof *t->extra_name);
    t->extra_data = calloc((size_t)most, sizeof *t->extra_data);
    t->extra_bytes = calloc((size_t)most, sizeof *t->extra_bytes);
    if (!t->extra_name || !t->extra_data || !t->extra_bytes)
        return err_set(e, ERR_MEMORY, "no memory for tokenizer files");
    for (int i = 0; strcmp(t->o.tokenizer, "bytes") && i < 4; i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/%s", t->o.tokenizer, names[i]);
        if (!io_exists(path))
            continue;
        t->extra_name[t->n_extra] = names[i];
        TRY(io_read_file(path, (size_t)1 << 30, (void **)(uintptr_t)&t->extra_data[t->n_extra],
                         &t->extra_bytes[t->n_extra], e));
        t->n_extra++;
    }
    for (int i = 0; !t->n_extra && i < n; i++) {
        TRY(ckpt_extra_read(t->source, i, (void **)(uintptr_t)&t->extra_data[i], &t->extra_bytes[i], e));
        t->extra_name[i] = strdup(ckpt_extra_name(t->source, i));
    }
    t->n_extra = t->n_extra ? t->n_extra : n;
    /* its files may lie in a checkpoint that --keep removes */
    if (t->o.sample_every && !world_rank(t->world))
        TRY(tokenizer_open_named(&t->tokenizer, t->o.tokenizer, e));
out:
    return rc;
}

/* Memory for as many micro-batches as the schedule keeps at once. */
static int open_micros(struct trainer *t, int chunks, struct err *e)
{
    struct work_shape shape = { (int)t->work_seqs, t->o.seq_len, t->o.eval_only ? 1 : (int)t->o.documents,
                                (enum recompute)t->o.recompute };
    int rc;
    TRY(train_work_check(&t->model, &shape, e));
    for (int c = 0; c < chunks; c++) {
        t->first_work[c] = t->n_work;
        shape.late_weights = t->schedule.late[c] > 0;
        for (int64_t i = 0; i < t->schedule.in_flight[c]; i++, t->n_work++)
            TRY(train_work_open(&t->work[t->n_work], &t->model, c, &shape, e));
        t->first_late[c] = t->n_late;
        for (int64_t i = 0; i < t->schedule.late[c]; i++, t->n_late++)
            TRY(train_late_open(&t->late[t->n_late], &t->model, c, &shape, e));
    }
out:
    return rc;
}

/* The schedule of this stage, and what it computes in. */
static int open_work(struct trainer *t, struct err *e)
{
    int64_t T = t->o.seq_len, most = 0;
    struct pipe_shape s = train_plan_schedule(&t->plan, &t->layout,
                                              t->o.eval_only ? PIPE_NAIVE : (enum pipe_kind)t->o.pipeline);
    int rc;
    TRY(pipe_check(&s, e));
    TRY(pipe_make(&t->schedule, &s, t->mesh.at[AXIS_PP], e));
    TRY(comm_split(&t->pipe_back, t->mesh.axis[AXIS_PP], 0, e));
    for (int c = 0; c < s.chunks; c++)
        most += t->schedule.in_flight[c];
    t->first_work = calloc((size_t)s.chunks, sizeof *t->first_work);
    t->first_late = calloc((size_t)s.chunks, sizeof *t->first_late);
    t->work = calloc((size_t)most, sizeof *t->work);
    t->late = calloc((size_t)most, sizeof *t->late); /* never more late than in flight */
    t->ids = malloc(sizeof *t->ids * (size_t)(most * t->work_seqs * T));
    t->targets = malloc(sizeof *t->targets * (size_t)(most * t->work_seqs * T));
    t->logprobs = malloc(sizeof *t->logprobs * (size_t)(t->work_seqs * T));
    t->n_documents = malloc(sizeof *t->n_documents * (size_t)t->work_seqs);
    t->document_begin = malloc(sizeof *t->document_begin * (size_t)(t->work_seqs * (t->o.documents + 1)));
    if (!t->first_work || !t->first_late || !t->work || !t->late || !t->ids || !t->targets || !t->logprobs ||
        !t->n_documents || !t->document_begin)
        return err_set(e, ERR_MEMORY, "no memory for a batch");
    rc = open_micros(t, s.chunks, e);
out:
    return rc;
}

/* Model and work memory. */
static int open_compute(struct trainer *t, struct err *e)
{
    int64_t most, T = t->o.seq_len, n = t->o.micro_batch ? t->o.micro_batch : 4;
    int rc, at_tp = t->mesh.at[AXIS_TP], at_pp = t->mesh.at[AXIS_PP];
    struct comm *tp = t->mesh.axis[AXIS_TP];
    if (t->o.eval_only)
        t->plan = (struct batch_plan){ .local = n, .micro = n, .supers = 1 };
    else
        TRY(batch_plan(&t->plan, t->o.global_batch, t->o.micro_batch, t->layout.dp, t->layout.zero, e));
    if (!t->o.eval_only && !t->plan.in_tree)
        log_line(&t->log,
                 "global batch %lld over dp %d is not a part of its tree: deterministic, but the bits are "
                 "this layout's own",
                 (long long)t->plan.rows, t->layout.dp);
    t->work_seqs = t->plan.micro;
    most = t->work_seqs * T > 64 ? t->work_seqs * T : 64;
    if (T > t->cfg.max_pos)
        return err_set(e, ERR_USAGE,
                       "--seq-len %lld is longer than the model's %lld positions (max_position_embeddings): "
                       "use a smaller --seq-len",
                       (long long)T, (long long)t->cfg.max_pos);
    TRY(model_open(&t->model, &t->cfg, &t->layout, t->dev, tp, at_tp, at_pp, t->dt,
                   t->o.numerics == NUMERICS_FAST, most, train_positions(T, &t->cfg), e));
    if (t->cfg.dropout > 0 && !t->o.eval_only)
        log_line(&t->log, "config.json asks for dropout of up to %g: none is applied", t->cfg.dropout);
    if (*t->dev->note)
        log_line(&t->log, "%s", t->dev->note);
    rc = open_work(t, e);
out:
    return rc;
}

/* Weights and the rest of the state. The ranks that come here have all that goes before. */
static int open_state(struct trainer *t, struct err *e)
{
    struct comm *dp = t->mesh.axis[AXIS_DP];
    struct zero_how how = { .stage = t->layout.zero };
    int rc, rank, sharers;
    if (t->o.eval_only) {
        TRY(resident_open(&t->resident, &t->model, trainer_read_param, t, e));
        t->weights = &t->resident.w;
        return ckpt_check_rest(t->source, world_rank(t->world), world_size(t->world), e);
    }
    int here = comm_here(t->mesh.axis[AXIS_TP]);
    if (here < t->layout.tp)
        log_line(&t->log,
                 "tp %d spans machines (%d ranks of a group on this one): its sums, two a layer, go over the "
                 "network: use --tp %d or less",
                 t->layout.tp, here, here);
    comm_shared_by(dp, &rank, &sharers);
    how.overlap = opts_overlap(&t->o, t->given, t->layout.dp, sharers);
    TRY(zero_open(&t->zero, &t->model, dp, t->mesh.axis[AXIS_PP], t->mesh.all, how, &t->plan, e));
    t->weights = zero_weights(t->zero);
    TRY(trainer_save_open(t, e));
    rc = trainer_load(t, e);
out:
    return rc;
}

/* Files and folders that are named by a URL, as paths. */
static int bring_list(struct trainer *t, struct opt_list *list, struct err *e)
{
    for (int i = 0; i < list->n; i++)
        if (!(list->item[i] = near_file(&t->near, list->item[i], e)))
            return -e->code;
    return 0;
}

static int bring_model(struct trainer *t, struct err *e)
{
    return t->o.model && !(t->o.model = near_file(&t->near, t->o.model, e)) ? -e->code : 0;
}

static int bring_data(struct trainer *t, struct err *e)
{
    struct train_opts *o = &t->o;
    int rc;
    if (!(o->tokenizer = near_tokenizer(&t->near, o->tokenizer, e)))
        return -e->code;
    TRY(bring_list(t, &o->data, e));
    TRY(bring_list(t, &o->eval_data, e));
out:
    return rc;
}

static int open_rank(struct trainer *t, int argc, char **argv, struct err *e)
{
    int rc;
    TRY(bring_model(t, e));
    TRY(read_model(t, e));
    TRY(trainer_find_source(t, e));
    TRY(inherit(t, argc, argv, e));
    t->run_json = run_options(&t->o);
    TRY(bring_model(t, e)); /* the options were parsed again */
    TRY(bring_data(t, e));
    TRY(layout_check(&t->layout, &t->cfg, e));
    TRY(set_grain(t, e));
    set_dtype(t);
    TRY(trainer_check_target(t, e));
    if (!t->o.dry_run && world_rank(t->world) == 0) /* a plan makes nothing */
        TRY(trainer_make_target(t, e));
    TRY(open_data(t, e));
    TRY(carry_extras(t, e));
out:
    return rc;
}

/* A checkpoint of another framework: what of its run goes on, and what it did not hold. */
static void say_what_was_taken(struct trainer *t)
{
    const struct ckpt_state *s = ckpt_state(t->source);
    if (s->epoch || s->sample)
        log_line(&t->log, "written by %s; data go on where its run was", ckpt_writer(t->source));
    else
        log_line(&t->log, "written by %s; data begin at the first sequence: where its run was is not in it",
                 ckpt_writer(t->source));
    if (s->run_json)
        log_line(&t->log, "its settings, where the command line has none: %s", s->run_json);
    else
        log_line(&t->log,
                 "it holds no settings: learning rate and AdamW's constants are those of the command line");
    if (ckpt_note(t->source))
        log_line(&t->log, "%s", ckpt_note(t->source));
}

int trainer_open(struct trainer *t, int argc, char **argv, struct err *e)
{
    int rc = parse(t, argc, argv, e);
    if (rc)
        return rc;
    TRY(trainer_check_options(t, e));
    TRY(open_ranks(t, argv, e));
    rc = open_rank(t, argc, argv, e);
    TRY(comm_agree(t->mesh.all, rc, e));
    if (t->o.dry_run)
        return 0;
    rc = open_compute(t, e);
    TRY(comm_agree(t->mesh.all, rc, e));
    rc = open_state(t, e);
    TRY(comm_agree(t->mesh.all, rc, e));
    if (t->source)
        ckpt_done(t->source);
    if (t->step) /* said when all ranks have read and checked their parts */
        log_line(&t->log, "resumed %s at step %lld", ckpt_path(t->source), (long long)t->step);
    if (t->step && ckpt_writer(t->source))
        say_what_was_taken(t);
    TRY(runlog_open(t, e));
out:
    return rc;
}

void trainer_close(struct trainer *t)
{
    if (t->log_file)
        fclose(t->log_file);
    trainer_save_close(t);
    if (t->zero)
        zero_close(t->zero);
    if (t->resident.m)
        resident_close(&t->resident);
    for (int64_t i = 0; i < t->n_work; i++)
        train_work_close(t->work[i]);
    for (int64_t i = 0; i < t->n_late; i++)
        train_late_close(t->late[i]);
    free(t->work);
    free(t->first_work);
    free(t->late);
    free(t->first_late);
    comm_close(t->pipe_back);
    pipe_free(&t->schedule);
    model_close(&t->model);
    ckpt_close(t->source);
    data_close(t->data);
    data_close(t->eval);
    tokenizer_close(t->tokenizer);
    free(t->ids);
    free(t->targets);
    free(t->logprobs);
    free(t->n_documents);
    free(t->document_begin);
    free(t->run_json);
    near_close(&t->near);
    if (t->world) {
        mesh_close(&t->mesh);
        world_close(t->world);
    }
    if (t->dev)
        dev_close(t->dev);
    trace_close(t->trace);
    opt_free(&ptrain_program, &t->o, NULL);
    for (int i = 1; i < t->n_inherited; i++)
        free(t->inherited[i]);
    free(t->inherited);
}
