/* family.h - the model families: what each has, how its config.json spells it, and its tensors. A new family
 * is a new row here. */
#ifndef SHARDLINE_MODEL_FAMILY_H
#define SHARDLINE_MODEL_FAMILY_H

#include <stddef.h>
#include "model/params.h"

/* What a model has beyond q k v o, up and down: its family always, or one config turns it on. */
enum feature {
    F_UNTIED = 1 << 0, /* a head of its own */
    F_GATE = 1 << 1,   /* act(gate) up; else act(up) */
    F_QKV_BIAS = 1 << 2,
    F_O_BIAS = 1 << 3,
    F_MLP_BIAS = 1 << 4,
    F_QK_NORM = 1 << 5,    /* RMS norm of every q and k head, before rope */
    F_LAYER_NORM = 1 << 6, /* layer norms, with biases; else RMS norms */
    F_POSITIONS = 1 << 7,  /* a learned table of positions; else rope */
    F_TRANSPOSED = 1 << 8, /* matrices of the layers are stored [in][out] */
    F_WINDOW = 1 << 9,     /* sliding-window attention, in some layers or all */
    F_POST_NORM = 1 << 10, /* norms behind attention and MLP too */
    F_EXPERTS = 1 << 11    /* a router and experts instead of the MLP, in some layers or all */
};

/* One row a parameter; dims in terms of the config. Rows of one name, one behind the other, share a tensor
 * along split_dim. */
enum dim { D_HIDDEN, D_VOCAB, D_Q, D_KV, D_QKV, D_INTER, D_HEAD, D_POS, D_EXPERTS, D_EXPERT_INTER, D_NONE };
/* layers without experts, layers with them, every expert of those */
enum row_of { OF_ANY, OF_DENSE, OF_SPARSE, OF_EXPERT };
struct param_row {
    enum param_kind kind;
    const char *name; /* %d: the layer, the second one: the expert; NULL ends a list */
    enum dim dim0, dim1;
    enum param_split split;
    int split_dim;
    enum param_init init;
    unsigned need; /* features without which the row does not exist */
    enum row_of of;
};

/* Keys of config.json. A switch turns features on. */
/* an int64_t of model_config */
struct config_size {
    const char *key;
    size_t member;
};
struct config_switch {
    const char *key;
    unsigned features;
};

struct family {
    const char *name; /* model_type */
    const char *architecture;
    unsigned features;                /* of every model of the family */
    int computed;                     /* else reshard alone knows it */
    const struct config_size *size;   /* ends with key NULL */
    const struct config_switch *flag; /* likewise */
    const char *eps_key, *act_key;
    const char *acts[3]; /* spellings of the activation that is computed */
    struct {
        int64_t hidden, n_layers, n_heads, n_kv, head_dim, inter, vocab, max_pos, window, bos, eos;
        double eps;
        int tied;
        int64_t n_experts, expert_inter;
    } defaults;
    const struct param_row *first, *layer, *last;
};
const struct family *family_find(const char *name); /* or NULL */
/* all, or those that are computed, with commas */
char *family_names(int computed, char out[256]);

#endif
