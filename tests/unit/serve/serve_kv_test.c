/* serve_kv_test.c - the pools of key-value pages: how many there are, and what is cleared in them. */
#include "serve/kv/kv.h"
#include "tests/test.h"

TEST(a_pool_that_cannot_hold_one_context_is_refused_with_both_numbers)
{
    struct err e = { 0 };
    int32_t n[PAGE_GROUPS] = { 0 };
    struct kv_sizing w = { .ctx = 1000, .max_seqs = 4, .bytes = 1500, .group = { { 100, 0 } } };
    CHECK_INT(kv_count_pages(&w, n, &e), -ERR_MEMORY);
    CHECK_HAS(e.text, "1600");
    CHECK_HAS(e.text, "1500");
    w.bytes = 1600;
    CHECK_INT(kv_count_pages(&w, n, &e), 0);
    CHECK_INT(n[0], 16);
    CHECK_INT(kv_longest(&w, 1000), 1000);
    CHECK_INT(kv_longest(&w, 5000), 1024);
    w.bytes = 0;
    w.free_bytes = 1 << 30;
    CHECK_INT(kv_count_pages(&w, n, &e), 0);
    CHECK_INT(n[0], 64); /* what four contexts need, not more */
    CHECK_INT(n[1], 0);
}

TEST(layers_with_a_window_get_the_pages_that_windows_need)
{
    /* contexts of 128 pages, windows of 16, a chunk of 8: 25 pages a sequence. Five layers of 34 see all. */
    struct err e = { 0 };
    struct kv_sizing w = { .ctx = 8192, .max_seqs = 32, .chunk = 512, .group = { { 5, 0 }, { 29, 1024 } } };
    int32_t n[PAGE_GROUPS] = { 0 };
    w.bytes = 128 * 5 + 25 * 29 - 1;
    CHECK_INT(kv_count_pages(&w, n, &e), -ERR_MEMORY);
    CHECK_HAS(e.text, "1365");
    CHECK_INT(kv_longest(&w, 8192), 127 * 64);

    w.bytes = 128 * 5 + 25 * 29; /* one sequence, where pages of all layers hold 40 of its 128 pages */
    CHECK_INT(kv_count_pages(&w, n, &e), 0);
    CHECK_INT(n[0], 128);
    CHECK_INT(n[1], 25);

    w.bytes *= 8;
    CHECK_INT(kv_count_pages(&w, n, &e), 0);
    CHECK_INT(n[0], 8 * 128);
    CHECK_INT(n[1], 8 * 25);

    w.bytes *= 8; /* more than 32 sequences use */
    CHECK_INT(kv_count_pages(&w, n, &e), 0);
    CHECK_INT(n[0], 32 * 128);
    CHECK_INT(n[1], 32 * 25);
}

TEST(short_sequences_beside_a_long_context_get_an_eighth_of_the_memory_for_windows)
{
    struct err e = { 0 };
    struct kv_sizing w = { .ctx = 131072, .max_seqs = 32, .chunk = 512, .group = { { 12, 0 }, { 12, 128 } } };
    int32_t n[PAGE_GROUPS] = { 0 };
    w.bytes = 4 * 12 * (2048 + 11);
    CHECK_INT(kv_count_pages(&w, n, &e), 0);
    CHECK_INT(n[1], 32 * 11); /* less than an eighth: all that 32 sequences use */
    CHECK_INT(n[0] + n[1], 4 * (2048 + 11));
    w.max_seqs = 1000;
    CHECK_INT(kv_count_pages(&w, n, &e), 0);
    CHECK_INT(n[1], 4 * (2048 + 11) / 8);
    w.bytes = 12 * (2048 + 11); /* never at the cost of one whole context */
    CHECK_INT(kv_count_pages(&w, n, &e), 0);
    CHECK_INT(n[0], 2048);
    CHECK_INT(n[1], 11);
}

TEST(pages_are_cleared_when_a_sequence_enters_them_and_only_then)
{
    struct mem mem = { 0 };
    struct dev host = { .mem = &mem };
    struct kv kv;
    struct err e;
    int32_t page[3] = { 2, 0, 1 };
    CHECK_INT(kv_open(&kv, &host, NULL, 3, 128, &e), 0);
    memset(kv.base, 7, 3 * 128);
    kv_clear_new(&kv, page, 0, 0, 64);
    CHECK_INT(kv_page(&kv, 2)[0], 0);
    CHECK_INT(kv_page(&kv, 2)[127], 0);
    CHECK_INT(kv_page(&kv, 0)[0], 7);
    memset(kv_page(&kv, 2), 5, 128);
    kv_clear_new(&kv, page, 0, 63, 1); /* the last position of the first page: no page begins */
    CHECK_INT(kv_page(&kv, 2)[0], 5);
    CHECK_INT(kv_page(&kv, 0)[0], 7);
    kv_clear_new(&kv, page + 1, 1, 63, 66); /* positions 63 .. 128: pages 1 and 2 begin */
    CHECK_INT(kv_page(&kv, 2)[0], 5);
    CHECK_INT(kv_page(&kv, 0)[127], 0);
    CHECK_INT(kv_page(&kv, 1)[0], 0);
    kv_close(&kv);
}

TEST(values_of_wrong_drafts_are_cleared_and_no_others)
{
    struct mem mem = { 0 };
    struct dev host = { .mem = &mem };
    struct kv kv;
    struct err e;
    const int32_t page[] = { 2, 1 };
    /* two layers of one head, of keys and values of 3 bytes */
    const struct page_values kinds[] = {
        { { { 192, 3, 384, 2 } }, 1, 0 },
        { { { 0, 1, 64, 12 } }, 1, 0 },
        { { { 100, 3, 384, 2 }, { 300, 1, 384, 2 } }, 1, 0 }, /* with scales */
        { { { 0, 1, 64, 4 }, { 256, 2, 64, 1 } }, 2, 384 },   /* latent, with scales */
    };
    for (int k = 0; k < 4; k++) {
        const struct page_values *v = &kinds[k];
        int n = 0, want = 0;
        CHECK_INT(kv_open(&kv, &host, NULL, 3, 768, &e), 0);
        CHECK_INT(kv_open_clear(&kv, v, &e), 0);
        memset(kv.base, 7, 3 * 768);
        kv_clear_stale(&kv, page + 1, 1, 64 + 10, 5); /* of the second page; the first one is released */
        for (int i = 0; i < 3 * 768; i++)
            n += !kv.base[i];
        for (int64_t i = 0; i < v->n * 2; i++) {
            const struct page_part *p = &v->part[i % 2];
            const char *at = kv_page(&kv, 1) + (size_t)(i / 2) * v->block + p->first + 10 * p->each;
            want += (int)(5 * (int64_t)p->each * p->rows);
            for (int64_t r = 0; r < p->rows; r++)
                for (size_t b = 0; b < 5 * p->each; b++)
                    CHECK_INT(at[(size_t)r * p->pitch + b], 0);
        }
        CHECK_INT(n, want);
        kv_close(&kv);
    }
}
