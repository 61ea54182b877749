/* gguf_prepare.h - private to reshard/: what --format gguf needs besides a plan: the tensors as the file has
 * them, and llama.cpp's settings. */
#ifndef SHARDLINE_RESHARD_GGUF_GGUF_PREPARE_H
#define SHARDLINE_RESHARD_GGUF_GGUF_PREPARE_H

#include "format/gguf_write.h"
#include "reshard/reshard.h"

/* The file's name where DST is a folder. */
#define GGUF_FILE "model.gguf"

/* Checks *src against its config.json and puts the view of a GGUF file in its place (format/gguf_write.h),
 * with all metadata; *t lives as long as the view. *src is closed by the caller, also after an error, where
 * it may be NULL. log: what llama.cpp has no place for or computes otherwise; or NULL. ERR_CONFIG: llama.cpp
 * has no such model. */
int gguf_target_prepare(struct ckpt **src, struct gguf_target **t, const struct request *req, struct log *log,
                        struct err *e);

/* ERR_CONFIG: llama.cpp cannot load this model, with the reason. log: a line for each thing that llama.cpp
 * computes otherwise; or NULL. */
int gguf_check_model(const struct model_config *c, const char *arch, struct log *log, struct err *e);
/* Adds general.* and ARCH.* */
void gguf_add_settings(struct gguf_keys *k, const struct model_config *c, const char *arch, int file_type);
/* Factors on the wave lengths of a head's components (Llama 3): their number, 0: none. factor:
 * [c->rope_dim / 2] */
int gguf_rope_factors(const struct model_config *c, float *factor);

/* 1: dst names the file itself and no folder. */
int gguf_is_file_name(const char *dst);

#endif
