/* gguf_settings.c - a model's numbers as llama.cpp's keys, and what llama.cpp cannot do of a model. See
 * gguf_target.h. Keys and defaults as in llama.cpp's llama-arch.cpp and models/, version of 2026. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model/family.h"
#include "reshard/gguf/gguf_prepare.h"

#define PI 3.14159265358979323846

static int is_one_of(const char *arch, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(arch, *list))
            return 1;
    return 0;
}

/* Architectures whose windows llama.cpp knows, and the period that it takes where the file does not say
 * which layers have one: the last of each period has none. */
static int window_period(const char *arch)
{
    static const struct {
        const char *arch;
        int period;
    } rows[] = { { "gemma2", 2 }, { "gemma3", 6 }, { "gpt-oss", 2 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(arch, rows[i].arch))
            return rows[i].period;
    return 0;
}

/* ---- what llama.cpp cannot do ---- */

/* Scores of Gemma are divided by the root of this in llama.cpp, whatever the file says. */
static int64_t fixed_scalar(const struct model_config *c, const char *arch)
{
    int is_27b = c->n_layers == (!strcmp(arch, "gemma2") ? 46 : 62);
    return is_27b ? c->hidden / c->n_heads : c->head_dim;
}

static void remark_differences(const struct model_config *c, const char *arch, struct log *log)
{
    static const char *const sums[] = { "llama", "qwen3moe", NULL };
    if (family_has(c, F_WINDOW) && !window_period(arch) && c->window < c->max_pos)
        log_line(log, "llama.cpp's %s has no windows: beyond %lld tokens its results are others", arch,
                 (long long)c->window);
    if (c->query_scalar > 0 && c->query_scalar != (double)fixed_scalar(c, arch))
        log_line(log,
                 "llama.cpp's %s divides scores by the root of %lld, config.json by that of %g: its "
                 "results are others",
                 arch, (long long)fixed_scalar(c, arch), c->query_scalar);
    if (family_has(c, F_EXPERTS) && !family_has(c, F_LATENT) && strcmp(arch, "gpt-oss") != 0 &&
        family_has(c, F_NORM_TOPK) != is_one_of(arch, sums))
        log_line(log,
                 "llama.cpp's %s %s the weights of a token's experts by their sum, config.json says %s: "
                 "its results are others",
                 arch, is_one_of(arch, sums) ? "divides" : "does not divide",
                 family_has(c, F_NORM_TOPK) ? "norm_topk_prob true" : "norm_topk_prob false");
    if (c->rope == ROPE_YARN && (c->yarn_fast != 32 || c->yarn_slow != 1 || c->yarn_exact))
        log_line(log,
                 "llama.cpp's %s has beta_fast 32, beta_slow 1 and whole components in YaRN, whatever "
                 "config.json says: its results are others",
                 arch);
    if (c->rope == ROPE_LLAMA3 && strcmp(arch, "llama") != 0)
        log_line(log, "llama.cpp's %s has no rope_type llama3: its results are others", arch);
    if (c->swiglu_limit > 0 && (c->swiglu_limit != 7 || c->swiglu_alpha != 1.702))
        log_line(log,
                 "llama.cpp clamps experts at 7 with a factor of 1.702, config.json at %g with %g: its "
                 "results are others",
                 c->swiglu_limit, c->swiglu_alpha);
    if (*c->not_computed)
        log_line(log, "config.json has %s: its results in llama.cpp may be others", c->not_computed);
}

int gguf_check_model(const struct model_config *c, const char *arch, struct log *log, struct err *e)
{
    static const char *const with_o_bias[] = { "llama", "gpt2", "gptneox", "gpt-oss", NULL };
    for (int64_t l = 0; family_has(c, F_EXPERTS) && l < c->n_layers; l++)
        if (model_has_experts(c, l) != (l >= (family_has(c, F_LATENT) ? c->first_sparse : 0)))
            return err_set(e, ERR_CONFIG, "llama.cpp's %s cannot have layer %lld without experts", arch,
                           (long long)l);
    if (family_has(c, F_O_BIAS) && !is_one_of(arch, with_o_bias))
        return err_set(e, ERR_CONFIG, "llama.cpp's %s has no bias of o_proj (attention_bias true)", arch);
    if (!family_has(c, F_QKV_BIAS) && !strcmp(arch, "gptneox"))
        return err_set(e, ERR_CONFIG, "llama.cpp's gptneox needs attention biases (attention_bias false)");
    if (log)
        remark_differences(c, arch, log);
    return 0;
}

/* ---- keys ---- */

struct keys {
    struct gguf_keys *k;
    const char *arch;
    char name[160];
};

/* "ARCH.name", as long as the next call */
static const char *key(struct keys *s, const char *name)
{
    snprintf(s->name, sizeof s->name, "%s.%s", s->arch, name);
    return s->name;
}

static void put(struct keys *s, const char *name, int64_t value) { gguf_key_u32(s->k, key(s, name), value); }
static void put_real(struct keys *s, const char *name, double value)
{
    gguf_key_f32(s->k, key(s, name), value);
}
static void put_text(struct keys *s, const char *name, const char *value)
{
    gguf_key_text(s->k, name ? key(s, name) : "", value, strlen(value));
}

/* A quantity that is there when it is not 0. */
static void put_some(struct keys *s, const char *name, double value)
{
    if (value > 0)
        put_real(s, name, value);
}

static void add_rope(struct keys *s, const struct model_config *c)
{
    double usual = 0.1 * log(c->rope_factor) + 1;
    put_real(s, "rope.freq_base", c->rope_theta);
    put(s, "rope.dimension_count", c->rope_dim);
    if (!strcmp(s->arch, "gemma3"))
        put_real(s, "rope.freq_base_swa", c->rope_local_theta > 0 ? c->rope_local_theta : c->rope_theta);
    if (c->rope != ROPE_LINEAR && c->rope != ROPE_YARN)
        return;
    put_text(s, "rope.scaling.type", c->rope == ROPE_YARN ? "yarn" : "linear");
    put_real(s, "rope.scaling.factor", c->rope_factor);
    if (c->rope != ROPE_YARN)
        return;
    put(s, "rope.scaling.original_context_length", c->rope_original_max_pos);
    put_real(s, "rope.scaling.yarn_beta_fast", c->yarn_fast);
    put_real(s, "rope.scaling.yarn_beta_slow", c->yarn_slow);
    if (family_has(c, F_LATENT) && c->yarn_mscale_all > 0)
        put_real(s, "rope.scaling.yarn_log_multiplier", 0.1 * c->yarn_mscale_all);
    else if (c->yarn_attention > 0 && fabs(c->yarn_attention - usual) > 1e-6)
        put_real(s, "rope.scaling.attn_factor", c->yarn_attention / usual); /* llama.cpp multiplies both */
}

static void add_attention(struct keys *s, const struct model_config *c)
{
    int latent = family_has(c, F_LATENT);
    put(s, "attention.head_count", c->n_heads);
    put(s, "attention.head_count_kv", latent ? 1 : c->n_kv);
    put_real(s,
             family_has(c, F_LAYER_NORM) ? "attention.layer_norm_epsilon"
                                         : "attention.layer_norm_rms_epsilon",
             c->norm_eps);
    if (latent) { /* one key for all heads: what is compressed, and the rotated part */
        put(s, "attention.q_lora_rank", family_has(c, F_Q_RANK) ? c->latent.q_rank : 0);
        put(s, "attention.kv_lora_rank", c->latent.kv_rank);
        put(s, "attention.key_length", c->latent.kv_rank + c->latent.rope_dim);
        put(s, "attention.value_length", c->latent.kv_rank);
        put(s, "attention.key_length_mla", c->latent.nope_dim + c->latent.rope_dim);
        put(s, "attention.value_length_mla", c->latent.v_dim);
    } else if (!family_has(c, F_POSITIONS)) {
        put(s, "attention.key_length", c->head_dim);
        put(s, "attention.value_length", c->head_dim);
    }
    put_some(s, "attn_logit_softcapping", c->attn_softcap);
    put_some(s, "final_logit_softcapping", c->final_softcap);
}

/* Which layers have a window: by llama.cpp's period, or layer by layer. */
static void add_windows(struct keys *s, const struct model_config *c)
{
    int period = window_period(s->arch), usual = 1, n = 0;
    if (!period)
        return;
    unsigned char windowed[MODEL_LISTED_LAYERS] = { 0 };
    for (int64_t l = 0; l < c->n_layers && l < MODEL_LISTED_LAYERS; l++) {
        windowed[l] = model_layer_window(c, l) > 0;
        usual &= windowed[l] == (l % period < period - 1);
        n += windowed[l];
    }
    if (n || strcmp(s->arch, "gemma3") != 0)
        put(s, "attention.sliding_window", n ? c->window : c->max_pos);
    if (n && !usual)
        gguf_key_bools(s->k, key(s, "attention.sliding_window_pattern"), windowed, (int)c->n_layers);
}

static void add_experts(struct keys *s, const struct model_config *c)
{
    if (!family_has(c, F_EXPERTS))
        return;
    put(s, "expert_count", c->n_experts);
    put(s, "expert_used_count", c->experts_per_token);
    if (strcmp(s->arch, "llama") != 0)
        put(s, "expert_feed_forward_length", c->expert_inter);
    if (!family_has(c, F_LATENT)) {
        if (c->shared_inter > 0)
            put(s, "expert_shared_feed_forward_length", c->shared_inter);
        return;
    }
    int grouped = c->n_groups > 1 && c->groups_kept < c->n_groups;
    put(s, "expert_shared_count", c->n_shared);
    put(s, "expert_group_count", grouped ? c->n_groups : 1);
    put(s, "expert_group_used_count", grouped ? c->groups_kept : 1);
    put(s, "leading_dense_block_count", c->first_sparse);
    put(s, "expert_gating_func", family_has(c, F_SIGMOID) ? 2 : 1);
    put_real(s, "expert_weights_scale", c->routed_factor);
    gguf_key_bool(s->k, key(s, "expert_weights_norm"), family_has(c, F_NORM_TOPK));
}

void gguf_add_settings(struct gguf_keys *k, const struct model_config *c, const char *arch, int file_type)
{
    struct keys s = { .k = k, .arch = arch };
    gguf_key_text(k, "general.architecture", arch, strlen(arch));
    gguf_key_text(k, "general.type", "model", 5);
    gguf_key_u32(k, "general.file_type", file_type);
    gguf_key_u32(k, "general.quantization_version", 2);

    put(&s, "block_count", c->n_layers);
    put(&s, "context_length", c->max_pos);
    put(&s, "embedding_length", c->hidden);
    put(&s, "feed_forward_length", c->inter);
    put(&s, "vocab_size", c->vocab);
    add_attention(&s, c);
    add_windows(&s, c);
    if (!family_has(c, F_POSITIONS))
        add_rope(&s, c);
    if (!strcmp(arch, "gptneox"))
        gguf_key_bool(k, key(&s, "use_parallel_residual"), family_has(c, F_PARALLEL));
    add_experts(&s, c);
}

/* ---- rope_freqs ---- */

int gguf_rope_factors(const struct model_config *c, float *factor)
{
    int n = (int)(c->rope_dim / 2);
    double low = (double)c->rope_original_max_pos / c->rope_low_freq,
           high = (double)c->rope_original_max_pos / c->rope_high_freq;
    if (c->rope != ROPE_LLAMA3)
        return 0;
    for (int i = 0; i < n; i++) {
        double wave = 2 * PI * pow(c->rope_theta, 2.0 * i / (double)c->rope_dim);
        double smooth = ((double)c->rope_original_max_pos / wave - c->rope_low_freq) /
                        (c->rope_high_freq - c->rope_low_freq);
        factor[i] = wave < high  ? 1
                    : wave > low ? (float)c->rope_factor
                                 : (float)(1 / ((1 - smooth) / c->rope_factor + smooth));
    }
    return n;
}
