/* sim_plan.c - see sim_plan.h. */
#include "train/simulate/sim_plan.h"

#include <stdlib.h>
#include <string.h>

/* What this engine does: sums in one order; blocking ones inside a machine first, those beside the backward
 * pass at once (comm/README.md). Where ranks compute the sums themselves, on cores that they share, nothing
 * hides. */
static struct sim_engine own_engine(const struct layout_spec *a, const struct cluster *c)
{
    return (struct sim_engine){ .nested = !a->overlap, .dp_overlap = a->overlap && c->cores <= 0 };
}

/* What kernels of rows cost is a fact of the cluster, too: it alone names no other engine. */
static struct sim_engine engine_of(const struct layout_spec *a, const struct cluster *c)
{
    static const struct sim_engine none;
    struct sim_engine given = c->engine, own = own_engine(a, c);
    given.row_bytes = 0;
    own.row_bytes = c->engine.row_bytes;
    return memcmp(&given, &none, sizeof none) ? c->engine : own;
}

void sim_plan_run(struct sim_run *run, const struct layout_spec *a, const struct layout_plan *p,
                  const struct cluster *c)
{
    const struct layout *l = &a->layout;
    *run = (struct sim_run){ .cfg = &a->cfg,
                             .tp = l->tp,
                             .pp = l->pp,
                             .vpp = layout_chunks(l),
                             .cp = l->cp,
                             .dp = l->dp,
                             .ep = l->ep,
                             .zero = l->zero,
                             .sp = l->sp,
                             .rows = p->batch.rows,
                             .micro = p->batch.micro,
                             .seq_len = a->seq_len,
                             .schedule = a->pipeline,
                             .recompute = a->recompute,
                             .dtype = a->dt == DT_F32 ? SIM_F32
                                      : c->engine.fp8 ? SIM_FP8
                                                      : SIM_BF16,
                             .frozen = a->n_adapted > 0,
                             .threads = a->threads,
                             .disk_bytes = p->offload.moved,
                             .disk_fetched = p->offload.fetched,
                             .host_bytes = a->offload == OFFLOAD_HOST ? 8 * p->offload_elements : 0,
                             .engine = engine_of(a, c) };
}

int sim_plan_step(struct clock_result *r, struct sim_run *run, const struct layout_spec *a,
                  const struct layout_plan *p, const struct cluster *c, struct clock_timeline *t,
                  struct err *e)
{
    sim_plan_run(run, a, p, c);
    return clock_step(r, run, c, t, e);
}

const char *sim_plan_loss(const struct clock_result *r, double *seconds)
{
    const char *most = NULL;
    *seconds = 0;
    for (int i = CLOCK_COMPUTE + 1; i < CLOCK_JITTER; i++)
        if (r->share[i] > *seconds)
            *seconds = r->share[i], most = clock_share_names[i];
    return most;
}

void sim_plan_print(const struct clock_result *r, const struct sim_run *run, const struct cluster *c,
                    FILE *out)
{
    double ranks = sim_ranks(run);
    fprintf(out, "step %.4g s, MFU %.1f %%\n", r->step_s, 100 * r->mfu);
    fprintf(out, "on           %s: %.4g tokens a second and device, %.4g in all, %.4g TFLOP/s a device\n",
            c->name, r->tokens_per_s, r->tokens_per_s * ranks, r->flops_per_s / 1e12);
    fprintf(out, "time        ");
    for (int i = 0, n = 0; i < CLOCK_SHARES; i++)
        if (r->share[i] > 0.0005 * r->step_s)
            fprintf(out, "%s %s %.1f %%", n++ ? "," : "", clock_share_names[i],
                    100 * r->share[i] / r->step_s);
    fputc('\n', out);
}

int sim_plan_show(const char *cluster, const struct layout_spec *a, FILE *out, struct err *e)
{
    struct cluster *c = malloc(sizeof *c); /* too large for a small stack */
    struct layout_plan p;
    struct sim_run run;
    struct clock_result r;
    int rc;
    if (!c)
        return err_set(e, ERR_MEMORY, "no memory for the tables of a cluster");
    TRY(cluster_open(c, cluster, e));
    TRY(layout_plan_make(&p, a, NULL, e));
    TRY(sim_plan_step(&r, &run, a, &p, c, NULL, e));
    if (out)
        sim_plan_print(&r, &run, c, out);
out:
    free(c);
    return rc;
}
