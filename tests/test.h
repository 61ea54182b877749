/* test.h - the test harness: TEST(name_is_the_claim) { CHECK(...); }
 *
 * A test program prints one line a failed check and, last, "N passed, N failed, N skipped". `prog -l` lists
 * the tests, `prog NAME…` runs those whose name contains NAME. With $TEST_STOP set the program ends at the
 * first failed check. Under mpirun every rank runs every test; rank 0 alone prints the last line, unless
 * another rank has a failure. */
#ifndef SHARDLINE_TESTS_TEST_H
#define SHARDLINE_TESTS_TEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test {
    const char *name;
    void (*fn)(void);
    struct test *next;
};
/* Appends t to the program's tests; TEST() calls it before main. */
void test_add(struct test *t);
/* Prints a failure of the running test, which goes on. The checks below call it. */
void test_fail(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Marks the running test as skipped and prints why. The test must return after it. */
void test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* $FIXTURES, the folder of reference files, or NULL: the test must skip. */
const char *test_fixture_dir(void);
/* A fresh folder of this program, removed when the program exits. */
const char *test_tmp_dir(void);

#define TEST(claim) \
    static void test_##claim(void); \
    __attribute__((constructor)) static void add_##claim(void) \
    { \
        static struct test t = { #claim, test_##claim, NULL }; \
        test_add(&t); \
    } \
    static void test_##claim(void)

#define CHECK(cond) \
    do { \
        if (!(cond)) \
            test_fail(__FILE__, __LINE__, "%s", #cond); \
    } while (0)
#define CHECK_INT(a, b) \
    do { \
        long long a_ = (long long)(a), b_ = (long long)(b); \
        if (a_ != b_) \
            test_fail(__FILE__, __LINE__, "%s is %lld, not %lld", #a, a_, b_); \
    } while (0)
#define CHECK_STR(a, b) \
    do { \
        const char *a_ = (a), *b_ = (b); \
        if (strcmp(a_, b_)) \
            test_fail(__FILE__, __LINE__, "%s is \"%s\", not \"%s\"", #a, a_, b_); \
    } while (0)
#define CHECK_HAS(a, part) \
    do { \
        const char *a_ = (a), *b_ = (part); \
        if (!strstr(a_, b_)) \
            test_fail(__FILE__, __LINE__, "\"%s\" does not contain \"%s\"", a_, b_); \
    } while (0)
/* Floats a and b have the same bits. */
#define CHECK_BITS(a, b) \
    do { \
        float a_ = (a), b_ = (b); \
        if (memcmp(&a_, &b_, 4)) \
            test_fail(__FILE__, __LINE__, "%s is %a, not %a", #a, (double)a_, (double)b_); \
    } while (0)
#define CHECK_SAME(p, q, bytes) \
    do { \
        if (memcmp((p), (q), (size_t)(bytes))) \
            test_fail(__FILE__, __LINE__, "%s and %s differ", #p, #q); \
    } while (0)
#define CHECK_NEAR(a, b, tol) \
    do { \
        double a_ = (a), b_ = (b), t_ = (tol); \
        if (!(a_ - b_ <= t_ && b_ - a_ <= t_)) \
            test_fail(__FILE__, __LINE__, "%s is %.9g, not %.9g (+-%g)", #a, a_, b_, t_); \
    } while (0)

#endif
