/* embed.c - the embedding: rows of the vocabulary's table by token, and of a table of positions where the
 * family has one. tp cuts the vocabulary: a rank without the row brings -0, which changes no bit of a sum.
 *
 * A layer for multi-token prediction (model_config_next) makes its rows of two: of the token's embedding, and
 * of the state of the token before it, which the model has left. It is not trained. */
#include "model/units.h"

enum { TABLE, POSITIONS, TOKEN_NORM, STATE_NORM, JOIN, SLOTS };
static const enum param_kind slots[SLOTS] = { P_EMBED, P_POS, P_NEXT_TOKEN_NORM, P_NEXT_STATE_NORM,
                                              P_NEXT_JOIN };
enum { PACK_JOIN };

static int joins(const struct sublayer *s) { return s->part[JOIN] >= 0; }

/* Every rank makes all of the rows. */
static void shape(struct sublayer *s, const struct model *m, const struct branch_spec *spec, int tp_rank)
{
    int64_t n = 2 * m->hidden;
    (void)spec;
    (void)tp_rank;
    s->n_packs = joins(s);
    s->pack[PACK_JOIN] = (struct pack_plan){
        1, { JOIN }, m->hidden, n, leaves_cut(leaves_of(n, m->grain, 0, m->grain), m->fast)
    };
}

static void carve_embed(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                        const struct carver *from, struct branch_buf *b)
{
    if (joins(s))
        b->embed.joined = carve(from, LIFE_SCRATCH, c->rows * 2 * m->hidden, dtype_size(m->dt));
}

static struct mat table_of(const struct pass *p, int part, int64_t rows)
{
    return rows_of(weight_at(p, part), p->m->dt, rows, p->m->hidden);
}

static int look_up(const struct pass *p, const struct sublayer *s, void *x, struct err *e)
{
    struct model *m = p->m;
    struct mat table = table_of(p, s->part[TABLE], m->vocab_n), sum;
    int64_t rows = rows_all(&p->r);

    if (comm_size(m->tp) == 1) {
        KERNEL(m->dev, embed, rows_of(x, m->dt, rows, m->hidden), table, m->vocab_begin, p->ids);
        return 0;
    }
    KERNEL(m->dev, embed, rows_of(m->sum_rows, DT_F32, rows, m->hidden), table, m->vocab_begin, p->ids);
    int rc = rows_sum(m, &p->r, 0, &sum, e);
    if (rc >= 0)
        KERNEL(m->dev, round_to, x, m->dt, sum.p, sum.rows * m->hidden);
    return rc;
}

/* The rows in b->x become the product of their norm and that of the states, side by side. */
static void join_states(const struct pass *p, const struct sublayer *s, struct branch_buf *b)
{
    struct model *m = p->m;
    int64_t rows = rows_all(&p->r), n = m->hidden;
    struct mat both = rows_of(b->embed.joined, m->dt, rows, 2 * n),
               sum = rows_of(m->sum_rows, DT_F32, rows, n);
    struct mat tokens = rows_of(b->x, m->dt, rows, n);
    struct mat states = rows_of((void *)(uintptr_t)p->states, m->dt, rows, n);
    float eps = (float)m->table.cfg.norm_eps;

    KERNEL(m->dev, rms_norm, mat_cols(both, 0, n), NULL, tokens, weight_at(p, s->part[TOKEN_NORM]), 0, eps);
    KERNEL(m->dev, rms_norm, mat_cols(both, n, n), NULL, states, weight_at(p, s->part[STATE_NORM]), 0, eps);
    KERNEL(m->dev, linear, sum, both, weight_pack(p, s, PACK_JOIN));
    KERNEL(m->dev, round_to, b->x, m->dt, sum.p, rows * n);
}

static int forward(const struct pass *p, const struct sublayer *s, struct branch_buf *b, struct mat h,
                   struct err *e)
{
    struct model *m = p->m;
    const struct seq_rows *r = &p->r;
    int rc = look_up(p, s, b->x, e);

    (void)h;
    if (rc >= 0 && joins(s))
        join_states(p, s, b);
    if (rc >= 0 && m->embed_factor > 0)
        KERNEL(m->dev, scale, rows_of(b->x, m->dt, rows_own(r), m->hidden), m->embed_factor);
    if (rc < 0 || !p->pos)
        return rc;
    struct mat table = table_of(p, s->part[POSITIONS], m->table.cfg.max_pos);
    struct mat own = rows_of(b->x, m->dt, rows_own(r), m->hidden);
    for (int i = 0; i < r->n_seq; i++)
        KERNEL(m->dev, embed_add, mat_rows(own, i * r->own_len, r->own_len), table,
               p->pos + i * r->len + rows_first(m, r));
    return 0;
}

static int backward(const struct pass *p, const struct sublayer *s, struct branch_buf *b, struct err *e)
{
    struct mat own = rows_of(p->w->dx, p->m->dt, p->w->shape.own, p->m->hidden), dx = own;
    int shared = rows_shared(&p->r), rc = 0;

    (void)b;
    if (p->m->embed_factor > 0)
        KERNEL(p->m->dev, scale, own, p->m->embed_factor);
    if (shared) {
        dx = rows_gathered(p->m, &p->r);
        rc = gradient_emit(p, (struct gradient){ .kind = GRADIENT_GATHER, .dy = own }, e);
    }
    if (rc >= 0)
        rc = gradient_emit(p,
                           (struct gradient){
                               .kind = GRADIENT_BODY, .body = s, .dy = dx, .ids = p->ids, .stays = shared },
                           e);
    return rc < 0 ? rc : dev_check(p->m->dev, e);
}

static int weight_gradient(const struct pass *p, const struct gradient *g, struct err *e)
{
    const struct model *m = p->m;
    const struct sublayer *s = g->body;
    struct seqs seqs = seqs_of(p->r.n_seq, p->r.len, 0);
    struct tree_acc acc = gradient_sums(p, 0, s->part[TABLE]);

    (void)e;
    KERNEL(m->dev, embed_dw, &acc, m->hidden, m->vocab_begin, m->vocab_n, g->dy, g->ids, seqs);
    if (s->part[POSITIONS] < 0)
        return 0;
    acc = gradient_sums(p, 0, s->part[POSITIONS]);
    KERNEL(m->dev, embed_dw, &acc, m->hidden, 0, m->table.cfg.max_pos, g->dy, p->w->pos, seqs);
    return 0;
}

/* A copy of dx. */
static size_t deferred_bytes(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                             enum recompute recompute)
{
    (void)s;
    (void)recompute;
    return dtype_size(m->dt) * (size_t)(c->own * m->hidden) + 64;
}

static double flops(const struct sublayer *s, const struct model *m, double keys)
{
    (void)s;
    (void)m;
    (void)keys;
    return 0;
}

const struct sublayer_kind sublayer_embed = {
    .name = "embedding",
    .slot = slots,
    .n_slots = SLOTS,
    .out_bias = -1,
    .out_pack = -1,
    .shape = shape,
    .carve = carve_embed,
    .forward = forward,
    .backward = backward,
    .weight_gradient = weight_gradient,
    .deferred_bytes = deferred_bytes,
    .flops = flops,
};
