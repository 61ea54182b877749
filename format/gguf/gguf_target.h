/* gguf_target.h - private to the room: the tensors of a GGUF file that is to be written, and where their
 * values come from. */
#ifndef SHARDLINE_FORMAT_GGUF_GGUF_TARGET_H
#define SHARDLINE_FORMAT_GGUF_GGUF_TARGET_H

#include <stdatomic.h>
#include "format/gguf/gguf.h"
#include "format/gguf/gguf_keys.h"

/* One tensor of the file. Shapes count values, slowest dim first. */
struct gguf_out {
    char *name;
    enum gguf_form form;
    int layer; /* -1: none */
    const struct gguf_type_row *type;
    enum stored_dtype in; /* of the sources; U8: blocks of MXFP4 */
    int n_dims;
    int64_t shape[GGUF_DIMS];
    int64_t row, n; /* values of the last dim, of all */
    int n_src;      /* tensors of the source: experts, or one; 0: `factor` of the target */
    int *src;
    int scales;   /* of MXFP4 blocks: the tensor of scales; -1: none */
    int src_dims; /* shape of a source */
    int64_t src_shape[GGUF_DIMS];
    struct gguf_target *t;
};
struct gguf_target {
    int64_t n_layers, n_heads, n_kv, n_experts, nope_dim, v_dim;
    const struct gguf_family *family;
    int n, room;
    struct gguf_out *out;
    float *factor;
    int not_quantized, left_out;
    _Atomic int64_t rounded; /* values of 1 + w that w does not follow from */
    char *first_left_out;
    struct gguf_keys keys;
};

/* Elements and dtype of a tensor of the view: bytes of blocks, or the values. */
enum stored_dtype gguf_view_dtype(const struct gguf_out *o);
/* Bytes of the whole tensor. */
int64_t gguf_out_bytes(const struct gguf_out *o);
/* ckpt_compute of a view (ckpt_view.h); arg: a struct gguf_out. */
int gguf_out_compute(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi, void *dst,
                     struct err *e);

#endif
