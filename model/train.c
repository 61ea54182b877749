/* train.c - forward that keeps its activations, and their memory. See model.h; backward is in backward.c. */
#include <stdlib.h>
#include <string.h>
#include "base/alter.h"
#include "model/train_priv.h"

static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Buffers of a layer besides its input; which of them all layers share is the recompute policy's business. */
static void carve_layer(const struct train_work *w, struct arena *a, struct layer_buf *b, int cheap, int rest)
{
    const struct model *m = w->m;
    size_t el = dtype_size(m->dt);
    int64_t rows = w->rows, own = w->own;
    if (cheap) {
        b->h1 = arena_take(a, (size_t)(own * m->hidden) * el);
        b->h2 = arena_take(a, (size_t)(own * m->hidden) * el);
        b->act = arena_take(a, (size_t)(rows * m->inter) * el);
    }
    if (!rest)
        return;
    b->stat1 = arena_take(a, (size_t)norm_stats(m, own) * sizeof(float));
    if (m->features & F_QK_NORM)
        b->qkv = arena_take(a, (size_t)(rows * qkv_of(m)) * sizeof(float));
    b->q = arena_take(a, (size_t)(rows * heads_of(m)) * el);
    b->o = arena_take(a, (size_t)(rows * heads_of(m)) * el);
    b->lse = arena_take(a, (size_t)(rows * m->n_heads) * sizeof(float));
    b->xm = arena_take(a, (size_t)(own * m->hidden) * el);
    b->stat2 = arena_take(a, (size_t)norm_stats(m, own) * sizeof(float));
    b->gu = arena_take(a, (size_t)(rows * m->up_cols) * sizeof(float));
}

/* Of one sequence: every document but one may need a page more. */
static int64_t pages_of(const struct train_work *w)
{
    return (w->seq_len + ATTN_PAGE - 1) / ATTN_PAGE + w->documents - 1;
}

static void set_pages(struct train_work *w, int l, char *kv)
{
    int64_t pages = w->n_seq * pages_of(w);
    for (int64_t i = 0; i < pages; i++)
        w->page[l * pages + i] = kv + model_page_bytes(w->m) * (size_t)i;
}

/* The documents of sequence s in layer l, from seq[0] on: their number. */
static int set_documents(struct train_work *w, int l, int s, int n, const int64_t *begin,
                         struct attn_seq *seq)
{
    char **page = w->page + ((int64_t)l * w->n_seq + s) * pages_of(w);
    for (int i = 0; i < n; i++) {
        int64_t from = i ? begin[i] : 0, to = i + 1 < n ? begin[i + 1] : w->seq_len;
        seq[i] = (struct attn_seq){ s * w->seq_len + from, to - from, 0, page };
        page += (to - from + ATTN_PAGE - 1) / ATTN_PAGE;
    }
    return n;
}

void train_work_documents(struct train_work *w, const int *n, const int64_t *begin)
{
    for (int l = 0; l < w->n_layers; l++) {
        struct attn_seq *seq = w->seq + (int64_t)l * w->n_seq * w->documents;
        w->n_attn = 0;
        for (int s = 0; s < w->n_seq; s++)
            w->n_attn += set_documents(w, l, s, n ? n[s] : 1,
                                       begin ? begin + (int64_t)s * w->documents : NULL, seq + w->n_attn);
    }
}

/* Keys of another micro-batch may lie behind a document's last one, where attention wants zeros. */
void train_clean_pages(const struct train_work *w, const struct attn *a)
{
    for (int i = 0; w->documents > 1 && i < a->n_seq; i++)
        if (a->seq[i].n_rows % ATTN_PAGE)
            dev_fill(w->m->dev, a->seq[i].page[a->seq[i].n_rows / ATTN_PAGE], 0, model_page_bytes(w->m));
}

static void *take_x(const struct train_work *w, struct arena *a)
{
    return arena_take(a, (size_t)(w->own * w->m->hidden) * dtype_size(w->m->dt));
}

static void carve_layers(struct train_work *w, struct arena *a)
{
    const struct model *m = w->m;
    size_t kv_bytes = model_page_bytes(m) * (size_t)(w->n_seq * pages_of(w));
    struct layer_buf shared = { 0 };
    int full = w->recompute == RECOMPUTE_FULL;
    char *kv = full ? arena_take(a, kv_bytes) : NULL;
    if (!(m->features & F_QK_NORM))
        shared.qkv = w->scratch;
    size_t begin = a->used;
    w->again = a->base ? a->base + begin : NULL;
    carve_layer(w, a, &shared, w->recompute != RECOMPUTE_NONE, full);
    w->x_last = full ? take_x(w, a) : NULL;
    w->again_bytes = a->used - begin;
    for (int l = 0; l < w->n_layers; l++) {
        struct layer_buf b = shared;
        b.x = take_x(w, a);
        carve_layer(w, a, &b, w->recompute == RECOMPUTE_NONE, !full);
        char *own = full ? kv : arena_take(a, kv_bytes);
        if (!a->base)
            continue;
        w->layer[l] = b;
        set_pages(w, l, own);
    }
}

/* What a layer uses for a moment lies where the logits are, between whose forward and backward no layer
 * comes; late weight gradients do. */
static void carve_head_or_layer(struct train_work *w, struct arena *a, int64_t head)
{
    const struct model *m = w->m;
    size_t el = dtype_size(m->dt), rows = (size_t)w->rows;
    struct arena logits = *a;
    w->logits = arena_take(&logits, (size_t)(head * m->vocab_n) * sizeof(float));
    w->dlogits = m->dt == DT_F32 ? w->logits : arena_take(&logits, (size_t)(head * m->vocab_n) * el);
    if (w->late_weights)
        *a = logits;
    w->scratch = arena_take(a, rows * (size_t)max64(qkv_of(m) * (int64_t)sizeof(float),
                                                    m->up_cols * (int64_t)el));
    w->dh = w->scratch;
    w->d_act = arena_take(a, rows * (size_t)max64(heads_of(m), m->inter) * sizeof(float));
    w->dq = arena_take(a, rows * (size_t)heads_of(m) * sizeof(float));
    w->dout = arena_take(a, rows * (size_t)heads_of(m) * el);
    w->turned = m->features & F_TRANSPOSED
                    ? arena_take(a, (size_t)(m->hidden * max64(qkv_of(m), m->up_cols)) * el)
                    : NULL;
    a->used = a->used > logits.used ? a->used : logits.used;
}

static void carve(struct train_work *w, struct arena *a)
{
    const struct model *m = w->m;
    size_t el = dtype_size(m->dt);
    int64_t rows = w->rows, own = w->own, head = w->at.has_head ? rows : 0,
            head_own = w->at.has_head ? own : 0;
    carve_head_or_layer(w, a, head);
    carve_layers(w, a);
    if (w->recompute != RECOMPUTE_FULL)
        w->x_last = take_x(w, a);
    w->hf = arena_take(a, (size_t)(head_own * m->hidden) * el);
    w->stat_last = arena_take(a, (size_t)norm_stats(m, head_own) * sizeof(float));
    w->max = arena_take(a, (size_t)head * sizeof(float));
    w->sum = arena_take(a, (size_t)head * sizeof(float));
    w->dx = arena_take(a, (size_t)(own * m->hidden) * el);
}

/* Besides the arena: what ranks of tp add up. */
static size_t dkv_bytes(const struct train_work *w)
{
    return (size_t)(2 * w->rows * kv_of(w->m)) * sizeof(float);
}
static size_t leaf_bytes(const struct train_work *w)
{
    const struct model *m = w->m;
    int64_t heads = m->features & F_QK_NORM ? 2 * m->head_dim : 0,
            norm = rows_shared(&w->r) ? norm_grads(m) : 0;
    return (size_t)(w->n_seq * max64(heads, norm)) * sizeof(float);
}

struct train_work train_work_of(const struct model *m, int chunk, const struct work_shape *s)
{
    int64_t own = s->seq_len / m->shares;
    return (struct train_work){ .m = (struct model *)(uintptr_t)m,
                                .at = m->chunk[chunk],
                                .recompute = s->recompute,
                                .n_seq = s->n_seq,
                                .n_layers = m->chunk[chunk].last_unit - m->chunk[chunk].first_unit + 1,
                                .seq_len = s->seq_len,
                                .documents = s->documents > 1 ? s->documents : 1,
                                .late_weights = s->late_weights,
                                .rows = s->n_seq * s->seq_len,
                                .own = s->n_seq * own,
                                .r = { s->n_seq, s->seq_len, own } };
}

size_t train_work_measure(const struct model *m, int chunk, const struct work_shape *s)
{
    struct train_work w = train_work_of(m, chunk, s);
    struct arena a = { 0 };
    carve(&w, &a);
    return a.used + dkv_bytes(&w) + leaf_bytes(&w);
}

int train_work_check(const struct model *m, const struct work_shape *s, struct err *e)
{
    if (m->shares > 1 && s->seq_len % m->grain)
        return err_set(e, ERR_USAGE,
                       "--seq-len %lld does not divide into the %d blocks (GRAIN) that --sp shares among "
                       "ranks: use a multiple of %d",
                       (long long)s->seq_len, m->grain, m->grain);
    return 0;
}

size_t train_scratch_measure(const struct model *m, const struct work_shape *s, int threads)
{
    /* what dev_scratch takes besides */
    enum { MORE = 1 << 20 };
    int64_t rows = s->n_seq * s->seq_len, head = m->has_head ? m->vocab_n : 0, heads = heads_of(m);
    /* largest: of the matrices that are one product forward */
    const struct {
        int64_t outputs, largest, inputs;
    } of[] = {
        { qkv_of(m), heads, m->hidden },     { m->hidden, m->hidden, heads },
        { m->up_cols, m->inter, m->hidden }, { m->hidden, m->hidden, m->inter },
        { head, head, m->hidden },
    };
    size_t bytes[2] = { 0 }, turned = (size_t)(max64(qkv_of(m), m->up_cols) * m->hidden) * dtype_size(m->dt);
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        if (!of[i].outputs)
            continue;
        linear_scratch(PRODUCT_LINEAR, m->dt, rows, of[i].outputs, of[i].inputs, threads, bytes);
        linear_scratch(PRODUCT_DX, m->dt, rows, of[i].inputs, of[i].outputs, threads, bytes);
        linear_scratch(PRODUCT_DW, m->dt, of[i].largest, of[i].inputs, rows, threads, bytes);
    }
    for (int i = 0; i < 2; i++)
        bytes[i] += bytes[i] / 4 < MORE ? bytes[i] / 4 : MORE;
    return bytes[0] + bytes[1] + (m->features & F_TRANSPOSED ? turned : 0);
}

int train_work_open(struct train_work **out, struct model *m, int chunk, const struct work_shape *s,
                    struct err *e)
{
    struct train_work *w = calloc(1, sizeof *w);
    struct arena a = { 0 };
    if (!w)
        return err_set(e, ERR_MEMORY, "no memory for a micro-batch");
    *w = train_work_of(m, chunk, s);
    w->layer = calloc((size_t)w->n_layers, sizeof *w->layer);
    w->page = calloc((size_t)(w->n_layers * w->n_seq * pages_of(w)), sizeof *w->page);
    w->seq = calloc((size_t)(w->n_layers * w->n_seq * w->documents), sizeof *w->seq);
    carve(w, &a);
    w->memory = dev_alloc(m->dev, MEM_ACTS, a.used);
    w->dkv = comm_alloc(m->tp, MEM_ACTS, dkv_bytes(w));
    if (leaf_bytes(w))
        w->leaf = comm_alloc(m->tp, MEM_ACTS, leaf_bytes(w));
    if (m->features & F_POSITIONS)
        w->pos = calloc((size_t)w->rows, sizeof *w->pos);
    if (!w->layer || !w->page || !w->seq || !w->memory || !w->dkv || (leaf_bytes(w) && !w->leaf) ||
        (m->features & F_POSITIONS && !w->pos)) {
        train_work_close(w);
        return err_set(e, ERR_MEMORY,
                       "no memory for the activations of %d sequences of %lld tokens (%zu MiB): use a "
                       "smaller --micro-batch or --seq-len, or --recompute",
                       s->n_seq, (long long)s->seq_len, a.used >> 20);
    }
    a = (struct arena){ w->memory, 0, a.used };
    carve(w, &a);
    train_work_documents(w, NULL, NULL);
    *out = w;
    return 0;
}

void train_work_close(struct train_work *w)
{
    if (!w)
        return;
    comm_free(w->m->tp, w->dkv);
    comm_free(w->m->tp, w->leaf);
    dev_free(w->m->dev, w->memory);
    free(w->pos);
    free(w->seq);
    free(w->page);
    free(w->layer);
    free(w);
}

void *train_work_input(struct train_work *w) { return w->layer[0].x; }
void *train_work_output(struct train_work *w) { return w->x_last; }
void *train_work_grad(struct train_work *w) { return w->dx; }
size_t train_work_bytes(const struct train_work *w)
{
    return (size_t)(w->own * w->m->hidden) * dtype_size(w->m->dt);
}

struct attn train_attn(const struct train_work *w, int unit)
{
    struct attn a = model_attn(w->m, unit - 1);
    a.n_seq = w->n_attn;
    a.seq = w->seq + (int64_t)(unit - w->at.first_unit) * w->n_seq * w->documents;
    return a;
}

/* ---- forward ---- */
static int losses(const struct model *m, struct train_work *w, const int32_t *targets, float *logprobs,
                  struct err *e)
{
    float *pick = m->stat + 2 * m->max_rows, *logprob = m->stat + 3 * m->max_rows;
    KERNEL(m->dev, ce_pick, pick, mat_of(w->logits, DT_F32, w->rows, m->vocab_n, m->vocab_n), targets,
           m->vocab_begin);
    int rc = comm_all_reduce(m->tp, pick, w->rows, e);
    if (rc < 0)
        return rc;
    KERNEL(m->dev, ce_logprob, logprob, pick, w->max, w->sum, w->rows);
    dev_read(m->dev, logprobs, logprob, (size_t)w->rows * sizeof *logprobs);
    return 0;
}

static int head_part(struct model *m, struct weights *ws, struct train_work *w, const int32_t *targets,
                     float *logprobs, struct err *e)
{
    const struct unit_weights *uw;
    int head = (int)m->n_layers + 1, rc = ws->get(ws, head, 0, &uw, e);
    if (rc < 0)
        return rc;
    if ((rc = weights_soon(ws, w->at.last_unit, w->recompute != RECOMPUTE_FULL, e)) >= 0)
        rc = head_forward(m, uw, w->x_last, w->hf, w->stat_last, w->logits, m->vocab_n, &w->r, e);
    ws->put(ws, head);
    if (rc < 0)
        return rc;
    /* another micro-batch may come before backward */
    dev_copy(m->dev, w->max, m->stat, (size_t)w->rows * sizeof(float));
    dev_copy(m->dev, w->sum, m->stat + m->max_rows, (size_t)w->rows * sizeof(float));
    return logprobs ? losses(m, w, targets, logprobs, e) : 0;
}

int model_train_forward(struct model *m, struct weights *ws, struct train_work *w, const int32_t *ids,
                        const int32_t *targets, float *logprobs, struct err *e)
{
    const struct unit_weights *uw;
    int rc = 0;
    TRY(model_turns_upto(m, m->max_pos, e));
    if (w->pos)
        model_positions(w->seq, w->n_attn, w->pos);
    if (w->at.has_embed) {
        TRY(ws->get(ws, 0, 0, &uw, e));
        if ((rc = weights_soon(ws, w->at.first_unit, 0, e)) >= 0)
            rc = embed_forward(m, uw, ids, w->pos, w->layer[0].x, &w->r, e);
        ws->put(ws, 0);
    }
    for (int unit = w->at.first_unit; rc >= 0 && unit <= w->at.last_unit; unit++) {
        struct attn a = train_attn(w, unit);
        train_clean_pages(w, &a);
        TRY(ws->get(ws, unit, 0, &uw, e));
        if (unit < w->at.last_unit || w->at.has_head)
            rc = weights_soon(ws, unit + 1, 0, e);
        if (rc >= 0)
            rc = block_forward(m, uw, &a, layer_of(w, unit),
                               unit < w->at.last_unit ? layer_of(w, unit + 1)->x : w->x_last, &w->r, e);
        ws->put(ws, unit);
    }
    if (rc >= 0 && w->at.has_head)
        rc = head_part(m, ws, w, targets, logprobs, e);
out:
    return rc < 0 ? rc : dev_check(m->dev, e);
}
