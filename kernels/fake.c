/* fake.c - a device for tests that proves what the programs do with device memory: the CPU's ops, over memory that the host cannot touch.
 *
 * Addresses of this device lie in a range without access rights and are never given twice, so whoever dereferences one on the host ends by
 * SIGSEGV. Every op and every copy looks its arguments up: device memory must be the device's, alive and long enough, host memory the
 * host's. What does not fit is not run; dev_check says which op and argument it was. Numbers are the CPU's, bit for bit. */
#include "kernels/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/kernels.h"

#define RANGE ((size_t)1 << 42)          /* of addresses: they are not used again */
#define GAP ((size_t)4096)               /* between two pieces: no overrun meets the next one */

struct block { char *at, *real; size_t bytes; };                  /* real NULL: freed */
struct fake {
    char *base, *next;
    struct block *block;                 /* ascending by at */
    int n_blocks, cap;
    const char *op;                      /* that runs */
    char what[256];                      /* the first thing that was wrong since dev_check; "": nothing */
};

static struct fake *of(const struct dev *d) { return d->back; }

/* ---- memory ---- */
static void wrong(struct fake *f, const char *arg, const void *p, const char *why)
{
    if (!f->what[0])
        snprintf(f->what, sizeof f->what, "%s: %s (%p) %s", f->op, arg, p, why);
}

static int inside(const struct fake *f, const void *p) { return (const char *)p >= f->base && (const char *)p < f->base + RANGE; }

/* The last block that begins at or before p. */
static struct block *block_of(const struct fake *f, const void *p)
{
    int lo = 0, hi = f->n_blocks;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (f->block[mid].at <= (const char *)p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo ? &f->block[lo - 1] : NULL;
}

/* Where `bytes` of device memory at p really are, or NULL: then it was noted what is wrong. */
static void *real(struct fake *f, const char *arg, const void *p, size_t bytes)
{
    struct block *b = block_of(f, p);
    if (!p)
        return NULL;
    if (!inside(f, p))
        return wrong(f, arg, p, "is memory of the host"), NULL;
    if (!b || (size_t)((const char *)p - b->at) + bytes > b->bytes)
        return wrong(f, arg, p, "runs over the end of its memory"), NULL;
    if (!b->real)
        return wrong(f, arg, p, "was freed"), NULL;
    return b->real + ((const char *)p - b->at);
}

/* An argument that must be the host's own. */
static const void *hosts(struct fake *f, const char *arg, const void *p)
{
    if (p && inside(f, p))
        return wrong(f, arg, p, "is memory of the device"), NULL;
    return p;
}

static void *fake_alloc(struct dev *d, enum mem_cat cat, size_t bytes)
{
    struct fake *f = of(d);
    if (f->n_blocks == f->cap) {
        int cap = f->cap ? 2 * f->cap : 256;
        struct block *more = realloc(f->block, sizeof *more * (size_t)cap);
        if (!more)
            return NULL;
        f->block = more;
        f->cap = cap;
    }
    size_t room = (bytes + 2 * GAP - 1) / GAP * GAP;
    if ((size_t)(f->base + RANGE - f->next) < room)
        return NULL;
    struct block b = { f->next, mem_alloc(d->mem, cat, bytes), bytes };
    if (!b.real)
        return NULL;
    f->block[f->n_blocks++] = b;
    f->next += room;
    return b.at;
}

static void fake_free(struct dev *d, void *p)
{
    struct fake *f = of(d);
    struct block *b = block_of(f, p);
    f->op = "dev_free";
    if (!inside(f, p) || !b || b->at != p || !b->real) {
        wrong(f, "its argument", p, "is no memory of the device that is in use");
        return;
    }
    mem_free(d->mem, b->real);
    b->real = NULL;
}

static int fake_owns(const struct dev *d, const void *p) { return inside(of(d), p); }

static void fake_read(struct dev *d, void *host, const void *p, size_t bytes)
{
    struct fake *f = of(d);
    f->op = "dev_read";
    const void *from = real(f, "source", p, bytes);
    if (from && bytes && hosts(f, "target", host))
        memcpy(host, from, bytes);
}

static void fake_write(struct dev *d, void *p, const void *host, size_t bytes)
{
    struct fake *f = of(d);
    f->op = "dev_write";
    void *to = real(f, "target", p, bytes);
    if (to && bytes && hosts(f, "source", host))
        memcpy(to, host, bytes);
}

static void fake_copy(struct dev *d, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes, int64_t rows)
{
    struct fake *f = of(d);
    f->op = "dev_copy";
    if (!bytes || rows < 1)
        return;
    char *dst = real(f, "target", to, (size_t)(rows - 1) * to_pitch + bytes), *src = real(f, "source", from, (size_t)(rows - 1) * from_pitch + bytes);
    for (int64_t i = 0; dst && src && i < rows; i++)
        memcpy(dst + (size_t)i * to_pitch, src + (size_t)i * from_pitch, bytes);
}

static void fake_fill(struct dev *d, void *p, int byte, size_t bytes)
{
    struct fake *f = of(d);
    f->op = "dev_fill";
    void *to = real(f, "target", p, bytes);
    if (to && bytes)
        memset(to, byte, bytes);
}

static void fake_sync(struct dev *d) { (void)d; }

static size_t fake_room(struct dev *d)
{
    (void)d;
    return (size_t)1 << 34;
}

static int fake_check(struct dev *d, struct err *e)
{
    struct fake *f = of(d);
    char text[sizeof f->what];
    if (!f->what[0])
        return 0;
    memcpy(text, f->what, sizeof text);
    f->what[0] = 0;
    return err_set(e, ERR_INTERNAL, "fake device: %s", text);
}

static void fake_close(struct dev *d)
{
    struct fake *f = of(d);
    for (int i = 0; f && i < f->n_blocks; i++)
        mem_free(d->mem, f->block[i].real);
    if (f && f->base)
        munmap(f->base, RANGE);
    if (f)
        free(f->block);
    free(f);
}

/* ---- arguments of ops: the same with addresses of the host ---- */
static size_t span(struct mat m) { return m.rows > 0 && m.cols > 0 ? (size_t)((m.rows - 1) * m.ld + m.cols) * dtype_size(m.dt) : 0; }

static struct mat at_mat(struct fake *f, const char *arg, struct mat m)
{
    m.p = real(f, arg, m.p, span(m));
    return m;
}

enum { MATS = 8 };
struct mats { struct mat m[MATS]; };
static struct mats at_mats(struct fake *f, const char *arg, const struct mat *m, int n)
{
    struct mats out = { { { 0 } } };
    if (n > MATS)
        wrong(f, arg, m, "is a longer list than the fake device takes");
    for (int i = 0; i < n && i < MATS; i++)
        out.m[i] = at_mat(f, arg, m[i]);
    return out;
}

static struct panels at_panels(struct fake *f, const char *arg, struct panels p)
{
    p.p = real(f, arg, p.p, panels_bytes(p.n, p.k, p.dt, &p.leaves));
    return p;
}

static struct tree_acc at_acc(struct fake *f, const char *arg, struct tree_acc a)
{
    for (int i = 0; i < TREE_DEPTH_MAX; i++)
        a.level[i] = a.level[i] ? real(f, arg, a.level[i], sizeof(float)) : NULL;
    return a;
}

static struct head_norm at_norm(struct fake *f, const struct head_norm *n, int head_dim, enum dtype dt)
{
    if (!n)
        return (struct head_norm){ 0 };
    size_t bytes = (size_t)head_dim * dtype_size(dt);
    return (struct head_norm){ real(f, "norm", n->q, bytes), real(f, "norm", n->k, bytes), n->eps };
}

/* Attention's sequences with pages of the host; pages that lie wholly before a window may be anything. */
struct at_attn { struct attn a; struct attn_seq *seq; char **page; };
static int64_t pages_of(const struct attn_seq *s) { return (s->pos + s->n_rows + ATTN_PAGE - 1) / ATTN_PAGE; }

static struct at_attn at_attn(struct fake *f, const struct attn *a)
{
    struct at_attn x = { .a = *a };
    size_t bytes = a->page_off + attn_page_bytes(a->n_kv, a->head_dim, a->dt);
    int64_t n = 0, at = 0;
    for (int i = 0; i < a->n_seq; i++)
        n += pages_of(&a->seq[i]);
    x.seq = calloc((size_t)a->n_seq + 1, sizeof *x.seq);
    x.page = calloc((size_t)n + 1, sizeof *x.page);
    x.a.seq = x.seq;
    if (!x.seq || !x.page) {
        wrong(f, "sequences", a, "cannot be copied: no memory");
        return x;
    }
    for (int i = 0; i < a->n_seq; i++) {
        x.seq[i] = a->seq[i];
        x.seq[i].page = x.page + at;
        int64_t first = a->window > 0 && a->seq[i].pos >= a->window ? (a->seq[i].pos - a->window + 1) / ATTN_PAGE : 0;
        for (int64_t p = 0; p < pages_of(&a->seq[i]); p++, at++)
            x.page[at] = p < first ? NULL : real(f, "page", a->seq[i].page[p], bytes);
    }
    return x;
}

/* Ops that take no attention: RUN(name, its arguments of the host's). */
#define F of(d)
#define CPU d->host
#define BEGIN(name) (F->op = #name)
#define RUN(name, ...)                                                                                                   \
    do {                                                                                                                 \
        if (!F->what[0])                                                                                                 \
            CPU->ops->name(CPU, __VA_ARGS__);                                                                            \
    } while (0)
#define M(m) (m) = at_mat(F, #m, (m))
#define P(p, bytes) (p) = real(F, #p, (p), (size_t)(bytes))
#define IDS(p) (p) = hosts(F, #p, (p))
#define ACC struct tree_acc acc_here = at_acc(F, "acc", *acc)

static void fake_linear_pack(struct dev *d, struct panels *p, int n_w, const struct mat *w)
{
    BEGIN(linear_pack);
    struct panels to = at_panels(F, "p", *p);
    struct mats m = at_mats(F, "w", w, n_w);
    RUN(linear_pack, &to, n_w, m.m);
}

static void fake_linear(struct dev *d, struct mat y, struct mat x, const struct panels *w)
{
    BEGIN(linear);
    struct panels p = at_panels(F, "w", *w);
    M(y), M(x);
    RUN(linear, y, x, &p);
}

static void fake_linear_dx(struct dev *d, struct mat dx, int n_w, const struct mat *dy, const struct mat *w, const struct leaves *l)
{
    BEGIN(linear_dx);
    struct mats a = at_mats(F, "dy", dy, n_w), b = at_mats(F, "w", w, n_w);
    M(dx);
    RUN(linear_dx, dx, n_w, a.m, b.m, hosts(F, "leaves", l));
}

static void fake_linear_dw(struct dev *d, const struct tree_acc *acc, int64_t ld, struct mat dy, struct mat x, int n_seq, int64_t seq_len)
{
    BEGIN(linear_dw);
    ACC;
    M(dy), M(x);
    RUN(linear_dw, &acc_here, ld, dy, x, n_seq, seq_len);
}

static void fake_embed(struct dev *d, struct mat out, struct mat table, int64_t first, const int32_t *ids)
{
    BEGIN(embed);
    M(out), M(table), IDS(ids);
    RUN(embed, out, table, first, ids);
}

static void fake_embed_dw(struct dev *d, const struct tree_acc *acc, int64_t ld, int64_t first, int64_t rows, struct mat dx, const int32_t *ids, int n_seq,
                          int64_t seq_len)
{
    BEGIN(embed_dw);
    ACC;
    M(dx), IDS(ids);
    RUN(embed_dw, &acc_here, ld, first, rows, dx, ids, n_seq, seq_len);
}

static void fake_rms_norm(struct dev *d, struct mat y, float *rstd, struct mat x, const void *w, float eps)
{
    BEGIN(rms_norm);
    M(y), M(x), P(rstd, x.rows * 4), P(w, (size_t)x.cols * dtype_size(x.dt));
    RUN(rms_norm, y, rstd, x, w, eps);
}

static void fake_rms_norm_dx(struct dev *d, struct mat dres, struct mat dy, struct mat x, const void *w, const float *rstd)
{
    BEGIN(rms_norm_dx);
    M(dres), M(dy), M(x), P(w, (size_t)x.cols * dtype_size(x.dt)), P(rstd, x.rows * 4);
    RUN(rms_norm_dx, dres, dy, x, w, rstd);
}

static void fake_rms_norm_dw(struct dev *d, const struct tree_acc *acc, struct mat dy, struct mat x, const float *rstd, int n_seq, int64_t seq_len,
                             int grain)
{
    BEGIN(rms_norm_dw);
    ACC;
    M(dy), M(x), P(rstd, x.rows * 4);
    RUN(rms_norm_dw, &acc_here, dy, x, rstd, n_seq, seq_len, grain);
}

static void fake_layer_norm(struct dev *d, struct mat y, float *mean, float *rstd, struct mat x, const void *w, const void *b, float eps)
{
    BEGIN(layer_norm);
    M(y), M(x), P(mean, x.rows * 4), P(rstd, x.rows * 4), P(w, (size_t)x.cols * dtype_size(x.dt)), P(b, (size_t)x.cols * dtype_size(x.dt));
    RUN(layer_norm, y, mean, rstd, x, w, b, eps);
}

static void fake_layer_norm_dx(struct dev *d, struct mat dres, struct mat dy, struct mat x, const void *w, const float *mean, const float *rstd)
{
    BEGIN(layer_norm_dx);
    M(dres), M(dy), M(x), P(w, (size_t)x.cols * dtype_size(x.dt)), P(mean, x.rows * 4), P(rstd, x.rows * 4);
    RUN(layer_norm_dx, dres, dy, x, w, mean, rstd);
}

static void fake_layer_norm_dw(struct dev *d, const struct tree_acc *acc, struct mat dy, struct mat x, const float *mean, const float *rstd, int n_seq,
                               int64_t seq_len, int grain)
{
    BEGIN(layer_norm_dw);
    ACC;
    M(dy), M(x), P(mean, x.rows * 4), P(rstd, x.rows * 4);
    RUN(layer_norm_dw, &acc_here, dy, x, mean, rstd, n_seq, seq_len, grain);
}

static void fake_bias_dw(struct dev *d, const struct tree_acc *acc, struct mat dy, enum dtype dt, int n_seq, int64_t seq_len, int grain)
{
    BEGIN(bias_dw);
    ACC;
    M(dy);
    RUN(bias_dw, &acc_here, dy, dt, n_seq, seq_len, grain);
}

static void fake_add_bias(struct dev *d, struct mat y, const void *bias, enum dtype dt)
{
    BEGIN(add_bias);
    M(y), P(bias, (size_t)y.cols * dtype_size(dt));
    RUN(add_bias, y, bias, dt);
}

static void fake_head_norm_dx(struct dev *d, struct mat dy, struct mat x, int n_heads, const void *w, enum dtype dt, float eps)
{
    BEGIN(head_norm_dx);
    M(dy), M(x), P(w, (size_t)(x.cols / n_heads) * dtype_size(dt));
    RUN(head_norm_dx, dy, x, n_heads, w, dt, eps);
}

static void fake_head_norm_dw(struct dev *d, float *out, int64_t ld, struct mat dy, struct mat x, int n_heads, float eps, int n_seq, int64_t seq_len,
                              int grain)
{
    BEGIN(head_norm_dw);
    M(dy), M(x), P(out, ((n_seq - 1) * ld + x.cols / n_heads) * 4);
    RUN(head_norm_dw, out, ld, dy, x, n_heads, eps, n_seq, seq_len, grain);
}

static void fake_add_leaves(struct dev *d, const struct tree_acc *acc, const float *leaf, int64_t ld, int64_t n, int n_seq)
{
    BEGIN(add_leaves);
    ACC;
    P(leaf, ((n_seq - 1) * ld + n) * 4);
    RUN(add_leaves, &acc_here, leaf, ld, n, n_seq);
}

static void fake_embed_add(struct dev *d, struct mat x, struct mat table, const int32_t *ids)
{
    BEGIN(embed_add);
    M(x), M(table), IDS(ids);
    RUN(embed_add, x, table, ids);
}

static void fake_transpose(struct dev *d, struct mat dst, struct mat src)
{
    BEGIN(transpose);
    M(dst), M(src);
    RUN(transpose, dst, src);
}

static void fake_gelu(struct dev *d, struct mat act, struct mat h)
{
    BEGIN(gelu);
    M(act), M(h);
    RUN(gelu, act, h);
}

static void fake_gelu_dx(struct dev *d, struct mat dh, struct mat h, struct mat dact)
{
    BEGIN(gelu_dx);
    M(dh), M(h), M(dact);
    RUN(gelu_dx, dh, h, dact);
}

static void fake_swiglu(struct dev *d, struct mat act, struct mat gu)
{
    BEGIN(swiglu);
    M(act), M(gu);
    RUN(swiglu, act, gu);
}

static void fake_swiglu_dx(struct dev *d, struct mat dgu, struct mat gu, struct mat dact)
{
    BEGIN(swiglu_dx);
    M(dgu), M(gu), M(dact);
    RUN(swiglu_dx, dgu, gu, dact);
}

static void fake_add_rounded(struct dev *d, struct mat x, struct mat o)
{
    BEGIN(add_rounded);
    M(x), M(o);
    RUN(add_rounded, x, o);
}

static void fake_round_to(struct dev *d, void *dst, enum dtype dt, const float *src, int64_t n)
{
    BEGIN(round_to);
    P(dst, (size_t)n * dtype_size(dt)), P(src, n * 4);
    RUN(round_to, dst, dt, src, n);
}

static void fake_widen(struct dev *d, float *dst, const void *src, enum dtype dt, int64_t n)
{
    BEGIN(widen);
    P(dst, n * 4), P(src, (size_t)n * dtype_size(dt));
    RUN(widen, dst, src, dt, n);
}

static void fake_ce_max(struct dev *d, float *max, struct mat logits)
{
    BEGIN(ce_max);
    M(logits), P(max, logits.rows * 4);
    RUN(ce_max, max, logits);
}

static void fake_ce_sum(struct dev *d, float *sum, struct mat logits, const struct leaves *l, const float *max)
{
    BEGIN(ce_sum);
    M(logits), P(sum, logits.rows * 4), P(max, logits.rows * 4);
    RUN(ce_sum, sum, logits, hosts(F, "leaves", l), max);
}

static void fake_ce_pick(struct dev *d, float *out, struct mat logits, const int32_t *target, int64_t first)
{
    BEGIN(ce_pick);
    M(logits), P(out, logits.rows * 4), IDS(target);
    RUN(ce_pick, out, logits, target, first);
}

static void fake_ce_dx(struct dev *d, struct mat dl, struct mat logits, const int32_t *target, int64_t first, const float *max, const float *sum, float scale)
{
    BEGIN(ce_dx);
    M(dl), M(logits), IDS(target), P(max, logits.rows * 4), P(sum, logits.rows * 4);
    RUN(ce_dx, dl, logits, target, first, max, sum, scale);
}

static void fake_ce_logprob(struct dev *d, float *out, const float *pick, const float *max, const float *sum, int64_t n)
{
    BEGIN(ce_logprob);
    P(out, n * 4), P(pick, n * 4), P(max, n * 4), P(sum, n * 4);
    RUN(ce_logprob, out, pick, max, sum, n);
}

static void fake_adamw(struct dev *d, float *w, void *w16, float *m, float *v, const float *g, int64_t n, const struct adamw *h)
{
    BEGIN(adamw);
    P(w, n * 4), P(w16, n * 2), P(m, n * 4), P(v, n * 4), P(g, n * 4);
    RUN(adamw, w, w16, m, v, g, n, h);
}

static void fake_tree_add(struct dev *d, float *out, const float *const *in, int n_in, int64_t n)
{
    enum { MOST = 64 };
    const float *from[MOST];
    BEGIN(tree_add);
    if (n_in > MOST)
        wrong(F, "in", in, "is a longer list than the fake device takes");
    for (int i = 0; i < n_in && i < MOST; i++)
        from[i] = real(F, "in", in[i], (size_t)n * 4);
    P(out, n * 4);
    RUN(tree_add, out, from, n_in, n);
}

static void fake_sum_squares(struct dev *d, struct xsum *s, const float *x, int64_t n)
{
    BEGIN(sum_squares);
    P(x, n * 4);
    if (hosts(F, "sum", s))
        RUN(sum_squares, s, x, n);
}

#define WITH_ATTN(...)                                                                                                   \
    do {                                                                                                                 \
        struct at_attn x = at_attn(F, a);                                                                                \
        __VA_ARGS__;                                                                                                     \
        free(x.seq);                                                                                                     \
        free(x.page);                                                                                                    \
    } while (0)
/* rows of the tables that the sequences use */
#define TABLE(p) P(p, table_bytes(a))
static size_t table_bytes(const struct attn *a)
{
    int64_t end = 0;
    for (int i = 0; i < a->n_seq; i++)
        end = a->seq[i].pos + a->seq[i].n_rows > end ? a->seq[i].pos + a->seq[i].n_rows : end;
    return (size_t)(end * (a->head_dim / 2)) * sizeof(float);
}

static void fake_rope_store(struct dev *d, const struct attn *a, struct mat q, struct mat qkv, const struct head_norm *norm, const float *cos, const float *sin)
{
    BEGIN(rope_store);
    struct head_norm n = at_norm(F, norm, a->head_dim, a->dt);
    M(q), M(qkv), TABLE(cos), TABLE(sin);
    WITH_ATTN(RUN(rope_store, &x.a, q, qkv, norm ? &n : NULL, cos, sin));
}

static void fake_rope_back(struct dev *d, const struct attn *a, struct mat dq, struct mat dk, const float *cos, const float *sin)
{
    BEGIN(rope_back);
    M(dq), M(dk), TABLE(cos), TABLE(sin);
    WITH_ATTN(RUN(rope_back, &x.a, dq, dk, cos, sin));
}

static void fake_rope_dx(struct dev *d, const struct attn *a, struct mat dqkv, struct mat dq, struct mat dk, struct mat dv, const float *cos, const float *sin)
{
    BEGIN(rope_dx);
    M(dqkv), M(dq), M(dk), M(dv), TABLE(cos), TABLE(sin);
    WITH_ATTN(RUN(rope_dx, &x.a, dqkv, dq, dk, dv, cos, sin));
}

static void fake_attn(struct dev *d, const struct attn *a, struct mat out, float *lse, struct mat q)
{
    BEGIN(attn);
    M(out), M(q), P(lse, q.rows * a->n_heads * 4);
    WITH_ATTN(RUN(attn, &x.a, out, lse, q));
}

static void fake_attn_dx(struct dev *d, const struct attn *a, struct mat dq, struct mat dk, struct mat dv, struct mat dout, struct mat out, const float *lse,
                         struct mat q)
{
    BEGIN(attn_dx);
    M(dq), M(dk), M(dv), M(dout), M(out), M(q), P(lse, q.rows * a->n_heads * 4);
    WITH_ATTN(RUN(attn_dx, &x.a, dq, dk, dv, dout, out, lse, q));
}

static const struct kernel_ops fake_ops = {
#define K(name, ...) .name = fake_##name,
    KERNEL_LIST(K)
#undef K
};

static const struct dev_memory fake_memory = {
    .alloc = fake_alloc, .free = fake_free, .owns = fake_owns, .read = fake_read, .write = fake_write, .copy = fake_copy,
    .fill = fake_fill,   .sync = fake_sync, .room = fake_room, .check = fake_check, .close = fake_close,
};

int fake_open(struct dev *d, struct err *e)
{
    struct fake *f = calloc(1, sizeof *f);
    void *base = f ? mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        free(f);
        return err_set(e, ERR_MEMORY, "no addresses for the fake device");
    }
    f->base = f->next = base;
    f->op = "";
    d->back = f;
    d->memory = &fake_memory;
    d->ops = &fake_ops;
    d->isa = d->host->isa;
    return 0;
}
