/* xsum.c - exact sums: integer limbs of 32 bits, so that the order of additions cannot matter.
 *
 * The square of a float is an integer of at most 48 bits times a power of two; a bin for every exponent
 * collects 2^16 of them before it is added to the limbs. Result: the exact sum, rounded once to the nearest
 * double.
 * Method: after Neal 2015, "Fast exact summation using small and large superaccumulators", sections 2 and
 * 3. */
#include <pthread.h>
#include <string.h>

#include "base/alter.h"
#include "kernels/fn.h"
#include "kernels/rows.h"

/* Adds sign * m * 2^exp; a limb grows by less than 2^32. */
static void add_bits(struct xsum *s, uint64_t m, int exp, int64_t sign)
{
    int at = exp + XSUM_BIAS, limb = at / 32, shift = at % 32;
    if (m == 0 || at < 0 || limb > XSUM_LIMBS - 3) /* outside of what squares of floats can be */
        return;
    unsigned __int128 wide = (unsigned __int128)m << shift;
    for (int i = 0; i < 3; i++, wide >>= 32)
        s->limb[limb + i] += sign * (int64_t)(uint32_t)wide;
}

/* Every limb but the last into [0, 2^32). */
void xsum_carry(struct xsum *s)
{
    int64_t carry = 0;
    for (int i = 0; i < XSUM_LIMBS - 1; i++) {
        int64_t v = s->limb[i] + carry;
        carry = v >> 32;
        s->limb[i] = v & 0xffffffff;
    }
    s->limb[XSUM_LIMBS - 1] += carry;
}

void xsum_add(struct xsum *s, double x)
{
    uint64_t b, m;
    memcpy(&b, &x, 8);
    int e = (int)(b >> 52 & 2047);
    m = b & 0xfffffffffffffu;
    if (e == 2047) {
        *(m ? &s->n_nan : &s->n_inf) += 1;
        return;
    }
    m |= e ? (uint64_t)1 << 52 : 0;
    add_bits(s, m, (e ? e : 1) - 1075, b >> 63 ? -1 : 1);
    xsum_carry(s);
}

/* The top 64 bits of a non-negative number in limbs, with the lowest bit set when anything lies below; *exp:
 * weight of bit 0. */
static uint64_t top_bits(const struct xsum *s, int *exp)
{
    int n = XSUM_LIMBS - 1;
    while (n > 0 && s->limb[n] == 0)
        n--;
    /* the top limb may hold more than 32 bits, the two below do not */
    unsigned __int128 wide = 0;
    for (int i = n; i > n - 3; i--)
        wide = wide << 32 | (uint64_t)(i >= 0 ? s->limb[i] : 0);
    int shift = 0;
    uint64_t below = 0;
    for (int i = 0; i < n - 2; i++)
        below |= (uint64_t)s->limb[i];
    for (; wide >> 64; wide >>= 1, shift++)
        below |= (uint64_t)(wide & 1);
    *exp = 32 * (n - 2) + shift - XSUM_BIAS;
    return (uint64_t)wide | (below != 0);
}

/* exact: no result is near the ends of the range */
static double scale_by(double x, int exp)
{
    for (; exp > 900; exp -= 900)
        x *= 0x1p900;
    for (; exp < -900; exp += 900)
        x *= 0x1p-900;
    uint64_t b = (uint64_t)(exp + 1023) << 52;
    double p;
    memcpy(&p, &b, 8);
    return x * p;
}

double xsum_double(const struct xsum *in)
{
    struct xsum s = *in;
    int exp, negative;
    if (s.n_nan || s.n_inf)
        return (double)FN_NAN;
    xsum_carry(&s);
    negative = s.limb[XSUM_LIMBS - 1] < 0;
    for (int i = 0; negative && i < XSUM_LIMBS; i++)
        s.limb[i] = -s.limb[i];
    xsum_carry(&s);
    uint64_t m = top_bits(&s, &exp);
    /* 64 bits to 53: nearest even, the lowest bit stands for all bits below */
    int drop = 0;
    while (m >> drop >> 53)
        drop++;
    uint64_t keep = m >> drop, rest = m & (((uint64_t)1 << drop) - 1),
             half = drop ? (uint64_t)1 << (drop - 1) : 0;
    keep += drop && (rest > half || (rest == half && (keep & 1)));
    double x = scale_by((double)keep, exp + drop);
    return negative ? -x : x;
}

/* ---- squares ---- */

/* neighbours go to different tables: a bin's last addition need not be waited for */
#define BIN_TABLES 4
#define PIECE 65536 /* a bin holds 2^16 squares of 48 bits */
struct bins {
    uint64_t sum[BIN_TABLES][256];
};

static void count_special(struct xsum *s, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t a = fn_bits(x[i]) & 0x7fffffffu;
        s->n_nan += a > 0x7f800000u;
        s->n_inf += a == 0x7f800000u;
    }
}

static inline void add_square(uint64_t *bin, float x)
{
    uint32_t b = fn_bits(x), e = b >> 23 & 255u;
    uint64_t m = (b & 0x7fffffu) | (uint32_t)(e != 0) << 23;
    bin[e] += m * m;
}

static void add_piece(struct xsum *s, const float *x, int64_t n)
{
    struct bins b;
    int64_t i = 0;
    memset(&b, 0, sizeof b);
    for (; i + BIN_TABLES <= n; i += BIN_TABLES)
        for (int k = 0; k < BIN_TABLES; k++)
            add_square(b.sum[k], x[i + k]);
    for (; i < n; i++)
        add_square(b.sum[0], x[i]);
    for (int k = 0; k < BIN_TABLES; k++) {
        if (b.sum[k][255]) {
            count_special(s, x, n);
            break;
        }
    }
    for (int k = 0; k < BIN_TABLES; k++)
        for (int e = 0; e < 255; e++)
            add_bits(s, b.sum[k][e], 2 * (e ? e : 1) - 300, 1);
    xsum_carry(s);
}

void xsum_add_bins(struct xsum *s, const uint64_t low[256], const uint64_t high[256], int64_t n_nan)
{
    for (int e = 0; e < 255; e++) {
        add_bits(s, low[e], 2 * (e ? e : 1) - 300, 1);
        add_bits(s, high[e], 2 * (e ? e : 1) - 300 + 32, 1);
    }
    s->n_nan += n_nan;
    s->n_inf += (int64_t)low[255] - n_nan;
    xsum_carry(s);
}

struct squares_job {
    struct xsum *s;
    const float *x;
    pthread_mutex_t lock;
};

static void squares_task(void *arg, int64_t begin, int64_t end)
{
    struct squares_job *a = arg;
    struct xsum own = { { 0 }, 0, 0 };
    for (int64_t i = begin; i < end; i += PIECE)
        add_piece(&own, a->x + i, end - i < PIECE ? end - i : PIECE);
    pthread_mutex_lock(&a->lock);
    for (int i = 0; i < XSUM_LIMBS; i++)
        a->s->limb[i] += own.limb[i];
    a->s->n_nan += own.n_nan;
    a->s->n_inf += own.n_inf;
    xsum_carry(a->s);
    pthread_mutex_unlock(&a->lock);
}

static void exact_squares(struct dev *d, struct xsum *s, const float *x, int64_t n)
{
    struct squares_job a = { s, x, PTHREAD_MUTEX_INITIALIZER };
    rows_spread(d, n, 16 * PIECE, squares_task, &a);
}

/* A chain of doubles, for altered builds. */
static void plain_squares(struct dev *d, struct xsum *s, const float *x, int64_t n)
{
    double sum = 0;
    (void)d;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    xsum_add(s, sum);
}

void xsum_squares(struct dev *d, struct xsum *s, const float *x, int64_t n)
{
    ORDER("xsum", exact_squares, plain_squares)(d, s, x, n);
}
