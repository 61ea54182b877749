/* rows_rope_text.h - rotary positions: queries out, keys and values into their pages, and back (part of rows_text.h).
 *
 * Su et al. 2021, in halves: component i pairs with i + head_dim / 2. Both products are rounded, then their sum or difference:
 *   y[i] = x[i] cos - x[i + h] sin,  y[i + h] = x[i + h] cos + x[i] sin;  backward with -sin
 * A task takes the rows of one sequence that lie in one page. */
struct rope_job { const struct attn *a; struct mat q, qkv, dqkv, dq, dk, dv; const float *cos, *sin; };

/* A head: component i goes to element at + i * step of dst. */
FN void put_strided(void *dst, const enum dtype dt, int64_t at, int64_t step, int m, const struct lanes *v)
{
    if (step == 1) {
        put(dst, dt, at, m, v);
        return;
    }
    for (int j = 0; j < m; j++) {
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
        for (int j = 0; j < m; j++)
            o.x[j] = x[i + j];
        put(dst, dt, at + i, m, &o);
    });
}

FN void put_rotated(void *dst, const enum dtype dt, int64_t at, int64_t step, const float *x, const float *c, const float *s,
                    int64_t half, const int backward)
{
    CHUNKS(half, i, m, {
        struct lanes lo;
        struct lanes hi;
        for (int j = 0; j < m; j++) {
            float sn = backward ? -s[i + j] : s[i + j];
            lo.x[j] = x[i + j] * c[i + j] - x[half + i + j] * sn;
            hi.x[j] = x[half + i + j] * c[i + j] + x[i + j] * sn;
        }
        put_strided(dst, dt, at + i * step, step, m, &lo);
        put_strided(dst, dt, at + (half + i) * step, step, m, &hi);
    });
}

FN void rope_store_rows(const struct rope_job *r, const struct attn_seq *s, int64_t p0, int64_t p1, const enum dtype dt)
{
    const struct attn *a = r->a;
    int64_t hd = a->head_dim, half = hd / 2;
    char *page = s->page[p0 / ATTN_PAGE] + a->page_off;
    for (int h = 0; h < a->n_heads + a->n_kv; h++) {
        for (int64_t p = p0; p < p1; p++) {
            int64_t row = s->row + p - s->pos, slot = p % ATTN_PAGE;
            const float *x = (const float *)mat_row(r->qkv, row) + h * hd;
            const float *c = r->cos + p * half, *sn = r->sin + p * half;
            if (h < a->n_heads) {
                put_rotated(mat_row(r->q, row), dt, h * hd, 1, x, c, sn, half, 0);
                continue;
            }
            char *k = page + (size_t)(h - a->n_heads) * 2 * ATTN_PAGE * (size_t)hd * dtype_size(dt);
            put_rotated(k, dt, slot, ATTN_PAGE, x, c, sn, half, 0);
            put_head(k, dt, (ATTN_PAGE + slot) * hd, x + a->n_kv * hd, hd);
        }
    }
}

FN void rope_dx_rows(const struct rope_job *r, const struct attn_seq *s, int64_t p0, int64_t p1, const enum dtype dt)
{
    const struct attn *a = r->a;
    int64_t hd = a->head_dim, half = hd / 2;
    for (int64_t p = p0; p < p1; p++) {
        int64_t row = s->row + p - s->pos;
        void *out = mat_row(r->dqkv, row);
        const float *dq = mat_row(r->dq, row), *dk = mat_row(r->dk, row);
        for (int h = 0; h < a->n_heads + a->n_kv; h++)
            put_rotated(out, dt, h * hd, 1, h < a->n_heads ? dq + h * hd : dk + (h - a->n_heads) * hd, r->cos + p * half,
                        r->sin + p * half, half, 1);
        put_head(out, dt, (a->n_heads + a->n_kv) * hd, mat_row(r->dv, row), a->n_kv * hd);
    }
}

/* Pages that a sequence's rows touch. */
FN int64_t seq_pieces(const struct attn_seq *s)
{
    return s->n_rows > 0 ? (s->pos + s->n_rows - 1) / ATTN_PAGE - s->pos / ATTN_PAGE + 1 : 0;
}

static void rope_task(void *arg, int64_t begin, int64_t end)
{
    const struct rope_job *r = arg;
    int64_t first = 0;
    for (int i = 0; i < r->a->n_seq && first < end; first += seq_pieces(&r->a->seq[i++])) {
        const struct attn_seq *s = &r->a->seq[i];
        int64_t n = seq_pieces(s);
        for (int64_t k = begin > first ? begin - first : 0; k < n && first + k < end; k++) {
            int64_t page = s->pos / ATTN_PAGE + k, p0 = page * ATTN_PAGE, p1 = p0 + ATTN_PAGE;
            p0 = p0 > s->pos ? p0 : s->pos;
            p1 = p1 < s->pos + s->n_rows ? p1 : s->pos + s->n_rows;
            if (r->dqkv.p)
                BY_DTYPE(r->dqkv.dt, rope_dx_rows(r, s, p0, p1, DT));
            else
                BY_DTYPE(r->a->dt, rope_store_rows(r, s, p0, p1, DT));
        }
    }
}

static void rope_run(struct dev *d, struct rope_job *r)
{
    int64_t n = 0;
    for (int i = 0; i < r->a->n_seq; i++)
        n += seq_pieces(&r->a->seq[i]);
    rows_spread(d, n, 1, rope_task, r);
}

static void op_rope_store(struct dev *d, const struct attn *a, struct mat q, struct mat qkv, const float *cos, const float *sin)
{
    struct rope_job r = { .a = a, .q = q, .qkv = qkv, .cos = cos, .sin = sin };
    rope_run(d, &r);
}

static void op_rope_dx(struct dev *d, const struct attn *a, struct mat dqkv, struct mat dq, struct mat dk, struct mat dv,
                       const float *cos, const float *sin)
{
    struct rope_job r = { .a = a, .dqkv = dqkv, .dq = dq, .dk = dk, .dv = dv, .cos = cos, .sin = sin };
    rope_run(d, &r);
}
