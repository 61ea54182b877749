/* gguf_block_encode.h - private to the room: values to the blocks of GGUF's quantised types. Pure functions:
 * any thread may call them.
 *
 * Q8_0, Q4_0, MXFP4, Q4_K, Q5_K and Q6_K have the bits of ggml's reference rules without an importance
 * matrix, which are what `llama-quantize --pure` writes. Source: ggml, quantize_row_*_ref. */
#ifndef SHARDLINE_FORMAT_GGUF_GGUF_BLOCK_ENCODE_H
#define SHARDLINE_FORMAT_GGUF_GGUF_BLOCK_ENCODE_H

#include <stdint.h>
#include "format/gguf/gguf.h"

/* Most values of a block. */
#define GGUF_BLOCK_VALUES 256

/* 1: gguf_encode can write this type. */
int gguf_can_encode(enum gguf_type t);

/* Writes the blocks of x[n] to out; n is a multiple of the type's values. Returns 0, or -1: a value is not
 * finite, or a scale is beyond fp16. */
int gguf_encode(enum gguf_type t, const float *x, int64_t n, void *out);

/* One block each, as gguf_encode calls them. */
int gguf_encode_q4_k(const float x[256], unsigned char *out);
int gguf_encode_q5_k(const float x[256], unsigned char *out);
int gguf_encode_q6_k(const float x[256], unsigned char *out);

/* Bits of the nearest fp16, ties to even; beyond its range infinity. */
uint16_t gguf_f16_bits(float x);
float gguf_f16_value(uint16_t bits);

/* One block of 32 values of Hugging Face's MXFP4 (16 bytes of pairs 2 i, 2 i + 1, the first one low; a scale
 * byte) as the 17 bytes of GGUF's (scale; pairs i, i + 16). No value changes. */
void gguf_mxfp4_of_pairs(const unsigned char pairs[16], unsigned char scale, unsigned char out[17]);

#endif
