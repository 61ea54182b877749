/* gemm_test.c - products: every CPU class gives the bits of the definition, written here a second time as
 * plain loops. */
#include <math.h>
#include <stdlib.h>
#include "base/rnd.h"
#include "kernels/gemm.h"
#include "tests/test.h"

/* ---- machines under test
 * ------------------------------------------------------------------------------------------ */

struct class
{
    const char *name;
    const struct gemm_ops *ops;
    int here;
};

static int list_classes(struct class out[5])
{
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    struct class all[5] = { { "portable", &gemm_portable, 1 },
                            { "simt", &gemm_simt, 1 },
                            { "avx2", &gemm_avx2, avx2 },
                            { "avx512", &gemm_avx512, avx512 },
                            { "avx512bf16", &gemm_avx512bf16,
                              avx512 && __builtin_cpu_supports("avx512bf16") } };
    int n = 0;
    for (int i = 0; i < 5; i++)
        if (all[i].here)
            out[n++] = all[i];
    return n;
}

static struct mem memory;

static struct dev *device(int threads)
{
    struct dev *d = NULL;
    struct err e;
    if (dev_open(&d, "cpu", threads, &memory, &e) < 0) {
        test_fail(__FILE__, __LINE__, "no device: %s", e.text);
        exit(1);
    }
    return d;
}

/* ---- data
 * ------------------------------------------------------------------------------------------ */

/* Values on which order and flushing matter: all sizes, tiny products, denormals, exact zeros of both
 * signs. */
enum data { PLAIN, WIDE, TINY, N_DATA };

static float value(enum data kind, uint64_t stream, uint64_t i)
{
    double u = 2 * rnd_unit(7, stream, 2 * i) - 1, e = rnd_unit(7, stream, 2 * i + 1);
    if (kind == PLAIN)
        return (float)u;
    if (kind == WIDE)
        return (float)ldexp(u, (int)(e * 60) - 30);
    if (e < 0.1)
        return e < 0.05 ? 0.0f : -0.0f;
    return (float)ldexp(u, e < 0.3 ? -127 - (int)(e * 60) : -58 - (int)(e * 12));
}

static uint16_t to_bf16(float x)
{
    uint32_t w;
    memcpy(&w, &x, 4);
    /* finite values only; denormals stay: kernels must flush */
    return (uint16_t)((w + 0x7fff + (w >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t h)
{
    uint32_t w = (uint32_t)h << 16;
    float x;
    memcpy(&x, &w, 4);
    return x;
}

/* A matrix of its own memory with columns to spare: a reader or writer of the gap would be noticed. */
static struct mat new_mat(enum dtype dt, int64_t rows, int64_t cols, enum data kind, uint64_t stream)
{
    int64_t ld = cols + 3, count = rows * ld;
    struct mat m = mat_of(malloc((size_t)count * dtype_size(dt) + 1), dt, rows, cols, ld);
    for (int64_t i = 0; i < count; i++) {
        float v = i % ld < cols ? value(kind, stream, (uint64_t)i) : NAN;
        if (dt == DT_F32)
            ((float *)m.p)[i] = v;
        else
            ((uint16_t *)m.p)[i] = i % ld < cols ? to_bf16(v) : 0x7fc0;
    }
    return m;
}

static float at(struct mat m, int64_t r, int64_t c)
{
    return m.dt == DT_F32 ? ((float *)m.p)[r * m.ld + c] : from_bf16(((uint16_t *)m.p)[r * m.ld + c]);
}

#define UNTOUCHED 0x1.234p5f

static struct mat new_out(int64_t rows, int64_t cols)
{
    struct mat m = mat_of(malloc((size_t)(rows * (cols + 5)) * 4 + 4), DT_F32, rows, cols, cols + 5);
    for (int64_t i = 0; i < rows * m.ld; i++)
        ((float *)m.p)[i] = UNTOUCHED;
    return m;
}

static void check_gap(const char *what, struct mat m)
{
    for (int64_t r = 0; r < m.rows; r++)
        for (int64_t c = m.cols; c < m.ld; c++)
            if (((float *)m.p)[r * m.ld + c] != UNTOUCHED) {
                test_fail(__FILE__, __LINE__, "%s: wrote behind column %lld", what, (long long)m.cols);
                return;
            }
}

static void check_same(const char *what, struct mat got, struct mat want)
{
    check_gap(what, got);
    for (int64_t r = 0; r < got.rows; r++)
        for (int64_t c = 0; c < got.cols; c++) {
            float *a = (float *)got.p + r * got.ld + c, *b = (float *)want.p + r * want.ld + c;
            if (memcmp(a, b, 4)) {
                test_fail(__FILE__, __LINE__, "%s: element %lld,%lld of %lldx%lld is %a, not %a", what,
                          (long long)r, (long long)c, (long long)got.rows, (long long)got.cols, (double)*a,
                          (double)*b);
                return;
            }
        }
}

static struct panels new_panels(struct dev *d, const struct gemm_ops *ops, int n_w, const struct mat *w,
                                const struct leaves *l)
{
    struct panels p = { NULL, 0, w[0].cols, w[0].dt, *l };
    for (int i = 0; i < n_w; i++)
        p.n += w[i].rows;
    size_t bytes = (panels_bytes(p.n, p.k, p.dt, l) + 63) / 64 * 64;
    p.p = aligned_alloc(64, bytes + 64);
    memset(p.p, 0xff, bytes); /* NaN: a missing column would be seen */
    ops->linear_pack(d, &p, n_w, w);
    return p;
}

/* ---- the definition
 * ------------------------------------------------------------------------------------------ */

static float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

/* fma with denormals flushed, decided after rounding to 24 bits: 113 bits hold every case near the limit
 * exactly. */
static float fma_flush(float a, float b, float sum)
{
    a = flush(a), b = flush(b);
    float r = fmaf(a, b, sum);
    if (fabsf(r) >= 0x1p-125f) /* far from the limit; what follows is slow */
        return r;
    __float128 exact = (__float128)a * b + sum, size = exact < 0 ? -exact : exact;
    return size < 0x1p-126 * (1 - 0x1p-25) ? copysignf(0, r) : r;
}

struct term {
    float a, b;
};

static float chain(enum dtype dt, const struct term *t, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum = dt == DT_F32 ? fmaf(t[i].a, t[i].b, sum) : fma_flush(t[i].a, t[i].b, sum);
    return dt == DT_BF16 && n % 2 ? fma_flush(0, 0, sum) : sum;
}

static void define_dx(struct mat out, int n_w, const struct mat *dy, const struct mat *w,
                      const struct leaves *l, int w_by_row)
{
    struct term *t = malloc(sizeof *t * 16384);
    float sums[GRAIN_MAX];
    for (int64_t r = 0; r < out.rows; r++)
        for (int64_t c = 0; c < out.cols; c++) {
            for (int g = 0; g < l->n; g++) {
                int64_t n = 0;
                for (int i = 0; i < n_w; i++)
                    for (int64_t e = g ? l[i].end[g - 1] : 0; e < l[i].end[g]; e++)
                        t[n++] = (struct term){ at(dy[i], r, e), w_by_row ? at(w[i], c, e) : at(w[i], e, c) };
                sums[g] = chain(out.rows ? dy[0].dt : DT_F32, t, n);
            }
            ((float *)out.p)[r * out.ld + c] = tree_sum(l->n, sums, 1);
        }
    free(t);
}

static void define_linear(struct mat out, struct mat x, struct mat w, const struct leaves *l)
{
    define_dx(out, 1, &x, &w, l, 1);
}

static void define_dw(struct mat out, struct mat dy, struct mat x, int n_seq, int64_t seq_len)
{
    struct term *t = malloc(sizeof *t * (size_t)(seq_len + 1));
    float *sums = malloc(sizeof *sums * (size_t)n_seq);
    for (int64_t r = 0; r < out.rows; r++)
        for (int64_t c = 0; c < out.cols; c++) {
            for (int s = 0; s < n_seq; s++) {
                for (int64_t i = 0; i < seq_len; i++)
                    t[i] = (struct term){ at(dy, s * seq_len + i, r), at(x, s * seq_len + i, c) };
                sums[s] = chain(x.dt, t, seq_len);
            }
            ((float *)out.p)[r * out.ld + c] = tree_sum(n_seq, sums, 1);
        }
    free(sums);
    free(t);
}

static struct leaves cut(int n, const int64_t *len)
{
    struct leaves l = { .n = n };
    for (int i = 0; i < n; i++)
        l.end[i] = len[i] + (i ? l.end[i - 1] : 0);
    return l;
}

/* ---- forward
 * ------------------------------------------------------------------------------------------ */

struct shape {
    int64_t m, n;
    int n_leaves;
    int64_t len[12];
};
static const struct shape shapes[] = {
    { 1, 1, 1, { 1 } },
    { 1, 33, 2, { 5, 3 } },
    { 3, 32, 8, { 16, 16, 16, 16, 16, 16, 16, 16 } },
    { 5, 31, 8, { 7, 7, 7, 7, 7, 7, 7, 3 } },
    { 17, 70, 8, { 10, 10, 10, 10, 10, 1, 0, 0 } },
    { 29, 64, 6, { 17, 33, 1, 2, 40, 16 } },
    { 14, 47, 3, { 0, 20, 19 } },
    { 2, 65, 12, { 4, 4, 5, 4, 4, 4, 6, 4, 4, 4, 4, 1 } },
    { 4, 3, 1, { 0 } },
    /* leaves longer than a step of the contraction, and several in one */
    { 20, 37, 6, { 300, 13, 4101, 0, 70, 70 } },
};
#define N_SHAPES ((int)(sizeof shapes / sizeof *shapes))

/* Weights in natural order give the bits of packed ones: in one run at the matrix's stride, and in runs
 * that end within a panel. */
static void rows_case(struct dev *d, const struct class *c, const char *what, struct mat x, struct mat w,
                      const struct leaves *l, struct mat want)
{
    const int64_t row = w.ld * (int64_t)dtype_size(w.dt), cut = w.rows / 3;
    const struct panel_run run[3] = { { w.p, cut },
                                      { (char *)w.p + cut * row, cut },
                                      { (char *)w.p + 2 * cut * row, w.rows - 2 * cut } };
    for (int n_runs = 0; n_runs <= 3; n_runs += 3) {
        struct panels p = { .p = w.p,
                            .n = w.rows,
                            .k = w.cols,
                            .dt = w.dt,
                            .leaves = *l,
                            .kind = PANEL_ROWS,
                            .stride = row,
                            .n_runs = n_runs,
                            .run = run };
        struct mat y = new_out(x.rows, w.rows);
        char name[100];
        snprintf(name, sizeof name, "rows, %d runs, %s", n_runs, what);
        c->ops->linear(d, y, x, &p);
        check_same(name, y, want);
        free(y.p);
    }
}

static void linear_case(struct dev *d, const struct class *c, const struct shape *s, enum dtype dt,
                        enum data kind)
{
    char what[80];
    snprintf(what, sizeof what, "%s %s data %d, %lldx%lld, %d leaves", c->name,
             dtype_size(dt) == 4 ? "fp32" : "bf16", kind, (long long)s->m, (long long)s->n, s->n_leaves);
    struct leaves l = cut(s->n_leaves, s->len);
    int64_t k = l.end[l.n - 1];
    struct mat x = new_mat(dt, s->m, k, kind, 1), w = new_mat(dt, s->n, k, kind, 2);
    struct mat y = new_out(s->m, s->n), want = new_out(s->m, s->n);
    struct panels p = new_panels(d, c->ops, 1, &w, &l);
    c->ops->linear(d, y, x, &p);
    define_linear(want, x, w, &l);
    check_same(what, y, want);
    if (c->ops != &gemm_simt)
        rows_case(d, c, what, x, w, &l, want);
    free(p.p), free(x.p), free(w.p), free(y.p), free(want.p);
}

static void linear_everywhere(enum dtype dt)
{
    struct class c[5];
    int n = list_classes(c);
    struct dev *d = device(1);
    for (int i = 0; i < n; i++)
        for (int s = 0; s < N_SHAPES; s++)
            for (enum data kind = 0; kind < N_DATA; kind++)
                linear_case(d, &c[i], &shapes[s], dt, kind);
    dev_close(d);
}

TEST(linear_fp32_is_its_definition_in_every_class) { linear_everywhere(DT_F32); }
TEST(linear_bf16_is_its_definition_in_every_class) { linear_everywhere(DT_BF16); }

TEST(linear_row_is_the_same_alone_and_among_many)
{
    /* more rows than are packed together */
    enum { MANY = 260 };
    struct class c[5];
    int n = list_classes(c);
    struct dev *d = device(1);
    struct leaves l = leaves_of(100, 8, 0, 8);
    for (int i = 0; i < 2 * n; i++) {
        enum dtype dt = i % 2 ? DT_BF16 : DT_F32;
        const struct gemm_ops *ops = c[i / 2].ops;
        struct mat x = new_mat(dt, MANY, 100, WIDE, 1), w = new_mat(dt, 40, 100, WIDE, 2);
        struct mat all = new_out(MANY, 40);
        struct panels p = new_panels(d, ops, 1, &w, &l);
        ops->linear(d, all, x, &p);
        for (int64_t rows = 1; rows <= 16; rows++)
            for (int64_t r = 0; r + rows <= MANY; r += 31) {
                struct mat part = mat_of((char *)x.p + r * x.ld * (int64_t)dtype_size(dt), dt, rows, 100,
                                         x.ld);
                struct mat y = new_out(rows, 40),
                           want = mat_of((float *)all.p + r * all.ld, DT_F32, rows, 40, all.ld);
                ops->linear(d, y, part, &p);
                check_same(c[i / 2].name, y, want);
                free(y.p);
            }
        free(p.p), free(x.p), free(w.p), free(all.p);
    }
    dev_close(d);
}

TEST(linear_pack_of_stacked_matrices_is_that_of_one)
{
    struct class c[5];
    int n = list_classes(c);
    struct dev *d = device(1);
    struct leaves l = leaves_of(45, 4, 0, 4);
    for (int i = 0; i < 2 * n; i++) {
        const struct gemm_ops *ops = c[i / 2].ops;
        struct mat w = new_mat(i % 2 ? DT_BF16 : DT_F32, 85, 45, WIDE, 3), part[4];
        int64_t cuts[5] = { 0, 37, 37, 50, 85 };
        for (int s = 0; s < 4; s++)
            part[s] = mat_of((char *)w.p + cuts[s] * w.ld * (int64_t)dtype_size(w.dt), w.dt,
                             cuts[s + 1] - cuts[s], 45, w.ld);
        struct panels one = new_panels(d, ops, 1, &w, &l), four = new_panels(d, ops, 4, part, &l);
        size_t bytes = panels_bytes(85, 45, w.dt, &l);
        CHECK_SAME(one.p, four.p, bytes);
        CHECK_INT(bytes, i % 2 ? 96 * (6 + 6 + 6 + 5) * 4 : 96 * 45 * 4);
        free(one.p), free(four.p), free(w.p);
    }
    dev_close(d);
}

/* ---- backward
 * ------------------------------------------------------------------------------------------ */

static const int64_t segment_len[][3][8] = {
    { { 8, 8, 8, 8, 8, 8, 8, 8 } },
    { { 5, 5, 5, 5, 5, 5, 5, 1 }, { 3, 3, 3, 3, 3, 3, 3, 0 }, { 1, 1, 1, 1, 1, 1, 0, 0 } },
    { { 16, 16, 16, 16 }, { 7, 7, 7, 6 }, { 8, 8, 8, 8 } },
    { { 0, 3 }, { 5, 0 } },
    { { 2201, 90, 90, 10 }, { 2190, 1, 90, 0 } },
};
static const int segment_count[] = { 1, 3, 3, 2, 2 }, segment_leaves[] = { 8, 8, 4, 2, 4 };

static void dx_case(struct dev *d, const struct class *c, int which, enum dtype dt, enum data kind, int64_t m,
                    int64_t k)
{
    struct mat dy[3] = { 0 }, w[3] = { 0 }, dx = new_out(m, k), want = new_out(m, k);
    struct leaves l[3] = { 0 };
    int n = segment_count[which];
    for (int i = 0; i < n; i++) {
        l[i] = cut(segment_leaves[which], segment_len[which][i]);
        dy[i] = new_mat(dt, m, l[i].end[l[i].n - 1], kind, 10 + (uint64_t)i);
        w[i] = new_mat(dt, l[i].end[l[i].n - 1], k, kind, 20 + (uint64_t)i);
    }
    c->ops->linear_dx(d, dx, n, dy, w, l);
    define_dx(want, n, dy, w, l, 0);
    check_same(c->name, dx, want);
    for (int i = 0; i < n; i++)
        free(dy[i].p), free(w[i].p);
    free(dx.p), free(want.p);
}

TEST(linear_dx_is_its_definition_in_every_class)
{
    struct class c[5];
    int n = list_classes(c);
    struct dev *d = device(1);
    for (int i = 0; i < n; i++)
        for (int which = 0; which < 5; which++)
            for (enum data kind = 0; kind < N_DATA; kind++)
                for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++)
                    dx_case(d, &c[i], which, dt, kind, which == 1 || which == 4 ? 19 : 3,
                            which == 2 ? 33 : 40);
    dev_close(d);
}

/* n_seq sequences in calls of at most per_call, with guards in every level. */
static void dw_case(struct dev *d, const struct class *c, int n_seq, int per_call, int64_t seq_len,
                    enum dtype dt, enum data kind)
{
    int64_t rows = 19, cols = 41;
    struct mat dy = new_mat(dt, n_seq * seq_len, rows, kind, 4),
               x = new_mat(dt, n_seq * seq_len, cols, kind, 5);
    struct mat want = new_out(rows, cols), level[TREE_DEPTH_MAX];
    struct tree_acc acc = { .n = n_seq };
    int levels = tree_levels(n_seq, per_call);
    for (int i = 0; i < levels; i++) {
        level[i] = new_out(rows, cols);
        acc.level[i] = level[i].p;
    }
    for (int s = 0; s < n_seq; s += per_call) {
        int count = per_call < n_seq - s ? per_call : n_seq - s;
        int64_t size = (int64_t)dtype_size(dt);
        struct mat dys = mat_of((char *)dy.p + s * seq_len * dy.ld * size, dt, count * seq_len, rows, dy.ld);
        struct mat xs = mat_of((char *)x.p + s * seq_len * x.ld * size, dt, count * seq_len, cols, x.ld);
        acc.next = s;
        c->ops->linear_dw(d, &acc, level[0].ld, dys, xs, count, seq_len);
    }
    char what[80];
    snprintf(what, sizeof what, "%s: %d sequences, %d a call", c->name, n_seq, per_call);
    define_dw(want, dy, x, n_seq, seq_len);
    check_same(what, level[0], want);
    for (int i = 0; i < levels; i++) {
        check_gap(what, level[i]);
        free(level[i].p);
    }
    free(dy.p), free(x.p), free(want.p);
}

TEST(linear_dw_is_its_definition_in_calls_of_any_size)
{
    static const int counts[] = { 1, 2, 3, 6, 8, 12, 24 };
    struct class c[5];
    int n = list_classes(c);
    struct dev *d = device(1);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 7; k++)
            for (int per_call = 1; per_call <= counts[k]; per_call++)
                dw_case(d, &c[i], counts[k], per_call, 5, per_call % 2 ? DT_F32 : DT_BF16, WIDE);
    dev_close(d);
}

TEST(linear_dw_is_its_definition_for_any_length_and_data)
{
    struct class c[5];
    int n = list_classes(c);
    struct dev *d = device(1);
    for (int i = 0; i < n; i++)
        for (int64_t len = 0; len < 40; len += 13)
            for (enum data kind = 0; kind < N_DATA; kind++)
                for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++)
                    dw_case(d, &c[i], 4, 4, len, dt, kind);
    dev_close(d);
}

TEST(linear_dw_is_its_definition_where_sequences_are_longer_than_a_step)
{
    struct class c[5];
    int n = list_classes(c);
    struct dev *d = device(1);
    for (int i = 0; i < n; i++)
        for (int per_call = 1; per_call <= 2; per_call++)
            for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++)
                dw_case(d, &c[i], 2, per_call, per_call == 1 ? 4151 : 2100, dt, WIDE);
    dev_close(d);
}

TEST(linear_dw_takes_many_sequences_in_a_call)
{
    struct class c[5];
    struct dev *d = device(1);
    int n = list_classes(c);
    dw_case(d, &c[n - 1], 1200, 1200, 1, DT_F32, PLAIN);
    dw_case(d, &c[n - 1], 1536, 1000, 1, DT_F32, PLAIN);
    dw_case(d, &c[n - 1], 1023, 1023, 1, DT_F32, PLAIN);
    dev_close(d);
}

/* ---- threads, rounding mode, edges
 * ------------------------------------------------------------------------------------------ */

TEST(products_do_not_depend_on_threads)
{
    struct class c[5];
    int n = list_classes(c);
    struct dev *d[3] = { device(1), device(2), device(5) };
    const struct gemm_ops *ops = c[n - 1].ops;
    struct leaves l = leaves_of(210, 8, 0, 8);
    for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++) {
        struct mat x = new_mat(dt, 150, 210, WIDE, 1), w = new_mat(dt, 330, 210, WIDE, 2), y[3], dx[3], dw[3];
        struct mat dy = new_mat(dt, 150, 330, WIDE, 3), v = new_mat(dt, 330, 210, WIDE, 4);
        struct leaves m = leaves_of(330, 8, 0, 8);
        for (int i = 0; i < 3; i++) {
            y[i] = new_out(150, 330), dx[i] = new_out(150, 210), dw[i] = new_out(330, 210);
            struct panels p = new_panels(d[i], ops, 1, &w, &l);
            struct tree_acc acc = { .n = 6, .level = { dw[i].p } };
            ops->linear(d[i], y[i], x, &p);
            ops->linear_dx(d[i], dx[i], 1, &dy, &v, &m);
            ops->linear_dw(d[i], &acc, dw[i].ld, dy, x, 6, 25);
            check_same("linear", y[i], y[0]);
            check_same("linear_dx", dx[i], dx[0]);
            check_same("linear_dw", dw[i], dw[0]);
            free(p.p);
        }
        for (int i = 0; i < 3; i++)
            free(y[i].p), free(dx[i].p), free(dw[i].p);
        free(x.p), free(w.p), free(dy.p), free(v.p);
    }
    for (int i = 0; i < 3; i++)
        dev_close(d[i]);
}

/* One bf16 row times one bf16 column through every class; all must give `want`. */
static void bf16_dot(int n_leaves, const int64_t *len, const float *a, const float *b, float want)
{
    struct class c[5];
    int n = list_classes(c);
    struct dev *d = device(1);
    struct leaves l = cut(n_leaves, len);
    uint16_t x[16], w[16];
    for (int64_t i = 0; i < l.end[l.n - 1]; i++)
        x[i] = to_bf16(a[i]), w[i] = to_bf16(b[i]);
    for (int i = 0; i < n; i++) {
        float y = UNTOUCHED;
        struct mat xm = mat_of(x, DT_BF16, 1, l.end[l.n - 1], 16),
                   wm = mat_of(w, DT_BF16, 1, l.end[l.n - 1], 16);
        struct panels p = new_panels(d, c[i].ops, 1, &wm, &l);
        c[i].ops->linear(d, mat_of(&y, DT_F32, 1, 1, 1), xm, &p);
        if (memcmp(&y, &want, 4))
            test_fail(__FILE__, __LINE__, "%s: %a, not %a", c[i].name, (double)y, (double)want);
        free(p.p);
    }
    dev_close(d);
}

TEST(bf16_chain_flushes_after_rounding_as_the_instruction)
{
    const int64_t two[] = { 2 };
    /* 2^-126 - 2^-150 has 24 bits: below the smallest normal number, although its nearest denormal is that
     * number */
    bf16_dot(1, two, (float[]){ 0x1p-63f, 0x1p-75f }, (float[]){ 0x1p-63f, -0x1p-75f }, 0.0f);
    /* 2^-126 - 2^-151 rounds up to it, and stays */
    bf16_dot(1, two, (float[]){ 0x1p-63f, 0x1p-75f }, (float[]){ 0x1p-63f, -0x1p-76f }, 0x1p-126f);
    bf16_dot(1, two, (float[]){ -0x1p-63f, 0x1p-75f }, (float[]){ 0x1p-63f, 0x1p-75f }, -0.0f);
    /* a denormal factor is zero, however large the other is */
    bf16_dot(1, two, (float[]){ 0x1p-127f, 0x1p0f }, (float[]){ 0x1p120f, 0x1p-126f }, 0x1p-126f);
}

TEST(bf16_odd_leaf_ends_with_a_zero_half)
{
    const int64_t one[] = { 1 }, two[] = { 2 };
    /* -0, then fma(0, 0, -0) = +0 */
    bf16_dot(1, one, (float[]){ 0x1p-70f }, (float[]){ -0x1p-70f }, 0.0f);
    bf16_dot(1, two, (float[]){ 1, 0x1p-70f }, (float[]){ 0, -0x1p-70f }, -0.0f);
}

TEST(bf16_tree_keeps_denormals)
{
    const int64_t ones[] = { 2, 2 };
    bf16_dot(2, ones, (float[]){ 0x1.8p-63f, 0, -0x1p-63f, 0 }, (float[]){ 0x1p-63f, 0, 0x1p-63f, 0 },
             0x1p-127f);
}

TEST(products_leave_the_rounding_mode_alone)
{
    volatile float tiny = 0x1p-126f;
    bf16_dot(1, (int64_t[]){ 1 }, (float[]){ 1 }, (float[]){ 1 }, 1.0f);
    CHECK_BITS(tiny / 2, 0x1p-127f);
}

TEST(products_of_nothing_write_nothing_but_sums)
{
    struct class c[5];
    int n = list_classes(c);
    struct dev *d = device(1);
    for (int i = 0; i < n; i++) {
        struct leaves none = cut(2, (int64_t[]){ 0, 0 }), some = cut(2, (int64_t[]){ 2, 2 });
        float y[4] = { 7, 7, 7, 7 }, x[8] = { 0 };
        struct mat xm = mat_of(x, DT_F32, 2, 4, 4), ym = mat_of(y, DT_F32, 2, 2, 2);
        struct panels p = { x, 0, 4, DT_F32, some };
        c[i].ops->linear(d, mat_of(y, DT_F32, 2, 0, 2), xm, &p);
        c[i].ops->linear_dx(d, mat_of(y, DT_F32, 0, 2, 2), 1, &xm, &ym, &some);
        CHECK_BITS(y[0], 7.0f);
        struct mat w = mat_of(x, DT_F32, 0, 2, 2), dy = mat_of(x, DT_F32, 2, 0, 2);
        c[i].ops->linear_dx(d, ym, 1, &dy, &w, &none);
        for (int j = 0; j < 4; j++)
            CHECK_BITS(y[j], 0.0f);
    }
    dev_close(d);
}

TEST(products_without_memory_are_nan)
{
    struct class c[5];
    int n = list_classes(c);
    /* larger than what the self-test at start has left as scratch */
    enum { N = 64, K = 1024 };
    static float x[N * K], y[N * N];
    struct leaves l = cut(2, (int64_t[]){ K / 2, K / 2 });
    struct mat xm = mat_of(x, DT_F32, N, K, K), ym = mat_of(y, DT_F32, N, N, N),
               wm = mat_of(x, DT_F32, K, N, N);
    struct tree_acc acc = { .n = 1, .level = { y } };
    for (int op = 0; op < 3; op++)
        for (int nth = 1; nth <= (op < 1 ? 1 : op < 2 ? 2 : 3); nth++) {
            struct dev *d = device(1);
            struct panels p = new_panels(d, c[n - 1].ops, 1, &xm, &l);
            memset(y, 0, sizeof y);
            memory.fail_after = nth;
            if (op == 0)
                c[n - 1].ops->linear(d, ym, xm, &p);
            else if (op == 1)
                c[n - 1].ops->linear_dx(d, ym, 1, &xm, &wm, &l);
            else
                c[n - 1].ops->linear_dw(d, &acc, N, wm, wm, 1, K);
            memory.fail_after = 0;
            for (int i = 0; i < N * N; i++)
                if (!isnan(y[i])) {
                    test_fail(__FILE__, __LINE__, "op %d went on without its allocation %d", op, nth);
                    break;
                }
            free(p.p);
            dev_close(d);
        }
}
