/* cuda_emu_upload_test.c - cuda_upload (kernels/cuda/priv.h) on the emulated GPU: the bytes are valid as
 * long as promised, and unchanged bytes are not copied again. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/priv.h"
#include "kernels/dev.h"
#include "tests/test.h"

#define PROMISED ((size_t)8 << 20) /* of later uploads that leave a copy as it is */

struct stage {
    struct mem mem;
    struct dev *d;
};

static int open_stage(struct stage *s)
{
    struct err e;
    memset(s, 0, sizeof *s);
    if (dev_open(&s->d, "cuda", 1, &s->mem, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    return s->d != NULL;
}

static void close_stage(struct stage *s)
{
    struct err e;
    CHECK_INT(dev_check(s->d, &e), 0);
    dev_close(s->d);
    CHECK_INT(s->mem.total_now, 0);
}

static int holds(struct stage *s, const void *there, const void *host, size_t bytes)
{
    char *back = malloc(bytes + 1);
    dev_read(s->d, back, there, bytes);
    int same = !memcmp(back, host, bytes);
    free(back);
    return same;
}

TEST(the_same_bytes_are_copied_once)
{
    struct stage s;
    char list[1000] = "pages", other[1000] = "other pages";
    if (!open_stage(&s))
        return;
    const void *first = cuda_upload(s.d, list, sizeof list), *second = cuda_upload(s.d, other, sizeof other);
    CHECK(first != second);
    CHECK(cuda_upload(s.d, list, sizeof list) == first);
    CHECK(cuda_upload(s.d, other, sizeof other) == second);
    CHECK(cuda_upload(s.d, list, sizeof list - 1) != first);
    list[999] = 1;
    const void *changed = cuda_upload(s.d, list, sizeof list);
    CHECK(changed != first);
    CHECK(holds(&s, changed, list, sizeof list));
    list[999] = 0;
    CHECK(holds(&s, first, list, sizeof list));
    s.d->queue = DEV_COMM;
    /* that queue does not wait for the other's copy */
    CHECK(cuda_upload(s.d, list, sizeof list) != first);
    s.d->queue = DEV_COMPUTE;
    CHECK(cuda_upload(s.d, first, sizeof list) == first); /* the device's own memory */
    close_stage(&s);
}

/* Lists of many sizes in any order, some of them again and again: each is right, and still is after 8 MiB of
 * others. */
TEST(a_copy_lasts_for_8_mib_of_others)
{
    enum { LISTS = 24, STEPS = 1500 };
    struct stage s;
    char *list[LISTS];
    size_t bytes[LISTS], since[LISTS] = { 0 };
    const void *there[LISTS] = { NULL };
    unsigned seed = 7;
    if (!open_stage(&s))
        return;
    for (int i = 0; i < LISTS; i++) {
        bytes[i] = i % 3 ? (size_t)rand_r(&seed) % 3000 + 1 : (size_t)rand_r(&seed) % (3u << 20) + 1;
        list[i] = malloc(bytes[i]);
        memset(list[i], i + 1, bytes[i]);
    }
    for (int step = 0; step < STEPS; step++) {
        int i = rand_r(&seed) % LISTS;
        /* often the same as before */
        list[i][(size_t)rand_r(&seed) % bytes[i]] ^= (char)(step % 4 == 0);
        there[i] = NULL;
        const void *p = cuda_upload(s.d, list[i], bytes[i]);
        for (int j = 0; j < LISTS; j++)
            since[j] += (bytes[i] + 255) / 256 * 256;
        there[i] = p;
        since[i] = 0;
        for (int j = step % 8; j < LISTS; j += 8)
            if (there[j] && since[j] <= PROMISED && !holds(&s, there[j], list[j], bytes[j]))
                test_fail(__FILE__, __LINE__, "step %d: list %d of %zu bytes is not there after %zu more",
                          step, j, bytes[j], since[j]);
        CHECK(holds(&s, p, list[i], bytes[i]));
    }
    for (int i = 0; i < LISTS; i++)
        free(list[i]);
    close_stage(&s);
}

TEST(what_was_written_over_is_copied_again)
{
    struct stage s;
    char list[300] = "leaves";
    if (!open_stage(&s))
        return;
    char *large = calloc(1, PROMISED);
    for (int i = 0; i < 12; i++) {
        for (int j = 0; j < i; j++)
            CHECK(cuda_upload(s.d, large, PROMISED - 300 * 256) != NULL);
        CHECK(holds(&s, cuda_upload(s.d, list, sizeof list), list, sizeof list));
    }
    free(large);
    close_stage(&s);
}

TEST(what_did_not_arrive_is_copied_again)
{
    struct stage s;
    struct err e;
    char list[300] = "leaves";
    if (!open_stage(&s))
        return;
    char *large = calloc(1, PROMISED + 1);
    CHECK(!cuda_upload(s.d, large, PROMISED + 1));
    cuda_upload(s.d, list, sizeof list); /* the device does nothing until it is asked */
    CHECK_INT(dev_check(s.d, &e), -ERR_DEVICE);
    CHECK(strstr(e.text, "more than 8 MiB"));
    CHECK(holds(&s, cuda_upload(s.d, list, sizeof list), list, sizeof list));
    free(large);
    close_stage(&s);
}
