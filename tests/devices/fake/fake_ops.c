/* fake_ops.c - the fake device's ops: each looks its arguments up as read or written, then runs the CPU's
 * op on them. */
#include <stdlib.h>

#include "tests/devices/fake/fake_priv.h"

/* ---- arguments: each at_ function returns its argument with addresses of the host ---- */
static size_t span(struct mat m)
{
    return m.rows > 0 && m.cols > 0 ? (size_t)((m.rows - 1) * m.ld + m.cols) * dtype_size(m.dt) : 0;
}

static struct mat at_mat(struct fake *f, const char *arg, struct mat m, enum fake_how how)
{
    m.p = fake_at(f, arg, m.p, span(m), how);
    return m;
}

enum { MATS = 8 };
struct mats {
    struct mat m[MATS];
};
static struct mats at_mats(struct fake *f, const char *arg, const struct mat *m, int n)
{
    struct mats out = { { { 0 } } };
    if (n > MATS)
        fake_wrong(f, arg, m, "is a longer list than the fake device takes");
    for (int i = 0; i < n && i < MATS; i++)
        out.m[i] = at_mat(f, arg, m[i], READS);
    return out;
}

static struct panels at_panels(struct fake *f, const char *arg, struct panels p, enum fake_how how)
{
    p.p = fake_at(f, arg, p.p, f->program->panels_bytes(p.n, p.k, p.dt, &p.leaves), how);
    return p;
}

/* The levels are [rows][cols] with ld elements from row to row. */
static struct tree_acc at_acc(struct fake *f, struct tree_acc a, int64_t rows, int64_t cols, int64_t ld)
{
    for (int i = 0; i < TREE_DEPTH_MAX; i++)
        a.level[i] = fake_at(f, "acc", a.level[i], span(mat_of(a.level[i], DT_F32, rows, cols, ld)), WRITES);
    return a;
}

static struct head_norm at_norm(struct fake *f, const struct head_norm *n, int head_dim, enum dtype dt)
{
    if (!n)
        return (struct head_norm){ 0 };
    size_t bytes = (size_t)head_dim * dtype_size(dt);
    return (struct head_norm){ fake_at(f, "norm", n->q, bytes, READS), fake_at(f, "norm", n->k, bytes, READS),
                               n->eps, n->plus_one };
}

/* Attention's sequences with pages on the host. Pages wholly before the window are not read: they may be
 * anything. */
struct at_attn {
    struct attn a;
    struct attn_seq *seq, *doc;
    char **page;
};
static int64_t pages_of(const struct attn_seq *s) { return (s->pos + s->n_rows + ATTN_PAGE - 1) / ATTN_PAGE; }

static int64_t all_pages(int n, const struct attn_seq *s)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += pages_of(&s[i]);
    return sum;
}

/* to[n]: these sequences with pages on the host, whose list begins at page. */
static void at_seqs(struct fake *f, const struct attn *a, int n, const struct attn_seq *from,
                    struct attn_seq *to, char **page, enum fake_how how)
{
    const size_t bytes = (size_t)a->n_kv * attn_head_bytes(a);
    for (int i = 0; i < n; i++) {
        int64_t first = a->window > 0 && from[i].pos >= a->window ? (from[i].pos - a->window + 1) / ATTN_PAGE
                                                                  : 0;
        to[i] = from[i];
        to[i].page = page;
        for (int64_t p = 0; p < pages_of(&from[i]); p++)
            *page++ = p < first ? NULL : fake_at(f, "page", from[i].page[p] + a->page_off, bytes, how);
    }
}

static struct at_attn at_attn(struct fake *f, const struct attn *a, enum fake_how how)
{
    struct at_attn x = { .a = *a };
    int n_docs = a->cut.count ? a->cut.n_docs : 0;
    int64_t n = all_pages(a->n_seq, a->seq), of_docs = all_pages(n_docs, a->cut.doc);
    x.seq = calloc((size_t)a->n_seq + 1, sizeof *x.seq);
    x.doc = calloc((size_t)n_docs + 1, sizeof *x.doc);
    x.page = calloc((size_t)(n + of_docs) + 1, sizeof *x.page);
    x.a.seq = x.seq;
    x.a.cut.doc = x.doc;
    x.a.page_off = 0;
    x.a.sink = fake_at(f, "sink", a->sink, a->sink ? (size_t)a->n_heads * dtype_size(a->dt) : 0, READS);
    if (!x.seq || !x.doc || !x.page) {
        fake_wrong(f, "sequences", a, "cannot be copied: no memory");
        return x;
    }
    at_seqs(f, a, a->n_seq, a->seq, x.seq, x.page, how);
    at_seqs(f, a, n_docs, a->cut.doc, x.doc, x.page + n, how);
    return x;
}

/* In an op: BEGIN(name), then each argument by its access, then RUN(name, arguments on the host).
 * R(matrix) and RP(pointer, bytes) are read, W and WP written; IDS is host memory. */
#define F ((struct fake *)d->back)
#define CPU_OF(d) (d)->host
#define CPU CPU_OF(d)
#define BEGIN(name) fake_begin(d, #name)
#define RUN(name, ...) \
    do { \
        fake_catch_up(d); \
        if (!F->what[0]) \
            CPU->ops->name(CPU, __VA_ARGS__); \
    } while (0)
#define R(m) (m) = at_mat(F, #m, (m), READS)
#define W(m) (m) = at_mat(F, #m, (m), WRITES)
#define RP(p, bytes) (p) = fake_at(F, #p, (p), (size_t)(bytes), READS)
#define WP(p, bytes) (p) = fake_at(F, #p, (p), (size_t)(bytes), WRITES)
#define IDS(p) (p) = fake_hosts(F, #p, (p))
#define ACC(rows, cols, ld) \
    acc = (const struct tree_acc[]) { at_acc(F, *acc, (rows), (cols), (ld)) }
/* A whole op: its parameters, their accesses, the arguments of the CPU's op. */
#define OP(name, takes, uses, ...) \
    static void fake_##name takes \
    { \
        BEGIN(name); \
        uses; \
        RUN(name, __VA_ARGS__); \
    }

static void fake_linear_pack(struct dev *d, struct panels *p, int n_w, const struct mat *w)
{
    BEGIN(linear_pack);
    struct panels to = at_panels(F, "p", *p, WRITES);
    struct mats m = at_mats(F, "w", w, n_w);
    RUN(linear_pack, &to, n_w, m.m);
}

static void fake_linear(struct dev *d, struct mat y, struct mat x, const struct panels *w)
{
    BEGIN(linear);
    struct panels p = at_panels(F, "w", *w, READS);
    W(y), R(x);
    RUN(linear, y, x, &p);
}

static void fake_linear_dx(struct dev *d, struct mat dx, int n_w, const struct mat *dy, const struct mat *w,
                           const struct leaves *l)
{
    BEGIN(linear_dx);
    struct mats a = at_mats(F, "dy", dy, n_w), b = at_mats(F, "w", w, n_w);
    W(dx);
    RUN(linear_dx, dx, n_w, a.m, b.m, fake_hosts(F, "leaves", l));
}

OP(linear_dw,
   (struct dev * d, const struct tree_acc *acc, int64_t ld, struct mat dy, struct mat x, int n_seq,
    int64_t seq_len),
   (ACC(dy.cols, x.cols, ld), R(dy), R(x)), acc, ld, dy, x, n_seq, seq_len)
OP(embed, (struct dev * d, struct mat out, struct mat table, int64_t first, const int32_t *ids),
   (W(out), R(table), IDS(ids)), out, table, first, ids)
OP(embed_dw,
   (struct dev * d, const struct tree_acc *acc, int64_t ld, int64_t first, int64_t rows, struct mat dx,
    const int32_t *ids, struct seqs s),
   (ACC(rows, dx.cols, ld), R(dx), IDS(ids)), acc, ld, first, rows, dx, ids, s)
OP(rms_norm,
   (struct dev * d, struct mat y, float *rstd, struct mat x, const void *w, int plus_one, float eps),
   (W(y), R(x), WP(rstd, x.rows * 4), RP(w, (size_t)x.cols *dtype_size(x.dt))), y, rstd, x, w, plus_one, eps)
OP(rms_norm_dx,
   (struct dev * d, struct mat dres, struct mat dy, struct mat x, const void *w, int plus_one,
    const float *rstd),
   (W(dres), R(dy), R(x), RP(w, (size_t)x.cols *dtype_size(x.dt)), RP(rstd, x.rows * 4)), dres, dy, x, w,
   plus_one, rstd)
OP(rms_norm_dw,
   (struct dev * d, const struct tree_acc *acc, struct mat dy, struct mat x, const float *rstd,
    struct seqs s),
   (ACC(1, x.cols, x.cols), R(dy), R(x), RP(rstd, x.rows * 4)), acc, dy, x, rstd, s)
OP(layer_norm,
   (struct dev * d, struct mat y, float *mean, float *rstd, struct mat x, const void *w, const void *b,
    float eps),
   (W(y), R(x), WP(mean, x.rows * 4), WP(rstd, x.rows * 4), RP(w, (size_t)x.cols *dtype_size(x.dt)),
    RP(b, (size_t)x.cols *dtype_size(x.dt))),
   y, mean, rstd, x, w, b, eps)
OP(layer_norm_dx,
   (struct dev * d, struct mat dres, struct mat dy, struct mat x, const void *w, const float *mean,
    const float *rstd),
   (W(dres), R(dy), R(x), RP(w, (size_t)x.cols *dtype_size(x.dt)), RP(mean, x.rows * 4),
    RP(rstd, x.rows * 4)),
   dres, dy, x, w, mean, rstd)
OP(layer_norm_dw,
   (struct dev * d, const struct tree_acc *acc, struct mat dy, struct mat x, const float *mean,
    const float *rstd, struct seqs s),
   (ACC(1, x.cols, x.cols), R(dy), R(x), RP(mean, x.rows * 4), RP(rstd, x.rows * 4)), acc, dy, x, mean, rstd,
   s)
OP(bias_dw, (struct dev * d, const struct tree_acc *acc, struct mat dy, enum dtype dt, struct seqs s),
   (ACC(1, dy.cols, dy.cols), R(dy)), acc, dy, dt, s)
OP(add_bias, (struct dev * d, struct mat y, const void *bias, enum dtype dt),
   (W(y), RP(bias, (size_t)y.cols *dtype_size(dt))), y, bias, dt)
OP(head_norm_dx,
   (struct dev * d, struct mat dy, struct mat x, int n_heads, const void *w, enum dtype dt, int plus_one,
    float eps),
   (W(dy), R(x), RP(w, (size_t)(x.cols / n_heads) * dtype_size(dt))), dy, x, n_heads, w, dt, plus_one, eps)
OP(head_norm_dw,
   (struct dev * d, float *out, int64_t ld, struct mat dy, struct mat x, int n_heads, float eps,
    struct seqs s),
   (R(dy), R(x), WP(out, ((s.n - 1) * ld + x.cols / n_heads) * 4)), out, ld, dy, x, n_heads, eps, s)
OP(add_leaves,
   (struct dev * d, const struct tree_acc *acc, const float *leaf, int64_t ld, int64_t n, int n_seq),
   (ACC(1, n, n), RP(leaf, ((n_seq - 1) * ld + n) * 4)), acc, leaf, ld, n, n_seq)
OP(embed_add, (struct dev * d, struct mat x, struct mat table, const int32_t *ids),
   (W(x), R(table), IDS(ids)), x, table, ids)
OP(transpose, (struct dev * d, struct mat dst, struct mat src), (W(dst), R(src)), dst, src)
OP(gelu, (struct dev * d, struct mat act, struct mat h), (W(act), R(h)), act, h)
OP(gelu_dx, (struct dev * d, struct mat dh, struct mat h, struct mat dact), (W(dh), R(h), R(dact)), dh, h,
   dact)
OP(gelu_erf, (struct dev * d, struct mat act, struct mat h), (W(act), R(h)), act, h)
OP(gelu_erf_dx, (struct dev * d, struct mat dh, struct mat h, struct mat dact), (W(dh), R(h), R(dact)), dh, h,
   dact)
OP(geglu, (struct dev * d, struct mat act, struct mat gu), (W(act), R(gu)), act, gu)
OP(geglu_dx, (struct dev * d, struct mat dgu, struct mat gu, struct mat dact), (W(dgu), R(gu), R(dact)), dgu,
   gu, dact)
OP(add_both, (struct dev * d, struct mat x, struct mat a, struct mat o), (W(x), R(a), R(o)), x, a, o)
OP(scale, (struct dev * d, struct mat x, float factor), (W(x)), x, factor)
OP(softcap, (struct dev * d, struct mat x, float cap), (W(x)), x, cap)
OP(softcap_dx, (struct dev * d, struct mat dx, struct mat y, float cap), (W(dx), R(y)), dx, y, cap)
OP(swiglu, (struct dev * d, struct mat act, struct mat gu), (W(act), R(gu)), act, gu)
OP(swiglu_dx, (struct dev * d, struct mat dgu, struct mat gu, struct mat dact), (W(dgu), R(gu), R(dact)), dgu,
   gu, dact)
OP(add_rounded, (struct dev * d, struct mat x, struct mat o), (W(x), R(o)), x, o)
OP(round_to, (struct dev * d, void *dst, enum dtype dt, const float *src, int64_t n),
   (WP(dst, (size_t)n *dtype_size(dt)), RP(src, n * 4)), dst, dt, src, n)
OP(widen, (struct dev * d, float *dst, const void *src, enum dtype dt, int64_t n),
   (WP(dst, n * 4), RP(src, (size_t)n *dtype_size(dt))), dst, src, dt, n)
OP(ce_max, (struct dev * d, float *max, struct mat logits), (R(logits), WP(max, logits.rows * 4)), max,
   logits)
OP(ce_sum, (struct dev * d, float *sum, struct mat logits, const struct leaves *l, const float *max),
   (R(logits), WP(sum, logits.rows * 4), RP(max, logits.rows * 4)), sum, logits, fake_hosts(F, "leaves", l),
   max)
OP(ce_pick, (struct dev * d, float *out, struct mat logits, const int32_t *target, int64_t first),
   (R(logits), WP(out, logits.rows * 4), IDS(target)), out, logits, target, first)
OP(ce_first, (struct dev * d, int32_t *id, struct mat logits, const float *max),
   (R(logits), WP(id, logits.rows * 4), RP(max, logits.rows * 4)), id, logits, max)
OP(ce_dx,
   (struct dev * d, struct mat dl, struct mat logits, const int32_t *target, int64_t first, const float *max,
    const float *sum, const float *scale),
   (W(dl), R(logits), IDS(target), RP(max, logits.rows * 4), RP(sum, logits.rows * 4)), dl, logits, target,
   first, max, sum, fake_hosts(F, "scale", scale))
OP(ce_logprob, (struct dev * d, float *out, const float *pick, const float *max, const float *sum, int64_t n),
   (WP(out, n * 4), RP(pick, n * 4), RP(max, n * 4), RP(sum, n * 4)), out, pick, max, sum, n)
OP(adamw,
   (struct dev * d, float *w, void *w16, float *m, float *v, const float *g, int64_t n,
    const struct adamw *h),
   (WP(w, n * 4), WP(w16, n * 2), WP(m, n * 4), WP(v, n * 4), RP(g, n * 4)), w, w16, m, v, g, n, h)

/* The sum over ranks: the one op that may be deferred. */
enum { TREE_MOST = 64 };
struct sum {
    struct dev *d;
    float *out;
    const float *in[TREE_MOST];
    int n_in;
    int64_t n;
};

static void run_sum(void *arg)
{
    struct sum *s = arg;
    CPU_OF(s->d)->ops->tree_add(CPU_OF(s->d), s->out, s->in, s->n_in, s->n);
}

static void fake_tree_add(struct dev *d, float *out, const float *const *in, int n_in, int64_t n)
{
    struct sum *s = calloc(1, sizeof *s);
    BEGIN(tree_add);
    if (!s || n_in > TREE_MOST) {
        fake_wrong(F, "in", in, "is a longer list than the fake device takes");
        free(s);
        return;
    }
    *s = (struct sum){ .d = d, .n_in = n_in, .n = n };
    for (int i = 0; i < n_in; i++)
        s->in[i] = fake_at(F, "in", in[i], (size_t)n * 4, READS);
    s->out = WP(out, n * 4);
    fake_run(d, d->queue, run_sum, s);
}

static void fake_sum_squares(struct dev *d, struct xsum *s, const float *x, int64_t n)
{
    BEGIN(sum_squares);
    RP(x, n * 4);
    if (fake_hosts(F, "sum", s))
        RUN(sum_squares, s, x, n);
}

#define WITH_ATTN(how, ...) \
    do { \
        struct at_attn x = at_attn(F, a, (how)); \
        __VA_ARGS__; \
        free(x.seq); \
        free(x.doc); \
        free(x.page); \
    } while (0)
#define TABLE(p) RP(p, table_bytes(a))
/* Bytes of the RoPE tables that the sequences use. */
static size_t table_bytes(const struct attn *a)
{
    int64_t end = 0;
    for (int i = 0; i < a->n_seq; i++)
        end = a->seq[i].pos + a->seq[i].n_rows > end ? a->seq[i].pos + a->seq[i].n_rows : end;
    int64_t all = a->v_dim ? a->head_dim - a->v_dim : a->head_dim;
    return (size_t)(end * ((a->rope_dim ? a->rope_dim : all) / 2)) * sizeof(float);
}

static void fake_rope_store(struct dev *d, const struct attn *a, struct mat q, struct mat qkv,
                            const struct head_norm *norm, const float *cos, const float *sin)
{
    BEGIN(rope_store);
    struct head_norm n = at_norm(F, norm, a->head_dim, a->dt);
    W(q), R(qkv), TABLE(cos), TABLE(sin);
    WITH_ATTN(WRITES, RUN(rope_store, &x.a, q, qkv, norm ? &n : NULL, cos, sin));
}

static void fake_rope_back(struct dev *d, const struct attn *a, struct mat dq, struct mat dk,
                           const float *cos, const float *sin)
{
    BEGIN(rope_back);
    W(dq), W(dk), TABLE(cos), TABLE(sin);
    WITH_ATTN(READS, RUN(rope_back, &x.a, dq, dk, cos, sin));
}

static void fake_rope_dx(struct dev *d, const struct attn *a, struct mat dqkv, struct mat dq, struct mat dk,
                         struct mat dv, const float *cos, const float *sin)
{
    BEGIN(rope_dx);
    W(dqkv), R(dq), R(dk), R(dv), TABLE(cos), TABLE(sin);
    WITH_ATTN(READS, RUN(rope_dx, &x.a, dqkv, dq, dk, dv, cos, sin));
}

static void fake_latent_q(struct dev *d, const struct attn *a, struct mat q, struct mat absorbed,
                          struct mat raw, const float *cos, const float *sin)
{
    BEGIN(latent_q);
    W(q), R(absorbed), R(raw), TABLE(cos), TABLE(sin);
    WITH_ATTN(READS, RUN(latent_q, &x.a, q, absorbed, raw, cos, sin));
}

static void fake_latent_k(struct dev *d, const struct attn *a, struct mat c, struct mat raw, const float *cos,
                          const float *sin)
{
    BEGIN(latent_k);
    R(c), R(raw), TABLE(cos), TABLE(sin);
    WITH_ATTN(WRITES, RUN(latent_k, &x.a, c, raw, cos, sin));
}

static void fake_latent_q_dx(struct dev *d, const struct attn *a, struct mat draw, struct mat dq,
                             const float *cos, const float *sin)
{
    BEGIN(latent_q_dx);
    W(draw), R(dq), TABLE(cos), TABLE(sin);
    WITH_ATTN(READS, RUN(latent_q_dx, &x.a, draw, dq, cos, sin));
}

static void fake_latent_k_dx(struct dev *d, const struct attn *a, struct mat dc, struct mat draw,
                             struct mat dk, struct mat dv, const float *cos, const float *sin)
{
    BEGIN(latent_k_dx);
    W(dc), W(draw), R(dk), R(dv), TABLE(cos), TABLE(sin);
    WITH_ATTN(READS, RUN(latent_k_dx, &x.a, dc, draw, dk, dv, cos, sin));
}

static void fake_attn(struct dev *d, const struct attn *a, struct mat out, float *lse, struct mat q)
{
    BEGIN(attn);
    W(out), R(q), WP(lse, q.rows * a->n_heads * 4);
    WITH_ATTN(READS, RUN(attn, &x.a, out, lse, q));
}

static void fake_attn_dx(struct dev *d, const struct attn *a, struct mat dq, struct mat dk, struct mat dv,
                         struct mat dout, struct attn_kept kept)
{
    BEGIN(attn_dx);
    W(dq), W(dk), W(dv), R(dout), R(kept.out), R(kept.q), RP(kept.lse, kept.q.rows * a->n_heads * 4);
    WITH_ATTN(READS, RUN(attn_dx, &x.a, dq, dk, dv, dout, kept));
}

/* ---- mixtures of experts ---- */
static struct listed at_listed(struct fake *f, const char *arg, struct listed x)
{
    x.m = at_mat(f, arg, x.m, READS);
    if (x.list)
        x.list = fake_hosts(f, arg, x.list);
    return x;
}

static struct expert_rows at_experts(struct fake *f, const struct expert_rows *g)
{
    struct expert_rows x = *g;
    x.begin = fake_hosts(f, "begin", g->begin);
    if (g->leaf_end)
        x.leaf_end = fake_hosts(f, "leaf_end", g->leaf_end);
    return x;
}

static struct expert_router at_router(struct fake *f, const struct expert_router *r)
{
    struct expert_router x = *r;
    x.bias = fake_at(f, "bias", r->bias, (size_t)r->n_experts * 4, READS);
    return x;
}

static void fake_route(struct dev *d, const struct expert_router *r, int32_t *expert, float *weight,
                       struct mat logits)
{
    BEGIN(route);
    const struct expert_router x = at_router(F, r);
    R(logits), WP(expert, logits.rows * r->k * 4), WP(weight, logits.rows * r->k * 4);
    RUN(route, &x, expert, weight, logits);
}

static void fake_route_dx(struct dev *d, const struct expert_router *r, struct mat dlogits, struct mat logits,
                          const int32_t *expert, const float *weight, const float *dweight,
                          const struct balance *b)
{
    BEGIN(route_dx);
    const struct expert_router x = at_router(F, r);
    const int64_t n = logits.rows * r->k * 4;
    struct balance of = b ? *b : (struct balance){ 0 };
    of.count = fake_at(F, "count", of.count, (size_t)(of.s.n > 0 ? of.s.n : 1) * (size_t)r->n_experts * 4,
                       READS);
    W(dlogits), R(logits), RP(expert, n), RP(weight, n), RP(dweight, n);
    RUN(route_dx, &x, dlogits, logits, expert, weight, dweight, b ? &of : NULL);
}

static void fake_linear_experts(struct dev *d, struct mat y, struct listed x, const struct expert_rows *g,
                                const struct panels *w)
{
    BEGIN(linear_experts);
    struct panels *p = calloc((size_t)g->n + 1, sizeof *p);
    const struct expert_rows rows = at_experts(F, g);
    for (int e = 0; p && e < g->n; e++)
        p[e] = at_panels(F, "w", w[e], READS);
    W(y), x = at_listed(F, "x", x);
    if (p)
        RUN(linear_experts, y, x, &rows, p);
    free(p);
}

static void fake_linear_dx_experts(struct dev *d, struct mat dx, int n_w, const struct listed *dy,
                                   const struct mat *w, const struct leaves *l, const struct expert_rows *g)
{
    BEGIN(linear_dx_experts);
    struct mat *there = calloc((size_t)(g->n * n_w) + 1, sizeof *there);
    struct listed from[MATS];
    const struct expert_rows rows = at_experts(F, g);
    for (int i = 0; there && i < g->n * n_w; i++)
        there[i] = at_mat(F, "w", w[i], READS);
    for (int s = 0; s < n_w && s < MATS; s++)
        from[s] = at_listed(F, "dy", dy[s]);
    W(dx);
    if (there && n_w <= MATS)
        RUN(linear_dx_experts, dx, n_w, from, there, fake_hosts(F, "leaves", l), &rows);
    free(there);
}

static void fake_linear_dw_experts(struct dev *d, const struct tree_acc *acc, int64_t ld, struct listed dy,
                                   struct listed x, const struct expert_rows *g)
{
    BEGIN(linear_dw_experts);
    struct tree_acc *there = calloc((size_t)g->n + 1, sizeof *there);
    const struct expert_rows rows = at_experts(F, g);
    for (int e = 0; there && e < g->n; e++)
        there[e] = at_acc(F, acc[e], dy.m.cols, x.m.cols, ld);
    dy = at_listed(F, "dy", dy), x = at_listed(F, "x", x);
    if (there)
        RUN(linear_dw_experts, there, ld, dy, x, &rows);
    free(there);
}

OP(expert_dot, (struct dev * d, float *out, struct mat dact, struct mat act, const struct leaves *l),
   (R(dact), R(act), WP(out, act.rows * 4)), out, dact, act, fake_hosts(F, "leaves", l))
OP(combine_dx, (struct dev * d, struct mat dh, struct mat dx, const int32_t *place, int k),
   (W(dh), R(dx), IDS(place)), dh, dx, place, k)
OP(combine,
   (struct dev * d, struct mat out, struct mat y, const int32_t *place, const float *weight, int k,
    struct mat shared, const float *shared_gate),
   (W(out), R(y), R(shared), IDS(place), RP(weight, out.rows *k * 4), RP(shared_gate, out.rows * 4)), out, y,
   place, weight, k, shared, shared_gate)
/* n addresses of vectors. The caller frees the list. */
static const void **at_biases(struct fake *f, const void *const *bias, int n, size_t bytes)
{
    const void **there = calloc((size_t)n + 1, sizeof *there);
    for (int e = 0; there && e < n; e++)
        there[e] = fake_at(f, "bias", bias[e], bytes, READS);
    return there;
}

static void fake_add_bias_experts(struct dev *d, struct mat y, const void *const *bias, enum dtype dt,
                                  const struct expert_rows *g)
{
    BEGIN(add_bias_experts);
    const void **there = at_biases(F, bias, g->n, (size_t)y.cols * dtype_size(dt));
    const struct expert_rows rows = at_experts(F, g);
    W(y);
    if (there)
        RUN(add_bias_experts, y, there, dt, &rows);
    free(there);
}

static void fake_dot_bias_experts(struct dev *d, float *out, struct listed x, const void *const *bias,
                                  const struct expert_rows *g)
{
    BEGIN(dot_bias_experts);
    const void **there = at_biases(F, bias, g->n, (size_t)x.m.cols * dtype_size(x.m.dt));
    const struct expert_rows rows = at_experts(F, g);
    WP(out, g->begin[g->n] * 4), x = at_listed(F, "x", x);
    if (there)
        RUN(dot_bias_experts, out, x, there, &rows);
    free(there);
}

static void fake_bias_dw_experts(struct dev *d, float *out, struct mat dy, enum dtype dt,
                                 const struct expert_rows *g, int grain)
{
    BEGIN(bias_dw_experts);
    const struct expert_rows rows = at_experts(F, g);
    WP(out, (int64_t)g->n * (g->n_leaves / grain) * dy.cols * 4), R(dy);
    RUN(bias_dw_experts, out, dy, dt, &rows, grain);
}

static void fake_sink_dw(struct dev *d, float *out, const struct attn *a, struct mat dout,
                         struct attn_kept kept, struct seqs s)
{
    BEGIN(sink_dw);
    WP(out, (int64_t)s.n * a->n_heads * 4);
    R(dout), R(kept.out), R(kept.q), RP(kept.lse, kept.q.rows * a->n_heads * 4);
    WITH_ATTN(READS, RUN(sink_dw, out, &x.a, dout, kept, s));
}

OP(swiglu_clamped, (struct dev * d, struct mat act, struct mat gu, const struct clamp *c), (W(act), R(gu)),
   act, gu, fake_hosts(F, "clamp", c))
OP(swiglu_clamped_dx, (struct dev * d, struct mat dgu, struct mat gu, struct mat dact, const struct clamp *c),
   (W(dgu), R(gu), R(dact)), dgu, gu, dact, fake_hosts(F, "clamp", c))
OP(add_to, (struct dev * d, struct mat y, struct mat x), (W(y), R(x)), y, x)
OP(add_scaled, (struct dev * d, struct mat y, struct mat x, float factor), (W(y), R(x)), y, x, factor)
OP(gate_dx,
   (struct dev * d, struct mat dgate, struct mat dshared, struct mat dout, struct mat shared,
    const float *gate),
   (W(dgate), W(dshared), R(dout), R(shared), RP(gate, shared.rows * 4)), dgate, dshared, dout, shared, gate)

/* Entries of a list over rows, or their number where there is none. */
static int64_t list_end(const int32_t *list, int64_t rows)
{
    int64_t end = list ? 0 : rows;
    for (int64_t i = 0; list && i < rows; i++)
        end = list[i] >= end ? list[i] + 1 : end;
    return end;
}

static void fake_scale_rows(struct dev *d, struct mat y, const float *w, const int32_t *list)
{
    BEGIN(scale_rows);
    W(y), RP(w, list_end(list, y.rows) * 4);
    if (list)
        IDS(list);
    RUN(scale_rows, y, w, list);
}

static void fake_gather_scaled(struct dev *d, struct mat y, struct listed x, const float *w,
                               const int32_t *w_list)
{
    BEGIN(gather_scaled);
    W(y), x = at_listed(F, "x", x);
    if (w)
        RP(w, list_end(w_list, y.rows) * 4);
    if (w_list)
        IDS(w_list);
    RUN(gather_scaled, y, x, w, w_list);
}

const struct kernel_ops fake_ops = {
#define K(name, ...) .name = fake_##name,
    KERNEL_LIST(K)
#undef K
};
