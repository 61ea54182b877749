/* config_latent.c - which layers have experts; and what DeepSeek's config.json says besides sizes: latent
 * attention, its router, and layers for multi-token prediction. */
#include <math.h>
#include <string.h>
#include "base/jx.h"
#include "model/config/config_parse.h"
#include "model/family.h"

/* The sizes of latent attention: none may be null, and their products are limited as those of others. */
static int check_latent(const struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    static const char *const needed[] = { "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim",
                                          "v_head_dim" };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (json_is_null(json_object_get(o, needed[i])))
            return err_set(e, ERR_CONFIG, "%s: %s is null: latent attention needs it, give a number", what,
                           needed[i]);

    if (c->latent.rope_dim % 2)
        return err_set(e, ERR_CONFIG,
                       "%s: qk_rope_head_dim %lld is odd and rotary embedding needs pairs: make it even",
                       what, (long long)c->latent.rope_dim);
    if (c->n_heads * (c->head_dim + c->latent.v_dim) > SIZE_LIMIT)
        return err_set(e, ERR_CONFIG,
                       "%s: %lld heads of qk_nope_head_dim %lld, qk_rope_head_dim %lld, v_head_dim %lld: at "
                       "most %lld for all heads",
                       what, (long long)c->n_heads, (long long)c->latent.nope_dim,
                       (long long)c->latent.rope_dim, (long long)c->latent.v_dim, (long long)SIZE_LIMIT);
    return 0;
}

/* Sizes that follow from latent attention's own, and keys that may be null. */
int config_read_latent(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    int bias = 0, neighbours = 1, rc;

    if (json_is_null(json_object_get(o, "q_lora_rank")) && json_object_get(o, "q_lora_rank"))
        c->latent.q_rank = 0;
    family_set(c, F_Q_RANK, c->latent.q_rank > 0);
    c->head_dim = c->latent.nope_dim + c->latent.rope_dim;
    TRY(check_latent(c, o, what, e));
    TRY(jx_bool(o, what, "attention_bias", &bias, e));
    TRY(jx_bool(o, what, "rope_interleave", &neighbours, e));
    if (bias)
        config_not_computed(c, "attention_bias true");
    if (!neighbours)
        config_not_computed(c, "rope_interleave false");
    if (c->n_kv != c->n_heads)
        config_not_computed(c, "%lld key-value heads of %lld heads, with latent attention",
                            (long long)c->n_kv, (long long)c->n_heads);
    rc = 0;
out:
    return rc;
}

/* Groups of experts: a group's score is the sum of its two best experts. */
static int check_groups(const struct model_config *c, const char *what, struct err *e)
{
    int64_t experts = c->n_experts, groups = c->n_groups, most;
    if (experts % groups)
        return err_set(e, ERR_CONFIG, "%s: n_group %lld does not divide the %lld experts: use a divisor",
                       what, (long long)groups, (long long)experts);
    if (groups > 1 && experts / groups < 2)
        return err_set(
            e, ERR_CONFIG,
            "%s: n_group %lld of %lld experts: a group's score needs two experts, use at most %lld "
            "groups",
            what, (long long)groups, (long long)experts, (long long)experts / 2);
    if (c->groups_kept > groups)
        return err_set(e, ERR_CONFIG, "%s: topk_group %lld of n_group %lld: at most all groups are kept",
                       what, (long long)c->groups_kept, (long long)groups);

    most = experts / groups * c->groups_kept;
    if (c->experts_per_token > most)
        return err_set(
            e, ERR_CONFIG,
            "%s: num_experts_per_tok %lld of the %lld experts of topk_group %lld groups: a token takes "
            "each at most once",
            what, (long long)c->experts_per_token, (long long)most, (long long)c->groups_kept);
    return 0;
}

/* DeepSeek's router, and which of its layers have experts. */
int config_read_router(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    const char *scores = "sigmoid", *method = "noaux_tc";
    int rc;

    TRY(jx_text(o, what, "scoring_func", &scores, e));
    TRY(jx_text(o, what, "topk_method", &method, e));
    TRY(jx_float(o, what, "routed_scaling_factor", &c->routed_factor, e));
    TRY(jx_int(o, what, "first_k_dense_replace", &c->first_sparse, e));
    if (json_object_get(o, "n_shared_experts") && json_is_null(json_object_get(o, "n_shared_experts")))
        c->n_shared = 0;
    else
        TRY(jx_int(o, what, "n_shared_experts", &c->n_shared, e));
    if (strcmp(scores, "sigmoid"))
        return err_set(e, ERR_CONFIG, "%s: scoring_func %.40s: only sigmoid is known", what, scores);
    if (strcmp(method, "noaux_tc"))
        return err_set(e, ERR_CONFIG, "%s: topk_method %.40s: only noaux_tc is known", what, method);
    if (!isfinite(c->routed_factor) || c->first_sparse < 0 || c->n_shared < 0 || c->n_shared > 1024)
        return err_set(
            e, ERR_CONFIG,
            "%s: routed_scaling_factor %g, first_k_dense_replace %lld, n_shared_experts %lld: a number "
            "and two counts are taken",
            what, c->routed_factor, (long long)c->first_sparse, (long long)c->n_shared);
    c->shared_inter = c->n_shared * c->expert_inter;
    family_set(c, F_SHARED, c->n_shared > 0);

    if (c->shared_inter > SIZE_LIMIT)
        return err_set(e, ERR_CONFIG, "%s: n_shared_experts %lld of moe_intermediate_size %lld: at most %lld",
                       what, (long long)c->n_shared, (long long)c->expert_inter, (long long)SIZE_LIMIT);
    TRY(check_groups(c, what, e));
    rc = 0;
out:
    return rc;
}

double model_latent_scale(const struct model_config *c)
{
    double scale = 1 / sqrt((double)c->head_dim), factor = 1;
    if (c->yarn_mscale_all != 0)
        factor = config_yarn_mscale(c->rope_factor, c->yarn_mscale_all);
    return scale * factor * factor;
}

/* What the family's list of sizes does not say. */
void config_write_latent(json_t *o, const struct model_config *c)
{
    if (family_has(c, F_LATENT) && !c->latent.q_rank)
        json_object_set_new(o, "q_lora_rank", json_null());
    if (!family_has(c, F_SIGMOID))
        return;
    json_object_set_new(o, "scoring_func", json_string("sigmoid"));
    json_object_set_new(o, "topk_method", json_string("noaux_tc"));
    json_object_set_new(o, "routed_scaling_factor", json_real(c->routed_factor));
    json_object_set_new(o, "first_k_dense_replace", json_integer(c->first_sparse));
    json_object_set_new(o, "n_shared_experts", json_integer(c->n_shared));
}

/* ---- layers without experts ---- */
/* mlp_only_layers of Qwen3-MoE: these have no experts. */
int config_read_dense(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    const json_t *list = json_object_get(o, "mlp_only_layers"), *v;
    size_t i;
    if (list && !json_is_null(list) && !json_is_array(list))
        return err_set(e, ERR_CONFIG, "%s: mlp_only_layers: a list of layers is taken", what);
    json_array_foreach(list, i, v) {
        json_int_t l = json_integer_value(v);
        if (!json_is_integer(v) || l < 0 || l >= MODEL_LISTED_LAYERS)
            return err_set(e, ERR_CONFIG, "%s: mlp_only_layers: numbers of layers, from 0 to %d, are taken",
                           what, MODEL_LISTED_LAYERS - 1);
        c->dense[l / 64] |= (uint64_t)1 << l % 64;
    }
    return 0;
}

json_t *config_dense_json(const struct model_config *c)
{
    json_t *a = json_array();
    for (int l = 0; l < MODEL_LISTED_LAYERS; l++)
        if (c->dense[l / 64] >> l % 64 & 1)
            json_array_append_new(a, json_integer(l));
    return a;
}

int model_config_next(struct model_config *out, const struct model_config *c, struct err *e)
{
    int sparse = model_has_experts(c, c->n_layers);

    if (!c->family->next_first)
        return err_set(e, ERR_CONFIG, "layers for multi-token prediction are not known of the family %s",
                       c->family->name);
    *out = *c;
    out->first_layer = c->n_layers;
    out->n_layers = 1;
    out->tied = 0;
    memset(out->dense, 0, sizeof out->dense);
    out->first_sparse = !sparse;
    out->sparse_step = 1;
    out->sparse_offset = 0;
    return 0;
}
