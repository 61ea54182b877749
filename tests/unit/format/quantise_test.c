/* quantise_test.c - weights quantised here: scales and codes against the rules of QUANT.md, block by block,
 * in parts of any size. */
#include "tests/test.h"

#include <math.h>
#include "base/rnd.h"
#include "format/ckpt_proof.h"
#include "format/ckpt_view.h"
#include "format/hf_write.h"
#include "format/quant/codec.h"
#include "format/quant_view.h"
#include "tests/unit/format/format_make.h"

enum { N = 200, K = 384 };
#define UP "model.layers.0.mlp.up_proj.weight"
#define NARROW "model.layers.0.mlp.down_proj.weight" /* 24 columns */
#define ROUTER "model.layers.0.mlp.gate.weight"
#define EMBED "model.embed_tokens.weight"

/* Values of many sizes, a block of zeros first. */
static float value(int64_t i)
{
    double x = (double)(rnd_u64(4, 1, (uint64_t)i) >> 11) * 0x1p-52 - 1;
    int64_t n = i / K, k = i % K;
    return n < 128 && k < 128 ? 0 : (float)(x * exp2((double)(n % 7 + k / 32 % 5)));
}

static void put(struct hf_write *w, int tensor, int64_t n, int64_t bad)
{
    struct err e = { 0 };
    for (int64_t i = 0; i < n; i++) {
        float x = i == bad ? NAN : value(i);
        CHECK_INT(hf_write_put(w, tensor, &x, 1, &e), 0);
    }
}

static struct ckpt *open_values(const char *name, const char *config, int64_t bad)
{
    struct err e = { 0 };
    struct ckpt *c = NULL;
    struct hf_write *w = NULL;
    struct ckpt_tensor t[4] = {
        { .name = EMBED, .dtype = STORED_F32, .n_dims = 2, .shape = { 8, 128 } },
        { .name = NARROW, .dtype = STORED_F32, .n_dims = 2, .shape = { 8, 24 } },
        { .name = ROUTER, .dtype = STORED_F32, .n_dims = 2, .shape = { 4, 128 } },
        { .name = UP, .dtype = STORED_F32, .n_dims = 2, .shape = { N, K } },
    };
    char dir[512];
    in_tmp(test_tmp_dir(), name, dir);
    io_make_dirs(dir, &e);
    CHECK_INT(hf_write_open(&w, dir, 4, t, &(struct hf_write_opts){ .shard_bytes = 1 << 30 }, &e), 0);
    for (int i = 0; i < 4; i++)
        put(w, i, t[i].shape[0] * t[i].shape[1], i == 3 ? bad : -1);
    CHECK_INT(hf_write_seal(w, &(struct ckpt_meta){ .config_json = config }, &e), 0);
    CHECK_INT(ckpt_open(&c, dir, NULL, &e), 0);
    return c;
}

/* The whole tensor of that name, read in parts of `step` elements. */
static void *read_all(struct ckpt *c, const char *name, int64_t step)
{
    struct err e = { 0 };
    int i = ckpt_find(c, ROLE_WEIGHT, name);
    if (i < 0) {
        test_fail(__FILE__, __LINE__, "no %s", name);
        return calloc(N * K, 4);
    }
    const struct ckpt_tensor *t = ckpt_tensor(c, i);
    struct box b = box_whole(t->n_dims, t->shape);
    int64_t n = box_count(&b);
    char *data = malloc((size_t)stored_bytes(t->dtype, n) + 8);
    for (int64_t lo = 0; lo < n; lo += step)
        if (ckpt_read_range(c, i, &b, lo, lo + step < n ? lo + step : n, data + stored_bytes(t->dtype, lo),
                            &e) < 0)
            test_fail(__FILE__, __LINE__, "%s: %s", name, e.text);
    return data;
}

/* The largest magnitude of the block of (n, k). */
static float largest(int64_t n, int64_t k, int64_t block_n, int64_t block_k)
{
    float most = 0;
    n -= n % block_n;
    k -= k % block_k;
    for (int64_t i = n; i < n + block_n && i < N; i++)
        for (int64_t j = k; j < k + block_k; j++)
            most = fmaxf(most, fabsf(value(i * K + j)));
    return most;
}

static struct ckpt *quantised(const char *name, enum quant_kind kind, int *n_narrow)
{
    struct err e = { 0 };
    struct ckpt *c = open_values(name, "{\"model_type\":\"llama\"}", -1);
    if (quant_quantize(&c, kind, n_narrow, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    return c;
}

TEST(fp8_b128_divides_by_the_largest_of_a_block_over_448)
{
    int narrow;
    struct ckpt *c = quantised("fp8", QUANT_KIND_FP8_B128, &narrow);
    float *scale = read_all(c, "model.layers.0.mlp.up_proj.weight_scale_inv", 2);
    uint8_t *code = read_all(c, UP, 10007);
    for (int64_t n = 0; n < N; n += 3)
        for (int64_t k = 0; k < K; k += 5) {
            float most = largest(n, k, 128, 128), s = most > 0 ? most / 448 : 1;
            CHECK_BITS(scale[n / 128 * 3 + k / 128], s);
            CHECK_INT(code[n * K + k], codec_nearest(CODEC_E4M3, value(n * K + k) / s));
        }
    CHECK_HAS(ckpt_config_json(c), "\"fp8\"");
    CHECK_INT(narrow, 0); /* any width has blocks */
    ckpt_close(c);
    free(scale);
    free(code);
}

TEST(int8_g128_rounds_the_quotient_by_the_largest_of_a_group_over_127)
{
    int narrow;
    struct ckpt *c = quantised("int8", QUANT_KIND_INT8_G128, &narrow);
    float *scale = read_all(c, "model.layers.0.mlp.up_proj.weight_scale", 7);
    uint8_t *code = read_all(c, "model.layers.0.mlp.up_proj.weight_packed", 1000);
    int64_t *shape = read_all(c, "model.layers.0.mlp.up_proj.weight_shape", 1);
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k += 5) {
            float most = largest(n, k, 1, 128), s = most > 0 ? most / 127 : 1;
            CHECK_BITS(scale[n * 3 + k / 128], s);
            CHECK_INT(code[n * K + k] - 128, lrintf(value(n * K + k) / s));
        }
    CHECK(shape[0] == N && shape[1] == K);
    CHECK_INT(narrow, 1);
    CHECK(ckpt_find(c, ROLE_WEIGHT, NARROW) >= 0 && ckpt_find(c, ROLE_WEIGHT, ROUTER) >= 0);
    CHECK(ckpt_find(c, ROLE_WEIGHT, EMBED) >= 0 && ckpt_find(c, ROLE_WEIGHT, UP) < 0);
    CHECK(ckpt_is_computed(c, ckpt_find(c, ROLE_WEIGHT, "model.layers.0.mlp.up_proj.weight_packed")));
    CHECK(!ckpt_is_computed(c, ckpt_find(c, ROLE_WEIGHT, EMBED)));
    CHECK_HAS(ckpt_config_json(c), "\"model.layers.0.mlp.gate\"");
    ckpt_close(c);
    free(scale);
    free(code);
    free(shape);
}

TEST(mxfp4_takes_the_floor_of_the_logarithm_of_the_largest)
{
    int narrow;
    struct ckpt *c = quantised("mxfp4", QUANT_KIND_MXFP4, &narrow);
    uint8_t *scale = read_all(c, "model.layers.0.mlp.up_proj.weight_scale", 5),
            *code = read_all(c, "model.layers.0.mlp.up_proj.weight_packed", 999);
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++) {
            float most = largest(n, k, 1, 32);
            int e = most > 0 ? (int)floor(log2((double)most)) - 2 + 127 : 0;
            float q = value(n * K + k) / codec_e8m0((uint8_t)e);
            CHECK_INT(scale[n * (K / 32) + k / 32], e);
            CHECK_INT(code[(n * K + k) / 2] >> k % 2 * 4 & 15, codec_nearest(CODEC_E2M1, q));
        }
    ckpt_close(c);
    free(scale);
    free(code);
}

TEST(what_has_no_scale_or_is_quantised_is_refused)
{
    struct err e = { 0 };
    int narrow, i;
    struct ckpt *c = open_values("nan", "{\"model_type\":\"llama\"}", 150 * K + 7);
    struct box b = box_whole(2, (int64_t[]){ N, K });
    char *data = malloc(N * K);
    CHECK_INT(quant_quantize(&c, QUANT_KIND_FP8_B128, &narrow, &e), 0);
    i = ckpt_find(c, ROLE_WEIGHT, UP);
    CHECK_INT(ckpt_read(c, i, &b, data, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, UP ": rows 128 to 199 hold NaN or an infinity");

    CHECK_INT(quant_quantize(&c, QUANT_KIND_FP8_B128, &narrow, &e), -ERR_USAGE);
    CHECK_HAS(e.text, "holds quantised weights");
    CHECK(!c);
    free(data);
}
