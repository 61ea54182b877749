/* cuda_emu_rows_test.c - row_cases.h where a GPU is emulated, with the library that computes on the host in
 * cuBLASLt's place; and which provider multiplies when. */
#include <limits.h>
#include <unistd.h>

enum { ROWS = 67, COLS = 40, INNER = 49 };
#include "tests/unit/kernels/row_cases.h"

static void name_library(const char *file)
{
    char path[PATH_MAX] = "";
    if (readlink("/proc/self/exe", path, sizeof path - 40) > 0)
        strcpy(strrchr(path, '/') + 1, file);
    setenv("SHARDLINE_CUBLASLT", path, 1);
}

TEST(simt_products_have_the_same_bits_for_every_number_of_rows) { rows_on(NULL, "simt"); }
TEST(own_products_have_the_same_bits_for_every_number_of_rows) { rows_on(NULL, "own"); }

/* An emulated sm_90 whose wgmma rounds in the way of `how`: the provider in the log. */
static void hopper_note(const char *how, const char *expected, int with_rows)
{
    struct mem mem = { 0 };
    struct dev *d;
    struct err e;
    setenv("SHARDLINE_EMU_SM", "90", 1);
    setenv("SHARDLINE_EMU_SHARED", "227", 1);
    setenv("SHARDLINE_EMU_WGMMA", how, 1);
    if (dev_open(&d, "cuda", 1, &mem, &e) < 0) {
        test_fail(__FILE__, __LINE__, "%s", e.text);
        return;
    }
    CHECK_STR(d->note, expected);
    dev_close(d);
    CHECK_INT(mem.total_now, 0);
    if (with_rows)
        rows_on(NULL, "own");
    unsetenv("SHARDLINE_EMU_SM");
    unsetenv("SHARDLINE_EMU_SHARED");
    unsetenv("SHARDLINE_EMU_WGMMA");
}
TEST(mma_and_wgmma_that_round_alike_multiply_side_by_side)
{
    hopper_note("exact", "products on the GPU: own, by mma and wgmma, which round alike", 0);
}
TEST(wgmma_that_rounds_otherwise_multiplies_alone)
{
    hopper_note("other", "products on the GPU: own, by wgmma alone", 1);
}
TEST(wgmma_whose_numbers_are_wrong_is_left_off)
{
    hopper_note("wrong",
                "products on the GPU: own, without wgmma, whose numbers were wrong in the self-check", 0);
}
TEST(wgmma_that_is_wrong_in_its_largest_blocks_only_is_left_off)
{
    /* more than the self-check's products have tiles */
    setenv("SHARDLINE_EMU_PROCESSORS", "132", 1);
    hopper_note("wide", "products on the GPU: own, without wgmma, whose numbers were wrong in the self-check",
                0);
    unsetenv("SHARDLINE_EMU_PROCESSORS");
}
TEST(cublaslt_s_products_have_the_same_bits_for_every_number_of_rows)
{
    name_library("cublaslt_stub.so");
    rows_on(NULL, "lt");
}

/* The log's note of a device that was opened with these in the environment. */
static void notes(const char *file, char exact[240], char fast[240])
{
    struct mem mem = { 0 };
    struct dev *d;
    struct err e;
    name_library(file);
    if (dev_open(&d, "cuda", 1, &mem, &e) < 0) {
        test_fail(__FILE__, __LINE__, "%s", e.text);
        return;
    }
    memcpy(exact, d->note, 240);
    dev_numerics(d, 1);
    memcpy(fast, d->note, 240);
    dev_close(d);
    CHECK_INT(mem.total_now, 0);
}

TEST(fast_takes_the_library_where_it_is_and_exact_does_not)
{
    char exact[240] = "", fast[240] = "";
    notes("cublaslt_stub.so", exact, fast);
    CHECK(strstr(exact, "on the GPU: simt") || strstr(exact, "on the GPU: own"));
    CHECK(!strstr(exact, "cuBLASLt"));
    CHECK_STR(fast, "products on the GPU: lt; cuBLASLt: cublaslt_stub.so 990000");
    notes("missing.so", exact, fast);
    CHECK(!strstr(fast, "on the GPU: lt"));
    CHECK_HAS(fast, "cuBLASLt: ");
    CHECK_HAS(fast, "cannot be opened");
}

TEST(a_wish_that_nobody_meets_is_refused)
{
    struct mem mem = { 0 };
    struct dev *d;
    struct err e;
    name_library("missing.so");
    setenv("SHARDLINE_CUDA", "lt", 1);
    CHECK_INT(dev_open(&d, "cuda", 1, &mem, &e), -ERR_DEVICE);
    CHECK_HAS(e.text, "SHARDLINE_CUDA=lt: not here: ");
    setenv("SHARDLINE_CUDA", "wgmma", 1); /* of an sm_80 */
    CHECK_INT(dev_open(&d, "cuda", 1, &mem, &e), -ERR_DEVICE);
    CHECK_HAS(e.text, "SHARDLINE_CUDA=wgmma: not here");
    setenv("SHARDLINE_CUDA", "abacus", 1);
    CHECK_INT(dev_open(&d, "cuda", 1, &mem, &e), -ERR_USAGE);
    CHECK_STR(e.text, "SHARDLINE_CUDA=abacus: use simt, own, lt, mma or wgmma");
    unsetenv("SHARDLINE_CUDA");
    CHECK_INT(mem.total_now, 0);
}
