/* rows_family_test.c - the row ops of families besides Llama (layer norm, biases, gelu, norms of heads,
 * positions) against plain definitions, written again here; bits, for every CPU class on one and two
 * threads. And every gradient against differences. */
#include "tests/unit/kernels/rows_rig.h"

/* ---- layer norm ---- */
struct layer {
    float mean, r;
};
static struct layer layer_of(int64_t n, const float *x, float eps)
{
    float c[701];
    struct layer l = { by_lanes(n, x, NULL) / (float)n, 0 };
    for (int64_t j = 0; j < n; j++)
        c[j] = x[j] - l.mean;
    l.r = 1.0f / sqrtf(by_lanes(n, c, c) / (float)n + eps);
    return l;
}

TEST(layer_norm_is_its_definition)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            enum { ROWS = 24 };
            int64_t n = sizes[s];
            struct mat x = new_mat(dts[t], ROWS, n, 1), w = new_mat(dts[t], 1, n, 2),
                       b = new_mat(dts[t], 1, n, 3), want = new_mat(dts[t], ROWS, n, 0);
            float row[701], stat[2][ROWS], got[2][ROWS];
            for (int64_t i = 0; i < ROWS; i++) {
                for (int64_t j = 0; j < n; j++)
                    row[j] = elem(x, i, j);
                struct layer l = layer_of(n, row, 1e-5f);
                stat[0][i] = l.mean;
                stat[1][i] = l.r;
                for (int64_t j = 0; j < n; j++) {
                    float xh = (row[j] - l.mean) * l.r, y = xh * elem(w, 0, j);
                    set_elem(want, i, j, y + elem(b, 0, j));
                }
            }
            EACH_DEV(r, d)
            {
                struct mat y = new_mat(dts[t], ROWS, n, 0);
                KERNEL(d, layer_norm, y, got[0], got[1], x, w.p, b.p, 1e-5f);
                CHECK_MAT(y, want, d, n);
                CHECK_SAME(got, stat, sizeof stat);
                memset(y.p, 0, (size_t)n * dtype_size(y.dt));
                struct mat one = y, from = x;
                one.rows = from.rows = 1;
                KERNEL(d, layer_norm, one, NULL, NULL, from, w.p, b.p, 1e-5f); /* a row alone */
                CHECK_MAT(y, want, d, n);
                FREE(y);
            }
            FREE(x, w, b, want);
        }
    rig_close(r);
}

static void layer_dx_case(struct rig *r, enum dtype dt, int64_t n)
{
    enum { ROWS = 6 };
    struct mat x = new_mat(dt, ROWS, n, 1), w = new_mat(dt, 1, n, 2), dy = new_mat(DT_F32, ROWS, n, 3),
               res = new_mat(dt, ROWS, n, 4);
    struct mat want = copy_mat(res);
    float g[701], xh[701], mean[ROWS], rstd[ROWS];
    for (int64_t i = 0; i < ROWS; i++) {
        mean[i] = 0.05f * (float)i;
        rstd[i] = 0.3f + 0.1f * (float)i;
        for (int64_t j = 0; j < n; j++) {
            g[j] = round_to(dt, elem(dy, i, j)) * elem(w, 0, j);
            xh[j] = (elem(x, i, j) - mean[i]) * rstd[i];
        }
        float a = by_lanes(n, g, NULL) / (float)n, c = by_lanes(n, g, xh) / (float)n;
        for (int64_t j = 0; j < n; j++) {
            float t = xh[j] * c, u = g[j] - a, dx = rstd[i] * (u - t);
            set_elem(want, i, j, elem(res, i, j) + dx);
        }
    }
    EACH_DEV(r, d)
    {
        struct mat got = copy_mat(res);
        KERNEL(d, layer_norm_dx, got, dy, x, w.p, mean, rstd);
        CHECK_MAT(got, want, d, n);
        FREE(got);
    }
    FREE(x, w, dy, res, want);
}

TEST(layer_norm_dx_is_its_definition)
{
    struct rig *r = rig_open();
    EACH(s, sizes)
        EACH(t, dts)
            layer_dx_case(r, dts[t], sizes[s]);
    rig_close(r);
}

/* ---- gradients of vectors ---- */
enum of { LAYER, BIAS };

static void vector_case(struct rig *r, const struct dw_case *c, enum of of, enum dtype dt, enum dtype dy_dt)
{
    int64_t rows = c->leaves * c->seq_len, n = c->n, block = (c->seq_len + c->grain - 1) / c->grain;
    struct mat x = new_mat(dt, rows, n, 1), dy = new_mat(dy_dt, rows, n, 2),
               stat = new_mat(DT_F32, 2, rows, 3);
    float *mean = stat.p, *rstd = mean + stat.ld, *want = malloc(sizeof(float) * (size_t)n);
    for (int64_t j = 0; j < n; j++) {
        float leaf[16];
        for (int s = 0; s < c->leaves; s++) {
            float part[8] = { 0 };
            for (int g = 0; g < c->grain; g++) {
                for (int64_t t = g * block; t < (g + 1) * block && t < c->seq_len; t++) {
                    int64_t row = s * c->seq_len + t;
                    float d = round_to(dt, elem(dy, row, j));
                    part[g] = of == BIAS ? part[g] + d
                                         : fmaf(d, (elem(x, row, j) - mean[row]) * rstd[row], part[g]);
                }
            }
            leaf[s] = by_tree(c->grain, part, 1);
        }
        want[j] = by_tree(c->leaves, leaf, 1);
    }
    EACH_DEV(r, d)
    {
        struct levels l = levels_open(c->leaves, c->per_call, (size_t)n);
        for (; l.acc.next < c->leaves; l.acc.next += c->per_call) {
            struct mat xs = x, dys = dy;
            int64_t at = l.acc.next * c->seq_len;
            xs.p = (char *)x.p + at * x.ld * (int64_t)dtype_size(dt);
            dys.p = (char *)dy.p + at * dy.ld * (int64_t)dtype_size(dy_dt);
            xs.rows = dys.rows = c->per_call * c->seq_len;
            if (of == BIAS)
                KERNEL(d, bias_dw, &l.acc, dys, dt, seqs_of(c->per_call, c->seq_len, c->grain));
            else
                KERNEL(d, layer_norm_dw, &l.acc, dys, xs, mean + at, rstd + at,
                       seqs_of(c->per_call, c->seq_len, c->grain));
        }
        if (memcmp(l.acc.level[0], want, l.bytes))
            test_fail(__FILE__, __LINE__, "%s: %d leaves, %d a call, grain %d, n %d: not the definition",
                      d->isa, c->leaves, c->per_call, c->grain, (int)n);
        levels_close(&l);
    }
    free(want);
    FREE(x, dy, stat);
}

TEST(layer_norm_dw_is_a_tree_of_trees_of_chains)
{
    struct rig *r = rig_open();
    EACH(i, dw_cases) {
        vector_case(r, &dw_cases[i], LAYER, DT_F32, DT_F32);
        vector_case(r, &dw_cases[i], LAYER, DT_BF16, DT_F32);
    }
    rig_close(r);
}

TEST(bias_dw_is_a_tree_of_trees_of_chains)
{
    struct rig *r = rig_open();
    EACH(i, dw_cases) {
        vector_case(r, &dw_cases[i], BIAS, DT_F32, DT_F32);
        vector_case(r, &dw_cases[i], BIAS, DT_BF16, i % 2 ? DT_BF16 : DT_F32);
    }
    rig_close(r);
}

TEST(leaves_made_elsewhere_join_the_tree)
{
    struct rig *r = rig_open();
    EACH(i, dw_cases) {
        const struct dw_case *c = &dw_cases[i];
        struct mat leaf = new_mat(DT_F32, c->leaves, c->n, 5);
        EACH_DEV(r, d)
        {
            struct levels l = levels_open(c->leaves, c->per_call, (size_t)c->n);
            for (; l.acc.next < c->leaves; l.acc.next += c->per_call)
                KERNEL(d, add_leaves, &l.acc, (float *)leaf.p + l.acc.next * leaf.ld, leaf.ld, c->n,
                       c->per_call);
            for (int64_t j = 0; j < c->n; j++) {
                float want = by_tree(c->leaves, (float *)leaf.p + j, leaf.ld);
                CHECK_BITS(l.acc.level[0][j], want);
            }
            levels_close(&l);
        }
        FREE(leaf);
    }
    rig_close(r);
}

/* ---- biases, positions, transposition ---- */
TEST(a_bias_is_added_in_fp32)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            struct mat y = new_mat(DT_F32, 5, sizes[s], 1), b = new_mat(dts[t], 1, sizes[s], 2),
                       want = copy_mat(y);
            for (int64_t i = 0; i < 5; i++)
                for (int64_t j = 0; j < sizes[s]; j++)
                    set_elem(want, i, j, elem(y, i, j) + elem(b, 0, j));
            EACH_DEV(r, d)
            {
                struct mat got = copy_mat(y);
                KERNEL(d, add_bias, got, b.p, dts[t]);
                CHECK_MAT(got, want, d, sizes[s]);
                FREE(got);
            }
            FREE(y, b, want);
        }
    rig_close(r);
}

TEST(rows_of_a_table_are_added_and_rounded_once)
{
    static const int32_t ids[7] = { 3, 0, 1, 3, 8, 2, 8 };
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            struct mat x = new_mat(dts[t], 7, sizes[s], 1), table = new_mat(dts[t], 9, sizes[s], 2),
                       want = copy_mat(x);
            for (int64_t i = 0; i < 7; i++)
                for (int64_t j = 0; j < sizes[s]; j++)
                    set_elem(want, i, j, elem(x, i, j) + elem(table, ids[i], j));
            EACH_DEV(r, d)
            {
                struct mat got = copy_mat(x);
                KERNEL(d, embed_add, got, table, ids);
                CHECK_MAT(got, want, d, sizes[s]);
                FREE(got);
            }
            FREE(x, table, want);
        }
    rig_close(r);
}

TEST(a_transposed_matrix_has_its_rows_as_columns)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            struct mat x = new_mat(dts[t], 67, sizes[s], 1), want = new_mat(dts[t], sizes[s], 67, 0);
            for (int64_t i = 0; i < 67; i++)
                for (int64_t j = 0; j < sizes[s]; j++)
                    set_elem(want, j, i, elem(x, i, j));
            EACH_DEV(r, d)
            {
                struct mat got = new_mat(dts[t], sizes[s], 67, 0);
                KERNEL(d, transpose, got, x);
                CHECK_MAT(got, want, d, sizes[s]);
                FREE(got);
            }
            FREE(x, want);
        }
    rig_close(r);
}

/* ---- gelu ---- */
static double gelu_of(double x)
{
    return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

TEST(gelu_and_its_gradient_are_their_definitions_and_near_the_formula)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            int64_t n = sizes[s];
            struct mat h = new_mat(DT_F32, 4, n, 1), dact = new_mat(DT_F32, 4, n, 2),
                       want = new_mat(dts[t], 4, n, 0), back = new_mat(dts[t], 4, n, 0);
            for (int64_t i = 0; i < 4; i++) {
                for (int64_t j = 0; j < n; j++) {
                    float x = elem(h, i, j), xx = x * x, x3 = xx * x, in = 0.044715f * x3,
                          u = 0.7978845608f * (x + in), th = fn_tanh(u);
                    float half = 0.5f * x, one = 1.0f + th, y = half * one;
                    set_elem(want, i, j, y);
                    float tt = th * th, a = 0.5f * one, b = half * (1.0f - tt), k = (3.0f * 0.044715f) * xx,
                          c = 0.7978845608f * (1.0f + k), bc = b * c;
                    float slope = a + bc;
                    set_elem(back, i, j, round_to(dts[t], elem(dact, i, j)) * slope);
                    CHECK_NEAR(y, gelu_of(x), 1e-6 + 1e-6 * fabs(gelu_of(x)));
                    CHECK_NEAR(slope, (gelu_of(x + 1e-5) - gelu_of(x - 1e-5)) / 2e-5, 2e-6);
                }
            }
            EACH_DEV(r, d)
            {
                struct mat y = new_mat(dts[t], 4, n, 0), dh = new_mat(dts[t], 4, n, 0);
                KERNEL(d, gelu, y, h);
                CHECK_MAT(y, want, d, n);
                KERNEL(d, gelu_dx, dh, h, dact);
                CHECK_MAT(dh, back, d, n);
                FREE(y, dh);
            }
            FREE(h, dact, want, back);
        }
    rig_close(r);
}

/* ---- norms of heads ---- */
static float head_r(const float *x, int64_t hd)
{
    return 1.0f / sqrtf(by_lanes(hd, x, x) / (float)hd + 1e-6f);
}

TEST(heads_are_normed_before_they_are_turned)
{
    static const int dims[] = { 2, 34, 64, 130 };
    struct rig *r = rig_open();
    EACH(i, dims)
        EACH(t, dts) {
            enum { ROWS = 3, HEADS = 2 };
            int hd = dims[i], half = hd / 2;
            size_t bytes = attn_page_bytes(1, hd, dts[t]);
            struct mat qkv = new_mat(DT_F32, ROWS, (HEADS + 2) * hd, 1), normed = copy_mat(qkv),
                       w = new_mat(dts[t], 2, hd, 2), tab = new_mat(DT_F32, 2, 8 * half, 3);
            char *want_page = calloc(1, bytes), *page = calloc(1, bytes), *pages[1];
            struct head_norm norm = { w.p, (char *)w.p + (size_t)w.ld * dtype_size(w.dt), 1e-6f, 0 };
            struct attn_seq seq = { .row = 0, .n_rows = ROWS, .pos = 5, .page = pages };
            struct attn a = {
                .n_heads = HEADS, .n_kv = 1, .head_dim = hd, .dt = dts[t], .n_seq = 1, .seq = &seq
            };
            const float *cs = tab.p, *sn = cs + tab.ld;
            for (int row = 0; row < ROWS; row++)
                for (int h = 0; h < HEADS + 1; h++) {
                    const float *x = (float *)qkv.p + row * qkv.ld + h * hd;
                    float rstd = head_r(x, hd);
                    for (int e = 0; e < hd; e++)
                        set_elem(normed, row, h * hd + e, (x[e] * rstd) * elem(w, h == HEADS, e));
                }
            EACH_DEV(r, d)
            {
                for (int turned = 0; turned < 2; turned++) {
                    struct mat want = new_mat(dts[t], ROWS, HEADS * hd, 0),
                               got = new_mat(dts[t], ROWS, HEADS * hd, 0);
                    pages[0] = want_page;
                    KERNEL(d, rope_store, &a, want, normed, NULL, turned ? cs : NULL, turned ? sn : NULL);
                    pages[0] = page;
                    KERNEL(d, rope_store, &a, got, qkv, &norm, turned ? cs : NULL, turned ? sn : NULL);
                    CHECK_MAT(got, want, d, hd);
                    CHECK_SAME(page, want_page, bytes);
                    for (int row = 0; row < ROWS && !turned; row++)
                        CHECK_BITS(elem(got, row, hd),
                                   round_to(dts[t], elem(normed, row, hd))); /* nothing turned: as it was */
                    FREE(want, got);
                }
            }
            free(want_page);
            free(page);
            FREE(qkv, normed, w, tab);
        }
    rig_close(r);
}

TEST(turned_back_in_place_is_turned_back_and_rounded)
{
    struct rig *r = rig_open();
    enum { ROWS = 5, HD = 34 };
    struct mat dq = new_mat(DT_F32, ROWS, 3 * HD, 1), dk = new_mat(DT_F32, ROWS, HD, 2),
               dv = new_mat(DT_F32, ROWS, HD, 3), tab = new_mat(DT_F32, 2, 8 * HD, 4);
    struct attn_seq seq = { .row = 0, .n_rows = ROWS, .pos = 2 };
    struct attn a = { .n_heads = 3, .n_kv = 1, .head_dim = HD, .dt = DT_BF16, .n_seq = 1, .seq = &seq };
    const float *cs = tab.p, *sn = cs + tab.ld;
    EACH_DEV(r, d)
    {
        struct mat once = new_mat(DT_BF16, ROWS, 5 * HD, 0), twice = new_mat(DT_BF16, ROWS, 5 * HD, 0),
                   q = copy_mat(dq), k = copy_mat(dk);
        KERNEL(d, rope_dx, &a, once, dq, dk, dv, cs, sn);
        KERNEL(d, rope_back, &a, q, k, cs, sn);
        KERNEL(d, rope_dx, &a, twice, q, k, dv, NULL, NULL);
        CHECK_MAT(twice, once, d, HD);
        FREE(once, twice, q, k);
    }
    FREE(dq, dk, dv, tab);
    rig_close(r);
}

/* Component i of n, turned with its neighbour. */
static float turned_pair(const float *x, int i, const float *c, const float *s, int back)
{
    float sn = back ? -s[i / 2] : s[i / 2], a = x[i] * c[i / 2], b = x[i ^ 1] * sn;
    return i % 2 ? a + b : a - b;
}

enum { LATENT_ROWS = 70, LATENT_HEADS = 3, LATENT_POS = 60 };
/* One sequence of LATENT_ROWS rows behind LATENT_POS others. */
struct latent_case {
    int v, r, nope;
    struct mat absorbed, raw, c, k_raw, dq, dk, dv, tab;
    struct mat q, page, d_raw, dc,
        dk_raw; /* by the definition; page: [v + r][3 * 64], all pages side by side */
};

static void latent_definition(struct latent_case *x)
{
    const int d = x->v + x->r, wide = x->nope + x->r;
    for (int i = 0; i < d; i++)
        for (int64_t p = 0; p < x->page.cols; p++)
            set_elem(x->page, i, p, 0);
    for (int row = 0; row < LATENT_ROWS; row++) {
        const int p = LATENT_POS + row;
        const float *cs = (float *)x->tab.p + p * x->r / 2, *sn = cs + x->tab.ld;
        const float *raw = (float *)x->raw.p + row * x->raw.ld, *kr = (float *)x->k_raw.p + row * x->k_raw.ld;
        const float *dq = (float *)x->dq.p + row * x->dq.ld, *dk = (float *)x->dk.p + row * x->dk.ld;
        for (int h = 0; h < LATENT_HEADS; h++) {
            for (int i = 0; i < x->v; i++)
                set_elem(x->q, row, h * d + i, elem(x->absorbed, row, h * x->v + i));
            for (int i = 0; i < x->r; i++) {
                set_elem(x->q, row, h * d + x->v + i, turned_pair(raw + h * wide + x->nope, i, cs, sn, 0));
                set_elem(x->d_raw, row, h * wide + x->nope + i, turned_pair(dq + h * d + x->v, i, cs, sn, 1));
            }
        }
        for (int i = 0; i < x->v; i++) {
            set_elem(x->page, i, p, elem(x->c, row, i));
            set_elem(x->dc, row, i, dk[i] + elem(x->dv, row, i));
        }
        for (int i = 0; i < x->r; i++) {
            set_elem(x->page, x->v + i, p, turned_pair(kr, i, cs, sn, 0));
            set_elem(x->dk_raw, row, i, turned_pair(dk + x->v, i, cs, sn, 1));
        }
    }
}

static void latent_check(struct rig *r, const struct latent_case *x, enum dtype dt)
{
    enum { PAGES = 3 };
    const int d = x->v + x->r;
    const float *cs = x->tab.p, *sn = cs + x->tab.ld;
    const size_t bytes = (size_t)(d * ATTN_PAGE) * dtype_size(dt);
    char *page[PAGES];
    struct attn_seq seq = { .row = 0, .n_rows = LATENT_ROWS, .pos = LATENT_POS, .page = page };
    struct attn a = {
        .n_heads = LATENT_HEADS, .n_kv = 1, .head_dim = d, .v_dim = x->v, .dt = dt, .n_seq = 1, .seq = &seq
    };
    for (int i = 0; i < PAGES; i++)
        page[i] = malloc(bytes);
    EACH_DEV(r, dev)
    {
        struct mat q = new_mat(dt, LATENT_ROWS, LATENT_HEADS * d, 0), d_raw = copy_mat(x->d_raw),
                   dc = new_mat(DT_F32, LATENT_ROWS, x->v, 0), dk_raw = new_mat(dt, LATENT_ROWS, x->r, 0);
        struct mat got = new_mat(dt, d, PAGES * ATTN_PAGE, 0);
        for (int i = 0; i < PAGES; i++)
            memset(page[i], 0, bytes);
        KERNEL(dev, latent_q, &a, q, x->absorbed, x->raw, cs, sn);
        KERNEL(dev, latent_k, &a, x->c, x->k_raw, cs, sn);
        KERNEL(dev, latent_q_dx, &a, d_raw, x->dq, cs, sn);
        KERNEL(dev, latent_k_dx, &a, dc, dk_raw, x->dk, x->dv, cs, sn);
        for (int i = 0; i < d; i++)
            for (int p = 0; p < PAGES * ATTN_PAGE; p++) {
                struct mat one = mat_of(page[p / ATTN_PAGE], dt, d, ATTN_PAGE, ATTN_PAGE);
                set_elem(got, i, p, elem(one, i, p % ATTN_PAGE));
            }
        CHECK_MAT(q, x->q, dev, d);
        CHECK_MAT(got, x->page, dev, d);
        CHECK_MAT(d_raw, x->d_raw, dev, d);
        CHECK_MAT(dc, x->dc, dev, d);
        CHECK_MAT(dk_raw, x->dk_raw, dev, d);
        FREE(q, d_raw, dc, dk_raw, got);
    }
    for (int i = 0; i < PAGES; i++)
        free(page[i]);
}

TEST(latent_q_and_k_and_their_gradients_are_their_definition)
{
    static const int dims[][3] = { { 32, 8, 16 }, { 20, 6, 9 }, { 70, 66, 5 } };
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(i, dims) {
            int v = dims[i][0], rot = dims[i][1], nope = dims[i][2], H = LATENT_HEADS, R = LATENT_ROWS;
            struct latent_case x = { .v = v, .r = rot, .nope = nope };
            x.absorbed = new_mat(DT_F32, R, H * v, 1), x.raw = new_mat(DT_F32, R, H * (nope + rot), 2);
            x.c = new_mat(dts[t], R, v, 3), x.k_raw = new_mat(DT_F32, R, rot, 4);
            x.dq = new_mat(DT_F32, R, H * (v + rot), 5), x.dk = new_mat(DT_F32, R, v + rot, 6);
            x.dv = new_mat(DT_F32, R, v, 7), x.tab = new_mat(DT_F32, 2, 140 * rot, 8);
            x.q = new_mat(dts[t], R, H * (v + rot), 0), x.page = new_mat(dts[t], v + rot, 192, 0);
            x.d_raw = new_mat(dts[t], R, H * (nope + rot), 9), x.dc = new_mat(DT_F32, R, v, 0);
            x.dk_raw = new_mat(dts[t], R, rot, 0);
            latent_definition(&x);
            latent_check(r, &x, dts[t]);
            FREE(x.absorbed, x.raw, x.c, x.k_raw, x.dq, x.dk, x.dv, x.tab, x.q, x.page, x.d_raw, x.dc,
                 x.dk_raw);
        }
    rig_close(r);
}

TEST(head_norm_dx_is_its_definition)
{
    static const int dims[] = { 1, 32, 34, 130 };
    struct rig *r = rig_open();
    EACH(i, dims)
        EACH(t, dts) {
            enum { ROWS = 4, HEADS = 3 };
            int hd = dims[i];
            struct mat x = new_mat(DT_F32, ROWS, HEADS * hd, 1), dy = new_mat(DT_F32, ROWS, HEADS * hd, 2),
                       w = new_mat(dts[t], 1, hd, 3), want = copy_mat(dy);
            for (int row = 0; row < ROWS; row++)
                for (int h = 0; h < HEADS; h++) {
                    const float *xs = (float *)x.p + row * x.ld + h * hd;
                    float rstd = head_r(xs, hd), g[130], xr[130];
                    for (int e = 0; e < hd; e++) {
                        g[e] = elem(dy, row, h * hd + e) * elem(w, 0, e);
                        xr[e] = xs[e] * rstd;
                    }
                    float c = by_lanes(hd, g, xr) / (float)hd;
                    for (int e = 0; e < hd; e++) {
                        float u = xr[e] * c;
                        set_elem(want, row, h * hd + e, rstd * (g[e] - u));
                    }
                }
            EACH_DEV(r, d)
            {
                struct mat got = copy_mat(dy);
                KERNEL(d, head_norm_dx, got, x, HEADS, w.p, dts[t], 0, 1e-6f);
                CHECK_MAT(got, want, d, hd);
                FREE(got);
            }
            FREE(x, dy, w, want);
        }
    rig_close(r);
}

TEST(head_norm_dw_is_a_tree_over_heads_of_trees_of_chains)
{
    static const struct {
        int heads, hd, grain, T;
    } cases[] = { { 1, 8, 8, 16 }, { 8, 33, 8, 13 }, { 12, 64, 4, 9 }, { 6, 300, 2, 8 }, { 5, 16, 8, 3 } };
    struct rig *r = rig_open();
    EACH(i, cases) {
        int hd = cases[i].hd, H = cases[i].heads, T = cases[i].T, grain = cases[i].grain,
            block = (T + grain - 1) / grain;
        struct mat x = new_mat(DT_F32, 2 * T, H * hd, 1), dy = new_mat(DT_F32, 2 * T, H * hd, 2),
                   want = new_mat(DT_F32, 2, hd, 0);
        for (int s = 0; s < 2; s++)
            for (int e = 0; e < hd; e++) {
                float head[16];
                for (int h = 0; h < H; h++) {
                    float part[8] = { 0 };
                    for (int t = 0; t < T; t++) {
                        const float *xs = (float *)x.p + (s * T + t) * x.ld + h * hd;
                        part[t / block] = fmaf(elem(dy, s * T + t, h * hd + e), xs[e] * head_r(xs, hd),
                                               part[t / block]);
                    }
                    head[h] = by_tree(grain, part, 1);
                }
                set_elem(want, s, e, by_tree(H, head, 1));
            }
        EACH_DEV(r, d)
        {
            struct mat got = new_mat(DT_F32, 2, hd, 0);
            KERNEL(d, head_norm_dw, got.p, got.ld, dy, x, H, 1e-6f, seqs_of(2, T, grain));
            CHECK_MAT(got, want, d, hd);
            FREE(got);
        }
        FREE(x, dy, want);
    }
    rig_close(r);
}
