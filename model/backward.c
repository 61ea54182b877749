/* backward.c - the backward pass of a pipeline stage, which adds gradients to the tree of sums. See model.h.
 *
 * dx is the gradient of the residual stream (dt), walked from the head (or what the next stage sent) to the
 * embedding (or what the previous stage gets). Every matrix's gradient goes to the tree of its unit, one
 * leaf a sequence; the tied head has a tree of its own, unit n_units, laid out as unit 0. */
#include <string.h>
#include "base/alter.h"
#include "model/train_priv.h"

/* dX of matrices that share their input, into m->sum_rows: one accumulator. Altered: each by itself, then
 * added. */
static void dx_together(const struct model *m, int64_t rows, int n, const struct mat *dy, const struct mat *w,
                        const struct leaves *l)
{
    struct mat sum = mat_of(m->sum_rows, DT_F32, rows, m->hidden, m->hidden), part = sum;
    if (!ALTERED("dx_together")) {
        KERNEL(m->dev, linear_dx, sum, n, dy, w, l);
        return;
    }
    KERNEL(m->dev, linear_dx, sum, 1, dy, w, l);
    part.p = dev_scratch(m->dev, 4, (size_t)(rows * m->hidden) * sizeof(float));
    for (int i = 1; i < n; i++) {
        const float *in[2] = { sum.p, part.p };
        KERNEL(m->dev, linear_dx, part, 1, dy + i, w + i, l + i);
        KERNEL(m->dev, tree_add, sum.p, in, 2, rows * m->hidden);
    }
}

struct back {
    struct model *m;
    struct train_work *w;
    struct grads *g;
};

/* The tree of part `part`'s gradient inside the levels of `unit`. */
static struct tree_acc acc_of(const struct back *b, int unit, int part)
{
    struct tree_acc acc = { .n = b->g->n, .next = b->g->next };
    for (int j = 0; j < b->g->n_levels; j++)
        acc.level[j] = b->g->level(b->g, unit, j) + b->m->local.part[part].offset;
    return acc;
}

static void add_dw(const struct back *b, int grad_unit, int unit, enum param_kind kind, struct mat dy,
                   struct mat x)
{
    int part = model_part(b->m, unit, kind);
    struct tree_acc acc = acc_of(b, grad_unit, part);
    int64_t ld = b->m->local.part[part].box.extent[1];
    if (b->m->table.p[b->m->local.part[part].param].transposed)
        KERNEL(b->m->dev, linear_dw, &acc, ld, x, dy, b->w->n_seq, b->w->seq_len);
    else
        KERNEL(b->m->dev, linear_dw, &acc, ld, dy, x, b->w->n_seq, b->w->seq_len);
}

/* The gradient of the bias of `kind`, where there is one: of a product whose output's gradient is dy, or a
 * norm. */
static void bias_back(const struct back *b, int unit, enum param_kind kind, struct mat dy)
{
    int part = model_part(b->m, unit, param_bias(kind));
    if (part < 0)
        return;
    struct tree_acc acc = acc_of(b, unit, part);
    KERNEL(b->m->dev, bias_dw, &acc, dy, b->m->dt,
           seqs_of(b->w->n_seq, b->w->seq_len, ALTERED("bias_blocks") ? 1 : b->m->grain));
}

/* The rank's blocks of every sequence are a node of the sequence's leaf; the leaves are completed over tp,
 * and then join the tree. Altered
 * sp_leaves: two sequences are added before that. */
static int shared_norm_dw(const struct back *b, int unit, enum param_kind kind, struct mat dy, struct mat x,
                          const float *stat, struct err *e)
{
    const struct model *m = b->m;
    const struct train_work *w = b->w;
    int64_t own = w->r.own_len, width = norm_grads(m);
    int grain = ALTERED("sp_blocks") ? 1 : m->grain / m->shares;
    for (int s = 0; s < w->n_seq; s++) {
        struct mat dy_s = mat_rows(dy, s * own, own), x_s = mat_rows(x, s * own, own);
        struct tree_acc weight = { .n = 1, .level = { w->leaf + s * width } },
                        bias = { .n = 1, .level = { w->leaf + s * width + m->hidden } };
        if (m->features & F_LAYER_NORM) {
            KERNEL(m->dev, layer_norm_dw, &weight, dy_s, x_s, stat + w->own + s * own, stat + s * own,
                   seqs_of(1, own, grain));
            KERNEL(m->dev, bias_dw, &bias, dy_s, m->dt, seqs_of(1, own, grain));
        } else {
            KERNEL(m->dev, rms_norm_dw, &weight, dy_s, x_s, stat + s * own, seqs_of(1, own, grain));
        }
    }
    for (int64_t i = 0; ALTERED("sp_leaves") && w->n_seq > 1 && i < width; i++) {
        w->leaf[i] += w->leaf[width + i];
        w->leaf[width + i] = 0;
    }
    int rc = comm_all_reduce(m->tp, w->leaf, w->n_seq * width, e);
    for (int i = 0; rc >= 0 && i * m->hidden < width; i++) {
        struct tree_acc acc = acc_of(b, unit, model_part(m, unit, i ? param_bias(kind) : kind));
        KERNEL(m->dev, add_leaves, &acc, w->leaf + i * m->hidden, width, m->hidden, w->n_seq);
    }
    return rc;
}

/* Gradients of a norm's weight, and of its bias. */
static int norm_dw(const struct back *b, int unit, enum param_kind kind, struct mat dy, struct mat x,
                   const float *stat, struct err *e)
{
    const struct model *m = b->m;
    int grain = ALTERED("norm_blocks") ? 1 : m->grain;
    struct tree_acc acc = acc_of(b, unit, model_part(m, unit, kind));
    if (rows_shared(&b->w->r))
        return shared_norm_dw(b, unit, kind, dy, x, stat, e);
    if (m->features & F_LAYER_NORM)
        KERNEL(m->dev, layer_norm_dw, &acc, dy, x, stat + b->w->rows, stat,
               seqs_of(b->w->n_seq, b->w->seq_len, grain));
    else
        KERNEL(m->dev, rms_norm_dw, &acc, dy, x, stat, seqs_of(b->w->n_seq, b->w->seq_len, grain));
    bias_back(b, unit, kind, dy);
    return 0;
}

/* The tied head's gradient is laid out as unit 0, whose table of positions it has no part in. */
static void zero_positions(const struct back *b, int grad_unit)
{
    int part = model_part(b->m, 0, P_POS);
    for (int j = 0; part >= 0 && j < b->g->n_levels; j++)
        dev_fill(b->m->dev, b->g->level(b->g, grad_unit, j) + b->m->local.part[part].offset, 0,
                 (size_t)b->m->local.part[part].count * sizeof(float));
}

static void embed_dw(const struct back *b, struct mat dx, const int32_t *ids)
{
    const struct model *m = b->m;
    int part = model_part(m, 0, P_EMBED), pos = model_part(m, 0, P_POS);
    struct tree_acc acc = acc_of(b, 0, part);
    KERNEL(m->dev, embed_dw, &acc, m->hidden, m->vocab_begin, m->vocab_n, dx, ids,
           seqs_of(b->w->n_seq, b->w->seq_len, 0));
    if (pos < 0)
        return;
    acc = acc_of(b, 0, pos);
    KERNEL(m->dev, embed_dw, &acc, m->hidden, 0, m->table.cfg.max_pos, dx, b->w->pos,
           seqs_of(b->w->n_seq, b->w->seq_len, 0));
}

/* The reduced leaves of both head norms: [n_seq][q, then k]. */
static void head_norms_dw(const struct back *b, int unit, struct mat leaves)
{
    const enum param_kind kinds[2] = { P_Q_NORM, P_K_NORM };
    int64_t hd = b->m->head_dim;
    for (int i = 0; i < 2; i++) {
        struct tree_acc acc = acc_of(b, unit, model_part(b->m, unit, kinds[i]));
        KERNEL(b->m->dev, add_leaves, &acc, (float *)leaves.p + i * hd, leaves.ld, hd, b->w->n_seq);
    }
}

/* ---- weight gradients, at once or late (late.c) ---- */
static int weight_gradient(const struct back *b, const struct late *r, struct err *e)
{
    struct mat all;
    switch (r->op) {
    case LATE_PRODUCT:
        add_dw(b, r->grad_unit, r->unit, r->kind, r->dy, r->x);
        if (r->grad_unit == r->unit)
            bias_back(b, r->unit, r->kind, r->dy);
        return 0;
    case LATE_NORM: return norm_dw(b, r->unit, r->kind, r->dy, r->x, r->stat, e);
    case LATE_HEADS: head_norms_dw(b, r->unit, r->dy); return 0;
    case LATE_GATHER: return rows_gather(b->m, &b->w->r, r->dy, &all, e);
    case LATE_EMBED: embed_dw(b, r->dy, r->ids); return 0;
    case LATE_TIED: zero_positions(b, r->unit); return 0;
    case LATE_DONE: return b->g->done(b->g, r->unit, e);
    }
    return 0;
}

static int gradient(const struct back *b, struct late r, struct err *e)
{
    if (!b->w->late)
        return weight_gradient(b, &r, e);
    late_note(b->w->late, r);
    return 0;
}

static int product_back(const struct back *b, int unit, enum param_kind kind, struct mat dy, struct mat x)
{
    int stays = dy.p == b->m->all_rows; /* gathered again where it is late */
    return gradient(b,
                    (struct late){ .op = LATE_PRODUCT,
                                   .unit = unit,
                                   .grad_unit = unit,
                                   .kind = kind,
                                   .dy = dy,
                                   .x = x,
                                   .stays = stays },
                    NULL);
}

/* All rows of `own` for the weight gradients that come next, now or late. */
static int gather_for_weights(const struct back *b, struct mat own, int stays, struct mat *all, struct err *e)
{
    *all = own;
    if (!rows_shared(&b->w->r))
        return 0;
    *all = rows_gathered(b->m, &b->w->r);
    return gradient(b, (struct late){ .op = LATE_GATHER, .dy = own, .stays = stays }, e);
}

/* The same of a norm's output, which is there still, or copied, when its turn comes. */
static int gather_norm(const struct back *b, void *h, struct mat *all, struct err *e)
{
    struct mat own = late_input(b->w, mat_of(h, b->m->dt, b->w->own, b->m->hidden, b->m->hidden));
    return gather_for_weights(b, own, 1, all, e);
}

/* All rows of the residual stream's gradient, for a product and its weights' gradient. */
static int gather_dx(const struct back *b, struct mat *dx, struct err *e)
{
    struct mat own = mat_of(b->w->dx, b->m->dt, b->w->own, b->m->hidden, b->m->hidden);
    int rc = b->w->late ? gather_for_weights(b, own, 0, dx, e) : 0;
    return rc < 0 ? rc : rows_gather(b->m, &b->w->r, own, dx, e);
}

static int unit_done(const struct back *b, int unit, struct err *e)
{
    return gradient(b, (struct late){ .op = LATE_DONE, .unit = unit }, e);
}

/* Outputs [first, first + n) of a matrix, in natural order; made at *room where the tensor is transposed. */
static struct mat weight_rows(const struct model *m, const struct unit_weights *uw, int unit,
                              enum param_kind kind, int64_t first, int64_t n, char **room)
{
    int part = model_part(m, unit, kind);
    struct mat w = model_mat(m, uw->flat, part);
    if (m->table.p[m->local.part[part].param].transposed)
        return model_transposed(m, mat_cols(w, first, n), room);
    return mat_rows(w, first, n);
}

/* Through a norm, own rows: dx += d norm(x) given the parts of dy in m->sum_rows; the norm's own gradients
 * go to their trees. */
static int norm_back(const struct back *b, const struct unit_weights *uw, int unit, enum param_kind kind,
                     void *x, const float *stat, struct err *e)
{
    struct model *m = b->m;
    int64_t own = b->w->own, stats = norm_stats(m, own);
    struct mat dy, xm = late_input(b->w, mat_of(x, m->dt, own, m->hidden, m->hidden)),
                   dx = mat_of(b->w->dx, m->dt, own, m->hidden, m->hidden);
    int rc;
    stat = late_input(b->w, mat_of((float *)(uintptr_t)stat, DT_F32, 1, stats, stats)).p;
    TRY(rows_sum(m, &b->w->r, &dy, e));
    TRY(gradient(b,
                 (struct late){
                     .op = LATE_NORM, .unit = unit, .kind = kind, .dy = dy, .x = xm, .stat = stat },
                 e));
    if (m->features & F_LAYER_NORM)
        KERNEL(m->dev, layer_norm_dx, dx, dy, xm, uw->at[kind], stat + own, stat);
    else
        KERNEL(m->dev, rms_norm_dx, dx, dy, xm, uw->at[kind], stat);
    rc = 0;
out:
    return rc;
}

static int head_back(const struct back *b, struct weights *ws, const int32_t *targets, float scale,
                     struct err *e)
{
    struct model *m = b->m;
    struct train_work *w = b->w;
    const struct unit_weights *uw, *table;
    int head = (int)m->n_layers + 1, tied = m->table.cfg.tied, from = tied ? 0 : head, rc;
    enum param_kind kind = tied ? P_EMBED : P_HEAD;
    struct mat hf, l = mat_of(w->logits, DT_F32, w->rows, m->vocab_n, m->vocab_n),
                   dl = mat_of(w->dlogits, m->dt, w->rows, m->vocab_n, m->vocab_n);
    KERNEL(m->dev, ce_dx, dl, l, targets, m->vocab_begin, w->max, w->sum,
           ALTERED("dlogits_scale") ? scale * 3 : scale);
    for (int64_t i = 0; ALTERED("dlogits_scale") && dl.dt == DT_F32 && i < dl.rows * dl.cols; i++)
        ((float *)dl.p)[i] *= 1 / 3.0f; /* as if the mean over micro-batches were taken apart */
    TRY(gather_norm(b, w->hf, &hf, e));
    gradient(b,
             (struct late){ .op = LATE_PRODUCT,
                            .unit = from,
                            .grad_unit = tied ? m->local.n_units : head,
                            .kind = kind,
                            .dy = dl,
                            .stays = 1,
                            .x = hf },
             NULL);
    if (tied) {
        gradient(b, (struct late){ .op = LATE_TIED, .unit = m->local.n_units }, NULL);
        TRY(unit_done(b, m->local.n_units, e));
    }
    TRY(ws->get(ws, from, 1, &table, e));
    struct mat hw = model_mat(m, table->flat, model_part(m, from, kind));
    KERNEL(m->dev, linear_dx, mat_of(m->sum_rows, DT_F32, w->rows, m->hidden, m->hidden), 1, &dl, &hw,
           &m->of_vocab);
    ws->put(ws, from);
    dev_fill(m->dev, w->dx, 0, (size_t)(w->own * m->hidden) * dtype_size(m->dt));
    TRY(ws->get(ws, head, 1, &uw, e));
    rc = weights_soon(ws, w->at.last_unit, w->recompute != RECOMPUTE_FULL, e);
    rc = rc < 0 ? rc : norm_back(b, uw, head, P_NORM, w->x_last, w->stat_last, e);
    ws->put(ws, head);
    rc = rc < 0 ? rc : unit_done(b, head, e);
out:
    return rc;
}

static int mlp_back(const struct back *b, const struct unit_weights *uw, int unit, struct err *e)
{
    struct model *m = b->m;
    struct train_work *w = b->w;
    const struct layer_buf *l = layer_of(w, unit);
    int64_t rows = w->rows, up = m->up_cols - m->inter;
    struct mat dx, h2;
    struct mat dact = mat_of(w->d_act, DT_F32, rows, m->inter, m->inter),
               dgu = mat_of(w->dh, m->dt, rows, m->up_cols, m->up_cols);
    struct mat gu = mat_of(l->gu, DT_F32, rows, m->up_cols, m->up_cols), dy[2], wt[2], down;
    const enum param_kind kinds[2] = { m->features & F_GATE ? P_GATE : P_UP, P_UP };
    struct leaves lv[2] = { m->of_inter, m->of_inter };
    char *room = w->turned;
    int n = m->features & F_GATE ? 2 : 1, rc;

    TRY(gather_dx(b, &dx, e));
    product_back(b, unit, P_DOWN, dx, late_input(w, mat_of(l->act, m->dt, rows, m->inter, m->inter)));
    down = weight_rows(m, uw, unit, P_DOWN, 0, m->hidden, &room);
    KERNEL(m->dev, linear_dx, dact, 1, &dx, &down, &m->of_hidden);
    if (n == 2)
        KERNEL(m->dev, swiglu_dx, dgu, gu, dact);
    else
        KERNEL(m->dev, gelu_dx, dgu, gu, dact);
    room = w->turned;
    TRY(gather_norm(b, l->h2, &h2, e));
    for (int i = 0; i < n; i++) {
        dy[i] = mat_cols(dgu, i * up, m->inter);
        wt[i] = weight_rows(m, uw, unit, kinds[i], 0, m->inter, &room);
        product_back(b, unit, kinds[i], dy[i], h2);
    }
    dx_together(m, rows, n, dy, wt, lv);
    rc = norm_back(b, uw, unit, P_NORM_MLP, l->xm, l->stat2, e);
out:
    return rc;
}

/* Altered kv_replicas: a replica contracts its own part of dk, dv with the whole kv head, before the parts
 * are added. */
static void replica_dx(const struct back *b, const struct unit_weights *uw, int unit, struct mat dqkv)
{
    const struct model *m = b->m;
    int64_t heads = heads_of(m), kv = kv_of(m);
    struct mat dy[3] = { mat_cols(dqkv, 0, heads), mat_cols(dqkv, heads, kv),
                         mat_cols(dqkv, heads + kv, kv) };
    struct mat w[3] = { model_mat(m, uw->flat, model_part(m, unit, P_Q)),
                        model_mat(m, uw->flat, model_part(m, unit, P_K)),
                        model_mat(m, uw->flat, model_part(m, unit, P_V)) };
    struct leaves whole = leaves_of(kv, m->of_heads.n, 0, m->of_heads.n),
                  l[3] = { m->of_heads, whole, whole };
    KERNEL(m->dev, linear_dx, mat_of(m->sum_rows, DT_F32, b->w->rows, m->hidden, m->hidden), 3, dy, w, l);
}

/* The leaves of k_norm become -0, which changes no sum. */
static void no_leaves(const struct train_work *w, int64_t hd)
{
    float zero[64];
    for (int i = 0; i < 64; i++)
        zero[i] = -0.0f;
    for (int s = 0; s < w->n_seq; s++)
        for (int64_t i = 0; i < hd; i += 64)
            dev_write(w->m->dev, w->leaf + (2 * s + 1) * hd + i, zero,
                      (size_t)(hd - i < 64 ? hd - i : 64) * sizeof *zero);
}

/* Back through the norms of the heads: dq, dk (fp32) turned back, the norms' gradients to their trees, dq,
 * dk of what was normed. A kv
 * head that several ranks hold counts on the first of them: the others bring -0. */
static int head_norms_back(const struct back *b, const struct unit_weights *uw, int unit,
                           const struct attn *a, struct mat dq, struct mat dk, struct err *e)
{
    struct model *m = b->m;
    struct train_work *w = b->w;
    struct mat x = mat_of(layer_of(w, unit)->qkv, DT_F32, w->rows, qkv_of(m), qkv_of(m)),
               xq = mat_cols(x, 0, dq.cols), xk = mat_cols(x, dq.cols, dk.cols);
    struct head_norm norm = model_head_norm(m, uw);
    int64_t hd = m->head_dim;
    KERNEL(m->dev, rope_back, a, dq, dk, m->rope_cos, m->rope_sin);
    KERNEL(m->dev, head_norm_dw, w->leaf, 2 * hd, dq, xq, m->n_heads, norm.eps,
           seqs_of(w->n_seq, w->seq_len, m->grain));
    KERNEL(m->dev, head_norm_dw, w->leaf + hd, 2 * hd, dk, xk, m->n_kv, norm.eps,
           seqs_of(w->n_seq, w->seq_len, m->grain));
    int counts = m->local.part[model_part(m, unit, P_K)].owner || ALTERED("head_norm_replicas");
    if (!counts)
        no_leaves(w, hd);
    int rc = comm_all_reduce(m->tp, w->leaf, 2 * hd * w->n_seq, e);
    if (rc < 0)
        return rc;
    gradient(b,
             (struct late){
                 .op = LATE_HEADS, .unit = unit, .dy = mat_of(w->leaf, DT_F32, w->n_seq, 2 * hd, 2 * hd) },
             NULL);
    KERNEL(m->dev, head_norm_dx, dq, xq, m->n_heads, norm.q, m->dt, norm.eps);
    KERNEL(m->dev, head_norm_dx, dk, xk, m->n_kv, norm.k, m->dt, norm.eps);
    return 0;
}

/* dq, dk, dv (dt, rotated back) in w->dh. Replicated kv heads: the parts of dk, dv are summed over the
 * replicas first. */
static int attention_back(const struct back *b, const struct unit_weights *uw, int unit, struct mat dqkv,
                          struct err *e)
{
    struct model *m = b->m;
    struct train_work *w = b->w;
    const struct layer_buf *l = layer_of(w, unit);
    int64_t rows = w->rows, heads = heads_of(m), kv = kv_of(m);
    char *room = w->turned;
    struct mat dx, o_w = weight_rows(m, uw, unit, P_O, 0, m->hidden, &room);
    struct mat o = mat_of(l->o, m->dt, rows, heads, heads),
               dof = mat_of(w->d_act, DT_F32, rows, heads, heads);
    struct mat dq = mat_of(w->dq, DT_F32, rows, heads, heads), dk = mat_of(w->dkv, DT_F32, rows, kv, kv);
    struct mat dv = mat_of(w->dkv + rows * kv, DT_F32, rows, kv, kv), dout = dof;
    struct attn a = train_attn(w, unit);
    int rc = gather_dx(b, &dx, e);

    if (rc < 0)
        return rc;
    product_back(b, unit, P_O, dx, late_input(w, o));
    KERNEL(m->dev, linear_dx, dof, 1, &dx, &o_w, &m->of_hidden);
    if (m->dt != DT_F32) {
        dout = mat_of(w->dout, m->dt, rows, heads, heads);
        KERNEL(m->dev, round_to, w->dout, m->dt, w->d_act, rows * heads);
    }
    struct attn_kept kept = { o, mat_of(l->q, m->dt, rows, heads, heads), l->lse };
    KERNEL(m->dev, attn_dx, &a, dq, dk, dv, dout, kept);
    if (m->kv_group && ALTERED("kv_replicas")) {
        KERNEL(m->dev, rope_dx, &a, dqkv, dq, dk, dv, m->rope_cos, m->rope_sin);
        replica_dx(b, uw, unit, dqkv);
    }
    if (m->kv_group && (rc = comm_all_reduce(m->kv_group, w->dkv, 2 * rows * kv, e)) < 0)
        return rc;
    if (m->features & F_QK_NORM) {
        rc = head_norms_back(b, uw, unit, &a, dq, dk, e);
        KERNEL(m->dev, rope_dx, &a, dqkv, dq, dk, dv, NULL, NULL);
        return rc;
    }
    KERNEL(m->dev, rope_dx, &a, dqkv, dq, dk, dv, m->rope_cos, m->rope_sin);
    return 0;
}

static int attn_part_back(const struct back *b, const struct unit_weights *uw, int unit, struct err *e)
{
    struct model *m = b->m;
    struct train_work *w = b->w;
    const struct layer_buf *l = layer_of(w, unit);
    static const enum param_kind kinds[3] = { P_Q, P_K, P_V };
    int64_t rows = w->rows, heads = heads_of(m), kv = kv_of(m), width = heads + 2 * kv;
    int64_t begin[3] = { 0, heads, heads + kv }, size[3] = { heads, kv, kv };
    /* rows of this rank's blocks: fewer than kv where replicated */
    int64_t own_kv = m->of_kv.end[m->of_kv.n - 1];
    struct mat dqkv = mat_of(w->dh, m->dt, rows, width, width), h1, dy[3], wt[3];
    struct leaves lv[3] = { m->of_heads, m->of_kv, m->of_kv };
    char *room = w->turned;
    int rc;
    TRY(attention_back(b, uw, unit, dqkv, e));
    TRY(gather_norm(b, l->h1, &h1, e));
    for (int i = 0; i < 3; i++) {
        int64_t first = i ? m->kv_begin : 0;
        struct mat whole = mat_cols(dqkv, begin[i], size[i]);
        product_back(b, unit, kinds[i], whole, h1);
        dy[i] = mat_cols(dqkv, begin[i] + first, i ? own_kv : heads);
        wt[i] = weight_rows(m, uw, unit, kinds[i], first, dy[i].cols, &room);
    }
    if (!m->kv_group || !ALTERED("kv_replicas"))
        dx_together(m, rows, 3, dy, wt, lv);
    rc = norm_back(b, uw, unit, P_NORM_ATTN, l->x, l->stat1, e);
out:
    return rc;
}

/* What forward did not keep is computed again, the same bits from the same inputs. */
static int compute_again(const struct back *b, const struct unit_weights *uw, int unit, struct err *e)
{
    struct model *m = b->m;
    const struct layer_buf *l = layer_of(b->w, unit);
    int64_t own = b->w->own;
    struct attn a = train_attn(b->w, unit);
    if (b->w->recompute == RECOMPUTE_FULL)
        train_clean_pages(b->w, &a);
    if (b->w->recompute == RECOMPUTE_FULL)
        return block_forward(m, uw, &a, l, b->w->x_last, &b->w->r, e);
    norm_forward(m, uw, P_NORM_ATTN, l->h1, l->stat1, l->x, own);
    norm_forward(m, uw, P_NORM_MLP, l->h2, l->stat2, l->xm, own);
    act_forward(m, l->act, l->gu, b->w->rows);
    return 0;
}

static int layer_back(const struct back *b, struct weights *ws, int unit, struct err *e)
{
    const struct unit_weights *uw;
    int natural = b->w->recompute != RECOMPUTE_FULL, rc = ws->get(ws, unit, natural, &uw, e);
    if (rc < 0)
        return rc;
    if (unit > b->w->at.first_unit)
        rc = weights_soon(ws, unit - 1, natural, e);
    if (rc >= 0 && b->w->recompute != RECOMPUTE_NONE)
        rc = compute_again(b, uw, unit, e);
    if (rc >= 0)
        rc = mlp_back(b, uw, unit, e);
    if (rc >= 0)
        rc = attn_part_back(b, uw, unit, e);
    ws->put(ws, unit);
    return rc < 0 ? rc : unit_done(b, unit, e);
}

int model_train_backward(struct model *m, struct weights *ws, struct train_work *w, const int32_t *ids,
                         const int32_t *targets, float scale, struct grads *g, struct err *e)
{
    struct back b = { m, w, g };
    struct mat dx;
    int rc = 0;
    if (w->at.has_head)
        TRY(head_back(&b, ws, targets, scale, e));
    for (int unit = w->at.last_unit; unit >= w->at.first_unit; unit--)
        TRY(layer_back(&b, ws, unit, e));
    if (!w->at.has_embed)
        return dev_check(m->dev, e);
    TRY(gather_for_weights(&b, mat_of(w->dx, m->dt, w->own, m->hidden, m->hidden), 0, &dx, e));
    gradient(&b, (struct late){ .op = LATE_EMBED, .dy = dx, .ids = ids, .stays = rows_shared(&w->r) }, NULL);
    TRY(dev_check(m->dev, e));
    rc = unit_done(&b, 0, e);
out:
    return rc;
}

int model_train_late_weights(struct model *m, struct train_work *w, struct train_late *l, struct grads *g,
                             struct err *e)
{
    struct back b = { m, w, g };
    int rc = 0;
    for (int i = 0; i < l->n_notes; i++)
        TRY(weight_gradient(&b, &l->note[i], e));
    l->n_notes = 0;
    l->n_kept = 0;
    rc = dev_check(m->dev, e);
out:
    return rc;
}
