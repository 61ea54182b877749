/* b12_bench.c - products over bf16 weights in 12 bits beside plain panels of the same weights, in turn.
 *
 * usage: b12_bench [SIZE [MiB]]
 * One thread by its own CPU clock. Matrices [SIZE][SIZE] of normal values in a ring of 192 MiB of plain
 * panels, so that they come from memory; MiB 0: one matrix. A ratio is the median over 11 turns of plain's
 * time divided by that of 12 bits: above 1 these are faster. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/rnd.h"
#include "kernels/fn.h"
#include "kernels/kernels.h"

#define TURNS 11
#define HUGE_PAGE ((size_t)2 << 20)
static const int64_t row_counts[] = { 1, 2, 4, 8, 14, 16, 28, 32, 64, 112, 512 };

struct ring {
    struct panels p;
    char *memory;
    size_t bytes; /* of a matrix */
    int n;
};
static struct mem memory;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Normal values. */
static struct mat filled(enum dtype dt, int64_t rows, int64_t cols)
{
    struct mat m = mat_of(mem_alloc(&memory, MEM_WORK, (size_t)(rows * cols) * dtype_size(dt) + HUGE_PAGE),
                          dt, rows, cols, cols);
    for (int64_t i = 0; dt == DT_BF16 && i < rows * cols; i++) {
        const double u = rnd_unit(1, 1, 2 * (uint64_t)i) + 1e-12, v = rnd_unit(1, 1, 2 * (uint64_t)i + 1);
        ((uint16_t *)m.p)[i] = fn_to_bf16((float)(0.02 * sqrt(-2 * log(u)) * cos(6.283185307 * v)));
    }
    return m;
}

static void open_ring(struct dev *d, struct ring *r, struct mat w, size_t ring_bytes)
{
    struct panels plain = r->p;
    plain.kind = PANEL_PLAIN;
    r->n = (int)(ring_bytes / panels_size(&plain));
    r->n = r->n < 1 ? 1 : r->n;
    r->bytes = panels_size(&r->p);
    r->memory = mem_alloc(&memory, MEM_WORK, r->bytes * (size_t)r->n + HUGE_PAGE);
    for (int turn = 0; turn < 2; turn++) { /* the first one finds the pages */
        const double start = now_s();
        for (int i = 0; i < r->n; i++) {
            r->p.p = r->memory + (size_t)i * r->bytes;
            KERNEL(d, linear_pack, &r->p, 1, &w);
        }
        if (turn)
            printf("packing %s: %.2f GB/s of bf16\n", r->p.kind ? "12 bits" : "plain",
                   2e-9 * (double)(w.rows * w.cols * r->n) / (now_s() - start));
    }
}

static double multiply_s(struct dev *d, struct ring *r, struct mat y, struct mat x, int count)
{
    const double start = now_s();
    for (int i = 0; i < count; i++) {
        r->p.p = r->memory + (size_t)(i % r->n) * r->bytes;
        KERNEL(d, linear, y, x, &r->p);
    }
    return now_s() - start;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare_rows(struct dev *d, struct ring ring[2], struct mat w, int64_t m)
{
    struct mat x = w, y = filled(DT_F32, m, w.rows);
    const int count = m <= 16 ? ring[0].n : m <= 64 ? ring[0].n / 4 + 1 : 1;
    double plain[TURNS], ratio[TURNS];
    x.rows = m;
    for (int turn = 0; turn < TURNS; turn++) {
        double s[2];
        for (int i = 0; i < 2; i++)
            s[(turn + i) % 2] = multiply_s(d, &ring[(turn + i) % 2], y, x, count);
        plain[turn] = s[0];
        ratio[turn] = s[0] / s[1];
    }
    qsort(plain, TURNS, sizeof *plain, compare_doubles);
    qsort(ratio, TURNS, sizeof *ratio, compare_doubles);
    printf("%4d rows  plain %6.1f GB/s %6.0f GFLOP/s  12 bits x %.2f (%.2f to %.2f)\n", (int)m,
           2e-9 * (double)(w.rows * w.cols * count) / plain[TURNS / 2],
           2e-9 * (double)(m * w.rows * w.cols * count) / plain[TURNS / 2], ratio[TURNS / 2], ratio[1],
           ratio[TURNS - 2]);
    mem_free(&memory, y.p);
}

int main(int argc, char **argv)
{
    const int64_t size = argc > 1 ? atoll(argv[1]) : 2048;
    const size_t bytes = (argc > 2 ? (size_t)atoll(argv[2]) : 192) << 20;
    struct ring ring[2] = { { .p = { NULL, size, size, DT_BF16, leaves_of(size, 8, 0, 8) } } };
    struct dev *d;
    struct err e;
    if (size < 512 || dev_open(&d, "cpu", 1, &memory, &e) < 0)
        return 2;
    struct mat w = filled(DT_BF16, size, size);
    ring[1].p = ring[0].p;
    ring[1].p.kind = PANEL_B12;
    printf("%s: escapes %.4f %%, bytes x %.3f\n", d->isa,
           100.0 * (double)panels_escapes(d, &ring[0].p, 1, &w) / (double)(size * size),
           (double)panels_size(&ring[1].p) / (double)panels_size(&ring[0].p));
    for (int i = 0; i < 2; i++)
        open_ring(d, &ring[i], w, bytes);
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++)
        compare_rows(d, ring, w, row_counts[i]);
    for (int i = 0; i < 2; i++)
        mem_free(&memory, ring[i].memory);
    mem_free(&memory, w.p);
    dev_close(d);
    return 0;
}
