/* dev_test.c - devices: CPU classes by name, errors, scratch, and that a device's table has every op. */
#include "kernels/dev.h"
#include "kernels/kernels.h"
#include "tests/test.h"

static const char *const classes[] = { "portable", "avx2", "avx512", "avx512bf16", "simt" };

static struct dev *open_class(const char *isa, int threads, struct mem *mem, struct err *e)
{
    struct dev *d;
    if (isa)
        setenv("SHARDLINE_ISA", isa, 1);
    int rc = dev_open(&d, "cpu", threads, mem, e);
    unsetenv("SHARDLINE_ISA");
    return rc ? NULL : d;
}

TEST(every_class_opens_and_has_every_op_or_says_that_it_is_not_there)
{
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        struct mem mem = { 0 };
        struct err e = { 0 };
        struct dev *d = open_class(classes[i], 1, &mem, &e);
        if (!d) {
            CHECK_INT(e.code, ERR_DEVICE);
            CHECK_HAS(e.text, classes[i]);
            CHECK(i > 0);
            continue;
        }
        CHECK_STR(d->isa, classes[i]);
        CHECK_STR(d->kind, "cpu");
#define K(name, ...) CHECK(d->ops->name != NULL);
        KERNEL_LIST(K)
#undef K
        dev_close(d);
        CHECK_INT(mem.total_now, 0);
    }
}

TEST(without_a_wish_the_best_class_is_taken)
{
    struct mem mem = { 0 };
    struct err e = { 0 };
    struct dev *best = open_class(NULL, 2, &mem, &e);
    CHECK(best != NULL);
    for (int i = 3; best && i >= 0; i--) {
        struct dev *d = open_class(classes[i], 1, &mem, &e);
        if (!d)
            continue;
        CHECK_STR(best->isa, classes[i]);
        dev_close(d);
        break;
    }
    dev_close(best);
}

TEST(bad_wishes_are_refused_by_name)
{
    struct mem mem = { 0 };
    struct err e = { 0 };
    struct dev *d = NULL;
    CHECK(!open_class("sse9", 1, &mem, &e));
    CHECK_INT(e.code, ERR_DEVICE);
    CHECK_HAS(e.text, "sse9");
    if (!strstr(dev_kinds(), "cuda")) {
        CHECK_INT(dev_open(&d, "cuda", 1, &mem, &e), -ERR_DEVICE);
        CHECK_HAS(e.text, "built without CUDA");
    }
    CHECK_INT(dev_open(&d, "tpu", 1, &mem, &e), -ERR_USAGE);
    CHECK_HAS(e.text, "tpu");
    CHECK_INT(dev_open(&d, "cpu", 0, &mem, &e), -ERR_USAGE);
    CHECK(d == NULL);
    CHECK_INT(mem.total_now, 0);
}

TEST(scratch_grows_is_kept_and_counted_as_work)
{
    struct mem mem = { 0 };
    struct err e = { 0 };
    struct dev *d = open_class("portable", 1, &mem, &e);
    char *a = dev_scratch(d, 4, 1000), *b = dev_scratch(d, 5, 1000);
    CHECK(a && b && a != b);
    memset(a, 1, 1000);
    CHECK(dev_scratch(d, 4, 500) == a);
    CHECK(a[999] == 1);
    a = dev_scratch(d, 4, 100000);
    CHECK(a != NULL);
    memset(a, 1, 100000);
    CHECK(mem.now[MEM_WORK] >= 101000);
    CHECK_INT(mem.now[MEM_WORK], mem.total_now);
    dev_close(d);
    CHECK_INT(mem.total_now, 0);
}

TEST(no_memory_for_scratch_is_a_null_and_the_device_lives_on)
{
    struct mem mem = { 0 };
    struct err e = { 0 };
    struct dev *d = open_class("portable", 1, &mem, &e);
    CHECK(dev_scratch(d, 4, 64) != NULL);
    mem.fail_after = 1;
    CHECK(dev_scratch(d, 4, 1 << 16) == NULL);
    CHECK(dev_scratch(d, 4, 1 << 16) != NULL);
    mem.fail_after = 1;
    CHECK(dev_alloc(d, MEM_ACTS, 64) == NULL);
    mem.fail_after = 0;
    void *q = dev_alloc(d, MEM_ACTS, 64);
    CHECK(q != NULL);
    dev_free(d, q);
    dev_free(d, NULL);
    dev_close(d);
    dev_close(NULL);
}

TEST(dtypes_have_names)
{
    CHECK_STR(dtype_name(DT_F32), "fp32");
    CHECK_STR(dtype_name(DT_BF16), "bf16");
    CHECK_STR(dtype_name(DT_F16), "fp16");
}
