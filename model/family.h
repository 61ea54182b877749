/* family.h - the model families: what each has, how its config.json spells it, and its tensors. A new family
 * is a new row here. */
#ifndef SHARDLINE_MODEL_FAMILY_H
#define SHARDLINE_MODEL_FAMILY_H

#include <stddef.h>
#include "kernels/kernels.h"
#include "model/params.h"

/* What a model has beyond q k v o, up and down: its family always, or one config turns it on. */
enum feature {
    F_UNTIED = 1 << 0, /* a head of its own */
    F_GATE = 1 << 1,   /* act(gate) up; else act(up) */
    F_QKV_BIAS = 1 << 2,
    F_O_BIAS = 1 << 3,
    F_MLP_BIAS = 1 << 4,
    F_QK_NORM = 1 << 5,       /* RMS norm of every q and k head, before rope */
    F_LAYER_NORM = 1 << 6,    /* layer norms, with biases; else RMS norms */
    F_POSITIONS = 1 << 7,     /* a learned table of positions; else rope */
    F_TRANSPOSED = 1 << 8,    /* matrices of the layers are stored [in][out] */
    F_WINDOW = 1 << 9,        /* sliding-window attention, in some layers or all */
    F_POST_NORM = 1 << 10,    /* norms behind attention and MLP too */
    F_EXPERTS = 1 << 11,      /* a router and experts instead of the MLP, in some layers or all */
    F_NORM_TOPK = 1 << 12,    /* the weights of a token's experts are divided by their sum */
    F_SHARED = 1 << 13,       /* an expert that every token takes, times a gate of its own if it has one */
    F_PLUS_ONE = 1 << 14,     /* RMS norms multiply by 1 + w */
    F_EMBED_FACTOR = 1 << 15, /* the embedding times the root of the hidden size */
    F_PARALLEL = 1 << 16,     /* attention and MLP read the same residual stream */
    F_LATENT = 1 << 20,       /* latent attention … */
    F_Q_RANK = 1 << 21,       /* … whose q is compressed too */
    F_SIGMOID = 1 << 22       /* the router's scores are sigmoids, with a correction bias and groups */
};

/* ---- rows: one for each parameter of a unit ---- */

/* The size of a dim, in terms of the config. */
enum dim {
    D_NONE, /* ends a shape */
    D_HIDDEN,
    D_HIDDEN_TWICE,
    D_VOCAB,
    D_HEADS,
    D_Q,
    D_KV,
    D_QKV,
    D_INTER,
    D_HEAD,
    D_POS,
    D_EXPERTS,
    D_EXPERT_INTER,
    D_SHARED_INTER,
    D_Q_RANK, /* latent attention: see enum param_kind */
    D_KV_RANK,
    D_KV_A,
    D_KV_B,
    D_V_HEADS,
    D_FIXED
};
/* In a shape: one index for every n values of the dim (32 quantised values, the 128 rows of one scale); the
 * last block may be short. And a number that no config has (the 16 bytes of such a block). */
#define IN_BLOCKS(dim, n) ((dim) | (n) << 8)
#define FIXED(n) (D_FIXED | (n) << 8)
#define DIM_OF(entry) ((entry)&0xff)
#define DIM_NUMBER(entry) ((entry) >> 8)

enum row_of {
    OF_ANY,
    OF_DENSE,  /* layers without experts */
    OF_SPARSE, /* layers with experts */
    OF_EXPERT  /* every expert of those */
};

/* What is not named is 0: a matrix with random values that all tp ranks hold. Rows of one name, one behind
 * the other, are fused: side by side along split_dim, in the order of the rows. */
struct param_row {
    enum param_kind kind;
    const char *name;    /* the first %d is the layer, the second one the expert; NULL ends a list */
    int shape[BOX_DIMS]; /* of one parameter, as its tensor orients it */
    enum param_split split;
    int split_dim; /* in shape */
    enum param_init init;
    unsigned need;   /* features without which the row does not exist */
    unsigned unless; /* a feature with which it does not exist, or 0 */
    enum row_of of;

    int transposed; /* a matrix that the tensor holds as [in][out] */
    int stacked;    /* OF_EXPERT: one tensor holds all experts, its dim 0 counts them */
    /* Two kinds whose values alternate along split_dim, the first at the even places. `shape` is that of
     * one. */
    enum param_kind alternating[ALTERNATE_MAX];
    const char *dtype; /* as safetensors names it, where it is not the run's */
    /* A quantised weight's scales: shape is the weight's, IN_BLOCKS of the values that share a scale. */
    struct {
        const char *name, *dtype;
        int shape[BOX_DIMS];
    } companion;
};

/* ---- what a model consists of: computed from these alone, no other file asks for features ---- */
enum norm_kind { NORM_NONE, NORM_RMS, NORM_RMS_ONE /* times 1 + w */, NORM_LAYER };
enum act {
    ACT_SWIGLU, /* silu(gate) up */
    ACT_GELU,   /* in its tanh form */
    ACT_GEGLU,  /* gelu(gate) up */
    ACT_GELU_ERF,
    ACT_SWIGLU_CLAMPED /* of one matrix, gate and up alternating: the op swiglu_clamped */
};
enum body { BODY_ATTENTION, BODY_LATENT, BODY_MLP, BODY_EXPERTS };
/* A branch of a decoder layer: a norm, then a body, whose output is added to the residual stream. */
struct branch_spec {
    enum body body;
    enum norm_kind norm;
    enum param_kind norm_weight;
    enum norm_kind norm_after; /* of the body's output, before it is added */
    enum param_kind norm_after_weight;
    int64_t window;     /* attention: positions that a token sees, 0: all */
    int local_rope;     /* attention: RoPE has rope_local_theta */
    float scale;        /* attention: of the scores */
    enum act act;       /* MLP, experts */
    struct clamp clamp; /* ACT_SWIGLU_CLAMPED */
};
#define LAYER_BRANCHES 2
struct layer_spec {
    int n;
    int parallel; /* all branches read the stream that the layer begins with */
    struct branch_spec branch[LAYER_BRANCHES];
};
/* The branches of a layer, in the order of computation. */
void family_layer(const struct model_config *c, int layer, struct layer_spec *out);
/* The norm in front of the head. */
enum norm_kind family_norm(const struct model_config *c);
/* How the router of a layer with experts chooses. Its bias is not set. */
struct expert_router family_router(const struct model_config *c);
/* The embedding is multiplied by this; 0: it is not. */
double family_embed_factor(const struct model_config *c);
/* 1: a table of positions is added to the embedding; 0: RoPE. */
int family_learns_positions(const struct model_config *c);

/* Does this model have all of these features? For the table of parameters and the reading of config.json. */
int family_has(const struct model_config *c, unsigned features);
void family_set(struct model_config *c, unsigned features, int on);

/* ---- keys of config.json ---- */

/* An int64_t of struct model_config. */
struct config_size {
    const char *key;
    size_t member;
};
/* A double of struct model_config; null in the file is 0. */
struct config_number {
    const char *key;
    size_t member;
};
/* A switch turns features on. */
struct config_switch {
    const char *key;
    unsigned features;
};

/* Which layers have a sliding window where config.json does not list them. */
enum window_rule {
    WINDOW_NONE,    /* the family has none */
    WINDOW_KEYED,   /* all, or those of window_period, where sliding_window is a number */
    WINDOW_SWITCHED /* those from max_window_layers on, where use_sliding_window is true */
};

#define ROW_LISTS 6
struct family {
    const char *name; /* model_type */
    const char *architecture;
    unsigned features;                  /* of every model of the family */
    const struct config_size *size;     /* ends with key NULL */
    const struct config_switch *flag;   /* likewise */
    const struct config_number *number; /* likewise, or NULL */
    enum act act;
    const char *eps_key, *act_key;
    enum window_rule window;
    int window_period;   /* every so many layers one sees all positions: the last of them; 0: none does */
    const char *acts[3]; /* spellings of the activation that is computed */
    struct {
        int64_t hidden, n_layers, n_heads, n_kv, head_dim, inter, vocab, max_pos, window, bos, eos;
        double eps;
        int tied;
        int64_t n_experts, expert_inter, experts_per_token, shared_inter;
        double swiglu_limit, swiglu_alpha;
        int64_t n_shared, n_groups, groups_kept, first_sparse;
        int first_has_experts; /* layers with experts are counted from layer 0 on */
        double routed_factor;
        int64_t q_rank, kv_rank, rope_dim, nope_dim, v_dim;
        double query_scalar, attn_softcap, final_softcap;
        double rope_theta, rope_local_theta, rotary; /* rotary: rope_dim / head_dim */
    } defaults;                                      /* of transformers; 0: follows from the others */
    /* The rows of the first unit, of the last one, and of a layer: lists one behind the other. */
    const struct param_row *first, *last, *layer[ROW_LISTS];
    /* of a layer for multi-token prediction, as a model (model_config_next); NULL: none is known */
    const struct param_row *next_first, *next_last;
};
/* The family of this model_type, or NULL. */
const struct family *family_find(const char *name);
/* Names of all families, with commas; returns out. */
char *family_names(char out[256]);

#endif
