/* memplan_calibrate.c - see memplan_sim.h: single operations of this machine, one thread, timed by its own
 * processor time, so that other programs disturb little. Median of turns, forms in turn. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "kernels/kernels.h"
#include "tools/memplan_sim.h"

enum { TURNS = 5, COPY_BYTES = 64 << 20 };

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

/* Operands of a product in its three forms: y [m][n] = x [m][k] . w [n][k]^T, dx [m][k], dw [n][k]. */
struct product {
    struct dev *d;
    struct mat x, w, dy, y, dx, dw;
    struct panels panels;
    struct leaves leaves; /* of n */
    char *memory;
};

static void *take(char **at, size_t bytes)
{
    void *p = *at;
    *at += (bytes + 4095) & ~(size_t)4095;
    return p;
}

static int open_product(struct product *p, struct dev *d, enum dtype dt, const int64_t size[3], int grain,
                        struct err *e)
{
    int64_t m = size[0], n = size[1], k = size[2];
    size_t el = dtype_size(dt);
    *p = (struct product){ .d = d, .leaves = leaves_of(n, grain, 0, grain) };
    p->panels = (struct panels){ .n = n, .k = k, .dt = dt, .leaves = leaves_of(k, grain, 0, grain) };
    size_t packed = panels_bytes(n, k, dt, &p->panels.leaves);
    size_t all = (size_t)(m * k + n * k + m * n) * (el + 4) + packed + 8 * 4096;
    if (!(p->memory = dev_alloc(d, MEM_WORK, all)))
        return err_set(e, ERR_MEMORY, "no memory to measure a product of %lld x %lld x %lld", (long long)m,
                       (long long)n, (long long)k);
    memset(p->memory, 0, all); /* zeros are as fast as other numbers */
    char *at = p->memory;
    p->x = mat_of(take(&at, (size_t)(m * k) * el), dt, m, k, k);
    p->w = mat_of(take(&at, (size_t)(n * k) * el), dt, n, k, k);
    p->dy = mat_of(take(&at, (size_t)(m * n) * el), dt, m, n, n);
    p->y = mat_of(take(&at, (size_t)(m * n) * 4), DT_F32, m, n, n);
    p->dx = mat_of(take(&at, (size_t)(m * k) * 4), DT_F32, m, k, k);
    p->dw = mat_of(take(&at, (size_t)(n * k) * 4), DT_F32, n, k, k);
    p->panels.p = take(&at, packed);
    KERNEL(d, linear_pack, &p->panels, 1, &p->w);
    return 0;
}

enum { FORWARD, INPUT, WEIGHT, FORMS };
static double time_form(struct product *p, int form)
{
    double begin = cpu_s();
    struct tree_acc acc = { .n = 1, .level = { p->dw.p } };
    if (form == FORWARD)
        KERNEL(p->d, linear, p->y, p->x, &p->panels);
    else if (form == INPUT)
        KERNEL(p->d, linear_dx, p->dx, 1, &p->dy, &p->w, &p->leaves);
    else
        KERNEL(p->d, linear_dw, &acc, p->dw.ld, p->dy, p->x, 1, p->x.rows);
    dev_sync(p->d);
    return cpu_s() - begin;
}

static void keep(struct cluster *c, enum sim_dtype dtype, int64_t m, int64_t n, int64_t k, double s)
{
    double rate = 2.0 * (double)m * (double)n * (double)k / s;
    if (c->n_products < CLUSTER_PRODUCTS)
        c->product[c->n_products++] = (struct cluster_product){ dtype, (double)m, (double)n, (double)k,
                                                                rate };
    c->peak[dtype] = rate > c->peak[dtype] ? rate : c->peak[dtype];
}

static int measure_product(struct cluster *c, struct dev *d, enum dtype dt, const int64_t size[3], int grain,
                           struct err *e)
{
    struct product p;
    double s[FORMS][TURNS];
    enum sim_dtype dtype = dt == DT_F32 ? SIM_F32 : SIM_BF16;
    int64_t m = size[0], n = size[1], k = size[2];
    int rc = open_product(&p, d, dt, size, grain, e);
    if (rc < 0)
        return rc;
    for (int turn = -1; turn < TURNS; turn++) /* the first one warms up */
        for (int form = 0; form < FORMS; form++) {
            double took = time_form(&p, form);
            s[form][turn < 0 ? 0 : turn] = took;
        }
    keep(c, dtype, m, n, k, median(s[FORWARD], TURNS));
    keep(c, dtype, m, k, n, median(s[INPUT], TURNS));
    keep(c, dtype, n, k, m, median(s[WEIGHT], TURNS));
    dev_free(d, p.memory);
    return 0;
}

/* Bytes read and written a second by a copy beyond the caches. */
static double measure_copy(void)
{
    char *a = malloc(COPY_BYTES), *b = malloc(COPY_BYTES);
    double s[TURNS] = { 1, 1, 1, 1, 1 };
    for (int turn = -1; a && b && turn < TURNS; turn++) {
        double begin = cpu_s();
        memset(turn < 0 ? a : b, turn, turn < 0 ? COPY_BYTES : 1);
        memcpy(b, a, COPY_BYTES);
        s[turn < 0 ? 0 : turn] = cpu_s() - begin;
    }
    free(a);
    free(b);
    return 2.0 * COPY_BYTES / median(s, TURNS);
}

/* The products of a layer and of the head, for one tp rank. */
static int measure_model(struct cluster *c, struct dev *d, const struct model_config *cfg, int64_t tokens,
                         int tp, struct err *e)
{
    int64_t h = cfg->hidden, q = cfg->n_heads * cfg->head_dim / tp, kv = cfg->n_kv * cfg->head_dim / tp;
    int64_t inter = cfg->inter / tp;
    const int64_t size[][3] = { { tokens, q + 2 * kv, h },
                                { tokens, h, q },
                                { tokens, 2 * inter, h },
                                { tokens, h, inter },
                                { tokens, cfg->vocab / tp, h } };
    int rc = 0;
    for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++)
        for (size_t i = 0; i < sizeof size / sizeof *size; i++)
            TRY(measure_product(c, d, dt, size[i], cfg->grain / tp > 0 ? cfg->grain / tp : 1, e));
out:
    return rc;
}

int memplan_calibrate(const char *path, const struct model_config *cfg, int64_t tokens, struct err *e)
{
    static struct cluster c;
    struct mem mem = { 0 };
    struct dev *d = NULL;
    char *text = NULL;
    size_t n;
    int rc;
    memset(&c, 0, sizeof c);
    snprintf(c.name, sizeof c.name, "this machine");
    TRY(dev_open(&d, "cpu", 1, &mem, e));
    for (int tp = 1; tp <= 2; tp++)
        TRY(measure_model(&c, d, cfg, tokens, tp, e));

    double copy = measure_copy();
    c.efficiency = c.clock = c.units = c.tile_m = c.tile_n = 1;
    c.cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    c.attention = c.attention_backward = 0.5;
    c.hbm_bytes_per_s = copy;
    c.hbm_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    c.host_bytes_per_s = c.disk_bytes_per_s = copy / 2;
    /* shared memory: a barrier of two ranks, and copies */
    c.n_levels = 1;
    c.level[0] = (struct cluster_level){ 0, 2e-6, copy / 2 };
    FILE *out = open_memstream(&text, &n);
    if (!out) {
        rc = err_set(e, ERR_MEMORY, "no memory for %s", path);
        goto out;
    }
    cluster_write(&c, out);
    fclose(out);
    rc = memplan_write(path, text, n, e);
out:
    free(text);
    dev_close(d);
    return rc < 0 ? rc : 0;
}
