/* experts_bias_test.c - biases of experts, the clamped activation and the gradient of attention's sinks: the
 * bits of definitions by plain loops, for every CPU class on one and two threads. */
#include <stdlib.h>

#include "tests/unit/kernels/rows_rig.h"

enum { EXPERTS = 4, LEAVES = 3, GRAIN = 4, ROWS = 40 };

/* Rows of expert e in block b: some blocks, leaves and experts have none. */
static int rows_in(int e, int b) { return e == 2 ? 0 : (e * 7 + b * 5) % 4; }

struct deal {
    struct expert_rows g;
    int64_t begin[EXPERTS + 1], block_end[EXPERTS * LEAVES * GRAIN], n;
};
static void deal_rows(struct deal *d)
{
    d->n = 0;
    for (int e = 0; e < EXPERTS; e++) {
        d->begin[e] = d->n;
        for (int b = 0; b < LEAVES * GRAIN; b++)
            d->block_end[e * LEAVES * GRAIN + b] = d->n += rows_in(e, b);
    }
    d->begin[EXPERTS] = d->n;
    d->g = (struct expert_rows){ EXPERTS, d->begin, LEAVES * GRAIN, d->block_end };
}
static int expert_of(const struct deal *d, int64_t row)
{
    int e = 0;
    while (d->begin[e + 1] <= row)
        e++;
    return e;
}

/* Biases of dt, and their addresses. */
static struct mat biases(enum dtype dt, int64_t n, const void *at[EXPERTS])
{
    struct mat m = new_mat(dt, EXPERTS, n, 11);
    for (int e = 0; e < EXPERTS; e++)
        at[e] = mat_rows(m, e, 1).p;
    return m;
}

static void add_case(struct rig *r, enum dtype dt, int64_t n)
{
    struct deal d;
    const void *at[EXPERTS];
    deal_rows(&d);
    struct mat bias = biases(dt, n, at), y = new_mat(DT_F32, d.n, n, 1), want = copy_mat(y),
               x = new_mat(dt, ROWS, n, 2);
    int32_t list[256];
    float dot[256], a[701], b[701];
    for (int64_t i = 0; i < d.n; i++) {
        const int e = expert_of(&d, i);
        list[i] = (int32_t)(i * 7 % ROWS);
        for (int64_t c = 0; c < n; c++) {
            set_elem(want, i, c, elem(y, i, c) + elem(bias, e, c));
            a[c] = elem(x, list[i], c), b[c] = elem(bias, e, c);
        }
        dot[i] = value(5, i) + by_lanes(n, a, b);
    }
    EACH_DEV(r, dev)
    {
        struct mat got = copy_mat(y);
        float sum[256];
        for (int64_t i = 0; i < d.n; i++)
            sum[i] = value(5, i);
        KERNEL(dev, add_bias_experts, got, at, dt, &d.g);
        KERNEL(dev, dot_bias_experts, sum, listed_of(x, list), at, &d.g);
        CHECK_MAT(got, want, dev, n);
        CHECK_SAME(sum, dot, (size_t)d.n * sizeof *dot);
        FREE(got);
    }
    FREE(bias, y, want, x);
}

TEST(biases_of_experts_are_added_and_dotted_by_expert)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes)
            add_case(r, dts[t], sizes[s]);
    rig_close(r);
}

static void dw_case(struct rig *r, enum dtype dt, enum dtype dy_dt, int64_t n)
{
    struct deal d;
    deal_rows(&d);
    struct mat dy = new_mat(dy_dt, d.n, n, 3);
    float *want = malloc((size_t)(EXPERTS * LEAVES * n) * 4),
          *got = malloc((size_t)(EXPERTS * LEAVES * n) * 4);
    int64_t row = 0;
    for (int leaf = 0; leaf < EXPERTS * LEAVES; leaf++) {
        const int64_t first = row;
        for (int64_t c = 0; c < n; c++) {
            float block[GRAIN];
            row = first;
            for (int g = 0; g < GRAIN; g++) {
                block[g] = 0;
                for (int64_t end = d.block_end[leaf * GRAIN + g]; row < end; row++)
                    block[g] += round_to(dt, elem(dy, row, c));
            }
            want[leaf * n + c] = by_tree(GRAIN, block, 1);
        }
    }
    EACH_DEV(r, dev)
    {
        memset(got, 0x5a, (size_t)(EXPERTS * LEAVES * n) * 4);
        KERNEL(dev, bias_dw_experts, got, dy, dt, &d.g, GRAIN);
        CHECK_SAME(got, want, (size_t)(EXPERTS * LEAVES * n) * 4);
    }
    free(want), free(got);
    FREE(dy);
}

TEST(bias_dw_experts_is_a_tree_over_blocks_of_positions)
{
    struct rig *r = rig_open();
    EACH(s, sizes) {
        dw_case(r, DT_F32, DT_F32, sizes[s]);
        dw_case(r, DT_BF16, DT_BF16, sizes[s]);
        dw_case(r, DT_BF16, DT_F32, sizes[s]);
    }
    rig_close(r);
}

static void clamped_case(struct rig *r, enum dtype dt, int64_t n)
{
    const struct clamp c = { 1.5f, 1.702f };
    struct mat gu = new_mat(DT_F32, 5, 2 * n, 1), dact = new_mat(DT_F32, 5, n, 2), act = new_mat(dt, 5, n, 0),
               dgu = new_mat(dt, 5, 2 * n, 0);
    for (int64_t i = 0; i < 5; i++)
        for (int64_t j = 0; j < n; j++) {
            const float gate = elem(gu, i, 2 * j), up = elem(gu, i, 2 * j + 1), g = fminf(gate, c.limit),
                        u = fmaxf(fminf(up, c.limit), -c.limit), s = fn_sigmoid(c.alpha * g),
                        da = round_to(dt, elem(dact, i, j));
            set_elem(act, i, j, (u + 1) * (g * s));
            set_elem(dgu, i, 2 * j, gate > c.limit ? 0 : da * (u + 1) * (s * (1 + c.alpha * g * (1 - s))));
            set_elem(dgu, i, 2 * j + 1, fabsf(up) > c.limit ? 0 : da * (g * s));
        }
    EACH_DEV(r, dev)
    {
        struct mat got = new_mat(dt, 5, n, 0), back = new_mat(dt, 5, 2 * n, 0);
        KERNEL(dev, swiglu_clamped, got, gu, &c);
        KERNEL(dev, swiglu_clamped_dx, back, gu, dact, &c);
        CHECK_MAT(got, act, dev, n);
        CHECK_MAT(back, dgu, dev, n);
        FREE(got, back);
    }
    FREE(gu, dact, act, dgu);
}

TEST(swiglu_clamped_is_its_definition)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes)
            clamped_case(r, dts[t], sizes[s]);
    rig_close(r);
}

static void sink_case(struct rig *r, enum dtype dt, int heads, int d, int grain)
{
    enum { SEQS = 2, LEN = 13 };
    struct mat dout = new_mat(dt, SEQS * LEN, heads * d, 1), out = new_mat(dt, SEQS * LEN, heads * d, 2),
               sink = new_mat(dt, 1, heads, 3);
    float lse[SEQS * LEN * 8], want[SEQS * 8], got[SEQS * 8], a[64], b[64];
    const struct attn at = { .n_heads = heads, .n_kv = heads, .head_dim = d, .dt = dt, .sink = sink.p };
    for (int i = 0; i < SEQS * LEN * heads; i++)
        lse[i] = 2 + value(4, i);
    for (int s = 0; s < SEQS; s++)
        for (int h = 0; h < heads; h++) {
            float block[GRAIN_MAX];
            for (int g = 0; g < grain; g++) {
                block[g] = 0;
                for (int64_t t = s * LEN + block_begin(LEN, grain, g);
                     t < s * LEN + block_begin(LEN, grain, g + 1); t++) {
                    for (int c = 0; c < d; c++)
                        a[c] = elem(dout, t, h * d + c), b[c] = elem(out, t, h * d + c);
                    block[g] = fmaf(-fn_exp(elem(sink, 0, h) - lse[t * heads + h]), by_lanes(d, a, b),
                                    block[g]);
                }
            }
            want[s * heads + h] = by_tree(grain, block, 1);
        }
    EACH_DEV(r, dev)
    {
        memset(got, 0x5a, sizeof got);
        KERNEL(dev, sink_dw, got, &at, dout, ((struct attn_kept){ out, out, lse }),
               seqs_of(SEQS, LEN, grain));
        CHECK_SAME(got, want, (size_t)(SEQS * heads) * sizeof *got);
    }
    FREE(dout, out, sink);
}

TEST(sink_dw_is_a_vector_s_tree_one_number_a_head)
{
    struct rig *r = rig_open();
    EACH(t, dts) {
        sink_case(r, dts[t], 8, 16, 8);
        sink_case(r, dts[t], 3, 40, 6);
        sink_case(r, dts[t], 1, 7, 1);
    }
    rig_close(r);
}
