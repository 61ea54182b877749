/* cuda_emu_experts_test.c - products of experts on the emulated GPU's tensor cores: the bits of its dense
 * products, of one expert and of one leaf after the other. */
#include <stdlib.h>

#include "kernels/dev.h"
#include "kernels/fn.h"
#include "kernels/kernels.h"
#include "tests/test.h"

enum { EXPERTS = 4, LEAVES = 4, ROWS = 84 };
/* rows of leaf s of expert e */
static const int64_t deal[EXPERTS][LEAVES] = {
    { 0, 33, 0, 3 }, { 0, 0, 0, 0 }, { 1, 0, 0, 40 }, { 0, 0, 7, 0 }
};

struct rig {
    struct mem mem;
    struct dev *d;
    enum dtype dt;
    int64_t n, k;
    void *x, *dy, *w;
    int64_t begin[EXPERTS + 1], ends[EXPERTS * LEAVES];
    struct expert_rows g;
};

static void *numbers(struct rig *r, int64_t n, uint32_t state)
{
    const size_t bytes = (size_t)n * dtype_size(r->dt);
    float *host = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        const float v = (float)(state >> 8) / 8388608.0f - 1.0f;
        if (r->dt == DT_BF16)
            ((uint16_t *)(void *)host)[i] = fn_to_bf16(v);
        else
            host[i] = v;
    }
    void *p = dev_alloc(r->d, MEM_WORK, bytes);
    dev_write(r->d, p, host, bytes);
    free(host);
    return p;
}

static int rig_open(struct rig *r, enum dtype dt, int64_t n, int64_t k)
{
    struct err e;
    *r = (struct rig){ .dt = dt, .n = n, .k = k, .g = { EXPERTS, NULL, LEAVES, NULL } };
    if (dev_open(&r->d, "cuda", 1, &r->mem, &e) < 0) {
        test_fail(__FILE__, __LINE__, "%s", e.text);
        return 0;
    }
    int64_t row = 0;
    for (int expert = 0; expert < EXPERTS; expert++) {
        for (int s = 0; s < LEAVES; s++)
            r->ends[expert * LEAVES + s] = row += deal[expert][s];
        r->begin[expert + 1] = row;
    }
    CHECK_INT(row, ROWS);
    r->g.begin = r->begin;
    r->g.leaf_end = r->ends;
    r->x = numbers(r, ROWS * k, 3);
    r->dy = numbers(r, ROWS * n, 4);
    r->w = numbers(r, EXPERTS * n * k, 5);
    return 1;
}

static void rig_close(struct rig *r)
{
    struct err e;
    if (dev_check(r->d, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    dev_free(r->d, r->x);
    dev_free(r->d, r->dy);
    dev_free(r->d, r->w);
    dev_close(r->d);
    CHECK_INT(r->mem.total_now, 0);
}

static struct mat weights(struct rig *r, int e)
{
    return mat_rows(mat_of(r->w, r->dt, EXPERTS * r->n, r->k, r->k), e * r->n, r->n);
}

static float *host_copy(struct rig *r, const void *p, int64_t n)
{
    float *host = malloc((size_t)n * 4);
    dev_read(r->d, host, p, (size_t)n * 4);
    return host;
}

/* Both results, one behind the other, are the same; they are freed. */
static void same(struct rig *r, float *both, int64_t n, const char *what)
{
    float *host = host_copy(r, both, 2 * n);
    if (memcmp(host, host + n, (size_t)n * 4))
        test_fail(__FILE__, __LINE__, "%s %s, %dx%d: other bits than dense products", what, dtype_name(r->dt),
                  (int)r->n, (int)r->k);
    free(host);
    dev_free(r->d, both);
}

static void check_linear(struct rig *r, const int32_t *list)
{
    float *y = dev_alloc(r->d, MEM_WORK, (size_t)(2 * ROWS * r->n) * 4);
    const struct leaves l = leaves_of(r->k, 8, 0, 8);
    const struct mat x = mat_of(r->x, r->dt, ROWS, r->k, r->k);
    struct panels p[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        const struct mat w = weights(r, e);
        p[e] = (struct panels){ NULL, r->n, r->k, r->dt, l };
        p[e].p = dev_alloc(r->d, MEM_WORK, panels_bytes(r->n, r->k, r->dt, &l));
        KERNEL(r->d, linear_pack, &p[e], 1, &w);
        for (int64_t i = r->begin[e]; i < r->begin[e + 1]; i++)
            KERNEL(r->d, linear, mat_of(y + (ROWS + i) * r->n, DT_F32, 1, r->n, r->n),
                   mat_rows(x, list[i], 1), &p[e]);
    }
    KERNEL(r->d, linear_experts, mat_of(y, DT_F32, ROWS, r->n, r->n), listed_of(x, list), &r->g, p);
    for (int e = 0; e < EXPERTS; e++)
        dev_free(r->d, p[e].p);
    same(r, y, ROWS * r->n, "linear");
}

static void check_dx(struct rig *r)
{
    float *dx = dev_alloc(r->d, MEM_WORK, (size_t)(2 * ROWS * r->k) * 4);
    const struct leaves l[2] = { leaves_of(r->n, 4, 0, 4), leaves_of(r->n, 4, 0, 4) };
    const struct mat all = mat_of(r->dy, r->dt, ROWS, r->n, r->n);
    const struct listed dy[2] = { listed_of(all, NULL), listed_of(all, NULL) };
    struct mat w[EXPERTS * 2];
    for (int e = 0; e < EXPERTS; e++) {
        const int64_t begin = r->begin[e], rows = r->begin[e + 1] - begin;
        const struct mat one[2] = { mat_rows(all, begin, rows), mat_rows(all, begin, rows) };
        w[2 * e] = weights(r, e);
        w[2 * e + 1] = weights(r, (e + 1) % EXPERTS);
        if (rows > 0)
            KERNEL(r->d, linear_dx, mat_of(dx + (ROWS + begin) * r->k, DT_F32, rows, r->k, r->k), 2, one,
                   w + 2 * e, l);
    }
    KERNEL(r->d, linear_dx_experts, mat_of(dx, DT_F32, ROWS, r->k, r->k), 2, dy, w, l, &r->g);
    same(r, dx, ROWS * r->k, "dx");
}

/* Tree(4) of leaves that may be absent (NULL). */
static float tree_of(float *const *leaf, int64_t i)
{
    float pair[2];
    int has[2];
    for (int p = 0; p < 2; p++) {
        float *const a = leaf[2 * p], *const b = leaf[2 * p + 1];
        has[p] = a || b;
        pair[p] = a && b ? a[i] + b[i] : a ? a[i] : b ? b[i] : 0.0f;
    }
    return has[0] && has[1] ? pair[0] + pair[1] : has[0] ? pair[0] : has[1] ? pair[1] : -0.0f;
}

static void check_dw_of(struct rig *r, int e, const float *got)
{
    const int64_t n = r->n * r->k;
    float *there = dev_alloc(r->d, MEM_WORK, (size_t)n * 4), *leaf[LEAVES] = { NULL };
    int64_t row = r->begin[e];
    for (int s = 0; s < LEAVES; row += deal[e][s++]) {
        const struct tree_acc acc = { .n = 1, .level = { there } };
        if (deal[e][s] == 0)
            continue;
        KERNEL(r->d, linear_dw, &acc, r->k, mat_rows(mat_of(r->dy, r->dt, ROWS, r->n, r->n), row, deal[e][s]),
               mat_rows(mat_of(r->x, r->dt, ROWS, r->k, r->k), row, deal[e][s]), 1, deal[e][s]);
        leaf[s] = host_copy(r, there, n);
    }
    float *host = host_copy(r, got, n);
    for (int64_t i = 0; i < n; i++) {
        const float want = tree_of(leaf, i);
        if (memcmp(&want, &host[i], 4)) {
            test_fail(__FILE__, __LINE__, "dw %s, %dx%d: element %d of expert %d is %a, not %a",
                      dtype_name(r->dt), (int)r->n, (int)r->k, (int)i, e, (double)host[i], (double)want);
            break;
        }
    }
    for (int s = 0; s < LEAVES; s++)
        free(leaf[s]);
    free(host);
    dev_free(r->d, there);
}

static void check_dw(struct rig *r)
{
    struct tree_acc acc[EXPERTS];
    for (int e = 0; e < EXPERTS; e++)
        acc[e] = (struct tree_acc){ .n = LEAVES,
                                    .level = { dev_alloc(r->d, MEM_WORK, (size_t)(r->n * r->k) * 4) } };
    KERNEL(r->d, linear_dw_experts, acc, r->k, listed_of(mat_of(r->dy, r->dt, ROWS, r->n, r->n), NULL),
           listed_of(mat_of(r->x, r->dt, ROWS, r->k, r->k), NULL), &r->g);
    for (int e = 0; e < EXPERTS; e++) {
        check_dw_of(r, e, acc[e].level[0]);
        dev_free(r->d, acc[e].level[0]);
    }
}

TEST(products_of_experts_have_the_bits_of_dense_ones)
{
    static const int64_t sizes[][2] = { { 70, 45 }, { 96, 64 } };
    int32_t list[ROWS];
    for (int i = 0; i < ROWS; i++)
        list[i] = (i * 11 + 5) % ROWS;
    for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++)
        for (int i = 0; i < 2; i++) {
            struct rig r;
            if (!rig_open(&r, dt, sizes[i][0], sizes[i][1]))
                return;
            check_linear(&r, list);
            check_dx(&r);
            check_dw(&r);
            rig_close(&r);
        }
}
