/* fn_test.c - our own float functions: error bounds against double, special values, scalar = vector, and the
 * roundings. */
#include "kernels/fn.h"
#include "tests/test.h"

#include <math.h>

/* Distance of y from the true value, in units in the last place of a float of that size. */
static double ulps(float y, double truth)
{
    int e;
    frexp(truth, &e);
    double unit = ldexp(1.0, (e < -125 ? -125 : e) - 24);
    return fabs((double)y - truth) / unit;
}

/* Every step-th float between lo and hi (same sign), by bit pattern. */
static double worst(float (*f)(float), double (*truth)(double), float lo, float hi, uint32_t step, float *at)
{
    double most = 0;
    uint32_t a = fn_bits(lo), b = fn_bits(hi), first = a < b ? a : b, last = a < b ? b : a;
    for (uint64_t u = first; u <= last; u += step) {
        float x = fn_float((uint32_t)u);
        double d = ulps(f(x), truth((double)x));
        if (d > most || d != d) {
            most = d != d ? 1e30 : d;
            *at = x;
        }
    }
    return most;
}

static float f_exp(float x) { return fn_exp(x); }
static float f_log(float x) { return fn_log(x); }
static float f_tanh(float x) { return fn_tanh(x); }
static float f_erf(float x) { return fn_erf(x); }
static float f_sin(float x) { return fn_sin(x); }
static float f_cos(float x) { return fn_cos(x); }
static float f_silu(float x) { return fn_silu(x); }
static double d_silu(double x) { return x / (1 + exp(-x)); }
/* near a zero of sin the last place shrinks with the value: measured against 1 there */
static double sin_error(float (*f)(float), double (*truth)(double))
{
    double most = 0;
    for (int i = -2000000; i <= 2000000; i += 3) {
        float x = (float)i * 0.015f;
        double d = fabs((double)f(x) - truth((double)x)) * 0x1p24;
        most = d > most ? d : most;
    }
    return most;
}

TEST(functions_stay_within_their_error_bounds)
{
    static const struct {
        const char *name;
        float (*f)(float);
        double (*truth)(double);
        float lo, hi;
        double most;
    } t[] = {
        { "exp below 0", f_exp, exp, -0x1p-30f, -87.0f, 1.0 },
        { "exp above 0", f_exp, exp, 0x1p-30f, 0x1.62e42ep+6f, 1.0 },
        { "log", f_log, log, 0x1p-149f, 0x1.fffffep+127f, 1.0 },
        { "log near 1", f_log, log, 0.98f, 1.02f, 1.0 },
        { "tanh", f_tanh, tanh, 0x1p-60f, 12.0f, 2.5 },
        { "tanh below 0", f_tanh, tanh, -0x1p-60f, -12.0f, 2.5 },
        { "erf", f_erf, erf, 0x1p-60f, 6.0f, 1.1 },
        { "erf below 0", f_erf, erf, -0x1p-60f, -6.0f, 1.1 },
        { "silu", f_silu, d_silu, 0x1p-60f, 80.0f, 2.5 },
        { "silu below 0", f_silu, d_silu, -0x1p-60f, -80.0f, 2.5 },
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        float at = 0;
        double w = worst(t[i].f, t[i].truth, t[i].lo, t[i].hi, 251, &at);
        if (getenv("FN_TEST_SHOW"))
            printf("%-14s %.3f ulp at %a\n", t[i].name, w, (double)at);
        if (!(w < t[i].most))
            test_fail(__FILE__, __LINE__, "%s is %.3f ulp off at %a, more than %g", t[i].name, w, (double)at,
                      t[i].most);
    }
    CHECK(sin_error(f_sin, sin) < 1.5);
    CHECK(sin_error(f_cos, cos) < 1.5);
}

TEST(special_values_of_the_functions)
{
    CHECK_BITS(fn_exp(0.0f), 1.0f);
    CHECK_BITS(fn_exp(-0.0f), 1.0f);
    CHECK_BITS(fn_exp(-FN_INF), 0.0f);
    CHECK_BITS(fn_exp(-87.5f), 0.0f);
    CHECK(fn_exp(-87.0f) > 0x1p-126f);
    CHECK_BITS(fn_exp(FN_INF), FN_INF);
    CHECK_BITS(fn_exp(89.0f), FN_INF);
    CHECK(fn_exp(0x1.62e42ep+6f) < FN_INF);
    CHECK(isnan(fn_exp(FN_NAN)));
    CHECK_BITS(fn_log(1.0f), 0.0f);
    CHECK_BITS(fn_log(0.0f), -FN_INF);
    CHECK_BITS(fn_log(-0.0f), -FN_INF);
    CHECK_BITS(fn_log(FN_INF), FN_INF);
    CHECK(isnan(fn_log(-1.0f)) && isnan(fn_log(-FN_INF)) && isnan(fn_log(FN_NAN)));
    CHECK_BITS(fn_tanh(0.0f), 0.0f);
    CHECK_BITS(fn_tanh(-0.0f), -0.0f);
    CHECK_BITS(fn_tanh(FN_INF), 1.0f);
    CHECK_BITS(fn_tanh(-FN_INF), -1.0f);
    CHECK_BITS(fn_tanh(0x1p-140f), 0x1p-140f);
    CHECK(isnan(fn_tanh(FN_NAN)));
    CHECK_BITS(fn_erf(-0.0f), -0.0f);
    CHECK_BITS(fn_erf(FN_INF), 1.0f);
    CHECK_BITS(fn_erf(-FN_INF), -1.0f);
    CHECK(isnan(fn_erf(FN_NAN)));
    CHECK_BITS(fn_silu(0.0f), 0.0f);
    CHECK_BITS(fn_silu(-200.0f), -0.0f);
    CHECK_BITS(fn_silu(200.0f), 200.0f);
    CHECK_BITS(fn_sin(0.0f), 0.0f);
    CHECK_BITS(fn_cos(0.0f), 1.0f);
}

/* The compiler vectorises the loop; a volatile index keeps the other one scalar. */
#define SAME_IN_A_LOOP(fn) \
    do { \
        for (int i = 0; i < 4096; i++) \
            out[i] = fn(in[i]); \
        for (volatile int i = 0; i < 4096; i++) \
            CHECK(fn_bits(out[i]) == fn_bits(fn(in[i]))); \
    } while (0)

TEST(a_loop_gives_the_bits_of_one_call)
{
    static float in[4096], out[4096];
    for (uint32_t i = 0; i < 4096; i++)
        in[i] = fn_float(i * 0x00100003u + 7u); /* every exponent, both signs, NaN and infinity */
    SAME_IN_A_LOOP(fn_exp);
    SAME_IN_A_LOOP(fn_log);
    SAME_IN_A_LOOP(fn_tanh);
    SAME_IN_A_LOOP(fn_erf);
    SAME_IN_A_LOOP(fn_silu);
    SAME_IN_A_LOOP(fn_round_bf16);
}

/* The definition, in double: the nearest multiple of the last place, ties to even. */
static float bf16_by_definition(float x)
{
    if (isnan(x))
        return fn_float((fn_bits(x) | 0x00400000u) & 0xffff0000u);
    if (fabsf(x) < 0x1p-126f)
        return copysignf(0.0f, x);
    if (isinf(x))
        return x;
    int e;
    frexp((double)x, &e);
    double unit = ldexp(1.0, e - 8);
    /* over the largest bf16: the double is over FLT_MAX, becomes inf */
    return (float)(nearbyint((double)x / unit) * unit);
}

TEST(bf16_rounds_to_nearest_even_and_flushes_denormals)
{
    for (uint64_t u = 0; u <= 0xffffffffu; u += 2039) {
        float x = fn_float((uint32_t)u), want = bf16_by_definition(x), got = fn_round_bf16(x);
        if (fn_bits(got) != fn_bits(want)) {
            test_fail(__FILE__, __LINE__, "bf16 of %a is %a, not %a", (double)x, (double)got, (double)want);
            return;
        }
    }
    CHECK_INT(fn_to_bf16(1.0f + 0x1p-8f), 0x3f80); /* ties */
    CHECK_INT(fn_to_bf16(1.0f + 0x3p-8f), 0x3f82);
    CHECK_INT(fn_to_bf16(0x1.fffffep+127f), 0x7f80);
    CHECK_INT(fn_to_bf16(-0x1p-127f), 0x8000);
    /* the largest denormal would round up to a normal number */
    CHECK_INT(fn_to_bf16(0x1.fffffcp-127f), 0x0000);
    CHECK_INT(fn_to_bf16(fn_float(0x7f800001u)), 0x7fc0);
    CHECK_BITS(fn_from_bf16(0x0001), 0x1p-133f); /* widening is exact */
}

TEST(fp16_widens_exactly)
{
    for (uint32_t h = 0; h < 0x10000u; h++) {
        int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
        double v = e == 31 ? (m ? (double)NAN : (double)INFINITY)
                   : e     ? ldexp(1024 + m, e - 25)
                           : ldexp(m, -24);
        float got = fn_from_fp16((uint16_t)h), want = (float)(h & 0x8000u ? -v : v);
        if (isnan(want) ? !isnan(got) || !(fn_bits(got) & 0x00400000u) : fn_bits(got) != fn_bits(want))
            test_fail(__FILE__, __LINE__, "fp16 %04x is %a, not %a", h, (double)got, (double)want);
    }
}
