/* published_runs.h - training runs that others published, as facts: who, with which layout and batch, how
 * fast. Included by train_published_test.c only. Sources are named by row; a dagger of the source page (a
 * layout or a result that is known at second hand) is `second`. What a source leaves open is said in the
 * row's note. */
#ifndef SHARDLINE_TESTS_UNIT_TRAIN_PUBLISHED_RUNS_H
#define SHARDLINE_TESTS_UNIT_TRAIN_PUBLISHED_RUNS_H

#include "train/simulate/sim_clock.h"

/* ---- models: config.json, as far as sizes go ---- */
#define LLAMA(h, L, ffn, heads, kv) \
    "{\"model_type\":\"llama\",\"hidden_size\":" #h ",\"num_hidden_layers\":" #L \
    ",\"intermediate_size\":" #ffn ",\"num_attention_heads\":" #heads ",\"num_key_value_heads\":" #kv \
    ",\"vocab_size\":128256,\"max_position_embeddings\":131072,\"tie_word_embeddings\":false}"
#define GPT(h, L, heads, V) \
    "{\"model_type\":\"gpt2\",\"n_embd\":" #h ",\"n_layer\":" #L ",\"n_head\":" #heads ",\"vocab_size\":" #V \
    ",\"n_positions\":2048}"
#define QWEN3(h, L, heads, experts, width) \
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":" #h ",\"num_hidden_layers\":" #L \
    ",\"num_attention_heads\":" #heads \
    ",\"num_key_value_heads\":4,\"head_dim\":128,\"intermediate_size\":" #width \
    ",\"moe_intermediate_size\":" #width ",\"num_experts\":" #experts \
    ",\"num_experts_per_tok\":8,\"decoder_sparse_step\":1,\"norm_topk_prob\":true,\"vocab_size\":151936," \
    "\"max_position_embeddings\":131072,\"tie_word_embeddings\":false}"
#define GPT_OSS(L, experts) \
    "{\"model_type\":\"gpt_oss\",\"hidden_size\":2880,\"num_hidden_layers\":" #L \
    ",\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":64,\"intermediate_size\":2880," \
    "\"num_local_experts\":" #experts \
    ",\"num_experts_per_tok\":4,\"sliding_window\":128,\"vocab_size\":201088," \
    "\"max_position_embeddings\":131072,\"tie_word_embeddings\":false}"
#define DEEPSEEK(heads, experts, dense, groups, kept, V) \
    "{\"model_type\":\"deepseek_v3\",\"hidden_size\":7168,\"num_hidden_layers\":61,\"intermediate_size\":" \
    "18432," \
    "\"moe_intermediate_size\":2048,\"num_attention_heads\":" #heads ",\"num_key_value_heads\":" #heads \
    ",\"n_routed_experts\":" #experts \
    ",\"n_shared_experts\":1,\"num_experts_per_tok\":8,\"first_k_dense_replace\":" #dense \
    ",\"moe_layer_freq\":1,\"n_group\":" #groups ",\"topk_group\":" #kept ",\"routed_scaling_factor\":2.5," \
    "\"norm_topk_prob\":true,\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",\"q_lora_rank\":" \
    "1536," \
    "\"kv_lora_rank\":512,\"qk_rope_head_dim\":64,\"qk_nope_head_dim\":128,\"v_head_dim\":128,\"vocab_" \
    "size\":" #V \
    ",\"max_position_embeddings\":131072,\"tie_word_embeddings\":false,\"hidden_act\":\"silu\"}"

enum published_model {
    M_L8B,
    M_L70B,
    M_L405B,
    M_GPT_175B,
    M_MEGASCALE,
    M_Q30B,
    M_Q235B,
    M_OSS_20B,
    M_OSS_120B,
    M_DSV3,
    M_KIMI_K2,
    M_GPT_1_7B,
    M_GPT_3_6B,
    M_GPT_7_5B,
    M_GPT_18B,
    M_GPT_39B,
    M_GPT_76B,
    M_GPT_146B,
    M_GPT_310B,
    M_GPT_530B,
    M_GPT_1T,
    N_MODELS
};
static const char *const published_models[N_MODELS] = {
    [M_L8B] = LLAMA(4096, 32, 14336, 32, 8),
    [M_L70B] = LLAMA(8192, 80, 28672, 64, 8),
    [M_L405B] = LLAMA(16384, 126, 53248, 128, 8),
    [M_GPT_175B] = GPT(12288, 96, 96, 51200),
    /* the parallel block */
    [M_MEGASCALE] = "{\"model_type\":\"gpt_neox\",\"hidden_size\":12288,\"num_hidden_layers\":96,"
                    "\"intermediate_size\":49152,"
                    "\"num_attention_heads\":128,\"vocab_size\":64000,\"max_position_embeddings\":2048,"
                    "\"use_parallel_residual\":true,\"tie_word_embeddings\":false}",
    [M_Q30B] = QWEN3(2048, 48, 32, 128, 768),
    [M_Q235B] = QWEN3(4096, 94, 64, 128, 1536),
    [M_OSS_20B] = GPT_OSS(24, 32),
    [M_OSS_120B] = GPT_OSS(36, 128),
    [M_DSV3] = DEEPSEEK(128, 256, 3, 8, 4, 129280),
    [M_KIMI_K2] = DEEPSEEK(64, 384, 1, 1, 1, 163840),
    [M_GPT_1_7B] = GPT(2304, 24, 24, 51200),
    [M_GPT_3_6B] = GPT(3072, 30, 32, 51200),
    [M_GPT_7_5B] = GPT(4096, 36, 32, 51200),
    [M_GPT_18B] = GPT(6144, 40, 48, 51200),
    [M_GPT_39B] = GPT(8192, 48, 64, 51200),
    [M_GPT_76B] = GPT(10240, 60, 80, 51200),
    [M_GPT_146B] = GPT(12288, 80, 96, 51200),
    [M_GPT_310B] = GPT(16384, 96, 128, 51200),
    [M_GPT_530B] = GPT(20480, 105, 128, 51200),
    [M_GPT_1T] = GPT(25600, 128, 160, 51200),
};

/* ---- engines ---- */
enum published_engine {
    E_2021,
    E_MEGATRON,
    E_MEGASCALE,
    E_LLAMA,
    E_BRIDGE,
    E_AUTOMODEL,
    E_ZOO,
    E_ZOO_FSDP,
    E_ZOO_OVERLAP,
    E_TITAN,
    E_DUALPIPE,
    N_ENGINES
};
static const struct sim_engine published_engines[N_ENGINES] = {
    /* fp16 sums of activations, fp32 of gradients, nothing overlapped, softmax in memory (section 4.2) */
    [E_2021] = { .ring = 1, .sum_bytes = 2, .grad_bytes = 4, .wait_sends = 1, .unfused = 2 },
    /* sequence parallel, flash attention; sums and gathers at the end of the step, sends waited for */
    [E_MEGATRON] = { .ring = 1, .sum_bytes = 2, .grad_bytes = 4, .wait_sends = 1 },
    /* all three kinds of messages overlapped (section 3.2) */
    [E_MEGASCALE] = { .ring = 1,
                      .sum_bytes = 2,
                      .grad_bytes = 4,
                      .dp_overlap = 1,
                      .gather_overlap = 1,
                      .tp_hidden = 0.75 },
    [E_LLAMA] = { .ring = 1, .sum_bytes = 2, .grad_bytes = 4, .dp_overlap = 1, .ends_count = 1 },
    /* Transformer Engine: fused rows, products and messages of tp beside each other */
    [E_BRIDGE] = { .ring = 1,
                   .sync_s = 1e-3,
                   .sum_bytes = 2,
                   .grad_bytes = 4,
                   .row_bytes = 0.7,
                   .dp_overlap = 1,
                   .gather_overlap = 1,
                   .tp_hidden = 0.6,
                   .cp_hidden = 0.8,
                   .ep_nodes = 4,
                   .ends_count = 1 },
    [E_AUTOMODEL] = { .ring = 1,
                      .sync_s = 1e-3,
                      .sum_bytes = 2,
                      .grad_bytes = 4,
                      .dp_overlap = 1,
                      .ep_nodes = 4 },
    [E_ZOO] = { .ring = 1,
                .sync_s = 1e-3,
                .sum_bytes = 2,
                .grad_bytes = 4,
                .row_bytes = 0.7,
                .dp_overlap = 1,
                .gather_overlap = 1,
                .cp_hidden = 0.8,
                .ep_nodes = 4,
                .ends_count = 1 },
    [E_ZOO_FSDP] = { .ring = 1,
                     .sync_s = 1e-3,
                     .sum_bytes = 2,
                     .grad_bytes = 2,
                     .row_bytes = 0.7,
                     .dp_overlap = 1,
                     .gather_overlap = 1,
                     .cp_hidden = 0.8,
                     .ep_nodes = 4,
                     .ends_count = 1 },
    [E_ZOO_OVERLAP] = { .ring = 1,
                        .sync_s = 1e-3,
                        .sum_bytes = 2,
                        .grad_bytes = 4,
                        .row_bytes = 0.7,
                        .dp_overlap = 1,
                        .gather_overlap = 1,
                        .cp_hidden = 0.8,
                        .ep_hidden = 0.9,
                        .ep_nodes = 4,
                        .ends_count = 1 },
    [E_TITAN] = { .ring = 1,
                  .sum_bytes = 2,
                  .grad_bytes = 4,
                  .row_bytes = 0.7,
                  .dp_overlap = 1,
                  .attention = 0.65,
                  .recompute_products = 0.5,
                  .cp_contiguous = 1 },
    [E_DUALPIPE] = { .ring = 1,
                     .sum_bytes = 2,
                     .grad_bytes = 4,
                     .row_bytes = 0.7,
                     .dp_overlap = 1,
                     .ep_hidden = 0.95,
                     .ep_nodes = 4,
                     .ep_fp8 = 1,
                     .ends_count = 1 },
};

/* ---- clusters ---- */
/* torchtitan's H100 has 96 GB of slower memory and a cap of 500 W instead of 700: the clock that a cap leaves
 * goes with the root of the power (power with the cube of the clock near the top, and less below). */
static const char published_h100_500w[] =
    "name = \"h100-500w\"\n[device]\nfp32_flops = 67e12\nbf16_flops = 989e12\nfp8_flops = 1979e12\n"
    "efficiency = 0.593\nclock = 0.845\nunits = 132\nattention = 0.60\nattention_backward = 0.50\n"
    "hbm_bytes_per_s = 2.0e12\nhbm_bytes = 96e9\nkernel_s = 3e-6\n"
    "[[network]]\nranks = 8\nalpha_s = 4e-6\nbytes_per_s = 370e9\n"
    "[[network]]\nranks = 0\nalpha_s = 10e-6\nbytes_per_s = 44e9\n[job]\njitter = 0.01\n";

/* ---- runs ---- */
/* What was published: seconds of a step; tokens a second and device; 10^12 flops a second and device by the
 * model's flops with causal attention counted once, or by the formula of Narayanan et al. 2021, section 5.1.
 */
enum { SEC, TOK, TF, TF21 };
enum { CAL = 1, SND = 2 };
struct published {
    int row; /* of the source page; runs of one row differ in the layout or the number of devices */
    const char *gpu;
    enum published_model model;
    enum published_engine engine;
    int tp, cp, pp, vpp, dp, ep, zero;
    int64_t seq, rows, micro;
    enum sim_dtype dtype;
    enum recompute recompute;
    int unit;
    double result;
    unsigned flags;
};

#define H500 "h100-500w"
#define BF16 SIM_BF16
#define FP8 SIM_FP8
#define N RECOMPUTE_NONE
#define S RECOMPUTE_SELECTIVE
#define F RECOMPUTE_FULL
/* clang-format off */
static const struct published published[] = {
    /* Grattafiori et al. 2024, table 4; degrees at second hand. Virtual stages are not published. */
    { 1, "h100", M_L405B, E_LLAMA, 8, 1, 16, 8, 64, 1, 1, 8192, 2048, 1, BF16, N, TF, 430, SND },
    { 2, "h100", M_L405B, E_LLAMA, 8, 1, 16, 8, 128, 1, 1, 8192, 2048, 1, BF16, N, TF, 400, SND },
    { 3, "h100", M_L405B, E_LLAMA, 8, 16, 16, 8, 8, 1, 1, 131072, 128, 1, BF16, N, TF, 380, SND },
    /* Jiang et al. 2024 (MegaScale), table 2 */
    { 4, "a100", M_MEGASCALE, E_MEGASCALE, 8, 1, 8, 6, 4, 1, 1, 2048, 768, 1, BF16, S, SEC, 32.0, CAL },
    { 4, "a100", M_MEGASCALE, E_MEGASCALE, 8, 1, 8, 6, 8, 1, 1, 2048, 768, 1, BF16, S, SEC, 16.5, CAL },
    { 4, "a100", M_MEGASCALE, E_MEGASCALE, 8, 1, 8, 6, 12, 1, 1, 2048, 768, 1, BF16, S, SEC, 11.5, CAL },
    { 4, "a100", M_MEGASCALE, E_MEGASCALE, 8, 1, 8, 6, 16, 1, 1, 2048, 768, 1, BF16, S, SEC, 8.9, CAL },
    { 5, "a100", M_MEGASCALE, E_MEGASCALE, 8, 1, 8, 6, 48, 1, 1, 2048, 6144, 1, BF16, S, SEC, 23.66, 0 },
    { 5, "a100", M_MEGASCALE, E_MEGASCALE, 8, 1, 8, 6, 96, 1, 1, 2048, 6144, 1, BF16, S, SEC, 12.21, 0 },
    { 5, "a100", M_MEGASCALE, E_MEGASCALE, 8, 1, 8, 6, 128, 1, 1, 2048, 6144, 1, BF16, S, SEC, 9.56, 0 },
    { 5, "a100", M_MEGASCALE, E_MEGASCALE, 8, 1, 8, 6, 192, 1, 1, 2048, 6144, 1, BF16, S, SEC, 6.34, 0 },
    { 6, "a100", M_GPT_175B, E_MEGATRON, 8, 1, 8, 6, 4, 1, 1, 2048, 768, 1, BF16, S, SEC, 40.0, 0 },
    { 6, "a100", M_GPT_175B, E_MEGATRON, 8, 1, 8, 6, 8, 1, 1, 2048, 768, 1, BF16, S, SEC, 21.2, 0 },
    { 6, "a100", M_GPT_175B, E_MEGATRON, 8, 1, 8, 6, 12, 1, 1, 2048, 768, 1, BF16, S, SEC, 15.2, 0 },
    { 6, "a100", M_GPT_175B, E_MEGATRON, 8, 1, 8, 6, 16, 1, 1, 2048, 768, 1, BF16, S, SEC, 11.9, 0 },
    { 7, "a100", M_GPT_175B, E_MEGATRON, 8, 1, 8, 6, 48, 1, 1, 2048, 6144, 1, BF16, S, SEC, 29.02, 0 },
    { 7, "a100", M_GPT_175B, E_MEGATRON, 8, 1, 8, 6, 96, 1, 1, 2048, 6144, 1, BF16, S, SEC, 14.78, 0 },
    { 7, "a100", M_GPT_175B, E_MEGATRON, 8, 1, 8, 6, 128, 1, 1, 2048, 6144, 1, BF16, S, SEC, 12.24, 0 },
    { 7, "a100", M_GPT_175B, E_MEGATRON, 8, 1, 8, 6, 192, 1, 1, 2048, 6144, 1, BF16, S, SEC, 8.57, 0 },
    /* Megatron-Bridge 25.09 */
    { 9, "h100", M_L8B, E_BRIDGE, 1, 1, 1, 1, 8, 1, 3, 8192, 128, 1, FP8, N, TOK, 14079, 0 },
    { 10, "h100", M_L70B, E_BRIDGE, 4, 1, 8, 5, 2, 1, 1, 8192, 128, 1, FP8, N, TOK, 1619, 0 },
    { 11, "h100", M_L405B, E_BRIDGE, 8, 2, 8, 8, 8, 1, 1, 8192, 512, 1, FP8, N, TOK, 302, 0 },
    /* NeMo AutoModel, April 2026 */
    { 12, "h100", M_L70B, E_AUTOMODEL, 2, 1, 1, 1, 32, 1, 3, 8192, 128, 1, BF16, F, SEC, 18.90, CAL },
    { 13, "h100", M_DSV3, E_BRIDGE, 2, 1, 8, 4, 64, 64, 1, 4096, 8192, 1, FP8, N, TOK, 1297, 0 },
    { 14, "h100", M_DSV3, E_AUTOMODEL, 1, 1, 4, 8, 256, 64, 1, 4096, 8192, 1, BF16, S, SEC, 37.87, 0 },
    { 15, "h100", M_DSV3, E_AUTOMODEL, 1, 1, 4, 8, 64, 64, 1, 4096, 512, 1, BF16, S, SEC, 8.18, 0 },
    { 16, "h100", M_KIMI_K2, E_AUTOMODEL, 1, 1, 8, 4, 32, 32, 1, 4096, 512, 1, BF16, S, SEC, 8.86, 0 },
    { 17, "h100", M_Q30B, E_AUTOMODEL, 1, 1, 1, 1, 8, 8, 3, 4096, 512, 4, BF16, N, SEC, 21.77, CAL },
    { 18, "h100", M_OSS_20B, E_AUTOMODEL, 1, 1, 1, 1, 8, 1, 3, 4096, 256, 2, BF16, N, SEC, 10.04, 0 },
    { 19, "h100", M_OSS_120B, E_AUTOMODEL, 1, 1, 1, 1, 64, 64, 3, 4096, 512, 2, BF16, N, SEC, 4.30, 0 },
    { 20, "h100", M_OSS_120B, E_BRIDGE, 1, 1, 4, 1, 16, 8, 1, 4096, 512, 4, BF16, N, TOK, 5630, 0 },
    /* Megatron-MoE-ModelZoo */
    { 21, "h100", M_Q235B, E_ZOO, 2, 1, 8, 4, 16, 32, 1, 4096, 2048, 1, BF16, S, SEC, 19.7, 0 },
    { 21, "h100", M_Q235B, E_ZOO_OVERLAP, 2, 1, 8, 4, 16, 32, 1, 4096, 2048, 1, BF16, S, SEC, 17.6, 0 },
    { 22, "h100", M_Q235B, E_ZOO_FSDP, 2, 1, 1, 1, 128, 8, 3, 4096, 2048, 4, BF16, F, SEC, 17.6, 0 },
    { 23, "h100", M_Q235B, E_ZOO, 2, 1, 32, 3, 4, 8, 1, 4096, 2048, 1, BF16, S, SEC, 24.2, 0 },
    { 23, "h100", M_Q235B, E_ZOO, 4, 1, 8, 4, 8, 8, 1, 4096, 2048, 1, BF16, S, SEC, 29.0, 0 },
    { 24, "h100", M_Q235B, E_ZOO, 4, 1, 8, 4, 8, 8, 1, 16384, 256, 1, BF16, S, TF, 295, 0 },
    { 24, "h100", M_Q235B, E_ZOO, 4, 2, 8, 4, 4, 8, 1, 32768, 256, 1, BF16, S, TF, 335, 0 },
    { 24, "h100", M_Q235B, E_ZOO, 4, 4, 8, 4, 2, 8, 1, 65536, 256, 1, BF16, S, TF, 368, 0 },
    { 24, "h100", M_Q235B, E_ZOO, 4, 8, 8, 4, 1, 8, 1, 131072, 256, 1, BF16, S, TF, 389, 0 },
    /* DeepSeek-AI 2024; 2,048 H800 */
    { 25, "h800", M_DSV3, E_DUALPIPE, 1, 1, 16, 1, 128, 64, 1, 4096, 15360, 1, FP8, S, SEC, 19.9, SND },
    /* torchtitan's benchmarks, December 2024: H100 of 96 GB and 500 W */
    { 26, H500, M_L8B, E_TITAN, 1, 1, 1, 1, 8, 1, 3, 8192, 16, 2, BF16, S, TOK, 6667, 0 },
    { 26, H500, M_L8B, E_TITAN, 1, 1, 1, 1, 128, 1, 3, 8192, 256, 2, BF16, S, TOK, 6514, 0 },
    { 27, H500, M_L405B, E_TITAN, 8, 1, 8, 1, 8, 1, 2, 8192, 256, 4, FP8, F, TOK, 100, 0 },
    { 27, H500, M_L405B, E_TITAN, 8, 1, 8, 2, 8, 1, 2, 8192, 256, 4, FP8, F, TOK, 128, 0 },
    { 28, H500, M_L405B, E_TITAN, 8, 1, 8, 1, 8, 1, 2, 32768, 64, 1, FP8, F, TOK, 76, 0 },
    { 28, H500, M_L405B, E_TITAN, 8, 2, 8, 1, 4, 1, 2, 65536, 32, 1, FP8, F, TOK, 47, 0 },
    { 28, H500, M_L405B, E_TITAN, 8, 4, 8, 1, 2, 1, 2, 131072, 16, 1, FP8, F, TOK, 31, 0 },
    { 28, H500, M_L405B, E_TITAN, 8, 8, 8, 1, 1, 1, 2, 262144, 8, 1, FP8, F, TOK, 16, 0 },
    /* Narayanan et al. 2021, table 1; micro-batches and virtual stages are not in the table */
    { 29, "a100", M_GPT_1_7B, E_2021, 1, 1, 1, 1, 32, 1, 0, 2048, 512, 4, BF16, F, TF21, 137, SND },
    { 30, "a100", M_GPT_3_6B, E_2021, 2, 1, 1, 1, 32, 1, 0, 2048, 512, 4, BF16, F, TF21, 138, SND },
    { 31, "a100", M_GPT_7_5B, E_2021, 4, 1, 1, 1, 32, 1, 0, 2048, 512, 4, BF16, F, TF21, 142, SND },
    { 32, "a100", M_GPT_18B, E_2021, 8, 1, 1, 1, 32, 1, 0, 2048, 1024, 4, BF16, F, TF21, 135, SND },
    { 33, "a100", M_GPT_39B, E_2021, 8, 1, 2, 2, 32, 1, 0, 2048, 1536, 4, BF16, F, TF21, 138, SND },
    { 34, "a100", M_GPT_76B, E_2021, 8, 1, 4, 3, 32, 1, 0, 2048, 1792, 2, BF16, F, TF21, 140, SND },
    { 35, "a100", M_GPT_146B, E_2021, 8, 1, 8, 2, 24, 1, 0, 2048, 2304, 2, BF16, F, TF21, 148, SND },
    { 36, "a100", M_GPT_310B, E_2021, 8, 1, 16, 3, 15, 1, 0, 2048, 2160, 1, BF16, F, TF21, 155, SND },
    { 37, "a100", M_GPT_530B, E_2021, 8, 1, 35, 3, 9, 1, 0, 2048, 2520, 1, BF16, F, TF21, 163, SND },
    { 38, "a100", M_GPT_1T, E_2021, 8, 1, 64, 2, 6, 1, 0, 2048, 3072, 1, BF16, F, TF21, 163, SND },
};
/* clang-format on */
#undef H500
#undef BF16
#undef FP8
#undef N
#undef S
#undef F

#endif
