/* memplan_wait.c - see memplan_lab.h: what ranks lose at a sum that they do not lose in a loop of sums. They
 * compute, each as long as the others but not to the microsecond, then sum: the first ones wait, and ranks
 * that share a core take turns. The same work is timed with and without sums, in turn; how much longer it
 * takes, beyond what such sums take one after the other, is what a sum costs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "comm/comm.h"
#include "kernels/kernels.h"
#include "tools/memplan_lab.h"

/* A product within a core's second cache, so that the caches' part is small: kernels are measured with what
 * others leave in them (lab_measure). */
enum { ROWS = 128, OUTPUTS = 128, INPUTS = 256, SUMMED = 256 << 10, TURNS = 7, CALLS = 8 };
static const double between_s = 0.008; /* of the clock, between two sums: as in a step of a small model */

struct wait_lab {
    struct comm *c, *all;
    struct dev *d;
    float *x, *y, *w, *summed;
    struct panels p;
    int products; /* of a rank, between two sums */
};

static void compute(struct wait_lab *l, int n)
{
    for (int i = 0; i < n; i++)
        KERNEL(l->d, linear, mat_of(l->y, DT_F32, ROWS, OUTPUTS, OUTPUTS),
               mat_of(l->x, DT_F32, ROWS, INPUTS, INPUTS), &l->p);
}

/* Seconds of a part of the step on the clock: products, a sum, or both. */
static int sample(struct wait_lab *l, int products, int sums, double *s, struct err *e)
{
    int rc = 0;
    TRY(comm_barrier(l->all, e));
    double begin = clock_s();
    for (int i = 0; i < CALLS; i++) {
        compute(l, products);
        if (sums)
            TRY(comm_all_reduce(l->c, l->summed, SUMMED / 4, e));
    }
    TRY(comm_barrier(l->all, e));
    *s = (clock_s() - begin) / CALLS;
out:
    return rc;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* How many products fill the time between two sums, the same number on all ranks. */
static int choose(struct wait_lab *l, struct err *e)
{
    enum { TRIED = 100 };
    int64_t n;
    int rc = 0;
    compute(l, TRIED);
    TRY(comm_barrier(l->all, e));
    double begin = clock_s();
    compute(l, TRIED); /* beside the others, on the cores that there are */
    TRY(comm_barrier(l->all, e));
    n = (int64_t)(between_s * TRIED / (clock_s() - begin)) + 1;
    TRY(comm_broadcast(l->all, &n, sizeof n, 0, e));
    l->products = (int)n;
out:
    return rc;
}

static int measure_group(struct wait_lab *l, double *s, struct err *e)
{
    enum { WITHOUT, WITH, SUM, PARTS };
    double took[PARTS][TURNS], median[PARTS]; /* where ranks run is the scheduler's choice, good or bad */
    int rc = 0;
    for (int i = 0; i < TURNS; i++)
        for (int part = 0; part < PARTS; part++)
            TRY(sample(l, part == SUM ? 0 : l->products, part != WITHOUT, &took[part][i], e));
    for (int part = 0; part < PARTS; part++) {
        qsort(took[part], TURNS, sizeof *took[part], by_value);
        median[part] = took[part][TURNS / 2];
    }
    *s = median[WITH] - median[WITHOUT] - median[SUM];
    *s = *s > 0 ? *s : 0;
out:
    return rc;
}

static int open_wait(struct wait_lab *l, struct world *w, struct mem *mem, struct err *e)
{
    int rc;
    memset(l, 0, sizeof *l);
    TRY(dev_open(&l->d, "cpu", 1, mem, e));
    TRY(world_pin(w, l->d->pool)); /* as ranks of ptrain are */
    l->p = (struct panels){ .n = OUTPUTS, .k = INPUTS, .dt = DT_F32, .leaves = leaves_of(INPUTS, 1, 0, 1) };
    l->x = dev_alloc(l->d, MEM_WORK, ROWS * INPUTS * sizeof *l->x);
    l->y = dev_alloc(l->d, MEM_WORK, ROWS * OUTPUTS * sizeof *l->y);
    l->w = dev_alloc(l->d, MEM_WORK, OUTPUTS * INPUTS * sizeof *l->w);
    l->p.p = dev_alloc(l->d, MEM_WORK, panels_bytes(OUTPUTS, INPUTS, DT_F32, &l->p.leaves));
    if (!l->x || !l->y || !l->w || !l->p.p) {
        rc = err_set(e, ERR_MEMORY, "no memory for a product of %d rows", ROWS);
        goto out;
    }
    for (int i = 0; i < ROWS * INPUTS; i++)
        l->x[i] = (float)(i % 7) / 16;
    for (int i = 0; i < OUTPUTS * INPUTS; i++)
        l->w[i] = (float)(i % 5) / 16;
    struct mat m = mat_of(l->w, DT_F32, OUTPUTS, INPUTS, INPUTS);
    KERNEL(l->d, linear_pack, &l->p, 1, &m);
out:
    return rc < 0 ? rc : 0;
}

static void close_wait(struct wait_lab *l)
{
    if (l->d) {
        dev_free(l->d, l->x);
        dev_free(l->d, l->y);
        dev_free(l->d, l->w);
        dev_free(l->d, l->p.p);
    }
    dev_close(l->d);
}

int lab_waits(struct world *w, struct mem *mem, struct err *e)
{
    struct wait_lab l;
    int ranks = world_size(w), rc = open_wait(&l, w, mem, e);
    for (int size = 2; rc >= 0 && ranks % size == 0; size *= 2) {
        const int axes[AXIS_COUNT] = { size, 1, ranks / size, 1 };
        struct mesh m;
        double s = 0;
        if ((rc = mesh_open(&m, w, axes, e)) < 0)
            break;
        l.c = m.axis[AXIS_TP];
        l.all = m.all;
        l.summed = comm_alloc(l.c, MEM_COMM, SUMMED);
        rc = comm_agree(m.all, l.summed ? 0 : err_set(e, ERR_MEMORY, "no memory for %d bytes", SUMMED), e);
        if (rc >= 0) {
            memset(l.summed, 0, SUMMED);
            rc = size == 2 ? choose(&l, e) : 0;
        }
        rc = rc < 0 ? rc : measure_group(&l, &s, e);
        if (rc >= 0 && world_rank(w) == 0)
            printf("wait %d %d %.9g\n", size, ranks, s);
        comm_free(l.c, l.summed);
        mesh_close(&m);
    }
    close_wait(&l);
    return rc < 0 ? rc : 0;
}
