/* run.c - from a command line to a struct run: options, also those that a resumed run had, model and
 * dtype. */
#define _GNU_SOURCE
#include "train/run.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"
#include "kernels/kernels.h"
#include "model/family.h"
#include "model/model.h"
#include "text/chats.h"
#include "train/checkpoint/restore.h"

/* ---- options ---- */
static int parse(struct run *r, int argc, char **argv, struct err *e)
{
    struct opt_args args = { 0 };
    int rc = opt_parse(&ptrain_program, argc, argv, &r->o, &args, r->given, e);
    free(args.item);
    return rc;
}

/* --config: parses again, with the options of the file that the command line does not name. */
static int parse_config(struct run *r, int argc, char **argv, struct err *e)
{
    const char *name = r->o.config, *path = sidecar_file(&r->sidecars, name, e);
    struct opt_words words;
    void *text = NULL;
    size_t n;
    int rc;
    if (!path)
        return -e->code;
    TRY(io_read_file(path, 1 << 20, &text, &n, e));
    if (strlen(text) < n)
        rc = err_set(e, ERR_USAGE, "it holds a NUL byte: is it TOML");
    else
        rc = opt_config_words(&ptrain_program, text, argc, argv, r->given, &words, e);
    if (rc >= 0) {
        r->words = words;
        opt_free(&ptrain_program, &r->o, NULL);
        rc = parse(r, words.n, words.item, e);
    }
    if (rc < 0)
        err_add(e, "%s", name);
out:
    free(text);
    return rc < 0 ? rc : 0;
}

int run_parse(struct run *r, int argc, char **argv, struct err *e)
{
    int rc = parse(r, argc, argv, e);
    if (rc == 0 && r->o.config)
        return parse_config(r, argc, argv, e);
    r->words = (struct opt_words){ .n = argc, .item = argv };
    return rc;
}

/* A checkpoint holds its tokenizer, so its options name that file, wherever the tokenizer came from. */
#define CARRIED_TOKENIZER "tokenizer.json"
static char *options_json(const struct train_opts *o)
{
    struct train_opts kept = *o;
    if (strcmp(o->tokenizer, "bytes"))
        kept.tokenizer = CARRIED_TOKENIZER;
    return opt_json(&ptrain_program, &kept);
}

/* *arg: one option of the resumed run, whose checkpoint is the folder `from`, as a command-line argument.
 * NULL: a checkpoint does not keep this key, or its value has no such form. Negative: no memory. */
static int stored_arg(char **arg, const char *key, const json_t *v, const char *from)
{
    *arg = NULL;
    if (!opts_stored(key)) /* paths, ranks and the layout are not inherited */
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

/* Lists the stored options as arguments in r->inherited, which has space for `more` others behind them. */
static int list_inherited(struct run *r, const char *text, char *program, int more, struct err *e)
{
    const char *from = ckpt_path(r->source), *key;
    json_t *o = jx_parse(text, strlen(text), from, e), *v;
    int rc = 0;
    if (!o)
        return -e->code;
    r->inherited = calloc(json_object_size(o) + (size_t)more + 1, sizeof *r->inherited);
    if (!r->inherited) {
        json_decref(o);
        return err_set(e, ERR_MEMORY, "no memory for options");
    }

    r->inherited[r->n_inherited++] = program;
    json_object_foreach(o, key, v) {
        char *arg;
        if (stored_arg(&arg, key, v, from) < 0) {
            rc = err_set(e, ERR_MEMORY, "no memory for options");
            break;
        }
        if (arg)
            r->inherited[r->n_inherited++] = arg;
    }
    json_decref(o);
    return rc;
}

/* Options that the command line left out take the values that the resumed run had: the command line is parsed
 * again behind the stored options. */
static int inherit(struct run *r, struct err *e)
{
    const int argc = r->words.n;
    char **argv = r->words.item;
    const char *text = r->source && r->o.resume ? ckpt_state(r->source)->run_json : NULL;
    const char *resume = r->o.resume;
    unsigned char given[GIVEN_MAX];
    int rc;
    if (!text)
        return 0;
    TRY(list_inherited(r, text, argv[0], argc, e));
    memcpy(r->inherited + r->n_inherited, argv + 1, sizeof *argv * (size_t)(argc - 1));

    /* what was given, and --resume auto's answer, are those of the command line alone */
    memcpy(given, r->given, sizeof given);
    opt_free(&ptrain_program, &r->o, NULL);
    rc = parse(r, r->n_inherited + argc - 1, r->inherited, e);
    memcpy(r->given, given, sizeof given);
    r->o.resume = resume;
    if (rc < 0)
        err_add(e, "%s", ckpt_path(r->source));
out:
    return rc < 0 ? rc : 0;
}

/* ---- files and folders that are named by a URL become local paths ---- */
static int localise_list(struct run *r, struct opt_list *list, struct err *e)
{
    for (int i = 0; i < list->n; i++)
        if (!(list->item[i] = sidecar_file(&r->sidecars, list->item[i], e)))
            return -e->code;
    return 0;
}

static int localise_model(struct run *r, struct err *e)
{
    return r->o.model && !(r->o.model = sidecar_file(&r->sidecars, r->o.model, e)) ? -e->code : 0;
}

static int localise_data(struct run *r, struct err *e)
{
    struct train_opts *o = &r->o;
    int rc;
    if (!(o->tokenizer = sidecar_tokenizer(&r->sidecars, o->tokenizer, e)))
        return -e->code;
    TRY(localise_list(r, &o->data, e));
    TRY(localise_list(r, &o->eval_data, e));
    TRY(localise_list(r, &o->loss_weights, e));
    if (o->chat_template && !(o->chat_template = sidecar_file(&r->sidecars, o->chat_template, e)))
        return -e->code;
out:
    return rc;
}

/* ---- the model ---- */
static int read_model(struct run *r, struct err *e)
{
    const char *name = r->o.model;
    void *text = NULL;
    size_t n;
    int rc;
    r->is_preset = !name || !io_exists(name);
    if (r->is_preset)
        return model_config_preset(&r->cfg, name ? name : "tiny", e);
    TRY(io_read_file(name, 1 << 20, &text, &n, e));
    TRY(model_config_parse(&r->cfg, text, name, e));
out:
    free(text);
    return rc;
}

static int set_grain(struct run *r, const struct layout *layout, struct log *term, struct err *e)
{
    int g = (int)r->o.grain;
    if (g && r->source && r->o.resume && g != r->cfg.grain)
        return err_set(
            e, ERR_USAGE,
            "--grain %d: the checkpoint was trained with grain %d, which cannot change: leave --grain out", g,
            r->cfg.grain);
    if (g && r->cfg.n_heads % g)
        return err_set(e, ERR_USAGE, "--grain %d does not divide the %lld attention heads: use a divisor", g,
                       (long long)r->cfg.n_heads);
    if (g)
        r->cfg.grain = g;
    if (layout_grain(layout, &r->cfg) != r->cfg.grain)
        log_line(
            term,
            "tp %d cuts the tree of grain %d elsewhere: deterministic, but the bits are this layout's own",
            layout->tp, r->cfg.grain);
    return 0;
}

/* An order of the run: what the resumed run has (stored, 0: 1), else what its option asked for, else
 * `otherwise`. Negative: an error. */
static int choose_order(const struct run *r, const char *option, int asked, int stored, int otherwise,
                        struct err *e)
{
    const int resumed = r->source && r->o.resume;
    stored = stored ? stored : 1;
    if (asked && resumed && asked != stored)
        return err_set(e, ERR_USAGE,
                       "--%s %d: the checkpoint was trained with %d, which cannot change: leave --%s out",
                       option, asked, stored, option);
    if (asked & (asked - 1))
        return err_set(e, ERR_USAGE, "--%s %d is no power of two: use 1, 2, 4 or 8", option, asked);
    return resumed ? stored : asked ? asked : otherwise;
}

/* --expert-leaf, or what the resumed run has. */
static int set_expert_leaf(struct run *r, struct err *e)
{
    const int asked = (int)r->o.expert_leaf, stored = r->source ? ckpt_state(r->source)->expert_leaf : 0;
    const int chosen = choose_order(r, "expert-leaf", asked, stored, 1, e);
    if (chosen < 0)
        return chosen;
    if (asked > 1 && !r->cfg.n_experts)
        return err_set(e, ERR_USAGE, "--expert-leaf %d: this model has no experts: leave it out", asked);
    r->expert_leaf = chosen;
    return 0;
}

/* --cp where its ranks do not divide the leaves. */
static int refuse_cp(const struct run *r, int cp, struct err *e)
{
    const int leaves = r->cp_grain;
    if (cp & (cp - 1))
        return err_set(e, ERR_USAGE, "--cp %d is no power of two: sequences have %d leaves: use --cp %d", cp,
                       leaves, leaves);
    if (r->source && r->o.resume)
        return err_set(e, ERR_USAGE,
                       "--cp %d does not divide the %d leaves of a sequence of the resumed run, which cannot "
                       "change: use --cp %d or less",
                       cp, leaves, leaves);
    return err_set(e, ERR_USAGE,
                   "--cp %d does not divide the %d leaves of a sequence: use --cp-grain %d and a --seq-len "
                   "that %d divides, or --cp %d",
                   cp, leaves, cp, 2 * cp * ATTN_PAGE, leaves);
}

/* --cp-grain, or what the resumed run has, or the formula. An evaluation adds no gradients. */
static int set_cp_grain(struct run *r, const struct layout *l, struct err *e)
{
    const int asked = (int)r->o.cp_grain, stored = r->source ? ckpt_state(r->source)->cp_grain : 0;
    const int chosen = choose_order(r, "cp-grain", asked, stored, model_cp_grain(r->o.seq_len), e);
    if (chosen < 0)
        return chosen;
    r->cp_grain = chosen;
    if (!asked && !r->o.resume && r->expert_leaf > 1)
        r->cp_grain = 1;
    if (r->o.eval_only) /* nothing depends on it but whose rows are whose */
        r->cp_grain = l->cp;
    if (r->cp_grain > 1 && r->expert_leaf > 1)
        return err_set(e, ERR_USAGE,
                       "--cp-grain %d with --expert-leaf %d: one cuts sequences into leaves, the other joins "
                       "sequences to leaves: leave one out",
                       r->cp_grain, r->expert_leaf);
    return r->cp_grain % l->cp ? refuse_cp(r, l->cp, e) : 0;
}

/* --dtype; where the option is left out, what a resumed or evaluated checkpoint holds. */
static void set_dtype(struct run *r)
{
    int first = r->source ? ckpt_find(r->source, ROLE_WEIGHT, r->cfg.family->first->name) : -1;
    if (r->lora.peft.n && r->o.resume)
        first = r->lora.peft.module[0].a;
    r->dt = r->o.dtype ? DT_BF16 : DT_F32;
    if (first >= 0 && !opts_given(r->given, "dtype") && (r->o.resume || r->o.eval_only))
        r->dt = ckpt_tensor(r->source, first)->dtype == STORED_BF16 ? DT_BF16 : DT_F32;
}

int run_open(struct run *r, const struct ranks *ranks, struct log *term, struct err *e)
{
    int rc;
    TRY(localise_model(r, e));
    TRY(read_model(r, e));
    TRY(restore_find(r, ranks, term, e));

    TRY(inherit(r, e));
    TRY(localise_model(r, e)); /* again: inherit() parsed the options again */
    TRY(localise_data(r, e));
    TRY(run_set_vocabulary(r, e));
    r->stored_json = options_json(&r->o);
    TRY(lora_open(r, e));

    if (r->cfg.not_trained[0] && !r->o.eval_only)
        return err_set(e, ERR_CONFIG, "config.json has %s", r->cfg.not_trained);
    TRY(layout_check(&ranks->layout, &r->cfg, e));
    TRY(set_grain(r, &ranks->layout, term, e));
    TRY(set_expert_leaf(r, e));
    TRY(set_cp_grain(r, &ranks->layout, e));
    set_dtype(r);

    TRY(run_check_target(r, e));
    if (!r->o.dry_run && ranks_is_first(ranks)) /* a plan makes no files */
        TRY(run_make_target(r, e));
out:
    return rc;
}

/* ---- files that checkpoints carry ---- */
static int copy_source_files(struct run *r, int n, struct err *e)
{
    struct carried *x = &r->files;
    int rc = 0;
    carried_free(x);
    x->name = calloc((size_t)n, sizeof *x->name);
    x->data = calloc((size_t)n, sizeof *x->data);
    x->bytes = calloc((size_t)n, sizeof *x->bytes);
    if (!x->name || !x->data || !x->bytes)
        return err_set(e, ERR_MEMORY, "no memory for tokenizer files");
    for (int i = 0; i < n; i++) {
        TRY(ckpt_extra_read(r->source, i, (void **)(uintptr_t)&x->data[i], &x->bytes[i], e));
        x->name[i] = strdup(ckpt_extra_name(r->source, i)); /* --keep may remove the source */
        x->n++;
    }
out:
    return rc < 0 ? rc : 0;
}

int run_open_files(struct run *r, struct err *e)
{
    int n = r->source ? ckpt_n_extra(r->source) : 0, rc;
    TRY(carried_read(&r->files, r->o.tokenizer, tokenizer_file_names, TOKENIZER_FILES, e));
    if (!r->files.n && n)
        TRY(copy_source_files(r, n, e));
    if (r->o.chat_template)
        TRY(chats_carry_template(&r->files, r->o.chat_template, e));
    rc = lora_carry(r, e);
out:
    return rc < 0 ? rc : 0;
}

void run_close(struct run *r)
{
    lora_close(&r->lora);
    free(r->stored_json);
    sidecar_close(&r->sidecars);
    opt_free(&ptrain_program, &r->o, NULL);
    for (int i = 1; i < r->n_inherited; i++)
        free(r->inherited[i]);
    free(r->inherited);
    if (r->words.n_own)
        opt_words_free(&r->words);
}

int64_t run_end_step(const struct run *r)
{
    return r->o.stop_after && r->o.stop_after < r->o.steps ? r->o.stop_after : r->o.steps;
}
