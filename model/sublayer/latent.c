/* latent.c - latent attention (DeepSeek-V2, 2024, section 2.1) in its absorbed form: keys and values are one
 * normed latent of kv_rank components and one rotated part, which all heads share; only these are kept.
 *
 *     h ── q_a ── norm ── q_b ──┬── rest of a head ── its k rows of kv_b ──┐
 *      │   (or q alone)         └── rotated part ── RoPE ──────────────────┴── q ──┐
 *      └── kv_a ──┬── norm ── latent ───────────────────┬── page ──────────── attention ── the head's v rows
 *                 └── rotated part ── RoPE ─────────────┘                          of kv_b ── o
 *
 * To the kernel this is one kv head whose group is all heads, and whose values are the beginning of its
 * keys. tp cuts the heads: q, q_b, kv_b by rows, o by columns. q_a, kv_a and the latent are the same on every
 * rank; the parts of their gradients are summed over the ranks first, then each rank contracts its own
 * blocks. */
#include "base/alter.h"
#include "model/units.h"

enum { Q, Q_A, Q_A_NORM, Q_B, KV_A, KV_A_NORM, KV_B, O, NO_BIAS, SLOTS };
static const enum param_kind slots[SLOTS] = { P_Q,         P_Q_A,  P_Q_A_NORM, P_Q_B,  P_KV_A,
                                              P_KV_A_NORM, P_KV_B, P_O,        P_KINDS };
enum { PACK_KV_A, PACK_KEYS, PACK_VALUES, PACK_O, PACK_Q, PACK_Q_B, PACKS };
/* Which rows of kv_b a record is about. */
enum { KEY_ROWS, VALUE_ROWS };
#define NORM_EPS 1e-6f /* of the inner norms, whatever the config says of the others */

static int64_t q_cols(const struct latent *a) { return a->n_heads * (a->nope + a->rope); }
static int64_t key_dim(const struct latent *a) { return a->kv_rank + a->rope; }
static int compressed(const struct sublayer *s) { return s->part[Q_A] >= 0; }

/* ---- sizes ---- */

/* This rank's blocks of n rows that every rank has; *begin: its first row. */
static struct leaves own_blocks(const struct model *m, int64_t n, int tp_rank, int64_t *begin)
{
    int each = m->grain / m->local.layout.tp, first = tp_rank * each;
    *begin = block_begin(n, m->grain, first);
    return leaves_cut(leaves_of(n, m->grain, first, each), m->fast);
}

static struct pack_plan pack_of(int slot, int64_t outputs, int64_t inputs, struct leaves leaves)
{
    return (struct pack_plan){
        .n_slots = 1, .slot = { slot }, .outputs = outputs, .inputs = inputs, .leaves = leaves
    };
}

static void shape_packs(struct sublayer *s, const struct model *m)
{
    const struct latent *a = &s->latent;
    int g = m->grain, fast = m->fast || ALTERED("latent_leaves");
    struct leaves of_nope = leaves_cut(leaves_of(a->nope, g, 0, g), fast);
    struct leaves of_rank = leaves_cut(leaves_of(a->kv_rank, g, 0, g), fast);
    struct leaves of_q_rank = leaves_cut(leaves_of(a->q_rank, g, 0, g), fast);

    s->pack[PACK_KV_A] = pack_of(KV_A, key_dim(a), m->hidden, m->of_hidden);
    s->pack[PACK_KEYS] = pack_of(KV_B, a->kv_rank, a->nope, of_nope);
    s->pack[PACK_VALUES] = pack_of(KV_B, a->v, a->kv_rank, of_rank);
    s->pack[PACK_KEYS].n_heads = s->pack[PACK_VALUES].n_heads = a->n_heads;
    s->pack[PACK_KEYS].head_rows = s->pack[PACK_VALUES].head_rows = a->nope + a->v;
    s->pack[PACK_KEYS].turned = 1;
    s->pack[PACK_VALUES].first_row = a->nope;
    s->pack[PACK_O] = pack_of(O, m->hidden, a->n_heads * a->v, a->of_values);
    s->pack[PACK_Q] = pack_of(Q, q_cols(a), m->hidden, m->of_hidden);
    s->n_packs = PACK_Q_B;
    if (!compressed(s))
        return;
    s->pack[PACK_Q] = pack_of(Q_A, a->q_rank, m->hidden, m->of_hidden);
    s->pack[PACK_Q_B] = pack_of(Q_B, q_cols(a), a->q_rank, of_q_rank);
    s->n_packs = PACKS;
}

static void shape(struct sublayer *s, const struct model *m, const struct branch_spec *spec, int tp_rank)
{
    const struct model_config *c = &m->table.cfg;
    struct latent *a = &s->latent;
    int tp = m->local.layout.tp, g = m->grain, each = g / tp, first = tp_rank * each;
    int64_t q = c->n_heads * c->head_dim, values = c->n_heads * c->latent.v_dim;

    *a = (struct latent){ .n_heads = (int)(c->n_heads / tp),
                          .nope = c->latent.nope_dim,
                          .rope = c->latent.rope_dim,
                          .v = c->latent.v_dim,
                          .q_rank = c->latent.q_rank,
                          .kv_rank = c->latent.kv_rank,
                          .scale = spec->scale,
                          .window = spec->window,
                          .page = page_place(m, s->layer) };
    a->of_heads = leaves_cut(leaves_of(q, g, first, each), m->fast || ALTERED("latent_leaves"));
    a->of_values = leaves_cut(leaves_of(values, g, first, each), m->fast || ALTERED("latent_leaves"));
    a->of_q_a = own_blocks(m, a->q_rank, tp_rank, &a->q_a_begin);
    a->of_kv_a = own_blocks(m, key_dim(a), tp_rank, &a->kv_a_begin);
    shape_packs(s, m);
}

/* ---- memory ---- */

static void carve_backward(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                           const struct carver *from, struct latent_buf *b)
{
    const struct latent *a = &s->latent;
    int64_t rows = c->rows, heads = a->n_heads;
    size_t el = dtype_size(m->dt);

    b->d_values = carve(from, LIFE_SCRATCH, rows * heads * a->v, sizeof(float));
    b->d_values_dt = carve(from, LIFE_SCRATCH, rows * heads * a->v, el);
    b->d_out = carve(from, LIFE_SCRATCH, rows * heads * a->kv_rank, sizeof(float));
    b->d_out_dt = carve(from, LIFE_SCRATCH, rows * heads * a->kv_rank, el);
    b->dq = carve(from, LIFE_SCRATCH, rows * heads * key_dim(a), sizeof(float));
    b->dq_dt = carve(from, LIFE_SCRATCH, rows * heads * key_dim(a), el);
    b->d_raw_dt = carve(from, LIFE_SCRATCH, rows * q_cols(a), el);
    b->d_q_a_dt = carve(from, LIFE_SCRATCH, rows * a->q_rank, el);
    b->d_kv_a_dt = carve(from, LIFE_SCRATCH, rows * key_dim(a), el);
    b->d_latent = carve(from, LIFE_SCRATCH, rows * a->kv_rank, sizeof(float));
    b->turned = carve(from, LIFE_SCRATCH, a->kv_rank * a->nope, el);
    struct key_sizes by_key = { heads, 1, key_dim(a), a->kv_rank, m->local.layout.tp > 1 };
    b->d_q_a = carve(from, LIFE_COMM, rows * (a->q_rank + adapter_columns(c->adapter, s, PACK_Q_B)),
                     sizeof(float));
    key_grads_carve(m, c, from, &by_key, &b->by_key);
}

static void carve_latent(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                         const struct carver *from, struct branch_buf *branch)
{
    const struct latent *a = &s->latent;
    struct latent_buf *b = &branch->latent;
    int64_t rows = c->rows, heads = a->n_heads;
    size_t el = dtype_size(m->dt);

    b->q_a = carve(from, LIFE_COSTLY, rows * a->q_rank, el);
    b->q_a_stat = carve(from, LIFE_COSTLY, rows, sizeof(float));
    b->q_a_norm = carve(from, LIFE_CHEAP, rows * a->q_rank, el);
    b->raw_dt = carve(from, LIFE_COSTLY, rows * q_cols(a), el);
    b->kv_a_dt = carve(from, LIFE_COSTLY, rows * key_dim(a), el);
    b->kv_a_stat = carve(from, LIFE_COSTLY, rows, sizeof(float));
    b->q = carve(from, LIFE_COSTLY, rows * heads * key_dim(a), el);
    b->out = carve(from, LIFE_COSTLY, rows * heads * a->kv_rank, el);
    b->values = carve(from, LIFE_COSTLY, rows * heads * a->v, el);

    b->raw = carve(from, LIFE_SCRATCH, rows * (q_cols(a) + a->q_rank), sizeof(float));
    b->kv_a = carve(from, LIFE_SCRATCH, rows * key_dim(a), sizeof(float));
    b->latent = carve(from, LIFE_SCRATCH, rows * a->kv_rank, el);
    b->absorbed = carve(from, LIFE_SCRATCH, rows * heads * a->kv_rank, sizeof(float));
    b->values_fp32 = carve(from, LIFE_SCRATCH, rows * heads * a->v, sizeof(float));
    b->lse = NULL;
    branch->kv = NULL;
    if (c->training)
        b->lse = carve(from, LIFE_COSTLY, rows * heads, sizeof(float));
    if (c->pages)
        branch->kv = carve(from, LIFE_PAGES, c->pages, model_page_bytes(m));
    if (c->training)
        carve_backward(s, m, c, from, b);
}

/* ---- forward ---- */

static struct attn sequences(const struct pass *p, const struct sublayer *s)
{
    const struct latent *a = &s->latent;
    struct attn x = {
        .n_heads = a->n_heads,
        .n_kv = 1,
        .head_dim = (int)key_dim(a),
        .v_dim = (int)a->kv_rank,
        .dt = p->m->dt,
        .scale = a->scale,
        .window = a->window,
    };
    page_point(p, &a->page, &x);
    return x;
}

static void round_all(const struct pass *p, void *to, const float *from, int64_t n)
{
    KERNEL(p->m->dev, round_to, to, p->m->dt, from, n);
}

static void norm_q(const struct pass *p, const struct sublayer *s, struct latent_buf *b, int64_t rows)
{
    const struct model *m = p->m;
    int64_t rank = s->latent.q_rank;
    KERNEL(m->dev, rms_norm, rows_of(b->q_a_norm, m->dt, rows, rank), b->q_a_stat,
           rows_of(b->q_a, m->dt, rows, rank), weight_at(p, s->part[Q_A_NORM]), 0, NORM_EPS);
}

/* b->raw, every head of q before RoPE, and its rounded form. */
static void make_q(const struct pass *p, const struct sublayer *s, struct branch_buf *branch, struct mat h)
{
    const struct model *m = p->m;
    const struct latent *a = &s->latent;
    struct latent_buf *b = &branch->latent;
    int pack = compressed(s) ? PACK_Q_B : PACK_Q;
    struct mat raw = rows_of(b->raw, DT_F32, h.rows, q_cols(a)), in = h;
    float *q_a = b->raw + h.rows * q_cols(a);

    if (compressed(s)) {
        KERNEL(m->dev, linear, rows_of(q_a, DT_F32, h.rows, a->q_rank), h, weight_pack(p, s, PACK_Q));
        adapters_add(p, s, PACK_Q, branch, h, rows_of(q_a, DT_F32, h.rows, a->q_rank));
        round_all(p, b->q_a, q_a, h.rows * a->q_rank);
        norm_q(p, s, b, h.rows);
        in = rows_of(b->q_a_norm, m->dt, h.rows, a->q_rank);
    }
    KERNEL(m->dev, linear, raw, in, weight_pack(p, s, pack));
    adapters_add(p, s, pack, branch, in, raw);
    round_all(p, b->raw_dt, b->raw, h.rows * q_cols(a));
}

/* The latent and the rotated part, into the pages. */
static void store_keys(const struct pass *p, const struct sublayer *s, struct branch_buf *branch,
                       const struct attn *at, struct mat h)
{
    const struct model *m = p->m;
    struct latent_buf *b = &branch->latent;
    int64_t rank = s->latent.kv_rank, width = key_dim(&s->latent);
    struct mat kv_a = rows_of(b->kv_a, DT_F32, h.rows, width), c = rows_of(b->latent, m->dt, h.rows, rank);
    struct mat rounded = rows_of(b->kv_a_dt, m->dt, h.rows, width);

    KERNEL(m->dev, linear, kv_a, h, weight_pack(p, s, PACK_KV_A));
    adapters_add(p, s, PACK_KV_A, branch, h, kv_a);
    round_all(p, b->kv_a_dt, b->kv_a, h.rows * width);
    KERNEL(m->dev, rms_norm, c, b->kv_a_stat, mat_cols(rounded, 0, rank), weight_at(p, s->part[KV_A_NORM]), 0,
           NORM_EPS);
    KERNEL(m->dev, latent_k, at, c, mat_cols(kv_a, rank, width - rank), m->rope[ROPE_GLOBAL].cos,
           m->rope[ROPE_GLOBAL].sin);
}

/* y = x times every head's own matrix: columns [h * y_cols, …) from columns [h * x_head, … + x_cols). */
static void by_heads(const struct pass *p, const struct sublayer *s, int pack, struct mat y, struct mat x,
                     int64_t x_head, int64_t x_cols)
{
    int64_t n = s->latent.n_heads, y_cols = y.cols / n;
    for (int h = 0; h < n; h++)
        KERNEL(p->m->dev, linear, mat_cols(y, h * y_cols, y_cols), mat_cols(x, h * x_head, x_cols),
               weight_pack(p, s, pack) + h);
}

static int forward(const struct pass *p, const struct sublayer *s, struct branch_buf *branch, struct mat h,
                   struct err *e)
{
    const struct model *m = p->m;
    const struct latent *a = &s->latent;
    struct latent_buf *b = &branch->latent;
    struct attn at = sequences(p, s), store;
    int64_t rows = h.rows, heads = a->n_heads;
    struct mat absorbed = rows_of(b->absorbed, DT_F32, rows, heads * a->kv_rank);
    struct mat q = rows_of(b->q, m->dt, rows, heads * key_dim(a));
    struct mat out = rows_of(b->out, m->dt, rows, heads * a->kv_rank);
    struct mat values = rows_of(b->values_fp32, DT_F32, rows, heads * a->v);
    int rc;

    make_q(p, s, branch, h);
    TRY(keys_begin(p, &at, &store, e));
    store_keys(p, s, branch, &store, h);
    TRY(keys_gather(p, &a->page, &at, branch->kv, e));
    by_heads(p, s, PACK_KEYS, absorbed, rows_of(b->raw_dt, m->dt, rows, q_cols(a)), a->nope + a->rope,
             a->nope);
    KERNEL(m->dev, latent_q, &at, q, absorbed, rows_of(b->raw, DT_F32, rows, q_cols(a)),
           m->rope[ROPE_GLOBAL].cos, m->rope[ROPE_GLOBAL].sin);
    KERNEL(m->dev, attn, &at, out, b->lse, q);
    by_heads(p, s, PACK_VALUES, values, out, a->kv_rank, a->kv_rank);
    round_all(p, b->values, b->values_fp32, rows * values.cols);
    KERNEL(m->dev, linear, rows_of(m->sum_rows, DT_F32, rows, m->hidden),
           rows_of(b->values, m->dt, rows, values.cols), weight_pack(p, s, PACK_O));
    adapters_begin(p, s, PACK_O, rows_of(b->values, m->dt, rows, values.cols));
    rc = 0;
out:
    return rc;
}

static void recompute(const struct pass *p, const struct sublayer *s, struct branch_buf *branch)
{
    if (compressed(s))
        norm_q(p, s, &branch->latent, rows_all(&p->r));
}

/* ---- backward ---- */

/* Head h's k rows or v rows of kv_b, in natural order. */
static struct mat head_weight(const struct pass *p, const struct sublayer *s, int which, int h)
{
    const struct latent *a = &s->latent;
    struct mat w = model_mat(p->m, p->uw->flat, s->part[KV_B]);
    int64_t first = h * (a->nope + a->v);
    return which == KEY_ROWS ? mat_rows(w, first, a->nope) : mat_rows(w, first + a->nope, a->v);
}

static int emit_body(const struct pass *p, const struct sublayer *s, struct gradient g, struct err *e)
{
    g.kind = GRADIENT_BODY;
    g.unit = s->unit;
    g.body = s;
    return gradient_emit(p, g, e);
}

/* From the stream's gradient to that of attention's output. */
static int through_values(const struct pass *p, const struct sublayer *s, struct branch_buf *branch,
                          struct err *e)
{
    struct model *m = p->m;
    struct latent_buf *b = &branch->latent;
    const struct latent *a = &s->latent;
    int64_t rows = rows_all(&p->r), v = a->v, rank = a->kv_rank, heads = a->n_heads;
    struct mat values = rows_of(b->values, m->dt, rows, heads * v);
    struct mat d_values = rows_of(b->d_values_dt, m->dt, rows, heads * v);
    struct mat out = rows_of(b->out, m->dt, rows, heads * rank);
    struct mat d_out = rows_of(b->d_out, DT_F32, rows, heads * rank), dx, w;
    struct leaves of_v = leaves_cut(leaves_of(v, m->grain, 0, m->grain), m->fast);
    char *none = NULL;
    int rc;

    TRY(walk_dx(p, &dx, e));
    TRY(walk_product(p, s, O, NO_BIAS, dx, gradient_input(p, values), e));
    w = weight_rows(p, s->part[O], 0, m->hidden, &none);
    KERNEL(m->dev, linear_dx, rows_of(b->d_values, DT_F32, rows, heads * v), 1, &dx, &w, &m->of_hidden);
    TRY(adapters_back_out(p, s, PACK_O, branch, dx, values, rows_of(b->d_values, DT_F32, rows, heads * v),
                          e));
    round_all(p, b->d_values_dt, b->d_values, rows * heads * v);

    TRY(emit_body(p, s,
                  (struct gradient){
                      .part = { KV_B, VALUE_ROWS }, .dy = d_values, .x = gradient_input(p, out) },
                  e));
    for (int h = 0; h < heads; h++) {
        struct mat dy = mat_cols(d_values, h * v, v);
        w = head_weight(p, s, VALUE_ROWS, h);
        KERNEL(m->dev, linear_dx, mat_cols(d_out, h * rank, rank), 1, &dy, &w, &of_v);
    }
    round_all(p, b->d_out_dt, b->d_out, rows * heads * rank);
    rc = 0;
out:
    return rc;
}

/* From dq (absorbed) to the gradient of every head of q before RoPE: b->d_raw_dt. */
static int through_keys(const struct pass *p, const struct sublayer *s, struct latent_buf *b,
                        const struct attn *at, struct err *e)
{
    struct model *m = p->m;
    const struct latent *a = &s->latent;
    int64_t rows = rows_all(&p->r), rank = a->kv_rank, wide = a->nope + a->rope;
    struct mat dq = rows_of(b->dq_dt, m->dt, rows, a->n_heads * key_dim(a));
    struct mat raw = rows_of(b->raw_dt, m->dt, rows, q_cols(a));
    struct mat d_raw = rows_of(b->raw, DT_F32, rows, q_cols(a));
    struct leaves of_rank = leaves_cut(leaves_of(rank, m->grain, 0, m->grain), m->fast);

    round_all(p, b->dq_dt, b->dq, rows * dq.cols);
    int rc = emit_body(p, s,
                       (struct gradient){ .part = { KV_B, KEY_ROWS }, .dy = dq, .x = gradient_input(p, raw) },
                       e);
    if (rc < 0)
        return rc;
    for (int h = 0; h < a->n_heads; h++) {
        char *to = b->turned;
        struct mat w = model_transposed(m, head_weight(p, s, KEY_ROWS, h), &to);
        struct mat dy = mat_cols(dq, h * key_dim(a), rank);
        KERNEL(m->dev, linear_dx, mat_cols(d_raw, h * wide, a->nope), 1, &dy, &w, &of_rank);
    }
    round_all(p, b->d_raw_dt, b->raw, rows * q_cols(a));
    KERNEL(m->dev, latent_q_dx, at, rows_of(b->d_raw_dt, m->dt, rows, q_cols(a)),
           rows_of(b->dq, DT_F32, rows, dq.cols), m->rope[ROPE_GLOBAL].cos, m->rope[ROPE_GLOBAL].sin);
    return 0;
}

/* Back through an inner norm: d, the gradient of its output (fp32), gives that of its input in dx (dt). */
static int norm_back(const struct pass *p, const struct sublayer *s, int slot, struct mat dx, struct mat d,
                     struct mat x, const float *stat, struct err *e)
{
    const struct model *m = p->m;
    struct mat kept = gradient_input(p, x), roots = gradient_input(p, rows_of(stat, DT_F32, 1, x.rows));
    int rc = emit_body(p, s, (struct gradient){ .part = { slot }, .dy = d, .x = kept, .stat = roots.p }, e);

    if (rc >= 0)
        KERNEL(m->dev, rms_norm_dx, dx, d, x, weight_at(p, s->part[slot]), 0, stat);
    return rc;
}

/* What ranks have parts of, in comm memory. */
struct latent_sums {
    struct mat q_a, k, v;
};

/* Attention's own backward pass, then q_b's: sums of all heads, complete over tp, of this rank's rows. */
static int sum_heads(const struct pass *p, const struct sublayer *s, struct branch_buf *branch,
                     struct latent_sums *sum, struct err *e)
{
    struct model *m = p->m;
    struct latent_buf *b = &branch->latent;
    const struct latent *a = &s->latent;
    int64_t rows = rows_all(&p->r), heads = a->n_heads;
    struct mat d_raw = rows_of(b->d_raw_dt, m->dt, rows, q_cols(a)), in, w;
    float *dz = b->d_q_a + rows * a->q_rank; /* of adapters */
    struct attn at = sequences(p, s);
    struct attn_kept kept = { rows_of(b->out, m->dt, rows, heads * a->kv_rank),
                              rows_of(b->q, m->dt, rows, heads * key_dim(a)), b->lse };
    struct keys_back back = { .a = &at,
                              .dq = rows_of(b->dq, DT_F32, rows, heads * key_dim(a)),
                              .dout = rows_of(b->d_out_dt, m->dt, rows, heads * a->kv_rank),
                              .kept = kept,
                              .grads = &b->by_key,
                              .group = m->tp };
    char *none = NULL;
    int rc;

    sum->q_a = rows_of(b->d_q_a, DT_F32, rows, a->q_rank);
    TRY(keys_backward(p, &back, e));
    sum->k = back.dk;
    sum->v = back.dv;
    TRY(through_keys(p, s, b, &at, e));
    if (compressed(s)) {
        in = gradient_input(p, rows_of(b->q_a_norm, m->dt, rows, a->q_rank));
        TRY(walk_product(p, s, Q_B, NO_BIAS, d_raw, in, e));
        w = weight_rows(p, s->part[Q_B], 0, q_cols(a), &none);
        KERNEL(m->dev, linear_dx, sum->q_a, 1, &d_raw, &w, &a->of_heads);
        TRY(adapters_dz(p, s, PACK_Q_B, branch, &(struct adapter_dy){ d_raw, 0, a->of_heads }, dz, e));
    }
    TRY(comm_all_reduce(m->tp, b->d_q_a, rows * a->q_rank + adapters_dz_floats(p, s, 1u << PACK_Q_B), e));
    rc = compressed(s) ? adapters_dx(p, s, 1u << PACK_Q_B, in, dz, sum->q_a, e) : 0;
out:
    return rc;
}

/* Through the norms, to the gradients of q_a and kv_a (dt). */
static int through_norms(const struct pass *p, const struct sublayer *s, struct latent_buf *b,
                         const struct latent_sums *sum, struct err *e)
{
    struct model *m = p->m;
    const struct latent *a = &s->latent;
    int64_t rows = rows_all(&p->r), rank = a->kv_rank;
    size_t el = dtype_size(m->dt);
    struct mat d_latent = rows_of(b->d_latent, DT_F32, rows, rank);
    struct mat d_q_a = rows_of(b->d_q_a_dt, m->dt, rows, a->q_rank);
    struct mat d_kv_a = rows_of(b->d_kv_a_dt, m->dt, rows, key_dim(a));
    struct mat kv_a = rows_of(b->kv_a_dt, m->dt, rows, key_dim(a));
    struct attn at = sequences(p, s);
    int rc = 0;

    dev_fill(m->dev, b->d_kv_a_dt, 0, (size_t)(rows * key_dim(a)) * el);
    KERNEL(m->dev, latent_k_dx, &at, d_latent, mat_cols(d_kv_a, rank, a->rope), sum->k, sum->v,
           m->rope[ROPE_GLOBAL].cos, m->rope[ROPE_GLOBAL].sin);
    TRY(norm_back(p, s, KV_A_NORM, mat_cols(d_kv_a, 0, rank), d_latent, mat_cols(kv_a, 0, rank), b->kv_a_stat,
                  e));
    if (!compressed(s))
        goto out;
    dev_fill(m->dev, b->d_q_a_dt, 0, (size_t)(rows * a->q_rank) * el);
    rc = norm_back(p, s, Q_A_NORM, d_q_a, sum->q_a, rows_of(b->q_a, m->dt, rows, a->q_rank), b->q_a_stat, e);
out:
    return rc;
}

static int backward(const struct pass *p, const struct sublayer *s, struct branch_buf *branch, struct err *e)
{
    struct model *m = p->m;
    const struct latent *a = &s->latent;
    struct latent_buf *b = &branch->latent;
    int64_t rows = rows_all(&p->r), own_q = a->of_q_a.end[a->of_q_a.n - 1],
            own_kv = a->of_kv_a.end[a->of_kv_a.n - 1];
    struct mat d_kv_a = rows_of(b->d_kv_a_dt, m->dt, rows, key_dim(a));
    struct mat d_q = rows_of(b->d_raw_dt, m->dt, rows, q_cols(a)), h, dy[2], w[2];
    struct leaves leaves[2] = { a->of_heads, a->of_kv_a };
    struct latent_sums sum;
    char *none = NULL;
    int q = compressed(s) ? Q_A : Q, rc;

    TRY(through_values(p, s, branch, e));
    TRY(sum_heads(p, s, branch, &sum, e));
    TRY(through_norms(p, s, b, &sum, e));

    /* a rank contracts all heads of q that it has; of what all ranks have its own blocks */
    dy[0] = d_q;
    w[0] = weight_rows(p, s->part[q], 0, q_cols(a), &none);
    if (compressed(s)) {
        d_q = rows_of(b->d_q_a_dt, m->dt, rows, a->q_rank);
        leaves[0] = a->of_q_a;
        dy[0] = mat_cols(d_q, a->q_a_begin, own_q);
        w[0] = weight_rows(p, s->part[q], a->q_a_begin, own_q, &none);
    }
    dy[1] = mat_cols(d_kv_a, a->kv_a_begin, own_kv);
    w[1] = weight_rows(p, s->part[KV_A], a->kv_a_begin, own_kv, &none);

    TRY(walk_input(p, branch, &h, e));
    TRY(walk_product(p, s, q, NO_BIAS, d_q, h, e));
    TRY(walk_product(p, s, KV_A, NO_BIAS, d_kv_a, h, e));
    walk_dx_of(p, 2, dy, w, leaves);
    TRY(adapters_dz(p, s, PACK_KV_A, branch, &(struct adapter_dy){ d_kv_a, a->kv_a_begin, a->of_kv_a },
                    adapters_dz_place(p, s, PACK_KV_A), e));
    rc = adapters_dz(p, s, PACK_Q, branch,
                     &(struct adapter_dy){ d_q, compressed(s) ? a->q_a_begin : 0, leaves[0] },
                     adapters_dz_place(p, s, PACK_Q), e);
out:
    return rc;
}

/* ---- gradients of weights ---- */

/* Rows of kv_b, head by head. VALUE_ROWS: dy is the gradient of a head's values, x attention's output;
 * KEY_ROWS: dy is that of the absorbed q, x the head of q. */
static void kv_b_gradient(const struct pass *p, const struct gradient *g)
{
    const struct latent *a = &g->body->latent;
    int64_t rank = a->kv_rank, rows = a->nope + a->v;

    for (int h = 0; h < a->n_heads; h++) {
        int64_t first = h * rows + (g->part[1] == VALUE_ROWS ? a->nope : 0);
        struct tree_acc acc = gradient_sums(p, g->unit, g->body->part[KV_B]);
        struct mat dy = mat_cols(g->dy, h * a->v, a->v), x = mat_cols(g->x, h * rank, rank);
        if (g->part[1] == KEY_ROWS) {
            dy = mat_cols(g->x, h * (a->nope + a->rope), a->nope);
            x = mat_cols(g->dy, h * key_dim(a), rank);
        }
        for (int j = 0; j < p->g->n_levels; j++)
            acc.level[j] += first * rank;
        KERNEL(p->m->dev, linear_dw, &acc, rank, dy, x, p->r.n_seq, p->r.len);
    }
}

static int weight_gradient(const struct pass *p, const struct gradient *g, struct err *e)
{
    struct seqs seqs = seqs_of(p->r.n_seq, p->r.len, ORDER("latent_norm_blocks", p->m->grain, 1));

    (void)e;
    if (g->part[0] == KV_B) {
        kv_b_gradient(p, g);
        return 0;
    }
    struct tree_acc acc = gradient_sums(p, g->unit, g->body->part[g->part[0]]);
    KERNEL(p->m->dev, rms_norm_dw, &acc, g->dy, g->x, g->stat, seqs);
    return 0;
}

/* ---- plans ---- */

/* Copies of gradients; of operands, where layers share their buffers. */
static size_t deferred_bytes(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                             enum recompute recompute)
{
    enum { COPIES = 16 };
    const struct latent *a = &s->latent;
    size_t el = dtype_size(m->dt);
    int64_t heads = a->n_heads, columns = heads * (a->v + key_dim(a)) + q_cols(a) + a->q_rank + key_dim(a);
    int64_t floats = a->q_rank + a->kv_rank;

    if (recompute != RECOMPUTE_NONE)
        columns += a->q_rank;
    if (recompute == RECOMPUTE_FULL) {
        columns += heads * (a->v + a->kv_rank) + q_cols(a) + a->q_rank + a->kv_rank;
        floats += 2;
    }
    return (size_t)(c->rows * columns) * el + (size_t)(c->rows * floats) * sizeof(float) + COPIES * 64;
}

static void traffic(const struct sublayer *s, const struct model *m, struct unit_traffic *t)
{
    const struct latent *a = &s->latent;
    int leaves = m->cp_grain > 1 ? m->cp_grain : 1; /* each is summed by itself */

    t->sums_forward++;
    t->sums_backward++;
    t->key_floats += key_dim(a) + a->kv_rank;
    t->row_floats += a->q_rank + leaves * (key_dim(a) + a->kv_rank);
}

static double flops(const struct sublayer *s, const struct model *m, double keys)
{
    const struct latent *a = &s->latent;
    double heads = (double)a->n_heads, hidden = (double)m->hidden, rank = (double)a->kv_rank;
    double q = (double)q_cols(a), products = hidden * ((double)key_dim(a) + heads * (double)a->v);

    products += compressed(s) ? (hidden + q) * (double)a->q_rank : hidden * q;
    products += heads * rank * (double)(a->nope + a->v);
    return 2 * products + 2 * heads * (double)(key_dim(a) + a->kv_rank) * keys;
}

const struct sublayer_kind sublayer_latent = {
    .name = "latent attention",
    .slot = slots,
    .n_slots = SLOTS,
    .out_bias = -1,
    .in_packs = 1u << PACK_KV_A | 1u << PACK_Q,
    .out_pack = PACK_O,
    .shape = shape,
    .carve = carve_latent,
    .forward = forward,
    .backward = backward,
    .recompute = recompute,
    .weight_gradient = weight_gradient,
    .deferred_bytes = deferred_bytes,
    .traffic = traffic,
    .flops = flops,
};
