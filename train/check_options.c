/* check_options.c - refuses command lines before the work begins: options that contradict each other,
 * places that cannot be written, outputs that would be written over the data. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/io.h"
#include "train/elastic/note.h"
#include "train/offload/offload.h"
#include "train/checkpoint/publisher.h"
#include "train/run.h"

/* ---- options ---- */
/* An adapter goes on over weights that --init may name. */
static int resumes_adapter(const struct train_opts *o)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/" PEFT_CONFIG, o->resume);
    return o->lora || io_exists(path);
}

/* This run itself went on before: its options may name a beginning, its checkpoints may be there. */
static int goes_on(const struct train_opts *o)
{
    return o->resume && (!strcmp(o->resume, "auto") || note_is_kept(o->resume));
}

static int check_needs(const struct train_opts *o, struct err *e)
{
    if (o->eval_only && (!o->init || !o->eval_data.n))
        return err_set(e, ERR_USAGE, "--eval-only needs --init CKPT and --eval-data FILE");
    if (o->eval_logprobs && !o->eval_only)
        return err_set(e, ERR_USAGE, "--eval-logprobs needs --eval-only");
    if (!o->eval_only && !o->data.n && !o->dry_run)
        return err_set(e, ERR_USAGE, "no data: name a file with --data");
    if (!o->eval_only && !(o->out && *o->out) && !o->dry_run)
        return err_set(e, ERR_USAGE, "no folder for checkpoints: name one with --out");
    if (o->simulate && !o->dry_run)
        return err_set(e, ERR_USAGE, "--simulate %s goes with --dry-run: a run is not predicted, it is run",
                       o->simulate);
    if (o->eval_only && (o->layout_file || o->memory_every))
        return err_set(e, ERR_USAGE, "--%s with --eval-only: an evaluation keeps no state: leave it out",
                       o->layout_file ? "layout-file" : "memory-every");
    if (o->any_bits && !o->layout_file)
        return err_set(e, ERR_USAGE, "--any-bits needs --layout-file");
    if (o->eval_every && !o->eval_data.n)
        return err_set(e, ERR_USAGE, "--eval-every needs --eval-data FILE");
    if (o->resume && !strcmp(o->resume, "auto") && !o->out)
        return err_set(e, ERR_USAGE, "--resume auto needs --out");
    if (o->resume && !goes_on(o) && o->init && !resumes_adapter(o))
        return err_set(e, ERR_USAGE,
                       "--resume %s and --init %s: a run goes on or starts from weights: leave one out",
                       o->resume, o->init);
    if (o->publish && publish_check_address(o->publish, e) < 0)
        return -e->code;
    if (o->publish && (o->lora || o->lora_init))
        return err_set(e, ERR_USAGE,
                       "--publish with --lora: whole weights are served, not adapters: leave one out");
    if (!o->publish && (o->publish_copy || o->publish_key_file))
        return err_set(e, ERR_USAGE, "--publish-%s goes with --publish HOST:PORT",
                       o->publish_copy ? "copy" : "key-file");
    if (o->out && strstr(o->out, "://"))
        return err_set(e, ERR_USAGE, "--out %s: writing to a URL is not built yet: name a folder", o->out);
    return 0;
}

static int check_numbers(const struct run *r, struct err *e)
{
    const struct train_opts *o = &r->o;
    int inherits = o->resume && !(opts_given(r->given, "lr") && opts_given(r->given, "min-lr"));
    if (o->min_lr > o->lr && !inherits)
        return err_set(e, ERR_USAGE, "--min-lr %g is above --lr %g: make it the smaller one", o->min_lr,
                       o->lr);
    if ((float)o->beta1 >= 1 || (float)o->beta2 >= 1) /* the correction 1 - beta^step would be 0 */
        return err_set(e, ERR_USAGE, "--beta1 %g --beta2 %g: both must be below 1", o->beta1, o->beta2);
    if (!((float)o->eps > 0)) /* 0 / 0 where no gradient came yet */
        return err_set(e, ERR_USAGE, "--eps %g: it must be more than 0 in fp32: 1e-8 is usual", o->eps);
    if (o->seq_len * (o->micro_batch ? o->micro_batch : 1) > INT32_MAX)
        return err_set(e, ERR_USAGE,
                       "--micro-batch %lld of --seq-len %lld: at most %d tokens are computed at once: use a "
                       "smaller --micro-batch or --seq-len",
                       (long long)o->micro_batch, (long long)o->seq_len, INT32_MAX);
    return 0;
}

/* What else may lie in the files. */
static int check_offload_more(const struct train_opts *o, struct err *e)
{
    int files = offload_kind(o->offload, o->device) == OFFLOAD_FILES,
        more = o->offload_grads || o->offload_params;
    if (more && (!files || strcmp(o->device, "cpu")))
        return err_set(e, ERR_USAGE,
                       "--offload-%s needs files and --device cpu: give --offload DIR, or leave it out",
                       o->offload_grads ? "grads" : "params");
    if (o->offload_grads && o->zero < 2)
        return err_set(
            e, ERR_USAGE,
            "--offload-grads with --zero %lld: every rank needs all gradients in memory: use --zero 2 "
            "or 3, also on one rank",
            (long long)o->zero);
    if (o->offload_params && o->zero < 3)
        return err_set(
            e, ERR_USAGE,
            "--offload-params with --zero %lld: every rank needs all weights in memory: use --zero 3, "
            "also on one rank",
            (long long)o->zero);
    if (o->offload_activations && (!files || o->recompute != RECOMPUTE_FULL))
        return err_set(
            e, ERR_USAGE,
            "--offload-activations needs --offload DIR and --recompute full: give both, or leave it out");
    return 0;
}

static int check_offload(const struct train_opts *o, struct err *e)
{
    int rc = check_offload_more(o, e);
    if (rc < 0 || !strcmp(o->offload, "none"))
        return rc;
    if (o->eval_only)
        return err_set(e, ERR_USAGE, "--offload %s: an evaluation has no optimizer state: leave it out",
                       o->offload);
    if (o->save_async && strcmp(o->offload, "cpu"))
        return err_set(
            e, ERR_USAGE,
            "--save-async keeps a copy of all state in memory, and --offload %s is there to save it: "
            "leave one of them out",
            o->offload);
    if (strstr(o->offload, "://") || !*o->offload)
        return err_set(e, ERR_USAGE, "--offload %s: name a folder on a disk of this machine", o->offload);
    return 0;
}

/* ---- files ---- */
/* The data are mapped while the run reads them: an output that truncates a data file would lose it and end
 * the run. */
static int check_outputs(const struct train_opts *o, struct err *e)
{
    const struct {
        const char *option, *path;
    } out[] = { { "log", o->log }, { "trace", o->trace }, { "eval-logprobs", o->eval_logprobs } };
    const struct {
        const char *option;
        const struct opt_list *list;
    } in[] = { { "data", &o->data }, { "eval-data", &o->eval_data } };
    for (int k = 0; k < 3; k++)
        for (int l = 0; l < 2; l++)
            for (int i = 0; out[k].path && i < in[l].list->n; i++)
                if (io_same_file(out[k].path, in[l].list->item[i]))
                    return err_set(e, ERR_USAGE,
                                   "--%s %s is a file of --%s and would be written over it: name another one",
                                   out[k].option, out[k].path, in[l].option);
    return 0;
}

/* What an adapter cannot have. */
static int check_lora(const struct train_opts *o, struct err *e)
{
    struct lora_spec s = { 0 };
    int rc = o->lora ? lora_spec_parse(&s, o->lora, e) : 0;
    lora_spec_free(&s);
    if (rc < 0 || !(o->lora || o->lora_init))
        return rc;
    if (o->offload_params)
        return err_set(e, ERR_USAGE,
                       "--offload-params with --lora: the frozen weights lie in memory: leave it out");
    if (o->balance != BALANCE_NONE || o->z_loss > 0)
        return err_set(e, ERR_USAGE, "--%s with --lora: routers are frozen: leave it out",
                       o->balance != BALANCE_NONE ? "balance" : "z-loss");
    return 0;
}

int run_check_options(const struct run *r, struct err *e)
{
    int rc = check_needs(&r->o, e);
    rc = rc < 0 ? rc : check_lora(&r->o, e);
    rc = rc < 0 ? rc : check_numbers(r, e);
    rc = rc < 0 ? rc : check_offload(&r->o, e);
    return rc < 0 ? rc : check_outputs(&r->o, e);
}

int run_check_target(const struct run *r, struct err *e)
{
    char path[4200];
    if (r->o.eval_only || r->o.dry_run)
        return 0;
    snprintf(path, sizeof path, "%s/manifest.json", r->o.out);
    if (io_exists(path))
        return err_set(
            e, ERR_USAGE,
            "--out %s is a checkpoint itself: name the folder that holds checkpoints, or a new one",
            r->o.out);

    snprintf(path, sizeof path, "%s/step-%lld", r->o.out, (long long)run_end_step(r));
    /* passed over, and would be in the way at the end */
    if (r->resumes_newest && ckpt_state(r->source)->step < run_end_step(r) && io_exists(path))
        return err_set(e, ERR_USAGE,
                       "%s is no whole checkpoint and has the name of this run's last one: remove it, or "
                       "choose another --out",
                       path);

    if (io_exists(path) && !goes_on(&r->o))
        return err_set(e, ERR_USAGE,
                       "%s exists already: choose another --out, or continue with --resume auto", path);
    return 0;
}

int run_make_target(const struct run *r, struct err *e)
{
    const char *out = r->o.out, *trace = r->o.trace;
    int rc = 0, fd;
    if (!r->o.eval_only) {
        TRY(io_make_dirs(out, e));
        if (access(out, W_OK | X_OK) < 0)
            return err_sys(e, "--out %s: checkpoints cannot be written there", out);
    }
    if (trace) { /* written when the run has ended */
        TRY(fd = io_open_sink(trace, 1, 0666, e));
        io_close(fd);
    }
    rc = 0;
out:
    return rc;
}
