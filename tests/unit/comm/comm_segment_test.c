/* comm_segment_test.c - the allocator of a rank's region: pieces do not overlap, freed memory is zero and
 * whole again. */
#include <unistd.h>

#include "comm/segment.h"
#include "tests/test.h"

static struct mem mem;
static struct err err;

static int open_one(struct segment *s, int rank, int ranks)
{
    size_t head = failure_board_bytes(ranks);
    if (segment_create(s, segment_size(head, ranks, 1), NULL, &err) < 0 ||
        segment_take_region(s, head, rank, &mem, &err) < 0) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return -1;
    }
    return 0;
}

TEST(pieces_are_zero_aligned_and_apart)
{
    struct segment s;
    enum { N = 200 };
    char *p[N] = { 0 };
    size_t size[N] = { 0 };
    uint64_t h = 7;
    if (open_one(&s, 0, 2) < 0)
        return;
    for (int round = 0; round < 5000; round++) {
        h = h * 6364136223846793005u + 1442695040888963407u;
        int i = (int)(h >> 40) % N;
        if (p[i]) {
            for (size_t k = 0; k < size[i]; k += 61)
                CHECK_INT(p[i][k], (char)i);
            segment_free(&s, p[i]);
            p[i] = NULL;
            continue;
        }
        size[i] = (size_t)(h >> 20 & 0xfff) << (h >> 60) % 11;
        p[i] = segment_alloc(&s, MEM_WORK, size[i]);
        CHECK(p[i] && (uintptr_t)p[i] % (size[i] >= 2 << 20 ? 2 << 20 : 64) == 0);
        for (size_t k = 0; k < size[i]; k++)
            if (p[i][k]) {
                test_fail(__FILE__, __LINE__, "byte %zu of %zu is not zero", k, size[i]);
                break;
            }
        memset(p[i], i, size[i]);
    }
    for (int i = 0; i < N; i++)
        segment_free(&s, p[i]);
    CHECK_INT(mem.now[MEM_WORK], 0);
    CHECK_INT(s.n_extents, 1);
    CHECK_INT(s.extent[0].size, s.region_bytes);
    CHECK_INT(atomic_load(&s.board->used_bytes), 0);
    segment_close(&s);
}

TEST(more_than_the_machine_has_is_refused)
{
    struct segment s;
    if (open_one(&s, 0, 4) < 0)
        return;
    size_t half = (size_t)s.board->limit_bytes / 2;
    void *a = segment_alloc(&s, MEM_WORK, half), *b = segment_alloc(&s, MEM_WORK, half + 4096);
    CHECK(a && !b);
    segment_free(&s, a);
    CHECK((b = segment_alloc(&s, MEM_WORK, half + 4096)) != NULL);
    segment_free(&s, b);
    CHECK(segment_alloc(&s, MEM_WORK, SIZE_MAX / 2) == NULL);
    segment_close(&s);
}

TEST(an_allocation_can_be_made_to_fail)
{
    struct segment s;
    if (open_one(&s, 0, 1) < 0)
        return;
    mem.fail_after = 2;
    CHECK(segment_alloc(&s, MEM_WORK, 10) != NULL);
    CHECK(segment_alloc(&s, MEM_WORK, 10) == NULL);
    CHECK(segment_alloc(&s, MEM_WORK, 10) != NULL);
    segment_close(&s);
    CHECK_INT(mem.now[MEM_WORK], 0);
}

TEST(an_offset_is_known_only_for_my_region)
{
    struct segment s;
    char here[8];
    if (open_one(&s, 1, 3) < 0)
        return;
    char *p = segment_alloc(&s, MEM_WORK, 100);
    CHECK_INT(segment_offset(&s, p, 100), p - s.base);
    CHECK_INT(segment_offset(&s, here, 8), -1);
    CHECK_INT(segment_offset(&s, s.base, 8), -1); /* the board */
    /* extends into the region of rank 2 */
    CHECK_INT(segment_offset(&s, s.base + s.region + s.region_bytes - 4, 8), -1);
    segment_close(&s);
}

TEST(another_process_sees_the_same_memory)
{
    struct segment s, t;
    if (open_one(&s, 0, 2) < 0)
        return;
    CHECK_INT(segment_open_fd(&t, s.bytes, (int)getpid(), s.fd, &err), 0);
    char *p = segment_alloc(&s, MEM_WORK, 100);
    strcpy(p, "hello");
    CHECK_STR(t.base + (p - s.base), "hello");
    segment_close(&t);
    segment_close(&s);
    CHECK_INT(segment_open_fd(&t, 4096, (int)getpid(), 999, &err), -ERR_FILE);
    CHECK_HAS(err.text, "/proc/");
}
