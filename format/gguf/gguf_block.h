/* gguf_block.h - private to the room: the values that GGUF's blocks stand for. Pure functions.
 *
 * The order of the fp32 operations is that of the gguf package's dequantize, so that the bits are equal. */
#ifndef SHARDLINE_FORMAT_GGUF_GGUF_BLOCK_H
#define SHARDLINE_FORMAT_GGUF_GGUF_BLOCK_H

#include "format/gguf/gguf.h"

/* 1: gguf_decode knows the type. */
int gguf_decodes(enum gguf_type t);
/* The values of n blocks of a type that gguf_decodes: n times its number of values. */
void gguf_decode(enum gguf_type t, const void *blocks, int64_t n, float *out);

#endif
