/* test.h - the smallest harness: TEST(name_is_the_claim) { CHECK(...); }  A test program prints one line a
 * failed check and ends with "N passed, N failed, N skipped". `prog -l` lists, `prog NAME…` runs those whose
 * name contains NAME; with $TEST_STOP set it ends at the first check that fails.
 * Under mpirun every rank runs every test; only rank 0 reports passes, every rank reports failures. */
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
void test_add(struct test *t);
void test_fail(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* then return from the test */
void test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* $FIXTURES, or NULL (then skip)                                        */
const char *test_fixture_dir(void);
/* a fresh folder for this program, removed at the end                   */
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
/* bits, not a tolerance */
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
