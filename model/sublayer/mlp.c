/* mlp.c - the feed-forward body: down(act(gate, up)), or down(act(up)). tp cuts the intermediate size in
 * GRAIN blocks: gate and up by rows, down by columns (Shoeybi et al. 2019, section 3). */
#include "base/alter.h"
#include "model/units.h"

enum { GATE, UP, DOWN, GATE_BIAS, UP_BIAS, DOWN_BIAS, SLOTS };
static const enum param_kind slots[SLOTS] = { P_GATE, P_UP, P_DOWN, P_GATE_BIAS, P_UP_BIAS, P_DOWN_BIAS };
enum { PACK_UP, PACK_DOWN };

/* An activation: the matrices that feed it, values that make one, the op, the op of its gradient. */
static void swiglu(struct dev *d, const struct clamp *c, struct mat y, struct mat x)
{
    (void)c;
    KERNEL(d, swiglu, y, x);
}
static void swiglu_dx(struct dev *d, const struct clamp *c, struct mat dx, struct mat x, struct mat dy)
{
    (void)c;
    KERNEL(d, swiglu_dx, dx, x, dy);
}
static void gelu(struct dev *d, const struct clamp *c, struct mat y, struct mat x)
{
    (void)c;
    KERNEL(d, gelu, y, x);
}
static void gelu_dx(struct dev *d, const struct clamp *c, struct mat dx, struct mat x, struct mat dy)
{
    (void)c;
    KERNEL(d, gelu_dx, dx, x, dy);
}
static void clamped(struct dev *d, const struct clamp *c, struct mat y, struct mat x)
{
    KERNEL(d, swiglu_clamped, y, x, c);
}
static void clamped_dx(struct dev *d, const struct clamp *c, struct mat dx, struct mat x, struct mat dy)
{
    KERNEL(d, swiglu_clamped_dx, dx, x, dy, c);
}
static void gelu_erf(struct dev *d, const struct clamp *c, struct mat y, struct mat x)
{
    (void)c;
    KERNEL(d, gelu_erf, y, x);
}
static void gelu_erf_dx(struct dev *d, const struct clamp *c, struct mat dx, struct mat x, struct mat dy)
{
    (void)c;
    KERNEL(d, gelu_erf_dx, dx, x, dy);
}
static void geglu(struct dev *d, const struct clamp *c, struct mat y, struct mat x)
{
    (void)c;
    KERNEL(d, geglu, y, x);
}
static void geglu_dx(struct dev *d, const struct clamp *c, struct mat dx, struct mat x, struct mat dy)
{
    (void)c;
    KERNEL(d, geglu_dx, dx, x, dy);
}
static const struct {
    int n_in, n_values;
    void (*forward)(struct dev *d, const struct clamp *c, struct mat act, struct mat in);
    void (*backward)(struct dev *d, const struct clamp *c, struct mat d_in, struct mat in, struct mat d_act);
} act_of[] = {
    [ACT_SWIGLU] = { 2, 2, swiglu, swiglu_dx },
    [ACT_GELU] = { 1, 1, gelu, gelu_dx },
    [ACT_GEGLU] = { 2, 2, geglu, geglu_dx },
    [ACT_GELU_ERF] = { 1, 1, gelu_erf, gelu_erf_dx },
    [ACT_SWIGLU_CLAMPED] = { 1, 2, clamped, clamped_dx },
};

int act_inputs(enum act act) { return act_of[act].n_in; }
int act_values(enum act act) { return act_of[act].n_values; }

void act_forward(struct dev *d, enum act act, const struct clamp *c, struct mat to, struct mat in)
{
    act_of[act].forward(d, c, to, in);
}

void act_backward(struct dev *d, enum act act, const struct clamp *c, struct mat d_in, struct mat in,
                  struct mat d_act)
{
    act_of[act].backward(d, c, d_in, in, d_act);
}

void mlp_shape(struct sublayer *s, struct mlp *mlp, const struct model *m, enum act act, int64_t inter,
               int tp_rank)
{
    int each = m->grain / m->local.layout.tp, first = tp_rank * each, n_in = act_of[act].n_in;
    int up = mlp->slot + (n_in == 1);

    mlp->act = act;
    mlp->inter = block_begin(inter, m->grain, first + each) - block_begin(inter, m->grain, first);
    mlp->up_cols = n_in * mlp->inter;
    mlp->of_inter = leaves_cut(leaves_of(inter, m->grain, first, each), m->fast || ALTERED("leaves_inter"));
    s->pack[mlp->pack] = (struct pack_plan){ .n_slots = n_in,
                                             .slot = { up, up + 1 },
                                             .outputs = mlp->up_cols,
                                             .inputs = m->hidden,
                                             .leaves = m->of_hidden };
    s->pack[mlp->pack + 1] = (struct pack_plan){ .n_slots = 1,
                                                 .slot = { mlp->slot + DOWN },
                                                 .outputs = m->hidden,
                                                 .inputs = mlp->inter,
                                                 .leaves = mlp->of_inter };
}

void mlp_carve(const struct sublayer *s, const struct mlp *mlp, const struct model *m,
               const struct call_shape *c, const struct carver *from, struct mlp_buf *buf)
{
    size_t el = dtype_size(m->dt);

    buf->gu = carve(from, LIFE_COSTLY, c->rows * mlp->up_cols, sizeof(float));
    buf->act = carve(from, LIFE_CHEAP, c->rows * mlp->inter, el);
    if (!c->training)
        return;
    buf->dgu = carve(from, LIFE_SCRATCH, c->rows * mlp->up_cols, el);
    buf->d_act = carve(from, LIFE_SCRATCH, c->rows * mlp->inter, sizeof(float));
    size_t transposed = transposed_bytes(s, m, mlp->slot, 2),
           down = transposed_bytes(s, m, mlp->slot + DOWN, 1);
    transposed = transposed > down ? transposed : down;
    buf->transposed = transposed ? carve(from, LIFE_SCRATCH, 1, transposed) : NULL;
}

void mlp_activate(const struct pass *p, const struct mlp *mlp, struct mlp_buf *buf)
{
    const struct model *m = p->m;
    int64_t rows = rows_all(&p->r);
    struct mat act = rows_of(buf->act, m->dt, rows, mlp->inter);
    struct mat gu = rows_of(buf->gu, DT_F32, rows, mlp->up_cols);

    act_forward(m->dev, mlp->act, NULL, act, gu);
}

void mlp_forward(const struct pass *p, const struct sublayer *s, const struct mlp *mlp, struct mlp_buf *buf,
                 const struct branch_buf *b, struct mat h)
{
    const struct model *m = p->m;
    struct mat gu = rows_of(buf->gu, DT_F32, h.rows, mlp->up_cols);
    struct mat act = rows_of(buf->act, m->dt, h.rows, mlp->inter);

    KERNEL(m->dev, linear, gu, h, weight_pack(p, s, mlp->pack + PACK_UP));
    adapters_add(p, s, mlp->pack + PACK_UP, b, h, gu);
    walk_bias(p, s->part[mlp->slot + GATE_BIAS], gu, 0, mlp->inter);
    walk_bias(p, s->part[mlp->slot + UP_BIAS], gu, mlp->up_cols - mlp->inter, mlp->inter);
    mlp_activate(p, mlp, buf);
    KERNEL(m->dev, linear, rows_of(m->sum_rows, DT_F32, h.rows, m->hidden), act,
           weight_pack(p, s, mlp->pack + PACK_DOWN));
    adapters_begin(p, s, mlp->pack + PACK_DOWN, act);
}

int mlp_backward(const struct pass *p, const struct sublayer *s, const struct mlp *mlp, struct mlp_buf *buf,
                 const struct branch_buf *b, struct mat dx, struct err *e)
{
    struct model *m = p->m;
    int64_t rows = rows_all(&p->r), inter = mlp->inter;
    struct mat act = rows_of(buf->act, m->dt, rows, inter), gu = rows_of(buf->gu, DT_F32, rows, mlp->up_cols);
    struct mat dact = rows_of(buf->d_act, DT_F32, rows, inter),
               dgu = rows_of(buf->dgu, m->dt, rows, mlp->up_cols);
    struct mat h, down, dy[2], weight[2];
    struct leaves leaves[2] = { mlp->of_inter, mlp->of_inter };
    struct adapter_dy parts[2];
    int n_in = act_of[mlp->act].n_in, first = mlp->slot + (n_in == 2 ? GATE : UP), rc;
    char *to = buf->transposed;

    /* through down */
    TRY(walk_product(p, s, mlp->slot + DOWN, mlp->slot + DOWN_BIAS, dx, gradient_input(p, act), e));
    down = weight_rows(p, s->part[mlp->slot + DOWN], 0, m->hidden, &to);
    KERNEL(m->dev, linear_dx, dact, 1, &dx, &down, &m->of_hidden);
    TRY(adapters_back_out(p, s, mlp->pack + PACK_DOWN, b, dx, act, dact, e));

    /* through the activation */
    act_backward(m->dev, mlp->act, NULL, dgu, gu, dact);

    /* through gate and up */
    to = buf->transposed;
    TRY(walk_input(p, b, &h, e));
    for (int i = 0; i < n_in; i++) {
        dy[i] = mat_cols(dgu, i * inter, inter);
        weight[i] = weight_rows(p, s->part[first + i], 0, inter, &to);
        TRY(walk_product(p, s, first + i, first + i + GATE_BIAS, dy[i], h, e));
        parts[i] = (struct adapter_dy){ dy[i], 0, mlp->of_inter };
    }
    walk_dx_of(p, n_in, dy, weight, leaves);
    rc = adapters_dz(p, s, mlp->pack + PACK_UP, b, parts, adapters_dz_place(p, s, mlp->pack + PACK_UP), e);
out:
    return rc;
}

/* Copies of dgu; of act, where layers share its buffer. */
size_t mlp_deferred_bytes(const struct mlp *mlp, const struct model *m, const struct call_shape *c,
                          enum recompute recompute)
{
    size_t el = dtype_size(m->dt);
    int64_t columns = mlp->up_cols + (recompute != RECOMPUTE_NONE ? mlp->inter : 0);
    return (size_t)(c->rows * columns) * el + 3 * 64;
}

/* ---- the body ---- */
static void shape(struct sublayer *s, const struct model *m, const struct branch_spec *spec, int tp_rank)
{
    s->mlp = (struct mlp){ .slot = GATE, .pack = PACK_UP };
    s->n_packs = 2;
    mlp_shape(s, &s->mlp, m, spec->act, m->table.cfg.inter, tp_rank);
}

static void carve_body(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                       const struct carver *from, struct branch_buf *b)
{
    mlp_carve(s, &s->mlp, m, c, from, &b->mlp);
}

static int forward(const struct pass *p, const struct sublayer *s, struct branch_buf *b, struct mat h,
                   struct err *e)
{
    (void)e;
    mlp_forward(p, s, &s->mlp, &b->mlp, b, h);
    return 0;
}

static void recompute(const struct pass *p, const struct sublayer *s, struct branch_buf *b)
{
    mlp_activate(p, &s->mlp, &b->mlp);
}

static int backward(const struct pass *p, const struct sublayer *s, struct branch_buf *b, struct err *e)
{
    struct mat dx;
    int rc = walk_dx(p, &dx, e);
    return rc < 0 ? rc : mlp_backward(p, s, &s->mlp, &b->mlp, b, dx, e);
}

static size_t deferred_bytes(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                             enum recompute recompute)
{
    return mlp_deferred_bytes(&s->mlp, m, c, recompute);
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
    .in_packs = 1u << PACK_UP,
    .out_pack = PACK_DOWN,
    .shape = shape,
    .carve = carve_body,
    .forward = forward,
    .backward = backward,
    .recompute = recompute,
    .deferred_bytes = deferred_bytes,
    .flops = flops,
};
