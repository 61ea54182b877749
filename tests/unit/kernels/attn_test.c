/* attn_test.c - attention equals its definition (attn_definition.h): bits, not tolerances. */
#include "tests/test.h"

#include "tests/unit/kernels/attn_definition.h"

/* ---- calling the kernels ---- */
#define OFF 192 /* this layer does not begin where the page does */
struct pages {
    char *memory;
    char **page;
};
/* Keys [0, n) of w, in pages. */
static struct pages pages_of(const struct world *w, int64_t n)
{
    const int64_t n_pages = (n + 63) / 64, size = (int64_t)dtype_size(w->dt);
    const size_t bytes = attn_page_bytes(w->n_kv, w->d, w->dt) + OFF;
    struct pages p = { calloc((size_t)n_pages, bytes), calloc((size_t)n_pages, sizeof(char *)) };
    for (int64_t b = 0; b < n_pages; b++)
        p.page[b] = p.memory + (size_t)b * bytes;
    for (int64_t j = 0; j < n; j++)
        for (int g = 0; g < w->n_kv; g++)
            for (int64_t x = 0; x < w->d; x++) {
                char *at = p.page[j / 64] + OFF + (int64_t)g * 2 * 64 * w->d * size;
                char *k = at + (x * 64 + j % 64) * size, *v = at + (64 * w->d + j % 64 * w->d + x) * size;
                const float kv[2] = { w->k[(j * w->n_kv + g) * w->d + x],
                                      w->v[(j * w->n_kv + g) * w->d + x] };
                const uint16_t kv16[2] = { fn_to_bf16(kv[0]), fn_to_bf16(kv[1]) };
                memcpy(k, w->dt == DT_F32 ? (const void *)&kv[0] : &kv16[0], (size_t)size);
                memcpy(v, w->dt == DT_F32 ? (const void *)&kv[1] : &kv16[1], (size_t)size);
            }
    return p;
}
static void pages_free(struct pages p) { free(p.memory), free(p.page); }

/* A matrix of dt with extra columns behind its rows; from: fp32 [rows][cols] or NULL. */
static struct mat mat_new(enum dtype dt, int64_t rows, int64_t cols, const float *from)
{
    struct mat m = mat_of(calloc((size_t)(rows * (cols + 5) + 1), dtype_size(dt)), dt, rows, cols, cols + 5);
    for (int64_t r = 0; from && r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            const float x = from[r * cols + c];
            if (dt == DT_F32)
                ((float *)m.p)[r * m.ld + c] = x;
            else
                ((uint16_t *)m.p)[r * m.ld + c] = fn_to_bf16(x);
        }
    return m;
}
static float mat_at(struct mat m, int64_t r, int64_t c)
{
    return m.dt == DT_F32 ? ((float *)m.p)[r * m.ld + c] : fn_from_bf16(((uint16_t *)m.p)[r * m.ld + c]);
}
/* Rows [row, row + rows) of m have the bits of want [rows][cols]. */
static int same_rows(struct mat m, int64_t row, const float *want, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < m.cols; c++) {
            const float x = mat_at(m, row + r, c);
            if (memcmp(&x, &want[r * m.cols + c], 4)) {
                printf("row %lld of %lld, column %lld: %a, not %a\n", (long long)r, (long long)rows,
                       (long long)c, (double)x, (double)want[r * m.cols + c]);
                return 0;
            }
        }
    return 1;
}
/* dt [n]: values of w's dtype. */
static const void *as_stored(const struct world *w, const float *x, int n)
{
    static uint16_t half[64];
    for (int i = 0; x && i < n; i++)
        half[i] = fn_to_bf16(x[i]);
    return w->dt == DT_F32 || !x ? (const void *)x : half;
}
static struct attn attn_of(const struct world *w, int n_seq, const struct attn_seq *seq)
{
    return (struct attn){ .n_heads = heads(w),
                          .n_kv = w->n_kv,
                          .head_dim = w->d,
                          .dt = w->dt,
                          .scale = w->scale,
                          .page_off = OFF,
                          .n_seq = n_seq,
                          .seq = seq,
                          .window = w->window,
                          .softcap = w->softcap,
                          .sink = as_stored(w, w->sink, heads(w)) };
}

static struct dev *dev_new(int threads)
{
    static struct mem mem;
    struct err e;
    struct dev *d = NULL;
    if (dev_open(&d, "cpu", threads, &mem, &e) < 0) {
        printf("%s\n", e.text);
        exit(1);
    }
    return d;
}

struct isa {
    const char *name;
    const struct attn_ops *ops;
};
static int isas(struct isa out[5])
{
    int n = 0;
    out[n++] = (struct isa){ "portable", &attn_portable };
    out[n++] = (struct isa){ "simt", &attn_simt };
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        out[n++] = (struct isa){ "avx2", &attn_avx2 };
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        out[n++] = (struct isa){ "avx512", &attn_avx512 };
    if (__builtin_cpu_supports("avx512bf16"))
        out[n++] = (struct isa){ "avx512bf16", &attn_avx512bf16 };
    return n;
}

/* Rows [pos, pos + n) in one call equal the definition; pages before the window are not there. */
static int forward_same(struct dev *dev, const struct attn_ops *ops, const struct world *w, int64_t pos,
                        int64_t n)
{
    const int64_t cols = heads(w) * w->d;
    struct pages pg = pages_of(w, pos + n);
    struct attn_seq seq = { 0, n, pos, pg.page };
    struct attn a = attn_of(w, 1, &seq);
    for (int64_t b = 0; w->window && (b + 1) * 64 <= pos - w->window + 1; b++)
        pg.page[b] = NULL;
    struct mat q = mat_new(w->dt, n, cols, w->q + pos * cols), out = mat_new(w->dt, n, cols, NULL);
    float *lse = zeros(n * heads(w));
    ops->attn(dev, &a, out, lse, q);
    const int same = same_rows(out, 0, w->out + pos * cols, n) &&
                     !memcmp(lse, w->lse + pos * heads(w), (size_t)(n * heads(w)) * 4);
    pages_free(pg);
    free(q.p), free(out.p), free(lse);
    return same;
}

static int backward_same(struct dev *dev, const struct attn_ops *ops, const struct world *w)
{
    const int64_t cols = heads(w) * w->d, kv = w->n_kv * w->d, T = w->T;
    struct pages pg = pages_of(w, T);
    struct attn_seq seq = { 0, T, 0, pg.page };
    struct attn a = attn_of(w, 1, &seq);
    struct mat q = mat_new(w->dt, T, cols, w->q), out = mat_new(w->dt, T, cols, w->out),
               dout = mat_new(w->dt, T, cols, w->dout);
    struct mat dq = mat_new(DT_F32, T, cols, NULL), dk = mat_new(DT_F32, T, kv, NULL),
               dv = mat_new(DT_F32, T, kv, NULL);
    ops->attn_dx(dev, &a, dq, dk, dv, dout, (struct attn_kept){ out, q, w->lse });
    const int same = same_rows(dq, 0, w->dq, T) & same_rows(dk, 0, w->dk, T) & same_rows(dv, 0, w->dv, T);
    pages_free(pg);
    free(q.p), free(out.p), free(dout.p), free(dq.p), free(dk.p), free(dv.p);
    return same;
}

static void check_case(enum dtype dt, int n_kv, int group, int d, int64_t T, int backward)
{
    struct dev *dev = dev_new(1);
    struct isa isa[5];
    struct world *w = world_of(dt, n_kv, group, d, T);
    ref_forward(w);
    if (backward)
        ref_backward(w);
    for (int i = 0, n = isas(isa); i < n; i++) {
        if (!forward_same(dev, isa[i].ops, w, 0, T))
            test_fail(__FILE__, __LINE__, "forward %s %s: kv %d group %d d %d T %d", isa[i].name,
                      dtype_name(dt), n_kv, group, d, (int)T);
        if (backward && !backward_same(dev, isa[i].ops, w))
            test_fail(__FILE__, __LINE__, "backward %s %s: kv %d group %d d %d T %d", isa[i].name,
                      dtype_name(dt), n_kv, group, d, (int)T);
    }
    world_free(w);
    dev_close(dev);
}

static const int lengths[] = { 1, 5, 63, 64, 65, 130 };
static const int head_dims[] = { 8, 12, 16, 64, 80 };

TEST(fp32_equals_the_definition_for_all_lengths_and_head_dims)
{
    for (int i = 0; i < 5; i++)
        for (int t = 0; t < 6; t++)
            check_case(DT_F32, 1, 2, head_dims[i], lengths[t], 1);
}
TEST(bf16_equals_the_definition_for_all_lengths_and_head_dims)
{
    for (int i = 0; i < 5; i++)
        for (int t = 0; t < 6; t++)
            check_case(DT_BF16, 1, 2, head_dims[i], lengths[t], 1);
}
/* One task's share on a GPU ends at 256 components: the last slice is whole, short, or a single component. */
TEST(heads_of_more_than_256_components_equal_the_definition)
{
    check_case(DT_F32, 1, 2, 257, 65, 1);
    check_case(DT_F32, 1, 1, 576, 65, 1);
    check_case(DT_BF16, 1, 2, 320, 65, 1);
    check_case(DT_BF16, 1, 1, 512, 5, 1);
}
TEST(an_odd_head_dim_ends_with_a_zero_pair_half) { check_case(DT_BF16, 1, 1, 7, 70, 1); }
TEST(groups_of_query_heads_equal_the_definition)
{
    static const int groups[] = { 1, 3, 4, 6, 8 };
    for (int i = 0; i < 5; i++) {
        check_case(DT_F32, 2, groups[i], 16, 70, 1);
        check_case(DT_BF16, 2, groups[i], 8, 70, 1);
    }
}
TEST(segments_of_1024_keys_equal_the_definition)
{
    check_case(DT_F32, 1, 1, 8, 1100, 0);
    check_case(DT_BF16, 1, 2, 8, 1100, 0);
    check_case(DT_F32, 1, 1, 8, 2100, 0);
}
TEST(backward_over_segments_equals_the_definition) { check_case(DT_F32, 1, 1, 8, 1100, 1); }
TEST(head_dims_above_one_tile_equal_the_definition)
{
    check_case(DT_F32, 1, 1, 128, 66, 1);
    check_case(DT_F32, 1, 1, 144, 3, 1);
    check_case(DT_BF16, 1, 1, 256, 66, 1);
}

/* ---- sinks ---- */
static void check_sinks(enum dtype dt, int group, int d, int64_t T, int64_t window)
{
    struct dev *dev[2] = { dev_new(1), dev_new(3) };
    struct isa isa[5];
    struct world *w = world_of(dt, 2, group, d, T);
    w->window = window;
    w->sink = random_values(dt, heads(w), 6);
    ref_forward(w);
    for (int i = 0, n = isas(isa); i < 2 * n; i++) {
        const struct attn_ops *ops = isa[i / 2].ops;
        if (!forward_same(dev[i % 2], ops, w, 0, T) || !forward_same(dev[i % 2], ops, w, T - 1, 1))
            test_fail(__FILE__, __LINE__, "%s %s: group %d d %d T %d window %d", isa[i / 2].name,
                      dtype_name(dt), group, d, (int)T, (int)window);
    }
    world_free(w);
    dev_close(dev[0]);
    dev_close(dev[1]);
}

TEST(a_sink_is_a_last_segment_of_one_key_without_value)
{
    for (int t = 0; t < 6; t++) {
        check_sinks(DT_F32, 1 + t % 3, head_dims[t % 5], lengths[t], 0);
        check_sinks(DT_BF16, 1 + t % 3, head_dims[t % 5], lengths[t], 0);
        check_sinks(DT_F32, 4, 16, lengths[t], 18);
    }
    check_sinks(DT_F32, 2, 8, 1100, 0);
    check_sinks(DT_BF16, 2, 8, 1100, 1030);
}

TEST(backward_with_sinks_equals_the_definition)
{
    struct dev *dev = dev_new(1);
    struct isa isa[5];
    for (int t = 0; t < 2; t++) {
        struct world *w = world_of(t ? DT_BF16 : DT_F32, 2, 3, 12, 70);
        w->sink = random_values(w->dt, heads(w), 6);
        ref_forward(w);
        ref_backward(w);
        for (int i = 0, n = isas(isa); i < n; i++)
            CHECK(backward_same(dev, isa[i].ops, w));
        world_free(w);
    }
    dev_close(dev);
}

TEST(any_chunks_of_the_rows_give_the_same_bits)
{
    static const int cuts[][6] = { { 0, 1, 2, 64, 65, 130 },
                                   { 0, 63, 66, 100, 129, 130 },
                                   { 0, 7, 127, 128, 129, 130 } };
    struct dev *dev = dev_new(1);
    struct isa isa[5];
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        struct world *w = world_of(dt, 2, 3, 16, 130);
        ref_forward(w);
        for (int i = 0, n = isas(isa); i < n; i++)
            for (int c = 0; c < 3; c++)
                for (int part = 0; part < 5; part++)
                    CHECK(forward_same(dev, isa[i].ops, w, cuts[c][part], cuts[c][part + 1] - cuts[c][part]));
        world_free(w);
    }
    dev_close(dev);
}

TEST(one_row_at_a_time_gives_the_same_bits_as_many)
{
    struct dev *dev = dev_new(1);
    struct isa isa[5];
    for (int dt = DT_F32; dt <= DT_BF16; dt++)
        for (int group = 1; group <= 8; group *= 2) {
            struct world *w = world_of(dt, 1, group, group == 2 ? 128 : 64, 70);
            ref_forward(w);
            for (int i = 0, n = isas(isa); i < n; i++)
                for (int64_t p = 0; p < w->T; p++)
                    CHECK(forward_same(dev, isa[i].ops, w, p, 1));
            world_free(w);
        }
    dev_close(dev);
}

TEST(one_row_behind_a_long_past_crosses_segments)
{
    struct dev *dev = dev_new(1);
    struct isa isa[5];
    static const int at[] = { 1022, 1023, 1024, 1087, 1088, 1150 };
    struct world *w = world_of(DT_F32, 1, 2, 8, 1160);
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 6; i++)
            ref_row(w, h, at[i]);
    for (int i = 0, n = isas(isa); i < n; i++)
        for (int p = 0; p < 6; p++)
            CHECK(forward_same(dev, isa[i].ops, w, at[p], 1));
    world_free(w);
    dev_close(dev);
}

/* Sequences of several lengths and positions in one call, their rows not in order of the sequences. */
static void check_batch(struct dev *dev, const struct attn_ops *ops, enum dtype dt)
{
    static const int64_t len[4] = { 70, 5, 130, 64 }, pos[4] = { 69, 0, 100, 0 }, row[4] = { 35, 36, 0, 41 };
    struct world *w[4];
    struct pages pg[4];
    struct attn_seq seq[4];
    int64_t total = 0;
    for (int i = 0; i < 4; i++) {
        w[i] = world_of(dt, 2, 2, 16, len[i]);
        ref_forward(w[i]);
        pg[i] = pages_of(w[i], len[i]);
        seq[i] = (struct attn_seq){ row[i], len[i] - pos[i], pos[i], pg[i].page };
        total += len[i] - pos[i];
    }
    const int64_t cols = heads(w[0]) * w[0]->d;
    struct mat q = mat_new(dt, total + 5, cols, NULL), out = mat_new(dt, total + 5, cols, NULL);
    for (int i = 0; i < 4; i++) {
        struct mat one = mat_new(dt, seq[i].n_rows, cols, w[i]->q + pos[i] * cols);
        memcpy((char *)q.p + (size_t)(row[i] * q.ld) * dtype_size(dt), one.p,
               (size_t)(one.rows * one.ld) * dtype_size(dt));
        free(one.p);
    }
    struct attn a = attn_of(w[0], 4, seq);
    ops->attn(dev, &a, out, NULL, q);
    for (int i = 0; i < 4; i++) {
        CHECK(same_rows(out, row[i], w[i]->out + pos[i] * cols, seq[i].n_rows));
        pages_free(pg[i]);
        world_free(w[i]);
    }
    free(q.p), free(out.p);
}
TEST(a_sequence_has_the_same_bits_alone_and_in_a_batch)
{
    struct isa isa[5];
    for (int threads = 1; threads <= 3; threads++) {
        struct dev *dev = dev_new(threads);
        for (int i = 0, n = isas(isa); i < n; i++) {
            check_batch(dev, isa[i].ops, DT_F32);
            check_batch(dev, isa[i].ops, DT_BF16);
        }
        dev_close(dev);
    }
}

/* ---- sliding windows: the definition runs every block, the kernels leave out those before the window
 * ---- */
static const int windows[] = { 1, 2, 63, 64, 65, 100, 128, 200, 1000 };

/* Whole, in chunks and row by row, and backward. */
static void check_window(struct dev *dev, enum dtype dt, int group, int64_t T, int64_t window, int64_t step,
                         float softcap)
{
    struct isa isa[5];
    struct world *w = world_of(dt, 1, group, 16, T);
    w->window = window;
    w->softcap = softcap;
    /* sums that end as -0: the + 0 of a block that is left out is seen */
    for (int64_t i = 0; i < T * 16; i += 16)
        w->k[i] = in_dtype(dt, -0x1p-149f);
    for (int64_t i = 0; i < T * group * 16; i += 16)
        w->dout[i] = w->q[i] = in_dtype(dt, -0x1p-149f);
    ref_forward(w);
    ref_backward(w);
    for (int i = 0, n = isas(isa); i < n; i++) {
        int same = forward_same(dev, isa[i].ops, w, 0, T) && backward_same(dev, isa[i].ops, w);
        for (int64_t p = 0; p < T; p += step)
            same &= forward_same(dev, isa[i].ops, w, p, p + step < T ? step : T - p);
        for (int64_t p = T - 3; p < T; p++)
            same &= forward_same(dev, isa[i].ops, w, p, 1);
        if (!same)
            test_fail(__FILE__, __LINE__, "%s %s window %d group %d", isa[i].name, dtype_name(dt),
                      (int)window, group);
    }
    world_free(w);
}
TEST(windows_of_any_size_equal_the_definition_whole_in_chunks_and_row_by_row)
{
    struct dev *dev = dev_new(2);
    for (int i = 0; i < 9; i++) {
        check_window(dev, DT_F32, 2, 210, windows[i], 37, 0);
        check_window(dev, DT_BF16, 3, 210, windows[i], 70, 0);
    }
    dev_close(dev);
}
TEST(softcaps_equal_the_definition_whole_in_chunks_and_row_by_row)
{
    struct dev *dev = dev_new(2);
    static const int64_t some[] = { 0, 1, 65 };
    for (int i = 0; i < 3; i++) {
        check_window(dev, DT_F32, 2, 210, some[i], 37, 1.3f);
        check_window(dev, DT_BF16, 3, 210, some[i], 70, 30);
    }
    dev_close(dev);
}
TEST(a_window_leaves_out_whole_segments)
{
    struct dev *dev = dev_new(1);
    struct isa isa[5];
    for (int dt = DT_F32; dt <= DT_BF16; dt++)
        for (int i = 0; i < 2; i++) {
            struct world *w = world_of(dt, 1, 2, 16, 2100);
            w->window = i ? 40 : 1030;
            /* o becomes -0, which merging with nothing would make +0 */
            for (int64_t j = 0; j < w->T; j++)
                w->v[j * 16] = in_dtype(dt, j % 2 ? -0x1p-149f : -0.0f);
            for (int h = 0; h < 2; h++)
                for (int64_t p = 2020; p < 2100; p++)
                    ref_row(w, h, p);
            for (int c = 0, n = isas(isa); c < n; c++)
                CHECK(forward_same(dev, isa[c].ops, w, 2020, 80) & forward_same(dev, isa[c].ops, w, 2063, 1) &
                      forward_same(dev, isa[c].ops, w, 2087, 1) & forward_same(dev, isa[c].ops, w, 2088, 3));
            world_free(w);
        }
    dev_close(dev);
}

/* Documents packed into one row of a batch are sequences of their own: of any length, at any row, in any
 * order. */
static void check_documents(struct dev *dev, const struct attn_ops *ops, enum dtype dt, int64_t window)
{
    static const int64_t len[4] = { 70, 5, 130, 1 }, row[4] = { 5, 75, 81, 80 };
    struct world *w[4];
    struct pages pg[4];
    struct attn_seq seq[4];
    const int64_t total = 213, cols = 4 * 16, kv = 2 * 16;
    struct mat in[3], dq = mat_new(DT_F32, total, cols, NULL), dk = mat_new(DT_F32, total, kv, NULL),
                      dv = mat_new(DT_F32, total, kv, NULL);
    float *lse = zeros(total * 4);
    for (int m = 0; m < 3; m++)
        in[m] = mat_new(dt, total, cols, NULL);
    for (int i = 0; i < 4; i++) {
        w[i] = world_of(dt, 2, 2, 16, len[i]);
        w[i]->window = window;
        ref_forward(w[i]);
        ref_backward(w[i]);
        pg[i] = pages_of(w[i], len[i]);
        seq[i] = (struct attn_seq){ row[i], len[i], 0, pg[i].page };
        memcpy(lse + row[i] * 4, w[i]->lse, (size_t)(len[i] * 4) * sizeof *lse);
        const float *from[3] = { w[i]->q, w[i]->out, w[i]->dout };
        for (int m = 0; m < 3; m++) {
            struct mat one = mat_new(dt, len[i], cols, from[m]);
            memcpy((char *)in[m].p + (size_t)(row[i] * in[m].ld) * dtype_size(dt), one.p,
                   (size_t)(len[i] * one.ld) * dtype_size(dt));
            free(one.p);
        }
    }
    struct attn a = attn_of(w[0], 4, seq);
    ops->attn_dx(dev, &a, dq, dk, dv, in[2], (struct attn_kept){ in[1], in[0], lse });
    for (int i = 0; i < 4; i++) {
        CHECK(same_rows(dq, row[i], w[i]->dq, len[i]) & same_rows(dk, row[i], w[i]->dk, len[i]) &
              same_rows(dv, row[i], w[i]->dv, len[i]));
        pages_free(pg[i]);
        world_free(w[i]);
    }
    for (int m = 0; m < 3; m++)
        free(in[m].p);
    free(dq.p), free(dk.p), free(dv.p), free(lse);
}
TEST(documents_of_any_length_at_any_row_have_their_own_gradients)
{
    struct isa isa[5];
    for (int threads = 1; threads <= 2; threads++) {
        struct dev *dev = dev_new(threads);
        for (int i = 0, n = isas(isa); i < n; i++)
            for (int dt = DT_F32; dt <= DT_BF16; dt++) {
                check_documents(dev, isa[i].ops, dt, 0);
                check_documents(dev, isa[i].ops, dt, 30);
            }
        dev_close(dev);
    }
}

TEST(any_number_of_threads_gives_the_same_bits)
{
    struct isa isa[5];
    struct world *w[2] = { world_of(DT_F32, 3, 2, 16, 150), world_of(DT_BF16, 3, 2, 16, 150) };
    for (int i = 0; i < 2; i++) {
        ref_forward(w[i]);
        ref_backward(w[i]);
    }
    for (int threads = 1; threads <= 4; threads++) {
        struct dev *dev = dev_new(threads);
        for (int i = 0, n = isas(isa); i < n; i++)
            for (int dt = 0; dt < 2; dt++) {
                CHECK(forward_same(dev, isa[i].ops, w[dt], 0, 150));
                CHECK(backward_same(dev, isa[i].ops, w[dt]));
            }
        dev_close(dev);
    }
    world_free(w[0]), world_free(w[1]);
}

/* One kv head of one sequence: its key blocks are tasks that wait for each other. */
TEST(key_blocks_of_one_chain_run_in_any_thread)
{
    struct isa isa[5];
    for (int dt = DT_F32; dt <= DT_BF16; dt++)
        for (int64_t window = 0; window <= 170; window += 170) {
            struct world *w = world_of(dt, 1, 3, 8, 430);
            w->window = window;
            ref_forward(w);
            ref_backward(w);
            for (int threads = 2; threads <= 4; threads++) {
                struct dev *dev = dev_new(threads);
                for (int i = 0, n = isas(isa); i < n; i++)
                    CHECK(backward_same(dev, isa[i].ops, w));
                dev_close(dev);
            }
            world_free(w);
        }
}

/* Values so small that sums leave the normal numbers: bf16 chains flush, fp32 ones do not. */
TEST(tiny_values_are_flushed_in_bf16_chains_and_only_there)
{
    struct dev *dev = dev_new(1);
    struct isa isa[5];
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        struct world *w = world_of(dt, 1, 2, 16, 90);
        const int64_t n = w->T * w->d;
        for (int64_t i = 0; i < n; i++)
            w->v[i] = in_dtype(dt, w->v[i] * 0x1p-124f * (i % 3 ? 1 : 0x1p-3f));
        for (int64_t i = 0; i < 2 * n; i++)
            w->dout[i] = in_dtype(dt, w->dout[i] * (i % 5 ? 0x1p-123f : 1));
        ref_forward(w);
        ref_backward(w);
        for (int i = 0, n_isa = isas(isa); i < n_isa; i++) {
            CHECK(forward_same(dev, isa[i].ops, w, 0, w->T));
            CHECK(backward_same(dev, isa[i].ops, w));
        }
        world_free(w);
    }
    CHECK(1e-39f / 2 != 0); /* the mode is as it was */
    dev_close(dev);
}

/* Two keys: the first one's p is so small that its product is -0, the second's value is -0. The masked keys'
 * +0 then make it +0. */
TEST(masked_keys_of_the_last_block_are_in_the_chain)
{
    struct dev *dev = dev_new(1);
    struct isa isa[5];
    struct world *w = world_of(DT_F32, 1, 1, 8, 2);
    for (int x = 0; x < 8; x++) {
        w->q[x] = w->q[8 + x] = x ? 0 : 1;
        w->k[x] = 0, w->k[8 + x] = x ? 0 : 86 / w->scale;
        w->v[x] = -1e-10f, w->v[8 + x] = -0.0f;
    }
    ref_forward(w);
    CHECK_BITS(w->out[8], 0.0f);
    for (int i = 0, n = isas(isa); i < n; i++)
        CHECK(forward_same(dev, isa[i].ops, w, 0, 2));
    world_free(w);
    dev_close(dev);
}

/* A few rows behind three segments, beside a sequence that is whole: one segment a task, and the merge by
 * whichever ends last. */
static void check_segments(struct dev *dev, const struct attn_ops *ops, const struct world *w,
                           const struct world *other, int64_t n)
{
    const int64_t pos = w->T - n, cols = heads(w) * w->d, total = n + other->T;
    struct pages pg[2] = { pages_of(w, w->T), pages_of(other, other->T) };
    struct attn_seq seq[2] = { { 0, n, pos, pg[0].page }, { n, other->T, 0, pg[1].page } };
    struct attn a = attn_of(w, 2, seq);
    struct mat q = mat_new(w->dt, total, cols, NULL), out = mat_new(w->dt, total, cols, NULL),
               one = mat_new(w->dt, n, cols, w->q + pos * cols);
    memcpy(q.p, one.p, (size_t)(n * one.ld) * dtype_size(w->dt));
    free(one.p);
    one = mat_new(w->dt, other->T, cols, other->q);
    memcpy((char *)q.p + (size_t)(n * q.ld) * dtype_size(w->dt), one.p,
           (size_t)(other->T * one.ld) * dtype_size(w->dt));
    ops->attn(dev, &a, out, NULL, q);
    CHECK(same_rows(out, 0, w->out + pos * cols, n) & same_rows(out, n, other->out, other->T));
    pages_free(pg[0]), pages_free(pg[1]);
    free(q.p), free(out.p), free(one.p);
}
TEST(segments_of_a_few_rows_run_in_any_thread)
{
    struct isa isa[5];
    for (int dt = DT_F32; dt <= DT_BF16; dt++)
        for (int64_t window = 0; window <= 1040; window += 520) {
            struct world *w = world_of(dt, 1, 4, 16, 2120), *other = world_of(dt, 1, 4, 16, 20);
            w->window = other->window = window;
            ref_forward(other);
            for (int h = 0; h < 4; h++)
                for (int64_t p = 2105; p < 2120; p++) /* on both sides of a block's end */
                    ref_row(w, h, p);
            for (int threads = 1; threads <= 3; threads++) {
                struct dev *dev = dev_new(threads);
                for (int i = 0, n = isas(isa); i < n; i++)
                    for (int repeat = 0; repeat < 3; repeat++) {
                        check_segments(dev, isa[i].ops, w, other, 1);
                        check_segments(dev, isa[i].ops, w, other, 15);
                    }
                dev_close(dev);
            }
            world_free(w), world_free(other);
        }
}

/* ---- values that are the beginning of their keys ---- */

/* A world whose values are the first v components of their keys and else 0: attention with values of their
 * own must give the same. */
static struct world *latent_world(enum dtype dt, int group, int d, int v, int64_t T)
{
    struct world *w = world_of(dt, 1, group, d, T);
    for (int64_t i = 0; i < T * d; i++)
        w->v[i] = i % d < v ? w->k[i] : 0;
    for (int64_t i = 0; i < T * group * d; i++)
        w->dout[i] = i % d < v ? w->dout[i] : 0;
    ref_forward(w);
    ref_backward(w);
    return w;
}

/* The first v of every d values. */
static float *first_of(const float *x, int64_t n, int d, int v)
{
    float *y = zeros(n * v);
    for (int64_t i = 0; i < n * v; i++)
        y[i] = x[i / v * d + i % v];
    return y;
}

/* Pages of K alone. */
static struct pages latent_pages(const struct world *w)
{
    struct pages p = pages_of(w, w->T);
    const size_t whole = attn_page_bytes(1, w->d, w->dt) + OFF, keys = (whole - OFF) / 2;
    for (int64_t b = 0; b < (w->T + 63) / 64; b++) /* nothing may look at V */
        memset(p.memory + (size_t)b * whole + OFF + keys, 0xff, keys);
    return p;
}

static int latent_same(struct dev *dev, const struct attn_ops *ops, const struct world *w, int v)
{
    const int64_t rows = w->T, n = rows * heads(w), cols = heads(w) * w->d;
    float *out = first_of(w->out, n, w->d, v), *dout = first_of(w->dout, n, w->d, v),
          *dv = first_of(w->dv, rows, w->d, v), *lse = zeros(n);
    struct pages pg = latent_pages(w);
    struct attn_seq seq = { 0, rows, 0, pg.page };
    struct attn a = attn_of(w, 1, &seq);
    struct mat q = mat_new(w->dt, rows, cols, w->q), o = mat_new(w->dt, rows, heads(w) * v, NULL),
               g = mat_new(w->dt, rows, heads(w) * v, dout);
    struct mat dq = mat_new(DT_F32, rows, cols, NULL), dk = mat_new(DT_F32, rows, w->d, NULL),
               d_v = mat_new(DT_F32, rows, v, NULL);
    a.v_dim = v;
    ops->attn(dev, &a, o, lse, q);
    int same = same_rows(o, 0, out, rows) && !memcmp(lse, w->lse, (size_t)n * 4);
    ops->attn_dx(dev, &a, dq, dk, d_v, g, (struct attn_kept){ o, q, lse });
    same = same && same_rows(dq, 0, w->dq, rows) && same_rows(dk, 0, w->dk, rows) &&
           same_rows(d_v, 0, dv, rows);
    pages_free(pg);
    free(q.p), free(o.p), free(g.p), free(dq.p), free(dk.p), free(d_v.p);
    free(out), free(dout), free(dv), free(lse);
    return same;
}

TEST(values_that_begin_their_keys_give_the_bits_of_values_of_their_own)
{
    static const struct {
        int group, d, v;
        int64_t T;
    } cases[] = { { 8, 40, 32, 70 },  { 3, 24, 16, 130 }, { 2, 80, 64, 5 },
                  { 1, 18, 12, 66 },  { 16, 64, 48, 33 }, { 2, 576, 512, 65 },
                  { 2, 320, 256, 5 }, { 1, 530, 258, 9 }, { 128, 280, 200, 3 } };
    struct dev *dev = dev_new(2);
    struct isa isa[5];
    for (int dt = DT_F32; dt <= DT_BF16; dt++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            struct world *w = latent_world(dt, cases[c].group, cases[c].d, cases[c].v, cases[c].T);
            for (int i = 0, n = isas(isa); i < n; i++)
                if (!latent_same(dev, isa[i].ops, w, cases[c].v))
                    test_fail(__FILE__, __LINE__, "%s %s: group %d d %d v %d", isa[i].name, dtype_name(dt),
                              cases[c].group, cases[c].d, cases[c].v);
            world_free(w);
        }
    dev_close(dev);
}
