/* row_cases.h - products of many rows and of few, on a CUDA device: a row has the same bits whatever the
 * number of rows, and is near the sum in double.
 * ROWS, COLS, INNER: sizes, odd ones. */
#ifndef SHARDLINE_TESTS_UNIT_KERNELS_ROW_CASES_H
#define SHARDLINE_TESTS_UNIT_KERNELS_ROW_CASES_H

#include <math.h>

#include "kernels/dev.h"
#include "kernels/fn.h"
#include "kernels/kernels.h"
#include "tests/test.h"

enum { MOST = ROWS, N = COLS, K = INNER, GRAIN = 8 };
struct rig {
    struct mem mem;
    struct dev *d;
    enum dtype dt;
    float *x, *w, *y, *all;
    void *xd, *wd, *yd;
    struct panels p;
};

static float widened(enum dtype dt, float v) { return dt == DT_BF16 ? fn_from_bf16(fn_to_bf16(v)) : v; }

static void *to_device(struct rig *r, const float *v, int64_t n)
{
    const size_t bytes = (size_t)n * dtype_size(r->dt);
    void *p = dev_alloc(r->d, MEM_WORK, bytes);
    uint16_t *half = malloc((size_t)n * 2);
    for (int64_t i = 0; i < n; i++)
        half[i] = fn_to_bf16(v[i]);
    dev_write(r->d, p, r->dt == DT_BF16 ? (const void *)half : v, bytes);
    free(half);
    return p;
}

static float *numbers(enum dtype dt, int64_t n, uint32_t state)
{
    float *v = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        v[i] = widened(dt, (float)(state >> 8) / 8388608.0f - 1.0f);
    }
    return v;
}

/* 0: that provider is not here. */
static int rig_open(struct rig *r, enum dtype dt, const char *device, const char *provider)
{
    struct err e;
    *r = (struct rig){ .dt = dt };
    if (device)
        setenv("SHARDLINE_DEVICE", device, 1);
    setenv("SHARDLINE_CUDA", provider, 1);
    int rc = dev_open(&r->d, "cuda", 1, &r->mem, &e);
    unsetenv("SHARDLINE_CUDA");
    if (device)
        unsetenv("SHARDLINE_DEVICE");
    if (rc < 0) {
        test_skip("products of %s: %s", provider, e.text);
        return 0;
    }
    r->x = numbers(dt, MOST * K, 3), r->w = numbers(dt, N * K, 4);
    r->y = malloc(4 * MOST * (size_t)(N > K ? N : K)), r->all = malloc(4 * MOST * (size_t)(N > K ? N : K));
    r->xd = to_device(r, r->x, MOST * K), r->wd = to_device(r, r->w, N * K);
    r->yd = dev_alloc(r->d, MEM_WORK, 4 * MOST * (size_t)(N > K ? N : K));
    return 1;
}

static void rig_close(struct rig *r)
{
    void *const device[] = { r->xd, r->wd, r->yd, r->p.p };
    struct err e;
    if (dev_check(r->d, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        dev_free(r->d, device[i]);
    dev_close(r->d);
    free(r->x), free(r->w), free(r->y), free(r->all);
    CHECK_INT(r->mem.total_now, 0);
}

/* One of the two products of `rows` rows, into r->y. */
static void run(struct rig *r, int dx, int64_t rows)
{
    const struct leaves ln = leaves_of(N, GRAIN, 0, GRAIN);
    const struct mat w = mat_of(r->wd, r->dt, N, K, K), dy = mat_of(r->xd, r->dt, rows, N, K);
    const int64_t cols = dx ? K : N;
    dev_fill(r->d, r->yd, 0xff, (size_t)(rows * cols) * 4);
    if (dx)
        KERNEL(r->d, linear_dx, mat_of(r->yd, DT_F32, rows, K, K), 1, &dy, &w, &ln);
    else
        KERNEL(r->d, linear, mat_of(r->yd, DT_F32, rows, N, N), mat_of(r->xd, r->dt, rows, K, K), &r->p);
    dev_read(r->d, r->y, r->yd, (size_t)(rows * cols) * 4);
}

/* Rounding of a sum of n products, with a margin: n / 2 steps of half an ulp of the sum of absolute values
 * never happen together. */
static void near_double(struct rig *r, int dx, int64_t rows)
{
    const int64_t cols = dx ? K : N, inner = dx ? N : K;
    double worst = 0;
    for (int64_t i = 0; i < rows; i += 37)
        for (int64_t j = 0; j < cols; j++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < inner; k++) {
                const double v = (double)r->x[i * K + k] * (double)(dx ? r->w[k * K + j] : r->w[j * K + k]);
                sum += v, size += fabs(v);
            }
            const double off = fabs((double)r->y[i * cols + j] - sum) / size;
            worst = off > worst || isnan(off) ? off : worst;
        }
    if (!(worst < 8 * 6e-8))
        test_fail(__FILE__, __LINE__, "%s %s: %g of the sum of absolute values off", dx ? "dx" : "linear",
                  dtype_name(r->dt), worst);
}

static void same_rows(struct rig *r, const char *provider)
{
    static const int64_t rows[] = { 1, 2, 15, 63, 64, 65, 128, 200 };
    struct mat w = mat_of(r->wd, r->dt, N, K, K);
    r->p = (struct panels){ .n = N, .k = K, .dt = r->dt, .leaves = leaves_of(K, GRAIN, 0, GRAIN) };
    r->p.p = dev_alloc(r->d, MEM_WORK, panels_bytes(N, K, r->dt, &r->p.leaves));
    KERNEL(r->d, linear_pack, &r->p, 1, &w);
    for (int dx = 0; dx < 2; dx++) {
        const size_t row = 4 * (size_t)(dx ? K : N);
        run(r, dx, MOST);
        near_double(r, dx, MOST);
        memcpy(r->all, r->y, MOST * row);
        for (size_t i = 0; i < sizeof rows / sizeof *rows && rows[i] < MOST; i++) {
            run(r, dx, rows[i]);
            if (memcmp(r->y, r->all, (size_t)rows[i] * row))
                test_fail(__FILE__, __LINE__, "products of %s, %s %s: %lld rows have other bits than %d",
                          provider, dx ? "dx" : "linear", dtype_name(r->dt), (long long)rows[i], MOST);
        }
    }
}

static void rows_on(const char *device, const char *provider)
{
    struct rig r;
    for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++) {
        if (!rig_open(&r, dt, device, provider))
            return;
        same_rows(&r, provider);
        rig_close(&r);
    }
}

#endif
