/* codec_values.c - values of codes, and codes of values. */
#include <math.h>
#include <string.h>
#include "format/quant/codec.h"

#define TILE 256 /* values that are made in a buffer before they are rounded */

static inline uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* The value of a code, before rounding to bf16. A NaN code keeps its bits: a product would change them. */
static inline float value_of(const struct codec *c, unsigned code)
{
    if (c->kind == CODEC_INT)
        return (float)((int)code - c->zero) * c->scale;
    float x = codec_numbers(c->kind)[code];
    return isnan(x) ? x : x * c->scale;
}

static inline uint16_t round_bf16(uint32_t u)
{
    uint32_t nan = (u & 0x7fffffffu) > 0x7f800000u, up = u + 0x7fff + (u >> 16 & 1);
    return (uint16_t)(nan ? u >> 16 : up >> 16); /* NaN codes have their bits at the top */
}

/* dst: element `at` and those behind it of the values in the dtype `to`. */
static void put(enum stored_dtype to, const float *x, int64_t n, void *out, int64_t at)
{
    if (to == STORED_F32) {
        memcpy((float *)out + at, x, (size_t)n * sizeof *x);
        return;
    }
    uint16_t *h = (uint16_t *)out + at;
    for (int64_t i = 0; i < n; i++)
        h[i] = round_bf16(bits_of(x[i]));
}

static void integers(const struct codec *c, const uint8_t *code, int64_t n, float *x)
{
    const float scale = c->scale;
    const int zero = c->zero;
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)((int)code[i] - zero) * scale;
}

/* E2M1 times a power of two, in bf16. Codes 1 to 7 are 0.5, 1, 1.5, 2, 3, 4, 6: bf16 grows by 0x40 from one
 * to the next, but from 0.5 to 1 by 0x80. */
static void fp4_moved(const uint8_t *code, uint32_t scale, int64_t n, uint16_t *out)
{
    const uint16_t half = (uint16_t)((scale >> 16) - 0x80);
    for (int64_t i = 0; i < n; i++) {
        uint16_t t = code[i] & 7, x = (uint16_t)(half + 0x40 * (t - (t == 1)));
        out[i] = (uint16_t)((t ? x : 0) | (code[i] & 8) << 12);
    }
}

/* E2M1 has 8 magnitudes and no NaN: a table for each scale is quickly made. */
static void fp4(const struct codec *c, const uint8_t *code, int64_t n, void *out)
{
    const float *number = codec_numbers(CODEC_E2M1);
    const uint32_t u = bits_of(c->scale);
    float x[16];
    uint16_t h[16];
    if (c->to == STORED_BF16 && !(u & 0x807fffffu) && u > 0x10000000u && u < 0x70000000u) {
        fp4_moved(code, u, n, out);
        return;
    }
    for (int i = 0; i < 16; i++)
        x[i] = number[i] * c->scale;
    if (c->to == STORED_F32) {
        for (int64_t i = 0; i < n; i++)
            ((float *)out)[i] = x[code[i] & 15];
        return;
    }
    for (int i = 0; i < 16; i++)
        h[i] = round_bf16(bits_of(x[i]));
    for (int64_t i = 0; i < n; i++)
        ((uint16_t *)out)[i] = h[code[i] & 15];
}

void codec_values(const struct codec *c, const uint8_t *code, int64_t n, void *out)
{
    float x[TILE];
    if (c->kind == CODEC_E2M1) {
        fp4(c, code, n, out);
        return;
    }
    for (int64_t at = 0, m; at < n; at += m) {
        m = n - at < TILE ? n - at : TILE;
        if (c->kind == CODEC_INT) {
            integers(c, code + at, m, x);
        } else {
            const float *number = codec_numbers(c->kind);
            for (int64_t i = 0; i < m; i++) {
                float y = number[code[at + i]];
                x[i] = isnan(y) ? y : y * c->scale;
            }
        }
        put(c->to, x, m, out, at);
    }
}

void codec_values_by_table(const struct codec *c, struct codec_table *t, const uint8_t *code, int64_t n,
                           void *out)
{
    if (!t->ready)
        for (int i = 0; i < c->n_codes; i++) {
            uint32_t u = bits_of(value_of(c, (unsigned)i));
            t->value[i] = c->to == STORED_F32 ? u : round_bf16(u);
        }
    t->ready = 1;

    if (c->to == STORED_F32) {
        uint32_t *u = out;
        for (int64_t i = 0; i < n; i++)
            u[i] = t->value[code[i]];
    } else {
        uint16_t *h = out;
        for (int64_t i = 0; i < n; i++)
            h[i] = (uint16_t)t->value[code[i]];
    }
}

void codec_values_each(enum stored_dtype to, const uint8_t *code, const float *scale, const int16_t *zero,
                       int64_t n, void *out)
{
    float x[TILE];
    for (int64_t at = 0, m; at < n; at += m) {
        m = n - at < TILE ? n - at : TILE;
        for (int64_t i = 0; i < m; i++)
            x[i] = (float)((int)code[at + i] - zero[at + i]) * scale[at + i];
        put(to, x, m, out, at);
    }
}

/* ---- codes ---- */

static uint8_t nearest(const struct codec *c, float x)
{
    float q = x / c->scale;
    if (c->kind != CODEC_INT)
        return codec_nearest(c->kind, q);
    q += (float)c->zero;
    if (!(q > 0)) /* and NaN */
        return 0;
    return (uint8_t)(q >= (float)(c->n_codes - 1) ? c->n_codes - 1 : (int)lrintf(q));
}

void codec_codes(const struct codec *c, const float *value, int64_t n, uint8_t *code)
{
    for (int64_t i = 0; i < n; i++)
        code[i] = nearest(c, value[i]);
}

/* Bits of the value of a code, as codec_values gives it. */
static uint32_t made(const struct codec *c, unsigned code)
{
    uint32_t u = bits_of(value_of(c, code));
    return c->to == STORED_F32 ? u : (uint32_t)round_bf16(u) << 16;
}

/* 1: all codes of this scale have values of their own, whatever they are. Codes have at most 4 significant
 * bits, or 7 and a sign; so values differ where none is a denormal or beyond the largest number. */
static int are_distinct(const struct codec *c)
{
    const float s = fabsf(c->scale);
    int wide = c->kind == CODEC_INT && c->to == STORED_BF16 &&
               (c->zero > 128 || c->n_codes - 1 - c->zero > 127);
    return s > 0x1p-100f && s < 0x1p100f && !wide;
}

/* How many codes have the value with bits u. */
static int count_codes(const struct codec *c, uint32_t u)
{
    int n = 0;
    for (int code = 0; code < c->n_codes && n < 2; code++)
        n += made(c, (unsigned)code) == u;
    return n;
}

/* The code of a value with bits u: the nearest one, or a search where that is another (NaN). */
static int code_of(const struct codec *c, float x)
{
    const uint32_t u = bits_of(x);
    unsigned first = nearest(c, x);
    if (made(c, first) == u)
        return (int)first;
    for (int code = 0; code < c->n_codes; code++)
        if (made(c, (unsigned)code) == u)
            return code;
    return -1;
}

int64_t codec_exact(const struct codec *c, const float *value, int64_t n, uint8_t *code, const char **why)
{
    int distinct = are_distinct(c);
    for (int64_t i = 0; i < n; i++) {
        int found = code_of(c, value[i]);
        if (found < 0) {
            *why = "no code stands for it: was it changed since --dequantize";
            return i;
        }
        if (!distinct && count_codes(c, bits_of(value[i])) > 1) {
            *why = c->to == STORED_F32
                       ? "several codes have it: values do not tell them apart: use the codes themselves"
                       : "several codes have it: --dequantize fp32 tells more of them apart";
            return i;
        }
        code[i] = (uint8_t)found;
    }
    return n;
}
