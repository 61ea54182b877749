/* scheme_config.c - see scheme.h: quantization_config and its kin.
 *
 * fp8           weight_block_size [128, 128], null: one scale a tensor (DeepSeek, Qwen, GLM, MiniMax)
 * gptq          bits, group_size, desc_act, sym, checkpoint_format gptq (zero points less one) or gptq_v2
 * awq           bits or w_bit, group_size or q_group_size, version gemm
 * compressed-tensors  config_groups: weights {num_bits, type, strategy, group_size, block_structure}, targets
 * modelopt      quant_algo, group_size */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/jx.h"
#include "format/quant/scheme.h"

#define MATCH_STEPS 100000 /* of a pattern, which a stranger wrote, on one name */
#define NUMBER_MAX ((int64_t)1 << 20)
#define WHAT "quantization_config"

static struct quant_hint *add_hint(struct quant_says *s)
{
    struct quant_hint *h = &s->hint[s->n < QUANT_HINTS ? s->n++ : QUANT_HINTS - 1];
    *h = (struct quant_hint){ .symmetric = 1 };
    return h;
}

/* A member from `least` to 2^20; absent: *out stays. */
static int read_size(const json_t *o, const char *key, int64_t least, int64_t *out, struct err *e)
{
    int64_t v = 0;
    int rc = jx_int(o, WHAT, key, &v, e);
    if (rc <= 0)
        return rc;
    if (v < least || v > NUMBER_MAX)
        return err_set(e, ERR_FORMAT, WHAT ": %s is %lld: give a number from %lld to %lld", key, (long long)v,
                       (long long)least, (long long)NUMBER_MAX);
    *out = v;
    return 1;
}

/* The first of two spellings that is there. */
static int read_either(const json_t *o, const char *key, const char *other, int64_t least, int64_t *out,
                       struct err *e)
{
    int rc = read_size(o, key, least, out, e);
    return rc ? rc : read_size(o, other, least, out, e);
}

static int read_bits(const json_t *o, const char *key, const char *other, struct quant_hint *h, struct err *e)
{
    int64_t bits = 0;
    int rc = read_either(o, key, other, 1, &bits, e);
    if (rc < 0)
        return rc;
    if (bits > 16)
        return err_set(e, ERR_FORMAT, WHAT ": %s is %lld: codes of 1 to 16 bits are known", key,
                       (long long)bits);
    h->bits = (int)bits;
    return 0;
}

/* [128, 128], or the text 128x128 of old files. */
static int read_block(const json_t *o, const char *key, struct quant_hint *h, struct err *e)
{
    const json_t *v = json_object_get(o, key);
    long long n = 0, k = 0;
    if (json_is_string(v))
        (void)sscanf(json_string_value(v), "%18lldx%18lld", &n, &k);
    else if (json_is_array(v) && json_array_size(v) == 2) {
        n = json_integer_value(json_array_get(v, 0));
        k = json_integer_value(json_array_get(v, 1));
    } else if (!v || json_is_null(v))
        return 0;
    if (n < 1 || n > NUMBER_MAX || k < 1 || k > NUMBER_MAX)
        return err_set(e, ERR_FORMAT, WHAT ": %s is not two sizes from 1 to %lld, as [128, 128]", key,
                       (long long)NUMBER_MAX);
    h->block_n = n;
    h->block_k = k;
    return 0;
}

/* ---- methods ---- */

static void unknown(struct quant_says *s, const char *key, const char *word)
{
    char method[sizeof s->method];
    snprintf(method, sizeof method, "%s", s->method);
    snprintf(s->method, sizeof s->method, "%.20s with %.16s %.20s", method, key, word);
    s->is_known = 0;
}

static int read_fp8(struct quant_says *s, const json_t *o, struct err *e)
{
    struct quant_hint *h = add_hint(s);
    h->bits = 8;
    h->is_float = 1;
    h->group = -1;
    if (!json_object_get(o, "weight_block_size"))
        h->block_n = h->block_k = 128;
    return read_block(o, "weight_block_size", h, e);
}

static int read_nothing(struct quant_says *s, const json_t *o, struct err *e)
{
    (void)s, (void)o, (void)e;
    return 0;
}

static int read_gptq(struct quant_says *s, const json_t *o, struct err *e)
{
    struct quant_hint *h = add_hint(s);
    const char *format = NULL;
    int marlin = 0, rc = 0;
    TRY(read_bits(o, "bits", "w_bit", h, e));
    TRY(read_either(o, "group_size", "q_group_size", -1, &h->group, e));
    TRY(jx_bool(o, WHAT, "sym", &h->symmetric, e));
    TRY(jx_bool(o, WHAT, "desc_act", &s->desc_act, e));
    TRY(jx_bool(o, WHAT, "is_marlin_format", &marlin, e));
    TRY(jx_text(o, WHAT, "checkpoint_format", &format, e));
    if (!rc)
        TRY(jx_text(o, WHAT, "format", &format, e));

    s->zero_less_one = !format || strcasecmp(format, "gptq_v2") != 0;
    s->per_module = json_object_size(json_object_get(o, "dynamic")) > 0;
    if (format && strcasecmp(format, "gptq_v2") && strcasecmp(format, "gptq"))
        unknown(s, "checkpoint_format", format);
    else if (marlin)
        unknown(s, "is_marlin_format", "true");
out:
    return rc < 0 ? rc : 0;
}

static int read_awq(struct quant_says *s, const json_t *o, struct err *e)
{
    struct quant_hint *h = add_hint(s);
    const char *version = NULL;
    int rc = 0;
    TRY(read_bits(o, "bits", "w_bit", h, e));
    TRY(read_either(o, "group_size", "q_group_size", -1, &h->group, e));
    TRY(jx_text(o, WHAT, "version", &version, e));
    if (!rc)
        TRY(jx_text(o, WHAT, "format", &version, e));
    if (version && strcasecmp(version, "gemm"))
        unknown(s, "version", version);
out:
    return rc < 0 ? rc : 0;
}

/* Layouts of compressed-tensors whose values are known. */
static int is_known_layout(const char *format)
{
    static const char *const known[] = { "pack-quantized",  "int-quantized",        "float-quantized",
                                         "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
                                         "mxfp8-quantized", "mixed-precision",      "dense",
                                         "fakequant" };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcasecmp(format, known[i]))
            return 1;
    return 0;
}

static int read_group(struct quant_says *s, const json_t *group, struct err *e)
{
    const json_t *w = json_object_get(group, "weights");
    const char *type = NULL, *strategy = NULL, *format = NULL;
    int rc = 0;
    if (!json_is_object(w))
        return 0;
    struct quant_hint *h = add_hint(s);
    TRY(read_bits(w, "num_bits", "bits", h, e));
    TRY(read_size(w, "group_size", -1, &h->group, e));
    TRY(read_block(w, "block_structure", h, e));
    TRY(jx_bool(w, WHAT, "symmetric", &h->symmetric, e));
    TRY(jx_text(w, WHAT, "type", &type, e));
    TRY(jx_text(w, WHAT, "strategy", &strategy, e));
    TRY(jx_text(group, WHAT, "format", &format, e));

    h->is_float = type && !strcasecmp(type, "float");
    if (strategy && (!strcasecmp(strategy, "channel") || !strcasecmp(strategy, "tensor")))
        h->group = -1;
    h->targets = json_object_get(group, "targets");
    if (format && !is_known_layout(format))
        unknown(s, "format", format);
out:
    return rc < 0 ? rc : 0;
}

static int read_groups(struct quant_says *s, const json_t *o, struct err *e)
{
    const char *format = NULL, *sparse = NULL, *name;
    const json_t *groups = json_object_get(o, "config_groups"), *v;
    int rc = 0;
    TRY(jx_text(o, WHAT, "format", &format, e));
    TRY(jx_text(json_object_get(o, "sparsity_config"), WHAT, "format", &sparse, e));
    json_object_foreach((json_t *)groups, name, v)
        TRY(read_group(s, v, e));
    if (format && !is_known_layout(format))
        unknown(s, "format", format);
    else if (sparse && strcasecmp(sparse, "dense"))
        unknown(s, "sparsity format", sparse);
out:
    return rc < 0 ? rc : 0;
}

/* quant_algo stands in quantization_config, or in the object `quantization` of hf_quant_config.json. */
static int read_modelopt(struct quant_says *s, const json_t *o, struct err *e)
{
    static const char *const known[] = { "FP8",       "FP8_PER_CHANNEL_PER_TOKEN",
                                         "FP8_PB_WO", "NVFP4",
                                         "NVFP4_AWQ", "MXFP4",
                                         "MXFP8",     "MIXED_PRECISION" };
    const json_t *inner = json_object_get(o, "quantization");
    const char *algo = NULL;
    int rc = 0, is_known = 0;
    o = json_is_object(inner) ? inner : o;
    TRY(read_groups(s, o, e));
    TRY(jx_text(o, WHAT, "quant_algo", &algo, e));

    struct quant_hint *h = add_hint(s);
    h->is_float = 1;
    h->block_n = h->block_k = 128;
    TRY(read_size(o, "group_size", -1, &h->group, e));
    for (size_t i = 0; algo && i < sizeof known / sizeof *known; i++)
        is_known |= !strcasecmp(algo, known[i]);
    if (algo && !is_known)
        unknown(s, "quant_algo", algo);
out:
    return rc < 0 ? rc : 0;
}

static const struct method {
    const char *name;
    int (*read)(struct quant_says *s, const json_t *o, struct err *e);
} methods[] = {
    { "fp8", read_fp8 },
    { "fbgemm_fp8", read_fp8 },
    { "mxfp8", read_nothing },
    { "mxfp4", read_nothing },
    { "nvfp4", read_nothing },
    { "gptq", read_gptq },
    { "awq", read_awq },
    { "compressed-tensors", read_groups },
    { "compressed_tensors", read_groups },
    { "modelopt", read_modelopt },
    { "modelopt_fp4", read_modelopt },
};

/* ---- the texts ---- */

static json_t *parse(const char *text, const char *what, struct err *e)
{
    static const struct jx_limits limits = { 1 << 20, 1 << 22 };
    return jx_parse_within(text, strlen(text), &limits, what, e);
}

/* The object that describes the quantisation, NULL: there is none. */
static const json_t *find_object(const json_t *config, const char **method)
{
    const json_t *text = json_object_get(config, "text_config");
    const json_t *places[] = { config, text };
    for (int i = 0; i < 2; i++) {
        const json_t *o = json_object_get(places[i], "quantization_config");
        if (json_is_object(o))
            return o;
        o = json_object_get(places[i], "compression_config");
        if (json_is_object(o)) {
            *method = "compressed-tensors";
            return o;
        }
    }
    return NULL;
}

/* Models whose matrices are [in][out] in the file. */
static int stores_transposed(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type && !strcmp(type, "gpt2");
}

static int read_object(struct quant_says *s, const json_t *o, const char *method, struct err *e)
{
    int rc = jx_text(o, WHAT, "quant_method", &method, e);
    if (rc < 0)
        return rc;
    if (!method)
        method = json_object_get(o, "config_groups") ? "compressed-tensors"
                 : json_object_get(o, "bits")        ? "gptq"
                                                     : "no quant_method";
    snprintf(s->method, sizeof s->method, "%s", method);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (!strcasecmp(method, methods[i].name))
            return methods[i].read(s, o, e);
    s->is_known = 0;
    return 0;
}

int quant_says_read(struct quant_says *s, const struct quant_texts *texts, struct err *e)
{
    const char *method = NULL;
    const json_t *o = NULL;
    memset(s, 0, sizeof *s);
    s->is_known = s->zero_less_one = 1;
    if (texts->config) {
        if (!(s->root = parse(texts->config, "config.json", e)))
            return -e->code;
        o = find_object(s->root, &method);
        s->transposed = stores_transposed(s->root);
    }

    const char *other = o ? NULL : texts->gptq ? texts->gptq : texts->modelopt;
    if (other) {
        method = texts->gptq ? "gptq" : "modelopt";
        json_decref(s->root);
        if (!(s->root = parse(other, texts->gptq ? "quantize_config.json" : "hf_quant_config.json", e)))
            return -e->code;
        o = s->root;
    }
    return o ? read_object(s, o, method, e) : 0;
}

void quant_says_free(struct quant_says *s)
{
    json_decref(s->root);
    memset(s, 0, sizeof *s);
}

/* ---- targets ---- */

/* Whether the pattern matches at the beginning of the name, as Python's re.match. */
static int regex_matches(const char *pattern, const char *name)
{
    int code;
    size_t at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED, &code, &at,
                                   NULL);
    pcre2_match_data *m = re ? pcre2_match_data_create(1, NULL) : NULL;
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    if (limits)
        pcre2_set_match_limit(limits, MATCH_STEPS);
    int yes = m && limits && pcre2_match(re, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, m, limits) >= 0;
    pcre2_match_context_free(limits);
    pcre2_match_data_free(m);
    pcre2_code_free(re);
    return yes;
}

int quant_hint_names(const struct quant_hint *h, const char *module)
{
    size_t i;
    const json_t *v;
    if (!h->targets)
        return 1;
    json_array_foreach(h->targets, i, v) {
        const char *word = json_string_value(v);
        if (word && (!strncmp(word, "re:", 3) ? regex_matches(word + 3, module) : !strcmp(word, module)))
            return 1;
    }
    return 0;
}
