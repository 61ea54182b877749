/* attn_dx_text.h - the backward half of attn_text.h; the order is defined there.
 *
 * A chain is one sequence and one kv head. Key blocks are the outer loop, so that K, V and their transposes are made once and dK,
 * dV stay in the cache; dQ grows in memory, key block by key block, which is its order.
 *
 *     for key block j:  for query head h of the group:  for query block i >= j that sees one of its keys:
 *         P, dS [64 q][64 k]      dV_j += P^T dO_i    dK_j += dS^T Q_i    dQ_i += dS K_j
 *       dK_j, dV_j of h are complete: a leaf of Tree(group)
 *
 * A task is a chain, or, where there are few of them, one key block of one: before it adds to dQ_i it waits until the task of the key
 * block before has. Tasks begin in increasing order, so the one waited for runs; it stays a step ahead. */

#define CHAINS_ENOUGH 4                         /* a thread: fewer chains are cut into key blocks */

struct progress { _Alignas(64) _Atomic int64_t n; };    /* steps (query head, query block) of a task that are complete */

struct dx {
    const struct attn *a;
    struct mat dq, dk, dv, dout, out, q;
    const float *lse;
    float *d;                                   /* [n_heads][rows of the batch]: the row sums D */
    int64_t n_rows;
    char *scratch;
    size_t scratch_bytes;                       /* a thread */
    struct progress *done;                      /* [tasks] where a task is a key block, else NULL */
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
    struct progress *mine, *before;             /* of this task and of the key block before; or NULL */
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

static int64_t key_blocks(const struct attn_seq *s) { return (s->n_rows + ATTN_PAGE - 1) / ATTN_PAGE; }

/* All heads of 64 rows of a sequence: the task of a job of its own, before any product. */
static void row_sums(void *arg, int64_t task, int thread)
{
    const struct dx *f = arg;
    const struct attn_seq *s = f->a->seq;
    const int64_t d = f->a->head_dim;
    struct dx_work w;
    dx_carve(&w, f->a, f->scratch + (size_t)thread * f->scratch_bytes);
    for (; task >= key_blocks(s); s++)
        task -= key_blocks(s);
    for (int64_t t = task * ATTN_PAGE; t < (task + 1) * ATTN_PAGE && t < s->n_rows; t++)
        for (int64_t h = 0; h < f->a->n_heads; h++) {
            widen_row(w.q, element(f->out, s->row + t, h * d), f->out.dt, d);
            widen_row(w.dout, element(f->dout, s->row + t, h * d), f->dout.dt, d);
            f->d[h * f->n_rows + s->row + t] = row_dot(w.dout, w.q, d);
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
    struct prod qk = { w->p, ATTN_PAGE, w->q, dp, 1, t->k, ATTN_PAGE, t->n_query, ATTN_PAGE, steps_of(chain, d), FROM_ZERO, chain, NULL, 0 };
    struct prod dov = { w->ds, ATTN_PAGE, w->dout, dp, 1, w->vt, ATTN_PAGE, t->n_query, ATTN_PAGE, steps_of(chain, d), FROM_ZERO, chain, NULL, 0 };
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
                       in_place ? ADD_TO_C : FROM_ZERO, chain, NULL, 0 };
    if (t->query == t->key)
        product_after(&pb, "attn_dkv_chain");   /* query i sees keys 0 .. i */
    else
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
    struct prod dsk = { w->part, dp, w->ds_across, ATTN_PAGE, 1, w->kt, dp, t->n_query, dp, steps_of(chain, ATTN_PAGE), FROM_ZERO, chain, NULL, 0 };
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

/* The first query block that sees none of a block's keys. */
static int64_t query_end(const struct view *v, int64_t key)
{
    const int64_t n = key_blocks(v->seq), window = v->a->window, end = (key * ATTN_PAGE + ATTN_PAGE - 2 + window) / ATTN_PAGE + 1;
    return window > 0 && end < n ? end : n;
}

/* Waits until the key block before has been added to dQ of query block i of head h of the group. */
static void wait_before(const struct dx_step *t, int64_t h, int64_t i)
{
    const int64_t key = t->key - 1;
    if (!t->before || i >= query_end(&t->v, key))
        return;
    const int64_t steps = h * (query_end(&t->v, key) - key) + i - key + 1;
    for (int64_t looks = 0; atomic_load_explicit(&t->before->n, memory_order_acquire) < steps; looks++)
        pool_relax(looks);
}

/* dK and dV of one key block for one query head, into sum [2][64][dp]; its share of dQ on the way. */
static void dx_head(const struct dx *f, struct dx_step *t, struct dx_work *w, float *sum)
{
    const int64_t T = t->v.seq->n_rows, n = key_blocks(t->v.seq), end = query_end(&t->v, t->key), block = ATTN_PAGE * padded(f->a->head_dim);
    const int down = ALTERED("attn_dkv_blocks"), late = ALTERED("attn_dq_blocks");
    for (int64_t step = t->key; step < end; step++) {
        t->query = down ? end - 1 - (step - t->key) : step;
        t->n_query = T - t->query * ATTN_PAGE < ATTN_PAGE ? T - t->query * ATTN_PAGE : ATTN_PAGE;
        load_pairs(f, t, w);
        add_queries(t, w, sum, w->ds_down, w->q_down, step == t->key);
        add_queries(t, w, sum + block, w->p_down, w->dout_down, step == t->key);
        const int64_t low = first_key(f->a, t->query * ATTN_PAGE) / ATTN_PAGE;
        wait_before(t, t->head - t->v.kv * t->v.group, t->query);
        add_keys(f, t, w, t->key == (late ? t->query : low), t->key == (late ? low : t->query));
        if (t->mine)
            atomic_fetch_add_explicit(&t->mine->n, 1, memory_order_release);
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

/* Tasks of a sequence. */
static int64_t dx_tasks(const struct dx *f, const struct attn_seq *s) { return f->a->n_kv * (f->done ? key_blocks(s) : 1); }

static void dx_task(void *arg, int64_t task, int thread)
{
    const struct dx *f = arg;
    const struct attn *a = f->a;
    const struct attn_seq *s = a->seq;
    const int down = ALTERED("attn_dq_blocks");
    int64_t at = task;
    struct dx_work w;
    for (; at >= dx_tasks(f, s); s++)
        at -= dx_tasks(f, s);
    const int64_t n = key_blocks(s), n_keys = f->done ? 1 : n;          /* of this task */
    struct dx_step t = { .v = { a, s, (int)(f->done ? at / n : at), a->n_heads / a->n_kv } };
    dx_carve(&w, a, f->scratch + (size_t)thread * f->scratch_bytes);
    for (int64_t j = f->done ? at % n : 0, end = j + n_keys; j < end; j++) {
        t.key = down ? n - 1 - j : j;
        t.n_keys = s->n_rows - t.key * ATTN_PAGE < ATTN_PAGE ? s->n_rows - t.key * ATTN_PAGE : ATTN_PAGE;
        t.mine = f->done ? &f->done[task] : NULL;
        t.before = f->done && j > 0 ? &f->done[task - 1] : NULL;
        dx_keys(f, &t, &w);
    }
}

static void attn_backward(struct dev *dev, const struct attn *a, struct mat dq, struct mat dk, struct mat dv, struct mat dout,
                          struct mat out, const float *lse, struct mat q)
{
    struct dx f = { .a = a, .dq = dq, .dk = dk, .dv = dv, .dout = dout, .out = out, .q = q, .lse = lse, .n_rows = q.rows };
    struct dx_work w;
    const int n_threads = pool_threads(dev->pool);
    const int64_t n_chains = (int64_t)a->n_seq * a->n_kv;
    int64_t n_blocks_all = 0, n_tasks = 0;
    for (int i = 0; i < a->n_seq; i++)
        n_blocks_all += key_blocks(&a->seq[i]);
    const int fine = n_threads > 1 && n_chains < CHAINS_ENOUGH * n_threads && !ALTERED("attn_dq_blocks") && !ALTERED("attn_dkv_blocks");
    f.scratch_bytes = dx_carve(&w, a, NULL);
    const size_t own = f.scratch_bytes * (size_t)n_threads, done_bytes = fine ? (size_t)(n_blocks_all * a->n_kv) * sizeof *f.done : 0;
    f.scratch = dev_scratch(dev, 2, own + done_bytes);
    f.d = dev_scratch(dev, 3, (size_t)(a->n_heads * q.rows) * sizeof(float));
    if (!f.scratch || !f.d) {
        poison(dq), poison(dk), poison(dv);
        return;
    }
    if (fine) {
        f.done = (struct progress *)(void *)(f.scratch + own);
        memset(f.done, 0, done_bytes);
    }
    for (int i = 0; i < a->n_seq; i++)
        n_tasks += dx_tasks(&f, &a->seq[i]);
    pool_run(dev->pool, n_blocks_all, row_sums, &f);
    pool_run(dev->pool, n_tasks, dx_task, &f);
}
