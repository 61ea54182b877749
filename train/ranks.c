/* ranks.c - see ranks.h. */
#define _GNU_SOURCE
#include "train/ranks.h"

#include <sched.h>
#include "train/checkpoint/publisher.h"
#include "train/elastic/supervisor.h"

static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int threads_of(const struct train_opts *o, int n_ranks)
{
    int each = cores() / n_ranks;
    if (o->threads)
        return (int)o->threads;
    return each > 1 ? each : 1;
}

/* Threads, their places on the cores, and their trace. */
static int open_threads(struct ranks *r, const struct train_opts *o, int n_threads, struct err *e)
{
    int rc = 0;
    if (n_threads > 1) /* the thread pool starts after MPI has started */
        TRY(dev_threads(r->dev, n_threads, e));
    world_pin(r->world, r->dev->pool);
    if (o->trace) {
        TRY(trace_open(&r->trace, n_threads, e));
        r->dev->trace = r->trace;
        pool_trace(r->dev->pool, r->trace);
        world_trace(r->world, r->trace);
    }
out:
    return rc;
}

struct layout ranks_layout(const struct train_opts *o, int dp)
{
    return (struct layout){
        .tp = (int)o->tp,
        .pp = (int)o->pp,
        .cp = (int)o->cp,
        .dp = dp,
        .ep = (int)o->ep,
        .zero = (int)o->zero,
        .vpp = (int)o->virtual_stages,
        .sp = o->sp,
    };
}

/* The ranks of an expert group, and those with the same place in all expert groups of a stage. */
static int open_expert_groups(struct ranks *r, struct err *e)
{
    const struct layout *l = &r->layout;
    struct rank_at at = layout_at(l, world_rank(r->world));
    int rc;

    if (l->ep % (l->tp * l->cp) || l->dp % (l->ep / (l->tp * l->cp)))
        return 0; /* the check of the layout refuses it with a reason */
    TRY(comm_split(&r->ep, r->mesh.all, at.pp * l->dp + at.edp, e));
    TRY(comm_split(&r->edp, r->mesh.all, at.pp * l->ep + at.ep, e));
    rc = 0;
out:
    return rc;
}

int ranks_open(struct ranks *r, const struct train_opts *o, const unsigned char *given, char **argv,
               struct log *term, struct err *e)
{
    int64_t inner = o->tp * o->pp * o->cp;
    int planned = (int)(o->ranks || launch_under_launcher() ? o->ranks : inner);
    int alone = o->dry_run && !launch_under_launcher(); /* one rank plans for all */
    struct launch_keeper keeper;
    int rc, kept = !o->dry_run && !launch_under_launcher() && supervisor_is_needed(o);

    launch_ranks_per_node((int)o->ranks_per_node);
    if (o->publish && !alone && !launch_under_launcher() && (planned > 1 || kept))
        TRY(publish_serve(o, e)); /* this process stays as the parent of the ranks */
    if (kept)
        TRY(supervisor_open(&keeper, o, planned > 1 ? planned : 1, e));
    TRY(launch_ranks_kept(alone ? 1 : planned, argv, kept ? &keeper : NULL, e));
    TRY(dev_open(&r->dev, o->device, 1, &r->mem, e));
    TRY(world_open(&r->world, o->transport, o->rank_timeout_s, r->dev, &r->mem, e));
    log_open(term, "ptrain", !ranks_is_first(r), launch_stderr_is_tty());
    if (world_device_route(r->world))
        log_line(term, "the device's memory goes between ranks %s", world_device_route(r->world));

    int n = alone ? planned : world_size(r->world);
    if (n % inner) {
        rc = err_set(e, ERR_USAGE,
                     "%d ranks are not a multiple of tp %lld x pp %lld x cp %lld: use --ranks %lld", n,
                     (long long)o->tp, (long long)o->pp, (long long)o->cp,
                     (long long)(inner * (n / inner + 1)));
        goto out;
    }
    TRY(open_threads(r, o, threads_of(o, n), e));

    r->layout = ranks_layout(o, (int)(n / inner));
    int shares = layout_slices(&r->layout) > 1 || r->layout.ep > 1;
    if (o->overlap == OVERLAP_ON && opts_given(given, "overlap") && !shares) {
        rc = err_set(e, ERR_USAGE,
                     "--overlap on: at dp 1 there is nothing to sum or gather over dp, at ep 1 no row of an "
                     "expert travels: use more ranks, or leave it out");
        goto out;
    }

    int size[AXIS_COUNT] = {
        [AXIS_TP] = r->layout.tp,
        [AXIS_CP] = r->layout.cp,
        [AXIS_DP] = r->layout.dp,
        [AXIS_PP] = r->layout.pp,
    };
    for (int a = 0; alone && a < AXIS_COUNT; a++)
        size[a] = 1;
    TRY(mesh_open(&r->mesh, r->world, size, e));
    if (r->layout.ep > 1 && !alone)
        TRY(open_expert_groups(r, e));
    if (r->layout.cp > 1 && !alone) {
        TRY(comm_split(&r->dp_cp, r->mesh.all, r->mesh.at[AXIS_PP] * r->layout.tp + r->mesh.at[AXIS_TP], e));
        comm_nest(r->dp_cp, r->layout.cp);
    }
out:
    return rc;
}

void ranks_close(struct ranks *r)
{
    if (r->world) {
        comm_close(r->ep);
        comm_close(r->edp);
        comm_close(r->dp_cp);
        mesh_close(&r->mesh);
        world_close(r->world);
    }
    if (r->dev)
        dev_close(r->dev);
    trace_close(r->trace);
}
