/* gguf_tables.c - see gguf.h. The facts are those of ggml's types and of llama.cpp's converter and loader. */
#include "format/gguf/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* clang-format off */

/* ---- types ---- */

static const struct gguf_type_row types[] = {
    { GGUF_F32, "F32", 1, 4, STORED_F32, 0 },
    { GGUF_F16, "F16", 1, 2, STORED_F16, 1 },
    { GGUF_BF16, "BF16", 1, 2, STORED_BF16, 32 },
    { GGUF_F64, "F64", 1, 8, STORED_F64, -1 },
    { GGUF_I8, "I8", 1, 1, STORED_I8, -1 },
    { GGUF_I16, "I16", 1, 2, STORED_I16, -1 },
    { GGUF_I32, "I32", 1, 4, STORED_I32, -1 },
    { GGUF_I64, "I64", 1, 8, STORED_I64, -1 },
    { GGUF_Q4_0, "Q4_0", 32, 18, -1, 2 },
    { GGUF_Q4_1, "Q4_1", 32, 20, -1, 3 },
    { GGUF_Q5_0, "Q5_0", 32, 22, -1, 8 },
    { GGUF_Q5_1, "Q5_1", 32, 24, -1, 9 },
    { GGUF_Q8_0, "Q8_0", 32, 34, -1, 7 },
    { GGUF_Q2_K, "Q2_K", 256, 84, -1, 10 },
    { GGUF_Q3_K, "Q3_K", 256, 110, -1, 12 },
    { GGUF_Q4_K, "Q4_K", 256, 144, -1, 15 },
    { GGUF_Q5_K, "Q5_K", 256, 176, -1, 17 },
    { GGUF_Q6_K, "Q6_K", 256, 210, -1, 18 },
    { GGUF_IQ4_NL, "IQ4_NL", 32, 18, -1, 25 },
    { GGUF_MXFP4, "MXFP4", 32, 17, -1, 38 },
    { GGUF_IQ4_XS, "IQ4_XS", 256, 136, -1, 30 },
    { GGUF_IQ2_XXS, "IQ2_XXS", 256, 66, -1, 19 },
    { GGUF_IQ2_XS, "IQ2_XS", 256, 74, -1, 20 },
    { GGUF_IQ2_S, "IQ2_S", 256, 82, -1, 28 },
    { GGUF_IQ3_XXS, "IQ3_XXS", 256, 98, -1, 23 },
    { GGUF_IQ3_S, "IQ3_S", 256, 110, -1, 26 },
    { GGUF_IQ1_S, "IQ1_S", 256, 50, -1, 24 },
    { GGUF_IQ1_M, "IQ1_M", 256, 56, -1, 31 },
    { GGUF_TQ1_0, "TQ1_0", 256, 54, -1, 36 },
    { GGUF_TQ2_0, "TQ2_0", 256, 66, -1, 37 },
    { GGUF_NVFP4, "NVFP4", 64, 36, -1, 39 },
};
static const int value_bytes[GGUF_VALUES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

/* ---- names ---- */
#define L "model.layers.%d."
#define B "blk.%d."

#define EMBED { "model.embed_tokens.weight", "token_embd.weight", GGUF_SAME }
#define HEAD { "lm_head.weight", "output.weight", GGUF_SAME }
#define NORM(form) { "model.norm.weight", "output_norm.weight", form }
#define QKV_ROWS(q, k) \
    { L "self_attn.q_proj.weight", B "attn_q.weight", q }, \
    { L "self_attn.q_proj.bias", B "attn_q.bias", q }, \
    { L "self_attn.k_proj.weight", B "attn_k.weight", k }, \
    { L "self_attn.k_proj.bias", B "attn_k.bias", k }, \
    { L "self_attn.v_proj.weight", B "attn_v.weight", GGUF_SAME }, \
    { L "self_attn.v_proj.bias", B "attn_v.bias", GGUF_SAME }, \
    { L "self_attn.o_proj.weight", B "attn_output.weight", GGUF_SAME }, \
    { L "self_attn.o_proj.bias", B "attn_output.bias", GGUF_SAME }
#define HEAD_NORMS(form) \
    { L "self_attn.q_norm.weight", B "attn_q_norm.weight", form }, \
    { L "self_attn.k_norm.weight", B "attn_k_norm.weight", form }
#define LAYER_NORMS \
    { L "input_layernorm.weight", B "attn_norm.weight", GGUF_SAME }, \
    { L "post_attention_layernorm.weight", B "ffn_norm.weight", GGUF_SAME }
#define GATED_MLP \
    { L "mlp.gate_proj.weight", B "ffn_gate.weight", GGUF_SAME }, \
    { L "mlp.up_proj.weight", B "ffn_up.weight", GGUF_SAME }, \
    { L "mlp.down_proj.weight", B "ffn_down.weight", GGUF_SAME }
#define MLP_BIASES \
    { L "mlp.gate_proj.bias", B "ffn_gate.bias", GGUF_SAME }, \
    { L "mlp.up_proj.bias", B "ffn_up.bias", GGUF_SAME }, \
    { L "mlp.down_proj.bias", B "ffn_down.bias", GGUF_SAME }
#define QWEN_EXPERTS \
    { L "mlp.gate.weight", B "ffn_gate_inp.weight", GGUF_SAME }, \
    { L "mlp.experts.%d.gate_proj.weight", B "ffn_gate_exps.weight", GGUF_EXPERT }, \
    { L "mlp.experts.%d.up_proj.weight", B "ffn_up_exps.weight", GGUF_EXPERT }, \
    { L "mlp.experts.%d.down_proj.weight", B "ffn_down_exps.weight", GGUF_EXPERT }

static const struct gguf_name llama_names[] = {
    EMBED, NORM(GGUF_SAME), HEAD, LAYER_NORMS, QKV_ROWS(GGUF_ROPE_Q, GGUF_ROPE_K),
    GATED_MLP, MLP_BIASES, { 0 }
};
static const struct gguf_name mixtral_names[] = {
    EMBED, NORM(GGUF_SAME), HEAD, LAYER_NORMS, QKV_ROWS(GGUF_ROPE_Q, GGUF_ROPE_K),
    { L "block_sparse_moe.gate.weight", B "ffn_gate_inp.weight", GGUF_SAME },
    { L "block_sparse_moe.experts.%d.w1.weight", B "ffn_gate_exps.weight", GGUF_EXPERT },
    { L "block_sparse_moe.experts.%d.w3.weight", B "ffn_up_exps.weight", GGUF_EXPERT },
    { L "block_sparse_moe.experts.%d.w2.weight", B "ffn_down_exps.weight", GGUF_EXPERT },
    { 0 }
};
static const struct gguf_name qwen_names[] = {
    EMBED, NORM(GGUF_SAME), HEAD, LAYER_NORMS, QKV_ROWS(GGUF_SAME, GGUF_SAME), HEAD_NORMS(GGUF_SAME),
    GATED_MLP,
    QWEN_EXPERTS,
    { L "mlp.shared_expert.gate_proj.weight", B "ffn_gate_shexp.weight", GGUF_SAME },
    { L "mlp.shared_expert.up_proj.weight", B "ffn_up_shexp.weight", GGUF_SAME },
    { L "mlp.shared_expert.down_proj.weight", B "ffn_down_shexp.weight", GGUF_SAME },
    { L "mlp.shared_expert_gate.weight", B "ffn_gate_inp_shexp.weight", GGUF_ROW },
    { 0 }
};
static const struct gguf_name gemma_names[] = {
    EMBED, NORM(GGUF_PLUS_ONE), HEAD, QKV_ROWS(GGUF_SAME, GGUF_SAME), HEAD_NORMS(GGUF_PLUS_ONE), GATED_MLP,
    { L "input_layernorm.weight", B "attn_norm.weight", GGUF_PLUS_ONE },
    { L "post_attention_layernorm.weight", B "post_attention_norm.weight", GGUF_PLUS_ONE },
    { L "pre_feedforward_layernorm.weight", B "ffn_norm.weight", GGUF_PLUS_ONE },
    { L "post_feedforward_layernorm.weight", B "post_ffw_norm.weight", GGUF_PLUS_ONE },
    { 0 }
};
static const struct gguf_name gpt_oss_names[] = {
    EMBED, NORM(GGUF_SAME), HEAD, QKV_ROWS(GGUF_SAME, GGUF_SAME),
    { L "input_layernorm.weight", B "attn_norm.weight", GGUF_SAME },
    { L "post_attention_layernorm.weight", B "post_attention_norm.weight", GGUF_SAME },
    { L "self_attn.sinks", B "attn_sinks.weight", GGUF_SAME },
    { L "mlp.router.weight", B "ffn_gate_inp.weight", GGUF_SAME },
    { L "mlp.router.bias", B "ffn_gate_inp.bias", GGUF_SAME },
    { L "mlp.experts.gate_up_proj", B "ffn_gate_exps.weight", GGUF_EVEN },
    { L "mlp.experts.gate_up_proj", B "ffn_up_exps.weight", GGUF_ODD },
    { L "mlp.experts.gate_up_proj_bias", B "ffn_gate_exps.bias", GGUF_EVEN },
    { L "mlp.experts.gate_up_proj_bias", B "ffn_up_exps.bias", GGUF_ODD },
    { L "mlp.experts.down_proj", B "ffn_down_exps.weight", GGUF_TRANSPOSED },
    { L "mlp.experts.down_proj_bias", B "ffn_down_exps.bias", GGUF_SAME },
    { 0 }
};
static const struct gguf_name deepseek_names[] = {
    EMBED, NORM(GGUF_SAME), HEAD, LAYER_NORMS, GATED_MLP, QWEN_EXPERTS,
    { L "self_attn.q_proj.weight", B "attn_q.weight", GGUF_SAME },
    { L "self_attn.q_a_proj.weight", B "attn_q_a.weight", GGUF_SAME },
    { L "self_attn.q_a_layernorm.weight", B "attn_q_a_norm.weight", GGUF_SAME },
    { L "self_attn.q_b_proj.weight", B "attn_q_b.weight", GGUF_SAME },
    { L "self_attn.kv_a_proj_with_mqa.weight", B "attn_kv_a_mqa.weight", GGUF_SAME },
    { L "self_attn.kv_a_layernorm.weight", B "attn_kv_a_norm.weight", GGUF_SAME },
    { L "self_attn.kv_b_proj.weight", B "attn_k_b.weight", GGUF_KEY_B },
    { L "self_attn.kv_b_proj.weight", B "attn_v_b.weight", GGUF_VALUE_B },
    { L "self_attn.kv_b_proj.weight", B "attn_kv_b.weight", GGUF_SAME }, /* files of 2024 */
    { L "self_attn.o_proj.weight", B "attn_output.weight", GGUF_SAME },
    { L "mlp.gate.e_score_correction_bias", B "exp_probs_b.bias", GGUF_SAME },
    { L "mlp.shared_experts.gate_proj.weight", B "ffn_gate_shexp.weight", GGUF_SAME },
    { L "mlp.shared_experts.up_proj.weight", B "ffn_up_shexp.weight", GGUF_SAME },
    { L "mlp.shared_experts.down_proj.weight", B "ffn_down_shexp.weight", GGUF_SAME },
    { 0 }
};

#define H "transformer.h.%d."
#define PAIR(hf, file, form) { hf ".weight", file ".weight", form }, { hf ".bias", file ".bias", GGUF_SAME }
static const struct gguf_name gpt2_names[] = {
    { "transformer.wte.weight", "token_embd.weight", GGUF_SAME },
    { "transformer.wpe.weight", "position_embd.weight", GGUF_SAME },
    PAIR("transformer.ln_f", "output_norm", GGUF_SAME), HEAD,
    PAIR(H "ln_1", B "attn_norm", GGUF_SAME), PAIR(H "ln_2", B "ffn_norm", GGUF_SAME),
    PAIR(H "attn.c_attn", B "attn_qkv", GGUF_TRANSPOSED),
    PAIR(H "attn.c_proj", B "attn_output", GGUF_TRANSPOSED),
    PAIR(H "mlp.c_fc", B "ffn_up", GGUF_TRANSPOSED), PAIR(H "mlp.c_proj", B "ffn_down", GGUF_TRANSPOSED),
    { 0 }
};
#undef L
#define L "gpt_neox.layers.%d."
static const struct gguf_name neox_names[] = {
    { "gpt_neox.embed_in.weight", "token_embd.weight", GGUF_SAME },
    { "embed_out.weight", "output.weight", GGUF_SAME },
    PAIR("gpt_neox.final_layer_norm", "output_norm", GGUF_SAME),
    PAIR(L "input_layernorm", B "attn_norm", GGUF_SAME),
    PAIR(L "post_attention_layernorm", B "ffn_norm", GGUF_SAME),
    { L "attention.query_key_value.weight", B "attn_qkv.weight", GGUF_QKV },
    { L "attention.query_key_value.bias", B "attn_qkv.bias", GGUF_QKV },
    PAIR(L "attention.dense", B "attn_output", GGUF_SAME),
    PAIR(L "mlp.dense_h_to_4h", B "ffn_up", GGUF_SAME), PAIR(L "mlp.dense_4h_to_h", B "ffn_down", GGUF_SAME),
    { 0 }
};

/* ---- keys ---- */
#define U32 GGUF_VALUE_U32
#define F32 GGUF_VALUE_F32
#define BOOL GGUF_VALUE_BOOL
#define SIZES \
    { "num_hidden_layers", "block_count", U32 }, { "max_position_embeddings", "context_length", U32 }, \
    { "hidden_size", "embedding_length", U32 }, { "intermediate_size", "feed_forward_length", U32 }, \
    { "num_attention_heads", "attention.head_count", U32 }
#define LLAMA \
    SIZES, { "num_key_value_heads", "attention.head_count_kv", U32 }, \
    { "rms_norm_eps", "attention.layer_norm_rms_epsilon", F32 }, { "rope_theta", "rope.freq_base", F32 }, \
    { "head_dim", "attention.key_length", U32 }, { "head_dim", "attention.value_length", U32 }
#define EXPERTS(name) { name, "expert_count", U32 }, { "num_experts_per_tok", "expert_used_count", U32 }
#define EXPERT_WIDTH { "moe_intermediate_size", "expert_feed_forward_length", U32 }
#define VOCABULARY { "vocab_size", "vocab_size", U32 }
#define WINDOW { "sliding_window", "attention.sliding_window", U32 }

static const struct gguf_key llama_keys[] = {
    LLAMA, { "head_dim", "rope.dimension_count", U32 }, VOCABULARY, { 0 }
};
static const struct gguf_key mixtral_keys[] = {
    LLAMA, { "head_dim", "rope.dimension_count", U32 }, VOCABULARY, EXPERTS("num_local_experts"), { 0 }
};
static const struct gguf_key qwen_keys[] = { LLAMA, { 0 } };
static const struct gguf_key qwen2_moe_keys[] = {
    LLAMA, EXPERTS("num_experts"), EXPERT_WIDTH,
    { "shared_expert_intermediate_size", "expert_shared_feed_forward_length", U32 }, { 0 }
};
static const struct gguf_key qwen3_moe_keys[] = { LLAMA, EXPERTS("num_experts"), EXPERT_WIDTH, { 0 } };
static const struct gguf_key gemma2_keys[] = {
    LLAMA, WINDOW, { "attn_logit_softcapping", "attn_logit_softcapping", F32 },
    { "final_logit_softcapping", "final_logit_softcapping", F32 }, { 0 }
};
static const struct gguf_key gemma3_keys[] = {
    LLAMA, WINDOW, { "final_logit_softcapping", "final_logit_softcapping", F32 },
    { "rope_local_base_freq", "rope.freq_base_swa", F32 }, { 0 }
};
static const struct gguf_key gpt_oss_keys[] = {
    LLAMA, WINDOW, EXPERTS("num_local_experts"),
    { "intermediate_size", "expert_feed_forward_length", U32 }, { 0 }
};
/* key_length and its like: of DeepSeek they are sums, and attention.head_count_kv is 1 */
static const struct gguf_key deepseek_keys[] = {
    SIZES, { "rms_norm_eps", "attention.layer_norm_rms_epsilon", F32 },
    { "rope_theta", "rope.freq_base", F32 },
    VOCABULARY, EXPERTS("n_routed_experts"), EXPERT_WIDTH, { "n_shared_experts", "expert_shared_count", U32 },
    { "n_group", "expert_group_count", U32 }, { "topk_group", "expert_group_used_count", U32 },
    { "routed_scaling_factor", "expert_weights_scale", F32 },
    { "norm_topk_prob", "expert_weights_norm", BOOL },
    { "first_k_dense_replace", "leading_dense_block_count", U32 },
    { "q_lora_rank", "attention.q_lora_rank", U32 }, { "kv_lora_rank", "attention.kv_lora_rank", U32 },
    { "v_head_dim", "attention.value_length_mla", U32 },
    { "qk_rope_head_dim", "rope.dimension_count", U32 }, { 0 }
};
static const struct gguf_key gpt2_keys[] = {
    { "n_layer", "block_count", U32 }, { "n_positions", "context_length", U32 },
    { "n_embd", "embedding_length", U32 },
    { "n_inner", "feed_forward_length", U32 }, { "n_head", "attention.head_count", U32 },
    { "layer_norm_epsilon", "attention.layer_norm_epsilon", F32 }, { 0 }
};
static const struct gguf_key neox_keys[] = {
    SIZES, { "layer_norm_eps", "attention.layer_norm_epsilon", F32 },
    { "use_parallel_residual", "use_parallel_residual", BOOL },
    { "rotary_emb_base", "rope.freq_base", F32 }, { 0 }
};

/* ---- families ----
 * Of two rows with one arch the one whose experts are those of the file is taken. */
static const struct gguf_family families[] = {
    { "llama", "llama", "LlamaForCausalLM", 0, llama_names, llama_keys },
    { "llama", "mistral", "MistralForCausalLM", 0, llama_names, llama_keys },
    { "llama", "mixtral", "MixtralForCausalLM", GGUF_HAS_EXPERTS, mixtral_names, mixtral_keys },
    { "qwen2", "qwen2", "Qwen2ForCausalLM", 0, qwen_names, qwen_keys },
    { "qwen3", "qwen3", "Qwen3ForCausalLM", 0, qwen_names, qwen_keys },
    { "qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM", GGUF_HAS_EXPERTS, qwen_names, qwen2_moe_keys },
    { "qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", GGUF_HAS_EXPERTS, qwen_names, qwen3_moe_keys },
    { "gemma2", "gemma2", "Gemma2ForCausalLM", GGUF_TIED, gemma_names, gemma2_keys },
    { "gemma3", "gemma3_text", "Gemma3ForCausalLM", 0, gemma_names, gemma3_keys },
    { "gpt2", "gpt2", "GPT2LMHeadModel", 0, gpt2_names, gpt2_keys },
    { "gptneox", "gpt_neox", "GPTNeoXForCausalLM", 0, neox_names, neox_keys },
    { "gpt-oss", "gpt_oss", "GptOssForCausalLM", GGUF_HAS_EXPERTS, gpt_oss_names, gpt_oss_keys },
    { "deepseek2", "deepseek_v3", "DeepseekV3ForCausalLM", GGUF_HAS_EXPERTS | GGUF_SIGMOID, deepseek_names,
      deepseek_keys },
    { "deepseek2", "deepseek_v2", "DeepseekV2ForCausalLM", GGUF_HAS_EXPERTS, deepseek_names, deepseek_keys },
};
/* clang-format on */

const struct gguf_type_row *gguf_type_row(uint32_t id)
{
    for (size_t i = 0; i < COUNT(types); i++)
        if (types[i].id == id)
            return &types[i];
    return NULL;
}

const struct gguf_type_row *gguf_type_named(const char *name)
{
    for (size_t i = 0; i < COUNT(types); i++)
        if (!strcasecmp(types[i].name, name))
            return &types[i];
    return NULL;
}

int gguf_value_bytes(enum gguf_value t) { return value_bytes[t]; }

const struct gguf_family *gguf_family_row(int i)
{
    return i >= 0 && i < (int)COUNT(families) ? &families[i] : NULL;
}

const struct gguf_family *gguf_family_of_config(const char *model_type)
{
    for (size_t i = 0; i < COUNT(families); i++)
        if (!strcmp(families[i].model_type, model_type))
            return &families[i];
    return NULL;
}

const struct gguf_family *gguf_family_of_file(const char *arch, int experts, int sigmoid)
{
    unsigned want = (experts ? GGUF_HAS_EXPERTS : 0) | (sigmoid ? GGUF_SIGMOID : 0);
    const struct gguf_family *first = NULL;
    for (size_t i = 0; i < COUNT(families); i++) {
        if (strcmp(families[i].arch, arch) != 0)
            continue;
        if ((families[i].flags & (GGUF_HAS_EXPERTS | GGUF_SIGMOID)) == want)
            return &families[i];
        first = first ? first : &families[i];
    }
    return first;
}

/* ---- names with numbers ---- */

const char *gguf_fill(const char *pattern, int layer, int expert, char out[GGUF_NAME_MAX])
{
    int number[2] = { layer, expert }, n = 0;
    size_t at = 0;
    for (const char *p = pattern; *p && at + 12 < GGUF_NAME_MAX; p++) {
        if (*p == '%' && n < 2) {
            at += (size_t)snprintf(out + at, GGUF_NAME_MAX - at, "%d", number[n++]);
            p++; /* the d */
        } else {
            out[at++] = *p;
        }
    }
    out[at] = 0;
    return out;
}

int gguf_match(const char *pattern, const char *name, int *layer, int *expert)
{
    int number[2] = { -1, -1 }, n = 0;
    for (; *pattern; pattern++) {
        if (*pattern != '%') {
            if (*pattern != *name++)
                return 0;
            continue;
        }
        size_t digits = strspn(name, "0123456789");
        if (!digits || digits > 6 || (digits > 1 && *name == '0') || n == 2)
            return 0;
        number[n++] = (int)strtol(name, NULL, 10);
        name += digits;
        pattern++; /* the d */
    }
    *layer = number[0];
    *expert = number[1];
    return !*name;
}

const struct gguf_name *gguf_find_hf(const struct gguf_name *from, const char *name, int *layer, int *expert)
{
    for (; from->hf; from++)
        if (gguf_match(from->hf, name, layer, expert))
            return from;
    return NULL;
}

const struct gguf_name *gguf_find_file(const struct gguf_name *from, const char *name, int *layer)
{
    int none;
    for (; from->hf; from++)
        if (gguf_match(from->file, name, layer, &none))
            return from;
    return NULL;
}

/* As llama.cpp's converter: everything that is no matrix, and matrices that are read as fp32 alone. */
int gguf_is_f32(const char *file_name, int n_dims)
{
    static const char *const ends[] = { "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight",
                                        "position_embd.weight" };
    size_t n = strlen(file_name);
    if (n_dims <= 1 || n < 7 || strcmp(file_name + n - 7, ".weight") != 0)
        return 1;
    for (size_t i = 0; i < COUNT(ends); i++)
        if (n >= strlen(ends[i]) && !strcmp(file_name + n - strlen(ends[i]), ends[i]))
            return 1;
    return 0;
}
