/* codes_test.c - products over quantised panels: every CPU class gives the bits of the definition, written
 * here a second time as plain loops over codes in natural order. */
#include <math.h>
#include <stdlib.h>
#include "base/rnd.h"
#include "kernels/codes/codes_core.h"
#include "kernels/flushed.h"
#include "kernels/fn.h"
#include "tests/test.h"

static struct mem memory;

static struct dev *device(int threads)
{
    struct dev *d = NULL;
    struct err e;
    if (dev_open(&d, "cpu", threads, &memory, &e) < 0) {
        test_fail(__FILE__, __LINE__, "no device: %s", e.text);
        exit(1);
    }
    return d;
}

static int list_ops(const struct codes_ops *out[4])
{
    const struct codes_ops *all[] = {
        &codes_portable,
#if defined(__x86_64__)
        &codes_avx2,
        &codes_avx512vnni
#endif
    };
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->here())
            out[n++] = all[i];
    return n;
}

/* ---- data ---- */

/* A form of quantised weights and a product over it. */
struct form {
    const char *name;
    struct panel_codes codes;
    int bits; /* of integer codes that are drawn */
};
static const struct form forms[] = {
    { "int8 group", { CODE_S8, CODES_GRP, CODE_SCALE_BF16, 0, 0, 32, 0 }, 8 },
    { "int8 channel with zeros", { CODE_S8, CODES_GRP, CODE_SCALE_F32, 1, 0, 0, 0 }, 8 },
    { "int4 group", { CODE_U4, CODES_GRP, CODE_SCALE_F16, 0, 0, 32, 0 }, 4 },
    { "int4 group with zeros", { CODE_U4, CODES_GRP, CODE_SCALE_F16, 1, 0, 48, 0 }, 4 },
    { "int4 with minima", { CODE_U4, CODES_GRP, CODE_SCALE_F32, 0, 1, 32, 0 }, 4 },
    { "e4m3 block", { CODE_E4M3, CODES_DEQ, CODE_SCALE_F32, 0, 0, 64, 0 }, 8 },
    { "e4m3 channel", { CODE_E4M3, CODES_DEQ, CODE_SCALE_BF16, 0, 0, 0, 0 }, 8 },
    { "e2m1", { CODE_E2M1, CODES_DEQ, CODE_SCALE_E8M0, 0, 0, 32, 0 }, 4 },
    { "int8 int", { CODE_S8, CODES_INT, CODE_SCALE_BF16, 0, 0, 48, 0 }, 8 },
    { "int8 int with zeros", { CODE_S8, CODES_INT, CODE_SCALE_F32, 1, 0, 0, 0 }, 8 },
    { "int4 int", { CODE_U4, CODES_INT, CODE_SCALE_F16, 0, 0, 32, 0 }, 4 },
    { "int4 int with zeros", { CODE_U4, CODES_INT, CODE_SCALE_F16, 1, 0, 128, 0 }, 4 },
    { "int4 int with minima", { CODE_U4, CODES_INT, CODE_SCALE_F32, 0, 1, 32, 0 }, 4 },
};
#define N_FORMS ((int)(sizeof forms / sizeof *forms))

/* One case: all of the contraction (k from element 0), and the part of it that a rank has. */
struct weights {
    struct panel_codes codes;
    int64_t n, k, n_groups;
    int64_t block; /* outputs under a scale */
    uint8_t *code;
    float *scale, *min;
    int16_t *zero;
};

static double unit(uint64_t stream, uint64_t i) { return rnd_unit(11, stream, i); }

/* Sizes up to the bounds within which codes_e2m1_avx512.h adds in another form, and a few beyond. */
enum { AT_BOUNDS = 2 };

/* A number that the scale's type has. extreme: all sizes that it has, among them 0 and what overflows. */
static float draw_scale(enum code_scale s, uint64_t i, int extreme)
{
    const double u = unit(2, i);
    if (extreme == AT_BOUNDS && s == CODE_SCALE_E8M0)
        return ldexpf(1, i % 1009 == 7 ? 9 : -26 + (int)(u * 35));
    if (s == CODE_SCALE_E8M0) {
        const int e = extreme ? (int)(u * 256) : 118 + (int)(u * 8);
        return e == 255 ? NAN : ldexpf(1, e - 127);
    }
    const double x = extreme && u < 0.1 ? 0 : ldexp(0.5 + u, extreme ? (int)(unit(3, i) * 24) - 14 : -6);
    if (s == CODE_SCALE_F16)
        return extreme && i % 3 == 0 ? ldexpf((float)(i % 1000), -24)
                                     : ldexpf((float)(int)(1024 + u * 1023), -18 + (int)(i % 4));
    return s == CODE_SCALE_BF16 ? fn_round_bf16((float)x)
                                : (float)ldexp(x, extreme ? (int)(u * 200) - 100 : 0);
}

static struct weights draw(const struct form *f, int64_t n, int64_t k, int64_t block, int extreme)
{
    struct weights w = { .codes = f->codes, .n = n, .k = k, .block = block };
    w.n_groups = f->codes.group ? (k + f->codes.group - 1) / f->codes.group : 1;
    const size_t n_scales = (size_t)(w.n_groups * n);
    w.code = malloc((size_t)(n * k) + 1);
    w.scale = malloc(n_scales * 4);
    w.min = f->codes.has_mins ? malloc(n_scales * 4) : NULL;
    w.zero = f->codes.has_zeros ? malloc(n_scales * 2) : NULL;
    for (int64_t i = 0; i < n * k; i++)
        w.code[i] = (uint8_t)(unit(1, (uint64_t)i) * (1 << f->bits));
    for (int64_t i = 0; !extreme && f->codes.kind == CODE_E4M3 && i < n * k; i++)
        w.code[i] = (uint8_t)((w.code[i] & 127) == 127 ? 126 : w.code[i]);
    for (size_t i = 0; i < n_scales; i++) {
        w.scale[i] = draw_scale(f->codes.scale, i, extreme);
        if (w.min)
            w.min[i] = draw_scale(f->codes.scale, i + 77777, extreme);
        if (w.zero)
            w.zero[i] = (int16_t)((int)(unit(4, i) * (1 << f->bits)) - (f->codes.kind == CODE_S8 ? 128 : 0));
    }
    return w;
}

static void free_weights(struct weights *w)
{
    free(w->code);
    free(w->scale);
    free(w->min);
    free(w->zero);
}

static uint16_t *draw_rows(int64_t m, int64_t k, int extreme)
{
    uint16_t *x = malloc((size_t)(m * k) * 2 + 2);
    for (int64_t i = 0; i < m * k; i++) {
        const double u = 2 * unit(5, (uint64_t)i) - 1, e = unit(6, (uint64_t)i);
        if (extreme == AT_BOUNDS) {
            const int size = (int)(e * (i / k % 2 ? 124 : 6)) - 84;
            x[i] = (uint16_t)(fn_bits((float)ldexp(copysign(1, u) + u * 0.99, size)) >> 16);
            continue;
        }
        x[i] = (uint16_t)(fn_bits((float)ldexp(u, extreme ? (int)(e * 160) - 130 : (int)(e * 8))) >> 16);
        if (extreme && e < 0.05)
            x[i] = (uint16_t)(i % 2 << 15);
    }
    return x;
}

/* ---- the definition ---- */

struct at {
    const struct weights *w;
    const uint16_t *x; /* of one row */
    int64_t out;
};
static int64_t scale_index(const struct at *a, int64_t e)
{
    const int64_t group = a->w->codes.group;
    return a->out / a->w->block * a->w->n_groups + (group ? e / group : 0);
}
static int code_of(const struct at *a, int64_t e)
{
    const int code = a->w->code[a->out * a->w->k + e];
    return a->w->codes.kind == CODE_S8 ? (int8_t)code : code;
}
static int less_zero(const struct at *a, int64_t e)
{
    const struct panel_codes *c = &a->w->codes;
    const int fixed = c->kind == CODE_U4 && !c->has_mins ? 8 : 0;
    return code_of(a, e) - (a->w->zero ? a->w->zero[scale_index(a, e)] : fixed);
}
static float input(const struct at *a, int64_t e) { return flushed(fn_from_bf16(a->x[e])); }

static float weight(const struct at *a, int64_t e)
{
    if (a->w->codes.class != CODES_DEQ)
        return (float)less_zero(a, e);
    const float number = code_number(a->w->codes.kind, code_of(a, e));
    return flushed(fn_round_bf16(isnan(number) ? number : number * a->w->scale[scale_index(a, e)]));
}

/* A chain over [begin, end), with a zero behind an odd one. is_one: the weights are 1. */
static float chain(const struct at *a, int64_t begin, int64_t end, int is_one)
{
    float sum = 0;
    for (int64_t e = begin; e < end; e++)
        sum = fma_flushed(input(a, e), is_one ? 1 : weight(a, e), sum);
    return (end - begin) % 2 ? fma_flushed(0, 0, sum) : sum;
}

static int64_t lower(int64_t a, int64_t b) { return a < b ? a : b; }

static float leaf_grp(const struct at *a, int64_t begin, int64_t end)
{
    const int64_t group = a->w->codes.group;
    float leaf = 0;
    for (int64_t b = begin, e; b < end; b = e) {
        const int64_t s = scale_index(a, b);
        e = group ? lower((b / group + 1) * group, end) : end;
        leaf = fmaf(a->w->scale[s], chain(a, b, e, 0), leaf);
        if (a->w->min)
            leaf = fmaf(-a->w->min[s], chain(a, b, e, 1), leaf);
    }
    return leaf;
}

/* The scale of activations [b, e), and their codes. */
static float quantise(const struct at *a, int64_t b, int64_t e, int *code)
{
    float most = 0;
    for (int64_t i = b; i < e; i++)
        most = fabsf(input(a, i)) > most ? fabsf(input(a, i)) : most;
    for (int64_t i = b; i < e; i++)
        code[i - b] = most > 0 ? (int)rintf(fn_from_bf16(a->x[i]) / (most / 127)) : 0;
    return most / 127;
}

static float leaf_int(const struct at *a, int64_t begin, int64_t end)
{
    const int64_t group = a->w->codes.group;
    float leaf = 0;
    for (int64_t g = begin; g < end; g += 128) {
        int code[128];
        const int64_t g_end = lower(g + 128, end);
        const float factor = quantise(a, g, g_end, code);
        for (int64_t b = g, e; b < g_end; b = e) {
            const int64_t s = scale_index(a, b);
            long sum = 0, plain = 0;
            e = group ? lower((b / group + 1) * group, g_end) : g_end;
            for (int64_t i = b; i < e; i++)
                sum += code[i - g] * less_zero(a, i), plain += code[i - g];
            leaf = fmaf((float)sum, factor * a->w->scale[s], leaf);
            if (a->w->min)
                leaf = fmaf(-(float)plain, factor * a->w->min[s], leaf);
        }
    }
    return leaf;
}

/* One output over leaves [first, first + l->n) of the whole contraction's, which begin at element `from`. */
static float definition(const struct at *a, int64_t from, const struct leaves *l)
{
    float leaf[GRAIN_MAX];
    for (int g = 0; g < l->n; g++) {
        const int64_t begin = from + (g ? l->end[g - 1] : 0), end = from + l->end[g];
        leaf[g] = a->w->codes.class == CODES_GRP   ? leaf_grp(a, begin, end)
                  : a->w->codes.class == CODES_INT ? leaf_int(a, begin, end)
                                                   : chain(a, begin, end, 0);
    }
    return tree_sum(l->n, leaf, 1);
}

/* ---- cases ---- */

struct shape {
    int64_t n, k, block;
    int grain, first, count; /* the leaves that the rank has */
};

static struct codes_source source_of(const struct weights *w, int64_t from)
{
    const int64_t group = w->codes.group ? from / w->codes.group : 0;
    return (struct codes_source){ .n = w->n,
                                  .code = w->code + from,
                                  .code_ld = w->k,
                                  .scale = w->scale + group,
                                  .zero = w->zero ? w->zero + group : NULL,
                                  .min = w->min ? w->min + group : NULL,
                                  .scale_rows = w->block,
                                  .scale_ld = w->n_groups };
}

static int is_same(float a, float b) { return fn_bits(a) == fn_bits(b) || (isnan(a) && isnan(b)); }

static void check_rows(const char *what, const struct weights *w, const struct mat *y, const uint16_t *x,
                       int64_t from, const struct leaves *l)
{
    for (int64_t r = 0; r < y->rows; r++)
        for (int64_t o = 0; o < y->cols; o++) {
            const struct at a = { w, x + r * w->k, o };
            const float got = ((float *)y->p)[r * y->ld + o], want = definition(&a, from, l);
            if (!is_same(got, want)) {
                test_fail(__FILE__, __LINE__, "%s: row %d output %d of %dx%d is %a, not %a", what, (int)r,
                          (int)o, (int)w->n, (int)w->k, (double)got, (double)want);
                return;
            }
        }
}

/* Memory for panels of w with leaves l, packed; `codes` is what they refer to. */
static struct panels pack(struct dev *d, const struct weights *w, struct panel_codes *codes, int64_t from,
                          const struct leaves *l)
{
    *codes = w->codes;
    codes->first = from;
    const struct codes_source s = source_of(w, from);
    struct panels p = { .n = w->n, .k = l->end[l->n - 1], .dt = DT_BF16, .leaves = *l };
    p.kind = PANEL_CODES, p.codes = codes;
    p.p = aligned_alloc(64, codes_bytes(w->n, codes, l) + 64);
    codes_pack(d, &p, 1, &s);
    return p;
}

static void check_case(struct dev *d, const struct form *f, struct shape s, int64_t m, int extreme)
{
    const struct codes_ops *ops[4];
    const int n_ops = list_ops(ops);
    struct weights w = draw(f, s.n, s.k, s.block, extreme);
    const struct leaves l = leaves_of(s.k, s.grain, s.first, s.count);
    const int64_t from = block_begin(s.k, s.grain, s.first);
    struct panel_codes codes;
    struct panels p = pack(d, &w, &codes, from, &l);
    uint16_t *x = draw_rows(m, s.k, extreme);
    if (codes_misfit(&codes, &l))
        test_fail(__FILE__, __LINE__, "%s: %s", f->name, codes_misfit(&codes, &l));
    for (int i = 0; i < n_ops; i++) {
        char what[128];
        const struct mat y = mat_of(malloc((size_t)(m * (s.n + 5)) * 4), DT_F32, m, s.n, s.n + 5);
        const struct listed rows = listed_of(mat_of(x + from, DT_BF16, m, p.k, s.k), NULL);
        snprintf(what, sizeof what, "%s, %s, %d rows", f->name, ops[i]->name, (int)m);
        codes_product(d, ops[i], y, rows, NULL, &p);
        check_rows(what, &w, &y, x, from, &l);
        free(y.p);
    }
    free(x);
    free(p.p);
    free_weights(&w);
}

TEST(products_of_codes_are_their_definition_in_every_class)
{
    static const struct shape shapes[] = { { 64, 256, 1, 4, 0, 4 },
                                           { 37, 328, 1, 2, 0, 2 },
                                           { 9, 1024, 1, 8, 0, 8 } };
    struct dev *d = device(2);
    for (int f = 0; f < N_FORMS; f++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int64_t m = 1; m <= 16; m += s == 1 ? 1 : 5)
                check_case(d, &forms[f], shapes[s], m, 0);
    dev_close(d);
}

/* Rows of a matrix that dequantised weights make, through the plain product of the device. */
static void check_deq(struct dev *d, const struct form *f, struct shape s, int64_t m, int extreme)
{
    struct weights w = draw(f, s.n, s.k, s.block, extreme);
    const struct leaves l = leaves_of(s.k, s.grain, 0, s.grain);
    struct panel_codes codes;
    struct panels p = pack(d, &w, &codes, 0, &l), plain = { .n = s.n, .k = s.k, .dt = DT_BF16, .leaves = l };
    uint16_t *x = draw_rows(m, s.k, extreme), *full = malloc((size_t)(s.n * s.k) * 2);
    const struct mat y[2] = { mat_of(malloc((size_t)(m * s.n) * 4), DT_F32, m, s.n, s.n),
                              mat_of(malloc((size_t)(m * s.n) * 4), DT_F32, m, s.n, s.n) };
    const struct mat fm = mat_of(full, DT_BF16, s.n, s.k, s.k), xm = mat_of(x, DT_BF16, m, s.k, s.k);
    for (int64_t o = 0; o < s.n; o++)
        for (int64_t e = 0; e < s.k; e++) {
            const struct at a = { &w, x, o };
            full[o * s.k + e] = fn_to_bf16(weight(&a, e));
        }
    plain.p = aligned_alloc(64, panels_bytes(s.n, s.k, DT_BF16, &l) + 64);
    KERNEL(d, linear_pack, &plain, 1, &fm);
    KERNEL(d, linear, y[0], xm, &plain);
    KERNEL(d, linear, y[1], xm, &p);
    if (memcmp(y[0].p, y[1].p, (size_t)(m * s.n) * 4))
        test_fail(__FILE__, __LINE__, "%s, %d rows: not the bits of its dequantised weights", f->name,
                  (int)m);
    free(y[0].p);
    free(y[1].p);
    free(full);
    free(x);
    free(plain.p);
    free(p.p);
    free_weights(&w);
}

TEST(the_class_of_the_machine_passes_its_self_test)
{
    const struct codes_ops *ops[4];
    const int n = list_ops(ops);
    struct dev *d = device(1);
    const char *wanted = strcmp(d->isa, "avx512bf16") ? d->isa : ops[n - 1]->name;
    if (!strcmp(wanted, "avx512"))
        wanted = "avx2";
    CHECK(!strcmp(d->codes->name, wanted));
    dev_close(d);
}

TEST(class_deq_is_the_plain_product_of_the_dequantised_weights)
{
    struct dev *d = device(2);
    for (int f = 0; f < N_FORMS; f++)
        for (int64_t m = 1; forms[f].codes.class == CODES_DEQ && m <= 130; m = m < 16 ? m + 3 : m + 57) {
            check_deq(d, &forms[f], (struct shape){ 96, 1024, 1, 8, 0, 8 }, m, 0);
            check_deq(d, &forms[f], (struct shape){ 77, 704, 64, 4, 0, 4 }, m, 0);
        }
    dev_close(d);
}

/* Rows of several experts in one call, by a list, are those of each expert alone. */
TEST(experts_of_codes_are_products_of_each_expert)
{
    enum { EXPERTS = 5, N = 45, K = 256, ROWS = 160 };
    static const int64_t begin[EXPERTS + 1] = { 0, 1, 1, 9, 140, ROWS };
    struct dev *d = device(2);
    const struct leaves l = leaves_of(K, 4, 0, 4);
    for (int f = 0; f < N_FORMS; f++) {
        struct weights w[EXPERTS];
        struct panels p[EXPERTS];
        struct panel_codes codes[EXPERTS];
        int32_t list[ROWS];
        uint16_t *x = draw_rows(50, K, 0);
        const struct listed rows = listed_of(mat_of(x, DT_BF16, 50, K, K), list);
        const struct mat y = mat_of(malloc(ROWS * N * 4), DT_F32, ROWS, N, N);
        for (int i = 0; i < ROWS; i++)
            list[i] = i * 7 % 50;
        for (int e = 0; e < EXPERTS; e++) {
            w[e] = draw(&forms[f], N, K, 1, 0);
            for (int i = 0; i < N * K; i++)
                w[e].code[i] = (uint8_t)(w[e].code[i] ^ (e & 3));
            p[e] = pack(d, &w[e], &codes[e], 0, &l);
        }
        KERNEL(d, linear_experts, y, rows, &((struct expert_rows){ EXPERTS, begin, 0, NULL }), p);
        for (int e = 0; e < EXPERTS; e++) {
            const int64_t m = begin[e + 1] - begin[e];
            const struct mat one = mat_of(malloc((size_t)(m * N) * 4 + 4), DT_F32, m, N, N);
            codes_product(d, &codes_portable, one, listed_of(rows.m, list + begin[e]), NULL, &p[e]);
            for (int64_t i = 0; i < m * N; i++)
                if (!is_same(((float *)one.p)[i], ((float *)y.p)[begin[e] * N + i])) {
                    test_fail(__FILE__, __LINE__, "%s: expert %d has other bits", forms[f].name, e);
                    break;
                }
            free(one.p);
            free(p[e].p);
            free_weights(&w[e]);
        }
        free(x);
        free(y.p);
    }
    dev_close(d);
}

/* A rank with some leaves reads the panels of the whole by offset and stride, and outputs in several runs. */
TEST(parts_of_a_panel_by_offset_stride_and_runs_are_the_rank_s_own_panels)
{
    enum { N = 96, K = 8 * 52, M = 3 };
    struct dev *d = device(1);
    const struct leaves all = leaves_of(K, 8, 0, 8), some = leaves_of(K, 8, 3, 3);
    const int64_t from = block_begin(K, 8, 3);
    for (int f = 0; f < N_FORMS; f++) {
        struct weights w = draw(&forms[f], N, K, 1, 0);
        struct panel_codes whole, own;
        struct panels a = pack(d, &w, &whole, 0, &all), b = pack(d, &w, &own, from, &some);
        uint16_t *x = draw_rows(M, K, 0);
        float y[2][M * N];
        const int64_t stride = codes_leaf_offset(&whole, &all, 8);
        const char *part = (const char *)a.p + codes_leaf_offset(&whole, &all, 3);
        const struct panel_run run[2] = { { part, 40 }, { part + 2 * stride, 24 } };
        struct panels c = b;
        c.p = NULL, c.stride = stride, c.n = 64, c.n_runs = 2, c.run = run;
        const struct mat rows = mat_of(x + from, DT_BF16, M, b.k, K);
        KERNEL(d, linear, mat_of(y[0], DT_F32, M, N, N), rows, &b);
        KERNEL(d, linear, mat_of(y[1], DT_F32, M, 64, N), rows, &c);
        for (int r = 0; r < M; r++)
            if (memcmp(y[0] + r * N, y[1] + r * N, 40 * 4) ||
                memcmp(y[0] + r * N + 64, y[1] + r * N + 40, 24 * 4))
                test_fail(__FILE__, __LINE__, "%s: the part has other bits", forms[f].name);
        free(x);
        free(a.p);
        free(b.p);
        free_weights(&w);
    }
    dev_close(d);
}

TEST(a_scale_of_a_block_of_outputs_is_used_for_all_of_them)
{
    struct dev *d = device(1);
    for (int f = 0; f < N_FORMS; f++) {
        check_case(d, &forms[f], (struct shape){ 96, 256, 64, 4, 0, 4 }, 3, 0);
        check_case(d, &forms[f], (struct shape){ 96, 256, 64, 4, 0, 4 }, 17, 0);
    }
    dev_close(d);
}

TEST(scales_and_codes_at_the_ends_of_their_range_follow_the_definition)
{
    struct dev *d = device(1);
    for (int f = 0; f < N_FORMS; f++)
        for (int64_t m = 1; m <= 17; m += 8)
            check_case(d, &forms[f], (struct shape){ 40, 384, 1, 2, 0, 2 }, m, 1);
    dev_close(d);
}

TEST(sums_of_e2m1_up_to_the_bounds_of_their_form_and_beyond_follow_the_definition)
{
    struct dev *d = device(1);
    for (int f = 0; f < N_FORMS; f++)
        for (int64_t m = 1; forms[f].codes.kind == CODE_E2M1 && m <= 9; m++) {
            check_case(d, &forms[f], (struct shape){ 100, 384, 1, 2, 0, 2 }, m, AT_BOUNDS);
            check_case(d, &forms[f], (struct shape){ 70, 328, 1, 2, 0, 2 }, m, AT_BOUNDS);
        }
    dev_close(d);
}

TEST(leaves_that_end_in_the_middle_of_a_group_or_of_a_pair_keep_the_groups_of_the_whole)
{
    struct dev *d = device(1);
    for (int f = 0; f < N_FORMS; f++) {
        const int is_deq = forms[f].codes.class == CODES_DEQ;
        check_case(d, &forms[f], (struct shape){ 33, 8 * 44, 1, 8, 3, 4 }, 2, 0);
        check_case(d, &forms[f], (struct shape){ 33, 8 * 44, 1, 8, 5, 2 }, 20, 0);
        if (!is_deq)
            check_case(d, &forms[f], (struct shape){ 33, 4 * 41, 1, 4, 1, 2 }, 5, 0);
        if (!is_deq)
            check_case(d, &forms[f], (struct shape){ 33, 4 * 149, 1, 4, 1, 2 }, 9, 0);
    }
    dev_close(d);
}
