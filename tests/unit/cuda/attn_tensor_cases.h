/* attn_tensor_cases.h - attention on tensor cores: within bounds of a reference in double, and the same bits
 * however the work is cut. On the emulated GPU (cuda_emu_attn_test.c) and on a real one
 * (cuda_attn_test.c). */
#ifndef SHARDLINE_TESTS_UNIT_CUDA_ATTN_TENSOR_CASES_H
#define SHARDLINE_TESTS_UNIT_CUDA_ATTN_TENSOR_CASES_H

#include "tests/test.h"

#include <math.h>

#include "kernels/dev.h"
#include "kernels/fn.h"
#include "kernels/kernels.h"

/* ---- one document of random bf16 values on the host, and the device ---- */
struct world {
    struct dev *d;
    int n_kv, group, hd;
    int64_t T, window;
    float scale, *q, *dout, *k, *v; /* [T][heads hd], [T][kv hd]: values of bf16 */
    float softcap;                  /* 0: none */
};
static int heads(const struct world *w) { return w->n_kv * w->group; }

static uint64_t state = 88172645463325252u;
static float uniform(void) /* [-1, 1) */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}
static float *random_values(int64_t n, float size)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = fn_round_bf16(uniform() * size);
    return x;
}

static struct world world_of(int n_kv, int group, int hd, int64_t T, int64_t window)
{
    struct world w = {
        .n_kv = n_kv, .group = group, .hd = hd, .T = T, .window = window, .scale = (float)(1 / sqrt(hd))
    };
    const int64_t nq = T * n_kv * group * hd, nk = T * n_kv * hd;
    static struct mem mem;
    struct err e;
    w.q = random_values(nq, 4);
    w.dout = random_values(nq, 1);
    w.k = random_values(nk, 2);
    w.v = random_values(nk, 1);
    if (dev_open(&w.d, "cuda", 1, &mem, &e) < 0) {
        printf("%s\n", e.text);
        exit(1);
    }
    return w;
}
static void world_end(struct world *w)
{
    struct err e;
    if (dev_check(w->d, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    dev_close(w->d);
    free(w->q), free(w->dout), free(w->k), free(w->v);
}

/* A test that skips where there is no GPU. */
static int gpu_is_here(void)
{
    static struct mem mem;
    struct dev *d = NULL;
    struct err e;
    const int here = dev_open(&d, "cuda", 1, &mem, &e) >= 0;
    if (!here)
        test_skip("%s", e.text);
    dev_close(d);
    return here;
}
#define GPU_TEST(claim) \
    static void case_##claim(void); \
    TEST(claim) \
    { \
        if (gpu_is_here()) \
            case_##claim(); \
    } \
    static void case_##claim(void)

/* ---- matrices and pages on the device ---- */
enum { ODD = 1 };
/* Rows [r0, r0 + n) of from (or zeros), columns [c0, c0 + cols) of `wide`; odd: rows begin at odd
 * elements. */
static struct mat put_rows(struct world *w, enum dtype dt, const float *from, int64_t r0, int64_t n,
                           int64_t wide, int64_t c0, int64_t cols, int odd)
{
    const int64_t ld = cols + (odd ? 5 : 0);
    const size_t bytes = (size_t)(n * ld + 1) * dtype_size(dt);
    char *host = calloc(1, bytes), *p = dev_alloc(w->d, MEM_WORK, bytes);
    for (int64_t i = 0; from && i < n * cols; i++) {
        const float x = from[(r0 + i / cols) * wide + c0 + i % cols];
        if (dt == DT_F32)
            ((float *)(void *)host)[i / cols * ld + i % cols] = x;
        else
            ((uint16_t *)(void *)host)[i / cols * ld + i % cols + (odd ? 1 : 0)] = fn_to_bf16(x);
    }
    dev_write(w->d, p, host, bytes);
    free(host);
    return mat_of(p + (odd && dt == DT_BF16 ? 2 : 0), dt, n, cols, ld);
}

/* All of m, widened; m is given back. */
static float *take(struct world *w, struct mat m, float *to)
{
    const size_t size = dtype_size(m.dt);
    char *host = malloc((size_t)(m.rows * m.ld) * size + 2);
    float *x = to ? to : malloc((size_t)(m.rows * m.cols) * sizeof *x);
    const int odd = m.ld != m.cols && m.dt == DT_BF16;
    dev_read(w->d, host, (char *)m.p, (size_t)((m.rows - 1) * m.ld + m.cols) * size);
    for (int64_t i = 0; i < m.rows * m.cols; i++) {
        const int64_t at = i / m.cols * m.ld + i % m.cols;
        x[i] = m.dt == DT_F32 ? ((float *)(void *)host)[at] : fn_from_bf16(((uint16_t *)(void *)host)[at]);
    }
    free(host);
    dev_free(w->d, (char *)m.p - (odd ? 2 : 0));
    return x;
}

enum { OFF = 256, PAGES_MAX = 24 };
struct pages {
    char *memory, *page[PAGES_MAX];
};
/* Keys of rows [row, row + n) of kv heads [kv0, kv0 + kvs), in pages that lie in another order than they are
 * counted. */
static struct pages pages_of(struct world *w, int64_t row, int64_t n, int kv0, int kvs)
{
    const int64_t n_pages = (n + 63) / 64;
    const size_t bytes = attn_page_bytes(kvs, w->hd, DT_BF16) + OFF;
    struct pages p = { dev_alloc(w->d, MEM_WORK, bytes * (size_t)n_pages), { NULL } };
    uint16_t *host = calloc(1, bytes);
    for (int64_t b = 0; b < n_pages; b++) {
        memset(host, 0, bytes);
        for (int64_t i = 0; i < 64 * kvs * w->hd; i++) {
            const int64_t j = i % 64, g = i / 64 % kvs, x = i / 64 / kvs, key = b * 64 + j;
            uint16_t *at = host + OFF / 2 + g * 2 * 64 * w->hd;
            at[x * 64 + j] = key < n ? fn_to_bf16(w->k[((row + key) * w->n_kv + kv0 + g) * w->hd + x]) : 0;
            at[64 * w->hd + j * w->hd + x] = key < n
                                                 ? fn_to_bf16(
                                                       w->v[((row + key) * w->n_kv + kv0 + g) * w->hd + x])
                                                 : 0;
        }
        p.page[b] = p.memory +
                    bytes * (size_t)((b * 5 + 3) % n_pages * (n_pages % 5 != 0) + b * (n_pages % 5 == 0));
        dev_write(w->d, p.page[b], host, bytes);
    }
    free(host);
    return p;
}

/* Rows [pos, pos + n) of query heads of kv heads [kv0, kv0 + kvs): out [n][group kvs hd], lse behind it. */
struct cut {
    int64_t pos, n;
    int kv0, kvs, odd;
};
static float *forward(struct world *w, struct cut c)
{
    const int64_t cols = (int64_t)w->group * c.kvs * w->hd;
    struct pages pg = pages_of(w, 0, c.pos + c.n, c.kv0, c.kvs);
    struct attn_seq seq = { 0, c.n, c.pos, pg.page };
    struct attn a = { w->group * c.kvs,     c.kvs, w->hd, DT_BF16, w->scale, OFF, 1, &seq, w->window,
                      .softcap = w->softcap };
    struct mat q = put_rows(w, DT_BF16, w->q, c.pos, c.n, (int64_t)heads(w) * w->hd,
                            (int64_t)c.kv0 * w->group * w->hd, cols, c.odd);
    struct mat out = put_rows(w, DT_BF16, NULL, 0, c.n, 0, 0, cols, c.odd),
               lse = put_rows(w, DT_F32, NULL, 0, c.n, 0, 0, w->group * c.kvs, 0);
    for (int64_t b = 0; w->window && (b + 1) * 64 <= c.pos - w->window + 1; b++)
        pg.page[b] = NULL; /* gone */
    KERNEL(w->d, attn, &a, out, lse.p, q);
    float *x = malloc((size_t)(c.n * (cols + a.n_heads)) * sizeof *x);
    free(take(w, q, NULL));
    take(w, out, x);
    take(w, lse, x + c.n * cols);
    dev_free(w->d, pg.memory);
    return x;
}
static struct cut whole(const struct world *w) { return (struct cut){ 0, w->T, 0, w->n_kv, 0 }; }

/* ---- the reference ---- */
static double capped(const struct world *w, double s)
{
    return w->softcap > 0 ? (double)w->softcap * tanh(s / (double)w->softcap) : s;
}

/* Scores of a row: how many keys it sees from *first on. */
static int64_t scores(const struct world *w, int64_t p, int h, double *s, int64_t *first)
{
    *first = w->window && p >= w->window ? p - w->window + 1 : 0;
    for (int64_t j = *first; j <= p; j++) {
        double x = 0;
        for (int i = 0; i < w->hd; i++)
            x += (double)w->q[(p * heads(w) + h) * w->hd + i] *
                 w->k[(j * w->n_kv + h / w->group) * w->hd + i];
        s[j - *first] = capped(w, x * (double)w->scale);
    }
    return p - *first + 1;
}

/* out: p in bf16 is off by 2^-8 of itself at most, and so is what is stored; the rest is fp32's. */
static void check_row(const struct world *w, int64_t p, int h, const float *out, float lse)
{
    double *s = malloc((size_t)w->T * sizeof *s), top = -INFINITY, l = 0;
    int64_t first, n = scores(w, p, h, s, &first);
    for (int64_t j = 0; j < n; j++)
        top = s[j] > top ? s[j] : top;
    for (int64_t j = 0; j < n; j++)
        l += s[j] = exp(s[j] - top);
    CHECK_NEAR(lse, top + log(l), 1e-5 * (1 + fabs(top)));
    for (int i = 0; i < w->hd; i++) {
        double o = 0, size = 0;
        for (int64_t j = 0; j < n; j++) {
            const double x = s[j] / l * (double)w->v[((first + j) * w->n_kv + h / w->group) * w->hd + i];
            o += x, size += fabs(x);
        }
        CHECK_NEAR(out[i], o, size * (0x1p-8 + 1e-5) + fabs(o) * 0x1p-8);
    }
    free(s);
}

static void check_forward(int n_kv, int group, int hd, int64_t T, int64_t window, float softcap)
{
    struct world w = world_of(n_kv, group, hd, T, window);
    w.softcap = softcap;
    float *x = forward(&w, whole(&w));
    const int64_t cols = (int64_t)heads(&w) * hd;
    for (int64_t p = 0; p < T; p += p < 3 || p > T - 4 ? 1 : 7)
        for (int h = 0; h < heads(&w); h++)
            check_row(&w, p, h, x + p * cols + h * hd, x[T * cols + p * heads(&w) + h]);
    free(x);
    world_end(&w);
}

GPU_TEST(forward_is_near_the_definition)
{
    check_forward(1, 2, 64, 130, 0, 0);
    check_forward(2, 1, 128, 65, 0, 0);
    check_forward(1, 4, 40, 70, 0, 0);
    check_forward(1, 1, 8, 64, 0, 0);
    check_forward(1, 3, 80, 5, 0, 0);
    check_forward(1, 2, 16, 190, 70, 0);
    check_forward(1, 2, 64, 130, 0, 2.5f);
}

/* ---- bits ---- */
/* Rows of a cut have the bits of the whole. */
static void check_cut(struct world *w, const float *want, int64_t want_pos, int64_t want_n, struct cut c)
{
    const int64_t cols = (int64_t)heads(w) * w->hd, mine = (int64_t)w->group * c.kvs * w->hd,
                  nh = w->group * c.kvs;
    float *x = forward(w, c);
    for (int64_t r = 0; r < c.n; r++) {
        const int64_t at = c.pos - want_pos + r;
        if (memcmp(x + r * mine, want + at * cols + (int64_t)c.kv0 * w->group * w->hd, (size_t)mine * 4) ||
            memcmp(x + c.n * mine + r * nh, want + want_n * cols + at * heads(w) + c.kv0 * w->group,
                   (size_t)nh * 4))
            test_fail(__FILE__, __LINE__, "row %d of rows %d..%d, kv heads %d..%d, has other bits",
                      (int)(c.pos + r), (int)c.pos, (int)(c.pos + c.n - 1), c.kv0, c.kv0 + c.kvs - 1);
    }
    free(x);
}

static void check_cuts(int group, int hd, int64_t T, int64_t window)
{
    struct world w = world_of(2, group, hd, T, window);
    float *all = forward(&w, whole(&w));
    const int64_t chunks[] = { 1, 3, 17, 64 };
    for (int i = 0; i < 4; i++)
        for (int64_t p = 0; p < T; p += chunks[i] * (i == 0 ? 9 : 1))
            check_cut(&w, all, 0, T, (struct cut){ p, p + chunks[i] < T ? chunks[i] : T - p, 0, 2, 0 });
    check_cut(&w, all, 0, T, whole(&w));
    check_cut(&w, all, 0, T, (struct cut){ 0, T, 0, 2, ODD });
    for (int kv = 0; kv < 2; kv++)
        check_cut(&w, all, 0, T, (struct cut){ 0, T, kv, 1, 0 });
    free(all);
    world_end(&w);
}

GPU_TEST(a_row_has_the_same_bits_in_any_chunk_alone_in_other_pages_at_any_tp) { check_cuts(2, 64, 150, 0); }
GPU_TEST(so_with_head_dim_128) { check_cuts(4, 128, 100, 0); }
GPU_TEST(so_with_a_window_that_pages_fall_out_of) { check_cuts(1, 24, 210, 90); }

GPU_TEST(segments_are_merged_to_the_same_bits_in_decode_and_prefill)
{
    struct world w = world_of(1, 2, 64, 1100, 0);
    float *all = forward(&w, (struct cut){ 1000, 100, 0, 1, 0 });
    check_row(&w, 1099, 1, all + 99 * 128 + 64, all[100 * 128 + 99 * 2 + 1]);
    for (int64_t p = 1000; p < 1100; p += 1 + (p % 20 == 0 ? 22 : p % 3))
        check_cut(&w, all, 1000, 100, (struct cut){ p, 1, 0, 1, 0 });
    check_cut(&w, all, 1000, 100, (struct cut){ 1020, 8, 0, 1, 0 });
    check_cut(&w, all, 1000, 100, (struct cut){ 1021, 9, 0, 1, 0 });
    free(all);
    world_end(&w);
}
GPU_TEST(so_where_the_window_begins_in_a_segment_that_later_rows_do_not_see)
{
    struct world w = world_of(1, 1, 64, 1110, 60);
    float *all = forward(&w, (struct cut){ 1040, 64, 0, 1, 0 });
    for (int64_t p = 1040; p < 1104; p += 7)
        check_cut(&w, all, 1040, 64, (struct cut){ p, 1, 0, 1, 0 });
    check_row(&w, 1103, 0, all + 63 * 64, all[64 * 64 + 63]);
    free(all);
    world_end(&w);
}

/* ---- backward: documents of the world's rows ---- */
enum { DOCS_MAX = 4 };
struct doc {
    int64_t row, n;
};
struct docs {
    int n, kv0, kvs, odd;
    struct doc doc[DOCS_MAX];
};
struct grads {
    float *out, *lse, *dq, *dk, *dv;
};

static struct grads both_ways(struct world *w, struct docs c)
{
    const int64_t cols = (int64_t)w->group * c.kvs * w->hd, wide = (int64_t)heads(w) * w->hd,
                  c0 = (int64_t)c.kv0 * w->group * w->hd, T = w->T;
    struct pages pg[DOCS_MAX];
    struct attn_seq seq[DOCS_MAX];
    struct attn a = { w->group * c.kvs,     c.kvs, w->hd, DT_BF16, w->scale, OFF, c.n, seq, w->window,
                      .softcap = w->softcap };
    for (int i = 0; i < c.n; i++) {
        pg[i] = pages_of(w, c.doc[i].row, c.doc[i].n, c.kv0, c.kvs);
        seq[i] = (struct attn_seq){ c.doc[i].row, c.doc[i].n, 0, pg[i].page };
    }
    struct mat q = put_rows(w, DT_BF16, w->q, 0, T, wide, c0, cols, c.odd),
               dout = put_rows(w, DT_BF16, w->dout, 0, T, wide, c0, cols, c.odd);
    struct mat out = put_rows(w, DT_BF16, NULL, 0, T, 0, 0, cols, c.odd),
               lse = put_rows(w, DT_F32, NULL, 0, T, 0, 0, a.n_heads, 0);
    struct mat dq = put_rows(w, DT_F32, NULL, 0, T, 0, 0, cols, 0);
    struct mat dk = put_rows(w, DT_F32, NULL, 0, T, 0, 0, (int64_t)c.kvs * w->hd, 0),
               dv = put_rows(w, DT_F32, NULL, 0, T, 0, 0, (int64_t)c.kvs * w->hd, 0);
    KERNEL(w->d, attn, &a, out, lse.p, q);
    struct attn_kept kept = { out, q, lse.p };
    KERNEL(w->d, attn_dx, &a, dq, dk, dv, dout, kept);
    for (int i = 0; i < c.n; i++)
        dev_free(w->d, pg[i].memory);
    free(take(w, q, NULL));
    free(take(w, dout, NULL));
    return (struct grads){ take(w, out, NULL), take(w, lse, NULL), take(w, dq, NULL), take(w, dk, NULL),
                           take(w, dv, NULL) };
}
static void grads_free(struct grads g) { free(g.out), free(g.lse), free(g.dq), free(g.dk), free(g.dv); }

/* What a sum is, and how large an error it may have: operands in bf16, and fp32's noise in P and dP - D. */
struct sum {
    double x, bound;
};
static void add(struct sum *s, double p, double noise, double y)
{
    s->x += p * y;
    s->bound += (fabs(p) * (0x1p-8 + 1e-5) + noise) * fabs(y);
}

static const float *at(const struct world *w, const float *x, int64_t row, int head, int n_heads)
{
    return x + (row * n_heads + head) * w->hd;
}
static double dot(const struct world *w, const float *x, const float *y)
{
    double s = 0;
    for (int i = 0; i < w->hd; i++)
        s += (double)x[i] * (double)y[i];
    return s;
}

/* One document, all heads: the sums in double that the op's inputs define. */
static void check_doc(const struct world *w, const struct grads *g, struct doc d)
{
    const size_t nk = (size_t)(d.n * w->n_kv * w->hd);
    struct sum *dk = calloc(nk, sizeof *dk), *dv = calloc(nk, sizeof *dv),
               *dq = calloc((size_t)w->hd, sizeof *dq);
    const int H = heads(w);
    for (int64_t i = 0; i < d.n; i++)
        for (int h = 0; h < H; h++) {
            const int kv = h / w->group;
            const int64_t row = d.row + i, first = w->window && i >= w->window ? i - w->window + 1 : 0;
            const float *dout = at(w, w->dout, row, h, H);
            const double D = dot(w, dout, at(w, g->out, row, h, H)), lse = (double)g->lse[row * H + h];
            memset(dq, 0, (size_t)w->hd * sizeof *dq);
            for (int64_t j = first; j <= i; j++) {
                const float *k = at(w, w->k, d.row + j, kv, w->n_kv);
                const double s = capped(w, (double)w->scale * dot(w, at(w, w->q, row, h, H), k)),
                             t = w->softcap > 0 ? s / (double)w->softcap : 0, p = exp(s - lse),
                             dp = dot(w, dout, at(w, w->v, d.row + j, kv, w->n_kv));
                const double ds = p * (dp - D) * (1 - t * t) * (double)w->scale,
                             noise = 3e-5 * p * (fabs(dp) + fabs(D)) * (double)w->scale;
                for (int x = 0; x < w->hd; x++) {
                    add(&dq[x], ds, noise, (double)k[x]);
                    add(&dk[(j * w->n_kv + kv) * w->hd + x], ds, noise, (double)at(w, w->q, row, h, H)[x]);
                    add(&dv[(j * w->n_kv + kv) * w->hd + x], p, 3e-5 * p, (double)dout[x]);
                }
            }
            for (int x = 0; x < w->hd; x++)
                CHECK_NEAR(at(w, g->dq, row, h, H)[x], dq[x].x, dq[x].bound);
        }
    for (size_t x = 0; x < nk; x++) {
        CHECK_NEAR(g->dk[(size_t)(d.row * w->n_kv * w->hd) + x], dk[x].x, dk[x].bound);
        CHECK_NEAR(g->dv[(size_t)(d.row * w->n_kv * w->hd) + x], dv[x].x, dv[x].bound);
    }
    free(dk), free(dv), free(dq);
}

static void check_backward(int n_kv, int group, int hd, int64_t T, int64_t window, float softcap)
{
    struct world w = world_of(n_kv, group, hd, T, window);
    w.softcap = softcap;
    struct grads g = both_ways(&w, (struct docs){ 1, 0, n_kv, 0, { { 0, T } } });
    check_doc(&w, &g, (struct doc){ 0, T });
    grads_free(g);
    world_end(&w);
}
GPU_TEST(backward_is_near_the_definition)
{
    check_backward(1, 2, 64, 130, 0, 0);
    check_backward(1, 1, 128, 65, 0, 0);
    check_backward(2, 3, 16, 70, 0, 0);
    check_backward(1, 4, 40, 64, 0, 0);
    check_backward(1, 1, 80, 5, 0, 0);
    check_backward(1, 2, 8, 200, 70, 0);
    check_backward(1, 2, 64, 130, 0, 2.5f);
}

/* Columns [c0, c0 + n) of rows of a document, wide columns in all, have the bits of x [.][n]. */
static void check_same(const char *what, const struct doc *d, const float *all, int64_t wide, int64_t c0,
                       const float *x, int64_t n)
{
    for (int64_t r = d->row; r < d->row + d->n; r++)
        if (memcmp(all + r * wide + c0, x + r * n, (size_t)n * 4))
            test_fail(__FILE__, __LINE__, "%s of row %d has other bits", what, (int)r);
}

/* Some documents and kv heads again have the bits of all of them at once. */
static void check_again(struct world *w, const struct grads *all, struct docs c)
{
    const int64_t cols = (int64_t)w->group * c.kvs * w->hd, wide = (int64_t)heads(w) * w->hd,
                  kv_cols = (int64_t)c.kvs * w->hd, kv_wide = (int64_t)w->n_kv * w->hd;
    struct grads g = both_ways(w, c);
    for (int i = 0; i < c.n; i++) {
        check_same("out", &c.doc[i], all->out, wide, c.kv0 * w->group * w->hd, g.out, cols);
        check_same("lse", &c.doc[i], all->lse, heads(w), c.kv0 * w->group, g.lse, w->group * c.kvs);
        check_same("dq", &c.doc[i], all->dq, wide, c.kv0 * w->group * w->hd, g.dq, cols);
        check_same("dk", &c.doc[i], all->dk, kv_wide, c.kv0 * w->hd, g.dk, kv_cols);
        check_same("dv", &c.doc[i], all->dv, kv_wide, c.kv0 * w->hd, g.dv, kv_cols);
    }
    grads_free(g);
}

GPU_TEST(documents_have_the_same_bits_alone_and_among_others_at_any_tp_every_time)
{
    struct world w = world_of(2, 4, 64, 180, 0);
    const struct docs all = { 3, 0, 2, 0, { { 0, 67 }, { 67, 3 }, { 70, 110 } } };
    struct grads g = both_ways(&w, all);
    for (int i = 0; i < 3; i++) {
        check_doc(&w, &g, all.doc[i]);
        check_again(&w, &g, (struct docs){ 1, 0, 2, 0, { all.doc[i] } });
    }
    check_again(&w, &g, all);
    check_again(&w, &g, (struct docs){ 3, 0, 2, ODD, { all.doc[2], all.doc[0], all.doc[1] } });
    check_again(&w, &g, (struct docs){ 3, 0, 1, 0, { all.doc[0], all.doc[1], all.doc[2] } });
    check_again(&w, &g, (struct docs){ 3, 1, 1, 0, { all.doc[0], all.doc[1], all.doc[2] } });
    grads_free(g);
    world_end(&w);
}

/* A kv head whose query heads are all alike: Tree(group) of what one of them gives. */
GPU_TEST(dk_and_dv_are_the_tree_over_query_heads)
{
    enum { GROUP = 6, HD = 64, T = 66 };
    struct world w = world_of(1, GROUP, HD, T, 0),
                 one = { w.d, 1, 1, HD, T, 0, w.scale, NULL, NULL, w.k, w.v };
    struct grads all = both_ways(&w, (struct docs){ 1, 0, 1, 0, { { 0, T } } }), head[GROUP];
    for (int h = 0; h < GROUP; h++) {
        one.q = malloc(sizeof(float) * T * HD), one.dout = malloc(sizeof(float) * T * HD);
        for (int64_t i = 0; i < T * HD; i++) {
            one.q[i] = w.q[(i / HD * GROUP + h) * HD + i % HD];
            one.dout[i] = w.dout[(i / HD * GROUP + h) * HD + i % HD];
        }
        head[h] = both_ways(&one, (struct docs){ 1, 0, 1, 0, { { 0, T } } });
        free(one.q), free(one.dout);
    }
    for (int64_t i = 0; i < T * HD; i++) {
        float k[GROUP], v[GROUP];
        for (int h = 0; h < GROUP; h++)
            k[h] = head[h].dk[i], v[h] = head[h].dv[i];
        CHECK_BITS(all.dk[i], tree_sum(GROUP, k, 1));
        CHECK_BITS(all.dv[i], tree_sum(GROUP, v, 1));
    }
    for (int h = 0; h < GROUP; h++)
        grads_free(head[h]);
    grads_free(all);
    world_end(&w);
}

GPU_TEST(a_window_longer_than_the_document_changes_nothing)
{
    struct world w = world_of(1, 2, 32, 100, 0);
    struct docs c = { 1, 0, 1, 0, { { 0, 100 } } };
    struct grads g = both_ways(&w, c);
    w.window = 100;
    check_again(&w, &g, c);
    grads_free(g);
    world_end(&w);
}

GPU_TEST(a_page_at_an_odd_address_is_refused)
{
    struct world w = world_of(1, 1, 64, 4, 0);
    if (!strcmp(w.d->kind, "fake")) {
        test_skip("the fake device reads at any address");
        world_end(&w);
        return;
    }
    struct pages pg = pages_of(&w, 0, 4, 0, 1);
    struct attn_seq seq = { 0, 4, 0, pg.page };
    struct attn a = { 1, 1, 64, DT_BF16, w.scale, 2, 1, &seq, 0 };
    struct mat q = put_rows(&w, DT_BF16, w.q, 0, 4, 64, 0, 64, 0),
               out = put_rows(&w, DT_BF16, NULL, 0, 4, 0, 0, 64, 0);
    struct err e;
    KERNEL(w.d, attn, &a, out, NULL, q);
    CHECK(dev_check(w.d, &e) < 0);
    CHECK_HAS(e.text, "no multiple of 16 bytes");
    free(take(&w, q, NULL)), free(take(&w, out, NULL));
    dev_free(w.d, pg.memory);
    world_end(&w);
}

#endif
