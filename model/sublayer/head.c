/* head.c - the head: logits of this rank's part of the vocabulary, and the statistics of the softmax over
 * all of it. A tied head uses unit 0's table; its gradient is a part of its own (unit n_units), laid out as
 * unit 0. */
#include "base/alter.h"
#include "model/units.h"

enum { WEIGHT, POSITIONS, SLOTS };
static const enum param_kind slots[SLOTS] = { P_HEAD, P_POS };
enum { PACK_HEAD };

static float softcap_of(const struct model *m) { return (float)m->table.cfg.final_softcap; }
static int is_tied(const struct model *m) { return m->table.cfg.tied; }

static void shape(struct sublayer *s, const struct model *m, const struct branch_spec *spec, int tp_rank)
{
    (void)spec;
    (void)tp_rank;
    if (is_tied(m)) {
        s->part[WEIGHT] = model_part(m, 0, P_EMBED);
        s->part[POSITIONS] = model_part(m, 0, P_POS);
    }
    s->n_packs = 1;
    s->pack[PACK_HEAD] = (struct pack_plan){ 1, { WEIGHT }, m->vocab_n, m->hidden, m->of_hidden, is_tied(m) };
}

/* Logits share the memory of the layers' scratch: no layer runs between the head's forward and its backward.
 * Deferred weight gradients are made later, so they keep the logits' gradient. */
static void carve_head(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                       const struct carver *from, struct branch_buf *b)
{
    struct head_buf *buf = &b->head;
    enum life life = c->deferred ? LIFE_KEPT : LIFE_SCRATCH;
    int64_t n = c->rows * c->logit_ld;

    (void)s;
    if (!c->logit_ld)
        return;
    buf->logit_ld = c->logit_ld;
    buf->logits = carve(from, life, n, sizeof(float));
    int in_place = m->dt == DT_F32 && !(softcap_of(m) > 0); /* the cap's gradient reads the logits */
    buf->dlogits = in_place ? buf->logits : carve(from, life, n, dtype_size(m->dt));
    buf->max = carve(from, LIFE_KEPT, c->rows, sizeof(float));
    buf->sum = carve(from, LIFE_KEPT, c->rows, sizeof(float));
}

static struct mat logits_of(const struct pass *p, const struct head_buf *b, int64_t rows)
{
    return mat_of(b->logits, DT_F32, rows, p->m->vocab_n, b->logit_ld);
}

/* max and sum over the whole vocabulary: rows 0 and 1 of m->stat, and kept where backward comes. */
static int forward(const struct pass *p, const struct sublayer *s, struct branch_buf *b, struct mat h,
                   struct err *e)
{
    struct model *m = p->m;
    struct mat logits = logits_of(p, &b->head, h.rows);
    float *max = m->stat, *sum = m->stat + m->max_rows;
    int rc;

    KERNEL(m->dev, linear, logits, h, weight_pack(p, s, PACK_HEAD));
    if (softcap_of(m) > 0)
        KERNEL(m->dev, softcap, logits, softcap_of(m));
    KERNEL(m->dev, ce_max, max, logits);
    TRY(comm_all_reduce_max(m->tp, max, h.rows, e));
    KERNEL(m->dev, ce_sum, sum, logits, &m->of_vocab, max);
    TRY(comm_all_reduce(m->tp, sum, h.rows, e));

    /* another micro-batch may come before backward */
    if (b->head.max) {
        dev_copy(m->dev, b->head.max, max, (size_t)h.rows * sizeof(float));
        dev_copy(m->dev, b->head.sum, sum, (size_t)h.rows * sizeof(float));
    }
    rc = 0;
out:
    return rc;
}

/* Altered dlogits_scale: as if the mean over micro-batches were taken apart. */
static void scale_twice(const struct pass *p, struct mat logits, struct mat dl, const struct head_buf *b)
{
    KERNEL(p->m->dev, ce_dx, dl, logits, p->targets, p->m->vocab_begin, b->max, b->sum, p->scale);
    for (int64_t i = 0; dl.dt == DT_F32 && i < dl.rows * dl.cols; i++)
        ((float *)dl.p)[i] = ((float *)dl.p)[i] * 3 * (1 / 3.0f);
}

static void scale_once(const struct pass *p, struct mat logits, struct mat dl, const struct head_buf *b)
{
    KERNEL(p->m->dev, ce_dx, dl, logits, p->targets, p->m->vocab_begin, b->max, b->sum, p->scale);
}

/* d(norm's output) of the whole vocabulary, this rank's part of the sum. A tied head borrows unit 0 for
 * it. */
static int input_gradient(const struct pass *p, const struct sublayer *s, struct mat dl, struct err *e)
{
    struct model *m = p->m;
    const struct unit_weights *table = p->uw;
    int rc = is_tied(m) ? p->ws->get(p->ws, 0, 1, &table, e) : 0;

    if (rc < 0)
        return rc;
    struct mat w = model_mat(m, table->flat, s->part[WEIGHT]);
    KERNEL(m->dev, linear_dx, rows_of(m->sum_rows, DT_F32, dl.rows, m->hidden), 1, &dl, &w, &m->of_vocab);
    if (is_tied(m))
        p->ws->put(p->ws, 0);
    return 0;
}

static int backward(const struct pass *p, const struct sublayer *s, struct branch_buf *b, struct err *e)
{
    const struct model *m = p->m;
    int64_t rows = rows_all(&p->r);
    int unit = is_tied(m) ? m->local.n_units : s->unit;
    struct mat h, logits = logits_of(p, &b->head, rows),
                  dl = rows_of(b->head.dlogits, m->dt, rows, m->vocab_n);
    int rc;

    ORDER("dlogits_scale", scale_once, scale_twice)(p, logits, dl, &b->head);
    if (softcap_of(m) > 0)
        KERNEL(m->dev, softcap_dx, dl, logits, softcap_of(m));
    TRY(walk_input(p, b, &h, e));
    TRY(gradient_emit(p,
                      (struct gradient){ .kind = GRADIENT_PRODUCT,
                                         .unit = unit,
                                         .part = { s->part[WEIGHT], -1 },
                                         .dy = dl,
                                         .x = h,
                                         .stays = 1 },
                      e));
    if (is_tied(m)) {
        TRY(gradient_emit(p, (struct gradient){ .kind = GRADIENT_BODY, .unit = unit, .body = s }, e));
        TRY(gradient_emit(p, (struct gradient){ .kind = GRADIENT_DONE, .unit = unit }, e));
    }
    rc = input_gradient(p, s, dl, e);
out:
    return rc;
}

/* The tied head's gradient is laid out as unit 0, whose table of positions it has no part in. */
static int weight_gradient(const struct pass *p, const struct gradient *g, struct err *e)
{
    int part = g->body->part[POSITIONS];

    (void)e;
    if (part < 0)
        return 0;
    size_t bytes = (size_t)p->m->local.part[part].count * sizeof(float);
    for (int j = 0; j < p->g->n_levels; j++)
        dev_fill(p->m->dev, p->g->level(p->g, p->m->local.n_trained, j) + p->m->local.part[part].offset, 0,
                 bytes);
    return 0;
}

static size_t deferred_bytes(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                             enum recompute recompute)
{
    (void)s;
    (void)m;
    (void)c;
    (void)recompute;
    return 0;
}

static double flops(const struct sublayer *s, const struct model *m, double keys)
{
    (void)s;
    (void)keys;
    return 2.0 * (double)m->hidden * (double)m->vocab_n;
}

const struct sublayer_kind sublayer_head = {
    .name = "head",
    .slot = slots,
    .n_slots = SLOTS,
    .out_bias = -1,
    .out_pack = -1,
    .shape = shape,
    .carve = carve_head,
    .forward = forward,
    .backward = backward,
    .weight_gradient = weight_gradient,
    .deferred_bytes = deferred_bytes,
    .flops = flops,
};
