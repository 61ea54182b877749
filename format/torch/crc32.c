/* crc32.c - see crc32.h. Sixteen tables everywhere; carry-less products where the processor has them.
 *
 *   bytes -> [ x0 x1 x2 x3 ]   each is multiplied by x^D mod P (D: the bits between it and its next bytes)
 *                              and added to those bytes,
 *                              until 16 bytes are left, which have the sum of all of them: the tables do the
 *                              rest
 * Bits are reversed: bit 0 of a byte is the highest power of x, so a product of two registers comes out one
 * power too low, and the constants are x^(D - 1). Source: Gopal et al. 2009, Fast CRC Computation for
 * Generic Polynomials Using PCLMULQDQ. */
#include "format/torch/crc32.h"

#include <pthread.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define POLYNOMIAL 0xedb88320u /* bits reversed */
#define ONE 0x80000000u        /* x^0 */
#define FOLD_MIN 256           /* bytes: below, setting out costs more than it gains */

struct tables {
    uint32_t t[16][256]; /* t[k][b]: what byte b does to the sum k bytes later */
    uint32_t power[64];  /* x^(8 * 2^k) */
    /* for D = 128, 512, 2048: the constants of the first 8 bytes of 16, and of the others */
    uint64_t fold[3][2];
};

/* a * b mod P */
static uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t c = 0;
    for (uint32_t bit = ONE; bit; bit >>= 1) {
        c ^= a & bit ? b : 0;
        b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return c;
}

/* x^n mod P */
static uint32_t power_of_x(int n)
{
    uint32_t p = ONE;
    while (n-- > 0)
        p = p >> 1 ^ (p & 1 ? POLYNOMIAL : 0);
    return p;
}

static void make_tables(struct tables *x)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = b;
        for (int i = 0; i < 8; i++)
            c = c >> 1 ^ (c & 1 ? POLYNOMIAL : 0);
        x->t[0][b] = c;
    }
    for (int k = 1; k < 16; k++)
        for (int b = 0; b < 256; b++)
            x->t[k][b] = x->t[k - 1][b] >> 8 ^ x->t[0][x->t[k - 1][b] & 0xff];
    x->power[0] = power_of_x(8);
    for (int k = 1; k < 64; k++)
        x->power[k] = times(x->power[k - 1], x->power[k - 1]);
    for (int i = 0; i < 3; i++) {
        int distance = 128 << 2 * i;
        x->fold[i][0] = (uint64_t)power_of_x(distance + 64 - 1) << 32;
        x->fold[i][1] = (uint64_t)power_of_x(distance - 1) << 32;
    }
}

static struct tables shared;
static void make_shared(void) { make_tables(&shared); }
static const struct tables *tables(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT; /* written once, the same for everybody */
    pthread_once(&once, make_shared);
    return &shared;
}

/* ---- ways: c is the sum without the inversions at its ends ---- */

/* Sixteen bytes take sixteen look-ups that do not wait for each other. */
static uint32_t by_tables(const struct tables *x, uint32_t c, const unsigned char *p, size_t n)
{
    for (; n >= 16; n -= 16, p += 16) {
        uint32_t d = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        c = x->t[15][d & 0xff] ^ x->t[14][d >> 8 & 0xff] ^ x->t[13][d >> 16 & 0xff] ^ x->t[12][d >> 24];
        for (int i = 4; i < 16; i++)
            c ^= x->t[15 - i][p[i]];
    }
    while (n--)
        c = c >> 8 ^ x->t[0][(c ^ *p++) & 0xff];
    return c;
}

static int has_tables(void) { return 1; }

#if defined(__x86_64__)
#define CLMUL __attribute__((target("pclmul,sse4.1")))
#define VCLMUL __attribute__((target("vpclmulqdq,pclmul,avx512f,avx512bw,avx512vl")))

static int has_clmul(void) { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
static int has_vclmul(void)
{
    return has_clmul() && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

CLMUL static inline __m128i load(const unsigned char *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

/* x moved by k's distance, plus what lies there */
CLMUL static inline __m128i fold(__m128i x, __m128i k, __m128i there)
{
    return _mm_xor_si128(there,
                         _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)));
}

/* Four registers of neighbouring bytes, and all bytes behind them. */
CLMUL static inline uint32_t finish(const struct tables *t, const __m128i x[4], const unsigned char *p,
                                    size_t n)
{
    const __m128i k = load((const unsigned char *)t->fold[0]);
    __m128i a = fold(fold(fold(x[0], k, x[1]), k, x[2]), k, x[3]);
    unsigned char last[16];
    for (; n >= 16; n -= 16, p += 16)
        a = fold(a, k, load(p));
    memcpy(last, &a, sizeof last);
    return by_tables(t, by_tables(t, 0, last, sizeof last), p, n);
}

CLMUL static uint32_t by_clmul(const struct tables *t, uint32_t c, const unsigned char *p, size_t n)
{
    if (n < FOLD_MIN)
        return by_tables(t, c, p, n);
    const __m128i k = load((const unsigned char *)t->fold[1]);
    __m128i x[4];
    for (int i = 0; i < 4; i++)
        x[i] = load(p + 16 * i);
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)c));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
        for (int i = 0; i < 4; i++)
            x[i] = fold(x[i], k, load(p + 16 * i));
    return finish(t, x, p, n);
}

VCLMUL static inline __m512i load_wide(const unsigned char *p) { return _mm512_loadu_si512(p); }

VCLMUL static inline __m512i fold_wide(__m512i x, __m512i k, __m512i there)
{
    /* a ^ b ^ c */
    return _mm512_ternarylogic_epi64(there, _mm512_clmulepi64_epi128(x, k, 0x00),
                                     _mm512_clmulepi64_epi128(x, k, 0x11), 0x96);
}

/* The same, each of the four as wide as four. */
VCLMUL static uint32_t by_vclmul(const struct tables *t, uint32_t c, const unsigned char *p, size_t n)
{
    if (n < FOLD_MIN)
        return by_tables(t, c, p, n);
    const __m512i far = _mm512_broadcast_i32x4(load((const unsigned char *)t->fold[2])),
                  near = _mm512_broadcast_i32x4(load((const unsigned char *)t->fold[1]));
    __m512i x[4];
    __m128i last[4];
    for (int i = 0; i < 4; i++)
        x[i] = load_wide(p + 64 * i);
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)c)));
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256)
        for (int i = 0; i < 4; i++)
            x[i] = fold_wide(x[i], far, load_wide(p + 64 * i));
    __m512i a = fold_wide(fold_wide(fold_wide(x[0], near, x[1]), near, x[2]), near, x[3]);
    for (; n >= 64; p += 64, n -= 64)
        a = fold_wide(a, near, load_wide(p));
    _mm512_storeu_si512(last, a);
    return finish(t, last, p, n);
}
#endif

typedef uint32_t way_fn(const struct tables *t, uint32_t c, const unsigned char *p, size_t n);
static const struct way {
    int (*here)(void);
    way_fn *sum;
} ways[] = {
    { has_tables, by_tables },
#if defined(__x86_64__)
    { has_clmul, by_clmul },
    { has_vclmul, by_vclmul },
#endif
};

int fmt_crc32_ways(void)
{
    int n = (int)(sizeof ways / sizeof *ways);
    while (!ways[n - 1].here())
        n--;
    return n;
}

uint32_t fmt_crc32_by(int way, uint32_t crc, const void *data, size_t n)
{
    return ~ways[way].sum(tables(), ~crc, data, n);
}

uint32_t fmt_crc32(uint32_t crc, const void *data, size_t n)
{
    return fmt_crc32_by(n < FOLD_MIN ? 0 : fmt_crc32_ways() - 1, crc, data, n);
}

/* ---- parts ---- */

uint32_t fmt_crc32_moved(uint32_t part, int64_t behind)
{
    const struct tables *t = tables();
    for (int k = 0; behind; k++, behind >>= 1)
        if (behind & 1)
            part = times(part, t->power[k]);
    return part;
}

uint32_t fmt_crc32_part(const void *data, size_t n, int64_t behind)
{
    return fmt_crc32_moved(~fmt_crc32(~0u, data, n), behind);
}

uint32_t fmt_crc32_whole(uint32_t parts, int64_t bytes) { return ~(parts ^ fmt_crc32_moved(~0u, bytes)); }
