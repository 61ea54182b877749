/* megatron_common.c - writes common.pt: what a checkpoint holds beside arrays.
 *
 *     args                   the model's shape and the degrees, for Megatron's --use-checkpoint-args
 *     iteration, checkpoint_version, opt_param_scheduler
 *     optimizer              param_groups, the step in each; param_state_sharding_type
 *     content_metadata       which keys a load asks for
 *     shardline_state        the data position, seed and settings of the run (run_state.h)
 *
 * Megatron groups parameters by weight decay, and experts apart. Where experts are divided over ranks their
 * optimizer is another one, and the state is that of a list of two: such a file can be resumed at ep > 1
 * only, the other at ep 1 only. The step of torch's AdamW and of Transformer Engine's is in the groups; the
 * optimizer that is not distributed reads common_step. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"
#include "format/megatron/megatron_write_priv.h"
#include "format/hf/small_files.h"
#include "format/torch/run_state.h"
#include "format/torch/torch_write.h"

struct common {
    const struct megatron_write *w;
    const struct ckpt_meta *meta;
    json_t *config, *run; /* run: settings, or NULL */
    struct adamw adamw;
    char *state;
    struct pkw p;
};

static void begin_dict(struct pkw *p)
{
    pkw_op(p, PKW_DICT);
    pkw_op(p, PKW_MARK);
}
static void end_dict(struct pkw *p) { pkw_op(p, PKW_SETITEMS); }

static void put_int(struct pkw *p, const char *key, int64_t v)
{
    pkw_text(p, key);
    pkw_int(p, v);
}
static void put_float(struct pkw *p, const char *key, double v)
{
    pkw_text(p, key);
    pkw_float(p, v);
}
static void put_bool(struct pkw *p, const char *key, int v)
{
    pkw_text(p, key);
    pkw_op(p, v ? PKW_TRUE : PKW_FALSE);
}
static void put_text(struct pkw *p, const char *key, const char *v)
{
    pkw_text(p, key);
    pkw_text(p, v);
}

/* ---- args ---- */

/* The first of these keys of config.json that is a number. */
#define CONFIG_KEYS 3
struct from_config {
    const char *arg, *key[CONFIG_KEYS];
};
static const struct from_config integers[] = {
    { "ffn_hidden_size", { "intermediate_size" } },
    { "max_position_embeddings", { "max_position_embeddings" } },
    { "seq_length", { "max_position_embeddings" } },
    { "num_experts", { "num_local_experts", "num_experts", "n_routed_experts" } },
    { "moe_router_topk", { "num_experts_per_tok" } },
    { "moe_shared_expert_intermediate_size", { "shared_expert_intermediate_size" } },
    { "moe_router_num_groups", { "n_group" } },
    { "moe_router_group_topk", { "topk_group" } },
    { "q_lora_rank", { "q_lora_rank" } },
    { "kv_lora_rank", { "kv_lora_rank" } },
    { "qk_head_dim", { "qk_nope_head_dim" } },
    { "qk_pos_emb_head_dim", { "qk_rope_head_dim" } },
    { "v_head_dim", { "v_head_dim" } },
};
static const struct from_config reals[] = {
    { "norm_epsilon", { "rms_norm_eps" } },
    { "moe_router_topk_scaling_factor", { "routed_scaling_factor" } },
};

static const json_t *number_in(const json_t *config, const struct from_config *f)
{
    for (int k = 0; k < CONFIG_KEYS && f->key[k]; k++)
        if (json_is_number(json_object_get(config, f->key[k])))
            return json_object_get(config, f->key[k]);
    return NULL;
}

static int64_t int_in(const json_t *config, const char *key)
{
    return json_integer_value(json_object_get(config, key));
}

/* a b, or 0 where it is beyond int64: the numbers are a stranger's. */
static int64_t product(int64_t a, int64_t b)
{
    int64_t v;
    return __builtin_mul_overflow(a, b, &v) ? 0 : v;
}

/* Rotary base: a member, or one of rope_parameters in newer files. */
static double rotary_base(const json_t *config)
{
    const json_t *own = json_object_get(config, "rope_theta"),
                 *in = json_object_get(json_object_get(config, "rope_parameters"), "rope_theta");
    return json_is_number(own) ? json_number_value(own) : json_is_number(in) ? json_number_value(in) : 10000;
}

static int has_key(const struct megatron_write *w, const char *key)
{
    for (int i = 0; i < w->n_arrays && w->list[i].role == ROLE_WEIGHT; i++)
        if (!strcmp(w->array[i].row->key, key))
            return 1;
    return 0;
}

/* Which layers have experts: 1 for all, else a list. */
static void put_layer_kinds(const struct megatron_write *w, struct pkw *p)
{
    pkw_text(p, "moe_layer_freq");
    if (w->stacked) {
        pkw_int(p, 1);
        return;
    }
    pkw_op(p, PKW_LIST);
    pkw_op(p, PKW_MARK);
    for (int64_t l = 0; l < w->n_layers; l++) {
        int sparse = 0;
        for (int i = 0; i < w->n_arrays && w->list[i].role == ROLE_WEIGHT; i++)
            sparse |= w->array[i].row->of_experts && w->array[i].layer == l;
        pkw_int(p, sparse);
    }
    pkw_op(p, PKW_APPENDS);
}

static void put_experts(const struct common *c, struct pkw *p)
{
    const json_t *f = c->config;
    int64_t shared = product(int_in(f, "n_shared_experts"), int_in(f, "moe_intermediate_size"));
    const char *score = json_string_value(json_object_get(f, "scoring_func"));
    if (!c->w->n_experts)
        return;
    put_int(p, "moe_ffn_hidden_size",
            int_in(f, "moe_intermediate_size") ? int_in(f, "moe_intermediate_size")
                                               : int_in(f, "intermediate_size"));
    if (shared)
        put_int(p, "moe_shared_expert_intermediate_size", shared);
    put_bool(p, "moe_shared_expert_gate", has_key(c->w, "mlp.shared_experts.gate_weight"));
    put_bool(p, "moe_router_enable_expert_bias", has_key(c->w, "mlp.router.expert_bias"));
    put_text(p, "moe_router_score_function",
             c->w->m.s.family == MG_DEEPSEEK && (!score || !strcmp(score, "sigmoid")) ? "sigmoid"
                                                                                      : "softmax");
    put_layer_kinds(c->w, p);
}

static void put_model(const struct common *c, struct pkw *p)
{
    const struct mg_shape *s = &c->w->m.s;
    put_int(p, "num_layers", s->layers);
    put_int(p, "hidden_size", s->hidden);
    put_int(p, "num_attention_heads", s->heads);
    put_int(p, "num_query_groups", s->groups);
    put_bool(p, "group_query_attention", s->groups < s->heads);
    put_int(p, "kv_channels", s->head_dim);
    put_int(p, "vocab_size", s->vocab);
    put_int(p, "padded_vocab_size", s->vocab);
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        if (number_in(c->config, &integers[i]))
            put_int(p, integers[i].arg, json_integer_value(number_in(c->config, &integers[i])));
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        if (number_in(c->config, &reals[i]))
            put_float(p, reals[i].arg, json_number_value(number_in(c->config, &reals[i])));
    put_text(p, "position_embedding_type", "rope");
    put_bool(p, "use_rotary_position_embeddings", 1);
    put_float(p, "rotary_base", rotary_base(c->config));
    put_float(p, "rotary_percent", 1);
    put_bool(p, "rotary_interleaved", 0);
    put_text(p, "normalization", "RMSNorm");
    put_bool(p, "swiglu", 1);
    put_bool(p, "add_bias_linear", has_key(c->w, "self_attention.linear_proj.bias"));
    put_bool(p, "add_qkv_bias", has_key(c->w, "self_attention.linear_qkv.bias"));
    put_bool(p, "qk_layernorm",
             has_key(c->w, "self_attention.q_layernorm.weight") ||
                 has_key(c->w, "self_attention.linear_q_up_proj.layer_norm_weight") ||
                 s->family == MG_DEEPSEEK);
    put_bool(p, "untie_embeddings_and_output_weights", !s->tied);
    put_bool(p, "multi_latent_attention", s->family == MG_DEEPSEEK);
    put_experts(c, p);
}

static void put_args(const struct common *c, struct pkw *p)
{
    const struct ckpt_layout *l = &c->meta->layout;
    int has_state = mgw_has_state(c->w);
    pkw_text(p, "args");
    pkw_object(p, "argparse", "Namespace");
    put_model(c, p);
    put_int(p, "tensor_model_parallel_size", l->tp);
    put_int(p, "pipeline_model_parallel_size", l->pp);
    put_int(p, "expert_model_parallel_size", l->ep);
    put_int(p, "data_parallel_size", l->dp);
    put_int(p, "world_size", (int64_t)l->tp * l->pp * l->cp * l->dp);
    put_bool(p, "use_distributed_optimizer", has_state);
    put_bool(p, "no_save_optim", !has_state);
    put_bool(p, "no_save_rng", 1);
    put_bool(p, "bf16", c->w->n_arrays && c->w->list[0].dtype == STORED_BF16);
    put_bool(p, "fp16", c->w->n_arrays && c->w->list[0].dtype == STORED_F16);
    put_text(p, "ckpt_format", "torch_dist");
    if (c->run)
        put_float(p, "clip_grad", c->adamw.clip);
    if (c->meta->state.has_state) {
        put_int(p, "iteration", c->meta->state.step);
        put_int(p, "consumed_train_samples", product(c->meta->state.step, int_in(c->run, "global-batch")));
    }
    pkw_object_end(p);
}

/* ---- the optimizer ---- */

static void put_group(const struct common *c, struct pkw *p, int decays, int of_experts)
{
    const struct adamw *a = &c->adamw;
    begin_dict(p);
    put_float(p, "lr", a->lr);
    pkw_text(p, "betas");
    pkw_op(p, PKW_MARK);
    pkw_float(p, a->beta1);
    pkw_float(p, a->beta2);
    pkw_op(p, PKW_TUPLE);
    put_float(p, "eps", a->eps);
    put_float(p, "weight_decay", decays ? a->weight_decay : 0);
    put_float(p, "wd_mult", decays);
    put_float(p, "lr_mult", 1);
    put_bool(p, "is_expert_parallel", of_experts);
    put_bool(p, "is_decoupled_lr", 0);
    put_bool(p, "default_config", 1);
    put_float(p, "max_lr", a->lr);
    put_float(p, "min_lr", json_number_value(json_object_get(c->run, "min-lr")));
    put_bool(p, "bias_correction", 1);
    put_bool(p, "amsgrad", 0);
    put_bool(p, "maximize", 0);
    pkw_text(p, "foreach");
    pkw_op(p, PKW_NONE);
    put_bool(p, "capturable", 0);
    put_bool(p, "differentiable", 0);
    pkw_text(p, "fused");
    pkw_op(p, PKW_NONE);
    put_bool(p, "decoupled_weight_decay", 1);
    put_int(p, "step", c->meta->state.step);
    end_dict(p);
}

/* Matrices decay, vectors do not; experts have no vectors. */
static void put_inner(const struct common *c, struct pkw *p, int of_experts)
{
    pkw_text(p, "state");
    begin_dict(p);
    put_int(p, "common_step", c->meta->state.step);
    end_dict(p);
    pkw_text(p, "param_groups");
    pkw_op(p, PKW_LIST);
    pkw_op(p, PKW_MARK);
    put_group(c, p, 1, of_experts);
    if (!of_experts)
        put_group(c, p, 0, 0);
    pkw_op(p, PKW_APPENDS);
}

/* The mixed-precision optimizers read "optimizer", that of fp32 models the same members beside it. */
static void put_optimizer(const struct common *c, struct pkw *p, int of_experts)
{
    begin_dict(p);
    pkw_text(p, "optimizer");
    begin_dict(p);
    put_inner(c, p, of_experts);
    end_dict(p);
    put_inner(c, p, of_experts);
    put_text(p, "param_state_sharding_type", "fully_reshardable");
    end_dict(p);
}

static void put_optimizers(const struct common *c, struct pkw *p)
{
    pkw_text(p, "optimizer");
    if (!c->w->what.chained) {
        put_optimizer(c, p, 0);
        return;
    }
    begin_dict(p);
    for (int of_experts = 0; of_experts < 2; of_experts++) {
        pkw_int(p, of_experts);
        put_optimizer(c, p, of_experts);
    }
    end_dict(p);
}

/* Megatron counts samples, and starts its warm-up at 0, one update before ptrain. */
static void put_scheduler(const struct common *c, struct pkw *p)
{
    const char *style = json_string_value(json_object_get(c->run, "lr-schedule"));
    int64_t batch = int_in(c->run, "global-batch"), steps = int_in(c->run, "steps");
    batch = batch > 0 ? batch : 1;
    steps = steps > 0 ? steps : c->meta->state.step > 0 ? c->meta->state.step : 1;
    pkw_text(p, "opt_param_scheduler");
    begin_dict(p);
    put_float(p, "max_lr", c->adamw.lr);
    put_float(p, "min_lr", json_number_value(json_object_get(c->run, "min-lr")));
    put_int(p, "lr_warmup_steps", product(int_in(c->run, "warmup"), batch));
    put_int(p, "num_steps", product(c->meta->state.step, batch));
    put_text(p, "lr_decay_style", style ? style : "constant");
    put_int(p, "lr_decay_steps", product(steps, batch));
    put_float(p, "start_wd", c->adamw.weight_decay);
    put_float(p, "end_wd", c->adamw.weight_decay);
    put_text(p, "wd_incr_style", "constant");
    put_int(p, "wd_incr_steps", product(steps, batch));
    end_dict(p);
}

/* What a load asks for. */
static void put_content(const struct common *c, struct pkw *p)
{
    pkw_text(p, "content_metadata");
    begin_dict(p);
    put_text(p, "distrib_optim_sharding_type", "fully_reshardable");
    put_bool(p, "distrib_optim_fully_reshardable_mem_efficient", 0);
    put_bool(p, "singleton_local_shards", 0);
    put_bool(p, "non_homogeneous_layers", !c->w->stacked);
    put_bool(p, "chained_optim_avoid_prefix", 1);
    end_dict(p);
}

/* ---- the file ---- */

static int read_settings(struct common *c, struct err *e)
{
    const struct ckpt_state *s = &c->meta->state;
    const char *text = c->w->what.config;
    if (!(c->config = jx_parse(text, strlen(text), FMT_CONFIG, e)) || !(c->state = run_state_text(s, e)))
        return -e->code;
    if (s->has_state && s->run_json &&
        !(c->run = jx_parse(s->run_json, strlen(s->run_json), "settings of the run", e)))
        return -e->code;
    if (!run_adamw(s, &c->adamw)) /* torch's own, where the source does not know them */
        c->adamw = (struct adamw){
            .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01
        };
    return 0;
}

static int write_backend(const char *dir, struct err *e)
{
    static const char text[] = "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, "
                               "\"common_backend\": \"torch\", \"common_backend_version\": 1}";
    char *path = io_join(dir, "metadata.json");
    int rc = path ? io_write_file(path, text, sizeof text - 1, e)
                  : err_set(e, ERR_MEMORY, "no memory for the path of metadata.json");
    free(path);
    return rc < 0 ? rc : 0;
}

int mgw_write_common(const struct megatron_write *w, const struct ckpt_meta *meta, struct err *e)
{
    struct common c = { .w = w, .meta = meta };
    struct pkw *p = &c.p;
    char *path = io_join(w->what.dir, "common.pt");
    int rc = path ? 0 : err_set(e, ERR_MEMORY, "no memory for the path of common.pt");
    TRY(rc);
    TRY(read_settings(&c, e));

    pkw_begin(p);
    begin_dict(p);
    put_args(&c, p);
    put_float(p, "checkpoint_version", 3);
    put_int(p, "iteration", meta->state.has_state ? meta->state.step : 0);
    put_int(p, "num_floating_point_operations_so_far", 0);
    if (mgw_has_state(w)) {
        put_optimizers(&c, p);
        put_scheduler(&c, p);
    }
    put_content(&c, p);
    put_text(p, RUN_STATE_KEY, c.state);
    end_dict(p);
    TRY(pkw_end(p, e));
    TRY(torch_out_file(path, "common", p, 0, NULL, NULL, e));
    TRY(write_backend(w->what.dir, e));
out:
    json_decref(c.config);
    json_decref(c.run);
    free(c.state);
    pkw_free(p);
    free(path);
    return rc < 0 ? rc : 0;
}

int megatron_write_seal(struct megatron_write *w, const struct ckpt_meta *meta, struct err *e)
{
    int rc = 0;
    TRY(small_files_write(w->what.dir, meta, e));
    TRY(mgw_write_metadata(w, e));
    TRY(mgw_write_common(w, meta, e));
    TRY(io_sync_dir(w->what.dir, e));
out:
    if (rc < 0)
        ckpt_abandon(w->what.dir, -1);
    return rc < 0 ? rc : 0;
}
