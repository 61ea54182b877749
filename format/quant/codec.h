/* codec.h - private to the room: codes of quantised weights and the values that they stand for. Pure
 * functions.
 *
 *     value = code * scale                  FP8 (E4M3, E5M2), FP4 (E2M1)
 *     value = (code - zero) * scale         integers
 *
 * in fp32: the exact product, rounded once to nearest even. As bf16 the fp32 value is rounded to nearest
 * even; denormals stay, other than in the casts of --dtype, so that a code can be told from its value. So
 * compute transformers, compressed-tensors and the kernels of DeepSeek. Where a block has two scales, their
 * product or quotient is rounded to fp32 first. A NaN code stands for a NaN with its sign and its bits.
 * Sources: OCP Microscaling Formats 1.0; the libraries that format/quant.h names. */
#ifndef SHARDLINE_FORMAT_QUANT_CODEC_H
#define SHARDLINE_FORMAT_QUANT_CODEC_H

#include <stdint.h>
#include "format/stored_dtype.h"

/* ---- numbers (codec_number.c) ---- */

enum codec_kind { CODEC_E4M3, CODEC_E5M2, CODEC_E2M1, CODEC_INT };
/* The number that each code of a float kind stands for; E2M1 has 16 codes. */
const float *codec_numbers(enum codec_kind kind);
/* Largest finite number of a float kind. */
float codec_largest(enum codec_kind kind);
/* The code of a float kind that is nearest to x, ties to the even code; beyond the largest number that
 * number; NaN: the NaN of its sign (E2M1 has none: 0). */
uint8_t codec_nearest(enum codec_kind kind, float x);

/* 2^(e - 127); e 255: NaN. */
float codec_e8m0(uint8_t e);
float codec_f16(uint16_t h);
uint16_t codec_to_f16(float x); /* to nearest even; beyond the largest: infinity */
uint16_t codec_bf16(float x);
float codec_of_bf16(uint16_t h);
/* n numbers of a dtype as fp32; F32, BF16, F16, F64 (rounded), F8_E4M3, F8_E5M2, F8_E8M0 and U8 (both as
 * E8M0). -1: another dtype. */
int codec_to_f32(enum stored_dtype from, const void *in, int64_t n, float *out);

/* ---- places of codes in words (codec_pack.c) ---- */

/* n codes of `bits` bits (1 to 8), dense, low bits first, from bit `first` of the little-endian words in. */
void codec_unpack(const void *in, int64_t first, int bits, int64_t n, uint8_t *out);
/* The reverse into words that are 0 where the codes go. */
void codec_pack(const uint8_t *in, int64_t n, int bits, int64_t first, void *out);
/* The bit at which AWQ keeps code i of a word of eight. */
int codec_awq_bit(int64_t i);

/* ---- values (codec_values.c) ---- */

/* What a run of codes shares. */
struct codec {
    enum codec_kind kind;
    enum stored_dtype to; /* of the values: STORED_F32 or STORED_BF16 */
    int n_codes;          /* 16 or 256; of integers 2^bits */
    float scale;
    int zero; /* of integers, in the numbers that the bytes have: (code - zero) * scale */
};
/* The values of n codes, one in a byte. */
void codec_values(const struct codec *c, const uint8_t *code, int64_t n, void *out);
/* The same by a table of all codes, which pays where a scale has many values. Zero the table's `ready` for
 * another codec. */
struct codec_table {
    int ready;
    uint32_t value[256];
};
/* As codec_values. */
void codec_values_by_table(const struct codec *c, struct codec_table *t, const uint8_t *code, int64_t n,
                           void *out);
/* The same where each code has its own scale and zero point (integers). */
void codec_values_each(enum stored_dtype to, const uint8_t *code, const float *scale, const int16_t *zero,
                       int64_t n, void *out);

/* The nearest code of each of n values, rounded to even, saturated. */
void codec_codes(const struct codec *c, const float *value, int64_t n, uint8_t *code);
/* The code that each of n values stands for, values as codec_values makes them. Returns n; or the index of
 * the first value that no code stands for, or more than one: *why says which. */
int64_t codec_exact(const struct codec *c, const float *value, int64_t n, uint8_t *code, const char **why);

#endif
