/* rows_rope_text.h - rotary positions: queries out, keys and values into their pages, and back (part of rows_text.h).
 *
 * Su et al. 2021, in halves: component i pairs with i + head_dim / 2. Both products are rounded, then their sum or difference:
 *   y[i] = x[i] cos - x[i + h] sin,  y[i + h] = x[i + h] cos + x[i] sin;  backward with -sin
 * Where heads are normed first, x is (x r) w (rows_head_text.h). Without cos and sin nothing is turned.
 * A task takes the rows of one sequence that lie in one page. */
enum rope_what { ROPE_STORE, ROPE_DX, ROPE_BACK };
struct rope_job { struct attn a; enum rope_what what; struct head_norm norm; struct mat q, qkv, dqkv, dq, dk, dv; const float *cos, *sin; };       /* norm: q NULL, none */
struct turn { const float *cos, *sin; float r; const void *w; };       /* of one head and position; cos NULL: none; r, w: of its norm */

/* A head: component i goes to element at + i * step of dst. */
FN void put_strided(void *dst, const enum dtype dt, int64_t at, int64_t step, int m, const struct lanes *v)
{
    if (step == 1) {
        put(dst, dt, at, m, v);
        return;
    }
    for (EACH_LANE(j, m)) {
        if (dt == DT_BF16)
            ((uint16_t *)dst)[at + j * step] = fn_to_bf16(v->x[j]);
        else
            ((float *)dst)[at + j * step] = v->x[j];
    }
}

FN void put_head(void *dst, const enum dtype dt, int64_t at, const float *x, int64_t n)
{
    CHUNKS(n, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m))
            o.x[j] = x[i + j];
        put(dst, dt, at + i, m, &o);
    });
}

FN float turn_elem(const float *x, int64_t i, const struct turn *t, const enum dtype dt, const int normed)
{
    return normed ? x[i] * t->r * get(t->w, dt, i) : x[i];
}

/* A head of hd components, turned and normed as t says. */
FN void put_turned(void *dst, const enum dtype dt, int64_t at, int64_t step, const float *x, const struct turn *t, int64_t hd, const int backward,
                   const enum dtype w_dt, const int normed)
{
    int64_t half = hd / 2;
    if (!t->cos) {
        CHUNKS(hd, i, m, {
            struct lanes o;
            for (EACH_LANE(j, m))
                o.x[j] = turn_elem(x, i + j, t, w_dt, normed);
            put_strided(dst, dt, at + i * step, step, m, &o);
        });
        return;
    }
    CHUNKS(half, i, m, {
        struct lanes lo;
        struct lanes hi;
        for (EACH_LANE(j, m)) {
            float a = turn_elem(x, i + j, t, w_dt, normed), b = turn_elem(x, half + i + j, t, w_dt, normed);
            float sn = backward ? -t->sin[i + j] : t->sin[i + j];
            lo.x[j] = a * t->cos[i + j] - b * sn;
            hi.x[j] = b * t->cos[i + j] + a * sn;
        }
        put_strided(dst, dt, at + i * step, step, m, &lo);
        put_strided(dst, dt, at + (half + i) * step, step, m, &hi);
    });
}

FN struct turn turn_at(const struct rope_job *r, int64_t p)
{
    int64_t half = r->a.head_dim / 2;
    struct turn t = { r->cos ? r->cos + p * half : NULL, r->cos ? r->sin + p * half : NULL, 0, NULL };
    return t;
}

FN void rope_store_rows(const struct rope_job *r, const struct attn_seq *s, int64_t p0, int64_t p1, const enum dtype dt, const int normed)
{
    const struct attn *a = &r->a;
    int64_t hd = a->head_dim;
    char *page = s->page[p0 / ATTN_PAGE] + a->page_off;
    for (EACH_OWN(h, a->n_heads + a->n_kv)) {
        for (int64_t p = p0; p < p1; p++) {
            int64_t row = s->row + p - s->pos, slot = p % ATTN_PAGE;
            const float *x = (const float *)mat_row(r->qkv, row) + h * hd;
            struct turn t = turn_at(r, p);
            if (normed) {
                t.r = head_rstd(x, hd, r->norm.eps);
                t.w = h < a->n_heads ? r->norm.q : r->norm.k;
            }
            if (h < a->n_heads) {
                put_turned(mat_row(r->q, row), dt, h * hd, 1, x, &t, hd, 0, dt, normed);
                continue;
            }
            char *k = page + (size_t)(h - a->n_heads) * 2 * ATTN_PAGE * (size_t)hd * dtype_size(dt);
            put_turned(k, dt, slot, ATTN_PAGE, x, &t, hd, 0, dt, normed);
            put_head(k, dt, (ATTN_PAGE + slot) * hd, x + a->n_kv * hd, hd);
        }
    }
}

FN void rope_dx_rows(const struct rope_job *r, const struct attn_seq *s, int64_t p0, int64_t p1, const enum dtype dt)
{
    const struct attn *a = &r->a;
    const int turned = a->n_heads + a->n_kv;
    int64_t hd = a->head_dim;
    for (int64_t p = p0; p < p1; p++) {
        int64_t row = s->row + p - s->pos;
        void *out = mat_row(r->dqkv, row);
        const float *dq = mat_row(r->dq, row), *dk = mat_row(r->dk, row), *dv = mat_row(r->dv, row);
        struct turn t = turn_at(r, p);
        for (EACH_OWN(h, turned + a->n_kv))
            if (h < turned)
                put_turned(out, dt, h * hd, 1, h < a->n_heads ? dq + h * hd : dk + (h - a->n_heads) * hd, &t, hd, 1, dt, 0);
            else
                put_head(out, dt, h * hd, dv + (h - turned) * hd, hd);
    }
}

FN void rope_back_rows(const struct rope_job *r, const struct attn_seq *s, int64_t p0, int64_t p1)
{
    const struct attn *a = &r->a;
    int64_t hd = a->head_dim;
    for (int64_t p = p0; p < p1; p++) {
        int64_t row = s->row + p - s->pos;
        struct turn t = turn_at(r, p);
        for (EACH_OWN(h, a->n_heads + a->n_kv)) {
            float *x = h < a->n_heads ? (float *)mat_row(r->dq, row) + h * hd : (float *)mat_row(r->dk, row) + (h - a->n_heads) * hd;
            put_turned(x, DT_F32, 0, 1, x, &t, hd, 1, DT_F32, 0);
        }
    }
}

FN void rope_rows(const struct rope_job *r, const struct attn_seq *s, int64_t p0, int64_t p1)
{
    switch (r->what) {
    case ROPE_STORE:
        if (r->norm.q)
            BY_DTYPE(r->a.dt, rope_store_rows(r, s, p0, p1, DT, 1));
        else
            BY_DTYPE(r->a.dt, rope_store_rows(r, s, p0, p1, DT, 0));
        return;
    case ROPE_DX: BY_DTYPE(r->dqkv.dt, rope_dx_rows(r, s, p0, p1, DT)); return;
    case ROPE_BACK: rope_back_rows(r, s, p0, p1); return;
    }
}

/* Pieces that a sequence's rows touch: pages, or the positions themselves (ROPE_PIECE 1). */
ROW_BOTH int64_t seq_pieces(const struct attn_seq *s)
{
    return s->n_rows > 0 ? (s->pos + s->n_rows - 1) / ROPE_PIECE - s->pos / ROPE_PIECE + 1 : 0;
}

ROW_TASK rope_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct rope_job *r = arg;
    int64_t first = 0;
    for (int i = 0; i < r->a.n_seq && first < end; first += seq_pieces(&r->a.seq[i++])) {
        const struct attn_seq *s = &r->a.seq[i];
        int64_t n = seq_pieces(s);
        for (int64_t k = begin > first ? begin - first : 0; k < n && first + k < end; k++) {
            int64_t p0 = (s->pos / ROPE_PIECE + k) * ROPE_PIECE, p1 = p0 + ROPE_PIECE;
            p0 = p0 > s->pos ? p0 : s->pos;
            p1 = p1 < s->pos + s->n_rows ? p1 : s->pos + s->n_rows;
            rope_rows(r, s, p0, p1);
        }
    }
}

static void rope_run(struct dev *d, struct rope_job *r)
{
    const int heads = r->a.n_heads + 2 * r->a.n_kv;
    int64_t n = 0;
    for (int i = 0; i < r->a.n_seq; i++)
        n += seq_pieces(&r->a.seq[i]);
    r->a = LEND_ATTN(d, &r->a);
    rows_share(d, n, 1, heads, rope_task, r);
}

static void op_rope_store(struct dev *d, const struct attn *a, struct mat q, struct mat qkv, const struct head_norm *norm, const float *cos,
                          const float *sin)
{
    struct rope_job r = { .a = *a, .what = ROPE_STORE, .q = q, .qkv = qkv, .cos = cos, .sin = sin };
    if (norm)
        r.norm = *norm;
    rope_run(d, &r);
}

static void op_rope_dx(struct dev *d, const struct attn *a, struct mat dqkv, struct mat dq, struct mat dk, struct mat dv,
                       const float *cos, const float *sin)
{
    struct rope_job r = { .a = *a, .what = ROPE_DX, .dqkv = dqkv, .dq = dq, .dk = dk, .dv = dv, .cos = cos, .sin = sin };
    rope_run(d, &r);
}

static void op_rope_back(struct dev *d, const struct attn *a, struct mat dq, struct mat dk, const float *cos, const float *sin)
{
    struct rope_job r = { .a = *a, .what = ROPE_BACK, .dq = dq, .dk = dk, .cos = cos, .sin = sin };
    rope_run(d, &r);
}
