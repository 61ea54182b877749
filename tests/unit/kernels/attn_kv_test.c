/* attn_kv_test.c - pages of codes (kernels/kv_codes.h): the rounding, and attention over such pages, equal
 * their definitions in every CPU class. Bits, not tolerances. */
#include "tests/test.h"

#include "tests/unit/kernels/attn_definition.h"

#define OFF 192

/* ---- rounding ---- */
/* e4m3 by its fields. */
static double plain_fp8(int c)
{
    const int e = c >> 3 & 15, m = c & 7;
    const double x = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m / 8.0, -6);
    return c & 0x80 ? -x : x;
}

/* The nearest code of a finite x, the even one of two; beyond the largest: that. */
static int plain_to_fp8(float x)
{
    int best = 0;
    for (int c = 0; c < 0x7f; c++) {
        const double d = fabs(plain_fp8(c) - fabs((double)x)), b = fabs(plain_fp8(best) - fabs((double)x));
        if (d < b || (d == b && c % 2 == 0))
            best = c;
    }
    return signbit(x) ? best | 0x80 : best;
}

TEST(every_fp8_code_is_the_number_of_its_fields)
{
    for (int c = 0; c < 256; c++) {
        const float x = kv_from_fp8((uint8_t)c);
        if ((c & 0x7f) == 0x7f)
            CHECK(x != x);
        else
            CHECK(x == (float)plain_fp8(c) && !signbit(x) == !(c & 0x80));
        CHECK(fn_bits(fn_round_bf16(x)) == fn_bits(x)); /* exact as an operand */
        CHECK_INT(kv_to_fp8(x), c);
    }
}

TEST(fp8_is_the_nearest_code_and_saturates)
{
    for (uint32_t b = 0; b < 0x7f80; b += 3) { /* finite bf16 of all sizes, and what lies beside them */
        const float x[3] = { fn_float(b << 16), fn_float((b << 16) + 1), fn_float((b << 16) - 1) };
        for (int i = b ? 0 : 1; i < (b ? 3 : 2); i++) {
            CHECK_INT(kv_to_fp8(x[i]), plain_to_fp8(x[i]));
            CHECK_INT(kv_to_fp8(-x[i]), plain_to_fp8(-x[i]));
        }
    }
    CHECK_INT(kv_to_fp8(FN_INF), 0x7e);
    CHECK_INT(kv_to_fp8(-FN_INF), 0xfe);
    CHECK_INT(kv_to_fp8(FN_NAN) & 0x7f, 0x7f);
}

TEST(int8_is_the_nearest_of_127_steps)
{
    for (int i = 0; i < 4000; i++) {
        const float top = fn_float(0x00800000u + (uint32_t)i * 0x60000u), scale = kv_int8_scale(top),
                    x = top * uniform();
        const float want = fminf(127, fmaxf(-127, rintf(x / scale)));
        CHECK_INT(kv_to_int8(x, scale), (int)want);
        CHECK_INT(kv_to_int8(-top, scale), -127);
    }
    CHECK_INT(kv_to_int8(0, kv_int8_scale(0)), 0);
    CHECK(kv_int8_scale(FN_INF) != kv_int8_scale(FN_INF));
    CHECK_INT(kv_to_int8(3, kv_int8_scale(kv_magnitude(FN_NAN))), 0);
}

/* ---- a world of codes ---- */
/* Rounds x [T][kv][d] of w to the kind: x becomes the codes as numbers, the result their scales. */
static float *round_world(const struct world *w, enum kv_kind kv, float *x)
{
    float *by = kv == KV_INT8 ? zeros(w->T * w->n_kv) : NULL;
    for (int64_t r = 0; r < w->T * w->n_kv; r++) {
        float top = 0, *row = x + r * w->d;
        for (int i = 0; i < w->d; i++)
            top = fabsf(row[i]) > top ? fabsf(row[i]) : top;
        for (int i = 0; i < w->d; i++)
            row[i] = kv == KV_BF16  ? fn_round_bf16(row[i])
                     : kv == KV_FP8 ? (float)plain_fp8(plain_to_fp8(row[i]))
                                    : rintf(row[i] / (top / 127));
        if (by)
            by[r] = top / 127;
    }
    return by;
}

static struct world *coded_world(enum dtype dt, enum kv_kind kv, int n_kv, int group, int d, int64_t T)
{
    struct world *w = world_of(dt, n_kv, group, d, T);
    w->k_by = round_world(w, kv, w->k);
    w->v_by = round_world(w, kv, w->v);
    return w;
}

static void coded_free(struct world *w)
{
    free(w->k_by), free(w->v_by);
    world_free(w);
}

static size_t code_bytes(enum kv_kind kv) { return kv == KV_BF16 ? 2 : 1; }

/* A code from its number. */
static void put_number(char *at, enum kv_kind kv, float x)
{
    const uint16_t half = fn_to_bf16(x);
    const int8_t whole = (int8_t)x;
    const uint8_t small = kv_to_fp8(x); /* proved above */
    memcpy(at,
           kv == KV_BF16  ? (const void *)&half
           : kv == KV_FP8 ? (const void *)&small
                          : &whole,
           code_bytes(kv));
}

struct pages {
    char *memory, **page;
};
/* Keys [0, n), and values behind them where v_dim is 0. */
static struct pages pages_of(const struct world *w, enum kv_kind kv, int v_dim, int64_t n)
{
    const int64_t n_pages = (n + 63) / 64, d = w->d, code = (int64_t)code_bytes(kv), parts = v_dim ? 1 : 2;
    const int64_t head = parts * (64 * d * code + (kv == KV_INT8 ? 256 : 0)), bytes = OFF + w->n_kv * head;
    struct pages p = { calloc((size_t)n_pages, (size_t)bytes), calloc((size_t)n_pages, sizeof(char *)) };
    for (int64_t b = 0; b < n_pages; b++)
        p.page[b] = p.memory + b * bytes;
    for (int64_t j = 0; j < n; j++)
        for (int g = 0; g < w->n_kv; g++) {
            char *at = p.page[j / 64] + OFF + g * head, *v = at + 64 * d * code,
                 *by = at + parts * 64 * d * code;
            const int64_t row = j * w->n_kv + g, slot = j % 64;
            for (int64_t x = 0; x < d; x++) {
                put_number(at + (x * 64 + slot) * code, kv, w->k[row * d + x]);
                if (!v_dim)
                    put_number(v + (slot * d + x) * code, kv, w->v[row * d + x]);
            }
            if (w->k_by)
                memcpy(by + slot * 4, &w->k_by[row], 4);
            if (w->v_by && !v_dim)
                memcpy(by + 256 + slot * 4, &w->v_by[row], 4);
        }
    return p;
}

static struct mat mat_new(enum dtype dt, int64_t rows, int64_t cols, const float *from)
{
    struct mat m = mat_of(calloc((size_t)(rows * cols + 1), dtype_size(dt)), dt, rows, cols, cols);
    for (int64_t i = 0; from && i < rows * cols; i++)
        if (dt == DT_F32)
            ((float *)m.p)[i] = from[i];
        else
            ((uint16_t *)m.p)[i] = fn_to_bf16(from[i]);
    return m;
}

/* Rows [pos, pos + n) over pages of codes equal the definition. */
static int same(struct dev *dev, const struct attn_ops *ops, const struct world *w, enum kv_kind kv,
                int v_dim, int64_t pos, int64_t n)
{
    const int64_t cols = (int64_t)heads(w) * w->d, vd = v_dim ? v_dim : w->d, wide = heads(w) * vd;
    struct pages pg = pages_of(w, kv, v_dim, pos + n);
    struct attn_seq seq = { 0, n, pos, pg.page };
    struct attn a = { .n_heads = heads(w),
                      .n_kv = w->n_kv,
                      .head_dim = w->d,
                      .dt = w->dt,
                      .scale = w->scale,
                      .page_off = OFF,
                      .n_seq = 1,
                      .seq = &seq,
                      .window = w->window,
                      .softcap = w->softcap,
                      .v_dim = v_dim,
                      .kv = kv };
    struct mat q = mat_new(w->dt, n, cols, w->q + pos * cols), out = mat_new(w->dt, n, wide, NULL);
    float *lse = zeros(n * heads(w));
    int ok;

    ops->attn(dev, &a, out, lse, q);
    ok = !memcmp(lse, w->lse + pos * heads(w), (size_t)(n * heads(w)) * 4);
    for (int64_t r = 0; r < n * heads(w); r++)
        for (int64_t x = 0; x < vd; x++) {
            const float want = w->out[(pos * heads(w) + r) * w->d + x];
            const float got = w->dt == DT_F32 ? ((float *)out.p)[r * vd + x]
                                              : fn_from_bf16(((uint16_t *)out.p)[r * vd + x]);
            ok = ok && fn_bits(want) == fn_bits(got);
        }
    free(pg.memory), free(pg.page), free(q.p), free(out.p), free(lse);
    return ok;
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

struct coded_case {
    int n_kv, group, d;
    int64_t T, window;
    float softcap;
};

/* Whole, in chunks, and row by row at the end, where rows are few. */
static void check_case(const struct coded_case *c, enum dtype dt, enum kv_kind kv)
{
    struct dev *dev[2] = { dev_new(1), dev_new(3) };
    struct isa isa[5];
    struct world *w = coded_world(dt, kv, c->n_kv, c->group, c->d, c->T);
    w->window = c->window;
    w->softcap = c->softcap;
    ref_forward(w);
    for (int i = 0, n = isas(isa); i < n; i++) {
        const struct attn_ops *ops = isa[i].ops;
        int ok = same(dev[1], ops, w, kv, 0, 0, c->T) &&
                 same(dev[0], ops, w, kv, 0, c->T / 3, c->T - c->T / 3);
        for (int64_t p = c->T > 6 ? c->T - 6 : 0; p < c->T; p++)
            ok = ok && same(dev[p % 2], ops, w, kv, 0, p, 1);
        if (!ok)
            test_fail(__FILE__, __LINE__, "%s %s pages of %s: kv %d group %d d %d T %d", isa[i].name,
                      dtype_name(dt), kv_kind_name(kv, dt), c->n_kv, c->group, c->d, (int)c->T);
    }
    coded_free(w);
    dev_close(dev[0]);
    dev_close(dev[1]);
}

TEST(attention_over_codes_equals_the_definition)
{
    static const struct coded_case cases[] = { { 1, 2, 8, 70, 0, 0 },   { 2, 3, 12, 65, 0, 0 },
                                               { 3, 1, 64, 130, 0, 0 }, { 2, 4, 16, 66, 18, 0 },
                                               { 1, 1, 80, 5, 0, 0 },   { 1, 6, 128, 67, 0, 3 },
                                               { 1, 1, 7, 66, 0, 0 },   { 2, 3, 20, 3, 0, 0 } };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int kv = KV_BF16; kv <= KV_INT8; kv++) {
            check_case(&cases[c], DT_F32, (enum kv_kind)kv);
            if (kv != KV_BF16) /* the dtype's own there */
                check_case(&cases[c], DT_BF16, (enum kv_kind)kv);
        }
}

TEST(segments_of_codes_equal_the_definition)
{
    const struct coded_case c = { 1, 1, 8, 1100, 1030, 0 };
    check_case(&c, DT_BF16, KV_INT8);
    check_case(&c, DT_BF16, KV_FP8);
}

TEST(values_that_begin_their_keys_share_codes_and_scales)
{
    static const struct {
        int group, d, v;
        int64_t T;
    } cases[] = { { 8, 40, 32, 70 }, { 1, 18, 12, 66 }, { 2, 80, 64, 5 }, { 2, 330, 258, 65 } };
    struct dev *dev = dev_new(2);
    struct isa isa[5];
    for (int t = 0; t < 4; t++)
        for (int kv = KV_FP8; kv <= KV_INT8; kv++) {
            struct world *w = world_of(t % 2 ? DT_BF16 : DT_F32, 1, cases[t].group, cases[t].d, cases[t].T);
            w->k_by = round_world(w, (enum kv_kind)kv, w->k);
            for (int64_t i = 0; i < w->T * w->d; i++)
                w->v[i] = i % w->d < cases[t].v ? w->k[i] : 0;
            w->v_by = w->k_by;
            ref_forward(w);
            for (int i = 0, n = isas(isa); i < n; i++)
                if (!same(dev, isa[i].ops, w, (enum kv_kind)kv, cases[t].v, 0, w->T))
                    test_fail(__FILE__, __LINE__, "%s %s: d %d v %d", isa[i].name,
                              kv_kind_name((enum kv_kind)kv, w->dt), cases[t].d, cases[t].v);
            w->v_by = NULL;
            coded_free(w);
        }
    dev_close(dev);
}
