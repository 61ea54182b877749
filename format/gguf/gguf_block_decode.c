/* gguf_block_decode.c - see gguf_block.h. A block's fields are read at their byte offsets: blocks are not
 * aligned. Sources: ggml's block formats and the gguf package. */
#include "format/gguf/gguf_block.h"

#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define SUPER 256 /* values of a block of the K types */

static const int8_t iq4_value[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
};
/* E2M1, doubled */
static const int8_t fp4_value[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* A half, little-endian. */
static float half(const uint8_t *p)
{
    uint32_t h = (uint32_t)p[0] | (uint32_t)p[1] << 8;
    uint32_t sign = (h & 0x8000) << 16, exp = h >> 10 & 31, frac = h & 1023;
    if (exp == 31)
        return of_bits(sign | 0x7f800000u | frac << 13);
    if (exp == 0) /* a denormal half is a normal float */
        return (sign ? -1.0f : 1.0f) * (float)frac * 0x1p-24f;
    return of_bits(sign | (exp + 112) << 23 | frac << 13);
}

/* ---- blocks of 32 ---- */

static void q4_0(const uint8_t *p, float *out)
{
    float d = half(p);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((p[2 + i] & 15) - 8);
        out[i + 16] = d * (float)((p[2 + i] >> 4) - 8);
    }
}

static void q4_1(const uint8_t *p, float *out)
{
    float d = half(p), m = half(p + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(p[4 + i] & 15) + m;
        out[i + 16] = d * (float)(p[4 + i] >> 4) + m;
    }
}

/* Bit 4 of value i, of 32 high bits. */
static int high_bit(const uint8_t *bits, int i) { return (bits[i / 8] >> i % 8 & 1) << 4; }

static void q5_0(const uint8_t *p, float *out)
{
    float d = half(p);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(((p[6 + i] & 15) | high_bit(p + 2, i)) - 16);
        out[i + 16] = d * (float)(((p[6 + i] >> 4) | high_bit(p + 2, i + 16)) - 16);
    }
}

static void q5_1(const uint8_t *p, float *out)
{
    float d = half(p), m = half(p + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((p[8 + i] & 15) | high_bit(p + 4, i)) + m;
        out[i + 16] = d * (float)((p[8 + i] >> 4) | high_bit(p + 4, i + 16)) + m;
    }
}

static void q8_0(const uint8_t *p, float *out)
{
    float d = half(p);
    for (int i = 0; i < 32; i++)
        out[i] = (float)(int8_t)p[2 + i] * d;
}

static void iq4_nl(const uint8_t *p, float *out)
{
    float d = half(p);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)iq4_value[p[2 + i] & 15];
        out[i + 16] = d * (float)iq4_value[p[2 + i] >> 4];
    }
}

static void mxfp4(const uint8_t *p, float *out)
{
    /* half of 2^(e - 127), because the table is doubled */
    float d = of_bits(p[0] < 2 ? 0x00200000u << p[0] : (uint32_t)(p[0] - 1) << 23);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)fp4_value[p[1 + i] & 15];
        out[i + 16] = d * (float)fp4_value[p[1 + i] >> 4];
    }
}

/* ---- blocks of 256 ---- */

static void q2_k(const uint8_t *p, float *out)
{
    const uint8_t *scales = p, *q = p + 16;
    float d = half(p + 80), min = half(p + 82);
    for (int i = 0; i < SUPER; i++) {
        uint8_t s = scales[i / 16];
        int v = q[i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3;
        out[i] = d * (float)(s & 15) * (float)v - min * (float)(s >> 4);
    }
}

/* Scale j of Q3_K: four low bits of 16 scales in 8 bytes, then their two high bits in 4. */
static int scale_q3(const uint8_t *s, int j)
{
    return ((s[j % 8] >> 4 * (j / 8) & 15) | (s[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
}

static void q3_k(const uint8_t *p, float *out)
{
    const uint8_t *high = p, *q = p + 32, *scales = p + 96;
    float d = half(p + 108);
    for (int i = 0; i < SUPER; i++) {
        int v = q[i / 128 * 32 + i % 32] >> 2 * (i / 32 % 4) & 3;
        v -= high[i % 32] >> i / 32 & 1 ? 0 : 4;
        out[i] = d * (float)scale_q3(scales, i / 16) * (float)v;
    }
}

/* Scale and minimum j of Q4_K and Q5_K: 8 and 8 numbers of six bits in 12 bytes. */
static void scale_q4(const uint8_t *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

static void q4_k(const uint8_t *p, float *out)
{
    const uint8_t *q = p + 16;
    float d = half(p), dmin = half(p + 2);
    for (int j = 0; j < 8; j++, out += 32) {
        int scale, min;
        scale_q4(p + 4, j, &scale, &min);
        float by = d * (float)scale, less = dmin * (float)min;
        for (int i = 0; i < 32; i++)
            out[i] = by * (float)(q[j / 2 * 32 + i] >> 4 * (j % 2) & 15) - less;
    }
}

static void q5_k(const uint8_t *p, float *out)
{
    const uint8_t *high = p + 16, *q = p + 48;
    float d = half(p), dmin = half(p + 2);
    for (int j = 0; j < 8; j++, out += 32) {
        int scale, min;
        scale_q4(p + 4, j, &scale, &min);
        float by = d * (float)scale, less = dmin * (float)min;
        for (int i = 0; i < 32; i++) {
            int v = (q[j / 2 * 32 + i] >> 4 * (j % 2) & 15) | (high[i] >> j & 1) << 4;
            out[i] = by * (float)v - less;
        }
    }
}

static void q6_k(const uint8_t *p, float *out)
{
    const uint8_t *low = p, *high = p + 128, *scales = p + 192;
    float d = half(p + 208);
    for (int i = 0; i < SUPER; i++) {
        int part = i / 128, j = i % 128;
        int v = low[part * 64 + j % 64] >> 4 * (j / 64) & 15;
        v |= (high[part * 32 + j % 32] >> 2 * (j / 32) & 3) << 4;
        out[i] = d * (float)(int8_t)scales[i / 16] * (float)(v - 32);
    }
}

static void iq4_xs(const uint8_t *p, float *out)
{
    int high = p[2] | p[3] << 8;
    float d = half(p);
    for (int j = 0; j < 8; j++, out += 32) {
        int scale = (p[4 + j / 2] >> 4 * (j % 2) & 15) | (high >> 2 * j & 3) << 4;
        float by = d * (float)(scale - 32);
        for (int i = 0; i < 16; i++) {
            out[i] = by * (float)iq4_value[p[8 + j * 16 + i] & 15];
            out[i + 16] = by * (float)iq4_value[p[8 + j * 16 + i] >> 4];
        }
    }
}

/* ---- the table ---- */

static const struct {
    enum gguf_type type;
    void (*decode)(const uint8_t *block, float *out);
} decoders[] = {
    { GGUF_Q4_0, q4_0 },   { GGUF_Q4_1, q4_1 }, { GGUF_Q5_0, q5_0 },     { GGUF_Q5_1, q5_1 },
    { GGUF_Q8_0, q8_0 },   { GGUF_Q2_K, q2_k }, { GGUF_Q3_K, q3_k },     { GGUF_Q4_K, q4_k },
    { GGUF_Q5_K, q5_k },   { GGUF_Q6_K, q6_k }, { GGUF_IQ4_NL, iq4_nl }, { GGUF_IQ4_XS, iq4_xs },
    { GGUF_MXFP4, mxfp4 },
};

int gguf_decodes(enum gguf_type t)
{
    for (size_t i = 0; i < COUNT(decoders); i++)
        if (decoders[i].type == t)
            return 1;
    return 0;
}

void gguf_decode(enum gguf_type t, const void *blocks, int64_t n, float *out)
{
    const struct gguf_type_row *row = gguf_type_row(t);
    const uint8_t *p = blocks;
    for (size_t i = 0; i < COUNT(decoders); i++)
        for (int64_t b = 0; decoders[i].type == t && b < n; b++)
            decoders[i].decode(p + b * row->bytes, out + b * row->values);
}
