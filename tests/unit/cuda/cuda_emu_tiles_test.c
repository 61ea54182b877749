/* cuda_emu_tiles_test.c - the products of wgmma on an emulated GPU by tiles of each size, several of them a
 * block: the bits that mma gives, whose products cuda_emu_gemm_test holds against their definition. Gaps
 * between rows and levels that a call must leave alone are compared, too. */
#include "base/rnd.h"
#include "kernels/dev.h"
#include "kernels/fn.h"
#include "kernels/kernels.h"
#include "tests/test.h"

enum form { LINEAR, DX, DW };
/* rows x cols of the result; leaves of these lengths (dw: sequences of the first, `next` of `of` being the
 * first one; dx: also a second matrix, of `more` a leaf). gap: columns behind a row of an operand; odd ones,
 * and leaves that end inside of a step, keep boxes away. */
static const struct job {
    enum form form;
    int rows, cols, n_leaves, len[8], more, next, of, gap;
} jobs[] = {
    /* 6 tiles of 2 x 128x256 and more of others, whole and broken ends */
    { LINEAR, 300, 600, 1, { 104 }, 0, 0, 0, 0 },
    /* nothing broken; more stages than there are */
    { LINEAR, 256, 256, 1, { 320 }, 0, 0, 0, 8 },
    /* one row, one column more; a last step of 8 */
    { LINEAR, 129, 257, 1, { 72 }, 0, 0, 0, 0 },
    { LINEAR, 200, 130, 8, { 16, 16, 16, 80, 16, 0, 16, 8 }, 0, 0, 0, 0 },
    /* two leaves, of which no older one waits */
    { LINEAR, 130, 260, 2, { 80, 32 }, 0, 0, 0, 0 },
    { LINEAR, 140, 70, 1, { 40 }, 0, 0, 0, 1 }, /* by threads */
    { DX, 260, 300, 1, { 64 }, 24, 0, 0, 0 },
    { DX, 131, 140, 4, { 16, 32, 0, 24 }, 16, 0, 0, 0 },
    { DW, 264, 272, 1, { 72 }, 0, 0, 1, 0 },
    { DW, 136, 270, 1, { 33 }, 0, 3, 8, 0 }, /* joins two levels */
    { DW, 136, 136, 1, { 16 }, 0, 2, 8, 0 }, /* is one */
    { DW, 136, 136, 6, { 16 }, 0, 1, 8, 0 },
};
enum { N_JOBS = sizeof jobs / sizeof *jobs, LEVELS = 4 };
static struct mem memory;

static struct dev *open_gpu(const char *provider, const char *size, const char *processors)
{
    struct dev *d;
    struct err e;
    setenv("SHARDLINE_EMU_SM", "90", 1);
    setenv("SHARDLINE_EMU_SHARED", "227", 1);
    setenv("SHARDLINE_CUDA", provider, 1);
    setenv("SHARDLINE_WGMMA", size, 1);
    setenv("SHARDLINE_EMU_PROCESSORS", processors, 1);
    if (dev_open(&d, "cuda", 1, &memory, &e) >= 0)
        return d;
    test_fail(__FILE__, __LINE__, "%s", e.text);
    return NULL;
}

static struct mat operand(struct dev *d, int64_t rows, int64_t cols, int gap, uint64_t stream)
{
    const int64_t ld = cols + gap;
    uint16_t *host = malloc((size_t)(rows * ld) * 2),
             *there = dev_alloc(d, MEM_WORK, (size_t)(rows * ld) * 2);
    for (int64_t i = 0; i < rows * ld; i++)
        host[i] = i % ld < cols ? fn_to_bf16((float)(2 * rnd_unit(3, stream, (uint64_t)i) - 1)) : 0x7fc0;
    dev_write(d, there, host, (size_t)(rows * ld) * 2);
    free(host);
    return mat_of(there, DT_BF16, rows, cols, ld);
}

static struct leaves leaves_of_job(const struct job *j)
{
    struct leaves l = { .n = j->n_leaves };
    for (int i = 0; i < l.n; i++)
        l.end[i] = j->len[i] + (i ? l.end[i - 1] : 0);
    return l;
}

static void run_linear(struct dev *d, const struct job *j, float *to, int64_t ld)
{
    const struct leaves l = leaves_of_job(j);
    const int64_t k = l.end[l.n - 1];
    struct mat x = operand(d, j->rows, k, j->gap, 1), w = operand(d, j->cols, k, 0, 2);
    struct panels p = { dev_alloc(d, MEM_WORK, panels_bytes(j->cols, k, DT_BF16, &l)), j->cols, k, DT_BF16,
                        l };
    KERNEL(d, linear_pack, &p, 1, &w);
    KERNEL(d, linear, mat_of(to, DT_F32, j->rows, j->cols, ld), x, &p);
    dev_free(d, x.p), dev_free(d, w.p), dev_free(d, p.p);
}
static void run_dx(struct dev *d, const struct job *j, float *to, int64_t ld)
{
    struct leaves l[2] = { leaves_of_job(j), { .n = j->n_leaves } };
    struct mat dy[2], w[2];
    for (int i = 0; i < j->n_leaves; i++)
        l[1].end[i] = (i + 1) * j->more;
    for (int i = 0; i < 2; i++) {
        const int64_t k = l[i].end[j->n_leaves - 1];
        dy[i] = operand(d, j->rows, k, j->gap, 3 + (uint64_t)i);
        w[i] = operand(d, k, j->cols, j->cols % 8 ? 8 - j->cols % 8 : 0, 5 + (uint64_t)i);
    }
    KERNEL(d, linear_dx, mat_of(to, DT_F32, j->rows, j->cols, ld), 2, dy, w, l);
    for (int i = 0; i < 2; i++)
        dev_free(d, dy[i].p), dev_free(d, w[i].p);
}
static void run_dw(struct dev *d, const struct job *j, float *to, int64_t ld)
{
    struct mat dy = operand(d, j->n_leaves * j->len[0], j->rows, j->gap, 7),
               x = operand(d, j->n_leaves * j->len[0], j->cols, j->gap, 8);
    struct tree_acc acc = { .n = j->of, .next = j->next };
    for (int i = 0; i < LEVELS; i++)
        acc.level[i] = to + i * j->rows * ld;
    KERNEL(d, linear_dw, &acc, ld, dy, x, j->n_leaves, j->len[0]);
    dev_free(d, dy.p), dev_free(d, x.p);
}

/* All the memory of a result behind job j, LEVELS times its size. */
static float *result_of(struct dev *d, const struct job *j, int odd, const char *what)
{
    static void (*const runs[])(struct dev *, const struct job *, float *, int64_t) = { run_linear, run_dx,
                                                                                        run_dw };
    /* odd: of an odd ld, so that numbers are not stored two at a time */
    const int64_t ld = j->cols + (j->cols + odd) % 2, n = LEVELS * j->rows * ld;
    float *host = malloc((size_t)n * 4), *there = dev_alloc(d, MEM_WORK, (size_t)n * 4);
    struct err e;
    for (int64_t i = 0; i < n; i++)
        host[i] = (float)(i % 977);
    dev_write(d, there, host, (size_t)n * 4);
    runs[j->form](d, j, there, ld);
    dev_read(d, host, there, (size_t)n * 4);
    dev_free(d, there);
    if (dev_check(d, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", what, e.text);
    return host;
}

static void compare(const struct job *j, const float *want, const float *got, int odd, const char *what)
{
    const int64_t ld = j->cols + (j->cols + odd) % 2;
    for (int64_t i = 0; i < LEVELS * j->rows * ld; i++)
        if (memcmp(&want[i], &got[i], 4)) {
            test_fail(__FILE__, __LINE__, "%s: level %lld, element %lld,%lld is %a, not %a", what,
                      (long long)(i / ld / j->rows), (long long)(i / ld % j->rows), (long long)(i % ld),
                      (double)got[i], (double)want[i]);
            return;
        }
}

static void tiles_of_size(const char *size, const char *processors, int odd)
{
    struct dev *mma = open_gpu("mma", "", "1"), *d = open_gpu("wgmma", size, processors);
    for (int i = 0; mma && d && i < N_JOBS; i++) {
        char what[80];
        snprintf(what, sizeof what, "job %d by %s, %s processors", i, size, processors);
        float *want = result_of(mma, &jobs[i], odd, "mma"), *got = result_of(d, &jobs[i], odd, what);
        compare(&jobs[i], want, got, odd, what);
        free(want);
        free(got);
    }
    dev_close(mma);
    dev_close(d);
    CHECK_INT(memory.total_now, 0);
}

/* A copy that never arrives: the launch ends, and each number is the right one or none. */
static void check_lost(const char *size, const char *which)
{
    static const struct job j = { LINEAR, 256, 512, 1, { 128 }, 0, 0, 0, 0 };
    struct dev *mma = open_gpu("mma", "", "1"), *d = open_gpu("wgmma", size, "2");
    float *want = result_of(mma, &j, 0, "mma"), *got;
    int n_none = 0, n_wrong = 0;
    setenv("SHARDLINE_EMU_LOST", which, 1);
    got = result_of(d, &j, 0, "a lost copy");
    unsetenv("SHARDLINE_EMU_LOST");
    for (int i = 0; i < j.rows * j.cols; i++) {
        n_none += got[i] != got[i];
        n_wrong += got[i] == got[i] && got[i] != want[i];
    }
    CHECK(n_none >= 128 * 64 && n_none < j.rows * j.cols);
    CHECK_INT(n_wrong, 0);
    free(want), free(got);
    dev_close(mma), dev_close(d);
}

TEST(a_copy_that_is_lost_ends_in_no_numbers_and_hangs_nobody)
{
    check_lost("128x256", "13"); /* of A, in the second tile */
    check_lost("128x256", "15"); /* of B */
    check_lost("128x128", "40");
    check_lost("128x64", "9");
}

TEST(wide_tiles_a_cluster_for_all_give_the_bits_of_mma) { tiles_of_size("128x256", "2", 0); }
TEST(wide_tiles_on_more_clusters_than_one_give_the_bits_of_mma) { tiles_of_size("128x256", "5", 1); }
TEST(tiles_of_128_by_128_give_the_bits_of_mma) { tiles_of_size("128x128", "2", 0); }
TEST(tiles_of_128_by_64_give_the_bits_of_mma) { tiles_of_size("128x64", "3", 1); }
TEST(small_tiles_give_the_bits_of_mma) { tiles_of_size("64x64", "4", 0); }
