/* experts_test.c - products of experts, and the row ops around them: the bits of definitions by dense
 * products of one row, of one leaf, and by plain loops; for every CPU class on one and two threads. */
#include <stdlib.h>

#include "tests/unit/kernels/rows_rig.h"

enum { E_MOST = 6, LEAVES_MOST = 8 };

/* Which rows an expert gets: rows[e][s] of leaf s. */
struct deal {
    int n_experts, n_leaves;
    int rows[E_MOST][LEAVES_MOST];
};
static const struct deal deals[] = {
    { 5, 4, { { 3, 0, 1, 4 }, { 0, 0, 0, 0 }, { 1, 1, 1, 1 }, { 0, 17, 0, 0 }, { 0, 0, 5, 0 } } },
    { 1, 1, { { 9 } } },
    { 3, 6, { { 0, 0, 2, 0, 1, 0 }, { 130, 1, 0, 0, 40, 7 }, { 0, 0, 0, 0, 0, 3 } } },
    { 4, 8, { { 0 }, { 2, 3, 5, 7, 1, 0, 0, 9 }, { 0, 0, 0, 1, 0, 0, 0, 0 }, { 1, 0, 0, 0, 1, 0, 0, 0 } } },
    { 6, 3, { { 0 }, { 0, 1, 0 }, { 20, 0, 20 }, { 0, 0, 1 }, { 1, 0, 0 }, { 0, 2, 1 } } },
    { 3, 2, { { 0 }, { 0 }, { 0 } } },
};

/* The rows of leaves [first, first + count), grouped: begin, leaf ends, and for each row its number in the
 * whole batch (which a list maps to a row of the operand). */
struct grouped {
    struct expert_rows g;
    int64_t begin[E_MOST + 1], leaf_end[E_MOST * LEAVES_MOST];
    int32_t list[1024];
    int64_t n;
};
static int32_t operand_row(int e, int s, int i) { return (e * 13 + s * 5 + i * 7) % 97; }

static void group(struct grouped *to, const struct deal *d, int first, int count)
{
    *to = (struct grouped){ .n = 0 };
    for (int e = 0; e < d->n_experts; e++) {
        to->begin[e] = to->n;
        for (int s = 0; s < count; s++) {
            for (int i = 0; i < d->rows[e][first + s]; i++)
                to->list[to->n++] = operand_row(e, first + s, i);
            to->leaf_end[e * count + s] = to->n;
        }
    }
    to->begin[d->n_experts] = to->n;
    to->g = (struct expert_rows){ d->n_experts, to->begin, count, to->leaf_end };
}

enum { OPERAND_ROWS = 97 };

/* The operand: by a list from 97 rows, or its rows in grouped order in *own. */
static struct listed operand(const struct grouped *g, struct mat m, int by_list, struct mat *own)
{
    *own = mat_of(NULL, m.dt, 0, 0, 0);
    if (by_list)
        return listed_of(m, g->list);
    *own = new_mat(m.dt, g->n, m.cols, 0);
    for (int64_t i = 0; i < g->n; i++)
        for (int64_t c = 0; c < m.cols; c++)
            set_elem(*own, i, c, elem(m, g->list[i], c));
    return listed_of(*own, NULL);
}

static void linear_case(struct rig *r, const struct deal *d, enum dtype dt, int by_list)
{
    enum { N = 70, K = 45 };
    struct grouped g;
    group(&g, d, 0, d->n_leaves);
    struct mat x = new_mat(dt, OPERAND_ROWS, K, 1), own, want = new_mat(DT_F32, g.n, N, 0);
    const struct listed in = operand(&g, x, by_list, &own);
    const struct leaves l = leaves_of(K, 8, 0, 8);
    EACH_DEV(r, dev)
    {
        struct panels w[E_MOST], rows[E_MOST];
        struct mat got = new_mat(DT_F32, g.n, N, 0), natural[E_MOST];
        for (int e = 0; e < d->n_experts; e++) {
            struct mat m = new_mat(dt, N, K, 20 + (uint64_t)e);
            natural[e] = m;
            rows[e] = (struct panels){ .p = m.p,
                                       .n = N,
                                       .k = K,
                                       .dt = dt,
                                       .leaves = l,
                                       .kind = PANEL_ROWS,
                                       .stride = m.ld * (int64_t)dtype_size(dt) };
            w[e] = (struct panels){ NULL, N, K, dt, l };
            w[e].p = dev_alloc(dev, MEM_WORK, panels_bytes(N, K, dt, &l));
            KERNEL(dev, linear_pack, &w[e], 1, &m);
            for (int64_t i = g.begin[e]; i < g.begin[e + 1]; i++)
                KERNEL(dev, linear, mat_rows(want, i, 1), mat_rows(x, g.list[i], 1), &w[e]);
        }
        KERNEL(dev, linear_experts, got, in, &g.g, w);
        CHECK_MAT(got, want, dev, g.n);
        FREE(got);
        got = new_mat(DT_F32, g.n, N, 0);
        if (!dev->memory && strcmp(dev->isa, "simt")) { /* weights in natural order */
            KERNEL(dev, linear_experts, got, in, &g.g, rows);
            CHECK_MAT(got, want, dev, g.n);
        }
        for (int e = 0; e < d->n_experts; e++) {
            dev_free(dev, w[e].p);
            FREE(natural[e]);
        }
        FREE(got);
    }
    FREE(x, own, want);
}

TEST(linear_experts_has_the_bits_of_a_row_alone)
{
    struct rig *r = rig_open();
    EACH(i, deals)
        EACH(t, dts)
            for (int by_list = 0; by_list < 2; by_list++)
                linear_case(r, &deals[i], dts[t], by_list);
    rig_close(r);
}

static void dx_case(struct rig *r, const struct deal *d, enum dtype dt, int n_w, int by_list)
{
    enum { N = 33, K = 40 };
    struct grouped g;
    group(&g, d, 0, d->n_leaves);
    struct mat dy[2], own[2], w[E_MOST * 2], want = new_mat(DT_F32, g.n, K, 0);
    struct listed in[2];
    const struct leaves l[2] = { leaves_of(N, 4, 0, 4), leaves_of(N, 4, 0, 4) };
    for (int s = 0; s < n_w; s++) {
        dy[s] = new_mat(dt, OPERAND_ROWS, N, 3 + (uint64_t)s);
        in[s] = operand(&g, dy[s], by_list, &own[s]);
    }
    for (int i = 0; i < d->n_experts * n_w; i++)
        w[i] = new_mat(dt, N, K, 40 + (uint64_t)i);
    for (int e = 0; e < d->n_experts; e++)
        for (int64_t i = g.begin[e]; i < g.begin[e + 1]; i++) {
            struct mat row[2];
            for (int s = 0; s < n_w; s++)
                row[s] = mat_rows(dy[s], g.list[i], 1);
            KERNEL(r->dev[0], linear_dx, mat_rows(want, i, 1), n_w, row, w + e * n_w, l);
        }
    EACH_DEV(r, dev)
    {
        struct mat got = new_mat(DT_F32, g.n, K, 0);
        KERNEL(dev, linear_dx_experts, got, n_w, in, w, l, &g.g);
        CHECK_MAT(got, want, dev, g.n);
        FREE(got);
    }
    for (int s = 0; s < n_w; s++)
        FREE(dy[s], own[s]);
    for (int i = 0; i < d->n_experts * n_w; i++)
        FREE(w[i]);
    FREE(want);
}

TEST(linear_dx_experts_has_the_bits_of_a_row_alone)
{
    struct rig *r = rig_open();
    EACH(i, deals)
        EACH(t, dts)
            for (int n_w = 1; n_w <= 2; n_w++)
                dx_case(r, &deals[i], dts[t], n_w, n_w - 1);
    rig_close(r);
}

/* ---- gradients: leaves without rows are left out of the tree ---- */
/* A node of the tree, or nothing. */
struct node {
    int is_there;
    float sum;
};
static struct node join(struct node a, struct node b)
{
    if (!a.is_there || !b.is_there)
        return a.is_there ? a : b;
    return (struct node){ 1, a.sum + b.sum };
}
static struct node node_of(int64_t n, const struct node *leaf)
{
    if (n % 2 == 0)
        return join(node_of(n / 2, leaf), node_of(n / 2, leaf + n / 2));
    struct node s = leaf[0];
    for (int64_t i = 1; i < n; i++)
        s = join(s, leaf[i]);
    return s;
}

enum { DW_N = 19, DW_K = 41 };

/* Leaf s of expert e alone, by the dense product of one leaf. */
static void define_leaf(struct dev *dev, const struct deal *d, int e, int s, struct mat dy, struct mat x,
                        struct mat out)
{
    const int n = d->rows[e][s];
    struct mat a = new_mat(dy.dt, n, DW_N, 0), b = new_mat(x.dt, n, DW_K, 0);
    struct tree_acc acc = { .n = 1, .level = { out.p } };
    for (int i = 0; i < n; i++) {
        for (int64_t c = 0; c < DW_N; c++)
            set_elem(a, i, c, elem(dy, operand_row(e, s, i), c));
        for (int64_t c = 0; c < DW_K; c++)
            set_elem(b, i, c, elem(x, operand_row(e, s, i), c));
    }
    KERNEL(dev, linear_dw, &acc, out.ld, a, b, 1, n);
    FREE(a, b);
}

static struct mat define_dw(struct dev *dev, const struct deal *d, int e, struct mat dy, struct mat x)
{
    struct mat leaf[LEAVES_MOST], want = new_mat(DT_F32, DW_N, DW_K, 0);
    for (int s = 0; s < d->n_leaves; s++) {
        leaf[s] = new_mat(DT_F32, DW_N, DW_K, 0);
        if (d->rows[e][s] > 0)
            define_leaf(dev, d, e, s, dy, x, leaf[s]);
    }
    for (int64_t i = 0; i < DW_N; i++)
        for (int64_t c = 0; c < DW_K; c++) {
            struct node n[LEAVES_MOST];
            for (int s = 0; s < d->n_leaves; s++)
                n[s] = (struct node){ d->rows[e][s] > 0, elem(leaf[s], i, c) };
            const struct node sum = node_of(d->n_leaves, n);
            set_elem(want, i, c, sum.is_there ? sum.sum : -0.0f);
        }
    for (int s = 0; s < d->n_leaves; s++)
        FREE(leaf[s]);
    return want;
}

/* In calls of at most per_call leaves. */
static void dw_calls(struct dev *dev, const struct deal *d, struct mat dy, struct mat x, int per_call,
                     const struct mat *want)
{
    struct levels l[E_MOST];
    struct tree_acc acc[E_MOST];
    const int64_t ld = want[0].ld;
    const int n_experts = d->n_experts;
    for (int e = 0; e < n_experts; e++)
        l[e] = levels_open(d->n_leaves, per_call, (size_t)(DW_N * ld));
    for (int first = 0; first < d->n_leaves; first += per_call) {
        const int count = per_call < d->n_leaves - first ? per_call : d->n_leaves - first;
        struct grouped g;
        struct mat own[2];
        group(&g, d, first, count);
        const struct listed in[2] = { operand(&g, dy, first % 2, &own[0]), operand(&g, x, 1, &own[1]) };
        for (int e = 0; e < n_experts; e++) {
            acc[e] = l[e].acc;
            acc[e].next = first;
        }
        KERNEL(dev, linear_dw_experts, acc, ld, in[0], in[1], &g.g);
        FREE(own[0], own[1]);
    }
    for (int e = 0; e < n_experts; e++) {
        const struct mat got = mat_of(l[e].acc.level[0], DT_F32, DW_N, DW_K, ld);
        if (memcmp(got.p, want[e].p, mat_bytes(got)))
            test_fail(__FILE__, __LINE__, "%s, %d threads, %s: expert %d of %d, %d leaves in calls of %d",
                      dev->isa, pool_threads(dev->pool), dtype_name(x.dt), e, n_experts, d->n_leaves,
                      per_call);
        levels_close(&l[e]);
    }
}

static void dw_case(struct rig *r, const struct deal *d, enum dtype dt)
{
    struct mat dy = new_mat(dt, OPERAND_ROWS, DW_N, 7), x = new_mat(dt, OPERAND_ROWS, DW_K, 8), want[E_MOST];
    for (int e = 0; e < d->n_experts; e++)
        want[e] = define_dw(r->dev[0], d, e, dy, x);
    EACH_DEV(r, dev)
    for (int per_call = 1; per_call <= d->n_leaves; per_call++)
        dw_calls(dev, d, dy, x, per_call, want);
    for (int e = 0; e < d->n_experts; e++)
        FREE(want[e]);
    FREE(dy, x);
}

TEST(linear_dw_experts_leaves_out_what_has_no_rows)
{
    struct rig *r = rig_open();
    EACH(i, deals)
        EACH(t, dts)
            dw_case(r, &deals[i], dts[t]);
    rig_close(r);
}

TEST(linear_dw_experts_keeps_minus_zero_beside_an_empty_leaf)
{
    struct rig *r = rig_open();
    /* the product is below the smallest number, and negative */
    float tiny = 0x1p-100f, minus = -0x1p-100f;
    const struct mat x = mat_of(&tiny, DT_F32, 1, 1, 1), dy = mat_of(&minus, DT_F32, 1, 1, 1);
    const int64_t begin[2] = { 0, 1 }, ends[2][2] = { { 0, 1 }, { 1, 1 } };
    EACH_DEV(r, dev)
    for (int i = 0; i < 2; i++) {
        float y[2] = { 7, 7 };
        const struct tree_acc acc = { .n = 2, .level = { y, y + 1 } };
        const struct expert_rows g = { 1, begin, 2, ends[i] };
        KERNEL(dev, linear_dw_experts, &acc, 1, listed_of(dy, NULL), listed_of(x, NULL), &g);
        CHECK_BITS(y[0], -0.0f);
    }
    rig_close(r);
}

TEST(linear_dw_experts_leaves_an_unwanted_expert_alone)
{
    struct rig *r = rig_open();
    float one = 1, y = 7;
    const struct mat m = mat_of(&one, DT_F32, 1, 1, 1);
    const int64_t begin[3] = { 0, 0, 1 }, ends[2] = { 0, 1 };
    const struct expert_rows g = { 2, begin, 1, ends };
    EACH_DEV(r, dev)
    {
        const struct tree_acc acc[2] = { { .n = 0 }, { .n = 1, .level = { &y } } };
        y = 7;
        KERNEL(dev, linear_dw_experts, acc, 1, listed_of(m, NULL), listed_of(m, NULL), &g);
        CHECK_BITS(y, 1.0f);
    }
    rig_close(r);
}

/* ---- row ops ---- */
enum { TOKENS = 9, K_MOST = 4 };

static void combine_case(struct rig *r, enum dtype dt, int64_t n, int k, int shared_is)
{
    int32_t place[TOKENS * K_MOST];
    float weight[TOKENS * K_MOST], gate[TOKENS];
    struct mat y = new_mat(dt, TOKENS * k, n, 1), shared = new_mat(dt, TOKENS, n, 2),
               want = new_mat(DT_F32, TOKENS, n, 0), back = new_mat(DT_F32, TOKENS, n, 0);
    for (int i = 0; i < TOKENS * k; i++) {
        place[i] = (i * 7 + 3) % (TOKENS * k);
        weight[i] = value(3, i);
    }
    for (int t = 0; t < TOKENS; t++)
        gate[t] = value(4, t);
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t c = 0; c < n; c++) {
            float acc = 0, sum = 0;
            for (int64_t j = t * k; j < (t + 1) * k; j++) {
                acc = fmaf(weight[j], elem(y, place[j], c), acc);
                sum += elem(y, place[j], c);
            }
            if (shared_is == 1)
                acc += elem(shared, t, c);
            if (shared_is == 2)
                acc = fmaf(fn_sigmoid(gate[t]), elem(shared, t, c), acc);
            set_elem(want, t, c, acc);
            set_elem(back, t, c, sum);
        }
    EACH_DEV(r, d)
    {
        struct mat got = new_mat(DT_F32, TOKENS, n, 0), dh = new_mat(DT_F32, TOKENS, n, 0),
                   none = mat_of(NULL, dt, 0, 0, 0);
        KERNEL(d, combine, got, y, place, weight, k, shared_is ? shared : none, shared_is == 2 ? gate : NULL);
        KERNEL(d, combine_dx, dh, y, place, k);
        CHECK_MAT(got, want, d, n);
        CHECK_MAT(dh, back, d, n);
        FREE(got, dh);
    }
    FREE(y, shared, want, back);
}

TEST(combine_adds_the_chosen_by_id_then_the_shared_expert)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes)
            for (int k = 1; k <= K_MOST; k++)
                combine_case(r, dts[t], sizes[s], k, k % 3);
    rig_close(r);
}

static void dot_case(struct rig *r, enum dtype dt, int64_t n, int grain)
{
    struct mat dact = new_mat(DT_F32, TOKENS, n, 1), act = new_mat(dt, TOKENS, n, 2);
    const struct leaves l = leaves_of(n, grain, 0, grain);
    float want[TOKENS], a[701], b[701];
    for (int64_t t = 0; t < TOKENS; t++) {
        float part[GRAIN_MAX];
        for (int g = 0; g < grain; g++) {
            const int64_t from = g ? l.end[g - 1] : 0, count = l.end[g] - from;
            for (int64_t c = 0; c < count; c++)
                a[c] = elem(dact, t, from + c), b[c] = elem(act, t, from + c);
            part[g] = by_lanes(count, a, b);
        }
        want[t] = by_tree(grain, part, 1);
    }
    EACH_DEV(r, d)
    {
        float got[TOKENS];
        KERNEL(d, expert_dot, got, dact, act, &l);
        CHECK_SAME(got, want, sizeof want);
    }
    FREE(dact, act);
}

TEST(expert_dot_is_a_tree_over_blocks_of_lanes)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            dot_case(r, dts[t], sizes[s], 8);
            dot_case(r, dts[t], sizes[s], 6);
        }
    rig_close(r);
}

static void list_case(struct rig *r, enum dtype dt, int64_t n, int has_list, int has_weight)
{
    int32_t list[TOKENS], w_list[TOKENS];
    float w[4 * TOKENS];
    struct mat x = new_mat(dt, 2 * TOKENS, n, 1), y = new_mat(DT_F32, TOKENS, n, 2),
               want = new_mat(dt, TOKENS, n, 0), sum = copy_mat(y), scaled = copy_mat(y);
    for (int i = 0; i < 4 * TOKENS; i++)
        w[i] = value(9, i);
    for (int i = 0; i < TOKENS; i++) {
        list[i] = (i * 5 + 1) % (2 * TOKENS);
        w_list[i] = (i * 11 + 2) % (4 * TOKENS);
    }
    for (int i = 0; i < TOKENS; i++)
        for (int64_t c = 0; c < n; c++) {
            const float v = elem(x, has_list ? list[i] : i, c), f = w[has_list ? w_list[i] : i];
            set_elem(want, i, c, has_weight ? f * v : v);
            set_elem(scaled, i, c, f * elem(y, i, c));
            set_elem(sum, i, c, f * elem(y, i, c) + elem(y, i, c));
        }
    EACH_DEV(r, d)
    {
        struct mat got = new_mat(dt, TOKENS, n, 0), in_place = copy_mat(y);
        KERNEL(d, gather_scaled, got, listed_of(x, has_list ? list : NULL), has_weight ? w : NULL,
               has_list ? w_list : NULL);
        CHECK_MAT(got, want, d, n);
        KERNEL(d, scale_rows, in_place, w, has_list ? w_list : NULL);
        CHECK_MAT(in_place, scaled, d, n);
        KERNEL(d, add_to, in_place, y);
        CHECK_MAT(in_place, sum, d, n);
        FREE(got, in_place);
    }
    FREE(x, y, want, sum, scaled);
}

TEST(rows_by_lists_are_copied_and_scaled)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes)
            for (int i = 0; i < 4; i++)
                list_case(r, dts[t], sizes[s], i % 2, i / 2);
    rig_close(r);
}

TEST(gate_dx_is_its_definition)
{
    struct rig *r = rig_open();
    EACH(t, dts)
        EACH(s, sizes) {
            const int64_t n = sizes[s];
            struct mat dout = new_mat(dts[t], TOKENS, n, 1), shared = new_mat(dts[t], TOKENS, n, 2),
                       dgate = new_mat(dts[t], TOKENS, 1, 0), dshared = new_mat(dts[t], TOKENS, n, 0);
            float gate[TOKENS], a[701], b[701];
            for (int64_t i = 0; i < TOKENS; i++) {
                gate[i] = value(3, i);
                const float g = fn_sigmoid(gate[i]);
                for (int64_t c = 0; c < n; c++) {
                    a[c] = elem(dout, i, c), b[c] = elem(shared, i, c);
                    set_elem(dshared, i, c, g * a[c]);
                }
                set_elem(dgate, i, 0, g * (1.0f - g) * by_lanes(n, a, b));
            }
            EACH_DEV(r, d)
            {
                struct mat dg = new_mat(dts[t], TOKENS, 1, 0), ds = new_mat(dts[t], TOKENS, n, 0);
                KERNEL(d, gate_dx, dg, ds, dout, shared, gate);
                CHECK_MAT(dg, dgate, d, n);
                CHECK_MAT(ds, dshared, d, n);
                FREE(dg, ds);
            }
            FREE(dout, shared, dgate, dshared);
        }
    rig_close(r);
}

/* ---- memory ---- */
/* More than what the self-test at start has left as scratch. */
enum { BIG_ROWS = 64, BIG_N = 64, BIG_K = 1024 };

static int all_nan(const float *x, int64_t n)
{
    while (n > 0 && isnan(x[n - 1]))
        n--;
    return n == 0;
}

/* Op 0, 1 or 2 with its nth allocation failing. 0: all allocations succeeded. */
static int run_short_of_memory(int op, int nth)
{
    static float x[BIG_ROWS * BIG_K], w[2 * BIG_N * BIG_K], out[2 * BIG_N * BIG_K];
    const int64_t begin[3] = { 0, 20, BIG_ROWS }, ends[2] = { 20, BIG_ROWS };
    const struct expert_rows g = { 2, begin, 1, ends };
    const struct leaves l = leaves_of(BIG_K, 2, 0, 2), ln = leaves_of(BIG_N, 2, 0, 2);
    const struct mat xm = mat_of(x, DT_F32, BIG_ROWS, BIG_K, BIG_K),
                     dym = mat_of(x, DT_F32, BIG_ROWS, BIG_N, BIG_N);
    const struct listed dy = listed_of(dym, NULL);
    struct mem mem = { 0 };
    struct dev *d;
    struct err e = { 0 };
    if (dev_open(&d, "cpu", 2, &mem, &e) < 0) {
        test_fail(__FILE__, __LINE__, "%s", e.text);
        return 0;
    }
    struct panels p[2];
    struct mat wm[2];
    struct tree_acc acc[2];
    for (int i = 0; i < 2; i++) {
        wm[i] = mat_of(w + i * BIG_N * BIG_K, DT_F32, BIG_N, BIG_K, BIG_K);
        p[i] = (struct panels){ wm[i].p, BIG_N, BIG_K, DT_F32, l };
        acc[i] = (struct tree_acc){ .n = 1, .level = { out + i * BIG_N * BIG_K } };
    }
    memset(out, 0, sizeof out);
    mem.fail_after = nth;
    if (op == 0)
        KERNEL(d, linear_experts, mat_of(out, DT_F32, BIG_ROWS, BIG_N, BIG_N), listed_of(xm, NULL), &g, p);
    else if (op == 1)
        KERNEL(d, linear_dx_experts, mat_of(out, DT_F32, BIG_ROWS, BIG_K, BIG_K), 1, &dy, wm, &ln, &g);
    else
        KERNEL(d, linear_dw_experts, acc, BIG_K, dy, listed_of(xm, NULL), &g);
    mem.fail_after = 0;
    const int failed = dev_check(d, &e) < 0;
    const int64_t n = op == 0 ? BIG_ROWS * BIG_N : op == 1 ? BIG_ROWS * BIG_K : 2 * BIG_N * BIG_K;
    if (failed && !all_nan(out, n))
        test_fail(__FILE__, __LINE__, "op %d went on without its allocation %d", op, nth);
    dev_close(d);
    return failed;
}

TEST(products_of_experts_without_memory_are_nan)
{
    static const int allocations[3] = { 2, 3, 3 };
    for (int op = 0; op < 3; op++) {
        for (int nth = 1; nth <= allocations[op]; nth++)
            CHECK(run_short_of_memory(op, nth));
        CHECK(!run_short_of_memory(op, allocations[op] + 1));
    }
}
