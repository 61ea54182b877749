/* panels_test.c - weights that lie in several runs, at a stride, as a part of the contraction: linear and
 * linear_experts give the bits of plain panels in one place, in every CPU class, on one and two threads. So
 * do weights in 12 bits, whose layout is read here a second time. */
#include "tests/unit/kernels/rows_rig.h"

/* How the outputs and the contraction of a matrix are cut. */
struct cut {
    int n_runs;
    int64_t run[6];
    int n_leaves;
    int64_t leaf[8];  /* elements */
    int first, count; /* the rank's leaves */
};
static const struct cut cuts[] = {
    { 1, { 70 }, 4, { 7, 7, 7, 3 }, 0, 4 },
    { 1, { 70 }, 8, { 16, 16, 16, 16, 16, 16, 16, 16 }, 2, 2 },
    { 3, { 33, 1, 40 }, 4, { 7, 7, 7, 3 }, 0, 4 },
    { 6, { 5, 64, 31, 32, 0, 3 }, 3, { 40, 1, 33 }, 1, 2 },
    { 4, { 24, 24, 8, 8 }, 8, { 9, 9, 9, 9, 9, 9, 9, 0 }, 6, 2 },
    /* longer than a step of the contraction */
    { 2, { 20, 37 }, 4, { 300, 4211, 70, 70 }, 1, 3 },
};

static int64_t outputs(const struct cut *c)
{
    int64_t n = 0;
    for (int r = 0; r < c->n_runs; r++)
        n += c->run[r];
    return n;
}

/* Leaves [first, first + count) of c. */
static struct leaves some_leaves(const struct cut *c, int first, int count)
{
    struct leaves l = { .n = count };
    for (int g = 0; g < count; g++)
        l.end[g] = c->leaf[first + g] + (g ? l.end[g - 1] : 0);
    return l;
}
static int64_t length(const struct leaves *l) { return l->end[l->n - 1]; }

/* Elements of the contraction before the rank's. */
static int64_t begin_of(const struct cut *c)
{
    int64_t n = 0;
    for (int g = 0; g < c->first; g++)
        n += c->leaf[g];
    return n;
}

/* Values of one matrix; for 12 bits now and then one far from the others: a denormal, a zero, a large one. */
static struct mat weights(enum panel_kind kind, enum dtype dt, const struct cut *c, uint64_t stream)
{
    static const uint16_t far[] = { 0x0001, 0x8000, 0x8033, 0x0000, 0x7100, 0x8080, 0xf280 };
    const struct leaves whole = some_leaves(c, 0, c->n_leaves);
    struct mat w = new_mat(dt, outputs(c), length(&whole), stream);
    for (int64_t i = 0; kind == PANEL_B12 && i < w.rows * w.cols; i++)
        if (mix(stream + (uint64_t)i * 77) % 200 == 0)
            ((uint16_t *)w.p)[i / w.cols * w.ld + i % w.cols] = far[i % 7];
    return w;
}

/* ---- the two forms of one matrix ---- */
/* The rank's part, packed in one place. */
static struct panels pack_part(struct dev *d, struct mat w, const struct cut *c)
{
    struct panels p = { NULL, w.rows, 0, w.dt, some_leaves(c, c->first, c->count) };
    const struct mat part = mat_cols(w, begin_of(c), length(&p.leaves));
    p.k = part.cols;
    p.p = aligned_alloc(64, (panels_size(&p) + 127) / 64 * 64);
    KERNEL(d, linear_pack, &p, 1, &part);
    return p;
}

/* Whole panels in runs with 128 bytes between them; the rank points at its leaves. Memory: *all. */
static struct panels pack_runs(struct dev *d, enum panel_kind kind, struct mat w, const struct cut *c,
                               struct panel_run run[6], char **all)
{
    struct panels p = { NULL, w.rows, w.cols, w.dt, some_leaves(c, 0, c->n_leaves) };
    p.kind = kind;
    struct panels one = p;
    one.n = 32;
    p.stride = (int64_t)panels_size(&one);
    p.n_runs = c->n_runs, p.run = run;
    *all = aligned_alloc(64, (size_t)((w.rows / 32 + 7) * (p.stride + 128)) / 64 * 64);
    char *at = *all;
    memset(at, 0xff, (size_t)((w.rows / 32 + 7) * (p.stride + 128)) / 64 * 64);
    for (int r = 0; r < c->n_runs; r++) {
        run[r] = (struct panel_run){ at, c->run[r] };
        at += (c->run[r] + 31) / 32 * p.stride + 128;
        at += -(uintptr_t)at % 64;
    }
    KERNEL(d, linear_pack, &p, 1, &w);
    /* AVX2: halves of a panel stand one behind the other */
    const int is_halved = kind == PANEL_PLAIN && !strcmp(d->isa, "avx2");
    const int64_t skip = panels_leaf_at(&p, c->first) / (1 + is_halved);
    for (int r = 0; r < c->n_runs; r++)
        run[r].p = (const char *)run[r].p + skip;
    p.leaves = some_leaves(c, c->first, c->count);
    p.k = length(&p.leaves);
    return p;
}

static int reads_runs(const struct dev *d) { return strcmp(d->isa, "simt") != 0; }

/* ---- linear ---- */
static void linear_cases(struct dev *d, const struct cut *c, enum panel_kind kind, enum dtype dt,
                         const int *rows, int n)
{
    struct mat w = weights(kind, dt, c, 3);
    struct panel_run run[6];
    char *memory;
    struct panels one = pack_part(d, w, c), many = pack_runs(d, kind, w, c, run, &memory);
    for (int i = 0; i < n; i++) {
        struct mat x = new_mat(dt, rows[i], one.k, 4), want = new_mat(DT_F32, rows[i], w.rows, 0),
                   y = copy_mat(want);
        KERNEL(d, linear, want, x, &one);
        KERNEL(d, linear, y, x, &many);
        CHECK_MAT(y, want, d, rows[i]);
        FREE(x, want, y);
    }
    free(memory), free(one.p), free(w.p);
}

static void linear_everywhere(enum panel_kind kind, enum dtype dt)
{
    static const int rows[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 29, 130 };
    struct rig *r = rig_open();
    EACH_DEV(r, d)
    for (size_t i = 0; reads_runs(d) && i < sizeof cuts / sizeof *cuts; i++)
        linear_cases(d, &cuts[i], kind, dt, rows, strcmp(d->isa, "portable") ? 17 : 6);
    rig_close(r);
}

TEST(fp32_panels_in_runs_at_a_stride_give_the_bits_of_one_run) { linear_everywhere(PANEL_PLAIN, DT_F32); }
TEST(bf16_panels_in_runs_at_a_stride_give_the_bits_of_one_run) { linear_everywhere(PANEL_PLAIN, DT_BF16); }
TEST(weights_in_12_bits_give_the_bits_of_plain_panels) { linear_everywhere(PANEL_B12, DT_BF16); }

/* ---- linear_experts ---- */
static void experts_case(struct dev *d, const struct cut *c, enum panel_kind kind, enum dtype dt)
{
    enum { E = 3, ROWS = 22 };
    static const int64_t begin[E + 1] = { 0, 5, 5, ROWS };
    const struct expert_rows g = { .n = E, .begin = begin };
    struct panel_run run[E][6];
    struct panels one[E], many[E];
    struct mat w[E];
    char *memory[E];
    for (int e = 0; e < E; e++) {
        w[e] = weights(kind, dt, c, 10 + (uint64_t)e);
        one[e] = pack_part(d, w[e], c);
        /* kinds may differ among experts */
        many[e] = pack_runs(d, e == 0 ? PANEL_PLAIN : kind, w[e], c, run[e], &memory[e]);
    }
    struct mat x = new_mat(dt, ROWS, one[0].k, 4), want = new_mat(DT_F32, ROWS, w[0].rows, 0),
               y = copy_mat(want);
    KERNEL(d, linear_experts, want, listed_of(x, NULL), &g, one);
    KERNEL(d, linear_experts, y, listed_of(x, NULL), &g, many);
    CHECK_MAT(y, want, d, c->n_runs);
    for (int e = 0; e < E; e++)
        free(memory[e]), free(one[e].p), free(w[e].p);
    FREE(x, want, y);
}

TEST(experts_in_runs_at_a_stride_give_the_bits_of_one_run)
{
    struct rig *r = rig_open();
    EACH_DEV(r, d)
    for (size_t i = 0; reads_runs(d) && i + 1 < sizeof cuts / sizeof *cuts; i++)
        for (int t = 0; t < 3; t++)
            experts_case(d, &cuts[i], t == 2 ? PANEL_B12 : PANEL_PLAIN, dts[t > 0]);
    rig_close(r);
}

/* ---- 12 bits ---- */
/* The bf16 of an element and output of a piece of e elements, as kernels/gemm/b12.h describes it. */
static unsigned decode(const unsigned char *piece, int64_t e, int64_t element, int output)
{
    const int64_t lines = 1 + 32 * e / 4096;
    const unsigned char *pair = piece + 64 * lines + 192 * (element / 4);
    const int j = 16 * (output % 16 / 4) + 8 * (output / 16) + 2 * (output % 4) + (element % 2 == 0);
    const unsigned low = pair[64 + 64 * (element % 4 / 2) + j];
    const unsigned code = element % 4 < 2 ? pair[j] & 15 : pair[j] >> 4;
    unsigned high = (code & 8) << 4 | piece[code & 7];
    for (const unsigned char *word = piece + 16; word < piece + 64 * lines; word += 4)
        if ((word[1] | word[2] << 8 | word[3] << 16) == element * 32 + output)
            high = word[0];
    return high << 8 | low;
}

static struct panels b12_of(struct dev *d, struct mat w, const struct leaves *l)
{
    struct panels p = { NULL, w.rows, w.cols, DT_BF16, *l, PANEL_B12 };
    p.p = aligned_alloc(64, (panels_size(&p) + 63) / 64 * 64);
    KERNEL(d, linear_pack, &p, 1, &w);
    return p;
}

TEST(weights_in_12_bits_lie_as_their_header_says)
{
    struct rig *r = rig_open();
    EACH_DEV(r, d)
    for (size_t i = 0; reads_runs(d) && i + 1 < sizeof cuts / sizeof *cuts; i++) {
        const struct leaves l = some_leaves(&cuts[i], 0, cuts[i].n_leaves);
        struct mat w = weights(PANEL_B12, DT_BF16, &cuts[i], 5);
        struct panels p = b12_of(d, w, &l);
        for (int g = 0; g < l.n; g++)
            for (int64_t e = g ? l.end[g - 1] : 0, begin = e; e < l.end[g]; e++)
                for (int64_t o = 0; o < w.rows; o++) {
                    const unsigned char *piece = (unsigned char *)p.p + o / 32 * panels_stride(&p) +
                                                 panels_leaf_at(&p, g);
                    CHECK_INT(decode(piece, l.end[g] - begin, e - begin, (int)(o % 32)),
                              ((uint16_t *)w.p)[o * w.ld + e]);
                }
        free(p.p), free(w.p);
    }
    rig_close(r);
}

/* Two matrices of one column: all values in order; and panels of 22 neighbours and 10 values from anywhere,
 * some of which are escapes. */
static void fill_values(struct mat w, int scattered)
{
    for (int64_t i = 0; i < w.rows; i++) {
        const int64_t at = i % 32;
        const uint16_t v = (uint16_t)(at < 22 ? 0x3f80 + at : (i / 32 * 10 + at - 22) * 40503);
        ((uint16_t *)w.p)[i * w.ld] = scattered ? v : (uint16_t)i;
    }
}

TEST(every_bf16_comes_back_from_12_bits)
{
    static const int64_t counts[2] = { 65536, 6560 * 32 };
    const struct leaves l = { 1, { 1 } };
    struct rig *r = rig_open();
    EACH_DEV(r, d)
    for (int i = 0; reads_runs(d) && i < 2; i++)
        for (int rows = 1; rows <= 15; rows += 14) {
            struct mat w = new_mat(DT_BF16, counts[i], 1, 1), x = new_mat(DT_BF16, rows, 1, 1);
            struct mat want = new_mat(DT_F32, rows, counts[i], 0), y = copy_mat(want);
            for (int k = 0; k < rows; k++)
                set_elem(x, k, 0, 1);
            fill_values(w, i);
            struct panels b12 = b12_of(d, w, &l), plain = b12;
            plain.kind = PANEL_PLAIN;
            plain.p = aligned_alloc(64, panels_size(&plain));
            KERNEL(d, linear_pack, &plain, 1, &w);
            const int64_t escapes = panels_escapes(d, &plain, 1, &w);
            CHECK(i ? escapes > 3000 : escapes == 0);
            KERNEL(d, linear, want, x, &plain);
            KERNEL(d, linear, y, x, &b12);
            CHECK_MAT(y, want, d, i);
            FREE(w, x, want, y);
            free(b12.p), free(plain.p);
        }
    rig_close(r);
}

TEST(what_does_not_fit_12_bits_is_told_before)
{
    struct rig *r = rig_open();
    EACH_DEV(r, d)
    if (reads_runs(d)) {
        const struct leaves l = { 2, { 128, 256 } };
        struct mat w = new_mat(DT_BF16, 40, 256, 2);
        struct panels p = { NULL, 40, 256, DT_BF16, l, PANEL_B12 };
        for (int64_t i = 0; i < 40 * w.ld; i++)
            ((uint16_t *)w.p)[i] = 0x3f80;
        CHECK_INT(panels_escapes(d, &p, 1, &w), 0);
        /* 7 other values twice, then others once: each of these is an escape */
        for (int64_t i = 0; i < 14; i++)
            ((uint16_t *)w.p)[3 * w.ld + i] = (uint16_t)(0x4100 + 0x200 * (i / 2));
        for (int64_t i = 0; i < 27; i++)
            ((uint16_t *)w.p)[20 * w.ld + i] = (uint16_t)(0x200 * i);
        CHECK_INT(panels_escapes(d, &p, 1, &w), 27);
        ((uint16_t *)w.p)[20 * w.ld + 27] = (uint16_t)(0x200 * 27);
        CHECK_INT(panels_escapes(d, &p, 1, &w), -1);
        /* all of the second leaf */
        for (int64_t i = 0; i < 40 * w.ld; i++)
            ((uint16_t *)w.p)[i] = (uint16_t)mix((uint64_t)i);
        CHECK_INT(panels_escapes(d, &p, 1, &w), -1);
        free(w.p);
    }
    rig_close(r);
}
