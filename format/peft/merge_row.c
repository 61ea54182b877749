/* merge_row.c - see merge_priv.h. */
#include "format/peft/merge_priv.h"

#include <math.h>
#include <string.h>

#define COLUMNS 256 /* sums at once */

int merge_is_float(enum stored_dtype t)
{
    return t == STORED_F32 || t == STORED_BF16 || t == STORED_F16 || t == STORED_F64;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* x as binary32, the last bit set where x is not exact ("round to odd"): rounding that to fewer bits gives
 * what rounding x itself gives. */
static uint32_t round_to_odd(double x)
{
    float f = (float)x;
    uint32_t u = bits_of(f);
    double back = (double)f;
    if (back == x || x != x || (u & 1))
        return u;
    if ((u & 0x7fffffff) == 0x7f800000) /* beyond the largest: stay there */
        return u;
    int away = (back > x) == (x > 0); /* f is further from zero than x */
    return away ? u - 1 : u + 1;
}

static uint16_t to_bf16(double x)
{
    uint32_t u = round_to_odd(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
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

static void add_sums(enum stored_dtype t, char *w, int64_t n, const double *sum, double scale,
                     struct merge_tally *tally)
{
    const size_t size = (size_t)stored_bytes(t, 1);
    for (int64_t i = 0; i < n; i++, w += size) {
        double d = scale * sum[i];
        char was[8];
        if (d == 0)
            continue;
        memcpy(was, w, size);
        const double old = stored_value(t, was, 0);
        merge_round(t, old + d, w, 0);
        tally->moved++;
        tally->changed += memcmp(w, was, size) != 0;
        tally->bad += !isfinite(d) || (isfinite(old) && !isfinite(stored_value(t, w, 0)));
    }
}

void merge_row(enum stored_dtype t, char *w, int64_t n, int64_t r, const double *left, const double *right,
               int64_t stride, double scale, struct merge_tally *tally)
{
    double sum[COLUMNS];
    for (int64_t at = 0; at < n; at += COLUMNS) {
        int64_t m = n - at < COLUMNS ? n - at : COLUMNS;
        memset(sum, 0, sizeof sum);
        for (int64_t k = 0; k < r; k++) {
            const double b = left[k], *a = right + k * stride + at;
            for (int64_t i = 0; i < m; i++)
                sum[i] += b * a[i];
        }
        add_sums(t, w + stored_bytes(t, at), m, sum, scale, tally);
    }
}
