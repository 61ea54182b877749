/* cuda_emu_block_test.c - the emulated block (tests/devices/emu) does what a GPU's does, and reports what
 * a GPU would not. Kernels: cuda_emu_block.cu. */
#include "kernels/dev.h"
#include "kernels/fn.h"
#include "tests/test.h"

#define CASE(name, ...) void case_##name(struct dev *d, __VA_ARGS__)
enum { ALL = -1, NOTHING = 0, WARP, BLOCK };
CASE(barrier, float *x, int some);
CASE(shuffle, float *x, int some);
CASE(part, float *x);
CASE(halves, float *x);
CASE(neighbours, float *x, int between, int by);
CASE(neighbours_dynamic, float *x, int between, int by);
CASE(write_after_reads, float *x, int with_barrier);
CASE(copies, float *x, const float *from, int waits, int with_barrier);
CASE(beyond, float *x, int64_t at);
CASE(mma, float *to, const uint16_t *a, const uint16_t *b, int by_rows);
CASE(grid, unsigned *count, float *x);
CASE(large, float *x, unsigned threads, size_t shared);

#if defined(__SANITIZE_ADDRESS__)
enum { WATCHED = 0 }; /* races and bounds are seen where each access is called for */
#else
enum { WATCHED = 1 };
#endif

enum { N = 512 };
static struct mem memory;
static struct dev *open_device(void)
{
    struct dev *d;
    struct err e;
    if (dev_open(&d, "cuda", 1, &memory, &e) < 0) {
        test_fail(__FILE__, __LINE__, "%s", e.text);
        exit(1);
    }
    return d;
}

static float *floats(struct dev *d, int64_t n)
{
    float *p = dev_alloc(d, MEM_WORK, (size_t)n * 4), *host = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        host[i] = (float)(i * 7 % 61);
    dev_write(d, p, host, (size_t)n * 4);
    free(host);
    return p;
}

/* The device's error; "": none. */
static const char *complaint(struct dev *d)
{
    static struct err e;
    return dev_check(d, &e) < 0 ? e.text : "";
}

#define ON_DEVICE(...) \
    do { \
        struct dev *d = open_device(); \
        float *x = floats(d, N); \
        __VA_ARGS__ \
        dev_free(d, x); \
        dev_close(d); \
    } while (0)

TEST(a_barrier_that_some_threads_do_not_reach_is_reported)
{
    ON_DEVICE({
        case_barrier(d, x, ALL);
        CHECK_STR(complaint(d), "");
        case_barrier(d, x, 40);
        const char *w = complaint(d);
        CHECK_HAS(w, "thread 0 waits in __syncthreads at ");
        CHECK_HAS(w, "thread 40 has ended");
        CHECK_HAS(w, "cuda_emu_block.cu:");
        case_barrier(d, x, ALL);
        CHECK_STR(complaint(d), ""); /* forgotten: the next launch is a new one */
    });
}

TEST(an_operation_of_a_warp_without_some_of_its_lanes_is_reported)
{
    ON_DEVICE({
        float got[32];
        case_shuffle(d, x, ALL);
        CHECK_STR(complaint(d), "");
        dev_read(d, got, x, sizeof got);
        for (int i = 0; i < 32; i++)
            CHECK_BITS(got[i], (float)((i ^ 1) * 7 % 61));
        case_shuffle(d, x, 31);
        const char *w = complaint(d);
        CHECK_HAS(w, "thread 0 waits in __shfl_xor_sync");
        CHECK_HAS(w, "thread 31 has ended");
    });
}

TEST(lanes_in_different_operations_are_reported_and_halves_may_go_their_own_way)
{
    ON_DEVICE({
        float got[32];
        case_part(d, x);
        const char *w = complaint(d);
        CHECK_HAS(w, "__shfl_sync of lanes ffffffff");
        CHECK_HAS(w, "a vote of lanes ffffffff");
        case_halves(d, x);
        CHECK_STR(complaint(d), "");
        dev_read(d, got, x, sizeof got);
        for (int i = 0; i < 32; i++)
            CHECK_BITS(got[i], i < 15 ? (float)(i + 1) : i < 16 ? 15.0f : 8.0f);
    });
}

static void check_neighbours(struct dev *d, const float *x, int by)
{
    float got[128];
    CHECK_STR(complaint(d), "");
    dev_read(d, got, x, sizeof got);
    for (int i = 0; i < 128; i++)
        CHECK_BITS(got[i], (float)((i + by) % 128));
}

TEST(shared_memory_without_a_barrier_between_is_a_race)
{
    void (*const kinds[])(struct dev *, float *, int, int) = { case_neighbours, case_neighbours_dynamic };
    for (int k = 0; k < 2; k++)
        ON_DEVICE({
            kinds[k](d, x, BLOCK, 1);
            check_neighbours(d, x, 1);
            kinds[k](d, x, NOTHING, 0); /* its own word: no race */
            check_neighbours(d, x, 0);
            kinds[k](d, x, NOTHING, 1);
            if (WATCHED)
                CHECK_HAS(complaint(d), "with no barrier between");
            complaint(d);
            kinds[k](d, x, WARP, 1); /* lane 31 reads what the next warp wrote */
            if (WATCHED)
                CHECK_HAS(complaint(d), "shared memory at byte");
            complaint(d);
            case_write_after_reads(d, x, 1);
            CHECK_STR(complaint(d), "");
            case_write_after_reads(d, x, 0);
            if (WATCHED)
                CHECK_HAS(complaint(d), "with no barrier between");
            complaint(d);
        });
}

TEST(copies_happen_at_the_wait_and_not_before)
{
    ON_DEVICE({
        float got[128];
        float *from = floats(d, 128);
        case_copies(d, x, from, 0, 0); /* each thread reads what it copied itself */
        CHECK_STR(complaint(d), "");
        case_copies(d, x, from, 0, 1);
        CHECK_STR(complaint(d), "");
        dev_read(d, got, x, sizeof got);
        for (int i = 0; i < 128; i++) {
            int at = (i + 4) % 128;
            float whole = (float)(at * 7 % 61), part = at == 6 || at == 7 ? 0 : whole;
            CHECK_BITS(got[i], part + whole);
        }
        case_copies(d, x, from, 1, 1); /* the second group may not have come: NaN */
        CHECK_STR(complaint(d), "");
        dev_read(d, got, x, sizeof got);
        for (int i = 0; i < 128; i++)
            CHECK(got[i] != got[i]);
        dev_free(d, from);
    });
}

TEST(memory_beyond_the_device_s_is_reported)
{
    if (!WATCHED) {
        test_skip("the address sanitizer watches in this build");
        return;
    }
    ON_DEVICE({
        case_beyond(d, x, N - 32);
        CHECK_STR(complaint(d), "");
        case_beyond(d, x, N + 64 - 31); /* device.c hands out multiples of 256 bytes */
        CHECK_HAS(complaint(d), "writes 4 bytes at ");
        float host[64] = { 0 };
        case_beyond(d, host, 0);
        CHECK_HAS(complaint(d), "no memory of the device");
        CHECK_BITS(host[0], 0.0f);
    });
}

TEST(mma_and_ldmatrix_are_a_product_of_matrices)
{
    ON_DEVICE({
        float a[256], b[128], want[128], got[128];
        uint16_t ha[256], hb[2][128]; /* b by columns, by rows */
        for (int i = 0; i < 256; i++)
            ha[i] = fn_to_bf16(a[i] = (float)(i * 37 % 101 - 50));
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++)
                hb[0][n * 16 + k] = hb[1][k * 8 + n] = fn_to_bf16(
                    b[k * 8 + n] = (float)((k * 8 + n) * 29 % 97 - 48));
        for (int by_rows = 0; by_rows < 2; by_rows++) {
            uint16_t *da = dev_alloc(d, MEM_WORK, sizeof ha), *db = dev_alloc(d, MEM_WORK, sizeof hb[0]);
            dev_write(d, da, ha, sizeof ha);
            dev_write(d, db, hb[by_rows], sizeof hb[0]);
            dev_read(d, want, x, sizeof want);
            for (int r = 0; r < 16; r++)
                for (int n = 0; n < 8; n++)
                    for (int k = 0; k < 16; k++)
                        want[r * 8 + n] += a[r * 16 + k] * b[k * 8 + n]; /* integers: exact in any order */
            case_mma(d, x, da, db, by_rows);
            CHECK_STR(complaint(d), "");
            dev_read(d, got, x, sizeof got);
            CHECK_SAME(got, want, sizeof got);
            dev_free(d, da);
            dev_free(d, db);
        }
    });
}

TEST(every_thread_of_every_block_runs_once)
{
    ON_DEVICE({
        unsigned *count = dev_alloc(d, MEM_WORK, 16), got[4];
        float word_of[105];
        case_grid(d, count, x);
        CHECK_STR(complaint(d), "");
        dev_read(d, got, count, sizeof got);
        CHECK_INT(got[0] + got[1] + got[2] + got[3], 105);
        dev_read(d, word_of, x, sizeof word_of);
        for (int i = 0; i < 105; i++)
            CHECK_BITS(word_of[i], (float)(i % 7));
        dev_free(d, count);
    });
}

TEST(a_launch_that_no_gpu_takes_is_refused)
{
    ON_DEVICE({
        case_large(d, x, 1025, 0);
        CHECK_HAS(complaint(d), "1025 threads");
        case_large(d, x, 32, 100 * 1024);
        CHECK_HAS(complaint(d), "102400 bytes of shared memory");
    });
}
