/* stored_dtype_test.c - stored dtypes: names, bits and values, and that a tensor of every dtype is written,
 * read by box, cut over ranks, joined, digested and compressed. */
#include <math.h>
#include "format/hf_write.h"
#include "tests/test.h"
#include "tests/unit/format/format_make.h"

#define ROWS 6
#define COLUMNS 8
#define COUNT (ROWS * COLUMNS)

static const struct {
    const char *name;
    int bits;
} published[] = {
    { "BOOL", 8 },        { "F4", 4 },      { "F6_E2M3", 6 }, { "F6_E3M2", 6 }, { "U8", 8 },
    { "I8", 8 },          { "F8_E5M2", 8 }, { "F8_E4M3", 8 }, { "F8_E8M0", 8 }, { "F8_E4M3FNUZ", 8 },
    { "F8_E5M2FNUZ", 8 }, { "I16", 16 },    { "U16", 16 },    { "F16", 16 },    { "BF16", 16 },
    { "I32", 32 },        { "U32", 32 },    { "F32", 32 },    { "I64", 64 },    { "U64", 64 },
    { "F64", 64 },        { "C64", 64 },
};

TEST(every_dtype_of_safetensors_is_known_with_its_bits)
{
    CHECK_INT(sizeof published / sizeof *published, STORED_DTYPES);
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        int t = stored_dtype_find(published[i].name);
        CHECK(t >= 0);
        CHECK_STR(stored_dtype_name((enum stored_dtype)t), published[i].name);
        CHECK_INT(stored_dtype_bits((enum stored_dtype)t), published[i].bits);
    }
    CHECK_INT(stored_dtype_find("f32"), -1);
    CHECK_INT(stored_dtype_find("F8"), -1);
}

TEST(patterns_have_the_values_of_their_dtype)
{
    static const struct {
        enum stored_dtype t;
        uint64_t x;
        double want;
    } cases[] = {
        { STORED_F32, 0x3fc00000, 1.5 },
        { STORED_BF16, 0xc000, -2 },
        { STORED_F16, 1, 0x1p-24 },
        { STORED_F16, 0x7c00, INFINITY },
        { STORED_F64, 0x3ff8000000000000, 1.5 },
        { STORED_I64, UINT64_MAX, -1 },
        { STORED_I8, 0x80, -128 },
        { STORED_U8, 0x80, 128 },
        { STORED_U16, 0xffff, 65535 },
        { STORED_U32, 0xffffffff, 4294967295.0 },
        { STORED_C64, 0x4080000040400000, 5 }, /* 3 + 4i */
        { STORED_F8_E4M3, 0x7e, 448 },
        { STORED_F8_E4M3, 0x01, 0x1p-9 },
        { STORED_F8_E4M3, 0x7f, NAN },
        { STORED_F8_E5M2, 0x7b, 57344 },
        { STORED_F8_E5M2, 0xfc, -INFINITY },
        { STORED_F8_E8M0, 127, 1 },
        { STORED_F8_E8M0, 0, 0x1p-127 },
        { STORED_F8_E8M0, 255, NAN },
        { STORED_F8_E4M3FNUZ, 0x7f, 240 },
        { STORED_F8_E4M3FNUZ, 0x80, NAN },
        { STORED_F8_E5M2FNUZ, 0x7f, 57344 },
        { STORED_F6_E2M3, 0x1f, 7.5 },
        { STORED_F6_E3M2, 0x1f, 28 },
        { STORED_F6_E3M2, 0x3f, -28 },
        { STORED_F4, 1, 0.5 },
        { STORED_F4, 7, 6 },
        { STORED_F4, 0xf, -6 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double got = stored_value(cases[i].t, &cases[i].x, 0);
        if (isnan(cases[i].want) ? !isnan(got) : got != cases[i].want)
            test_fail(__FILE__, __LINE__, "%s %llx is %g, not %g", stored_dtype_name(cases[i].t),
                      (unsigned long long)cases[i].x, got, cases[i].want);
    }
}

/* ---- a tensor of every dtype ---- */

/* Element i of the tensor is pattern[i], cut to the bits of the dtype; data: the elements, packed. */
static void make_data(enum stored_dtype t, uint64_t *pattern, unsigned char *data)
{
    int bits = stored_dtype_bits(t);
    memset(data, 0, COUNT * 8);
    for (int i = 0; i < COUNT; i++) {
        pattern[i] = ((uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)t) >> (64 - bits);
        for (int b = 0; b < bits; b++)
            if (pattern[i] >> b & 1)
                data[(i * bits + b) / 8] |= (unsigned char)(1 << (i * bits + b) % 8);
    }
}

/* The elements of box b, packed. */
static void take_box(enum stored_dtype t, const uint64_t *pattern, const struct box *b, unsigned char *out)
{
    int bits = stored_dtype_bits(t), n = 0;
    memset(out, 0, COUNT * 8);
    for (int64_t r = b->start[0]; r < b->start[0] + b->extent[0]; r++)
        for (int64_t c = b->start[1]; c < b->start[1] + b->extent[1]; c++, n++)
            for (int k = 0; k < bits; k++)
                if (pattern[r * COLUMNS + c] >> k & 1)
                    out[(n * bits + k) / 8] |= (unsigned char)(1 << (n * bits + k) % 8);
}

static struct ckpt_tensor tensor_of(enum stored_dtype t)
{
    return (struct ckpt_tensor){
        .name = "w", .role = ROLE_WEIGHT, .dtype = t, .n_dims = 2, .shape = { ROWS, COLUMNS }
    };
}

/* Writes it natively, cut over n ranks in dim `dim`. */
static void write_cut(const char *dst, enum stored_dtype t, int dim, int n, enum ckpt_codec codec,
                      const uint64_t *pattern)
{
    unsigned char data[COUNT * 8];
    char tmp[4096];
    void *table[2];
    size_t bytes[2];
    struct ckpt_meta meta = { .layout = { 1, 1, 1, 1, 1, 0 } };
    struct err e;
    CHECK_INT(ckpt_begin(dst, tmp, NULL, NULL, &e), 0);
    for (int r = 0; r < n; r++) {
        struct ckpt_tensor whole = tensor_of(t);
        struct ckpt_piece p = { .t = whole, .box = box_whole(2, whole.shape) };
        struct ckpt_shard *s;
        p.box.extent[dim] /= n;
        p.box.start[dim] = r * p.box.extent[dim];
        p.hi = box_count(&p.box);
        take_box(t, pattern, &p.box, data);
        CHECK_INT(ckpt_shard_open(&s, tmp, r, 1, &p, &e), 0);
        ckpt_shard_compress(s, codec, 1);
        /* in two parts, the first of eight elements */
        CHECK_INT(ckpt_shard_put(s, 0, data, 8, &e), 0);
        CHECK_INT(ckpt_shard_put(s, 0, data + stored_bytes(t, 8), p.hi - 8, &e), 0);
        CHECK_INT(ckpt_shard_close(s, &table[r], &bytes[r], &e), 0);
    }
    CHECK_INT(ckpt_publish(tmp, dst, n, table, bytes, &meta, NULL, &e), 0);
    for (int r = 0; r < n; r++)
        free(table[r]);
}

static void write_hf(const char *dst, enum stored_dtype t, const unsigned char *data)
{
    char tmp[4096];
    struct ckpt_tensor w = tensor_of(t);
    struct ckpt_meta meta = { .n_extra = 0 };
    struct hf_write *out;
    struct err e;
    CHECK_INT(ckpt_begin(dst, tmp, NULL, NULL, &e), 0);
    CHECK_INT(hf_write_open(&out, tmp, 1, &w, &(struct hf_write_opts){ .shard_bytes = 1 << 20 }, &e), 0);
    CHECK_INT(hf_write_put(out, 0, data, COUNT, &e), 0);
    CHECK_INT(hf_write_seal(out, &meta, &e), 0);
    CHECK_INT(ckpt_reveal(tmp, dst, &e), 0);
}

/* Opens, verifies, reads it by boxes; returns its digest. */
static struct ckpt_digest check_whole(const char *path, enum stored_dtype t, const uint64_t *pattern)
{
    static const struct box boxes[] = { { 2, { 0, 0 }, { ROWS, COLUMNS } },
                                        { 2, { 1, 0 }, { 3, COLUMNS } },
                                        { 2, { 0, 4 }, { ROWS, 4 } },
                                        { 2, { 2, 4 }, { 3, 4 } } };
    unsigned char got[COUNT * 8], want[COUNT * 8];
    struct ckpt_digest d = { 0, 0 };
    struct ckpt *c = NULL;
    struct err e;
    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
    if (!c)
        return d;
    CHECK_INT(ckpt_tensor(c, 0)->dtype, t);
    CHECK_INT(ckpt_verify(c, 0, &e), 0);
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        take_box(t, pattern, &boxes[i], want);
        CHECK_INT(ckpt_read(c, 0, &boxes[i], got, &e), 0);
        CHECK_SAME(got, want, (size_t)stored_bytes(t, box_count(&boxes[i])));
    }
    CHECK_INT(ckpt_read(c, 0, &boxes[0], got, &e), 0);
    ckpt_digest_add(&d, t, 2, ckpt_tensor(c, 0)->shape, &boxes[0], 0, COUNT, got);
    ckpt_close(c);
    return d;
}

TEST(a_tensor_of_every_dtype_is_written_cut_joined_and_digested)
{
    static char dst[4096];
    for (int k = 0; k < STORED_DTYPES; k++) {
        enum stored_dtype t = (enum stored_dtype)k;
        uint64_t pattern[COUNT], wide[COUNT];
        unsigned char data[COUNT * 8];
        struct err e;
        make_data(t, pattern, data);
        for (int how = 0; how < 5; how++) {
            snprintf(dst, sizeof dst, "%s/%s-%d", test_tmp_dir(), stored_dtype_name(t), how);
            if (how < 4)
                write_cut(dst, t, how == 2, how ? 2 : 1, how == 3 ? CODEC_PLANES : CODEC_PLAIN, pattern);
            else
                write_hf(dst, t, data);
            struct ckpt_digest d = check_whole(dst, t, pattern), want = { 0, 0 };

            /* A digest is one of bit patterns: that of the same patterns in wider elements. */
            struct box whole = { 2, { 0, 0 }, { ROWS, COLUMNS } };
            memcpy(wide, pattern, sizeof wide);
            ckpt_digest_add(&want, STORED_U64, 2, (int64_t[]){ ROWS, COLUMNS }, &whole, 0, COUNT, wide);
            CHECK_SAME(&d, &want, sizeof d);
            CHECK_INT(io_remove_tree(dst, &e), 0);
        }
    }
}

/* ---- what is refused ---- */

static void open_header(const char *header, int64_t n_data, const char *says)
{
    char path[512], data[64] = { 0 };
    unsigned char file[512];
    uint64_t n = strlen(header);
    struct ckpt *c;
    struct err e = { 0 };
    memcpy(file, &n, 8);
    memcpy(file + 8, header, n);
    memcpy(file + 8 + n, data, (size_t)n_data);
    in_tmp(test_tmp_dir(), "one.safetensors", path);
    CHECK_INT(io_unlink(path, &e), 0);
    CHECK_INT(io_write_file(path, file, 8 + n + (size_t)n_data, &e), 0);
    int rc = ckpt_open(&c, path, NULL, &e);
    CHECK_INT(rc, says ? -ERR_FORMAT : 0);
    if (says)
        CHECK_HAS(e.text, says);
    if (rc >= 0)
        ckpt_close(c);
}

#define HEADER(dtype, shape, end) \
    "{\"w\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[0," end "]}}"

TEST(sizes_that_do_not_fit_the_dtype_are_refused)
{
    open_header(HEADER("F4", "[3,2]", "3"), 3, NULL);
    open_header(HEADER("F4", "[3]", "2"), 2, "no whole number of bytes");
    open_header(HEADER("F4", "[4]", "4"), 4, "needs 2 bytes by its shape");
    open_header(HEADER("F6_E2M3", "[4]", "3"), 3, NULL);
    open_header(HEADER("F6_E3M2", "[2]", "2"), 2, "no whole number of bytes");
    open_header(HEADER("F8_E8M0", "[4]", "4"), 4, NULL);
    open_header(HEADER("C64", "[2]", "8"), 8, "needs 16 bytes by its shape");
    open_header(HEADER("U16", "[2]", "2"), 2, "needs 4 bytes by its shape");
}

TEST(parts_that_do_not_fall_on_bytes_are_refused)
{
    static const struct box odd[] = { { 2, { 0, 1 }, { ROWS, 2 } }, { 2, { 0, 0 }, { 1, 3 } } };
    enum stored_dtype t = STORED_F4;
    uint64_t pattern[COUNT];
    unsigned char data[COUNT * 8];
    char dst[4096];
    struct ckpt_tensor w = tensor_of(t);
    struct ckpt *c;
    struct err e;
    make_data(t, pattern, data);
    snprintf(dst, sizeof dst, "%s/odd", test_tmp_dir());
    write_cut(dst, t, 0, 1, CODEC_PLAIN, pattern);
    CHECK_INT(ckpt_open(&c, dst, NULL, &e), 0);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        struct ckpt_piece p = { .t = w, .box = odd[i], .hi = box_count(&odd[i]) };
        struct ckpt_shard *s;
        CHECK_INT(ckpt_read(c, 0, &odd[i], data, &e), -ERR_USAGE);
        CHECK_HAS(e.text, "w is F4 (4 bits an element)");
        CHECK_HAS(e.text, "multiple of 2 elements");
        CHECK_INT(ckpt_shard_open(&s, dst, 1, 1, &p, &e), -ERR_USAGE);
        CHECK_HAS(e.text, "multiple of 2 elements");
    }
    struct box whole = box_whole(2, w.shape);
    CHECK_INT(ckpt_read_range(c, 0, &whole, 1, 4, data, &e), -ERR_USAGE);
    CHECK_INT(ckpt_read_range(c, 0, &whole, 2, 4, data, &e), 0);
    ckpt_close(c);
}
