/* attention.c - grouped-query attention (Ainslie et al. 2023): q k v, norms of heads where the family has
 * them, RoPE, softmax over paged keys, o. tp cuts the heads: q k v by rows, o by columns (Shoeybi et al.
 * 2019, section 3); fewer kv heads than ranks are replicated, and their gradients summed over the replicas
 * first. */
#include "model/units.h"

#include "base/alter.h"

enum { Q, K, V, O, Q_BIAS, K_BIAS, V_BIAS, O_BIAS, Q_NORM, K_NORM, SINKS, QKV, QKV_BIAS, SLOTS };
static const enum param_kind slots[SLOTS] = { P_Q,      P_K,      P_V,       P_O,      P_Q_BIAS,
                                              P_K_BIAS, P_V_BIAS, P_O_BIAS,  P_Q_NORM, P_K_NORM,
                                              P_SINKS,  P_QKV,    P_QKV_BIAS };
enum { PACK_QKV, PACK_O };

static int64_t q_cols(const struct sublayer *s)
{
    return (int64_t)s->attention.n_heads * s->attention.head_dim;
}
static int64_t kv_cols(const struct sublayer *s)
{
    return (int64_t)s->attention.n_kv * s->attention.head_dim;
}
static int64_t qkv_cols(const struct sublayer *s) { return q_cols(s) + 2 * kv_cols(s); }
static int has_sinks(const struct sublayer *s) { return s->part[SINKS] >= 0; }
/* q k v are one matrix, head by head, and so are the columns of its output. */
static int is_by_head(const struct sublayer *s) { return s->part[QKV] >= 0; }
static int heads_normed(const struct sublayer *s) { return s->part[Q_NORM] >= 0; }

/* First kv row of block g. Heads are grouped by c = gcd(kv heads, GRAIN), each group's rows cut into GRAIN /
 * c blocks: no block spans the heads of two ranks, at any tp that is allowed. Where GRAIN divides the rows
 * these are the plain blocks of ceil(rows / GRAIN). */
static int64_t kv_block_begin(const struct model_config *c, int grain, int g)
{
    int groups = grain;
    while (c->n_kv % groups || grain % groups)
        groups--;
    int64_t rows = c->n_kv / groups * c->head_dim;
    int each = grain / groups;
    return g / each * rows + block_begin(rows, each, g % each);
}

static struct leaves kv_leaves(const struct model_config *c, int grain, int first, int count)
{
    struct leaves l = { .n = count };
    for (int i = 0; i < count; i++)
        l.end[i] = kv_block_begin(c, grain, first + i + 1) - kv_block_begin(c, grain, first);
    return l;
}

static void shape(struct sublayer *s, const struct model *m, const struct branch_spec *spec, int tp_rank)
{
    const struct model_config *c = &m->table.cfg;
    struct attention *a = &s->attention;
    int tp = m->local.layout.tp, g = m->grain, each = g / tp, first = tp_rank * each;
    int one = m->fast || ALTERED("leaves_heads");
    int64_t kv_rows = c->n_kv * c->head_dim, my_kv;

    a->n_heads = (int)(c->n_heads / tp);
    a->n_kv = tp > c->n_kv ? 1 : (int)(c->n_kv / tp);
    a->head_dim = (int)c->head_dim;
    a->window = spec->window;
    a->scale = spec->scale;
    a->softcap = (float)c->attn_softcap;
    a->rope = spec->local_rope ? ROPE_LOCAL : ROPE_GLOBAL;
    a->page = page_place(m, s->layer);
    a->of_heads = leaves_cut(leaves_of(c->n_heads * c->head_dim, g, first, each), one);
    a->of_kv = leaves_cut(kv_leaves(c, g, first, each), one);
    my_kv = tp > c->n_kv ? tp_rank / (tp / c->n_kv) * c->head_dim : kv_rows / tp * tp_rank;
    a->kv_begin = kv_block_begin(c, g, first) - my_kv;
    if (ALTERED("leaves_kv")) /* all rows in a rank's last block */
        for (int i = 0; i < a->of_kv.n - 1; i++)
            a->of_kv.end[i] = 0;

    s->n_packs = 2;
    s->pack[PACK_QKV] = (struct pack_plan){ 3, { Q, K, V }, qkv_cols(s), m->hidden, m->of_hidden, 0 };
    if (is_by_head(s))
        s->pack[PACK_QKV] = (struct pack_plan){ 1, { QKV }, qkv_cols(s), m->hidden, m->of_hidden, 0 };
    s->pack[PACK_O] = (struct pack_plan){ 1, { O }, m->hidden, q_cols(s), a->of_heads, 0 };
}

static void carve_attention(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                            const struct carver *from, struct branch_buf *b)
{
    struct attention_buf *buf = &b->attention;
    int64_t rows = c->rows, heads = q_cols(s), qkv = qkv_cols(s), hd = s->attention.head_dim;
    struct key_sizes by_key = { s->attention.n_heads, s->attention.n_kv, hd, hd,
                                m->local.layout.tp > m->table.cfg.n_kv };
    size_t el = dtype_size(m->dt);

    buf->qkv = carve(from, heads_normed(s) ? LIFE_COSTLY : LIFE_SCRATCH, rows * qkv, sizeof(float));
    buf->q = carve(from, LIFE_COSTLY, rows * heads, el);
    buf->o = carve(from, LIFE_COSTLY, rows * heads, el);
    buf->lse = NULL;
    b->kv = NULL;
    if (c->training)
        buf->lse = carve(from, LIFE_COSTLY, rows * s->attention.n_heads, sizeof(float));
    if (c->pages)
        b->kv = carve(from, LIFE_PAGES, c->pages, model_page_bytes(m));
    if (!c->training)
        return;

    /* q k v before RoPE are not needed any more when dqkv is written */
    buf->dqkv = heads_normed(s) ? carve(from, LIFE_SCRATCH, rows * qkv, el) : buf->qkv;
    buf->d_out = carve(from, LIFE_SCRATCH, rows * heads, sizeof(float));
    buf->dq = carve(from, LIFE_SCRATCH, rows * heads, sizeof(float));
    buf->d_out_dt = m->dt == DT_F32 ? NULL : carve(from, LIFE_SCRATCH, rows * heads, el);
    size_t transposed = transposed_bytes(s, m, Q, 3), o = transposed_bytes(s, m, O, 1);
    transposed = transposed > o ? transposed : o;
    buf->transposed = transposed ? carve(from, LIFE_SCRATCH, 1, transposed) : NULL;
    key_grads_carve(m, c, from, &by_key, &buf->by_key);
    buf->sink_leaf = has_sinks(s) ? carve(from, LIFE_SCRATCH, c->n_seq * s->attention.n_heads, sizeof(float))
                                  : NULL;
    buf->head_leaf = heads_normed(s) ? carve(from, LIFE_COMM, c->n_seq * 2 * hd, sizeof(float)) : NULL;
}

static struct attn sequences(const struct pass *p, const struct sublayer *s)
{
    const struct attention *a = &s->attention;
    struct attn x = {
        .n_heads = a->n_heads,
        .n_kv = a->n_kv,
        .head_dim = a->head_dim,
        .dt = p->m->dt,
        .scale = a->scale,
        .softcap = a->softcap,
        .window = a->window,
        .sink = weight_at(p, s->part[SINKS]),
        .rope_dim = (int)p->m->table.cfg.rope_dim,
        .by_head = is_by_head(s),
    };
    page_point(p, &a->page, &x);
    return x;
}

static const struct rope_table *rope_of(const struct pass *p, const struct sublayer *s)
{
    return &p->m->rope[s->attention.rope];
}

static struct head_norm head_norms(const struct pass *p, const struct sublayer *s)
{
    const struct model_config *c = &p->m->table.cfg;
    return (struct head_norm){ weight_at(p, s->part[Q_NORM]), weight_at(p, s->part[K_NORM]),
                               (float)c->norm_eps, family_norm(c) == NORM_RMS_ONE };
}

static int forward(const struct pass *p, const struct sublayer *s, struct branch_buf *b, struct mat h,
                   struct err *e)
{
    const struct model *m = p->m;
    struct attention_buf *buf = &b->attention;
    struct attn a = sequences(p, s), store;
    int64_t rows = h.rows, heads = q_cols(s), kv = kv_cols(s);
    struct mat qkv = rows_of(buf->qkv, DT_F32, rows, qkv_cols(s)), q = rows_of(buf->q, m->dt, rows, heads);
    struct mat o = rows_of(buf->o, m->dt, rows, heads);
    struct head_norm norm = head_norms(p, s);
    const struct rope_table *rope = rope_of(p, s);
    int rc;

    KERNEL(m->dev, linear, qkv, h, weight_pack(p, s, PACK_QKV));
    adapters_add(p, s, PACK_QKV, b, h, qkv);
    walk_bias(p, s->part[Q_BIAS], qkv, 0, heads);
    walk_bias(p, s->part[K_BIAS], qkv, heads, kv);
    walk_bias(p, s->part[V_BIAS], qkv, heads + kv, kv);
    walk_bias(p, s->part[QKV_BIAS], qkv, 0, qkv.cols);
    TRY(keys_begin(p, &a, &store, e));
    KERNEL(m->dev, rope_store, &store, q, qkv, heads_normed(s) ? &norm : NULL, rope->cos, rope->sin);
    TRY(keys_gather(p, &s->attention.page, &a, b->kv, e));
    KERNEL(m->dev, attn, &a, o, buf->lse, q);
    KERNEL(m->dev, linear, rows_of(m->sum_rows, DT_F32, rows, m->hidden), o, weight_pack(p, s, PACK_O));
    adapters_begin(p, s, PACK_O, o);
    rc = 0;
out:
    return rc;
}

/* ---- backward ---- */

/* Altered kv_replicas: a replica contracts its own part of dk, dv with the whole kv head, before the parts
 * are added. */
static void replica_dx(const struct pass *p, const struct sublayer *s, struct mat dqkv)
{
    const struct model *m = p->m;
    int64_t heads = q_cols(s), kv = kv_cols(s);
    int n = s->attention.of_heads.n;
    struct leaves whole = leaves_of(kv, n, 0, n), leaves[3] = { s->attention.of_heads, whole, whole };
    struct mat dy[3] = { mat_cols(dqkv, 0, heads), mat_cols(dqkv, heads, kv),
                         mat_cols(dqkv, heads + kv, kv) };
    struct mat w[3];

    for (int i = 0; i < 3; i++)
        w[i] = model_mat(m, p->uw->flat, s->part[Q + i]);
    KERNEL(m->dev, linear_dx, rows_of(m->sum_rows, DT_F32, dqkv.rows, m->hidden), 3, dy, w, leaves);
}

/* The leaves of k_norm become -0, which changes no sum. */
static void clear_k_leaves(const struct pass *p, float *leaf, int64_t hd)
{
    enum { PIECE = 64 };
    float zero[PIECE];
    for (int i = 0; i < PIECE; i++)
        zero[i] = -0.0f;
    for (int s = 0; s < p->r.n_seq; s++)
        for (int64_t i = 0; i < hd; i += PIECE) {
            int64_t n = hd - i < PIECE ? hd - i : PIECE;
            dev_write(p->m->dev, leaf + (2 * s + 1) * hd + i, zero, (size_t)n * sizeof *zero);
        }
}

/* Back through the norms of the heads: RoPE of dq, dk (fp32) undone, the norms' gradients to their trees, dq,
 * dk of what was normed. A kv head that several ranks hold counts on the first of them: the others bring
 * -0. */
static int head_norms_back(const struct pass *p, const struct sublayer *s, struct attention_buf *buf,
                           const struct attn *a, struct mat dq, struct mat dk, struct err *e)
{
    struct model *m = p->m;
    struct head_norm norm = head_norms(p, s);
    int64_t hd = a->head_dim, width = 2 * hd;
    int n_seq = p->r.n_seq;
    struct mat x = rows_of(buf->qkv, DT_F32, dq.rows, qkv_cols(s));
    struct mat xq = mat_cols(x, 0, dq.cols), xk = mat_cols(x, dq.cols, dk.cols);
    float *leaf = buf->head_leaf;
    struct seqs seqs = seqs_of(n_seq, p->r.len, m->grain);

    KERNEL(m->dev, rope_back, a, dq, dk, rope_of(p, s)->cos, rope_of(p, s)->sin);
    KERNEL(m->dev, head_norm_dw, leaf, width, dq, xq, a->n_heads, norm.eps, seqs);
    KERNEL(m->dev, head_norm_dw, leaf + hd, width, dk, xk, a->n_kv, norm.eps, seqs);
    int counts = m->local.part[s->part[K]].owner || ALTERED("head_norm_replicas");
    if (!counts)
        clear_k_leaves(p, leaf, hd);
    int rc = comm_all_reduce(m->tp, leaf, width * n_seq, e);
    if (rc >= 0)
        rc = gradient_emit(p,
                           (struct gradient){ .kind = GRADIENT_BODY,
                                              .unit = s->unit,
                                              .part = { Q_NORM },
                                              .body = s,
                                              .dy = rows_of(leaf, DT_F32, n_seq, width) },
                           e);
    if (rc < 0)
        return rc;
    KERNEL(m->dev, head_norm_dx, dq, xq, a->n_heads, norm.q, m->dt, norm.plus_one, norm.eps);
    KERNEL(m->dev, head_norm_dx, dk, xk, a->n_kv, norm.k, m->dt, norm.plus_one, norm.eps);
    return 0;
}

/* The sinks' gradients, a leaf a sequence. d_out: dt, of attention's output. */
static int sinks_back(const struct pass *p, const struct sublayer *s, struct attention_buf *buf,
                      const struct attn *a, struct mat d_out, struct attn_kept kept, struct err *e)
{
    const struct model *m = p->m;
    int n_seq = p->r.n_seq;

    KERNEL(m->dev, sink_dw, buf->sink_leaf, a, d_out, kept, seqs_of(n_seq, p->r.len, m->grain));
    return gradient_emit(p,
                         (struct gradient){ .kind = GRADIENT_BODY,
                                            .unit = s->unit,
                                            .part = { SINKS },
                                            .body = s,
                                            .dy = rows_of(buf->sink_leaf, DT_F32, n_seq, a->n_heads) },
                         e);
}

/* Complete leaves of vectors, part[0] the slot of the first: the sinks, or both head norms, [n_seq][q, then
 * k]. */
static int weight_gradient(const struct pass *p, const struct gradient *g, struct err *e)
{
    const struct sublayer *s = g->body;
    int n = g->part[0] == SINKS ? 1 : 2;
    int64_t width = g->dy.cols / n;

    (void)e;
    for (int i = 0; i < n; i++) {
        struct tree_acc acc = gradient_sums(p, g->unit, s->part[g->part[0] + i]);
        KERNEL(p->m->dev, add_leaves, &acc, (float *)g->dy.p + i * width, g->dy.ld, width, p->r.n_seq);
    }
    return 0;
}

/* From the stream's gradient to dq, dk, dv in dqkv (dt, rotated back). Replicated kv heads: the parts of dk,
 * dv are summed over the replicas first. */
static int core_backward(const struct pass *p, const struct sublayer *s, struct branch_buf *b,
                         struct mat dqkv, struct err *e)
{
    struct model *m = p->m;
    struct attention_buf *buf = &b->attention;
    int64_t rows = dqkv.rows, heads = q_cols(s);
    struct mat q = rows_of(buf->q, m->dt, rows, heads), o = rows_of(buf->o, m->dt, rows, heads);
    struct mat d_out = rows_of(buf->d_out, DT_F32, rows, heads), dq = rows_of(buf->dq, DT_F32, rows, heads);
    struct attn a = sequences(p, s);
    struct attn_kept kept = { o, q, buf->lse };
    const struct rope_table *rope = rope_of(p, s);
    char *to = buf->transposed;
    struct mat weight = weight_rows(p, s->part[O], 0, m->hidden, &to), dx;
    int rc;

    /* through o */
    TRY(walk_dx(p, &dx, e));
    TRY(walk_product(p, s, O, O_BIAS, dx, gradient_input(p, o), e));
    KERNEL(m->dev, linear_dx, d_out, 1, &dx, &weight, &m->of_hidden);
    TRY(adapters_back_out(p, s, PACK_O, b, dx, o, d_out, e));
    if (m->dt != DT_F32) {
        KERNEL(m->dev, round_to, buf->d_out_dt, m->dt, buf->d_out, rows * heads);
        d_out = rows_of(buf->d_out_dt, m->dt, rows, heads);
    }

    /* through softmax and products */
    struct keys_back back = {
        .a = &a, .dq = dq, .dout = d_out, .kept = kept, .grads = &buf->by_key, .group = m->kv_group
    };
    if (m->kv_group && ALTERED("kv_replicas")) {
        keys_all(p, &a, &buf->by_key, &back.dk, &back.dv);
        KERNEL(m->dev, attn_dx, &a, dq, back.dk, back.dv, d_out, kept);
        KERNEL(m->dev, rope_dx, &a, dqkv, dq, back.dk, back.dv, rope->cos, rope->sin);
        replica_dx(p, s, dqkv);
    }
    TRY(keys_backward(p, &back, e));
    if (has_sinks(s))
        TRY(sinks_back(p, s, buf, &a, d_out, kept, e));

    /* through norms of heads and RoPE */
    if (heads_normed(s)) {
        TRY(head_norms_back(p, s, buf, &a, dq, back.dk, e));
        KERNEL(m->dev, rope_dx, &a, dqkv, dq, back.dk, back.dv, NULL, NULL);
    } else {
        KERNEL(m->dev, rope_dx, &a, dqkv, dq, back.dk, back.dv, rope->cos, rope->sin);
    }
    rc = 0;
out:
    return rc;
}

/* d(norm's output) of q, k and v by matrices of their own: one reduction, leaf by leaf q, then k, then v. */
static int qkv_backward(const struct pass *p, const struct sublayer *s, const struct branch_buf *b,
                        struct mat dqkv, struct mat h, struct err *e)
{
    const struct model *m = p->m;
    const struct attention *at = &s->attention;
    int64_t heads = q_cols(s), kv = kv_cols(s);
    int64_t begin[3] = { 0, heads, heads + kv }, size[3] = { heads, kv, kv };
    int64_t own_kv =
        at->of_kv.end[at->of_kv.n - 1]; /* rows of this rank's blocks: fewer than kv where replicated */
    struct mat dy[3], weight[3];
    struct leaves leaves[3] = { at->of_heads, at->of_kv, at->of_kv };
    struct adapter_dy parts[3];
    char *to = b->attention.transposed;
    int rc;

    for (int i = 0; i < 3; i++) {
        int64_t first = i ? at->kv_begin : 0;
        TRY(walk_product(p, s, Q + i, Q_BIAS + i, mat_cols(dqkv, begin[i], size[i]), h, e));
        dy[i] = mat_cols(dqkv, begin[i] + first, i ? own_kv : heads);
        weight[i] = weight_rows(p, s->part[Q + i], first, dy[i].cols, &to);
        parts[i] = (struct adapter_dy){ mat_cols(dqkv, begin[i], size[i]), first, leaves[i] };
    }
    if (!m->kv_group || !ALTERED("kv_replicas"))
        walk_dx_of(p, 3, dy, weight, leaves);
    rc = adapters_dz(p, s, PACK_QKV, b, parts, adapters_dz_place(p, s, PACK_QKV), e);
out:
    return rc;
}

/* The same by one matrix, as it lies: the heads of a leaf one after the other, each its q, k and v. */
static int by_head_backward(const struct pass *p, const struct sublayer *s, const struct branch_buf *b,
                            struct mat dqkv, struct mat h, struct err *e)
{
    char *to = b->attention.transposed;
    struct mat weight = weight_rows(p, s->part[QKV], 0, dqkv.cols, &to);
    struct leaves leaves = s->attention.of_heads;
    int rc = walk_product(p, s, QKV, QKV_BIAS, dqkv, h, e);

    if (rc < 0)
        return rc;
    for (int i = 0; i < leaves.n; i++)
        leaves.end[i] *= 3;
    walk_dx_of(p, 1, &dqkv, &weight, &leaves);
    return adapters_dz(p, s, PACK_QKV, b, &(struct adapter_dy){ dqkv, 0, leaves },
                       adapters_dz_place(p, s, PACK_QKV), e);
}

static int backward(const struct pass *p, const struct sublayer *s, struct branch_buf *b, struct err *e)
{
    struct mat dqkv = rows_of(b->attention.dqkv, p->m->dt, rows_all(&p->r), qkv_cols(s)), h;
    int rc;

    TRY(core_backward(p, s, b, dqkv, e));
    TRY(walk_input(p, b, &h, e));
    rc = is_by_head(s) ? by_head_backward(p, s, b, dqkv, h, e) : qkv_backward(p, s, b, dqkv, h, e);
out:
    return rc;
}

/* Copies of dqkv, of the leaves of heads' norms; of o, where layers share its buffer. */
static size_t deferred_bytes(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                             enum recompute recompute)
{
    size_t el = dtype_size(m->dt), sum = (size_t)(c->rows * qkv_cols(s)) * el + 5 * 64;
    if (heads_normed(s))
        sum += (size_t)(c->n_seq * 2 * s->attention.head_dim) * sizeof(float);
    if (has_sinks(s))
        sum += (size_t)(c->n_seq * s->attention.n_heads) * sizeof(float) + 64;
    if (recompute == RECOMPUTE_FULL)
        sum += (size_t)(c->rows * q_cols(s)) * el;
    return sum;
}

static void traffic(const struct sublayer *s, const struct model *m, struct unit_traffic *t)
{
    (void)m;
    t->sums_forward++;
    t->sums_backward++;
    t->key_floats += 2 * kv_cols(s);
}

static double flops(const struct sublayer *s, const struct model *m, double keys)
{
    double products = 2.0 * (double)m->hidden * (double)(qkv_cols(s) + q_cols(s));
    return products + 4.0 * (double)q_cols(s) * keys;
}

const struct sublayer_kind sublayer_attention = {
    .name = "attention",
    .slot = slots,
    .n_slots = SLOTS,
    .out_bias = O_BIAS,
    .in_packs = 1u << PACK_QKV,
    .out_pack = PACK_O,
    .shape = shape,
    .carve = carve_attention,
    .forward = forward,
    .backward = backward,
    .weight_gradient = weight_gradient,
    .deferred_bytes = deferred_bytes,
    .traffic = traffic,
    .flops = flops,
};
