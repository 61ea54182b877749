/* block_forward.c - forward of a decoder layer: Llama's (Touvron et al. 2023; grouped-query attention,
 * Ainslie et al. 2023), with the norms, biases, activations and positions that other families have instead
 * (family.h). Tensor parallel as Shoeybi et al. 2019 section 3: q k v gate up by rows, o and down by
 * columns, one tree-ordered sum over tp after each; the biases of o and down are added after it. Which rows
 * a rank holds between the products is rows.c's business. */
#include "model/block.h"

#include <math.h>
#include <string.h>
#include "base/alter.h"

struct attn model_attn(const struct model *m, int layer)
{
    const struct model_config *c = &m->table.cfg;
    return (struct attn){ .n_heads = m->n_heads,
                          .n_kv = m->n_kv,
                          .head_dim = (int)m->head_dim,
                          .dt = m->dt,
                          .scale = (float)(1.0 / sqrt((double)m->head_dim)),
                          .window = layer >= c->window_first ? c->window : 0 };
}

void model_positions(const struct attn_seq *seq, int n_seq, int32_t *pos)
{
    for (int s = 0; s < n_seq; s++)
        for (int64_t i = 0; i < seq[s].n_rows; i++)
            pos[seq[s].row + i] = (int32_t)(seq[s].pos + i);
}

static struct mat rows_of(void *p, enum dtype dt, int64_t rows, int64_t cols)
{
    return mat_of(p, dt, rows, cols, cols);
}

void norm_forward(const struct model *m, const struct unit_weights *uw, enum param_kind kind, void *y,
                  float *stat, const void *x, int64_t rows)
{
    struct mat to = rows_of(y, m->dt, rows, m->hidden),
               from = rows_of((void *)(uintptr_t)x, m->dt, rows, m->hidden);
    float eps = (float)m->table.cfg.norm_eps;
    if (m->features & F_LAYER_NORM)
        KERNEL(m->dev, layer_norm, to, stat + rows, stat, from, uw->at[kind], uw->at[param_bias(kind)], eps);
    else
        KERNEL(m->dev, rms_norm, to, stat, from, uw->at[kind], eps);
}

void act_forward(const struct model *m, void *act, float *gu, int64_t rows)
{
    struct mat to = rows_of(act, m->dt, rows, m->inter), from = rows_of(gu, DT_F32, rows, m->up_cols);
    if (m->features & F_GATE)
        KERNEL(m->dev, swiglu, to, from);
    else
        KERNEL(m->dev, gelu, to, from);
}

struct head_norm model_head_norm(const struct model *m, const struct unit_weights *uw)
{
    return (struct head_norm){ uw->at[P_Q_NORM], uw->at[P_K_NORM], (float)m->table.cfg.norm_eps };
}

/* Adds the bias of `kind`, where there is one, to columns [c0, c0 + n) of y. */
static void add_bias(const struct model *m, const struct unit_weights *uw, enum param_kind kind, struct mat y,
                     int64_t c0, int64_t n)
{
    const void *bias = uw->at[param_bias(kind)];
    if (bias)
        KERNEL(m->dev, add_bias, mat_cols(y, c0, n), bias, m->dt);
}

/* x_out = round(x + round(Tree over tp of part, and the bias of the product `kind`)), own rows */
static int add_reduced(const struct model *m, const struct unit_weights *uw, enum param_kind kind,
                       const void *x, void *x_out, const struct seq_rows *r, struct err *e)
{
    struct mat sum;
    for (int64_t i = 0; ALTERED("round_before_tree") && i < rows_all(r) * m->hidden; i++) {
        uint32_t u; /* cut to bf16: what a sum over tp in bf16 would see */
        memcpy(&u, m->sum_rows + i, 4);
        u &= 0xffff0000u;
        memcpy(m->sum_rows + i, &u, 4);
    }
    int rc = rows_sum(m, r, &sum, e);
    if (rc < 0)
        return rc;
    add_bias(m, uw, kind, sum, 0, m->hidden);
    if (x_out != x)
        dev_copy(m->dev, x_out, x, (size_t)(sum.rows * m->hidden) * dtype_size(m->dt));
    KERNEL(m->dev, add_rounded, rows_of(x_out, m->dt, sum.rows, m->hidden), sum);
    return 0;
}

static void project_qkv(const struct model *m, const struct unit_weights *uw, const struct attn *a,
                        const struct layer_buf *b, struct mat h)
{
    int64_t rows = h.rows, heads = m->n_heads * m->head_dim, kv = m->n_kv * m->head_dim;
    struct mat qkv = rows_of(b->qkv, DT_F32, rows, heads + 2 * kv);
    struct head_norm norm = model_head_norm(m, uw);
    KERNEL(m->dev, linear, qkv, h, &uw->pack[PACK_QKV]);
    add_bias(m, uw, P_Q, qkv, 0, heads);
    add_bias(m, uw, P_K, qkv, heads, kv);
    add_bias(m, uw, P_V, qkv, heads + kv, kv);
    KERNEL(m->dev, rope_store, a, rows_of(b->q, m->dt, rows, heads), qkv, norm.q ? &norm : NULL, m->rope_cos,
           m->rope_sin);
}

int block_forward(const struct model *m, const struct unit_weights *uw, const struct attn *a,
                  const struct layer_buf *b, void *x_out, const struct seq_rows *r, struct err *e)
{
    struct dev *d = m->dev;
    int64_t heads = m->n_heads * m->head_dim, rows = rows_all(r), own = rows_own(r);
    struct mat sum = rows_of(m->sum_rows, DT_F32, rows, m->hidden),
               gu = rows_of(b->gu, DT_F32, rows, m->up_cols), h;
    int rc;

    norm_forward(m, uw, P_NORM_ATTN, b->h1, b->stat1, b->x, own);
    TRY(rows_gather(m, r, rows_of(b->h1, m->dt, own, m->hidden), &h, e));
    project_qkv(m, uw, a, b, h);
    KERNEL(d, attn, a, rows_of(b->o, m->dt, rows, heads), b->lse, rows_of(b->q, m->dt, rows, heads));
    KERNEL(d, linear, sum, rows_of(b->o, m->dt, rows, heads), &uw->pack[PACK_O]);
    TRY(add_reduced(m, uw, P_O, b->x, b->xm, r, e));

    norm_forward(m, uw, P_NORM_MLP, b->h2, b->stat2, b->xm, own);
    TRY(rows_gather(m, r, rows_of(b->h2, m->dt, own, m->hidden), &h, e));
    KERNEL(d, linear, gu, h, &uw->pack[PACK_GU]);
    add_bias(m, uw, P_GATE, gu, 0, m->inter);
    add_bias(m, uw, P_UP, gu, m->up_cols - m->inter, m->inter);
    act_forward(m, b->act, b->gu, rows);
    KERNEL(d, linear, sum, rows_of(b->act, m->dt, rows, m->inter), &uw->pack[PACK_DOWN]);
    TRY(add_reduced(m, uw, P_DOWN, b->xm, x_out, r, e));
    rc = 0;
out:
    return rc;
}

static int look_up(const struct model *m, const struct unit_weights *uw, const int32_t *ids, void *x,
                   const struct seq_rows *r, struct err *e)
{
    struct mat table = rows_of((void *)(uintptr_t)uw->at[P_EMBED], m->dt, m->vocab_n, m->hidden), sum;
    int64_t rows = rows_all(r);
    if (comm_size(m->tp) == 1) {
        KERNEL(m->dev, embed, rows_of(x, m->dt, rows, m->hidden), table, m->vocab_begin, ids);
        return 0;
    }
    /* ranks without the row bring -0, which changes no bit of a sum */
    KERNEL(m->dev, embed, rows_of(m->sum_rows, DT_F32, rows, m->hidden), table, m->vocab_begin, ids);
    int rc = rows_sum(m, r, &sum, e);
    if (rc >= 0)
        KERNEL(m->dev, round_to, x, m->dt, sum.p, sum.rows * m->hidden);
    return rc;
}

int embed_forward(const struct model *m, const struct unit_weights *uw, const int32_t *ids,
                  const int32_t *pos, void *x, const struct seq_rows *r, struct err *e)
{
    int rc = look_up(m, uw, ids, x, r, e);
    if (rc < 0 || !pos)
        return rc;
    struct mat table = rows_of((void *)(uintptr_t)uw->at[P_POS], m->dt, m->table.cfg.max_pos, m->hidden);
    struct mat own = rows_of(x, m->dt, rows_own(r), m->hidden);
    for (int s = 0; s < r->n_seq; s++)
        KERNEL(m->dev, embed_add, mat_rows(own, s * r->own_len, r->own_len), table,
               pos + s * r->len + rows_first(m, r));
    return 0;
}

int head_forward(const struct model *m, const struct unit_weights *uw, const void *x, void *hf, float *stat,
                 float *logits, int64_t logits_ld, const struct seq_rows *r, struct err *e)
{
    struct dev *d = m->dev;
    int64_t rows = rows_all(r);
    struct mat l = mat_of(logits, DT_F32, rows, m->vocab_n, logits_ld), h;
    float *max = m->stat, *sum = m->stat + m->max_rows;
    int rc;
    norm_forward(m, uw, P_NORM, hf, stat, x, rows_own(r));
    TRY(rows_gather(m, r, rows_of(hf, m->dt, rows_own(r), m->hidden), &h, e));
    KERNEL(d, linear, l, h, &uw->pack[PACK_HEAD]);
    KERNEL(d, ce_max, max, l);
    TRY(comm_all_reduce_max(m->tp, max, rows, e));
    KERNEL(d, ce_sum, sum, l, &m->of_vocab, max);
    TRY(comm_all_reduce(m->tp, sum, rows, e));
    rc = 0;
out:
    return rc;
}
