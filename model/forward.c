/* forward.c - forward without backward: the server's step and evaluation. See model.h. */
#include <string.h>
#include "model/block.h"

void forward_work_carve(const struct model *m, struct arena *a, int64_t rows, int64_t logit_rows,
                        struct forward_work *w)
{
    size_t el = dtype_size(m->dt);
    int64_t heads = m->n_heads * m->head_dim, qkv = heads + 2 * m->n_kv * m->head_dim;
    /* a rank's columns at most */
    int64_t share = (m->vocab + comm_size(m->tp) - 1) / comm_size(m->tp) + m->grain;
    w->rows = rows;
    w->logit_rows = logit_rows;
    w->x = arena_take(a, (size_t)(rows * m->hidden) * el);
    w->h = arena_take(a, (size_t)(rows * m->hidden) * el);
    w->stat = arena_take(a, (size_t)norm_stats(m, rows > logit_rows ? rows : logit_rows) * sizeof(float));
    w->qkv = arena_take(a, (size_t)(rows * qkv) * sizeof(float));
    w->q = arena_take(a, (size_t)(rows * heads) * el);
    w->o = arena_take(a, (size_t)(rows * heads) * el);
    w->gu = arena_take(a, (size_t)(rows * m->up_cols) * sizeof(float));
    w->act = arena_take(a, (size_t)(rows * m->inter) * el);
    w->hf = arena_take(a, (size_t)(2 * logit_rows * m->hidden) * el);
    w->logits = arena_take(a, (size_t)(logit_rows * m->vocab) * sizeof(float));
    w->part_logits = comm_size(m->tp) > 1
                         ? arena_take(a,
                                      (size_t)(logit_rows * share * (1 + comm_size(m->tp))) * sizeof(float))
                         : NULL;
}

/* Logits of the whole vocabulary on every rank: local columns, gathered, put side by side. */
static int gather_logits(const struct model *m, struct forward_work *w, int64_t n, int64_t width,
                         struct err *e)
{
    int tp = comm_size(m->tp), each = m->grain / tp;
    float *mine = w->part_logits, *all = mine + n * width;
    int rc = comm_all_gather(m->tp, all, mine, (size_t)(n * width) * sizeof(float), e);
    if (rc < 0)
        return rc;
    for (int r = 0; r < tp; r++) {
        int64_t begin = block_begin(m->vocab, m->grain, r * each),
                count = block_begin(m->vocab, m->grain, (r + 1) * each) - begin;
        dev_copy_rows(m->dev, w->logits + begin, (size_t)m->vocab * sizeof(float), all + r * n * width,
                      (size_t)width * sizeof(float), (size_t)count * sizeof(float), n);
    }
    return 0;
}

static int wanted_logits(const struct model *m, struct weights *ws, struct forward_work *w,
                         const int32_t *want, int64_t n, struct head_out *out, struct err *e)
{
    const struct unit_weights *uw;
    int unit = (int)m->n_layers + 1, rc;
    size_t row = (size_t)m->hidden * dtype_size(m->dt);
    struct seq_rows r = rows_whole(n);
    int64_t width = block_size(m->vocab, m->grain) * (m->grain / comm_size(m->tp));
    char *picked = (char *)w->hf + (size_t)w->logit_rows * row;
    KERNEL(m->dev, embed, mat_of(picked, m->dt, n, m->hidden, m->hidden),
           mat_of(w->x, m->dt, w->rows, m->hidden, m->hidden), 0, want);
    if ((rc = ws->get(ws, unit, 0, &uw, e)) < 0)
        return rc;
    if (comm_size(m->tp) == 1) {
        rc = head_forward(m, uw, picked, w->hf, w->stat, w->logits, m->vocab, &r, e);
    } else {
        TRY(head_forward(m, uw, picked, w->hf, w->stat, w->part_logits, width, &r, e));
        rc = gather_logits(m, w, n, width, e);
    }
    *out = (struct head_out){ w->logits, m->stat, m->stat + m->max_rows };
out:
    ws->put(ws, unit);
    return rc;
}

int model_forward_part(struct model *m, struct weights *ws, int chunk, const struct batch *b,
                       struct forward_work *w, const int32_t *want, int64_t n_want, struct head_out *out,
                       struct err *e)
{
    const struct stage *at = &m->chunk[chunk];
    struct layer_buf buf = {
        w->x, w->h, w->stat, w->qkv, w->q, w->o, NULL, w->x, w->h, w->stat, w->gu, w->act
    };
    struct seq_rows r = rows_whole(b->n_rows);
    const struct unit_weights *uw;
    int rc = 0;
    if (b->n_rows > w->rows || n_want > w->logit_rows || b->n_rows > m->max_rows)
        return err_set(e, ERR_INTERNAL,
                       "a batch of %lld rows and %lld logit rows, work memory for %lld and %lld",
                       (long long)b->n_rows, (long long)n_want, (long long)w->rows, (long long)w->logit_rows);
    if (m->pos)
        model_positions(b->seq, b->n_seq, m->pos);
    for (int i = 0; i < b->n_seq; i++)
        TRY(model_turns_upto(m, b->seq[i].pos + b->seq[i].n_rows, e));
    if (at->has_embed) {
        TRY(ws->get(ws, 0, 0, &uw, e));
        rc = embed_forward(m, uw, b->ids, m->pos, w->x, &r, e);
        ws->put(ws, 0);
    }
    for (int unit = at->first_unit; rc >= 0 && unit <= at->last_unit; unit++) {
        struct attn a = model_attn(m, unit - 1);
        a.n_seq = b->n_seq;
        a.seq = b->seq;
        a.page_off = b->page_layer_bytes * (size_t)(unit - 1);
        TRY(ws->get(ws, unit, 0, &uw, e));
        if (unit < at->last_unit || (at->has_head && n_want))
            rc = weights_soon(ws, unit + 1, 0, e);
        if (rc >= 0)
            rc = block_forward(m, uw, &a, &buf, w->x, &r, e);
        ws->put(ws, unit);
    }
    if (rc >= 0 && at->has_head && n_want)
        rc = wanted_logits(m, ws, w, want, n_want, out, e);
out:
    return rc < 0 ? rc : dev_check(m->dev, e);
}

int model_forward(struct model *m, struct weights *ws, const struct batch *b, struct forward_work *w,
                  const int32_t *want, int64_t n_want, struct head_out *out, struct err *e)
{
    return model_forward_part(m, ws, 0, b, w, want, n_want, out, e);
}
