/* quant_view_test.c - dequantised and requantised views of every form, against values read bit by bit from
 * the bytes that were written: whole, by boxes and ranges, from several threads. */
#include "tests/test.h"

#include <math.h>
#include <pthread.h>
#include "base/rnd.h"
#include "format/ckpt_proof.h"
#include "format/ckpt_view.h"
#include "format/hf_write.h"
#include "format/quant/codec.h"
#include "format/quant_view.h"
#include "tests/unit/format/format_make.h"

#define X "model.layers.0.mlp.up_proj"
enum { MOST_PARTS = 5 };

/* A stored tensor: random bytes, or scales of a size that leaves codes apart. */
struct part {
    const char *suffix;
    enum stored_dtype dtype;
    int n_dims;
    int64_t shape[4];
    enum { RANDOM, SCALE, RAMP, SHAPE } fill;
};
struct form {
    const char *title, *config; /* of quantization_config */
    int64_t n, k;
    int bits;
    struct part part[MOST_PARTS];
    double (*value)(const struct form *f, int64_t n, int64_t k);
    const char *name; /* NULL: X.weight */
    int64_t experts;
    char *data[MOST_PARTS];
};

static int64_t count(const struct part *p)
{
    int64_t n = 1;
    for (int d = 0; d < p->n_dims; d++)
        n *= p->shape[d];
    return n;
}

static float at(const struct form *f, int part, int64_t i)
{
    float x = 0;
    const struct part *p = &f->part[part];
    codec_to_f32(p->dtype, f->data[part] + stored_bytes(p->dtype, i), 1, &x);
    return x;
}

static int bit(const char *data, int64_t i) { return (unsigned char)data[i / 8] >> i % 8 & 1; }

static int bits_at(const char *data, int64_t first, int n)
{
    int v = 0;
    for (int i = 0; i < n; i++)
        v |= bit(data, first + i) << i;
    return v;
}

/* ---- what each form says, as FOREIGN.md has it ---- */

static double fp8(const struct form *f, int64_t n, int64_t k)
{
    return stored_value(STORED_F8_E4M3, f->data[0] + n * f->k + k, 0) *
           (double)at(f, 1, n / 128 * f->part[1].shape[1] + k / 128);
}

static double int8(const struct form *f, int64_t n, int64_t k)
{
    return (double)(signed char)f->data[0][n * f->k + k] * (double)at(f, 1, n);
}

static double packed(const struct form *f, int64_t n, int64_t k)
{
    int64_t row = f->part[0].shape[1] * 32, groups = f->part[1].shape[1];
    int code = bits_at(f->data[0], n * row + k * f->bits, f->bits);
    return (double)(code - (1 << (f->bits - 1))) * (double)at(f, 1, n * groups + k / (f->k / groups));
}

/* Zero points lie along N: code n of column g is bits n * b of the words of that column. */
static double packed_asym(const struct form *f, int64_t n, int64_t k)
{
    int64_t row = f->part[0].shape[1] * 32, groups = f->part[1].shape[1], g = k / (f->k / groups);
    int code = bits_at(f->data[0], n * row + k * 4, 4);
    int zero = bits_at(f->data[2] + 4 * (n / 8 * groups + g), n % 8 * 4, 4);
    return (double)(code - zero) * (double)at(f, 1, n * groups + g);
}

static double e2m1(const char *data, int64_t i)
{
    static const double number[8] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    int code = bits_at(data, i * 4, 4);
    return code & 8 ? -number[code & 7] : number[code];
}

static double nvfp4(const struct form *f, int64_t n, int64_t k)
{
    return e2m1(f->data[0], n * f->k + k) * (double)(at(f, 1, (n * f->k + k) / 16) / at(f, 2, 0));
}

/* Rows are those of all experts, one after another; the view has [E, K, N]. */
static double blocks(const struct form *f, int64_t n, int64_t k)
{
    return e2m1(f->data[0], n * f->k + k) * (double)at(f, 1, (n * f->k + k) / 32);
}

static double gptq(const struct form *f, int64_t n, int64_t k)
{
    int32_t g = (int32_t)(k / (f->k / f->part[1].shape[0]));
    int64_t word = k / 8 * f->n + n, zero_word = g * (f->n / 8) + n / 8;
    if (f->part[3].fill == RANDOM && f->part[3].suffix)
        memcpy(&g, f->data[3] + 4 * k, 4), zero_word = g * (f->n / 8) + n / 8;
    int code = bits_at(f->data[0] + 4 * word, k % 8 * 4, 4);
    uint32_t zeros; /* less one, word by word */
    memcpy(&zeros, f->data[2] + 4 * zero_word, 4);
    int zero = (int)((zeros + 0x11111111u) >> n % 8 * 4 & 15);
    return (double)(code - zero) * (double)at(f, 1, g * f->n + n);
}

static double awq(const struct form *f, int64_t n, int64_t k)
{
    int64_t g = k / (f->k / f->part[1].shape[0]), words = f->n / 8;
    int place = codec_awq_bit(n), code = bits_at(f->data[0] + 4 * (k * words + n / 8), place, 4);
    int zero = bits_at(f->data[2] + 4 * (g * words + n / 8), place, 4);
    return (double)(code - zero) * (double)at(f, 1, g * f->n + n);
}

#define COMPRESSED(format, rest) \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"" format \
    "\",\"config_groups\":{\"group_0\":{\"targets\":" \
    "[\"Linear\"],\"weights\":{" rest "}}}}"
static struct form forms[] = {
    { "FP8 by blocks of 128, short ones at the ends",
      "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}",
      320,
      200,
      8,
      { { ".weight", STORED_F8_E4M3, 2, { 320, 200 }, RANDOM },
        { ".weight_scale_inv", STORED_F32, 2, { 3, 2 }, SCALE } },
      fp8 },
    { "INT8 by rows",
      COMPRESSED("int-quantized", "\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\","
                                  "\"symmetric\":true"),
      40,
      200,
      8,
      { { ".weight", STORED_I8, 2, { 40, 200 }, RANDOM },
        { ".weight_scale", STORED_F32, 2, { 40, 1 }, SCALE } },
      int8 },
    { "packed 4 bits by groups",
      COMPRESSED("pack-quantized", "\"num_bits\":4,\"type\":\"int\",\"strategy\":"
                                   "\"group\",\"group_size\":32,\"symmetric\":true"),
      40,
      192,
      4,
      { { ".weight_packed", STORED_I32, 2, { 40, 24 }, RANDOM },
        { ".weight_scale", STORED_BF16, 2, { 40, 6 }, SCALE },
        { ".weight_shape", STORED_I64, 1, { 2 }, SHAPE } },
      packed },
    { "packed 3 bits, words that end inside of codes",
      COMPRESSED("pack-quantized", "\"num_bits\":3,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":50,"
                                   "\"symmetric\":true"),
      24,
      100,
      3,
      { { ".weight_packed", STORED_I32, 2, { 24, 10 }, RANDOM },
        { ".weight_scale", STORED_F32, 2, { 24, 2 }, SCALE },
        { ".weight_shape", STORED_I64, 1, { 2 }, SHAPE } },
      packed },
    { "packed 4 bits with zero points",
      COMPRESSED("pack-quantized", "\"num_bits\":4,\"type\":\"int\",\"strategy\":"
                                   "\"group\",\"group_size\":64,\"symmetric\":false"),
      40,
      128,
      4,
      { { ".weight_packed", STORED_I32, 2, { 40, 16 }, RANDOM },
        { ".weight_scale", STORED_F32, 2, { 40, 2 }, SCALE },
        { ".weight_zero_point", STORED_I32, 2, { 5, 2 }, RANDOM },
        { ".weight_shape", STORED_I64, 1, { 2 }, SHAPE } },
      packed_asym },
    { "NVFP4",
      COMPRESSED("nvfp4-pack-quantized", "\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor_group\","
                                         "\"group_size\":16,\"symmetric\":true"),
      24,
      160,
      4,
      { { ".weight_packed", STORED_U8, 2, { 24, 80 }, RANDOM },
        { ".weight_scale", STORED_F8_E4M3, 2, { 24, 10 }, SCALE },
        { ".weight_global_scale", STORED_F32, 1, { 1 }, SCALE } },
      nvfp4 },
    { "MXFP4 of gpt-oss",
      "{\"quant_method\":\"mxfp4\"}",
      3 * 72,
      160,
      4,
      { { "_blocks", STORED_U8, 4, { 3, 72, 5, 16 }, RANDOM },
        { "_scales", STORED_U8, 3, { 3, 72, 5 }, SCALE } },
      blocks,
      "model.layers.0.mlp.experts.down_proj",
      3 },
    { "GPTQ",
      "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":64,\"desc_act\":false,\"sym\":false}",
      96,
      256,
      4,
      { { ".qweight", STORED_I32, 2, { 32, 96 }, RANDOM },
        { ".scales", STORED_F16, 2, { 4, 96 }, SCALE },
        { ".qzeros", STORED_I32, 2, { 4, 12 }, RANDOM },
        { ".g_idx", STORED_I32, 1, { 256 }, RAMP } },
      gptq },
    { "GPTQ with an order of columns",
      "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":64,\"desc_act\":true,\"sym\":false}",
      96,
      256,
      4,
      { { ".qweight", STORED_I32, 2, { 32, 96 }, RANDOM },
        { ".scales", STORED_F16, 2, { 4, 96 }, SCALE },
        { ".qzeros", STORED_I32, 2, { 4, 12 }, RANDOM },
        { ".g_idx", STORED_I32, 1, { 256 }, RANDOM } },
      gptq },
    { "AWQ",
      "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"version\":\"gemm\"}",
      96,
      256,
      4,
      { { ".qweight", STORED_I32, 2, { 256, 12 }, RANDOM },
        { ".scales", STORED_F16, 2, { 4, 96 }, SCALE },
        { ".qzeros", STORED_I32, 2, { 4, 12 }, RANDOM } },
      awq },
};
enum { N_FORMS = sizeof forms / sizeof *forms };

/* ---- folders ---- */

/* Scales of the sizes that real files have: no two codes of one scale share a value. */
static void fill_scale(enum stored_dtype t, char *to, uint64_t i)
{
    uint64_t r = rnd_u64(3, 8, i);
    float f = (float)(1 + (double)(r >> 40) * 0x1p-24) * 0x1p-9f;
    uint16_t h = t == STORED_F16 ? (uint16_t)(0x1000 + r % 0x1800) : (uint16_t)(0x3a00 + r % 0x300);
    uint8_t byte = (uint8_t)(t == STORED_U8 ? 100 + r % 40 : 8 + r % 100);
    if (t == STORED_F32)
        memcpy(to, &f, 4);
    else if (t == STORED_U8 || t == STORED_F8_E4M3)
        *to = (char)byte;
    else
        memcpy(to, &h, 2);
}

static void fill(struct form *f, int part)
{
    const struct part *p = &f->part[part];
    int64_t n = count(p), size = stored_bytes(p->dtype, 1);
    char *data = f->data[part] = calloc((size_t)(n * size) + 8, 1);
    for (int64_t i = 0; i < n; i++) {
        uint64_t r = rnd_u64(3, (uint64_t)(part + f->n), (uint64_t)i);
        int32_t g = (int32_t)((p->fill == RAMP ? (uint64_t)i : rnd_permute(3, 9, (uint64_t)i % 256, 256)) /
                              64);
        int64_t shape = i ? f->k : f->n;
        if (p->fill == SCALE)
            fill_scale(p->dtype, data + i * size, (uint64_t)i + (uint64_t)f->k);
        else if (p->fill == SHAPE)
            memcpy(data + 8 * i, &shape, 8);
        else if (!strcmp(p->suffix, ".g_idx"))
            memcpy(data + 4 * i, &g, 4);
        else
            memcpy(data + i * size, &r, (size_t)size);
    }
    /* Bits behind the last code of a row are 0, as writers leave them. */
    for (int64_t row = 0; f->bits == 3 && part == 0 && row < f->n; row++)
        for (int64_t i = f->k * 3; i < p->shape[1] * 32; i++)
            data[row * p->shape[1] * 4 + i / 8] &= (char)~(1 << i % 8);
}

static const char *base_of(const struct form *f) { return f->name ? f->name : X; }

static void write_folder(struct form *f, const char *dir)
{
    struct err e = { 0 };
    struct ckpt_tensor t[MOST_PARTS];
    char names[MOST_PARTS][128], config[1024];
    struct hf_write *w = NULL;
    int n = 0;
    for (; n < MOST_PARTS && f->part[n].suffix; n++) {
        const struct part *p = &f->part[n];
        fill(f, n);
        snprintf(names[n], sizeof names[n], "%s%s", base_of(f), p->suffix);
        t[n] = (struct ckpt_tensor){ .name = names[n], .dtype = p->dtype, .n_dims = p->n_dims };
        memcpy(t[n].shape, p->shape, sizeof p->shape);
    }
    snprintf(config, sizeof config, "{\"model_type\":\"none\",\n \"quantization_config\":%s}", f->config);

    io_make_dirs(dir, &e);
    CHECK_INT(hf_write_open(&w, dir, n, t, &(struct hf_write_opts){ .shard_bytes = 1 << 30 }, &e), 0);
    for (int i = 0; i < n; i++)
        CHECK_INT(hf_write_put(w, i, f->data[i], count(&f->part[i]), &e), 0);
    CHECK_INT(hf_write_seal(w, &(struct ckpt_meta){ .config_json = config }, &e), 0);
}

static struct ckpt *open_form(int i, char dir[512])
{
    char name[32];
    struct err e = { 0 };
    struct ckpt *c = NULL;
    snprintf(name, sizeof name, "form-%d", i);
    in_tmp(test_tmp_dir(), name, dir);
    if (!forms[i].data[0])
        write_folder(&forms[i], dir);
    if (ckpt_open(&c, dir, NULL, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", forms[i].title, e.text);
    return c;
}

/* ---- values ---- */

/* Element i of the view's tensor, in row-major order. */
static double want(const struct form *f, int64_t i)
{
    if (!f->experts)
        return f->value(f, i / f->k, i % f->k);
    int64_t rows = f->n / f->experts, n = i % rows, k = i / rows % f->k, x = i / rows / f->k;
    return f->value(f, x * rows + n, k);
}

static int is_value(double w, const void *data, int64_t i, enum stored_dtype t)
{
    float exact = (float)w, got;
    uint16_t h;
    if (t == STORED_F32) {
        memcpy(&got, (const char *)data + 4 * i, 4);
        return isnan(exact) ? isnan(got) : !memcmp(&got, &exact, 4);
    }
    memcpy(&h, (const char *)data + 2 * i, 2);
    return isnan(exact) ? isnan(codec_of_bf16(h)) : h == codec_bf16(exact);
}

struct reader {
    struct ckpt *c;
    const struct form *f;
    int tensor;
    uint64_t seed;
    int wrong;
};

/* A random box of the tensor and a random range of it. */
static void *read_boxes(void *arg)
{
    struct reader *r = arg;
    const struct ckpt_tensor *t = ckpt_tensor(r->c, r->tensor);
    struct box whole = box_whole(t->n_dims, t->shape), b = whole;
    void *data = malloc((size_t)box_count(&whole) * 4);
    for (int round = 0; round < 12; round++) {
        struct err e = { 0 };
        for (int d = 0; d < t->n_dims && round; d++) {
            b.start[d] = (int64_t)(rnd_u64(r->seed, 1, r->seed + (uint64_t)(round * 8 + d)) %
                                   (uint64_t)t->shape[d]);
            b.extent[d] = 1 + (int64_t)(rnd_u64(r->seed, 2, (uint64_t)(round * 8 + d)) %
                                        (uint64_t)(t->shape[d] - b.start[d]));
        }
        int64_t n = box_count(&b), lo = round ? n / 7 : 0, hi = round ? n - n / 5 : n;
        r->wrong += ckpt_read_range(r->c, r->tensor, &b, lo, hi, data, &e) < 0;
        for (int64_t i = lo; i < hi && !r->wrong; i++) {
            int64_t rest = i, index = 0, idx[4];
            for (int d = t->n_dims - 1; d >= 0; rest /= b.extent[d], d--)
                idx[d] = b.start[d] + rest % b.extent[d];
            for (int d = 0; d < t->n_dims; d++)
                index = index * t->shape[d] + idx[d];
            r->wrong += !is_value(want(r->f, index), data, i - lo, t->dtype);
        }
    }
    free(data);
    return NULL;
}

TEST(every_form_has_the_values_that_its_bytes_say_whole_and_by_boxes_and_threads)
{
    for (int i = 0; i < N_FORMS * 2; i++) {
        const struct form *f = &forms[i / 2];
        struct err e = { 0 };
        char dir[512], name[128];
        struct ckpt *c = open_form(i / 2, dir);
        struct reader r[3];
        pthread_t id[3];
        if (quant_dequantize(&c, i % 2 ? STORED_BF16 : STORED_F32, &e) < 0) {
            test_fail(__FILE__, __LINE__, "%s: %s", f->title, e.text);
            continue;
        }
        snprintf(name, sizeof name, "%s%s", base_of(f), f->name ? "" : ".weight");
        CHECK(!strstr(ckpt_config_json(c), "quantization_config"));
        for (int k = 0; k < 3; k++) {
            r[k] = (struct reader){ c, f, ckpt_find(c, ROLE_WEIGHT, name), (uint64_t)k + 1, 0 };
            CHECK_INT(pthread_create(&id[k], NULL, read_boxes, &r[k]), 0);
        }
        for (int k = 0; k < 3; k++) {
            pthread_join(id[k], NULL);
            if (r[k].wrong)
                test_fail(__FILE__, __LINE__, "%s: a value is not that of its code", f->title);
        }
        ckpt_close(c);
    }
}

/* ---- and back ---- */

/* The stored bytes of part p, read from the requantised view in ranges of `step` elements. */
static int same_part(struct ckpt *c, const struct form *f, int p, int64_t step)
{
    char name[128];
    struct err e = { 0 };
    const struct part *q = &f->part[p];
    struct box b = box_whole(q->n_dims, q->shape);
    char *data = malloc((size_t)stored_bytes(q->dtype, count(q)));
    snprintf(name, sizeof name, "%s%s", base_of(f), q->suffix);
    int i = ckpt_find(c, ROLE_WEIGHT, name), rc = i < 0 ? -1 : 0;
    for (int64_t lo = 0; lo < count(q) && rc >= 0; lo += step)
        rc = ckpt_read_range(c, i, &b, lo, lo + step < count(q) ? lo + step : count(q),
                             data + stored_bytes(q->dtype, lo), &e);
    if (rc < 0)
        test_fail(__FILE__, __LINE__, "%s: %s: %s", f->title, name, e.text);
    int same = rc >= 0 && !memcmp(data, f->data[p], (size_t)stored_bytes(q->dtype, count(q)));
    free(data);
    return same;
}

TEST(every_form_comes_back_byte_for_byte_in_ranges_of_any_size)
{
    for (int i = 0; i < N_FORMS * 2; i++) {
        const struct form *f = &forms[i / 2];
        struct err e = { 0 };
        char dir[512];
        struct ckpt *c = open_form(i / 2, dir);
        char *config = strdup(ckpt_config_json(c));
        if (quant_dequantize(&c, i % 2 ? STORED_BF16 : STORED_F32, &e) < 0 || quant_requantize(&c, &e) < 0) {
            test_fail(__FILE__, __LINE__, "%s: %s", f->title, e.text);
        } else {
            CHECK_STR(ckpt_config_json(c), config);
            for (int p = 0; p < MOST_PARTS && f->part[p].suffix; p++)
                if (!same_part(c, f, p, i % 2 ? 1 << 20 : 997))
                    test_fail(__FILE__, __LINE__, "%s: %s differs", f->title, f->part[p].suffix);
        }
        ckpt_close(c);
        free(config);
    }
}

/* Doubles the element in row 3, column 5 of every weight. */
static int change_one(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi, void *dst,
                      struct err *e)
{
    int rc = ckpt_read_range(below, *(int *)arg, b, lo, hi, dst, e);
    for (int64_t i = lo; i < hi && rc >= 0; i++)
        if (b->start[0] + i / b->extent[1] == 3 && b->start[1] + i % b->extent[1] == 5)
            ((uint16_t *)dst)[i - lo] ^= 1;
    return rc;
}

TEST(a_changed_value_is_named_with_its_place)
{
    struct err e = { 0 };
    char dir[512];
    struct ckpt *c = open_form(0, dir);
    CHECK_INT(quant_dequantize(&c, STORED_BF16, &e), 0);
    int at = ckpt_find(c, ROLE_WEIGHT, X ".weight"), n = ckpt_n_tensors(c);
    struct ckpt_view_tensor *t = calloc((size_t)n, sizeof *t);
    for (int i = 0; i < n; i++)
        t[i] = (struct ckpt_view_tensor){ *ckpt_tensor(c, i), i, NULL, NULL };
    t[at] = (struct ckpt_view_tensor){ *ckpt_tensor(c, at), -1, change_one, &at };
    CHECK_INT(ckpt_view_open(&c, c, n, t, NULL, &e), 0);
    CHECK_INT(quant_requantize(&c, &e), 0);

    struct box b = box_whole(2, (int64_t[]){ 320, 200 });
    char *data = malloc(320 * 200);
    CHECK_INT(ckpt_read(c, ckpt_find(c, ROLE_WEIGHT, X ".weight"), &b, data, &e), -ERR_INTEGRITY);
    CHECK_HAS(e.text, X ".weight: row 3, column 5 is");
    CHECK_HAS(e.text, "no code");
    ckpt_close(c);
    free(t);
    free(data);
}

TEST(what_has_no_codes_or_kept_scales_is_refused)
{
    struct err e = { 0 };
    char dir[512];
    struct ckpt *c = open_form(0, dir);
    CHECK_INT(quant_requantize(&c, &e), -ERR_CONFIG);
    CHECK_HAS(e.text, "has no quantized.json");
    CHECK(!c);

    c = open_form(0, dir);
    CHECK_INT(quant_dequantize(&c, STORED_F32, &e), 0);
    CHECK_INT(quant_dequantize(&c, STORED_F32, &e), -ERR_USAGE);
    CHECK_HAS(e.text, "has no quantised weights");
}
