/* megatron.h - private to room format: reads Megatron's tensors under Hugging Face names.
 *
 * Megatron stores blocks: a block is a box of a global array in Megatron's own layout (rows of query
 * groups one after another, gate above up, a padded vocabulary), stored row-major. megatron_names.c names
 * it, megatron_blocks.c cuts it into parts of logical tensors. The other files find the blocks: of
 * torch_dist (megatron.c), its flat optimizer (megatron_flat.c), legacy folders (megatron_legacy.c).
 * Functions return 0 or a negative code, unless noted. */
#ifndef SHARDLINE_FORMAT_MEGATRON_MEGATRON_H
#define SHARDLINE_FORMAT_MEGATRON_MEGATRON_H

#include "format/dcp/dcp.h"

/* MG_LLAMA: also Mistral, Qwen2, Qwen3 and Qwen's experts. MG_DEEPSEEK: latent attention. */
enum mg_family { MG_LLAMA, MG_MIXTRAL, MG_DEEPSEEK, MG_GPT2, MG_FAMILIES };
struct mg_shape { /* 0: not known */
    int64_t layers, hidden, heads, groups, head_dim, vocab, padded_vocab;
    int64_t tp, pp, etp; /* etp: ranks that experts are cut over */
    int64_t q_rank, kv_rank,
        rotary;         /* latent attention: rows of the compressed queries, of keys and values */
    int has_gate, tied; /* -1: not known */
    int grouped;        /* 1: GroupedMLP has the experts of a rank in one parameter, -1: not known */
    enum mg_family family;
};

/* The names of a tensor, how tensor-parallel ranks cut it, how it is cut into logical tensors. */
enum mg_cut { MG_PLAIN, MG_VOCAB, MG_QKV, MG_GATED };
struct mg_row {
    const char *key;      /* after "decoder.layers.N." if in_layer; the key of all experts if of_experts */
    int in_layer, tp_dim; /* tp_dim: the dim that tp cuts, -1: none */
    enum mg_cut cut;
    /* after "model.layers.N." or "transformer.h.N." if in_layer, # stands for the expert; [0] NULL: the
     * family has none */
    const char *hf[MG_FAMILIES][3];
    int of_experts;
};
/* Which tensor: its row, its layer (-1: none), weight or state. */
struct mg_name {
    const struct mg_row *row;
    int layer;
    enum ckpt_role role;
    int expert; /* of a row of_experts */
    int group;  /* GroupedMLP: so many experts in one tensor, from `expert` on, each [in][out]; 0: not so */
};
extern const struct mg_row mg_rows[];
extern const int mg_n_rows;

/* Elements [begin, begin + n) of a flat sequence are at byte `offset` of the file. */
struct mg_extent {
    int file;
    int64_t offset, begin, n;
};
/* A flat sequence of elements, stored in extents. */
struct mg_flat {
    const struct mg_extent *x; /* sorted by begin */
    int n;
    enum stored_dtype dtype;
};

struct mg {
    struct build *b;
    struct mg_shape s;
};

/* Fills m->s from args (the Namespace of the training run, or NULL) and config.json, if there is one.
 * ERR_CONFIG: they disagree, or do not have enough. */
int mg_shape_read(struct mg *m, const struct pk *args, const char *path, struct err *e);
/* The row of a key, without the prefixes of wrappers, and its layer; layer -1: none, or all layers
 * stacked. NULL: not a tensor of a supported family, or of experts. */
const struct mg_row *mg_find(const char *key, int n, int *layer);
/* The same also for tensors of experts, and the expert's number in the key; -1: none, or all stacked. */
const struct mg_row *mg_find_expert(const char *key, int n, int *layer, int *expert);
/* The row of the experts that GroupedMLP has in one tensor (mlp.experts.weight1, weight2). NULL: it is
 * none. */
const struct mg_row *mg_find_group(const char *key, int n, int *layer);
/* The Hugging Face name of logical tensor hf (0..2) of a row that the family has. */
void mg_hf_name(const struct mg_row *r, enum mg_family family, int hf, int layer, int expert,
                char name[FMT_NAME_MAX]);
enum mg_family mg_family_of(const char *model_type);
/* Rows [from, from + n) of a row's array of `rows` rows are rows [to, to + n) of its logical tensor hf. The
 * segments of one logical tensor ascend in both. */
struct mg_segment {
    int hf;
    int64_t from, n, to;
};
/* How many segments a row has. */
int64_t mg_n_segments(const struct mg *m, const struct mg_row *r);
/* Segment i. */
struct mg_segment mg_segment_at(const struct mg *m, const struct mg_row *r, int64_t rows, int64_t i);
/* Rows of logical tensor hf. */
int64_t mg_rows_of(const struct mg *m, const struct mg_row *r, int64_t rows, int hf);
/* Ranks that a row is cut over. */
int64_t mg_ranks(const struct mg *m, const struct mg_row *r);
/* Rows of the array of a row of compressed queries, keys and values; 0: another row, or not known. */
int64_t mg_compressed_rows(const struct mg *m, const struct mg_row *r);
/* Adds a block: box `box` of the array (shape: of the whole) is stored row-major in f from element `at`
 * on. */
int mg_block(struct mg *m, const struct mg_name *name, const struct box *box, const int64_t *shape,
             const struct mg_flat *f, int64_t at, struct err *e);
/* Adds the local tensor of tensor-parallel rank `rank` (of etp for experts), which is stored row-major in f
 * from element `at` on. Ignores the copies of tensors that are not cut on ranks above 0. */
int mg_local(struct mg *m, const struct mg_name *name, int64_t rank, int n_dims, const int64_t *local,
             const struct mg_flat *f, int64_t at, struct err *e);
/* Sets c->note, unless it is set: why the optimizer state is left out. */
int mg_note(struct ckpt *c, const char *text, struct err *e);

/* Adds the flat buffers of dp_reshardable, whose parameters follow from the model. Returns 1: added; 0: no
 * known order fits, and c->note has the reason. */
int mg_flat_open(struct mg *m, struct dcp *d, struct err *e);
/* 1: the key contains part; 1: x is a flat buffer. */
int mg_key_has(const struct dcp_item *x, const char *part);
int mg_is_flat(const struct dcp_item *x);
/* Adds all tensors of a legacy folder; sub: "" or "iter_0000010/". */
int mg_legacy_open(struct mg *m, const char *sub, struct err *e);
/* Optimizer i of a run: models with experts have two, the second for the experts; NULL: there are no more. */
const struct pk *mg_optimizer(const struct pk *optimizer, uint32_t i);
/* The length of the prefix at the start of x's key, with "chained_I." (the optimizer that it belongs to)
 * before it where there is one; 0: it is not there. */
int mg_starts(const struct dcp_item *x, const char *prefix);
/* Finds Adam's step in an optimizer's dict, at the places where the optimizers keep it. */
int mg_step(struct build *b, struct torch_file *t, const struct pk *optimizer, struct err *e);
/* Notes the settings of the run, from the file that has args and the scheduler. */
void mg_run(struct build *b, struct torch_file *t, const struct pk *optimizer);

#endif
