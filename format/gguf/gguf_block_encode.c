/* gguf_block_encode.c - see gguf_block_encode.h. The types with one scale for 32 values; those with
 * super-blocks are in gguf_block_encode_k.c. */
#include "format/gguf/gguf_block_encode.h"

#include <math.h>
#include <string.h>

#define BLOCK 32

/* ---- fp16 ---- */

uint16_t gguf_f16_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint32_t sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;
    if (mag > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (mag >= 0x477ff000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (mag < 0x38800000) { /* below 2^-14: a multiple of 2^-24; the addition rounds to it */
        float f = fabsf(x) + 0.5f;
        memcpy(&u, &f, sizeof u);
        return (uint16_t)(sign | (u - 0x3f000000));
    }
    return (uint16_t)(sign | ((mag + 0xfff + (mag >> 13 & 1) - 0x38000000) >> 13));
}

float gguf_f16_value(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exp = bits >> 10 & 31, frac = bits & 1023, u;
    float f;
    if (exp == 0) {
        f = (float)frac * 0x1p-24f;
        return sign ? -f : f;
    }
    u = sign | (exp == 31 ? 0x7f800000 : (exp + 112) << 23) | frac << 13;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* ---- one block ---- */

static void put_f16(unsigned char *out, float x)
{
    uint16_t bits = gguf_f16_bits(x);
    out[0] = (unsigned char)bits;
    out[1] = (unsigned char)(bits >> 8);
}

/* -1: fp16 has no such scale. */
static int put_scale(unsigned char *out, float d)
{
    put_f16(out, d);
    return (gguf_f16_bits(d) & 0x7c00) == 0x7c00 ? -1 : 0;
}

/* As roundf: halves away from zero. |x| < 2^31. */
static int round_away(float x)
{
    int whole = (int)x;
    float rest = x - (float)whole;
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

/* 0 where a scale has no inverse: d is then below fp16 too, and every value becomes 0. ggml's codes are
 * undefined there. */
static float inverse_of(float d) { return d != 0 && isfinite(1 / d) ? 1 / d : 0; }

/* f16 d, 32 int8. */
static int encode_q8_0(const float *x, unsigned char *out)
{
    float most = 0;
    for (int i = 0; i < BLOCK; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    float d = most / 127, inverse = inverse_of(d);
    for (int i = 0; i < BLOCK; i++)
        out[2 + i] = (unsigned char)round_away(x[i] * inverse);
    return put_scale(out, d);
}

/* f16 d, 16 bytes: value i low, value i + 16 high. The value of largest magnitude becomes -8. */
static int encode_q4_0(const float *x, unsigned char *out)
{
    float largest = 0;
    for (int i = 0; i < BLOCK; i++)
        largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
    float d = largest / -8, inverse = inverse_of(d);
    for (int i = 0; i < BLOCK / 2; i++) {
        int low = (int)(x[i] * inverse + 8.5f), high = (int)(x[i + BLOCK / 2] * inverse + 8.5f);
        out[2 + i] = (unsigned char)((low > 15 ? 15 : low) | (high > 15 ? 15 : high) << 4);
    }
    return put_scale(out, d);
}

/* 2^(e - 128): half of what the byte stands for, because the codes below are twice the values. */
static float half_scale(int e)
{
    uint32_t u = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* The nearest code, the first one of two that are equally near. A code of the other sign is never nearer than
 * 0. */
static int nearest_e2m1(float x, float d)
{
    static const float twice[8] = { 0, 1, 2, 3, 4, 6, 8, 12 };
    float sign = x < 0 ? -d : d, least = fabsf(x);
    int best = 0;
    for (int i = 1; i < 8; i++) {
        float off = fabsf(twice[i] * sign - x);
        best = off < least ? i : best;
        least = off < least ? off : least;
    }
    return best && x < 0 ? best | 8 : best;
}

/* A byte e, 16 bytes as those of Q4_0. */
static int encode_mxfp4(const float *x, unsigned char *out)
{
    float most = 0;
    for (int i = 0; i < BLOCK; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    /* log2f and not the exponent's bits: just below a power of two ggml's result rounds up to it */
    int e = most > 0 ? (int)floorf(log2f(most)) - 2 + 127 : 0;
    e = e < 0 ? 0 : e;
    out[0] = (unsigned char)e;
    for (int i = 0; i < BLOCK / 2; i++) {
        int low = nearest_e2m1(x[i], half_scale(e)), high = nearest_e2m1(x[i + BLOCK / 2], half_scale(e));
        out[1 + i] = (unsigned char)(low | high << 4);
    }
    return 0;
}

void gguf_mxfp4_of_pairs(const unsigned char pairs[16], unsigned char scale, unsigned char out[17])
{
    out[0] = scale;
    for (int i = 0; i < 16; i++) {
        int low = pairs[i / 2] >> (i % 2 * 4) & 15, high = pairs[8 + i / 2] >> (i % 2 * 4) & 15;
        out[1 + i] = (unsigned char)(low | high << 4);
    }
}

/* ---- any type ---- */

static const struct {
    enum gguf_type type;
    int (*encode)(const float *x, unsigned char *out);
} encoders[] = {
    { GGUF_Q8_0, encode_q8_0 },      { GGUF_Q4_0, encode_q4_0 },      { GGUF_MXFP4, encode_mxfp4 },
    { GGUF_Q4_K, gguf_encode_q4_k }, { GGUF_Q5_K, gguf_encode_q5_k }, { GGUF_Q6_K, gguf_encode_q6_k },
};
#define ENCODERS (sizeof encoders / sizeof *encoders)

int gguf_can_encode(enum gguf_type t)
{
    for (size_t i = 0; i < ENCODERS; i++)
        if (encoders[i].type == t)
            return 1;
    return 0;
}

static int is_finite(const float *x, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * 0;
    return sum == 0;
}

int gguf_encode(enum gguf_type t, const float *x, int64_t n, void *out)
{
    const struct gguf_type_row *row = gguf_type_row(t);
    size_t k = 0;
    while (k < ENCODERS && encoders[k].type != t)
        k++;
    if (k == ENCODERS)
        return -1;
    for (int64_t i = 0; i < n; i += row->values) {
        unsigned char *block = (unsigned char *)out + i / row->values * row->bytes;
        if (!is_finite(x + i, row->values) || encoders[k].encode(x + i, block) < 0)
            return -1;
    }
    return 0;
}
