/* codec_number.c - small floats as fp32 and back. */
#include <math.h>
#include <string.h>
#include "format/quant/codec.h"

static float of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* mantissa: bits. nan: the first magnitude that is no number. */
static const struct small {
    int mantissa, bias, sign_bit, nan, largest;
} small[] = {
    [CODEC_E4M3] = { 3, 7, 7, 0x7f, 0x7e },
    [CODEC_E5M2] = { 2, 15, 7, 0x7d, 0x7b },
    [CODEC_E2M1] = { 1, 1, 3, 8, 7 },
};

static float number(const struct small *s, int code)
{
    int magnitude = code & ((1 << s->sign_bit) - 1), exponent = magnitude >> s->mantissa;
    int fraction = magnitude & ((1 << s->mantissa) - 1);
    uint32_t sign = (uint32_t)(code >> s->sign_bit) << 31;

    if (magnitude >= s->nan)
        return of_bits(sign | 0x7f800000u | (uint32_t)fraction << (23 - s->mantissa));
    if (magnitude > s->largest)
        return of_bits(sign | 0x7f800000u);
    float f = exponent ? ldexpf((float)(fraction | 1 << s->mantissa), exponent - s->bias - s->mantissa)
                       : ldexpf((float)fraction, 1 - s->bias - s->mantissa);
    return sign ? -f : f;
}

static float numbers[3][256];

__attribute__((constructor)) static void fill_numbers(void)
{
    for (int kind = CODEC_E4M3; kind <= CODEC_E2M1; kind++)
        for (int code = 0; code < 2 << small[kind].sign_bit; code++)
            numbers[kind][code] = number(&small[kind], code);
}

const float *codec_numbers(enum codec_kind kind) { return numbers[kind]; }

float codec_largest(enum codec_kind kind) { return numbers[kind][small[kind].largest]; }

uint8_t codec_nearest(enum codec_kind kind, float x)
{
    const struct small *s = &small[kind];
    int shift = 23 - s->mantissa;
    uint32_t u = bits_of(x), sign = u >> 31 << s->sign_bit;
    float f = fabsf(x);

    if (isnan(x))
        return kind == CODEC_E2M1 ? 0 : (uint8_t)(sign | 0x7f);
    if (f >= numbers[kind][s->largest])
        return (uint8_t)(sign | (uint32_t)s->largest);
    if (f < of_bits((uint32_t)(128 - s->bias) << 23)) /* denormal: the mantissa is a whole number of steps */
        return (uint8_t)(sign | (uint32_t)lrintf(f * of_bits((uint32_t)(126 + s->bias + s->mantissa) << 23)));
    u &= 0x7fffffffu;
    u += (1u << (shift - 1)) - 1 + (u >> shift & 1);
    return (uint8_t)(sign | ((u >> shift) - ((uint32_t)(127 - s->bias) << s->mantissa)));
}

float codec_e8m0(uint8_t e) { return e == 255 ? NAN : e ? of_bits((uint32_t)e << 23) : 0x1p-127f; }

float codec_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31)
        return of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) /* a denormal half is a normal float */
        return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    return of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t codec_to_f16(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000;
    float f = fabsf(x);
    if (isnan(x))
        return (uint16_t)(sign | 0x7e00);
    if (f >= 65520)
        return (uint16_t)(sign | 0x7c00);
    if (f < 0x1p-14f)
        return (uint16_t)(sign | (uint32_t)lrintf(f * 0x1p24f));
    u &= 0x7fffffffu;
    u += 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | ((u >> 13) - (112u << 10)));
}

uint16_t codec_bf16(float x)
{
    uint32_t u = bits_of(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40); /* quiet */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float codec_of_bf16(uint16_t h) { return of_bits((uint32_t)h << 16); }

int codec_to_f32(enum stored_dtype from, const void *in, int64_t n, float *out)
{
    const uint16_t *half = in;
    const uint8_t *byte = in;
    switch (from) {
    case STORED_F32: memcpy(out, in, (size_t)n * 4); return 0;
    case STORED_BF16:
        for (int64_t i = 0; i < n; i++)
            out[i] = codec_of_bf16(half[i]);
        return 0;
    case STORED_F16:
        for (int64_t i = 0; i < n; i++)
            out[i] = codec_f16(half[i]);
        return 0;
    case STORED_F64:
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)((const double *)in)[i];
        return 0;
    case STORED_F8_E4M3:
        for (int64_t i = 0; i < n; i++)
            out[i] = numbers[CODEC_E4M3][byte[i]];
        return 0;
    case STORED_F8_E5M2:
        for (int64_t i = 0; i < n; i++)
            out[i] = numbers[CODEC_E5M2][byte[i]];
        return 0;
    case STORED_F8_E8M0:
    case STORED_U8:
        for (int64_t i = 0; i < n; i++)
            out[i] = codec_e8m0(byte[i]);
        return 0;
    default: return -1;
    }
}
