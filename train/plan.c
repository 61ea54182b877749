/* plan.c - --dry-run: what a rank will hold and what a step will send, from the same tables that the run uses. */
#include <stdlib.h>
#include <string.h>
#include "train/trainer.h"

/* The schedule, stage by stage, and the share of time a stage is idle. */
static int draw_pipeline(struct trainer *t, int64_t micros, struct err *e)
{
    struct pipe_list *l = calloc((size_t)t->layout.pp, sizeof *l);
    struct pipe_report r = { 0 };
    int rc = l ? 0 : err_set(e, ERR_MEMORY, "no memory for %d stages", t->layout.pp);
    for (int s = 0; rc >= 0 && s < t->layout.pp; s++)
        rc = pipe_make(&l[s], (enum pipe_kind)t->o.pipeline, t->layout.pp, s, micros, e);
    if (rc >= 0)
        rc = pipe_verify(l, t->layout.pp, micros, &r, t->layout.pp > 1 ? stdout : NULL, e);
    if (rc >= 0)
        printf("bubble       %.4g (a rank keeps %lld micro-batches at most)\n", r.bubble, (long long)r.in_flight);
    for (int s = 0; l && s < t->layout.pp; s++)
        pipe_free(&l[s]);
    free(l);
    return rc;
}

int trainer_plan(struct trainer *t, struct err *e)
{
    struct param_table table;
    struct params_local local;
    struct batch_plan b;
    int rc, stage = t->layout.zero, dp = t->layout.dp;
    char text[6][32];
    memset(&table, 0, sizeof table);
    memset(&local, 0, sizeof local);
    TRY(batch_plan(&b, t->o.global_batch, t->o.micro_batch, dp, stage, e));
    TRY(param_table_open(&table, &t->cfg, e));
    TRY(params_local_open(&local, &table, &t->layout, 0, 0, e));
    double flat = (double)local.flat_total, el = (double)dtype_size(t->dt), most = 0;
    for (int u = 0; u < local.n_units; u++)
        most = (double)local.unit[u].flat > most ? (double)local.unit[u].flat : most;
    int levels = tree_levels(b.local, b.micro), shared = stage >= 2 && b.local == b.micro;
    double weights = stage == 3 ? flat / dp * el + 3 * 2 * most * el : 2 * flat * el;
    double grads = shared ? most * 4 : flat * 4 * levels, optim = (t->dt == DT_F32 ? 8 : 12) * (stage ? flat / dp : flat);
    if (stage >= 2)
        grads += flat / dp * 4 * tree_levels(b.supers, 1);
    double share = (double)(dp - 1) / dp, sent = stage == 0 ? 8 * flat * share : stage < 3 ? (4 + el) * flat * share : (4 + 2 * el) * flat * share;
    log_bytes(text[0], weights);
    log_bytes(text[1], grads);
    log_bytes(text[2], optim);
    log_bytes(text[3], weights + grads + optim);
    log_bytes(text[4], sent);
    if (world_rank(t->world) == 0) {
        printf("layout       tp %d, pp %d, dp %d, zero %d: %d ranks\n", t->layout.tp, t->layout.pp, dp, stage, layout_ranks(&t->layout));
        printf("batch        %lld sequences of %lld tokens; a rank: %lld micro-batches of %lld\n", (long long)b.rows, (long long)t->o.seq_len,
               (long long)(b.supers * (b.local / b.micro)), (long long)b.micro);
        printf("weights      %s a rank (natural and packed order)\ngradients    %s\noptimizer    %s\nstates       %s without activations\n", text[0],
               text[1], text[2], text[3]);
        printf("dp traffic   %s a rank and step\n", text[4]);
    }
    rc = world_rank(t->world) ? 0 : draw_pipeline(t, b.supers * (b.local / b.micro), e);
out:
    params_local_close(&local);
    param_table_close(&table);
    return rc;
}
