/* ckpt_view_test.c - views of a checkpoint: tensors renamed, computed and stacked, and what of the checkpoint
 * below is still proven. */
#include "tests/test.h"

#include <pthread.h>
#include <unistd.h>
#include "format/ckpt_view.h"
#include "format/fmt.h"
#include "format/panels_file.h"
#include "tests/unit/format/format_make.h"

enum { ROWS = 24, COLS = 10 };
#define EMBED "model.embed.weight"

static struct ckpt *open_small(void)
{
    struct err e = { 0 };
    struct ckpt *c = NULL;
    char dst[512];
    in_tmp(test_tmp_dir(), "small", dst);
    if (access(dst, F_OK) < 0 && make_ckpt(dst, small_specs(), N_SPECS, 2, 7, 0, NULL, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    if (ckpt_open(&c, dst, NULL, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    return c;
}

static struct ckpt_view_tensor renamed(const struct ckpt *below, const char *from, const char *to)
{
    return (struct ckpt_view_tensor){ .t = { .name = to }, .from = ckpt_find(below, ROLE_WEIGHT, from) };
}

/* Twice the bits of the tensor of that name below, plus one, as I32. */
static int twice(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi, void *dst,
                 struct err *e)
{
    int i = ckpt_find(below, ROLE_WEIGHT, arg);
    char *in = malloc((size_t)(hi - lo) * 4);
    int rc = ckpt_read_range(below, i, b, lo, hi, in, e);
    for (int64_t k = 0; k < hi - lo && rc >= 0; k++)
        ((uint32_t *)dst)[k] = (uint32_t)(stored_pattern(ckpt_tensor(below, i)->dtype, in, k) * 2 + 1);
    free(in);
    return rc;
}

static int fails(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi, void *dst,
                 struct err *e)
{
    (void)arg, (void)below, (void)b, (void)lo, (void)hi, (void)dst;
    return err_set(e, ERR_FORMAT, "scale 3 is NaN");
}

static struct ckpt_view_tensor computed(ckpt_compute *how, const char *of, const char *name)
{
    return (struct ckpt_view_tensor){
        { .name = name, .dtype = STORED_I32, .n_dims = 2, .shape = { ROWS, COLS } }, -1, how, (char *)of
    };
}

/* Reads part of tensor `name` of the view. */
static int read_part(struct ckpt *c, const char *name, const struct box *b, int64_t lo, int64_t hi, void *dst)
{
    struct err e = { 0 };
    int i = ckpt_find(c, ROLE_WEIGHT, name);
    int rc = i < 0 ? -1 : ckpt_read_range(c, i, b, lo, hi, dst, &e);
    if (rc < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", name, e.text);
    return rc;
}

TEST(a_renamed_tensor_keeps_its_data_and_digest_and_a_computed_one_is_computed)
{
    struct err e = { 0 };
    struct ckpt *below = open_small(), *c = NULL;
    struct ckpt_tensor was = *ckpt_tensor(below, ckpt_find(below, ROLE_WEIGHT, EMBED));
    struct ckpt_view_tensor t[] = { renamed(below, EMBED, "z.embed"), computed(twice, EMBED, "a.twice") };
    struct ckpt_view_opts how = { .config = "{\"model_type\":\"other\"}" };
    uint16_t x[5], all[ROWS * COLS];
    uint32_t y[5];
    struct box b = { 2, { 3, 2 }, { 4, 3 } };

    CHECK_INT(ckpt_view_open(&c, below, 2, t, &how, &e), 0);
    CHECK_INT(ckpt_n_tensors(c), 2);
    CHECK_STR(ckpt_tensor(c, 0)->name, "a.twice");
    CHECK_INT(ckpt_tensor(c, 0)->has_digest, 0);
    CHECK_INT(ckpt_tensor(c, 1)->dtype, STORED_BF16);
    CHECK_INT(ckpt_tensor(c, 1)->has_digest, 1);
    CHECK(ckpt_tensor(c, 1)->digest.lo == was.digest.lo);
    CHECK_STR(ckpt_config_json(c), "{\"model_type\":\"other\"}");

    /* What belongs to the files is that of the checkpoint below. */
    CHECK_STR(ckpt_driver(c), "native");
    CHECK_STR(ckpt_path(c), ckpt_path(below));
    CHECK_INT(ckpt_state(c)->step, 7);
    CHECK_INT(ckpt_layout(c)->tp, 2);
    CHECK_INT(ckpt_n_extra(c), 2);
    CHECK(ckpt_below(c) == below && !ckpt_below(below));

    /* Elements 2 .. 6 of the box: [3,4] and the four behind it. */
    fill_range(&was, &b, 0, 12, (char *)all);
    read_part(c, "z.embed", &b, 2, 7, x);
    read_part(c, "a.twice", &b, 2, 7, y);
    CHECK_SAME(x, all + 2, sizeof x);
    for (int i = 0; i < 5; i++)
        CHECK_INT(y[i], all[i + 2] * 2u + 1);
    CHECK_INT(ckpt_verify(c, 0, &e), 0);
    CHECK_INT(ckpt_proof(c), CKPT_DIGESTS);
    ckpt_release_files(c);
    CHECK(ckpt_bytes_read(c) > 0);
    ckpt_close(c);
}

TEST(files_that_are_held_are_read_when_their_names_are_gone)
{
    struct err e = { 0 };
    struct ckpt *c = open_small(), *other = open_small();
    char command[400];
    CHECK_INT(ckpt_hold_files(c, &e), 0);
    snprintf(command, sizeof command, "rm -r '%s'", ckpt_path(c));
    CHECK_INT(system(command), 0);
    ckpt_release_files(c);
    CHECK(ckpt_n_blocks(c) > 0);
    for (int64_t i = 0; i < ckpt_n_blocks(c); i++)
        CHECK_INT(ckpt_check_block(c, i, &e), 0);
    CHECK_INT(ckpt_check_block(other, 0, &e), -ERR_FILE);
    ckpt_close(c);
    ckpt_close(other);
}

TEST(views_stack)
{
    struct err e = { 0 };
    struct ckpt *below = open_small(), *c = NULL;
    struct ckpt_view_tensor t = renamed(below, EMBED, "m");
    struct box b = box_whole(2, (int64_t[]){ ROWS, COLS });
    uint16_t x[ROWS * COLS];
    uint32_t y[ROWS * COLS], z[ROWS * COLS];

    CHECK_INT(ckpt_view_open(&c, below, 1, &t, &(struct ckpt_view_opts){ .config = "{}" }, &e), 0);
    struct ckpt_view_tensor u[] = { { .t = { .name = "n" } },
                                    computed(twice, "m", "o"),
                                    computed(twice, "m", "p") };
    CHECK_INT(ckpt_view_open(&c, c, 3, u, NULL, &e), 0);
    struct ckpt_view_tensor v[] = { { .t = { .name = "q" }, .from = 0 }, computed(twice, "o", "r") };
    CHECK_INT(ckpt_view_open(&c, c, 2, v, NULL, &e), 0);

    CHECK_STR(ckpt_config_json(c), "{}");
    CHECK_INT(ckpt_tensor(c, 0)->has_digest, 1);
    read_part(c, "q", &b, 0, ROWS * COLS, x);
    read_part(c, "r", &b, 0, ROWS * COLS, y);
    for (int i = 0; i < ROWS * COLS; i++)
        CHECK_INT(y[i], x[i] * 4u + 3);
    read_part(ckpt_below(c), "o", &b, 0, ROWS * COLS, z);
    for (int i = 0; i < ROWS * COLS; i++)
        CHECK_INT(z[i], x[i] * 2u + 1);
    ckpt_end_reading(c);
    ckpt_close(c);
}

/* ---- several threads ---- */

struct reader {
    struct ckpt *c;
    unsigned seed;
    int wrong;
};
static void *read_parts(void *arg)
{
    struct reader *r = arg;
    struct ckpt_tensor was = small_specs()[1].t;
    for (int n = 0; n < 400; n++) {
        struct err e = { 0 };
        int64_t row = (int64_t)(r->seed % ROWS), col = (int64_t)(r->seed / ROWS % COLS);
        struct box b = { 2, { row, col }, { ROWS - row, COLS - col } };
        int64_t lo = (int64_t)(r->seed / 7 % 5), hi = box_count(&b);
        uint16_t want[ROWS * COLS], got[ROWS * COLS];
        uint32_t two[ROWS * COLS];

        lo = lo < hi ? lo : hi;
        fill_range(&was, &b, lo, hi, (char *)want);
        r->wrong += ckpt_read_range(r->c, 0, &b, lo, hi, two, &e) < 0 ||
                    ckpt_read_unproven(r->c, 1, &b, lo, hi, got, &e) < 0 ||
                    memcmp(got, want, (size_t)(hi - lo) * 2);
        for (int64_t i = 0; i < hi - lo; i++)
            r->wrong += two[i] != want[i] * 2u + 1;
        r->seed = r->seed * 1664525u + 1013904223u;
    }
    return NULL;
}

TEST(several_threads_read_a_view)
{
    struct err e = { 0 };
    struct ckpt *c = open_small();
    struct ckpt_view_tensor t[] = { computed(twice, EMBED, "a"), renamed(c, EMBED, "b") };
    struct reader r[4];
    pthread_t id[4];

    CHECK_INT(ckpt_view_open(&c, c, 2, t, NULL, &e), 0);
    for (int i = 0; i < 4; i++) {
        r[i] = (struct reader){ c, (unsigned)i * 77 + 5, 0 };
        CHECK_INT(pthread_create(&id[i], NULL, read_parts, &r[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(id[i], NULL);
        CHECK_INT(r[i].wrong, 0);
    }
    ckpt_close(c);
}

/* ---- what is proven ---- */

/* Makes a checkpoint of one tensor of 2.4 MiB and changes a byte near its end. */
static struct ckpt *open_damaged(const char *name)
{
    struct err e = { 0 };
    struct spec s = spec(ROLE_WEIGHT, "big", STORED_F32, 2, 1024, 600, CUT_NONE);
    struct ckpt *c = NULL;
    char dst[512], path[768];
    in_tmp(test_tmp_dir(), name, dst);
    CHECK_INT(make_ckpt(dst, &s, 1, 1, 100000, 0, NULL, &e), 0);
    snprintf(path, sizeof path, "%s/weights-00000.safetensors", dst);
    FILE *f = fopen(path, "r+b");
    if (!f) {
        test_fail(__FILE__, __LINE__, "%s is missing", path);
        return NULL;
    }
    fseek(f, -5, SEEK_END);
    int byte = fgetc(f);
    fseek(f, -5, SEEK_END);
    fputc(byte ^ 4, f);
    fclose(f);
    CHECK_INT(ckpt_open(&c, dst, NULL, &e), 0);
    return c;
}

TEST(a_byte_below_that_no_tensor_of_the_view_shows_is_checked)
{
    struct err e = { 0 };
    struct ckpt *c = open_damaged("hidden");
    CHECK_INT(ckpt_view_open(&c, c, 0, NULL, NULL, &e), 0);
    CHECK_INT(ckpt_check_rest(c, 0, 1, &e), -ERR_INTEGRITY);
    ckpt_close(c);
}

TEST(a_tensor_shown_twice_does_not_prove_bytes_that_no_one_read)
{
    struct err e = { 0 };
    struct ckpt *below = open_damaged("twice"), *c = NULL;
    const struct fmt_file *f = &below->file[0];
    struct ckpt_view_tensor t[] = { renamed(below, "big", "a"), renamed(below, "big", "b") };
    int64_t first = (2 * FMT_BLOCK - f->data) / 4, n = (f->bytes - 2 * FMT_BLOCK) / 4;
    struct box b = box_whole(2, (int64_t[]){ 1024, 600 });
    float *x = malloc((size_t)n * 4);

    /* Both read the first half of the last block; the damage is in the second half. */
    CHECK_INT(ckpt_view_open(&c, below, 2, t, NULL, &e), 0);
    ckpt_read_unproven(c, 0, &b, first, first + n / 2, x, &e);
    ckpt_read_unproven(c, 1, &b, first, first + (n - n / 2), x, &e);
    CHECK_INT(ckpt_check_rest(c, 0, 1, &e), -ERR_INTEGRITY);
    ckpt_close(c);
    free(x);
}

TEST(what_one_tensor_of_a_view_read_unproven_counts_as_proven)
{
    struct err e = { 0 };
    struct ckpt *c = open_damaged("once");
    struct ckpt_view_tensor t = renamed(c, "big", "a");
    struct box b = box_whole(2, (int64_t[]){ 1024, 600 });
    float *x = malloc(1024 * 600 * sizeof *x);
    int64_t n, *v;

    CHECK_INT(ckpt_view_open(&c, c, 1, &t, NULL, &e), 0);
    CHECK_INT(ckpt_read_unproven(c, 0, &b, 0, 1024 * 600, x, &e), 0);
    n = ckpt_proven_count(c);
    CHECK_INT(n, 3);
    v = calloc((size_t)n, sizeof *v);
    ckpt_proven_get(c, v);
    CHECK_INT(v[1], FMT_BLOCK);
    ckpt_proven_set(c, v);
    CHECK_INT(ckpt_check_rest(c, 0, 1, &e), 0); /* the caller compares digests, and finds the byte there */
    ckpt_close(c);
    free(v);
    free(x);
}

/* ---- errors ---- */

static void count_free(void *n) { ++*(int *)n; }

static int open_view(int n, const struct ckpt_view_tensor *t, struct err *e)
{
    int n_freed = 0;
    struct ckpt *c = open_small(), *view = NULL;
    int rc = ckpt_view_open(&view, c, n, t, &(struct ckpt_view_opts){ NULL, &n_freed, count_free }, e);
    if (rc >= 0)
        ckpt_close(view);
    CHECK_INT(n_freed, 1);
    return rc;
}

TEST(bad_tables_are_refused_and_nothing_is_leaked)
{
    struct err e = { 0 };
    struct ckpt_view_tensor same[] = { computed(twice, EMBED, "x"), computed(twice, EMBED, "x") };
    struct ckpt_view_tensor bad_name = computed(twice, EMBED, "a\nb"), lost = computed(NULL, EMBED, "x"),
                            far = { .t = { .name = "x" }, .from = 99 }, wide = computed(twice, EMBED, "x");
    wide.t.shape[0] = (int64_t)1 << 62;

    CHECK_INT(open_view(2, same, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "two tensors x");
    CHECK_INT(open_view(1, &bad_name, &e), -ERR_FORMAT);
    CHECK_INT(open_view(1, &wide, &e), -ERR_FORMAT);
    CHECK_INT(open_view(1, &lost, &e), -ERR_INTERNAL);
    CHECK_INT(open_view(1, &far, &e), -ERR_INTERNAL);
    CHECK_INT(open_view(1, same, &e), 0);
}

TEST(an_error_names_the_computed_tensor)
{
    struct err e = { 0 };
    struct ckpt *c = open_small();
    struct ckpt_view_tensor t = computed(fails, EMBED, "layers.0.w");
    struct box b = box_whole(2, (int64_t[]){ ROWS, COLS });
    uint32_t x[ROWS * COLS];

    CHECK_INT(ckpt_view_open(&c, c, 1, &t, NULL, &e), 0);
    CHECK_INT(ckpt_read(c, 0, &b, x, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "scale 3 is NaN");
    CHECK_HAS(e.text, "layers.0.w");
    b.start[0] = ROWS;
    CHECK_INT(ckpt_read(c, 0, &b, x, &e), -ERR_INTERNAL);
    ckpt_close(c);
}
