/* deferred_grads.c - weight gradients that wait for their turn, with what they need: zero-bubble pipelines
 * send the gradient of a stage's input on before they compute those of its weights (Qi et al. 2023). What
 * the rest of the backward pass overwrites is copied: gradients always, inputs where layers share their
 * buffers because they are computed again. */
#include <stdlib.h>
#include "model/train_priv.h"

void train_work_leave(struct train_work *w, struct train_late *l) { w->late = l; }

static struct mat copy(struct train_late *l, struct mat x)
{
    struct mat y = mat_of(l->kept + l->n_kept, x.dt, x.rows, x.cols, x.cols);
    size_t row = (size_t)x.cols * dtype_size(x.dt);
    dev_copy_rows(l->m->dev, y.p, row, x.p, (size_t)x.ld * dtype_size(x.dt), row, x.rows);
    l->n_kept += (row * (size_t)x.rows + 63) / 64 * 64;
    return y;
}

struct mat late_input(const struct train_work *w, struct mat x)
{
    const char *p = x.p;
    return w->late && p >= w->again && p < w->again + w->again_bytes ? copy(w->late, x) : x;
}

void late_note(struct train_late *l, struct late r)
{
    if (r.dy.p && !r.stays)
        r.dy = copy(l, r.dy);
    l->note[l->n_notes++] = r;
}

/* Copies of a layer: gradients into down and o, gate with up, q with k and v, the norms and the heads'
 * norms; inputs that layers share. */
static size_t layer_bytes(const struct train_work *w)
{
    enum { COPIES = 16 };
    const struct model *m = w->m;
    size_t el = dtype_size(m->dt), rows = (size_t)w->rows, hidden = (size_t)m->hidden, own = (size_t)w->own,
           norms = 2 * sizeof(float) * (size_t)norm_stats(m, w->own);
    size_t sum = rows * el * (size_t)(m->up_cols + qkv_of(m)) + own * (2 * el + 2 * sizeof(float)) * hidden;
    if (m->features & F_QK_NORM)
        sum += (size_t)(w->n_seq * 2 * m->head_dim) * sizeof(float);
    if (w->recompute != RECOMPUTE_NONE) /* h1, h2, act */
        sum += el * (2 * own * hidden + rows * (size_t)m->inter);
    if (w->recompute == RECOMPUTE_FULL) /* o, xm, both norms' statistics */
        sum += el * (rows * (size_t)heads_of(m) + own * hidden) + norms;
    return sum + 64 * COPIES;
}

/* Of the ends: the last norm's gradient and input, dx. */
static size_t kept_bytes(const struct train_work *w)
{
    size_t el = dtype_size(w->m->dt), hidden = (size_t)(w->own * w->m->hidden),
           sum = (size_t)w->n_layers * layer_bytes(w);
    sum += w->at.has_head ? (sizeof(float) + (w->recompute == RECOMPUTE_FULL ? el : 0)) * hidden + 128 : 0;
    return sum + (w->at.has_embed ? el * hidden + 64 : 0);
}

size_t train_late_measure(const struct model *m, int chunk, const struct work_shape *s)
{
    struct train_work w = train_work_of(m, chunk, s);
    return kept_bytes(&w);
}

int train_late_open(struct train_late **out, struct model *m, int chunk, const struct work_shape *s,
                    struct err *e)
{
    struct train_work w = train_work_of(m, chunk, s);
    struct train_late *l = calloc(1, sizeof *l);
    if (l) {
        l->m = m;
        l->note = calloc((size_t)((w.n_layers + 1) * LATE_OF_LAYER), sizeof *l->note);
        l->kept = dev_alloc(m->dev, MEM_ACTS, kept_bytes(&w));
    }
    if (!l || !l->note || !l->kept) {
        train_late_close(l);
        return err_set(
            e, ERR_MEMORY,
            "no memory for late weight gradients (%zu MiB): use a smaller --micro-batch, or --schedule 1f1b",
            kept_bytes(&w) >> 20);
    }
    *out = l;
    return 0;
}

void train_late_close(struct train_late *l)
{
    if (!l)
        return;
    dev_free(l->m->dev, l->kept);
    free(l->note);
    free(l);
}
