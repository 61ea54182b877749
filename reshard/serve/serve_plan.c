/* serve_plan.c - see serve_plan.h. Which matrices a pack has, and in which order a unit uses its packs, is
 * the model's table (model/packs.h). */
#include "reshard/serve/serve_plan.h"

#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "model/packs.h"
#include "reshard/serve/serve_cuts.h"

#define PANEL 32 /* outputs of a panel */
#define RUNS 64  /* of one matrix, at most */

/* Models one behind the other in the numbers of units: the model, and its layers for further tokens. */
struct placing {
    struct plan *p;
    struct serve_plan *s;
    const struct model *m;
    const struct serve_cuts *cuts;
    int first_unit, first_piece; /* of this model */
};

static int add_piece(struct placing *x, struct target *t, struct panels_piece piece, struct err *e)
{
    struct serve_plan *s = x->s;
    int at = x->p->unit[0].n_pieces;
    struct panels_piece *grown = buf_grow(s->piece, &s->piece_room, (size_t)at + 1, sizeof *grown);
    if (!grown)
        return err_set(e, ERR_MEMORY, "no memory for a plan of %d pieces", at);
    s->piece = grown;
    piece.t = t->t;
    s->piece[at] = piece;
    return plan_add_piece(x->p, t, 0, &piece.box, 0, box_count(&piece.box), e);
}

static struct target *target_of(const struct placing *x, int param)
{
    int i = plan_find(x->p, ROLE_WEIGHT, x->m->table.p[param].name);
    return i < 0 ? NULL : &x->p->target[i];
}

/* ---- packs ---- */

/* 1: all matrices have one dtype that panels hold. 0: they stay in natural order, or lie in the packs of
 * another model. */
static int fits(const struct placing *x, const struct pack_info *info, struct err *e)
{
    for (int i = 0; i < info->n; i++) {
        const struct target *t = target_of(x, info->matrix[i].param);
        if (!t || (t->n_pieces && t->piece[0].index < x->first_piece))
            return 0;
        if (t->t.dtype != STORED_F32 && t->t.dtype != STORED_BF16)
            return err_set(e, ERR_USAGE,
                           "%s is %s: --format serve holds F32 and BF16: give --dtype bf16 or fp32",
                           t->t.name, stored_dtype_name(t->t.dtype));
        if (t->t.dtype != target_of(x, info->matrix[0].param)->t.dtype)
            return 0;
    }
    return 1;
}

static int add_matrix(struct placing *x, const struct pack_info *info, int k, int pack, struct err *e)
{
    const struct pack_matrix *m = &info->matrix[k];
    int64_t end[RUNS];
    int n = serve_cuts_runs(x->cuts, m, PANEL, end, RUNS), rc = 0;
    if (!n)
        return err_set(e, ERR_CONFIG, "%s is cut at more than %d places", x->m->table.p[m->param].name, RUNS);
    for (int i = 0; i < n && rc >= 0; i++) {
        int64_t begin = i ? end[i - 1] : 0;
        struct panels_piece piece = { .box = m->box,
                                      .unit = x->s->pack[pack].unit,
                                      .pack = pack,
                                      .place = k * RUNS + i,
                                      .out_dim = m->out_dim,
                                      .in_dim = m->in_dim,
                                      .is_copy = info->tied };
        piece.box.start[m->out_dim] += begin;
        piece.box.extent[m->out_dim] = end[i] - begin;
        if (end[i] > begin)
            rc = add_piece(x, target_of(x, m->param), piece, e);
    }
    return rc < 0 ? rc : 0;
}

static int add_pack(struct placing *x, int unit, const struct pack_info *info, struct err *e)
{
    struct serve_plan *s = x->s;
    int at = s->layout.n_packs, rc = 0;
    struct panels_pack *grown = buf_grow(s->pack, &s->pack_room, (size_t)at + 1, sizeof *grown);
    if (!grown)
        return err_set(e, ERR_MEMORY, "no memory for a plan of %d packs", at);
    s->pack = grown;
    s->pack[at] = (struct panels_pack){ .unit = x->first_unit + unit,
                                        .kind = CKPT_PANELS_PLAIN,
                                        .dtype = target_of(x, info->matrix[0].param)->t.dtype,
                                        .n_leaves = info->leaves.n };
    memcpy(s->pack[at].leaf_end, info->leaves.end, sizeof(int64_t) * (size_t)info->leaves.n);
    s->layout.n_packs++;
    for (int i = 0; i < info->n && rc >= 0; i++)
        rc = add_matrix(x, info, i, at, e);
    return rc < 0 ? rc : 0;
}

/* ---- a model ---- */

/* Tensors of the table that no pack has: whole, in the region of their unit. */
static int add_natural(struct placing *x, struct err *e)
{
    const struct param_table *t = &x->m->table;
    int rc = 0;
    for (int i = 0; i < t->n && rc >= 0; i++) {
        struct target *to = t->p[i].n_sharing ? target_of(x, i) : NULL;
        int natural = to != NULL;
        for (int k = 0; to && k < to->n_pieces; k++)
            natural &= x->s->piece[to->piece[k].index].is_copy;
        if (natural)
            rc = add_piece(x, to,
                           (struct panels_piece){ .box = box_whole(to->t.n_dims, to->t.shape),
                                                  .unit = x->first_unit + t->p[i].unit,
                                                  .pack = -1 },
                           e);
    }
    return rc < 0 ? rc : 0;
}

static int place_model(struct plan *p, const struct model_config *cfg, int first_unit, struct err *e)
{
    const struct layout alone = { .tp = 1, .pp = 1, .cp = 1, .dp = 1, .ep = 1 };
    struct serve_cuts cuts = { 0 };
    struct model m = { 0 };
    struct placing x = { p, p->serve, &m, &cuts, first_unit, p->unit[0].n_pieces };
    struct pack_info info;
    int rc = model_shape(&m, cfg, &alone, (struct rank_at){ 0 }, DT_F32, 0, e);
    if (rc < 0)
        return rc;
    TRY(serve_cuts_find(&cuts, cfg, e));
    for (int u = 0; u < m.table.n_units; u++)
        for (int k = 0; k < model_n_packs(&m, u); k++) {
            model_pack_info(&m, u, k, &info);
            int fit = fits(&x, &info, e);
            TRY(fit);
            if (fit)
                TRY(add_pack(&x, u, &info, e));
        }
    TRY(add_natural(&x, e));
out:
    serve_cuts_free(&cuts);
    model_close(&m);
    return rc < 0 ? rc : 0;
}

/* ---- all of them ---- */

static int check_model(const struct plan *p, struct err *e)
{
    if (p->quant.n)
        return err_set(e, ERR_USAGE,
                       "%s: --format serve holds F32 and BF16, and these weights are quantised: add "
                       "--dequantize bf16",
                       ckpt_path(p->src));
    if (!p->has_model)
        return err_set(
            e, ERR_CONFIG,
            "%s: --format serve lays weights out for the products of a model, and config.json names "
            "none that is known",
            ckpt_path(p->src));
    return model_config_computed(&p->cfg, e);
}

/* A layer that predicts a further token is a model of its own. *unit: behind its units. */
static int place_next(struct plan *p, int *unit, struct err *e)
{
    struct model_config next;
    struct err none = { 0 };
    if (model_config_next(&next, &p->cfg, &none) < 0)
        return 0;
    int rc = place_model(p, &next, *unit, e);
    *unit += (int)next.n_layers + 2;
    return rc;
}

/* What no model has lies whole behind all units. */
static int place_rest(struct plan *p, int unit, struct err *e)
{
    struct placing x = { .p = p, .s = p->serve };
    int rc = 0;
    for (int i = 0; i < p->n && rc >= 0; i++) {
        struct target *t = &p->target[i];
        struct box whole = box_whole(t->t.n_dims, t->t.shape);
        if (!t->n_pieces)
            rc = add_piece(&x, t, (struct panels_piece){ .box = whole, .unit = unit, .pack = -1 }, e);
    }
    return rc < 0 ? rc : 0;
}

int serve_place(struct plan *p, struct err *e)
{
    int unit = (int)p->cfg.n_layers + 2, rc = 0;
    TRY(check_model(p, e));
    if (!(p->serve = calloc(1, sizeof *p->serve)))
        return err_set(e, ERR_MEMORY, "no memory for a plan of %d tensors", p->n);
    TRY(place_model(p, &p->cfg, 0, e));
    TRY(place_next(p, &unit, e));
    TRY(place_rest(p, unit, e));
    p->serve->layout.n_pieces = p->unit[0].n_pieces;
    p->serve->layout.pack = p->serve->pack;
    p->serve->layout.piece = p->serve->piece;
out:
    return rc < 0 ? rc : 0;
}

int64_t serve_memory_bytes(const struct plan *p)
{
    const int64_t window = (int64_t)4 << 20;
    int64_t most = 0;
    for (int i = 0; i < p->serve->layout.n_pieces; i++) {
        const struct panels_piece *q = &p->serve->piece[i];
        int64_t bytes = stored_bytes(q->t.dtype, box_count(&q->box));
        if (q->pack >= 0 && q->out_dim > q->in_dim && bytes > most)
            most = bytes;
    }
    return p->req->n_threads * (most + 4 * window);
}

void serve_plan_free(struct serve_plan *s)
{
    if (!s)
        return;
    free(s->pack);
    free(s->piece);
    free(s);
}
