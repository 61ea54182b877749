/* format_digest_test.c - digests: the vectors of FORMAT.md, and that parts of any shape add up to the
 * whole. */
#include <time.h>
#include "base/rnd.h"
#include "format/ckpt_proof.h"
#include "tests/test.h"

static void check_hex(enum stored_dtype t, int n_dims, const int64_t *shape, const void *data,
                      const char *want)
{
    struct ckpt_digest d = { 0, 0 };
    struct box b = box_whole(n_dims, shape);
    char hex[33];
    ckpt_digest_add(&d, t, n_dims, shape, &b, 0, box_count(&b), data);
    ckpt_digest_hex(d, hex);
    CHECK_STR(hex, want);
}

TEST(digests_are_those_of_the_specification)
{
    float f[6];
    uint16_t h[6], ramp[2000];
    uint8_t u[20];
    int64_t minus = -1;
    for (int i = 0; i < 6; i++) {
        uint32_t bits;
        f[i] = (float)i - 2.5f;
        memcpy(&bits, &f[i], 4);
        h[i] = (uint16_t)(bits >> 16);
    }
    for (int i = 0; i < 20; i++)
        u[i] = (uint8_t)(i + 1);
    for (int i = 0; i < 2000; i++)
        ramp[i] = (uint16_t)(i * 40503);
    check_hex(STORED_F32, 2, (int64_t[]){ 2, 3 }, f, "284bc5755f000000073ec58dd4400000");
    check_hex(STORED_F32, 1, (int64_t[]){ 6 }, f, "a4a5bac7a0c00000aea5037066c00000");
    check_hex(STORED_BF16, 2, (int64_t[]){ 2, 3 }, h, "f5fc284bc5755f00380b073ec58dd440");
    check_hex(STORED_BF16, 1, (int64_t[]){ 2000 }, ramp, "22d829dfc73ea3aaface19bb515ba436");
    check_hex(STORED_U8, 3, (int64_t[]){ 2, 2, 5 }, u, "b08e1c97e57c7574a9b961107e9d0ea8");
    check_hex(STORED_I64, 1, (int64_t[]){ 1 }, &minus, "ca0f7a2f89272739064b95f43b7242ff");
}

/* Cuts box b at random, down to nothing, and adds the digests of the parts. */
static void add_parts(struct ckpt_digest *d, const float *whole, const int64_t *shape, int n_dims,
                      const struct box *b, uint64_t *draw)
{
    int dim = (int)(rnd_u64(1, 2, ++*draw) % (uint64_t)n_dims);
    if (b->extent[dim] > 1 && rnd_unit(1, 3, ++*draw) < 0.8) {
        struct box left = *b, right = *b;
        left.extent[dim] = 1 + (int64_t)(rnd_u64(1, 4, ++*draw) % (uint64_t)(b->extent[dim] - 1));
        right.start[dim] += left.extent[dim];
        right.extent[dim] -= left.extent[dim];
        add_parts(d, whole, shape, n_dims, &right, draw);
        add_parts(d, whole, shape, n_dims, &left, draw);
        return;
    }
    static float part[7 * 5 * 3000]; /* of the innermost call */
    struct box all = box_whole(n_dims, shape);
    struct box_walk w = { 0 };
    struct box_run r;
    int64_t n = box_count(b), cut = (int64_t)(rnd_u64(1, 5, ++*draw) % (uint64_t)(n + 1));
    while (box_next_run(&all, 0, box_count(&all), b, &w, &r))
        memcpy(part + r.part_off, whole + r.of_off, sizeof *part * (size_t)r.count);
    ckpt_digest_add(d, STORED_F32, n_dims, shape, b, cut, n, part + cut);
    ckpt_digest_add(d, STORED_F32, n_dims, shape, b, 0, cut, part);
}

TEST(digests_of_parts_of_any_shape_add_up_to_the_whole)
{
    static float x[7 * 5 * 3000];
    const struct {
        int n;
        int64_t shape[3];
    } shapes[] = {
        { 3, { 7, 5, 3000 } }, { 2, { 35, 3000 } }, { 1, { 7 * 5 * 3000 } }, { 3, { 3000, 7, 5 } }
    };
    uint64_t draw = 0;
    for (int i = 0; i < 7 * 5 * 3000; i++)
        x[i] = (float)rnd_normal(5, 6, (uint64_t)i);
    for (int s = 0; s < 4; s++)
        for (int round = 0; round < 5; round++) {
            struct ckpt_digest whole = { 0, 0 }, sum = { 0, 0 };
            struct box b = box_whole(shapes[s].n, shapes[s].shape);
            ckpt_digest_add(&whole, STORED_F32, shapes[s].n, shapes[s].shape, &b, 0, box_count(&b), x);
            add_parts(&sum, x, shapes[s].shape, shapes[s].n, &b, &draw);
            CHECK(sum.lo == whole.lo && sum.hi == whole.hi);
        }
}

TEST(every_single_bit_and_every_swap_of_neighbours_changes_the_digest)
{
    uint16_t x[12 * 11];
    int64_t shape[2] = { 12, 11 };
    struct box b = box_whole(2, shape);
    struct ckpt_digest was = { 0, 0 };
    for (int i = 0; i < 132; i++)
        x[i] = (uint16_t)rnd_u64(9, 9, (uint64_t)i);
    ckpt_digest_add(&was, STORED_BF16, 2, shape, &b, 0, 132, x);
    for (int bit = 0; bit < 132 * 16; bit++) {
        struct ckpt_digest d = { 0, 0 };
        x[bit / 16] ^= (uint16_t)(1 << bit % 16);
        ckpt_digest_add(&d, STORED_BF16, 2, shape, &b, 0, 132, x);
        CHECK(d.lo != was.lo && d.hi != was.hi);
        x[bit / 16] ^= (uint16_t)(1 << bit % 16);
    }
    for (int i = 0; i + 11 < 132; i++)
        for (int step = 1; step <= 11; step += 10) { /* the next column, the next row */
            struct ckpt_digest d = { 0, 0 };
            uint16_t t = x[i];
            x[i] = x[i + step], x[i + step] = t;
            ckpt_digest_add(&d, STORED_BF16, 2, shape, &b, 0, 132, x);
            CHECK(d.lo != was.lo || d.hi != was.hi);
            t = x[i], x[i] = x[i + step], x[i + step] = t;
        }
}

static void all_hex(int n, const struct ckpt_tensor *t, const struct ckpt_state *s, char weights[33],
                    char state[33])
{
    struct ckpt_digests d = ckpt_digest_all(n, t, s);
    ckpt_digest_hex(d.weights, weights);
    ckpt_digest_hex(d.state, state);
}

TEST(the_whole_digest_depends_on_names_shapes_dtypes_digests_and_state_and_not_on_the_order_of_the_list)
{
    struct ckpt_tensor t[3] = {
        { .name = "b.weight",
          .role = ROLE_WEIGHT,
          .dtype = STORED_F32,
          .n_dims = 2,
          .shape = { 2, 3 },
          .digest = { 1, 2 } },
        { .name = "a.weight",
          .role = ROLE_WEIGHT,
          .dtype = STORED_BF16,
          .n_dims = 1,
          .shape = { 6 },
          .digest = { 3, 4 } },
        { .name = "a.weight",
          .role = ROLE_EXP_AVG,
          .dtype = STORED_F32,
          .n_dims = 1,
          .shape = { 6 },
          .digest = { 5, 6 } },
    };
    struct ckpt_state s = { .has_state = 1, .step = 10, .seed = 3, .epoch = 1, .sample = 9, .grain = 8 };
    char w[33], a[33], w2[33], a2[33];
    all_hex(3, t, &s, w, a);
    CHECK_STR(w, "4dce8cd35879a7ad59d801a505281b21");
    CHECK_STR(a, "33f4c9ae35d592911350403fd9eca1f3");
    struct ckpt_tensor swapped[3] = { t[2], t[1], t[0] };
    all_hex(3, swapped, &s, w2, a2);
    CHECK_STR(w2, w);
    CHECK_STR(a2, a);
    s.grain = 4; /* an option */
    all_hex(3, t, &s, w2, a2);
    CHECK_STR(a2, a);
#define CHANGED(member, value, weights_too) \
    do { \
        struct ckpt_tensor keep[3] = { t[0], t[1], t[2] }; \
        struct ckpt_state keep_s = s; \
        member = value; \
        all_hex(3, t, &s, w2, a2); \
        CHECK(strcmp(a, a2)); \
        CHECK_INT(!strcmp(w, w2), !(weights_too)); \
        memcpy(t, keep, sizeof keep); \
        s = keep_s; \
    } while (0)
    CHANGED(t[0].name, "c.weight", 1);
    CHANGED(t[0].dtype, STORED_I32, 1);
    CHANGED(t[0].shape[1], 4, 1);
    CHANGED(t[0].digest.lo, 9, 1);
    CHANGED(t[0].digest.hi, 9, 1);
    CHANGED(t[2].digest.lo, 9, 0);
    CHANGED(t[2].role, ROLE_MASTER, 0);
    CHANGED(s.step, 11, 0);
    CHANGED(s.seed, 4, 0);
    CHANGED(s.epoch, 2, 0);
    CHANGED(s.sample, 8, 0);
    s.has_state = 0;
    CHECK_INT(ckpt_digest_all(3, t, &s).has_state, 0);
}

TEST(the_digest_runs_at_2_gigabytes_a_second_and_more)
{
    int64_t n = 8 << 20, shape[2] = { n / 4096 / 4, 4096 };
    if (getenv("ASAN_OPTIONS") || getenv("SHARDLINE_NO_SPEED")) {
        test_skip("speed is not measured here");
        return;
    }
    float *x = malloc((size_t)n);
    for (int64_t i = 0; i < n / 4; i++)
        x[i] = (float)i;
    double best[2] = { 0, 0 };
    for (int k = 0; k < 6; k++) {
        enum stored_dtype t = k & 1 ? STORED_BF16 : STORED_F32;
        int64_t s[2] = { shape[0] << (k & 1), 4096 };
        struct box b = box_whole(2, s);
        struct ckpt_digest d = { 0, 0 };
        struct timespec t0, t1;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t0);
        ckpt_digest_add(&d, t, 2, s, &b, 0, box_count(&b), x);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t1);
        double v = (double)n / ((double)(t1.tv_sec - t0.tv_sec) * 1e9 + (double)(t1.tv_nsec - t0.tv_nsec));
        best[k & 1] = v > best[k & 1] ? v : best[k & 1];
    }
    printf("digest: %.1f GB/s fp32, %.1f GB/s bf16\n", best[0], best[1]);
    free(x);
}
