/* config.h - what a model is: a Hugging Face config.json, checked, with the defaults of transformers. Plain
 * data: any thread may call these functions, on no rank in particular. */
#ifndef SHARDLINE_MODEL_CONFIG_H
#define SHARDLINE_MODEL_CONFIG_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

/* Sets of layers (mlp_only_layers, layer_types) may name layers below this. */
#define MODEL_LISTED_LAYERS 512

struct family;
struct model_config {
    const struct family *family; /* its names, keys and tensors (family.h) */
    unsigned features;           /* enum feature: the family's and those that this config turns on */
    char
        not_computed[96]; /* what the file asks for and nothing computes (reshard needs sizes alone), or "" */
    char not_trained[200]; /* what the file asks of routers in training, and why it is refused there; or "" */

    int64_t first_layer; /* the number of layer 0 in the names of tensors */
    int64_t hidden, n_layers, n_heads, n_kv, head_dim, inter, vocab, max_pos;
    double norm_eps;
    int tied;          /* the head is the embedding */
    double dropout;    /* the largest that the file asks for; none is computed, and training logs it */
    double init_range; /* deviation of the initial weights */

    int64_t rope_dim;        /* components of a head that are rotated: the first ones */
    double rope_local_theta; /* in layers with a window, without scaling; 0: as in the others */
    enum rope_kind rope;
    double rope_theta, rope_factor, rope_low_freq, rope_high_freq;
    /* A frequency stays above yarn_fast rotations and is interpolated below yarn_slow. */
    double yarn_fast, yarn_slow;
    double yarn_attention;               /* factor on cos and sin; 0: from rope_factor */
    double yarn_mscale, yarn_mscale_all; /* DeepSeek's keys mscale and mscale_all_dim; 0: none */
    int yarn_exact; /* "truncate" false: the two bounds are not rounded to whole components */
    int64_t rope_original_max_pos;
    /* F_WINDOW: positions that a token sees, its own included, in these layers (bits; model_layer_window) */
    int64_t window;
    uint64_t windowed[MODEL_LISTED_LAYERS / 64];
    int64_t window_period; /* reading: every so many layers one sees all positions, 0: none does */

    double query_scalar;                /* scores are divided by its root; 0: by that of head_dim */
    double attn_softcap, final_softcap; /* of scores, of logits; 0: none */

    /* F_EXPERTS */
    int64_t n_experts, expert_inter; /* of a layer with experts; rows of gate and up of one expert */
    int64_t experts_per_token;       /* chosen for every token */
    int64_t shared_inter;            /* rows of gate and up of the expert that every token takes, 0: none */
    double swiglu_limit;             /* gate and up of experts are clamped (struct clamp); 0: they are not */
    double swiglu_alpha;             /* the factor in its sigmoid */
    /* Layer l >= first_sparse has experts where l + sparse_offset is a multiple of sparse_step. */
    int64_t sparse_step, sparse_offset, first_sparse;
    int64_t n_shared; /* DeepSeek: shared_inter is so many times expert_inter */
    int64_t n_groups,
        groups_kept;      /* a token's experts are in the best groups_kept of n_groups; 1, 1: no groups */
    double routed_factor; /* on the weights of the chosen experts */
    uint64_t dense[MODEL_LISTED_LAYERS / 64]; /* bits: layers without experts all the same */

    /* F_LATENT: ranks of compressed q (0: q is not compressed) and kv; widths of a head's rotated part, of
     * the rest of its key, of its value. head_dim is that of q. */
    struct {
        int64_t q_rank, kv_rank, rope_dim, nope_dim, v_dim;
    } latent;

    int grain;       /* of the sums (numerics contract): shardline_grain, or model_grain_formula() */
    int grain_given; /* shardline_grain was in the file */
    int bf16;        /* torch_dtype / dtype is bfloat16 */
    /* Tokens. generation_config.json's end tokens belong to the server. bos -1: none. */
    int n_eos;
    int64_t eos[8], bos;
};

/* Reads and checks a config.json. text: its bytes, ended by 0; what: its path, for messages. ERR_CONFIG
 * names the key that is wrong, or the family whose tensors are not known. */
int model_config_parse(struct model_config *c, const char *text, const char *what, struct err *e);
/* 0, or ERR_CONFIG naming the family or feature that reshard knows and nothing computes yet. */
int model_config_computed(const struct model_config *c, struct err *e);
/* The names of the presets, for the help and the shell; a test compares it with the table. */
#define MODEL_PRESETS "tiny|10m|110m|1b|7b|70b|tiny-moe|10m-moe"
/* The model that a checkpoint's layers for multi-token prediction are: *out has one layer, which lies behind
 * those of c in the checkpoint, predicts one token further than c does, and takes states of c (struct batch).
 * ERR_CONFIG: the family is not known to have such layers. */
int model_config_next(struct model_config *out, const struct model_config *c, struct err *e);
/* One of MODEL_PRESETS, or ERR_USAGE that lists them. */
int model_config_preset(struct model_config *c, const char *name, struct err *e);
/* config.json as transformers reads it; the caller frees it. NULL: no memory. dtype: "float32" or "bfloat16".
 * shardline_grain is left out where it is the formula's. */
char *model_config_json(const struct model_config *c, const char *dtype);
/* gcd(8, heads, intermediate size, that of one expert). */
int model_grain_formula(const struct model_config *c);
/* Latent attention's factor on the scores. */
double model_latent_scale(const struct model_config *c);
/* 1: this layer has experts in place of an MLP. */
int model_has_experts(const struct model_config *c, int64_t layer);
/* Positions that a token sees in this layer, its own included; 0: all. */
int64_t model_layer_window(const struct model_config *c, int64_t layer);
/* The largest window of all layers; 0: some layer sees all positions. */
int64_t model_window(const struct model_config *c);
/* Page groups: layers whose keys and values share pages, so that a server can release those behind a window.
 * Group 0: all layers; where some have a window and others have none, those without. Group 1: those with. */
#define PAGE_GROUPS 2
int model_page_group(const struct model_config *c, int64_t layer);
/* Where a page has a part of its values: that of position i of 64 is `each` bytes at first + i * each, in
 * every one of `rows` rows that are pitch bytes apart; and so again in n blocks of `block` bytes. */
struct page_part {
    size_t first, each, pitch;
    int64_t rows;
};
/* Rows are kv heads of layers; of latent attention components of keys, and blocks are layers. part[1]: the
 * scales of codes; rows 0: there are none. */
struct page_values {
    struct page_part part[2];
    int64_t n;
    size_t block;
};
/* Layers of the group below `layer`; with layer n_layers: all its layers, 0: there is no such group. */
int64_t model_group_layers(const struct model_config *c, int group, int64_t layer);
/* Positions that a token sees in every layer of the group, its own included; 0: all. */
int64_t model_group_window(const struct model_config *c, int group);
/* 0, or ERR_CONFIG naming the first member in which a and b differ (shapes and numbers, not token ids). The
 * message calls a the checkpoint, and b `other`. */
int model_config_same(const struct model_config *a, const struct model_config *b, const char *other,
                      struct err *e);

#endif
