/* published_tables.h - tables of models to come, made for tests: no config.json leads to them.
 *
 * Names and forms are those of files on the hub: experts one by one (Mixtral, Qwen3-MoE), fused
 * (transformers 5), fused, transposed and alternating (gpt-oss in bf16), packed with scales (gpt-oss in
 * MXFP4, fused FP8), and DeepSeek-V3 in FP8 with latent attention, shared experts and a correction bias in
 * fp32. */
#ifndef SHARDLINE_TESTS_PUBLISHED_TABLES_H
#define SHARDLINE_TESTS_PUBLISHED_TABLES_H

#include "model/family.h"

enum published_model {
    MIXTRAL,
    QWEN3_MOE,
    QWEN3_MOE_FUSED,
    FUSED_FP8,
    GPT_OSS,
    GPT_OSS_MXFP4,
    DEEPSEEK_V3,
    PUBLISHED_MODELS
};

/* clang-format off */
#define LAYER "model.layers.%d."

static const struct param_row fused_experts[] = {
    { .kind = P_ROUTER, .name = LAYER "mlp.gate.weight", .shape = { D_EXPERTS, D_HIDDEN }, .of = OF_SPARSE },
    { .kind = P_GATE, .name = LAYER "mlp.experts.gate_up_proj", .shape = { D_EXPERT_INTER, D_HIDDEN },
      .split = SPLIT_BLOCKS, .of = OF_EXPERT, .stacked = 1 },
    { .kind = P_UP, .name = LAYER "mlp.experts.gate_up_proj", .shape = { D_EXPERT_INTER, D_HIDDEN },
      .split = SPLIT_BLOCKS, .of = OF_EXPERT, .stacked = 1 },
    { .kind = P_DOWN, .name = LAYER "mlp.experts.down_proj", .shape = { D_HIDDEN, D_EXPERT_INTER },
      .split = SPLIT_BLOCKS, .split_dim = 1, .of = OF_EXPERT, .stacked = 1 },
    { 0 }
};

#define FP8 .dtype = "F8_E4M3"
#define SCALE(tensor, out, in) \
    .companion = { .name = LAYER tensor, .dtype = "F32", \
                   .shape = { IN_BLOCKS(out, 128), IN_BLOCKS(in, 128) } }
static const struct param_row fused_fp8_experts[] = {
    { .kind = P_ROUTER, .name = LAYER "mlp.gate.weight", .shape = { D_EXPERTS, D_HIDDEN }, .of = OF_SPARSE },
    { .kind = P_GATE, .name = LAYER "mlp.experts.gate_up_proj", .shape = { D_EXPERT_INTER, D_HIDDEN },
      .split = SPLIT_BLOCKS, .of = OF_EXPERT, .stacked = 1, FP8,
      SCALE("mlp.experts.gate_up_proj_scales_inv", D_EXPERT_INTER, D_HIDDEN) },
    { .kind = P_UP, .name = LAYER "mlp.experts.gate_up_proj", .shape = { D_EXPERT_INTER, D_HIDDEN },
      .split = SPLIT_BLOCKS, .of = OF_EXPERT, .stacked = 1, FP8,
      SCALE("mlp.experts.gate_up_proj_scales_inv", D_EXPERT_INTER, D_HIDDEN) },
    { .kind = P_DOWN, .name = LAYER "mlp.experts.down_proj", .shape = { D_HIDDEN, D_EXPERT_INTER },
      .split = SPLIT_BLOCKS, .split_dim = 1, .of = OF_EXPERT, .stacked = 1, FP8,
      SCALE("mlp.experts.down_proj_scales_inv", D_HIDDEN, D_EXPERT_INTER) },
    { 0 }
};

static const struct param_row gpt_oss_router[] = {
    { .kind = P_SINKS, .name = LAYER "self_attn.sinks", .shape = { D_HEADS }, .split = SPLIT_HEADS },
    { .kind = P_ROUTER, .name = LAYER "mlp.router.weight", .shape = { D_EXPERTS, D_HIDDEN },
      .of = OF_SPARSE },
    { .kind = P_ROUTER_BIAS, .name = LAYER "mlp.router.bias", .shape = { D_EXPERTS }, .of = OF_SPARSE,
      .init = INIT_ZEROS },
    { .kind = P_GATE_UP_BIAS, .name = LAYER "mlp.experts.gate_up_proj_bias", .shape = { D_EXPERT_INTER },
      .split = SPLIT_BLOCKS, .of = OF_EXPERT, .stacked = 1, .init = INIT_ZEROS,
      .alternating = { P_GATE_BIAS, P_UP_BIAS } },
    { .kind = P_DOWN_BIAS, .name = LAYER "mlp.experts.down_proj_bias", .shape = { D_HIDDEN },
      .of = OF_EXPERT, .stacked = 1, .init = INIT_ZEROS },
    { 0 }
};
static const struct param_row gpt_oss_experts[] = {
    { .kind = P_GATE_UP, .name = LAYER "mlp.experts.gate_up_proj", .shape = { D_HIDDEN, D_EXPERT_INTER },
      .split = SPLIT_BLOCKS, .split_dim = 1, .of = OF_EXPERT, .stacked = 1, .transposed = 1,
      .alternating = { P_GATE, P_UP } },
    { .kind = P_DOWN, .name = LAYER "mlp.experts.down_proj", .shape = { D_EXPERT_INTER, D_HIDDEN },
      .split = SPLIT_BLOCKS, .of = OF_EXPERT, .stacked = 1, .transposed = 1 },
    { 0 }
};
static const struct param_row mxfp4_experts[] = {
    { .kind = P_GATE_UP, .name = LAYER "mlp.experts.gate_up_proj_blocks",
      .shape = { D_EXPERT_INTER, IN_BLOCKS(D_HIDDEN, 32), FIXED(16) }, .dtype = "U8",
      .split = SPLIT_BLOCKS, .of = OF_EXPERT, .stacked = 1, .alternating = { P_GATE, P_UP },
      .companion = { .name = LAYER "mlp.experts.gate_up_proj_scales", .dtype = "U8",
                     .shape = { D_EXPERT_INTER, IN_BLOCKS(D_HIDDEN, 32) } } },
    { .kind = P_DOWN, .name = LAYER "mlp.experts.down_proj_blocks",
      .shape = { D_HIDDEN, IN_BLOCKS(D_EXPERT_INTER, 32), FIXED(16) }, .dtype = "U8",
      .split = SPLIT_BLOCKS, .split_dim = 1, .of = OF_EXPERT, .stacked = 1,
      .companion = { .name = LAYER "mlp.experts.down_proj_scales", .dtype = "U8",
                     .shape = { D_HIDDEN, IN_BLOCKS(D_EXPERT_INTER, 32) } } },
    { 0 }
};

/* A matrix in FP8 with its scales. */
#define FP8_MATRIX(tensor, out, in) \
    .name = LAYER tensor ".weight", .shape = { out, in }, FP8, SCALE(tensor ".weight_scale_inv", out, in)
static const struct param_row latent_attention[] = {
    { .kind = P_NORM_ATTN, .name = LAYER "input_layernorm.weight", .shape = { D_HIDDEN }, .init = INIT_ONES },
    { .kind = P_Q_A, FP8_MATRIX("self_attn.q_a_proj", D_Q_RANK, D_HIDDEN) },
    { .kind = P_Q_A_NORM, .name = LAYER "self_attn.q_a_layernorm.weight", .shape = { D_Q_RANK },
      .init = INIT_ONES },
    { .kind = P_Q_B, FP8_MATRIX("self_attn.q_b_proj", D_Q, D_Q_RANK), .split = SPLIT_HEADS },
    { .kind = P_KV_A, FP8_MATRIX("self_attn.kv_a_proj_with_mqa", D_KV_A, D_HIDDEN) },
    { .kind = P_KV_A_NORM, .name = LAYER "self_attn.kv_a_layernorm.weight", .shape = { D_KV_RANK },
      .init = INIT_ONES },
    { .kind = P_KV_B, FP8_MATRIX("self_attn.kv_b_proj", D_KV_B, D_KV_RANK), .split = SPLIT_HEADS },
    { .kind = P_O, FP8_MATRIX("self_attn.o_proj", D_HIDDEN, D_V_HEADS),
      .split = SPLIT_HEADS, .split_dim = 1 },
    { .kind = P_NORM_MLP, .name = LAYER "post_attention_layernorm.weight", .shape = { D_HIDDEN },
      .init = INIT_ONES },
    { 0 }
};
#define MLP(which, gate, up, down, prefix, inter) \
    { .kind = gate, FP8_MATRIX(prefix "gate_proj", inter, D_HIDDEN), .split = SPLIT_BLOCKS, .of = which }, \
    { .kind = up, FP8_MATRIX(prefix "up_proj", inter, D_HIDDEN), .split = SPLIT_BLOCKS, .of = which }, \
    { .kind = down, FP8_MATRIX(prefix "down_proj", D_HIDDEN, inter), \
      .split = SPLIT_BLOCKS, .split_dim = 1, .of = which }
static const struct param_row deepseek_mlp[] = {
    MLP(OF_DENSE, P_GATE, P_UP, P_DOWN, "mlp.", D_INTER),
    { .kind = P_ROUTER, .name = LAYER "mlp.gate.weight", .shape = { D_EXPERTS, D_HIDDEN }, .of = OF_SPARSE },
    { .kind = P_ROUTER_BIAS, .name = LAYER "mlp.gate.e_score_correction_bias", .shape = { D_EXPERTS },
      .of = OF_SPARSE, .init = INIT_ZEROS, .dtype = "F32" },
    MLP(OF_SPARSE, P_SHARED_GATE, P_SHARED_UP, P_SHARED_DOWN, "mlp.shared_experts.", D_SHARED_INTER),
    MLP(OF_EXPERT, P_GATE, P_UP, P_DOWN, "mlp.experts.%d.", D_EXPERT_INTER),
    { 0 }
};
/* clang-format on */

/* The family of a model to come. Attention, embedding and head are those of the families of today. */
static inline struct family published_family(enum published_model which)
{
    const struct family *moe = family_find("qwen3_moe");
    struct family f = which == MIXTRAL ? *family_find("mixtral") : *moe;
    switch (which) {
    case QWEN3_MOE_FUSED: f.layer[2] = fused_experts; break;
    case FUSED_FP8: f.layer[2] = fused_fp8_experts; break;
    case GPT_OSS:
    case GPT_OSS_MXFP4:
        f.features = F_GATE | F_EXPERTS | F_QKV_BIAS | F_O_BIAS;
        f.layer[1] = moe->layer[3];
        f.layer[2] = gpt_oss_router;
        f.layer[3] = which == GPT_OSS ? gpt_oss_experts : mxfp4_experts;
        break;
    case DEEPSEEK_V3:
        f.features = F_GATE | F_EXPERTS;
        f.layer[0] = latent_attention;
        f.layer[1] = deepseek_mlp;
        f.layer[2] = f.layer[3] = NULL;
        break;
    default: break;
    }
    return f;
}

/* A config with these sizes; the family must outlive it. The first n_dense layers have no experts. */
static inline struct model_config published_config(const struct family *f, struct model_config sizes,
                                                   int n_dense)
{
    sizes.family = f;
    sizes.features = f->features | F_UNTIED;
    sizes.sparse_step = 1;
    sizes.init_range = 0.02;
    sizes.grain = 8;
    sizes.dense[0] = ((uint64_t)1 << n_dense) - 1;
    return sizes;
}

#endif
