/* attn_definition.h - attention by its definition, forward and backward, as plain scalar loops over one
 * sequence of random data: what the tests of the kernels compare with, bit by bit. */
#ifndef SHARDLINE_TESTS_UNIT_KERNELS_ATTN_DEFINITION_H
#define SHARDLINE_TESTS_UNIT_KERNELS_ATTN_DEFINITION_H

#include <math.h>
#include <stdlib.h>
#include "kernels/attn.h"
#include "kernels/fn.h"

struct world {
    enum dtype dt;
    int n_kv, group, d;
    int64_t T, window;               /* window: that of struct attn, or 0 */
    float scale, softcap;            /* softcap 0: none */
    float *q, *dout, *k, *v;         /* [T][heads d], [T][kv d]: values of dt */
    float *sink;                     /* [heads]: values of dt; NULL: none */
    float *k_by, *v_by;              /* [T][kv]: scales of codes; NULL: none */
    float *out, *lse, *dq, *dk, *dv; /* by the definition */
};
static int heads(const struct world *w) { return w->n_kv * w->group; }
static int sees(const struct world *w, int64_t p, int64_t j)
{
    return j <= p && (w->window == 0 || j > p - w->window);
}

static uint64_t state = 88172645463325252u;
static float uniform(void) /* [-1, 1) */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}
static float in_dtype(enum dtype dt, float x) { return dt == DT_BF16 ? fn_round_bf16(x) : x; }
static float *random_values(enum dtype dt, int64_t n, float size)
{
    float *x = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        x[i] = in_dtype(dt, uniform() * size);
    return x;
}
static float *zeros(int64_t n) { return calloc((size_t)n, 4); }

static float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
/* one step of a chain: in bf16 with inputs and result flushed */
static float step(enum dtype dt, float a, float b, float c)
{
    return dt == DT_BF16 ? flush(fmaf(flush(a), flush(b), flush(c))) : fmaf(a, b, c);
}
static float pair_end(enum dtype dt, int64_t n, float s) { return dt == DT_BF16 && n % 2 ? s + 0.0f : s; }

static float fold(float *x)
{
    for (int w = 16; w; w /= 2)
        for (int i = 0; i < w; i++)
            x[i] += x[i + w];
    return x[0];
}
static float dot(enum dtype dt, const float *x, const float *y, int n)
{
    float s = 0;
    for (int i = 0; i < n; i++)
        s = step(dt, x[i], y[i], s);
    return pair_end(dt, n, s);
}
#define WIDEST_HEAD 576
static const float zero_row[WIDEST_HEAD];
/* Key or value row j of kv head g; behind the last key pages are zero. */
static const float *row_of(const struct world *w, const float *x, int g, int64_t j)
{
    return j < w->T ? x + (j * w->n_kv + g) * w->d : zero_row;
}
/* The scale of key or value j of kv head g. */
static float scale_of(const struct world *w, const float *by, int g, int64_t j)
{
    return !by ? 1 : j < w->T ? by[j * w->n_kv + g] : 0;
}
static const float *q_of(const struct world *w, const float *x, int h, int64_t p)
{
    return x + (p * heads(w) + h) * w->d;
}

/* The score of a dot, and by how much it changes with the dot times scale. */
static float score(const struct world *w, float dot, float *slope)
{
    float s = w->scale * dot, t = w->softcap > 0 ? fn_tanh(s / w->softcap) : 0;
    *slope = 1 - t * t;
    return w->softcap > 0 ? w->softcap * t : s;
}

struct online {
    float m, l, o[WIDEST_HEAD];
};
static void ref_block(const struct world *w, int h, int64_t p, int64_t b, struct online *s)
{
    float x[64], lane[32], top = s->m, slope;
    const int g = h / w->group;
    for (int j = 0; j < 64; j++) {
        const int64_t key = b * 64 + j;
        const float one = dot(w->dt, q_of(w, w->q, h, p), row_of(w, w->k, g, key), w->d);
        x[j] = sees(w, p, key) ? score(w, one * scale_of(w, w->k_by, g, key), &slope) : -INFINITY;
        top = x[j] > top ? x[j] : top;
    }
    if (w->window && top == -INFINITY)
        return;
    const float c = fn_exp(s->m - top);
    for (int j = 0; j < 64; j++)
        x[j] = fn_exp(x[j] - top);
    for (int i = 0; i < 32; i++)
        lane[i] = x[i] + x[i + 32];
    s->l = fmaf(s->l, c, fold(lane));
    s->m = top;
    for (int i = 0; i < w->d; i++) {
        float o = s->o[i] * c;
        for (int j = 0; j < 64; j++)
            o = step(w->dt, in_dtype(w->dt, x[j] * scale_of(w, w->v_by, g, b * 64 + j)),
                     row_of(w, w->v, g, b * 64 + j)[i], o);
        s->o[i] = o;
    }
}

static void ref_row(const struct world *w, int h, int64_t p)
{
    struct online t = { 0 };
    for (int64_t seg = 0; seg * 1024 <= p; seg++) {
        struct online s = { .m = -INFINITY };
        for (int64_t b = seg * 16; b < seg * 16 + 16 && b <= p / 64; b++)
            ref_block(w, h, p, b, &s);
        if (t.l == 0) {
            t = s;
            continue;
        }
        const float top = t.m > s.m ? t.m : s.m, x = fn_exp(t.m - top), y = fn_exp(s.m - top);
        t.m = top;
        t.l = fmaf(t.l, x, s.l * y);
        for (int i = 0; i < w->d; i++)
            t.o[i] = fmaf(t.o[i], x, s.o[i] * y);
    }
    if (w->sink) {
        const float top = t.m > w->sink[h] ? t.m : w->sink[h], x = fn_exp(t.m - top);
        t.l = fmaf(t.l, x, 1.0f * fn_exp(w->sink[h] - top));
        t.m = top;
        for (int i = 0; i < w->d; i++)
            t.o[i] = fmaf(t.o[i], x, 0.0f);
    }
    for (int i = 0; i < w->d; i++)
        w->out[(p * heads(w) + h) * w->d + i] = in_dtype(w->dt, t.o[i] / t.l);
    w->lse[p * heads(w) + h] = t.m + fn_log(t.l);
}

/* D of a row: dout . out in 32 lanes. */
static float ref_dot(const struct world *w, int h, int64_t i)
{
    float lane[32] = { 0 };
    for (int x = 0; x < w->d; x++)
        lane[x % 32] = fmaf(q_of(w, w->dout, h, i)[x], q_of(w, w->out, h, i)[x], lane[x % 32]);
    return fold(lane);
}

/* Gradient of a head's sink over all rows, in `grain` blocks. */
static inline float ref_dsink(const struct world *w, int h, int grain)
{
    float block[64];
    for (int g = 0; g < grain; g++) {
        block[g] = 0;
        for (int64_t i = block_begin(w->T, grain, g); i < block_begin(w->T, grain, g + 1); i++)
            block[g] = fmaf(-fn_exp(w->sink[h] - w->lse[i * heads(w) + h]), ref_dot(w, h, i), block[g]);
    }
    return tree_sum(grain, block, 1);
}

/* P and dS of head h, [T][blocks * 64], as operands of the products; 0 where masked */
static void ref_pairs(const struct world *w, int h, float *P, float *dS, int64_t wide)
{
    const int g = h / w->group;
    for (int64_t i = 0; i < w->T; i++) {
        const float D = ref_dot(w, h, i);
        for (int64_t j = 0; j <= i; j++) {
            if (!sees(w, i, j))
                continue;
            float slope;
            const float s = score(w, dot(w->dt, q_of(w, w->q, h, i), row_of(w, w->k, g, j), w->d), &slope);
            const float e = fn_exp(s - w->lse[i * heads(w) + h]);
            const float dp = dot(w->dt, q_of(w, w->dout, h, i), row_of(w, w->v, g, j), w->d);
            P[i * wide + j] = in_dtype(w->dt, e);
            dS[i * wide + j] = in_dtype(w->dt, e * (dp - D) * slope);
        }
    }
}

static float ref_dq(const struct world *w, int h, const float *dS, int64_t wide, int64_t i, int x)
{
    float total = 0;
    for (int64_t b = 0; b <= i / 64; b++) {
        float c = 0;
        for (int64_t j = b * 64; j < b * 64 + 64; j++)
            c = step(w->dt, dS[i * wide + j], row_of(w, w->k, h / w->group, j)[x], c);
        total = b ? total + c : c;
    }
    return total * w->scale;
}
/* dK (x = q, p = dS) or dV (x = dout, p = P) of key j, component c, of one query head */
static float ref_dkv(const struct world *w, int h, const float *p, int64_t wide, const float *x, int64_t j,
                     int c)
{
    float total = 0;
    for (int64_t b = j / 64; b * 64 < w->T; b++) {
        float s = 0;
        int64_t i = b * 64;
        for (; i < b * 64 + 64 && i < w->T; i++)
            s = step(w->dt, p[i * wide + j], q_of(w, x, h, i)[c], s);
        s = pair_end(w->dt, i - b * 64, s);
        total = b > j / 64 ? total + s : s;
    }
    return total;
}

static inline void ref_backward(struct world *w)
{
    const int64_t wide = (w->T + 63) / 64 * 64, n = w->T * w->d;
    float *P = zeros(w->T * wide), *dS = zeros(w->T * wide);
    float *dk = zeros(w->group * n), *dv = zeros(w->group * n);
    for (int g = 0; g < w->n_kv; g++) {
        for (int hh = 0; hh < w->group; hh++) {
            const int h = g * w->group + hh;
            ref_pairs(w, h, P, dS, wide);
            for (int64_t t = 0; t < w->T; t++)
                for (int x = 0; x < w->d; x++) {
                    w->dq[(t * heads(w) + h) * w->d + x] = ref_dq(w, h, dS, wide, t, x);
                    dk[hh * n + t * w->d + x] = ref_dkv(w, h, dS, wide, w->q, t, x) * w->scale;
                    dv[hh * n + t * w->d + x] = ref_dkv(w, h, P, wide, w->dout, t, x);
                }
        }
        for (int64_t i = 0; i < n; i++) {
            const int64_t to = (i / w->d * w->n_kv + g) * w->d + i % w->d;
            w->dk[to] = tree_sum(w->group, dk + i, n);
            w->dv[to] = tree_sum(w->group, dv + i, n);
        }
    }
    free(P), free(dS), free(dk), free(dv);
}

static struct world *world_of(enum dtype dt, int n_kv, int group, int d, int64_t T)
{
    struct world *w = calloc(1, sizeof *w);
    *w = (struct world){
        .dt = dt, .n_kv = n_kv, .group = group, .d = d, .T = T, .scale = (float)(1 / sqrt(d))
    };
    const int64_t nq = T * n_kv * group * d, nk = T * n_kv * d;
    w->q = random_values(dt, nq, 4);
    w->dout = random_values(dt, nq, 1);
    w->k = random_values(dt, nk, 2);
    w->v = random_values(dt, nk, 1);
    w->out = zeros(nq), w->dq = zeros(nq), w->dk = zeros(nk), w->dv = zeros(nk),
    w->lse = zeros(T * n_kv * group);
    return w;
}
static void ref_forward(struct world *w)
{
    for (int h = 0; h < heads(w); h++)
        for (int64_t p = 0; p < w->T; p++)
            ref_row(w, h, p);
}
static void world_free(struct world *w)
{
    free(w->q), free(w->dout), free(w->k), free(w->v), free(w->out), free(w->lse), free(w->dq), free(w->dk),
        free(w->dv);
    free(w->sink);
    free(w);
}

#endif
