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

static float load(enum stored_dtype t, const void *data, int64_t i)
{
    uint16_t h;
    float f;
    double d;
    switch (t) {
    case STORED_F32: memcpy(&f, (const char *)data + 4 * i, 4); return f;
    case STORED_BF16: memcpy(&h, (const char *)data + 2 * i, 2); return f32_of_bits((uint32_t)h << 16);
    case STORED_F16: memcpy(&h, (const char *)data + 2 * i, 2); return f32_of_f16(h);
    case STORED_F64: memcpy(&d, (const char *)data + 8 * i, 8); return (float)d;
    default: return 0;
    }
}

int cast_known(enum stored_dtype from, enum stored_dtype to)
{
    return from == to || (stored_is_float(from) && (to == STORED_F32 || to == STORED_BF16));
}

void cast_run(enum stored_dtype from, enum stored_dtype to, const void *in, void *out, int64_t n)
{
    if (from == to) {
        memcpy(out, in, (size_t)stored_bytes(from, n));
    } else if (to == STORED_F32 &&
               from == STORED_BF16) { /* the common pairs are loops of their own, which vectorise */
        const uint16_t *h = in;
        uint32_t *u = out;
        for (int64_t i = 0; i < n; i++)
            u[i] = (uint32_t)h[i] << 16; /* as bits: a signalling NaN stays what it is */
    } else if (to == STORED_F32) {
        for (int64_t i = 0; i < n; i++)
            ((float *)out)[i] = load(from, in, i);
    } else if (from == STORED_F32) {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = bf16_of_f32(((const float *)in)[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = bf16_of_f32(load(from, in, i));
    }
}
