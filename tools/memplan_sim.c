/* memplan_sim.c - see memplan_sim.h. */
#include "tools/memplan_sim.h"

#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "train/simulate/sim_job.h"
#include "train/simulate/sim_move.h"
#include "train/simulate/sim_picture.h"

enum { MOST_SPANS = 200000, MOST_POINTS = 16 };

int memplan_sim_open(struct memplan_sim *s, enum sim_dtype dtype, int64_t seq_len, struct err *e)
{
    int rc = 0;
    if (s->name && !s->second_name != !s->second_gpus)
        return err_set(e, ERR_USAGE, "--second and --second-gpus belong together: give both, or none");
    if (s->name) {
        TRY(cluster_open(&s->cluster, s->name, e));
        if (s->ops)
            TRY(memplan_ops_read(&s->cluster, s->ops, dtype, seq_len, e));
        if (s->second_name)
            TRY(cluster_open(&s->second, s->second_name, e));
        if (s->second_name && (s->second.cores > 0) != (s->cluster.cores > 0))
            rc = err_set(e, ERR_USAGE,
                         "cores of %s: %g, of %s: %g: ranks share cores on both kinds of devices or on none",
                         s->cluster.name, s->cluster.cores, s->second.name, s->second.cores);
    out:
        return rc;
    }
    if (s->second_name || s->memory_out || s->tokens || s->ops || s->trace || s->scale || s->sites > 1 ||
        s->slow_stages || s->second_gpus || s->reshard_nodes || s->load || s->fit_s > 0)
        return err_set(e, ERR_USAGE,
                       "--train-tokens, --sites, --slow-stages, --second, --ops, --trace-out, --scale-out, "
                       "--memory-out, --reshard-nodes, --serve-load and --fit "
                       "need a clock: add --simulate h100, or a cluster file");
    return 0;
}

/* The run of a plan, with what only memplan's options say. ERR_USAGE: devices of the second kind are not
 * whole stages. */
static int run_of(const struct memplan_sim *s, struct sim_run *run, const struct layout_spec *a,
                  const struct layout_plan *p, struct err *e)
{
    sim_plan_run(run, a, p, &s->cluster);
    run->slow_stages = (int)s->slow_stages;
    run->slow_speed = s->slow_speed;
    if (!s->second_gpus)
        return 0;
    int64_t a_stage = (int64_t)sim_ranks(run) / run->pp, stages = s->second_gpus / a_stage;
    if (stages * a_stage != s->second_gpus || stages < 1 || stages >= run->pp)
        return err_set(
            e, ERR_USAGE,
            "--second-gpus %lld: a stage of tp %d x cp %d x dp %d has %lld devices, and there are %d "
            "stages: use a multiple below all of them",
            (long long)s->second_gpus, run->tp, run->cp, run->dp, (long long)a_stage, run->pp);
    clock_second(run, &s->cluster, &s->second, (int)stages);
    return 0;
}

int memplan_sim_fits(const struct memplan_sim *s, const struct layout_spec *a, const struct layout_plan *p)
{
    struct sim_run run;
    struct err e;
    if (!s->name || !s->second_gpus)
        return p->total_bytes <= s->memory;
    if (run_of(s, &run, a, p, &e) < 0)
        return 0;
    int V = run.pp * sim_chunks(&run);
    double even = (double)((run.cfg->n_layers + V - 1) / V);
    for (int v = 0; v < V; v++) {
        int64_t first, end;
        clock_layers(&run, v, &first, &end);
        double memory = v % run.pp < run.pp - run.slow_stages ? s->memory : s->second_memory;
        if (p->total_bytes * (double)(end - first) / even > memory)
            return 0;
    }
    return 1;
}

int memplan_sim_judge(const struct memplan_sim *s, const struct layout_spec *a, const struct layout_plan *p,
                      double *step_s, double *mfu, const char **why)
{
    struct clock_result r;
    struct sim_run run;
    struct err e;
    double lost;
    if (run_of(s, &run, a, p, &e) < 0 || clock_step(&r, &run, &s->cluster, NULL, &e) < 0)
        return -1;
    *step_s = r.step_s;
    *mfu = r.mfu;
    *why = sim_plan_loss(&r, &lost);
    *why = *why ? *why : "nothing";
    return 0;
}

int memplan_write(const char *path, const char *text, size_t n, struct err *e)
{
    char tmp[4200];
    int rc = 0;
    if (snprintf(tmp, sizeof tmp, "%s.tmp", path) >= (int)sizeof tmp)
        return err_set(e, ERR_USAGE, "a path of %zu bytes is too long: use at most 4000", strlen(path));
    TRY(io_unlink(tmp, e)); /* of a run that died here */
    TRY(io_write_file(tmp, text, n, e));
    TRY(io_replace(tmp, path, e));
out:
    return rc;
}

static int is_svg(const char *path)
{
    size_t n = strlen(path);
    return n > 4 && !strcmp(path + n - 4, ".svg");
}

/* --trace-out. */
static int write_trace(const struct memplan_sim *s, const struct clock_timeline *t, const struct sim_run *run,
                       double step_s, struct err *e)
{
    char *text = NULL;
    size_t n;
    int rc = is_svg(s->trace) ? sim_picture_svg(t, run->pp, step_s, &text, &n, e)
                              : sim_picture_trace(t, &text, &n, e);
    if (rc >= 0)
        rc = memplan_write(s->trace, text, n, e);
    free(text);
    return rc;
}

/* --scale-out: dp doubles as long as it divides the batch. */
static int write_scale(const struct memplan_sim *s, const struct layout_spec *a, struct err *e)
{
    struct sim_point point[MOST_POINTS];
    struct layout_spec more = *a;
    int n_points = 0, rc = 0;
    char *text = NULL;
    size_t n;
    for (more.layout.dp = a->layout.dp; n_points < MOST_POINTS; more.layout.dp *= 2) {
        struct layout_plan p;
        struct clock_result r;
        struct sim_run run;
        struct err ignored;
        more.overlap = layout_slices(&more.layout) > 1;
        if (layout_check(&more.layout, &more.cfg, &ignored) < 0 ||
            layout_plan_make(&p, &more, NULL, &ignored) < 0)
            break;
        if (run_of(s, &run, &more, &p, &ignored) < 0 || clock_step(&r, &run, &s->cluster, NULL, &ignored) < 0)
            break;
        point[n_points++] = (struct sim_point){ sim_ranks(&run), r.step_s, r.mfu };
        printf("scale        %.0f ranks: step %.4g s, MFU %.1f %%\n", sim_ranks(&run), r.step_s, 100 * r.mfu);
    }
    if (!n_points)
        return 0;
    TRY(sim_picture_scale(point, n_points, &text, &n, e));
    rc = memplan_write(s->scale, text, n, e);
out:
    free(text);
    return rc;
}

/* Layers of the stages on either kind. */
static void print_stages(const struct memplan_sim *s, const struct sim_run *run)
{
    int fast = run->pp - run->slow_stages;
    printf("kinds        %d stages on %s, %d on %s, where a layer takes %.3g times as long; layers", fast,
           s->cluster.name, run->slow_stages, s->second.name, 1 / run->slow_speed);
    for (int v = 0; v < run->pp * sim_chunks(run); v++) {
        int64_t first, end;
        clock_layers(run, v, &first, &end);
        printf(" %lld", (long long)(end - first));
    }
    putchar('\n');
}

int memplan_sim_memory(const struct memplan_sim *s, const struct sim_bar *bar, int n, struct err *e)
{
    char *text = NULL;
    size_t size;
    int rc = sim_picture_memory(bar, n, s->memory, &text, &size, e);
    if (rc >= 0)
        rc = memplan_write(s->memory_out, text, size, e);
    free(text);
    return rc;
}

int memplan_sim_show(const struct memplan_sim *s, const struct layout_spec *a, double params, struct err *e)
{
    struct layout_plan p;
    struct sim_run run;
    struct clock_result r;
    struct clock_timeline t = { .most = MOST_SPANS };
    struct sim_job_result job;
    int rc;
    TRY(layout_plan_make(&p, a, NULL, e));
    TRY(run_of(s, &run, a, &p, e));
    TRY(clock_step(&r, &run, &s->cluster, s->trace ? &t : NULL, e));
    if (t.most && t.n >= t.most && s->trace)
        fprintf(stderr, "memplan: --trace-out: it ends after %d actions: use a smaller batch\n", MOST_SPANS);
    sim_plan_print(&r, &run, &s->cluster, stdout);
    if (s->second_gpus)
        print_stages(s, &run);

    struct sim_job ask = { .params = params,
                           .state_bytes = params * (a->dt == DT_F32 ? 12 : 14),
                           .save_every_s = s->save_every_s,
                           .save_async = a->save_async,
                           .sites = (int)s->sites,
                           .tokens = (double)s->tokens };
    sim_job(&job, &ask, &r, &run, &s->cluster);
    sim_job_print(&job, &ask, &r, &run, stdout);
    if (s->reshard_nodes) {
        struct sim_reshard move = { ask.state_bytes, (double)s->reshard_nodes, s->cluster.level[0].ranks };
        struct sim_reshard_result moved;
        move.ranks_a_node = move.ranks_a_node > 0 ? move.ranks_a_node : 1;
        sim_reshard(&moved, &move, &s->cluster);
        sim_reshard_print(&moved, &move, stdout);
    }
    if (s->trace)
        TRY(write_trace(s, &t, &run, r.step_s, e));
    if (s->scale)
        TRY(write_scale(s, a, e));
out:
    free(t.span);
    return rc;
}

int memplan_sim_fit(struct memplan_sim *s, const struct layout_spec *a, struct err *e)
{
    struct layout_plan p;
    int measured = s->cluster.n_ops > 0;
    double low = measured ? 0.01 : 1e-3, high = measured ? 100 : 1000, step_s = 0, mfu;
    double *fitted = measured ? &s->cluster.measured : &s->cluster.engine.row_bytes;
    const char *why;
    char *text = NULL;
    size_t n;
    int rc;
    if (s->ops)
        return err_set(
            e, ERR_USAGE,
            "--fit writes the whole cluster, and with --ops its measured calls would be lost: leave "
            "--ops out, or fit by hand: measured = ... in %s",
            s->name);
    if (cluster_preset(s->name))
        return err_set(e, ERR_USAGE,
                       "--fit writes into the cluster's file, and %s is a preset: use --calibrate FILE",
                       s->name);
    TRY(layout_plan_make(&p, a, NULL, e));
    for (int i = 0; i < 60; i++) {
        *fitted = (low + high) / 2;
        if (memplan_sim_judge(s, a, &p, &step_s, &mfu, &why) < 0)
            break;
        *(step_s < s->fit_s ? &low : &high) = *fitted;
    }
    if (!(step_s > 0.99 * s->fit_s && step_s < 1.01 * s->fit_s)) {
        rc = err_set(e, ERR_USAGE, "--fit %g: a step takes %.4g s, whatever is fitted: was it measured here",
                     s->fit_s, step_s);
        goto out;
    }
    FILE *out = open_memstream(&text, &n);
    if (!out) {
        rc = err_set(e, ERR_MEMORY, "no memory for %s", s->name);
        goto out;
    }
    cluster_write(&s->cluster, out);
    fclose(out);
    TRY(memplan_write(s->name, text, n, e));
    printf("fitted       %s %.4g times %s; written to %s\n", measured ? "a step takes" : "rows cost", *fitted,
           measured ? "its measured calls" : "a copy", s->name);
out:
    free(text);
    return rc;
}

int memplan_sim_serve(const struct memplan_sim *s, const struct model_config *c, double params, struct err *e)
{
    struct sim_load load = { (double)s->load, (double)s->prompt, (double)s->answer, s->first_s };
    struct sim_serve_result r = { 0 };
    int rc = sim_serve(&r, &load, c, 2 * params, &s->cluster);
    if (rc < 0 && s->cluster.n_serves)
        return err_set(
            e, ERR_USAGE,
            "--serve-first %g: none of the %d measured servers of %s gives a first token so soon: use "
            "a longer one",
            s->first_s, s->cluster.n_serves, s->cluster.name);
    if (rc < 0)
        return err_set(
            e, ERR_USAGE,
            "--serve-load %lld: no tp of a machine of %s holds %.4g GB and a request of %lld tokens in "
            "time: use a longer --serve-first or larger devices",
            (long long)s->load, s->cluster.name, 2 * params / 1e9, (long long)(s->prompt + s->answer));
    printf(
        "serve        %.0f tokens a second: %.0f replicas of tp %d, batch %.0f: %.0f devices; %.4g tokens a "
        "second each, first token after %.3g s%s\n",
        load.tokens_per_s, r.replicas, r.tp, r.batch, r.devices, r.tokens_per_s, r.first_s,
        r.measured ? ", as measured" : "");
    return 0;
}
