/* cuda_lt_test.c - products by cuBLASLt, with a library in its place that computes on the host
 * (cublaslt_stub.c): which algorithm is taken, what it is given, leaves and trees. Bits against the
 * definition written plainly. */
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <unistd.h>

#include "kernels/cuda/lt/lt.h"
#include "kernels/cuda/lt/lt_api.h"
#include "kernels/fn.h"
#include "tests/test.h"
#include "tests/devices/cublaslt_stub.h"

/* the stub adds in blocks of so many; of a result of at most 64 columns */
enum { TILE = 5, TILE_FEW = 3 };
struct rig {
    struct mem mem;
    struct dev *dev;
    struct lt *lt;
    void *stub;
    struct stub_seen *seen;
    int *offers, *slow;
    uint32_t state;
};

static int rig_open(struct rig *r)
{
    char path[PATH_MAX] = "";
    struct err e;
    *r = (struct rig){ .state = 5 };
    if (readlink("/proc/self/exe", path, sizeof path - 40) < 0)
        return -1;
    strcpy(strrchr(path, '/'), "/cublaslt_stub.so");
    setenv("SHARDLINE_CUBLASLT", path, 1);
    if (!(r->stub = dlopen(path, RTLD_NOW | RTLD_LOCAL))) {
        test_skip("%s", dlerror());
        return -1;
    }
    r->seen = dlsym(r->stub, "stub_seen");
    r->offers = dlsym(r->stub, "stub_offers");
    r->slow = dlsym(r->stub, "stub_slow");
    *r->slow = 0;
    *r->seen = (struct stub_seen){ 0 };
    *r->offers = 5;
    if (dev_open(&r->dev, "cpu", 1, &r->mem, &e) < 0 || lt_open(&r->lt, r->dev, STUB_STREAM, &e) < 0) {
        test_fail(__FILE__, __LINE__, "%s", e.text);
        return -1;
    }
    return 0;
}

/* Nothing is left of it, and nothing had failed. */
static void rig_close(struct rig *r)
{
    struct err e;
    if (lt_check(r->lt, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    lt_close(r->lt);
    CHECK_INT(r->seen->objects, 0);
    CHECK_INT(r->seen->open, 0);
    dev_close(r->dev);
    CHECK_INT(r->mem.total_now, 0);
}

/* ---- matrices of numbers, as operands and widened ---- */
struct numbers {
    struct mat m;
    float *wide;
};

static struct numbers numbers(struct rig *r, enum dtype dt, int64_t rows, int64_t cols, int64_t ld)
{
    struct numbers n = { mat_of(calloc((size_t)(rows * ld), 4), dt, rows, cols, ld),
                         calloc((size_t)(rows * ld), 4) };
    for (int64_t i = 0; i < rows * ld; i++) {
        r->state = r->state * 1664525u + 1013904223u;
        const float v = (float)(r->state >> 8) / 8388608.0f - 1.0f;
        const uint16_t h = fn_to_bf16(v);
        n.wide[i] = dt == DT_BF16 ? fn_from_bf16(h) : v;
        if (dt == DT_BF16)
            ((uint16_t *)n.m.p)[i] = h;
        else
            ((float *)n.m.p)[i] = v;
    }
    return n;
}

static void drop(struct numbers n) { free(n.m.p), free(n.wide); }

/* The stub's sum of n products. */
static float stub_sum(const float *a, int64_t a_step, const float *b, int64_t b_step, int64_t n, int64_t tile)
{
    float sum = 0;
    for (int64_t k0 = 0; k0 < n; k0 += tile) {
        float part = 0;
        for (int64_t k = k0; k < k0 + tile && k < n; k++)
            part += a[k * a_step] * b[k * b_step];
        sum += part;
    }
    return sum;
}

/* ---- linear ---- */
static float linear_ref(const struct numbers *x, const struct numbers *w, const struct leaves *l, int64_t i,
                        int64_t j, int64_t tile)
{
    float leaf[GRAIN_MAX];
    for (int g = 0; g < l->n; g++) {
        const int64_t from = g ? l->end[g - 1] : 0;
        leaf[g] = stub_sum(x->wide + i * x->m.ld + from, 1, w->wide + j * w->m.ld + from, 1, l->end[g] - from,
                           tile);
    }
    return tree_sum(l->n, leaf, 1);
}

static void pack(struct rig *r, struct panels *p, struct mat w)
{
    const struct mat parts[2] = { mat_rows(w, 0, w.rows / 2), mat_rows(w, w.rows / 2, w.rows - w.rows / 2) };
    *p = (struct panels){ .n = w.rows, .k = w.cols, .dt = w.dt, .leaves = p->leaves };
    p->p = malloc(panels_bytes(p->n, p->k, p->dt, &p->leaves));
    lt_linear_pack(r->lt, p, 2, parts);
}

/* Every row of every number of rows is the definition's, and nothing else is written. */
static void linear_case(struct rig *r, enum dtype dt, int64_t k, struct leaves l)
{
    enum { N = 70, LD = 75, MOST = 131 };
    static const int64_t rows[] = { 1, 7, 63, 64, 65, 128, MOST };
    struct numbers x = numbers(r, dt, MOST, k, k + 3), w = numbers(r, dt, N, k, k + 1);
    struct panels p = { .leaves = l };
    float *y = malloc(sizeof(float) * MOST * LD);
    pack(r, &p, w.m);
    for (size_t c = 0; c < sizeof rows / sizeof *rows; c++) {
        for (int i = 0; i < MOST * LD; i++)
            y[i] = 77;
        lt_linear(r->lt, mat_of(y, DT_F32, rows[c], N, LD), mat_rows(x.m, 0, rows[c]), &p);
        int bad = 0, spilt = 0;
        for (int64_t i = 0; i < MOST; i++)
            for (int64_t j = 0; j < LD; j++) {
                const float want = i < rows[c] && j < N ? linear_ref(&x, &w, &l, i, j, TILE) : 77;
                const int off = memcmp(&want, &y[i * LD + j], sizeof want) != 0;
                bad += i < rows[c] && j < N ? off : 0;
                spilt += i < rows[c] && j < N ? 0 : off;
            }
        if (bad || spilt)
            test_fail(__FILE__, __LINE__,
                      "%s, %d leaves of %lld, %lld rows: %d elements differ, %d others are written",
                      dtype_name(dt), l.n, (long long)k, (long long)rows[c], bad, spilt);
    }
    free(y), free(p.p), drop(x), drop(w);
}

TEST(linear_is_the_leaves_tree_for_every_number_of_rows)
{
    struct rig r;
    if (rig_open(&r) < 0)
        return;
    for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++) {
        linear_case(&r, dt, 101, leaves_of(101, 8, 0, 8));
        linear_case(&r, dt, 96, leaves_of(96, 8, 0, 8));
        linear_case(&r, dt, 17, leaves_of(17, 8, 0, 8)); /* leaves of 3, 2 and none */
        linear_case(&r, dt, 33, (struct leaves){ 1, { 33 } });
        linear_case(&r, dt, 40, (struct leaves){ 4, { 0, 12, 12, 40 } });
    }
    rig_close(&r);
}

/* ---- linear_dx ---- */
static float dx_ref(int n_w, const struct numbers *dy, const struct numbers *w, const struct leaves *l,
                    int64_t i, int64_t j)
{
    float leaf[GRAIN_MAX];
    for (int g = 0; g < l->n; g++) {
        leaf[g] = 0;
        for (int s = 0; s < n_w; s++) {
            const int64_t from = g ? l[s].end[g - 1] : 0, n = l[s].end[g] - from;
            if (n)
                leaf[g] += stub_sum(dy[s].wide + i * dy[s].m.ld + from, 1, w[s].wide + from * w[s].m.ld + j,
                                    w[s].m.ld, n, TILE);
        }
    }
    return tree_sum(l->n, leaf, 1);
}

static void dx_case(struct rig *r, enum dtype dt, int64_t rows)
{
    enum { K = 19, LD = 24 };
    static const int64_t outs[3] = { 64, 17, 24 };
    struct numbers dy[3], w[3];
    struct mat dym[3], wm[3];
    struct leaves l[3];
    float *dx = malloc(sizeof(float) * (size_t)(rows * LD));
    for (int s = 0; s < 3; s++) {
        dy[s] = numbers(r, dt, rows, outs[s], outs[s] + 5);
        w[s] = numbers(r, dt, outs[s], K, K + 2);
        l[s] = leaves_of(outs[s], 8, 0, 8);
        dym[s] = dy[s].m, wm[s] = w[s].m;
    }
    lt_linear_dx(r->lt, mat_of(dx, DT_F32, rows, K, LD), 3, dym, wm, l);
    int bad = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < K; j++) {
            const float want = dx_ref(3, dy, w, l, i, j);
            bad += memcmp(&want, &dx[i * LD + j], sizeof want) != 0;
        }
    if (bad)
        test_fail(__FILE__, __LINE__, "%s, %lld rows: %d elements differ", dtype_name(dt), (long long)rows,
                  bad);
    for (int s = 0; s < 3; s++)
        drop(dy[s]), drop(w[s]);
    free(dx);
}

TEST(dx_of_three_matrices_is_one_tree)
{
    struct rig r;
    if (rig_open(&r) < 0)
        return;
    for (int64_t rows = 1; rows < 150; rows += 37) {
        dx_case(&r, DT_F32, rows);
        dx_case(&r, DT_BF16, rows);
    }
    rig_close(&r);
}

/* ---- linear_dw ---- */
static void dw_case(struct rig *r, int64_t n_leaves, int per_call, int64_t ld)
{
    enum { N = 9, K = 13, T = 11 };
    struct numbers dy = numbers(r, DT_BF16, n_leaves * T, N, N + 1),
                   x = numbers(r, DT_BF16, n_leaves * T, K, K + 3);
    struct tree_acc acc = { .n = n_leaves };
    const int levels = tree_levels(n_leaves, per_call);
    for (int i = 0; i < levels; i++)
        acc.level[i] = malloc(sizeof(float) * N * (size_t)ld);
    for (; acc.next < n_leaves; acc.next += per_call)
        lt_linear_dw(r->lt, &acc, ld, mat_rows(dy.m, acc.next * T, per_call * T),
                     mat_rows(x.m, acc.next * T, per_call * T), per_call, T);
    int bad = 0;
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < K; j++) {
            float leaf[GRAIN_MAX];
            for (int64_t s = 0; s < n_leaves; s++)
                leaf[s] = stub_sum(x.wide + s * T * x.m.ld + j, x.m.ld, dy.wide + s * T * dy.m.ld + i,
                                   dy.m.ld, T, TILE_FEW);
            const float want = tree_sum(n_leaves, leaf, 1);
            bad += memcmp(&want, &acc.level[0][i * ld + j], sizeof want) != 0;
        }
    if (bad)
        test_fail(__FILE__, __LINE__, "%lld leaves, %d a call, ld %lld: %d elements differ",
                  (long long)n_leaves, per_call, (long long)ld, bad);
    for (int i = 0; i < levels; i++)
        free(acc.level[i]);
    drop(dy), drop(x);
}

TEST(dw_is_the_tree_of_sequences_over_any_calls)
{
    static const int cases[][2] = { { 8, 8 },  { 8, 4 },   { 8, 2 }, { 8, 1 }, { 12, 3 },
                                    { 12, 6 }, { 12, 12 }, { 5, 5 }, { 1, 1 }, { 6, 1 } };
    struct rig r;
    if (rig_open(&r) < 0)
        return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_case(&r, cases[i][0], cases[i][1], 13);
        dw_case(&r, cases[i][0], cases[i][1], 17);
    }
    rig_close(&r);
}

/* ---- choices ---- */
static struct lt_product product(float *d, const float *a, const float *b, int64_t rows, int64_t inner)
{
    return (struct lt_product){ .form = LT_LINEAR,
                                .dt = DT_F32,
                                .rows = rows,
                                .cols = 4,
                                .inner = inner,
                                .batch = 1,
                                .a = { a, inner, 0 },
                                .b = { b, inner, 0 },
                                .d = d,
                                .ld = 4 };
}

TEST(an_algorithm_without_split_k_is_chosen_once_and_for_all_rows)
{
    enum { K = 16 };
    static float d[200 * 4] __attribute__((aligned(16))), a[4 * K] __attribute__((aligned(16))),
        b[200 * K] __attribute__((aligned(16)));
    struct rig r;
    char text[256];
    if (rig_open(&r) < 0)
        return;
    for (int64_t rows = 1; rows < 200; rows += 9) {
        struct lt_product p = product(d, a, b, rows, K);
        CHECK_INT(lt_run(r.lt, &p), 1);
        CHECK_INT(r.seen->cols, rows);
    }
    CHECK(r.seen->stream == STUB_STREAM);
    CHECK_INT(r.seen->lists, 1);
    CHECK_INT(r.seen->compute, LT_COMPUTE_F32_PEDANTIC);
    CHECK_INT(r.seen->reduction, 0);
    CHECK_INT(r.seen->align, 16);
    CHECK_INT(lt_n_choices(r.lt), 1);
    lt_choice_text(r.lt, 0, text, sizeof text);
    CHECK_STR(text, "product linear fp32 2048x4 over 16 batch 1 align 16: algo 5 tile 5 stages 0 swizzle 0 "
                    "option 0 inner 0 cluster 0, number 5 of 5");

    r.dev->fast = 1; /* few rows have a choice of their own */
    struct lt_product few = product(d, a, b, 64, K), many = product(d, a, b, 65, K);
    CHECK_INT(lt_run(r.lt, &few) + lt_run(r.lt, &many), 2);
    CHECK_INT(r.seen->lists, 2);
    struct lt_product askew = product(d, a, b + 1, 3, K - 1); /* fewer bytes at a time */
    CHECK_INT(lt_run(r.lt, &askew), 1);
    CHECK_INT(r.seen->align, 4);
    CHECK_INT(lt_run_nth(r.lt, &many, 4), 1);
    CHECK_INT(lt_run_nth(r.lt, &many, 5), 0);
    CHECK_INT(lt_n_choices(r.lt), 3);
    rig_close(&r);
}

TEST(choices_are_written_where_the_environment_says)
{
    char path[PATH_MAX], line[400] = "";
    float d[4] = { 0 }, a[4] = { 1, 2, 3, 4 }, b[1] = { 2 };
    struct rig r;
    if (rig_open(&r) < 0)
        return;
    snprintf(path, sizeof path, "%s/choices", test_tmp_dir());
    setenv("SHARDLINE_CUBLASLT_LOG", path, 1);
    struct lt_product p = product(d, a, b, 1, 1);
    CHECK_INT(lt_run(r.lt, &p) + lt_run(r.lt, &p), 2);
    CHECK_BITS(d[3], 8.0f);
    unsetenv("SHARDLINE_CUBLASLT_LOG");
    FILE *f = fopen(path, "r");
    CHECK(f && fgets(line, sizeof line, f));
    CHECK_HAS(line, "product linear fp32 2048x4 over 1 batch 1 align 4: algo 5");
    CHECK_HAS(line, "number 5 of 5, cublaslt_stub.so 990000");
    CHECK(f && !fgets(line, sizeof line, f));
    if (f)
        fclose(f);
    rig_close(&r);
}

/* ---- a table ---- */
/* What a library that is opened now chooses for a product of 16, with the sixth algorithm on offer; *calls:
 * of the library. */
static void chosen(char *text, size_t bytes, int slow, int *calls)
{
    enum { K = 16 };
    static float d[4] __attribute__((aligned(16))), a[4 * K] __attribute__((aligned(16))),
        b[K] __attribute__((aligned(16)));
    struct rig r;
    text[0] = 0;
    if (rig_open(&r) < 0)
        return;
    *r.offers = 6;
    *r.slow = slow;
    a[3 * K] = 3;
    b[0] = 2;
    struct lt_product p = product(d, a, b, 1, K);
    CHECK_INT(lt_run(r.lt, &p), 1);
    CHECK_BITS(d[3], 6.0f);
    *calls = r.seen->calls;
    lt_choice_text(r.lt, 0, text, bytes);
    rig_close(&r);
}

#define PRODUCT "product linear fp32 2048x4 over 16 batch 1 align 16: "
TEST(the_fastest_algorithm_is_timed_once_and_taken_from_the_table_afterwards)
{
    char path[PATH_MAX], text[256], line[400] = "";
    int calls;
    snprintf(path, sizeof path, "%s/table", test_tmp_dir());
    setenv("SHARDLINE_CUBLASLT_TABLE", path, 1);
    setenv("SHARDLINE_CUBLASLT_TUNE", "1", 1);
    chosen(text, sizeof text, 10, &calls);
    CHECK_STR(text, PRODUCT "algo 6 tile 7 stages 0 swizzle 0 option 0 inner 0 cluster 0, number 6 of 6");
    CHECK(calls > 10);
    chosen(text, sizeof text, 10, &calls);
    CHECK_HAS(text, "algo 6");
    CHECK_INT(calls, 1); /* it is in the table */
    unsetenv("SHARDLINE_CUBLASLT_TUNE");
    chosen(text, sizeof text, 0, &calls);
    CHECK_HAS(text, "algo 6");
    CHECK_INT(calls, 1);
    unsetenv("SHARDLINE_CUBLASLT_TABLE");
    chosen(text, sizeof text, 0, &calls);
    CHECK_HAS(text, "algo 5"); /* without one: the library's first */
    FILE *f = fopen(path, "r");
    CHECK(f && fgets(line, sizeof line, f));
    CHECK_STR(line,
              PRODUCT "algo 6 tile 7 stages 0 swizzle 0 option 0 inner 0 cluster 0, timed, number 6 of 6\n");
    CHECK(f && !fgets(line, sizeof line, f));
    if (f)
        fclose(f);
}

TEST(of_a_table_only_what_the_library_offers_and_fits_is_taken)
{
    static const char *const wishes[] = {
        PRODUCT "algo 1 tile 5 stages 0 swizzle 0 option 0 inner 0 cluster 0, splits the contraction\n",
        PRODUCT "algo 6 tile 8 stages 0 swizzle 0 option 0 inner 0 cluster 0, another tile\n",
        PRODUCT "algo 6 tile 7 stages 0 swizzle 0 option 0 inner 0 cluster\n",
        "\n\n",
        "",
        "product linear fp32 2048x4 over 16 batch 1 align 4: algo 6 tile 7\n"
    };
    char path[PATH_MAX], text[256];
    int calls;
    snprintf(path, sizeof path, "%s/wishes", test_tmp_dir());
    setenv("SHARDLINE_CUBLASLT_TABLE", path, 1);
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        FILE *f = fopen(path, "w");
        CHECK(f && fputs(wishes[i], f) >= 0 && fclose(f) == 0);
        chosen(text, sizeof text, 0, &calls);
        CHECK_HAS(text, "algo 5 tile 5");
        CHECK_INT(calls, 1);
    }
    unsetenv("SHARDLINE_CUBLASLT_TABLE");
}

/* lt_open with a variable set so: its code, its text in e. */
static int refusal(const char *name, const char *value, struct err *e)
{
    struct mem mem = { 0 };
    struct dev *d;
    struct lt *l;
    CHECK(dev_open(&d, "cpu", 1, &mem, e) == 0);
    setenv(name, value, 1);
    const int rc = lt_open(&l, d, NULL, e);
    unsetenv(name);
    CHECK(!l);
    dev_close(d);
    CHECK_INT(mem.total_now, 0);
    return rc;
}

TEST(a_table_that_cannot_be_used_is_refused)
{
    struct err e;
    CHECK_INT(refusal("SHARDLINE_CUBLASLT_TABLE", "/nowhere/table", &e), -ERR_FILE);
    CHECK_HAS(e.text, "/nowhere/table: No such file or directory: make it with SHARDLINE_CUBLASLT_TUNE=1");
    CHECK_INT(refusal("SHARDLINE_CUBLASLT_TABLE", "/", &e), -ERR_FILE);
    CHECK_INT(refusal("SHARDLINE_CUBLASLT_TUNE", "1", &e), -ERR_USAGE);
    CHECK_HAS(e.text, "SHARDLINE_CUBLASLT_TABLE");
}

TEST(a_shape_without_an_algorithm_is_said_and_gives_nan)
{
    struct rig r;
    struct err e;
    float y[3];
    if (rig_open(&r) < 0)
        return;
    *r.offers = 4; /* those that must not be taken */
    struct numbers x = numbers(&r, DT_F32, 1, 8, 8), w = numbers(&r, DT_F32, 3, 8, 8);
    struct panels p = { .leaves = leaves_of(8, 8, 0, 8) };
    pack(&r, &p, w.m);
    lt_linear(r.lt, mat_of(y, DT_F32, 1, 3, 3), x.m, &p);
    CHECK(isnan(y[0]) && isnan(y[2]));
    CHECK_INT(lt_check(r.lt, &e), -ERR_DEVICE);
    CHECK_HAS(e.text, "cuBLASLt: no algorithm without split-K, for linear fp32 [2048][3] over 1");
    CHECK_INT(lt_check(r.lt, &e), 0);
    *r.offers = 5;
    lt_linear(r.lt, mat_of(y, DT_F32, 1, 3, 3), x.m, &p);
    CHECK_BITS(y[2], linear_ref(&x, &w, &p.leaves, 0, 2, TILE));
    free(p.p), drop(x), drop(w);
    rig_close(&r);
}

TEST(a_library_that_is_not_there_or_another_one_is_refused)
{
    struct err e;
    CHECK_INT(refusal("SHARDLINE_CUBLASLT", "/nowhere/libcublasLt.so", &e), -ERR_DEVICE);
    CHECK_STR(e.text, "/nowhere/libcublasLt.so cannot be opened");
    CHECK_INT(refusal("SHARDLINE_CUBLASLT", "libm.so.6", &e), -ERR_DEVICE);
    CHECK_STR(e.text, "libm.so.6 lacks calls that are needed");
}
