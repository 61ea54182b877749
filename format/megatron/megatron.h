/* megatron.h - private to the room: Megatron's tensors under Hugging Face names.
 *
 * Everything Megatron stores comes down to blocks: a box of a global array in Megatron's own layout (rows of
 * query groups one after the other, gate above up, a padded vocabulary), stored row-major. megatron_names.c
 * cuts a block into parts of logical tensors; the other
 * files find the blocks: torch_dist (megatron.c), its flat optimizer (megatron_flat.c), legacy folders
 * (megatron_legacy.c). */
#ifndef SHARDLINE_FORMAT_MEGATRON_MEGATRON_H
#define SHARDLINE_FORMAT_MEGATRON_MEGATRON_H

#include "format/torch/dcp.h"

enum mg_family { MG_LLAMA, MG_GPT2, MG_FAMILIES };
struct mg_shape { /* 0: not said */
    int64_t layers, hidden, heads, groups, head_dim, vocab, padded_vocab;
    int64_t tp, pp;
    int has_gate, tied; /* -1: not said */
    enum mg_family family;
};

/* What a tensor is called, how tensor-parallel ranks cut it, how it is cut into logical tensors. */
enum mg_cut { MG_PLAIN, MG_VOCAB, MG_QKV, MG_GATED };
struct mg_row {
    const char *key;      /* behind "decoder.layers.N." when in_layer */
    int in_layer, tp_dim; /* tp_dim -1: every rank has all of it */
    enum mg_cut cut;
    /* behind "model.layers.N." or "transformer.h.N." when in_layer; [0] NULL: the family has none */
    const char *hf[MG_FAMILIES][3];
};
extern const struct mg_row mg_rows[];
extern const int mg_n_rows;

/* elements [begin, begin + n) of a flat sequence lie at byte `offset` */
struct mg_extent {
    int file;
    int64_t offset, begin, n;
};
/* extents by begin */
struct mg_flat {
    const struct mg_extent *x;
    int n;
    enum stored_dtype dtype;
};

struct mg {
    struct build *b;
    struct mg_shape s;
};

/* args: the Namespace of the training run, or NULL; config.json where there is one. ERR_CONFIG: they
 * disagree, or neither says enough. */
int mg_shape_read(struct mg *m, const struct pk *args, const char *path, struct err *e);
/* Row for a key, and its layer: -1 none, or all of them stacked. NULL: not a tensor of a family known here.
 * Wrappers' prefixes are skipped. */
const struct mg_row *mg_find(const char *key, int n, int *layer);
/* Rows and columns (1-d: rows only) of the whole array that is cut in tp parts like the local one. */
void mg_global(const struct mg_row *r, int64_t tp, int n_dims, const int64_t *local, int64_t *global);
/* Box `box` of the array (shape: of the whole) lies row-major in the flat sequence from element `at` on. */
int mg_block(struct mg *m, const struct mg_row *r, int layer, enum ckpt_role role, const struct box *box,
             const int64_t *shape, const struct mg_flat *f, int64_t at, struct err *e);
/* The local tensor of tensor-parallel rank `rank` lies row-major in f from element `at` on. Copies of other
 * ranks are passed over. */
int mg_local(struct mg *m, const struct mg_row *r, int layer, enum ckpt_role role, int64_t rank, int n_dims,
             const int64_t *local, const struct mg_flat *f, int64_t at, struct err *e);
int mg_note(struct ckpt *c, const char *text, struct err *e); /* optimizer state left out, and why */

/* The flat buffers of dp_reshardable, whose parameters follow from the model. 1: added, 0: no order fits (a
 * note says so). */
int mg_flat_open(struct mg *m, struct dcp *d, struct err *e);
int mg_key_has(const struct dcp_item *x, const char *part);
int mg_is_flat(const struct dcp_item *x);
int mg_legacy_open(struct mg *m, const char *sub, struct err *e);
/* Adam's step in an optimizer's dict, wherever its kind keeps it. */
int mg_step(struct build *b, struct torch_file *t, const struct pk *optimizer, struct err *e);
/* What the run said about itself in the file of common things. */
void mg_run(struct build *b, struct torch_file *t, const struct pk *optimizer);

#endif
