/* memplan_lab.c - see memplan_lab.h. A turn is a step of two layers, the embedding, the head and an update;
 * every call is timed by itself, and the mean of its turns counts, but for what others disturbed. */
#include "tools/memplan_lab.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "kernels/kernels.h"

enum { TURNS = 3, LAYERS = 2, MOST_CALLS = 64, MOST_SAMPLES = 16 * TURNS * LAYERS };
/* Threads wait until all of them have been started, or one could not be. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int state; /* 0: wait, 1: go, -1: return */
    pthread_barrier_t together;
};
enum { NORM_A, NORM_B, NORMS };
enum { W_QKV, W_O, W_GU, W_DOWN, PACKS };
enum { W_Q, W_K, W_V, W_OUT, W_GATE, W_UP, W_DN, MATRICES };

struct call {
    struct cluster_op op;
    int n;
    double s[MOST_SAMPLES];
};
struct matrix {
    int64_t n, k;
    struct mat w;
    struct tree_acc sums;
};
struct lab_layer {
    void *x, *h[NORMS], *q, *o, *act, *pages, *norm_weight;
    float *qkv, *gu, *lse, *stat[NORMS];
    struct matrix m[MATRICES];
    struct panels pack[PACKS];
    char **page;
    struct attn_seq *seq;
    float *moment[2];
    int64_t n_params;
    float *params, *sums_flat;
    void *params_dt;
};
struct lab {
    struct lab_shape s;
    struct dev *d;
    struct mem mem;
    char *memory, *at;
    size_t bytes; /* counted first, then taken */
    int64_t T, h, hd, heads, kv_heads, q, kv, inter, vocab;
    struct leaves of_hidden, of_heads, of_kv, of_inter, of_vocab;
    struct lab_layer layer[LAYERS];
    struct matrix table, head;
    struct panels head_pack;
    float *sum_rows, *d_act, *d_out, *dq, *dk, *dv, *logits, *max, *sum, *scale, *cos;
    void *dx, *dqkv, *dgu, *d_out_dt, *dlogits, *top;
    int32_t *ids;
    int threads, counts;
    struct call call[MOST_CALLS];
    int n_calls, lost;        /* lost: calls of more than MOST_CALLS shapes */
    struct gate *gate;        /* of labs that run together; NULL: this one is alone */
    pthread_barrier_t *group; /* of labs that sum what they compute; NULL: there is none */
    double at_once;           /* labs, where they are more than the cores; else 0 */
};

/* ---- timing ---- */
static double clock_of(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Of one thread processor time, so that other programs disturb little; of several the time on the clock: they
 * wait for each other, some of it asleep. */
static double now(const struct lab *l)
{
    return clock_of(l->threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID);
}

static void record(struct lab *l, enum sim_op name, const int64_t shape[3], double s)
{
    struct cluster_op op = { .name = name,
                             .dtype = l->s.dt == DT_F32 ? SIM_F32 : SIM_BF16,
                             .rows = (double)shape[0],
                             .cols = (double)shape[1],
                             .other = (double)shape[2],
                             .seq_len = (double)l->s.seq_len,
                             .at_once = l->at_once };
    int i = 0;
    while (i < l->n_calls && memcmp(&l->call[i].op, &op, sizeof op))
        i++;
    if (!l->counts)
        return;
    if (i == MOST_CALLS) {
        l->lost++;
        return;
    }
    struct call *c = &l->call[i];
    if (i == l->n_calls)
        l->n_calls++, c->op = op;
    if (c->n < MOST_SAMPLES)
        c->s[c->n++] = s;
}

/* A call of a kernel, timed. */
#define TIMED(l, name, rows, cols, other, ...) \
    do { \
        double begin_ = now(l); \
        __VA_ARGS__; \
        record(l, SIM_OP_##name, (int64_t[3]){ rows, cols, other }, now(l) - begin_); \
    } while (0)

/* ---- memory ---- */
static void *take(struct lab *l, size_t bytes)
{
    size_t size = (bytes + 64 + 4095) & ~(size_t)4095;
    char *p = l->at;
    if (p)
        l->at += size;
    else
        l->bytes += size;
    return p;
}
static void *take_rows(struct lab *l, int64_t cols)
{
    return take(l, (size_t)(l->T * cols) * dtype_size(l->s.dt));
}
static float *take_floats(struct lab *l, int64_t n) { return take(l, (size_t)n * 4); }

/* n_leaves: of the sum of gradients. */
static void take_matrix(struct lab *l, struct matrix *m, int64_t n, int64_t k)
{
    int levels = tree_levels(l->s.seqs, l->s.seqs);
    m->n = n;
    m->k = k;
    m->w = mat_of(take(l, (size_t)(n * k) * dtype_size(l->s.dt)), l->s.dt, n, k, k);
    m->sums = (struct tree_acc){ .n = l->s.seqs };
    for (int i = 0; i < levels; i++)
        m->sums.level[i] = take_floats(l, n * k);
}

static void take_pack(struct lab *l, struct panels *p, int64_t n, int64_t k, const struct leaves *leaves)
{
    *p = (struct panels){ .n = n, .k = k, .dt = l->s.dt, .leaves = *leaves };
    p->p = take(l, panels_bytes(n, k, l->s.dt, leaves));
}

static void take_layer(struct lab *l, struct lab_layer *y)
{
    const int64_t shape[MATRICES][2] = { { l->q, l->h },    { l->kv, l->h },    { l->kv, l->h },
                                         { l->h, l->q },    { l->inter, l->h }, { l->inter, l->h },
                                         { l->h, l->inter } };
    int64_t pages = (l->s.seq_len + ATTN_PAGE - 1) / ATTN_PAGE * l->s.seqs;
    y->x = take_rows(l, l->h);
    y->qkv = take_floats(l, l->T * (l->q + 2 * l->kv));
    y->gu = take_floats(l, l->T * 2 * l->inter);
    y->q = take_rows(l, l->q);
    y->o = take_rows(l, l->q);
    y->act = take_rows(l, l->inter);
    y->lse = take_floats(l, l->T * l->heads);
    y->norm_weight = take_floats(l, l->h);
    y->pages = take(l, (size_t)pages * attn_page_bytes((int)l->kv_heads, (int)l->hd, l->s.dt));
    y->page = take(l, (size_t)pages * sizeof *y->page);
    y->seq = take(l, (size_t)l->s.seqs * sizeof *y->seq);
    for (int i = 0; i < NORMS; i++) {
        y->h[i] = take_rows(l, l->h);
        y->stat[i] = take_floats(l, l->T);
    }
    y->n_params = 0;
    for (int i = 0; i < MATRICES; i++) {
        take_matrix(l, &y->m[i], shape[i][0], shape[i][1]);
        y->n_params += shape[i][0] * shape[i][1];
    }
    take_pack(l, &y->pack[W_QKV], l->q + 2 * l->kv, l->h, &l->of_hidden);
    take_pack(l, &y->pack[W_O], l->h, l->q, &l->of_heads);
    take_pack(l, &y->pack[W_GU], 2 * l->inter, l->h, &l->of_hidden);
    take_pack(l, &y->pack[W_DOWN], l->h, l->inter, &l->of_inter);
    y->params = take_floats(l, y->n_params);
    y->params_dt = take_floats(l, y->n_params);
    y->sums_flat = take_floats(l, y->n_params);
    for (int i = 0; i < 2; i++)
        y->moment[i] = take_floats(l, y->n_params);
}

static void take_all(struct lab *l)
{
    for (int i = 0; i < LAYERS; i++)
        take_layer(l, &l->layer[i]);
    l->top = take_rows(l, l->h);
    take_matrix(l, &l->table, l->vocab, l->h);
    take_matrix(l, &l->head, l->vocab, l->h);
    take_pack(l, &l->head_pack, l->vocab, l->h, &l->of_hidden);
    l->sum_rows = take_floats(l, l->T * l->h);
    l->d_act = take_floats(l, l->T * l->inter);
    l->d_out = take_floats(l, l->T * l->q);
    l->dq = take_floats(l, l->T * l->q);
    l->dk = take_floats(l, l->T * l->kv);
    l->dv = take_floats(l, l->T * l->kv);
    l->logits = take_floats(l, l->T * l->vocab);
    l->max = take_floats(l, l->T);
    l->sum = take_floats(l, l->T);
    l->scale = take_floats(l, l->T);
    l->cos = take_floats(l, l->s.seq_len * l->hd);
    l->dx = take_rows(l, l->h);
    l->dqkv = take_rows(l, l->q + 2 * l->kv);
    l->dgu = take_rows(l, 2 * l->inter);
    l->d_out_dt = take_rows(l, l->q);
    l->dlogits = l->s.dt == DT_F32 ? (void *)l->logits : take_rows(l, l->vocab);
    l->ids = take(l, (size_t)l->T * sizeof *l->ids);
}

/* Small numbers: with zeros a processor would need less power. */
static void fill(struct lab *l)
{
    uint32_t x = 1;
    for (size_t i = 0; i + 4 <= l->bytes; i += 4) {
        x = x * 1664525u + 1013904223u;
        float f = ((float)(x >> 8) / 16777216.0f - 0.5f) / 16;
        memcpy(l->memory + i, &f, 4); /* as two bf16: one is small, too, or a number below 1 */
    }
    uint16_t *half = (uint16_t *)l->memory;
    for (size_t i = 0; l->s.dt != DT_F32 && i + 1 < l->bytes / 2; i += 2)
        half[i] = half[i + 1];
}

static void point(struct lab *l)
{
    int64_t each = (l->s.seq_len + ATTN_PAGE - 1) / ATTN_PAGE;
    size_t bytes = attn_page_bytes((int)l->kv_heads, (int)l->hd, l->s.dt);
    for (int i = 0; i < LAYERS; i++) {
        struct lab_layer *y = &l->layer[i];
        for (int64_t p = 0; p < each * l->s.seqs; p++)
            y->page[p] = (char *)y->pages + (size_t)p * bytes;
        memset(y->pages, 0, (size_t)(each * l->s.seqs) * bytes);
        for (int64_t s = 0; s < l->s.seqs; s++)
            y->seq[s] = (struct attn_seq){ .row = s * l->s.seq_len,
                                           .n_rows = l->s.seq_len,
                                           .page = y->page + s * each };
    }
    for (int64_t t = 0; t < l->T; t++) {
        l->ids[t] = (int32_t)(t * 7919 % l->vocab);
        l->scale[t] = 1.0f / (float)l->T;
    }
}

static int64_t share_of(int64_t n, int grain, int each) { return block_begin(n, grain, each); }

static int open_lab(struct lab *l, const struct lab_shape *s, int threads, struct err *e)
{
    const struct model_config *c = s->cfg;
    int grain = c->grain, each = grain / s->tp;
    memset(l, 0, sizeof *l);
    l->s = *s;
    l->T = s->seqs * s->seq_len;
    l->h = c->hidden;
    l->hd = c->head_dim;
    l->heads = c->n_heads / s->tp;
    l->kv_heads = c->n_kv / s->tp > 0 ? c->n_kv / s->tp : 1;
    l->q = l->heads * l->hd;
    l->kv = l->kv_heads * l->hd;
    l->inter = share_of(c->inter, grain, each);
    l->vocab = share_of(c->vocab, grain, each);
    l->of_hidden = leaves_of(c->hidden, grain, 0, grain);
    l->of_heads = leaves_of(c->n_heads * l->hd, grain, 0, each);
    l->of_kv = leaves_of(l->kv * s->tp, grain, 0, each);
    l->of_inter = leaves_of(c->inter, grain, 0, each);
    l->of_vocab = leaves_of(c->vocab, grain, 0, each);
    l->threads = threads;
    int rc = dev_open(&l->d, "cpu", threads, &l->mem, e);
    if (rc < 0)
        return rc;
    take_all(l);
    if (!(l->memory = dev_alloc(l->d, MEM_WORK, l->bytes)))
        return err_set(e, ERR_MEMORY, "no memory for two layers of %lld tokens: use a smaller --global-batch",
                       (long long)l->T);
    l->at = l->memory;
    fill(l);
    take_all(l);
    point(l);
    return 0;
}

static void close_lab(struct lab *l)
{
    if (l->d)
        dev_free(l->d, l->memory);
    dev_close(l->d);
    l->d = NULL;
}

/* ---- a step ---- */
static struct mat rows(const struct lab *l, void *p, enum dtype dt, int64_t cols)
{
    return mat_of(p, dt, l->T, cols, cols);
}
static struct mat own(const struct lab *l, void *p, int64_t cols) { return rows(l, p, l->s.dt, cols); }
static struct seqs sequences(const struct lab *l)
{
    return seqs_of((int)l->s.seqs, l->s.seq_len, l->s.cfg->grain);
}

static struct attn attention(const struct lab *l, const struct lab_layer *y)
{
    return (struct attn){ .n_heads = (int)l->heads,
                          .n_kv = (int)l->kv_heads,
                          .head_dim = (int)l->hd,
                          .dt = l->s.dt,
                          .scale = 1.0f / sqrtf((float)l->hd),
                          .n_seq = (int)l->s.seqs,
                          .seq = y->seq };
}

static void pack(struct lab *l, struct panels *p, int n, const struct matrix *m)
{
    struct mat w[3];
    for (int i = 0; i < n; i++)
        w[i] = m[i].w;
    TIMED(l, linear_pack, p->n, p->k, 0, KERNEL(l->d, linear_pack, p, n, w));
}

static void norm(struct lab *l, struct lab_layer *y, int i)
{
    TIMED(l, rms_norm, l->T, l->h, 0,
          KERNEL(l->d, rms_norm, own(l, y->h[i], l->h), y->stat[i], own(l, y->x, l->h), y->norm_weight, 0,
                 1e-5f));
}

static void product(struct lab *l, float *to, void *x, const struct panels *w)
{
    TIMED(l, linear, l->T, w->n, w->k, KERNEL(l->d, linear, rows(l, to, DT_F32, w->n), own(l, x, w->k), w));
}

/* Where ranks of tp sum, they wait for each other: the next kernel finds in the caches what others left. */
static void sum_over_tp(struct lab *l)
{
    if (l->group)
        pthread_barrier_wait(l->group);
}

static void residual(struct lab *l, struct lab_layer *y)
{
    sum_over_tp(l);
    TIMED(l, copy, l->T, l->h, 0, dev_copy(l->d, l->top, y->x, (size_t)(l->T * l->h) * dtype_size(l->s.dt)));
    TIMED(l, add_rounded, l->T, l->h, l->h,
          KERNEL(l->d, add_rounded, own(l, l->top, l->h), rows(l, l->sum_rows, DT_F32, l->h)));
}

static void forward(struct lab *l, struct lab_layer *y)
{
    struct attn a = attention(l, y);
    struct mat qkv = rows(l, y->qkv, DT_F32, l->q + 2 * l->kv);
    norm(l, y, NORM_A);
    product(l, y->qkv, y->h[NORM_A], &y->pack[W_QKV]);
    TIMED(l, rope_store, l->T, l->q, qkv.cols,
          KERNEL(l->d, rope_store, &a, own(l, y->q, l->q), qkv, NULL, l->cos, l->cos));
    TIMED(l, attn, l->T, l->q, 0, KERNEL(l->d, attn, &a, own(l, y->o, l->q), y->lse, own(l, y->q, l->q)));
    product(l, l->sum_rows, y->o, &y->pack[W_O]);
    residual(l, y);
    norm(l, y, NORM_B);
    product(l, y->gu, y->h[NORM_B], &y->pack[W_GU]);
    TIMED(l, swiglu, l->T, l->inter, 2 * l->inter,
          KERNEL(l->d, swiglu, own(l, y->act, l->inter), rows(l, y->gu, DT_F32, 2 * l->inter)));
    product(l, l->sum_rows, y->act, &y->pack[W_DOWN]);
    residual(l, y);
}

static void weight_sum(struct lab *l, struct matrix *m, struct mat dy, struct mat x)
{
    TIMED(l, linear_dw, l->T, dy.cols, x.cols,
          KERNEL(l->d, linear_dw, &m->sums, m->k, dy, x, (int)l->s.seqs, l->s.seq_len));
}

/* dx of n matrices, whose outputs lie side by side in dy. */
static void back(struct lab *l, float *to, int n, const struct mat *dy, const struct matrix *m,
                 const struct leaves *leaves)
{
    struct mat w[3];
    int64_t out = 0;
    for (int i = 0; i < n; i++)
        w[i] = m[i].w, out += dy[i].cols;
    TIMED(l, linear_dx, l->T, m->k, out,
          KERNEL(l->d, linear_dx, rows(l, to, DT_F32, m->k), n, dy, w, leaves));
}

static void norm_back(struct lab *l, struct lab_layer *y, int i)
{
    struct mat dy = rows(l, l->sum_rows, DT_F32, l->h), x = own(l, y->x, l->h);
    struct tree_acc sums = y->m[W_Q].sums;
    TIMED(l, rms_norm_dw, l->T, l->h, l->h,
          KERNEL(l->d, rms_norm_dw, &sums, dy, x, y->stat[i], sequences(l)));
    TIMED(l, rms_norm_dx, l->T, l->h, l->h,
          KERNEL(l->d, rms_norm_dx, own(l, l->dx, l->h), dy, x, y->norm_weight, 0, y->stat[i]));
}

static void mlp_backward(struct lab *l, struct lab_layer *y)
{
    struct mat dx = own(l, l->dx, l->h), act = own(l, y->act, l->inter), h = own(l, y->h[NORM_B], l->h);
    struct mat dgu = own(l, l->dgu, 2 * l->inter);
    struct mat part[2] = { mat_cols(dgu, 0, l->inter), mat_cols(dgu, l->inter, l->inter) };
    struct leaves leaves[2] = { l->of_inter, l->of_inter };
    weight_sum(l, &y->m[W_DN], dx, act);
    back(l, l->d_act, 1, &dx, &y->m[W_DN], &l->of_hidden);
    TIMED(l, swiglu_dx, l->T, 2 * l->inter, 2 * l->inter,
          KERNEL(l->d, swiglu_dx, dgu, rows(l, y->gu, DT_F32, 2 * l->inter),
                 rows(l, l->d_act, DT_F32, l->inter)));
    for (int i = 0; i < 2; i++)
        weight_sum(l, &y->m[W_GATE + i], part[i], h);
    back(l, l->sum_rows, 2, part, &y->m[W_GATE], leaves);
    sum_over_tp(l);
    norm_back(l, y, NORM_B);
}

static void attention_backward(struct lab *l, struct lab_layer *y)
{
    struct attn a = attention(l, y);
    struct mat dx = own(l, l->dx, l->h), o = own(l, y->o, l->q), h = own(l, y->h[NORM_A], l->h);
    struct mat d_out = rows(l, l->d_out, DT_F32, l->q), dqkv = own(l, l->dqkv, l->q + 2 * l->kv);
    struct mat dq = rows(l, l->dq, DT_F32, l->q), dk = rows(l, l->dk, DT_F32, l->kv);
    struct mat dv = rows(l, l->dv, DT_F32, l->kv);
    struct mat part[3] = { mat_cols(dqkv, 0, l->q), mat_cols(dqkv, l->q, l->kv),
                           mat_cols(dqkv, l->q + l->kv, l->kv) };
    struct leaves leaves[3] = { l->of_heads, l->of_kv, l->of_kv };
    struct attn_kept kept = { o, own(l, y->q, l->q), y->lse };
    weight_sum(l, &y->m[W_OUT], dx, o);
    back(l, l->d_out, 1, &dx, &y->m[W_OUT], &l->of_hidden);
    if (l->s.dt != DT_F32) {
        TIMED(l, round_to, l->T * l->q, 0, 0,
              KERNEL(l->d, round_to, l->d_out_dt, l->s.dt, l->d_out, l->T * l->q));
        d_out = own(l, l->d_out_dt, l->q);
    }
    TIMED(l, attn_dx, l->T, l->q, l->kv, KERNEL(l->d, attn_dx, &a, dq, dk, dv, d_out, kept));
    TIMED(l, rope_dx, l->T, dqkv.cols, l->q, KERNEL(l->d, rope_dx, &a, dqkv, dq, dk, dv, l->cos, l->cos));
    for (int i = 0; i < 3; i++)
        weight_sum(l, &y->m[W_Q + i], part[i], h);
    back(l, l->sum_rows, 3, part, &y->m[W_Q], leaves);
    sum_over_tp(l);
    norm_back(l, y, NORM_A);
}

static void head(struct lab *l)
{
    struct lab_layer *y = &l->layer[LAYERS - 1];
    struct mat logits = rows(l, l->logits, DT_F32, l->vocab), dl = own(l, l->dlogits, l->vocab);
    struct mat h = own(l, y->h[NORM_B], l->h);
    product(l, l->logits, y->h[NORM_B], &l->head_pack);
    TIMED(l, ce_max, l->T, l->vocab, 0, KERNEL(l->d, ce_max, l->max, logits));
    TIMED(l, ce_sum, l->T, l->vocab, 0, KERNEL(l->d, ce_sum, l->sum, logits, &l->of_vocab, l->max));
    TIMED(l, ce_dx, l->T, l->vocab, l->vocab,
          KERNEL(l->d, ce_dx, dl, logits, l->ids, 0, l->max, l->sum, l->scale));
    weight_sum(l, &l->head, dl, h);
    back(l, l->sum_rows, 1, &dl, &l->head, &l->of_vocab);
}

static void embedding(struct lab *l)
{
    TIMED(l, embed, l->T, l->h, l->h,
          KERNEL(l->d, embed, own(l, l->layer[0].x, l->h), l->table.w, 0, l->ids));
}

static void embedding_back(struct lab *l)
{
    TIMED(l, embed_dw, l->T, l->h, 0,
          KERNEL(l->d, embed_dw, &l->table.sums, l->h, 0, l->vocab, own(l, l->dx, l->h), l->ids,
                 sequences(l)));
}

/* The norm needs the gradients of all layers before the first update: then they are out of the caches. */
static void squares(struct lab *l, struct lab_layer *y)
{
    struct xsum s = { 0 };
    TIMED(l, sum_squares, y->n_params, 0, 0, KERNEL(l->d, sum_squares, &s, y->sums_flat, y->n_params));
}

static void update(struct lab *l, struct lab_layer *y)
{
    struct adamw how = {
        .lr = 1e-6f, .eps = 1e-8f, .beta1 = 0.9, .beta2 = 0.95, .bias1 = 0.1f, .bias2 = 0.2f, .clip = 1
    };
    void *w16 = l->s.dt == DT_F32 ? NULL : y->params_dt;
    int64_t n = y->n_params;
    TIMED(l, adamw, n, 0, 0,
          KERNEL(l->d, adamw, y->params, w16, y->moment[0], y->moment[1], y->sums_flat, n, &how));
    pack(l, &y->pack[W_QKV], 3, &y->m[W_Q]);
    pack(l, &y->pack[W_O], 1, &y->m[W_OUT]);
    pack(l, &y->pack[W_GU], 2, &y->m[W_GATE]);
    pack(l, &y->pack[W_DOWN], 1, &y->m[W_DN]);
}

static void turn(struct lab *l)
{
    embedding(l);
    for (int i = 0; i < LAYERS; i++)
        forward(l, &l->layer[i]);
    head(l);
    for (int i = LAYERS - 1; i >= 0; i--) {
        mlp_backward(l, &l->layer[i]);
        attention_backward(l, &l->layer[i]);
    }
    embedding_back(l);
    pack(l, &l->head_pack, 1, &l->head);
    for (int i = 0; i < LAYERS; i++)
        squares(l, &l->layer[i]);
    for (int i = 0; i < LAYERS; i++)
        update(l, &l->layer[i]);
    l->counts = 1; /* the first turn warms up */
}

static void open_gate(struct gate *g, int state)
{
    pthread_mutex_lock(&g->lock);
    g->state = state;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static int pass_gate(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    while (!g->state)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
    return g->state > 0;
}

static void *turns(void *arg)
{
    struct lab *l = arg;
    if (l->gate && !pass_gate(l->gate))
        return NULL;
    double params = (double)(l->vocab * l->h + LAYERS * l->layer[0].n_params);
    int n = 6 * (double)l->T * params > 1e11 ? TURNS - 1 : TURNS; /* of large shapes fewer */
    n = l->at_once > 0 ? 1 : n;                                   /* and many labs have samples enough */
    for (int i = -1; i < n; i++) {
        if (l->gate)
            pthread_barrier_wait(&l->gate->together);
        turn(l);
    }
    return NULL;
}

/* ---- what is kept ---- */
static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static int is_same(const struct cluster_op *a, const struct cluster_op *b)
{
    return a->name == b->name && a->dtype == b->dtype && a->rows == b->rows && a->cols == b->cols &&
           a->other == b->other && a->seq_len == b->seq_len && a->at_once == b->at_once;
}

/* A step takes the sum of its calls, so their mean; a call that another program disturbed counts as twice
 * the median at most. */
static double mean_of(const double *sorted, int n)
{
    double sum = 0, most = 2 * sorted[(n - 1) / 2];
    for (int i = 0; i < n; i++)
        sum += sorted[i] < most ? sorted[i] : most;
    return sum / n;
}

/* at: the member of cluster_op that these times are. */
static int keep(struct cluster *c, struct lab *l, size_t at, struct err *e)
{
    if (l->lost)
        return err_set(e, ERR_INTERNAL, "a step has calls of more than %d shapes, by %d", MOST_CALLS,
                       l->lost);
    for (int i = 0; i < l->n_calls; i++) {
        struct call *x = &l->call[i];
        int k = 0;
        qsort(x->s, (size_t)x->n, sizeof *x->s, by_value);
        while (k < c->n_ops && !is_same(&c->op[k], &x->op))
            k++;
        if (k == CLUSTER_OPS)
            return err_set(e, ERR_USAGE,
                           "--calibrate: with layouts of tp %d there are more than %d shapes of kernels: "
                           "use fewer --gpus",
                           l->s.tp, CLUSTER_OPS);
        if (k == c->n_ops)
            c->op[c->n_ops++] = x->op;
        double s = mean_of(x->s, x->n);
        s = s > 1e-9 ? s : 1e-9; /* a coarse clock: a file holds no 0 */
        memcpy((char *)&c->op[k] + at, &s, sizeof s);
    }
    return 0;
}

/* The calls of others, of the same shapes in the same order, as further samples. */
static void join(struct lab *to, const struct lab *from)
{
    for (int i = 0; i < to->n_calls && i < from->n_calls; i++)
        for (int k = 0; k < from->call[i].n && to->call[i].n < MOST_SAMPLES; k++)
            to->call[i].s[to->call[i].n++] = from->call[i].s[k];
}

/* n labs of one thread each at a time, or one of `threads`. more: than the cores; each tp of them sum. */
static int measure(struct cluster *c, const struct lab_shape *s, int n, int more, int threads, size_t at,
                   struct err *e)
{
    int groups = more && s->tp > 1 && n % s->tp == 0 ? n / s->tp : 0;
    struct lab *l = calloc((size_t)n, sizeof *l);
    pthread_t *thread = calloc((size_t)n, sizeof *thread);
    pthread_barrier_t *group = calloc((size_t)groups + 1, sizeof *group);
    struct gate gate = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, { { 0 } } };
    int rc = l && thread && group ? 0 : err_set(e, ERR_MEMORY, "no memory to measure with %d threads", n);
    int started = 1;
    pthread_barrier_init(&gate.together, NULL, (unsigned)n);
    for (int i = 0; group && i < groups; i++)
        pthread_barrier_init(&group[i], NULL, (unsigned)s->tp);
    for (int i = 0; rc >= 0 && i < n; i++) {
        rc = open_lab(&l[i], s, threads, e);
        l[i].gate = n > 1 ? &gate : NULL;
        l[i].group = groups ? &group[i / s->tp] : NULL;
        l[i].at_once = more ? n : 0;
    }
    for (; rc >= 0 && started < n; started++)
        if (pthread_create(&thread[started], NULL, turns, &l[started])) {
            rc = err_set(e, ERR_FILE, "the kernel starts no more threads");
            break;
        }
    open_gate(&gate, rc >= 0 ? 1 : -1);
    if (rc >= 0)
        turns(l);
    for (int i = 1; thread && i < started; i++) {
        pthread_join(thread[i], NULL);
        join(l, &l[i]);
    }
    if (rc >= 0)
        rc = keep(c, l, at, e);
    for (int i = 0; l && i < n; i++)
        close_lab(&l[i]);
    for (int i = 0; group && i < groups; i++)
        pthread_barrier_destroy(&group[i]);
    free(group);
    pthread_barrier_destroy(&gate.together);
    pthread_cond_destroy(&gate.changed);
    pthread_mutex_destroy(&gate.lock);
    free(thread);
    free(l);
    return rc < 0 ? rc : 0;
}

int lab_measure(struct cluster *c, const struct lab_shape *s, int alone, struct err *e)
{
    enum { MOST_AT_ONCE = 16 }; /* each has layers of its own */
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN), more = s->ranks > cores, rc = 0;
    int n = more ? s->ranks : cores;
    n = n < MOST_AT_ONCE ? n : cores < MOST_AT_ONCE ? MOST_AT_ONCE / s->tp * s->tp : MOST_AT_ONCE;
    n = n > 0 ? n : MOST_AT_ONCE; /* a tp above it */
    TRY(measure(c, s, n, more, 1, offsetof(struct cluster_op, seconds), e));
    if (alone && cores > 1) {
        TRY(measure(c, s, 1, 0, 1, offsetof(struct cluster_op, alone_s), e));
        TRY(measure(c, s, 1, 0, cores, offsetof(struct cluster_op, all_s), e));
    }
out:
    return rc;
}
