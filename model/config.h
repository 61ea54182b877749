/* config.h - what a model is: a Hugging Face config.json, checked, with the defaults of transformers. */
#ifndef SHARDLINE_MODEL_CONFIG_H
#define SHARDLINE_MODEL_CONFIG_H

#include <stdint.h>
#include "base/err.h"

enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

#define MODEL_DENSE_MAX 512 /* layers that mlp_only_layers may name */

struct family;
struct model_config {
    const struct family *family; /* its names, keys and tensors (family.h) */
    unsigned features;           /* enum feature: the family's and those that this config turns on */
    /* what stands in config.json and is not computed, or "": reshard needs sizes alone */
    char not_computed[96];
    int64_t hidden, n_layers, n_heads, n_kv, head_dim, inter, vocab, max_pos;
    double norm_eps;
    enum rope_kind rope;
    double rope_theta, rope_factor, rope_low_freq, rope_high_freq;
    /* rotations beyond which a frequency stays, and below which it is interpolated */
    double yarn_fast, yarn_slow;
    double yarn_attention; /* factor on cos and sin; 0: from the factor */
    /* truncate false: the two bounds are not rounded to whole components */
    int yarn_exact;
    int64_t rope_original_max_pos;
    /* F_WINDOW: positions a token sees, its own included; first layer that has it */
    int64_t window, window_first;
    /* F_EXPERTS: of a layer that has them, and the rows of one's gate and up */
    int64_t n_experts, expert_inter;
    int64_t sparse_step;                  /* every how many layers there are experts */
    uint64_t dense[MODEL_DENSE_MAX / 64]; /* bits: layers without experts all the same */
    int64_t shared_inter; /* rows of gate and up of the experts that every token takes; 0: none */
    /* Latent attention: ranks of compressed q and k v, and the parts of a head that are rotated, not rotated,
     * and of its value. No family here has it yet: all 0. */
    struct {
        int64_t q_rank, kv_rank, rope_dim, nope_dim, v_dim;
    } latent;
    int tied;
    /* the largest that the config asks for: none is computed, training says so */
    double dropout;
    double init_range; /* deviation of the initial weights */
    /* of the sums (numerics contract): gcd(8, heads, intermediate) or shardline_grain */
    int grain;
    int grain_given; /* shardline_grain was in the file */
    int bf16;        /* torch_dtype / dtype says bfloat16 */
    /* end tokens (config.json's; generation_config.json's are the server's business) */
    int n_eos;
    int64_t eos[8], bos; /* -1: none */
};

/* text: config.json; what: its path, for messages. ERR_CONFIG names the key, or a family whose tensors are
 * not known. */
int model_config_parse(struct model_config *c, const char *text, const char *what, struct err *e);
/* ERR_CONFIG names the family or feature that reshard knows and nothing computes yet. */
int model_config_computed(const struct model_config *c, struct err *e);
/* A preset ("tiny", "10m", "110m", "1b", "7b", "70b"), or ERR_USAGE that lists them. */
int model_config_preset(struct model_config *c, const char *name, struct err *e);
/* config.json as transformers reads it, malloc'd. dtype: "float32" or "bfloat16". shardline_grain only when
 * it is not the formula. */
char *model_config_json(const struct model_config *c, const char *dtype);
int model_grain_formula(const struct model_config *c);
int model_has_experts(const struct model_config *c, int64_t layer);
/* 0, or ERR_CONFIG naming the first member in which a and b differ (shapes and numbers, not names of
 * tokens): the message calls a the checkpoint and b other. */
int model_config_same(const struct model_config *a, const struct model_config *b, const char *other,
                      struct err *e);

#endif
