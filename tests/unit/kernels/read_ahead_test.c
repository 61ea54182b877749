/* read_ahead_test.c - what waiting threads ask for. */
#include "tests/test.h"

#include <stdatomic.h>

#include "kernels/gemm/read_ahead.h"

static void nothing(void *arg, int64_t task, int thread) { (void)arg, (void)task, (void)thread; }

/* The readings that begin one after the other; returns the one that threads ask for at the end. */
static struct reading after(struct read_ahead *a, const struct reading *r, const char *order)
{
    struct reading next = { 0 };
    for (; *order; order++)
        read_ahead_begin(a, &r[*order - 'a']);
    CHECK_INT(read_ahead_next(a, &next), 1);
    return next;
}

TEST(what_followed_the_last_time_is_asked_for)
{
    static const char memory[4][4096];
    struct reading r[4];
    struct pool *p;
    struct err e;
    for (int i = 0; i < 4; i++)
        r[i] = (struct reading){ memory[i], 4, 1024, 1024 };
    CHECK_INT(pool_open(&p, 2, &e), 0);
    struct read_ahead *a = read_ahead_open(p);
    CHECK(a != NULL);
    struct reading next;
    CHECK_INT(read_ahead_next(a, &next), 0);
    CHECK(after(a, r, "abcda").p == r[1].p);
    CHECK(after(a, r, "bcd").p == r[0].p);
    CHECK(after(a, r, "c").p == r[3].p); /* out of turn */
    pool_close(p);
    read_ahead_close(a);
}

/* Weights may have been freed, or fewer than they were, when a thread asks for them. */
TEST(asking_for_memory_that_is_not_there_does_no_harm)
{
    struct reading gone[2] = { { (const void *)4096, 1000, 100000, 100000 },
                               { (const void *)(INTPTR_MAX / 2), INT64_C(1) << 20, 64, 1 } };
    struct pool *p;
    struct err e;
    CHECK_INT(pool_open(&p, 3, &e), 0);
    struct read_ahead *a = read_ahead_open(p);
    for (int i = 0; i < 2000; i++) {
        read_ahead_begin(a, &gone[i % 2]);
        pool_run(p, 6, nothing, NULL);
    }
    pool_close(p);
    read_ahead_close(a);
}

TEST(more_weights_than_are_remembered_begin_again)
{
    static const char memory[3000];
    struct reading next = { 0 };
    struct pool *p;
    struct err e;
    CHECK_INT(pool_open(&p, 2, &e), 0);
    struct read_ahead *a = read_ahead_open(p);
    for (int i = 0; i < 6000; i++)
        read_ahead_begin(a, &(struct reading){ memory + i % 3000, 1, 1, 1 });
    CHECK_INT(read_ahead_next(a, &next), 1);
    CHECK(next.p != NULL);
    pool_close(p);
    read_ahead_close(a);
}

TEST(a_pool_of_one_thread_has_nobody_to_ask)
{
    struct reading r = { "", 1, 1, 1 };
    struct pool *p;
    struct err e;
    CHECK_INT(pool_open(&p, 1, &e), 0);
    struct read_ahead *a = read_ahead_open(p);
    CHECK(a == NULL);
    read_ahead_begin(a, &r);
    CHECK_INT(read_ahead_next(a, &r), 0);
    read_ahead_close(a);
    pool_close(p);
}
