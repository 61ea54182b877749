/* hf_write.h - a Hugging Face checkpoint written: model.safetensors, or shards of a limited size and their
 * index.
 *
 * It holds whole tensors of role weight, in the order given. One process writes it: ckpt_begin makes the
 * folder, hf_write_seal completes it, ckpt_reveal publishes it. */
#ifndef SHARDLINE_FORMAT_HF_WRITE_H
#define SHARDLINE_FORMAT_HF_WRITE_H

#include "format/ckpt_write.h"

struct hf_write;
/* The experts of a layer: as the family's published checkpoints have them; each with tensors of its own; as
 * two tensors, mlp.experts.gate_up_proj [E, 2 I, H] and mlp.experts.down_proj [E, H, I] (transformers 5). */
enum hf_experts { HF_EXPERTS_PUBLISHED, HF_EXPERTS_EACH, HF_EXPERTS_FUSED };
/* 1: experts become two tensors under this config.json (may be NULL), as far as they have that form. */
int hf_fuses(enum hf_experts how, const char *config);
struct hf_write_opts {
    int64_t shard_bytes; /* the most data in one file; a larger tensor has a file of its own */
    enum hf_experts experts;
    const char *config;             /* of the model; NULL: every tensor as it is */
    int is_adapter;                 /* one file, adapter_model.safetensors */
    const struct ckpt_watch *watch; /* is told about the files; borrowed until the end; or NULL */
};
/* Creates the files in the folder dir. t: n tensors, borrowed until the end. how: borrowed during the call.
 * ERR_USAGE: experts are to be fused, and config names no family with that form. ERR_CONFIG: experts that do
 * not fit together. */
int hf_write_open(struct hf_write **out, const char *dir, int n, const struct ckpt_tensor *t,
                  const struct hf_write_opts *how, struct err *e);
/* Writes the next n_elements of tensor i, in its row-major order. Different tensors may be written from
 * different threads. */
int hf_write_put(struct hf_write *w, int i, const void *data, int64_t n_elements, struct err *e);
/* fsyncs and closes the files, writes the index where there are several, config.json and the small files of
 * meta (its other members are not used), fsyncs the folder, and frees w. On error the folder is removed. */
int hf_write_seal(struct hf_write *w, const struct ckpt_meta *meta, struct err *e);
/* Closes the files and frees w; the folder stays. NULL is allowed. */
void hf_write_abort(struct hf_write *w);

#endif
