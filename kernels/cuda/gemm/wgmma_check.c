/* wgmma_check.c - what wgmma gives beside mma, looked at when the device is opened (wgmma.h): some products
 * of every form, by mma and by each size of wgmma's tiles, several of them a block: the small products here
 * would choose the smallest alone, and one a block. What a size cannot make, mma makes.
 *
 * Numbers are of wide range and both signs, so that sums lose bits in every step: instructions that round
 * otherwise differ in most elements. The bound is that
 * of the tests: steps x 2^-21 x the sum of the products' sizes, which is the product of the operands'
 * absolute values. */
#include "kernels/cuda/gemm/wgmma.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rnd.h"
#include "kernels/cuda/priv.h"
#include "kernels/cuda/products.h"
#include "kernels/fn.h"

enum { M = 136, N = 264, K = 128, LEAVES = 8, MOST = M * N, MATS = 6 };
/* x [M][K], w [N][K], dy [M][N], and their absolute values */
enum { X, W, DY, ABS = 3 };

struct bench {
    struct dev *d;
    const struct gemm_ops *ops;
    uint16_t *op[MATS];
    void *packed;
    float *out, *got[3]; /* got: of mma, wgmma, mma of absolute values; on the host */
};

static const int64_t shape[ABS][2] = { { M, K }, { N, K }, { M, N } };

static struct mat mat_at(const struct bench *b, int which, int abs)
{
    return mat_of(b->op[which + (abs ? ABS : 0)], DT_BF16, shape[which][0], shape[which][1], shape[which][1]);
}
static struct leaves cut(int64_t n, int leaves)
{
    struct leaves l = { .n = leaves };
    for (int i = 0; i < leaves; i++)
        l.end[i] = n / leaves * (i + 1);
    return l;
}

/* ---- one product of each form: its number of elements ---- */
static int64_t linear(struct bench *b, int abs, int leaves)
{
    struct mat w = mat_at(b, W, abs);
    struct panels p = { b->packed, N, K, DT_BF16, cut(K, leaves) };
    b->ops->linear_pack(b->d, &p, 1, &w);
    b->ops->linear(b->d, mat_of(b->out, DT_F32, M, N, N), mat_at(b, X, abs), &p);
    return M * N;
}
static int64_t run_linear(struct bench *b, int abs) { return linear(b, abs, 1); }
static int64_t run_leaves(struct bench *b, int abs) { return linear(b, abs, LEAVES); }
static int64_t run_dx(struct bench *b, int abs)
{
    struct mat dy = mat_at(b, DY, abs), w = mat_at(b, W, abs);
    struct leaves l = { .n = 1, .end = { N } };
    b->ops->linear_dx(b->d, mat_of(b->out, DT_F32, M, K, K), 1, &dy, &w, &l);
    return M * K;
}
static int64_t run_dw(struct bench *b, int abs)
{
    struct tree_acc acc = { .n = 1, .level = { b->out } };
    b->ops->linear_dw(b->d, &acc, K, mat_at(b, DY, abs), mat_at(b, X, abs), 1, M);
    return N * K;
}
static const struct {
    int64_t (*run)(struct bench *, int abs);
    int steps;
} forms[] = { { run_linear, K / 16 + 1 },
              { run_leaves, K / 16 + LEAVES },
              { run_dx, N / 16 + 1 },
              { run_dw, (M + 15) / 16 + 1 } };

/* 2: the same bits; 1: within the bound; 0: wrong. */
static int compare(const struct bench *b, int64_t n, int steps)
{
    for (int64_t i = 0; i < n; i++) {
        const double a = b->got[0][i], w = b->got[1][i], bound = 2 * 0x1p-21 * steps * (double)b->got[2][i];
        if (!(fabs(a - w) <= bound))
            return 0;
    }
    const int same = !memcmp(b->got[0], b->got[1], (size_t)n * sizeof(float));
    return same ? 2 : 1;
}

/* One product by the kernel that w selects, copied to the host; returns its number of elements. */
static int64_t multiply(struct bench *b, size_t form, int abs, float *got)
{
    dev_fill(b->d, b->out, 0xff, MOST * sizeof(float));
    const int64_t n = forms[form].run(b, abs);
    dev_read(b->d, got, b->out, (size_t)n * sizeof(float));
    return n;
}

static int look(struct bench *b, struct wgmma *w)
{
    int worst = 2;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        w->use = WGMMA_OFF;
        multiply(b, f, 1, b->got[2]);
        multiply(b, f, 0, b->got[0]);
        w->use = WGMMA_ALONE;
        for (w->only = 1; w->only <= WGMMA_SIZES && worst; w->only++) {
            const int64_t n = multiply(b, f, 0, b->got[1]);
            const int now = compare(b, n, forms[f].steps);
            worst = now < worst ? now : worst;
        }
    }
    w->only = 0;
    return worst;
}

/* Numbers in both forms; 0: no memory. */
static int fill(struct bench *b, uint16_t *host)
{
    const struct leaves l = cut(K, LEAVES);
    for (int m = 0; m < MATS; m++) {
        const int64_t n = shape[m % ABS][0] * shape[m % ABS][1];
        for (int64_t i = 0; i < n; i++) {
            const double u = 2 * rnd_unit(7, (uint64_t)m % ABS, (uint64_t)i * 2) - 1,
                         e = rnd_unit(7, (uint64_t)m % ABS, (uint64_t)i * 2 + 1);
            host[i] = fn_to_bf16((float)ldexp(m < ABS ? u : fabs(u), (int)(e * 12) - 6));
        }
        if (!(b->op[m] = dev_alloc(b->d, MEM_WORK, (size_t)n * 2)))
            return 0;
        dev_write(b->d, b->op[m], host, (size_t)n * 2);
    }
    b->packed = dev_alloc(b->d, MEM_WORK, panels_bytes(N, K, DT_BF16, &l));
    b->out = dev_alloc(b->d, MEM_WORK, MOST * sizeof(float));
    for (int i = 0; i < 3; i++)
        b->got[i] = malloc(MOST * sizeof(float));
    return b->packed && b->out && b->got[0] && b->got[1] && b->got[2];
}

void wgmma_check(struct dev *d, struct wgmma *w)
{
    static const enum wgmma_use uses[] = { WGMMA_OFF, WGMMA_ALONE, WGMMA_BESIDE };
    static const char *const words[] = { "without wgmma, whose numbers were wrong in the self-check",
                                         "by wgmma alone", "by mma and wgmma, which round alike" };
    struct bench b = { .d = d, .ops = cuda_gemm_own(d) };
    uint16_t *host = malloc(MOST * sizeof *host);
    const int found = host && fill(&b, host) ? look(&b, w) : -1;
    w->use = found < 0 ? WGMMA_OFF : uses[found];
    snprintf(w->why, sizeof w->why, "%s",
             found < 0 ? "without wgmma: no memory for its self-check" : words[found]);
    for (int m = 0; m < MATS; m++)
        dev_free(d, b.op[m]);
    for (int i = 0; i < 3; i++)
        free(b.got[i]);
    dev_free(d, b.packed);
    dev_free(d, b.out);
    free(host);
}
