/* fmath.c - see fmath.h. Each function brings the argument near 0 exactly, sums a Taylor series there, and
 * keeps what the roundings on the way lost in a second double, so that only the last addition rounds. Method:
 * Cody & Waite 1980 (range reduction), Dekker 1971 (two doubles as one number). */
#include "base/fmath.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#include "base/math/fmath_inline.h"

static double power_of_two(int k) /* -1022 <= k <= 1023 */
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

/* ---- exponential: x = k ln 2 + r, |r| <= ln(2) / 2 ---- */

/* *k, and exp(r) - 1. x.hi within +-800. */
static struct two reduced_expm1(struct two x, int *k)
{
    static const double c[] = {
        /* (exp(r) - 1 - r) / r^2 */
        1.0 / 2,         1.0 / 6,          1.0 / 24,          1.0 / 120,     1.0 / 720,
        1.0 / 5040,      1.0 / 40320,      1.0 / 362880,      1.0 / 3628800, 1.0 / 39916800,
        1.0 / 479001600, 1.0 / 6227020800, 1.0 / 87178291200,
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

double fm_exp(double x) { return isnan(x) ? x : exp_of((struct two){ x, 0 }); }

/* tanh = t / (t + 2), t = exp(2 x) - 1 */
double fm_tanh(double x)
{
    double a = fabs(x);
    int k;
    if (isnan(x) || a < 0x1p-28) /* x^3 / 3 is lost beside x */
        return x;
    if (a > 19.1) /* 1 - 2 exp(-2 a) is nearer to 1 than to the double before it */
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

static struct two log_of(double x) /* 0 < x < inf */
{
    int is_denormal = x < 0x1p-1022;
    return log_normal(is_denormal ? x * 0x1p54 : x, is_denormal ? -54 : 0);
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

/* r, and n mod 4; a small x keeps its sign, -0 too. */
static struct two turn_of(double x, int *n_mod_4)
{
    double n = 0;
    struct two r = fabs(x) < 0.78 ? (struct two){ x, 0 } : quarter_turn(x, &n);
    *n_mod_4 = (int)n;
    return r;
}

double fm_sin(double x)
{
    int n;
    if (!isfinite(x))
        return NAN;
    if (fabs(x) < 0x1p-28) /* x^3 / 6 is lost beside x; keeps -0 */
        return x;
    struct two r = turn_of(x, &n);
    double y = n & 1 ? cosine(r) : sine(r);
    return n & 2 ? -y : y;
}

double fm_cos(double x)
{
    int n;
    if (!isfinite(x))
        return NAN;
    struct two r = turn_of(x, &n);
    double y = n & 1 ? sine(r) : cosine(r);
    return n == 1 || n == 2 ? -y : y;
}
