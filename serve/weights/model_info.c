/* model_info.c - see model_info.h. */
#include "serve/weights/model_info.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/io.h"
#include "base/jx.h"
#include "format/quant_view.h"
#include "model/family.h"
#include "serve/weights/embedding_info.h"
#include "serve/weights/mapped_weights.h"
#include "serve/weights/repack.h"
#include "serve/weights/row_source.h"
#include "text/template.h"

#define HEAD "lm_head.weight"

/* Is this the config of a model without a head, as AutoModel and sentence-transformers write it (LlamaModel,
 * not LlamaForCausalLM)? */
static int is_bare(const json_t *config)
{
    const char *name = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    size_t n = name ? strlen(name) : 0;
    return n > 5 && !strcmp(name + n - 5, "Model") && !strstr(name, "LMHead") &&
           !json_is_true(json_object_get(config, "tie_word_embeddings"));
}

/* Parses the config. A model without a head gets the embedding as one: its logits are never read. */
static int parse_config(struct model_info *l, struct err *e)
{
    static const char what[] = "config.json";
    const char *text = ckpt_config_json(l->ckpt);
    char *tied = NULL;
    json_t *config = jx_parse(text, strlen(text), what, e);

    if (!config)
        return -e->code;
    l->headless = ckpt_find(l->ckpt, ROLE_WEIGHT, HEAD) < 0 && is_bare(config);
    if (l->headless) {
        json_object_set_new(config, "tie_word_embeddings", json_true());
        tied = json_dumps(config, JSON_COMPACT);
    }
    json_decref(config);
    if (l->headless && !tied)
        return err_set(e, ERR_MEMORY, "no memory for the config");
    int rc = model_config_parse(&l->cfg, tied ? tied : text, what, e);
    free(tied);
    return rc;
}

int model_info_open(struct model_info *l, const char *path, enum live_reading live,
                    const volatile sig_atomic_t *stop, struct err *e)
{
    int rc, i;

    memset(l, 0, sizeof *l);
    const struct ckpt_open_opts how = { .stop = stop,
                                        .in_memory = live != LIVE_NO,
                                        .alone = live == LIVE_ALONE };
    TRY(ckpt_open(&l->ckpt, path, &how, e));
    if (!ckpt_config_json(l->ckpt)) {
        rc = err_set(e, ERR_CONFIG,
                     "%s has no config.json, which says what the model is: serve the folder that has one",
                     path);
        goto out;
    }

    TRY(parse_config(l, e));
    TRY(quant_open_values(&l->ckpt, l->cfg.family->first->name, l->quantised, e));
    l->is_quantised = rc;
    if (l->cfg.tied && !l->headless)
        TRY(ckpt_check_tied(l->ckpt, l->cfg.family->first->name, HEAD, e));
    i = ckpt_find(l->ckpt, ROLE_WEIGHT, l->cfg.family->first->name);
    l->stored = i >= 0 && ckpt_tensor(l->ckpt, i)->dtype == STORED_BF16 ? DT_BF16 : DT_F32;
    rc = 0;
out:
    if (rc < 0) {
        model_info_close(l);
        return err_add(e, "opening %s", path);
    }

    return 0;
}

/* Do the files store the digest of every weight? */
static int has_digests(const struct ckpt *c)
{
    int known = 1;
    for (int i = 0; i < ckpt_n_tensors(c); i++)
        known &= ckpt_tensor(c, i)->has_digest || ckpt_tensor(c, i)->role != ROLE_WEIGHT;
    return known;
}

void model_info_take_copy(struct model_info *l, struct model_info *copy)
{
    l->of_model_only = !has_digests(l->ckpt);
    l->source = l->ckpt;
    l->source_is_quantised = l->is_quantised;
    l->ckpt = copy->ckpt;
    l->is_quantised = 0;
    copy->ckpt = NULL;
}

void model_info_drop_copy(struct model_info *l)
{
    if (!l->source)
        return;
    ckpt_close(l->ckpt);
    l->ckpt = l->source;
    l->source = NULL;
    l->is_quantised = l->source_is_quantised;
    l->of_model_only = 0;
}

void model_info_close(struct model_info *l)
{
    repack_close(l->repack);
    mapped_weights_stop(l->mapped);
    if (l->has_weights)
        resident_close(&l->weights);
    row_source_close(l->rows);
    codes_weights_close(l->codes);
    mapped_weights_close(l->mapped);
    if (l->has_model)
        model_close(&l->m);
    ckpt_close(l->ckpt);
    ckpt_close(l->source);
    free(l->seen);
    memset(l, 0, sizeof *l);
}

/* ---- texts ---- */

/* Reads the file called name beside the weights. 1: found, *data is malloc'd; 0: there is none. */
static int read_extra(const struct model_info *l, const char *name, char **data, size_t *n, struct err *e)
{
    *data = NULL;
    *n = 0;
    for (int i = 0; i < ckpt_n_extra(l->ckpt); i++) {
        void *p;
        if (strcmp(ckpt_extra_name(l->ckpt, i), name))
            continue;
        int rc = ckpt_extra_read(l->ckpt, i, &p, n, e);
        if (rc < 0)
            return rc;
        *data = p;
        return 1;
    }
    return 0;
}

int model_info_parse_eos(const char *text, size_t n, const char *what, int32_t *eos, int max, struct err *e)
{
    json_t *j = jx_parse(text, n, what, e);
    const json_t *v = json_object_get(j, "eos_token_id");
    size_t count = json_is_array(v) ? json_array_size(v) : v && !json_is_null(v);
    int rc = 0;

    if (!j)
        return -e->code;
    if (count > (size_t)max)
        rc = err_set(e, ERR_CONFIG, "%s: eos_token_id lists %zu tokens, at most %d are taken", what, count,
                     max);
    for (size_t i = 0; rc >= 0 && i < count; i++) {
        const json_t *x = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(x) || json_integer_value(x) < 0 || json_integer_value(x) > INT32_MAX)
            rc = err_set(e, ERR_CONFIG, "%s: eos_token_id must be a token id or a list of token ids", what);
        else
            eos[rc++] = (int32_t)json_integer_value(x);
    }

    json_decref(j);
    return rc;
}

static int load_eos(const struct model_info *l, struct service *sv, struct err *e)
{
    char *text;
    size_t n;
    int rc = read_extra(l, "generation_config.json", &text, &n, e);
    if (rc > 0)
        rc = model_info_parse_eos(text, n, "generation_config.json", sv->eos, SERVICE_EOS_MAX, e);
    free(text);
    if (rc < 0)
        return rc;
    sv->n_eos = rc;
    for (int i = 0; !rc && i < l->cfg.n_eos; i++)
        sv->eos[sv->n_eos++] = (int32_t)l->cfg.eos[i];
    return 0;
}

/* Sets sv->chat_tokens, the template's variables bos_token and the like: each a text or {"content": text}. */
static int load_chat_tokens(const json_t *config, struct service *sv)
{
    static const char *const names[] = { "bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token" };
    sv->chat_tokens = json_object();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *v = json_object_get(config, names[i]);
        v = json_is_object(v) ? json_object_get(v, "content") : v;
        if (json_is_string(v) && json_object_set(sv->chat_tokens, names[i], v) < 0)
            return -1;
    }
    return sv->chat_tokens ? 0 : -1;
}

/* chat_template of the config: a text, or a list of named templates, of which this returns the one called
 * name. */
static const char *template_in(const json_t *config, const char *name)
{
    const json_t *t = json_object_get(config, "chat_template"), *one;
    size_t i;
    json_array_foreach(t, i, one) {
        const char *own = json_string_value(json_object_get(one, "name"));
        if (own && !strcmp(own, name))
            return json_string_value(json_object_get(one, "template"));
    }
    return strcmp(name, "default") ? NULL : json_string_value(t);
}

/* Reads the text of the chat template: the file of --chat-template, else chat_template.jinja, else the one in
 * the config. *what: its name; *tools: the config's own for requests with tools, or NULL. 1: there is one. */
static int read_chat_text(const struct model_info *l, const struct text_choice *choice, const json_t *config,
                          struct service *sv, size_t *n, const char **what, const char **tools, struct err *e)
{
    const char *inside = template_in(config, "default");
    int rc;

    *tools = NULL;
    if (choice->chat_template) {
        void *text = NULL;
        *what = choice->chat_template;
        rc = io_read_file(choice->chat_template, (size_t)4 << 20, &text, n, e);
        sv->chat_template = text;
        return rc < 0 ? err_add(e, "reading --chat-template") : 1;
    }

    *what = "chat_template.jinja";
    rc = read_extra(l, *what, &sv->chat_template, n, e);
    if (rc || !inside)
        return rc;
    *what = "chat_template of tokenizer_config.json";
    *tools = template_in(config, "tool_use");
    *n = strlen(inside);
    sv->chat_template = strdup(inside);
    return sv->chat_template ? 1 : err_set(e, ERR_MEMORY, "no memory for the chat template");
}

/* Sets how the models of the template write calls, and what it expects of them. */
static void load_form(const struct text_choice *choice, const char *text, size_t n, struct service *sv)
{
    sv->form = tools_detect(text, n);
    if (choice->tool_parser)
        sv->form.calls = tools_find(choice->tool_parser);
    tools_habits(sv->chat, sv->chat_tokens, &sv->habits);
}

/* The chat template. A model may have none. */
static int load_chat(const struct model_info *l, const struct text_choice *choice, struct service *sv,
                     const char *config, size_t n_config, struct err *e)
{
    const char *what, *tools;
    json_t *j = NULL;
    size_t n;
    int rc;

    if (config && !(j = jx_parse(config, n_config, "tokenizer_config.json", e)))
        return -e->code;
    TRY(read_chat_text(l, choice, j, sv, &n, &what, &tools, e));
    if (!rc)
        goto out;
    if (load_chat_tokens(j, sv) < 0) {
        rc = err_set(e, ERR_MEMORY, "no memory for the chat template");
        goto out;
    }
    TRY(template_open(&sv->chat, sv->chat_template, n, what, e));
    if (tools)
        TRY(template_add_tools(sv->chat, tools, strlen(tools), e));
    load_form(choice, tools ? tools : sv->chat_template, tools ? strlen(tools) : n, sv);
out:
    json_decref(j);
    return rc < 0 ? rc : 0;
}

/* What a model of embeddings says about its vectors. */
static int load_embeddings(const struct model_info *l, struct service *sv, struct err *e)
{
    char *modules = NULL, *pooling = NULL;
    size_t n_modules, n_pooling;
    int rc;

    TRY(read_extra(l, CKPT_MODULES, &modules, &n_modules, e));
    TRY(read_extra(l, CKPT_POOLING, &pooling, &n_pooling, e));
    rc = embedding_info_parse(&sv->embeddings, modules, n_modules, pooling, n_pooling, e);
out:
    free(modules);
    free(pooling);
    return rc < 0 ? rc : 0;
}

int model_info_read_texts(const struct model_info *l, const struct text_choice *choice, struct service *sv,
                          struct err *e)
{
    char *json = NULL, *config = NULL;
    size_t n, n_config;
    int rc;

    sv->headless = l->headless;
    TRY(load_eos(l, sv, e));
    TRY(load_embeddings(l, sv, e));
    TRY(read_extra(l, "tokenizer_config.json", &config, &n_config, e));
    TRY(load_chat(l, choice, sv, config, n_config, e));
    TRY(read_extra(l, "tokenizer.json", &json, &n, e));
    if (!rc) {
        rc = l->cfg.vocab == 256 ? tokenizer_bytes(&sv->tok, e) : 0;
        goto out;
    }

    rc = tokenizer_open(&sv->tok, json, n, config, n_config, "tokenizer.json", e);
out:
    free(json);
    free(config);
    return rc < 0 ? err_add(e, "reading %s", ckpt_path(l->ckpt)) : 0;
}

int model_info_tokenizer_digest(const struct model_info *l, char out[33], struct err *e)
{
    char *json = NULL, *text = NULL;
    json_t *all = NULL, *tokens = NULL;
    size_t n;
    int rc = read_extra(l, "tokenizer.json", &json, &n, e);

    snprintf(out, 33, "bytes");
    if (rc <= 0)
        return rc;
    all = jx_parse(json, n, "tokenizer.json", e);
    rc = all ? 0 : -e->code;
    if (all) {
        tokens = json_pack("{s:O?, s:O?}", "model", json_object_get(all, "model"), "added_tokens",
                           json_object_get(all, "added_tokens"));
        text = tokens ? json_dumps(tokens, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
        rc = text ? 0 : err_set(e, ERR_MEMORY, "no memory for the digest of a tokenizer");
    }
    if (text) {
        XXH128_hash_t h = XXH3_128bits(text, strlen(text));
        snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    }
    json_decref(all);
    json_decref(tokens);
    free(text);
    free(json);
    return rc;
}

void model_info_fingerprint(const struct model_info *l, enum dtype dt, enum kv_kind kv, char out[64])
{
    const struct ckpt_state *state = ckpt_state(l->source ? l->source : l->ckpt);
    char hex[33];
    ckpt_digest_hex(l->identity, hex);
    int n = snprintf(out, 64, "contract1-%s-%s", dtype_name(dt), hex), leaf = state->expert_leaf,
        leaves = state->cp_grain;
    if (leaf > 1)
        n += snprintf(out + n, 64 - (size_t)n, "-s%d", leaf);
    if (leaves > 1)
        n += snprintf(out + n, 64 - (size_t)n, "-c%d", leaves);
    if (l->codes && strcmp(codes_weights_class(l->codes), "deq") != 0)
        n += snprintf(out + n, 64 - (size_t)n, "-%s", codes_weights_class(l->codes));
    if (kv != KV_OWN)
        snprintf(out + n, 64 - (size_t)n, "-kv-%s", kv_kind_name(kv, dt));
}
