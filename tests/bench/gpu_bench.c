/* gpu_bench.c - speed of the CUDA device: products against the best of all of cuBLASLt's algorithms, decode
 * and row ops against the bandwidth of a copy, attention in TFLOP/s. Prints a line a figure as soon as it
 * is known: "figure NAME VALUE UNIT".
 * usage: gpu_bench [--small] [PART…]     parts: copy products instructions few attention decode rows
 * Ends with 77 where there is no GPU.
 *     --small: tiny sizes, to test the bench itself (SHARDLINE_DEVICE names the device's library) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/lt/lt.h"
#include "kernels/kernels.h"

/* seconds of one measurement; of one of the library's many algorithms */
#define ENOUGH_S 0.1
#define ENOUGH_OF_MANY_S 0.03
enum { NO_DEVICE = 77 }; /* exit status: there is no GPU here, or the build is without CUDA */
enum { GRAIN = 8, MATS = 12, LIST = 32 };

struct rig {
    struct mem mem;
    struct dev *d;
    struct lt *lt; /* the library beside the device's own products; NULL: not here */
    void *p[MATS];
    int n;
    double enough_s;
    int64_t part;     /* sizes are divided by it */
    double bandwidth; /* bytes/s of a copy, read and written; 0: not measured */
};

static void figure(const char *name, const char *more, double value, const char *unit)
{
    printf("figure %s%s %.4g %s\n", name, more, value, unit);
    fflush(stdout);
}

static void failed(struct rig *r, const char *what)
{
    struct err e;
    if (dev_check(r->d, &e) < 0)
        printf("failed %s: %s\n", what, e.text);
}

/* ---- memory with numbers in it: zeros would be faster than anything real ---- */
static void *numbers(struct rig *r, size_t bytes)
{
    static uint16_t some[1 << 19];
    char *p = r->n < MATS ? dev_alloc(r->d, MEM_WORK, bytes + 256) : NULL;
    uint32_t state = 9;
    if (!p) {
        printf("failed: no memory for %zu MB\n", bytes >> 20);
        exit(1);
    }
    for (size_t i = 0; !some[0] && i < sizeof some / sizeof *some; i++) {
        state = state * 1664525u + 1013904223u;
        /* bf16 of 0.008 to 0.13; a harmless float, too */
        some[i] = (uint16_t)((state >> 31) << 15 | 0x3c00u | (state >> 16 & 0x1ffu));
    }
    for (size_t at = 0; at < bytes; at += sizeof some)
        dev_write(r->d, p + at, some, bytes - at < sizeof some ? bytes - at : sizeof some);
    return r->p[r->n++] = p;
}

static struct mat matrix(struct rig *r, enum dtype dt, int64_t rows, int64_t cols)
{
    return mat_of(numbers(r, (size_t)(rows * cols) * dtype_size(dt)), dt, rows, cols, cols);
}

static void give_back(struct rig *r, const char *what)
{
    failed(r, what);
    while (r->n)
        dev_free(r->d, r->p[--r->n]);
}

/* Seconds of one run: the least of batches that fill the time. run: 0, it does not run. */
static double seconds_of(struct rig *r, int (*run)(void *), void *arg)
{
    double best = 1e9, all = 0;
    int n = 1;
    if (!run(arg))
        return 0;
    dev_sync(r->d);
    for (int batch = 0; batch < 1 || (batch < 20 && all < r->enough_s); batch++) {
        const double begin = clock_s();
        for (int i = 0; i < n; i++)
            run(arg);
        dev_sync(r->d);
        const double took = clock_s() - begin;
        best = took / n < best ? took / n : best;
        all += took;
        n = took < r->enough_s / 8 ? n * 2 : n;
    }
    return best;
}

/* ---- copy ---- */
struct copy_run {
    struct rig *r;
    void *to, *from;
    size_t bytes;
};
static int copy_once(void *arg)
{
    struct copy_run *c = arg;
    dev_copy(c->r->d, c->to, c->from, c->bytes);
    return 1;
}

static void bench_copy(struct rig *r)
{
    struct copy_run c = { r, NULL, NULL, ((size_t)1 << 30) / (size_t)r->part / (size_t)r->part };
    c.to = numbers(r, c.bytes);
    c.from = numbers(r, c.bytes);
    r->bandwidth = 2.0 * (double)c.bytes / seconds_of(r, copy_once, &c);
    figure("copy", "", r->bandwidth * 1e-9, "GB/s");
    give_back(r, "copy");
}

/* ---- products ---- */
static const struct shape {
    const char *name;
    int64_t n, k;
} shapes[] = {
    { "4096", 4096, 4096 },      { "8b_gate_up", 28672, 4096 }, { "8b_down", 4096, 14336 },
    { "8b_qkv", 6144, 4096 },    { "8b_o", 4096, 4096 },        { "1b_gate_up", 16384, 2048 },
    { "1b_down", 2048, 8192 },   { "1b_qkv", 3072, 2048 },      { "1b_o", 2048, 2048 },
    { "1b_head", 128256, 2048 },
};
struct product_run {
    struct rig *r;
    struct mat x, y, w, big;
    struct panels packed;
    struct leaves of_n;
    int nth;
    enum dtype dt;
};

static int linear_once(void *arg)
{
    struct product_run *p = arg;
    KERNEL(p->r->d, linear, p->y, p->x, &p->packed);
    return 1;
}
static int dx_once(void *arg) /* y in the weights' dtype: x's memory is the result's, in big */
{
    struct product_run *p = arg;
    struct mat dy = mat_of(p->y.p, p->dt, p->y.rows, p->y.cols, p->y.cols);
    KERNEL(p->r->d, linear_dx, mat_of(p->big.p, DT_F32, p->x.rows, p->x.cols, p->x.cols), 1, &dy, &p->w,
           &p->of_n);
    return 1;
}
static int dw_once(void *arg)
{
    struct product_run *p = arg;
    struct tree_acc acc = { .n = 1, .level = { p->big.p } };
    KERNEL(p->r->d, linear_dw, &acc, p->x.cols, mat_of(p->y.p, p->dt, p->y.rows, p->y.cols, p->y.cols), p->x,
           1, p->x.rows);
    return 1;
}

/* The library's n-th algorithm, split-K and all: what can be had. */
static int lt_linear_once(void *arg)
{
    struct product_run *p = arg;
    struct lt_product q = { .form = LT_LINEAR,
                            .dt = p->dt,
                            .rows = p->x.rows,
                            .cols = p->w.rows,
                            .inner = p->x.cols,
                            .batch = 1,
                            .a = { p->w.p, p->w.ld, 0 },
                            .b = { p->x.p, p->x.ld, 0 },
                            .d = p->y.p,
                            .ld = p->y.ld };
    return lt_run_nth(p->r->lt, &q, p->nth);
}
static int lt_dx_once(void *arg)
{
    struct product_run *p = arg;
    struct lt_product q = { .form = LT_DX,
                            .dt = p->dt,
                            .rows = p->x.rows,
                            .cols = p->x.cols,
                            .inner = p->w.rows,
                            .batch = 1,
                            .a = { p->w.p, p->w.ld, 0 },
                            .b = { p->y.p, p->y.cols, 0 },
                            .d = p->big.p,
                            .ld = p->x.cols };
    return lt_run_nth(p->r->lt, &q, p->nth);
}
static int lt_dw_once(void *arg)
{
    struct product_run *p = arg;
    struct lt_product q = { .form = LT_DW,
                            .dt = p->dt,
                            .rows = p->w.rows,
                            .cols = p->x.cols,
                            .inner = p->x.rows,
                            .batch = 1,
                            .a = { p->x.p, p->x.ld, 0 },
                            .b = { p->y.p, p->y.cols, 0 },
                            .d = p->big.p,
                            .ld = p->x.cols };
    return lt_run_nth(p->r->lt, &q, p->nth);
}

static const struct {
    const char *name;
    int (*ours)(void *), (*theirs)(void *);
} product_forms[] = { { "linear", linear_once, lt_linear_once },
                      { "dx", dx_once, lt_dx_once },
                      { "dw", dw_once, lt_dw_once } };
enum { FORMS = 3, SHAPES_ALL_FORMS = 3 };

/* Weights as --numerics exact or fast has them. */
static void choose_numerics(struct product_run *p, int fast)
{
    dev_numerics(p->r->d, fast);
    p->packed.leaves = fast ? (struct leaves){ 1, { p->x.cols } } : leaves_of(p->x.cols, GRAIN, 0, GRAIN);
    p->of_n = fast ? (struct leaves){ 1, { p->w.rows } } : leaves_of(p->w.rows, GRAIN, 0, GRAIN);
    KERNEL(p->r->d, linear_pack, &p->packed, 1, &p->w);
}

static struct product_run product_open(struct rig *r, enum dtype dt, int64_t m, int64_t n, int64_t k)
{
    struct product_run p = { .r = r,
                             .dt = dt,
                             .x = matrix(r, dt, m, k),
                             .w = matrix(r, dt, n, k),
                             .y = matrix(r, DT_F32, m, n),
                             .of_n = { 1, { n } } };
    const struct leaves l = leaves_of(k, GRAIN, 0, GRAIN);
    p.big = matrix(r, DT_F32, n > m ? n : m, k);
    p.packed = (struct panels){ .n = n, .k = k, .dt = dt, .leaves = l };
    p.packed.p = numbers(r, panels_bytes(n, k, dt, &l));
    return p;
}

static double best_of_library(struct product_run *p, int (*run)(void *))
{
    double best = 0;
    p->r->enough_s = ENOUGH_OF_MANY_S;
    for (p->nth = 0; p->r->lt && p->nth < LIST; p->nth++) {
        const double s = seconds_of(p->r, run, p);
        best = s > 0 && (s < best || best == 0) ? s : best;
    }
    p->r->enough_s = p->r->part > 1 ? 0 : ENOUGH_S;
    return best;
}

static void product_figures(struct rig *r, const struct shape *s, enum dtype dt, int n_forms)
{
    const int64_t m = 4096 / r->part, n = s->n / r->part, k = s->k / r->part;
    const double flops = 2.0 * (double)m * (double)n * (double)k;
    struct product_run p = product_open(r, dt, m, n, k);
    for (int f = 0; f < n_forms; f++) {
        char name[96];
        double took[2];
        for (int fast = 0; fast < 2; fast++) {
            choose_numerics(&p, fast);
            took[fast] = seconds_of(r, product_forms[f].ours, &p);
            snprintf(name, sizeof name, "products.%s.%s.%s.%s", product_forms[f].name, s->name,
                     dtype_name(dt), fast ? "fast" : "exact");
            figure(name, "", flops / took[fast] * 1e-12, "TFLOP/s");
        }
        const double best = best_of_library(&p, product_forms[f].theirs);
        snprintf(name, sizeof name, "products.%s.%s.%s", product_forms[f].name, s->name, dtype_name(dt));
        if (best > 0) {
            figure(name, ".cublaslt_best", flops / best * 1e-12, "TFLOP/s");
            figure(name, ".exact_share", 100 * best / took[0], "%");
            figure(name, ".fast_share", 100 * best / took[1], "%");
        }
    }
    dev_numerics(r->d, 0);
    give_back(r, s->name);
}

static void bench_products(struct rig *r)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        product_figures(r, &shapes[i], DT_BF16, i < SHAPES_ALL_FORMS ? FORMS : 1);
        if (!i)
            product_figures(r, &shapes[i], DT_F32, 1);
    }
}

/* ---- mma beside wgmma, and wgmma's tiles beside each other: SHARDLINE_CUDA and SHARDLINE_WGMMA say which;
 * both are named in the figures ---- */
static void instruction_figure(struct rig *r, const struct shape *s, int form, int one_leaf)
{
    const char *who = getenv("SHARDLINE_CUDA"), *size = getenv("SHARDLINE_WGMMA");
    const int few = form == FORMS;
    const int64_t m = few ? 8 : 4096 / r->part, n = s->n / r->part, k = s->k / r->part;
    struct product_run p = product_open(r, DT_BF16, m, n, k);
    char name[128];
    /* fast: one leaf; the library does not multiply where the products are named */
    choose_numerics(&p, one_leaf);
    const double took = seconds_of(r, product_forms[form % FORMS].ours, &p);
    snprintf(name, sizeof name, "instructions.%s%s%s.%s.%s%s", who ? who : "own", size && *size ? "." : "",
             size ? size : "", few ? "rows8" : product_forms[form].name, s->name,
             one_leaf ? ".one_leaf" : "");
    figure(name, "", 2.0 * (double)(few ? 1 : m) * (double)n * (double)k / took * (few ? 1e-9 : 1e-12),
           few ? "GB/s" : "TFLOP/s");
    dev_numerics(r->d, 0);
    give_back(r, name);
}

static void bench_instructions(struct rig *r)
{
    static const size_t which[] = { 0, 1, 2, 5 }; /* of the shapes */
    const char *size = getenv("SHARDLINE_WGMMA");
    const int sized = size && *size, wide = sized && !strcmp(size, "128x256");
    for (size_t i = 0; i < sizeof which / sizeof *which; i++)
        for (int f = 0; f < FORMS + !sized; f++) { /* the last: few rows */
            const int leaf_alone = f == 2;         /* dw: of one sequence */
            if (!wide || leaf_alone)               /* many leaves are nothing for wide tiles */
                instruction_figure(r, &shapes[which[i]], f, 0);
            if (!leaf_alone && f < FORMS)
                instruction_figure(r, &shapes[which[i]], f, 1);
        }
}

/* ---- few rows: weights are read once ---- */
static void bench_few(struct rig *r)
{
    static const int64_t rows[] = { 1, 8, 64 };
    for (size_t i = 1; i < 5; i++)
        for (size_t j = 0; j < sizeof rows / sizeof *rows; j++) {
            const int64_t n = shapes[i].n / r->part, k = shapes[i].k / r->part;
            struct product_run p = product_open(r, DT_BF16, rows[j], n, k);
            for (int fast = 0; fast < 2; fast++) {
                char name[96];
                choose_numerics(&p, fast);
                const double rate = 2.0 * (double)n * (double)k / seconds_of(r, linear_once, &p);
                snprintf(name, sizeof name, "few.%s.rows%lld.%s", shapes[i].name, (long long)rows[j],
                         fast ? "fast" : "exact");
                figure(name, "", rate * 1e-9, "GB/s");
                if (r->bandwidth > 0)
                    figure(name, ".share", 100 * rate / r->bandwidth, "%");
            }
            dev_numerics(r->d, 0);
            give_back(r, "few");
        }
}

/* ---- attention: 8b's heads ---- */
enum { HEADS = 32, KV = 8, HD = 128, SEQS_MOST = 256, PAGES_MOST = 128 };
struct attn_run {
    struct rig *r;
    struct attn a;
    struct attn_seq seq[SEQS_MOST];
    char *page[SEQS_MOST][PAGES_MOST];
    struct mat q, out, dout, dq, dk, dv;
    float *lse;
};

static struct attn_run *attn_open(struct rig *r, int n_seq, int64_t pos, int64_t rows)
{
    static struct attn_run a;
    const int64_t pages = (pos + rows + ATTN_PAGE - 1) / ATTN_PAGE;
    const size_t bytes = attn_page_bytes(KV, HD, DT_BF16);
    char *all = numbers(r, bytes * (size_t)(pages * n_seq));
    a = (struct attn_run){ .r = r, .a = { HEADS, KV, HD, DT_BF16, 0.088f, 0, n_seq, a.seq, 0 } };
    a.q = matrix(r, DT_BF16, rows * n_seq, HEADS * HD);
    a.out = matrix(r, DT_BF16, rows * n_seq, HEADS * HD);
    a.lse = numbers(r, sizeof(float) * (size_t)(rows * n_seq * HEADS));
    for (int i = 0; i < n_seq; i++) {
        a.seq[i] = (struct attn_seq){ i * rows, rows, pos, a.page[i] };
        for (int64_t b = 0; b < pages; b++)
            a.page[i][b] = all + bytes * (size_t)(i * pages + b);
    }
    return &a;
}

static int attn_once(void *arg)
{
    struct attn_run *a = arg;
    KERNEL(a->r->d, attn, &a->a, a->out, a->lse, a->q);
    return 1;
}
static int attn_dx_once(void *arg)
{
    struct attn_run *a = arg;
    struct attn_kept kept = { a->out, a->q, a->lse };
    KERNEL(a->r->d, attn_dx, &a->a, a->dq, a->dk, a->dv, a->dout, kept);
    return 1;
}

static void bench_attention(struct rig *r)
{
    const int64_t t = 4096 / r->part;
    const int n_seq = 2;
    struct attn_run *a = attn_open(r, n_seq, 0, t);
    /* the causal half of two products */
    const double flops = 2.0 * (double)n_seq * HEADS * HD * (double)t * (double)t;
    figure("attention.forward", "", flops / seconds_of(r, attn_once, a) * 1e-12, "TFLOP/s");
    a->dout = matrix(r, DT_BF16, t * n_seq, HEADS * HD);
    a->dq = matrix(r, DT_F32, t * n_seq, HEADS * HD);
    a->dk = matrix(r, DT_F32, t * n_seq, KV * HD);
    a->dv = matrix(r, DT_F32, t * n_seq, KV * HD);
    figure("attention.backward", "", 2.5 * flops / seconds_of(r, attn_dx_once, a) * 1e-12, "TFLOP/s");
    give_back(r, "attention");
}

static void bench_decode(struct rig *r)
{
    static const int n_seqs[] = { 1, 8, 64 };
    for (size_t i = 0; i < sizeof n_seqs / sizeof *n_seqs; i++) {
        const int64_t keys = 4096 / r->part;
        struct attn_run *a = attn_open(r, n_seqs[i], keys - 1, 1);
        const double rate = (double)n_seqs[i] * (double)keys * KV * HD * 2 * 2 / seconds_of(r, attn_once, a);
        char name[64];
        snprintf(name, sizeof name, "decode.sequences%d", n_seqs[i]);
        figure(name, "", rate * 1e-9, "GB/s");
        if (r->bandwidth > 0)
            figure(name, ".share", 100 * rate / r->bandwidth, "%");
        give_back(r, "decode");
    }
}

/* ---- rows ---- */
struct row_run {
    struct rig *r;
    struct mat x, y, wide, act;
    float *stat, *flat[4];
    void *w;
    int64_t n;
};
static int norm_once(void *arg)
{
    struct row_run *a = arg;
    KERNEL(a->r->d, rms_norm, a->y, a->stat, a->x, a->w, 0, 1e-5f);
    return 1;
}
static int swiglu_once(void *arg)
{
    struct row_run *a = arg;
    KERNEL(a->r->d, swiglu, a->act, a->wide);
    return 1;
}
static int residual_once(void *arg)
{
    struct row_run *a = arg;
    KERNEL(a->r->d, add_rounded, a->x, mat_of(a->wide.p, DT_F32, a->x.rows, a->x.cols, a->x.cols));
    return 1;
}
static int max_once(void *arg)
{
    struct row_run *a = arg;
    KERNEL(a->r->d, ce_max, a->stat, a->wide);
    return 1;
}
static int adamw_once(void *arg)
{
    static const struct adamw h = { .lr = 1e-4f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .beta1 = 0.9,
                                    .beta2 = 0.95,
                                    .bias1 = 0.1f,
                                    .bias2 = 0.2f,
                                    .clip = 1 };
    struct row_run *a = arg;
    KERNEL(a->r->d, adamw, a->flat[0], a->w, a->flat[1], a->flat[2], a->flat[3], a->n, &h);
    return 1;
}

static void bench_rows(struct rig *r)
{
    const int64_t rows = 8192 / r->part, cols = 4096 / r->part, inner = 14336 / r->part;
    struct row_run a = { .r = r,
                         .x = matrix(r, DT_BF16, rows, cols),
                         .y = matrix(r, DT_BF16, rows, cols),
                         .wide = matrix(r, DT_F32, rows, 2 * inner),
                         .act = matrix(r, DT_BF16, rows, inner),
                         .stat = numbers(r, 4 * (size_t)rows),
                         .n = rows * cols };
    for (int i = 0; i < 4; i++)
        a.flat[i] = numbers(r, 4 * (size_t)a.n);
    a.w = numbers(r, 2 * (size_t)a.n);
    const double x = 2.0 * (double)a.n, wide = 8.0 * (double)(rows * inner),
                 act = 2.0 * (double)(rows * inner);
    const struct {
        const char *name;
        int (*run)(void *);
        double bytes;
    } ops[] = { { "rms_norm", norm_once, 2 * x },
                { "swiglu", swiglu_once, wide + act },
                { "add_rounded", residual_once, 4 * x },
                { "ce_max", max_once, wide },
                { "adamw", adamw_once, (7 * 4 + 2) * (double)a.n } };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        char name[64];
        const double rate = ops[i].bytes / seconds_of(r, ops[i].run, &a);
        snprintf(name, sizeof name, "rows.%s", ops[i].name);
        figure(name, "", rate * 1e-9, "GB/s");
        if (r->bandwidth > 0)
            figure(name, ".share", 100 * rate / r->bandwidth, "%");
    }
    give_back(r, "rows");
}

static const struct {
    const char *name;
    void (*run)(struct rig *);
} parts[] = {
    { "copy", bench_copy }, { "products", bench_products },   { "instructions", bench_instructions },
    { "few", bench_few },   { "attention", bench_attention }, { "decode", bench_decode },
    { "rows", bench_rows }
};

int main(int argc, char **argv)
{
    struct rig r = { .part = 1, .enough_s = ENOUGH_S };
    struct err e;
    int first = 1;
    if (argc > first && !strcmp(argv[first], "--small"))
        r.part = 16, r.enough_s = 0, first++;
    if (dev_open(&r.d, "cuda", 1, &r.mem, &e) < 0) {
        const int status = err_print(&e, "gpu_bench");
        return e.code == ERR_DEVICE ? NO_DEVICE : status;
    }
    if (r.d->note[0])
        printf("note %s\n", r.d->note);
    if (!strcmp(r.d->kind, "cuda") && lt_open(&r.lt, r.d, dev_stream(r.d, DEV_COMPUTE), &e) < 0)
        printf("no comparison with cuBLASLt: %s\n", e.text);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int wanted = argc == first;
        for (int j = first; j < argc; j++)
            wanted |= !strcmp(argv[j], parts[i].name);
        if (wanted)
            parts[i].run(&r);
    }
    lt_close(r.lt);
    dev_close(r.d);
    return 0;
}
