/* family.c - see family.h. Names and defaults as in transformers. */
#include "model/family.h"

#include <string.h>

/* ---- tensors ---- */
#define MATRIX(kind, name, out, in, split, dim) \
    { \
        kind, name, out, in, split, dim, INIT_NORMAL, 0, OF_ANY \
    }
#define VECTOR(kind, name, dim0, split, init, need) \
    { \
        kind, name, dim0, D_NONE, split, 0, init, need, OF_ANY \
    }
#define SOME(of, kind, name, out, in, split, dim) \
    { \
        kind, name, out, in, split, dim, INIT_NORMAL, 0, of \
    }
#define END \
    { \
        P_KINDS, NULL, D_NONE, D_NONE, SPLIT_COPY, 0, INIT_NORMAL, 0, OF_ANY \
    }

/* What the families that look like Llama have alike: attention with its norms, biases and norms of heads, an
 * MLP with a gate. */
#define ATTENTION \
    VECTOR(P_NORM_ATTN, "model.layers.%d.input_layernorm.weight", D_HIDDEN, SPLIT_COPY, INIT_ONES, 0), \
        MATRIX(P_Q, "model.layers.%d.self_attn.q_proj.weight", D_Q, D_HIDDEN, SPLIT_HEADS, 0), \
        MATRIX(P_K, "model.layers.%d.self_attn.k_proj.weight", D_KV, D_HIDDEN, SPLIT_KV, 0), \
        MATRIX(P_V, "model.layers.%d.self_attn.v_proj.weight", D_KV, D_HIDDEN, SPLIT_KV, 0), \
        MATRIX(P_O, "model.layers.%d.self_attn.o_proj.weight", D_HIDDEN, D_Q, SPLIT_HEADS, 1), \
        VECTOR(P_NORM_MLP, "model.layers.%d.post_attention_layernorm.weight", D_HIDDEN, SPLIT_COPY, \
               INIT_ONES, 0)
#define ATTENTION_MORE \
    VECTOR(P_Q_BIAS, "model.layers.%d.self_attn.q_proj.bias", D_Q, SPLIT_HEADS, INIT_ZEROS, F_QKV_BIAS), \
        VECTOR(P_K_BIAS, "model.layers.%d.self_attn.k_proj.bias", D_KV, SPLIT_KV, INIT_ZEROS, F_QKV_BIAS), \
        VECTOR(P_V_BIAS, "model.layers.%d.self_attn.v_proj.bias", D_KV, SPLIT_KV, INIT_ZEROS, F_QKV_BIAS), \
        VECTOR(P_O_BIAS, "model.layers.%d.self_attn.o_proj.bias", D_HIDDEN, SPLIT_COPY, INIT_ZEROS, \
               F_O_BIAS), \
        VECTOR(P_Q_NORM, "model.layers.%d.self_attn.q_norm.weight", D_HEAD, SPLIT_COPY, INIT_ONES, \
               F_QK_NORM), \
        VECTOR(P_K_NORM, "model.layers.%d.self_attn.k_norm.weight", D_HEAD, SPLIT_COPY, INIT_ONES, \
               F_QK_NORM)
#define GATED_MLP \
    MATRIX(P_GATE, "model.layers.%d.mlp.gate_proj.weight", D_INTER, D_HIDDEN, SPLIT_BLOCKS, 0), \
        MATRIX(P_UP, "model.layers.%d.mlp.up_proj.weight", D_INTER, D_HIDDEN, SPLIT_BLOCKS, 0), \
        MATRIX(P_DOWN, "model.layers.%d.mlp.down_proj.weight", D_HIDDEN, D_INTER, SPLIT_BLOCKS, 1)

static const struct param_row llama_first[] = {
    MATRIX(P_EMBED, "model.embed_tokens.weight", D_VOCAB, D_HIDDEN, SPLIT_BLOCKS, 0), END
};
static const struct param_row llama_layer[] = {
    ATTENTION,
    GATED_MLP,
    ATTENTION_MORE,
    VECTOR(P_GATE_BIAS, "model.layers.%d.mlp.gate_proj.bias", D_INTER, SPLIT_BLOCKS, INIT_ZEROS, F_MLP_BIAS),
    VECTOR(P_UP_BIAS, "model.layers.%d.mlp.up_proj.bias", D_INTER, SPLIT_BLOCKS, INIT_ZEROS, F_MLP_BIAS),
    VECTOR(P_DOWN_BIAS, "model.layers.%d.mlp.down_proj.bias", D_HIDDEN, SPLIT_COPY, INIT_ZEROS, F_MLP_BIAS),
    END
};
static const struct param_row llama_last[] = {
    VECTOR(P_NORM, "model.norm.weight", D_HIDDEN, SPLIT_COPY, INIT_ONES, 0),
    { P_HEAD, "lm_head.weight", D_VOCAB, D_HIDDEN, SPLIT_BLOCKS, 0, INIT_NORMAL, F_UNTIED, OF_ANY },
    END
};

/* Conv1D: matrices are [in][out], q k v side by side in one. */
static const struct param_row gpt2_first[] = {
    MATRIX(P_EMBED, "transformer.wte.weight", D_VOCAB, D_HIDDEN, SPLIT_BLOCKS, 0),
    MATRIX(P_POS, "transformer.wpe.weight", D_POS, D_HIDDEN, SPLIT_COPY, 0), END
};
static const struct param_row gpt2_layer[] = {
    VECTOR(P_NORM_ATTN, "transformer.h.%d.ln_1.weight", D_HIDDEN, SPLIT_COPY, INIT_ONES, 0),
    VECTOR(P_NORM_ATTN_BIAS, "transformer.h.%d.ln_1.bias", D_HIDDEN, SPLIT_COPY, INIT_ZEROS, 0),
    MATRIX(P_Q, "transformer.h.%d.attn.c_attn.weight", D_HIDDEN, D_Q, SPLIT_HEADS, 1),
    MATRIX(P_K, "transformer.h.%d.attn.c_attn.weight", D_HIDDEN, D_KV, SPLIT_KV, 1),
    MATRIX(P_V, "transformer.h.%d.attn.c_attn.weight", D_HIDDEN, D_KV, SPLIT_KV, 1),
    VECTOR(P_Q_BIAS, "transformer.h.%d.attn.c_attn.bias", D_Q, SPLIT_HEADS, INIT_ZEROS, 0),
    VECTOR(P_K_BIAS, "transformer.h.%d.attn.c_attn.bias", D_KV, SPLIT_KV, INIT_ZEROS, 0),
    VECTOR(P_V_BIAS, "transformer.h.%d.attn.c_attn.bias", D_KV, SPLIT_KV, INIT_ZEROS, 0),
    { P_O, "transformer.h.%d.attn.c_proj.weight", D_Q, D_HIDDEN, SPLIT_HEADS, 0, INIT_RESIDUAL, 0, OF_ANY },
    VECTOR(P_O_BIAS, "transformer.h.%d.attn.c_proj.bias", D_HIDDEN, SPLIT_COPY, INIT_ZEROS, 0),
    VECTOR(P_NORM_MLP, "transformer.h.%d.ln_2.weight", D_HIDDEN, SPLIT_COPY, INIT_ONES, 0),
    VECTOR(P_NORM_MLP_BIAS, "transformer.h.%d.ln_2.bias", D_HIDDEN, SPLIT_COPY, INIT_ZEROS, 0),
    MATRIX(P_UP, "transformer.h.%d.mlp.c_fc.weight", D_HIDDEN, D_INTER, SPLIT_BLOCKS, 1),
    VECTOR(P_UP_BIAS, "transformer.h.%d.mlp.c_fc.bias", D_INTER, SPLIT_BLOCKS, INIT_ZEROS, 0),
    { P_DOWN, "transformer.h.%d.mlp.c_proj.weight", D_INTER, D_HIDDEN, SPLIT_BLOCKS, 0, INIT_RESIDUAL, 0,
      OF_ANY },
    VECTOR(P_DOWN_BIAS, "transformer.h.%d.mlp.c_proj.bias", D_HIDDEN, SPLIT_COPY, INIT_ZEROS, 0),
    END
};
static const struct param_row gpt2_last[] = {
    VECTOR(P_NORM, "transformer.ln_f.weight", D_HIDDEN, SPLIT_COPY, INIT_ONES, 0),
    VECTOR(P_NORM_BIAS, "transformer.ln_f.bias", D_HIDDEN, SPLIT_COPY, INIT_ZEROS, 0),
    { P_HEAD, "lm_head.weight", D_VOCAB, D_HIDDEN, SPLIT_BLOCKS, 0, INIT_NORMAL, F_UNTIED, OF_ANY },
    END
};

/* Norms behind attention and MLP; post_attention_layernorm is one of these here. Every norm multiplies by 1
 * + w: w is 0 at first. */
static const struct param_row gemma_layer[] = {
    VECTOR(P_NORM_ATTN, "model.layers.%d.input_layernorm.weight", D_HIDDEN, SPLIT_COPY, INIT_ZEROS, 0),
    MATRIX(P_Q, "model.layers.%d.self_attn.q_proj.weight", D_Q, D_HIDDEN, SPLIT_HEADS, 0),
    MATRIX(P_K, "model.layers.%d.self_attn.k_proj.weight", D_KV, D_HIDDEN, SPLIT_KV, 0),
    MATRIX(P_V, "model.layers.%d.self_attn.v_proj.weight", D_KV, D_HIDDEN, SPLIT_KV, 0),
    MATRIX(P_O, "model.layers.%d.self_attn.o_proj.weight", D_HIDDEN, D_Q, SPLIT_HEADS, 1),
    VECTOR(P_NORM_ATTN_POST, "model.layers.%d.post_attention_layernorm.weight", D_HIDDEN, SPLIT_COPY,
           INIT_ZEROS, F_POST_NORM),
    VECTOR(P_NORM_MLP, "model.layers.%d.pre_feedforward_layernorm.weight", D_HIDDEN, SPLIT_COPY, INIT_ZEROS,
           0),
    GATED_MLP,
    VECTOR(P_NORM_MLP_POST, "model.layers.%d.post_feedforward_layernorm.weight", D_HIDDEN, SPLIT_COPY,
           INIT_ZEROS, F_POST_NORM),
    ATTENTION_MORE,
    END
};

static const struct param_row mixtral_layer[] = {
    ATTENTION,
    SOME(OF_SPARSE, P_ROUTER, "model.layers.%d.block_sparse_moe.gate.weight", D_EXPERTS, D_HIDDEN, SPLIT_COPY,
         0),
    SOME(OF_EXPERT, P_GATE, "model.layers.%d.block_sparse_moe.experts.%d.w1.weight", D_EXPERT_INTER, D_HIDDEN,
         SPLIT_BLOCKS, 0),
    SOME(OF_EXPERT, P_UP, "model.layers.%d.block_sparse_moe.experts.%d.w3.weight", D_EXPERT_INTER, D_HIDDEN,
         SPLIT_BLOCKS, 0),
    SOME(OF_EXPERT, P_DOWN, "model.layers.%d.block_sparse_moe.experts.%d.w2.weight", D_HIDDEN, D_EXPERT_INTER,
         SPLIT_BLOCKS, 1),
    END
};
static const struct param_row qwen3_moe_layer[] = {
    ATTENTION,
    SOME(OF_DENSE, P_GATE, "model.layers.%d.mlp.gate_proj.weight", D_INTER, D_HIDDEN, SPLIT_BLOCKS, 0),
    SOME(OF_DENSE, P_UP, "model.layers.%d.mlp.up_proj.weight", D_INTER, D_HIDDEN, SPLIT_BLOCKS, 0),
    SOME(OF_DENSE, P_DOWN, "model.layers.%d.mlp.down_proj.weight", D_HIDDEN, D_INTER, SPLIT_BLOCKS, 1),
    SOME(OF_SPARSE, P_ROUTER, "model.layers.%d.mlp.gate.weight", D_EXPERTS, D_HIDDEN, SPLIT_COPY, 0),
    SOME(OF_EXPERT, P_GATE, "model.layers.%d.mlp.experts.%d.gate_proj.weight", D_EXPERT_INTER, D_HIDDEN,
         SPLIT_BLOCKS, 0),
    SOME(OF_EXPERT, P_UP, "model.layers.%d.mlp.experts.%d.up_proj.weight", D_EXPERT_INTER, D_HIDDEN,
         SPLIT_BLOCKS, 0),
    SOME(OF_EXPERT, P_DOWN, "model.layers.%d.mlp.experts.%d.down_proj.weight", D_HIDDEN, D_EXPERT_INTER,
         SPLIT_BLOCKS, 1),
    ATTENTION_MORE,
    END
};

/* q k v in one: head after head, each its q, k and v rows. Cut by head it is one parameter. */
static const struct param_row neox_first[] = {
    MATRIX(P_EMBED, "gpt_neox.embed_in.weight", D_VOCAB, D_HIDDEN, SPLIT_BLOCKS, 0), END
};
static const struct param_row neox_layer[] = {
    VECTOR(P_NORM_ATTN, "gpt_neox.layers.%d.input_layernorm.weight", D_HIDDEN, SPLIT_COPY, INIT_ONES, 0),
    VECTOR(P_NORM_ATTN_BIAS, "gpt_neox.layers.%d.input_layernorm.bias", D_HIDDEN, SPLIT_COPY, INIT_ZEROS, 0),
    MATRIX(P_QKV, "gpt_neox.layers.%d.attention.query_key_value.weight", D_QKV, D_HIDDEN, SPLIT_HEADS, 0),
    VECTOR(P_QKV_BIAS, "gpt_neox.layers.%d.attention.query_key_value.bias", D_QKV, SPLIT_HEADS, INIT_ZEROS,
           F_QKV_BIAS),
    MATRIX(P_O, "gpt_neox.layers.%d.attention.dense.weight", D_HIDDEN, D_Q, SPLIT_HEADS, 1),
    VECTOR(P_O_BIAS, "gpt_neox.layers.%d.attention.dense.bias", D_HIDDEN, SPLIT_COPY, INIT_ZEROS, F_O_BIAS),
    VECTOR(P_NORM_MLP, "gpt_neox.layers.%d.post_attention_layernorm.weight", D_HIDDEN, SPLIT_COPY, INIT_ONES,
           0),
    VECTOR(P_NORM_MLP_BIAS, "gpt_neox.layers.%d.post_attention_layernorm.bias", D_HIDDEN, SPLIT_COPY,
           INIT_ZEROS, 0),
    MATRIX(P_UP, "gpt_neox.layers.%d.mlp.dense_h_to_4h.weight", D_INTER, D_HIDDEN, SPLIT_BLOCKS, 0),
    VECTOR(P_UP_BIAS, "gpt_neox.layers.%d.mlp.dense_h_to_4h.bias", D_INTER, SPLIT_BLOCKS, INIT_ZEROS, 0),
    MATRIX(P_DOWN, "gpt_neox.layers.%d.mlp.dense_4h_to_h.weight", D_HIDDEN, D_INTER, SPLIT_BLOCKS, 1),
    VECTOR(P_DOWN_BIAS, "gpt_neox.layers.%d.mlp.dense_4h_to_h.bias", D_HIDDEN, SPLIT_COPY, INIT_ZEROS, 0),
    END
};
static const struct param_row neox_last[] = {
    VECTOR(P_NORM, "gpt_neox.final_layer_norm.weight", D_HIDDEN, SPLIT_COPY, INIT_ONES, 0),
    VECTOR(P_NORM_BIAS, "gpt_neox.final_layer_norm.bias", D_HIDDEN, SPLIT_COPY, INIT_ZEROS, 0),
    { P_HEAD, "embed_out.weight", D_VOCAB, D_HIDDEN, SPLIT_BLOCKS, 0, INIT_NORMAL, F_UNTIED, OF_ANY },
    END
};

/* ---- keys ---- */
#define SIZE(key, member) \
    { \
        key, offsetof(struct model_config, member) \
    }
static const struct config_size llama_sizes[] = { SIZE("hidden_size", hidden),
                                                  SIZE("num_hidden_layers", n_layers),
                                                  SIZE("num_attention_heads", n_heads),
                                                  SIZE("num_key_value_heads", n_kv),
                                                  SIZE("head_dim", head_dim),
                                                  SIZE("intermediate_size", inter),
                                                  SIZE("vocab_size", vocab),
                                                  SIZE("max_position_embeddings", max_pos),
                                                  { NULL, 0 } };
static const struct config_size moe_sizes[] = { SIZE("hidden_size", hidden),
                                                SIZE("num_hidden_layers", n_layers),
                                                SIZE("num_attention_heads", n_heads),
                                                SIZE("num_key_value_heads", n_kv),
                                                SIZE("head_dim", head_dim),
                                                SIZE("intermediate_size", inter),
                                                SIZE("vocab_size", vocab),
                                                SIZE("max_position_embeddings", max_pos),
                                                SIZE("num_local_experts", n_experts),
                                                SIZE("num_experts", n_experts),
                                                SIZE("moe_intermediate_size", expert_inter),
                                                SIZE("decoder_sparse_step", sparse_step),
                                                { NULL, 0 } };
static const struct config_size gpt2_sizes[] = { SIZE("n_embd", hidden),
                                                 SIZE("n_layer", n_layers),
                                                 SIZE("n_head", n_heads),
                                                 SIZE("n_inner", inter),
                                                 SIZE("vocab_size", vocab),
                                                 SIZE("n_positions", max_pos),
                                                 { NULL, 0 } };
static const struct config_switch no_flags[] = { { NULL, 0 } };
static const struct config_switch llama_flags[] = { { "attention_bias", F_QKV_BIAS | F_O_BIAS },
                                                    { "mlp_bias", F_MLP_BIAS },
                                                    { NULL, 0 } };
static const struct config_switch bias_flags[] = { { "attention_bias", F_QKV_BIAS | F_O_BIAS }, { NULL, 0 } };

#define LLAMA_LIKE \
    .eps_key = "rms_norm_eps", .act_key = "hidden_act", .acts = { "silu", "swish" }, .size = llama_sizes, \
    .first = llama_first, .layer = llama_layer, .last = llama_last
#define GEMMA \
    .flag = bias_flags, .eps_key = "rms_norm_eps", .act_key = "hidden_activation", \
    .acts = { "gelu_pytorch_tanh" }, .size = llama_sizes, .first = llama_first, .layer = gemma_layer, \
    .last = llama_last
#define EXPERTS \
    .eps_key = "rms_norm_eps", .act_key = "hidden_act", .acts = { "silu", "swish" }, .size = moe_sizes, \
    .first = llama_first, .last = llama_last
static const struct family families[] = {
    { .name = "llama",
      .architecture = "LlamaForCausalLM",
      .features = F_GATE,
      .computed = 1,
      .flag = llama_flags,
      LLAMA_LIKE,
      .defaults = { 4096, 32, 32, 0, 0, 11008, 32000, 2048, 0, 1, 2, 1e-6, 0, 0, 0 } },
    { .name = "mistral",
      .architecture = "MistralForCausalLM",
      .features = F_GATE,
      .computed = 1,
      .flag = no_flags,
      LLAMA_LIKE,
      .defaults = { 4096, 32, 32, 8, 0, 14336, 32000, 131072, 4096, 1, 2, 1e-6, 0, 0, 0 } },
    { .name = "qwen2",
      .architecture = "Qwen2ForCausalLM",
      .features = F_GATE | F_QKV_BIAS,
      .computed = 1,
      .flag = no_flags,
      LLAMA_LIKE,
      .defaults = { 4096, 32, 32, 32, 0, 22016, 151936, 32768, 4096, -1, -1, 1e-6, 0, 0, 0 } },
    { .name = "qwen3",
      .architecture = "Qwen3ForCausalLM",
      .features = F_GATE | F_QK_NORM,
      .computed = 1,
      .flag = bias_flags,
      LLAMA_LIKE,
      .defaults = { 4096, 32, 32, 32, 128, 22016, 151936, 32768, 4096, -1, -1, 1e-6, 0, 0, 0 } },
    { .name = "gpt2",
      .architecture = "GPT2LMHeadModel",
      .computed = 1,
      .flag = no_flags,
      .eps_key = "layer_norm_epsilon",
      .act_key = "activation_function",
      .features = F_QKV_BIAS | F_O_BIAS | F_MLP_BIAS | F_LAYER_NORM | F_POSITIONS | F_TRANSPOSED,
      .acts = { "gelu_new", "gelu_pytorch_tanh" },
      .size = gpt2_sizes,
      .first = gpt2_first,
      .layer = gpt2_layer,
      .last = gpt2_last,
      .defaults = { 768, 12, 12, 0, 0, 0, 50257, 1024, 0, 50256, 50256, 1e-5, 1, 0, 0 } },
    { .name = "gpt_neox",
      .architecture = "GPTNeoXForCausalLM",
      .flag = bias_flags,
      .eps_key = "layer_norm_eps",
      .act_key = "hidden_act",
      .features = F_QKV_BIAS | F_O_BIAS | F_MLP_BIAS | F_LAYER_NORM,
      .acts = { "gelu" },
      .size = llama_sizes,
      .first = neox_first,
      .layer = neox_layer,
      .last = neox_last,
      .defaults = { 6144, 44, 64, 0, 0, 24576, 50432, 2048, 0, 0, 2, 1e-5, 0, 0, 0 } },
    { .name = "gemma2",
      .architecture = "Gemma2ForCausalLM",
      .features = F_GATE | F_POST_NORM,
      GEMMA,
      .defaults = { 2304, 26, 8, 4, 256, 9216, 256000, 8192, 0, 2, 1, 1e-6, 1, 0, 0 } },
    { .name = "gemma3_text",
      .architecture = "Gemma3ForCausalLM",
      .features = F_GATE | F_POST_NORM | F_QK_NORM,
      GEMMA,
      .defaults = { 2304, 26, 8, 4, 256, 9216, 262208, 131072, 0, 2, 1, 1e-6, 1, 0, 0 } },
    { .name = "mixtral",
      .architecture = "MixtralForCausalLM",
      .features = F_GATE | F_EXPERTS,
      .flag = no_flags,
      EXPERTS,
      .layer = mixtral_layer,
      .defaults = { 4096, 32, 32, 8, 0, 14336, 32000, 131072, 0, 1, 2, 1e-5, 0, 8, 0 } },
    { .name = "qwen3_moe",
      .architecture = "Qwen3MoeForCausalLM",
      .features = F_GATE | F_QK_NORM | F_EXPERTS,
      .flag = bias_flags,
      EXPERTS,
      .layer = qwen3_moe_layer,
      .defaults = { 2048, 24, 32, 4, 0, 6144, 151936, 32768, 0, -1, -1, 1e-6, 0, 128, 768 } },
};
#define FAMILIES ((int)(sizeof families / sizeof families[0]))

const struct family *family_find(const char *name)
{
    for (int i = 0; i < FAMILIES; i++)
        if (!strcmp(families[i].name, name))
            return &families[i];
    return NULL;
}

char *family_names(int computed, char out[256])
{
    out[0] = 0;
    for (int i = 0; i < FAMILIES; i++)
        if (!computed || families[i].computed)
            strcat(strcat(out, out[0] ? ", " : ""), families[i].name);
    return out;
}
