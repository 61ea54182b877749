/* xsum_test.c - exact sums against 128-bit integers; no order, no number of threads, no cut changes a bit. */
#include <math.h>

#include "kernels/dev.h"
#include "kernels/fn.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"
#include "tests/test.h"

static struct mem mem;
static struct dev *open_dev(int threads)
{
    struct err e = { 0 };
    struct dev *d = NULL;
    CHECK_INT(dev_open(&d, "cpu", threads, &mem, &e), 0);
    return d;
}

static uint64_t next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *s;
    return (x ^ x >> 29) * 0x9e3779b97f4a7c15u >> 8;
}

static int same_sum(const struct xsum *a, const struct xsum *b)
{
    struct xsum x = *a, y = *b;
    xsum_carry(&x);
    xsum_carry(&y);
    return !memcmp(&x, &y, sizeof x);
}

#define CHECK_DOUBLE(a, b) \
    do { \
        double a_ = (a), b_ = (b); \
        if (memcmp(&a_, &b_, 8)) \
            test_fail(__FILE__, __LINE__, "%s is %a, not %a", #a, a_, b_); \
    } while (0)

static double sum_of(int n, const double *x)
{
    struct xsum s = { { 0 }, 0, 0 };
    for (int i = 0; i < n; i++)
        xsum_add(&s, x[i]);
    return xsum_double(&s);
}
#define SUM(...) sum_of((int)(sizeof(double[]){ __VA_ARGS__ } / sizeof(double)), (double[]){ __VA_ARGS__ })

TEST(sums_of_doubles_are_exact_and_rounded_once)
{
    CHECK_DOUBLE(SUM(0.0), 0.0);
    CHECK_DOUBLE(SUM(1e60, 1.0, -1e60), 1.0);
    CHECK_DOUBLE(SUM(1.0, 0x1p-53), 1.0);                     /* a tie goes to even, down … */
    CHECK_DOUBLE(SUM(1.0, 0x1p-52, 0x1p-53), 1.0 + 0x1p-51);  /* … and up */
    CHECK_DOUBLE(SUM(1.0, 0x1p-53, 0x1p-290), 1.0 + 0x1p-52); /* a little more than a tie */
    CHECK_DOUBLE(SUM(1.0, 0x1p-53, -0x1p-290), 1.0);
    CHECK_DOUBLE(SUM(-1.0, -0x1p-53, -0x1p-290), -1.0 - 0x1p-52);
    CHECK_DOUBLE(SUM(-1e40, 1e40, -0x1p-298), -0x1p-298);
    /* rounding carries into the exponent */
    CHECK_DOUBLE(SUM(0x1.fffffffffffffp200, 0x1p147), 0x1p201);
    CHECK_DOUBLE(SUM(0x1p256, 0x1p256, 0x1p-298), 0x1p257);
    CHECK(isnan(SUM(1.0, (double)NAN)) && isnan(SUM((double)INFINITY)) &&
          isnan(SUM((double)INFINITY, -(double)INFINITY)));
}

TEST(sums_of_integers_are_those_of_128_bits)
{
    uint64_t seed = 1;
    for (int round = 0; round < 200; round++) {
        struct xsum s = { { 0 }, 0, 0 };
        __int128 truth = 0;
        for (int i = 0; i < 50; i++) {
            int64_t v = (int64_t)(next(&seed) >> (next(&seed) % 53)) - (int64_t)(next(&seed) % 4096);
            int64_t up = (int64_t)(next(&seed) % 60);
            v = v % ((int64_t)1 << 53);
            truth += (__int128)v * ((__int128)1 << up);
            xsum_add(&s, (double)v * (double)((int64_t)1 << up));
        }
        CHECK_DOUBLE(xsum_double(&s), (double)truth);
    }
}

/* 24-bit integers times 2^lo … 2^hi, both signs */
static float *numbers(int64_t n, int lo, int hi)
{
    float *x = malloc(sizeof *x * (size_t)n);
    uint64_t seed = (uint64_t)n;
    for (int64_t i = 0; i < n; i++) {
        float v = (float)(next(&seed) & 0xffffff);
        x[i] = ldexpf(seed & 8 ? -v : v, lo + (int)(next(&seed) % (uint64_t)(hi - lo + 1)));
    }
    return x;
}

TEST(sum_of_squares_is_exact)
{
    enum { N = 150001 };
    float *x = numbers(N, 0, 14);
    struct dev *d = open_dev(1);
    __int128 truth = 0;
    for (int64_t n = 0; n <= N; n += n < 9 ? 1 : 49998) {
        struct xsum s = { { 0 }, 0, 0 };
        truth = 0;
        for (int64_t i = 0; i < n; i++)
            truth += (__int128)x[i] * (__int128)x[i];
        KERNEL(d, sum_squares, &s, x, n);
        CHECK_DOUBLE(xsum_double(&s), (double)truth);
    }
    dev_close(d);
    free(x);
}

TEST(order_threads_and_cuts_do_not_change_a_sum_of_squares)
{
    enum { N = 3000007 };
    /* denormals to large: a sum in double would lose most of it */
    float *x = numbers(N, -160, 90);
    struct dev *one = open_dev(1), *two = open_dev(2);
    struct xsum a = { { 0 }, 0, 0 }, b = a, c = a;
    KERNEL(one, sum_squares, &a, x, N);
    KERNEL(two, sum_squares, &b, x, N);
    CHECK(same_sum(&a, &b));
    for (int64_t i = 0, m = 1; i < N; i += m, m = m * 3 + 1) {
        /* ranks: parts added as integers, limb by limb */
        struct xsum part = { { 0 }, 0, 0 };
        KERNEL(two, sum_squares, &part, x + i, N - i < m ? N - i : m);
        for (int k = 0; k < XSUM_LIMBS; k++)
            c.limb[k] += part.limb[k];
    }
    CHECK(same_sum(&a, &c));
    for (int64_t i = 0; i < N / 2; i++) {
        float t = x[i];
        x[i] = x[N - 1 - i];
        x[N - 1 - i] = t;
    }
    struct xsum r = { { 0 }, 0, 0 };
    KERNEL(one, sum_squares, &r, x, N);
    CHECK(same_sum(&a, &r));
    CHECK_DOUBLE(xsum_double(&a), xsum_double(&c));
    dev_close(one);
    dev_close(two);
    free(x);
}

TEST(extreme_squares_fit)
{
    static float x[70000];
    struct dev *d = open_dev(1);
    struct xsum s = { { 0 }, 0, 0 };
    for (int i = 0; i < 70000; i++)
        x[i] = 0x1.fffffep+127f; /* bins get as full as they can */
    KERNEL(d, sum_squares, &s, x, 70000);
    CHECK_DOUBLE(xsum_double(&s), 70000.0 * (0x1.fffffep+127 * 0x1.fffffep+127));
    memset(&s, 0, sizeof s);
    x[0] = 0x1p-149f;
    KERNEL(d, sum_squares, &s, x, 1);
    CHECK_DOUBLE(xsum_double(&s), 0x1p-298);
    dev_close(d);
}

TEST(nan_and_infinity_are_counted_and_make_the_norm_nan)
{
    float x[11] = { 1, NAN, 2, INFINITY, 3, -INFINITY, 4, 5, 6, 7, -NAN };
    struct dev *d = open_dev(1);
    struct xsum s = { { 0 }, 0, 0 };
    KERNEL(d, sum_squares, &s, x, 11);
    CHECK_INT(s.n_nan, 2);
    CHECK_INT(s.n_inf, 2);
    CHECK(isnan(xsum_double(&s)));
    dev_close(d);
}

TEST(bins_by_exponent_make_the_same_sum)
{
    enum { N = 5000 };
    struct dev *d = open_dev(1);
    struct xsum whole = { { 0 }, 0, 0 }, binned = { { 0 }, 0, 0 };
    uint64_t low[256] = { 0 }, high[256] = { 0 };
    float x[N];
    for (int i = 0; i < N; i++) {
        /* all exponents and signs; some NaN and Inf */
        uint32_t b = (uint32_t)i * 2654435761u, e2 = b >> 23 & 255u;
        memcpy(&x[i], &b, 4);
        uint64_t m = (b & 0x7fffffu) | (uint32_t)(e2 != 0) << 23, square = e2 == 255 ? 1 : m * m;
        low[e2] += square & 0xffffffffu;
        high[e2] += square >> 32;
    }
    int64_t n_nan = 0;
    for (int i = 0; i < N; i++)
        n_nan += x[i] != x[i];
    KERNEL(d, sum_squares, &whole, x, N);
    xsum_add_bins(&binned, low, high, n_nan);
    CHECK(same_sum(&whole, &binned));
    CHECK(whole.n_nan > 0);
    dev_close(d);
}
