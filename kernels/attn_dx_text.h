/* attn_dx_text.h - the backward half of attn_text.h; the order is defined there.
 *
 * A task is one sequence and one kv head. Key blocks are the outer loop, so that K, V and their transposes are made once and dK,
 * dV stay in the cache; dQ grows in memory, key block by key block, which is its order.
 *
 *     for key block j:  for query head h of the group:  for query block i >= j that sees one of its keys:
 *         P, dS [64 q][64 k]      dV_j += P^T dO_i    dK_j += dS^T Q_i    dQ_i += dS K_j
 *       dK_j, dV_j of h are complete: a leaf of Tree(group) */

struct dx {
    const struct attn *a;
    struct mat dq, dk, dv, dout, out, q;
    const float *lse;
    float *d;                                   /* [n_heads][rows of the batch]: the row sums D */
    int64_t n_rows;
    char *scratch;
    size_t scratch_bytes;                       /* a thread */
};

struct dx_work {
    float *k;                                   /* [d][64]: room for a copy */
    float *kt, *vt;                             /* [64][dp], [d][64]: K and V transposed */
    float *q, *dout;                            /* [64][dp]: one query block of one head, contraction along the rows */
    float *q_down, *dout_down;                  /* the same, contraction down the rows: only pairs differ */
    float *p, *ds;                              /* [64][64]: scores and dP, then P and dS */
    float *p_down, *ds_down, *ds_across;        /* the same as operands: only pairs differ */
    float *part;                                /* [64][dp]: what one block adds */
    float *sum[TREE_DEPTH_MAX];                 /* [2][64][dp]: dK, dV: the stack of Tree(group) */
};

struct dx_step {                                /* where a task is */
    struct view v;
    int64_t key, query, head;                   /* blocks; the query head, counted from 0 in this rank */
    int64_t n_query, n_keys;                    /* that exist in these blocks */
    const float *k;
};

static size_t dx_carve(struct dx_work *w, const struct attn *a, char *base)
{
    struct arena m = { base, 0, (size_t)-1 };
    const int64_t d = a->head_dim, dp = padded(d), block = ATTN_PAGE * dp;
    float **whole[] = { &w->k, &w->kt, &w->vt, &w->q, &w->dout, &w->q_down, &w->dout_down, &w->part };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        *whole[i] = ARENA_NEW(&m, float, block);
    w->p = ARENA_NEW(&m, float, ATTN_PAGE * ATTN_PAGE);
    w->ds = ARENA_NEW(&m, float, ATTN_PAGE * ATTN_PAGE);
    if (chain_of(a) == CHAIN_PAIRS) {
        w->p_down = ARENA_NEW(&m, float, ATTN_PAGE * ATTN_PAGE);
        w->ds_down = ARENA_NEW(&m, float, ATTN_PAGE * ATTN_PAGE);
        w->ds_across = ARENA_NEW(&m, float, ATTN_PAGE * ATTN_PAGE);
    } else {
        w->p_down = w->p, w->ds_down = w->ds_across = w->ds;
        w->q_down = w->q, w->dout_down = w->dout;
    }
    for (int i = 0; i <= tree_depth(a->n_heads / a->n_kv); i++)
        w->sum[i] = ARENA_NEW(&m, float, 2 * block);
    return (m.used + 4095) & ~(size_t)4095;
}

/* D = rowsum(dout * out) of one row of one head */
static float row_dot(const float *x, const float *y, int64_t n)
{
    float lane[32] = { 0 };
    const int n_lanes = ALTERED("attn_row_dot") ? 1 : 32;
    for (int64_t i = 0; i < n; i++)
        lane[i % n_lanes] = fmaf(x[i], y[i], lane[i % n_lanes]);
    return fold32(lane);
}

static void row_sums(const struct dx *f, const struct view *v, struct dx_work *w)
{
    const int64_t d = f->a->head_dim;
    for (int64_t h = v->kv * v->group; h < (v->kv + 1) * v->group; h++)
        for (int64_t t = 0; t < v->seq->n_rows; t++) {
            const int64_t row = v->seq->row + t;
            widen_row(w->q, element(f->out, row, h * d), f->out.dt, d);
            widen_row(w->dout, element(f->dout, row, h * d), f->dout.dt, d);
            f->d[h * f->n_rows + row] = row_dot(w->dout, w->q, d);
        }
}

static void load_keys(struct dx_step *t, struct dx_work *w)
{
    const struct attn *a = t->v.a;
    const int64_t d = a->head_dim;
    t->k = keys_of(&t->v, t->key, w->k);
    operand_turned(w->kt, padded(d), page_of(&t->v, t->key), ATTN_PAGE, a->dt, d, ATTN_PAGE, chain_of(a));
    operand_turned(w->vt, ATTN_PAGE, raw_values(&t->v, t->key), d, a->dt, ATTN_PAGE, d, chain_of(a));
}

/* Queries and dout of a block of one head, in both forms. */
static void load_rows(const struct dx_step *t, struct mat m, float *across, float *down)
{
    const struct attn *a = t->v.a;
    const int64_t d = a->head_dim, dp = padded(d), row = t->v.seq->row + t->query * ATTN_PAGE;
    for (int64_t i = 0; i < t->n_query; i++)
        operand_across(across + i * dp, element(m, row + i, t->head * d), m.dt, d, chain_of(a));
    if (down != across)
        operand_down(down, dp, element(m, row, t->head * d), m.ld, m.dt, t->n_query, d, chain_of(a));
}

/* P and dS of query row i from its scores and dP, as operands of the products. */
static inline void softmax_dx_row(struct dx_work *w, int64_t i, int64_t from, int64_t live, float scale, float lse, float d, enum chain c)
{
    V p[N_V], ds[N_V];
    float *s = w->p + i * ATTN_PAGE, *dp = w->ds + i * ATTN_PAGE;
    const V scales = V_SET1(scale), lses = V_SET1(lse), sums = V_SET1(d);
    for (int x = 0; x < N_V; x++) {
        V score = V_LOAD(s + x * VW), dot = V_LOAD(dp + x * VW);
        if (live < ATTN_PAGE || from > 0) {
            score = keep_seen(score, from - x * VW, live - x * VW, V_SET1(-INFINITY));      /* P = +0 */
            dot = keep_seen(dot, from - x * VW, live - x * VW, sums);   /* dS = +0 * (d - d) = +0, not -0 */
        }
        p[x] = V_EXP(V_SUB(V_MUL(scales, score), lses));
        ds[x] = V_MUL(p[x], V_SUB(dot, sums));
    }
    store_down(s, p, c);
    store_down(dp, ds, c);
    if (c == CHAIN_PAIRS)
        store_across(w->ds_across + i * ATTN_PAGE, ds, c);
}

static void load_pairs(const struct dx *f, const struct dx_step *t, struct dx_work *w)
{
    const struct attn *a = f->a;
    const int64_t d = a->head_dim, dp = padded(d), row = t->v.seq->row + t->query * ATTN_PAGE;
    const enum chain chain = chain_of(a);
    struct prod qk = { w->p, ATTN_PAGE, w->q, dp, 1, t->k, ATTN_PAGE, t->n_query, ATTN_PAGE, steps_of(chain, d), FROM_ZERO, chain, NULL };
    struct prod dov = { w->ds, ATTN_PAGE, w->dout, dp, 1, w->vt, ATTN_PAGE, t->n_query, ATTN_PAGE, steps_of(chain, d), FROM_ZERO, chain, NULL };
    int64_t live[ATTN_PAGE];
    for (int64_t i = 0; i < t->n_query; i++)
        live[i] = t->query == t->key ? i + 1 : ATTN_PAGE;
    load_rows(t, f->q, w->q, w->q_down);
    load_rows(t, f->dout, w->dout, w->dout_down);
    if (t->query == t->key) {
        product_below(&qk, live, "attn_qk_chain");
        product_below(&dov, live, "attn_dov_chain");
    } else {
        product_in(&qk, "attn_qk_chain");
        product_in(&dov, "attn_dov_chain");
    }
    for (int64_t i = 0; i < t->n_query; i++)
        softmax_dx_row(w, i, first_key(a, t->query * ATTN_PAGE + i) - t->key * ATTN_PAGE, live[i], a->scale,
                       f->lse[(row + i) * a->n_heads + t->head], f->d[t->head * f->n_rows + row + i], chain);
    if (chain == CHAIN_PAIRS) {
        operand_down(w->p_down, ATTN_PAGE, w->p, 2 * ATTN_PAGE, DT_BF16, t->n_query, ATTN_PAGE, chain);
        operand_down(w->ds_down, ATTN_PAGE, w->ds, 2 * ATTN_PAGE, DT_BF16, t->n_query, ATTN_PAGE, chain);
    }
}

/* A block's product may be added where it is computed: unless that is done while chains flush, or, altered, in two parts. */
static int adds_in_place(enum chain c)
{
    return (c == CHAIN_PLAIN || c == CHAIN_PAIRS) && !ALTERED("attn_dkv_chain") && !ALTERED("attn_dq_chain");
}

/* sum += P^T . B over the queries of a block (P: p or dS; B: dout or q); the first block is stored. */
static void add_queries(const struct dx_step *t, struct dx_work *w, float *sum, const float *p, const float *b, int first)
{
    const int64_t dp = padded(t->v.a->head_dim), n = ATTN_PAGE * dp;
    const enum chain chain = chain_of(t->v.a);
    const int in_place = !first && adds_in_place(chain);
    struct prod pb = { first || in_place ? sum : w->part, dp, p, 1, ATTN_PAGE, b, dp, ATTN_PAGE, dp, steps_of(chain, t->n_query),
                       in_place ? ADD_TO_C : FROM_ZERO, chain, NULL };
    product_in(&pb, "attn_dkv_chain");
    if (!first && !in_place)
        for (int64_t i = 0; i < n; i++)
            sum[i] = sum[i] + w->part[i];
}

/* dQ of a query block += dS . K, first and last say which key block of the row this is. */
static void add_keys(const struct dx *f, const struct dx_step *t, struct dx_work *w, int first, int last)
{
    const int64_t d = f->a->head_dim, dp = padded(d), row = t->v.seq->row + t->query * ATTN_PAGE;
    const float scale = f->a->scale;
    const enum chain chain = chain_of(f->a);
    struct prod dsk = { w->part, dp, w->ds_across, ATTN_PAGE, 1, w->kt, dp, t->n_query, dp, steps_of(chain, ATTN_PAGE), FROM_ZERO, chain, NULL };
    const int in_place = adds_in_place(chain) && d == dp;
    if (in_place) {
        dsk.c = (float *)element(f->dq, row, t->head * d);
        dsk.ldc = f->dq.ld;
        dsk.start = first ? FROM_ZERO : ADD_TO_C;
    }
    if (first && first_key(f->a, t->query * ATTN_PAGE) >= ATTN_PAGE && !ALTERED("attn_window_zero")) {   /* + 0 of the blocks left out */
        for (int64_t i = 0; i < t->n_query; i++)
            memset((void *)element(f->dq, row + i, t->head * d), 0, (size_t)d * sizeof(float));
        dsk.start = in_place ? ADD_TO_C : FROM_ZERO;
        first = 0;
    }
    product_in(&dsk, "attn_dq_chain");
    for (int64_t i = 0; i < t->n_query && (!in_place || last); i++) {
        float *to = (float *)element(f->dq, row + i, t->head * d);
        const float *part = w->part + i * dp;
        for (int64_t x = 0; x < d && !in_place; x++)
            to[x] = first ? part[x] : to[x] + part[x];
        if (last)
            for (int64_t x = 0; x < d; x++)
                to[x] = to[x] * scale;
    }
}

/* dK and dV of one key block for one query head, into sum [2][64][dp]; its share of dQ on the way. */
static void dx_head(const struct dx *f, struct dx_step *t, struct dx_work *w, float *sum)
{
    const int64_t T = t->v.seq->n_rows, n = (T + ATTN_PAGE - 1) / ATTN_PAGE, block = ATTN_PAGE * padded(f->a->head_dim);
    const int64_t seen = f->a->window > 0 ? (t->key * ATTN_PAGE + ATTN_PAGE - 2 + f->a->window) / ATTN_PAGE + 1 : n;
    const int64_t end = seen < n ? seen : n;        /* the first query block that sees none of these keys */
    const int down = ALTERED("attn_dkv_blocks"), late = ALTERED("attn_dq_blocks");
    for (int64_t step = t->key; step < end; step++) {
        t->query = down ? end - 1 - (step - t->key) : step;
        t->n_query = T - t->query * ATTN_PAGE < ATTN_PAGE ? T - t->query * ATTN_PAGE : ATTN_PAGE;
        load_pairs(f, t, w);
        add_queries(t, w, sum, w->ds_down, w->q_down, step == t->key);
        add_queries(t, w, sum + block, w->p_down, w->dout_down, step == t->key);
        const int64_t low = first_key(f->a, t->query * ATTN_PAGE) / ATTN_PAGE;
        add_keys(f, t, w, t->key == (late ? t->query : low), t->key == (late ? low : t->query));
    }
    for (int64_t i = 0; i < 2 * block && end < n && !ALTERED("attn_window_zero"); i++)
        sum[i] = sum[i] + 0.0f;                     /* of the blocks left out */
    for (int64_t i = 0; i < block; i++)
        sum[i] = sum[i] * f->a->scale;
}

static void add_to(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] + y[i];
}

/* All query heads of the group on one key block: Tree(group) of the heads, each complete. */
static void dx_keys(const struct dx *f, struct dx_step *t, struct dx_work *w)
{
    const int64_t d = f->a->head_dim, dp = padded(d), block = ATTN_PAGE * dp, group = t->v.group;
    const int chain = ALTERED("attn_group_tree");
    int depth = 0;
    load_keys(t, w);
    for (int64_t h = 0; h < group; h++) {
        t->head = t->v.kv * group + h;
        dx_head(f, t, w, w->sum[depth++]);
        for (int m = chain ? h > 0 : tree_merges(group, h); m > 0; m--, depth--)
            add_to(w->sum[depth - 2], w->sum[depth - 1], 2 * block);
    }
    for (int64_t j = 0; j < t->n_keys; j++) {
        const int64_t row = t->v.seq->row + t->key * ATTN_PAGE + j;
        memcpy((void *)element(f->dk, row, t->v.kv * d), w->sum[0] + j * dp, (size_t)d * 4);
        memcpy((void *)element(f->dv, row, t->v.kv * d), w->sum[0] + block + j * dp, (size_t)d * 4);
    }
}

static void dx_task(void *arg, int64_t task, int thread)
{
    const struct dx *f = arg;
    const struct attn *a = f->a;
    struct dx_work w;
    struct dx_step t = { .v = { a, a->seq + task / a->n_kv, (int)(task % a->n_kv), a->n_heads / a->n_kv } };
    const int64_t T = t.v.seq->n_rows, n = (T + ATTN_PAGE - 1) / ATTN_PAGE;
    const int down = ALTERED("attn_dq_blocks");
    dx_carve(&w, a, f->scratch + (size_t)thread * f->scratch_bytes);
    row_sums(f, &t.v, &w);
    for (int64_t j = 0; j < n; j++) {
        t.key = down ? n - 1 - j : j;
        t.n_keys = T - t.key * ATTN_PAGE < ATTN_PAGE ? T - t.key * ATTN_PAGE : ATTN_PAGE;
        dx_keys(f, &t, &w);
    }
}

static void attn_backward(struct dev *dev, const struct attn *a, struct mat dq, struct mat dk, struct mat dv, struct mat dout,
                          struct mat out, const float *lse, struct mat q)
{
    struct dx f = { a, dq, dk, dv, dout, out, q, lse, NULL, q.rows, NULL, 0 };
    struct dx_work w;
    f.scratch_bytes = dx_carve(&w, a, NULL);
    f.scratch = dev_scratch(dev, 2, f.scratch_bytes * (size_t)pool_threads(dev->pool));
    f.d = dev_scratch(dev, 3, (size_t)(a->n_heads * q.rows) * sizeof(float));
    if (!f.scratch || !f.d) {
        poison(dq), poison(dk), poison(dv);
        return;
    }
    pool_run(dev->pool, (int64_t)a->n_seq * a->n_kv, dx_task, &f);
}
