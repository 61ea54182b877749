/* merge_row.c - see merge_priv.h. */
#include "format/peft/merge_priv.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* When the program is loaded it picks the widest registers of the machine; the numbers are the same. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

#define COLUMNS 256 /* sums at once */

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* x as binary32, the last bit set where x is not exact ("round to odd"): rounding that to fewer bits gives
 * what rounding x itself gives. No branches. */
static inline uint32_t round_to_odd(double x)
{
    float f = (float)x;
    const uint32_t u = bits_of(f);
    const double back = (double)f;
    const int exact = (back == x) | (x != x), odd = (int)(u & 1), infinite = (u & 0x7fffffff) == 0x7f800000;
    const int away = (back > x) == (x > 0); /* f is further from zero than x */
    const uint32_t next = away ? u - 1 : u + 1;
    return exact | odd | infinite ? u : next; /* beyond the largest: stay there */
}

static inline uint16_t to_bf16(double x)
{
    const uint32_t u = round_to_odd(x);
    const uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

static uint16_t to_f16(double x)
{
    uint32_t u = round_to_odd(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (a >= 0x47800000) /* 65536 and more */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x33000000) /* below half of the smallest */
        return (uint16_t)sign;
    int shift = a >= 0x38800000 ? 13 : 126 - (int)(a >> 23);
    uint32_t m = a >= 0x38800000 ? a - (112u << 23) : (a & 0x7fffff) | 0x800000;
    uint32_t half = 1u << (shift - 1), rest = m & ((1u << shift) - 1), v = m >> shift;
    v += rest > half || (rest == half && (v & 1));
    return (uint16_t)(sign | v);
}

void merge_round(enum stored_dtype t, double x, void *out, int64_t i)
{
    char *at = (char *)out + stored_bytes(t, i);
    uint16_t h = t == STORED_BF16 ? to_bf16(x) : to_f16(x);
    float f = (float)x;
    if (t == STORED_F64)
        memcpy(at, &x, sizeof x);
    else if (t == STORED_F32)
        memcpy(at, &f, sizeof f);
    else
        memcpy(at, &h, sizeof h);
}

/* What add_sums and merge_widen do for one dtype, whose elements are T, need not be aligned, and are taken
 * without calls or branches, several at once. VALUE: the double of the bits u; ROUND: the bits of the double
 * x; TOP: the exponent of infinities. */
#define ADD_OF(NAME, T, VALUE, ROUND, TOP) \
    CLONES static void add_##NAME(char *w, int64_t n, const double *sum, double scale, \
                                  struct merge_tally *tally) \
    { \
        int64_t moved = 0, changed = 0, bad = 0; \
        for (int64_t i = 0; i < n; i++) { \
            T u; \
            memcpy(&u, w + i * (int64_t)sizeof u, sizeof u); \
            const double d = scale * sum[i]; \
            const T to = d == 0 ? u : ROUND(VALUE(u) + d); \
            const int overflows = (to & TOP) == TOP && (u & TOP) != TOP; \
            moved += d != 0; \
            changed += to != u; \
            bad += !(fabs(d) <= DBL_MAX) || overflows; \
            memcpy(w + i * (int64_t)sizeof u, &to, sizeof u); \
        } \
        tally->moved += moved; \
        tally->changed += changed; \
        tally->bad += bad; \
    }
#define WIDEN_OF(NAME, T, VALUE) \
    CLONES static void widen_##NAME(const char *data, int64_t n, double *out) \
    { \
        for (int64_t i = 0; i < n; i++) { \
            T u; \
            memcpy(&u, data + i * (int64_t)sizeof u, sizeof u); \
            out[i] = VALUE(u); \
        } \
    }

static inline double value_bf16(uint16_t u)
{
    uint32_t bits = (uint32_t)u << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static inline double value_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return (double)f;
}

static inline double value_f64(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint32_t bits_f32(double x) { return bits_of((float)x); }

static inline uint64_t bits_f64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static double value_f16(uint16_t u) { return stored_value(STORED_F16, &u, 0); }

WIDEN_OF(bf16, uint16_t, value_bf16)
WIDEN_OF(f16, uint16_t, value_f16)
WIDEN_OF(f32, uint32_t, value_f32)
WIDEN_OF(f64, uint64_t, value_f64)
ADD_OF(f16, uint16_t, value_f16, to_f16, 0x7c00)
ADD_OF(f32, uint32_t, value_f32, bits_f32, 0x7f800000)
ADD_OF(f64, uint64_t, value_f64, bits_f64, 0x7ff0000000000000)

/* What ADD_OF makes of other dtypes, in steps that each have elements of one width, so that they vectorise.
 * n <= COLUMNS. */
CLONES static void add_bf16_steps(char *w, int64_t n, const double *sum, double scale,
                                  struct merge_tally *tally)
{
    uint16_t stored[COLUMNS];
    uint32_t was[COLUMNS], now[COLUMNS], moves[COLUMNS], wild[COLUMNS];
    int32_t side[COLUMNS]; /* of the nearest binary32: 1 above x, -1 below, 0 exact or no number */
    float value[COLUMNS], near[COLUMNS];
    uint32_t moved = 0, changed = 0, bad = 0;
    memcpy(stored, w, (size_t)n * sizeof *stored);
    for (int64_t i = 0; i < n; i++)
        was[i] = (uint32_t)stored[i] << 16;
    memcpy(value, was, (size_t)n * sizeof *was);
    for (int64_t i = 0; i < n; i++) {
        const double d = scale * sum[i], x = (double)value[i] + d;
        near[i] = (float)x;
        side[i] = ((double)near[i] > x) - ((double)near[i] < x);
        moves[i] = d != 0;
        wild[i] = !(fabs(d) <= DBL_MAX);
    }

    memcpy(now, near, (size_t)n * sizeof *now);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = now[i], away = (uint32_t)(side[i] > 0) ^ u >> 31, infinity = 0x7f800000;
        const uint32_t steps = (side[i] != 0) & ~u & ((u & 0x7fffffff) != infinity);
        const uint32_t odd = u + steps - 2 * (steps & away);
        const uint32_t rounded = odd + 0x7fff + (odd >> 16 & 1), quiet = odd | 0x400000;
        const uint32_t made = (odd & 0x7fffffff) > infinity ? quiet : rounded;
        now[i] = (moves[i] ? made : was[i]) & 0xffff0000;
        moved += moves[i];
        changed += now[i] != was[i];
        bad += wild[i] | (((now[i] & infinity) == infinity) & ((was[i] & infinity) != infinity));
    }
    for (int64_t i = 0; i < n; i++)
        stored[i] = (uint16_t)(now[i] >> 16);
    memcpy(w, stored, (size_t)n * sizeof *stored);
    tally->moved += moved;
    tally->changed += changed;
    tally->bad += bad;
}

static void add_sums(enum stored_dtype t, char *w, int64_t n, const double *sum, double scale,
                     struct merge_tally *tally)
{
    switch (t) {
    case STORED_BF16: add_bf16_steps(w, n, sum, scale, tally); break;
    case STORED_F16: add_f16(w, n, sum, scale, tally); break;
    case STORED_F32: add_f32(w, n, sum, scale, tally); break;
    default: add_f64(w, n, sum, scale, tally); break;
    }
}

void merge_widen(enum stored_dtype t, const char *data, int64_t n, double *out)
{
    switch (t) {
    case STORED_BF16: widen_bf16(data, n, out); break;
    case STORED_F16: widen_f16(data, n, out); break;
    case STORED_F32: widen_f32(data, n, out); break;
    default: widen_f64(data, n, out); break;
    }
}

/* sum[i] += left[0] right[0][i], then left[1] right[1][i], and so on: four in one pass over the sums. */
CLONES static void add_products(double *restrict sum, int64_t n, int64_t r, const double *left,
                                const double *right, int64_t stride)
{
    int64_t k = 0;
    for (; k + 4 <= r; k += 4) {
        const double b0 = left[k], b1 = left[k + 1], b2 = left[k + 2], b3 = left[k + 3];
        const double *restrict a0 = right + k * stride, *restrict a1 = a0 + stride,
                               *restrict a2 = a1 + stride, *restrict a3 = a2 + stride;
        for (int64_t i = 0; i < n; i++)
            sum[i] = (((sum[i] + b0 * a0[i]) + b1 * a1[i]) + b2 * a2[i]) + b3 * a3[i];
    }
    for (; k < r; k++)
        for (int64_t i = 0; i < n; i++)
            sum[i] += left[k] * right[k * stride + i];
}

void merge_row(enum stored_dtype t, char *w, int64_t n, int64_t r, const double *left, const double *right,
               int64_t stride, double scale, struct merge_tally *tally)
{
    double sum[COLUMNS];
    for (int64_t at = 0; at < n; at += COLUMNS) {
        int64_t m = n - at < COLUMNS ? n - at : COLUMNS;
        memset(sum, 0, sizeof sum);
        add_products(sum, m, r, left, right + at, stride);
        add_sums(t, w + stored_bytes(t, at), m, sum, scale, tally);
    }
}
