/* attn_fwd_text.h - the forward half of attn_text.h; the order is defined there.
 *
 * A unit is the 64 positions of one block of one sequence, in all query heads of one kv head; its rows are numbered head by head
 * and cut into chunks of at most 64. A task is two neighbouring units, whose chunks share every load of K and V two by two; or, where
 * a unit has few rows (decode), those of several kv heads, which go through the keys side by side, so that a page is read from end to
 * end; or one unit, where there are few; or one segment of one, where there are few and many keys: the thread that ends a unit's last
 * segment merges them, in order.
 *
 *     unit 0: [ segment 0 | segment 1 | segment 2 ] -> merge -> out          unit 1: [ …                                      */

#include <stdatomic.h>

#define SCORE_ROWS 32                           /* rows whose scores live at a time, so that they stay in the first cache */
#define UNITS_ENOUGH 8                          /* a thread: fewer units of a call are not joined, and cut into segments */
#define SHARING 2                               /* chunks that share a load of K and V */
#define FEW_ROWS 16                             /* units of no more are joined by kv heads … */
#define HEADS_MAX 16                            /* … of which a task has this many at most */

struct state { float *o, *m, *l; };             /* of rows: [rows][dp], [rows], [rows] */

struct chunk {                                  /* rows [first, first + n) of a unit: row r is head r / n_pos, position r % n_pos */
    struct view v;
    int64_t block, first, n;
    int64_t pos, n_pos;                         /* positions of the unit */
    float *q;                                   /* [rows][dp], as an operand */
    struct state total, later;                  /* [rows]: all segments up to now; the one at hand, where it is not the first */
    struct state *now;                          /* the one of the two that is at hand */
    float *c;                                   /* [rows]: of the block at hand: what o is to be scaled by */
    int64_t *at, *live, *from;                  /* [rows]: its position; of the block at hand it sees keys from .. live - 1 */
};

struct fwd_work {                               /* a thread's own memory */
    struct chunk chunk[HEADS_MAX];              /* [n_heads][n]: kv heads, of neighbouring units, the earlier one first */
    int n, n_heads;                             /* one of the two is 1 */
    float *k, *v;                               /* [d][64], [64][dp]: room for copies */
    float *s;                                   /* [SCORE_ROWS][64]: scores, then p */
};

struct fwd {
    const struct attn *a;
    struct mat out, q;
    float *lse;
    char *scratch;
    size_t scratch_bytes;                       /* a thread */
    int joined, heads;                          /* units of a task: neighbours; kv heads of one with few rows */
    /* where units are cut into segments; else split is 0 */
    int split;
    int64_t rows_max, segments_max;             /* of such a unit */
    char *states;                               /* [units][segments_max]: what state_at carves */
    size_t state_bytes;
    _Atomic int *n_left;                        /* [units]: segments that are not complete */
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

/* n chunks of `rows` rows. */
static size_t fwd_carve(struct fwd_work *w, const struct attn *a, int n, int64_t rows, char *base)
{
    struct arena m = { base, 0, (size_t)-1 };
    const int64_t d = a->head_dim, dp = padded(d);
    w->s = ARENA_NEW(&m, float, SCORE_ROWS * ATTN_PAGE);
    w->k = ARENA_NEW(&m, float, d * ATTN_PAGE);
    w->v = ARENA_NEW(&m, float, ATTN_PAGE * dp);
    for (int i = 0; i < n; i++) {
        struct chunk *c = &w->chunk[i];
        c->q = ARENA_NEW(&m, float, rows * dp);
        c->total = state_take(&m, rows, dp);
        c->later = state_take(&m, rows, dp);
        c->c = ARENA_NEW(&m, float, rows);
        c->at = ARENA_NEW(&m, int64_t, rows);
        c->live = ARENA_NEW(&m, int64_t, rows);
        c->from = ARENA_NEW(&m, int64_t, rows);
    }
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

/* The same for VW rows: their folds are made together. from, live: of these rows; NULL: they see all keys. */
static inline void softmax_rows(float *s, float scale, float *m, float *l, float *c, enum chain chain, const int64_t *from, const int64_t *live)
{
    V x[VW];
    const V scales = V_SET1(scale), was = V_LOAD(m);
    for (int r = 0; r < VW; r++) {
        if (live)
            mask_row(s + r * ATTN_PAGE, from[r], live[r]);
        x[r] = max_vectors(s + r * ATTN_PAGE);
    }
    V_STORE(m, V_MAX(V_MUL(scales, V_FOLD_MAX_ROWS(x)), was));
    for (int r = 0; r < VW && live; r++)
        m[r] = from[r] >= ATTN_PAGE ? 0 : m[r];
    const V scaled = V_EXP_DOWN(V_SUB(was, V_LOAD(m)));
    V_STORE(c, scaled);
    for (int r = 0; r < VW; r++)
        x[r] = exp_row(s + r * ATTN_PAGE, scales, m[r], chain, live ? live[r] : ATTN_PAGE);
    V_STORE(l, V_FMA(V_LOAD(l), scaled, V_FOLD_ADD_ROWS(x)));
    for (int r = 0; r < VW && live; r++)
        m[r] = from[r] >= ATTN_PAGE ? -INFINITY : m[r];
}

/* ---- one block of keys ---- */
/* The first block that a row of the unit sees. */
static int64_t low_block(const struct chunk *c) { return first_key(c->v.a, c->pos) / ATTN_PAGE; }

/* Which keys of a block the rows see; whether that is less than all. */
static int see_block(struct chunk *c, int64_t block)
{
    const int64_t key = block * ATTN_PAGE;
    if (block != c->block && first_key(c->v.a, c->pos + c->n_pos - 1) <= key)
        return 0;
    for (int64_t i = 0; i < c->n; i++) {
        const int64_t from = first_key(c->v.a, c->at[i]) - key, live = c->at[i] - key + 1;
        c->from[i] = from < 0 ? 0 : from;
        c->live[i] = live < ATTN_PAGE ? live : ATTN_PAGE;
    }
    return 1;
}

static void scale_rows(float *o, const float *scale, int64_t n_rows, int64_t n)
{
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t x = 0; x < n && scale[i] != 1; x++)        /* o * 1 is o */
            o[i * n + x] = o[i * n + x] * scale[i];
}

/* p of rows [r, r + n) of the chunk from their scores; m, l and c. */
static void softmax_part(struct chunk *c, float *s, int64_t r, int64_t n, int masked)
{
    const float scale = c->v.a->scale;
    const enum chain chain = chain_of(c->v.a);
    float *m = c->now->m, *l = c->now->l;
    int64_t i = r;
    if (masked)
        for (; i + VW <= r + n; i += VW, s += VW * ATTN_PAGE)
            softmax_rows(s, scale, m + i, l + i, c->c + i, chain, c->from + i, c->live + i);
    else
        for (; i + VW <= r + n; i += VW, s += VW * ATTN_PAGE)
            softmax_rows(s, scale, m + i, l + i, c->c + i, chain, NULL, NULL);
    for (; i < r + n; i++, s += ATTN_PAGE)
        softmax_row(s, scale, m + i, l + i, c->c + i, chain, masked ? c->from[i] : 0, masked ? c->live[i] : ATTN_PAGE);
}

/* The rows of one chunk; qk and pv say where K and V are. */
static void fwd_rows(struct chunk *c, struct prod qk, struct prod pv, int64_t block)
{
    const int64_t dp = padded(c->v.a->head_dim);
    const int masked = see_block(c, block), diagonal = block == c->block;
    for (int64_t r = 0; r < c->n; r += SCORE_ROWS) {
        const int64_t n = c->n - r < SCORE_ROWS ? c->n - r : SCORE_ROWS;
        qk.a = c->q + r * dp;
        pv.c = c->now->o + r * dp;
        qk.rows = pv.rows = n;
        if (diagonal)
            product_below(&qk, c->live + r, "attn_qk_chain");
        else
            product_in(&qk, "attn_qk_chain");
        softmax_part(c, qk.c, r, n, masked);
        if (pv.start == FROM_C && flushes(pv.chain))
            scale_rows(pv.c, c->c + r, n, dp);  /* not while chains flush */
        else if (pv.start == FROM_C)
            pv.scale = c->c + r;
        if (diagonal)
            product_live(&pv, c->live + r, "attn_pv_chain");
        else
            product_in(&pv, "attn_pv_chain");
    }
}

/* Where K of the block that comes after this one begins: of the next kv head, or of the first one's next block; NULL: not known here. */
static const char *next_read(const struct fwd_work *w, int head, int64_t block)
{
    const struct chunk *first = &w->chunk[0];
    if (head + 1 < w->n_heads)
        return page_of(&w->chunk[(head + 1) * w->n].v, block);
    return block < first->block ? page_of(&first->v, block + 1) : NULL;
}

/* One block, for the chunks of a kv head that see it; `begin`: the segment's first. */
static void fwd_block(struct fwd_work *w, int head, int64_t block, int64_t begin)
{
    struct chunk *const own = w->chunk + head * w->n;
    const struct view *v = &own->v;
    const int64_t d = v->a->head_dim, dp = padded(d);
    const enum chain chain = chain_of(v->a);
    struct prod qk = { .c = w->s, .ldc = ATTN_PAGE, .a_row = dp, .a_k = 1, .ldb = ATTN_PAGE, .cols = ATTN_PAGE, .k = steps_of(chain, d), .chain = chain };
    struct prod pv = { .ldc = dp, .a = w->s, .a_row = ATTN_PAGE, .a_k = 1, .ldb = dp, .cols = dp, .k = steps_of(chain, ATTN_PAGE), .chain = chain };
    const int few = HAVE_DIRECT && w->n == 1 && own->n <= TILE_ROWS && d == dp;
    const char *next = next_read(w, head, block);
    if (few && next && own->n > 1 && (VW < 16 || w->n_heads == 1))       /* one row alone is read fastest without; wide tiles heads side by side too */
        qk.ahead = pv.ahead = (int64_t)((uintptr_t)next - (uintptr_t)page_of(v, block));
    if (!few && next && w->n == 1 && own->n <= FEW_ROWS) {              /* else making operands of K and V would wait for memory */
        qk.next_bytes = pv.next_bytes = ATTN_PAGE * d * (int64_t)dtype_size(v->a->dt);
        qk.next = next, pv.next = next + qk.next_bytes;
    }
    if (few && chain != CHAIN_PLAIN) {          /* one tile: read once, converted on the way */
        qk.chain = pv.chain = CHAIN_DIRECT;
        qk.b = (const float *)(const void *)page_of(v, block);
        pv.b = (const float *)(const void *)raw_values(v, block);
        qk.ldb = HAVE_PAIRS ? ATTN_PAGE : ATTN_PAGE / 2;
        pv.ldb = HAVE_PAIRS ? d : d / 2;
    } else {
        qk.chain = pv.chain = few && own->n > 1 ? CHAIN_STREAM : chain;
        qk.b = keys_of(v, block, w->k);
        pv.b = values_of(v, block, w->v);
    }
    for (struct chunk *c = own; c < own + w->n; c++) {
        const int64_t low = low_block(c);
        if (block < low || block > c->block)
            continue;
        pv.start = block == (begin < low ? low : begin) ? FROM_ZERO : FROM_C;
        fwd_rows(c, qk, pv, block);
    }
}

/* ---- segments ---- */
static int64_t segment_blocks(void) { return ALTERED("attn_segment") ? 2 * SEGMENT_BLOCKS : SEGMENT_BLOCKS; }
static int64_t first_segment(const struct chunk *c) { return low_block(c) / segment_blocks(); }
static int64_t last_segment(const struct chunk *c) { return c->block / segment_blocks(); }

/* All blocks of a segment, from nothing, into c->now of each chunk. */
static void fwd_segment(struct fwd_work *w, int64_t segment)
{
    const int64_t begin = segment * segment_blocks(), end = begin + segment_blocks(), low = low_block(&w->chunk[0]);
    const int64_t last = w->chunk[w->n - 1].block;
    for (struct chunk *c = w->chunk; c < w->chunk + w->n * w->n_heads; c++)
        for (int64_t i = 0; i < c->n; i++) {
            c->now->m[i] = -INFINITY;
            c->now->l[i] = 0;
        }
    for (int64_t b = begin < low ? low : begin; b < end && b <= last; b++)
        for (int h = 0; h < w->n_heads; h++)
            fwd_block(w, h, b, begin);
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

static void fwd_load(const struct fwd *f, struct chunk *c)
{
    const int64_t d = c->v.a->head_dim, dp = padded(d);
    for (int64_t i = 0; i < c->n; i++) {
        operand_across(c->q + i * dp, element(f->q, chunk_row(c, i), chunk_head(c, i) * d), f->q.dt, d, chain_of(c->v.a));
        c->at[i] = c->pos + (c->first + i) % c->n_pos;
    }
}

static void fwd_store(const struct fwd *f, const struct chunk *c, struct state *st)
{
    const int64_t d = c->v.a->head_dim, dp = padded(d);
    for (int64_t i = 0; i < c->n && f->lse; i++)
        st->m[i] = st->m[i] + fn_log(st->l[i]);
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
            f->lse[row * c->v.a->n_heads + head] = st->m[i];
    }
}

/* All segments of the chunks of w. */
static void fwd_chunks(const struct fwd *f, struct fwd_work *w)
{
    struct chunk *const end = w->chunk + w->n * w->n_heads;
    for (struct chunk *c = w->chunk; c < end; c++)
        fwd_load(f, c);
    for (int64_t s = first_segment(w->chunk); s <= last_segment(end - 1); s++) {
        for (struct chunk *c = w->chunk; c < end; c++)
            c->now = s == first_segment(c) ? &c->total : &c->later;
        fwd_segment(w, s);
        for (struct chunk *c = w->chunk; c < end; c++)
            if (s > first_segment(c) && s <= last_segment(c))
                merge_segment(&c->total, &c->later, c->n, padded(f->a->head_dim));
    }
    for (struct chunk *c = w->chunk; c < end; c++)
        fwd_store(f, c, &c->total);
}

/* ---- tasks ---- */
static int64_t first_block(const struct attn_seq *s) { return s->pos / ATTN_PAGE; }
static int64_t n_blocks(const struct attn_seq *s)
{
    return s->n_rows > 0 ? (s->pos + s->n_rows - 1) / ATTN_PAGE - first_block(s) + 1 : 0;
}

/* Segments that a unit of the sequence is cut into; 1: it is not. */
static int64_t n_parts(const struct fwd *f, const struct attn_seq *s)
{
    const int64_t group = f->a->n_heads / f->a->n_kv;
    if (!f->split || s->n_rows <= 0 || s->n_rows * group > ROWS_MAX)
        return 1;
    return (s->pos + s->n_rows - 1) / ATTN_PAGE / segment_blocks() - first_key(f->a, s->pos) / ATTN_PAGE / segment_blocks() + 1;
}

/* Whether the sequence is one unit of few rows a kv head, and goes by several heads. */
static int by_heads(const struct fwd *f, const struct attn_seq *s)
{
    return f->heads > 1 && s->n_rows * (f->a->n_heads / f->a->n_kv) <= FEW_ROWS && n_blocks(s) == 1;
}

static int64_t n_tasks(const struct fwd *f, const struct attn_seq *s)
{
    const int64_t parts = n_parts(f, s);
    if (parts == 1 && by_heads(f, s))
        return (f->a->n_kv + f->heads - 1) / f->heads;
    return f->a->n_kv * (parts > 1 ? n_blocks(s) * parts : (n_blocks(s) + f->joined - 1) / f->joined);
}

static void unit_of(struct chunk *c, const struct fwd *f, const struct attn_seq *s, int64_t kv, int64_t block)
{
    const int64_t end = s->pos + s->n_rows, behind = (block + 1) * ATTN_PAGE;
    c->v = (struct view){ f->a, s, (int)kv, f->a->n_heads / f->a->n_kv };
    c->block = block;
    c->pos = s->pos > block * ATTN_PAGE ? s->pos : block * ATTN_PAGE;
    c->n_pos = (end < behind ? end : behind) - c->pos;
}

static struct state state_at(const struct fwd *f, int64_t unit, int64_t part)
{
    struct arena m = { f->states + (size_t)(unit * f->segments_max + part) * f->state_bytes, 0, f->state_bytes };
    return state_take(&m, f->rows_max, padded(f->a->head_dim));
}

/* One segment of a unit of one chunk; the last one to end merges all. */
static void fwd_part(const struct fwd *f, struct fwd_work *w, int64_t unit, int64_t segment)
{
    struct chunk *c = w->chunk;
    const int64_t first = first_segment(c), last = last_segment(c);
    w->n = w->n_heads = 1;
    c->first = 0, c->n = c->n_pos * c->v.group;
    if (segment >= first && segment <= last) {
        struct state st = state_at(f, unit, segment - first);
        c->now = &st;
        fwd_load(f, c);
        fwd_segment(w, segment);
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

/* The units of w->chunk[0 .. n) chunk by chunk. */
static void fwd_units(const struct fwd *f, struct fwd_work *w, int n)
{
    int64_t n_chunks = 0;
    for (int u = 0; u < n; u++) {
        const int64_t rows = w->chunk[u].n_pos * w->chunk[u].v.group, more = (rows + ROWS_MAX - 1) / ROWS_MAX;
        n_chunks = more > n_chunks ? more : n_chunks;
    }
    w->n = n, w->n_heads = 1;
    for (int64_t i = 0; i < n_chunks; i++) {
        for (int u = 0; u < n; u++) {           /* the units' i-th parts: of nearly equal size, not empty together */
            struct chunk *c = &w->chunk[u];
            const int64_t rows = c->n_pos * c->v.group;
            c->first = i * rows / n_chunks;
            c->n = (i + 1) * rows / n_chunks - c->first;
        }
        fwd_chunks(f, w);
    }
}

/* The only unit of a sequence in kv heads first .. behind - 1. */
static void fwd_heads(const struct fwd *f, struct fwd_work *w, const struct attn_seq *s, int64_t first, int64_t behind)
{
    w->n = 1, w->n_heads = (int)(behind - first);
    for (int h = 0; h < w->n_heads; h++) {
        struct chunk *c = &w->chunk[h];
        unit_of(c, f, s, first + h, first_block(s));
        c->first = 0, c->n = c->n_pos * c->v.group;
    }
    fwd_chunks(f, w);
}

static void fwd_task(void *arg, int64_t task, int thread)
{
    const struct fwd *f = arg;
    const struct attn *a = f->a;
    const struct attn_seq *s = a->seq;
    int64_t unit = 0;
    char *const own = f->scratch + (size_t)thread * f->scratch_bytes;
    struct fwd_work w;
    for (; task >= n_tasks(f, s); s++) {
        task -= n_tasks(f, s);
        unit += n_blocks(s) * a->n_kv;
    }
    const int64_t parts = n_parts(f, s), first = first_block(s), n = n_blocks(s);
    if (parts == 1 && by_heads(f, s)) {
        const int64_t behind = (task + 1) * f->heads;
        fwd_carve(&w, a, f->heads, FEW_ROWS, own);
        fwd_heads(f, &w, s, task * f->heads, behind < a->n_kv ? behind : a->n_kv);
        return;
    }
    fwd_carve(&w, a, SHARING, ROWS_MAX, own);
    if (parts > 1) {
        const int64_t mine = task / parts;
        unit_of(&w.chunk[0], f, s, mine / n, first + mine % n);
        fwd_part(f, &w, unit + mine, first_key(a, s->pos) / ATTN_PAGE / segment_blocks() + task % parts);
        return;
    }
    /* one kv head after the other: its keys and values stay in the cache; the latest blocks have most keys: first, so that threads
     * end together */
    const int64_t per_kv = (n + f->joined - 1) / f->joined, begin = (per_kv - 1 - task % per_kv) * f->joined;
    const int64_t end = begin + f->joined < n ? begin + f->joined : n;
    for (int64_t b = begin; b < end; b++)
        unit_of(&w.chunk[b - begin], f, s, task / per_kv, first + b);
    fwd_units(f, &w, (int)(end - begin));
}

/* Whether units are joined, or cut into segments, and the memory for it; returns the bytes behind the threads' own. */
static size_t fwd_plan(struct fwd *f, int64_t n_units, int n_threads)
{
    struct arena m = { 0 };
    const int64_t group = f->a->n_heads / f->a->n_kv;
    f->split = n_threads > 1 && n_units < UNITS_ENOUGH * n_threads;
    f->joined = f->split ? 1 : SHARING;
    f->heads = (int)(n_threads > 1 ? n_units / (UNITS_ENOUGH * n_threads) : f->a->n_kv);
    f->heads = f->heads < f->a->n_kv ? f->heads : f->a->n_kv;
    f->heads = f->heads < HEADS_MAX ? f->heads : HEADS_MAX;
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
    int64_t n_units = 0, n = 0, unit = 0;
    for (int i = 0; i < a->n_seq; i++)
        n_units += n_blocks(&a->seq[i]) * a->n_kv;
    const size_t behind = fwd_plan(&f, n_units, n_threads), few = fwd_carve(&w, a, f.heads, FEW_ROWS, NULL);
    f.scratch_bytes = fwd_carve(&w, a, SHARING, ROWS_MAX, NULL);
    f.scratch_bytes = f.scratch_bytes > few ? f.scratch_bytes : few;
    const size_t own = f.scratch_bytes * (size_t)n_threads;
    f.scratch = dev_scratch(dev, 2, own + behind);
    if (!f.scratch) {
        poison(out);
        return;
    }
    f.states = f.scratch + own;
    f.n_left = (_Atomic int *)(void *)(f.states + (size_t)(n_units * f.segments_max) * f.state_bytes);
    for (int i = 0; i < a->n_seq; i++) {
        for (int64_t u = 0; u < n_blocks(&a->seq[i]) * a->n_kv && f.split; u++)
            atomic_init(&f.n_left[unit++], (int)n_parts(&f, &a->seq[i]));
        n += n_tasks(&f, &a->seq[i]);
    }
    pool_run(dev->pool, n, fwd_task, &f);
}
