/* gguf_read.h - GGUF files as checkpoints: what callers need beyond ckpt.h. */
#ifndef SHARDLINE_FORMAT_GGUF_READ_H
#define SHARDLINE_FORMAT_GGUF_READ_H

#include "format/ckpt.h"

/* 1: the checkpoint is a GGUF file with tensors in blocks that gguf_dequantize() makes numbers of (gpt-oss's
 * MXFP4 is not among them: it is shown as published). types, unless NULL: their types ("Q4_K, Q6_K"). */
int gguf_has_blocks(const struct ckpt *c, char types[128]);
/* ERR_USAGE, with what to do: the checkpoint has such tensors. */
int gguf_refuse_blocks(const struct ckpt *c, struct err *e);
/* Replaces *c by a view of it in which tensors in blocks are numbers: STORED_F32, or STORED_BF16 rounded to
 * nearest even. The other floating-point tensors get that dtype too. Nothing changes where there are no
 * blocks. ERR_CONFIG: a type whose blocks are not decoded here. After an error *c is closed and NULL. */
int gguf_dequantize(struct ckpt **c, enum stored_dtype to, struct err *e);

#endif
