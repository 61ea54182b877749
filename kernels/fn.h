/* fn.h - float functions of our own: one text for scalar C, SIMD (a loop over lanes is vectorised) and
 * CUDA, the same bits everywhere.
 *
 * Selects in place of branches; only + - * / and explicit fmaf of IEEE 754 binary32, round to nearest,
 * denormals kept. Methods: Cody and Waite 1980 (argument reduction by two- and three-step constants),
 * polynomials fitted by us (Chebyshev nodes, 40 digits). Largest errors over dense samples
 * (tests/unit/kernels/fn_test.c): exp 1, log 1, tanh 2.5, erf 1.1, silu 2.5 ulp.
 *
 * fn_exp(x)   x < -87 -> 0 (so no denormal results), exp(0) = 1 exactly, over -> inf, NaN -> NaN
 * fn_log(x)   0 -> -inf, < 0 -> NaN, inf -> inf, denormals too
 * fn_sin, fn_cos: |x| <= 30000; beyond that the error grows, the bits stay the same everywhere */
#ifndef SHARDLINE_KERNELS_FN_H
#define SHARDLINE_KERNELS_FN_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define FN static __device__ __forceinline__
FN uint32_t fn_bits(float x) { return __float_as_uint(x); }
FN float fn_float(uint32_t b) { return __uint_as_float(b); }
#else
#include <string.h>
#define FN static inline __attribute__((always_inline, unused))
FN uint32_t fn_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, 4);
    return b;
}
FN float fn_float(uint32_t b)
{
    float x;
    memcpy(&x, &b, 4);
    return x;
}
#endif
#define FN_INF fn_float(0x7f800000u)
#define FN_NAN fn_float(0x7fc00000u)

/* c ? a : b with both sides computed: compilers keep an operation that might trap behind a branch, and then
 * do not vectorise. */
FN float fn_select(int c, float a, float b)
{
    uint32_t mask = 0u - (uint32_t)c;
    return fn_float((fn_bits(a) & mask) | (fn_bits(b) & ~mask));
}
/* y, or the NaN that x is, made quiet. */
FN float fn_or_nan(float x, float y) { return fn_select(x != x, fn_float(fn_bits(x) | 0x00400000u), y); }

/* Adding this number rounds to an integer, to nearest even, and leaves that integer in the low bits: |x| <
 * 2^22. No rint: the portable build would call libm for it. */
#define FN_MAGIC 0x1.8p23f

/* e^r - 1 for |r| <= ln2 / 2, with *scale = bits to add to the exponent for e^x = 2^n e^r. */
FN float fn_exp_reduced(float x, uint32_t *scale)
{
    float t = fmaf(x, 0x1.715476p+0f, FN_MAGIC);
    float n = t - FN_MAGIC;
    float r = fmaf(n, -0x1.62e4p-1f, x); /* ln 2 in two parts: n times the first is exact */
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    float q = 0x1.6a2434p-10f;
    q = fmaf(q, r, 0x1.1239e2p-7f);
    q = fmaf(q, r, 0x1.5558f2p-5f);
    q = fmaf(q, r, 0x1.555492p-3f);
    q = fmaf(q, r, 0x1.fffffcp-2f);
    *scale = (fn_bits(t) - fn_bits(FN_MAGIC)) << 23;
    return fmaf(r * r, q, r);
}

FN float fn_exp(float x)
{
    uint32_t scale;
    float p = 1.0f + fn_exp_reduced(x, &scale);
    float y = fn_float(fn_bits(p) + scale);
    y = fn_select(x < -87.0f, 0.0f, y);
    y = fn_select(x > 0x1.62e42ep+6f, FN_INF, y);
    return fn_or_nan(x, y);
}

/* log(x) = k ln2 + f - (f^2/2 - s (f^2/2 + R)), s = f / (2 + f), R = 2/3 s^2 + 2/5 s^4 + ... (the series of
 * atanh) */
FN float fn_log(float x)
{
    int tiny = x < 0x1p-126f;
    float xs = fn_select(tiny, x * 0x1p23f, x);
    uint32_t u = fn_bits(xs) - 0x3f3504f3u; /* bits of sqrt(1/2): m in [sqrt(1/2), sqrt(2)) */
    float k = (float)(((int32_t)u >> 23) - 23 * tiny);
    float f = fn_float((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float s = f / (2.0f + f);
    float z = s * s;
    float R = fmaf(z, 0x1.c71c72p-3f, 0x1.24924ap-2f);
    R = fmaf(z, R, 0x1.99999ap-2f);
    R = fmaf(z, R, 0x1.555556p-1f) * z;
    float h = 0.5f * f * f;
    float low = fmaf(k, 0x1.7f7d1cp-20f, s * (h + R));
    float y = fmaf(k, 0x1.62e4p-1f, f - (h - low));
    y = fn_select(x == 0.0f, -FN_INF, y);
    y = fn_select(x < 0.0f, FN_NAN, y);
    y = fn_select(x == FN_INF, x, y);
    return fn_or_nan(x, y);
}

/* tanh|x| = e / (e + 2), e = exp(2|x|) - 1, which is accurate near 0 because the reduction gives e^r - 1 */
FN float fn_tanh(float x)
{
    uint32_t sign = fn_bits(x) & 0x80000000u, scale;
    float a = fn_float(fn_bits(x) ^ sign);
    float b = fn_select(a > 10.0f, 10.0f, a); /* tanh is 1 from 9.02 on */
    float em = fn_exp_reduced(b + b, &scale);
    float p = fn_float(0x3f800000u + scale); /* 2^n */
    float e = fmaf(p, em, p - 1.0f);
    float y = fn_select(a > 9.02f, 1.0f, e / (e + 2.0f));
    y = fn_float(fn_bits(y) | sign);
    return fn_or_nan(x, y);
}

/* below 1: x + x P(x^2); from 1 on: 1 - exp(Q(x)), Q fitted to log erfc */
FN float fn_erf(float x)
{
    uint32_t sign = fn_bits(x) & 0x80000000u;
    float a = fn_float(fn_bits(x) ^ sign);
    float s = fn_select(a < 1.0f, a, 1.0f), z = s * s;
    float p = -0x1.445f48p-17f;
    p = fmaf(p, z, 0x1.d88750p-14f);
    p = fmaf(p, z, -0x1.bccf66p-11f);
    p = fmaf(p, z, 0x1.562a60p-8f);
    p = fmaf(p, z, -0x1.b829c8p-6f);
    p = fmaf(p, z, 0x1.ce2f08p-4f);
    p = fmaf(p, z, -0x1.812746p-2f);
    p = fmaf(p, z, 0x1.06eba8p-3f); /* 2/sqrt(pi) - 1 */
    float small = fmaf(s, p, s);
    float t = fn_select(a > 4.0f, 4.0f, a);
    float q = 0x1.b837aep-20f;
    q = fmaf(q, t, -0x1.82d2bap-15f);
    q = fmaf(q, t, 0x1.39237ap-11f);
    q = fmaf(q, t, -0x1.38105cp-8f);
    q = fmaf(q, t, 0x1.b0fb0ep-6f);
    q = fmaf(q, t, -0x1.c2edf0p-4f);
    q = fmaf(q, t, -0x1.437d58p-1f);
    q = fmaf(q, t, -0x1.21575cp+0f);
    q = fmaf(q, t, 0x1.511638p-12f);
    float y = fn_select(a < 1.0f, small, 1.0f - fn_exp(q));
    y = fn_float(fn_bits(y) | sign);
    return fn_or_nan(x, y);
}

/* r = x - n pi/2 in three steps; the quadrant's parity picks the polynomial, its second bit the sign */
FN float fn_sin_quadrant(float x, uint32_t add)
{
    float t = fmaf(x, 0x1.45f306p-1f, FN_MAGIC);
    float n = t - FN_MAGIC;
    float r = fmaf(n, -0x1.921fb6p+0f, x);
    r = fmaf(n, 0x1.777a5cp-25f, r);
    r = fmaf(n, 0x1.ee59dap-50f, r);
    uint32_t q = fn_bits(t) - fn_bits(FN_MAGIC) + add;
    float z = r * r;
    float s = fmaf(z, 0x1.71de3ap-19f, -0x1.a01a02p-13f);
    s = fmaf(z, s, 0x1.111112p-7f);
    s = fmaf(z, s, -0x1.555556p-3f);
    s = fmaf(r * z, s, r);
    float c = fmaf(z, -0x1.27e4fcp-22f, 0x1.a01a02p-16f);
    c = fmaf(z, c, -0x1.6c16c2p-10f);
    c = fmaf(z, c, 0x1.555556p-5f);
    c = fmaf(z, c, -0.5f);
    c = fmaf(z, c, 1.0f);
    float y = fn_select((int)(q & 1u), c, s);
    return fn_float(fn_bits(y) ^ (q & 2u) << 30);
}
FN float fn_sin(float x) { return fn_sin_quadrant(x, 0u); }
FN float fn_cos(float x) { return fn_sin_quadrant(x, 1u); }

FN float fn_sigmoid(float x) { return 1.0f / (1.0f + fn_exp(-x)); }
FN float fn_silu(float x) { return x / (1.0f + fn_exp(-x)); }

/* fp32 -> bf16: to nearest even; denormals become signed zero, NaN quiet: what vcvtneps2bf16 does. */
FN uint16_t fn_to_bf16(float x)
{
    uint32_t b = fn_bits(x), a = b & 0x7fffffffu;
    uint32_t r = (b + 0x7fffu + (b >> 16 & 1u)) >> 16;
    r = a < 0x00800000u ? b >> 16 & 0x8000u : r;
    r = a > 0x7f800000u ? b >> 16 | 0x0040u : r;
    return (uint16_t)r;
}
FN float fn_from_bf16(uint16_t h) { return fn_float((uint32_t)h << 16); }
FN float fn_round_bf16(float x) { return fn_from_bf16(fn_to_bf16(x)); }

/* fp16 -> fp32, exact; a multiplication moves the exponent, so denormals come out right too. NaN becomes
 * quiet. */
FN float fn_from_fp16(uint16_t h)
{
    uint32_t m = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
    float y = fn_float(m << 13) * 0x1p112f;
    uint32_t special = m << 13 | 0x7f800000u | (m > 0x7c00u ? 0x00400000u : 0u);
    uint32_t b = m >= 0x7c00u ? special : fn_bits(y);
    return fn_float(b | sign);
}

#endif
