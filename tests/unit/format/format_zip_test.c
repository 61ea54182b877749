/* format_zip_test.c - zip files as torch.save writes them: what is found in them, and that every false offset
 * and size is refused. */
#include <unistd.h>
#include "base/io.h"
#include "format/torch/zip.h"
#include "format/torch/crc32.h"
#include "tests/test.h"

struct bytes {
    char data[8192];
    size_t n;
};
static void put(struct bytes *b, const void *p, size_t n)
{
    memcpy(b->data + b->n, p, n);
    b->n += n;
}
static void put_n(struct bytes *b, uint64_t v, int bytes) /* little-endian; zeros behind 8 bytes */
{
    for (int i = 0; i < bytes; i++)
        b->data[b->n++] = i < 8 ? (char)(v >> 8 * i) : 0;
}

/* size, crc, offset: as the directory has them */
struct entry {
    const char *name, *data;
    size_t n;
    uint32_t crc;
    uint64_t size, offset;
    int method, flags;
};

static void put_entry(struct bytes *b, struct entry *x)
{
    x->offset += b->n;
    put_n(b, 0x04034b50, 4);
    put_n(b, 0, 2);
    put_n(b, (unsigned)x->flags, 2);
    put_n(b, (unsigned)x->method, 2);
    put_n(b, 0, 16);
    put_n(b, strlen(x->name), 2);
    put_n(b, 0, 2);
    put(b, x->name, strlen(x->name));
    put(b, x->data, x->n);
}

static void put_central(struct bytes *b, const struct entry *x)
{
    put_n(b, 0x02014b50, 4);
    put_n(b, 0, 4);
    put_n(b, (unsigned)x->flags, 2);
    put_n(b, (unsigned)x->method, 2);
    put_n(b, 0, 4);
    put_n(b, x->crc, 4);
    put_n(b, x->size, 4);
    put_n(b, x->size, 4);
    put_n(b, strlen(x->name), 2);
    put_n(b, 0, 12);
    put_n(b, x->offset, 4);
    put(b, x->name, strlen(x->name));
}

/* A zip of n entries, with or without the 64-bit end record that torch always writes. */
static void make(struct bytes *b, struct entry *x, int n, int wide)
{
    size_t dir, end;
    for (int i = 0; i < n; i++)
        put_entry(b, &x[i]);
    dir = b->n;
    for (int i = 0; i < n; i++)
        put_central(b, &x[i]);
    end = b->n;
    if (wide) {
        put_n(b, 0x06064b50, 4);
        put_n(b, 44, 8);
        put_n(b, 0, 12);
        put_n(b, (unsigned)n, 8);
        put_n(b, (unsigned)n, 8);
        put_n(b, end - dir, 8);
        put_n(b, dir, 8);
        put_n(b, 0x07064b50, 4);
        put_n(b, 0, 4);
        put_n(b, end, 8);
        put_n(b, 1, 4);
    }
    put_n(b, 0x06054b50, 4);
    put_n(b, 0, 4);
    put_n(b, (unsigned)n, 2);
    put_n(b, (unsigned)n, 2);
    put_n(b, end - dir, 4);
    put_n(b, dir, 4);
    put_n(b, 0, 2);
}

static struct entry entry(const char *name, const char *data)
{
    return (struct entry){ .name = name,
                           .data = data,
                           .n = strlen(data),
                           .crc = fmt_crc32(0, data, strlen(data)),
                           .size = strlen(data) };
}

/* A checkpoint without tensors around one file, so that its bytes can be read. */
static struct ckpt *around(const struct bytes *b, size_t before)
{
    struct ckpt *c = calloc(1, sizeof *c);
    struct err e = { 0 };
    static int number;
    char name[32], *path, *all = calloc(1, b->n + before + 1);
    snprintf(name, sizeof name, "zip-%d", number++);
    pthread_mutex_init(&c->lock, NULL);
    c->path = strdup(test_tmp_dir());
    c->dir = strdup(test_tmp_dir());
    memcpy(all + before, b->data, b->n);
    path = io_join(c->dir, name);
    CHECK(io_write_file(path, all, b->n + before, &e) >= 0);
    CHECK(fmt_add_file(c, name, (int64_t)(b->n + before), &e) != NULL);
    free(path);
    free(all);
    return c;
}

static int opens(const struct bytes *b, struct err *e)
{
    struct ckpt *c = around(b, 0);
    struct zip z;
    memset(e, 0, sizeof *e);
    int rc = zip_open(&z, c, 0, 0, (int64_t)b->n, e);
    for (int i = 0; i < z.n && rc >= 0; i++) {
        void *data = NULL;
        rc = zip_load(&z, &z.entry[i], 1 << 20, &data, e);
        free(data);
    }
    zip_close(&z);
    ckpt_close(c);
    return rc;
}

TEST(crc32_has_the_published_values)
{
    char long_text[1000];
    uint32_t c = 0;
    CHECK_INT(fmt_crc32(0, "", 0), 0);
    CHECK_INT(fmt_crc32(0, "123456789", 9), 0xcbf43926u);
    CHECK_INT(fmt_crc32(0, "The quick brown fox jumps over the lazy dog", 43), 0x414fa339u);
    for (int i = 0; i < 1000; i++)
        long_text[i] = (char)(i * 7 + i / 13);
    for (int i = 0; i < 1000; i += 37) /* in steps, from odd places: as at once */
        c = fmt_crc32(c, long_text + i, (size_t)(1000 - i < 37 ? 1000 - i : 37));
    CHECK_INT(c, fmt_crc32(0, long_text, 1000));
    for (int n = 0; n < 200; n++) { /* bit by bit */
        uint32_t want = ~0u;
        for (int i = 0; i < n; i++)
            for (int k = 0; k < 8; k++)
                want = want >> 1 ^
                       (((want ^ (uint32_t)((unsigned char)long_text[i] >> k)) & 1) ? 0xedb88320u : 0);
        CHECK_INT(fmt_crc32(0, long_text, (size_t)n), (uint32_t)~want);
    }
}

TEST(every_way_to_a_crc32_is_the_same)
{
    static char data[4096 + 64];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 2654435761u >> 13);
    for (int way = 1; way < fmt_crc32_ways(); way++)
        for (size_t n = 0; n < 1200;
             /* all lengths to four of the widest folds, from every alignment in turn, going on from a sum */
             n++) {
            uint32_t begin = n % 3 ? (uint32_t)n * 0x9e3779b9u : 0;
            CHECK_INT(fmt_crc32_by(way, begin, data + n * 7 % 64, n),
                      fmt_crc32_by(0, begin, data + n * 7 % 64, n));
        }
    for (int way = 1; way < fmt_crc32_ways(); way++)
        for (size_t cut = 0; cut <= 4096; cut += 61)
            CHECK_INT(fmt_crc32_by(way, fmt_crc32_by(way, 0, data, cut), data + cut, 4096 - cut),
                      fmt_crc32_by(0, 0, data, 4096));
}

TEST(crc32_of_parts_in_any_order_is_that_of_the_whole)
{
    static char data[5000];
    uint32_t parts = 0;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * i >> 3);
    for (int i = 0; i < 50; i++) { /* 100 bytes each, the 17th next */
        int at = i * 17 % 50;
        parts ^= fmt_crc32_part(data + 100 * at, 100, (int64_t)sizeof data - 100 * (at + 1));
    }
    CHECK_INT(fmt_crc32_whole(parts, sizeof data), fmt_crc32(0, data, sizeof data));
    CHECK_INT(fmt_crc32_moved(fmt_crc32_part(data, 7, 0), 11), fmt_crc32_part(data, 7, 11));
    CHECK_INT(fmt_crc32_whole(0, 0), 0);
    /* another byte there */
    parts ^= fmt_crc32_part(data, 1, 4999) ^ fmt_crc32_part(data + 40, 1, 4999);
    CHECK(fmt_crc32_whole(parts, sizeof data) != fmt_crc32(0, data, sizeof data));
}

TEST(entries_are_found_wherever_the_zip_lies)
{
    struct entry x[3] = { entry("archive/data.pkl", "abc"), entry("archive/data/0", "0123456789"),
                          entry("archive/version", "3\n") };
    struct bytes b = { .n = 0 };
    struct err e = { 0 };
    make(&b, x, 3, 1);
    for (size_t before = 0; before < 5000; before += 1577) {
        struct ckpt *c = around(&b, before);
        struct zip z;
        void *data = NULL;
        CHECK(zip_open(&z, c, 0, (int64_t)before, (int64_t)b.n, &e) >= 0);
        CHECK_INT(z.n, 3);
        struct zip_entry *f = zip_find(&z, "data/0", 6);
        CHECK(f != NULL && zip_find(&z, "data/1", 6) == NULL);
        CHECK(f && zip_load(&z, f, 100, &data, &e) >= 0);
        CHECK_SAME(data, "0123456789", 10);
        CHECK_INT(f->data, (int64_t)(before + x[1].offset + 30 + strlen(x[1].name)));
        free(data);
        CHECK(zip_load(&z, f, 9, &data, &e) < 0);
        zip_close(&z);
        ckpt_close(c);
    }
}

TEST(without_the_64_bit_end_record_too)
{
    struct entry x[1] = { entry("a/data.pkl", "abc") };
    struct bytes b = { .n = 0 };
    struct err e;
    make(&b, x, 1, 0);
    CHECK(opens(&b, &e) >= 0);
}

static void refused(struct entry *x, int n, const char *says)
{
    struct bytes b = { .n = 0 };
    struct err e;
    make(&b, x, n, 1);
    if (opens(&b, &e) >= 0)
        test_fail(__FILE__, __LINE__, "was read, not refused with \"%s\"", says);
    else
        CHECK_HAS(e.text, says);
}

TEST(every_lie_of_the_directory_is_refused)
{
    struct entry x[2];
#define FRESH x[0] = entry("a/data.pkl", "abcdefgh"), x[1] = entry("a/data/0", "01234567")
    FRESH;
    x[1].crc ^= 1;
    refused(x, 2, "CRC-32");
    FRESH;
    x[1].method = 8;
    refused(x, 2, "compressed (method 8)");
    FRESH;
    x[1].flags = 1;
    refused(x, 2, "encrypted");
    FRESH;
    x[1].size = 1u << 30;
    refused(x, 2, "is the file whole");
    FRESH;
    x[1].size = 0xffffffffu;
    refused(x, 2, "64-bit");
    FRESH;
    x[1].offset = (uint64_t)-40;
    refused(x, 2, "overlap");
    FRESH;
    x[0].size = 20;
    refused(x, 2, "overlap");
    FRESH;
    x[1].name = "b/data.pkl";
    refused(x, 2, "twice");
    FRESH;
    x[1].offset = 0xf0000000u;
    refused(x, 2, "is the file whole");
}

/* False bytes in a good zip: `at` counts from the end, below 0 from the start. */
TEST(every_lie_of_the_end_records_and_local_headers_is_refused)
{
    static const struct {
        int wide, at;
        uint64_t v;
        int bytes;
        const char *says;
    } lies[] = {
        { 0, 14, 0x00030003, 4, "passes its end" }, { 0, 14, 0x00010001, 4, "more in its directory" },
        { 0, 6, 0x7fffffff, 4, "passes its end" },  { 0, 10, 0x7fffffff, 4, "passes its end" },
        { 0, 18, 1, 2, "several volumes" },         { 1, 34, 1 << 30, 8, "outside of it" },
        { 1, 34, 0, 8, "no 64-bit end record" },    { 1, 66, 7, 8, "do not agree" },
        { 1, 50, 1ull << 62, 8, "do not agree" },   { 0, -30, 'b', 1, NULL },
        { 0, -32, 'X', 1, "is named otherwise" },   { 0, -8, 8, 2, "does not begin where" },
        { 0, -6, 1, 2, "does not begin where" },    { 0, -26, 99, 2, "does not begin where" },
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct entry x[2] = { entry("a/data.pkl", "abcdefgh"), entry("a/data/0", "01234567") };
        struct bytes b = { .n = 0 }, at;
        struct err e;
        make(&b, x, 2, lies[i].wide);
        at.n = lies[i].at > 0 ? b.n - (size_t)lies[i].at : (size_t)-lies[i].at;
        memcpy(at.data, b.data, sizeof b.data);
        put_n(&at, lies[i].v, lies[i].bytes);
        memcpy(b.data, at.data, sizeof b.data);
        int rc = opens(&b, &e);
        if (!lies[i].says) /* the folder in front of a name does not matter */
            CHECK(rc >= 0);
        else if (rc >= 0)
            test_fail(__FILE__, __LINE__, "case %zu was read, not refused with \"%s\"", i, lies[i].says);
        else
            CHECK_HAS(e.text, lies[i].says);
    }
}

TEST(bytes_before_the_start_are_refused)
{
    struct entry x[1] = { entry("a/data.pkl", "abc") };
    struct bytes b = { .n = 0 }, moved = { .n = 0 };
    struct err e;
    make(&b, x, 1, 1);
    put(&moved, "junk", 4);
    put(&moved, b.data, b.n);
    CHECK(opens(&moved, &e) < 0);
    CHECK_HAS(e.text, "is the file whole");
}

TEST(every_cut_and_every_changed_byte_is_seen_or_harmless)
{
    struct entry x[2] = { entry("a/data.pkl", "abcdefgh"), entry("a/data/0", "01234567") };
    struct bytes b = { .n = 0 };
    struct err e;
    make(&b, x, 2, 1);
    CHECK(opens(&b, &e) >= 0);
    for (size_t n = 0; n < b.n; n++) {
        struct bytes cut = b;
        cut.n = n;
        CHECK(opens(&cut, &e) < 0);
    }
    for (size_t i = 0; i < b.n; i++) {
        struct bytes changed = b;
        changed.data[i] ^= 0x55;
        /* times and versions do not matter; it must end, without a bad read */
        opens(&changed, &e);
    }
    for (size_t i = x[1].offset + 30 + 8; i < x[1].offset + 30 + 16; i++) {
        struct bytes changed = b;
        changed.data[i] ^= 1;
        CHECK(opens(&changed, &e) < 0);
        CHECK_HAS(e.text, "CRC-32");
    }
}

TEST(bytes_behind_the_end_are_refused)
{
    struct entry x[1] = { entry("a/data.pkl", "abc") };
    struct bytes b = { .n = 0 };
    struct err e;
    make(&b, x, 1, 1);
    put(&b, "garbage", 7);
    CHECK(opens(&b, &e) < 0);
    CHECK_HAS(e.text, "does not end with an end record");
}
