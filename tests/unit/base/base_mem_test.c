/* base_mem_test.c - aligned, zeroed, counted memory; arenas. */
#include "tests/test.h"

#include <sys/mman.h>

#include "base/mem.h"

static int all_zero(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return 0;
    return 1;
}

TEST(memory_is_zeroed_and_aligned)
{
    static const size_t size[] = {
        0, 1, 63, 64, 65, 4096, (2u << 20) - 1, 2u << 20, (2u << 20) + 1, 5000001
    };
    struct mem m = { 0 };
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
            char *p = mem_alloc(&m, MEM_WORK, size[i]);
            CHECK(p != NULL);
            CHECK_INT((uintptr_t)p % (size[i] >= 2u << 20 ? 2u << 20 : 64u), 0);
            CHECK(all_zero(p, size[i]));
            memset(p, 0xff, size[i]);
            CHECK_INT(m.now[MEM_WORK], size[i]);
            mem_free(&m, p);
            CHECK_INT(m.now[MEM_WORK], 0);
        }
}

/* msync fails with ENOMEM where nothing is mapped. */
TEST(large_memory_ends_with_a_whole_huge_page_where_that_adds_little)
{
#ifndef __SANITIZE_ADDRESS__
    const size_t huge = 2u << 20, bytes = 7 * huge - 256 * 1024;
    char *p = mem_alloc(NULL, MEM_WORK, bytes);
    CHECK(p != NULL);
    CHECK_INT(msync(p + 7 * huge - 4096, 4096, MS_ASYNC), 0);
    mem_free(NULL, p);
#endif
}

TEST(counts_and_peaks_are_kept_by_category)
{
    struct mem m = { 0 };
    void *a = mem_alloc(&m, MEM_PARAMS, 1000), *b = mem_alloc(&m, MEM_KV, 3 << 20);
    CHECK_INT(m.now[MEM_PARAMS], 1000);
    CHECK_INT(m.now[MEM_KV], 3 << 20);
    mem_free(&m, b);
    mem_free(&m, NULL);
    void *c = mem_alloc(&m, MEM_PARAMS, 10);
    CHECK_INT(m.now[MEM_KV], 0);
    CHECK_INT(m.peak[MEM_KV], 3 << 20);
    CHECK_INT(m.peak[MEM_PARAMS], 1010);
    CHECK_INT(m.total_now, 1010);
    CHECK_INT(m.total_peak, (3 << 20) + 1000);
    mem_count(&m, MEM_COMM, 500);
    mem_count(&m, MEM_COMM, -500);
    CHECK_INT(m.peak[MEM_COMM], 500);
    CHECK_INT(m.total_now, 1010);
    mem_free(&m, a);
    mem_free(&m, c);
    CHECK_INT(m.total_now, 0);
    CHECK_STR(mem_cat_name(MEM_PARAMS), "params");
    CHECK_STR(mem_cat_name(MEM_OTHER), "other");
}

TEST(the_n_th_allocation_can_be_made_to_fail)
{
    struct mem m = { .fail_after = 2 };
    void *a = mem_alloc(&m, MEM_ACTS, 8), *b = mem_alloc(&m, MEM_ACTS, 8), *c = mem_alloc(&m, MEM_ACTS, 8);
    CHECK(a && !b && c);
    CHECK_INT(m.now[MEM_ACTS], 16);
    mem_free(&m, a);
    mem_free(&m, c);
}

TEST(the_environment_chooses_too)
{
    struct mem m = { 0 };
    setenv("SHARDLINE_IO_FAULT", "malloc:2:ENOMEM", 1);
    void *a = mem_alloc(&m, MEM_ACTS, 8), *b = mem_alloc(&m, MEM_ACTS, 8), *c = mem_alloc(&m, MEM_ACTS, 8);
    unsetenv("SHARDLINE_IO_FAULT");
    CHECK(a && !b && c);
    mem_free(&m, a);
    mem_free(&m, c);
}

TEST(more_than_there_is_gives_null)
{
    struct mem m = { 0 };
    CHECK(mem_alloc(&m, MEM_ACTS, SIZE_MAX) == NULL);
    CHECK(mem_alloc(&m, MEM_ACTS, SIZE_MAX / 2) == NULL);
    CHECK_INT(m.total_now, 0);
}

struct carved {
    char *a;
    double *b;
    int64_t *c;
};

static struct carved carve(struct arena *a)
{
    struct carved c;
    c.a = arena_take(a, 5);
    c.b = ARENA_NEW(a, double, 9);
    c.c = ARENA_NEW(a, int64_t, 1);
    return c;
}

TEST(an_arena_is_carved_as_it_was_measured)
{
    struct mem m = { 0 };
    struct arena a = { 0 };
    struct carved c = carve(&a);
    CHECK(!c.a && !c.b && !c.c);
    CHECK_INT(a.used, 64 + 128 + 64);
    a.size = a.used;
    a.base = mem_alloc(&m, MEM_ACTS, a.size);
    arena_reset(&a);
    c = carve(&a);
    CHECK(c.a == a.base && (char *)c.b == a.base + 64 && (char *)c.c == a.base + 192);
    CHECK(arena_take(&a, 1) == NULL);
    mem_free(&m, a.base);
}
