/* megatron_names.c - Megatron's names and layouts, translated to those of Hugging Face; see megatron.h.
 *
 *     linear_qkv   for every group g: its query heads, its key head, its value head
 *     linear_fc1   [gate; up]; a tensor-parallel rank has [its part of gate; its part of up]
 *     vocabulary   padded to a multiple; the rows behind vocab_size are left out
 *
 * A model without a gate is read as GPT-2: its matrices are [in][out], and q, k, v are the three parts of one
 * tensor, not groups. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/megatron/megatron.h"

#define LAYERS "decoder.layers."

/* the families whose layers are Llama's; those with experts */
#define LLAMAS(...) \
    [MG_LLAMA] = { __VA_ARGS__ }, [MG_MIXTRAL] = { __VA_ARGS__ }, [MG_DEEPSEEK] = { __VA_ARGS__ }
/* with a key head of their own for each group; latent attention has none */
#define GROUPED(...) [MG_LLAMA] = { __VA_ARGS__ }, [MG_MIXTRAL] = { __VA_ARGS__ }
#define BOTH(llama, gpt2) \
    { \
        LLAMAS(llama), [MG_GPT2] = { gpt2 } \
    }
#define GPT2_ONLY(gpt2) \
    { \
        [MG_GPT2] = { gpt2 } \
    }
#define DEEPSEEK_ONLY(name) \
    { \
        [MG_DEEPSEEK] = { name } \
    }
#define MOE(qwen, mixtral, deepseek) \
    { \
        [MG_LLAMA] = { qwen }, [MG_MIXTRAL] = { mixtral }, [MG_DEEPSEEK] = { deepseek } \
    }
/* clang-format off */
const struct mg_row mg_rows[] = {
    { "embedding.word_embeddings.weight", 0, 0, MG_VOCAB,
      BOTH("model.embed_tokens.weight", "transformer.wte.weight") },
    { "embedding.position_embeddings.weight", 0, -1, MG_PLAIN, GPT2_ONLY("transformer.wpe.weight") },

    { "self_attention.linear_qkv.layer_norm_weight", 1, -1, MG_PLAIN,
      BOTH("input_layernorm.weight", "ln_1.weight") },
    { "self_attention.linear_qkv.layer_norm_bias", 1, -1, MG_PLAIN, GPT2_ONLY("ln_1.bias") },
    { "input_layernorm.weight", 1, -1, MG_PLAIN, BOTH("input_layernorm.weight", "ln_1.weight") },
    { "input_layernorm.bias", 1, -1, MG_PLAIN, GPT2_ONLY("ln_1.bias") },
    { "self_attention.linear_qkv.weight", 1, 0, MG_QKV,
      { GROUPED("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        [MG_GPT2] = { "attn.c_attn.weight", "attn.c_attn.weight", "attn.c_attn.weight" } } },
    { "self_attention.linear_qkv.bias", 1, 0, MG_QKV,
      { GROUPED("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
        [MG_GPT2] = { "attn.c_attn.bias", "attn.c_attn.bias", "attn.c_attn.bias" } } },
    { "self_attention.q_layernorm.weight", 1, -1, MG_PLAIN,
      MOE("self_attn.q_norm.weight", "self_attn.q_norm.weight", "self_attn.q_a_layernorm.weight") },
    { "self_attention.k_layernorm.weight", 1, -1, MG_PLAIN,
      MOE("self_attn.k_norm.weight", "self_attn.k_norm.weight", NULL) },
    { "self_attention.linear_proj.weight", 1, 1, MG_PLAIN,
      BOTH("self_attn.o_proj.weight", "attn.c_proj.weight") },
    { "self_attention.linear_proj.bias", 1, -1, MG_PLAIN, BOTH("self_attn.o_proj.bias", "attn.c_proj.bias") },

    { "self_attention.linear_q_proj.weight", 1, 0, MG_PLAIN, DEEPSEEK_ONLY("self_attn.q_proj.weight") },
    { "self_attention.linear_q_down_proj.weight", 1, -1, MG_PLAIN,
      DEEPSEEK_ONLY("self_attn.q_a_proj.weight") },
    { "self_attention.linear_q_up_proj.layer_norm_weight", 1, -1, MG_PLAIN,
      DEEPSEEK_ONLY("self_attn.q_a_layernorm.weight") },
    { "self_attention.linear_q_up_proj.weight", 1, 0, MG_PLAIN, DEEPSEEK_ONLY("self_attn.q_b_proj.weight") },
    { "self_attention.linear_kv_down_proj.weight", 1, -1, MG_PLAIN,
      DEEPSEEK_ONLY("self_attn.kv_a_proj_with_mqa.weight") },
    { "self_attention.linear_kv_up_proj.layer_norm_weight", 1, -1, MG_PLAIN,
      DEEPSEEK_ONLY("self_attn.kv_a_layernorm.weight") },
    { "self_attention.kv_layernorm.weight", 1, -1, MG_PLAIN,
      DEEPSEEK_ONLY("self_attn.kv_a_layernorm.weight") },
    { "self_attention.linear_kv_up_proj.weight", 1, 0, MG_PLAIN,
      DEEPSEEK_ONLY("self_attn.kv_b_proj.weight") },

    { "mlp.linear_fc1.layer_norm_weight", 1, -1, MG_PLAIN,
      BOTH("post_attention_layernorm.weight", "ln_2.weight") },
    { "mlp.linear_fc1.layer_norm_bias", 1, -1, MG_PLAIN, GPT2_ONLY("ln_2.bias") },
    { "pre_mlp_layernorm.weight", 1, -1, MG_PLAIN, BOTH("post_attention_layernorm.weight", "ln_2.weight") },
    { "pre_mlp_layernorm.bias", 1, -1, MG_PLAIN, GPT2_ONLY("ln_2.bias") },
    { "mlp.linear_fc1.weight", 1, 0, MG_GATED,
      { LLAMAS("mlp.gate_proj.weight", "mlp.up_proj.weight"), [MG_GPT2] = { "mlp.c_fc.weight" } } },
    { "mlp.linear_fc1.bias", 1, 0, MG_GATED,
      { LLAMAS("mlp.gate_proj.bias", "mlp.up_proj.bias"), [MG_GPT2] = { "mlp.c_fc.bias" } } },
    { "mlp.linear_fc2.weight", 1, 1, MG_PLAIN, BOTH("mlp.down_proj.weight", "mlp.c_proj.weight") },
    { "mlp.linear_fc2.bias", 1, -1, MG_PLAIN, BOTH("mlp.down_proj.bias", "mlp.c_proj.bias") },

    { "mlp.router.weight", 1, -1, MG_PLAIN,
      MOE("mlp.gate.weight", "block_sparse_moe.gate.weight", "mlp.gate.weight") },
    { "mlp.router.expert_bias", 1, -1, MG_PLAIN, DEEPSEEK_ONLY("mlp.gate.e_score_correction_bias") },
    { "mlp.experts.experts.linear_fc1.weight", 1, 0, MG_GATED,
      { [MG_LLAMA] = { "mlp.experts.#.gate_proj.weight", "mlp.experts.#.up_proj.weight" },
        [MG_MIXTRAL] = { "block_sparse_moe.experts.#.w1.weight", "block_sparse_moe.experts.#.w3.weight" },
        [MG_DEEPSEEK] = { "mlp.experts.#.gate_proj.weight", "mlp.experts.#.up_proj.weight" } }, 1 },
    { "mlp.experts.experts.linear_fc2.weight", 1, 1, MG_PLAIN,
      MOE("mlp.experts.#.down_proj.weight", "block_sparse_moe.experts.#.w2.weight",
          "mlp.experts.#.down_proj.weight"), 1 },
    { "mlp.shared_experts.linear_fc1.weight", 1, 0, MG_GATED,
      { [MG_LLAMA] = { "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight" },
        [MG_DEEPSEEK] = { "mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight" } } },
    { "mlp.shared_experts.linear_fc2.weight", 1, 1, MG_PLAIN,
      MOE("mlp.shared_expert.down_proj.weight", NULL, "mlp.shared_experts.down_proj.weight") },
    { "mlp.shared_experts.gate_weight", 1, -1, MG_PLAIN, MOE("mlp.shared_expert_gate.weight", NULL, NULL) },

    { "decoder.final_layernorm.weight", 0, -1, MG_PLAIN,
      BOTH("model.norm.weight", "transformer.ln_f.weight") },
    { "decoder.final_layernorm.bias", 0, -1, MG_PLAIN, GPT2_ONLY("transformer.ln_f.bias") },
    { "output_layer.weight", 0, 0, MG_VOCAB, BOTH("lm_head.weight", "lm_head.weight") },
};
/* clang-format on */
const int mg_n_rows = (int)(sizeof mg_rows / sizeof *mg_rows);

/* ---- the model's shape ---- */

struct member {
    const char *key;
    size_t offset;
};
#define AT(member) offsetof(struct mg_shape, member)
static const struct member args_members[] = {
    { "num_layers", AT(layers) },
    { "hidden_size", AT(hidden) },
    { "num_attention_heads", AT(heads) },
    { "num_query_groups", AT(groups) },
    { "kv_channels", AT(head_dim) },
    { "vocab_size", AT(vocab) },
    { "padded_vocab_size", AT(padded_vocab) },
    { "tensor_model_parallel_size", AT(tp) },
    { "pipeline_model_parallel_size", AT(pp) },
    { "expert_tensor_parallel_size", AT(etp) },
    { "q_lora_rank", AT(q_rank) },
    { "kv_lora_rank", AT(kv_rank) },
    { "qk_pos_emb_head_dim", AT(rotary) },
};
static const struct member config_members[] = {
    { "num_hidden_layers", AT(layers) },
    { "hidden_size", AT(hidden) },
    { "num_attention_heads", AT(heads) },
    { "num_key_value_heads", AT(groups) },
    { "head_dim", AT(head_dim) },
    { "vocab_size", AT(vocab) },
    { "q_lora_rank", AT(q_rank) },
    { "kv_lora_rank", AT(kv_rank) },
    { "qk_rope_head_dim", AT(rotary) },
    { "n_layer", AT(layers) },
    { "n_embd", AT(hidden) },
    { "n_head", AT(heads) },
};
static int64_t *value_at(struct mg_shape *s, const struct member *m)
{
    return (int64_t *)((char *)s + m->offset);
}

static int flag_of(const struct pk *args, const char *name, int if_absent)
{
    const struct pk *p = pk_attr(args, name);
    return p && p->kind == PK_BOOL ? (int)p->i : if_absent;
}

/* GroupedMLP: by its own option, and for Megatron's local layers. Versions without that option may have
 * it. */
static int is_grouped(const struct pk *args)
{
    int yes = flag_of(args, "moe_grouped_gemm", 0);
    if (!yes || flag_of(args, "moe_use_legacy_grouped_gemm", 0) ||
        pk_is_text(pk_attr(args, "transformer_impl"), "local"))
        return yes;
    return flag_of(args, "moe_use_legacy_grouped_gemm", -1);
}

static void read_args(struct mg_shape *s, const struct pk *args)
{
    for (size_t i = 0; i < sizeof args_members / sizeof *args_members; i++)
        pk_int(pk_attr(args, args_members[i].key), value_at(s, &args_members[i]));
    if (!flag_of(args, "group_query_attention", 0))
        s->groups = s->heads;
    int untied = flag_of(args, "untie_embeddings_and_output_weights", -1);
    s->tied = untied < 0 ? -1 : !untied;
    s->grouped = is_grouped(args);
    s->has_gate = flag_of(args, "swiglu", flag_of(args, "gated_linear_unit", -1));
    if (s->has_gate == 0 && pk_is_text(pk_attr(args, "position_embedding_type"), "learned_absolute"))
        s->family = MG_GPT2;
    if (flag_of(args, "multi_latent_attention", 0))
        s->family = MG_DEEPSEEK;
}

enum mg_family mg_family_of(const char *model_type)
{
    static const struct {
        const char *type;
        enum mg_family family;
    } rows[] = { { "gpt2", MG_GPT2 },
                 { "mixtral", MG_MIXTRAL },
                 { "deepseek_v2", MG_DEEPSEEK },
                 { "deepseek_v3", MG_DEEPSEEK } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].type, model_type))
            return rows[i].family;
    return MG_LLAMA;
}

/* Reads config.json after the run's args. Its vocabulary replaces the run's; everything else must agree. */
static int read_config(struct mg *m, const char *path, struct err *e)
{
    struct mg_shape c = { 0 }, *s = &m->s;
    const char *text = m->b->c->config;
    int rc = 0, tied = 0;
    json_t *o = text ? jx_parse(text, strlen(text), FMT_CONFIG, e) : NULL;

    if (text && !o)
        return -e->code;
    for (size_t i = 0; o && i < sizeof config_members / sizeof *config_members && rc >= 0; i++) {
        const struct member *x = &config_members[i];
        int64_t *have = value_at(s, x), *want = value_at(&c, x);
        if ((rc = jx_int(o, FMT_CONFIG, x->key, want, e)) > 0 && *have && *have != *want &&
            x->offset != AT(vocab))
            rc =
                err_set(e, ERR_CONFIG,
                        "%s: config.json says %s %lld, the saved run %lld: is it the config of another model",
                        path, x->key, (long long)*want, (long long)*have);
        if (rc > 0)
            *have = *want;
    }

    if (o && json_string_value(json_object_get(o, "model_type")))
        s->family = mg_family_of(json_string_value(json_object_get(o, "model_type")));
    if (o && rc >= 0 && s->family == MG_GPT2)
        s->groups = s->heads, tied = 1; /* transformers' default */
    if (o && rc >= 0 && (rc = jx_bool(o, FMT_CONFIG, "tie_word_embeddings", &tied, e)) >= 0)
        s->tied = rc > 0 || s->family == MG_GPT2 ? tied : s->tied < 0 ? 0 : s->tied;
    json_decref(o);
    return rc < 0 ? rc : 0;
}

int mg_shape_read(struct mg *m, const struct pk *args, const char *path, struct err *e)
{
    struct mg_shape *s = &m->s;
    *s = (struct mg_shape){ .has_gate = -1, .tied = -1 };
    if (args)
        read_args(s, args);
    int rc = read_config(m, path, e);
    if (rc < 0)
        return rc;
    if (!s->groups)
        s->groups = s->heads;
    if (s->heads > 0 && !s->head_dim)
        s->head_dim = s->hidden / s->heads;
    if (!s->vocab)
        s->vocab = s->padded_vocab;
    if (s->q_rank < 0 || s->kv_rank < 0 || s->rotary < 0 || s->q_rank > 1 << 24 || s->kv_rank > 1 << 24 ||
        s->rotary > 1 << 24)
        return err_set(
            e, ERR_CONFIG,
            "%s: latent attention of rank %lld and %lld with %lld rotary columns: give the model's "
            "config.json with --config FILE",
            path, (long long)s->q_rank, (long long)s->kv_rank, (long long)s->rotary);
    if (s->layers < 1 || s->layers > 1 << 20 || s->heads < 1 || s->heads > 1 << 20 || s->groups < 1 ||
        s->heads % s->groups || s->head_dim < 1 || s->head_dim > 1 << 20 || s->vocab < 0 ||
        s->vocab > (int64_t)1 << 40)
        return err_set(e, ERR_CONFIG,
                       "%s: %lld layers, %lld heads in %lld groups of %lld: give the model's config.json "
                       "with --config FILE",
                       path, (long long)s->layers, (long long)s->heads, (long long)s->groups,
                       (long long)s->head_dim);
    return 0;
}

/* ---- names ---- */

static int has_prefix(const char *key, int n, const char *prefix)
{
    int k = (int)strlen(prefix);
    return n >= k && !memcmp(key, prefix, (size_t)k) ? k : 0;
}

/* A number and a dot at key[0..n): its length, or 0. */
static int number_at(const char *key, int n, int *number)
{
    int k = 0, v = 0;
    while (k < n && key[k] >= '0' && key[k] <= '9' && v < 1 << 20)
        v = v * 10 + (key[k++] - '0');
    if (!k || k >= n || key[k] != '.')
        return 0;
    *number = v;
    return k + 1;
}

/* Grouped experts, mlp.experts.linear_fc1.weight3: the row of linear_fc1, and the number. NULL: it is
 * none. */
static const struct mg_row *find_grouped(const char *key, int n, int *expert)
{
    static const char of[] = "mlp.experts.", weight[] = ".weight";
    int k = has_prefix(key, n, of), digits = 0, end = n, w = (int)sizeof weight - 1;
    while (end > 0 && key[end - 1] >= '0' && key[end - 1] <= '9' && digits < 6) {
        end--;
        digits++;
    }
    if (!k || !digits || end < k + w || memcmp(key + end - w, weight, (size_t)w))
        return NULL;
    for (int i = 0; i < mg_n_rows; i++) {
        const char *own = mg_rows[i].of_experts ? mg_rows[i].key + k + strlen("experts.") : "";
        if ((int)strlen(own) == end - k && !memcmp(own, key + k, (size_t)(end - k))) {
            *expert = 0;
            for (int d = end; d < n; d++)
                *expert = *expert * 10 + (key[d] - '0');
            return &mg_rows[i];
        }
    }
    return NULL;
}

/* The row's key without its layer, and without the expert's number where there is one: experts.E.REST and
 * local_experts.E.REST are the experts.REST of the table. */
static const struct mg_row *find_row(const char *key, int n, int in_layer, int *expert)
{
    static const char *const one[] = { "mlp.experts.experts.", "mlp.experts.local_experts." };
    const char *rest = key;
    int n_rest = n, k;

    *expert = -1;
    for (size_t i = 0; i < sizeof one / sizeof *one && *expert < 0; i++)
        if ((k = has_prefix(key, n, one[i])) && (n_rest = number_at(key + k, n - k, expert))) {
            rest = key + k + n_rest;
            n_rest = n - k - n_rest;
        }
    for (int i = 0; i < mg_n_rows; i++) {
        const struct mg_row *r = &mg_rows[i];
        int skip = *expert >= 0 && r->of_experts ? (int)strlen(one[0]) : 0, left = (int)strlen(r->key) - skip;
        const char *name = *expert >= 0 ? rest : key;
        if (r->in_layer == in_layer && (*expert < 0 || r->of_experts) && left == (*expert < 0 ? n : n_rest) &&
            !memcmp(r->key + skip, name, (size_t)left))
            return r;
    }
    return *expert < 0 && in_layer ? find_grouped(key, n, expert) : NULL;
}

const struct mg_row *mg_find_expert(const char *key, int n, int *layer, int *expert)
{
    static const char *const wrappers[] = { "module.", "model.", "language_model." };
    int k, in_layer;

    *layer = -1;
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
        if ((k = has_prefix(key, n, wrappers[i]))) {
            key += k;
            n -= k;
            i = (size_t)-1;
        }
    if ((in_layer = k = has_prefix(key, n, LAYERS))) {
        k += number_at(key + k, n - k, layer);
        key += k;
        n -= k;
    }
    return find_row(key, n, in_layer != 0, expert);
}

const struct mg_row *mg_find(const char *key, int n, int *layer)
{
    int expert;
    const struct mg_row *r = mg_find_expert(key, n, layer, &expert);
    return r && r->of_experts ? NULL : r;
}

const struct mg_row *mg_find_group(const char *key, int n, int *layer)
{
    static const char before[] = "mlp.experts.", old[] = "weight1";
    char plain[FMT_NAME_MAX];
    int expert, k = (int)strlen(before), w = (int)strlen(old), at = n - k - w;

    if (at < 0 || memcmp(key + at, before, (size_t)k) || memcmp(key + at + k, old, (size_t)w - 1) ||
        (key[n - 1] != '1' && key[n - 1] != '2'))
        return NULL;
    int m = snprintf(plain, sizeof plain, "%.*s%sexperts.linear_fc%c.weight", at, key, before, key[n - 1]);
    return m < (int)sizeof plain ? mg_find_expert(plain, m, layer, &expert) : NULL;
}

void mg_hf_name(const struct mg_row *r, enum mg_family family, int hf, int layer, int expert,
                char name[FMT_NAME_MAX])
{
    const char *own = r->hf[family][hf], *hash = strchr(own, '#');
    char number[16] = "";
    int before = hash ? (int)(hash - own) : (int)strlen(own);

    if (hash)
        snprintf(number, sizeof number, "%d", expert);
    if (r->in_layer)
        snprintf(name, FMT_NAME_MAX, "%s%d.%.*s%s%s", family == MG_GPT2 ? "transformer.h." : "model.layers.",
                 layer, before, own, number, hash ? hash + 1 : "");
    else
        snprintf(name, FMT_NAME_MAX, "%s", own);
}

int mg_note(struct ckpt *c, const char *text, struct err *e)
{
    return c->note ? 0 : build_note(c, e, "%s", text);
}
