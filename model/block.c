/* block.c - forward of a Llama decoder layer (Touvron et al. 2023; grouped-query attention, Ainslie et al. 2023), tensor parallel
 * as Shoeybi et al. 2019 section 3: q k v gate up by rows, o and down by columns, one tree-ordered sum over tp after each. */
#include "model/block.h"

#include <math.h>
#include <string.h>
#include "base/alter.h"

struct attn model_attn(const struct model *m)
{
    return (struct attn){ .n_heads = m->n_heads, .n_kv = m->n_kv, .head_dim = (int)m->head_dim, .dt = m->dt,
                          .scale = (float)(1.0 / sqrt((double)m->head_dim)) };
}

static struct mat rows_of(void *p, enum dtype dt, int64_t rows, int64_t cols) { return mat_of(p, dt, rows, cols, cols); }

/* x_out = round(x + round(Tree over tp of part)) */
static int add_reduced(const struct model *m, const void *x, void *x_out, int64_t rows, struct err *e)
{
    for (int64_t i = 0; ALTERED("round_before_tree") && i < rows * m->hidden; i++) {
        uint32_t u;                      /* cut to bf16: what a sum over tp in bf16 would see */
        memcpy(&u, m->sum_rows + i, 4);
        u &= 0xffff0000u;
        memcpy(m->sum_rows + i, &u, 4);
    }
    int rc = comm_all_reduce(m->tp, m->sum_rows, rows * m->hidden, e);
    if (rc < 0)
        return rc;
    if (x_out != x)
        memcpy(x_out, x, (size_t)(rows * m->hidden) * dtype_size(m->dt));
    KERNEL(m->dev, add_rounded, rows_of(x_out, m->dt, rows, m->hidden), rows_of(m->sum_rows, DT_F32, rows, m->hidden));
    return 0;
}

int block_forward(const struct model *m, const struct unit_weights *uw, const struct attn *a, const struct layer_buf *b, void *x_out,
                  int64_t rows, struct err *e)
{
    struct dev *d = m->dev;
    int64_t heads = m->n_heads * m->head_dim, qkv = heads + 2 * m->n_kv * m->head_dim;
    float eps = (float)m->table.cfg.norm_eps;
    struct mat sum = rows_of(m->sum_rows, DT_F32, rows, m->hidden);
    int rc;

    KERNEL(d, rms_norm, rows_of(b->h1, m->dt, rows, m->hidden), b->rstd1, rows_of(b->x, m->dt, rows, m->hidden), uw->norm[0], eps);
    KERNEL(d, linear, rows_of(b->qkv, DT_F32, rows, qkv), rows_of(b->h1, m->dt, rows, m->hidden), &uw->pack[PACK_QKV]);
    KERNEL(d, rope_store, a, rows_of(b->q, m->dt, rows, heads), rows_of(b->qkv, DT_F32, rows, qkv), NULL, m->rope_cos, m->rope_sin);
    KERNEL(d, attn, a, rows_of(b->o, m->dt, rows, heads), b->lse, rows_of(b->q, m->dt, rows, heads));
    KERNEL(d, linear, sum, rows_of(b->o, m->dt, rows, heads), &uw->pack[PACK_O]);
    TRY(add_reduced(m, b->x, b->xm, rows, e));

    KERNEL(d, rms_norm, rows_of(b->h2, m->dt, rows, m->hidden), b->rstd2, rows_of(b->xm, m->dt, rows, m->hidden), uw->norm[1], eps);
    KERNEL(d, linear, rows_of(b->gu, DT_F32, rows, 2 * m->inter), rows_of(b->h2, m->dt, rows, m->hidden), &uw->pack[PACK_GU]);
    KERNEL(d, swiglu, rows_of(b->act, m->dt, rows, m->inter), rows_of(b->gu, DT_F32, rows, 2 * m->inter));
    KERNEL(d, linear, sum, rows_of(b->act, m->dt, rows, m->inter), &uw->pack[PACK_DOWN]);
    TRY(add_reduced(m, b->xm, x_out, rows, e));
    rc = 0;
out:
    return rc;
}

int embed_forward(const struct model *m, const struct unit_weights *uw, const int32_t *ids, void *x, int64_t rows, struct err *e)
{
    struct mat table = rows_of((void *)(uintptr_t)uw->embed, m->dt, m->vocab_n, m->hidden);
    if (comm_size(m->tp) == 1) {
        KERNEL(m->dev, embed, rows_of(x, m->dt, rows, m->hidden), table, m->vocab_begin, ids);
        return 0;
    }
    /* ranks without the row bring -0, which changes no bit of a sum */
    KERNEL(m->dev, embed, rows_of(m->sum_rows, DT_F32, rows, m->hidden), table, m->vocab_begin, ids);
    int rc = comm_all_reduce(m->tp, m->sum_rows, rows * m->hidden, e);
    if (rc < 0)
        return rc;
    KERNEL(m->dev, round_to, x, m->dt, m->sum_rows, rows * m->hidden);
    return 0;
}

int head_forward(const struct model *m, const struct unit_weights *uw, const void *x, void *hf, float *rstd, float *logits,
                 int64_t logits_ld, int64_t rows, struct err *e)
{
    struct dev *d = m->dev;
    struct mat l = mat_of(logits, DT_F32, rows, m->vocab_n, logits_ld);
    float *max = m->stat, *sum = m->stat + m->max_rows;
    int rc;
    KERNEL(d, rms_norm, rows_of(hf, m->dt, rows, m->hidden), rstd, rows_of((void *)(uintptr_t)x, m->dt, rows, m->hidden), uw->norm[0],
           (float)m->table.cfg.norm_eps);
    KERNEL(d, linear, l, rows_of(hf, m->dt, rows, m->hidden), &uw->pack[PACK_HEAD]);
    KERNEL(d, ce_max, max, l);
    TRY(comm_all_reduce_max(m->tp, max, rows, e));
    KERNEL(d, ce_sum, sum, l, &m->of_vocab, max);
    TRY(comm_all_reduce(m->tp, sum, rows, e));
    rc = 0;
out:
    return rc;
}
