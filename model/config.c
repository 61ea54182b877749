/* config.c - see config.h. Keys and defaults as in transformers (family.c); both layouts of config.json
 * (rope_theta and rope_scaling at the top, or everything in rope_parameters). */
#include "model/config/config_parse.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/fmath.h"
#include "base/jx.h"
#include "kernels/tree.h"
#include "model/family.h"

static int64_t gcd64(int64_t a, int64_t b) { return b ? gcd64(b, a % b) : a; }

int model_grain_formula(const struct model_config *c)
{
    int64_t g = gcd64(8, gcd64(c->n_heads, c->inter));
    return (int)(family_has(c, F_EXPERTS) ? gcd64(g, c->expert_inter) : g);
}

/* Is this layer in a set of layers? */
static int is_listed(const uint64_t *set, int64_t layer)
{
    return layer < MODEL_LISTED_LAYERS && set[layer / 64] >> layer % 64 & 1;
}

int model_has_experts(const struct model_config *c, int64_t layer)
{
    return family_has(c, F_EXPERTS) && !is_listed(c->dense, layer) && layer >= c->first_sparse &&
           (layer + c->sparse_offset) % c->sparse_step == 0;
}

int64_t model_layer_window(const struct model_config *c, int64_t layer)
{
    return is_listed(c->windowed, layer) ? c->window : 0;
}

static void defaults(struct model_config *c, const struct family *f)
{
    memset(c, 0, sizeof *c);
    c->family = f;
    c->features = f->features;

    c->hidden = f->defaults.hidden;
    c->n_layers = f->defaults.n_layers;
    c->n_heads = f->defaults.n_heads;
    c->n_kv = f->defaults.n_kv;
    c->head_dim = f->defaults.head_dim;
    c->inter = f->defaults.inter;
    c->vocab = f->defaults.vocab;
    c->max_pos = f->defaults.max_pos;
    c->window = f->defaults.window;
    c->n_experts = f->defaults.n_experts;
    c->expert_inter = f->defaults.expert_inter;
    c->experts_per_token = f->defaults.experts_per_token;
    c->shared_inter = f->defaults.shared_inter;
    c->sparse_step = 1;
    c->swiglu_limit = f->defaults.swiglu_limit;
    c->swiglu_alpha = f->defaults.swiglu_alpha;
    c->sparse_offset = !f->defaults.first_has_experts;
    c->first_sparse = f->defaults.first_sparse;
    c->n_shared = f->defaults.n_shared;
    c->n_groups = f->defaults.n_groups ? f->defaults.n_groups : 1;
    c->groups_kept = f->defaults.groups_kept ? f->defaults.groups_kept : 1;
    c->routed_factor = f->defaults.routed_factor > 0 ? f->defaults.routed_factor : 1;
    c->latent.q_rank = f->defaults.q_rank;
    c->latent.kv_rank = f->defaults.kv_rank;
    c->latent.rope_dim = f->defaults.rope_dim;
    c->latent.nope_dim = f->defaults.nope_dim;
    c->latent.v_dim = f->defaults.v_dim;

    c->norm_eps = f->defaults.eps;
    c->tied = f->defaults.tied;
    c->query_scalar = f->defaults.query_scalar;
    c->attn_softcap = f->defaults.attn_softcap;
    c->final_softcap = f->defaults.final_softcap;
    c->rope_theta = f->defaults.rope_theta > 0 ? f->defaults.rope_theta : 10000.0;
    c->rope_local_theta = f->defaults.rope_local_theta;
    c->rope_factor = 1.0;
    c->init_range = 0.02;

    c->bos = f->defaults.bos;
    c->n_eos = f->defaults.eos >= 0;
    c->eos[0] = f->defaults.eos;
}

void config_not_computed(struct model_config *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!c->not_computed[0])
        vsnprintf(c->not_computed, sizeof c->not_computed, format, args);
    va_end(args);
}

int model_config_computed(const struct model_config *c, struct err *e)
{
    if (c->not_computed[0])
        return err_set(e, ERR_CONFIG, "config.json: %s is not computed yet: reshard alone takes such a model",
                       c->not_computed);
    return 0;
}

/* ---- presets ---- */
static const struct preset {
    const char *name;
    int64_t hidden, layers, heads, kv, inter, vocab, max_pos;
    int tied;
    double theta;
    int64_t experts, chosen; /* experts of a layer, each as wide as `inter`; 0: none */
} presets[] = {
    { "tiny", 128, 5, 8, 4, 352, 256, 2048, 0, 10000, 0, 0 },
    { "10m", 384, 6, 8, 4, 1024, 256, 2048, 0, 10000, 0, 0 },
    { "110m", 768, 12, 12, 12, 2048, 32000, 2048, 1, 10000, 0, 0 },
    { "1b", 2048, 16, 32, 8, 8192, 128256, 8192, 1, 500000, 0, 0 },
    { "7b", 4096, 32, 32, 32, 11008, 32000, 4096, 0, 10000, 0, 0 },
    { "70b", 8192, 80, 64, 8, 28672, 32000, 4096, 0, 10000, 0, 0 },
    { "tiny-moe", 128, 5, 8, 4, 176, 256, 2048, 0, 10000, 8, 2 },
    { "10m-moe", 384, 6, 8, 4, 512, 256, 2048, 0, 10000, 8, 2 },
};

int model_config_preset(struct model_config *c, const char *name, struct err *e)
{
    char known[128] = "";
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        const struct preset *p = &presets[i];
        strcat(strcat(known, i ? ", " : ""), p->name);
        if (strcmp(p->name, name))
            continue;

        defaults(c, family_find(p->experts ? "mixtral" : "llama"));
        c->hidden = p->hidden;
        c->n_layers = p->layers;
        c->n_heads = p->heads;
        c->n_kv = p->kv;
        c->head_dim = c->rope_dim = p->hidden / p->heads;
        c->inter = p->inter;
        c->vocab = p->vocab;
        c->max_pos = p->max_pos;
        c->n_experts = p->experts;
        c->experts_per_token = p->chosen;
        c->expert_inter = p->experts ? p->inter : 0;

        c->tied = p->tied;
        family_set(c, F_UNTIED, !p->tied);
        c->rope_theta = p->theta;
        c->norm_eps = 1e-5;
        c->grain = model_grain_formula(c);

        if (p->vocab == 256) { /* a byte model has no special tokens */
            c->bos = -1;
            c->n_eos = 0;
        }
        return 0;
    }
    return err_set(e, ERR_USAGE, "--model %s: neither a file nor one of the presets %s", name, known);
}

/* ---- parsing ---- */
#define LAYER_LIMIT 100000

static int count_key(const json_t *o, const char *what, const char *key, int64_t *out, struct err *e)
{
    int rc = jx_int(o, what, key, out, e);
    if (rc > 0 && (*out < 1 || *out > SIZE_LIMIT))
        return err_set(e, ERR_CONFIG, "%s: %s is %lld: it must be from 1 to %lld", what, key, (long long)*out,
                       (long long)SIZE_LIMIT);
    return rc;
}

/* Two keys that mean one size must agree where a file has both. */
static int check_spellings(const struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    const struct config_size *size = c->family->size;
    for (int k = 0; size[k].key; k++)
        for (int j = 0; j < k; j++) {
            const json_t *x = json_object_get(o, size[j].key), *y = json_object_get(o, size[k].key);
            if (size[j].member == size[k].member && json_is_integer(x) && json_is_integer(y) &&
                !json_equal(x, y))
                return err_set(e, ERR_CONFIG,
                               "%s: %s is %lld and %s is %lld: both name one number, make them agree", what,
                               size[j].key, (long long)json_integer_value(x), size[k].key,
                               (long long)json_integer_value(y));
        }
    return 0;
}

static int parse_sizes(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    int rc = 0;
    for (const struct config_size *k = c->family->size; k->key; k++)
        TRY(count_key(o, what, k->key, (int64_t *)(void *)((char *)c + k->member), e));
    TRY(check_spellings(c, o, what, e));
    if (family_has(c, F_LATENT))
        TRY(config_read_latent(c, o, what, e));

    /* Sizes that follow from others where the file leaves them out. */
    if (!c->inter)
        c->inter = 4 * c->hidden;
    if (!c->n_kv)
        c->n_kv = c->n_heads;
    if (family_has(c, F_EXPERTS) && !c->expert_inter)
        c->expert_inter = c->inter;
    if (!c->head_dim) {
        if (c->hidden % c->n_heads)
            return err_set(e, ERR_CONFIG,
                           "%s: hidden_size %lld is not a multiple of num_attention_heads %lld and head_dim "
                           "is not given: give head_dim",
                           what, (long long)c->hidden, (long long)c->n_heads);
        c->head_dim = c->hidden / c->n_heads;
    }

    if (family_has(c, F_EXPERTS) && c->experts_per_token > c->n_experts)
        return err_set(e, ERR_CONFIG,
                       "%s: num_experts_per_tok %lld of %lld experts: a token takes each at most once", what,
                       (long long)c->experts_per_token, (long long)c->n_experts);
    if (c->n_heads % c->n_kv)
        return err_set(
            e, ERR_CONFIG,
            "%s: num_attention_heads %lld is not a multiple of num_key_value_heads %lld: make it one", what,
            (long long)c->n_heads, (long long)c->n_kv);
    if (c->n_layers > LAYER_LIMIT || c->n_heads * c->head_dim > SIZE_LIMIT)
        return err_set(
            e, ERR_CONFIG,
            "%s: %lld layers of %lld heads of %lld: at most %d layers, and %lld for heads x head_dim", what,
            (long long)c->n_layers, (long long)c->n_heads, (long long)c->head_dim, LAYER_LIMIT,
            (long long)SIZE_LIMIT);
    if (c->head_dim % 2 && !family_learns_positions(c) && !family_has(c, F_LATENT))
        return err_set(e, ERR_CONFIG,
                       "%s: head_dim %lld is odd and rotary embedding needs pairs: make it even", what,
                       (long long)c->head_dim);
    rc = 0;
out:
    return rc < 0 ? rc : 0;
}

static const struct {
    const char *name;
    enum rope_kind kind;
} rope_kinds[] = {
    { "default", ROPE_DEFAULT },
    { "linear", ROPE_LINEAR },
    { "llama3", ROPE_LLAMA3 },
    { "yarn", ROPE_YARN },
};
#define ROPE_KINDS ((int)(sizeof rope_kinds / sizeof rope_kinds[0]))

/* Checks what the kind of RoPE needs. original: original_max_position_embeddings of the file, 0 where it is
 * missing. */
static int check_rope(struct model_config *c, const char *what, double original, struct err *e)
{
    if (!(c->rope_theta > 1) || !(c->rope_factor > 0) || !isfinite(c->rope_theta) ||
        !isfinite(c->rope_factor))
        return err_set(e, ERR_CONFIG, "%s: rope_theta %g, factor %g: both must be positive", what,
                       c->rope_theta, c->rope_factor);
    if (original < 0 || original > (double)SIZE_LIMIT)
        return err_set(e, ERR_CONFIG, "%s: original_max_position_embeddings %g: it must be from 1 to %lld",
                       what, original, (long long)SIZE_LIMIT);

    if (c->rope == ROPE_LLAMA3 && (original < 1 || !(c->rope_high_freq > c->rope_low_freq)))
        return err_set(e, ERR_CONFIG,
                       "%s: rope_type llama3 needs original_max_position_embeddings and low_freq_factor < "
                       "high_freq_factor",
                       what);
    if (c->rope == ROPE_YARN && !(c->yarn_fast > c->yarn_slow && c->yarn_slow > 0 && c->yarn_attention >= 0 &&
                                  isfinite(c->yarn_attention)))
        return err_set(
            e, ERR_CONFIG,
            "%s: rope_type yarn: beta_fast %g must be over beta_slow %g, attention_factor %g positive", what,
            c->yarn_fast, c->yarn_slow, c->yarn_attention);

    if (c->rope == ROPE_LLAMA3 || c->rope == ROPE_YARN)
        c->rope_original_max_pos = original >= 1 ? (int64_t)original : c->max_pos;
    return 0;
}

/* YaRN's factor on cos and sin for one of DeepSeek's keys mscale and mscale_all_dim; transformers divides
 * the two factors. */
double config_yarn_mscale(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * fm_log(factor) + 1 : 1;
}

/* The part of a head that is rotated. */
static int parse_rotary(struct model_config *c, const json_t *o, const json_t *r, const char *what,
                        struct err *e)
{
    double part = c->family->defaults.rotary > 0 ? c->family->defaults.rotary : 1;
    int rc;

    c->rope_dim = c->latent.rope_dim;
    if (family_has(c, F_LATENT))
        return 0;
    TRY(jx_float(o, what, "rotary_pct", &part, e));
    TRY(jx_float(o, what, "partial_rotary_factor", &part, e));
    if (json_is_object(r))
        TRY(jx_float(r, what, "partial_rotary_factor", &part, e));
    c->rope_dim = part > 0 && part <= 1 ? (int64_t)((double)c->head_dim * part) : 0;
    if (c->rope_dim < 2 || c->rope_dim % 2)
        return err_set(
            e, ERR_CONFIG,
            "%s: partial_rotary_factor %g of head_dim %lld: an even number of components, 2 or more, "
            "is rotated",
            what, part, (long long)c->head_dim);
    rc = 0;
out:
    return rc < 0 ? rc : 0;
}

/* Gemma 3: layers with a window have a theta of their own. In the newer layout *r holds an object for each
 * type of layers; it becomes that of the layers without a window. */
static int parse_local_rope(struct model_config *c, const json_t *o, const json_t **r, const char *what,
                            struct err *e)
{
    const json_t *local = json_object_get(*r, "sliding_attention");
    const char *kind = "default";
    int rc;

    TRY(jx_float(o, what, "rope_local_base_freq", &c->rope_local_theta, e));
    if (json_is_object(local)) {
        TRY(jx_float(local, what, "rope_theta", &c->rope_local_theta, e));
        TRY(jx_text(local, what, "rope_type", &kind, e));
        *r = json_object_get(*r, "full_attention");
    }
    if (strcmp(kind, "default"))
        config_not_computed(c, "rope_type %.40s of sliding_attention", kind);
    if (!(c->rope_local_theta > 1) || !isfinite(c->rope_local_theta))
        return err_set(e, ERR_CONFIG, "%s: rope_local_base_freq %g: it must be over 1", what,
                       c->rope_local_theta);
    rc = 0;
out:
    return rc < 0 ? rc : 0;
}

static int parse_rope(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    const json_t *r = json_object_get(o, "rope_parameters");
    const char *kind = "default";
    double original = 0, mscale = 0, mscale_all = 0;
    int rc, i = 0, truncate = 1;
    c->yarn_fast = 32;
    c->yarn_slow = 1;

    TRY(jx_float(o, what, "rotary_emb_base", &c->rope_theta, e));
    TRY(jx_float(o, what, "rope_theta", &c->rope_theta, e));
    if (c->family->defaults.rope_local_theta > 0)
        TRY(parse_local_rope(c, o, &r, what, e));
    TRY(parse_rotary(c, o, r, what, e));
    if (!json_is_object(r))
        r = json_object_get(o, "rope_scaling");
    if (json_is_object(r)) {
        const struct {
            const char *key;
            double *to;
        } number[] = {
            { "rope_theta", &c->rope_theta },
            { "factor", &c->rope_factor },
            { "low_freq_factor", &c->rope_low_freq },
            { "high_freq_factor", &c->rope_high_freq },
            { "original_max_position_embeddings", &original },
            { "beta_fast", &c->yarn_fast },
            { "beta_slow", &c->yarn_slow },
            { "attention_factor", &c->yarn_attention },
            { "mscale", &mscale },
            { "mscale_all_dim", &mscale_all },
        };
        TRY(jx_text(r, what, "type", &kind, e));
        TRY(jx_text(r, what, "rope_type", &kind, e));
        TRY(jx_bool(r, what, "truncate", &truncate, e));
        for (size_t k = 0; k < sizeof number / sizeof number[0]; k++)
            TRY(jx_float(r, what, number[k].key, number[k].to, e));
    }

    while (i < ROPE_KINDS && strcmp(kind, rope_kinds[i].name))
        i++;
    if (i == ROPE_KINDS)
        config_not_computed(c, "rope_type %.40s", kind);
    else
        c->rope = rope_kinds[i].kind;

    c->yarn_exact = c->rope == ROPE_YARN && !truncate;
    if (c->rope != ROPE_YARN)
        c->yarn_fast = c->yarn_slow = c->yarn_attention = 0;
    if (c->rope == ROPE_YARN && isfinite(mscale) && isfinite(mscale_all)) {
        c->yarn_mscale = mscale;
        c->yarn_mscale_all = mscale_all;
    }
    if (c->rope == ROPE_YARN && mscale != 0 && mscale_all != 0 && !(c->yarn_attention > 0))
        c->yarn_attention = config_yarn_mscale(c->rope_factor, mscale) /
                            config_yarn_mscale(c->rope_factor, mscale_all);
    rc = check_rope(c, what, original, e);
out:
    return rc < 0 ? rc : 0;
}

/* The family's switches. Other keys that change the computation must have the value that is computed. */
static int parse_features(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    static const struct {
        const char *key;
        int wanted;
    } fixed[] = {
        { "scale_attn_weights", 1 },
        { "scale_attn_by_inverse_layer_idx", 0 },
        { "add_cross_attention", 0 },
        { "use_bidirectional_attention", 0 },
    };
    static const char *const dropouts[] = { "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop",
                                            "hidden_dropout" };
    const char *act = c->family->acts[0];
    int rc, on, known = 0;

    for (const struct config_switch *k = c->family->flag; k->key; k++) {
        on = family_has(c, k->features);
        TRY(jx_bool(o, what, k->key, &on, e));
        family_set(c, k->features, on);
    }

    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        on = fixed[i].wanted;
        TRY(jx_bool(o, what, fixed[i].key, &on, e));
        if (on != fixed[i].wanted)
            config_not_computed(c, "%s %s", fixed[i].key, on ? "true" : "false");
    }

    for (size_t i = 0; i < sizeof dropouts / sizeof *dropouts; i++) {
        double p = 0;
        TRY(jx_float(o, what, dropouts[i], &p, e));
        c->dropout = p > c->dropout ? p : c->dropout;
    }

    TRY(jx_text(o, what, c->family->act_key, &act, e));
    for (int i = 0; i < 3 && c->family->acts[i]; i++)
        known |= !strcmp(act, c->family->acts[i]);
    if (!known)
        config_not_computed(c, "%s %.40s", c->family->act_key, act);

    TRY(jx_bool(o, what, "tie_word_embeddings", &c->tied, e));
    family_set(c, F_UNTIED, !c->tied);
    rc = 0;
out:
    return rc < 0 ? rc : 0;
}

/* How gpt-oss clamps the activation of its experts. */
static int parse_clamp(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    int rc = 0;
    if (!(c->family->defaults.swiglu_limit > 0))
        return 0;
    TRY(jx_float(o, what, "swiglu_limit", &c->swiglu_limit, e));
    TRY(jx_float(o, what, "swiglu_alpha", &c->swiglu_alpha, e));
    if (!(c->swiglu_limit > 0 && c->swiglu_alpha > 0 && c->swiglu_limit < 1e30 && c->swiglu_alpha < 1e30))
        return err_set(e, ERR_CONFIG, "%s: swiglu_limit %g, swiglu_alpha %g: both must be positive", what,
                       c->swiglu_limit, c->swiglu_alpha);
out:
    return rc < 0 ? rc : 0;
}

/* Scales and caps of scores and logits. */
static int parse_numbers(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    for (const struct config_number *k = c->family->number; k && k->key; k++) {
        double *to = (double *)(void *)((char *)c + k->member);
        if (json_is_null(json_object_get(o, k->key)))
            *to = 0;
        if (jx_float(o, what, k->key, to, e) < 0)
            return -e->code;
        if (!(*to >= 0) || !isfinite(*to) || (*to == 0 && json_is_number(json_object_get(o, k->key))))
            return err_set(e, ERR_CONFIG, "%s: %s is %g: it must be positive, or null", what, k->key, *to);
    }
    return 0;
}

static int reads_size(const struct family *f, const char *key)
{
    for (const struct config_size *k = f->size; k->key; k++)
        if (!strcmp(k->key, key))
            return 1;
    return 0;
}

/* Keys of routers that choose in another way than by the largest score of a softmax. */
static int check_softmax_router(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    const char *scores = "softmax", *method = "greedy";
    int64_t groups = 1;
    int rc;

    if (reads_size(c->family, "n_group")) /* the family has groups, and a router of its own */
        return 0;
    TRY(jx_text(o, what, "scoring_func", &scores, e));
    TRY(jx_text(o, what, "topk_method", &method, e));
    TRY(jx_int(o, what, "n_group", &groups, e));
    if (strcmp(scores, "softmax"))
        config_not_computed(c, "scoring_func %.40s", scores);
    if (strcmp(method, "greedy"))
        config_not_computed(c, "topk_method %.40s", method);
    if (groups != 1)
        config_not_computed(c, "n_group %lld", (long long)groups);
    rc = 0;
out:
    return rc < 0 ? rc : 0;
}

static int parse_eos(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    const json_t *v = json_object_get(o, "eos_token_id");
    if (json_object_get(o, "eos_token_id"))
        c->n_eos = 0;

    if (json_is_integer(v)) {
        c->eos[c->n_eos++] = json_integer_value(v);
    } else if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            if (!json_is_integer(json_array_get(v, i)) || c->n_eos == 8)
                return err_set(e, ERR_CONFIG, "%s: eos_token_id: up to 8 integers are taken", what);
            c->eos[c->n_eos++] = json_integer_value(json_array_get(v, i));
        }
    } else if (v && !json_is_null(v)) {
        return err_set(e, ERR_CONFIG, "%s: eos_token_id: an integer or a list of up to 8 is taken", what);
    }

    if (json_object_get(o, "bos_token_id"))
        c->bos = -1;
    return jx_int(o, what, "bos_token_id", &c->bos, e) < 0 ? -e->code : 0;
}

static int parse_object(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    const char *type = NULL, *dtype = "float32";
    char known[256];
    int64_t grain = 0;
    int rc;

    TRY(jx_text(o, what, "model_type", &type, e));
    if (!type)
        return err_set(e, ERR_CONFIG, "%s: no model_type: is it a model's config.json", what);
    if (!family_find(type))
        return err_set(e, ERR_CONFIG, "%s: model_type %.60s is not known yet: %s are", what, type,
                       family_names(known));

    defaults(c, family_find(type));
    TRY(parse_sizes(c, o, what, e));
    TRY(parse_features(c, o, what, e));
    TRY(parse_numbers(c, o, what, e));
    if (!family_learns_positions(c))
        TRY(parse_rope(c, o, what, e));
    TRY(config_read_windows(c, o, what, e));
    if (family_has(c, F_EXPERTS))
        TRY(config_read_dense(c, o, what, e));
    if (family_has(c, F_EXPERTS))
        TRY(check_softmax_router(c, o, what, e));
    if (family_has(c, F_EXPERTS))
        TRY(config_read_untrained(c, o, what, e));
    TRY(parse_clamp(c, o, what, e));
    if (family_has(c, F_SIGMOID))
        TRY(config_read_router(c, o, what, e));
    TRY(parse_eos(c, o, what, e));

    TRY(jx_float(o, what, c->family->eps_key, &c->norm_eps, e));
    TRY(jx_float(o, what, "initializer_range", &c->init_range, e));
    if (!(c->norm_eps >= 0 && c->norm_eps < 1) || !(c->init_range >= 0 && c->init_range < 1e6))
        return err_set(e, ERR_CONFIG, "%s: %s %g, initializer_range %g: both must be 0 or more, and small",
                       what, c->family->eps_key, c->norm_eps, c->init_range);

    TRY(jx_text(o, what, "torch_dtype", &dtype, e));
    TRY(jx_text(o, what, "dtype", &dtype, e));
    c->bf16 = !strcmp(dtype, "bfloat16");

    c->grain = model_grain_formula(c);
    TRY(jx_int(o, what, "shardline_grain", &grain, e));
    c->grain_given = rc > 0;
    if (c->grain_given && (grain < 1 || grain > GRAIN_MAX || c->n_heads % grain))
        return err_set(e, ERR_CONFIG,
                       "%s: shardline_grain %lld does not divide the %lld attention heads or is over %d: "
                       "make it a divisor",
                       what, (long long)grain, (long long)c->n_heads, GRAIN_MAX);
    c->grain = c->grain_given ? (int)grain : c->grain;
    rc = 0;
out:
    return rc < 0 ? rc : 0;
}

int model_config_parse(struct model_config *c, const char *text, const char *what, struct err *e)
{
    json_t *o = jx_parse(text, strlen(text), what, e);
    if (!o)
        return -e->code;

    int rc;
    if (json_is_object(o))
        rc = parse_object(c, o, what, e);
    else
        rc = err_set(e, ERR_CONFIG, "%s: not a JSON object: is it a model's config.json", what);
    json_decref(o);
    return rc;
}

/* ---- writing and comparing ---- */
static json_t *rope_json(const struct model_config *c)
{
    json_t *r;
    if (c->rope == ROPE_DEFAULT)
        return json_null();

    r = json_pack("{s:s, s:f}", "rope_type", rope_kinds[c->rope].name, "factor", c->rope_factor);
    if (c->rope_original_max_pos)
        json_object_set_new(r, "original_max_position_embeddings", json_integer(c->rope_original_max_pos));

    if (c->rope == ROPE_LLAMA3) {
        json_object_set_new(r, "low_freq_factor", json_real(c->rope_low_freq));
        json_object_set_new(r, "high_freq_factor", json_real(c->rope_high_freq));
    }

    if (c->rope == ROPE_YARN) {
        json_object_set_new(r, "beta_fast", json_real(c->yarn_fast));
        json_object_set_new(r, "beta_slow", json_real(c->yarn_slow));
        json_object_set_new(r, "truncate", json_boolean(!c->yarn_exact));
        if (c->yarn_attention > 0)
            json_object_set_new(r, "attention_factor", json_real(c->yarn_attention));
        if (c->yarn_mscale != 0)
            json_object_set_new(r, "mscale", json_real(c->yarn_mscale));
        if (c->yarn_mscale_all != 0)
            json_object_set_new(r, "mscale_all_dim", json_real(c->yarn_mscale_all));
    }
    return r;
}

/* A number without a fraction is written as an integer; 0 as null. */
static json_t *number_json(double x)
{
    if (!(x > 0))
        return json_null();
    return x < 1e15 && floor(x) == x ? json_integer((json_int_t)x) : json_real(x);
}

/* RoPE in the older layout, with what only some families have. */
static void set_rope(json_t *o, const struct model_config *c)
{
    json_object_set_new(o, "rope_theta", json_real(c->rope_theta));
    json_object_set_new(o, "rope_scaling", rope_json(c));
    if (c->rope_local_theta > 0)
        json_object_set_new(o, "rope_local_base_freq", json_real(c->rope_local_theta));
    if (c->family->defaults.rotary > 0) {
        json_object_set_new(o, "rotary_emb_base", json_real(c->rope_theta));
        json_object_set_new(o, "rotary_pct", json_real((double)c->rope_dim / (double)c->head_dim));
    } else if (c->rope_dim != c->head_dim) {
        json_object_set_new(o, "partial_rotary_factor", json_real((double)c->rope_dim / (double)c->head_dim));
    }
}

static json_t *eos_json(const struct model_config *c)
{
    json_t *a;
    if (c->n_eos == 0)
        return json_null();
    if (c->n_eos == 1)
        return json_integer(c->eos[0]);
    a = json_array();
    for (int i = 0; i < c->n_eos; i++)
        json_array_append_new(a, json_integer(c->eos[i]));
    return a;
}

char *model_config_json(const struct model_config *c, const char *dtype)
{
    const struct family *f = c->family;
    json_t *o = json_pack("{s:[s], s:s, s:f, s:f, s:b, s:s, s:s, s:o}", "architectures", f->architecture,
                          "model_type", f->name, f->eps_key, c->norm_eps, "initializer_range", c->init_range,
                          "tie_word_embeddings", c->tied, f->act_key, f->acts[0], "torch_dtype", dtype,
                          "eos_token_id", eos_json(c));
    char *text;
    if (!o)
        return NULL;

    for (const struct config_size *k = f->size; k->key; k++)
        json_object_set_new(o, k->key,
                            json_integer(*(const int64_t *)(const void *)((const char *)c + k->member)));
    for (const struct config_switch *k = f->flag; k->key; k++)
        json_object_set_new(o, k->key, json_boolean(family_has(c, k->features)));

    if (family_has(c, F_EXPERTS))
        json_object_set_new(o, "mlp_only_layers", config_dense_json(c));
    if (c->swiglu_limit > 0) {
        json_object_set_new(o, "swiglu_limit", json_real(c->swiglu_limit));
        json_object_set_new(o, "swiglu_alpha", json_real(c->swiglu_alpha));
    }
    config_write_latent(o, c);
    for (const struct config_number *k = f->number; k && k->key; k++)
        json_object_set_new(o, k->key,
                            number_json(*(const double *)(const void *)((const char *)c + k->member)));
    if (!family_learns_positions(c))
        set_rope(o, c);
    config_write_windows(o, c);
    json_object_set_new(o, "bos_token_id", c->bos < 0 ? json_null() : json_integer(c->bos));
    if (c->grain != model_grain_formula(c))
        json_object_set_new(o, "shardline_grain", json_integer(c->grain));

    text = json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(o);
    return text;
}

/* Layer by layer: its window, and whether it has experts. */
static int layers_same(const struct model_config *a, const struct model_config *b, const char *other,
                       struct err *e)
{
    for (int64_t l = 0; l < a->n_layers; l++) {
        int64_t x = model_layer_window(a, l), y = model_layer_window(b, l);
        if (x != y)
            return err_set(
                e, ERR_CONFIG,
                "the window of layer %lld is %lld in the checkpoint and %lld in %s (0: none): make "
                "them agree",
                (long long)l, (long long)x, (long long)y, other);
        if (model_has_experts(a, l) != model_has_experts(b, l))
            return err_set(e, ERR_CONFIG,
                           "layer %lld has %s in the checkpoint and not in %s: make them agree", (long long)l,
                           model_has_experts(a, l) ? "experts" : "an MLP", other);
    }
    return 0;
}

int model_config_same(const struct model_config *a, const struct model_config *b, const char *other,
                      struct err *e)
{
    const struct {
        const char *name;
        double x, y;
    } m[] = {
#define SAME(key, member) { key, (double)a->member, (double)b->member }
        SAME("hidden_size", hidden),
        SAME("num_hidden_layers", n_layers),
        SAME("num_attention_heads", n_heads),
        SAME("num_key_value_heads", n_kv),
        SAME("head_dim", head_dim),
        SAME("intermediate_size", inter),
        SAME("vocab_size", vocab),
        SAME("tie_word_embeddings", tied),
        SAME("the norms' eps", norm_eps),
        SAME("rope_theta", rope_theta),
        SAME("rope_type", rope),
        SAME("rope factor", rope_factor),
        SAME("low_freq_factor", rope_low_freq),
        SAME("high_freq_factor", rope_high_freq),
        SAME("original_max_position_embeddings", rope_original_max_pos),
        SAME("beta_fast", yarn_fast),
        SAME("beta_slow", yarn_slow),
        SAME("attention_factor", yarn_attention),
        SAME("num_local_experts", n_experts),
        SAME("moe_intermediate_size", expert_inter),
        SAME("num_experts_per_tok", experts_per_token),
        SAME("shared_expert_intermediate_size", shared_inter),
        SAME("decoder_sparse_step", sparse_step),
        SAME("swiglu_limit", swiglu_limit),
        SAME("swiglu_alpha", swiglu_alpha),
        SAME("first_k_dense_replace", first_sparse),
        SAME("n_group", n_groups),
        SAME("topk_group", groups_kept),
        SAME("routed_scaling_factor", routed_factor),
        SAME("q_lora_rank", latent.q_rank),
        SAME("kv_lora_rank", latent.kv_rank),
        SAME("qk_rope_head_dim", latent.rope_dim),
        SAME("qk_nope_head_dim", latent.nope_dim),
        SAME("v_head_dim", latent.v_dim),
        SAME("mscale", yarn_mscale),
        SAME("mscale_all_dim", yarn_mscale_all),
        SAME("truncate", yarn_exact),
        SAME("rotated components of a head", rope_dim),
        SAME("rope_local_base_freq", rope_local_theta),
        SAME("query_pre_attn_scalar", query_scalar),
        SAME("attn_logit_softcapping", attn_softcap),
        SAME("final_logit_softcapping", final_softcap),
        SAME("sliding_window", window),
        SAME("set of biases and norms", features),
        SAME("grain", grain),
#undef SAME
    };

    if (a->family != b->family)
        return err_set(e, ERR_CONFIG, "model_type is %s in the checkpoint and %s in %s: make them agree",
                       a->family->name, b->family->name, other);
    for (size_t i = 0; i < sizeof m / sizeof m[0]; i++)
        if (m[i].x != m[i].y)
            return err_set(e, ERR_CONFIG, "%s is %.17g in the checkpoint and %.17g in %s: make them agree",
                           m[i].name, m[i].x, m[i].y, other);
    return layers_same(a, b, other, e);
}
