/* deferred_grads.c - weight gradients that wait for their turn, with what they need: zero-bubble pipelines
 * send the gradient of a stage's input on before they compute those of its weights (Qi et al. 2023). What
 * the rest of the
 * backward pass overwrites is copied: gradients always, inputs where layers share their buffers because they
 * are computed again. */
#include "model/deferred_grads.h"

#include <stdlib.h>

struct deferred_grads {
    struct model *m;
    struct gradient *record; /* [n_records] in use */
    char *copies;
    size_t n_copied; /* bytes of `copies` in use */
    int n_records;
};

struct mat deferred_copy(struct deferred_grads *d, struct mat x)
{
    struct mat y = mat_of(d->copies + d->n_copied, x.dt, x.rows, x.cols, x.cols);
    size_t row = (size_t)x.cols * dtype_size(x.dt);

    dev_copy_rows(d->m->dev, y.p, row, x.p, (size_t)x.ld * dtype_size(x.dt), row, x.rows);
    d->n_copied += (row * (size_t)x.rows + 63) / 64 * 64;
    return y;
}

void deferred_add(struct deferred_grads *d, struct gradient g)
{
    if (g.dy.p && !g.stays)
        g.dy = deferred_copy(d, g.dy);
    d->record[d->n_records++] = g;
}

/* ---- sizes, by the same walk over units ---- */
/* Copies of a branch besides its body's: gradients into the body's last product and the norm, and what
 * layers share
 * under a recompute policy: the norm's output; then its input (kept of the first branch, unless it goes to a
 * store) and statistics. */
static size_t branch_bytes(const struct model *m, const struct branch *br, int kept,
                           const struct call_shape *c, enum recompute recompute)
{
    enum { COPIES = 8 };
    size_t el = dtype_size(m->dt), stream = (size_t)(c->own * m->hidden), sum = 64 * COPIES;

    sum += br->body.kind->deferred_bytes(&br->body, m, c, recompute) + adapters_deferred_bytes(&br->body, c);
    if (br->flow == FLOW_START)
        return sum;
    sum += stream * sizeof(float);
    if (br->flow == FLOW_END) /* its input is the last layer's output */
        return sum + (recompute == RECOMPUTE_FULL ? stream * el : 0);
    sum += stream * el;
    if (br->after.kind != NORM_NONE) /* its gradient; its input and statistics */
        sum += 2 * stream * el + norm_stats(&br->after, c->own) * sizeof(float);
    if (recompute != RECOMPUTE_NONE)
        sum += stream * el;
    if (recompute == RECOMPUTE_FULL)
        sum += (kept ? 0 : stream * el) + norm_stats(&br->norm, c->own) * sizeof(float);
    return sum;
}

/* Units of a stage in the order of a walk: its layers, then its ends. -1: no more. */
static int stage_unit(const struct model *m, const struct stage *at, int i)
{
    int n_layers = at->last_unit - at->first_unit + 1;
    if (i < n_layers)
        return at->first_unit + i;
    i -= n_layers;
    if (at->has_head && i-- == 0)
        return (int)m->n_layers + 1;
    return at->has_embed && i == 0 ? 0 : -1;
}

static size_t copied_bytes(const struct train_work *w)
{
    const struct model *m = w->m;
    size_t sum = 0;
    for (int i = 0, unit; (unit = stage_unit(m, &w->at, i)) >= 0; i++) {
        const struct unit *u = &m->unit[unit];
        for (int b = 0; b < u->n_branches; b++)
            sum += branch_bytes(m, &u->branch[b], b == 0 && !w->spills, &w->shape, w->recompute);
    }
    return sum;
}

/* Two gathers a branch, and what bodies have besides. */
static int body_records(const struct train_work *w, const struct unit *u)
{
    int n = 2 * u->n_branches;
    for (int b = 0; b < u->n_branches; b++) {
        const struct sublayer *s = &u->branch[b].body;
        n += s->kind->deferred_records ? s->kind->deferred_records(s, w->m, &w->shape) : 0;
    }
    return n;
}

/* A record a parameter, two gathers a branch, the unit's end; the tied head's record and end. */
static int most_records(const struct train_work *w)
{
    const struct model *m = w->m;
    int n = 2;
    for (int i = 0, unit; (unit = stage_unit(m, &w->at, i)) >= 0; i++)
        n += m->local.unit[unit].n + body_records(w, &m->unit[unit]) + 2 +
             (w->adapter ? w->adapter->m.local.unit[unit].n : 0);
    return n;
}

size_t deferred_grads_measure(const struct model *m, int chunk, const struct work_shape *s)
{
    struct train_work w = train_work_of(m, chunk, s);
    return copied_bytes(&w);
}

int deferred_grads_open(struct deferred_grads **out, struct model *m, int chunk, const struct work_shape *s,
                        struct err *e)
{
    struct train_work w = train_work_of(m, chunk, s);
    size_t bytes = copied_bytes(&w);
    struct deferred_grads *d = calloc(1, sizeof *d);

    if (d) {
        d->m = m;
        d->record = calloc((size_t)most_records(&w), sizeof *d->record);
        d->copies = dev_alloc(m->dev, MEM_ACTS, bytes);
    }
    if (!d || !d->record || !d->copies) {
        deferred_grads_close(d);
        return err_set(e, ERR_MEMORY,
                       "no memory for deferred weight gradients (%zu MiB): use a smaller --micro-batch, or "
                       "--schedule 1f1b",
                       bytes >> 20);
    }
    *out = d;
    return 0;
}

void deferred_grads_close(struct deferred_grads *d)
{
    if (!d)
        return;
    dev_free(d->m->dev, d->copies);
    free(d->record);
    free(d);
}

void train_work_defer(struct train_work *w, struct deferred_grads *d) { w->deferred = d; }

int model_train_deferred(struct train_work *w, struct deferred_grads *d, struct grads *g, struct err *e)
{
    struct pass p = train_pass(w, NULL, NULL, NULL);
    int rc = 0;

    p.g = g;
    for (int i = 0; i < d->n_records; i++)
        TRY(gradient_make(&p, &d->record[i], e));
    d->n_records = 0;
    d->n_copied = 0;
    rc = dev_check(w->m->dev, e);
out:
    return rc;
}
