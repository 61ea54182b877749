/* peft_config.c - adapter_config.json; see peft.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/peft/peft_priv.h"

#define RANK_MAX 65536

/* 1: the member asks for something. */
static int is_set(const json_t *v)
{
    if (json_is_object(v))
        return json_object_size(v) > 0;
    if (json_is_array(v))
        return json_array_size(v) > 0;
    return v && !json_is_null(v) && !json_is_false(v);
}

/* Members that make an adapter something else than W + scale (B A). */
static const char *const foreign[] = {
    "use_dora",          "use_qalora",    "use_bdlora",        "alora_invocation_tokens",
    "arrow_config",      "lora_bias",     "kasa_config",       "trainable_token_indices",
    "layer_replication", "velora_config", "monteclora_config", "megatron_config",
};

/* Initialisations that change the weights of the base model. */
static const char *const changed[] = { "pissa", "corda", "olora", "loftq", "lora_ga" };

static int check_kind(const json_t *o, struct err *e)
{
    const char *type = NULL, *init = json_string_value(json_object_get(o, "init_lora_weights"));
    int rc = jx_text(o, PEFT_CONFIG, "peft_type", &type, e);
    if (rc < 0)
        return rc;
    if (!type || strcmp(type, "LORA"))
        return err_set(e, ERR_CONFIG,
                       PEFT_CONFIG ": peft_type is %.60s: only LORA is known: merge it with PEFT",
                       type ? type : "not given");
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (is_set(json_object_get(o, foreign[i])))
            return err_set(e, ERR_CONFIG,
                           PEFT_CONFIG ": %s is set: only plain LoRA is known: merge it with PEFT",
                           foreign[i]);
    for (size_t i = 0; init && i < sizeof changed / sizeof *changed; i++)
        if (!strncmp(init, changed[i], strlen(changed[i])))
            return err_set(e, ERR_CONFIG,
                           PEFT_CONFIG
                           ": init_lora_weights is %.40s, so it belongs to a changed base model: save "
                           "it again with path_initial_model_for_weight_conversion",
                           init);
    return 0;
}

/* Values of a pattern are numbers. */
static int check_pattern(const json_t *o, const char *key, struct err *e)
{
    json_t *list = json_object_get(o, key), *v;
    const char *name;
    if (!is_set(list))
        return 0;
    if (!json_is_object(list))
        return err_set(e, ERR_FORMAT, PEFT_CONFIG ": %s is no object: is it damaged", key);
    json_object_foreach(list, name, v)
        if (!json_is_number(v))
            return err_set(e, ERR_FORMAT, PEFT_CONFIG ": %s gives no number for %.100s: is it damaged", key,
                           name);
    return 0;
}

static int read_members(struct peft_config *c, struct err *e)
{
    const json_t *o = c->root;
    const char *version = NULL;
    int major = 0, minor = 0, rc = 0;
    c->rank = 8; /* PEFT's defaults */
    c->alpha = 8;
    TRY(jx_int(o, PEFT_CONFIG, "r", &c->rank, e));
    TRY(jx_float(o, PEFT_CONFIG, "lora_alpha", &c->alpha, e));
    TRY(jx_bool(o, PEFT_CONFIG, "use_rslora", &c->rslora, e));
    TRY(jx_bool(o, PEFT_CONFIG, "fan_in_fan_out", &c->fan_in_fan_out, e));
    TRY(jx_text(o, PEFT_CONFIG, "base_model_name_or_path", &c->base, e));
    TRY(jx_text(o, PEFT_CONFIG, "peft_version", &version, e));
    c->base = c->base ? c->base : "";
    TRY(check_pattern(o, "rank_pattern", e));
    TRY(check_pattern(o, "alpha_pattern", e));
    if (version && sscanf(version, "%d.%d", &major, &minor) == 2)
        c->experts = major > 0 || minor >= 19 ? PEFT_EXPERTS_BY_MODULE : PEFT_EXPERTS_IN_OUT;
out:
    return rc < 0 ? rc : 0;
}

int peft_config_parse(struct peft_config *c, const char *text, size_t n, struct err *e)
{
    memset(c, 0, sizeof *c);
    if (memchr(text, 0, n))
        return err_set(e, ERR_FORMAT, PEFT_CONFIG ": holds a zero byte: is it a text file");
    if (!(c->text = strndup(text, n)))
        return err_set(e, ERR_MEMORY, "no memory for " PEFT_CONFIG);
    if (!(c->root = jx_parse(text, n, PEFT_CONFIG, e)))
        return -e->code;
    if (!json_is_object(c->root))
        return err_set(e, ERR_FORMAT, PEFT_CONFIG ": is no object: is it damaged");
    int rc = check_kind(c->root, e);
    return rc < 0 ? rc : read_members(c, e);
}

void peft_config_free(struct peft_config *c)
{
    free(c->text);
    json_decref(c->root);
    memset(c, 0, sizeof *c);
}

int peft_config_scale(const struct peft_config *c, const char *name, int64_t *rank, double *scale,
                      struct err *e)
{
    const json_t *v;
    double alpha = c->alpha, r = (double)c->rank;
    int rc = peft_pattern(json_object_get(c->root, "rank_pattern"), name, &v, e);
    if (rc < 0)
        return rc;
    r = v ? json_number_value(v) : r;
    if ((rc = peft_pattern(json_object_get(c->root, "alpha_pattern"), name, &v, e)) < 0)
        return rc;
    alpha = v ? json_number_value(v) : alpha;

    if (!(r >= 1 && r <= RANK_MAX) || r != floor(r))
        return err_set(e, ERR_FORMAT, PEFT_CONFIG ": %s has rank %g: it must be a whole number from 1 to %d",
                       name, r, RANK_MAX);
    if (!isfinite(alpha))
        return err_set(e, ERR_FORMAT, PEFT_CONFIG ": %s has lora_alpha %g: is it damaged", name, alpha);
    *rank = (int64_t)r;
    *scale = c->rslora ? alpha / sqrt(r) : alpha / r;
    return 0;
}
