/* gguf_config.c - see gguf_model.h: config.json made of a file's metadata. The table of keys (gguf.h) gives
 * most of it; what llama.cpp derives, or has as constants in its code, is written here as Hugging Face spells
 * it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/gguf/gguf_model.h"

#define DIGITS 9 /* of a number in JSON: fp32 values come back as they were typed */
#define ROPE_ORIGINAL 8192.0
#define LAYERS_MAX (1 << 16) /* config.json has an entry a layer */

struct maker {
    const struct gguf_model *m;
    const struct gguf_file *f;
    json_t *o;
    struct err *e;
};

/* ---- reading ---- */

/* "ARCH.name", or the name itself where it says its own room. */
static const char *key_of(const struct maker *k, const char *name, char out[192])
{
    if (!strncmp(name, "general.", 8) || !strncmp(name, "tokenizer.", 10))
        snprintf(out, 192, "%s", name);
    else
        snprintf(out, 192, "%s.%s", k->m->arch, name);
    return out;
}

static int get_int(const struct maker *k, const char *name, int64_t *v)
{
    char key[192];
    return gguf_int(k->f, key_of(k, name, key), v);
}

/* A float of the file as the decimal number that it was typed as. */
static int get_float(const struct maker *k, const char *name, double *v)
{
    char key[192], text[32];
    if (!gguf_float(k->f, key_of(k, name, key), v))
        return 0;
    for (int digits = 1; digits <= DIGITS; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, *v);
        if (strtof(text, NULL) == (float)*v) {
            *v = strtod(text, NULL);
            return 1;
        }
    }
    return 1;
}

static const struct gguf_tensor *find(const struct maker *k, const char *name, int *part)
{
    for (int p = 0; p < k->m->n_parts; p++)
        for (int i = 0; i < k->m->part[p].f.n_tensors; i++)
            if (!strcmp(k->m->part[p].f.tensor[i].name, name)) {
                *part = p;
                return &k->m->part[p].f.tensor[i];
            }
    return NULL;
}

static int has(const struct maker *k, const char *name)
{
    int part;
    return find(k, name, &part) != NULL;
}

static void set(struct maker *k, const char *hf, json_t *v) { json_object_set_new(k->o, hf, v); }

static int is_set(const struct maker *k, const char *hf) { return json_object_get(k->o, hf) != NULL; }

static int64_t number_of(const struct maker *k, const char *hf)
{
    return json_integer_value(json_object_get(k->o, hf));
}

/* ---- the table ---- */

static void take_key(struct maker *k, const struct gguf_key *row)
{
    int64_t v;
    double x;
    if (is_set(k, row->hf))
        return;
    if (row->type == GGUF_VALUE_F32 && get_float(k, row->file, &x))
        set(k, row->hf, json_real(x));
    else if (row->type != GGUF_VALUE_F32 && get_int(k, row->file, &v))
        set(k, row->hf, row->type == GGUF_VALUE_BOOL ? json_boolean(v) : json_integer(v));
}

static int take_table(struct maker *k)
{
    static const struct {
        const char *key;
        int64_t most;
    } needed[] = { { "block_count", LAYERS_MAX },
                   { "embedding_length", 1 << 24 },
                   { "attention.head_count", 1 << 24 } };
    char key[192];
    int64_t v;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!get_int(k, needed[i].key, &v) || v < 1 || v > needed[i].most)
            return err_set(k->e, ERR_FORMAT,
                           "%s: has no number %s from 1 to %lld, which says what the model is (--config FILE "
                           "gives a config.json)",
                           k->f->path, key_of(k, needed[i].key, key), (long long)needed[i].most);
    for (const struct gguf_key *row = k->m->family->keys; row->hf; row++)
        take_key(k, row);
    return 0;
}

/* ---- what every family has ---- */

static void take_tokens(struct maker *k)
{
    static const char *const ids[][2] = { { "bos_token_id", "tokenizer.ggml.bos_token_id" },
                                          { "eos_token_id", "tokenizer.ggml.eos_token_id" },
                                          { "pad_token_id", "tokenizer.ggml.padding_token_id" } };
    int64_t v;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (get_int(k, ids[i][1], &v))
            set(k, ids[i][0], json_integer(v));
}

static void take_dtype(struct maker *k)
{
    int n[3] = { 0 };
    static const char *const names[] = { "float32", "float16", "bfloat16" };
    for (int p = 0; p < k->m->n_parts; p++)
        for (int i = 0; i < k->m->part[p].f.n_tensors; i++) {
            const struct gguf_tensor *t = &k->m->part[p].f.tensor[i];
            n[t->type->id == GGUF_F32 ? 0 : t->type->id == GGUF_F16 ? 1 : 2] += t->n_dims > 1;
        }
    set(k, "torch_dtype", json_string(names[n[2] ? 2 : n[1] ? 1 : 0]));
}

/* The last dim but `back` of a tensor; 0: it is not there. */
static int64_t dim_of(const struct maker *k, const char *name, int back)
{
    int part;
    const struct gguf_tensor *t = find(k, name, &part);
    return t && t->n_dims > back ? t->shape[t->n_dims - 1 - back] : 0;
}

static void take_sizes(struct maker *k)
{
    int64_t heads = number_of(k, "num_attention_heads"), rows = dim_of(k, "token_embd.weight", 1), v;
    if (rows)
        set(k, "vocab_size", json_integer(rows));
    if (!is_set(k, "num_key_value_heads"))
        set(k, "num_key_value_heads", json_integer(heads));
    if (!is_set(k, "head_dim") && heads > 0) {
        v = number_of(k, "hidden_size") / heads;
        if (!strcmp(k->m->arch, "llama"))
            get_int(k, "rope.dimension_count", &v);
        set(k, "head_dim", json_integer(v));
    }
    set(k, "tie_word_embeddings", json_boolean(!has(k, "output.weight")));
}

/* ---- RoPE ---- */

static json_t *scaling(const struct maker *k, const char *type, double factor)
{
    json_t *r = json_object();
    int64_t v;
    double x;
    json_object_set_new(r, "rope_type", json_string(type));
    json_object_set_new(r, "type", json_string(type));
    json_object_set_new(r, "factor", json_real(factor));
    if (get_int(k, "rope.scaling.original_context_length", &v))
        json_object_set_new(r, "original_max_position_embeddings", json_integer(v));
    if (get_float(k, "rope.scaling.yarn_beta_fast", &x))
        json_object_set_new(r, "beta_fast", json_real(x));
    if (get_float(k, "rope.scaling.yarn_beta_slow", &x))
        json_object_set_new(r, "beta_slow", json_real(x));
    if (get_float(k, "rope.scaling.yarn_attn_factor", &x) || get_float(k, "rope.scaling.attn_factor", &x))
        json_object_set_new(r, "attention_factor", json_real(x));
    if (get_float(k, "rope.scaling.yarn_log_multiplier", &x) && !strcmp(k->m->arch, "deepseek2")) {
        x = round(x * 1e7) / 1e6; /* the file has a tenth of it */
        json_object_set_new(r, "mscale", json_real(x));
        json_object_set_new(r, "mscale_all_dim", json_real(x));
    }
    if (!strcmp(k->m->arch, "gpt-oss"))
        json_object_set_new(r, "truncate", json_false());
    return r;
}

static int take_scaling(struct maker *k)
{
    struct gguf_text type;
    char key[192];
    double factor = 1, linear;
    int has_type = gguf_get_text(k->f, key_of(k, "rope.scaling.type", key), &type);
    get_float(k, "rope.scaling.factor", &factor);
    if (!has_type && get_float(k, "rope.scale_linear", &linear) && linear != 1) /* files of 2023 */
        set(k, "rope_scaling", scaling(k, "linear", linear));
    if (!has_type || gguf_text_is(type, "none"))
        return 0;
    if (gguf_text_is(type, "linear") || gguf_text_is(type, "yarn"))
        set(k, "rope_scaling", scaling(k, type.p[0] == 'y' ? "yarn" : "linear", factor));
    else
        return err_set(k->e, ERR_CONFIG,
                       "%s: %s.rope.scaling.type is %.*s, which is not known here: --config FILE gives a "
                       "config.json",
                       k->f->path, k->m->arch, type.n < 40 ? (int)type.n : 40, type.p);
    return 0;
}

/* Llama 3's scaling of n frequencies: waves shorter than ORIGINAL / high stay, those longer than ORIGINAL /
 * low are slowed down by the factor, and between s is linear in 1 / wavelength. ORIGINAL is a unit of low and
 * high, so that it may be any number. */
struct llama3 {
    double theta, factor, low, high;
};

static double wavelength(const struct llama3 *l, int64_t i, int64_t n)
{
    return 2 * 3.14159265358979323846 * pow(l->theta, (double)i / (double)n);
}

static int llama3_fits(const struct llama3 *l, const float *f, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double w = wavelength(l, i, n), s = (ROPE_ORIGINAL / w - l->low) / (l->high - l->low);
        double want = s >= 1 ? 1 : s <= 0 ? l->factor : 1 / ((1 - s) / l->factor + s);
        if (!(fabs(want / (double)f[i] - 1) < 1e-3))
            return 0;
    }
    return 1;
}

/* Sets low and high: from two frequencies between the bounds, or from one with high = 4 low as in all
 * published models, or else anywhere between the last wave that stays and the next. */
static void llama3_solve(struct llama3 *l, const float *f, int64_t n)
{
    double x[2] = { 0 }, s[2] = { 0 }, stays = 0, slowed = 0;
    int found = 0;
    for (int64_t i = n - 1; i >= 0; i--) {
        double w = wavelength(l, i, n), inverse = 1 / (double)f[i];
        if (f[i] > 1 && f[i] < (float)l->factor) {
            x[found > 0] = ROPE_ORIGINAL / w;
            s[found > 0] = (inverse - 1 / l->factor) / (1 - 1 / l->factor);
            found++;
        }
        slowed = f[i] > 1 ? w : slowed;
        stays = f[i] > 1 || stays > 0 ? stays : w;
    }
    if (found > 1) {
        double width = (x[0] - x[1]) / (s[0] - s[1]);
        l->low = x[0] - s[0] * width;
        l->high = l->low + width;
    } else if (found) {
        l->low = x[0] / (3 * s[0] + 1);
        l->high = 4 * l->low;
    } else {
        stays = stays > 0 ? stays : slowed / 8;
        l->high = ROPE_ORIGINAL / (stays * cbrt(slowed / stays));
        l->low = ROPE_ORIGINAL / (slowed / cbrt(slowed / stays));
    }
}

/* Llama 3's scaling from the factors of all frequencies. */
static int take_factors(struct maker *k)
{
    int part, rc;
    const struct gguf_tensor *t = find(k, "rope_freqs.weight", &part);
    struct llama3 l = { 10000, 1, 1, 4 };
    if (!t || is_set(k, "rope_scaling"))
        return 0;
    if (t->type->id != GGUF_F32 || t->n_dims != 1 || t->shape[0] > 4096)
        return err_set(k->e, ERR_FORMAT, "%s: rope_freqs.weight is %s with %d dims, F32 with one is expected",
                       k->f->path, t->type->name, t->n_dims);
    float *f = malloc((size_t)t->bytes);
    rc = f ? fmt_pread(k->m->c, k->m->part[part].file, f, t->bytes, t->offset, k->e)
           : err_set(k->e, ERR_MEMORY, "%s: no memory for its settings", k->f->path);
    get_float(k, "rope.freq_base", &l.theta);
    for (int64_t i = 0; i < t->shape[0] && rc >= 0; i++)
        l.factor = (double)f[i] > l.factor ? (double)f[i] : l.factor;
    int fits = rc >= 0 && llama3_fits(&l, f, t->shape[0]); /* factor 1: all of them are 1 */
    if (rc >= 0 && !fits) {
        llama3_solve(&l, f, t->shape[0]);
        fits = llama3_fits(&l, f, t->shape[0]);
    }
    free(f);
    if (rc < 0)
        return rc;
    if (!fits)
        return err_set(
            k->e, ERR_CONFIG,
            "%s: the factors of rope_freqs.weight are not those of Llama 3's scaling: --config FILE "
            "gives a config.json",
            k->f->path);
    if (l.factor > 1)
        set(k, "rope_scaling",
            json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor", l.factor,
                      "low_freq_factor", l.low, "high_freq_factor", l.high,
                      "original_max_position_embeddings", (int)ROPE_ORIGINAL));
    return 0;
}

/* ---- families ---- */

/* Every `period`-th layer sees all positions. The file may name the layers or another period. */
static void take_windows(struct maker *k, int64_t period)
{
    char key[192];
    const struct gguf_meta *m = gguf_meta_find(k->f, key_of(k, "attention.sliding_window_pattern", key));
    int64_t n = number_of(k, "num_hidden_layers");
    int is_list = m && m->type == GGUF_VALUE_ARRAY && gguf_value_bytes(m->of) && m->n >= n;
    json_t *types = json_array();
    get_int(k, "attention.sliding_window_pattern", &period);
    for (int64_t l = 0; l < n; l++) {
        int is_windowed = is_list ? gguf_array_int(m, l) != 0 : period > 0 && (l + 1) % period != 0;
        json_array_append_new(types, json_string(is_windowed ? "sliding_attention" : "full_attention"));
    }
    set(k, "layer_types", types);
}

static void fill_llama(struct maker *k)
{
    set(k, "hidden_act", json_string("silu"));
    set(k, "attention_bias", json_boolean(has(k, "blk.0.attn_output.bias")));
    if (!strcmp(k->m->family->model_type, "llama"))
        set(k, "mlp_bias", json_boolean(has(k, "blk.0.ffn_up.bias")));
}

static void fill_qwen_experts(struct maker *k)
{
    int is_qwen2 = !strcmp(k->m->arch, "qwen2moe");
    fill_llama(k);
    set(k, "norm_topk_prob", json_boolean(!is_qwen2)); /* constants of llama.cpp's code */
    set(k, "decoder_sparse_step", json_integer(1));
    set(k, "mlp_only_layers", json_array());
    if (!is_set(k, "moe_intermediate_size"))
        set(k, "moe_intermediate_size", json_integer(dim_of(k, "blk.0.ffn_up_exps.weight", 1)));
    if (is_qwen2 && !is_set(k, "shared_expert_intermediate_size"))
        set(k, "shared_expert_intermediate_size", json_integer(dim_of(k, "blk.0.ffn_up_shexp.weight", 1)));
}

static void fill_gemma(struct maker *k)
{
    int64_t heads = number_of(k, "num_attention_heads"), layers = number_of(k, "num_hidden_layers");
    int is_3 = !strcmp(k->m->arch, "gemma3"), is_27b = layers == (is_3 ? 62 : 46); /* as llama.cpp knows it */
    int64_t scalar = is_27b ? number_of(k, "hidden_size") / heads : number_of(k, "head_dim");
    set(k, "hidden_activation", json_string("gelu_pytorch_tanh"));
    set(k, "query_pre_attn_scalar", json_integer(scalar));
    set(k, "attention_bias", json_boolean(has(k, "blk.0.attn_output.bias")));
    if (!is_3 && !is_set(k, "sliding_window"))
        set(k, "sliding_window", json_integer(4096));
    if (is_3 && !is_set(k, "rope_local_base_freq"))
        set(k, "rope_local_base_freq", json_real(10000));
    if (is_3 && !is_set(k, "final_logit_softcapping"))
        set(k, "final_logit_softcapping", json_null());
    if (is_3)
        set(k, "attn_logit_softcapping", json_null());
    take_windows(k, !is_3 ? 2 : is_set(k, "sliding_window") ? 6 : 1);
}

static void fill_gpt_oss(struct maker *k)
{
    set(k, "hidden_act", json_string("silu"));
    set(k, "attention_bias", json_true());
    set(k, "swiglu_limit", json_real(7));
    take_windows(k, 2);
    int part;
    const struct gguf_tensor *t = find(k, "blk.0.ffn_down_exps.weight", &part);
    if (t && t->type->id == GGUF_MXFP4)
        set(k, "quantization_config",
            json_pack("{s:s, s:[s, s, s, s]}", "quant_method", "mxfp4", "modules_to_not_convert",
                      "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                      "lm_head"));
}

static void fill_deepseek(struct maker *k)
{
    int64_t rope = number_of(k, "qk_rope_head_dim"), key = 0, value = 0;
    if (!get_int(k, "attention.key_length_mla", &key))
        get_int(k, "attention.key_length", &key);
    if (!get_int(k, "attention.value_length_mla", &value))
        get_int(k, "attention.value_length", &value);
    fill_llama(k);
    set(k, "qk_nope_head_dim", json_integer(key - rope));
    set(k, "v_head_dim", json_integer(value));
    set(k, "num_key_value_heads", json_integer(number_of(k, "num_attention_heads")));
    set(k, "moe_layer_freq", json_integer(1));
    if (!is_set(k, "q_lora_rank"))
        set(k, "q_lora_rank", json_null());
    if (!is_set(k, "norm_topk_prob"))
        set(k, "norm_topk_prob", json_false());
    set(k, "scoring_func", json_string(k->m->family->flags & GGUF_SIGMOID ? "sigmoid" : "softmax"));
    set(k, "topk_method", json_string(k->m->family->flags & GGUF_SIGMOID ? "noaux_tc" : "greedy"));
    /* converters before 2026 left the groups out: DeepSeek-V3 itself has 8, of which 4 are kept */
    if (!is_set(k, "n_group") && number_of(k, "n_routed_experts") != 256) {
        set(k, "n_group", json_integer(1));
        set(k, "topk_group", json_integer(1));
    }
    json_object_del(k->o, "head_dim");
}

static void fill_gpt2(struct maker *k)
{
    set(k, "activation_function", json_string("gelu_new"));
    json_object_del(k->o, "head_dim");
    json_object_del(k->o, "num_key_value_heads");
}

static void fill_neox(struct maker *k)
{
    int64_t heads = number_of(k, "num_attention_heads"), rope = 0;
    double size = heads ? (double)(number_of(k, "hidden_size") / heads) : 0;
    get_int(k, "rope.dimension_count", &rope);
    set(k, "hidden_act", json_string("gelu"));
    set(k, "attention_bias", json_boolean(has(k, "blk.0.attn_qkv.bias")));
    set(k, "rotary_pct", json_real(rope && size > 0 ? (double)rope / size : 1));
    json_object_del(k->o, "head_dim");
    json_object_del(k->o, "num_key_value_heads");
}

static const struct {
    const char *arch;
    void (*fill)(struct maker *k);
} fills[] = {
    { "llama", fill_llama },  { "qwen2", fill_llama },           { "qwen3", fill_llama },
    { "gemma2", fill_gemma }, { "qwen2moe", fill_qwen_experts }, { "qwen3moe", fill_qwen_experts },
    { "gemma3", fill_gemma }, { "gpt-oss", fill_gpt_oss },       { "deepseek2", fill_deepseek },
    { "gpt2", fill_gpt2 },    { "gptneox", fill_neox },
};

char *gguf_config(const struct gguf_model *m, struct err *e)
{
    const struct gguf_family *f = m->family;
    struct maker k = { m, &m->part[0].f, json_object(), e };
    char *text = NULL;
    int rc = k.o ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for config.json", k.f->path);
    set(&k, "architectures", json_pack("[s]", f->architecture));
    set(&k, "model_type", json_string(f->model_type));
    if (rc >= 0)
        rc = take_table(&k);
    if (rc >= 0) {
        take_sizes(&k);
        take_tokens(&k);
        take_dtype(&k);
        rc = take_scaling(&k);
    }
    if (rc >= 0)
        rc = take_factors(&k);
    for (size_t i = 0; i < sizeof fills / sizeof *fills && rc >= 0; i++)
        if (!strcmp(fills[i].arch, m->arch))
            fills[i].fill(&k);
    if (rc >= 0 && !(text = json_dumps(k.o, JSON_INDENT(2) | JSON_REAL_PRECISION(DIGITS))))
        err_set(e, ERR_MEMORY, "%s: no memory for config.json", k.f->path);
    json_decref(k.o);
    return text;
}
