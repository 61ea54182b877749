/* cut_families.c - see cut_families.h: the templates. Names as transformers and the published files have them
 * (its conversion_mapping gives both forms of experts); the sizes are the defaults of its configurations. */
#include "reshard/cuts/cut_families.h"

#include <stddef.h>
#include <string.h>

/* clang-format off */

/* ---- pieces ---- */

/* A matrix [out, in] cut by its outputs, with its bias; one cut by its inputs, whose bias is whole. The other
 * dim is that of the residual stream. */
#define OUT(name, how) name ".weight dim 0 size $*,hidden_size " how "\n" name ".bias dim 0 " how "\n"
#define IN(name, how) name ".weight dim 1 size $hidden_size,* " how "\n" name ".bias whole\n"

static const char attention[] =
    OUT("~self_attn.q_proj", "unit $q_unit")
    OUT("~self_attn.k_proj", "unit $head_dim copies")
    OUT("~self_attn.v_proj", "unit $v_unit copies")
    IN("~self_attn.o_proj", "unit $v_unit")
    IN("~self_attn.dense", "unit $head_dim")
    IN("~self_attn.out_proj", "unit $head_dim")
    OUT("~self_attn.gate_proj", "unit $head_dim")
    OUT("~self_attn.g_proj", "unit 1")
    "~self_attn.sinks dim 0\n"
    "~self_attn.attention_sink_bias dim 0\n"
    OUT("~self_attn.qkv_proj", "unit $head_dim copies parts $num_attention_heads,num_key_value_heads,"
                               "num_key_value_heads");

/* q and k norms of all heads together; others fit the rows behind them. */
static const char wide_norms[] =
    "~self_attn.q_norm.weight dim 0 unit $head_dim\n"
    "~self_attn.k_norm.weight dim 0 unit $head_dim copies\n";

static const char norms[] =
    "~*norm*.+ whole\n"
    "~self_attn.*norm.+ whole\n"
    "~layer_scalar whole\n";

static const char latent_attention[] =
    "~self_attn.q_proj.weight dim 0 unit $qk_nope_head_dim+qk_rope_head_dim\n"
    "~self_attn.q_b_proj.weight dim 0 unit $qk_nope_head_dim+qk_rope_head_dim\n"
    "~self_attn.kv_b_proj.weight dim 0 unit $qk_nope_head_dim+v_head_dim\n"
    IN("~self_attn.o_proj", "unit $v_head_dim")
    "~self_attn.linear_gate.weight dim 0 unit $v_head_dim\n"
    "~self_attn.learnable_sink_param dim 0\n"
    "~self_attn.q_a_proj.+ whole\n"
    "~self_attn.kv_a_proj.+ whole\n"
    "~self_attn.kv_a_proj_with_mqa.+ whole\n"
    "~self_attn.indexer.*.+ whole\n"
    "~self_attn.indexer.* whole\n";

#define GATED(at) \
    OUT(at ".gate_proj", "blocks") OUT(at ".up_proj", "blocks") OUT(at ".linear_gate", "blocks") \
    OUT(at ".gate_up_proj", "blocks parts 1,1") IN(at ".down_proj", "blocks")
#define W123(at) OUT(at ".w1", "blocks") OUT(at ".w3", "blocks") IN(at ".w2", "blocks")

static const char mlp[] =
    GATED("~mlp")
    OUT("~mlp.fc1", "blocks") IN("~mlp.fc2", "blocks")
    OUT("~mlp.c_fc", "blocks") IN("~mlp.c_proj", "blocks")
    OUT("~mlp.dense_h_to_4h", "blocks") IN("~mlp.dense_4h_to_h", "blocks")
    GATED("~feed_forward")
    W123("~feed_forward");

/* Experts, each with tensors of its own or all in one tensor, and those that every token takes. */
static const char experts[] =
    GATED("~mlp.experts.{expert}")
    "~mlp.experts.gate_up_proj dim 1 blocks parts 1,1 expert-dim 0 shape $*,*,hidden_size\n"
    "~mlp.experts.down_proj dim 2 blocks expert-dim 0 shape $*,hidden_size,*\n"
    GATED("~mlp.shared_expert") GATED("~mlp.shared_experts") GATED("~mlp.shared_mlp")
    "~mlp.shared_expert_gate.weight whole\n"
    "~mlp.gate.+ whole\n"
    "~mlp.gate.wg.weight whole\n"
    "~mlp.gate.e_score_correction_bias whole\n"
    "~mlp.moe_statics.e_score_correction_bias whole\n"
    "~mlp.e_score_correction_bias whole\n"
    "~mlp.experts.e_score_correction_bias whole\n"
    "~mlp.expert_bias whole\n"
    "~mlp.router.*.weight whole\n"
    "~mlp.router.e_score_correction_bias whole\n"
    "~mlp.*norm.weight whole\n";

static const char sparse_block[] =
    W123("~block_sparse_moe.experts.{expert}")
    GATED("~block_sparse_moe") GATED("~block_sparse_moe.shared_experts")
    "~block_sparse_moe.input_linear.weight dim 1 blocks parts 1,1 expert-dim 0 shape $*,*,hidden_size\n"
    "~block_sparse_moe.output_linear.weight dim 2 blocks expert-dim 0 shape $*,hidden_size,*\n"
    "~block_sparse_moe.router.layer.weight whole\n"
    "~block_sparse_moe.gate.weight whole\n"
    "~block_sparse_moe.gate.e_score_correction_bias whole\n"
    "~block_sparse_moe.e_score_correction_bias whole\n"
    OUT("~shared_mlp.input_linear", "blocks parts 1,1")
    IN("~shared_mlp.output_linear", "blocks");

/* Experts whose matrices lie [in, out] in one tensor: Llama 4; Qwen3-VL as it is published. */
static const char llama4_experts[] =
    "~feed_forward.experts.gate_up_proj dim 2 blocks parts 1,1 expert-dim 0 shape $*,hidden_size,*\n"
    "~feed_forward.experts.down_proj dim 1 blocks expert-dim 0 shape $*,*,hidden_size\n"
    GATED("~feed_forward.shared_expert")
    "~feed_forward.router.weight whole\n";
static const char turned_experts[] =
    "~mlp.experts.gate_up_proj dim 2 blocks parts 1,1 expert-dim 0 shape $*,hidden_size,*\n"
    "~mlp.experts.down_proj dim 1 blocks expert-dim 0 shape $*,*,hidden_size\n"
    "~mlp.gate.weight whole\n";

/* Gated DeltaNet: heads of values go with the heads of keys that they are grouped by. */
#define DELTA_SIZES \
    "k_all=linear_num_key_heads*linear_key_head_dim v_all=linear_num_value_heads*linear_value_head_dim " \
    "v_group=v_all/linear_num_key_heads ratio=linear_num_value_heads/linear_num_key_heads "
static const char delta_net[] =
    "~linear_attn.in_proj_qkv.weight dim 0 unit $linear_key_head_dim,linear_key_head_dim,v_group "
        "parts $k_all,k_all,v_all\n"
    "~linear_attn.conv1d.weight dim 0 unit $linear_key_head_dim,linear_key_head_dim,v_group "
        "parts $k_all,k_all,v_all\n"
    "~linear_attn.in_proj_z.weight dim 0 unit $v_group\n"
    "~linear_attn.in_proj_b.weight dim 0 unit $ratio\n"
    "~linear_attn.in_proj_a.weight dim 0 unit $ratio\n"
    "~linear_attn.in_proj_qkvz.weight dim 0 unit $2*linear_key_head_dim+2*v_group\n"
    "~linear_attn.in_proj_ba.weight dim 0 unit $2*ratio\n"
    "~linear_attn.A_log dim 0 unit $ratio\n"
    "~linear_attn.dt_bias dim 0 unit $ratio\n"
    "~linear_attn.norm.weight whole\n"
    "~linear_attn.out_proj.weight dim 1 size $hidden_size,* unit $v_group\n";
/* The same with q, k and v apart. */
static const char delta_net_apart[] =
    "~linear_attn.q_proj.weight dim 0 unit $linear_key_head_dim\n"
    "~linear_attn.k_proj.weight dim 0 unit $linear_key_head_dim\n"
    "~linear_attn.v_proj.weight dim 0 unit $v_group\n"
    "~linear_attn.g_proj.weight dim 0 unit $v_group\n"
    "~linear_attn.q_conv1d.weight dim 0 unit $linear_key_head_dim\n"
    "~linear_attn.k_conv1d.weight dim 0 unit $linear_key_head_dim\n"
    "~linear_attn.v_conv1d.weight dim 0 unit $v_group\n"
    "~linear_attn.a_proj.weight dim 0 unit $ratio\n"
    "~linear_attn.b_proj.weight dim 0 unit $ratio\n"
    "~linear_attn.A_log dim 0 unit $ratio\n"
    "~linear_attn.dt_bias dim 0 unit $ratio\n"
    "~linear_attn.o_norm.weight whole\n"
    "~linear_attn.o_proj.weight dim 1 size $hidden_size,* unit $v_group\n";

/* What follows is one layer that predicts a further token: on the last stage. */
static const char mtp[] =
    "layer mtp.layers.*. last\n";
static const char mtp_ends[] =
    "mtp.*.weight whole last\n";
/* DeepSeek's: a layer behind the others, with an embedding and a head. */
static const char mtp_layer[] =
    "~eh_proj.weight whole\n"
    "~embed_tokens.weight dim 0 blocks\n"
    "~shared_head.head.weight dim 0 blocks\n"
    "~shared_head.norm.weight whole\n";

/* MiniMax-01: lightning attention beside the usual one. q, k and v lie head by head. */
static const char lightning[] =
    "~self_attn.qkv_proj.weight dim 0 unit $3*head_dim\n"
    "~self_attn.out_proj.weight dim 1 size $hidden_size,* unit $head_dim\n"
    "~self_attn.output_gate.weight dim 0 unit $head_dim\n"
    "~self_attn.norm.weight dim 0 unit $head_dim\n"
    "~self_attn.diagonal_decay dim 1\n"
    "~self_attn.key_decay dim 0\n"
    "~self_attn.query_decay dim 0\n"
    "~self_attn.slope_rate dim 0\n";

/* Residual streams that mix. */
static const char hyper[] =
    "~self_attn.A_log whole\n"
    "~hc_* whole\n"
    "~hc_pre.*.* whole\n"
    "@hc_pre.*.* whole last\n";

/* Kimi Linear, GLM-5-Next: delta attention whose layers have other heads than the latent ones. */
static const char kimi_delta[] =
    "~self_attn.q_proj.weight dim 0 unit $qk_rope_head_dim\n"
    "~self_attn.o_proj.weight dim 1 size $hidden_size,* unit $qk_rope_head_dim\n"
    "~self_attn.q_conv1d.weight dim 0 unit $linear_head\n"
    "~self_attn.k_conv1d.weight dim 0 unit $linear_head\n"
    "~self_attn.v_conv1d.weight dim 0 unit $linear_head\n"
    "~self_attn.k_proj.weight dim 0 unit $linear_head\n"
    "~self_attn.v_proj.weight dim 0 unit $linear_head\n"
    "~self_attn.f_b_proj.weight dim 0 unit $linear_head\n"
    "~self_attn.g_b_proj.weight dim 0 unit $linear_head\n"
    "~self_attn.dt_bias dim 0 unit $linear_head\n"
    "~self_attn.b_proj.weight dim 0\n"
    "~self_attn.f_a_proj.weight whole\n"
    "~self_attn.g_a_proj.weight whole\n";

/* DeepSeek-V4: one head of keys, grouped outputs, experts as in Mixtral, residual streams that mix. */
static const char deepseek_v4[] =
    "@embed.weight dim 0 blocks\n"
    "head.weight dim 0 blocks last\n"
    "@hc_head* whole last\n"
    "@hc_head.* whole last\n"
    "~attn.wq_a.weight whole\n"
    "~attn.wq_b.weight dim 0 unit $head_dim\n"
    "~attn.wkv.weight whole\n"
    "~attn.wo_a.weight dim 0 unit $o_lora_rank\n"
    "~attn.wo_b.weight dim 1 size $hidden_size,* unit $o_lora_rank\n"
    "~attn.attn_sink dim 0\n"
    "~attn.*norm.weight whole\n"
    "~attn.compressor.* whole\n"
    "~attn.compressor.*.weight whole\n"
    "~attn.indexer.*.weight whole\n"
    "~attn.indexer.compressor.* whole\n"
    "~attn.indexer.compressor.*.weight whole\n"
    "~attn_norm.weight whole\n"
    "~ffn_norm.weight whole\n"
    "~hc_* whole\n"
    W123("~ffn.experts.{expert}")
    W123("~ffn.shared_experts")
    "~ffn.gate.+ whole\n"
    "~ffn.gate.tid2eid whole\n";

/* Gemma 4: kv heads of another number and size in layers with full attention; experts beside the MLP. */
static const char gemma4[] =
    OUT("~self_attn.q_proj", "unit $global_head_dim layers %layer_types=full_attention/6")
    OUT("~self_attn.q_proj", "unit $head_dim layers %layer_types!full_attention/6")
    OUT("~self_attn.k_proj", "unit $global_head_dim copies layers %layer_types=full_attention/6")
    OUT("~self_attn.k_proj", "unit $head_dim copies layers %layer_types!full_attention/6")
    OUT("~self_attn.v_proj", "unit $global_head_dim copies layers %layer_types=full_attention/6")
    OUT("~self_attn.v_proj", "unit $head_dim copies layers %layer_types!full_attention/6")
    "~self_attn.o_proj.weight dim 1 size $hidden_size,* unit $global_head_dim "
        "layers %layer_types=full_attention/6\n"
    "~self_attn.o_proj.weight dim 1 size $hidden_size,* unit $head_dim layers %layer_types!full_attention/6\n"
    "~experts.gate_up_proj dim 1 blocks parts 1,1 expert-dim 0 shape $*,*,hidden_size\n"
    "~experts.down_proj dim 2 blocks expert-dim 0 shape $*,hidden_size,*\n"
    "~router.proj.weight whole\n"
    "~router.* whole\n"
    "@embed_tokens_per_layer.weight dim 0 blocks\n"
    "@per_layer_*.weight whole\n"
    "~per_layer_*.weight whole\n";

/* MiMo: layers with a window have kv heads of their own number. */
static const char mimo[] =
    "~self_attn.k_proj.weight dim 0 unit $head_dim copies\n"
    "~self_attn.v_proj.weight dim 0 unit $v_head_dim copies\n"
    "~self_attn.o_proj.weight dim 1 size $hidden_size,* unit $v_head_dim\n";

static const char longcat[] =
    "~self_attn.*.q_b_proj.weight dim 0 unit $qk_nope_head_dim+qk_rope_head_dim\n"
    "~self_attn.*.q_proj.weight dim 0 unit $qk_nope_head_dim+qk_rope_head_dim\n"
    "~self_attn.*.kv_b_proj.weight dim 0 unit $qk_nope_head_dim+v_head_dim\n"
    "~self_attn.*.o_proj.weight dim 1 size $hidden_size,* unit $v_head_dim\n"
    "~self_attn.*.q_a_proj.weight whole\n"
    "~self_attn.*.kv_a_proj_with_mqa.weight whole\n"
    "~self_attn.*.*norm.weight whole\n"
    GATED("~mlps.*")
    "~*norm.*.weight whole\n";

/* Step 3.7: the experts of a layer in three tensors. */
static const char step_experts[] =
    "~moe.gate_proj.weight dim 1 blocks expert-dim 0 shape $*,*,hidden_size\n"
    "~moe.up_proj.weight dim 1 blocks expert-dim 0 shape $*,*,hidden_size\n"
    "~moe.down_proj.weight dim 2 blocks expert-dim 0 shape $*,hidden_size,*\n"
    "~moe.gate.weight whole\n"
    "~moe.router_bias whole\n"
    GATED("~share_expert");

/* Mamba-2: gate, values, the B and C of each group, and dt side by side. */
#define MAMBA2(at) \
    at ".in_proj.weight dim 0 unit $m_head,m_head,m_state,m_state,1 copies " \
        "parts $m_all,m_all,m_groups*m_state,m_groups*m_state,m_heads\n" \
    at ".conv1d.+ dim 0 unit $m_head,m_state,m_state copies " \
        "parts $m_all,m_groups*m_state,m_groups*m_state\n" \
    at ".A_log dim 0\n" at ".D dim 0\n" at ".dt_bias dim 0\n" \
    at ".norm.weight dim 0 unit $m_head\n" at ".out_proj.weight dim 1 size $hidden_size,* unit $m_head\n"
static const char mamba2_mixer[] = MAMBA2("~mixer");
static const char mamba2_mamba[] = MAMBA2("~mamba");

#define MAMBA(at) \
    OUT(at ".in_proj", "parts 1,1") at ".conv1d.+ dim 0\n" at ".x_proj.weight dim 1\n" \
    at ".dt_proj.+ dim 0\n" at ".A_log dim 0\n" at ".D dim 0\n" IN(at ".out_proj", "") \
    at ".*layernorm.weight whole\n"
static const char jamba[] =
    MAMBA("~mamba")
    GATED("~feed_forward.experts.{expert}")
    "~feed_forward.router.weight whole\n";
static const char mamba[] =
    "layer backbone.layers.{layer}.\n"
    "@embeddings.weight dim 0 blocks\n"
    "@norm_f.weight whole last\n"
    MAMBA("~mixer");

static const char nemotron_h[] =
    "@embeddings.weight dim 0 blocks\n"
    "@norm_f.weight whole last\n"
    OUT("~mixer.q_proj", "unit $head_dim") OUT("~mixer.k_proj", "unit $head_dim copies")
    OUT("~mixer.v_proj", "unit $head_dim copies") IN("~mixer.o_proj", "unit $head_dim")
    OUT("~mixer.up_proj", "blocks") IN("~mixer.down_proj", "blocks")
    "~mixer.experts.{expert}.up_proj.weight dim 0 blocks\n"
    "~mixer.experts.{expert}.down_proj.weight dim 1 blocks\n"
    OUT("~mixer.shared_experts.up_proj", "blocks") IN("~mixer.shared_experts.down_proj", "blocks")
    "~mixer.gate.weight whole\n"
    "~mixer.gate.e_score_correction_bias whole\n";

/* Names of GPT-2's age. */
static const char falcon[] =
    "layer transformer.h.{layer}.\n"
    "transformer.word_embeddings.weight dim 0 blocks\n"
    "transformer.word_embeddings_layernorm.+ whole\n"
    "transformer.ln_f.+ whole last\n"
    OUT("~self_attention.query_key_value",
        "unit $(num_attention_heads/num_kv_heads+2)*head_dim copies ?new_decoder_architecture")
    OUT("~self_attention.query_key_value",
        "unit $head_dim copies parts $num_attention_heads,1,1 ?multi_query")
    OUT("~self_attention.query_key_value", "unit $3*head_dim")
    IN("~self_attention.dense", "unit $head_dim")
    "~ln_*.+ whole\n";
static const char bloom[] =
    "layer transformer.h.{layer}.\n"
    "transformer.word_embeddings.weight dim 0 blocks\n"
    "transformer.word_embeddings_layernorm.+ whole\n"
    "transformer.ln_f.+ whole last\n"
    OUT("~self_attention.query_key_value", "unit $3*head_dim")
    IN("~self_attention.dense", "unit $head_dim");
static const char gpt_j[] =
    "layer transformer.h.{layer}.\n"
    "transformer.wte.weight dim 0 blocks\n"
    "transformer.wpe.weight whole\n"
    "transformer.ln_f.+ whole last\n"
    "~ln_*.+ whole\n"
    OUT("~attn.q_proj", "unit $head_dim") OUT("~attn.k_proj", "unit $head_dim")
    OUT("~attn.v_proj", "unit $head_dim") IN("~attn.out_proj", "unit $head_dim")
    OUT("~attn.c_attn", "unit $head_dim copies parts $n_head,1,1 ?multi_query")
    OUT("~attn.c_attn", "unit $3*head_dim")
    "~attn.qkv_proj.weight dim 0 unit $3*n_embd/4\n"
    IN("~attn.c_proj", "unit $head_dim")
    OUT("~mlp.fc_in", "blocks") IN("~mlp.fc_out", "blocks")
    OUT("~mlp.c_fc", "blocks") IN("~mlp.c_proj", "blocks");
static const char opt[] =
    "layer model.decoder.layers.{layer}.\n"
    "model.decoder.embed_tokens.weight dim 0 blocks\n"
    "model.decoder.embed_positions.weight whole\n"
    "model.decoder.final_layer_norm.+ whole last\n"
    "model.decoder.project_in.weight whole\n"
    "model.decoder.project_out.weight whole last\n"
    OUT("~fc1", "blocks") IN("~fc2", "blocks");
static const char mpt[] =
    "layer transformer.blocks.{layer}.\n"
    "transformer.wte.weight dim 0 blocks\n"
    "transformer.norm_f.+ whole last\n"
    OUT("~attn.Wqkv", "unit $d_model/n_heads parts 1,1,1")
    IN("~attn.out_proj", "unit $d_model/n_heads")
    OUT("~ffn.up_proj", "blocks") IN("~ffn.down_proj", "blocks");

/* Remote code with names of its own. */
static const char internlm2[] =
    "model.tok_embeddings.weight dim 0 blocks\n"
    "output.weight dim 0 blocks last\n"
    "@tok_embeddings.weight dim 0 blocks\n"
    OUT("~attention.wqkv", "unit $(num_attention_heads/num_key_value_heads+2)*head_dim copies")
    IN("~attention.wo", "unit $head_dim")
    W123("~feed_forward")
    "~*_norm.weight whole\n";
static const char chatglm[] =
    "layer transformer.encoder.layers.{layer}.\n"
    "transformer.embedding.word_embeddings.weight dim 0 blocks\n"
    "transformer.encoder.final_layernorm.weight whole last\n"
    "transformer.output_layer.weight dim 0 blocks last\n"
    "transformer.rotary_pos_emb.inv_freq whole\n"
    OUT("~self_attention.query_key_value", "unit $kv_channels copies "
        "parts $num_attention_heads,multi_query_group_num,multi_query_group_num")
    IN("~self_attention.dense", "unit $kv_channels")
    OUT("~mlp.dense_h_to_4h", "blocks parts 1,1") IN("~mlp.dense_4h_to_h", "blocks");

/* ---- families ---- */
#define USUAL attention, norms, mlp, experts
#define MLA latent_attention, norms, mlp, experts, mtp_layer
#define MLA_SIZES "qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128 "
#define QWEN_GATED "q_unit=2*head_dim head_dim=256 num_attention_heads=16 num_key_value_heads=2 " \
    "linear_num_key_heads=16 linear_key_head_dim=128 linear_num_value_heads=32 " \
    "linear_value_head_dim=128 " DELTA_SIZES
#define MAMBA2_SIZES "m_all=m_heads*m_head "

static const struct cut_family families[] = {
    /* Llama's names, with or without experts. */
    { "llama mistral qwen2 qwen3 mixtral qwen2_moe ministral ministral3 seed_oss smollm3 arcee apertus "
      "helium granite solar cohere cohere2 cohere2_moe exaone4 exaone_moe nemotron starcoder2 stablelm phi "
      "phi3 phi4_multimodal glm glm4 glm4_moe glm4v_text glm4v_moe_text glm4_moe_text ernie4_5 ernie4_5_moe "
      "hunyuan_v1_dense hunyuan_v1_moe dots1 solar_open mellum bitnet vaultgemma gemma qwen3_moe "
      "qwen3_vl_text qwen3_omni_moe_text minicpm nanochat hy_v3 laguna phimoe granitemoe granitemoeshared "
      "afmoe orion xverse deci yi aquila telechat2 qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text",
      NULL, { USUAL, sparse_block, mtp_layer, mtp, USUAL, mtp_ends } },
    { "qwen2_vl qwen2_5_vl glm4v glm4v_moe qwen2_5_omni qwen2_audio", NULL, { USUAL } },
    { "olmo olmo2 olmo3 olmoe flex_olmo", NULL, { wide_norms, USUAL } },
    { "minimax_m2 minimax", "head_dim=128", { wide_norms, lightning, attention, norms, sparse_block } },
    { "minimax_m3 minimax_m3_text minimax_m3_vl_text minimax_m3_vl", "head_dim=128",
      { USUAL, sparse_block } },
    { "gpt_oss", "head_dim=64", { USUAL } },
    { "gemma2 gemma3_text gemma3n_text gemma3n", "num_attention_heads=8 num_key_value_heads=4 head_dim=256",
      { attention, norms, mlp } },
    { "gemma4 gemma4_text gemma4_unified gemma4_unified_text",
      "num_attention_heads=8 num_key_value_heads=4 head_dim=256 global_head_dim=512",
      { gemma4, norms, mlp } },
    { "qwen3_next", QWEN_GATED, { USUAL, delta_net, mtp, USUAL, mtp_ends } },
    { "qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text", QWEN_GATED,
      { USUAL, delta_net, mtp, USUAL, mtp_ends } },
    { "qwen3_vl_moe qwen3_vl_moe_text",
      "num_attention_heads=32 num_key_value_heads=4 head_dim=hidden_size/num_attention_heads",
      { turned_experts, USUAL } },
    { "olmo_hybrid", DELTA_SIZES, { wide_norms, USUAL, delta_net_apart } },
    { "llama4 llama4_text", "num_attention_heads=40 num_key_value_heads=8 head_dim=128",
      { attention, norms, mlp, llama4_experts } },
    { "deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 glm_moe_dsa glm4_moe_lite axk1 youtu minicpm3 hy_v4 "
      "mistral4 kimi_k25",
      MLA_SIZES, { MLA, hyper } },
    { "deepseek_v4", "head_dim=512 o_lora_rank=1024", { deepseek_v4, "layer mtp.*. last\n", deepseek_v4 } },
    { "kimi_linear glm5_next glm5_next_text",
      MLA_SIZES "linear_head=linear_attn_config.head_dim linear_attn_config.head_dim=linear_head_dim",
      { kimi_delta, hyper, latent_attention, norms, mlp, experts, sparse_block } },
    { "longcat_flash", MLA_SIZES, { longcat, experts } },
    { "mimo_v2_flash", "v_head_dim=head_dim v_unit=v_head_dim", { mimo, USUAL } },
    { "step3p7 step3p5", NULL, { USUAL, step_experts } },
    { "lfm2 lfm2_moe", NULL, { USUAL, "@embedding_norm.weight whole last\n" } },
    { "granitemoehybrid",
      "m_heads=mamba_n_heads m_head=mamba_d_head m_state=mamba_d_state m_groups=mamba_n_groups " MAMBA2_SIZES,
      { USUAL, sparse_block, mamba2_mamba } },
    { "nemotron_h",
      "m_heads=mamba_num_heads m_head=mamba_head_dim m_state=ssm_state_size m_groups=n_groups " MAMBA2_SIZES,
      { "layer backbone.layers.{layer}.\n", mamba2_mixer, nemotron_h, norms } },
    { "jamba", NULL, { jamba, USUAL } },
    { "mamba falcon_mamba", NULL, { mamba, norms } },
    { "mamba2", "m_heads=num_heads m_head=head_dim m_state=state_size m_groups=n_groups " MAMBA2_SIZES,
      { "layer backbone.layers.{layer}.\n", mamba2_mixer, mamba, norms } },
    { "bamba", "m_heads=mamba_n_heads m_head=mamba_d_head m_state=mamba_d_state m_groups=mamba_n_groups "
               MAMBA2_SIZES, { USUAL, mamba2_mamba } },
    { "persimmon", NULL,
      { OUT("~self_attn.query_key_value", "unit $3*head_dim") "@final_layernorm.+ whole last\n", USUAL } },
    { "falcon RefinedWeb RefinedWebModel",
      "new_decoder_architecture=0 multi_query=1 num_kv_heads=num_attention_heads", { falcon, norms, mlp } },
    { "bloom", "hidden_size=n_embed num_attention_heads=n_head", { bloom, norms, mlp } },
    { "gptj gpt_bigcode codegen", "hidden_size=n_embd num_attention_heads=n_head multi_query=1",
      { gpt_j } },
    { "opt", NULL, { opt, attention, norms, "~self_attn_layer_norm.+ whole\n" } },
    { "mpt", "hidden_size=d_model", { mpt, norms } },
    { "internlm2 internlm3", NULL, { internlm2, norms } },
    { "chatglm", NULL, { chatglm, norms } },
};
/* clang-format on */
#define FAMILIES ((int)(sizeof families / sizeof families[0]))

const char cut_family_sizes[] = "head_dim=hidden_size/num_attention_heads "
                                "num_key_value_heads=num_attention_heads "
                                "q_unit=head_dim v_unit=head_dim";

const char cut_family_rows[] = "@embed_tokens.weight dim 0 blocks\n"
                               "@norm.+ whole last\n"
                               "@final_layernorm.+ whole last\n"
                               "lm_head.+ dim 0 blocks last\n"
                               "language_model.lm_head.+ dim 0 blocks last\n";

const struct cut_family *cut_family_at(int i) { return i >= 0 && i < FAMILIES ? &families[i] : NULL; }

const struct cut_family *cut_family_find(const char *model_type)
{
    size_t n = strlen(model_type);
    for (int i = 0; i < FAMILIES && n; i++)
        for (const char *s = families[i].types; *s;) {
            size_t each = strcspn(s, " ");
            if (each == n && !memcmp(s, model_type, n))
                return &families[i];
            s += each + strspn(s + each, " ");
        }
    return NULL;
}
