/* codes_bench.c - products over quantised panels beside plain bf16 panels of the same shape, in turn.
 *
 * usage: codes_bench [SIZE [ROUNDS [PART OF A NAME [MiB]]]]
 * One thread. Matrices [SIZE][SIZE] in a ring of 128 MiB, so that panels come from memory; MiB 0: one matrix.
 * Times are those of the thread (CLOCK_THREAD_CPUTIME_ID). A figure is the median over rounds of plain's time
 * divided by the kind's; the last column is GB of the kind's own bytes a second at one row. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/mem.h"
#include "kernels/kernels.h"
#include "kernels/panel_codes.h"

#define GRAIN 8
#define ROUNDS_MAX 32

static const struct kind {
    const char *name;
    struct panel_codes codes;
} kinds[] = {
    { "int8-g128 grp", { CODE_S8, CODES_GRP, CODE_SCALE_BF16, 0, 0, 128, 0 } },
    { "int8-g128 int", { CODE_S8, CODES_INT, CODE_SCALE_BF16, 0, 0, 128, 0 } },
    { "int8 channel, zeros grp", { CODE_S8, CODES_GRP, CODE_SCALE_F32, 1, 0, 0, 0 } },
    { "Q8_0 grp", { CODE_S8, CODES_GRP, CODE_SCALE_F16, 0, 0, 32, 0 } },
    { "Q8_0 int", { CODE_S8, CODES_INT, CODE_SCALE_F16, 0, 0, 32, 0 } },
    { "int4-g128 grp", { CODE_U4, CODES_GRP, CODE_SCALE_F16, 0, 0, 128, 0 } },
    { "int4-g128, zeros grp", { CODE_U4, CODES_GRP, CODE_SCALE_F16, 1, 0, 128, 0 } },
    { "int4-g128 int", { CODE_U4, CODES_INT, CODE_SCALE_F16, 0, 0, 128, 0 } },
    { "int4-g32 grp", { CODE_U4, CODES_GRP, CODE_SCALE_F16, 0, 0, 32, 0 } },
    { "Q4_K grp", { CODE_U4, CODES_GRP, CODE_SCALE_F32, 0, 1, 32, 0 } },
    { "Q4_K int", { CODE_U4, CODES_INT, CODE_SCALE_F32, 0, 1, 32, 0 } },
    { "fp8-b128 deq", { CODE_E4M3, CODES_DEQ, CODE_SCALE_F32, 0, 0, 128, 0 } },
    { "fp8 channel deq", { CODE_E4M3, CODES_DEQ, CODE_SCALE_F32, 0, 0, 0, 0 } },
    { "mxfp4 deq", { CODE_E2M1, CODES_DEQ, CODE_SCALE_E8M0, 0, 0, 32, 0 } },
};
#define N_KINDS (int)(sizeof kinds / sizeof *kinds)
static const int64_t row_counts[] = { 1, 4, 8, 32, 128 };
#define N_ROWS (int)(sizeof row_counts / sizeof *row_counts)

struct bench {
    struct dev *d;
    int64_t size, n_plain, ring_bytes;
    struct panels plain, codes;
    int64_t n_codes;
    size_t plain_bytes, codes_bytes;
    uint16_t *x;
    float *y;
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *take(struct bench *b, size_t bytes)
{
    void *p = dev_alloc(b->d, MEM_WORK, bytes);
    if (!p) {
        fprintf(stderr, "codes_bench: no memory\n");
        exit(1);
    }
    return p;
}

/* Panels of w at place i of a ring whose parts are `bytes` apart. */
static struct panels at(const struct panels *w, int64_t i, size_t bytes)
{
    struct panels p = *w;
    p.p = (char *)w->p + (size_t)i * bytes;
    return p;
}

/* Seconds of one product of m rows, over `count` places of the ring from *next on. */
static double measure(struct bench *b, const struct panels *w, int64_t n, size_t bytes, int64_t m,
                      int64_t count, int64_t *next)
{
    const struct mat x = mat_of(b->x, DT_BF16, m, b->size, b->size);
    const struct mat y = mat_of(b->y, DT_F32, m, b->size, b->size);
    const double begin = seconds();
    for (int64_t i = 0; i < count; i++) {
        const struct panels p = at(w, *next, bytes);
        KERNEL(b->d, linear, y, x, &p);
        *next = (*next + 1) % n;
    }
    return (seconds() - begin) / (double)count;
}

/* Packs the same random codes into every place of a new ring. */
static void open_codes(struct bench *b, const struct panel_codes *c)
{
    const int64_t groups = c->group ? b->size / c->group : 1;
    const size_t n_scales = (size_t)(b->size * groups);
    uint8_t *code = take(b, (size_t)(b->size * b->size));
    float *scale = take(b, n_scales * 4);
    int16_t *zero = take(b, n_scales * 2);
    for (int64_t i = 0; i < b->size * b->size; i++)
        code[i] = (uint8_t)((i * 2654435761u >> 16) &
                            (c->kind == CODE_U4 || c->kind == CODE_E2M1 ? 15 : 0x7e));
    for (size_t i = 0; i < n_scales; i++)
        scale[i] = 1.0f / 128, zero[i] = 7;
    const struct codes_source s = { .n = b->size,
                                    .code = code,
                                    .code_ld = b->size,
                                    .scale = scale,
                                    .zero = c->has_zeros ? zero : NULL,
                                    .min = c->has_mins ? scale : NULL,
                                    .scale_rows = 1,
                                    .scale_ld = groups };
    b->codes = (struct panels){
        .n = b->size, .k = b->size, .dt = DT_BF16, .leaves = leaves_of(b->size, GRAIN, 0, GRAIN)
    };
    b->codes.kind = PANEL_CODES, b->codes.codes = c;
    b->codes_bytes = codes_bytes(b->size, c, &b->codes.leaves);
    b->n_codes = 1 + (int64_t)(b->ring_bytes / (int64_t)b->codes_bytes);
    b->codes.p = take(b, (size_t)b->n_codes * b->codes_bytes);
    codes_pack(b->d, &b->codes, 1, &s);
    for (int64_t i = 1; i < b->n_codes; i++)
        memcpy((char *)b->codes.p + (size_t)i * b->codes_bytes, b->codes.p, b->codes_bytes);
    dev_free(b->d, code);
    dev_free(b->d, scale);
    dev_free(b->d, zero);
}

static void open_plain(struct bench *b)
{
    b->plain = (struct panels){
        .n = b->size, .k = b->size, .dt = DT_BF16, .leaves = leaves_of(b->size, GRAIN, 0, GRAIN)
    };
    b->plain_bytes = panels_bytes(b->size, b->size, DT_BF16, &b->plain.leaves);
    b->n_plain = 1 + b->ring_bytes / (int64_t)b->plain_bytes;
    b->plain.p = take(b, (size_t)b->n_plain * b->plain_bytes);
    for (size_t i = 0; i < (size_t)b->n_plain * b->plain_bytes / 2; i++)
        ((uint16_t *)b->plain.p)[i] = (uint16_t)(0x3f80 + i % 128);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static void bench_kind(struct bench *b, const struct kind *k, int rounds)
{
    double gb = 0;
    open_codes(b, &k->codes);
    printf("%-24s %4.2f ", k->name, (double)b->codes_bytes / (double)(b->size * b->size));
    for (int r = 0; r < N_ROWS; r++) {
        const int64_t m = row_counts[r], count = m <= 8 ? 16 : m <= 32 ? 4 : 2;
        int64_t next[2] = { 0, 0 };
        double ratio[ROUNDS_MAX], own[ROUNDS_MAX];
        for (int i = 0; i < rounds; i++) {
            const double plain = measure(b, &b->plain, b->n_plain, b->plain_bytes, m, count, &next[0]);
            own[i] = measure(b, &b->codes, b->n_codes, b->codes_bytes, m, count, &next[1]);
            ratio[i] = plain / own[i];
        }
        printf(" %6.2f", median(ratio, rounds));
        fflush(stdout);
        if (m == 1)
            gb = (double)b->codes_bytes / median(own, rounds) * 1e-9;
    }
    printf("  %5.1f\n", gb);
    dev_free(b->d, b->codes.p);
}

int main(int argc, char **argv)
{
    struct bench b = { .size = argc > 1 ? atoll(argv[1]) : 2048 };
    const int rounds = argc > 2 ? atoi(argv[2]) : 7;
    const char *only = argc > 3 ? argv[3] : "";
    b.ring_bytes = (argc > 4 ? atoll(argv[4]) : 128) << 20;
    struct mem memory = { 0 };
    struct err e;
    if (dev_open(&b.d, "cpu", 1, &memory, &e) < 0) {
        fprintf(stderr, "codes_bench: %s\n", e.text);
        return 1;
    }
    open_plain(&b);
    b.x = take(&b, (size_t)(128 * b.size) * 2);
    b.y = take(&b, (size_t)(128 * b.size) * 4);
    for (int64_t i = 0; i < 128 * b.size; i++)
        b.x[i] = (uint16_t)(0x3f80 + i * 37 % 128);
    printf("%s, %lld x %lld; times of plain bf16 / of the kind\n", b.d->isa, (long long)b.size,
           (long long)b.size);
    printf("%-24s %s  ", "kind", "bytes");
    for (int r = 0; r < N_ROWS; r++)
        printf(" m%5lld", (long long)row_counts[r]);
    printf("   GB/s at 1\n");
    for (int i = 0; i < N_KINDS; i++)
        if (strstr(kinds[i].name, only))
            bench_kind(&b, &kinds[i], rounds);
    return 0;
}
