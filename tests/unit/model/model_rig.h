/* model_rig.h - a small model with its weights and gradients on one rank, for tests of the computation. */
#ifndef SHARDLINE_TESTS_UNIT_MODEL_MODEL_RIG_H
#define SHARDLINE_TESTS_UNIT_MODEL_MODEL_RIG_H

#include "base/rnd.h"
#include "comm/comm.h"
#include "model/family.h"
#include "tests/test.h"
#include "train/zero/zero_priv.h"

struct rig {
    struct mem mem;
    struct dev *dev;
    struct world *world;
    struct mesh mesh;
    struct model m;
    struct batch_plan plan;
    struct zero *z;
    struct train_work *work;
    int n_seq;
    int64_t T;
    int32_t *ids, *targets;
    float *logprobs, *scale; /* scale: of every row's dlogits */
};

/* The config of tests/cli/lib/train_lib.bash: odd sizes, two kv heads. */
static inline struct model_config rig_config(int tied, double init_range)
{
    char text[1024];
    struct model_config c;
    struct err e;
    snprintf(text, sizeof text,
             "{\"model_type\":\"llama\",\"hidden_size\":72,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
             "\"num_key_value_heads\":2,"
             "\"head_dim\":10,\"intermediate_size\":104,\"vocab_size\":701,\"max_position_embeddings\":256,"
             "\"rms_norm_eps\":1e-5,"
             "\"rope_theta\":10000.0,\"initializer_range\":%g,\"tie_word_embeddings\":%s}",
             init_range, tied ? "true" : "false");
    CHECK_INT(model_config_parse(&c, text, "config.json", &e), 0);
    return c;
}

/* Small models of other families and with switches on: every feature that the computation knows, odd sizes.
 * Vocabulary 701. */
static const struct rig_family {
    const char *name, *config;
} rig_families[] = {
    { "llama with biases", "{\"model_type\":\"llama\",\"hidden_size\":72,\"num_hidden_layers\":2,\"num_"
                           "attention_heads\":8,\"num_key_value_heads\":2,"
                           "\"head_dim\":10,\"intermediate_size\":104,\"vocab_size\":701,\"attention_bias\":"
                           "true,\"mlp_bias\":true,\"initializer_range\":0.15}" },
    { "qwen2 with yarn, tied, windows in the last layer",
      "{\"model_type\":\"qwen2\",\"hidden_size\":72,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
      "\"num_key_value_heads\":4,\"head_dim\":10,\"intermediate_size\":104,\"vocab_size\":701,\"tie_word_"
      "embeddings\":true,\"use_sliding_window\":true,"
      "\"sliding_window\":5,\"max_window_layers\":1,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
      "\"original_max_position_embeddings\":16},"
      "\"initializer_range\":0.15}" },
    { "qwen3",
      "{\"model_type\":\"qwen3\",\"hidden_size\":72,\"num_hidden_layers\":2,\"num_attention_heads\":8,\"num_"
      "key_value_heads\":2,\"head_dim\":34,"
      "\"intermediate_size\":104,\"vocab_size\":701,\"attention_bias\":true,\"initializer_range\":0.15}" },
    { "mistral",
      "{\"model_type\":\"mistral\",\"hidden_size\":72,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
      "\"num_key_value_heads\":2,\"head_dim\":10,"
      "\"intermediate_size\":104,\"vocab_size\":701,\"sliding_window\":4,\"initializer_range\":0.15}" },
    { "gpt2", "{\"model_type\":\"gpt2\",\"n_embd\":72,\"n_layer\":2,\"n_head\":8,\"n_inner\":104,\"vocab_"
              "size\":701,\"n_positions\":90,"
              "\"initializer_range\":0.15}" },
    { "mixtral",
      "{\"model_type\":\"mixtral\",\"hidden_size\":72,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
      "\"num_key_value_heads\":2,\"head_dim\":10,\"intermediate_size\":104,\"vocab_size\":701,"
      "\"num_local_experts\":5,\"num_experts_per_tok\":2,\"initializer_range\":0.15}" },
    { "qwen2_moe",
      "{\"model_type\":\"qwen2_moe\",\"hidden_size\":80,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
      "\"num_key_value_heads\":2,\"intermediate_size\":104,\"vocab_size\":701,\"num_experts\":6,"
      "\"num_experts_per_tok\":3,\"moe_intermediate_size\":40,\"shared_expert_intermediate_size\":72,"
      "\"initializer_range\":0.15}" },
    { "qwen3_moe, an MLP in the first layer",
      "{\"model_type\":\"qwen3_moe\",\"hidden_size\":72,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
      "\"num_key_value_heads\":2,\"head_dim\":10,\"intermediate_size\":104,\"vocab_size\":701,"
      "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":48,\"norm_topk_prob\":true,"
      "\"decoder_sparse_step\":2,\"initializer_range\":0.15}" },
    { "gpt_oss, a window in the first layer",
      "{\"model_type\":\"gpt_oss\",\"hidden_size\":72,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
      "\"num_key_value_heads\":2,\"head_dim\":10,\"intermediate_size\":40,\"vocab_size\":701,"
      "\"num_local_experts\":5,\"experts_per_token\":2,\"sliding_window\":5,\"swiglu_limit\":0.75,"
      "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"truncate\":false,"
      "\"original_max_position_embeddings\":16},\"initializer_range\":0.15}" },
    { "gemma2, a window in the first layer",
      "{\"model_type\":\"gemma2\",\"hidden_size\":72,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
      "\"num_key_value_heads\":4,\"head_dim\":10,\"intermediate_size\":104,\"vocab_size\":701,"
      "\"sliding_window\":4,\"query_pre_attn_scalar\":14,\"attn_logit_softcapping\":1.5,"
      "\"final_logit_softcapping\":2.5,\"initializer_range\":0.15}" },
    { "gemma3, a window and a theta of its own in the first layer, untied",
      "{\"model_type\":\"gemma3_text\",\"hidden_size\":72,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
      "\"num_key_value_heads\":2,\"head_dim\":10,\"intermediate_size\":104,\"vocab_size\":701,"
      "\"sliding_window\":4,\"sliding_window_pattern\":2,\"rope_local_base_freq\":20.0,"
      "\"tie_word_embeddings\":false,\"initializer_range\":0.15}" },
    { "gpt_neox, parallel",
      "{\"model_type\":\"gpt_neox\",\"hidden_size\":80,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
      "\"intermediate_size\":104,\"vocab_size\":701,\"rotary_pct\":0.4,\"initializer_range\":0.15}" },
    { "gpt_neox, one after the other, no biases of attention",
      "{\"model_type\":\"gpt_neox\",\"hidden_size\":80,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
      "\"intermediate_size\":104,\"vocab_size\":701,\"use_parallel_residual\":false,"
      "\"attention_bias\":false,\"initializer_range\":0.15}" },
    { "deepseek_v3 with yarn, an MLP in the first layer",
      "{\"model_type\":\"deepseek_v3\",\"hidden_size\":72,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
      "\"num_key_value_heads\":8,\"intermediate_size\":104,\"vocab_size\":701,\"n_routed_experts\":8,"
      "\"num_experts_per_tok\":3,\"moe_intermediate_size\":40,\"n_shared_experts\":2,\"n_group\":4,"
      "\"topk_group\":2,\"q_lora_rank\":28,\"kv_lora_rank\":36,\"qk_rope_head_dim\":6,"
      "\"qk_nope_head_dim\":10,\"v_head_dim\":14,\"first_k_dense_replace\":1,\"rope_scaling\":{\"type\":"
      "\"yarn\",\"factor\":4.0,\"mscale\":1.0,\"mscale_all_dim\":0.7,"
      "\"original_max_position_embeddings\":16},\"initializer_range\":0.15}" },
    { "deepseek_v3, q not compressed, no groups",
      "{\"model_type\":\"deepseek_v3\",\"hidden_size\":72,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
      "\"num_key_value_heads\":8,\"intermediate_size\":104,\"vocab_size\":701,\"n_routed_experts\":6,"
      "\"num_experts_per_tok\":2,\"moe_intermediate_size\":40,\"n_shared_experts\":null,\"n_group\":1,"
      "\"topk_group\":1,\"q_lora_rank\":null,\"kv_lora_rank\":20,\"qk_rope_head_dim\":4,"
      "\"qk_nope_head_dim\":9,\"v_head_dim\":7,\"first_k_dense_replace\":0,\"norm_topk_prob\":false,"
      "\"routed_scaling_factor\":1.5,\"initializer_range\":0.15}" },
};
#define RIG_FAMILIES ((int)(sizeof rig_families / sizeof rig_families[0]))

static inline struct model_config rig_family_config(int i)
{
    struct model_config c;
    struct err e;
    CHECK_INT(model_config_parse(&c, rig_families[i].config, "config.json", &e), 0);
    return c;
}

/* of rigs that are opened */
static const char *rig_device = "cpu";
static int64_t rig_adapter_rank;
static inline void rig_open_threads(struct rig *r, const struct model_config *c, enum dtype dt, int n_seq,
                                    int64_t T, int threads)
{
    const int size[AXIS_COUNT] = { 1, 1, 1, 1 }, have[ZERO_STATES] = { 1, 0, 0, 0 };
    const struct layout lay = { 1, 1, 1, 1, 1, 0 };
    uint64_t seed = 5;
    struct err e = { 0 };
    memset(r, 0, sizeof *r);
    r->n_seq = n_seq;
    r->T = T;
    struct model_open how = {
        .layout = lay, .dt = dt, .max_rows = n_seq * T, .max_pos = T, .adapter_rank = rig_adapter_rank
    };
    int rc = dev_open(&r->dev, rig_device, threads, &r->mem, &e);
    if (rc >= 0)
        rc = world_open(&r->world, "self", 0, r->dev, &r->mem, &e);
    if (rc >= 0)
        rc = mesh_open(&r->mesh, r->world, size, &e);
    how.dev = r->dev;
    how.tp = r->mesh.axis[AXIS_TP];
    if (rc < 0 || model_open(&r->m, c, &how, &e) < 0 ||
        train_work_open(&r->work, &r->m, 0, &(struct work_shape){ n_seq, T, 1, RECOMPUTE_NONE }, &e) < 0 ||
        batch_plan(&r->plan, n_seq, n_seq, 1, 0, &e) < 0 ||
        zero_open(&r->z, &r->m,
                  &(struct zero_groups){
                      .dp = r->mesh.axis[AXIS_DP], .pp = r->mesh.axis[AXIS_PP], .all = r->mesh.all },
                  (struct zero_options){ 0 }, &r->plan, &e) < 0 ||
        zero_load(r->z, zero_init_values, &seed, have, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    r->ids = malloc(sizeof *r->ids * (size_t)(n_seq * T));
    r->targets = malloc(sizeof *r->targets * (size_t)(n_seq * T));
    r->logprobs = malloc(sizeof *r->logprobs * (size_t)(n_seq * T));
    r->scale = malloc(sizeof *r->scale * (size_t)(n_seq * T));
    for (int64_t i = 0; i < n_seq * T; i++) {
        r->ids[i] = (int32_t)((i * 7919 + i / 3) % c->vocab);
        r->targets[i] = (int32_t)((i * 104729 + 13) % c->vocab);
        r->scale[i] = (float)(1.0 / (double)(n_seq * T));
    }
}

static inline void rig_open(struct rig *r, const struct model_config *c, enum dtype dt, int n_seq, int64_t T)
{
    rig_open_threads(r, c, dt, n_seq, T, 1);
}

static inline void rig_close(struct rig *r)
{
    zero_close(r->z);
    train_work_close(r->work);
    model_close(&r->m);
    mesh_close(&r->mesh);
    world_close(r->world);
    dev_close(r->dev);
    free(r->ids);
    free(r->targets);
    free(r->logprobs);
    free(r->scale);
}

/* Mean loss over all targets, in double from the fp32 log-probs. */
static inline double rig_forward(struct rig *r)
{
    struct err e;
    double sum = 0;
    CHECK_INT(model_train_forward(zero_weights(r->z), r->work, r->ids, r->targets, r->logprobs, &e), 0);
    for (int64_t i = 0; i < r->n_seq * r->T; i++)
        sum -= (double)r->logprobs[i];
    return sum / (double)(r->n_seq * r->T);
}

/* Gradients into the tree's level 0; the tied head's are joined by zero_norm, which is returned. */
static inline double rig_backward(struct rig *r)
{
    struct err e;
    double norm = 0;
    CHECK_INT(zero_begin_rows(r->z, 0, 0, &e), 0);
    CHECK_INT(model_train_backward(zero_weights(r->z), r->work, r->ids, r->targets, r->scale,
                                   zero_grads(r->z), &e),
              0);
    CHECK_INT(zero_norm(r->z, &norm, &e), 0);
    return norm;
}

static inline float *rig_weight(struct rig *r, int part)
{
    const struct part *p = &r->m.local.part[part];
    float *own = model_own(&r->m, part);
    return own ? own : (float *)r->z->vector[p->vector].weight + p->offset;
}

/* fp32: vectors are no longer all ones or zeros, so that a bias taken twice or a norm left out shows. */
static inline void rig_shake(struct rig *r)
{
    for (int i = 0; i < r->m.local.n_parts; i++) {
        const struct part *p = &r->m.local.part[i];
        float *w = rig_weight(r, i);
        for (int64_t k = 0; param_is_vector(&r->m.table.p[p->param]) && k < p->count; k++)
            w[k] += 0.3f * (float)rnd_normal(9, rnd_stream(r->m.table.p[p->param].name), (uint64_t)k);
    }
    zero_forget_packs(r->z);
}

/* NULL: a part without a gradient. */
static inline float *rig_grad(struct rig *r, int part)
{
    const struct part *p = &r->m.local.part[part];
    if (model_own(&r->m, part))
        return NULL;
    return zero_grads(r->z)->level(zero_grads(r->z), r->m.table.p[p->param].unit, 0) + p->offset;
}

/* ---- decoding of one sequence, rows at a time ---- */
enum { RIG_DECODE_ROWS = 70, RIG_PAGES = 4 };
struct rig_decode {
    struct rig r;
    struct forward_work w;
    void *memory;
    char *page[RIG_PAGES];
    size_t layer;
};

static inline void rig_decode_open(struct rig_decode *d, const struct model_config *c, enum dtype dt,
                                   int threads)
{
    struct arena a = { 0 };
    rig_open_threads(&d->r, c, dt, 2, 128, threads);
    d->layer = model_page_bytes(&d->r.m);
    forward_work_carve(&d->r.m, &a, RIG_DECODE_ROWS, 1, &d->w);
    d->memory = dev_alloc(d->r.dev, MEM_WORK, a.used);
    a = (struct arena){ d->memory, 0, a.used };
    forward_work_carve(&d->r.m, &a, RIG_DECODE_ROWS, 1, &d->w);
    for (int i = 0; i < RIG_PAGES; i++)
        d->page[i] = dev_alloc(d->r.dev, MEM_KV, d->layer * (size_t)(d->r.m.n_layers + 1));
    CHECK(d->memory && d->page[RIG_PAGES - 1]);
}

/* The last row's logits, memory of the device. */
static inline const float *rig_decode_rows(struct rig_decode *d, int64_t pos, int64_t n)
{
    struct attn_seq seq = { 0, n, pos, d->page };
    int32_t want = (int32_t)(n - 1);
    struct batch b = {
        .n_rows = n, .ids = d->r.ids + pos, .n_seq = 1, .seq = &seq, .n_want = 1, .want = &want
    };
    struct head_out h = { 0 };
    struct err e;
    CHECK_INT(model_forward(&d->r.m, zero_weights(d->r.z), &b, &d->w, &h, &e), 0);
    return h.logits;
}

static inline void rig_decode_close(struct rig_decode *d)
{
    struct err e;
    CHECK_INT(dev_check(d->r.dev, &e), 0);
    for (int i = 0; i < RIG_PAGES; i++)
        dev_free(d->r.dev, d->page[i]);
    dev_free(d->r.dev, d->memory);
    rig_close(&d->r);
}

#endif
