/* gemm_bench.c - speed of products: against oneDNN (else OpenBLAS, else the measured peak), against read
 * bandwidth, and exact (8 leaves) against one chain. Contestants take turns; a figure is the best turn, a
 * ratio the median of the turns' ratios. One thread is timed by its own CPU clock, which other programs
 * hardly disturb; several threads by the wall clock. The last line is JSON.
 * usage: gemm_bench [--quick] [--models] [--threads N] [--shape M,N,K] [part of a row's name]
 *     --models: the shapes of 110m and 1b as well; --shape: only this one */
#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "kernels/gemm.h"
#include "tests/bench/onednn.h"

#define TURNS 9
#define TURN_S 0.03
#define RING_BYTES ((size_t)256 << 20)
#define HUGE_PAGE ((size_t)2 << 20) /* larger buffers lie on pages of 2 MB, as large tensors do */

typedef void sgemm_fn(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                      const float *b, int ldb, float beta, float *c, int ldc);

struct bench {
    struct dev *d;
    const struct gemm_ops *ops;
    const char *only; /* run rows whose name contains this; NULL: all */
    sgemm_fn *sgemm;  /* NULL: no OpenBLAS here */
    struct onednn onednn;
    int have_onednn, threads;
    int quick, models;
    int64_t shape[3];     /* [0] 0: all */
    double peak[2], read; /* GFLOP/s by dtype, bytes/s */
    int n_rows;
    struct row {
        char name[64], peer_name[24];
        const char *unit;
        double ours, peer, ratio;
    } row[192];
};

static clockid_t clock_used = CLOCK_THREAD_CPUTIME_ID;
static double now_s(void)
{
    struct timespec t;
    clock_gettime(clock_used, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- what the machine can do
 * ------------------------------------------------------------------------------------------ */

#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define PEAK_LOOP(type, init, step) \
    enum { n = 200000 }; \
    CHAINS(init) \
    for (int i = 0; i < n; i++) { \
        CHAINS(step) \
        __asm__ volatile(""); \
    }

__attribute__((target("avx512f,avx512bf16"))) static double peak_avx512(int bf16)
{
    double start = now_s(), flop;
    __m512 one = _mm512_set1_ps(1e-3f);
    if (bf16) {
        __m512bh h = (__m512bh)one;
#define INIT(i) __m512 c##i = one;
#define STEP(i) \
    c##i = _mm512_dpbf16_ps(c##i, h, h); \
    __asm__ volatile("" : "+v"(c##i));
        PEAK_LOOP(__m512, INIT, STEP)
#undef STEP
        flop = 12.0 * n * 64;
    } else {
#define STEP(i) \
    c##i = _mm512_fmadd_ps(one, one, c##i); \
    __asm__ volatile("" : "+v"(c##i));
        PEAK_LOOP(__m512, INIT, STEP)
#undef STEP
#undef INIT
        flop = 12.0 * n * 32;
    }
    return flop / (now_s() - start) * 1e-9;
}

__attribute__((target("avx2,fma"))) static double peak_avx2(void)
{
    double start = now_s();
    __m256 one = _mm256_set1_ps(1e-3f);
#define INIT(i) __m256 c##i = one;
#define STEP(i) \
    c##i = _mm256_fmadd_ps(one, one, c##i); \
    __asm__ volatile("" : "+x"(c##i));
    PEAK_LOOP(__m256, INIT, STEP)
#undef STEP
#undef INIT
    return 12.0 * n * 16 / (now_s() - start) * 1e-9;
}

__attribute__((target("avx2"))) static double read_once(const float *p, size_t n)
{
    double start = now_s();
    __m256 a = _mm256_setzero_ps(), b = a, c = a, e = a;
    for (size_t i = 0; i < n; i += 32) {
        a = _mm256_add_ps(a, _mm256_load_ps(p + i)), b = _mm256_add_ps(b, _mm256_load_ps(p + i + 8));
        c = _mm256_add_ps(c, _mm256_load_ps(p + i + 16)), e = _mm256_add_ps(e, _mm256_load_ps(p + i + 24));
    }
    __asm__ volatile("" : : "x"(a), "x"(b), "x"(c), "x"(e));
    return (double)n * 4 / (now_s() - start);
}

static double peak(int bf16)
{
    return __builtin_cpu_supports("avx512bf16") ? peak_avx512(bf16) : peak_avx2();
}

/* ---- turns
 * ------------------------------------------------------------------------------------------ */

/* work of one call */
struct contestant {
    void (*fn)(void *arg);
    void *arg;
    double work;
};

static double speed(struct contestant c)
{
    double start = now_s(), end;
    int n = 0;
    do {
        c.fn(c.arg);
        n++;
        end = now_s();
    } while (end - start < TURN_S);
    return c.work * n / (end - start);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Takes turns; b.fn NULL: `limit` is the other side. Keeps and prints the row. */
static void compare(struct bench *k, const char *name, const char *unit, struct contestant a,
                    const char *peer, struct contestant b, double limit)
{
    double ratio[TURNS];
    if (k->only && !strstr(name, k->only))
        return;
    struct row *r = &k->row[k->n_rows++];
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->peer_name, sizeof r->peer_name, "%s", peer);
    r->unit = unit;
    a.fn(a.arg);
    for (int i = 0; i < TURNS; i++) {
        double x = speed(a), y = b.fn ? speed(b) : limit;
        r->ours = x > r->ours ? x : r->ours;
        r->peer = y > r->peer ? y : r->peer;
        ratio[i] = x / y;
    }
    qsort(ratio, TURNS, sizeof *ratio, by_size);
    r->ratio = ratio[TURNS / 2];
    printf("%-36s %8.1f  %-10s %8.1f %-8s %6.3f\n", name, r->ours, peer, r->peer, unit, r->ratio);
    fflush(stdout);
}

/* ---- products
 * ------------------------------------------------------------------------------------------ */

struct product {
    struct bench *k;
    struct mat x, w, y, dy, dw, dx; /* x [m][k], w [n][k], y, dy [m][n] */
    struct panels *ring;
    int n_ring, next;
    struct leaves leaves;
    int n_seq;
};

static void run_linear(void *arg)
{
    struct product *p = arg;
    p->next = (p->next + 1) % p->n_ring;
    p->k->ops->linear(p->k->d, p->y, p->x, &p->ring[p->next]);
}

static void run_dx(void *arg)
{
    struct product *p = arg;
    p->k->ops->linear_dx(p->k->d, p->dx, 1, &p->dy, &p->w, &p->leaves);
}

static void run_dw(void *arg)
{
    struct product *p = arg;
    struct tree_acc acc = { .n = p->n_seq, .level = { p->dw.p } };
    p->k->ops->linear_dw(p->k->d, &acc, p->dw.ld, p->dy, p->x, p->n_seq, p->x.rows / p->n_seq);
}

static void run_pack(void *arg)
{
    struct product *p = arg;
    p->k->ops->linear_pack(p->k->d, &p->ring[0], 1, &p->w);
}

/* The same product by the library: from plain row-major operands, its own packing included. */
static void run_sgemm(void *arg)
{
    struct product *p = arg;
    int m = (int)p->x.rows, n = (int)p->w.rows, k = (int)p->x.cols;
    p->k->sgemm(101, 111, 112, m, n, k, 1, p->x.p, k, p->w.p, k, 0, p->y.p, n);
}

static void run_sgemm_dx(void *arg)
{
    struct product *p = arg;
    int m = (int)p->x.rows, n = (int)p->w.rows, k = (int)p->x.cols;
    p->k->sgemm(101, 111, 111, m, k, n, 1, p->dy.p, n, p->w.p, k, 0, p->dx.p, k);
}

static void run_sgemm_dw(void *arg)
{
    struct product *p = arg;
    int m = (int)p->x.rows, n = (int)p->w.rows, k = (int)p->x.cols;
    p->k->sgemm(101, 112, 111, n, k, m, 1, p->dy.p, n, p->x.p, k, 0, p->dw.p, k);
}

static struct mat filled(struct bench *k, enum dtype dt, int64_t rows, int64_t cols)
{
    struct mat m = mat_of(mem_alloc(k->d->mem, MEM_WORK, (size_t)(rows * cols) * dtype_size(dt) + HUGE_PAGE),
                          dt, rows, cols, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        float v = (float)((i * 2654435761u >> 7) % 2048) / 1024 - 1;
        uint32_t w;
        memcpy(&w, &v, 4);
        if (dt == DT_F32)
            ((float *)m.p)[i] = v;
        else
            ((uint16_t *)m.p)[i] = (uint16_t)(w >> 16);
    }
    return m;
}

static void open_product(struct bench *k, struct product *p, enum dtype dt, int64_t m, int64_t n, int64_t kk,
                         int grain, int n_ring)
{
    *p = (struct product){ .k = k,
                           .n_ring = n_ring,
                           .n_seq = m >= 512 ? (int)(m / 256) : 1 }; /* sequences of 256 tokens and more */
    p->x = filled(k, dt, m, kk), p->w = filled(k, dt, n, kk), p->dy = filled(k, dt, m, n);
    p->y = filled(k, DT_F32, m, n), p->dx = filled(k, DT_F32, m, kk), p->dw = filled(k, DT_F32, n, kk);
    p->leaves = leaves_of(n, grain, 0, grain);
    p->ring = calloc((size_t)n_ring, sizeof *p->ring);
    for (int i = 0; i < n_ring; i++) {
        p->ring[i] = (struct panels){ NULL, n, kk, dt, leaves_of(kk, grain, 0, grain) };
        p->ring[i].p = mem_alloc(k->d->mem, MEM_WORK,
                                 panels_bytes(n, kk, dt, &p->ring[i].leaves) + HUGE_PAGE);
        k->ops->linear_pack(k->d, &p->ring[i], 1, &p->w);
    }
}

static void close_product(struct product *p)
{
    void *all[] = { p->x.p, p->w.p, p->dy.p, p->y.p, p->dx.p, p->dw.p };
    for (int i = 0; i < 6; i++)
        mem_free(p->k->d->mem, all[i]);
    for (int i = 0; i < p->n_ring; i++)
        mem_free(p->k->d->mem, p->ring[i].p);
    free(p->ring);
}

static const char *name_of(enum dtype dt) { return dt == DT_F32 ? "fp32" : "bf16"; }

struct form {
    const char *what;
    void (*ours)(void *), (*blas)(void *);
    enum onednn_form form;
};
static const struct form forms[3] = { { "linear", run_linear, run_sgemm, ONEDNN_LINEAR },
                                      { "linear_dx", run_dx, run_sgemm_dx, ONEDNN_DX },
                                      { "linear_dw", run_dw, run_sgemm_dw, ONEDNN_DW } };

/* shape: rows, columns and contraction of this form. */
static void bench_form(struct bench *k, const struct form *f, struct product *p, const int64_t shape[3])
{
    char name[64];
    enum dtype dt = p->x.dt;
    int64_t m = p->x.rows, n = p->w.rows, kk = p->x.cols;
    struct contestant ours = { f->ours, p, 2e-9 * (double)m * (double)n * (double)kk };
    struct onednn_product peer;
    snprintf(name, sizeof name, "%s %s %dx%dx%d", f->what, name_of(dt), (int)m, (int)n, (int)kk);
    if (k->only && !strstr(name, k->only))
        return;
    int onednn = k->have_onednn &&
                 onednn_product_open(&peer, &k->onednn, k->d, f->form, dt, shape[0], shape[1], shape[2], 1);
    int blas = k->sgemm && dt == DT_F32;
    if (onednn) {
        compare(k, name, "GFLOP/s", ours, "onednn", (struct contestant){ onednn_run, &peer, ours.work }, 0);
        onednn_product_close(&peer);
    }
    if (blas)
        compare(k, name, "GFLOP/s", ours, "openblas", (struct contestant){ f->blas, p, ours.work }, 0);
    if (!onednn && !blas)
        compare(k, name, "GFLOP/s", ours, "peak", (struct contestant){ NULL, NULL, 0 },
                k->peak[dt] * k->threads);
}

static void bench_shape(struct bench *k, enum dtype dt, int64_t m, int64_t n, int64_t kk)
{
    struct product exact, fast;
    char name[64];
    double work = 2e-9 * (double)m * (double)n * (double)kk;
    const int64_t shape[3][3] = { { m, n, kk }, { m, kk, n }, { n, kk, m } };
    open_product(k, &exact, dt, m, n, kk, 8, 1);
    open_product(k, &fast, dt, m, n, kk, 1, 1);
    for (int i = 0; i < 3; i++)
        bench_form(k, &forms[i], &exact, shape[i]);
    snprintf(name, sizeof name, "exact %s %dx%dx%d", name_of(dt), (int)m, (int)n, (int)kk);
    compare(k, name, "GFLOP/s", (struct contestant){ run_linear, &exact, work }, "one chain",
            (struct contestant){ run_linear, &fast, work }, 0);
    close_product(&exact);
    close_product(&fast);
}

#define READ_PIECE ((size_t)4 << 20)
/* of 1 MB: threads that read shorter pieces in turn are slower than with streams of their own */
#define READ_TASKS 16
#define READ_GB (READ_PIECE * 4e-9)
struct reader {
    struct dev *d;
    float *p;
    size_t n, at;
};

static void read_part(void *arg, int64_t task, int thread)
{
    const struct reader *r = arg;
    (void)thread;
    read_once(r->p + r->at + (size_t)task * (READ_PIECE / READ_TASKS), READ_PIECE / READ_TASKS);
}

static void run_read(void *arg)
{
    struct reader *r = arg;
    pool_run(r->d->pool, READ_TASKS, read_part, r);
    r->at = (r->at + READ_PIECE) % r->n;
}

/* A few rows, weights streamed from memory: a ring of copies larger than any cache. */
static void bench_rows(struct bench *k, enum dtype dt, int64_t m, struct reader *read)
{
    enum { N = 2048, K = 2048 };
    struct product exact, fast;
    struct onednn_product peer;
    char name[64];
    int n_ring = (int)(RING_BYTES / ((size_t)N * K * dtype_size(dt)));
    double bytes = 1e-9 * N * K * (double)dtype_size(dt), flops = 2e-9 * (double)m * N * K;
    if (k->only && !strstr(k->only, "rows"))
        return;
    open_product(k, &exact, dt, m, N, K, 8, n_ring);
    open_product(k, &fast, dt, m, N, K, 1, n_ring);
    snprintf(name, sizeof name, "rows %s %dx%dx%d", name_of(dt), (int)m, N, K);
    if (m <= 4) /* from 8 rows on the arithmetic takes as long as the reading */
        compare(k, name, "GB/s", (struct contestant){ run_linear, &exact, bytes }, "read",
                (struct contestant){ run_read, read, READ_GB }, 0);
    if (k->have_onednn && onednn_product_open(&peer, &k->onednn, k->d, ONEDNN_LINEAR, dt, m, N, K, n_ring)) {
        compare(k, name, "GFLOP/s", (struct contestant){ run_linear, &exact, flops }, "onednn",
                (struct contestant){ onednn_run, &peer, flops }, 0);
        onednn_product_close(&peer);
    }
    snprintf(name, sizeof name, "exact rows %s %dx%dx%d", name_of(dt), (int)m, N, K);
    compare(k, name, "GFLOP/s", (struct contestant){ run_linear, &exact, flops }, "one chain",
            (struct contestant){ run_linear, &fast, flops }, 0);
    close_product(&exact);
    close_product(&fast);
}

/* ---- experts: each has its own weights, more than any cache holds; the other side is one dense product of
 * as many rows ---- */
enum { EXPERTS = 16, EXPERT_N = 1536, EXPERT_K = 2048 };
struct experts {
    struct product dense;
    struct mat w[EXPERTS];
    struct tree_acc acc[EXPERTS];
    int64_t begin[EXPERTS + 1], leaf_end[EXPERTS];
    int32_t *list;
    struct expert_rows g;
};

static void run_experts(void *arg)
{
    struct experts *x = arg;
    struct product *p = &x->dense;
    p->k->ops->linear_experts(p->k->d, p->y, listed_of(p->x, x->list), &x->g, p->ring);
}

/* As many products of as many rows one after the other: what a loop over the experts takes. */
static void run_experts_apart(void *arg)
{
    struct experts *x = arg;
    struct product *p = &x->dense;
    for (int e = 0; e < EXPERTS; e++)
        p->k->ops->linear(p->k->d, mat_rows(p->y, x->begin[e], expert_row_count(&x->g, e)),
                          mat_rows(p->x, x->begin[e], expert_row_count(&x->g, e)), &p->ring[e]);
}

static void run_experts_dx(void *arg)
{
    struct experts *x = arg;
    struct product *p = &x->dense;
    const struct listed dy = listed_of(p->dy, NULL);
    p->k->ops->linear_dx_experts(p->k->d, p->dx, 1, &dy, x->w, &p->leaves, &x->g);
}

static void run_experts_dw(void *arg)
{
    struct experts *x = arg;
    struct product *p = &x->dense;
    p->k->ops->linear_dw_experts(p->k->d, x->acc, EXPERT_K, listed_of(p->dy, NULL), listed_of(p->x, x->list),
                                 &x->g);
}

static void open_experts(struct bench *k, struct experts *x, enum dtype dt, int64_t rows)
{
    *x = (struct experts){ .g = { EXPERTS, x->begin, 1, x->leaf_end } };
    open_product(k, &x->dense, dt, EXPERTS * rows, EXPERT_N, EXPERT_K, 8, EXPERTS);
    x->list = malloc(sizeof *x->list * (size_t)(EXPERTS * rows));
    for (int e = 0; e < EXPERTS; e++) {
        x->w[e] = filled(k, dt, EXPERT_N, EXPERT_K);
        x->acc[e] = (struct tree_acc){ .n = 1, .level = { filled(k, DT_F32, EXPERT_N, EXPERT_K).p } };
        x->begin[e + 1] = x->leaf_end[e] = (e + 1) * rows;
    }
    for (int64_t i = 0; i < EXPERTS * rows; i++)
        x->list[i] = (int32_t)(i * 7 % (EXPERTS * rows)); /* as tokens are dealt */
}

static void close_experts(struct bench *k, struct experts *x)
{
    for (int e = 0; e < EXPERTS; e++) {
        mem_free(k->d->mem, x->w[e].p);
        mem_free(k->d->mem, x->acc[e].level[0]);
    }
    free(x->list);
    close_product(&x->dense);
}

/* Few rows: against the same weights in products of their own, and against reading them. */
static void bench_few_experts(struct bench *k, struct experts *x, int64_t rows, double work,
                              struct reader *read)
{
    const enum dtype dt = x->dense.x.dt;
    const double bytes = 1e-9 * EXPERTS * EXPERT_N * EXPERT_K * (double)dtype_size(dt);
    char name[64];
    snprintf(name, sizeof name, "experts together %s %dx%dx%dx%d", name_of(dt), EXPERTS, (int)rows, EXPERT_N,
             EXPERT_K);
    compare(k, name, "GFLOP/s", (struct contestant){ run_experts, x, work }, "one by one",
            (struct contestant){ run_experts_apart, x, work }, 0);
    snprintf(name, sizeof name, "experts bytes %s %dx%dx%dx%d", name_of(dt), EXPERTS, (int)rows, EXPERT_N,
             EXPERT_K);
    compare(k, name, "GB/s", (struct contestant){ run_experts, x, bytes }, "read",
            (struct contestant){ run_read, read, READ_GB }, 0);
}

static void bench_experts(struct bench *k, enum dtype dt, int64_t rows, struct reader *read)
{
    static const struct {
        const char *what;
        void (*ours)(void *), (*dense)(void *);
    } sides[3] = { { "experts", run_experts, run_linear },
                   { "experts dx", run_experts_dx, run_dx },
                   { "experts dw", run_experts_dw, run_dw } };
    struct experts x;
    if (k->only && !strstr(k->only, "experts"))
        return;
    open_experts(k, &x, dt, rows);
    x.dense.n_ring = 1;
    const double work = 2e-9 * (double)(EXPERTS * rows) * EXPERT_N * EXPERT_K;
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s %s %dx%dx%dx%d", sides[i].what, name_of(dt), EXPERTS, (int)rows,
                 EXPERT_N, EXPERT_K);
        compare(k, name, "GFLOP/s", (struct contestant){ sides[i].ours, &x, work }, "dense",
                (struct contestant){ sides[i].dense, &x.dense, work }, 0);
    }
    if (rows <= 8)
        bench_few_experts(k, &x, rows, work, read);
    x.dense.n_ring = EXPERTS;
    close_experts(k, &x);
}

/* Weight gradients of 512 rows an expert in leaves of fewer rows, against one leaf. */
static void bench_leaves(struct bench *k, enum dtype dt)
{
    enum { SOME = 2, MANY = 512, FEWEST = 1 };
    struct experts x;
    int64_t ends[SOME * MANY / FEWEST];
    if (k->only && !strstr("experts dw leaves", k->only))
        return;
    open_experts(k, &x, dt, SOME * MANY / EXPERTS);
    for (int e = 0; e < SOME; e++)
        x.begin[e + 1] = x.leaf_end[e] = (e + 1) * MANY;
    x.g.n = SOME;
    struct experts leaves = x;
    leaves.g.begin = leaves.begin;
    leaves.g.leaf_end = ends;
    const double work = 2e-9 * SOME * MANY * EXPERT_N * EXPERT_K;
    for (int64_t rows = 256; rows >= FEWEST; rows /= 2) {
        char name[64];
        leaves.g.n_leaves = (int)(MANY / rows);
        for (int i = 0; i < SOME * leaves.g.n_leaves; i++)
            ends[i] = (i + 1) * rows;
        for (int e = 0; e < SOME; e++)
            leaves.acc[e].n = leaves.g.n_leaves;
        snprintf(name, sizeof name, "experts dw leaves %s of %d rows", name_of(dt), (int)rows);
        compare(k, name, "GFLOP/s", (struct contestant){ run_experts_dw, &leaves, work }, "one leaf",
                (struct contestant){ run_experts_dw, &x, work }, 0);
    }
    close_experts(k, &x);
}

static void bench_pack(struct bench *k, enum dtype dt)
{
    struct product p;
    char name[64];
    open_product(k, &p, dt, 1, 2048, 2048, 8, 1);
    snprintf(name, sizeof name, "linear_pack %s 2048x2048", name_of(dt));
    compare(k, name, "GB/s", (struct contestant){ run_pack, &p, 1e-9 * 2048 * 2048 * (double)dtype_size(dt) },
            "read", (struct contestant){ NULL, NULL, 0 }, k->read * 1e-9);
    close_product(&p);
}

static void print_json(const struct bench *k)
{
    printf("{\"rows\":[");
    for (int i = 0; i < k->n_rows; i++) {
        const struct row *r = &k->row[i];
        printf("%s{\"name\":\"%s\",\"ours\":%.2f,\"peer\":%.2f,\"peer_name\":\"%s\",\"unit\":\"%s\","
               "\"ratio\":%.4f}",
               i ? "," : "", r->name, r->ours, r->peer, r->peer_name, r->unit, r->ratio);
    }
    printf("]}\n");
}

static const struct gemm_ops *best_ops(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bf16"))
        return &gemm_avx512bf16;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq"))
        return &gemm_avx512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &gemm_avx2 : &gemm_portable;
}

static sgemm_fn *open_blas(int threads)
{
    char text[16];
    snprintf(text, sizeof text, "%d", threads);
    setenv("OPENBLAS_NUM_THREADS", text, 1);
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
    sgemm_fn *fn = NULL;
    if (lib)
        *(void **)&fn = dlsym(lib, "cblas_sgemm");
    return fn;
}

static void measure_limits(struct bench *k, struct reader *read)
{
    memset(read->p, 1, RING_BYTES);
    for (int i = 0; i < 5; i++) {
        k->peak[DT_F32] = fmax(k->peak[DT_F32], peak(0));
        k->peak[DT_BF16] = fmax(k->peak[DT_BF16], peak(1));
        k->read = fmax(k->read, read_once(read->p, RING_BYTES / 4));
    }
    printf("one thread: fp32 peak %.0f GFLOP/s, bf16 peak %.0f GFLOP/s, read %.1f GB/s\n", k->peak[0],
           k->peak[1], k->read * 1e-9);
}

static const int64_t shapes[][3] = {
    { 512, 512, 512 }, { 1024, 1024, 1024 }, { 256, 768, 768 }, { 512, 2048, 2048 }, { 512, 2048, 8192 }
};
/* 512 tokens through 110m and 1b: q k v, o, gate up, down; head of 110m */
static const int64_t model_shapes[][3] = {
    { 512, 2304, 768 },  { 512, 768, 768 },   { 512, 4096, 768 },   { 512, 768, 2048 },
    { 512, 32000, 768 }, { 512, 3072, 2048 }, { 512, 16384, 2048 },
};
static const int64_t few[] = { 1, 2, 4, 8, 16, 32 };
static const int64_t rows_an_expert[] = { 8, 1, 32, 128 };
#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static int parse(struct bench *k, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--quick"))
            k->quick = 1;
        else if (!strcmp(argv[i], "--models"))
            k->models = 1;
        else if (!strcmp(argv[i], "--shape") && i + 1 < argc) {
            if (sscanf(argv[++i], "%ld,%ld,%ld", &k->shape[0], &k->shape[1], &k->shape[2]) != 3)
                return 0;
        } else if (!strcmp(argv[i], "--threads") && i + 1 < argc)
            k->threads = atoi(argv[++i]);
        else if (argv[i][0] != '-')
            k->only = *argv[i] ? argv[i] : NULL;
        else
            return 0;
    return k->threads > 0;
}

static void bench_dtype(struct bench *k, enum dtype dt, struct reader *read)
{
    if (k->shape[0] > 0) {
        bench_shape(k, dt, k->shape[0], k->shape[1], k->shape[2]);
        return;
    }
    for (int i = 0; i < (k->quick ? 1 : COUNT(shapes)); i++)
        bench_shape(k, dt, shapes[i][0], shapes[i][1], shapes[i][2]);
    for (int i = 0; k->models && i < COUNT(model_shapes); i++)
        bench_shape(k, dt, model_shapes[i][0], model_shapes[i][1], model_shapes[i][2]);
    for (int i = 0; i < (k->quick ? 1 : COUNT(few)); i++)
        bench_rows(k, dt, few[i], read);
    for (int i = 0; i < (k->quick ? 1 : COUNT(rows_an_expert)); i++)
        bench_experts(k, dt, rows_an_expert[i], read);
    if (!k->quick)
        bench_leaves(k, dt);
    bench_pack(k, dt);
}

int main(int argc, char **argv)
{
    static struct mem memory;
    static struct bench k = { .threads = 1 };
    struct err e;
    if (!parse(&k, argc, argv)) {
        fprintf(stderr,
                "gemm_bench [--quick] [--models] [--threads N] [--shape M,N,K] [part of a row's name]\n");
        return 2;
    }
    clock_used = k.threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    k.ops = best_ops();
    k.sgemm = open_blas(k.threads);
    k.have_onednn = onednn_open(&k.onednn, k.threads);
    printf("oneDNN: %s\n", k.have_onednn ? "yes" : "not here: apt-get install libdnnl-dev, then build again");
    if (dev_open(&k.d, "cpu", k.threads, &memory, &e) < 0)
        return err_print(&e, "gemm_bench");
    struct reader read = { k.d, mem_alloc(&memory, MEM_WORK, RING_BYTES), RING_BYTES / 4, 0 };
    if (!read.p)
        return 1;
    measure_limits(&k, &read);
    printf("%-36s %8s  %-10s %8s %-8s %6s\n", "product", "ours", "against", "its", "unit", "ratio");
    for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++)
        bench_dtype(&k, dt, &read);
    print_json(&k);
    mem_free(&memory, read.p);
    dev_close(k.d);
    return 0;
}
