/* base_fmath_test.c - distance from the long double library in units of the last place; special values. */
#include "tests/test.h"

#include <float.h>
#include <math.h>
#include "base/fmath.h"
#include "base/rnd.h"

typedef long double real(long double);

/* |got - want| in units of the last place of the double next to want. */
static double ulps(double got, long double want)
{
    double d = fabs((double)want);
    double ulp = d < DBL_MIN ? 0x1p-1074 : nextafter(d, INFINITY) - d;
    return (double)(fabsl(got - want) / ulp);
}

struct worst {
    double ulp, x;
};

static void compare(struct worst *w, double x, double (*ours)(double), real *theirs)
{
    double u = ulps(ours(x), theirs(x));
    if (!(u <= w->ulp))
        *w = (struct worst){ u, x };
}

#define N 200000
/* x uniform in [lo, hi], and the same with exponents spread evenly towards 0 */
static struct worst worst_of(double (*ours)(double), real *theirs, double lo, double hi)
{
    struct worst w = { 0, 0 };
    for (uint64_t i = 0; i < N; i++) {
        double u = rnd_unit(1, 2, i);
        compare(&w, lo + (hi - lo) * u, ours, theirs);
        compare(&w, (i & 1 && lo < 0 ? lo : hi) * exp2(-60 * u), ours, theirs);
    }
    return w;
}

#define CHECK_ULP(name, lo, hi, bound) \
    do { \
        struct worst w = worst_of(fm_##name, name##l, lo, hi); \
        if (!(w.ulp <= (bound))) \
            test_fail(__FILE__, __LINE__, #name "(%a) is %.3f ulp off", w.x, w.ulp); \
    } while (0)

TEST(exp_is_within_0_6_ulp)
{
    CHECK_ULP(exp, -700, 709.7, 0.6);
    CHECK_ULP(exp, -1, 1, 0.6);
    CHECK_ULP(exp, -745, -708, 1.0); /* denormal results are rounded twice */
}

TEST(log_is_within_0_6_ulp)
{
    CHECK_ULP(log, 0, 4, 0.6);
    CHECK_ULP(log, 0, 1e300, 0.6);
    CHECK_ULP(log, 0.5, 1.5, 0.6);
    CHECK_ULP(log, 0, 1e-300, 0.6);
}

TEST(sin_and_cos_are_within_1_ulp)
{
    static const double range[] = { 1, 10, 1e3, 1e5, 1e8 };
    for (size_t i = 0; i < sizeof range / sizeof *range; i++) {
        CHECK_ULP(sin, -range[i], range[i], 0.9);
        CHECK_ULP(cos, -range[i], range[i], 0.9);
    }
}

/* The doubles nearest to multiples of pi/2 lose most in the reduction. The reference is the long double
 * library, whose own reduction is good to 2^-64 of the result. */
TEST(sin_and_cos_near_their_zeros_are_within_1_ulp)
{
    struct worst w = { 0, 0 };
    for (uint64_t i = 0; i < N; i++) {
        double n = (double)(rnd_u64(3, 4, i) % 63000000),
               x = (double)((long double)n * 1.57079632679489661923L);
        compare(&w, x, fm_sin, sinl);
        compare(&w, x, fm_cos, cosl);
        compare(&w, nextafter(x, 0), fm_cos, cosl);
    }
    CHECK_NEAR(w.ulp, 0, 0.9);
}

TEST(tanh_is_within_1_ulp)
{
    CHECK_ULP(tanh, -1, 1, 1.0);
    CHECK_ULP(tanh, -25, 25, 1.0);
}

TEST(pow_of_frequencies_and_decays_is_within_1_ulp)
{
    static const double base[] = { 10000, 500000, 1e6, 0.9, 0.95, 0.999, 3.3 };
    struct worst w = { 0, 0 };
    for (size_t b = 0; b < sizeof base / sizeof *base; b++)
        for (int i = 0; i < 20000; i++) {
            double y = base[b] > 1 ? -rnd_unit(5, b, (uint64_t)i) : 1 + i % 6000;
            double u = ulps(fm_pow(base[b], y), powl(base[b], y));
            if (!(u <= w.ulp))
                w = (struct worst){ u, y };
        }
    CHECK_NEAR(w.ulp, 0, 0.7);
}

TEST(pow_with_a_denormal_result_is_within_1_ulp)
{
    double worst = 0;
    for (int i = 6730; i < 7050; i++) { /* 1e-308 .. 1e-323 */
        double u = ulps(fm_pow(0.9, i), powl(0.9, i));
        worst = u > worst ? u : worst;
    }
    CHECK_NEAR(worst, 0, 1.0);
}

TEST(special_values)
{
    CHECK(fm_exp(0) == 1 && fm_exp(-INFINITY) == 0 && fm_exp(INFINITY) == INFINITY && isnan(fm_exp(NAN)));
    CHECK(fm_exp(709.79) == INFINITY && fm_exp(-746) == 0 && fm_exp(-745) > 0);
    CHECK(fm_log(1) == 0 && fm_log(0) == -INFINITY && isnan(fm_log(-1)) && fm_log(INFINITY) == INFINITY &&
          isnan(fm_log(NAN)));
    CHECK(fm_pow(2, 0) == 1 && fm_pow(1, 1e300) == 1 && fm_pow(0, 2) == 0 && fm_pow(0, -2) == INFINITY);
    CHECK(fm_pow(2, 1e300) == INFINITY && fm_pow(2, -1e300) == 0 && fm_pow(0.5, INFINITY) == 0 &&
          fm_pow(0.5, -INFINITY) == INFINITY);
    CHECK(fm_pow(2, INFINITY) == INFINITY && fm_pow(INFINITY, -1) == 0 && isnan(fm_pow(-1, 2)) &&
          isnan(fm_pow(2, NAN)));
    CHECK(fm_pow(2, 10) == 1024 && fm_pow(2, -1074) == 0x1p-1074 && fm_pow(10, 2) == 100);
    CHECK(fm_sin(0) == 0 && signbit(fm_sin(-0.0)) && fm_cos(0) == 1 && isnan(fm_sin(INFINITY)) &&
          isnan(fm_cos(NAN)));
    CHECK(fm_tanh(0) == 0 && signbit(fm_tanh(-0.0)) && fm_tanh(INFINITY) == 1 && fm_tanh(-100) == -1 &&
          isnan(fm_tanh(NAN)));
}

/* The same bits on every machine and in every build: a change of any of them is a change of the contract. */
TEST(bits_are_pinned)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 5000; i++) {
        double x = 100 * rnd_unit(7, 8, i) - 50;
        double y[] = { fm_exp(x),       fm_log(x + 51),  fm_sin(x * 1e5),
                       fm_cos(x * 1e5), fm_tanh(x / 20), fm_pow(x + 51, x / 50) };
        for (size_t j = 0; j < sizeof y / sizeof *y; j++) {
            uint64_t u;
            memcpy(&u, &y[j], sizeof u);
            sum = (sum ^ u) * 0x9e3779b97f4a7c15u;
            sum ^= sum >> 29;
        }
    }
    CHECK_INT(sum, -6716579303254540297);
}
