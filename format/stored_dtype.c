/* stored_dtype.c - see stored_dtype.h. */
#include "format/stored_dtype.h"

#include <math.h>
#include <string.h>

enum kind { FLOAT, SIGNED, UNSIGNED, COMPLEX };
/* What the patterns of a float with the largest exponent mean. */
enum special {
    INF_NAN,  /* infinity and NaN, as in IEEE 754 */
    ONE_NAN,  /* all bits set is NaN, all others are numbers; there is no infinity */
    ZERO_NAN, /* minus zero is NaN, all others are numbers */
    NUMBERS   /* all are numbers */
};

/* exponent, mantissa: bits; without a mantissa there is no sign either. Sources: OCP Microscaling Formats
 * 1.0, section 5 (F8_E4M3 to F4); Noune et al. 2022 (FNUZ). */
/* clang-format off */
static const struct {
    const char *name;
    int bits;
    enum kind kind;
    int exponent, mantissa, bias;
    enum special special;
} dtypes[STORED_DTYPES] = {
    [STORED_F32]         = { "F32",         32, FLOAT,     8, 23,  127, INF_NAN },
    [STORED_BF16]        = { "BF16",        16, FLOAT,     8,  7,  127, INF_NAN },
    [STORED_F16]         = { "F16",         16, FLOAT,     5, 10,   15, INF_NAN },
    [STORED_F64]         = { "F64",         64, FLOAT,    11, 52, 1023, INF_NAN },
    [STORED_I64]         = { "I64",         64, SIGNED,    0,  0,    0, NUMBERS },
    [STORED_I32]         = { "I32",         32, SIGNED,    0,  0,    0, NUMBERS },
    [STORED_I16]         = { "I16",         16, SIGNED,    0,  0,    0, NUMBERS },
    [STORED_I8]          = { "I8",           8, SIGNED,    0,  0,    0, NUMBERS },
    [STORED_U8]          = { "U8",           8, UNSIGNED,  0,  0,    0, NUMBERS },
    [STORED_BOOL]        = { "BOOL",         8, UNSIGNED,  0,  0,    0, NUMBERS },
    [STORED_U64]         = { "U64",         64, UNSIGNED,  0,  0,    0, NUMBERS },
    [STORED_U32]         = { "U32",         32, UNSIGNED,  0,  0,    0, NUMBERS },
    [STORED_U16]         = { "U16",         16, UNSIGNED,  0,  0,    0, NUMBERS },
    [STORED_C64]         = { "C64",         64, COMPLEX,   0,  0,    0, NUMBERS },
    [STORED_F8_E4M3]     = { "F8_E4M3",      8, FLOAT,     4,  3,    7, ONE_NAN },
    [STORED_F8_E5M2]     = { "F8_E5M2",      8, FLOAT,     5,  2,   15, INF_NAN },
    [STORED_F8_E8M0]     = { "F8_E8M0",      8, FLOAT,     8,  0,  127, ONE_NAN },
    [STORED_F8_E4M3FNUZ] = { "F8_E4M3FNUZ",  8, FLOAT,     4,  3,    8, ZERO_NAN },
    [STORED_F8_E5M2FNUZ] = { "F8_E5M2FNUZ",  8, FLOAT,     5,  2,   16, ZERO_NAN },
    [STORED_F6_E2M3]     = { "F6_E2M3",      6, FLOAT,     2,  3,    1, NUMBERS },
    [STORED_F6_E3M2]     = { "F6_E3M2",      6, FLOAT,     3,  2,    3, NUMBERS },
    [STORED_F4]          = { "F4",           4, FLOAT,     2,  1,    1, NUMBERS },
};
/* clang-format on */

const char *stored_dtype_name(enum stored_dtype t) { return dtypes[t].name; }

int stored_dtype_bits(enum stored_dtype t) { return dtypes[t].bits; }

int stored_dtype_find(const char *name)
{
    for (int i = 0; i < STORED_DTYPES; i++)
        if (!strcmp(dtypes[i].name, name))
            return i;
    return -1;
}

int stored_is_float(enum stored_dtype t)
{
    return t == STORED_F32 || t == STORED_BF16 || t == STORED_F16 || t == STORED_F64;
}

int stored_on_bytes(enum stored_dtype t, int64_t n) { return n % 8 * dtypes[t].bits % 8 == 0; }

int64_t stored_bytes(enum stored_dtype t, int64_t n)
{
    int bits = dtypes[t].bits;
    return bits >= 8 ? n * (bits / 8) : n * bits / 8;
}

int64_t stored_elements(enum stored_dtype t, int64_t bytes)
{
    int bits = dtypes[t].bits;
    return bits >= 8 ? bytes / (bits / 8) : bytes / bits * 8;
}

uint64_t stored_pattern(enum stored_dtype t, const void *data, int64_t i)
{
    const unsigned char *p = data;
    int bits = dtypes[t].bits;
    uint64_t v = 0;
    if (bits >= 8) {
        memcpy(&v, p + i * (bits / 8), (size_t)bits / 8);
        return v;
    }

    /* An element of 6 bits may lie in two bytes. */
    int64_t first = i * bits, byte = first / 8;
    int shift = (int)(first % 8);
    v = p[byte];
    if (shift + bits > 8)
        v |= (uint64_t)p[byte + 1] << 8;
    return v >> shift & ((1u << bits) - 1);
}

static double float_value(enum stored_dtype t, uint64_t x)
{
    int n_mantissa = dtypes[t].mantissa, n_exponent = dtypes[t].exponent;
    int most = (1 << n_exponent) - 1;
    int exponent = (int)(x >> n_mantissa) & most;
    int negative = n_mantissa && x >> (n_mantissa + n_exponent) & 1;
    uint64_t full = ((uint64_t)1 << n_mantissa) - 1, mantissa = x & full;
    enum special special = dtypes[t].special;

    if (special == ZERO_NAN && negative && !exponent && !mantissa)
        return NAN;
    if (special == ONE_NAN && exponent == most && mantissa == full)
        return NAN;
    if (special == INF_NAN && exponent == most)
        return mantissa ? NAN : negative ? -INFINITY : INFINITY;

    /* Without a mantissa every pattern is a power of two: there is no zero and nothing is denormal. */
    int denormal = exponent == 0 && n_mantissa;
    double v = (double)(denormal ? mantissa : mantissa | (full + 1));
    v = ldexp(v, (denormal ? 1 : exponent) - dtypes[t].bias - n_mantissa);
    return negative ? -v : v;
}

double stored_value(enum stored_dtype t, const void *data, int64_t i)
{
    uint64_t x = stored_pattern(t, data, i);
    int unused = 64 - dtypes[t].bits;
    uint32_t wide;
    float f[2];
    double d;

    /* Floats of today's models go a short way. */
    if (t == STORED_F32 || t == STORED_BF16) {
        wide = (uint32_t)(t == STORED_F32 ? x : x << 16);
        memcpy(f, &wide, sizeof wide);
        return (double)f[0];
    }
    switch (dtypes[t].kind) {
    case FLOAT:
        if (t != STORED_F64)
            return float_value(t, x);
        memcpy(&d, &x, sizeof d);
        return d;
    case SIGNED: return (double)((int64_t)(x << unused) >> unused);
    case UNSIGNED: return (double)x;
    case COMPLEX: memcpy(f, &x, sizeof f); return hypot((double)f[0], (double)f[1]);
    }
    return 0;
}

/* ---- byte planes ---- */

void stored_split(char *to, const char *from, size_t n, size_t width)
{
    size_t m = n / width;
    for (size_t k = 0; k < width; k++)
        for (size_t i = 0; i < m; i++)
            to[k * m + i] = from[i * width + k];
    memcpy(to + m * width, from + m * width, n - m * width);
}

void stored_join(char *to, const char *from, size_t n, size_t width)
{
    size_t m = n / width;
    for (size_t k = 0; k < width; k++)
        for (size_t i = 0; i < m; i++)
            to[i * width + k] = from[k * m + i];
    memcpy(to + m * width, from + m * width, n - m * width);
}
