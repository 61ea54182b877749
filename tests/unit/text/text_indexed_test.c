/* text_indexed_test.c - Megatron's .bin and .idx: what is written comes back; every cut and every wrong
 * number of the index is refused. */
#include "tests/test.h"

#include <unistd.h>
#include "text/indexed.h"

static struct err e;

static const char *at_tmp(const char *name)
{
    static char path[4][512];
    static int k;
    char *p = path[k = (k + 1) % 4];
    snprintf(p, sizeof *path, "%s/%s", test_tmp_dir(), name);
    return p;
}

static void put(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(at_tmp(name), "wb");
    CHECK(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
}

/* An index of 4 sequences of 2, 0, 3 and 1 ids in documents of 2 and 2 sequences. */
struct index {
    unsigned char b[256];
    size_t n;
};

static void add(struct index *x, const void *p, size_t n)
{
    memcpy(x->b + x->n, p, n);
    x->n += n;
}

static struct index index_of(unsigned char type, int width)
{
    static const int32_t length[4] = { 2, 0, 3, 1 };
    static const int64_t one = 1, four = 4, three = 3, document[3] = { 0, 2, 4 };
    struct index x = { .n = 0 };
    int64_t first = 0;
    add(&x, "MMIDIDX\0", 9);
    add(&x, &one, 8);
    add(&x, &type, 1);
    add(&x, &four, 8);
    add(&x, &three, 8);
    add(&x, length, sizeof length);
    for (int i = 0; i < 4; i++) {
        add(&x, &first, 8);
        first += length[i] * width;
    }
    add(&x, document, sizeof document);
    return x;
}

static int open_pair(const struct index *x, size_t bytes, struct indexed *pair)
{
    static const char zeros[64];
    put("p.idx", x->b, x->n);
    put("p.bin", zeros, bytes);
    *pair = (struct indexed){ 0 };
    e = (struct err){ 0 };
    return indexed_open(pair, at_tmp("p.bin"), &e);
}

TEST(ids_of_every_width_and_documents_come_back)
{
    static const struct {
        unsigned char type;
        int width;
    } kinds[] = { { 1, 1 }, { 8, 2 }, { 3, 2 }, { 4, 4 }, { 5, 8 } };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct index x = index_of(kinds[i].type, kinds[i].width);
        struct indexed pair;
        CHECK_INT(open_pair(&x, (size_t)(6 * kinds[i].width), &pair), 0);
        CHECK_INT(pair.width, kinds[i].width);
        CHECK_INT(pair.n, 6);
        CHECK_INT(pair.n_ends, 2);
        CHECK(pair.n_ends == 2 && pair.end[0] == 2 && pair.end[1] == 6);
        indexed_close(&pair);
    }
}

TEST(a_pair_is_known_by_any_of_its_names)
{
    struct index x = index_of(4, 4);
    struct indexed pair;
    CHECK_INT(open_pair(&x, 24, &pair), 0);
    indexed_close(&pair);
    CHECK(indexed_is(at_tmp("p")) && indexed_is(at_tmp("p.bin")) && indexed_is(at_tmp("p.idx")));
    CHECK(!indexed_is(at_tmp("q")));
    unlink(at_tmp("p.idx"));
    CHECK(!indexed_is(at_tmp("p.bin")));
}

TEST(every_cut_and_every_wrong_number_is_refused)
{
    struct index good = index_of(4, 4), x;
    struct indexed pair;
    for (size_t n = 0; n < good.n; n++) {
        x = good;
        x.n = n;
        CHECK_INT(open_pair(&x, 24, &pair), -ERR_FORMAT);
        indexed_close(&pair);
    }

    static const struct {
        size_t at;
        unsigned char to;
        const char *text;
    } wrong[] = {
        { 0, 'X', "are not those of an index" },
        { 9, 2, "only version 1" },
        { 17, 6, "no whole number" },
        { 17, 99, "no whole number" },
        { 25, 0x7f, "is it cut off" },
        { 33, 0x7f, "is it cut off" },
        { 34, 3, "sequence 1 does not begin" },
        { 37, 0x80, "sequence 0 does not begin" },
        { 50, 1, "sequence 0 does not begin" },
        { 90, 9, "begins at no sequence" },
        { 46, 2, "p.bin has 24 bytes, the index says 28" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        x = good;
        x.b[wrong[i].at] = wrong[i].to;
        CHECK_INT(open_pair(&x, 24, &pair), -ERR_FORMAT);
        CHECK_HAS(e.text, wrong[i].text);
        CHECK_HAS(e.text, "p.idx: ");
        indexed_close(&pair);
    }
    CHECK_INT(open_pair(&good, 20, &pair), -ERR_FORMAT);
    indexed_close(&pair);
}
