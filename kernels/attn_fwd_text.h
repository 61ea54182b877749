/* attn_fwd_text.h - the forward half of attn_text.h; the order is defined there.
 *
 * A unit is the 64 positions of one block of one sequence, in all query heads of one kv head; its rows are numbered head by head
 * and cut into chunks of at most 64, which share every load of K and V; scores live only for a few rows at a time, so that they
 * stay in the first cache. A task is a unit, or, where there are few units and many keys (decode), one segment of one: the thread
 * that ends a unit's last segment merges them, in order.
 *
 *     unit 0: [ segment 0 | segment 1 | segment 2 ] -> merge -> out          unit 1: [ …                                      */

#include <stdatomic.h>

#define SCORE_ROWS 32                           /* rows whose scores live at a time; a multiple of VW that divides ROWS_MAX */
#define UNITS_ENOUGH 8                          /* a thread: fewer units of a call are cut into segments */

struct state { float *o, *m, *l; };             /* of rows: [rows][dp], [rows], [rows] */

struct fwd_work {                               /* a thread's own memory; [rows] are the rows of one chunk */
    float *q;                                   /* [rows][dp], as an operand */
    struct state total, later;                  /* [rows]: all segments up to now; the one at hand, where it is not the first */
    float *k, *v;                               /* [d][64], [64][dp]: room for copies */
    float *c;                                   /* [rows]: of the block at hand: what o is to be scaled by */
    int64_t *pos, *live, *from;                 /* [rows]: its position; of the block at hand it sees keys from .. live - 1 */
    float *s;                                   /* [SCORE_ROWS][64]: scores, then p */
};

struct fwd {
    const struct attn *a;
    struct mat out, q;
    float *lse;
    char *scratch;
    size_t scratch_bytes;                       /* a thread */
    /* where units are cut into segments; else split is 0 */
    int split;
    int64_t rows_max, segments_max;             /* of such a unit */
    char *states;                               /* [units][segments_max]: what state_at carves */
    size_t state_bytes;
    _Atomic int *n_left;                        /* [units]: segments that are not complete */
};

struct chunk {                                  /* rows [first, first + n) of a unit: row r is head r / n_pos, position r % n_pos */
    struct view v;
    int64_t block, first, n;
    int64_t pos, n_pos;                         /* positions of the unit */
};

static int64_t chunk_row(const struct chunk *c, int64_t i)      /* its row in the batch */
{
    return c->v.seq->row + c->pos - c->v.seq->pos + (c->first + i) % c->n_pos;
}

static int64_t chunk_head(const struct chunk *c, int64_t i) { return c->v.kv * c->v.group + (c->first + i) / c->n_pos; }

static struct state state_take(struct arena *m, int64_t rows, int64_t dp)
{
    struct state s;
    rows = padded(rows);                        /* whole vectors of rows are read and written */
    s.o = ARENA_NEW(m, float, rows * dp);
    s.m = ARENA_NEW(m, float, rows);
    s.l = ARENA_NEW(m, float, rows);
    return s;
}

static size_t fwd_carve(struct fwd_work *w, const struct attn *a, char *base)
{
    struct arena m = { base, 0, (size_t)-1 };
    const int64_t d = a->head_dim, dp = padded(d);
    w->q = ARENA_NEW(&m, float, ROWS_MAX * dp);
    w->s = ARENA_NEW(&m, float, SCORE_ROWS * ATTN_PAGE);
    w->total = state_take(&m, ROWS_MAX, dp);
    w->later = state_take(&m, ROWS_MAX, dp);
    w->k = ARENA_NEW(&m, float, d * ATTN_PAGE);
    w->v = ARENA_NEW(&m, float, ATTN_PAGE * dp);
    w->c = ARENA_NEW(&m, float, ROWS_MAX);
    w->pos = ARENA_NEW(&m, int64_t, ROWS_MAX);
    w->live = ARENA_NEW(&m, int64_t, ROWS_MAX);
    w->from = ARENA_NEW(&m, int64_t, ROWS_MAX);
    return (m.used + 4095) & ~(size_t)4095;     /* threads do not share a page */
}

/* ---- softmax of one block ---- */
/* Scores from .. live - 1 of a row, and -inf. */
static inline void mask_row(float *s, int64_t from, int64_t live)
{
    for (int i = 0; i < N_V; i++)
        V_STORE(s + i * VW, keep_seen(V_LOAD(s + i * VW), from - i * VW, live - i * VW, V_SET1(-INFINITY)));
}

/* One row of a block: scores become p, stored as the operand of P.V; returns their sum but for the last folds, which go on inside
 * the vector. Behind `live` p is +0. */
static inline V exp_row(float *s, V scales, float top, enum chain c, int64_t live)
{
    V x[N_V];
    const V tops = V_SET1(top);
    for (int i = 0; i < N_V; i++)
        x[i] = i * VW < live ? V_EXP_DOWN(V_SUB(V_MUL(scales, V_LOAD(s + i * VW)), tops)) : V_ZERO();
    store_across(s, x, c);
    return sum_vectors(x);
}

/* One row: m and l move on, *c is what o is to be scaled by. */
static inline void softmax_row(float *s, float scale, float *m, float *l, float *c, enum chain chain, int64_t from, int64_t live)
{
    if (from > 0 || live < ATTN_PAGE)
        mask_row(s, from, live);                /* -inf is scaled still (scale > 0) */
    const int nothing = from >= ATTN_PAGE;
    const float best = scale * V_FOLD_MAX(max_vectors(s));      /* the largest is so before and after scaling: rounding is monotonic */
    const float top = nothing ? 0 : best > *m ? best : *m;      /* nothing seen: so p and c are 0 … */
    *c = exp_one(*m - top);
    *l = fmaf(*l, *c, V_FOLD_ADD(exp_row(s, V_SET1(scale), top, chain, live)));
    *m = nothing ? -INFINITY : top;                             /* … and m stays */
}

/* The same for VW rows that see all keys: their folds are made together. */
static inline void softmax_rows(float *s, float scale, float *m, float *l, float *c, enum chain chain)
{
    V x[VW];
    const V scales = V_SET1(scale), was = V_LOAD(m);
    for (int r = 0; r < VW; r++)
        x[r] = max_vectors(s + r * ATTN_PAGE);
    const V top = V_MAX(V_MUL(scales, V_FOLD_MAX_ROWS(x)), was), scaled = V_EXP_DOWN(V_SUB(was, top));
    V_STORE(m, top);
    V_STORE(c, scaled);
    for (int r = 0; r < VW; r++)
        x[r] = exp_row(s + r * ATTN_PAGE, scales, m[r], chain, ATTN_PAGE);
    V_STORE(l, V_FMA(V_LOAD(l), scaled, V_FOLD_ADD_ROWS(x)));
}

/* ---- one block of keys ---- */
/* Which keys of a block the rows see; whether that is less than all. */
static int see_block(const struct chunk *c, struct fwd_work *w, int64_t block)
{
    const int64_t key = block * ATTN_PAGE;
    if (block != c->block && first_key(c->v.a, c->pos + c->n_pos - 1) <= key)
        return 0;
    for (int64_t i = 0; i < c->n; i++) {
        const int64_t from = first_key(c->v.a, w->pos[i]) - key, live = w->pos[i] - key + 1;
        w->from[i] = from < 0 ? 0 : from;
        w->live[i] = live < ATTN_PAGE ? live : ATTN_PAGE;
    }
    return 1;
}

static void scale_rows(float *o, const float *scale, int64_t n_rows, int64_t n)
{
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t x = 0; x < n && scale[i] != 1; x++)        /* o * 1 is o */
            o[i * n + x] = o[i * n + x] * scale[i];
}

/* Rows [r, r + n) of the chunk; qk and pv say where K and V are. */
static void fwd_rows(const struct chunk *c, struct fwd_work *w, struct state *st, struct prod qk, struct prod pv, int64_t r, int64_t n,
                     int64_t block, int masked)
{
    const struct attn *a = c->v.a;
    const int64_t dp = padded(a->head_dim);
    const enum chain chain = chain_of(a);
    int64_t i = r;
    qk.a = w->q + r * dp;
    pv.c = st->o + r * dp;
    qk.rows = pv.rows = n;
    if (block == c->block)
        product_below(&qk, w->live + r, "attn_qk_chain");
    else
        product_in(&qk, "attn_qk_chain");
    for (; i + VW <= r + n && !masked; i += VW)
        softmax_rows(w->s + (i - r) * ATTN_PAGE, a->scale, st->m + i, st->l + i, w->c + i, chain);
    for (; i < r + n; i++)
        softmax_row(w->s + (i - r) * ATTN_PAGE, a->scale, st->m + i, st->l + i, w->c + i, chain, masked ? w->from[i] : 0,
                    masked ? w->live[i] : ATTN_PAGE);
    if (pv.start == FROM_C && (pv.chain == CHAIN_PLAIN || pv.chain == CHAIN_PAIRS))
        pv.scale = w->c + r;
    else if (pv.start == FROM_C)
        scale_rows(pv.c, w->c + r, n, dp);      /* not while chains flush */
    if (block == c->block)
        product_live(&pv, w->live + r, "attn_pv_chain");
    else
        product_in(&pv, "attn_pv_chain");
}

static void fwd_block(const struct chunk *c, struct fwd_work *w, struct state *st, int64_t block, int first)
{
    const struct attn *a = c->v.a;
    const int64_t d = a->head_dim, dp = padded(d);
    const enum chain chain = chain_of(a);
    struct prod qk = { w->s, ATTN_PAGE, w->q, dp, 1, NULL, ATTN_PAGE, 0, ATTN_PAGE, steps_of(chain, d), FROM_ZERO, chain, NULL };
    struct prod pv = { st->o, dp, w->s, ATTN_PAGE, 1, NULL, dp, 0, dp, steps_of(chain, ATTN_PAGE), first ? FROM_ZERO : FROM_C, chain, NULL };
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
    for (int64_t r = 0; r < c->n; r += SCORE_ROWS)
        fwd_rows(c, w, st, qk, pv, r, c->n - r < SCORE_ROWS ? c->n - r : SCORE_ROWS, block, masked);
}

/* ---- segments ---- */
static int64_t segment_blocks(void) { return ALTERED("attn_segment") ? 2 * SEGMENT_BLOCKS : SEGMENT_BLOCKS; }

/* The first block that a row of the unit sees. */
static int64_t low_block(const struct chunk *c) { return first_key(c->v.a, c->pos) / ATTN_PAGE; }

/* All blocks of a segment, from nothing. */
static void fwd_segment(const struct chunk *c, struct fwd_work *w, struct state *st, int64_t segment)
{
    const int64_t begin = segment * segment_blocks(), end = begin + segment_blocks(), low = low_block(c), from = begin < low ? low : begin;
    for (int64_t i = 0; i < c->n; i++) {
        st->m[i] = -INFINITY;
        st->l[i] = 0;
    }
    for (int64_t b = from; b < end && b <= c->block; b++)
        fwd_block(c, w, st, b, b == from);
}

/* The state of a later segment onto the total; a row that has seen nothing before (l is 0) takes it as it is. */
static void merge_segment(struct state *total, const struct state *later, int64_t n, int64_t dp)
{
    for (int64_t i = 0; i < n; i++) {
        float *ot = total->o + i * dp;
        const float *os = later->o + i * dp, mt = total->m[i], ms = later->m[i];
        if (total->l[i] == 0 && !ALTERED("attn_window_merge")) {
            total->m[i] = ms, total->l[i] = later->l[i];
            memcpy(ot, os, (size_t)dp * sizeof *ot);
            continue;
        }
        const float top = mt > ms ? mt : ms, x = exp_one(mt - top), y = exp_one(ms - top);
        total->m[i] = top;
        total->l[i] = fmaf(total->l[i], x, later->l[i] * y);
        for (int64_t j = 0; j < dp; j++)
            ot[j] = fmaf(ot[j], x, os[j] * y);
    }
}

static void fwd_load(const struct fwd *f, const struct chunk *c, struct fwd_work *w)
{
    const int64_t d = c->v.a->head_dim, dp = padded(d);
    for (int64_t i = 0; i < c->n; i++) {
        operand_across(w->q + i * dp, element(f->q, chunk_row(c, i), chunk_head(c, i) * d), f->q.dt, d, chain_of(c->v.a));
        w->pos[i] = c->pos + (c->first + i) % c->n_pos;
    }
}

static void fwd_store(const struct fwd *f, const struct chunk *c, const struct state *st)
{
    const int64_t d = c->v.a->head_dim, dp = padded(d);
    for (int64_t i = 0; i < c->n; i++) {
        const int64_t row = chunk_row(c, i), head = chunk_head(c, i);
        const float *o = st->o + i * dp, l = st->l[i];
        void *to = (void *)element(f->out, row, head * d);
        if (f->out.dt == DT_F32)
            for (int64_t x = 0; x < d; x++)
                ((float *)to)[x] = o[x] / l;
        else
            for (int64_t x = 0; x < d; x++)
                ((uint16_t *)to)[x] = fn_to_bf16(o[x] / l);
        if (f->lse)
            f->lse[row * c->v.a->n_heads + head] = st->m[i] + fn_log(l);
    }
}

static void fwd_chunk(const struct fwd *f, const struct chunk *c, struct fwd_work *w)
{
    const int64_t first = low_block(c) / segment_blocks(), last = c->block / segment_blocks();
    fwd_load(f, c, w);
    fwd_segment(c, w, &w->total, first);
    for (int64_t s = first + 1; s <= last; s++) {
        fwd_segment(c, w, &w->later, s);
        merge_segment(&w->total, &w->later, c->n, padded(c->v.a->head_dim));
    }
    fwd_store(f, c, &w->total);
}

/* ---- tasks ---- */
static int64_t first_block(const struct attn_seq *s) { return s->pos / ATTN_PAGE; }
static int64_t n_blocks(const struct attn_seq *s)
{
    return s->n_rows > 0 ? (s->pos + s->n_rows - 1) / ATTN_PAGE - first_block(s) + 1 : 0;
}

/* Tasks of each of the sequence's units; more than one: one a segment (the first units may have fewer). */
static int64_t n_parts(const struct fwd *f, const struct attn_seq *s)
{
    const int64_t group = f->a->n_heads / f->a->n_kv;
    if (!f->split || s->n_rows <= 0 || s->n_rows * group > ROWS_MAX)
        return 1;
    return (s->pos + s->n_rows - 1) / ATTN_PAGE / segment_blocks() - first_key(f->a, s->pos) / ATTN_PAGE / segment_blocks() + 1;
}

static struct state state_at(const struct fwd *f, int64_t unit, int64_t part)
{
    struct arena m = { f->states + (size_t)(unit * f->segments_max + part) * f->state_bytes, 0, f->state_bytes };
    return state_take(&m, f->rows_max, padded(f->a->head_dim));
}

/* One segment of a unit of one chunk; the last one to end merges all. */
static void fwd_part(const struct fwd *f, const struct chunk *c, struct fwd_work *w, int64_t unit, int64_t segment)
{
    const int64_t first = low_block(c) / segment_blocks(), last = c->block / segment_blocks();
    if (segment >= first && segment <= last) {
        struct state st = state_at(f, unit, segment - first);
        fwd_load(f, c, w);
        fwd_segment(c, w, &st, segment);
    }
    if (atomic_fetch_sub(&f->n_left[unit], 1) > 1)
        return;
    struct state total = state_at(f, unit, 0);
    for (int64_t s = 1; s <= last - first; s++) {
        const struct state later = state_at(f, unit, ALTERED("attn_merge_order") ? last - first + 1 - s : s);
        merge_segment(&total, &later, c->n, padded(f->a->head_dim));
    }
    fwd_store(f, c, &total);
}

static void fwd_task(void *arg, int64_t task, int thread)
{
    const struct fwd *f = arg;
    const struct attn *a = f->a;
    const struct attn_seq *s = a->seq;
    int64_t unit = 0;
    struct fwd_work w;
    fwd_carve(&w, a, f->scratch + (size_t)thread * f->scratch_bytes);
    for (; task >= n_blocks(s) * a->n_kv * n_parts(f, s); s++) {
        task -= n_blocks(s) * a->n_kv * n_parts(f, s);
        unit += n_blocks(s) * a->n_kv;
    }
    /* one kv head after the other: its keys and values stay in the cache; the latest block has most keys: first, so that threads
     * end together */
    const int64_t parts = n_parts(f, s), mine = task / parts, block = first_block(s) + n_blocks(s) - 1 - mine % n_blocks(s);
    const int64_t end = s->pos + s->n_rows, behind = (block + 1) * ATTN_PAGE;
    struct chunk c = { .v = { a, s, (int)(mine / n_blocks(s)), a->n_heads / a->n_kv }, .block = block };
    c.pos = s->pos > block * ATTN_PAGE ? s->pos : block * ATTN_PAGE;
    c.n_pos = (end < behind ? end : behind) - c.pos;
    const int64_t rows = c.n_pos * c.v.group, n_chunks = (rows + ROWS_MAX - 1) / ROWS_MAX;
    if (parts > 1) {
        c.n = rows;
        fwd_part(f, &c, &w, unit + mine, first_key(a, s->pos) / ATTN_PAGE / segment_blocks() + task % parts);
        return;
    }
    for (int64_t i = 0; i < n_chunks; i++) {
        c.first = i * rows / n_chunks;
        c.n = (i + 1) * rows / n_chunks - c.first;
        fwd_chunk(f, &c, &w);
    }
}

/* Whether units are cut into segments, and the memory for it; returns the bytes behind the threads' own. */
static size_t fwd_plan(struct fwd *f, int64_t n_units, int n_threads)
{
    struct arena m = { 0 };
    const int64_t group = f->a->n_heads / f->a->n_kv;
    f->split = n_threads > 1 && n_units < UNITS_ENOUGH * n_threads;
    for (int i = 0; i < f->a->n_seq; i++) {
        const struct attn_seq *s = &f->a->seq[i];
        const int64_t n = n_parts(f, s);
        f->segments_max = n > f->segments_max ? n : f->segments_max;
        if (n > 1 && s->n_rows * group > f->rows_max)
            f->rows_max = s->n_rows * group;
    }
    f->split = f->segments_max > 1;
    if (!f->split)
        return 0;
    state_take(&m, f->rows_max, padded(f->a->head_dim));
    f->state_bytes = m.used;
    return (size_t)(n_units * f->segments_max) * f->state_bytes + (size_t)n_units * sizeof *f->n_left;
}

static void attn_forward(struct dev *dev, const struct attn *a, struct mat out, float *lse, struct mat q)
{
    struct fwd f = { .a = a, .out = out, .q = q, .lse = lse };
    struct fwd_work w;
    const int n_threads = pool_threads(dev->pool);
    int64_t n_units = 0, n_tasks = 0, unit = 0;
    for (int i = 0; i < a->n_seq; i++)
        n_units += n_blocks(&a->seq[i]) * a->n_kv;
    f.scratch_bytes = fwd_carve(&w, a, NULL);
    const size_t own = f.scratch_bytes * (size_t)n_threads;
    f.scratch = dev_scratch(dev, 2, own + fwd_plan(&f, n_units, n_threads));
    if (!f.scratch) {
        poison(out);
        return;
    }
    f.states = f.scratch + own;
    f.n_left = (_Atomic int *)(void *)(f.states + (size_t)(n_units * f.segments_max) * f.state_bytes);
    for (int i = 0; i < a->n_seq; i++) {
        const int64_t parts = n_parts(&f, &a->seq[i]), n = n_blocks(&a->seq[i]) * a->n_kv;
        for (int64_t u = 0; u < n && f.split; u++)
            atomic_init(&f.n_left[unit++], (int)parts);
        n_tasks += n * parts;
    }
    pool_run(dev->pool, n_tasks, fwd_task, &f);
}
