/* simt_attn_text.h - attention without tensor cores, in the order that attn_text.h defines and so with the CPU's bits (part of simt_text.h).
 *
 * Forward a task is one query row of one head: 64 keys of a block are two registers of 32 lanes, and so are 32 components of the output. Backward
 * there are three kinds of tasks, so that nobody adds to what another one adds to: D of a row, dQ of a row, dK and dV of one key over
 * its query heads. A query's rows are read by all lanes alike, keys by neighbours ([head_dim][64]). */
#define HEAD_PARTS 8                     /* of 32 components: head_dim at most 256 */
#define HALF_PAGE (ATTN_PAGE / 2)

struct parts { struct lanes part[HEAD_PARTS]; };             /* components of a row of a head */
struct block { struct lanes half[2]; };                      /* of the 64 keys, or queries, of a block */

struct attn_job {
    struct attn a;
    int64_t n_rows;                      /* of all sequences */
    struct mat out, q, dout, dq, dk, dv;
    float *lse, *d;                      /* d: D, [rows][n_heads] as lse */
};

/* One query row of one head. */
struct query { const struct attn *a; const struct attn_seq *seq; int64_t row, pos, n_row; int head; };

FN int64_t first_seen(const struct attn *a, int64_t pos) { return a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0; }

/* Task t: rows of the sequences in turn, all heads of a row. */
FN struct query query_of(const struct attn *a, int64_t t)
{
    struct query q = { a, a->seq, 0, 0, 0, (int)(t % a->n_heads) };
    q.n_row = t / a->n_heads;
    for (; q.n_row >= q.seq->n_rows; q.seq++)
        q.n_row -= q.seq->n_rows;
    q.row = q.seq->row + q.n_row;
    q.pos = q.seq->pos + q.n_row;
    return q;
}

FN const void *keys_at(const struct attn *a, const struct attn_seq *s, int kv, int64_t block)
{
    return s->page[block] + a->page_off + (size_t)kv * 2 * ATTN_PAGE * (size_t)a->head_dim * dtype_size(a->dt);
}

FN const void *head_at(struct mat m, int64_t row, int head, int64_t d) { return elements(m.p, m.dt, row * m.ld + head * d); }

FN void parts_zero(struct parts *p)
{
    UNROLL
    for (int c = 0; c < HEAD_PARTS; c++)
        for (EACH_LANE(j, LANES))
            p->part[c].x[j] = 0.0f;
}

/* p += w * x, a step of the chains of all components. */
FN void parts_step(struct parts *p, float w, const void *x, int64_t step, int64_t d, const enum dtype dt)
{
    UNROLL
    for (int c = 0; c < HEAD_PARTS; c++)
        if (c * LANES < d)
            for (EACH_LANE(j, d - c * LANES < LANES ? (int)(d - c * LANES) : LANES))
                p->part[c].x[j] = chain_step(dt, w, get(x, dt, (c * LANES + j) * step), p->part[c].x[j]);
}

/* The zero half behind an odd chain of bf16. */
FN void parts_end(struct parts *p)
{
    UNROLL
    for (int c = 0; c < HEAD_PARTS; c++)
        for (EACH_LANE(j, LANES))
            p->part[c].x[j] = chain_step(DT_BF16, 0.0f, 0.0f, p->part[c].x[j]);
}

/* p = p * f + q * g, rounded as fma(p, f, q * g) where q is there. */
FN void parts_scale(struct parts *p, float f, const struct parts *q, float g)
{
    UNROLL
    for (int c = 0; c < HEAD_PARTS; c++)
        for (EACH_LANE(j, LANES))
            p->part[c].x[j] = q ? fmaf(p->part[c].x[j], f, q->part[c].x[j] * g) : p->part[c].x[j] * f;
}

FN void parts_add(struct parts *p, const struct parts *q)
{
    UNROLL
    for (int c = 0; c < HEAD_PARTS; c++)
        for (EACH_LANE(j, LANES))
            p->part[c].x[j] = p->part[c].x[j] + q->part[c].x[j];
}

FN void parts_put(float *to, const struct parts *p, int64_t d)
{
    UNROLL
    for (int c = 0; c < HEAD_PARTS; c++)
        if (c * LANES < d)
            put(to, DT_F32, c * LANES, d - c * LANES < LANES ? (int)(d - c * LANES) : LANES, &p->part[c]);
}

/* 64 dots over head_dim, one chain each: a row x that all lanes read alike (component i at i * step) with n rows of y, one a lane (at col from each
 * other, component i at i * comp). */
struct dot { const void *x; int64_t step; const void *y; int64_t col, comp; };
FN struct block dots(const struct dot t, int64_t d, int64_t n, const enum dtype dt)
{
    struct block s;
    UNROLL
    for (int h = 0; h < 2; h++) {
        const int m = (int)(n - h * HALF_PAGE < 0 ? 0 : n - h * HALF_PAGE < HALF_PAGE ? n - h * HALF_PAGE : HALF_PAGE);
        for (EACH_LANE(j, LANES))
            s.half[h].x[j] = 0.0f;
        for (int64_t i = 0; i < d; i++)
            for (EACH_LANE(j, m))
                s.half[h].x[j] = chain_step(dt, get(t.x, dt, i * t.step), get(t.y, dt, (h * HALF_PAGE + j) * t.col + i * t.comp), s.half[h].x[j]);
        if (dt == DT_BF16 && d % 2)
            for (EACH_LANE(j, m))
                s.half[h].x[j] = chain_step(dt, 0.0f, 0.0f, s.half[h].x[j]);
    }
    return s;
}

FN float block_of(const struct block *b, int i) { return i < HALF_PAGE ? LANE_OF(&b->half[0], i) : LANE_OF(&b->half[1], i - HALF_PAGE); }

/* ---- forward ---- */
struct soft { float m, l; struct parts o; };                 /* the state of a row */

FN void soft_block(struct soft *s, const struct query *q, const void *x, int64_t b, const enum dtype dt)
{
    const int64_t d = q->a->head_dim, first = first_seen(q->a, q->pos);
    const void *k = keys_at(q->a, q->seq, q->head / (q->a->n_heads / q->a->n_kv), b), *v = elements(k, dt, ATTN_PAGE * d);
    const struct dot qk = { x, 1, k, 1, ATTN_PAGE };
    struct block p = dots(qk, d, ATTN_PAGE, dt);
    struct lanes best, sum;
    UNROLL
    for (int h = 0; h < 2; h++)
        for (EACH_LANE(j, LANES)) {
            const int64_t key = b * ATTN_PAGE + h * HALF_PAGE + j;
            p.half[h].x[j] = key < first || key > q->pos ? -FN_INF : p.half[h].x[j];
        }
    for (EACH_LANE(j, LANES))
        best.x[j] = p.half[1].x[j] > p.half[0].x[j] ? p.half[1].x[j] : p.half[0].x[j];
    const float high = q->a->scale * lanes_max(&best), top = high > s->m ? high : s->m, c = fn_exp(s->m - top);
    for (EACH_LANE(j, LANES)) {
        p.half[0].x[j] = fn_exp(q->a->scale * p.half[0].x[j] - top);
        p.half[1].x[j] = fn_exp(q->a->scale * p.half[1].x[j] - top);
        sum.x[j] = p.half[0].x[j] + p.half[1].x[j];
    }
    s->l = fmaf(s->l, c, lanes_fold(&sum));
    s->m = top;
    parts_scale(&s->o, c, NULL, 0.0f);
    for (int i = 0; i < ATTN_PAGE; i++)
        parts_step(&s->o, round_as(dt, block_of(&p, i)), elements(v, dt, i * d), 1, d, dt);
}

/* A later segment onto the total. */
FN void soft_merge(struct soft *t, const struct soft *s)
{
    const float top = t->m > s->m ? t->m : s->m, x = fn_exp(t->m - top), y = fn_exp(s->m - top);
    t->m = top;
    t->l = fmaf(t->l, x, s->l * y);
    parts_scale(&t->o, x, &s->o, y);
}

FN void attn_row(const struct attn_job *f, int64_t task, const enum dtype dt)
{
    const struct query q = query_of(&f->a, task);
    const int64_t d = f->a.head_dim, per = ATTN_SEGMENT / ATTN_PAGE, low = first_seen(&f->a, q.pos) / ATTN_PAGE, last = q.pos / ATTN_PAGE;
    const void *x = head_at(f->q, q.row, q.head, d);
    void *to = (void *)head_at(f->out, q.row, q.head, d);
    struct soft total = { -FN_INF, 0.0f };
    parts_zero(&total.o);
    for (int64_t g = low / per; g <= last / per; g++) {
        struct soft s = { -FN_INF, 0.0f };
        parts_zero(&s.o);
        for (int64_t b = g * per < low ? low : g * per; b < (g + 1) * per && b <= last; b++)
            soft_block(&s, &q, x, b, dt);
        if (g == low / per)
            total = s;
        else
            soft_merge(&total, &s);
    }
    UNROLL
    for (int c = 0; c < HEAD_PARTS; c++)
        if (c * LANES < d) {
            for (EACH_LANE(j, LANES))
                total.o.part[c].x[j] = total.o.part[c].x[j] / total.l;
            put(to, dt, c * LANES, d - c * LANES < LANES ? (int)(d - c * LANES) : LANES, &total.o.part[c]);
        }
    if (f->lse)
        f->lse[q.row * f->a.n_heads + q.head] = total.m + fn_log(total.l);
}

ROW_TASK attn_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct attn_job *f = arg;
    for (int64_t t = begin; t < end; t++)
        BY_DTYPE(f->a.dt, attn_row(f, t, DT));
}

static int64_t rows_of_attn(const struct attn *a)
{
    int64_t n = 0;
    for (int i = 0; i < a->n_seq; i++)
        n += a->seq[i].n_rows;
    return n;
}

static void op_attn(struct dev *d, const struct attn *a, struct mat out, float *lse, struct mat q)
{
    struct attn_job f = { .a = LEND_ATTN(d, a), .n_rows = rows_of_attn(a), .out = out, .q = q, .lse = lse };
    if (SIMT_FITS(d, a->head_dim <= HEAD_PARTS * LANES))
        rows_spread(d, f.n_rows * a->n_heads, 1, attn_task, &f);
}

/* ---- backward ---- */
/* D of a row: 32 lanes of fma(dout, out, .), folded. */
ROW_TASK attn_d_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct attn_job *f = arg;
    for (int64_t t = begin; t < end; t++) {
        const struct query q = query_of(&f->a, t);
        const int64_t d = f->a.head_dim;
        const void *x = head_at(f->dout, q.row, q.head, d), *y = head_at(f->out, q.row, q.head, d);
        struct lanes s = { { 0 } };
        CHUNKS(d, i, m, {
            for (EACH_LANE(j, m))
                s.x[j] = fmaf(get(x, f->dout.dt, i + j), get(y, f->out.dt, i + j), s.x[j]);
        });
        f->d[q.row * f->a.n_heads + q.head] = lanes_fold(&s);
    }
}

/* P and dS of pairs of which *p holds the score and *ds the dot dP. */
FN void pair_of(float *p, float *ds, int seen, float scale, float lse, float d)
{
    *p = fn_exp(scale * (seen ? *p : -FN_INF) - lse);
    *ds = *p * ((seen ? *ds : d) - d);
}

FN void attn_dq_row(const struct attn_job *f, int64_t task, const enum dtype dt)
{
    const struct query q = query_of(&f->a, task);
    const struct attn *a = &f->a;
    const int64_t d = a->head_dim, first = first_seen(a, q.pos), low = first / ATTN_PAGE;
    const float lse = f->lse[q.row * a->n_heads + q.head], dd = f->d[q.row * a->n_heads + q.head];
    struct parts sum;
    parts_zero(&sum);
    for (int64_t b = low; b <= q.pos / ATTN_PAGE; b++) {
        const void *k = keys_at(a, q.seq, q.head / (a->n_heads / a->n_kv), b), *v = elements(k, dt, ATTN_PAGE * d);
        const struct dot qk = { head_at(f->q, q.row, q.head, d), 1, k, 1, ATTN_PAGE }, dov = { head_at(f->dout, q.row, q.head, d), 1, v, d, 1 };
        struct block p = dots(qk, d, ATTN_PAGE, dt), ds = dots(dov, d, ATTN_PAGE, dt);
        struct parts part;
        UNROLL
        for (int h = 0; h < 2; h++)
            for (EACH_LANE(j, LANES)) {
                const int64_t key = b * ATTN_PAGE + h * HALF_PAGE + j;
                pair_of(&p.half[h].x[j], &ds.half[h].x[j], key >= first && key <= q.pos, a->scale, lse, dd);
            }
        parts_zero(&part);
        for (int i = 0; i < ATTN_PAGE; i++)
            parts_step(&part, round_as(dt, block_of(&ds, i)), elements(k, dt, i), ATTN_PAGE, d, dt);
        if (b == 0)
            sum = part;
        else
            parts_add(&sum, &part);
    }
    parts_scale(&sum, a->scale, NULL, 0.0f);
    parts_put((float *)head_at(f->dq, q.row, q.head, d), &sum, d);
}

ROW_TASK attn_dq_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct attn_job *f = arg;
    for (int64_t t = begin; t < end; t++)
        BY_DTYPE(f->a.dt, attn_dq_row(f, t, DT));
}

/* The first query block that sees none of the keys of a block. */
FN int64_t queries_end(const struct attn *a, const struct attn_seq *s, int64_t block)
{
    const int64_t n = (s->n_rows + ATTN_PAGE - 1) / ATTN_PAGE, end = (block * ATTN_PAGE + ATTN_PAGE - 2 + a->window) / ATTN_PAGE + 1;
    return a->window > 0 && end < n ? end : n;
}

struct key_sums { struct parts k, v; };

/* What the queries of block b add to key j of one query head. */
FN void key_block(const struct attn_job *f, const struct query *key, int64_t b, struct key_sums *part, const enum dtype dt)
{
    const struct attn *a = &f->a;
    const struct attn_seq *s = key->seq;
    const int64_t d = a->head_dim, j = key->n_row, t0 = b * ATTN_PAGE, n = s->n_rows - t0 < ATTN_PAGE ? s->n_rows - t0 : ATTN_PAGE;
    const void *k = keys_at(a, s, key->head / (a->n_heads / a->n_kv), j / ATTN_PAGE), *v = elements(k, dt, (ATTN_PAGE + j % ATTN_PAGE) * d);
    const void *q = head_at(f->q, s->row + t0, key->head, d), *dout = head_at(f->dout, s->row + t0, key->head, d);
    const struct dot kq = { elements(k, dt, j % ATTN_PAGE), ATTN_PAGE, q, f->q.ld, 1 }, vdo = { v, 1, dout, f->dout.ld, 1 };
    struct block p = dots(kq, d, n, dt), ds = dots(vdo, d, n, dt);
    UNROLL
    for (int h = 0; h < 2; h++)
        for (EACH_LANE(i, n - h * HALF_PAGE < 0 ? 0 : n - h * HALF_PAGE < LANES ? (int)(n - h * HALF_PAGE) : LANES)) {
            const int64_t t = t0 + h * HALF_PAGE + i, at = (s->row + t) * a->n_heads + key->head;
            pair_of(&p.half[h].x[i], &ds.half[h].x[i], j <= t && j >= first_seen(a, t), a->scale, f->lse[at], f->d[at]);
        }
    parts_zero(&part->k);
    parts_zero(&part->v);
    for (int i = 0; i < n; i++) {
        parts_step(&part->k, round_as(dt, block_of(&ds, i)), elements(q, dt, i * f->q.ld), 1, d, dt);
        parts_step(&part->v, round_as(dt, block_of(&p, i)), elements(dout, dt, i * f->dout.ld), 1, d, dt);
    }
    if (dt == DT_BF16 && n % 2) {
        parts_end(&part->k);
        parts_end(&part->v);
    }
}

/* dK, dV of a key for one query head, complete. */
FN void key_head(const struct attn_job *f, const struct query *key, struct key_sums *sum, const enum dtype dt)
{
    const int64_t own = key->n_row / ATTN_PAGE, end = queries_end(&f->a, key->seq, own), n = (key->seq->n_rows + ATTN_PAGE - 1) / ATTN_PAGE;
    struct key_sums part;
    key_block(f, key, own, sum, dt);
    for (int64_t b = own + 1; b < end; b++) {
        key_block(f, key, b, &part, dt);
        parts_add(&sum->k, &part.k);
        parts_add(&sum->v, &part.v);
    }
    parts_zero(&part.k);
    if (end < n) {                       /* + 0 of the blocks left out */
        parts_add(&sum->k, &part.k);
        parts_add(&sum->v, &part.k);
    }
    parts_scale(&sum->k, f->a.scale, NULL, 0.0f);
}

/* A key over the query heads of its group: Tree(group). Tasks: rows of the sequences, all kv heads of a row. */
FN void attn_key(const struct attn_job *f, int64_t task, const enum dtype dt)
{
    enum { GROUP_DEPTH = 8 };
    const int64_t d = f->a.head_dim;
    const int group = f->a.n_heads / f->a.n_kv, kv = (int)(task % f->a.n_kv);
    struct key_sums stack[GROUP_DEPTH];
    int depth = 0;
    for (int g = 0; g < group; g++) {
        struct query key = query_of(&f->a, task / f->a.n_kv * f->a.n_heads);
        key.head = kv * group + g;
        key_head(f, &key, &stack[depth], dt);
        for (int m = tree_merges(group, g); m > 0; m--, depth--) {
            parts_add(&stack[depth - 1].k, &stack[depth].k);
            parts_add(&stack[depth - 1].v, &stack[depth].v);
        }
        depth++;
    }
    const struct query row = query_of(&f->a, task / f->a.n_kv * f->a.n_heads);
    parts_put((float *)head_at(f->dk, row.row, kv, d), &stack[0].k, d);
    parts_put((float *)head_at(f->dv, row.row, kv, d), &stack[0].v, d);
}

ROW_TASK attn_key_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct attn_job *f = arg;
    for (int64_t t = begin; t < end; t++)
        BY_DTYPE(f->a.dt, attn_key(f, t, DT));
}

static void op_attn_dx(struct dev *d, const struct attn *a, struct mat dq, struct mat dk, struct mat dv, struct mat dout, struct mat out,
                       const float *lse, struct mat q)
{
    struct attn_job f = { .a = LEND_ATTN(d, a), .n_rows = rows_of_attn(a), .out = out, .q = q, .dout = dout, .dq = dq, .dk = dk, .dv = dv };
    f.lse = (float *)(uintptr_t)lse;
    f.d = (float *)dev_scratch(d, 3, (size_t)(q.rows * a->n_heads) * sizeof(float));
    if (!f.d || !SIMT_FITS(d, a->head_dim <= HEAD_PARTS * LANES && a->n_heads / a->n_kv <= 128))
        return;
    rows_spread(d, f.n_rows * a->n_heads, 1, attn_d_task, &f);
    rows_spread(d, f.n_rows * a->n_heads, 1, attn_dq_task, &f);
    rows_spread(d, f.n_rows * a->n_kv, 1, attn_key_task, &f);
}
