/* attn_fwd_text.h - the forward half of attn_text.h; the order is defined there.
 *
 * A task is the 64 positions of one block of one sequence, in all query heads of one kv head; its rows are numbered head by
 * head and cut into chunks of at most 64, which share every load of K and V. */

struct fwd_work {                               /* a thread's own memory; [rows] are the rows of one chunk */
    float *q;                                   /* [rows][dp], as an operand */
    float *s;                                   /* [rows][64]: scores, then p */
    float *o[2], *m[2], *l[2];                  /* state: [rows][dp], [rows], [rows]; [0] total, [1] a later segment */
    float *k, *v;                               /* [d][64], [64][dp]: room for copies */
    float *top, *c, *sum;                       /* [rows]: of the block at hand */
    int64_t *live, *from;                       /* [rows]: of the block at hand the row sees keys from .. live - 1 */
};

struct fwd {
    const struct attn *a;
    struct mat out, q;
    float *lse;
    char *scratch;
    size_t scratch_bytes;                       /* a thread */
};

struct chunk {                                  /* rows [first, first + n) of a task: row r is head r / n_pos, position r % n_pos */
    struct view v;
    int64_t block, first, n;
    int64_t pos, n_pos;                         /* positions of the task */
};

static int64_t chunk_row(const struct chunk *c, int64_t i)      /* its row in the batch */
{
    return c->v.seq->row + c->pos - c->v.seq->pos + (c->first + i) % c->n_pos;
}

static int64_t chunk_head(const struct chunk *c, int64_t i) { return c->v.kv * c->v.group + (c->first + i) / c->n_pos; }

static size_t fwd_carve(struct fwd_work *w, const struct attn *a, char *base)
{
    struct arena m = { base, 0, (size_t)-1 };
    const int64_t d = a->head_dim, dp = padded(d);
    w->q = ARENA_NEW(&m, float, ROWS_MAX * dp);
    w->s = ARENA_NEW(&m, float, ROWS_MAX * ATTN_PAGE);
    for (int i = 0; i < 2; i++) {
        w->o[i] = ARENA_NEW(&m, float, ROWS_MAX * dp);
        w->m[i] = ARENA_NEW(&m, float, ROWS_MAX);
        w->l[i] = ARENA_NEW(&m, float, ROWS_MAX);
    }
    w->k = ARENA_NEW(&m, float, d * ATTN_PAGE);
    w->v = ARENA_NEW(&m, float, ATTN_PAGE * dp);
    w->top = ARENA_NEW(&m, float, ROWS_MAX);
    w->c = ARENA_NEW(&m, float, ROWS_MAX);
    w->sum = ARENA_NEW(&m, float, ROWS_MAX);
    w->live = ARENA_NEW(&m, int64_t, ROWS_MAX);
    w->from = ARENA_NEW(&m, int64_t, ROWS_MAX);
    return (m.used + 4095) & ~(size_t)4095;     /* threads do not share a page */
}

/* Scores from .. live - 1 of a row, and -inf. */
static inline void mask_row(float *s, int64_t from, int64_t live)
{
    for (int i = 0; i < N_V; i++)
        V_STORE(s + i * VW, keep_seen(V_LOAD(s + i * VW), from - i * VW, live - i * VW, V_SET1(-INFINITY)));
}

/* Which keys of a block the rows see; whether that is less than all. */
static int see_block(const struct chunk *c, struct fwd_work *w, int64_t block)
{
    const int64_t key = block * ATTN_PAGE;
    for (int64_t i = 0; i < c->n; i++) {
        const int64_t p = c->pos + (c->first + i) % c->n_pos, from = first_key(c->v.a, p) - key, live = p - key + 1;
        w->from[i] = from < 0 ? 0 : from;
        w->live[i] = live < ATTN_PAGE ? live : ATTN_PAGE;
    }
    return block == c->block || first_key(c->v.a, c->pos + c->n_pos - 1) > key;
}

/* One row of a block: scores become p; returns their sum. Behind `live` p is +0. */
static inline float softmax_row(float *s, float scale, float top, enum chain c, int64_t live)
{
    V x[N_V];
    const V scales = V_SET1(scale), tops = V_SET1(top);
    for (int i = 0; i < N_V; i++)
        x[i] = i * VW < live ? V_EXP_DOWN(V_SUB(V_MUL(scales, V_LOAD(s + i * VW)), tops)) : V_ZERO();
    store_across(s, x, c);
    if (ALTERED("attn_block_sum")) {            /* one chain over the 64 */
        float p[ATTN_PAGE], sum = 0;
        for (int i = 0; i < N_V; i++)
            V_STORE(p + i * VW, x[i]);
        for (int j = 0; j < ATTN_PAGE; j++)
            sum = sum + p[j];
        return sum;
    }
    return block_sum(x);
}

/* The scores of all rows become p, as the operand of P.V; m and l move on; w->c: what o is to be scaled by. */
static void softmax_rows(const struct chunk *c, struct fwd_work *w, float *m, float *l, int masked)
{
    const float scale = c->v.a->scale;
    const enum chain chain = chain_of(c->v.a);
    for (int64_t i = 0; i < c->n; i++) {
        float *s = w->s + i * ATTN_PAGE, top;
        if (masked)
            mask_row(s, w->from[i], w->live[i]);        /* -inf is scaled still (scale > 0) */
        top = scale * block_max(s);             /* the largest is so before and after scaling: rounding is monotonic */
        w->top[i] = masked && w->from[i] >= ATTN_PAGE ? 0 : top > m[i] ? top : m[i];    /* nothing seen: 0, so that p and c are 0 */
    }
    for (int64_t i = 0; i < c->n; i += VW) {    /* rows behind the last are room, never looked at */
        V_STORE(w->c + i, V_EXP_DOWN(V_SUB(V_LOAD(m + i), V_LOAD(w->top + i))));
        V_STORE(m + i, V_LOAD(w->top + i));
    }
    if (masked)
        for (int64_t i = 0; i < c->n; i++) {
            w->sum[i] = softmax_row(w->s + i * ATTN_PAGE, scale, m[i], chain, w->live[i]);
            m[i] = w->from[i] >= ATTN_PAGE ? -INFINITY : m[i];          /* as it was */
        }
    else
        for (int64_t i = 0; i < c->n; i++)
            w->sum[i] = softmax_row(w->s + i * ATTN_PAGE, scale, m[i], chain, ATTN_PAGE);
    for (int64_t i = 0; i < c->n; i += VW)
        V_STORE(l + i, V_FMA(V_LOAD(l + i), V_LOAD(w->c + i), V_LOAD(w->sum + i)));
}

static void scale_rows(float *o, const float *scale, int64_t n_rows, int64_t n)
{
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t x = 0; x < n && scale[i] != 1; x++)        /* o * 1 is o */
            o[i * n + x] = o[i * n + x] * scale[i];
}

static void fwd_block(const struct chunk *c, struct fwd_work *w, int64_t block, int part, int first)
{
    const struct attn *a = c->v.a;
    const int64_t d = a->head_dim, dp = padded(d);
    const enum chain chain = chain_of(a);
    struct prod qk = { w->s, ATTN_PAGE, w->q, dp, 1, NULL, ATTN_PAGE, c->n, ATTN_PAGE, steps_of(chain, d), FROM_ZERO, chain, NULL };
    struct prod pv = { w->o[part], dp, w->s, ATTN_PAGE, 1, NULL, dp, c->n, dp, steps_of(chain, ATTN_PAGE), first ? FROM_ZERO : FROM_C, chain, NULL };
    if (chain != CHAIN_PLAIN && HAVE_DIRECT && c->n <= TILE_ROWS && d == dp) {
        qk.chain = pv.chain = CHAIN_DIRECT;     /* one tile: read once, converted on the way */
        qk.b = (const float *)(const void *)page_of(&c->v, block);
        pv.b = (const float *)(const void *)raw_values(&c->v, block);
        qk.ldb = HAVE_PAIRS ? ATTN_PAGE : ATTN_PAGE / 2;
        pv.ldb = HAVE_PAIRS ? d : d / 2;
    } else {
        qk.b = keys_of(&c->v, block, w->k);
        pv.b = values_of(&c->v, block, w->v);
    }
    const int masked = see_block(c, w, block);
    if (block == c->block)
        product_below(&qk, w->live, "attn_qk_chain");
    else
        product_in(&qk, "attn_qk_chain");
    softmax_rows(c, w, w->m[part], w->l[part], masked);
    if (pv.chain == CHAIN_PLAIN || pv.chain == CHAIN_PAIRS)
        pv.scale = w->c;
    else if (!first)
        scale_rows(w->o[part], w->c, c->n, dp); /* not while chains flush */
    if (ALTERED("attn_masked_blocks") && block == c->block)
        pv.k = steps_of(chain, w->live[c->n - 1]);      /* stops at the last key that is seen */
    product_in(&pv, "attn_pv_chain");
}

/* The state of a later segment onto the total; a row that has seen nothing before (l is 0) takes it as it is. */
static void merge_segment(const struct chunk *c, struct fwd_work *w)
{
    const int64_t dp = padded(c->v.a->head_dim);
    for (int64_t i = 0; i < c->n; i++) {
        float *ot = w->o[0] + i * dp;
        const float *os = w->o[1] + i * dp, mt = w->m[0][i], ms = w->m[1][i];
        const float top = mt > ms ? mt : ms, x = exp_one(mt - top), y = exp_one(ms - top);
        if (w->l[0][i] == 0 && !ALTERED("attn_window_merge")) {
            w->m[0][i] = ms, w->l[0][i] = w->l[1][i];
            memcpy(ot, os, (size_t)dp * sizeof *ot);
            continue;
        }
        w->m[0][i] = top;
        w->l[0][i] = fmaf(w->l[0][i], x, w->l[1][i] * y);
        for (int64_t j = 0; j < dp; j++)
            ot[j] = fmaf(ot[j], x, os[j] * y);
    }
}

static void fwd_store(const struct fwd *f, const struct chunk *c, const struct fwd_work *w)
{
    const int64_t d = c->v.a->head_dim, dp = padded(d);
    for (int64_t i = 0; i < c->n; i++) {
        const int64_t row = chunk_row(c, i), head = chunk_head(c, i);
        const float *o = w->o[0] + i * dp, l = w->l[0][i];
        void *to = (void *)element(f->out, row, head * d);
        if (f->out.dt == DT_F32)
            for (int64_t x = 0; x < d; x++)
                ((float *)to)[x] = o[x] / l;
        else
            for (int64_t x = 0; x < d; x++)
                ((uint16_t *)to)[x] = fn_to_bf16(o[x] / l);
        if (f->lse)
            f->lse[row * c->v.a->n_heads + head] = w->m[0][i] + fn_log(l);
    }
}

static void fwd_chunk(const struct fwd *f, const struct chunk *c, struct fwd_work *w)
{
    const int64_t d = c->v.a->head_dim, dp = padded(d);
    for (int64_t i = 0; i < c->n; i++)
        operand_across(w->q + i * dp, element(f->q, chunk_row(c, i), chunk_head(c, i) * d), f->q.dt, d, chain_of(c->v.a));
    const int64_t segment = ALTERED("attn_segment") ? 2 * SEGMENT_BLOCKS : SEGMENT_BLOCKS;
    const int64_t low = first_key(c->v.a, c->pos) / ATTN_PAGE;          /* the first block that a row sees */
    for (int64_t begin = low / segment * segment; begin <= c->block; begin += segment) {
        const int64_t from = begin < low ? low : begin;
        const int part = begin > low;
        for (int64_t i = 0; i < c->n; i++) {
            w->m[part][i] = -INFINITY;
            w->l[part][i] = 0;
        }
        for (int64_t b = from; b < begin + segment && b <= c->block; b++)
            fwd_block(c, w, b, part, b == from);
        if (part)
            merge_segment(c, w);
    }
    fwd_store(f, c, w);
}

static int64_t first_block(const struct attn_seq *s) { return s->pos / ATTN_PAGE; }
static int64_t n_blocks(const struct attn_seq *s)
{
    return s->n_rows > 0 ? (s->pos + s->n_rows - 1) / ATTN_PAGE - first_block(s) + 1 : 0;
}

static void fwd_task(void *arg, int64_t task, int thread)
{
    const struct fwd *f = arg;
    const struct attn *a = f->a;
    const struct attn_seq *s = a->seq;
    struct fwd_work w;
    fwd_carve(&w, a, f->scratch + (size_t)thread * f->scratch_bytes);
    while (task >= n_blocks(s) * a->n_kv)
        task -= n_blocks(s++) * a->n_kv;
    /* one kv head after the other: its keys and values stay in the cache; the latest block has most keys: first, so that threads
     * end together */
    const int64_t block = first_block(s) + n_blocks(s) - 1 - task % n_blocks(s);
    const int64_t end = s->pos + s->n_rows, behind = (block + 1) * ATTN_PAGE;
    struct chunk c = { .v = { a, s, (int)(task / n_blocks(s)), a->n_heads / a->n_kv }, .block = block };
    c.pos = s->pos > block * ATTN_PAGE ? s->pos : block * ATTN_PAGE;
    c.n_pos = (end < behind ? end : behind) - c.pos;
    const int64_t rows = c.n_pos * c.v.group, n_chunks = (rows + ROWS_MAX - 1) / ROWS_MAX;
    for (int64_t i = 0; i < n_chunks; i++) {
        c.first = i * rows / n_chunks;
        c.n = (i + 1) * rows / n_chunks - c.first;
        fwd_chunk(f, &c, &w);
    }
}

static void attn_forward(struct dev *dev, const struct attn *a, struct mat out, float *lse, struct mat q)
{
    struct fwd f = { a, out, q, lse, NULL, 0 };
    struct fwd_work w;
    int64_t n_tasks = 0;
    f.scratch_bytes = fwd_carve(&w, a, NULL);
    f.scratch = dev_scratch(dev, 2, f.scratch_bytes * (size_t)pool_threads(dev->pool));
    if (!f.scratch) {
        poison(out);
        return;
    }
    for (int i = 0; i < a->n_seq; i++)
        n_tasks += n_blocks(&a->seq[i]) * a->n_kv;
    pool_run(dev->pool, n_tasks, fwd_task, &f);
}
