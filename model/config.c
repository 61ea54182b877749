/* config.c - see config.h. Keys and defaults as in transformers' LlamaConfig; both layouts of config.json (rope_theta and
 * rope_scaling at the top, or everything in rope_parameters). */
#include "model/config.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "kernels/tree.h"

static int64_t gcd64(int64_t a, int64_t b) { return b ? gcd64(b, a % b) : a; }

int model_grain_formula(const struct model_config *c)
{
    return (int)gcd64(8, gcd64(c->n_heads, c->inter));
}

static void defaults(struct model_config *c)
{
    memset(c, 0, sizeof *c);
    strcpy(c->family, "llama");
    c->hidden = 4096;
    c->n_layers = 32;
    c->n_heads = 32;
    c->inter = 11008;
    c->vocab = 32000;
    c->max_pos = 2048;
    c->rms_eps = 1e-6;
    c->rope_theta = 10000.0;
    c->rope_factor = 1.0;
    c->init_range = 0.02;
    c->bos = 1;
    c->n_eos = 1;
    c->eos[0] = 2;
}

/* ---- presets ---- */
static const struct preset { const char *name; int64_t hidden, layers, heads, kv, inter, vocab, max_pos; int tied; double theta; } presets[] = {
    { "tiny", 128, 5, 8, 4, 352, 256, 2048, 0, 10000 },
    { "10m", 384, 6, 8, 4, 1024, 256, 2048, 0, 10000 },
    { "110m", 768, 12, 12, 12, 2048, 32000, 2048, 1, 10000 },
    { "1b", 2048, 16, 32, 8, 8192, 128256, 8192, 1, 500000 },
    { "7b", 4096, 32, 32, 32, 11008, 32000, 4096, 0, 10000 },
    { "70b", 8192, 80, 64, 8, 28672, 32000, 4096, 0, 10000 },
};

int model_config_preset(struct model_config *c, const char *name, struct err *e)
{
    char known[128] = "";
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        const struct preset *p = &presets[i];
        strcat(strcat(known, i ? ", " : ""), p->name);
        if (strcmp(p->name, name))
            continue;
        defaults(c);
        c->hidden = p->hidden;
        c->n_layers = p->layers;
        c->n_heads = p->heads;
        c->n_kv = p->kv;
        c->head_dim = p->hidden / p->heads;
        c->inter = p->inter;
        c->vocab = p->vocab;
        c->max_pos = p->max_pos;
        c->tied = p->tied;
        c->rope_theta = p->theta;
        c->rms_eps = 1e-5;
        c->grain = model_grain_formula(c);
        if (p->vocab == 256) {                      /* a byte model has no special tokens */
            c->bos = -1;
            c->n_eos = 0;
        }
        return 0;
    }
    return err_set(e, ERR_USAGE, "--model %s: neither a file nor one of the presets %s", name, known);
}

/* ---- parsing ---- */
#define SIZE_LIMIT ((int64_t)1 << 28)    /* so that no tensor's bytes, and no rows of one, can wrap */
#define LAYER_LIMIT 100000

static int count_key(const json_t *o, const char *what, const char *key, int64_t *out, struct err *e)
{
    int rc = jx_int(o, what, key, out, e);
    if (rc > 0 && (*out < 1 || *out > SIZE_LIMIT))
        return err_set(e, ERR_CONFIG, "%s: %s is %lld: it must be from 1 to %lld", what, key, (long long)*out, (long long)SIZE_LIMIT);
    return rc;
}

static int parse_sizes(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    static const struct { const char *key; size_t member; } keys[] = {
        { "hidden_size", offsetof(struct model_config, hidden) }, { "num_hidden_layers", offsetof(struct model_config, n_layers) },
        { "num_attention_heads", offsetof(struct model_config, n_heads) }, { "num_key_value_heads", offsetof(struct model_config, n_kv) },
        { "head_dim", offsetof(struct model_config, head_dim) }, { "intermediate_size", offsetof(struct model_config, inter) },
        { "vocab_size", offsetof(struct model_config, vocab) }, { "max_position_embeddings", offsetof(struct model_config, max_pos) },
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        TRY(count_key(o, what, keys[i].key, (int64_t *)(void *)((char *)c + keys[i].member), e));
    if (!c->n_kv)
        c->n_kv = c->n_heads;
    if (!c->head_dim) {
        if (c->hidden % c->n_heads)
            return err_set(e, ERR_CONFIG, "%s: hidden_size %lld is not a multiple of num_attention_heads %lld and head_dim is not given", what,
                           (long long)c->hidden, (long long)c->n_heads);
        c->head_dim = c->hidden / c->n_heads;
    }
    if (c->n_heads % c->n_kv)
        return err_set(e, ERR_CONFIG, "%s: num_attention_heads %lld is not a multiple of num_key_value_heads %lld", what, (long long)c->n_heads,
                       (long long)c->n_kv);
    if (c->n_layers > LAYER_LIMIT || c->n_heads * c->head_dim > SIZE_LIMIT)
        return err_set(e, ERR_CONFIG, "%s: %lld layers of %lld heads of %lld: at most %d layers, and %lld for heads x head_dim", what, (long long)c->n_layers,
                       (long long)c->n_heads, (long long)c->head_dim, LAYER_LIMIT, (long long)SIZE_LIMIT);
    if (c->head_dim % 2)
        return err_set(e, ERR_CONFIG, "%s: head_dim %lld is odd: rotary embedding needs pairs", what, (long long)c->head_dim);
    rc = 0;
out:
    return rc < 0 ? rc : 0;
}

static int parse_rope(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    const json_t *r = json_object_get(o, "rope_parameters");
    const char *kind = "default";
    double original = 0;
    int rc;
    TRY(jx_float(o, what, "rope_theta", &c->rope_theta, e));
    if (!json_is_object(r))
        r = json_object_get(o, "rope_scaling");
    if (json_is_object(r)) {
        TRY(jx_text(r, what, "type", &kind, e));
        TRY(jx_text(r, what, "rope_type", &kind, e));
        TRY(jx_float(r, what, "rope_theta", &c->rope_theta, e));
        TRY(jx_float(r, what, "factor", &c->rope_factor, e));
        TRY(jx_float(r, what, "low_freq_factor", &c->rope_low_freq, e));
        TRY(jx_float(r, what, "high_freq_factor", &c->rope_high_freq, e));
        TRY(jx_float(r, what, "original_max_position_embeddings", &original, e));
    }
    if (!strcmp(kind, "default"))
        c->rope = ROPE_DEFAULT;
    else if (!strcmp(kind, "linear"))
        c->rope = ROPE_LINEAR;
    else if (!strcmp(kind, "llama3"))
        c->rope = ROPE_LLAMA3;
    else
        return err_set(e, ERR_CONFIG, "%s: rope_type %s is not built yet: default, linear and llama3 are", what, kind);
    if (!(c->rope_theta > 1) || !(c->rope_factor > 0) || !isfinite(c->rope_theta) || !isfinite(c->rope_factor))
        return err_set(e, ERR_CONFIG, "%s: rope_theta %g, factor %g: both must be positive", what, c->rope_theta, c->rope_factor);
    if (c->rope == ROPE_LLAMA3 && (original < 1 || original > (double)SIZE_LIMIT || !(c->rope_high_freq > c->rope_low_freq)))
        return err_set(e, ERR_CONFIG, "%s: rope_type llama3 needs original_max_position_embeddings and low_freq_factor < high_freq_factor", what);
    c->rope_original_max_pos = c->rope == ROPE_LLAMA3 ? (int64_t)original : 0;
    rc = 0;
out:
    return rc < 0 ? rc : 0;
}

/* Features of the family that this build does not compute must be off. */
static int refuse_features(const json_t *o, const char *what, struct err *e)
{
    static const char *const off[] = { "attention_bias", "mlp_bias" };
    const char *act = "silu";
    int rc, on;
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
        on = 0;
        TRY(jx_bool(o, what, off[i], &on, e));
        if (on)
            return err_set(e, ERR_CONFIG, "%s: %s true is not built yet", what, off[i]);
    }
    TRY(jx_text(o, what, "hidden_act", &act, e));
    if (strcmp(act, "silu"))
        return err_set(e, ERR_CONFIG, "%s: hidden_act %s is not built yet: silu is", what, act);
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
    }
    if (json_object_get(o, "bos_token_id"))
        c->bos = -1;
    return jx_int(o, what, "bos_token_id", &c->bos, e) < 0 ? -e->code : 0;
}

static int parse_object(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    const char *family = "llama", *dtype = "float32";
    int64_t grain = 0;
    int rc;
    defaults(c);
    TRY(jx_text(o, what, "model_type", &family, e));
    if (rc == 0)
        return err_set(e, ERR_CONFIG, "%s: no model_type: is it a model's config.json", what);
    if (strcmp(family, "llama"))
        return err_set(e, ERR_CONFIG, "%s: model_type %s is not computed yet: llama is", what, family);
    TRY(refuse_features(o, what, e));
    TRY(parse_sizes(c, o, what, e));
    TRY(parse_rope(c, o, what, e));
    TRY(parse_eos(c, o, what, e));
    TRY(jx_float(o, what, "rms_norm_eps", &c->rms_eps, e));
    TRY(jx_float(o, what, "initializer_range", &c->init_range, e));
    if (!(c->rms_eps >= 0 && c->rms_eps < 1) || !(c->init_range >= 0 && c->init_range < 1e6))
        return err_set(e, ERR_CONFIG, "%s: rms_norm_eps %g, initializer_range %g: both must be 0 or more, and small", what, c->rms_eps, c->init_range);
    TRY(jx_bool(o, what, "tie_word_embeddings", &c->tied, e));
    TRY(jx_text(o, what, "torch_dtype", &dtype, e));
    TRY(jx_text(o, what, "dtype", &dtype, e));
    c->bf16 = !strcmp(dtype, "bfloat16");
    c->grain = model_grain_formula(c);
    TRY(jx_int(o, what, "shardline_grain", &grain, e));
    c->grain_given = rc > 0;
    if (c->grain_given && (grain < 1 || grain > GRAIN_MAX || c->n_heads % grain))
        return err_set(e, ERR_CONFIG, "%s: shardline_grain %lld does not divide the %lld attention heads (or is over %d)", what, (long long)grain,
                       (long long)c->n_heads, GRAIN_MAX);
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
    int rc = json_is_object(o) ? parse_object(c, o, what, e) : err_set(e, ERR_CONFIG, "%s: not a JSON object", what);
    json_decref(o);
    return rc;
}

/* ---- writing and comparing ---- */
static json_t *rope_json(const struct model_config *c)
{
    json_t *r;
    if (c->rope == ROPE_DEFAULT)
        return json_null();
    r = json_pack("{s:s, s:f}", "rope_type", c->rope == ROPE_LLAMA3 ? "llama3" : "linear", "factor", c->rope_factor);
    if (c->rope == ROPE_LLAMA3) {
        json_object_set_new(r, "low_freq_factor", json_real(c->rope_low_freq));
        json_object_set_new(r, "high_freq_factor", json_real(c->rope_high_freq));
        json_object_set_new(r, "original_max_position_embeddings", json_integer(c->rope_original_max_pos));
    }
    return r;
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
    json_t *o = json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:b, s:s, s:b, s:b, s:s, s:o, s:o}",
        "architectures", "LlamaForCausalLM", "model_type", c->family, "hidden_size", (json_int_t)c->hidden, "num_hidden_layers", (json_int_t)c->n_layers,
        "num_attention_heads", (json_int_t)c->n_heads, "num_key_value_heads", (json_int_t)c->n_kv, "head_dim", (json_int_t)c->head_dim,
        "intermediate_size", (json_int_t)c->inter, "vocab_size", (json_int_t)c->vocab, "max_position_embeddings", (json_int_t)c->max_pos,
        "rms_norm_eps", c->rms_eps, "rope_theta", c->rope_theta, "initializer_range", c->init_range, "tie_word_embeddings", c->tied,
        "hidden_act", "silu", "attention_bias", 0, "mlp_bias", 0, "torch_dtype", dtype, "rope_scaling", rope_json(c), "eos_token_id", eos_json(c));
    char *text;
    if (!o)
        return NULL;
    json_object_set_new(o, "bos_token_id", c->bos < 0 ? json_null() : json_integer(c->bos));
    if (c->grain != model_grain_formula(c))
        json_object_set_new(o, "shardline_grain", json_integer(c->grain));
    text = json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(o);
    return text;
}

int model_config_same(const struct model_config *a, const struct model_config *b, struct err *e)
{
    const struct { const char *name; double x, y; } m[] = {
#define SAME(key, member) { key, (double)a->member, (double)b->member }
        SAME("hidden_size", hidden), SAME("num_hidden_layers", n_layers), SAME("num_attention_heads", n_heads),
        SAME("num_key_value_heads", n_kv), SAME("head_dim", head_dim), SAME("intermediate_size", inter), SAME("vocab_size", vocab),
        SAME("tie_word_embeddings", tied), SAME("rms_norm_eps", rms_eps), SAME("rope_theta", rope_theta), SAME("rope_type", rope),
        SAME("rope factor", rope_factor), SAME("low_freq_factor", rope_low_freq), SAME("high_freq_factor", rope_high_freq),
        SAME("original_max_position_embeddings", rope_original_max_pos), SAME("grain", grain),
#undef SAME
    };
    for (size_t i = 0; i < sizeof m / sizeof m[0]; i++)
        if (m[i].x != m[i].y)
            return err_set(e, ERR_CONFIG, "%s is %.17g in the checkpoint and %.17g in --model: leave --model out or make them agree", m[i].name, m[i].x, m[i].y);
    return 0;
}
