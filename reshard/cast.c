/* cast.c - see cast.h. */
#include "reshard/cast.h"

#include <math.h>
#include <string.h>

static float f32_of_bits(uint32_t u)
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

static float f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, frac = h & 1023;
    if (exp == 31)
        return f32_of_bits(sign | 0x7f800000u | frac << 13);
    if (exp == 0) /* a denormal half is a normal float */
        return (sign ? -1.0f : 1.0f) * (float)frac * 0x1p-24f;
    return f32_of_bits(sign | (exp + 112) << 23 | frac << 13);
}

static uint16_t bf16_of_f32(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000;
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40); /* quiet */
    if ((u & 0x7fffffffu) < 0x00800000u)
        return (uint16_t)sign; /* a denormal, also one that would round up to a normal number */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float load(enum ckpt_dtype t, const void *data, int64_t i)
{
    uint16_t h;
    float f;
    double d;
    switch (t) {
    case CK_F32: memcpy(&f, (const char *)data + 4 * i, 4); return f;
    case CK_BF16: memcpy(&h, (const char *)data + 2 * i, 2); return f32_of_bits((uint32_t)h << 16);
    case CK_F16: memcpy(&h, (const char *)data + 2 * i, 2); return f32_of_f16(h);
    case CK_F64: memcpy(&d, (const char *)data + 8 * i, 8); return (float)d;
    default: return 0;
    }
}

int cast_known(enum ckpt_dtype from, enum ckpt_dtype to)
{
    int is_float = from == CK_F32 || from == CK_BF16 || from == CK_F16 || from == CK_F64;
    return from == to || (is_float && (to == CK_F32 || to == CK_BF16));
}

void cast_run(enum ckpt_dtype from, enum ckpt_dtype to, const void *in, void *out, int64_t n)
{
    if (from == to) {
        memcpy(out, in, ckpt_dtype_size(from) * (size_t)n);
    } else if (to == CK_F32 &&
               from == CK_BF16) { /* the common pairs are loops of their own, which vectorise */
        const uint16_t *h = in;
        uint32_t *u = out;
        for (int64_t i = 0; i < n; i++)
            u[i] = (uint32_t)h[i] << 16; /* as bits: a signalling NaN stays what it is */
    } else if (to == CK_F32) {
        for (int64_t i = 0; i < n; i++)
            ((float *)out)[i] = load(from, in, i);
    } else if (from == CK_F32) {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = bf16_of_f32(((const float *)in)[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = bf16_of_f32(load(from, in, i));
    }
}

double cast_value(enum ckpt_dtype t, const void *data, int64_t i)
{
    const char *p = data;
    double d;
    int64_t v8;
    int32_t v4;
    int16_t v2;
    switch (t) {
    case CK_F64: memcpy(&d, p + 8 * i, 8); return d;
    case CK_I64: memcpy(&v8, p + 8 * i, 8); return (double)v8;
    case CK_I32: memcpy(&v4, p + 4 * i, 4); return v4;
    case CK_I16: memcpy(&v2, p + 2 * i, 2); return v2;
    case CK_I8: return ((const int8_t *)data)[i];
    case CK_U8:
    case CK_BOOL: return ((const uint8_t *)data)[i];
    default: return (double)load(t, data, i);
    }
}
