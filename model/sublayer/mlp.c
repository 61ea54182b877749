/* mlp.c - the feed-forward body: down(act(gate, up)), or down(act(up)). tp cuts the intermediate size in
 * GRAIN blocks: gate and up by rows, down by columns (Shoeybi et al. 2019, section 3). */
#include "base/alter.h"
#include "model/units.h"

enum { GATE, UP, DOWN, GATE_BIAS, UP_BIAS, DOWN_BIAS, SLOTS };
static const enum param_kind slots[SLOTS] = { P_GATE, P_UP, P_DOWN, P_GATE_BIAS, P_UP_BIAS, P_DOWN_BIAS };
enum { PACK_UP, PACK_DOWN };

/* An activation: the matrices that feed it, the op, the op of its gradient. */
static void swiglu(struct dev *d, struct mat y, struct mat x) { KERNEL(d, swiglu, y, x); }
static void swiglu_dx(struct dev *d, struct mat dx, struct mat x, struct mat dy)
{
    KERNEL(d, swiglu_dx, dx, x, dy);
}
static void gelu(struct dev *d, struct mat y, struct mat x) { KERNEL(d, gelu, y, x); }
static void gelu_dx(struct dev *d, struct mat dx, struct mat x, struct mat dy)
{
    KERNEL(d, gelu_dx, dx, x, dy);
}
static const struct {
    int n_in;
    void (*forward)(struct dev *d, struct mat act, struct mat in);
    void (*backward)(struct dev *d, struct mat d_in, struct mat in, struct mat d_act);
} act_of[] = { [ACT_SWIGLU] = { 2, swiglu, swiglu_dx }, [ACT_GELU] = { 1, gelu, gelu_dx } };

static void shape(struct sublayer *s, const struct model *m, const struct branch_spec *spec, int tp_rank)
{
    const struct model_config *c = &m->table.cfg;
    int each = m->grain / m->local.layout.tp, first = tp_rank * each, n_in = act_of[spec->act].n_in;
    struct mlp *mlp = &s->mlp;

    mlp->act = spec->act;
    mlp->inter = block_begin(c->inter, m->grain, first + each) - block_begin(c->inter, m->grain, first);
    mlp->up_cols = n_in * mlp->inter;
    mlp->of_inter = leaves_cut(leaves_of(c->inter, m->grain, first, each),
                               m->fast || ALTERED("leaves_inter"));
    s->n_packs = 2;
    s->pack[PACK_UP] = (struct pack_plan){ n_in, { GATE, UP }, mlp->up_cols, m->hidden, m->of_hidden, 0 };
    if (n_in == 1)
        s->pack[PACK_UP].slot[0] = UP;
    s->pack[PACK_DOWN] = (struct pack_plan){ 1, { DOWN }, m->hidden, mlp->inter, mlp->of_inter, 0 };
}

static void carve_mlp(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                      const struct carver *from, struct branch_buf *b)
{
    size_t el = dtype_size(m->dt);
    struct mlp_buf *buf = &b->mlp;

    buf->gu = carve(from, LIFE_COSTLY, c->rows * s->mlp.up_cols, sizeof(float));
    buf->act = carve(from, LIFE_CHEAP, c->rows * s->mlp.inter, el);
    if (!c->training)
        return;
    buf->dgu = carve(from, LIFE_SCRATCH, c->rows * s->mlp.up_cols, el);
    buf->d_act = carve(from, LIFE_SCRATCH, c->rows * s->mlp.inter, sizeof(float));
    size_t transposed = transposed_bytes(s, m, GATE, 2), down = transposed_bytes(s, m, DOWN, 1);
    transposed = transposed > down ? transposed : down;
    buf->transposed = transposed ? carve(from, LIFE_SCRATCH, 1, transposed) : NULL;
}

static void activate(const struct pass *p, const struct sublayer *s, struct branch_buf *b)
{
    const struct model *m = p->m;
    int64_t rows = rows_all(&p->r);
    struct mat act = rows_of(b->mlp.act, m->dt, rows, s->mlp.inter);
    struct mat gu = rows_of(b->mlp.gu, DT_F32, rows, s->mlp.up_cols);

    act_of[s->mlp.act].forward(m->dev, act, gu);
}

static int forward(const struct pass *p, const struct sublayer *s, struct branch_buf *b, struct mat h,
                   struct err *e)
{
    const struct model *m = p->m;
    const struct mlp *mlp = &s->mlp;
    struct mat gu = rows_of(b->mlp.gu, DT_F32, h.rows, mlp->up_cols);
    struct mat act = rows_of(b->mlp.act, m->dt, h.rows, mlp->inter);

    (void)e;
    KERNEL(m->dev, linear, gu, h, weight_pack(p, s, PACK_UP));
    walk_bias(p, s->part[GATE_BIAS], gu, 0, mlp->inter);
    walk_bias(p, s->part[UP_BIAS], gu, mlp->up_cols - mlp->inter, mlp->inter);
    activate(p, s, b);
    KERNEL(m->dev, linear, rows_of(m->sum_rows, DT_F32, h.rows, m->hidden), act,
           weight_pack(p, s, PACK_DOWN));
    return 0;
}

static int backward(const struct pass *p, const struct sublayer *s, struct branch_buf *b, struct err *e)
{
    struct model *m = p->m;
    const struct mlp *mlp = &s->mlp;
    struct mlp_buf *buf = &b->mlp;
    int64_t rows = rows_all(&p->r), inter = mlp->inter;
    struct mat act = rows_of(buf->act, m->dt, rows, inter), gu = rows_of(buf->gu, DT_F32, rows, mlp->up_cols);
    struct mat dact = rows_of(buf->d_act, DT_F32, rows, inter),
               dgu = rows_of(buf->dgu, m->dt, rows, mlp->up_cols);
    struct mat dx, h, down, dy[2], weight[2];
    struct leaves leaves[2] = { mlp->of_inter, mlp->of_inter };
    int n_in = act_of[mlp->act].n_in, first = n_in == 2 ? GATE : UP, rc;
    char *to = buf->transposed;

    /* through down */
    TRY(walk_dx(p, &dx, e));
    TRY(walk_product(p, s, DOWN, DOWN_BIAS, dx, gradient_input(p, act), e));
    down = weight_rows(p, s->part[DOWN], 0, m->hidden, &to);
    KERNEL(m->dev, linear_dx, dact, 1, &dx, &down, &m->of_hidden);

    /* through the activation */
    act_of[mlp->act].backward(m->dev, dgu, gu, dact);

    /* through gate and up */
    to = buf->transposed;
    TRY(walk_input(p, b, &h, e));
    for (int i = 0; i < n_in; i++) {
        dy[i] = mat_cols(dgu, i * inter, inter);
        weight[i] = weight_rows(p, s->part[first + i], 0, inter, &to);
        TRY(walk_product(p, s, first + i, first + i + GATE_BIAS, dy[i], h, e));
    }
    walk_dx_of(p, n_in, dy, weight, leaves);
    rc = 0;
out:
    return rc;
}

/* Copies of dgu; of act, where layers share its buffer. */
static size_t deferred_bytes(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                             enum recompute recompute)
{
    size_t el = dtype_size(m->dt);
    int64_t columns = s->mlp.up_cols + (recompute != RECOMPUTE_NONE ? s->mlp.inter : 0);
    return (size_t)(c->rows * columns) * el + 3 * 64;
}

static double flops(const struct sublayer *s, const struct model *m, double keys)
{
    (void)keys;
    return 2.0 * (double)m->hidden * (double)(s->mlp.up_cols + s->mlp.inter);
}

const struct sublayer_kind sublayer_mlp = {
    .name = "mlp",
    .slot = slots,
    .n_slots = SLOTS,
    .out_bias = DOWN_BIAS,
    .shape = shape,
    .carve = carve_mlp,
    .forward = forward,
    .backward = backward,
    .recompute = activate,
    .deferred_bytes = deferred_bytes,
    .flops = flops,
};
