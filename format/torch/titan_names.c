/* titan_names.c - see titan_names.h.
 *
 * torchtitan saves its modules' own names. Families whose rows are in Hugging Face's order have a column
 * here; Llama has not: its queries and keys are permuted for the complex form of RoPE. The experts of a layer
 * are three tensors, which hf/fused_experts.c splits. Source: torchtitan/models/NAME/state_dict_adapter.py
 * (described, not copied). */
#include "format/torch/titan_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "base/jx.h"

enum family { QWEN, DEEPSEEK, FAMILIES };
static const struct {
    const char *model_type;
    enum family family;
} families[] = {
    { "qwen3", QWEN },
    { "qwen3_moe", QWEN },
    { "deepseek_v3", DEEPSEEK },
};

#define BOTH(name) \
    { \
        name, name \
    }
#define QWEN_ONLY(name) \
    { \
        name, NULL \
    }
#define DEEPSEEK_ONLY(name) \
    { \
        NULL, name \
    }
/* of a layer: behind layers.N. there, behind model.layers.N. here; later versions nest and mark dims */
static const struct row {
    const char *theirs, *ours[FAMILIES];
} in_layer[] = {
    { "attention_norm.weight", BOTH("input_layernorm.weight") },
    { "ffn_norm.weight", BOTH("post_attention_layernorm.weight") },
    { "attention.wq.weight", BOTH("self_attn.q_proj.weight") },
    { "attention.wk.weight", QWEN_ONLY("self_attn.k_proj.weight") },
    { "attention.wv.weight", QWEN_ONLY("self_attn.v_proj.weight") },
    { "attention.qkv_linear.wq.weight", QWEN_ONLY("self_attn.q_proj.weight") },
    { "attention.qkv_linear.wk.weight", QWEN_ONLY("self_attn.k_proj.weight") },
    { "attention.qkv_linear.wv.weight", QWEN_ONLY("self_attn.v_proj.weight") },
    { "attention.wo.weight", BOTH("self_attn.o_proj.weight") },
    { "attention.q_norm.weight", { "self_attn.q_norm.weight", "self_attn.q_a_layernorm.weight" } },
    { "attention.k_norm.weight", QWEN_ONLY("self_attn.k_norm.weight") },
    { "attention.wq_a.weight", DEEPSEEK_ONLY("self_attn.q_a_proj.weight") },
    { "attention.wq_b.weight", DEEPSEEK_ONLY("self_attn.q_b_proj.weight") },
    { "attention.wkv_a.weight", DEEPSEEK_ONLY("self_attn.kv_a_proj_with_mqa.weight") },
    { "attention.kv_norm.weight", DEEPSEEK_ONLY("self_attn.kv_a_layernorm.weight") },
    { "attention.wkv_b.weight", DEEPSEEK_ONLY("self_attn.kv_b_proj.weight") },
    { "feed_forward.w1.weight", BOTH("mlp.gate_proj.weight") },
    { "feed_forward.w3.weight", BOTH("mlp.up_proj.weight") },
    { "feed_forward.w2.weight", BOTH("mlp.down_proj.weight") },
    { "moe.router.gate.weight", BOTH("mlp.gate.weight") },
    { "moe.expert_bias", DEEPSEEK_ONLY("mlp.gate.e_score_correction_bias") },
    { "moe.expert_bias_E", DEEPSEEK_ONLY("mlp.gate.e_score_correction_bias") },
    { "moe.experts.w1", BOTH("mlp.experts.w1") },
    { "moe.experts.w3", BOTH("mlp.experts.w3") },
    { "moe.experts.w2", BOTH("mlp.experts.w2") },
    { "moe.experts.w1_EFD", BOTH("mlp.experts.w1") },
    { "moe.experts.w3_EFD", BOTH("mlp.experts.w3") },
    { "moe.experts.w2_EDF", BOTH("mlp.experts.w2") },
    { "moe.routed_experts.inner_experts.w1_EFD", BOTH("mlp.experts.w1") },
    { "moe.routed_experts.inner_experts.w3_EFD", BOTH("mlp.experts.w3") },
    { "moe.routed_experts.inner_experts.w2_EDF", BOTH("mlp.experts.w2") },
    { "moe.shared_experts.w1.weight", DEEPSEEK_ONLY("mlp.shared_experts.gate_proj.weight") },
    { "moe.shared_experts.w3.weight", DEEPSEEK_ONLY("mlp.shared_experts.up_proj.weight") },
    { "moe.shared_experts.w2.weight", DEEPSEEK_ONLY("mlp.shared_experts.down_proj.weight") },
};
static const struct row at_top[] = {
    { "tok_embeddings.weight", BOTH("model.embed_tokens.weight") },
    { "norm.weight", BOTH("model.norm.weight") },
    { "output.weight", BOTH("lm_head.weight") },
};

int titan_family(const char *config)
{
    struct err ignored = { 0 };
    const char *type = NULL;
    int found = -1;
    json_t *root = config ? jx_parse(config, strlen(config), FMT_CONFIG, &ignored) : NULL;
    if (json_is_object(root) && jx_text(root, FMT_CONFIG, "model_type", &type, &ignored) == 1)
        for (size_t i = 0; i < sizeof families / sizeof *families; i++)
            if (!strcmp(families[i].model_type, type))
                found = (int)families[i].family;
    json_decref(root);
    return found;
}

static const char *find(const struct row *rows, size_t n_rows, const char *name, int n, int family)
{
    for (size_t i = 0; i < n_rows; i++)
        if ((int)strlen(rows[i].theirs) == n && !memcmp(rows[i].theirs, name, (size_t)n))
            return rows[i].ours[family];
    return NULL;
}

int titan_name(int family, const char *name, int n, char out[FMT_NAME_MAX + 1])
{
    static const char layers[] = "layers.";
    int k = (int)sizeof layers - 1, digits = 0;
    const char *to = NULL;

    if (family < 0)
        return 0;
    while (n > k && !memcmp(name, layers, (size_t)k) && k + digits < n &&
           isdigit((unsigned char)name[k + digits]))
        digits++;
    int behind = k + digits + 1; /* where the name behind "layers.N." begins */
    if (!digits)
        to = find(at_top, sizeof at_top / sizeof *at_top, name, n, family);
    else if (behind < n && name[behind - 1] == '.')
        to = find(in_layer, sizeof in_layer / sizeof *in_layer, name + behind, n - behind, family);
    if (to)
        snprintf(out, FMT_NAME_MAX + 1, "%s%.*s%s", digits ? "model." : "", digits ? behind : 0, name, to);
    return to != NULL;
}
