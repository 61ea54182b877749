/* memory_check.c - see memory_check.h. */
#include "train/memory_check.h"

#include <stdlib.h>
#include <string.h>
#include "comm/memory_place.h"
#include "train/eval.h"
#include "train/memory_advice.h"

struct layout_spec memory_check_spec(const struct run *run, const struct ranks *ranks, int sharers)
{
    const struct train_opts *o = &run->o;
    const struct layout *layout = &ranks->layout;
    return (struct layout_spec){
        .cfg = run->cfg,
        .layout = *layout,
        .rows = o->global_batch,
        .micro = o->micro_batch,
        .seq_len = o->seq_len,
        .dt = run->dt,
        .recompute = (enum recompute)o->recompute,
        .pipeline = (enum pipe_kind)o->pipeline,
        .sharers = sharers,
        .overlap = opts_overlap(o, run->given, layout_slices(layout), sharers),
        .save_async = o->save_async,
        .publish = o->publish != NULL,
        .expert_buffer = o->expert_buffer,
        .documents = (int)o->documents,
        .threads = pool_threads(ranks->dev->pool),
        .expert_leaf = run->expert_leaf,
        .offload = offload_kind(o->offload, o->device),
        .offload_grads = o->offload_grads,
        .offload_params = o->offload_params,
        .offload_activations = o->offload_activations,
        .cp_grain = run->cp_grain,
        .adapted = run->lora.list,
        .n_adapted = run->lora.n,
    };
}

/* What an evaluation holds: the weights, and the activations of one micro-batch. */
static int measure_eval(const struct layout_spec *a, int stage, double bytes[MEM_CATS], struct err *e)
{
    struct batch_plan plan;
    if (batch_plan_eval(&plan, a->micro, &a->layout, e) < 0)
        return -e->code;
    struct work_shape work = { .n_seq = (int)plan.micro,
                               .sharers = layout_plan_page_sharers(a),
                               .seq_len = a->seq_len,
                               .documents = 1,
                               .recompute = a->recompute,
                               .expert_buffer = a->expert_buffer };
    struct model m;
    int rc = model_shape(&m, &a->cfg, &a->layout, (struct rank_at){ .pp = stage }, a->dt, 0, e);
    if (rc < 0)
        return rc;
    m.cp_grain = a->cp_grain;
    size_t reading, more;
    struct adapter adapter = { 0 };
    if (a->n_adapted)
        TRY(adapter_open(&adapter, &m, a->adapted, a->n_adapted, e));
    bytes[MEM_PARAMS] = (double)resident_measure(&m, &reading);
    bytes[MEM_PARAMS] += (double)reading;
    if (a->n_adapted) {
        bytes[MEM_PARAMS] += (double)resident_measure(&adapter.m, &more);
        work.adapter = &adapter;
    }
    TRY(train_work_check(&m, &work, e));
    for (int c = 0; c < m.n_chunks; c++)
        bytes[MEM_ACTS] += (double)train_work_measure(&m, c, &work);
    bytes[MEM_WORK] = (double)train_scratch_measure(&m, &work, a->threads);
out:
    adapter_close(&adapter);
    model_close(&m);
    return rc;
}

int memory_check_stage(const struct run *run, const struct layout_spec *a, int stage, double bytes[MEM_CATS],
                       struct err *e)
{
    memset(bytes, 0, sizeof *bytes * MEM_CATS);
    return run->o.eval_only ? measure_eval(a, stage, bytes, e) : layout_plan_stage(a, stage, bytes, e);
}

static int measure(const struct run *run, const struct ranks *ranks, const struct layout_spec *a,
                   int64_t bytes[MEM_CATS], struct err *e)
{
    double planned[MEM_CATS];
    struct layout_spec mine = *a;
    mine.rank = comm_rank(ranks_zero(ranks));
    int rc = memory_check_stage(run, &mine, ranks->mesh.at[AXIS_PP], planned, e);
    for (int c = 0; c < MEM_CATS; c++)
        bytes[c] = (int64_t)planned[c];
    return rc;
}

/* The refusal of a place that is too small. Collective. */
static int refuse(const struct run *run, const struct ranks *ranks, const struct layout_spec *a,
                  const struct memory_place *p, struct err *e)
{
    char need[MEMORY_PLACE_TEXT], advice[MEMORY_ADVICE_TEXT] = "use more ranks (--tp, --pp) on more machines";
    struct memory_advice ask = {
        .ranks_a_place = p->n_ranks,
        .free_bytes = 0.95 * (double)p->memory.free_bytes, /* no advice that only just fits */
        .rank_bytes = p->is_gpu ? 0 : RANK_OVERHEAD_BYTES,
        .place = p->is_gpu ? "GPU" : "machine",
        .is_gpu = p->is_gpu,
    };
    memory_place_text(p, need);
    if (!run->o.eval_only && ranks_is_first(ranks)) /* a search: once for all ranks */
        memory_advice_text(a, &ask, advice);
    err_set(e, ERR_USAGE, "%s: %s; --force starts it all the same", need, advice);
    return comm_agree(ranks->mesh.all, -e->code, e); /* rank 0's words */
}

int memory_check(const struct run *run, const struct ranks *ranks, struct log *term, struct err *e)
{
    struct memory_place *place = NULL;
    int rank, sharers, n = 0, rc;
    int64_t bytes[MEM_CATS] = { 0 };
    comm_shared_group(ranks_zero(ranks), &rank, &sharers);
    struct layout_spec a = memory_check_spec(run, ranks, sharers);

    rc = measure(run, ranks, &a, bytes, e);
    TRY(comm_agree(ranks->mesh.all, rc, e));
    TRY(memory_places(ranks->mesh.all, ranks->dev, bytes, &place, &n, e));
    if (!memory_place_is_full(place))
        goto out;

    /* every rank sees the same places, so all refuse alike */
    if (!run->o.force) {
        rc = refuse(run, ranks, &a, place, e);
        goto out;
    }
    char need[MEMORY_PLACE_TEXT];
    memory_place_text(place, need);
    log_line(term, "%s: started because of --force", need);
out:
    free(place);
    return rc < 0 ? rc : 0;
}
