/* train_published_test.c - the clock against runs that others published. One figure a GPU type is calibrated:
 * the efficiency of large products, on the rows that published_runs.h marks, by the median of what each asks
 * for. */
#include <math.h>
#include "tests/test.h"
#include "tests/unit/train/published_runs.h"

enum { N_RUNS = sizeof published / sizeof *published };

static struct sim_run run_of(const struct published *p, const struct model_config *cfg)
{
    return (struct sim_run){ .cfg = cfg,
                             .tp = p->tp,
                             .pp = p->pp,
                             .vpp = p->vpp,
                             .cp = p->cp,
                             .dp = p->dp,
                             .ep = p->ep,
                             .zero = p->zero,
                             .sp = p->tp > 1 && p->engine != E_2021,
                             .rows = p->rows,
                             .micro = p->micro,
                             .seq_len = p->seq,
                             .schedule = p->vpp > 1                ? PIPE_INTERLEAVED
                                         : p->engine == E_DUALPIPE ? PIPE_ZERO_BUBBLE
                                                                   : PIPE_1F1B,
                             .recompute = p->recompute,
                             .dtype = p->dtype,
                             .mtp = p->model == M_DSV3 && p->engine != E_AUTOMODEL,
                             .engine = published_engines[p->engine] };
}

/* The step time that a row publishes. flops: the clock's, of a step. */
static double published_seconds(const struct published *p, const struct model_config *c, double flops)
{
    double devices = (double)p->tp * p->cp * p->pp * p->dp, tokens = (double)(p->rows * p->seq);
    double l = (double)c->n_layers, h = (double)c->hidden, s = (double)p->seq;
    switch (p->unit) {
    case TOK: return tokens / devices / p->result;
    case TF: return flops / devices / (p->result * 1e12);
    case TF21:
        return 96 * tokens * l * h * h * (1 + s / (6 * h) + (double)c->vocab / (16 * l * h)) / devices /
               (p->result * 1e12);
    default: return p->result;
    }
}

static struct model_config config_of(enum published_model m)
{
    struct model_config c;
    struct err e = { 0 };
    if (model_config_parse(&c, published_models[m], "a published model", &e) < 0)
        test_fail(__FILE__, __LINE__, "model %d: %s", m, e.text);
    return c;
}

static void open_cluster(struct cluster *c, const char *gpu)
{
    struct err e = { 0 };
    int rc = strcmp(gpu, "h100-500w") ? cluster_open(c, gpu, &e)
                                      : cluster_parse(c, published_h100_500w, gpu, &e);
    if (rc < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", gpu, e.text);
}

/* The predicted step as a share of the published one. */
static double ratio_of(const struct published *p, double efficiency, struct clock_result *r)
{
    struct cluster c;
    struct err e = { 0 };
    struct model_config cfg = config_of(p->model);
    struct sim_run run = run_of(p, &cfg);
    open_cluster(&c, p->gpu);
    c.efficiency = efficiency > 0 ? efficiency : c.efficiency;
    if (clock_step(r, &run, &c, NULL, &e) < 0) {
        test_fail(__FILE__, __LINE__, "row %d: %s", p->row, e.text);
        return 1;
    }
    return r->step_s / published_seconds(p, &cfg, r->flops);
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}
static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static void print_run(const struct published *p, const struct clock_result *r, double ratio)
{
    printf("row %2d tp %d cp %2d pp %2d dp %3d ep %2d: %7.2f s, published %7.2f s, %+6.1f %%%s ", p->row,
           p->tp, p->cp, p->pp, p->dp, p->ep, r->step_s, r->step_s / ratio, 100 * (ratio - 1),
           p->flags & CAL   ? " (calibrated)"
           : p->flags & SND ? " (second hand)"
                            : "");
    for (int i = 0; i < CLOCK_SHARES; i++)
        if (r->share[i] > 0.005 * r->step_s)
            printf(" %s %.0f", clock_share_names[i], 100 * r->share[i] / r->step_s);
    printf("\n");
}

/* The efficiency with which the calibrated rows of a GPU type are right in the median. */
static double calibrated(const char *gpu)
{
    double low = 0.2, high = 1;
    for (int i = 0; i < 30; i++) {
        double ratio[N_RUNS], at = (low + high) / 2;
        int n = 0;
        for (int j = 0; j < N_RUNS; j++) {
            struct clock_result r;
            if ((published[j].flags & CAL) && !strcmp(published[j].gpu, gpu))
                ratio[n++] = ratio_of(&published[j], at, &r);
        }
        if (median(ratio, n) > 1)
            low = at;
        else
            high = at;
    }
    return low;
}

TEST(the_efficiency_of_a_preset_is_the_one_calibrated_on_the_marked_rows)
{
    static const char *const gpus[] = { "a100", "h100" };
    for (int i = 0; i < 2; i++) {
        struct cluster c;
        open_cluster(&c, gpus[i]);
        double e = calibrated(gpus[i]);
        printf("%s: calibrated %.4f, preset %.4f\n", gpus[i], e, c.efficiency);
        CHECK(fabs(e - c.efficiency) <= 0.005);
    }
}

TEST(published_runs_are_predicted_within_ten_percent_of_the_median_and_25_of_each)
{
    double error[N_RUNS];
    int n = 0;
    for (int i = 0; i < N_RUNS; i++) {
        struct clock_result r;
        double ratio = ratio_of(&published[i], 0, &r);
        print_run(&published[i], &r, ratio);
        if (!(published[i].flags & (SND | CAL)))
            error[n++] = fabs(ratio - 1);
    }
    double m = median(error, n);
    printf("%d predicted runs: median error %.1f %%, largest %.1f %%\n", n, 100 * m, 100 * error[n - 1]);
    CHECK(m <= 0.10);
    CHECK(error[n - 1] <= 0.25);
}

TEST(published_runs_of_one_row_are_predicted_in_their_order)
{
    struct clock_result r;
    for (int i = 0; i < N_RUNS; i++)
        for (int j = 0; j < i; j++) {
            if (published[i].row != published[j].row)
                continue;
            double mine = ratio_of(&published[i], 0, &r), a = r.step_s,
                   theirs = ratio_of(&published[j], 0, &r);
            if ((a < r.step_s) != (a / mine < r.step_s / theirs))
                test_fail(__FILE__, __LINE__, "row %d: runs %d and %d are in another order", published[i].row,
                          j, i);
        }
}
