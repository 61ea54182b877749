/* quantise_pick.c - which weights are quantised, and the configuration that says so to transformers and vLLM.
 * */
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/quant/kept.h"
#include "format/quant/quantise.h"

static int ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

static int is_values(enum stored_dtype t) { return t == STORED_F32 || t == STORED_BF16 || t == STORED_F16; }

/* Choices of experts are small and sensitive: everybody leaves them as they are. */
static int is_router(const char *name)
{
    static const char *const ends[] = { ".gate.weight", ".router.weight", ".shared_expert_gate.weight",
                                        ".router.classifier.weight" };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i]))
            return 1;
    return 0;
}

enum quantise_form quantise_form_of(enum quant_kind kind, const struct ckpt_tensor *t, int is_gpt_oss,
                                    int *narrow)
{
    const struct quantise_kind *k = quantise_kind_of(kind);
    int experts = is_gpt_oss && kind == QUANT_KIND_MXFP4;
    int64_t columns = experts ? t->shape[1] : t->shape[t->n_dims - 1];
    *narrow = 0;
    if (t->role != ROLE_WEIGHT || !is_values(t->dtype) || !strstr(t->name, "layers.") || is_router(t->name))
        return QUANTISE_NOT;
    if (experts &&
        (t->n_dims != 3 || !(ends_with(t->name, ".gate_up_proj") || ends_with(t->name, ".down_proj"))))
        return QUANTISE_NOT;
    if (!experts && (t->n_dims != 2 || !ends_with(t->name, ".weight")))
        return QUANTISE_NOT;
    *narrow = k->block_n == 1 && columns % k->block_k != 0;
    return *narrow ? QUANTISE_NOT : experts ? QUANTISE_EXPERTS : QUANTISE_LINEAR;
}

/* ---- config.json ---- */

/* Modules that stay: X of each X.weight, the module around other matrices, and the head, which may be tied. A
 * module whose biases alone stay (experts of gpt-oss) is none. */
static json_t *stay_list(const char *const *stay, int n)
{
    json_t *list = json_array();
    json_array_append_new(list, json_string("lm_head"));
    for (int i = 0; i < n; i++) {
        const char *dot = ends_with(stay[i], "_bias") ? NULL : strrchr(stay[i], '.');
        json_t *name = dot ? json_stringn(stay[i], (size_t)(dot - stay[i])) : NULL;
        size_t last = json_array_size(list);
        int again = name && json_equal(name, json_array_get(list, last - 1)); /* names are sorted */
        if (name && !again)
            json_array_append_new(list, name);
        else
            json_decref(name);
    }
    return list;
}

static json_t *compressed(const char *format, json_t *weights, json_t *stay)
{
    return json_pack("{s:s,s:s,s:s,s:{s:{s:[s],s:o,s:n,s:n,s:s}},s:o,s:n}", "quant_method",
                     "compressed-tensors", "format", format, "quantization_status", "compressed",
                     "config_groups", "group_0", "targets", "Linear", "weights", weights, "input_activations",
                     "output_activations", "format", format, "ignore", stay, "kv_cache_scheme");
}

static json_t *describe(enum quant_kind kind, json_t *stay, int is_gpt_oss)
{
    if (kind == QUANT_KIND_FP8_B128)
        return json_pack("{s:s,s:s,s:s,s:[i,i],s:o}", "quant_method", "fp8", "fmt", "e4m3",
                         "activation_scheme", "dynamic", "weight_block_size", 128, 128,
                         "modules_to_not_convert", stay);
    if (kind == QUANT_KIND_INT8_G128)
        return compressed("pack-quantized",
                          json_pack("{s:i,s:s,s:b,s:s,s:i}", "num_bits", 8, "type", "int", "symmetric", 1,
                                    "strategy", "group", "group_size", 128),
                          stay);
    if (is_gpt_oss)
        return json_pack("{s:s,s:o}", "quant_method", "mxfp4", "modules_to_not_convert", stay);
    return compressed("mxfp4-pack-quantized",
                      json_pack("{s:i,s:s,s:b,s:s,s:i,s:s}", "num_bits", 4, "type", "float", "symmetric", 1,
                                "strategy", "group", "group_size", 32, "scale_dtype", "torch.uint8"),
                      stay);
}

char *quantise_config(enum quant_kind kind, const char *text, const char *const *stay, int n, int is_gpt_oss,
                      struct err *e)
{
    json_t *o = jx_parse(text, strlen(text), "config.json", e);
    if (!o)
        return NULL;
    json_object_set_new(o, "quantization_config", describe(kind, stay_list(stay, n), is_gpt_oss));
    return config_dump(o, e);
}
