/* model_config_test.c - config.json: both layouts, defaults of transformers, what is refused and in which
 * words. */
#include <math.h>
#include "model/family.h"
#include "tests/test.h"

static struct err e;
static struct model_config c;

static int parse(const char *text) { return model_config_parse(&c, text, "config.json", &e); }

TEST(missing_keys_take_the_defaults_of_transformers)
{
    CHECK_INT(parse("{\"model_type\":\"llama\"}"), 0);
    CHECK(c.hidden == 4096 && c.n_layers == 32 && c.n_heads == 32 && c.n_kv == 32 && c.head_dim == 128 &&
          c.inter == 11008 && c.vocab == 32000);
    CHECK(c.max_pos == 2048 && c.norm_eps == 1e-6 && c.rope_theta == 10000.0 && c.rope == ROPE_DEFAULT &&
          !c.tied && c.init_range == 0.02);
    CHECK(c.bos == 1 && c.n_eos == 1 && c.eos[0] == 2 && !c.bf16 && c.grain == 8 && !c.grain_given);
}

#define SHAPE \
    "\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":8,\"num_key_value_heads\":2," \
    "\"intermediate_size\":96"
#define LLAMA3 \
    "\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_" \
    "max_position_embeddings\":64"

TEST(the_older_and_the_newer_layout_say_the_same)
{
    struct model_config old;
    CHECK_INT(parse("{" SHAPE ",\"rope_theta\":500000.0,\"rope_scaling\":{" LLAMA3
                    "},\"torch_dtype\":\"bfloat16\"}"),
              0);
    old = c;
    CHECK(c.rope == ROPE_LLAMA3 && c.rope_theta == 500000.0 && c.rope_factor == 8 && c.rope_low_freq == 1 &&
          c.rope_high_freq == 4);
    CHECK(c.rope_original_max_pos == 64 && c.bf16 && c.head_dim == 8);
    CHECK_INT(parse("{" SHAPE ",\"rope_parameters\":{\"rope_theta\":500000.0," LLAMA3
                    "},\"dtype\":\"bfloat16\"}"),
              0);
    CHECK_INT(model_config_same(&old, &c, "--model", &e), 0);
    CHECK(c.bf16);
    CHECK_INT(parse("{" SHAPE ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}"), 0);
    CHECK(c.rope == ROPE_LINEAR && c.rope_factor == 2);
    CHECK_INT(parse("{" SHAPE
                    ",\"rope_scaling\":null,\"eos_token_id\":[3,5],\"bos_token_id\":null,\"head_dim\":null}"),
              0);
    CHECK(c.rope == ROPE_DEFAULT && c.n_eos == 2 && c.eos[1] == 5 && c.bos == -1);
}

TEST(what_is_wrong_is_refused_by_name)
{
    static const struct {
        const char *text, *message;
    } wrong[] = {
        { "{}", "config.json: no model_type" },
        { "[]", "config.json: not a JSON object" },
        { "{", "config.json" },
        { "{\"model_type\":\"bert\"}", "config.json: model_type bert is not known yet: llama, " },
        { "{" SHAPE ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"beta_fast\":1}}",
          "rope_type yarn: beta_fast 1 must be over beta_slow 1" },
        { "{\"model_type\":\"mistral\",\"sliding_window\":0}", "config.json: sliding_window 0 from layer 0" },
        { "{" SHAPE ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}",
          "rope_type llama3 needs original_max_position_embeddings" },
        { "{" SHAPE ",\"rope_theta\":0}", "rope_theta 0" },
        { "{" SHAPE ",\"head_dim\":5}", "config.json: head_dim 5 is odd" },
        { "{" SHAPE ",\"vocab_size\":0}", "config.json: vocab_size is 0" },
        { "{" SHAPE ",\"vocab_size\":-7}", "config.json: vocab_size is -7" },
        { "{" SHAPE ",\"vocab_size\":\"many\"}", "vocab_size" },
        { "{" SHAPE ",\"num_hidden_layers\":5000000000}", "num_hidden_layers is 5000000000" },
        { "{" SHAPE ",\"shardline_grain\":3}",
          "config.json: shardline_grain 3 does not divide the 8 attention heads" },
        { "{" SHAPE ",\"shardline_grain\":0}", "config.json: shardline_grain 0" },
        { "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":7}",
          "hidden_size 64 is not a multiple of num_attention_heads 7" },
        { "{\"model_type\":\"llama\",\"num_attention_heads\":8,\"num_key_value_heads\":3}",
          "num_attention_heads 8 is not a multiple of num_key_value_heads 3" },
        { "{" SHAPE ",\"eos_token_id\":[\"a\"]}", "config.json: eos_token_id" },
        { "{" SHAPE ",\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}", "config.json: eos_token_id" },
        { "{" SHAPE ",\"hidden_size\":32}", "config.json" }, /* a key twice */
        { "{\"model_type\":\"gpt_neox\",\"rotary_pct\":0.01}", "partial_rotary_factor 0.01 of head_dim 96" },
        { "{\"model_type\":\"gpt_neox\",\"rotary_pct\":1.5}", "partial_rotary_factor 1.5 of head_dim 96" },
        { "{\"model_type\":\"gemma2\",\"attn_logit_softcapping\":-1}",
          "attn_logit_softcapping is -1: it must be positive, or null" },
        { "{\"model_type\":\"gemma2\",\"query_pre_attn_scalar\":\"many\"}", "query_pre_attn_scalar" },
        { "{\"model_type\":\"gemma3_text\",\"rope_local_base_freq\":0}", "rope_local_base_freq 0" },
        { "{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":2,\"layer_types\":[]}",
          "layer_types has 0 entries for num_hidden_layers 2" },
        { "{\"model_type\":\"mistral\",\"num_hidden_layers\":513}",
          "config.json: num_hidden_layers 513 with sliding_window: at most 512 layers can have one" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memset(&e, 0, sizeof e);
        if (parse(wrong[i].text) >= 0)
            test_fail(__FILE__, __LINE__, "%s is taken", wrong[i].text);
        else
            CHECK_HAS(e.text, wrong[i].message);
    }
}

TEST(what_reshard_alone_takes_is_named)
{
    static const struct {
        const char *text, *message;
    } some[] = {
        { "{" SHAPE ",\"hidden_act\":\"gelu\"}", "config.json: hidden_act gelu is not computed yet" },
        { "{" SHAPE ",\"rope_scaling\":{\"rope_type\":\"longrope\"}}",
          "config.json: rope_type longrope is not computed yet" },
        { "{\"model_type\":\"gpt2\",\"scale_attn_by_inverse_layer_idx\":true}", NULL },
        { "{\"model_type\":\"gemma3_text\",\"use_bidirectional_attention\":true}",
          "config.json: use_bidirectional_attention true is not computed yet" },
        { "{\"model_type\":\"gemma3_text\",\"rope_parameters\":{\"full_attention\":{\"rope_type\":"
          "\"default\"},"
          "\"sliding_attention\":{\"rope_type\":\"yarn\",\"rope_theta\":10000.0}}}",
          "config.json: rope_type yarn of sliding_attention is not computed yet" },
        { "{\"model_type\":\"qwen2\",\"num_hidden_layers\":2,\"use_sliding_window\":true,"
          "\"layer_types\":[\"linear_attention\",\"full_attention\"]}",
          "config.json: layer_types with linear_attention is not computed yet" },
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        CHECK_INT(parse(some[i].text), 0);
        CHECK_INT(model_config_computed(&c, &e), -ERR_CONFIG);
        CHECK(c.not_computed[0]);
        if (some[i].message)
            CHECK_HAS(e.text, some[i].message);
    }
}

TEST(families_have_their_features_and_defaults)
{
    static const struct {
        const char *text;
        unsigned features;
        int64_t window, first; /* first: windowed layer */
    } some[] = {
        { "{\"model_type\":\"llama\",\"attention_bias\":true}", F_GATE | F_UNTIED | F_QKV_BIAS | F_O_BIAS, 0,
          0 },
        { "{\"model_type\":\"mistral\"}", F_GATE | F_UNTIED | F_WINDOW, 4096, 0 },
        { "{\"model_type\":\"mistral\",\"sliding_window\":null}", F_GATE | F_UNTIED, 0, 0 },
        { "{\"model_type\":\"qwen2\",\"sliding_window\":128}", F_GATE | F_UNTIED | F_QKV_BIAS, 0, 0 },
        { "{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"max_window_layers\":20,\"sliding_window\":"
          "128}",
          F_GATE | F_UNTIED | F_QKV_BIAS | F_WINDOW, 128, 20 },
        { "{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"max_window_layers\":32}",
          F_GATE | F_UNTIED | F_QKV_BIAS, 0, 0 },
        { "{\"model_type\":\"qwen2\",\"num_hidden_layers\":3,\"use_sliding_window\":true,\"sliding_window\":"
          "9,"
          "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\"]}",
          F_GATE | F_UNTIED | F_QKV_BIAS | F_WINDOW, 9, 1 },
        { "{\"model_type\":\"qwen3\",\"tie_word_embeddings\":true}", F_GATE | F_QK_NORM, 0, 0 },
        { "{\"model_type\":\"gpt2\"}",
          F_QKV_BIAS | F_O_BIAS | F_MLP_BIAS | F_LAYER_NORM | F_POSITIONS | F_TRANSPOSED, 0, 0 },
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        memset(&e, 0, sizeof e);
        CHECK_INT(parse(some[i].text), 0);
        CHECK_INT(c.features, some[i].features);
        CHECK_INT(c.window, some[i].window);
        CHECK_INT(model_layer_window(&c, some[i].first), some[i].window);
        CHECK_INT(some[i].first && model_layer_window(&c, some[i].first - 1), 0);
        CHECK_STR(c.not_computed, "");
    }
    CHECK(c.hidden == 768 && c.n_layers == 12 && c.n_kv == 12 && c.inter == 3072 && c.vocab == 50257 &&
          c.max_pos == 1024 && c.tied && c.eos[0] == 50256);
}

/* Layers with a window as digits: 1 has one. */
static void layers_are(const char *text, const char *want, int64_t everywhere)
{
    memset(&e, 0, sizeof e);
    CHECK_INT(parse(text), 0);
    CHECK_INT(c.n_layers, (int64_t)strlen(want));
    for (int64_t l = 0; l < c.n_layers; l++)
        CHECK_INT(model_layer_window(&c, l), want[l] == '1' ? c.window : 0);
    CHECK_INT(model_window(&c), everywhere);
}

TEST(layers_with_a_window_have_pages_of_their_own_where_others_see_all)
{
    static const struct {
        const char *text;
        int64_t layers[PAGE_GROUPS], window[PAGE_GROUPS], before_5; /* of its group */
    } some[] = {
        { "{\"model_type\":\"llama\",\"num_hidden_layers\":7}", { 7, 0 }, { 0, 0 }, 5 },
        { "{\"model_type\":\"mistral\",\"num_hidden_layers\":7,\"sliding_window\":9}",
          { 7, 0 },
          { 9, 9 },
          5 },
        { "{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":7,\"sliding_window\":9}",
          { 1, 6 },
          { 0, 9 },
          0 },
        { "{\"model_type\":\"gemma2\",\"num_hidden_layers\":7,\"sliding_window\":9}", { 3, 4 }, { 0, 9 }, 2 },
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        memset(&e, 0, sizeof e);
        CHECK_INT(parse(some[i].text), 0);
        for (int g = 0; g < PAGE_GROUPS; g++) {
            CHECK_INT(model_group_layers(&c, g, 7), some[i].layers[g]);
            if (some[i].layers[g])
                CHECK_INT(model_group_window(&c, g), some[i].window[g]);
        }
        CHECK_INT(model_group_layers(&c, model_page_group(&c, 5), 5), some[i].before_5);
    }
}

TEST(windows_are_a_set_of_layers)
{
#define WINDOWED "\"num_hidden_layers\":4,\"sliding_window\":9"
    layers_are("{\"model_type\":\"mistral\"," WINDOWED "}", "1111", 9);
    layers_are("{\"model_type\":\"mixtral\"," WINDOWED "}", "1111", 9);
    layers_are("{\"model_type\":\"mixtral\",\"num_hidden_layers\":2}", "00", 0);
    layers_are("{\"model_type\":\"gemma2\"," WINDOWED "}", "1010", 0);
    layers_are("{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":8}", "11111011", 0);
    layers_are("{\"model_type\":\"gemma3_text\",\"sliding_window_pattern\":2," WINDOWED "}", "1010", 0);
    layers_are("{\"model_type\":\"gemma3_text\",\"_sliding_window_pattern\":3," WINDOWED "}", "1101", 0);
    layers_are("{\"model_type\":\"gemma2\",\"num_hidden_layers\":4,\"sliding_window\":null}", "0000", 0);
    layers_are("{\"model_type\":\"qwen3\",\"use_sliding_window\":true,\"max_window_layers\":1," WINDOWED "}",
               "0111", 0);
    layers_are("{\"model_type\":\"mistral\"," WINDOWED
               ",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\","
               "\"sliding_attention\"]}",
               "0101", 0);
    CHECK_INT(parse("{\"model_type\":\"mistral\"," WINDOWED ",\"layer_types\":[\"full_attention\"]}"),
              -ERR_CONFIG);
    CHECK_HAS(e.text, "layer_types has 1 entries for num_hidden_layers 4");
}

TEST(the_grain_follows_the_formula_or_the_file)
{
    static const struct {
        int heads, inter, want;
    } shapes[] = {
        { 8, 96, 8 }, { 32, 11008, 8 }, { 12, 2048, 4 }, { 6, 21, 1 }, { 8, 100, 4 }, { 6, 12, 2 }
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        c.n_heads = shapes[i].heads;
        c.inter = shapes[i].inter;
        CHECK_INT(model_grain_formula(&c), shapes[i].want);
    }
    CHECK_INT(parse("{" SHAPE ",\"shardline_grain\":2}"), 0);
    CHECK(c.grain == 2 && c.grain_given);
}

static void round_trip(const struct model_config *want, const char *dtype)
{
    char *text = model_config_json(want, dtype);
    CHECK(text != NULL);
    CHECK_INT(parse(text), 0);
    CHECK_INT(model_config_same(want, &c, "--model", &e), 0);
    CHECK_INT(c.bf16, !strcmp(dtype, "bfloat16"));
    CHECK(c.max_pos == want->max_pos && c.init_range == want->init_range && c.bos == want->bos &&
          c.n_eos == want->n_eos);
    CHECK_SAME(c.eos, want->eos, sizeof *c.eos * (size_t)c.n_eos);
    CHECK_INT(strstr(text, "shardline_grain") != NULL, want->grain != model_grain_formula(want));
    free(text);
}

TEST(what_is_written_is_read_back_the_same)
{
    static const char *const names[] = { "tiny", "10m", "110m", "1b", "7b", "70b" };
    struct model_config m;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK_INT(model_config_preset(&m, names[i], &e), 0);
        round_trip(&m, i % 2 ? "bfloat16" : "float32");
        CHECK_INT(m.head_dim * m.n_heads, m.hidden);
    }
    CHECK_INT(parse("{" SHAPE ",\"rope_theta\":5e5,\"rope_scaling\":{" LLAMA3
                    "},\"shardline_grain\":4,\"eos_token_id\":[7,9],\"bos_token_id\":null,"
                    "\"tie_word_embeddings\":true,\"initializer_range\":0.1,\"rms_norm_eps\":1e-5}"),
              0);
    m = c;
    round_trip(&m, "bfloat16");
    static const char *const others[] = {
        "{" SHAPE ",\"attention_bias\":true,\"mlp_bias\":true}",
        "{\"model_type\":\"mistral\",\"sliding_window\":17}",
        "{\"model_type\":\"mistral\",\"sliding_window\":null}",
        "{\"model_type\":\"mixtral\",\"sliding_window\":17}",
        "{\"model_type\":\"gemma2\",\"num_hidden_layers\":5,\"attn_logit_softcapping\":null,"
        "\"query_pre_attn_scalar\":22.5}",
        "{\"model_type\":\"gemma3_text\",\"num_hidden_layers\":7,\"sliding_window_pattern\":3,"
        "\"rope_local_base_freq\":500.0,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}}",
        "{\"model_type\":\"gpt_neox\",\"rotary_pct\":0.5,\"use_parallel_residual\":false}",
        "{\"model_type\":\"mistral\",\"num_hidden_layers\":3,\"sliding_window\":17,"
        "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\"]}",
        "{\"model_type\":\"qwen2\",\"tie_word_embeddings\":true}",
        "{\"model_type\":\"qwen2\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_"
        "position_embeddings\":64,\"beta_fast\":16,"
        "\"attention_factor\":1.25,\"truncate\":false}}",
        "{\"model_type\":\"qwen3\",\"use_sliding_window\":true,\"max_window_layers\":3,\"attention_bias\":"
        "true}",
        "{\"model_type\":\"gpt2\",\"n_embd\":96,\"n_inner\":200,\"tie_word_embeddings\":false}",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        memset(&e, 0, sizeof e);
        CHECK_INT(parse(others[i]), 0);
        m = c;
        round_trip(&m, "float32");
        CHECK_INT(c.features, m.features);
        CHECK(c.rope == m.rope && c.window == m.window);
    }
}

TEST(yarn_with_mscale_has_the_quotient_of_both)
{
#define YARN8 \
    "{" SHAPE \
    ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8.0,\"original_max_position_embeddings\":64"
    CHECK_INT(parse(YARN8 ",\"mscale\":0.7,\"mscale_all_dim\":1.2}}"), 0);
    CHECK(fabs(c.yarn_attention - (0.07 * 2.0794415416798357 + 1) / (0.12 * 2.0794415416798357 + 1)) <
              1e-15 &&
          !*c.not_computed);
    CHECK_INT(parse(YARN8 ",\"mscale\":0.7}}"), 0);
    CHECK(c.yarn_attention == 0); /* from the factor alone, as transformers */
    CHECK_INT(parse(YARN8 ",\"mscale\":0.7,\"mscale_all_dim\":1.2,\"attention_factor\":1.5}}"), 0);
    CHECK(c.yarn_attention == 1.5);
}

TEST(an_unknown_preset_lists_the_known_ones)
{
    CHECK_INT(model_config_preset(&c, "8b", &e), -ERR_USAGE);
    CHECK_HAS(e.text, "--model 8b: neither a file nor one of the presets tiny, 10m, 110m, 1b, 7b, 70b");
}

TEST(the_presets_that_the_help_names_are_those_of_the_table)
{
    char listed[256] = "";
    CHECK_INT(model_config_preset(&c, "8b", &e), -ERR_USAGE);
    for (const char *at = MODEL_PRESETS; *at; at++)
        strcat(listed, *at == '|' ? ", " : (char[]){ *at, 0 });
    CHECK_STR(strstr(e.text, "presets ") + strlen("presets "), listed);
}

TEST(configs_that_differ_say_in_what)
{
    struct model_config a;
    CHECK_INT(parse("{" SHAPE "}"), 0);
    a = c;
    c.vocab++;
    CHECK_INT(model_config_same(&a, &c, "--model", &e), -ERR_CONFIG);
    CHECK_HAS(e.text, "vocab_size is 32000 in the checkpoint and 32001 in --model");
    c = a;
    c.norm_eps *= 2;
    CHECK_INT(model_config_same(&a, &c, "--model", &e), -ERR_CONFIG);
    CHECK_HAS(e.text, "the norms' eps");
    CHECK_INT(parse("{\"model_type\":\"mistral\"," WINDOWED "}"), 0);
    a = c;
    c.windowed[0] &= ~(uint64_t)4;
    CHECK_INT(model_config_same(&a, &c, "--model", &e), -ERR_CONFIG);
    CHECK_HAS(e.text, "the window of layer 2 is 9 in the checkpoint and 0 in --model");
}

/* A config.json as transformers 4 writes it and as transformers 5 does is the same model. */
TEST(both_layouts_of_config_json_say_the_same)
{
    static const struct {
        const char *v4, *v5;
    } some[] = {
        { "{" SHAPE ",\"rope_theta\":500000.0,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0},\"torch_"
          "dtype\":\"bfloat16\"}",
          "{" SHAPE ",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"linear\",\"factor\":2.0},"
          "\"dtype\":\"bfloat16\"}" },
        { "{\"model_type\":\"gpt_neox\",\"rotary_pct\":0.25,\"rotary_emb_base\":10000,\"torch_dtype\":"
          "\"float16\"}",
          "{\"model_type\":\"gpt_neox\",\"rope_parameters\":{\"partial_rotary_factor\":0.25,\"rope_theta\":"
          "10000.0,\"rope_type\":\"default\"},\"dtype\":\"float16\"}" },
        { "{\"model_type\":\"gemma3_text\",\"rope_theta\":1000000.0,\"rope_local_base_freq\":10000.0}",
          "{\"model_type\":\"gemma3_text\",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1000000.0,"
          "\"rope_type\":\"default\"},"
          "\"sliding_attention\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"}}}" },
        { "{\"model_type\":\"qwen3_moe\",\"rope_theta\":1000000.0,\"num_experts\":16,\"mlp_only_layers\":[1,"
          "3]}",
          "{\"model_type\":\"qwen3_moe\",\"rope_parameters\":{\"rope_theta\":1000000.0,\"rope_type\":"
          "\"default\"},\"num_local_experts\":16,\"mlp_only_layers\":[1,3]}" },
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        struct model_config v4;
        CHECK_INT(parse(some[i].v4), 0);
        v4 = c;
        CHECK_INT(parse(some[i].v5), 0);
        CHECK_INT(model_config_same(&v4, &c, "--model", &e), 0);
        CHECK_INT(v4.n_experts, c.n_experts);
        CHECK_INT(v4.bf16, c.bf16);
        CHECK_SAME(v4.dense, c.dense, sizeof c.dense);
    }
}

TEST(layers_with_experts_are_those_that_the_config_says)
{
    static const struct {
        const char *text;
        const char *has;
    } some[] = {
        { "{\"model_type\":\"mixtral\",\"num_hidden_layers\":4}", "1111" },
        { "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":4,\"mlp_only_layers\":[0,2]}", "0101" },
        { "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":6,\"decoder_sparse_step\":2,\"mlp_only_"
          "layers\":[3]}",
          "010001" },
        { "{\"model_type\":\"llama\",\"num_hidden_layers\":2}", "00" },
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        CHECK_INT(parse(some[i].text), 0);
        for (int64_t l = 0; l < c.n_layers; l++)
            CHECK_INT(model_has_experts(&c, l), some[i].has[l] - '0');
    }
    CHECK_INT(parse("{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[-1]}"), -ERR_CONFIG);
    CHECK_INT(parse("{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[512]}"), -ERR_CONFIG);
    CHECK_INT(parse("{\"model_type\":\"qwen3_moe\",\"decoder_sparse_step\":0}"), -ERR_CONFIG);
}

#define GPT_OSS \
    "{\"model_type\":\"gpt_oss\",\"num_hidden_layers\":5,\"num_attention_heads\":8,\"num_key_value_heads\":" \
    "2,\"intermediate_size\":40,\"hidden_size\":72"
TEST(gpt_oss_has_windows_in_turn_and_a_clamp_in_both_layouts)
{
    static const char *const layouts[] = {
        GPT_OSS
        ",\"sliding_window\":9,\"rope_theta\":150000.0,\"experts_per_token\":3,\"num_local_experts\":6,"
        "\"swiglu_limit\":5.0,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32.0,\"truncate\":false,"
        "\"original_max_position_embeddings\":64}}",
        GPT_OSS
        ",\"sliding_window\":9,\"num_experts_per_tok\":3,\"num_local_experts\":6,\"swiglu_limit\":5.0,"
        "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\","
        "\"full_attention\",\"sliding_attention\"],\"rope_parameters\":{\"rope_type\":\"yarn\","
        "\"rope_theta\":150000.0,\"factor\":32.0,\"truncate\":false,"
        "\"original_max_position_embeddings\":64}}",
    };
    for (int i = 0; i < 2; i++) {
        CHECK_INT(parse(layouts[i]), 0);
        CHECK_INT(model_config_computed(&c, &e), 0);
        for (int64_t l = 0; l < 5; l++)
            CHECK_INT(model_layer_window(&c, l), l % 2 ? 0 : 9);
        CHECK_INT(c.experts_per_token, 3);
        CHECK_INT(c.yarn_exact, 1);
        CHECK_INT(c.expert_inter, 40);
        CHECK_NEAR(c.swiglu_limit, 5, 0);
        CHECK_NEAR(c.swiglu_alpha, 1.702, 0);
        CHECK_NEAR(c.rope_theta, 150000, 0);
        struct model_config first = c;
        char *text = model_config_json(&c, "float32");
        CHECK_INT(parse(text), 0);
        CHECK_INT(model_config_same(&first, &c, "what was written", &e), 0);
        free(text);
    }
}

TEST(a_bad_clamp_or_too_many_experts_are_refused_in_one_line)
{
    CHECK_INT(parse(GPT_OSS ",\"swiglu_limit\":0}"), -ERR_CONFIG);
    CHECK_HAS(e.text, "swiglu_limit 0");
    CHECK_INT(parse(GPT_OSS ",\"swiglu_alpha\":-1.0}"), -ERR_CONFIG);
    CHECK_HAS(e.text, "swiglu_alpha -1");
    CHECK_INT(parse(GPT_OSS ",\"num_local_experts\":4,\"experts_per_token\":5}"), -ERR_CONFIG);
    CHECK_HAS(e.text, "5 of 4 experts");
}
