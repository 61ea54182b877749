/* product_cases.h - products of the CUDA device: fp32 has the CPU's bits, bf16 stays within a bound of sums
 * in double, and both have the same bits for every number of rows, slice, stride and run. Where the GPU is
 * emulated (EMULATED 1) what an mma rounds is known, and bf16 is compared with its definition, bit for
 * bit. */
#ifndef SHARDLINE_TESTS_UNIT_KERNELS_PRODUCT_CASES_H
#define SHARDLINE_TESTS_UNIT_KERNELS_PRODUCT_CASES_H

#include <math.h>
#include "base/rnd.h"
#include "kernels/fn.h"
#include "kernels/kernels.h"
#include "tests/test.h"

static struct mem memory;
/* Who multiplies (SHARDLINE_CUDA), and emulated GPUs that take other kernels for a product: sm, KiB of
 * shared memory, number of multiprocessors. Each test runs with every one; what a real GPU has not is passed
 * over. */
static const struct gpu {
    const char *kernels, *sm, *kib, *processors;
} gpus[] = {
    { "own", "80", "163", "1" },
#if EMULATED
    { "own", "80", "99", "999" },  { "own", "90", "227", "2" },
    { "wgmma", "90", "227", "1" }, { "wgmma", "90", "227", "999" },
#else
    { "mma", "", "", "" },
    { "wgmma", "", "", "" },
#endif
};
enum { N_GPUS = sizeof gpus / sizeof *gpus };
static int which_gpu;
#define ON_EVERY_GPU for (which_gpu = 0; which_gpu < N_GPUS; which_gpu++)

/* NULL: no GPU here; the test was skipped. */
static struct dev *open_gpu(void)
{
    const struct gpu *g = &gpus[which_gpu];
    struct dev *d;
    struct err e;
    setenv("SHARDLINE_CUDA", g->kernels, 1);
    setenv("SHARDLINE_EMU_SM", g->sm, 1);
    setenv("SHARDLINE_EMU_SHARED", g->kib, 1);
    setenv("SHARDLINE_EMU_PROCESSORS", g->processors, 1);
    if (dev_open(&d, "cuda", 1, &memory, &e) < 0) {
        if (!which_gpu || !strstr(e.text, "not here"))
            test_skip("%s", e.text);
        return NULL;
    }
    return d;
}

static void close_gpu(struct dev *d, const char *what)
{
    struct err e;
    if (dev_check(d, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", what, e.text);
    dev_close(d);
    CHECK_INT(memory.total_now, 0);
}

/* ---- matrices in both memories ---- */
/* columns behind a matrix that no op may read into a sum or write */
#define GAP 3
struct pair {
    struct mat here, there;
    size_t bytes;
};

static struct pair new_pair(struct dev *d, enum dtype dt, int64_t rows, int64_t cols, int64_t gap,
                            uint64_t stream)
{
    const int64_t ld = cols + gap;
    struct pair p = { .bytes = (size_t)(rows * ld) * dtype_size(dt) + 8 };
    char *host = malloc(p.bytes), *there = dev_alloc(d, MEM_WORK, p.bytes);
    for (int64_t i = 0; i < rows * ld; i++) {
        const double u = 2 * rnd_unit(5, stream, (uint64_t)(i / ld * cols + i % ld) * 2) - 1,
                     e = rnd_unit(5, stream, (uint64_t)(i / ld * cols + i % ld) * 2 + 1);
        const float v = i % ld < cols ? (float)ldexp(u, (int)(e * 12) - 6) : NAN;
        if (dt == DT_BF16)
            ((uint16_t *)(void *)host)[i] = fn_to_bf16(v);
        else
            ((float *)(void *)host)[i] = v;
    }
    dev_write(d, there, host, p.bytes - 8);
    p.here = mat_of(host, dt, rows, cols, ld);
    p.there = mat_of(there, dt, rows, cols, ld);
    return p;
}

/* For results: all of it a number that no product gives. */
static struct pair new_result(struct dev *d, int64_t rows, int64_t cols)
{
    struct pair p = new_pair(d, DT_F32, rows, cols, GAP, 1);
    for (int64_t i = 0; i < rows * p.here.ld; i++)
        ((float *)p.here.p)[i] = 0x1.234p55f;
    dev_write(d, p.there.p, p.here.p, p.bytes - 8);
    return p;
}

static void drop(struct dev *d, struct pair *p)
{
    free(p->here.p);
    dev_free(d, p->there.p);
}

static double at(struct mat m, int64_t r, int64_t c)
{
    return m.dt == DT_F32 ? ((const float *)m.p)[r * m.ld + c]
                          : fn_from_bf16(((const uint16_t *)m.p)[r * m.ld + c]);
}

/* The device's memory where `p` is the expected one: all of it, gaps too. */
static void check_result(struct dev *d, const char *what, struct pair p)
{
    float *got = malloc(p.bytes);
    dev_read(d, got, p.there.p, p.bytes - 8);
    for (int64_t i = 0; i < p.here.rows * p.here.ld; i++)
        if (memcmp(&got[i], (float *)p.here.p + i, 4)) {
            test_fail(__FILE__, __LINE__, "%s: element %lld,%lld of %lldx%lld is %a, not %a", what,
                      (long long)(i / p.here.ld), (long long)(i % p.here.ld), (long long)p.here.rows,
                      (long long)p.here.cols, (double)got[i], (double)((float *)p.here.p)[i]);
            break;
        }
    free(got);
}

/* ---- the definition of a bf16 leaf, and its bound ---- */
struct chain {
    float sum;
    double exact, size;
    int64_t n_steps;
};

/* n products, term(k): the k-th. */
static void chain_step(struct chain *c, const double *product, int n)
{
    double d = c->sum;
    for (int i = 0; i < n; i++) {
        d += product[i];
        c->exact += product[i];
        c->size += fabs(product[i]);
    }
    c->sum = (float)d;
    c->n_steps++;
}

/* Columns [from, to) of row r of a against those of row (or, across, column) q of b. */
static void chain_part(struct chain *c, struct mat a, int64_t r, int a_across, struct mat b, int64_t q,
                       int b_across, int64_t from, int64_t to)
{
    double product[16];
    for (int64_t k = from; k < to; k += 16) {
        const int n = to - k < 16 ? (int)(to - k) : 16;
        for (int i = 0; i < n; i++)
            product[i] = (a_across ? at(a, k + i, r) : at(a, r, k + i)) *
                         (b_across ? at(b, k + i, q) : at(b, q, k + i));
        chain_step(c, product, n);
    }
}

/* Leaf sums of one element become its result; the bound: what rounding every step to 24 bits (on a GPU:
 * cutting it to about 22) can do. */
static void set_element(struct dev *d, struct pair y, int64_t r, int64_t c, const struct chain *leaf, int n)
{
    float sums[GRAIN_MAX], got;
    double exact = 0, size = 0, steps = n;
    for (int i = 0; i < n; i++) {
        sums[i] = leaf[i].sum;
        exact += leaf[i].exact;
        size += leaf[i].size;
        steps += (double)leaf[i].n_steps;
    }
    dev_read(d, &got, (const float *)y.there.p + r * y.there.ld + c, 4);
    if (!(fabs(got - exact) <= size * steps * (EMULATED ? 0x1p-24 : 0x1p-21)))
        test_fail(__FILE__, __LINE__, "element %lld,%lld is %.9g, not %.9g: more than %.0f steps may do",
                  (long long)r, (long long)c, (double)got, exact, steps);
    ((float *)y.here.p)[r * y.here.ld + c] = EMULATED ? tree_sum(n, sums, 1) : got;
}

/* ---- linear ---- */
static struct leaves cut(int n, const int64_t *len)
{
    struct leaves l = { .n = n };
    for (int i = 0; i < n; i++)
        l.end[i] = len[i] + (i ? l.end[i - 1] : 0);
    return l;
}

static void gpu_linear(struct dev *d, struct mat y, struct mat x, struct mat w, const struct leaves *l)
{
    struct panels p = { NULL, w.rows, w.cols, w.dt, *l };
    p.p = dev_alloc(d, MEM_WORK, panels_bytes(w.rows, w.cols, w.dt, l) + 64);
    dev_fill(d, p.p, 0xff, panels_bytes(w.rows, w.cols, w.dt, l));
    KERNEL(d, linear_pack, &p, 1, &w);
    KERNEL(d, linear, y, x, &p);
    dev_free(d, p.p);
}

static void want_linear(struct dev *d, struct pair y, struct pair x, struct pair w, const struct leaves *l)
{
    if (x.here.dt == DT_F32) {
        gpu_linear(d->host, y.here, x.here, w.here, l);
        return;
    }
    for (int64_t r = 0; r < y.here.rows; r++)
        for (int64_t c = 0; c < y.here.cols; c++) {
            struct chain leaf[GRAIN_MAX] = { { 0 } };
            for (int g = 0; g < l->n; g++)
                chain_part(&leaf[g], x.here, r, 0, w.here, c, 0, g ? l->end[g - 1] : 0, l->end[g]);
            set_element(d, y, r, c, leaf, l->n);
        }
}

struct shape {
    int64_t m, n, gap;
    int n_leaves;
    int64_t len[12];
};
static const struct shape shapes[] = {
    { 1, 1, GAP, 1, { 1 } },
    { 1, 33, GAP, 2, { 5, 3 } },
    { 3, 64, 0, 8, { 16, 16, 16, 16, 16, 16, 16, 16 } },
    { 16, 40, 8, 8, { 40, 40, 40, 40, 40, 40, 40, 8 } }, /* 16-byte pieces all along */
    { 5, 31, GAP, 8, { 7, 7, 7, 7, 7, 7, 7, 3 } },
    { 17, 70, GAP, 8, { 10, 10, 10, 10, 10, 1, 0, 0 } },
    { 50, 64, GAP, 6, { 17, 33, 1, 2, 40, 16 } },
    { 14, 47, GAP, 3, { 0, 20, 19 } },
    /* more leaves than a block of few rows has warps */
    { 2, 65, GAP, 12, { 4, 4, 5, 4, 4, 4, 6, 4, 4, 4, 4, 1 } },
    { 4, 3, GAP, 1, { 0 } },
    { 70, 65, GAP, 8, { 33, 33, 33, 33, 33, 33, 33, 9 } }, /* many rows */
    { 130, 96, 0, 4, { 64, 64, 64, 64 } },
    { 65, 20, GAP, 12, { 40, 1, 2, 16, 16, 16, 16, 1, 3, 0, 0, 70 } },
};

static void linear_shapes(enum dtype dt)
{
    struct dev *d = open_gpu();
    for (size_t i = 0; d && i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        char what[60];
        struct leaves l = cut(s->n_leaves, s->len);
        const int64_t k = l.end[l.n - 1];
        struct pair x = new_pair(d, dt, s->m, k, s->gap, 2), w = new_pair(d, dt, s->n, k, GAP, 3),
                    y = new_result(d, s->m, s->n);
        snprintf(what, sizeof what, "linear of shape %zu", i);
        gpu_linear(d, y.there, x.there, w.there, &l);
        want_linear(d, y, x, w, &l);
        check_result(d, what, y);
        drop(d, &x), drop(d, &w), drop(d, &y);
    }
    if (d)
        close_gpu(d, "linear");
}

TEST(linear_fp32_has_the_cpu_s_bits) { ON_EVERY_GPU linear_shapes(DT_F32); }
TEST(linear_bf16_is_its_definition) { ON_EVERY_GPU linear_shapes(DT_BF16); }

/* Rows [r0, r0 + n) alone, with another stride, give the rows of all. */
static void rows_alone(struct dev *d, struct pair x, struct pair w, const struct leaves *l, struct pair all,
                       int64_t r0, int64_t n)
{
    char what[60];
    const size_t size = dtype_size(x.here.dt);
    struct pair y = new_result(d, n, all.here.cols),
                some = new_pair(d, x.here.dt, n, x.here.cols, 1 + (r0 + n) % 9, 9);
    dev_copy_rows(d, some.there.p, (size_t)some.there.ld * size,
                  (char *)x.there.p + (size_t)(r0 * x.there.ld) * size, (size_t)x.there.ld * size,
                  (size_t)x.there.cols * size, n);
    gpu_linear(d, y.there, some.there, w.there, l);
    for (int64_t r = 0; r < n; r++)
        memcpy((float *)y.here.p + r * y.here.ld, (float *)all.here.p + (r0 + r) * all.here.ld,
               (size_t)all.here.cols * 4);
    snprintf(what, sizeof what, "rows %lld to %lld alone", (long long)r0, (long long)(r0 + n));
    check_result(d, what, y);
    drop(d, &y), drop(d, &some);
}

static void rows_among_any_number(void)
{
    enum { MANY = 140, K = 300, N = 72 };
    static const int64_t counts[] = { 1, 2, 7, 16, 17, 33, 64, 65, 129 };
    struct dev *d = open_gpu();
    for (enum dtype dt = which_gpu ? DT_BF16 : DT_F32; d && dt <= DT_BF16; dt++) {
        struct leaves l = leaves_of(K, 8, 0, 8);
        struct pair x = new_pair(d, dt, MANY, K, 4, 2), w = new_pair(d, dt, N, K, GAP, 3),
                    all = new_result(d, MANY, N);
        gpu_linear(d, all.there, x.there, w.there, &l);
        dev_read(d, all.here.p, all.there.p, all.bytes - 8);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (int64_t r0 = i % 5; r0 + counts[i] <= MANY; r0 += 53)
                rows_alone(d, x, w, &l, all, r0, counts[i]);
        rows_alone(d, x, w, &l, all, 0, MANY); /* run to run */
        drop(d, &x), drop(d, &w), drop(d, &all);
    }
    if (d)
        close_gpu(d, "rows");
}

TEST(a_row_has_the_same_bits_among_any_number) { ON_EVERY_GPU rows_among_any_number(); }

/* Leaves cut by 1, 2, 4, 8 ranks and added as a tree; outputs cut in slices: the whole. */
static void slices_make_the_whole(void)
{
    enum { M = 20, K = 200, N = 96 };
    struct dev *d = open_gpu();
    for (int rows = M; d && rows <= 5 * M; rows += 4 * M)
        for (int tp = 2; tp <= 8; tp *= 2) {
            struct leaves l = leaves_of(K, 8, 0, 8);
            struct pair x = new_pair(d, DT_BF16, rows, K, 0, 2), w = new_pair(d, DT_BF16, N, K, 0, 3),
                        all = new_result(d, rows, N);
            struct pair part[8];
            const float *in[8];
            gpu_linear(d, all.there, x.there, w.there, &l);
            dev_read(d, all.here.p, all.there.p, all.bytes - 8);
            for (int t = 0; t < tp; t++) {
                struct leaves mine = leaves_of(K, 8, t * 8 / tp, 8 / tp);
                const int64_t from = block_begin(K, 8, t * 8 / tp), n = mine.end[mine.n - 1];
                part[t] = new_result(d, rows, N);
                in[t] = part[t].there.p;
                gpu_linear(d, part[t].there, mat_cols(x.there, from, n), mat_cols(w.there, from, n), &mine);
            }
            KERNEL(d, tree_add, part[0].there.p, in, tp, rows * all.there.ld - GAP);
            for (int r = 0; r < rows; r++) /* gaps were added too */
                dev_write(d, (float *)part[0].there.p + r * all.there.ld + N,
                          (float *)all.here.p + r * all.here.ld + N, GAP * 4);
            check_result(d, "leaves over ranks", (struct pair){ all.here, part[0].there, all.bytes });
            dev_fill(d, all.there.p, 0, 4);
            for (int t = 0; t < tp; t++) {
                const int64_t n = N / tp;
                gpu_linear(d, mat_cols(all.there, t * n, n), x.there, mat_rows(w.there, t * n, n), &l);
                drop(d, &part[t]);
            }
            check_result(d, "outputs over ranks", all);
            drop(d, &x), drop(d, &w), drop(d, &all);
        }
    if (d)
        close_gpu(d, "slices");
}

TEST(slices_of_leaves_and_of_outputs_make_the_whole) { ON_EVERY_GPU slices_make_the_whole(); }

/* ---- linear_dx ---- */
static const int64_t segment_len[][3][8] = {
    { { 8, 8, 8, 8, 8, 8, 8, 8 } },
    { { 50, 50, 50, 50, 50, 50, 50, 1 }, { 3, 3, 3, 3, 3, 3, 3, 0 }, { 1, 1, 1, 1, 1, 1, 0, 0 } },
    { { 16, 16, 16, 16 }, { 7, 7, 7, 6 }, { 40, 40, 40, 40 } },
    { { 0, 3 }, { 5, 0 } },
};
static const int segment_count[] = { 1, 3, 3, 2 }, segment_leaves[] = { 8, 8, 4, 2 };

static void dx_case(struct dev *d, int which, enum dtype dt, int64_t m, int64_t k, int64_t gap)
{
    const int n = segment_count[which], n_leaves = segment_leaves[which];
    struct pair dy[3], w[3], dx = new_result(d, m, k);
    struct mat dys[2][3], ws[2][3]; /* here, there */
    struct leaves l[3];
    for (int i = 0; i < n; i++) {
        l[i] = cut(n_leaves, segment_len[which][i]);
        dy[i] = new_pair(d, dt, m, l[i].end[n_leaves - 1], gap, 10 + (uint64_t)i);
        w[i] = new_pair(d, dt, l[i].end[n_leaves - 1], k, gap, 20 + (uint64_t)i);
        dys[0][i] = dy[i].here, dys[1][i] = dy[i].there, ws[0][i] = w[i].here, ws[1][i] = w[i].there;
    }
    KERNEL(d, linear_dx, dx.there, n, dys[1], ws[1], l);
    if (dt == DT_F32)
        KERNEL(d->host, linear_dx, dx.here, n, dys[0], ws[0], l);
    for (int64_t r = 0; dt == DT_BF16 && r < m; r++)
        for (int64_t c = 0; c < k; c++) {
            struct chain leaf[8] = { { 0 } };
            for (int g = 0; g < n_leaves; g++)
                for (int i = 0; i < n; i++)
                    chain_part(&leaf[g], dy[i].here, r, 0, w[i].here, c, 1, g ? l[i].end[g - 1] : 0,
                               l[i].end[g]);
            set_element(d, dx, r, c, leaf, n_leaves);
        }
    check_result(d, "linear_dx", dx);
    for (int i = 0; i < n; i++)
        drop(d, &dy[i]), drop(d, &w[i]);
    drop(d, &dx);
}

static void dx_shapes(void)
{
    struct dev *d = open_gpu();
    for (int which = 0; d && which < 4; which++)
        for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++) {
            dx_case(d, which, dt, 1, 5, GAP);
            dx_case(d, which, dt, 40, 72, 0);
            dx_case(d, which, dt, 131, 66, GAP);
        }
    if (d)
        close_gpu(d, "linear_dx");
}

TEST(linear_dx_is_its_definition) { ON_EVERY_GPU dx_shapes(); }

/* ---- linear_dw ---- */
/* Sequences in calls of `per`: the levels at the end are those of a tree over leaves that are chains over
 * tokens. */
static void dw_case(struct dev *d, enum dtype dt, int64_t n, int64_t k, int n_seq, int per, int64_t seq_len,
                    int64_t gap)
{
    struct pair dy = new_pair(d, dt, n_seq * seq_len, n, gap, 2),
                x = new_pair(d, dt, n_seq * seq_len, k, gap, 3), y = new_result(d, n, k), more[6];
    struct tree_acc acc = { .n = n_seq, .level = { y.there.p } },
                    acc_here = { .n = n_seq, .level = { y.here.p } };
    for (int i = 0; i < 6; i++) {
        more[i] = new_result(d, n, k);
        acc.level[1 + i] = more[i].there.p;
        acc_here.level[1 + i] = more[i].here.p;
    }
    for (int s = 0; s < n_seq; s += per, acc.next = acc_here.next = s) {
        const int now = n_seq - s < per ? n_seq - s : per;
        KERNEL(d, linear_dw, &acc, y.there.ld, mat_rows(dy.there, s * seq_len, now * seq_len),
               mat_rows(x.there, s * seq_len, now * seq_len), now, seq_len);
        if (dt == DT_F32)
            KERNEL(d->host, linear_dw, &acc_here, y.here.ld, mat_rows(dy.here, s * seq_len, now * seq_len),
                   mat_rows(x.here, s * seq_len, now * seq_len), now, seq_len);
    }
    for (int64_t r = 0; dt == DT_BF16 && r < n; r++)
        for (int64_t c = 0; c < k; c++) {
            struct chain leaf[GRAIN_MAX] = { { 0 } };
            for (int s = 0; s < n_seq; s++)
                chain_part(&leaf[s], dy.here, r, 1, x.here, c, 1, s * seq_len, (s + 1) * seq_len);
            set_element(d, y, r, c, leaf, n_seq);
        }
    check_result(d, "linear_dw", y);
    for (int i = 0; i < 6; i++)
        drop(d, &more[i]);
    drop(d, &dy), drop(d, &x), drop(d, &y);
}

static void dw_shapes(void)
{
    static const struct {
        int64_t n, k;
        int n_seq, per;
        int64_t len, gap;
    } cases[] = {
        { 1, 1, 1, 1, 1, GAP },     { 40, 72, 4, 4, 40, 0 },    { 40, 72, 4, 1, 40, GAP },
        { 40, 72, 4, 3, 40, GAP },  { 131, 66, 3, 3, 21, GAP }, { 20, 35, 12, 12, 17, GAP },
        { 20, 35, 12, 5, 17, GAP }, { 20, 35, 32, 32, 3, GAP }, { 136, 72, 8, 8, 33, 0 },
        { 20, 35, 7, 2, 16, 5 },
    };
    struct dev *d = open_gpu();
    for (size_t i = 0; d && i < sizeof cases / sizeof *cases; i++)
        for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++)
            dw_case(d, dt, cases[i].n, cases[i].k, cases[i].n_seq, cases[i].per, cases[i].len, cases[i].gap);
    if (d)
        close_gpu(d, "linear_dw");
}

TEST(linear_dw_is_its_definition_however_sequences_come) { ON_EVERY_GPU dw_shapes(); }

#endif
