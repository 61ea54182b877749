/* hf_write.h - a Hugging Face checkpoint written: model.safetensors, or shards of a limited size with their
 * index.
 *
 * Whole tensors of role weight, in the order given. The folder exists (ckpt_begin) and is published by
 * hf_write_seal + ckpt_reveal. */
#ifndef SHARDLINE_FORMAT_HF_WRITE_H
#define SHARDLINE_FORMAT_HF_WRITE_H

#include "format/ckpt_write.h"

struct hf_write;
/* Names are borrowed until the end. shard_bytes: most data in one file (a larger tensor has a file of its
 * own). */
int hf_write_open(struct hf_write **out, const char *dir, int n, const struct ckpt_tensor *t,
                  int64_t shard_bytes, struct err *e);
/* The next n_elements of tensor i, in its row-major order. Different tensors from different threads. */
int hf_write_put(struct hf_write *w, int i, const void *data, int64_t n_elements, struct err *e);
/* fsync and close, the index where there are several files, config.json and the small files (meta: only
 * those members), fsync of the folder. w is gone afterwards; on error the folder is removed. */
int hf_write_seal(struct hf_write *w, const struct ckpt_meta *meta, struct err *e);
void hf_write_abort(struct hf_write *w); /* NULL is fine; the folder stays */

#endif
