/* fmath_inline.h - the parts of fmath.c that loops over many numbers use too (rnd.c). They have no branches,
 * so that compilers can vectorise them; the operations and their order are the same, so the bits are. See
 * fmath.c for the method. */
#ifndef SHARDLINE_BASE_MATH_FMATH_INLINE_H
#define SHARDLINE_BASE_MATH_FMATH_INLINE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define FM static inline __attribute__((always_inline, unused))

/* the number hi + lo, |lo| <= ulp(hi) / 2 */
struct two {
    double hi, lo;
};

/* a + b exactly (Knuth). */
FM struct two two_sum(double a, double b)
{
    double s = a + b, from_b = s - a;
    return (struct two){ s, (a - (s - from_b)) + (b - from_b) };
}

/* a * b exactly. */
FM struct two two_product(double a, double b)
{
    double p = a * b;
    return (struct two){ p, fma(a, b, -p) };
}

/* a + b, rounded to one such number. */
FM struct two add(struct two a, struct two b)
{
    struct two s = two_sum(a.hi, b.hi);
    return two_sum(s.hi, s.lo + (a.lo + b.lo));
}

/* a * b, rounded to one such number. */
FM struct two multiply(struct two a, struct two b)
{
    struct two p = two_product(a.hi, b.hi);
    return two_sum(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}

/* The nearest integer of |x| < 2^51, ties to even, without the rounding mode's library call. */
FM double nearest(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

/* c[0] + x (c[1] + x (c[2] + …)) */
FM double series(double x, const double *c, int n)
{
    double s = c[n - 1];
    for (int i = n - 2; i >= 0; i--)
        s = fma(s, x, c[i]);
    return s;
}
#define SERIES(x, c) series((x), (c), (int)(sizeof(c) / sizeof *(c)))

#define LN2_HI 0x1.62e42fefa3000p-1 /* 41 bits: k times it is exact */
#define LN2_LO 0x1.3de6af278ece6p-42

/* Logarithm of 2^k0 x, x a normal number above 0. */
FM struct two log_normal(double x, int64_t k0)
{
    static const double c[] = {
        /* (atanh(s) / s - 1 - z / 3 - z^2 / 5) / z^3, z = s^2 */
        1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23, 1.0 / 25,
    };
    static const struct two third = { 0x1.5555555555555p-2, 0x1.5555555555555p-56 };
    static const struct two fifth = { 0x1.999999999999ap-3, -0x1.999999999999ap-57 };
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    double k = (double)(k0 + (int64_t)(u >> 52) - 1023);
    u = (u & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    memcpy(&x, &u, sizeof x);
    int above = x > 0x1.6a09e667f3bcdp+0;
    x = above ? 0.5 * x : x;
    k = above ? k + 1 : k;
    double f = x - 1;
    struct two d = two_sum(2, f), s;
    s.hi = f / d.hi;
    s.lo = (fma(-s.hi, d.hi, f) - s.hi * d.lo) / d.hi;
    struct two z = multiply(s, s);
    struct two q = add(fifth, (struct two){ z.hi * SERIES(z.hi, c), 0 });
    q = add(third, multiply(z, q));
    struct two sum = add(s, multiply(multiply(z, s), q));
    sum = (struct two){ 2 * sum.hi, 2 * sum.lo };
    return add(two_sum(k * LN2_HI, k * LN2_LO), sum);
}

/* pi / 2 in three doubles: 159 bits; n times the first two is kept exactly */
#define PIO2_A 0x1.921fb54442d18p+0
#define PIO2_B 0x1.1a62633145c07p-54
#define PIO2_C -0x1.f1976b7ed8fbcp-110

/* r, and n mod 4 (below pi / 4: x and 0). */
FM struct two quarter_turn(double x, double *n_mod_4)
{
    double n = nearest(x * 0x1.45f306dc9c883p-1);
    struct two a = two_product(n, PIO2_A), b = two_product(n, PIO2_B);
    struct two s = two_sum(x, -a.hi);
    struct two t = two_sum(s.hi, -a.lo);
    struct two u = two_sum(t.hi, -b.hi);
    double lo = s.lo + t.lo + u.lo - b.lo - n * PIO2_C;
    *n_mod_4 = n - 4 * floor(n * 0.25);
    return two_sum(u.hi, lo);
}

/* sin and cos of a reduced argument, |r| <= pi / 4. */
FM double sine(struct two r)
{
    static const double c[] = {
        /* (sin(r) / r - 1) / z, z = r^2 */
        -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
        -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000,
    };
    double z = r.hi * r.hi;
    return r.hi + fma(r.hi * z, SERIES(z, c), r.lo * (1 - z / 2));
}

/* See sine. */
FM double cosine(struct two r)
{
    static const double c[] = {
        /* (cos(r) - 1 + z / 2) / z^2 */
        1.0 / 24,        -1.0 / 720,         1.0 / 40320,          -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000,
    };
    struct two z = two_product(r.hi, r.hi), w = two_sum(1, -z.hi / 2);
    return w.hi + (w.lo + (z.hi * z.hi * SERIES(z.hi, c) - z.lo / 2 - r.hi * r.lo));
}

#endif
