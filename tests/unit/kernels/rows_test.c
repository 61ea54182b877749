/* rows_test.c - every row op against a plain definition, written again here from the contract; bits, for
 * every CPU class of this machine on one and two threads. Sizes are odd on purpose. */
#include "tests/unit/kernels/rows_rig.h"

TEST(the_data_shows_the_order_of_a_sum)
{
    float x[701], lanes, tree, chain = 0;
    for (int i = 0; i < 701; i++)
        chain += x[i] = value(1, i);
    lanes = by_lanes(701, x, NULL);
    tree = by_tree(64, x, 11);
    CHECK(fn_bits(lanes) != fn_bits(chain));
    CHECK(fn_bits(tree) != fn_bits(by_lanes(64, x, NULL)));
}

/* ---- RMS norm ---- */
static float norm_r(const float *x, int64_t n, float eps)
{
    return 1.0f / sqrtf(by_lanes(n, x, x) / (float)n + eps);
}

TEST(rms_norm_is_its_definition)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            /* the root hides a last bit of the sum in most rows, not in all */
            enum { ROWS = 24 };
            int64_t n = sizes[s], rows = ROWS;
            struct mat x = new_mat(dts[t], rows, n, 1), w = new_mat(dts[t], 1, n, 2),
                       want = new_mat(dts[t], rows, n, 0);
            float row[701], rstd[ROWS], got_rstd[ROWS];
            for (int64_t i = 0; i < rows; i++) {
                for (int64_t j = 0; j < n; j++)
                    row[j] = elem(x, i, j);
                rstd[i] = norm_r(row, n, 1e-5f);
                for (int64_t j = 0; j < n; j++)
                    set_elem(want, i, j, (row[j] * rstd[i]) * elem(w, 0, j));
            }
            EACH_DEV(r, d)
            {
                struct mat y = new_mat(dts[t], rows, n, 0);
                KERNEL(d, rms_norm, y, got_rstd, x, w.p, 0, 1e-5f);
                CHECK_MAT(y, want, d, n);
                CHECK_SAME(got_rstd, rstd, sizeof rstd);
                struct mat one = y, from = x; /* a row alone */
                one.rows = from.rows = 1;
                one.p = (char *)y.p + 2 * y.ld * (int64_t)dtype_size(y.dt);
                from.p = (char *)x.p + 2 * x.ld * (int64_t)dtype_size(x.dt);
                memset(one.p, 0, (size_t)n * dtype_size(y.dt));
                KERNEL(d, rms_norm, one, NULL, from, w.p, 0, 1e-5f);
                CHECK_MAT(y, want, d, n);
                FREE(y);
            }
            FREE(x, w, want);
        }
    rig_close(r);
}

static void norm_dx_case(struct rig *r, enum dtype dt, enum dtype dy_dt, int64_t n)
{
    int64_t rows = 4;
    struct mat x = new_mat(dt, rows, n, 1), w = new_mat(dt, 1, n, 2), dy = new_mat(dy_dt, rows, n, 3);
    struct mat res = new_mat(dt, rows, n, 4);
    struct mat want = copy_mat(res);
    float g[701], xr[701], rstd[4];
    for (int64_t i = 0; i < rows; i++) {
        rstd[i] = 0.3f + 0.1f * (float)i;
        for (int64_t j = 0; j < n; j++) {
            g[j] = round_to(dt, elem(dy, i, j)) * elem(w, 0, j);
            xr[j] = elem(x, i, j) * rstd[i];
        }
        float c = by_lanes(n, g, xr) / (float)n;
        for (int64_t j = 0; j < n; j++) {
            float t = xr[j] * c, dx = rstd[i] * (g[j] - t);
            set_elem(want, i, j, elem(res, i, j) + dx);
        }
    }
    EACH_DEV(r, d)
    {
        struct mat got = copy_mat(res);
        KERNEL(d, rms_norm_dx, got, dy, x, w.p, 0, rstd);
        CHECK_MAT(got, want, d, n);
        FREE(got);
    }
    FREE(x, w, dy, res, want);
}

TEST(rms_norm_dx_is_its_definition)
{
    struct rig *r = rig_open();
    EACH(s, sizes) {
        norm_dx_case(r, DT_F32, DT_F32, sizes[s]);
        norm_dx_case(r, DT_BF16, DT_F32, sizes[s]);
        norm_dx_case(r, DT_BF16, DT_BF16, sizes[s]);
    }
    rig_close(r);
}

static void norm_dw_case(struct rig *r, const struct dw_case *c, enum dtype dt, enum dtype dy_dt)
{
    int64_t rows = c->leaves * c->seq_len, n = c->n, block = (c->seq_len + c->grain - 1) / c->grain;
    struct mat x = new_mat(dt, rows, n, 1), dy = new_mat(dy_dt, rows, n, 2);
    float *rstd = malloc(sizeof(float) * (size_t)rows), *want = malloc(sizeof(float) * (size_t)n);
    for (int64_t t = 0; t < rows; t++)
        rstd[t] = 0.5f + 0.01f * (float)t;
    for (int64_t j = 0; j < n; j++) {
        float leaf[16];
        for (int s = 0; s < c->leaves; s++) {
            float part[8] = { 0 };
            for (int g = 0; g < c->grain; g++) {
                part[g] = 0;
                for (int64_t t = g * block; t < (g + 1) * block && t < c->seq_len; t++) {
                    int64_t row = s * c->seq_len + t;
                    part[g] = fmaf(round_to(dt, elem(dy, row, j)), elem(x, row, j) * rstd[row], part[g]);
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
            xs.p = (char *)x.p + l.acc.next * c->seq_len * x.ld * (int64_t)dtype_size(dt);
            dys.p = (char *)dy.p + l.acc.next * c->seq_len * dy.ld * (int64_t)dtype_size(dy_dt);
            xs.rows = dys.rows = c->per_call * c->seq_len;
            KERNEL(d, rms_norm_dw, &l.acc, dys, xs, rstd + l.acc.next * c->seq_len,
                   seqs_of(c->per_call, c->seq_len, c->grain));
        }
        if (memcmp(l.acc.level[0], want, l.bytes))
            test_fail(__FILE__, __LINE__, "%s: %d leaves, %d a call, grain %d, n %d: not the definition",
                      d->isa, c->leaves, c->per_call, c->grain, (int)n);
        levels_close(&l);
    }
    free(rstd);
    free(want);
    FREE(x, dy);
}

TEST(rms_norm_dw_is_a_tree_of_trees_of_chains)
{
    struct rig *r = rig_open();
    EACH(i, dw_cases) {
        norm_dw_case(r, &dw_cases[i], DT_F32, DT_F32);
        norm_dw_case(r, &dw_cases[i], DT_BF16, i % 2 ? DT_BF16 : DT_F32);
    }
    rig_close(r);
}

/* ---- embedding ---- */
TEST(embed_copies_rows_that_are_here_and_gives_minus_zero_for_others)
{
    struct rig *r = rig_open();
    int32_t ids[6] = { 10, 13, 9, 14, 11, 12 };
    EACH(t, dts)
        EACH(o, dts)
            EACH(s, sizes) {
                int64_t n = sizes[s];
                struct mat table = new_mat(dts[t], 4, n, 5), want = new_mat(dts[o], 6, n, 0);
                for (int i = 0; i < 6; i++)
                    for (int64_t j = 0; j < n; j++)
                        set_elem(want, i, j,
                                 ids[i] >= 10 && ids[i] < 14 ? elem(table, ids[i] - 10, j) : -0.0f);
                EACH_DEV(r, d)
                {
                    struct mat got = new_mat(dts[o], 6, n, 0);
                    KERNEL(d, embed, got, table, 10, ids);
                    CHECK_MAT(got, want, d, n);
                    FREE(got);
                }
                FREE(table, want);
            }
    rig_close(r);
}

static void embed_dw_case(struct rig *r, const struct dw_case *c, enum dtype dt, int no_memory)
{
    enum { ROWS = 7, FIRST = 3 };
    int64_t tokens = c->leaves * c->seq_len, n = c->n, ld = n + 2;
    struct mat dx = new_mat(dt, tokens, n, 6);
    int32_t *ids = malloc(sizeof *ids * (size_t)tokens);
    float *want = calloc((size_t)(ROWS * ld), sizeof *want);
    for (int64_t t = 0; t < tokens; t++)
        ids[t] = (int32_t)(mix((uint64_t)t + 77) % 9 +
                           (t % 3 ? 2 : 4)); /* some below, some above; row 0 is rare */
    for (int row = 0; row < ROWS; row++)
        for (int64_t j = 0; j < n; j++) {
            float leaf[16] = { 0 };
            for (int64_t t = 0; t < tokens; t++)
                if (ids[t] == FIRST + row)
                    leaf[t / c->seq_len] += elem(dx, t, j);
            want[row * ld + j] = by_tree(c->leaves, leaf, 1);
        }
    EACH_DEV(r, d)
    {
        struct levels l = levels_open(c->leaves, c->per_call, (size_t)(ROWS * ld));
        for (; l.acc.next < c->leaves; l.acc.next += c->per_call) {
            struct mat part = dx;
            part.p = (char *)dx.p + l.acc.next * c->seq_len * dx.ld * (int64_t)dtype_size(dt);
            part.rows = c->per_call * c->seq_len;
            r->mem.fail_after = no_memory;
            const int32_t *from = ids + l.acc.next * c->seq_len;
            KERNEL(d, embed_dw, &l.acc, ld, FIRST, ROWS, part, from, seqs_of(c->per_call, c->seq_len, 0));
            r->mem.fail_after = 0;
        }
        for (int row = 0; row < ROWS; row++)
            if (memcmp(l.acc.level[0] + row * ld, want + row * ld, sizeof(float) * (size_t)n))
                test_fail(__FILE__, __LINE__, "%s: row %d, %d leaves, %d a call, n %d: not the definition",
                          d->isa, row, c->leaves, c->per_call, (int)n);
        levels_close(&l);
    }
    free(ids);
    free(want);
    FREE(dx);
}

TEST(embed_dw_adds_tokens_in_position_order_then_the_tree_over_sequences)
{
    struct rig *r = rig_open();
    EACH(i, dw_cases)
        EACH(t, dts)
            embed_dw_case(r, &dw_cases[i], dts[t], 0);
    /* more tokens of one row than a batch of its list */
    struct dw_case many = { 2, 2, 1, 400, 5 };
    embed_dw_case(r, &many, DT_F32, 0);
    rig_close(r);
}

TEST(embed_dw_without_memory_for_its_index_gives_the_same)
{
    struct rig *r = rig_open();
    embed_dw_case(r, &dw_cases[4], DT_F32, 1);
    rig_close(r);
}

/* ---- rotary positions ---- */
static float turned(const float *x, int i, int half, const float *c, const float *s, int back)
{
    int k = i % half;
    float sn = back ? -s[k] : s[k], a = x[i] * c[k], b = x[i < half ? i + half : i - half] * sn;
    return i < half ? a - b : a + b;
}

struct rope_case {
    int n_heads, n_kv, head_dim, n_rows[3];
    int64_t pos[3];
};
static const struct rope_case rope_cases[] = {
    { 4, 2, 8, { 1, 5, 0 }, { 0, 62, 3 } },
    { 3, 3, 64, { 70, 1, 130 }, { 0, 64, 1 } },
    { 2, 1, 134, { 2, 3, 1 }, { 63, 127, 200 } },
};

static void rope_store_case(struct rig *r, const struct rope_case *c, enum dtype dt)
{
    int hd = c->head_dim, half = hd / 2, width = (c->n_heads + 2 * c->n_kv) * hd;
    int rows = c->n_rows[0] + c->n_rows[1] + c->n_rows[2];
    size_t off = 256, bytes = off + attn_page_bytes(c->n_kv, hd, dt);
    struct mat qkv = new_mat(DT_F32, rows, width, 8), wq = new_mat(dt, rows, c->n_heads * hd, 0);
    struct mat tab = new_mat(DT_F32, 2, 400 * half, 9);
    const float *cs = tab.p, *sn = cs + tab.ld;
    char *want[3][6] = { { NULL } }, *got[3][6] = { { NULL } };
    struct attn_seq seq[3];
    struct attn a = { .n_heads = c->n_heads,
                      .n_kv = c->n_kv,
                      .head_dim = hd,
                      .dt = dt,
                      .page_off = off,
                      .n_seq = 3,
                      .seq = seq };
    for (int s = 0, row = 0; s < 3; row += c->n_rows[s++]) {
        for (int p = 0; p < 6; p++) {
            want[s][p] = calloc(1, bytes);
            got[s][p] = calloc(1, bytes);
        }
        seq[s] = (struct attn_seq){ .row = row, .n_rows = c->n_rows[s], .pos = c->pos[s], .page = got[s] };
        for (int i = 0; i < c->n_rows[s]; i++) {
            int64_t p = c->pos[s] + i, slot = p % 64;
            const float *x = (float *)qkv.p + (row + i) * qkv.ld, *ct = cs + p * half, *st = sn + p * half;
            for (int h = 0; h < c->n_heads; h++)
                for (int e = 0; e < hd; e++)
                    set_elem(wq, row + i, h * hd + e, turned(x + h * hd, e, half, ct, st, 0));
            for (int h = 0; h < c->n_kv; h++) {
                const float *k = x + (c->n_heads + h) * hd, *v = k + c->n_kv * hd;
                struct mat km = { want[s][p / 64] + off + (size_t)(h * 2 * 64 * hd) * dtype_size(dt), hd, 64,
                                  64, dt },
                           vm = km;
                vm.p = (char *)km.p + (size_t)(64 * hd) * dtype_size(dt);
                vm.ld = hd;
                for (int e = 0; e < hd; e++) {
                    set_elem(km, e, slot, turned(k, e, half, ct, st, 0));
                    set_elem(vm, slot, e, v[e]);
                }
            }
        }
    }
    EACH_DEV(r, d)
    {
        struct mat q = new_mat(dt, rows, c->n_heads * hd, 0);
        KERNEL(d, rope_store, &a, q, qkv, NULL, cs, sn);
        CHECK_MAT(q, wq, d, hd);
        for (int i = 0; i < 18; i++) {
            CHECK_SAME(got[i / 6][i % 6], want[i / 6][i % 6], bytes);
            memset(got[i / 6][i % 6], 0, bytes);
        }
        FREE(q);
    }
    for (int i = 0; i < 18; i++) {
        free(got[i / 6][i % 6]);
        free(want[i / 6][i % 6]);
    }
    FREE(qkv, wq, tab);
}

static void rope_dx_case(struct rig *r, const struct rope_case *c, enum dtype dt)
{
    int hd = c->head_dim, half = hd / 2, nq = c->n_heads, nk = c->n_kv;
    int rows = c->n_rows[0] + c->n_rows[1] + c->n_rows[2];
    struct mat dq = new_mat(DT_F32, rows, nq * hd, 1), dk = new_mat(DT_F32, rows, nk * hd, 2);
    struct mat dv = new_mat(DT_F32, rows, nk * hd, 3);
    struct mat want = new_mat(dt, rows, (nq + 2 * nk) * hd, 0), tab = new_mat(DT_F32, 2, 400 * half, 9);
    const float *cs = tab.p, *sn = cs + tab.ld;
    struct attn_seq seq[3];
    struct attn a = { .n_heads = nq, .n_kv = nk, .head_dim = hd, .dt = dt, .n_seq = 3, .seq = seq };
    for (int s = 0, row = 0; s < 3; s++) {
        seq[s] = (struct attn_seq){ .row = row, .n_rows = c->n_rows[s], .pos = c->pos[s] };
        for (int i = 0; i < c->n_rows[s]; i++, row++)
            for (int h = 0; h < nq + 2 * nk; h++)
                for (int e = 0; e < hd; e++) {
                    int64_t p = (c->pos[s] + i) * half;
                    const float *x = h < nq ? (float *)dq.p + row * dq.ld + h * hd
                                            : (float *)dk.p + row * dk.ld + (h - nq) * hd;
                    float y = h < nq + nk ? turned(x, e, half, cs + p, sn + p, 1)
                                          : elem(dv, row, (h - nq - nk) * hd + e);
                    set_elem(want, row, h * hd + e, y);
                }
    }
    EACH_DEV(r, d)
    {
        struct mat got = new_mat(dt, rows, want.cols, 0);
        KERNEL(d, rope_dx, &a, got, dq, dk, dv, cs, sn);
        CHECK_MAT(got, want, d, hd);
        FREE(got);
    }
    FREE(dq, dk, dv, want, tab);
}

TEST(rope_turns_queries_and_keys_and_puts_keys_and_values_into_their_pages)
{
    struct rig *r = rig_open();
    EACH(i, rope_cases)
        EACH(t, dts)
            rope_store_case(r, &rope_cases[i], dts[t]);
    rig_close(r);
}

TEST(rope_dx_turns_back)
{
    struct rig *r = rig_open();
    EACH(i, rope_cases)
        EACH(t, dts)
            rope_dx_case(r, &rope_cases[i], dts[t]);
    rig_close(r);
}

/* ---- activations, additions, conversions ---- */
TEST(swiglu_and_its_gradient_are_their_definitions)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            enum dtype dt = dts[t];
            int64_t n = sizes[s], rows = 3;
            struct mat gu = new_mat(DT_F32, rows, 2 * n, 1), da = new_mat(DT_F32, rows, n, 2);
            struct mat want = new_mat(dt, rows, n, 0), want_dx = new_mat(dt, rows, 2 * n, 0);
            set_elem(gu, 0, 0, 100.0f);
            set_elem(gu, 1, 0, -100.0f);
            for (int64_t i = 0; i < rows * n; i++) {
                int64_t row = i / n, j = i % n;
                float g = elem(gu, row, j), u = elem(gu, row, n + j), a = round_to(dt, elem(da, row, j));
                float e = 1.0f + fn_exp(-g), sig = 1.0f / e, slope = sig * (1.0f + g * (1.0f - sig));
                set_elem(want, row, j, (g / e) * u);
                set_elem(want_dx, row, j, (a * u) * slope);
                set_elem(want_dx, row, n + j, a * (g / e));
            }
            EACH_DEV(r, d)
            {
                struct mat act = new_mat(dt, rows, n, 0), dgu = new_mat(dt, rows, 2 * n, 0);
                KERNEL(d, swiglu, act, gu);
                KERNEL(d, swiglu_dx, dgu, gu, da);
                CHECK_MAT(act, want, d, n);
                CHECK_MAT(dgu, want_dx, d, n);
                if (dt == DT_F32) { /* in place */
                    struct mat same = copy_mat(gu);
                    KERNEL(d, swiglu_dx, same, same, da);
                    for (int64_t i = 0; i < rows; i++)
                        CHECK_SAME((float *)same.p + i * same.ld, (float *)want_dx.p + i * want_dx.ld,
                                   8 * (size_t)n);
                    FREE(same);
                }
                FREE(act, dgu);
            }
            FREE(gu, da, want, want_dx);
        }
    rig_close(r);
}

TEST(add_rounded_rounds_the_addend_then_the_sum)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            struct mat x = new_mat(dts[t], 3, sizes[s], 1), o = new_mat(DT_F32, 3, sizes[s], 2),
                       want = copy_mat(x);
            for (int i = 0; i < 3; i++)
                for (int64_t j = 0; j < sizes[s]; j++)
                    set_elem(want, i, j, elem(x, i, j) + round_to(dts[t], elem(o, i, j)));
            EACH_DEV(r, d)
            {
                struct mat got = copy_mat(x);
                KERNEL(d, add_rounded, got, o);
                CHECK_MAT(got, want, d, sizes[s]);
                FREE(got);
            }
            FREE(x, o, want);
        }
    rig_close(r);
}

TEST(conversions_give_the_bits_of_one_element)
{
    enum { N = 70001 };
    struct rig *r = rig_open();
    float *x = malloc(N * 4), *w = malloc(N * 4);
    uint16_t *h = malloc(N * 2);
    for (int i = 0; i < N; i++)
        x[i] = fn_float((uint32_t)mix((uint64_t)i)); /* all kinds, NaN and denormals too */
    EACH_DEV(r, d)
    {
        KERNEL(d, round_to, h, DT_BF16, x, N);
        KERNEL(d, widen, w, h, DT_BF16, N);
        int bad = 0;
        for (int i = 0; i < N; i++)
            bad += h[i] != fn_to_bf16(x[i]) || fn_bits(w[i]) != (uint32_t)h[i] << 16;
        KERNEL(d, widen, w, h, DT_F16, N);
        for (int i = 0; i < N; i++)
            bad += fn_bits(w[i]) != fn_bits(fn_from_fp16(h[i]));
        CHECK_INT(bad, 0);
        KERNEL(d, round_to, w, DT_F32, x, N);
        CHECK_SAME(w, x, N * 4);
        memset(w, 0, N * 4);
        KERNEL(d, widen, w, x, DT_F32, N);
        CHECK_SAME(w, x, N * 4);
    }
    free(x);
    free(w);
    free(h);
    rig_close(r);
}

/* ---- cross entropy ---- */
struct ce_case {
    int64_t vocab;
    int grain;
};
static const struct ce_case ce_cases[] = { { 1, 1 },   { 31, 8 },  { 64, 1 }, { 256, 8 },
                                           { 701, 8 }, { 701, 3 }, { 9, 8 },  { 1000, 4 } };

static void ce_case(struct rig *r, const struct ce_case *c)
{
    enum { ROWS = 6 };
    int64_t n = c->vocab, block = (n + c->grain - 1) / c->grain;
    struct mat l = new_mat(DT_F32, ROWS, n, 3);
    struct leaves leaves = leaves_of(n, c->grain, 0, c->grain);
    int32_t target[ROWS] = { 0, (int32_t)(n - 1), -1, (int32_t)(n / 2), (int32_t)n, (int32_t)(n / 3) };
    const float scale[ROWS] = { 0.0625f, -0.3f, 1, 0, 2.5f, -0.0f };
    float max[ROWS], sum[ROWS], pick[ROWS], lp[ROWS], p[1000];
    for (int64_t j = 0; j < n; j++)
        set_elem(l, 5, j, 3 * value(4, j) - 50); /* far from 0: exp would underflow without the maximum */
    set_elem(l, 2, n - 1, 60);
    set_elem(l, 2, n / 2, 60); /* two that are the largest */
    for (int i = 0; i < ROWS; i++) {
        max[i] = -INFINITY;
        for (int64_t j = 0; j < n; j++)
            max[i] = elem(l, i, j) > max[i] ? elem(l, i, j) : max[i];
        float part[8] = { 0 };
        for (int g = 0; g < c->grain; g++) {
            int64_t k = 0;
            for (int64_t j = g * block; j < (g + 1) * block && j < n; j++)
                p[k++] = fn_exp(elem(l, i, j) - max[i]);
            part[g] = by_lanes(k, p, NULL);
        }
        sum[i] = by_tree(c->grain, part, 1);
        pick[i] = target[i] >= 0 && target[i] < n ? elem(l, i, target[i]) : -0.0f;
        lp[i] = (pick[i] - max[i]) - fn_log(sum[i]);
    }
    EACH_DEV(r, d)
    {
        float gm[ROWS], gs[ROWS], gp[ROWS], gl[ROWS];
        KERNEL(d, ce_max, gm, l);
        KERNEL(d, ce_sum, gs, l, &leaves, gm);
        KERNEL(d, ce_pick, gp, l, target, 0);
        KERNEL(d, ce_logprob, gl, gp, gm, gs, ROWS);
        int32_t lowest[ROWS];
        KERNEL(d, ce_first, lowest, l, gm);
        for (int i = 0; i < ROWS; i++) {
            int32_t want = 0;
            while (want < n && elem(l, i, want) != gm[i])
                want++;
            CHECK_INT(lowest[i], want);
            gm[i] += 1;
        }
        KERNEL(d, ce_first, lowest, l, gm);
        for (int i = 0; i < ROWS; i++)
            CHECK_INT(lowest[i], -1);
        memcpy(gm, max, sizeof max);
        CHECK_SAME(gm, max, sizeof max);
        CHECK_SAME(gs, sum, sizeof sum);
        CHECK_SAME(gp, pick, sizeof pick);
        CHECK_SAME(gl, lp, sizeof lp);
        for (int64_t first = 0; first <= 5; first += 5)
            EACH(t, dts) {
                struct mat want = new_mat(dts[t], ROWS, n, 0), got = new_mat(dts[t], ROWS, n, 0);
                for (int64_t i = 0; i < ROWS * n; i++) {
                    int64_t row = i / n, j = i % n;
                    float q = fn_exp(elem(l, row, j) - max[row]) / sum[row];
                    set_elem(want, row, j,
                             target[row] < 0 || scale[row] == 0
                                 ? 0.0f
                                 : (q - (float)(target[row] == first + j)) * scale[row]);
                }
                KERNEL(d, ce_dx, got, l, target, first, max, sum, scale);
                CHECK_MAT(got, want, d, n);
                if (dts[t] == DT_F32) {
                    struct mat in = copy_mat(l); /* in place; gaps are the input's then */
                    KERNEL(d, ce_dx, in, in, target, first, max, sum, scale);
                    for (int i = 0; i < ROWS; i++)
                        CHECK_SAME((float *)in.p + i * in.ld, (float *)want.p + i * want.ld, 4 * (size_t)n);
                    FREE(in);
                }
                FREE(want, got);
            }
    }
    FREE(l);
}

TEST(cross_entropy_is_its_definition)
{
    struct rig *r = rig_open();
    EACH(i, ce_cases)
        ce_case(r, &ce_cases[i]);
    rig_close(r);
}

/* tp 2 and 4: ranks with their columns, max and tree over them: the bits of one rank. The last ranks of 9
 * columns are empty. */
TEST(cross_entropy_of_ranks_is_that_of_one)
{
    struct rig *r = rig_open();
    struct dev *d = r->dev[r->n - 1];
    static const int64_t vocab[] = { 701, 256, 9 };
    EACH(v, vocab)
        for (int tp = 2; tp <= 8; tp *= 2) {
            struct mat l = new_mat(DT_F32, 1, vocab[v], 5);
            struct leaves all = leaves_of(vocab[v], 8, 0, 8);
            float max, sum, most = -INFINITY, part[8] = { 0 }, m;
            int32_t t = 7;
            float pick, pick_sum = -0.0f;
            KERNEL(d, ce_max, &max, l);
            KERNEL(d, ce_sum, &sum, l, &all, &max);
            for (int k = 0; k < tp; k++) {
                int64_t a = block_begin(vocab[v], 8, k * 8 / tp),
                        b = block_begin(vocab[v], 8, (k + 1) * 8 / tp);
                struct mat mine = mat_cols(l, a, b - a);
                struct leaves own = leaves_of(vocab[v], 8, k * 8 / tp, 8 / tp);
                KERNEL(d, ce_max, &m, mine);
                most = m > most ? m : most;
                KERNEL(d, ce_sum, &part[k], mine, &own, &max);
                KERNEL(d, ce_pick, &pick, mine, &t, a);
                pick_sum += pick;
            }
            CHECK_BITS(most, max);
            CHECK_BITS(by_tree(tp, part, 1), sum);
            CHECK_BITS(pick_sum, elem(l, 0, 7));
            FREE(l);
        }
    rig_close(r);
}

TEST(maximum_of_nothing_is_minus_infinity_and_of_zeros_plus_zero)
{
    struct rig *r = rig_open();
    EACH_DEV(r, d)
    {
        float x[3] = { -0.0f, -0.0f, -0.0f }, m, s;
        struct leaves none = { 1, { 0 } };
        KERNEL(d, ce_max, &m, mat_of(x, DT_F32, 1, 0, 3));
        CHECK_BITS(m, -INFINITY);
        KERNEL(d, ce_max, &m, mat_of(x, DT_F32, 1, 3, 3));
        CHECK_BITS(m, 0.0f);
        KERNEL(d, ce_sum, &s, mat_of(x, DT_F32, 1, 0, 3), &none, &m);
        CHECK_BITS(s, 0.0f);
        x[1] = NAN;
        none.end[0] = 3;
        KERNEL(d, ce_sum, &s, mat_of(x, DT_F32, 1, 3, 3), &none, &m);
        CHECK(isnan(s)); /* a NaN is not lost */
    }
    rig_close(r);
}

/* ---- flat ops ---- */
TEST(adamw_is_its_definition_and_near_the_formula_in_double)
{
    enum { N = 20003 };
    struct rig *r = rig_open();
    struct adamw h = { .lr = 1e-3f,
                       .eps = 1e-8f,
                       .weight_decay = 0.1f,
                       .beta1 = 0.9,
                       .beta2 = 0.999,
                       .bias1 = 0.271f,
                       .bias2 = 0.0547f,
                       .clip = 0.7f };
    float *buf = malloc(sizeof(float) * N * 7), *w = buf, *m = w + N, *v = m + N, *g = v + N;
    float *ww = g + N, *wm = ww + N, *wv = wm + N;
    uint16_t *w16 = malloc(N * 2);
    double worst = 0;
    for (int i = 0; i < N; i++) {
        float g1 = (g[i] = value(4, i)) * 0.7f, w0 = value(1, i), m0 = value(2, i), v0 = fabsf(value(3, i)),
              decay = 1e-3f * 0.1f;
        float w1 = w0 - decay * w0;
        float a = 0.9f * m0, b = 0.1f * g1, c = 0.999f * v0, e = 0.001f * g1;
        wm[i] = a + b;
        float e2 = e * g1;
        wv[i] = c + e2;
        float den = sqrtf(wv[i]) / 0.0547f + 1e-8f, st = 1e-3f / 0.271f, q = wm[i] / den;
        ww[i] = w1 - st * q;
        double gd = (double)g[i] * 0.7, md = 0.9 * m0 + 0.1 * gd, vd = 0.999 * v0 + 0.001 * gd * gd;
        double truth = w0 * (1 - 1e-4) - 1e-3 / 0.271 * md / (sqrt(vd) / 0.0547 + 1e-8);
        double miss = fabs((double)ww[i] - truth);
        worst = miss > worst ? miss : worst;
    }
    CHECK(worst < 2e-6);
    EACH_DEV(r, d)
    {
        for (int i = 0; i < N; i++) {
            w[i] = value(1, i);
            m[i] = value(2, i);
            v[i] = fabsf(value(3, i));
        }
        KERNEL(d, adamw, w, i_d % 3 ? w16 : NULL, m, v, g, N, &h);
        CHECK_SAME(w, ww, N * 4);
        CHECK_SAME(m, wm, N * 4);
        CHECK_SAME(v, wv, N * 4);
        for (int i = 0; i_d % 3 && i < N; i++)
            if (w16[i] != fn_to_bf16(ww[i]))
                test_fail(__FILE__, __LINE__, "w16[%d] is not the rounded weight", i);
    }
    free(buf);
    free(w16);
    rig_close(r);
}

TEST(tree_add_is_the_tree_over_its_inputs)
{
    enum { N = 33001 };
    struct rig *r = rig_open();
    float *buf = malloc(sizeof(float) * N * 13), *in[12];
    static const int64_t lens[] = { 0, 1, 255, 700, N };
    for (int n_in = 0; n_in <= 12; n_in++)
        EACH(s, lens)
            EACH_DEV(r, d)
            {
                float *out = buf + 12 * N, want[12];
                int64_t n = lens[s];
                if (n == N && n_in % 4)
                    continue;
                for (int k = 0; k < 12; k++) {
                    in[k] = buf + k * N;
                    for (int64_t i = 0; i < n; i++)
                        in[k][i] = value((uint64_t)k + 20, i);
                }
                out = n_in % 3 == 2 ? in[n_in / 2] : out; /* out may be an input */
                KERNEL(d, tree_add, out, (const float *const *)in, n_in, n);
                for (int64_t i = 0; i < n; i++) {
                    for (int k = 0; k < n_in; k++)
                        want[k] = value((uint64_t)k + 20, i);
                    if (fn_bits(out[i]) != fn_bits(by_tree(n_in, want, 1))) {
                        test_fail(__FILE__, __LINE__, "%s: %d inputs, element %d of %d: not the tree", d->isa,
                                  n_in, (int)i, (int)n);
                        break;
                    }
                }
            }
    free(buf);
    rig_close(r);
}
