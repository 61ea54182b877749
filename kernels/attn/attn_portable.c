/* attn_portable.c - attention in portable C: the reference for the faster classes, the same bits. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/fn.h"
#include "kernels/kv_codes.h"

/* A vector of 16 floats as a plain struct; the compiler makes of it what the machine has. */
struct lanes16 {
    float x[16];
};
#define V struct lanes16
#define VW 16
#define OPS static inline __attribute__((always_inline))

OPS V lanes_load(const float *p)
{
    V v;
    memcpy(v.x, p, sizeof v.x);
    return v;
}

OPS V lanes_set1(float x)
{
    V v;
    for (int i = 0; i < VW; i++)
        v.x[i] = x;
    return v;
}

OPS V lanes_add(V a, V b)
{
    for (int i = 0; i < VW; i++)
        a.x[i] = a.x[i] + b.x[i];
    return a;
}

OPS V lanes_sub(V a, V b)
{
    for (int i = 0; i < VW; i++)
        a.x[i] = a.x[i] - b.x[i];
    return a;
}

OPS V lanes_mul(V a, V b)
{
    for (int i = 0; i < VW; i++)
        a.x[i] = a.x[i] * b.x[i];
    return a;
}

OPS V lanes_max(V a, V b)
{
    for (int i = 0; i < VW; i++)
        a.x[i] = a.x[i] > b.x[i] ? a.x[i] : b.x[i];
    return a;
}

OPS V lanes_exp(V a)
{
    for (int i = 0; i < VW; i++)
        a.x[i] = fn_exp(a.x[i]);
    return a;
}

OPS V lanes_round(V a)
{
    for (int i = 0; i < VW; i++)
        a.x[i] = fn_round_bf16(a.x[i]);
    return a;
}

OPS float lanes_fold_add(V a)
{
    for (int w = VW / 2; w > 0; w >>= 1)
        for (int i = 0; i < w; i++)
            a.x[i] = a.x[i] + a.x[i + w];
    return a.x[0];
}

OPS float lanes_fold_max(V a)
{
    for (int i = 1; i < VW; i++)
        a.x[0] = a.x[i] > a.x[0] ? a.x[i] : a.x[0];
    return a.x[0];
}

OPS V lanes_fold_add_rows(const V *x)
{
    V y;
    for (int r = 0; r < VW; r++)
        y.x[r] = lanes_fold_add(x[r]);
    return y;
}

OPS V lanes_fold_max_rows(const V *x)
{
    V y;
    for (int r = 0; r < VW; r++)
        y.x[r] = lanes_fold_max(x[r]);
    return y;
}

OPS int lanes_has_minus_zero(V a)
{
    for (int i = 0; i < VW; i++)
        if (fn_bits(a.x[i]) == 0x80000000u)
            return 1;
    return 0;
}

OPS V lanes_fma(V a, V b, V c)
{
    for (int i = 0; i < VW; i++)
        c.x[i] = fmaf(a.x[i], b.x[i], c.x[i]);
    return c;
}

/* A denormal becomes zero of its sign. */
OPS float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

/* fma with inputs and result flushed. Machines look at the result rounded as if the exponent had no end: one
 * that fmaf lifts to 2^-126 from further below than half a step there is still tiny. The operands are bf16,
 * so the double is exact enough to see it. */
OPS float fma_flushed(float a, float b, float c)
{
    a = flushed(a);
    b = flushed(b);
    c = flushed(c);
    const float r = fmaf(a, b, c);
    if (fabsf(r) == 0x1p-126f && fabs((double)a * (double)b + (double)c) < 0x1p-126 - 0x1p-151)
        return copysignf(0, r);
    return flushed(r);
}

OPS V lanes_fma_flushed(V a, V b, V c)
{
    for (int i = 0; i < VW; i++)
        c.x[i] = fma_flushed(a.x[i], b.x[i], c.x[i]);
    return c;
}

OPS V lanes_codes(const char *p, enum kv_kind kind)
{
    V v;
    for (int i = 0; i < VW; i++)
        v.x[i] = kv_code(p, kind, i);
    return v;
}

OPS V lanes_keep(V a, int64_t n, V b)
{
    for (int i = 0; i < VW; i++)
        b.x[i] = i < n ? a.x[i] : b.x[i];
    return b;
}

#define V_LOAD(p) lanes_load(p)
#define V_STORE(p, v) memcpy((p), (v).x, sizeof(v).x)
#define V_SET1(x) lanes_set1(x)
#define V_ZERO() lanes_set1(0)
#define V_ADD(a, b) lanes_add(a, b)
#define V_SUB(a, b) lanes_sub(a, b)
#define V_MUL(a, b) lanes_mul(a, b)
#define V_MAX(a, b) lanes_max(a, b)
#define V_EXP(x) lanes_exp(x)
#define V_EXP_DOWN(x) lanes_exp(x)
#define V_ROUND(x) lanes_round(x)
#define V_KEEP(x, n, y) lanes_keep(x, n, y)
#define V_FOLD_ADD(x) lanes_fold_add(x)
#define V_FOLD_MAX(x) lanes_fold_max(x)
#define V_FOLD_ADD_ROWS(x) lanes_fold_add_rows(x)
#define V_FOLD_MAX_ROWS(x) lanes_fold_max_rows(x)
#define V_HAS_MINUS_ZERO(x) lanes_has_minus_zero(x)
#define V_FROM_INT8(p) lanes_codes(p, KV_INT8)
#define V_FROM_FP8(p) lanes_codes(p, KV_FP8)
#define V_FMA(a, b, c) lanes_fma(a, b, c)
#define V_FMA_FLUSH(a, b, c) lanes_fma_flushed(a, b, c)
#define FLUSH_BEGIN() ((void)0)
#define FLUSH_END() ((void)0)

#define HAVE_PAIRS 0
#define HAVE_DIRECT 0
#define TILE_LIST(kind, T) TILES_OF(kind, T, 1)
#define TILE_TABLE \
    { \
        { \
            16, ANY_ROWS, { TILE_NAMES(plain, 1), TILE_NAMES(flush, 1) } \
        } \
    }
#define ATTN_OPS attn_portable
#include "kernels/attn/attn.inc"
