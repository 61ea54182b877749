/* cuda_emu_hopper_test.c - what Hopper runs beside a block's threads, emulated (tests/devices/emu/async.c,
 * group.c): boxes and products are right in every form, and each mistake that a GPU would answer with
 * silence, or a hang, is reported. Kernel: cuda_emu_hopper.cu. */
#include "kernels/dev.h"
#include "kernels/fn.h"
#include "tests/test.h"
#include "tests/unit/cuda/hopper_cases.h"

const char *case_size(int alone, const char *first, int form, int64_t rows, int64_t cols, int n_leaves,
                      int slots);
void case_two(struct dev *d, float *to, const uint16_t *b, int wrong);
void case_once(struct dev *d, float *to, const uint16_t *a, const uint16_t *b, int rows, int halves, int form,
               int wrong);

#if defined(__SANITIZE_ADDRESS__)
enum { WATCHED = 0 }; /* no calls for each access there */
#else
enum { WATCHED = 1 };
#endif

/* A and B are [64][64] */
enum { N = 64 };
static struct mem memory;
static struct {
    struct dev *d;
    uint16_t *a, *b;
    float *to, host_a[N][N], host_b[N][N], got[N][32];
} rig;

static void open_rig(void)
{
    struct err e;
    static uint16_t half[2][N][N];
    setenv("SHARDLINE_EMU_SM", "90", 1);
    setenv("SHARDLINE_CUDA", "mma", 1);
    if (dev_open(&rig.d, "cuda", 1, &memory, &e) < 0) {
        test_fail(__FILE__, __LINE__, "%s", e.text);
        exit(1);
    }
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++) {
            half[0][i][k] = fn_to_bf16(rig.host_a[i][k] = (float)((i * 37 + k * 11) % 101 - 50));
            half[1][i][k] = fn_to_bf16(rig.host_b[i][k] = (float)((i * 29 + k * 13) % 97 - 48));
        }
    rig.a = dev_alloc(rig.d, MEM_WORK, sizeof half[0]);
    rig.b = dev_alloc(rig.d, MEM_WORK, sizeof half[1]);
    rig.to = dev_alloc(rig.d, MEM_WORK, sizeof rig.got);
    dev_write(rig.d, rig.a, half[0], sizeof half[0]);
    dev_write(rig.d, rig.b, half[1], sizeof half[1]);
}

static void close_rig(void)
{
    dev_free(rig.d, rig.a);
    dev_free(rig.d, rig.b);
    dev_free(rig.d, rig.to);
    dev_close(rig.d);
    CHECK_INT(memory.total_now, 0);
}

/* The device's error; "": none. */
static const char *once(int rows, int halves, int form, enum wrong wrong)
{
    static struct err e;
    case_once(rig.d, rig.to, rig.a, rig.b, rows, halves, form, (int)wrong);
    const int rc = dev_check(rig.d, &e);
    if (rc >= 0)
        dev_read(rig.d, rig.got, rig.to, sizeof rig.got);
    return rc < 0 ? e.text : "";
}

/* Elements beyond rows and halves count as zeros. Integers: exact in any order. */
static void check_product(int rows, int halves, int form)
{
    for (int r = 0; r < N; r++)
        for (int c = 0; c < 32; c++) {
            float want = 0;
            for (int k = 0; k < N; k++) {
                const int i = form & ONCE_A_ACROSS ? k : r, j = form & ONCE_A_ACROSS ? r : k;
                want += (i < rows && j < halves ? rig.host_a[i][j] : 0) *
                        (k < rows && c < halves ? rig.host_b[k][c] : 0);
            }
            if (rig.got[r][c] != want) {
                test_fail(__FILE__, __LINE__, "form %d of %dx%d: element %d,%d is %g, not %g", form, rows,
                          halves, r, c, (double)rig.got[r][c], (double)want);
                return;
            }
        }
}

TEST(boxes_and_products_of_every_form_are_right)
{
    open_rig();
    for (int form = 0; form < ONCE_BY_THREADS; form++) {
        CHECK_STR(once(N, N, form, WRONG_NOTHING), "");
        check_product(N, N, form);
        /* the rest of a box is zeros, and counts */
        CHECK_STR(once(37, 21, form, WRONG_NOTHING), "");
        check_product(37, 21, form);
    }
    close_rig();
}

TEST(what_threads_wrote_is_multiplied_behind_a_proxy_fence_only)
{
    open_rig();
    CHECK_STR(once(N, N, ONCE_BY_THREADS, WRONG_NOTHING), "");
    check_product(N, N, 0);
    if (WATCHED)
        CHECK_HAS(once(N, N, ONCE_BY_THREADS, WRONG_NO_PROXY_FENCE), "with no proxy fence behind it");
    close_rig();
}

TEST(every_mistake_is_said)
{
    static const struct {
        enum wrong wrong;
        const char *expected;
        int watched;
    } cases[] = {
        { WRONG_MORE_BYTES, "waits in an mbarrier at ", 0 },
        { WRONG_FEWER_BYTES, "where a copy has not arrived", 0 },
        { WRONG_NO_WAIT, "where a copy has not arrived", 0 },
        { WRONG_PARITY, "where a copy has not arrived", 0 },
        { WRONG_NO_BAR_FENCE, "with no fence behind its making", 0 },
        { WRONG_NO_GROUP_FENCE, "no fence of the group", 0 },
        { WRONG_NO_GROUP_WAIT, "it ends with products under way", 0 },
        { WRONG_REUSED_EARLY, "where a product is under way", 0 },
        { WRONG_WRITE_EARLY, "which a product under way reads", 1 },
        { WRONG_ALIGNMENT, "use a multiple of 1024", 0 },
    };
    open_rig();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (WATCHED || !cases[i].watched)
            CHECK_HAS(once(N, N, 0, cases[i].wrong), cases[i].expected);
    /* forgotten: the next launch is a new one */
    CHECK_STR(once(N, N, 0, WRONG_NOTHING), "");
    check_product(N, N, 0);
    close_rig();
}

TEST(two_blocks_share_what_one_brings_and_their_mistakes_are_said)
{
    static const struct {
        enum wrong wrong;
        const char *expected;
    } cases[] = { { WRONG_NOTHING, NULL },
                  { WRONG_NO_MEETING, "an mbarrier, with no barrier between" },
                  { WRONG_ENDS_EARLY, "which has ended or is not there" },
                  { WRONG_ONE_OF_TWO, "waits in an mbarrier at " },
                  { WRONG_RANK, "block 2 of the cluster, which has ended or is not there" },
                  { WRONG_NOTHING, NULL } };
    uint16_t *half = malloc(N * N * 2);
    struct err e;
    open_rig();
    dev_read(rig.d, half, rig.b, N * N * 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        case_two(rig.d, rig.to, rig.b, (int)cases[i].wrong);
        const int rc = dev_check(rig.d, &e);
        if (cases[i].expected) {
            CHECK_HAS(rc < 0 ? e.text : "", cases[i].expected);
            continue;
        }
        CHECK_STR(rc < 0 ? e.text : "", "");
        dev_read(rig.d, rig.got, rig.to, sizeof rig.got);
        for (int k = 0; k < 128; k++) {
            const float want = half[(k * 2 ^ (k * 2 >> 7 & 7) << 4) / 2];
            CHECK(rig.got[k / 32][k % 32] == want && rig.got[(128 + k) / 32][k % 32] == want);
        }
    }
    close_rig();
    free(half);
}

TEST(sums_are_no_numbers_until_they_are_waited_for_and_wrong_strides_give_other_ones)
{
    open_rig();
    CHECK_STR(once(N, N, 0, WRONG_READ_TOO_SOON), "");
    for (int t = 0; t < 128; t++)
        CHECK(rig.got[t / 32][t % 32] != rig.got[t / 32][t % 32]);
    static float right[N][32];
    CHECK_STR(once(N, N, 0, WRONG_NOTHING), "");
    memcpy(right, rig.got, sizeof right);
    CHECK_STR(once(N, N, 0, WRONG_STRIDE), "");
    CHECK(memcmp(right, rig.got, sizeof right));
    close_rig();
}

/* On an H100: 132 processors. Waves of tiles x the clocks of README.md's table. */
TEST(a_product_gets_the_tiles_that_are_through_first)
{
    static const struct {
        int alone, form;
        const char *first;
        int64_t rows, cols;
        int leaves, slots;
        const char *size;
    } cases[] = {
        { 0, 0, "", 4096, 4096, 1, 0, "128x256" },
        { 0, 1, "", 4096, 28672, 1, 0, "128x256" },
        { 0, 2, "", 16384, 2048, 1, 0, "128x256" },
        { 0, 0, "", 4096, 4096, 8, 2, "128x128" },
        { 0, 1, "", 4096, 14336, 8, 2, "128x128" },
        { 0, 2, "", 4096, 4096, 4, 1, "128x128" },
        { 0, 0, "", 4096, 4096, 64, 5, "128x64" }, /* five sums of 128x128 do not fit */
        { 0, 0, "", 128, 28672, 8, 2, "128x64" },  /* a cluster would be half empty */
        { 0, 0, "", 128, 4096, 8, 2, "64x32" },    /* few tiles: small ones */
        { 0, 1, "", 2048, 2048, 1, 0, "128x256" }, /* 64 clusters of 66 */
        { 0, 0, "", 100, 512, 8, 2, "" },
        { 1, 0, "", 100, 512, 8, 2, "64x32" },
        { 1, 2, "", 8, 8, 1, 0, "64x64" },
        { 0, 0, "128x64", 4096, 4096, 1, 0, "128x64" },
        { 0, 0, "128x256", 4096, 4096, 8, 2, "128x128" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_STR(case_size(cases[i].alone, cases[i].first, cases[i].form, cases[i].rows, cases[i].cols,
                            cases[i].leaves, cases[i].slots),
                  cases[i].size);
}
