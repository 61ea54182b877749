/* kv_codes.h - what keys and values are stored as in their pages, and the rounding to it: one text for all
 * CPU classes.
 *
 *   KV_OWN    the dtype of the arithmetic
 *   KV_BF16   bf16, under fp32 arithmetic
 *   KV_FP8    e4m3 (Micikevicius et al. 2022, section 3) with scale 1: largest 448, step 2^-9 below 2^-6.
 *             Nearest even; what is larger, Inf too, becomes 448 of its sign; NaN stays NaN
 *   KV_INT8   codes of -127 to 127 and a scale for each token and kv head, K and V apart: scale = max / 127,
 *             max the exact largest magnitude of its components; code = x / scale to nearest even. A row
 *             with Inf or NaN has the scale NaN, and codes of 0; one of zeros has the scale 0
 *
 * A value is rounded once, from what would be rounded to the dtype otherwise. Codes are exact in bf16. */
#ifndef SHARDLINE_KERNELS_KV_CODES_H
#define SHARDLINE_KERNELS_KV_CODES_H

#include <stdint.h>
#include "kernels/fn.h"

enum kv_kind { KV_OWN, KV_BF16, KV_FP8, KV_INT8, KV_KINDS };

/* ---- e4m3 ---- */
FN uint8_t kv_to_fp8(float x)
{
    const uint32_t b = fn_bits(x), a = b & 0x7fffffffu;
    const uint32_t normal = ((a + 0x7ffffu + (a >> 20 & 1u)) >> 20) - (120u << 3);
    const uint32_t small = fn_bits(fn_float(a) * 512.0f + FN_MAGIC) - fn_bits(FN_MAGIC);
    uint32_t c = a < 0x3c800000u ? small : normal; /* 2^-6 */
    c = c > 0x7eu ? 0x7eu : c;
    c = a > 0x7f800000u ? 0x7fu : c;
    return (uint8_t)(c | (b >> 24 & 0x80u));
}

FN float kv_from_fp8(uint8_t c)
{
    const uint32_t m = c & 0x7fu, sign = (uint32_t)(c & 0x80u) << 24;
    const float small = (float)(int32_t)m * 0x1p-9f;
    uint32_t b = m < 8u ? fn_bits(small) : (m << 20) + (120u << 23);
    b = m == 0x7fu ? 0x7fc00000u : b;
    return fn_float(b | sign);
}

/* ---- int8 ---- */
/* The magnitude of a component, for the largest of a row: Inf stands for all that is not finite. */
FN float kv_magnitude(float x)
{
    const float a = fn_float(fn_bits(x) & 0x7fffffffu);
    return a < FN_INF ? a : FN_INF;
}

FN float kv_int8_scale(float largest) { return largest < FN_INF ? largest / 127.0f : FN_NAN; }

FN int8_t kv_to_int8(float x, float scale)
{
    float q = x / scale;
    q = q < 127.0f ? q : 127.0f;
    q = q > -127.0f ? q : -127.0f;
    const uint32_t near = fn_bits(q + FN_MAGIC) - fn_bits(FN_MAGIC); /* an integer, two's complement */
    return scale > 0.0f && scale < FN_INF ? (int8_t)near : (int8_t)0;
}

/* ---- any kind but KV_OWN ---- */
/* Code i of p, as a number; of KV_INT8 without its scale. */
FN float kv_code(const void *p, enum kv_kind kind, int64_t i)
{
    switch (kind) {
    case KV_BF16: return fn_from_bf16(((const uint16_t *)p)[i]);
    case KV_FP8: return kv_from_fp8(((const uint8_t *)p)[i]);
    default: return (float)((const int8_t *)p)[i];
    }
}
/* Code i of p from x; scale: of KV_INT8. */
FN void kv_put_code(void *p, enum kv_kind kind, int64_t i, float x, float scale)
{
    switch (kind) {
    case KV_BF16: ((uint16_t *)p)[i] = fn_to_bf16(x); return;
    case KV_FP8: ((uint8_t *)p)[i] = kv_to_fp8(x); return;
    default: ((int8_t *)p)[i] = kv_to_int8(x, scale); return;
    }
}

#endif
