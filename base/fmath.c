/* fmath.c - see fmath.h. The plan of each function: bring the argument near 0 exactly, sum a Taylor series there, and keep
 * what the roundings on the way lost in a second double, so that only the last addition rounds.
 * Method: Cody & Waite 1980 (range reduction), Dekker 1971 (two doubles as one number). */
#include "base/fmath.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

struct two { double hi, lo; };       /* the number hi + lo, |lo| <= ulp(hi) / 2 */

static struct two two_sum(double a, double b)
{
    double s = a + b, from_b = s - a;
    return (struct two){ s, (a - (s - from_b)) + (b - from_b) };
}

static struct two two_product(double a, double b)
{
    double p = a * b;
    return (struct two){ p, fma(a, b, -p) };
}

static struct two add(struct two a, struct two b)
{
    struct two s = two_sum(a.hi, b.hi);
    return two_sum(s.hi, s.lo + (a.lo + b.lo));
}

static struct two multiply(struct two a, struct two b)
{
    struct two p = two_product(a.hi, b.hi);
    return two_sum(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}

/* The nearest integer of |x| < 2^51, ties to even, without the rounding mode's library call. */
static double nearest(double x)
{
    return (x + 0x1.8p52) - 0x1.8p52;
}

static double power_of_two(int k)     /* -1022 <= k <= 1023 */
{
    uint64_t u = (uint64_t)(k + 1023) << 52;
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static double scale(double x, int k)
{
    if (k > 1023)
        return x * 0x1p1023 * power_of_two(k - 1023);
    if (k < -1022)
        return x * power_of_two(k + 200) * 0x1p-200;
    return x * power_of_two(k);
}

/* c[0] + x (c[1] + x (c[2] + …)) */
static double series(double x, const double *c, int n)
{
    double s = c[n - 1];
    for (int i = n - 2; i >= 0; i--)
        s = fma(s, x, c[i]);
    return s;
}
#define SERIES(x, c) series((x), (c), (int)(sizeof(c) / sizeof *(c)))

/* ---- exponential: x = k ln 2 + r, |r| <= ln(2) / 2 ---- */

#define LN2_HI 0x1.62e42fefa3000p-1      /* 41 bits: k times it is exact */
#define LN2_LO 0x1.3de6af278ece6p-42

/* *k, and exp(r) - 1. x.hi within +-800. */
static struct two reduced_expm1(struct two x, int *k)
{
    static const double c[] = {          /* (exp(r) - 1 - r) / r^2 */
        1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800,
        1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800, 1.0 / 87178291200,
    };
    double n = nearest(x.hi * 0x1.71547652b82fep+0);
    struct two r = two_sum(x.hi - n * LN2_HI, fma(-n, LN2_LO, x.lo));
    struct two s = two_sum(r.hi, r.hi * r.hi * SERIES(r.hi, c));
    *k = (int)n;
    return two_sum(s.hi, s.lo + r.lo * (1 + r.hi));
}

static double exp_of(struct two x)
{
    int k;
    if (x.hi > 710)
        return INFINITY;
    if (x.hi < -746)
        return 0;
    struct two m = reduced_expm1(x, &k), s = two_sum(1, m.hi);
    return scale(s.hi + (s.lo + m.lo), k);
}

double fm_exp(double x)
{
    return isnan(x) ? x : exp_of((struct two){ x, 0 });
}

/* tanh = t / (t + 2), t = exp(2 x) - 1 */
double fm_tanh(double x)
{
    double a = fabs(x);
    int k;
    if (isnan(x) || a < 0x1p-28)         /* x^3 / 3 is lost beside x */
        return x;
    if (a > 19.1)                        /* 1 - 2 exp(-2 a) is nearer to 1 than to the double before it */
        return copysign(1, x);
    struct two m = reduced_expm1((struct two){ 2 * a, 0 }, &k), t = m;
    if (k) {
        double p = power_of_two(k);
        t = add((struct two){ p - 1, 0 }, (struct two){ p * m.hi, p * m.lo });
    }
    struct two d = add(t, (struct two){ 2, 0 });
    double q = t.hi / d.hi;
    double rest = fma(-q, d.hi, t.hi) + (t.lo - q * d.lo);
    return copysign(q + rest / d.hi, x);
}

/* ---- logarithm: x = 2^k m, m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1) ---- */

static struct two log_of(double x)       /* 0 < x < inf */
{
    static const double c[] = {          /* (atanh(s) / s - 1 - z / 3 - z^2 / 5) / z^3, z = s^2 */
        1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23, 1.0 / 25,
    };
    static const struct two third = { 0x1.5555555555555p-2, 0x1.5555555555555p-56 };
    static const struct two fifth = { 0x1.999999999999ap-3, -0x1.999999999999ap-57 };
    int k = 0;
    if (x < 0x1p-1022) {                 /* denormal */
        x *= 0x1p54;
        k = -54;
    }
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    k += (int)(u >> 52) - 1023;
    u = (u & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    memcpy(&x, &u, sizeof x);
    if (x > 0x1.6a09e667f3bcdp+0) {
        x /= 2;
        k++;
    }
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

double fm_log(double x)
{
    if (isnan(x) || x == INFINITY)
        return x;
    if (x <= 0)
        return x < 0 ? NAN : -INFINITY;
    return log_of(x).hi;
}

double fm_pow(double x, double y)
{
    if (y == 0 || x == 1)
        return 1;
    if (isnan(x) || isnan(y) || x < 0)
        return NAN;
    if (x == 0 || isinf(x) || isinf(y)) {
        int large = isinf(y) && x < 1 ? y < 0 : x == 0 ? y < 0 : y > 0;
        return large ? INFINITY : 0;
    }
    struct two l = log_of(x), p = two_product(y, l.hi);
    if (!(fabs(p.hi) < 800))
        return p.hi > 0 ? INFINITY : 0;
    p.lo = fma(y, l.lo, p.lo);
    return exp_of(two_sum(p.hi, p.lo));
}

/* ---- sine and cosine: x = n pi / 2 + r, |r| <= pi / 4 ---- */

#define PIO2_A 0x1.921fb54442d18p+0      /* pi / 2 in three doubles: 159 bits; n times the first two is kept exactly */
#define PIO2_B 0x1.1a62633145c07p-54
#define PIO2_C -0x1.f1976b7ed8fbcp-110

/* r, and n mod 4. */
static struct two quarter_turn(double x, int *n_mod_4)
{
    if (fabs(x) < 0.78) {
        *n_mod_4 = 0;
        return (struct two){ x, 0 };
    }
    double n = nearest(x * 0x1.45f306dc9c883p-1);
    struct two a = two_product(n, PIO2_A), b = two_product(n, PIO2_B);
    struct two s = two_sum(x, -a.hi);
    struct two t = two_sum(s.hi, -a.lo);
    struct two u = two_sum(t.hi, -b.hi);
    double lo = s.lo + t.lo + u.lo - b.lo - n * PIO2_C;
    *n_mod_4 = (int)(n - 4 * floor(n / 4));
    return two_sum(u.hi, lo);
}

static double sine(struct two r)
{
    static const double c[] = {          /* (sin(r) / r - 1) / z, z = r^2 */
        -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000,
        1.0 / 355687428096000,
    };
    double z = r.hi * r.hi;
    return r.hi + fma(r.hi * z, SERIES(z, c), r.lo * (1 - z / 2));
}

static double cosine(struct two r)
{
    static const double c[] = {          /* (cos(r) - 1 + z / 2) / z^2 */
        1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000,
    };
    struct two z = two_product(r.hi, r.hi), w = two_sum(1, -z.hi / 2);
    return w.hi + (w.lo + (z.hi * z.hi * SERIES(z.hi, c) - z.lo / 2 - r.hi * r.lo));
}

double fm_sin(double x)
{
    int n;
    if (!isfinite(x))
        return NAN;
    if (fabs(x) < 0x1p-28)               /* x^3 / 6 is lost beside x; keeps -0 */
        return x;
    struct two r = quarter_turn(x, &n);
    double y = n & 1 ? cosine(r) : sine(r);
    return n & 2 ? -y : y;
}

double fm_cos(double x)
{
    int n;
    if (!isfinite(x))
        return NAN;
    struct two r = quarter_turn(x, &n);
    double y = n & 1 ? sine(r) : cosine(r);
    return n == 1 || n == 2 ? -y : y;
}
