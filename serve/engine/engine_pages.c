/* engine_pages.c - pages that go to the folder of --kv-disk and come from it: orders that rank 0 passes
 * between two steps (serve/kv/kv_disk.h, kv_plan.h). See engine.h. */
#include <stdlib.h>
#include "base/clock.h"
#include "base/log.h"
#include "serve/engine/engine.h"

/* The name that all pages of these weights share. */
static struct kv_key root_name(const struct engine *en)
{
    const struct dev *d = en->in.loaded->m.dev;
    return kv_name_root(en->in.sv->fingerprint, &en->in.loaded->cfg, d->memory ? d->kind : "cpu");
}

int engine_open_pages(struct engine *en, struct err *e)
{
    const struct kv_disk_open how = { .dir = en->in.kv_disk,
                                      .limit = en->in.kv_disk_bytes,
                                      .m = &en->in.loaded->m,
                                      .ranks = &en->in.ranks,
                                      .kv = en->kv,
                                      .log = en->inbox ? en->in.log : NULL };
    int rc = kv_disk_open(&en->disk, &how, e);

    if (rc < 0 || !en->inbox)
        return rc;
    kv_plan_open(&en->plan, &en->sched, &en->disk, root_name(en));
    if (en->in.log)
        log_line(en->in.log, "pages of keys and values are kept in %s: %lld records are there",
                 en->in.kv_disk, (long long)kv_files_records(en->disk.files));
    return 0;
}

void engine_name_pages(struct engine *en)
{
    if (en->plan.disk)
        kv_plan_open(&en->plan, &en->sched, &en->disk, root_name(en));
}

/* Runs n orders; ok[n]. Collective. */
static int run_orders(struct engine *en, const struct kv_order *o, int64_t n, int64_t **ok, struct err *e)
{
    *ok = calloc((size_t)n + 1, sizeof **ok);
    if (!*ok)
        return err_set(e, ERR_MEMORY, "no memory for %lld orders about pages", (long long)n);
    return kv_disk_run(&en->disk, o, n, *ok, e);
}

/* Rank 0: passes the orders to all ranks and runs them. */
static int pass_orders(struct engine *en, int64_t **ok, struct err *e)
{
    struct kv_orders *o = &en->plan.orders;
    struct metrics *m = en->in.sv->metrics;
    const struct kv_files_count was = kv_files_counts(en->disk.files);
    int rc;

    TRY(step_message_orders(&en->message, o->order, o->n, e));
    TRY(step_message_pass(&en->message, &en->in.ranks, e));
    TRY(run_orders(en, o->order, o->n, ok, e));
    o->n = 0;
    const struct kv_files_count now = kv_files_counts(en->disk.files);
    metric_add(m, COUNT_DISK_DAMAGED, now.n_damaged - was.n_damaged);
    metric_add(m, COUNT_DISK_READ, now.read_bytes - was.read_bytes);
    metric_add(m, COUNT_DISK_WRITTEN, now.written_bytes - was.written_bytes);
out:
    return rc < 0 ? rc : 0;
}

int engine_obey_pages(struct engine *en, struct err *e)
{
    int64_t n, *ok = NULL;
    const struct kv_order *o = step_message_get_orders(&en->message, &n);
    int rc = run_orders(en, o, n, &ok, e);
    free(ok);
    return rc < 0 ? rc : 0;
}

int engine_load_pages(struct engine *en, struct err *e)
{
    struct metrics *m = en->in.sv->metrics;
    int64_t missed, n;

    while ((n = kv_plan_next(&en->plan, &en->sched, &missed)) >= 0) {
        int64_t *ok = NULL;
        const double begin_s = clock_s();
        metric_add(m, COUNT_DISK_LOOKED_UP, missed);
        if (!n)
            continue;
        int rc = pass_orders(en, &ok, e);
        if (rc >= 0)
            metric_add(m, COUNT_DISK_HIT, kv_plan_loaded(&en->plan, &en->sched, ok, clock_s() - begin_s));
        free(ok);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int engine_save_evicted(struct engine *en, struct err *e)
{
    int64_t *ok = NULL;
    int rc = en->plan.disk && en->plan.orders.n ? pass_orders(en, &ok, e) : 0;
    free(ok);
    return rc;
}

int engine_save_cached(struct engine *en, struct err *e)
{
    kv_plan_save_all(&en->plan, &en->sched);
    return engine_save_evicted(en, e);
}
