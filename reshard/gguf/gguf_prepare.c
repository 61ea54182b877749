/* gguf_prepare.c - a checkpoint made ready for --format gguf. See gguf_prepare.h. */
#include "reshard/gguf/gguf_prepare.h"

#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "model/family.h"

#define CONFIG_MAX ((size_t)1 << 24)

int gguf_is_file_name(const char *dst)
{
    size_t n = strlen(dst);
    return n > 5 && !strcmp(dst + n - 5, ".gguf");
}

/* ---- the source ---- */

static int read_config(const struct ckpt *src, const struct request *req, struct model_config *c,
                       struct err *e)
{
    const char *text = ckpt_config_json(src), *what = req->config_path ? req->config_path : "config.json";
    void *data = NULL;
    size_t n;
    int rc = 0;
    if (req->config_path)
        TRY(io_read_file(req->config_path, CONFIG_MAX, &data, &n, e));
    if (!data && !text)
        TRY(err_set(e, ERR_CONFIG, "%s: --format gguf needs a config.json: give one with --config",
                    ckpt_path(src)));
    TRY(model_config_parse(c, data ? data : text, what, e));
    if (!gguf_arch(c->family->name))
        rc = err_set(e, ERR_CONFIG, "llama.cpp has no architecture for the family %s: use --format hf",
                     c->family->name);
out:
    free(data);
    return rc < 0 ? rc : 0;
}

/* Names and shapes must be the model's: as for a Hugging Face target. */
static int check_tensors(struct ckpt *src, const struct request *req, struct err *e)
{
    struct request hf = *req;
    struct plan p;
    hf.format = TARGET_HF;
    hf.dtype = TARGET_AS_IS;
    hf.procs = NULL;
    int rc = plan_make(&p, src, &hf, NULL, e);
    if (rc >= 0)
        plan_free(&p);
    return rc;
}

/* ---- the tokenizer ---- */

/* The text of a small file, malloc'd; NULL: there is none, or an error (*rc). */
static char *read_extra(struct ckpt *src, const char *name, int *rc, struct err *e)
{
    void *data = NULL;
    size_t n;
    for (int i = 0; i < ckpt_n_extra(src) && *rc >= 0; i++) {
        if (strcmp(ckpt_extra_name(src, i), name) != 0)
            continue;
        *rc = ckpt_extra_read(src, i, &data, &n, e);
        char *text = *rc < 0 ? NULL : malloc(n + 1);
        if (text) {
            memcpy(text, data, n);
            text[n] = 0;
        } else if (*rc >= 0) {
            *rc = err_set(e, ERR_MEMORY, "no memory for %s", name);
        }
        free(data);
        return text;
    }
    return NULL;
}

static int add_tokenizer(struct gguf_target *t, struct ckpt *src, const struct model_config *c,
                         struct log *log, struct err *e)
{
    int rc = 0;
    char *json = read_extra(src, "tokenizer.json", &rc, e);
    char *config = read_extra(src, "tokenizer_config.json", &rc, e);
    char *jinja = read_extra(src, "chat_template.jinja", &rc, e);
    if (rc >= 0 && !json && c->vocab == 256)
        json = byte_tokenizer_json();
    struct gguf_vocabulary v = { .tokenizer_json = json,
                                 .tokenizer_config = config,
                                 .chat_template = jinja,
                                 .n_vocab = c->vocab,
                                 .bos = c->bos,
                                 .eos = c->n_eos ? c->eos[0] : -1 };
    if (rc >= 0)
        rc = gguf_key_vocabulary(gguf_target_keys(t), &v, e);
    if (rc >= 0 && log && v.why)
        log_line(log, "the file has no vocabulary, and takes token ids only: %s", v.why);
    if (rc >= 0 && log && v.inexact)
        log_line(log, "llama.cpp may divide some words otherwise: its tokenizer joins by scores, this one by "
                      "a list of merges");
    free(json);
    free(config);
    free(jinja);
    return rc;
}

/* ---- the view ---- */

static int open_target(struct ckpt **src, struct gguf_target **t, const struct request *req,
                       const struct model_config *c, struct err *e)
{
    struct gguf_target_opts how = { .model_type = c->family->name,
                                    .n_layers = c->n_layers,
                                    .n_heads = c->n_heads,
                                    .n_kv = c->n_kv,
                                    .n_experts = c->n_experts,
                                    .nope_dim = c->latent.nope_dim,
                                    .v_dim = c->latent.v_dim,
                                    .tied = c->tied,
                                    .quantize = req->gguf_type,
                                    .dtype = req->dtype == TARGET_F32    ? STORED_F32
                                             : req->dtype == TARGET_BF16 ? STORED_BF16
                                                                         : -1 };
    float *factor = calloc((size_t)c->rope_dim / 2 + 1, sizeof *factor);
    if (!factor)
        return err_set(e, ERR_MEMORY, "no memory for %lld frequencies", (long long)c->rope_dim / 2);
    how.n_factors = strcmp(gguf_arch(c->family->name), "llama") ? 0 : gguf_rope_factors(c, factor);
    how.factor = factor;
    struct ckpt *below = *src;
    *src = NULL; /* the view's */
    int rc = gguf_target_open(src, t, below, &how, e);
    free(factor);
    return rc;
}

static void log_left_out(const struct gguf_target *t, const struct request *req, struct log *log)
{
    const char *first;
    int n = gguf_target_left_out(t, &first);
    if (n)
        log_line(log, "%d tensors are left out, for which llama.cpp has no place: %s, …", n, first);
    if (gguf_target_not_quantized(t))
        log_line(log, "%d matrices are not %s: their rows are no whole number of blocks",
                 gguf_target_not_quantized(t), req->gguf_type);
}

int gguf_target_prepare(struct ckpt **src, struct gguf_target **t, const struct request *req, struct log *log,
                        struct err *e)
{
    struct model_config c;
    int rc = 0;
    TRY(read_config(*src, req, &c, e));
    const char *arch = gguf_arch(c.family->name);
    TRY(gguf_check_model(&c, arch, log, e));
    TRY(check_tensors(*src, req, e));
    if (log && ckpt_state(*src)->has_state)
        log_line(log, "optimizer state is left out: a GGUF file has weights alone");

    TRY(open_target(src, t, req, &c, e));
    gguf_add_settings(gguf_target_keys(*t), &c, arch, gguf_target_file_type(*t));
    TRY(add_tokenizer(*t, *src, &c, log, e));
    if (log)
        log_left_out(*t, req, log);
out:
    return rc < 0 ? rc : 0;
}
