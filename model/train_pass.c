/* train_pass.c - forward and backward of a pipeline stage for one micro-batch. See model.h.
 *
 * dx is the gradient of the residual stream (dt), walked from the head (or what the next stage sent) to the
 * embedding (or what the previous stage gets). */
#include "model/units.h"

struct pass train_pass(struct train_work *w, struct weights *ws, const int32_t *ids, const int32_t *targets)
{
    w->run = (struct adapter_run){ w->adapter, 0, rows_all(&w->r) };
    w->adapters = (struct adapter_rows){ 1, &w->run };
    return (struct pass){ .m = w->m,
                          .r = w->r,
                          .ids = ids,
                          .pos = w->pos,
                          .adapters = w->adapter ? &w->adapters : NULL,
                          .w = w,
                          .ws = ws,
                          .targets = targets };
}

/* ---- forward ---- */
/* Log-probs of the targets from the head's logits, to the host. */
static int read_logprobs(const struct pass *p, float *logprobs, struct err *e)
{
    const struct model *m = p->m;
    const struct head_buf *b = &p->w->head.branch[0].head;
    float *pick = m->stat + 2 * m->max_rows, *logprob = m->stat + 3 * m->max_rows;
    int64_t rows = rows_all(&p->r);

    KERNEL(m->dev, ce_pick, pick, mat_of(b->logits, DT_F32, rows, m->vocab_n, b->logit_ld), p->targets,
           m->vocab_begin);
    int rc = comm_all_reduce(m->tp, pick, rows, e);
    if (rc < 0)
        return rc;
    KERNEL(m->dev, ce_logprob, logprob, pick, b->max, b->sum, rows);
    dev_read(m->dev, logprobs, logprob, (size_t)rows * sizeof *logprobs);
    return 0;
}

/* One unit with its weights borrowed. next: the unit whose weights come soon, for backward or not; -1:
 * none. */
struct step {
    int unit, next, backward;
};
static int forward_unit(struct pass *p, struct step s, struct unit_buf *b, void *x_out, struct err *e)
{
    int rc = p->ws->get(p->ws, s.unit, 0, &p->uw, e);
    if (rc < 0)
        return rc;
    if (s.next >= 0)
        rc = weights_soon(p->ws, s.next, s.backward, e);
    if (rc >= 0)
        rc = adapters_get(p, s.unit, 0, e);
    if (rc >= 0)
        rc = unit_forward(p, &p->m->unit[s.unit], b, x_out, e);
    adapters_put(p, s.unit);
    p->ws->put(p->ws, s.unit);
    return rc;
}

/* The inputs of the last two layers stay in memory until backward. */
static int is_stored(const struct train_work *w, int unit)
{
    return w->spills && unit >= w->at.first_unit && unit + 2 <= w->at.last_unit;
}

static int store_input(const struct train_work *w, int unit, struct err *e)
{
    return is_stored(w, unit) ? w->inputs->put(w->inputs, w->number, unit, train_unit(w, unit)->branch[0].x,
                                               train_work_bytes(w), e)
                              : 0;
}

/* Brings a layer's input back, and starts to bring the one before it. */
static int restore_input(const struct train_work *w, int unit, struct err *e)
{
    int rc = 0;
    if (is_stored(w, unit))
        rc = w->inputs->get(w->inputs, w->number, unit, train_unit(w, unit)->branch[0].x, train_work_bytes(w),
                            e);
    int next = is_stored(w, unit) ? unit - 1 : unit == w->at.last_unit ? unit - 2 : -1;
    if (rc >= 0 && is_stored(w, next))
        rc = w->inputs->soon(w->inputs, w->number, next, train_work_bytes(w), e);
    return rc;
}

int model_train_forward(struct weights *ws, struct train_work *w, const int32_t *ids, const int32_t *targets,
                        float *logprobs, struct err *e)
{
    struct model *m = w->m;
    const struct stage *at = &w->at;
    struct pass p = train_pass(w, ws, ids, targets);
    int head = (int)m->n_layers + 1, natural = w->recompute != RECOMPUTE_FULL, rc;

    TRY(rope_extend(m, m->max_pos, e));
    if (w->pos)
        positions_of(w->seq, w->n_attn, w->pos);
    if (at->has_embed) {
        struct unit_buf first = { .branch = { { .x = train_work_input(w) } } };
        TRY(forward_unit(&p, (struct step){ 0, at->first_unit, 0 }, &first, NULL, e));
    }
    for (int unit = at->first_unit; unit <= at->last_unit; unit++) {
        int last = unit == at->last_unit;
        void *x_out = last ? w->x_last : train_unit(w, unit + 1)->branch[0].x;
        train_pass_layer(&p, unit);
        train_clean_pages(&p, unit);
        TRY(store_input(w, unit, e));
        TRY(forward_unit(&p, (struct step){ unit, !last || at->has_head ? unit + 1 : -1, 0 },
                         train_unit(w, unit), x_out, e));
    }
    if (at->has_head) {
        TRY(forward_unit(&p, (struct step){ head, at->last_unit, natural }, &w->head, NULL, e));
        if (logprobs)
            TRY(read_logprobs(&p, logprobs, e));
    }
    rc = dev_check(m->dev, e);
out:
    return rc;
}

/* ---- backward ---- */
static int unit_done(const struct pass *p, int unit, struct err *e)
{
    return gradient_emit(p, (struct gradient){ .kind = GRADIENT_DONE, .unit = unit }, e);
}

static int backward_unit(struct pass *p, struct step s, struct unit_buf *b, struct err *e)
{
    const struct unit *u = &p->m->unit[s.unit];
    int is_layer = s.unit > 0 && s.unit <= p->m->n_layers;
    enum recompute again = is_layer ? p->w->recompute : RECOMPUTE_NONE;
    int rc = p->ws->get(p->ws, s.unit, s.backward, &p->uw, e);

    if (rc < 0)
        return rc;
    if (s.next >= 0)
        rc = weights_soon(p->ws, s.next, p->w->recompute != RECOMPUTE_FULL, e);
    if (is_layer)
        train_pass_layer(p, s.unit);
    if (again == RECOMPUTE_FULL)
        train_clean_pages(p, s.unit);
    if (rc >= 0)
        rc = adapters_get(p, s.unit, s.backward, e);
    if (rc >= 0)
        rc = unit_recompute(p, u, b, again, e);
    if (rc >= 0)
        rc = unit_backward(p, u, b, e);
    adapters_put(p, s.unit);
    p->ws->put(p->ws, s.unit);
    return rc < 0 ? rc : unit_done(p, s.unit, e);
}

int model_train_backward(struct weights *ws, struct train_work *w, const int32_t *ids, const int32_t *targets,
                         const float *scale, struct grads *g, struct err *e)
{
    const struct stage *at = &w->at;
    struct pass p = train_pass(w, ws, ids, targets);
    int head = (int)w->m->n_layers + 1, natural = w->recompute != RECOMPUTE_FULL, rc;

    p.g = g;
    p.scale = scale;
    if (at->has_head)
        TRY(backward_unit(&p, (struct step){ head, at->last_unit, 1 }, &w->head, e));
    for (int unit = at->last_unit; unit >= at->first_unit; unit--) {
        int next = unit > at->first_unit ? unit - 1 : -1;
        TRY(restore_input(w, unit, e));
        TRY(backward_unit(&p, (struct step){ unit, next, natural }, train_unit(w, unit), e));
    }
    if (at->has_embed) { /* its gradient needs no weights */
        struct unit_buf none = { 0 };
        TRY(unit_backward(&p, &w->m->unit[0], &none, e));
        return unit_done(&p, 0, e);
    }
    rc = dev_check(w->m->dev, e);
out:
    return rc;
}

/* ---- scratch of products, for plans ---- */
static void product_scratch(const struct model *m, const struct pack_plan *k, int64_t rows, int64_t largest,
                            int threads, size_t bytes[2])
{
    linear_scratch(PRODUCT_LINEAR, m->dt, rows, k->outputs, k->inputs, threads, bytes);
    linear_scratch(PRODUCT_DX, m->dt, rows, k->inputs, k->outputs, threads, bytes);
    linear_scratch(PRODUCT_DW, m->dt, largest, k->inputs, rows, threads, bytes);
}

/* The rows of a pack's largest matrix. */
static int64_t largest_matrix(const struct model *m, const struct sublayer *s, const struct pack_plan *k)
{
    int64_t most = 0;
    for (int i = 0; i < k->n_slots; i++) {
        enum param_kind kind = s->kind->slot[k->slot[i]];
        int part = k->n_experts ? params_part(&m->local, s->unit, kind, k->first_expert)
                                : s->part[k->slot[i]];
        int64_t rows = m->local.part[part].count / k->inputs;
        most = rows > most ? rows : most;
    }
    return most;
}

/* Rows that a pack's matrix meets in one call, at most. One expert gets all rows of the call, with ep > 1
 * those of its group as far as this rank has room. */
static int64_t most_rows(const struct model *m, const struct pack_plan *k, const struct work_shape *s)
{
    int64_t rows = s->n_seq * s->seq_len / m->local.layout.cp, room = model_expert_room(m, s).rows;
    if (!k->n_experts || !room)
        return rows;
    rows *= layout_expert_sources(&m->local.layout);
    return rows < room ? rows : room;
}

/* A pack's matrices, transposed on the way. */
static size_t pack_transposed_bytes(const struct model *m, const struct sublayer *s,
                                    const struct pack_plan *k)
{
    size_t sum = 0;
    for (int i = 0; i < k->n_slots; i++)
        sum += transposed_bytes(s, m, k->slot[i], 1);
    return sum;
}

size_t train_scratch_measure(const struct model *m, const struct work_shape *s, int threads)
{
    enum { MORE = 1 << 20 }; /* what dev_scratch takes besides */
    size_t bytes[2] = { 0 }, most = 0;

    for (int u = 0; u < m->table.n_units; u++)
        for (int b = 0; b < m->unit[u].n_branches; b++) {
            const struct sublayer *body = &m->unit[u].branch[b].body;
            for (int k = 0; k < body->n_packs; k++) {
                size_t t = pack_transposed_bytes(m, body, &body->pack[k]);
                product_scratch(m, &body->pack[k], most_rows(m, &body->pack[k], s),
                                largest_matrix(m, body, &body->pack[k]), threads, bytes);
                most = t > most ? t : most;
            }
        }
    for (int i = 0; i < 2; i++)
        bytes[i] += bytes[i] / 4 < MORE ? bytes[i] / 4 : MORE;
    return bytes[0] + bytes[1] + most;
}
