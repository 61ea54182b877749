/* rows_scale_test.c - the row ops that Gemma and GPT-NeoX have more: norms with 1 + w, gated gelu and gelu
 * by erf, the embedding's factor, softcaps, the residual of parallel branches, heads that are rotated
 * in part and lie head by head. Against plain definitions, written again here; bits, for every CPU class on
 * one and two threads; gradients against differences. */
#include "tests/unit/kernels/rows_rig.h"

/* ---- norms with 1 + w ---- */
/* w and 1 + w, which fp32 holds as it is rounded. */
static struct mat plus_one(struct mat w)
{
    struct mat one = new_mat(DT_F32, w.rows, w.cols, 0);
    for (int64_t i = 0; i < w.rows; i++)
        for (int64_t j = 0; j < w.cols; j++)
            set_elem(one, i, j, 1.0f + elem(w, i, j));
    return one;
}

static float root_of(const float *x, int64_t n) { return 1.0f / sqrtf(by_lanes(n, x, x) / (float)n + 1e-5f); }

TEST(a_norm_with_1_plus_w_is_its_definition)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            enum { ROWS = 7 };
            int64_t n = sizes[s];
            struct mat x = new_mat(dts[t], ROWS, n, 1), w = new_mat(dts[t], 1, n, 2), one = plus_one(w),
                       want = new_mat(dts[t], ROWS, n, 0);
            float row[701], rstd[ROWS];
            for (int64_t i = 0; i < ROWS; i++) {
                for (int64_t j = 0; j < n; j++)
                    row[j] = elem(x, i, j);
                float root = root_of(row, n);
                for (int64_t j = 0; j < n; j++)
                    set_elem(want, i, j, row[j] * root * elem(one, 0, j));
            }
            EACH_DEV(r, d)
            {
                struct mat y = new_mat(dts[t], ROWS, n, 0);
                KERNEL(d, rms_norm, y, rstd, x, w.p, 1, 1e-5f);
                CHECK_MAT(y, want, d, n);
                FREE(y);
            }
            FREE(x, w, one, want);
        }
    rig_close(r);
}

/* dy of either dtype: behind a norm at the end of a branch comes the stream's gradient, which is of dt. */
static void norm_dx_case(struct rig *r, enum dtype dt, enum dtype dy_dt, int64_t n)
{
    enum { ROWS = 3 };
    struct mat x = new_mat(dt, ROWS, n, 1), w = new_mat(dt, 1, n, 2), dy = new_mat(dy_dt, ROWS, n, 3),
               res = new_mat(dt, ROWS, n, 4), one = plus_one(w), want = copy_mat(res);
    float g[701], xr[701], rstd[ROWS];
    for (int64_t i = 0; i < ROWS; i++) {
        rstd[i] = 0.3f + 0.1f * (float)i;
        for (int64_t j = 0; j < n; j++) {
            g[j] = round_to(dt, elem(dy, i, j)) * elem(one, 0, j);
            xr[j] = elem(x, i, j) * rstd[i];
        }
        float c = by_lanes(n, g, xr) / (float)n;
        for (int64_t j = 0; j < n; j++) {
            float u = xr[j] * c, dx = rstd[i] * (g[j] - u);
            set_elem(want, i, j, elem(res, i, j) + dx);
        }
    }
    EACH_DEV(r, d)
    {
        struct mat got = copy_mat(res);
        KERNEL(d, rms_norm_dx, got, dy, x, w.p, 1, rstd);
        CHECK_MAT(got, want, d, n);
        FREE(got);
    }
    FREE(x, w, dy, res, one, want);
}

TEST(the_gradient_of_a_norm_with_1_plus_w_is_its_definition)
{
    struct rig *r = rig_open();
    EACH(s, sizes) {
        norm_dx_case(r, DT_F32, DT_F32, sizes[s]);
        norm_dx_case(r, DT_BF16, DT_F32, sizes[s]);
        norm_dx_case(r, DT_BF16, DT_BF16, sizes[s]);
    }
    rig_close(r);
}

/* In fp32 1 + w can be stored: the ops of heads' norms give the same bits as with 1 + w for w. */
TEST(norms_of_heads_with_1_plus_w_are_norms_with_that_weight)
{
    struct rig *r = rig_open();
    enum { ROWS = 4, HEADS = 3, HD = 34 };
    struct mat x = new_mat(DT_F32, ROWS, (HEADS + 2) * HD, 1), dy = new_mat(DT_F32, ROWS, HEADS * HD, 2),
               w = new_mat(DT_F32, 2, HD, 3), one = plus_one(w), heads = x;
    char *pages[2] = { calloc(1, attn_page_bytes(1, HD, DT_F32)), calloc(1, attn_page_bytes(1, HD, DT_F32)) };
    struct attn_seq seq = { .row = 0, .n_rows = ROWS, .pos = 5 };
    struct attn a = { .n_heads = HEADS, .n_kv = 1, .head_dim = HD, .dt = DT_F32, .n_seq = 1, .seq = &seq };
    struct head_norm norm[2] = { { w.p, (float *)w.p + w.ld, 1e-6f, 1 },
                                 { one.p, (float *)one.p + one.ld, 1e-6f, 0 } };
    heads.cols = HEADS * HD;
    EACH_DEV(r, d)
    {
        struct mat got = copy_mat(dy), want = copy_mat(dy), q[2] = { copy_mat(dy), copy_mat(dy) };
        KERNEL(d, head_norm_dx, got, heads, HEADS, w.p, DT_F32, 1, 1e-6f);
        KERNEL(d, head_norm_dx, want, heads, HEADS, one.p, DT_F32, 0, 1e-6f);
        CHECK_MAT(got, want, d, HD);
        for (int i = 0; i < 2; i++) {
            seq.page = &pages[i];
            KERNEL(d, rope_store, &a, q[i], x, &norm[i], NULL, NULL);
        }
        CHECK_MAT(q[0], q[1], d, HD);
        CHECK_SAME(pages[0], pages[1], attn_page_bytes(1, HD, DT_F32));
        FREE(got, want, q[0], q[1]);
    }
    free(pages[0]);
    free(pages[1]);
    FREE(x, dy, w, one);
    rig_close(r);
}

/* ---- what an adapter adds ---- */
TEST(add_scaled_is_one_fused_multiply_add)
{
    struct rig *r = rig_open();
    EACH(s, sizes) {
        enum { ROWS = 5 };
        int64_t n = sizes[s];
        struct mat x = new_mat(DT_F32, ROWS, n, 1), y = new_mat(DT_F32, ROWS, n, 2), want = copy_mat(y);
        for (int64_t i = 0; i < ROWS; i++)
            for (int64_t j = 0; j < n; j++)
                set_elem(want, i, j, fmaf(1.3f, elem(x, i, j), elem(y, i, j)));
        EACH_DEV(r, d)
        {
            struct mat got = copy_mat(y);
            KERNEL(d, add_scaled, got, x, 1.3f);
            CHECK_MAT(got, want, d, n);
            FREE(got);
        }
        FREE(x, y, want);
    }
    rig_close(r);
}

/* ---- rotated in part, head by head ---- */
TEST(components_behind_the_rotated_ones_stay)
{
    struct rig *r = rig_open();
    enum { ROWS = 3, HEADS = 2, HD = 40, PART = 12, REST = HD - PART };
    struct mat dq = new_mat(DT_F32, ROWS, HEADS * HD, 1), dk = new_mat(DT_F32, ROWS, HD, 2),
               tab = new_mat(DT_F32, 2, 8 * PART / 2, 3);
    struct attn_seq seq = { .row = 0, .n_rows = ROWS, .pos = 2 };
    struct attn a = { .n_heads = HEADS,
                      .n_kv = 1,
                      .head_dim = HD,
                      .n_seq = 1,
                      .seq = &seq,
                      .rope_dim = PART },
                small = { .n_heads = HEADS, .n_kv = 1, .head_dim = PART, .n_seq = 1, .seq = &seq };
    const float *cs = tab.p, *sn = cs + tab.ld;
    /* the rotated components by themselves */
    struct mat sq = new_mat(DT_F32, ROWS, HEADS * PART, 0), sk = new_mat(DT_F32, ROWS, PART, 0);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t e = 0; e < PART; e++) {
            for (int64_t h = 0; h < HEADS; h++)
                set_elem(sq, i, h * PART + e, elem(dq, i, h * HD + e));
            set_elem(sk, i, e, elem(dk, i, e));
        }
    EACH_DEV(r, d)
    {
        struct mat q = copy_mat(dq), k = copy_mat(dk), part_q = copy_mat(sq), part_k = copy_mat(sk);
        KERNEL(d, rope_back, &a, q, k, cs, sn);
        KERNEL(d, rope_back, &small, part_q, part_k, cs, sn);
        for (int64_t i = 0; i < ROWS; i++)
            for (int64_t h = 0; h < HEADS; h++)
                for (int64_t e = 0; e < HD; e++)
                    CHECK_BITS(elem(q, i, h * HD + e),
                               e < PART ? elem(part_q, i, h * PART + e) : elem(dq, i, h * HD + e));
        FREE(q, k, part_q, part_k);
    }
    FREE(dq, dk, tab, sq, sk);
    rig_close(r);
}

/* Column of (which of q k v, head, component) in a row, head by head or q, k, v side by side. */
static int64_t column(int by_head, int which, int h, int heads, int hd)
{
    return (by_head ? h * 3 + which : which * heads + h) * hd;
}

TEST(q_k_v_head_by_head_are_q_k_v_side_by_side)
{
    struct rig *r = rig_open();
    enum { ROWS = 5, HEADS = 3, HD = 10, N = 3 * HEADS * HD };
    EACH(t, dts) {
        struct mat side = new_mat(DT_F32, ROWS, N, 1), by_head = new_mat(DT_F32, ROWS, N, 0),
                   tab = new_mat(DT_F32, 2, 16 * HD / 2, 2), g = new_mat(DT_F32, ROWS, N, 3);
        size_t bytes = attn_page_bytes(HEADS, HD, dts[t]);
        char *page[2] = { calloc(1, bytes), calloc(1, bytes) };
        struct attn_seq seq = { .row = 0, .n_rows = ROWS, .pos = 3 };
        struct attn a = {
            .n_heads = HEADS, .n_kv = HEADS, .head_dim = HD, .dt = dts[t], .n_seq = 1, .seq = &seq
        };
        const float *cs = tab.p, *sn = cs + tab.ld;
        for (int64_t i = 0; i < ROWS; i++)
            for (int c = 0; c < N; c++)
                set_elem(by_head, i, column(1, c / HD / HEADS, c / HD % HEADS, HEADS, HD) + c % HD,
                         elem(side, i, c));
        EACH_DEV(r, d)
        {
            struct mat q[2] = { new_mat(dts[t], ROWS, HEADS * HD, 0), new_mat(dts[t], ROWS, HEADS * HD, 0) },
                       back[2] = { new_mat(dts[t], ROWS, N, 0), new_mat(dts[t], ROWS, N, 0) }, part[3];
            for (int i = 0; i < 3; i++) {
                part[i] = g;
                part[i].cols = HEADS * HD;
                part[i].p = (float *)g.p + i * HEADS * HD;
            }
            for (int i = 0; i < 2; i++) {
                a.by_head = i;
                seq.page = &page[i];
                KERNEL(d, rope_store, &a, q[i], i ? by_head : side, NULL, cs, sn);
                KERNEL(d, rope_dx, &a, back[i], part[0], part[1], part[2], cs, sn);
            }
            CHECK_MAT(q[1], q[0], d, HD);
            CHECK_SAME(page[1], page[0], bytes);
            for (int64_t i = 0; i < ROWS; i++)
                for (int c = 0; c < N; c++)
                    CHECK_BITS(elem(back[1], i,
                                    column(1, c / HD / HEADS, c / HD % HEADS, HEADS, HD) + c % HD),
                               elem(back[0], i, c));
            FREE(q[0], q[1], back[0], back[1]);
        }
        free(page[0]);
        free(page[1]);
        FREE(side, by_head, tab, g);
    }
    rig_close(r);
}

/* ---- gelu ---- */
static double exact_gelu(double x) { return 0.5 * x * (1 + erf(x / sqrt(2))); }
static double tanh_gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

struct gelu {
    float y, slope;
};
static struct gelu exact_of(float x)
{
    float f = fn_erf(x * 0.70710678118654752f), half = 0.5f * x, one = 1.0f + f, level = 0.5f * one,
          xx = x * x, bell = fn_exp(-0.5f * xx), b = x * bell, c = b * 0.3989422804f;
    return (struct gelu){ half * one, level + c };
}
static struct gelu tanh_of(float x)
{
    float xx = x * x, x3 = xx * x, in = 0.044715f * x3, th = fn_tanh(0.7978845608f * (x + in)),
          half = 0.5f * x, one = 1.0f + th, tt = th * th, a = 0.5f * one, b = half * (1.0f - tt),
          k = (3.0f * 0.044715f) * xx, c = 0.7978845608f * (1.0f + k), bc = b * c;
    return (struct gelu){ half * one, a + bc };
}

TEST(gelu_by_erf_and_its_gradient_are_their_definitions_and_near_the_formula)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            enum { ROWS = 4 };
            int64_t n = sizes[s];
            struct mat h = new_mat(DT_F32, ROWS, n, 1), dact = new_mat(DT_F32, ROWS, n, 2),
                       want = new_mat(dts[t], ROWS, n, 0), back = new_mat(dts[t], ROWS, n, 0);
            for (int64_t i = 0; i < ROWS; i++)
                for (int64_t j = 0; j < n; j++) {
                    float x = elem(h, i, j);
                    struct gelu e = exact_of(x);
                    set_elem(want, i, j, e.y);
                    set_elem(back, i, j, round_to(dts[t], elem(dact, i, j)) * e.slope);
                    double X = (double)x;
                    CHECK_NEAR(e.y, exact_gelu(X), 1e-6 + 1e-6 * fabs(X));
                    CHECK_NEAR(e.slope, (exact_gelu(X + 1e-5) - exact_gelu(X - 1e-5)) / 2e-5, 2e-6);
                }
            EACH_DEV(r, d)
            {
                struct mat y = new_mat(dts[t], ROWS, n, 0), dh = new_mat(dts[t], ROWS, n, 0);
                KERNEL(d, gelu_erf, y, h);
                CHECK_MAT(y, want, d, n);
                KERNEL(d, gelu_erf_dx, dh, h, dact);
                CHECK_MAT(dh, back, d, n);
                FREE(y, dh);
            }
            FREE(h, dact, want, back);
        }
    rig_close(r);
}

TEST(geglu_and_its_gradient_are_their_definitions_and_near_the_formula)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            enum { ROWS = 4 };
            int64_t n = sizes[s];
            struct mat gu = new_mat(DT_F32, ROWS, 2 * n, 1), dact = new_mat(DT_F32, ROWS, n, 2),
                       want = new_mat(dts[t], ROWS, n, 0), back = new_mat(dts[t], ROWS, 2 * n, 0);
            for (int64_t i = 0; i < ROWS; i++)
                for (int64_t j = 0; j < n; j++) {
                    float up = elem(gu, i, n + j), da = round_to(dts[t], elem(dact, i, j)), du = da * up;
                    struct gelu g = tanh_of(elem(gu, i, j));
                    set_elem(want, i, j, g.y * up);
                    set_elem(back, i, j, du * g.slope);
                    set_elem(back, i, n + j, da * g.y);
                    CHECK_NEAR(g.y, tanh_gelu((double)elem(gu, i, j)), 1e-5);
                }
            EACH_DEV(r, d)
            {
                struct mat y = new_mat(dts[t], ROWS, n, 0), dgu = new_mat(dts[t], ROWS, 2 * n, 0);
                KERNEL(d, geglu, y, gu);
                CHECK_MAT(y, want, d, n);
                KERNEL(d, geglu_dx, dgu, gu, dact);
                CHECK_MAT(dgu, back, d, n);
                FREE(y, dgu);
            }
            FREE(gu, dact, want, back);
        }
    rig_close(r);
}

/* ---- factors, caps, the residual of parallel branches ---- */
TEST(both_outputs_are_added_to_the_stream_with_one_rounding_at_the_end)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            enum { ROWS = 5 };
            int64_t n = sizes[s];
            struct mat x = new_mat(dts[t], ROWS, n, 1), a = new_mat(dts[t], ROWS, n, 2),
                       o = new_mat(DT_F32, ROWS, n, 3), want = copy_mat(x);
            for (int64_t i = 0; i < ROWS; i++)
                for (int64_t j = 0; j < n; j++) {
                    float first = elem(x, i, j) + elem(a, i, j);
                    set_elem(want, i, j, first + round_to(dts[t], elem(o, i, j)));
                }
            EACH_DEV(r, d)
            {
                struct mat got = copy_mat(x);
                KERNEL(d, add_both, got, a, o);
                CHECK_MAT(got, want, d, n);
                FREE(got);
            }
            FREE(x, a, o, want);
        }
    rig_close(r);
}

TEST(an_addend_of_dt_is_added_as_it_is)
{
    struct rig *r = rig_open();
    enum { ROWS = 5, N = 77 };
    struct mat x = new_mat(DT_BF16, ROWS, N, 1), o = new_mat(DT_BF16, ROWS, N, 2), want = copy_mat(x);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < N; j++)
            set_elem(want, i, j, elem(x, i, j) + elem(o, i, j));
    EACH_DEV(r, d)
    {
        struct mat got = copy_mat(x);
        KERNEL(d, add_rounded, got, o);
        CHECK_MAT(got, want, d, N);
        FREE(got);
    }
    FREE(x, o, want);
    rig_close(r);
}

TEST(a_factor_is_multiplied_and_rounded)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            struct mat x = new_mat(dts[t], 3, sizes[s], 1), want = copy_mat(x);
            for (int64_t i = 0; i < 3; i++)
                for (int64_t j = 0; j < sizes[s]; j++)
                    set_elem(want, i, j, elem(x, i, j) * 8.4852813742f);
            EACH_DEV(r, d)
            {
                struct mat got = copy_mat(x);
                KERNEL(d, scale, got, 8.4852813742f);
                CHECK_MAT(got, want, d, sizes[s]);
                FREE(got);
            }
            FREE(x, want);
        }
    rig_close(r);
}

TEST(a_softcap_and_its_gradient_are_their_definitions_and_near_the_formula)
{
    struct rig *r = rig_open();
    const float cap = 1.7f;
    EACH(t, dts)
        EACH(s, sizes) {
            enum { ROWS = 3 };
            int64_t n = sizes[s];
            struct mat x = new_mat(DT_F32, ROWS, n, 1), dy = new_mat(dts[t], ROWS, n, 2), y = copy_mat(x),
                       back = copy_mat(dy);
            for (int64_t i = 0; i < ROWS; i++)
                for (int64_t j = 0; j < n; j++) {
                    float capped = cap * fn_tanh(elem(x, i, j) / cap), u = capped / cap, slope = 1.0f - u * u;
                    double t0 = tanh((double)elem(x, i, j) / (double)cap);
                    set_elem(y, i, j, capped);
                    set_elem(back, i, j, elem(dy, i, j) * slope);
                    CHECK_NEAR(capped, (double)cap * t0, 1e-6);
                    CHECK_NEAR(slope, 1 - t0 * t0, 1e-6);
                }
            EACH_DEV(r, d)
            {
                struct mat got = copy_mat(x), dx = copy_mat(dy);
                KERNEL(d, softcap, got, cap);
                CHECK_MAT(got, y, d, n);
                KERNEL(d, softcap_dx, dx, got, cap);
                CHECK_MAT(dx, back, d, n);
                FREE(got, dx);
            }
            FREE(x, dy, y, back);
        }
    rig_close(r);
}
