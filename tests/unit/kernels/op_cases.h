/* op_cases.h - every kind of op on the CPU and on a CUDA device: all memory that both wrote has the same
 * bits. In bf16, where tensor cores have bits of their own (attn_tensor_cases.h, product_cases.h), they are
 * off. */
#ifndef SHARDLINE_TESTS_UNIT_KERNELS_OP_CASES_H
#define SHARDLINE_TESTS_UNIT_KERNELS_OP_CASES_H

#include "kernels/dev.h"
#include "kernels/fn.h"
#include "kernels/kernels.h"
#include "kernels/ring.h"
#include "tests/test.h"

enum { MOST = 16 };
/* The CPU (0) and the device (1), and memory that both have a copy of. */
struct both {
    struct mem mem;
    struct dev *dev[2];
    void *p[MOST][2];
    size_t bytes[MOST];
    int n;
    uint32_t state;
};

static int both_open(struct both *b, const char *device)
{
    struct err e;
    *b = (struct both){ .state = 7 };
    if (device)
        setenv("SHARDLINE_DEVICE", device, 1);
    int rc = dev_open(&b->dev[1], "cuda", 2, &b->mem, &e);
    unsetenv("SHARDLINE_DEVICE");
    if (rc < 0)
        test_skip("%s", e.text);
    else
        b->dev[0] = b->dev[1]->host;
    return rc;
}

static float next(struct both *b)
{
    b->state = b->state * 1664525u + 1013904223u;
    return ((float)(b->state >> 8) / 8388608.0f - 1.0f) * (b->state >> 28 ? 1.0f : 9.0f);
}

/* n numbers in both memories; their number, for the macros below. */
static int fill(struct both *b, enum dtype dt, int64_t n)
{
    char *host = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        if (dt == DT_BF16)
            ((uint16_t *)(void *)host)[i] = fn_to_bf16(next(b));
        else
            ((float *)(void *)host)[i] = next(b);
    b->bytes[b->n] = (size_t)n * dtype_size(dt);
    for (int k = 0; k < 2; k++) {
        b->p[b->n][k] = dev_alloc(b->dev[k], MEM_WORK, b->bytes[b->n]);
        dev_write(b->dev[k], b->p[b->n][k], host, b->bytes[b->n]);
    }
    free(host);
    return b->n++;
}

/* All memory is the same; then it is given back. */
static void same(struct both *b, const char *what, enum dtype dt)
{
    struct err e;
    if (dev_check(b->dev[1], &e) < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", what, e.text);
    for (int i = 0; i < b->n; i++) {
        char *there = malloc(b->bytes[i]);
        dev_read(b->dev[1], there, b->p[i][1], b->bytes[i]);
        if (memcmp(there, b->p[i][0], b->bytes[i]))
            test_fail(__FILE__, __LINE__, "%s, %s: memory %d of the device has other bits than the CPU's",
                      what, dtype_name(dt), i);
        free(there);
        dev_free(b->dev[0], b->p[i][0]);
        dev_free(b->dev[1], b->p[i][1]);
    }
    b->n = 0;
}

#define ON_BOTH for (int k = 0; k < 2; k++)
#define D b->dev[k]
#define F(i) ((float *)b->p[i][k])
#define MAT(i, dt, rows, cols) mat_of(b->p[i][k], dt, rows, cols, cols)

static void products(struct both *b, enum dtype dt)
{
    enum { M = 37, N = 70, K = 101, SEQS = 3, T = 11 };
    struct leaves l = leaves_of(K, 8, 0, 8), ln = leaves_of(N, 8, 0, 8);
    int x = fill(b, dt, M * K), w = fill(b, dt, N * K), y = fill(b, DT_F32, M * N), dy = fill(b, dt, M * N),
        dx = fill(b, DT_F32, M * K);
    int level[2] = { fill(b, DT_F32, N * K), fill(b, DT_F32, N * K) };
    ON_BOTH
    {
        struct panels p = { .n = N, .k = K, .dt = dt, .leaves = l };
        struct tree_acc acc = { .n = 8, .next = 3, .level = { F(level[0]), F(level[1]) } };
        struct mat wm = MAT(w, dt, N, K), dym = MAT(dy, dt, M, N);
        p.p = dev_alloc(D, MEM_WORK, panels_bytes(N, K, dt, &l));
        KERNEL(D, linear_pack, &p, 1, &wm);
        KERNEL(D, linear, MAT(y, DT_F32, M, N), MAT(x, dt, M, K), &p);
        KERNEL(D, linear_dx, MAT(dx, DT_F32, M, K), 1, &dym, &wm, &ln);
        KERNEL(D, linear_dw, &acc, K, MAT(dy, dt, SEQS * T, N), MAT(x, dt, SEQS * T, K), SEQS, T);
        dev_free(D, p.p);
    }
    same(b, "products", dt);
}

/* With a softcap heads are rotated in part, too. */
static void attention(struct both *b, enum dtype dt, float softcap)
{
    enum { HEADS = 4, KV = 2, HD = 40, T = 150, PAGES = 3, QKV = (HEADS + 2 * KV) * HD };
    size_t page = attn_page_bytes(KV, HD, dt);
    int qkv = fill(b, DT_F32, T * QKV), q = fill(b, dt, T * HEADS * HD), out = fill(b, dt, T * HEADS * HD),
        lse = fill(b, DT_F32, T * HEADS);
    int dout = fill(b, dt, T * HEADS * HD), dq = fill(b, DT_F32, T * HEADS * HD),
        dk = fill(b, DT_F32, T * KV * HD), dv = fill(b, DT_F32, T * KV * HD);
    int sink = fill(b, dt, HEADS), dsink = fill(b, DT_F32, 2 * HEADS);
    int turns = fill(b, DT_F32, T * HD / 2), pages = fill(b, dt, (int64_t)(page * PAGES / dtype_size(dt)));
    ON_BOTH
    {
        char *at[PAGES];
        struct attn_seq seq = { 0, T, 0, at };
        struct attn a = { .n_heads = HEADS,
                          .n_kv = KV,
                          .head_dim = HD,
                          .dt = dt,
                          .scale = 0.2f,
                          .n_seq = 1,
                          .seq = &seq,
                          .window = 90,
                          .softcap = softcap,
                          .rope_dim = softcap > 0 ? HD / 2 : 0 };
        for (int i = 0; i < PAGES; i++)
            at[i] = (char *)b->p[pages][k] + page * (size_t)i;
        dev_fill(D, b->p[pages][k], 0, page * PAGES);
        KERNEL(D, rope_store, &a, MAT(q, dt, T, HEADS * HD), MAT(qkv, DT_F32, T, QKV), NULL, F(turns),
               F(turns));
        KERNEL(D, attn, &a, MAT(out, dt, T, HEADS * HD), F(lse), MAT(q, dt, T, HEADS * HD));
        struct attn_kept kept = { MAT(out, dt, T, HEADS * HD), MAT(q, dt, T, HEADS * HD), F(lse) };
        KERNEL(D, attn_dx, &a, MAT(dq, DT_F32, T, HEADS * HD), MAT(dk, DT_F32, T, KV * HD),
               MAT(dv, DT_F32, T, KV * HD), MAT(dout, dt, T, HEADS * HD), kept);
        a.sink = b->p[sink][k];
        KERNEL(D, attn, &a, MAT(out, dt, T, HEADS * HD), F(lse), MAT(q, dt, T, HEADS * HD));
        KERNEL(D, sink_dw, F(dsink), &a, MAT(dout, dt, T, HEADS * HD), kept, seqs_of(2, T / 2, 8));
    }
    same(b, "attention", dt);
}

static void rows(struct both *b, enum dtype dt)
{
    enum { R = 19, C = 101, SEQS = 3, T = 6 };
    int x = fill(b, dt, R * C), y = fill(b, dt, R * C), w = fill(b, dt, C), stat = fill(b, DT_F32, 2 * R),
        dy = fill(b, DT_F32, R * C);
    int gu = fill(b, DT_F32, R * 2 * C), act = fill(b, dt, R * C), dgu = fill(b, dt, R * 2 * C),
        table = fill(b, dt, 7 * C), level = fill(b, DT_F32, 7 * C);
    int vector = fill(b, DT_F32, C);
    int32_t ids[R];
    for (int i = 0; i < R; i++)
        ids[i] = i * 5 % 9; /* some of them not in the table */
    ON_BOTH
    {
        struct tree_acc acc = { .n = SEQS, .level = { F(level) } },
                        of_vector = { .n = SEQS, .level = { F(vector) } };
        KERNEL(D, embed, MAT(y, dt, R, C), MAT(table, dt, 7, C), 0, ids);
        KERNEL(D, rms_norm, MAT(y, dt, R, C), F(stat), MAT(x, dt, R, C), b->p[w][k], 0, 1e-5f);
        KERNEL(D, rms_norm_dw, &of_vector, MAT(dy, DT_F32, SEQS * T, C), MAT(x, dt, SEQS * T, C), F(stat),
               seqs_of(SEQS, T, 4));
        KERNEL(D, rms_norm_dx, MAT(y, dt, R, C), MAT(dy, DT_F32, R, C), MAT(x, dt, R, C), b->p[w][k], 0,
               F(stat));
        KERNEL(D, swiglu, MAT(act, dt, R, C), MAT(gu, DT_F32, R, 2 * C));
        KERNEL(D, swiglu_dx, MAT(dgu, dt, R, 2 * C), MAT(gu, DT_F32, R, 2 * C), MAT(dy, DT_F32, R, C));
        KERNEL(D, add_rounded, MAT(act, dt, R, C), MAT(dy, DT_F32, R, C));
        KERNEL(D, add_rounded, MAT(act, dt, R, C), MAT(x, dt, R, C));
        KERNEL(D, embed_dw, &acc, C, 0, 7, MAT(act, dt, SEQS * T, C), ids, seqs_of(SEQS, T, 0));
    }
    same(b, "rows", dt);
}

/* What Gemma and GPT-NeoX have more. */
static void scales(struct both *b, enum dtype dt)
{
    enum { R = 19, C = 101 };
    int x = fill(b, dt, R * C), y = fill(b, dt, R * C), w = fill(b, dt, C), stat = fill(b, DT_F32, R),
        dy = fill(b, DT_F32, R * C), gu = fill(b, DT_F32, R * 2 * C), act = fill(b, dt, R * C),
        dgu = fill(b, dt, R * 2 * C), cap = fill(b, DT_F32, R * C), heads = fill(b, DT_F32, R * C);
    ON_BOTH
    {
        KERNEL(D, rms_norm, MAT(y, dt, R, C), F(stat), MAT(x, dt, R, C), b->p[w][k], 1, 1e-5f);
        KERNEL(D, rms_norm_dx, MAT(y, dt, R, C), MAT(dy, DT_F32, R, C), MAT(x, dt, R, C), b->p[w][k], 1,
               F(stat));
        KERNEL(D, head_norm_dx, MAT(heads, DT_F32, R, C), MAT(dy, DT_F32, R, C), 1, b->p[w][k], dt, 1, 1e-5f);
        KERNEL(D, geglu, MAT(act, dt, R, C), MAT(gu, DT_F32, R, 2 * C));
        KERNEL(D, geglu_dx, MAT(dgu, dt, R, 2 * C), MAT(gu, DT_F32, R, 2 * C), MAT(dy, DT_F32, R, C));
        KERNEL(D, add_both, MAT(y, dt, R, C), MAT(act, dt, R, C), MAT(dy, DT_F32, R, C));
        KERNEL(D, gelu_erf, MAT(act, dt, R, C), MAT(dy, DT_F32, R, C));
        KERNEL(D, gelu_erf_dx, MAT(x, dt, R, C), MAT(dy, DT_F32, R, C), MAT(heads, DT_F32, R, C));
        KERNEL(D, scale, MAT(act, dt, R, C), 8.5f);
        KERNEL(D, softcap, MAT(cap, DT_F32, R, C), 0.7f);
        KERNEL(D, softcap_dx, MAT(act, dt, R, C), MAT(cap, DT_F32, R, C), 0.7f);
    }
    same(b, "scales", dt);
}

/* Sums over tokens: sequences of more tokens than blocks, and a tree that some leaves are in already. */
static void vectors(struct both *b, enum dtype dt)
{
    enum { C = 70, SEQS = 3, T = 21 };
    int x = fill(b, dt, SEQS * T * C), dy = fill(b, DT_F32, SEQS * T * C),
        stat = fill(b, DT_F32, 2 * SEQS * T), level[3][2];
    for (int i = 0; i < 3; i++)
        level[i][0] = fill(b, DT_F32, C), level[i][1] = fill(b, DT_F32, C);
    ON_BOTH
    {
        struct tree_acc acc[3];
        for (int i = 0; i < 3; i++)
            acc[i] = (struct tree_acc){ .n = 8, .next = 1, .level = { F(level[i][0]), F(level[i][1]) } };
        struct mat dym = MAT(dy, DT_F32, SEQS * T, C), xm = MAT(x, dt, SEQS * T, C);
        KERNEL(D, rms_norm_dw, &acc[0], dym, xm, F(stat), seqs_of(SEQS, T, 8));
        KERNEL(D, layer_norm_dw, &acc[1], dym, xm, F(stat), F(stat) + SEQS * T, seqs_of(SEQS, T, 6));
        KERNEL(D, bias_dw, &acc[2], dym, dt, seqs_of(SEQS, T, 8));
    }
    same(b, "vectors", dt);
}

static void losses(struct both *b, enum dtype dt)
{
    enum { R = 9, V = 203 };
    struct leaves l = leaves_of(V, 8, 0, 8);
    int logits = fill(b, DT_F32, R * V), dl = fill(b, dt, R * V), stat = fill(b, DT_F32, 5 * R);
    int32_t target[R] = { 0, 202, 5, -1, 77, 300, 1, 2, 3 };
    const float scale[R] = { 0.37f, -0.37f, 0, 1, 0.5f, 2, -0.0f, 1e-3f, 0.37f };
    ON_BOTH
    {
        struct mat m = MAT(logits, DT_F32, R, V);
        KERNEL(D, ce_max, F(stat), m);
        KERNEL(D, ce_sum, F(stat) + R, m, &l, F(stat));
        KERNEL(D, ce_pick, F(stat) + 2 * R, m, target, 0);
        KERNEL(D, ce_logprob, F(stat) + 3 * R, F(stat) + 2 * R, F(stat), F(stat) + R, R);
        KERNEL(D, ce_first, (int32_t *)(F(stat) + 4 * R), m, F(stat));
        KERNEL(D, ce_dx, MAT(dl, dt, R, V), m, target, 0, F(stat), F(stat) + R, scale);
    }
    same(b, "losses", dt);
}

/* Routers of three forms, and rows on their way to experts and back. */
static void routing(struct both *b, enum dtype dt)
{
    enum { R = 11, E = 70, K = 5, C = 101 };
    const struct leaves l = leaves_of(C, 8, 0, 8);
    int logits = fill(b, DT_F32, R * E), dl = fill(b, dt, R * E), for_all = fill(b, dt, R * E),
        bias = fill(b, DT_F32, E), expert = fill(b, DT_F32, R * K), weight = fill(b, DT_F32, R * K),
        dw = fill(b, DT_F32, R * K);
    int y = fill(b, dt, R * K * C), out = fill(b, DT_F32, R * C), shared = fill(b, dt, R * C),
        gate = fill(b, DT_F32, R), dgate = fill(b, dt, R), count = fill(b, DT_F32, 3 * E);
    int32_t place[R * K], counts[3 * E];
    for (int i = 0; i < R * K; i++)
        place[i] = (i * 7 + 3) % (R * K);
    for (int i = 0; i < 3 * E; i++)
        counts[i] = i * 37 % 50;
    ON_BOTH
    {
        struct mat ym = MAT(y, dt, R * K, C), om = MAT(out, DT_F32, R, C), sm = MAT(shared, dt, R, C);
        const struct balance terms = { 0.01f, 0.02f, (int32_t *)b->p[count][k], seqs_of(3, 4, 1) };
        const struct balance one_count = { 0.01f, 0, (int32_t *)b->p[count][k] + E, { 0 } };
        dev_write(D, b->p[count][k], counts, sizeof counts);
        for (enum router_weights w = ROUTER_CHOSEN; w <= ROUTER_SIGMOID; w++) {
            const struct expert_router r = { E, K, w, 1, 7, 3, 2.5f, F(bias) };
            KERNEL(D, route, &r, (int32_t *)b->p[expert][k], F(weight), MAT(logits, DT_F32, R, E));
            KERNEL(D, route_dx, &r, MAT(dl, dt, R, E), MAT(logits, DT_F32, R, E), (int32_t *)b->p[expert][k],
                   F(weight), F(dw), &terms);
            KERNEL(D, route_dx, &r, MAT(for_all, dt, R, E), MAT(logits, DT_F32, R, E),
                   (int32_t *)b->p[expert][k], F(weight), F(dw), &one_count);
        }
        KERNEL(D, gather_scaled, MAT(dl, dt, R, C % E), listed_of(MAT(y, dt, R * K, C), place), F(weight),
               place);
        KERNEL(D, combine, om, ym, place, F(weight), K, sm, F(gate));
        KERNEL(D, scale_rows, om, F(weight), place);
        KERNEL(D, add_to, om, om);
        KERNEL(D, add_scaled, om, om, 1.75f);
        KERNEL(D, expert_dot, F(weight), om, sm, &l);
        KERNEL(D, gate_dx, MAT(dgate, dt, R, 1), MAT(y, dt, R, C), sm, sm, F(gate));
        KERNEL(D, combine_dx, om, ym, place, K);
    }
    same(b, "routing", dt);
}

/* Biases of experts, and the clamped activation. */
static void expert_biases(struct both *b, enum dtype dt)
{
    enum { ROWS = 40, N = 70, EXPERTS = 3, LEAVES = 2, GRAIN = 4 };
    const int64_t begin[EXPERTS + 1] = { 0, 13, 13, ROWS }, ends[EXPERTS * LEAVES * GRAIN] = {
        4, 4, 9, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 13, 20, 20, 30, 31, 31, 39, 40, 40
    };
    const struct expert_rows g = { EXPERTS, begin, LEAVES * GRAIN, ends };
    const struct clamp c = { 0.7f, 1.702f };
    int y = fill(b, DT_F32, ROWS * 2 * N), x = fill(b, dt, ROWS * N), bias = fill(b, dt, EXPERTS * N),
        dot = fill(b, DT_F32, ROWS), dw = fill(b, DT_F32, EXPERTS * LEAVES * N), act = fill(b, dt, ROWS * N),
        dgu = fill(b, dt, ROWS * 2 * N), dact = fill(b, DT_F32, ROWS * N);
    int32_t list[ROWS];
    for (int i = 0; i < ROWS; i++)
        list[i] = (i * 7 + 3) % ROWS;
    ON_BOTH
    {
        const void *at[EXPERTS];
        struct mat xm = MAT(x, dt, ROWS, N), gu = MAT(y, DT_F32, ROWS, 2 * N);
        for (int e = 0; e < EXPERTS; e++)
            at[e] = mat_rows(MAT(bias, dt, EXPERTS, N), e, 1).p;
        KERNEL(D, add_bias_experts, mat_cols(gu, N, N), at, dt, &g);
        KERNEL(D, dot_bias_experts, F(dot), listed_of(xm, list), at, &g);
        KERNEL(D, bias_dw_experts, F(dw), xm, dt, &g, GRAIN);
        KERNEL(D, swiglu_clamped, MAT(act, dt, ROWS, N), gu, &c);
        KERNEL(D, swiglu_clamped_dx, MAT(dgu, dt, ROWS, 2 * N), gu, MAT(dact, DT_F32, ROWS, N), &c);
    }
    same(b, "biases of experts", dt);
}

static void expert_products(struct both *b, enum dtype dt)
{
    enum { ROWS = 40, N = 70, K = 45, EXPERTS = 3, LEAVES = 3 };
    const struct leaves l = leaves_of(K, 8, 0, 8), ln = leaves_of(N, 8, 0, 8);
    const int64_t begin[EXPERTS + 1] = { 0, 13, 13, ROWS },
                                  ends[EXPERTS * LEAVES] = { 4, 4, 13, 13, 13, 13, 13, 39, 40 };
    const struct expert_rows g = { EXPERTS, begin, LEAVES, ends };
    int x = fill(b, dt, ROWS * K), w = fill(b, dt, EXPERTS * N * K), y = fill(b, DT_F32, ROWS * N),
        dy = fill(b, dt, ROWS * N), dx = fill(b, DT_F32, ROWS * K), level = fill(b, DT_F32, 6 * N * K);
    int32_t list[ROWS];
    for (int i = 0; i < ROWS; i++)
        list[i] = (i * 7 + 3) % ROWS;
    ON_BOTH
    {
        struct panels p[EXPERTS];
        struct mat wm[EXPERTS], xm = MAT(x, dt, ROWS, K), dym = MAT(dy, dt, ROWS, N);
        struct tree_acc acc[EXPERTS];
        const struct listed from = listed_of(dym, list);
        for (int e = 0; e < EXPERTS; e++) {
            wm[e] = mat_rows(MAT(w, dt, EXPERTS * N, K), e * N, N);
            p[e] = (struct panels){ NULL, N, K, dt, l };
            p[e].p = dev_alloc(D, MEM_WORK, panels_bytes(N, K, dt, &l));
            KERNEL(D, linear_pack, &p[e], 1, &wm[e]);
            acc[e] = (struct tree_acc){
                .n = 8, .next = 1, .level = { F(level) + 2 * e * N * K, F(level) + (2 * e + 1) * N * K }
            };
        }
        KERNEL(D, linear_experts, MAT(y, DT_F32, ROWS, N), listed_of(xm, list), &g, p);
        KERNEL(D, linear_dx_experts, MAT(dx, DT_F32, ROWS, K), 1, &from, wm, &ln, &g);
        KERNEL(D, linear_dw_experts, acc, K, from, listed_of(xm, NULL), &g);
        for (int e = 0; e < EXPERTS; e++)
            dev_free(D, p[e].p);
    }
    same(b, "products of experts", dt);
}

static void optimizer(struct both *b)
{
    enum { N = 70001 };
    struct adamw h = { .lr = 1e-3f,
                       .eps = 1e-8f,
                       .weight_decay = 0.1f,
                       .beta1 = 0.9,
                       .beta2 = 0.95,
                       .bias1 = 0.1f,
                       .bias2 = 0.2f,
                       .clip = 0.7f };
    struct xsum sum[2] = { { { 0 }, 0, 0 }, { { 0 }, 0, 0 } };
    int w = fill(b, DT_F32, N), m = fill(b, DT_F32, N), v = fill(b, DT_F32, N), g = fill(b, DT_F32, N),
        w16 = fill(b, DT_BF16, N);
    int second = fill(b, DT_F32, N); /* moments are not negative */
    ON_BOTH
    {
        const float *in[3] = { F(w), F(m), F(g) };
        KERNEL(D, tree_add, F(v), in, 3, N);
        KERNEL(D, round_to, b->p[w16][k], DT_BF16, F(v), N);
        KERNEL(D, sum_squares, &sum[k], F(g), N);
        dev_fill(D, F(second), 0, sizeof(float) * N);
        KERNEL(D, adamw, F(w), b->p[w16][k], F(m), F(second), F(g), N, &h);
        xsum_carry(&sum[k]);
    }
    CHECK_SAME(&sum[0], &sum[1], sizeof sum[0]);
    same(b, "optimizer", DT_F32);
}

/* Through a ring that is smaller than what comes, and read where it belongs. */
static void slices(struct both *b)
{
    enum { LONG = 5000 };
    const int x = fill(b, DT_F32, LONG);
    struct err e;
    for (int k = 0; k < 2; k++) {
        struct ring r;
        CHECK_INT(ring_open(&r, b->dev[k], &(struct dev_executor){ 0 }, 4096, &e), 0);
        for (int64_t at = 0, got; at < LONG; at += got) {
            void *host;
            got = ring_take(&r, (float *)b->p[x][k] + at, LONG - at < 777 ? LONG - at : 777, sizeof(float),
                            &host, &e);
            for (int64_t i = 0; i < got; i++)
                ((float *)host)[i] = (float)(at + i);
        }
        CHECK_INT(ring_settle(&r, &e), 0);
        dev_fill(b->dev[k], b->p[x][k], 0, 12); /* behind what came */
        ring_close(&r);
    }
    same(b, "slices from the host", DT_F32);
}

/* kernels: SHARDLINE_CUDA; NULL: those that are chosen without it. last: what products and attention are
 * asked for. */
static void all_with(const char *device, const char *kernels, enum dtype last)
{
    struct both b;
    if (kernels)
        setenv("SHARDLINE_CUDA", kernels, 1);
    const int rc = both_open(&b, device);
    unsetenv("SHARDLINE_CUDA");
    if (rc < 0)
        return;
    for (enum dtype dt = DT_F32; dt <= last; dt++) {
        products(&b, dt);
        expert_products(&b, dt);
        attention(&b, dt, 0);
        attention(&b, dt, 1.3f);
    }
    for (enum dtype dt = DT_F32; dt <= DT_BF16; dt++) {
        rows(&b, dt);
        scales(&b, dt);
        losses(&b, dt);
        vectors(&b, dt);
        routing(&b, dt);
        expert_biases(&b, dt);
    }
    optimizer(&b);
    slices(&b);
    dev_close(b.dev[1]);
    CHECK_INT(b.mem.total_now, 0);
}

static void all_on(const char *device)
{
    all_with(device, "simt", DT_BF16);
    all_with(device, NULL, DT_F32);
}

#endif
