/* family.c - see family.h. Names and defaults as in transformers. */
#include "model/family.h"

#include <math.h>
#include <string.h>

/* clang-format off */

/* ---- Llama, Mistral, Qwen ---- */
#define LAYER "model.layers.%d."

static const struct param_row llama_embed[] = {
    { .kind = P_EMBED, .name = "model.embed_tokens.weight", .shape = { D_VOCAB, D_HIDDEN },
      .split = SPLIT_BLOCKS },
    { 0 }
};
static const struct param_row attention[] = {
    { .kind = P_NORM_ATTN, .name = LAYER "input_layernorm.weight", .shape = { D_HIDDEN }, .init = INIT_ONES },
    { .kind = P_Q, .name = LAYER "self_attn.q_proj.weight", .shape = { D_Q, D_HIDDEN },
      .split = SPLIT_HEADS },
    { .kind = P_K, .name = LAYER "self_attn.k_proj.weight", .shape = { D_KV, D_HIDDEN }, .split = SPLIT_KV },
    { .kind = P_V, .name = LAYER "self_attn.v_proj.weight", .shape = { D_KV, D_HIDDEN }, .split = SPLIT_KV },
    { .kind = P_O, .name = LAYER "self_attn.o_proj.weight", .shape = { D_HIDDEN, D_Q },
      .split = SPLIT_HEADS, .split_dim = 1 },
    { .kind = P_NORM_MLP, .name = LAYER "post_attention_layernorm.weight", .shape = { D_HIDDEN },
      .init = INIT_ONES },
    { 0 }
};
static const struct param_row attention_biases[] = {
    { .kind = P_Q_BIAS, .name = LAYER "self_attn.q_proj.bias", .shape = { D_Q }, .split = SPLIT_HEADS,
      .init = INIT_ZEROS, .need = F_QKV_BIAS },
    { .kind = P_K_BIAS, .name = LAYER "self_attn.k_proj.bias", .shape = { D_KV }, .split = SPLIT_KV,
      .init = INIT_ZEROS, .need = F_QKV_BIAS },
    { .kind = P_V_BIAS, .name = LAYER "self_attn.v_proj.bias", .shape = { D_KV }, .split = SPLIT_KV,
      .init = INIT_ZEROS, .need = F_QKV_BIAS },
    { .kind = P_O_BIAS, .name = LAYER "self_attn.o_proj.bias", .shape = { D_HIDDEN },
      .init = INIT_ZEROS, .need = F_O_BIAS },
    { 0 }
};
static const struct param_row head_norms[] = {
    { .kind = P_Q_NORM, .name = LAYER "self_attn.q_norm.weight", .shape = { D_HEAD },
      .init = INIT_ONES, .need = F_QK_NORM },
    { .kind = P_K_NORM, .name = LAYER "self_attn.k_norm.weight", .shape = { D_HEAD },
      .init = INIT_ONES, .need = F_QK_NORM },
    { 0 }
};
static const struct param_row gated_mlp[] = {
    { .kind = P_GATE, .name = LAYER "mlp.gate_proj.weight", .shape = { D_INTER, D_HIDDEN },
      .split = SPLIT_BLOCKS, .of = OF_DENSE },
    { .kind = P_UP, .name = LAYER "mlp.up_proj.weight", .shape = { D_INTER, D_HIDDEN },
      .split = SPLIT_BLOCKS, .of = OF_DENSE },
    { .kind = P_DOWN, .name = LAYER "mlp.down_proj.weight", .shape = { D_HIDDEN, D_INTER },
      .split = SPLIT_BLOCKS, .split_dim = 1, .of = OF_DENSE },
    { 0 }
};
static const struct param_row mlp_biases[] = {
    { .kind = P_GATE_BIAS, .name = LAYER "mlp.gate_proj.bias", .shape = { D_INTER }, .split = SPLIT_BLOCKS,
      .init = INIT_ZEROS, .need = F_MLP_BIAS },
    { .kind = P_UP_BIAS, .name = LAYER "mlp.up_proj.bias", .shape = { D_INTER }, .split = SPLIT_BLOCKS,
      .init = INIT_ZEROS, .need = F_MLP_BIAS },
    { .kind = P_DOWN_BIAS, .name = LAYER "mlp.down_proj.bias", .shape = { D_HIDDEN },
      .init = INIT_ZEROS, .need = F_MLP_BIAS },
    { 0 }
};
static const struct param_row llama_head[] = {
    { .kind = P_NORM, .name = "model.norm.weight", .shape = { D_HIDDEN }, .init = INIT_ONES },
    { .kind = P_HEAD, .name = "lm_head.weight", .shape = { D_VOCAB, D_HIDDEN }, .split = SPLIT_BLOCKS,
      .need = F_UNTIED },
    { 0 }
};

/* ---- GPT-2 ----
 * Conv1D: matrices are [in][out], q k v side by side in one. */
#define H "transformer.h.%d."

static const struct param_row gpt2_embed[] = {
    { .kind = P_EMBED, .name = "transformer.wte.weight", .shape = { D_VOCAB, D_HIDDEN },
      .split = SPLIT_BLOCKS },
    { .kind = P_POS, .name = "transformer.wpe.weight", .shape = { D_POS, D_HIDDEN } },
    { 0 }
};
static const struct param_row gpt2_layer[] = {
    { .kind = P_NORM_ATTN, .name = H "ln_1.weight", .shape = { D_HIDDEN }, .init = INIT_ONES },
    { .kind = P_NORM_ATTN_BIAS, .name = H "ln_1.bias", .shape = { D_HIDDEN }, .init = INIT_ZEROS },
    { .kind = P_Q, .name = H "attn.c_attn.weight", .shape = { D_HIDDEN, D_Q },
      .split = SPLIT_HEADS, .split_dim = 1, .transposed = 1 },
    { .kind = P_K, .name = H "attn.c_attn.weight", .shape = { D_HIDDEN, D_KV },
      .split = SPLIT_KV, .split_dim = 1, .transposed = 1 },
    { .kind = P_V, .name = H "attn.c_attn.weight", .shape = { D_HIDDEN, D_KV },
      .split = SPLIT_KV, .split_dim = 1, .transposed = 1 },
    { .kind = P_Q_BIAS, .name = H "attn.c_attn.bias", .shape = { D_Q }, .split = SPLIT_HEADS,
      .init = INIT_ZEROS },
    { .kind = P_K_BIAS, .name = H "attn.c_attn.bias", .shape = { D_KV }, .split = SPLIT_KV,
      .init = INIT_ZEROS },
    { .kind = P_V_BIAS, .name = H "attn.c_attn.bias", .shape = { D_KV }, .split = SPLIT_KV,
      .init = INIT_ZEROS },
    { .kind = P_O, .name = H "attn.c_proj.weight", .shape = { D_Q, D_HIDDEN }, .split = SPLIT_HEADS,
      .init = INIT_RESIDUAL, .transposed = 1 },
    { .kind = P_O_BIAS, .name = H "attn.c_proj.bias", .shape = { D_HIDDEN }, .init = INIT_ZEROS },
    { .kind = P_NORM_MLP, .name = H "ln_2.weight", .shape = { D_HIDDEN }, .init = INIT_ONES },
    { .kind = P_NORM_MLP_BIAS, .name = H "ln_2.bias", .shape = { D_HIDDEN }, .init = INIT_ZEROS },
    { .kind = P_UP, .name = H "mlp.c_fc.weight", .shape = { D_HIDDEN, D_INTER },
      .split = SPLIT_BLOCKS, .split_dim = 1, .transposed = 1 },
    { .kind = P_UP_BIAS, .name = H "mlp.c_fc.bias", .shape = { D_INTER }, .split = SPLIT_BLOCKS,
      .init = INIT_ZEROS },
    { .kind = P_DOWN, .name = H "mlp.c_proj.weight", .shape = { D_INTER, D_HIDDEN }, .split = SPLIT_BLOCKS,
      .init = INIT_RESIDUAL, .transposed = 1 },
    { .kind = P_DOWN_BIAS, .name = H "mlp.c_proj.bias", .shape = { D_HIDDEN }, .init = INIT_ZEROS },
    { 0 }
};
static const struct param_row gpt2_head[] = {
    { .kind = P_NORM, .name = "transformer.ln_f.weight", .shape = { D_HIDDEN }, .init = INIT_ONES },
    { .kind = P_NORM_BIAS, .name = "transformer.ln_f.bias", .shape = { D_HIDDEN }, .init = INIT_ZEROS },
    { .kind = P_HEAD, .name = "lm_head.weight", .shape = { D_VOCAB, D_HIDDEN }, .split = SPLIT_BLOCKS,
      .need = F_UNTIED },
    { 0 }
};

/* ---- Gemma ----
 * Norms behind attention and MLP; post_attention_layernorm is one of these here. Every norm multiplies by
 * 1 + w, so that w is 0 at first. */
static const struct param_row gemma_attention[] = {
    { .kind = P_NORM_ATTN, .name = LAYER "input_layernorm.weight", .shape = { D_HIDDEN },
      .init = INIT_ZEROS },
    { .kind = P_Q, .name = LAYER "self_attn.q_proj.weight", .shape = { D_Q, D_HIDDEN },
      .split = SPLIT_HEADS },
    { .kind = P_K, .name = LAYER "self_attn.k_proj.weight", .shape = { D_KV, D_HIDDEN }, .split = SPLIT_KV },
    { .kind = P_V, .name = LAYER "self_attn.v_proj.weight", .shape = { D_KV, D_HIDDEN }, .split = SPLIT_KV },
    { .kind = P_O, .name = LAYER "self_attn.o_proj.weight", .shape = { D_HIDDEN, D_Q },
      .split = SPLIT_HEADS, .split_dim = 1 },
    { .kind = P_NORM_ATTN_POST, .name = LAYER "post_attention_layernorm.weight", .shape = { D_HIDDEN },
      .init = INIT_ZEROS, .need = F_POST_NORM },
    { .kind = P_NORM_MLP, .name = LAYER "pre_feedforward_layernorm.weight", .shape = { D_HIDDEN },
      .init = INIT_ZEROS },
    { 0 }
};
static const struct param_row gemma_after_mlp[] = {
    { .kind = P_NORM_MLP_POST, .name = LAYER "post_feedforward_layernorm.weight", .shape = { D_HIDDEN },
      .init = INIT_ZEROS, .need = F_POST_NORM },
    { 0 }
};

static const struct param_row gemma_extras[] = {
    { .kind = P_Q_NORM, .name = LAYER "self_attn.q_norm.weight", .shape = { D_HEAD },
      .init = INIT_ZEROS, .need = F_QK_NORM },
    { .kind = P_K_NORM, .name = LAYER "self_attn.k_norm.weight", .shape = { D_HEAD },
      .init = INIT_ZEROS, .need = F_QK_NORM },
    { 0 }
};
static const struct param_row gemma_head[] = {
    { .kind = P_NORM, .name = "model.norm.weight", .shape = { D_HIDDEN }, .init = INIT_ZEROS },
    { .kind = P_HEAD, .name = "lm_head.weight", .shape = { D_VOCAB, D_HIDDEN }, .split = SPLIT_BLOCKS,
      .need = F_UNTIED },
    { 0 }
};

/* ---- Mixtral, Qwen3-MoE ---- */
static const struct param_row mixtral_experts[] = {
    { .kind = P_ROUTER, .name = LAYER "block_sparse_moe.gate.weight", .shape = { D_EXPERTS, D_HIDDEN },
      .of = OF_SPARSE },
    { .kind = P_GATE, .name = LAYER "block_sparse_moe.experts.%d.w1.weight",
      .shape = { D_EXPERT_INTER, D_HIDDEN },
      .split = SPLIT_BLOCKS, .of = OF_EXPERT },
    { .kind = P_UP, .name = LAYER "block_sparse_moe.experts.%d.w3.weight",
      .shape = { D_EXPERT_INTER, D_HIDDEN },
      .split = SPLIT_BLOCKS, .of = OF_EXPERT },
    { .kind = P_DOWN, .name = LAYER "block_sparse_moe.experts.%d.w2.weight",
      .shape = { D_HIDDEN, D_EXPERT_INTER }, .split = SPLIT_BLOCKS, .split_dim = 1, .of = OF_EXPERT },
    { 0 }
};
static const struct param_row qwen3_experts[] = {
    { .kind = P_ROUTER, .name = LAYER "mlp.gate.weight", .shape = { D_EXPERTS, D_HIDDEN }, .of = OF_SPARSE },
    { .kind = P_GATE, .name = LAYER "mlp.experts.%d.gate_proj.weight", .shape = { D_EXPERT_INTER, D_HIDDEN },
      .split = SPLIT_BLOCKS, .of = OF_EXPERT },
    { .kind = P_UP, .name = LAYER "mlp.experts.%d.up_proj.weight", .shape = { D_EXPERT_INTER, D_HIDDEN },
      .split = SPLIT_BLOCKS, .of = OF_EXPERT },
    { .kind = P_DOWN, .name = LAYER "mlp.experts.%d.down_proj.weight", .shape = { D_HIDDEN, D_EXPERT_INTER },
      .split = SPLIT_BLOCKS, .split_dim = 1, .of = OF_EXPERT },
    { 0 }
};

/* Qwen2-MoE: one more expert, which every token takes, times the sigmoid of a gate of its own. */
static const struct param_row shared_expert[] = {
    { .kind = P_SHARED_GATE, .name = LAYER "mlp.shared_expert.gate_proj.weight",
      .shape = { D_SHARED_INTER, D_HIDDEN }, .split = SPLIT_BLOCKS, .of = OF_SPARSE },
    { .kind = P_SHARED_UP, .name = LAYER "mlp.shared_expert.up_proj.weight",
      .shape = { D_SHARED_INTER, D_HIDDEN }, .split = SPLIT_BLOCKS, .of = OF_SPARSE },
    { .kind = P_SHARED_DOWN, .name = LAYER "mlp.shared_expert.down_proj.weight",
      .shape = { D_HIDDEN, D_SHARED_INTER }, .split = SPLIT_BLOCKS, .split_dim = 1, .of = OF_SPARSE },
    { .kind = P_SHARED_SCALE, .name = LAYER "mlp.shared_expert_gate.weight", .shape = { FIXED(1), D_HIDDEN },
      .of = OF_SPARSE },
    { 0 }
};

/* ---- gpt-oss ----
 * Experts in one tensor, [in][out]; gate and up alternate. */
static const struct param_row gpt_oss_sinks[] = {
    { .kind = P_SINKS, .name = LAYER "self_attn.sinks", .shape = { D_HEADS }, .split = SPLIT_HEADS },
    { 0 }
};
static const struct param_row gpt_oss_experts[] = {
    { .kind = P_ROUTER, .name = LAYER "mlp.router.weight", .shape = { D_EXPERTS, D_HIDDEN },
      .of = OF_SPARSE },
    { .kind = P_ROUTER_BIAS, .name = LAYER "mlp.router.bias", .shape = { D_EXPERTS }, .of = OF_SPARSE,
      .init = INIT_ZEROS },
    { .kind = P_GATE_UP, .name = LAYER "mlp.experts.gate_up_proj", .shape = { D_HIDDEN, D_EXPERT_INTER },
      .split = SPLIT_BLOCKS, .split_dim = 1, .of = OF_EXPERT, .stacked = 1, .transposed = 1,
      .alternating = { P_GATE, P_UP } },
    { .kind = P_GATE_UP_BIAS, .name = LAYER "mlp.experts.gate_up_proj_bias", .shape = { D_EXPERT_INTER },
      .split = SPLIT_BLOCKS, .of = OF_EXPERT, .stacked = 1, .init = INIT_ZEROS,
      .alternating = { P_GATE_BIAS, P_UP_BIAS } },
    { .kind = P_DOWN, .name = LAYER "mlp.experts.down_proj", .shape = { D_EXPERT_INTER, D_HIDDEN },
      .split = SPLIT_BLOCKS, .of = OF_EXPERT, .stacked = 1, .transposed = 1 },
    { .kind = P_DOWN_BIAS, .name = LAYER "mlp.experts.down_proj_bias", .shape = { D_HIDDEN },
      .of = OF_EXPERT, .stacked = 1, .init = INIT_ZEROS },
    { 0 }
};

/* ---- DeepSeek-V3 ----
 * Latent attention; the router's correction bias is fp32, and no optimizer sees it. */
static const struct param_row latent_attention[] = {
    { .kind = P_NORM_ATTN, .name = LAYER "input_layernorm.weight", .shape = { D_HIDDEN }, .init = INIT_ONES },
    { .kind = P_Q, .name = LAYER "self_attn.q_proj.weight", .shape = { D_Q, D_HIDDEN },
      .split = SPLIT_HEADS, .unless = F_Q_RANK },
    { .kind = P_Q_A, .name = LAYER "self_attn.q_a_proj.weight", .shape = { D_Q_RANK, D_HIDDEN },
      .need = F_Q_RANK },
    { .kind = P_Q_A_NORM, .name = LAYER "self_attn.q_a_layernorm.weight", .shape = { D_Q_RANK },
      .init = INIT_ONES, .need = F_Q_RANK },
    { .kind = P_Q_B, .name = LAYER "self_attn.q_b_proj.weight", .shape = { D_Q, D_Q_RANK },
      .split = SPLIT_HEADS, .need = F_Q_RANK },
    { .kind = P_KV_A, .name = LAYER "self_attn.kv_a_proj_with_mqa.weight", .shape = { D_KV_A, D_HIDDEN } },
    { .kind = P_KV_A_NORM, .name = LAYER "self_attn.kv_a_layernorm.weight", .shape = { D_KV_RANK },
      .init = INIT_ONES },
    { .kind = P_KV_B, .name = LAYER "self_attn.kv_b_proj.weight", .shape = { D_KV_B, D_KV_RANK },
      .split = SPLIT_HEADS },
    { .kind = P_O, .name = LAYER "self_attn.o_proj.weight", .shape = { D_HIDDEN, D_V_HEADS },
      .split = SPLIT_HEADS, .split_dim = 1 },
    { .kind = P_NORM_MLP, .name = LAYER "post_attention_layernorm.weight", .shape = { D_HIDDEN },
      .init = INIT_ONES },
    { 0 }
};
static const struct param_row deepseek_router[] = {
    { .kind = P_ROUTER_BIAS, .name = LAYER "mlp.gate.e_score_correction_bias", .shape = { D_EXPERTS },
      .of = OF_SPARSE, .init = INIT_ZEROS, .dtype = "F32" },
    { .kind = P_SHARED_GATE, .name = LAYER "mlp.shared_experts.gate_proj.weight",
      .shape = { D_SHARED_INTER, D_HIDDEN }, .split = SPLIT_BLOCKS, .of = OF_SPARSE, .need = F_SHARED },
    { .kind = P_SHARED_UP, .name = LAYER "mlp.shared_experts.up_proj.weight",
      .shape = { D_SHARED_INTER, D_HIDDEN }, .split = SPLIT_BLOCKS, .of = OF_SPARSE, .need = F_SHARED },
    { .kind = P_SHARED_DOWN, .name = LAYER "mlp.shared_experts.down_proj.weight",
      .shape = { D_HIDDEN, D_SHARED_INTER }, .split = SPLIT_BLOCKS, .split_dim = 1, .of = OF_SPARSE,
      .need = F_SHARED },
    { 0 }
};

/* ---- Multi-token prediction ----
 * DeepSeek-V3, 2024, section 2.2: what goes into the layer is made of a token's embedding and of the state of
 * the token before it. */
static const struct param_row next_embed[] = {
    { .kind = P_EMBED, .name = LAYER "embed_tokens.weight", .shape = { D_VOCAB, D_HIDDEN },
      .split = SPLIT_BLOCKS },
    { .kind = P_NEXT_TOKEN_NORM, .name = LAYER "enorm.weight", .shape = { D_HIDDEN }, .init = INIT_ONES },
    { .kind = P_NEXT_STATE_NORM, .name = LAYER "hnorm.weight", .shape = { D_HIDDEN }, .init = INIT_ONES },
    { .kind = P_NEXT_JOIN, .name = LAYER "eh_proj.weight", .shape = { D_HIDDEN, D_HIDDEN_TWICE } },
    { 0 }
};
static const struct param_row next_head[] = {
    { .kind = P_NORM, .name = LAYER "shared_head.norm.weight", .shape = { D_HIDDEN }, .init = INIT_ONES },
    { .kind = P_HEAD, .name = LAYER "shared_head.head.weight", .shape = { D_VOCAB, D_HIDDEN },
      .split = SPLIT_BLOCKS },
    { 0 }
};

/* ---- GPT-NeoX ----
 * q k v in one: head after head, each its q, k and v rows. Cut by heads it is one parameter. */
#undef LAYER
#define LAYER "gpt_neox.layers.%d."

static const struct param_row neox_embed[] = {
    { .kind = P_EMBED, .name = "gpt_neox.embed_in.weight", .shape = { D_VOCAB, D_HIDDEN },
      .split = SPLIT_BLOCKS },
    { 0 }
};
static const struct param_row neox_layer[] = {
    { .kind = P_NORM_ATTN, .name = LAYER "input_layernorm.weight", .shape = { D_HIDDEN }, .init = INIT_ONES },
    { .kind = P_NORM_ATTN_BIAS, .name = LAYER "input_layernorm.bias", .shape = { D_HIDDEN },
      .init = INIT_ZEROS },
    { .kind = P_QKV, .name = LAYER "attention.query_key_value.weight", .shape = { D_QKV, D_HIDDEN },
      .split = SPLIT_HEADS },
    { .kind = P_QKV_BIAS, .name = LAYER "attention.query_key_value.bias", .shape = { D_QKV },
      .split = SPLIT_HEADS, .init = INIT_ZEROS, .need = F_QKV_BIAS },
    { .kind = P_O, .name = LAYER "attention.dense.weight", .shape = { D_HIDDEN, D_Q },
      .split = SPLIT_HEADS, .split_dim = 1 },
    { .kind = P_O_BIAS, .name = LAYER "attention.dense.bias", .shape = { D_HIDDEN },
      .init = INIT_ZEROS, .need = F_O_BIAS },
    { .kind = P_NORM_MLP, .name = LAYER "post_attention_layernorm.weight", .shape = { D_HIDDEN },
      .init = INIT_ONES },
    { .kind = P_NORM_MLP_BIAS, .name = LAYER "post_attention_layernorm.bias", .shape = { D_HIDDEN },
      .init = INIT_ZEROS },
    { .kind = P_UP, .name = LAYER "mlp.dense_h_to_4h.weight", .shape = { D_INTER, D_HIDDEN },
      .split = SPLIT_BLOCKS },
    { .kind = P_UP_BIAS, .name = LAYER "mlp.dense_h_to_4h.bias", .shape = { D_INTER }, .split = SPLIT_BLOCKS,
      .init = INIT_ZEROS },
    { .kind = P_DOWN, .name = LAYER "mlp.dense_4h_to_h.weight", .shape = { D_HIDDEN, D_INTER },
      .split = SPLIT_BLOCKS, .split_dim = 1 },
    { .kind = P_DOWN_BIAS, .name = LAYER "mlp.dense_4h_to_h.bias", .shape = { D_HIDDEN },
      .init = INIT_ZEROS },
    { 0 }
};
static const struct param_row neox_head[] = {
    { .kind = P_NORM, .name = "gpt_neox.final_layer_norm.weight", .shape = { D_HIDDEN }, .init = INIT_ONES },
    { .kind = P_NORM_BIAS, .name = "gpt_neox.final_layer_norm.bias", .shape = { D_HIDDEN },
      .init = INIT_ZEROS },
    { .kind = P_HEAD, .name = "embed_out.weight", .shape = { D_VOCAB, D_HIDDEN }, .split = SPLIT_BLOCKS,
      .need = F_UNTIED },
    { 0 }
};

/* ---- keys ---- */
#define SIZE(key, member) { key, offsetof(struct model_config, member) }
#define LLAMA_SIZES \
    SIZE("hidden_size", hidden), SIZE("num_hidden_layers", n_layers), SIZE("num_attention_heads", n_heads), \
    SIZE("num_key_value_heads", n_kv), SIZE("head_dim", head_dim), SIZE("intermediate_size", inter), \
    SIZE("vocab_size", vocab), SIZE("max_position_embeddings", max_pos)
/* Two spellings of one size: a file that has both must give one number. */
#define EXPERT_SIZES \
    SIZE("num_local_experts", n_experts), SIZE("num_experts", n_experts), \
    SIZE("num_experts_per_tok", experts_per_token)

static const struct config_size llama_sizes[] = { LLAMA_SIZES, { 0 } };
static const struct config_size mixtral_sizes[] = { LLAMA_SIZES, EXPERT_SIZES, { 0 } };
static const struct config_size qwen2_moe_sizes[] = {
    LLAMA_SIZES, EXPERT_SIZES, SIZE("moe_intermediate_size", expert_inter),
    SIZE("shared_expert_intermediate_size", shared_inter), SIZE("decoder_sparse_step", sparse_step), { 0 }
};
static const struct config_size qwen3_moe_sizes[] = {
    LLAMA_SIZES, EXPERT_SIZES, SIZE("moe_intermediate_size", expert_inter),
    SIZE("decoder_sparse_step", sparse_step), { 0 }
};
static const struct config_size gpt_oss_sizes[] = {
    LLAMA_SIZES, EXPERT_SIZES, SIZE("experts_per_token", experts_per_token), { 0 }
};
static const struct config_size deepseek_sizes[] = {
    SIZE("hidden_size", hidden), SIZE("num_hidden_layers", n_layers), SIZE("num_attention_heads", n_heads),
    SIZE("num_key_value_heads", n_kv), SIZE("intermediate_size", inter), SIZE("vocab_size", vocab),
    SIZE("max_position_embeddings", max_pos), SIZE("num_local_experts", n_experts),
    SIZE("n_routed_experts", n_experts), SIZE("num_experts_per_tok", experts_per_token),
    SIZE("moe_intermediate_size", expert_inter), SIZE("moe_layer_freq", sparse_step),
    SIZE("n_group", n_groups), SIZE("topk_group", groups_kept), SIZE("q_lora_rank", latent.q_rank),
    SIZE("kv_lora_rank", latent.kv_rank), SIZE("qk_rope_head_dim", latent.rope_dim),
    SIZE("qk_nope_head_dim", latent.nope_dim), SIZE("v_head_dim", latent.v_dim), { 0 }
};
static const struct config_size gpt2_sizes[] = {
    SIZE("n_embd", hidden),
    SIZE("n_layer", n_layers),
    SIZE("n_head", n_heads),
    SIZE("n_inner", inter),
    SIZE("vocab_size", vocab),
    SIZE("n_positions", max_pos),
    { 0 }
};
static const struct config_size neox_sizes[] = {
    SIZE("hidden_size", hidden), SIZE("num_hidden_layers", n_layers), SIZE("num_attention_heads", n_heads),
    SIZE("intermediate_size", inter), SIZE("vocab_size", vocab), SIZE("max_position_embeddings", max_pos),
    { 0 }
};
static const struct config_number gemma_numbers[] = {
    SIZE("query_pre_attn_scalar", query_scalar), SIZE("attn_logit_softcapping", attn_softcap),
    SIZE("final_logit_softcapping", final_softcap), { 0 }
};
static const struct config_switch no_flags[] = { { 0 } };
static const struct config_switch llama_flags[] = {
    { "attention_bias", F_QKV_BIAS | F_O_BIAS }, { "mlp_bias", F_MLP_BIAS }, { 0 }
};
static const struct config_switch neox_flags[] = {
    { "attention_bias", F_QKV_BIAS | F_O_BIAS }, { "use_parallel_residual", F_PARALLEL }, { 0 }
};
static const struct config_switch bias_flags[] = { { "attention_bias", F_QKV_BIAS | F_O_BIAS }, { 0 } };
static const struct config_switch qwen2_moe_flags[] = {
    { "norm_topk_prob", F_NORM_TOPK }, { "qkv_bias", F_QKV_BIAS }, { 0 }
};
static const struct config_switch deepseek_flags[] = { { "norm_topk_prob", F_NORM_TOPK }, { 0 } };
static const struct config_switch qwen3_moe_flags[] = {
    { "norm_topk_prob", F_NORM_TOPK }, { "attention_bias", F_QKV_BIAS | F_O_BIAS }, { 0 }
};

/* ---- families ---- */
#define LLAMA_KEYS .eps_key = "rms_norm_eps", .act_key = "hidden_act", .acts = { "silu", "swish" }
#define LLAMA_ROWS \
    .first = llama_embed, .layer = { attention, gated_mlp, attention_biases, head_norms, mlp_biases }, \
    .last = llama_head
#define GEMMA \
    .size = llama_sizes, .flag = bias_flags, .eps_key = "rms_norm_eps", .act_key = "hidden_activation", \
    .acts = { "gelu_pytorch_tanh" }, .first = llama_embed, \
    .layer = { gemma_attention, gated_mlp, gemma_after_mlp, attention_biases, gemma_extras }, \
    .last = gemma_head, .window = WINDOW_KEYED, .act = ACT_GEGLU, .number = gemma_numbers

static const struct family families[] = {
    { .name = "llama", .architecture = "LlamaForCausalLM",
      .features = F_GATE, LLAMA_KEYS, .size = llama_sizes, .flag = llama_flags, LLAMA_ROWS,
      .defaults = { .hidden = 4096, .n_layers = 32, .n_heads = 32, .inter = 11008, .vocab = 32000,
                    .max_pos = 2048, .bos = 1, .eos = 2, .eps = 1e-6 } },
    { .name = "mistral", .architecture = "MistralForCausalLM",
      .features = F_GATE, LLAMA_KEYS, .size = llama_sizes, .flag = no_flags, LLAMA_ROWS,
      .window = WINDOW_KEYED,
      .defaults = { .hidden = 4096, .n_layers = 32, .n_heads = 32, .n_kv = 8, .inter = 14336, .vocab = 32000,
                    .max_pos = 131072, .window = 4096, .bos = 1, .eos = 2, .eps = 1e-6 } },
    { .name = "qwen2", .architecture = "Qwen2ForCausalLM",
      .features = F_GATE | F_QKV_BIAS, LLAMA_KEYS, .size = llama_sizes, .flag = no_flags, LLAMA_ROWS,
      .window = WINDOW_SWITCHED,
      .defaults = { .hidden = 4096, .n_layers = 32, .n_heads = 32, .n_kv = 32, .inter = 22016,
                    .vocab = 151936, .max_pos = 32768, .window = 4096, .bos = -1, .eos = -1, .eps = 1e-6 } },
    { .name = "qwen3", .architecture = "Qwen3ForCausalLM",
      .features = F_GATE | F_QK_NORM, LLAMA_KEYS, .size = llama_sizes, .flag = bias_flags, LLAMA_ROWS,
      .window = WINDOW_SWITCHED,
      .defaults = { .hidden = 4096, .n_layers = 32, .n_heads = 32, .n_kv = 32, .head_dim = 128,
                    .inter = 22016, .vocab = 151936, .max_pos = 32768, .window = 4096, .bos = -1, .eos = -1,
                    .eps = 1e-6 } },
    { .name = "gpt2", .architecture = "GPT2LMHeadModel",
      .features = F_QKV_BIAS | F_O_BIAS | F_MLP_BIAS | F_LAYER_NORM | F_POSITIONS | F_TRANSPOSED,
      .size = gpt2_sizes, .flag = no_flags, .eps_key = "layer_norm_epsilon", .act_key = "activation_function",
      .acts = { "gelu_new", "gelu_pytorch_tanh" }, .act = ACT_GELU,
      .first = gpt2_embed, .layer = { gpt2_layer }, .last = gpt2_head,
      .defaults = { .hidden = 768, .n_layers = 12, .n_heads = 12, .vocab = 50257, .max_pos = 1024,
                    .bos = 50256, .eos = 50256, .eps = 1e-5, .tied = 1 } },
    { .name = "gpt_neox", .architecture = "GPTNeoXForCausalLM",
      .features = F_QKV_BIAS | F_O_BIAS | F_MLP_BIAS | F_LAYER_NORM | F_PARALLEL,
      .size = neox_sizes, .flag = neox_flags, .eps_key = "layer_norm_eps", .act_key = "hidden_act",
      .acts = { "gelu" }, .act = ACT_GELU_ERF,
      .first = neox_embed, .layer = { neox_layer }, .last = neox_head,
      .defaults = { .hidden = 6144, .n_layers = 44, .n_heads = 64, .inter = 24576, .vocab = 50432,
                    .max_pos = 2048, .bos = 0, .eos = 2, .eps = 1e-5, .rotary = 0.25 } },
    { .name = "gemma2", .architecture = "Gemma2ForCausalLM",
      .features = F_GATE | F_POST_NORM | F_PLUS_ONE | F_EMBED_FACTOR, GEMMA, .window_period = 2,
      .defaults = { .hidden = 2304, .n_layers = 26, .n_heads = 8, .n_kv = 4, .head_dim = 256, .inter = 9216,
                    .vocab = 256000, .max_pos = 8192, .window = 4096, .bos = 2, .eos = 1, .eps = 1e-6,
                    .tied = 1, .query_scalar = 256, .attn_softcap = 50, .final_softcap = 30 } },
    { .name = "gemma3_text", .architecture = "Gemma3ForCausalLM",
      .features = F_GATE | F_POST_NORM | F_QK_NORM | F_PLUS_ONE | F_EMBED_FACTOR, GEMMA, .window_period = 6,
      .defaults = { .hidden = 2304, .n_layers = 26, .n_heads = 8, .n_kv = 4, .head_dim = 256, .inter = 9216,
                    .vocab = 262208, .max_pos = 131072, .window = 4096, .bos = 2, .eos = 1, .eps = 1e-6,
                    .tied = 1, .query_scalar = 256, .rope_theta = 1e6, .rope_local_theta = 1e4 } },
    { .name = "mixtral", .architecture = "MixtralForCausalLM",
      .features = F_GATE | F_EXPERTS | F_NORM_TOPK, LLAMA_KEYS, .size = mixtral_sizes, .flag = no_flags,
      .first = llama_embed, .layer = { attention, mixtral_experts }, .last = llama_head,
      .window = WINDOW_KEYED,
      .defaults = { .hidden = 4096, .n_layers = 32, .n_heads = 32, .n_kv = 8, .inter = 14336, .vocab = 32000,
                    .max_pos = 131072, .bos = 1, .eos = 2, .eps = 1e-5, .n_experts = 8,
                    .experts_per_token = 2 } },
    { .name = "qwen2_moe", .architecture = "Qwen2MoeForCausalLM",
      .features = F_GATE | F_QKV_BIAS | F_EXPERTS | F_SHARED, LLAMA_KEYS, .size = qwen2_moe_sizes,
      .flag = qwen2_moe_flags, .first = llama_embed,
      .layer = { attention, gated_mlp, qwen3_experts, shared_expert, attention_biases, head_norms },
      .last = llama_head,
      .window = WINDOW_SWITCHED,
      .defaults = { .hidden = 2048, .n_layers = 24, .n_heads = 16, .n_kv = 16, .inter = 5632,
                    .vocab = 151936, .max_pos = 32768, .window = 4096, .bos = -1, .eos = -1, .eps = 1e-6,
                    .n_experts = 60, .expert_inter = 1408, .experts_per_token = 4, .shared_inter = 5632 } },
    { .name = "qwen3_moe", .architecture = "Qwen3MoeForCausalLM",
      .features = F_GATE | F_QK_NORM | F_EXPERTS, LLAMA_KEYS,
      .size = qwen3_moe_sizes, .flag = qwen3_moe_flags,
      .first = llama_embed, .layer = { attention, gated_mlp, qwen3_experts, attention_biases, head_norms },
      .last = llama_head,
      .window = WINDOW_SWITCHED,
      .defaults = { .hidden = 2048, .n_layers = 24, .n_heads = 32, .n_kv = 4, .inter = 6144, .vocab = 151936,
                    .max_pos = 32768, .window = 4096, .bos = -1, .eos = -1, .eps = 1e-6, .n_experts = 128,
                    .expert_inter = 768, .experts_per_token = 8 } },
    { .name = "gpt_oss", .architecture = "GptOssForCausalLM",
      .features = F_GATE | F_QKV_BIAS | F_O_BIAS | F_EXPERTS | F_NORM_TOPK, LLAMA_KEYS,
      .size = gpt_oss_sizes, .flag = bias_flags, .first = llama_embed,
      .layer = { attention, gpt_oss_sinks, gpt_oss_experts, attention_biases, head_norms },
      .last = llama_head, .act = ACT_SWIGLU_CLAMPED,
      .window = WINDOW_KEYED, .window_period = 2,
      .defaults = { .hidden = 2880, .n_layers = 36, .n_heads = 64, .n_kv = 8, .head_dim = 64, .inter = 2880,
                    .vocab = 201088, .max_pos = 131072, .window = 128, .bos = -1, .eos = -1, .eps = 1e-5,
                    .n_experts = 128, .experts_per_token = 4, .swiglu_limit = 7, .swiglu_alpha = 1.702 } },
    { .name = "deepseek_v3", .architecture = "DeepseekV3ForCausalLM",
      .features = F_GATE | F_EXPERTS | F_NORM_TOPK | F_SHARED | F_LATENT | F_Q_RANK | F_SIGMOID, LLAMA_KEYS,
      .size = deepseek_sizes, .flag = deepseek_flags, .first = llama_embed,
      .layer = { latent_attention, gated_mlp, qwen3_experts, deepseek_router }, .last = llama_head,
      .next_first = next_embed, .next_last = next_head,
      .defaults = { .hidden = 7168, .n_layers = 61, .n_heads = 128, .n_kv = 128, .inter = 18432,
                    .vocab = 129280, .max_pos = 4096, .bos = 0, .eos = 1, .eps = 1e-6, .n_experts = 256,
                    .expert_inter = 2048, .experts_per_token = 8, .n_shared = 1, .n_groups = 8,
                    .groups_kept = 4, .first_sparse = 3, .first_has_experts = 1, .routed_factor = 2.5,
                    .q_rank = 1536, .kv_rank = 512, .rope_dim = 64, .nope_dim = 128, .v_dim = 128 } },
};
/* clang-format on */
#define FAMILIES ((int)(sizeof families / sizeof families[0]))

const struct family *family_find(const char *name)
{
    for (int i = 0; i < FAMILIES; i++)
        if (!strcmp(families[i].name, name))
            return &families[i];
    return NULL;
}

char *family_names(char out[256])
{
    out[0] = 0;
    for (int i = 0; i < FAMILIES; i++)
        strcat(strcat(out, out[0] ? ", " : ""), families[i].name);
    return out;
}

/* ---- what a model consists of ---- */
enum norm_kind family_norm(const struct model_config *c)
{
    if (family_has(c, F_LAYER_NORM))
        return NORM_LAYER;
    return family_has(c, F_PLUS_ONE) ? NORM_RMS_ONE : NORM_RMS;
}

void family_layer(const struct model_config *c, int layer, struct layer_spec *out)
{
    enum norm_kind norm = family_norm(c), after = family_has(c, F_POST_NORM) ? norm : NORM_NONE;
    double scalar = c->query_scalar > 0 ? c->query_scalar : (double)c->head_dim;
    int latent = family_has(c, F_LATENT);
    struct branch_spec first = { .body = latent ? BODY_LATENT : BODY_ATTENTION,
                                 .norm = norm,
                                 .norm_weight = P_NORM_ATTN,
                                 .norm_after = after,
                                 .norm_after_weight = P_NORM_ATTN_POST,
                                 .window = model_layer_window(c, layer),
                                 .scale = (float)(latent ? model_latent_scale(c) : 1.0 / sqrt(scalar)) };
    struct branch_spec second = { .body = model_has_experts(c, layer) ? BODY_EXPERTS : BODY_MLP,
                                  .norm = norm,
                                  .norm_weight = P_NORM_MLP,
                                  .norm_after = after,
                                  .norm_after_weight = P_NORM_MLP_POST,
                                  .act = c->family->act,
                                  .clamp = { (float)c->swiglu_limit, (float)c->swiglu_alpha } };

    first.local_rope = first.window > 0 && c->rope_local_theta > 0;
    *out = (struct layer_spec){ .n = 2, .parallel = family_has(c, F_PARALLEL), .branch = { first, second } };
}

struct expert_router family_router(const struct model_config *c)
{
    enum router_weights weights = family_has(c, F_SIGMOID)     ? ROUTER_SIGMOID
                                  : family_has(c, F_NORM_TOPK) ? ROUTER_CHOSEN
                                                               : ROUTER_ALL;
    return (struct expert_router){ .n_experts = (int)c->n_experts,
                                   .k = (int)c->experts_per_token,
                                   .weights = weights,
                                   .norm = family_has(c, F_NORM_TOPK),
                                   .n_groups = (int)c->n_groups,
                                   .groups_kept = (int)c->groups_kept,
                                   .factor = (float)c->routed_factor };
}

double family_embed_factor(const struct model_config *c)
{
    return family_has(c, F_EMBED_FACTOR) ? sqrt((double)c->hidden) : 0;
}

int family_has(const struct model_config *c, unsigned features)
{
    return (c->features & features) == features;
}

void family_set(struct model_config *c, unsigned features, int on)
{
    c->features = on ? c->features | features : c->features & ~features;
}

int family_learns_positions(const struct model_config *c) { return family_has(c, F_POSITIONS); }
