/* titan_names.c - see titan_names.h.
 *
 * torchtitan saves its modules' own names. The experts of a layer are three tensors, which hf/fused_experts.c
 * splits. Meta's Llama has the same names and order as torchtitan's. Source:
 * torchtitan/models/NAME/state_dict_adapter.py and FusedQKVLinear (described, not copied). */
#include "format/torch/titan_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "base/jx.h"

enum family { QWEN, DEEPSEEK, LLAMA, FAMILIES };
static const struct {
    const char *model_type;
    enum family family;
} families[] = {
    { "qwen3", QWEN },
    { "qwen3_moe", QWEN },
    { "deepseek_v3", DEEPSEEK },
    { "llama", LLAMA },
};

#define ALL(name) \
    { \
        name, name, name \
    }
#define MOE(name) \
    { \
        name, name, NULL \
    }
#define GROUPED(name) \
    { \
        name, NULL, name \
    }
#define QWEN_ONLY(name) \
    { \
        name, NULL, NULL \
    }
#define DEEPSEEK_ONLY(name) \
    { \
        NULL, name, NULL \
    }
/* the queries, keys and values of an optimizer's state */
#define FUSED "attention.qkv_linear.wqkv.weight"
/* of a layer: behind layers.N. there, behind model.layers.N. here; later versions nest and mark dims */
static const struct row {
    const char *theirs, *ours[FAMILIES];
} in_layer[] = {
    { "attention_norm.weight", ALL("input_layernorm.weight") },
    { "ffn_norm.weight", ALL("post_attention_layernorm.weight") },
    { "attention.wq.weight", ALL("self_attn.q_proj.weight") },
    { "attention.wk.weight", GROUPED("self_attn.k_proj.weight") },
    { "attention.wv.weight", GROUPED("self_attn.v_proj.weight") },
    { "attention.qkv_linear.wq.weight", GROUPED("self_attn.q_proj.weight") },
    { "attention.qkv_linear.wk.weight", GROUPED("self_attn.k_proj.weight") },
    { "attention.qkv_linear.wv.weight", GROUPED("self_attn.v_proj.weight") },
    { FUSED, GROUPED("self_attn.q_proj.weight") },
    { "attention.wo.weight", ALL("self_attn.o_proj.weight") },
    { "attention.q_norm.weight", { "self_attn.q_norm.weight", "self_attn.q_a_layernorm.weight", NULL } },
    { "attention.k_norm.weight", QWEN_ONLY("self_attn.k_norm.weight") },
    { "attention.wq_a.weight", DEEPSEEK_ONLY("self_attn.q_a_proj.weight") },
    { "attention.wq_b.weight", DEEPSEEK_ONLY("self_attn.q_b_proj.weight") },
    { "attention.wkv_a.weight", DEEPSEEK_ONLY("self_attn.kv_a_proj_with_mqa.weight") },
    { "attention.kv_norm.weight", DEEPSEEK_ONLY("self_attn.kv_a_layernorm.weight") },
    { "attention.wkv_b.weight", DEEPSEEK_ONLY("self_attn.kv_b_proj.weight") },
    { "feed_forward.w1.weight", ALL("mlp.gate_proj.weight") },
    { "feed_forward.w3.weight", ALL("mlp.up_proj.weight") },
    { "feed_forward.w2.weight", ALL("mlp.down_proj.weight") },
    { "moe.router.gate.weight", MOE("mlp.gate.weight") },
    { "moe.expert_bias", DEEPSEEK_ONLY("mlp.gate.e_score_correction_bias") },
    { "moe.expert_bias_E", DEEPSEEK_ONLY("mlp.gate.e_score_correction_bias") },
    { "moe.experts.w1", MOE("mlp.experts.w1") },
    { "moe.experts.w3", MOE("mlp.experts.w3") },
    { "moe.experts.w2", MOE("mlp.experts.w2") },
    { "moe.experts.w1_EFD", MOE("mlp.experts.w1") },
    { "moe.experts.w3_EFD", MOE("mlp.experts.w3") },
    { "moe.experts.w2_EDF", MOE("mlp.experts.w2") },
    { "moe.routed_experts.inner_experts.w1_EFD", MOE("mlp.experts.w1") },
    { "moe.routed_experts.inner_experts.w3_EFD", MOE("mlp.experts.w3") },
    { "moe.routed_experts.inner_experts.w2_EDF", MOE("mlp.experts.w2") },
    { "moe.shared_experts.w1.weight", DEEPSEEK_ONLY("mlp.shared_experts.gate_proj.weight") },
    { "moe.shared_experts.w3.weight", DEEPSEEK_ONLY("mlp.shared_experts.up_proj.weight") },
    { "moe.shared_experts.w2.weight", DEEPSEEK_ONLY("mlp.shared_experts.down_proj.weight") },
};
static const struct row at_top[] = {
    { "tok_embeddings.weight", ALL("model.embed_tokens.weight") },
    { "norm.weight", ALL("model.norm.weight") },
    { "output.weight", ALL("lm_head.weight") },
};

void titan_read(const char *config, struct titan *t)
{
    struct err ignored = { 0 };
    const char *type = NULL;
    int64_t hidden = 0;
    *t = (struct titan){ .family = -1 };
    json_t *root = config ? jx_parse(config, strlen(config), FMT_CONFIG, &ignored) : NULL;
    if (json_is_object(root) && jx_text(root, FMT_CONFIG, "model_type", &type, &ignored) == 1)
        for (size_t i = 0; i < sizeof families / sizeof *families; i++)
            if (!strcmp(families[i].model_type, type))
                t->family = (int)families[i].family;
    hidden = json_integer_value(json_object_get(root, "hidden_size"));
    t->heads = json_integer_value(json_object_get(root, "num_attention_heads"));
    t->groups = json_integer_value(json_object_get(root, "num_key_value_heads"));
    t->head_dim = json_integer_value(json_object_get(root, "head_dim"));
    t->tied = json_is_true(json_object_get(root, "tie_word_embeddings"));
    if (!t->groups)
        t->groups = t->heads;
    if (!t->head_dim && t->heads > 0)
        t->head_dim = hidden / t->heads;
    json_decref(root);
}

static const struct row *find(const struct row *rows, size_t n_rows, const char *name, int n, int family)
{
    for (size_t i = 0; i < n_rows; i++)
        if ((int)strlen(rows[i].theirs) == n && !memcmp(rows[i].theirs, name, (size_t)n))
            return rows[i].ours[family] ? &rows[i] : NULL;
    return NULL;
}

/* The order of the rows of a tensor of a layer. */
static enum titan_order order_of(const char *ours, int family)
{
    int is_qk = !strcmp(ours, "self_attn.q_proj.weight") || !strcmp(ours, "self_attn.k_proj.weight");
    return family == LLAMA && is_qk ? TITAN_PAIRS : TITAN_AS_IS;
}

int titan_name(const struct titan *t, const char *name, int n, struct titan_name *out)
{
    static const char layers[] = "layers.", *const parts[] = { "self_attn.q_proj.weight",
                                                               "self_attn.k_proj.weight",
                                                               "self_attn.v_proj.weight" };
    int k = (int)sizeof layers - 1, digits = 0;
    const struct row *r = NULL;

    if (t->family < 0)
        return 0;
    while (n > k && !memcmp(name, layers, (size_t)k) && k + digits < n &&
           isdigit((unsigned char)name[k + digits]))
        digits++;
    int behind = k + digits + 1; /* where the name behind "layers.N." begins */
    if (!digits)
        r = find(at_top, sizeof at_top / sizeof *at_top, name, n, t->family);
    else if (behind < n && name[behind - 1] == '.')
        r = find(in_layer, sizeof in_layer / sizeof *in_layer, name + behind, n - behind, t->family);
    if (!r)
        return 0;

    int fused = !strcmp(r->theirs, FUSED);
    out->n = fused ? 3 : 1;
    for (int i = 0; i < out->n; i++) {
        const char *to = fused ? parts[i] : r->ours[t->family];
        out->order[i] = order_of(to, t->family);
        snprintf(out->to[i], sizeof out->to[i], "%s%.*s%s", digits ? "model." : "", digits ? behind : 0, name,
                 to);
    }
    return 1;
}
