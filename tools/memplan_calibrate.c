/* memplan_calibrate.c - see memplan_sim.h: a cluster's file for this machine, from single operations
 * (memplan_lab.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "kernels/kernels.h"
#include "tools/memplan_lab.h"
#include "tools/memplan_sim.h"

enum { TURNS = 5, COPY_BYTES = 64 << 20, MOST_RANKS = 64 }; /* ranks that this machine is made to start */

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
    qsort(s, TURNS, sizeof *s, by_value);
    return 2.0 * COPY_BYTES / s[TURNS / 2];
}

/* A product among the operations, as a rate: what models with other layers are predicted by. */
static void keep_product(struct cluster *c, const struct cluster_op *o)
{
    struct cluster_product p = { o->dtype, o->rows, o->cols, o->other, 0 };
    if (o->name != SIM_OP_linear && o->name != SIM_OP_linear_dx && o->name != SIM_OP_linear_dw)
        return;
    if (o->name == SIM_OP_linear_dw)
        p = (struct cluster_product){ o->dtype, o->cols, o->other, o->rows, 0 };
    p.flops_per_s = 2 * p.m * p.n * p.k / o->seconds;
    c->peak[o->dtype] = p.flops_per_s > c->peak[o->dtype] ? p.flops_per_s : c->peak[o->dtype];
    if (c->n_products < CLUSTER_PRODUCTS)
        c->product[c->n_products++] = p;
}

/* Attention's share of the peak, forward and backward, for the same use. */
static void keep_attention(struct cluster *c, const struct cluster_op *o)
{
    double flops = 2 * o->rows * (o->seq_len + 1) / 2 * 2 * o->cols, *to = &c->attention;
    if ((o->name != SIM_OP_attn && o->name != SIM_OP_attn_dx) || o->dtype != SIM_F32)
        return;
    if (o->name == SIM_OP_attn_dx)
        to = &c->attention_backward, flops *= 2.5;
    *to = flops / o->seconds / c->peak[SIM_F32];
    *to = *to > 1 ? 1 : *to < 1e-3 ? 1e-3 : *to;
}

/* Layouts of tp x dp up to so many ranks, each with its rows. */
static int measure_layouts(struct cluster *c, const struct memplan_calibration *a, struct err *e)
{
    const struct model_config *cfg = a->cfg;
    int rc = 0, most = a->ranks > 2 ? a->ranks : 2;
    for (int tp = 1; tp <= most; tp *= 2)
        for (int dp = 1; tp * dp <= most; dp *= 2) {
            int64_t seqs = a->micro ? a->micro : a->batch / dp;
            if (cfg->grain % tp || cfg->n_heads % tp || (!a->micro && a->batch % dp) || !seqs ||
                (a->micro && dp > 1))
                continue;
            for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++) {
                struct lab_shape s = { cfg, tp, seqs, a->seq_len, dt, tp * dp };
                TRY(lab_measure(c, &s, tp * dp == 1, e));
            }
        }
    for (int ranks = 2; ranks <= most; ranks *= 2)
        TRY(lab_collectives(c, ranks, e));
out:
    return rc;
}

int memplan_calibrate(const char *path, const struct memplan_calibration *a, struct err *e)
{
    static struct cluster c;
    char *text = NULL;
    size_t n;
    int rc;
    if (a->ranks > MOST_RANKS)
        return err_set(e, ERR_USAGE,
                       "--gpus %d: --calibrate starts so many ranks here, and at most %d: give fewer",
                       a->ranks, MOST_RANKS);
    memset(&c, 0, sizeof c);
    snprintf(c.name, sizeof c.name, "this machine");
    if (a->cfg->n_experts || a->cfg->latent.kv_rank)
        return err_set(e, ERR_USAGE,
                       "--calibrate measures layers of dense attention and MLP: give a --model such as 10m");
    TRY(measure_layouts(&c, a, e));

    double copy = measure_copy();
    c.efficiency = c.clock = c.units = c.tile_m = c.tile_n = c.measured = 1;
    c.cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    c.attention = c.attention_backward = 0.5;
    for (int i = 0; i < c.n_ops; i++)
        keep_product(&c, &c.op[i]);
    for (int i = 0; i < c.n_ops; i++)
        keep_attention(&c, &c.op[i]);
    c.hbm_bytes_per_s = copy;
    c.hbm_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    c.host_bytes_per_s = c.disk_bytes_per_s = copy / 2;
    /* what no collective was measured for: a barrier of two ranks, and copies */
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
    return rc < 0 ? rc : 0;
}
