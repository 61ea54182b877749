/* cpu.c - CPU classes: which one this machine has, its op table, and the self-tests at start. */
#include "kernels/cpu.h"

#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "kernels/attn.h"
#include "kernels/codes/codes_core.h"
#include "kernels/fn.h"
#include "kernels/gemm.h"
#include "kernels/rows.h"

/* The builtin checks the processor and, for the width of registers, the operating system (XGETBV). */
static int has_all(void) { return 1; }
#if defined(__x86_64__)
static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static int has_avx512bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

struct cpu_class {
    const char *name;
    int (*here)(void);
    const struct gemm_ops *gemm;
    const struct attn_ops *attn;
    const struct row_ops *rows;
    int wide; /* its plain panels are those of files: 32 columns side by side */
};
static const struct cpu_class classes[] = {
/* best first */
#if defined(__x86_64__)
    { "avx512bf16", has_avx512bf16, &gemm_avx512bf16, &attn_avx512bf16, &rows_avx512, 1 },
    { "avx512", has_avx512, &gemm_avx512, &attn_avx512, &rows_avx512, 1 },
    { "avx2", has_avx2, &gemm_avx2, &attn_avx2, &rows_avx2, 0 },
#endif
    { "portable", has_all, &gemm_portable, &attn_portable, &rows_portable, 1 },
    /* the GPU's text, for tests (simt/simt.c); only SHARDLINE_ISA chooses it */
    { "simt", has_all, &gemm_simt, &attn_simt, &rows_simt, 0 },
};
#define N_CLASSES ((int)(sizeof classes / sizeof *classes))

static void fill(struct kernel_ops *ops, const struct cpu_class *c)
{
    ops->linear_pack = c->gemm->linear_pack;
    ops->linear = c->gemm->linear;
    ops->linear_dx = c->gemm->linear_dx;
    ops->linear_dw = c->gemm->linear_dw;
    ops->linear_experts = c->gemm->linear_experts;
    ops->linear_dx_experts = c->gemm->linear_dx_experts;
    ops->linear_dw_experts = c->gemm->linear_dw_experts;
    ops->attn = c->attn->attn;
    ops->attn_dx = c->attn->attn_dx;
#define X(name) ops->name = c->rows->name;
    ROW_OPS(X)
#undef X
    ops->sum_squares = xsum_squares;
}

int dev_file_panels(const struct dev *d)
{
    int wide = 0;
    for (int i = 0; i < N_CLASSES && !d->memory; i++)
        wide |= classes[i].wide && !strcmp(classes[i].name, d->isa);
    return wide;
}

static int denormals_live(void)
{
    volatile float x = 1e-39f;
    return x / 2 != 0;
}

/* ---- self-test: does the bf16 dot instruction add in the contract's order? ----
 * One product by the instruction and one by emulation, on numbers of all sizes. */
enum { BF_ROWS = 5, BF_COLS = 37, BF_K = 203 };

/* Numbers of every size, so that partial sums round, cancel and become denormal; no NaN, no infinity. */
static uint16_t bf16_case(uint32_t *state)
{
    uint32_t r = *state = *state * 1664525u + 1013904223u;
    uint32_t span = r >> 8 & 3, e = span == 0   ? 64 + (r >> 16 & 127)
                                    : span == 1 ? r >> 16 & 1
                                                : 60 + (r >> 16 & 7);
    return (uint16_t)((r >> 31) << 15 | e << 7 | (r >> 24 & 127));
}

static void bf16_product(struct dev *d, const struct gemm_ops *g, float *y, uint16_t *x, uint16_t *w,
                         void *packed)
{
    struct panels p = { packed, BF_COLS, BF_K, DT_BF16, leaves_of(BF_K, 2, 0, 2) };
    struct mat wm = mat_of(w, DT_BF16, BF_COLS, BF_K, BF_K);
    g->linear_pack(d, &p, 1, &wm);
    g->linear(d, mat_of(y, DT_F32, BF_ROWS, BF_COLS, BF_COLS), mat_of(x, DT_BF16, BF_ROWS, BF_K, BF_K), &p);
}

/* 1: the same bits as `emulated`; 0: other bits, or no memory for the test. */
static int bf16_order_holds(struct dev *d, const struct gemm_ops *tested, const struct gemm_ops *emulated)
{
    struct leaves l = leaves_of(BF_K, 2, 0, 2);
    struct {
        float y[2][BF_ROWS * BF_COLS];
        uint16_t x[BF_ROWS * BF_K], w[BF_COLS * BF_K];
    } *b = dev_alloc(d, MEM_WORK, sizeof *b);
    void *packed = dev_alloc(d, MEM_WORK, panels_bytes(BF_COLS, BF_K, DT_BF16, &l));
    int same = 0;
    if (b && packed) {
        uint32_t state = 1;
        for (int i = 0; i < BF_ROWS * BF_K; i++)
            b->x[i] = bf16_case(&state);
        for (int i = 0; i < BF_COLS * BF_K; i++)
            b->w[i] = bf16_case(&state);
        bf16_product(d, tested, b->y[0], b->x, b->w, packed);
        bf16_product(d, emulated, b->y[1], b->x, b->w, packed);
        same = !memcmp(b->y[0], b->y[1], sizeof b->y[0]);
    }
    dev_free(d, b);
    dev_free(d, packed);
    return same;
}

static int class_index(const char *name)
{
    for (int i = 0; i < N_CLASSES; i++)
        if (!strcmp(classes[i].name, name))
            return i;
    return -1;
}

int cpu_choose(struct dev *d, struct kernel_ops *ops, const char **isa, struct err *e)
{
    const char *wanted = env_get(ENV_SHARDLINE_ISA);
    int i = 0;
    if (!denormals_live())
        return err_set(e, ERR_DEVICE,
                       "denormal numbers are flushed here, sums would not agree: build without -ffast-math");
    if (wanted) {
        i = class_index(wanted);
        if (i < 0)
            return err_set(
                e, ERR_DEVICE,
                "SHARDLINE_ISA=%s is not known: use portable, avx2, avx512, avx512bf16 or (slow) simt",
                wanted);
        if (!classes[i].here())
            return err_set(e, ERR_DEVICE, "SHARDLINE_ISA=%s: this processor does not have it: use portable",
                           wanted);
    }
    while (!classes[i].here())
        i++;
#if defined(__x86_64__)
    if (classes[i].gemm == &gemm_avx512bf16 && !bf16_order_holds(d, &gemm_avx512bf16, &gemm_avx512)) {
        if (wanted)
            return err_set(e, ERR_DEVICE,
                           "SHARDLINE_ISA=%s: this processor's instruction adds in another order: use avx512",
                           wanted);
        i++; /* the same bits by emulation */
    }
#endif
    fill(ops, &classes[i]);
    *isa = classes[i].name;
    d->codes = codes_choose(d, *isa);
    return 0;
}
