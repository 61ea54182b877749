/* attn_cut_test.c - attn_dx where the rows of sequences lie by leaves (kernels/attn_cut.h): bits of the
 * definition, which is written down again here, over all leaves and over parts of them. */
#include "tests/test.h"

#include "tests/unit/kernels/attn_definition.h"

enum { HEAD = 8, KV = 2, GROUP = 2, MOST_DOCS = 8, MOST_LEAVES = 4 };
/* Two sequences of len tokens, n_leaves leaves each; documents end before token end[i], the last is 2 len. */
struct layout {
    int64_t len;
    int n_leaves, n_docs;
    int64_t end[MOST_DOCS];
};
static const struct layout layouts[] = {
    { 256, 2, 2, { 256, 512 } },
    { 128, 4, 2, { 128, 256 } },
    { 96, 4, 2, { 96, 192 } },                    /* chunks of 12: they cut every block */
    { 256, 2, 6, { 3, 70, 256, 300, 449, 512 } }, /* documents, also of one chunk */
    { 200, 4, 5, { 130, 131, 200, 390, 400 } },
};
enum { N_LAYOUTS = sizeof layouts / sizeof *layouts };

struct docs {
    const struct layout *l;
    struct world *w[MOST_DOCS];
    int64_t begin[MOST_DOCS];
    float *dk[MOST_DOCS][MOST_LEAVES], *dv[MOST_DOCS][MOST_LEAVES]; /* of a leaf: [n][KV HEAD] */
};

/* The leaf of a token of a sequence, and where its row lies among those of a sequence. */
static int chunk_of(const struct layout *l, int64_t token)
{
    return (int)(token % l->len / (l->len / (2 * l->n_leaves)));
}
static int leaf_of(const struct layout *l, int64_t token)
{
    const int c = chunk_of(l, token);
    return c < l->n_leaves ? c : 2 * l->n_leaves - 1 - c;
}
static int64_t row_of_token(const struct layout *l, int64_t token)
{
    int64_t row = token / l->len * l->len;
    for (int g = 0; g < l->n_leaves; g++)
        for (int half = 0; half < 2; half++)
            for (int64_t t = 0; t < l->len; t++)
                if (chunk_of(l, t) == (half ? 2 * l->n_leaves - 1 - g : g)) {
                    if (t == token % l->len)
                        return row;
                    row++;
                }
    return -1;
}

/* dK (x = q, p = dS) or dV of key j of one query head over a leaf's queries: blocks of 64 positions of the
 * document, cut where chunks end, in order; blocks that a window leaves out are +0; none at all: -0. */
static float ref_leaf(const struct docs *s, int i, int leaf, int h, const float *p, int64_t wide,
                      const float *x, int64_t j, int c)
{
    const struct world *w = s->w[i];
    float total = -0.0f;
    int n = 0;
    for (int64_t t = j / 64 * 64, end; t < w->T; t = end) {
        float sum = 0;
        end = t + 1;
        while (end < w->T && end % 64 && chunk_of(s->l, s->begin[i] + end) == chunk_of(s->l, s->begin[i] + t))
            end++;
        if (leaf_of(s->l, s->begin[i] + t) != leaf)
            continue;
        for (int64_t q = t; q < end; q++)
            sum = step(w->dt, p[q * wide + j], q_of(w, x, h, q)[c], sum);
        sum = pair_end(w->dt, end - t, sum);
        total = n++ ? total + sum : sum;
    }
    return total;
}

/* All leaves of dK and dV of a document: Tree(GROUP) of its heads. */
static void ref_leaves(struct docs *s, int i)
{
    const struct world *w = s->w[i];
    const int64_t wide = (w->T + 63) / 64 * 64;
    float *P[KV * GROUP], *dS[KV * GROUP];
    for (int h = 0; h < KV * GROUP; h++) {
        P[h] = zeros(w->T * wide), dS[h] = zeros(w->T * wide);
        ref_pairs(w, h, P[h], dS[h], wide);
    }
    for (int leaf = 0; leaf < s->l->n_leaves; leaf++) {
        s->dk[i][leaf] = zeros(w->T * KV * HEAD), s->dv[i][leaf] = zeros(w->T * KV * HEAD);
        for (int64_t at = 0; at < w->T * KV * HEAD; at++) {
            const int64_t j = at / (KV * HEAD), g = at / HEAD % KV, c = at % HEAD;
            float k[GROUP], v[GROUP];
            for (int m = 0; m < GROUP; m++) {
                const int h = (int)g * GROUP + m;
                k[m] = ref_leaf(s, i, leaf, h, dS[h], wide, w->q, j, (int)c) * w->scale;
                v[m] = ref_leaf(s, i, leaf, h, P[h], wide, w->dout, j, (int)c);
            }
            s->dk[i][leaf][at] = tree_sum(GROUP, k, 1);
            s->dv[i][leaf][at] = tree_sum(GROUP, v, 1);
        }
    }
    for (int h = 0; h < KV * GROUP; h++)
        free(P[h]), free(dS[h]);
}

static struct docs docs_of(const struct layout *l, enum dtype dt, int64_t window)
{
    struct docs s = { .l = l };
    for (int i = 0; i < l->n_docs; i++) {
        s.begin[i] = i ? l->end[i - 1] : 0;
        s.w[i] = world_of(dt, KV, GROUP, HEAD, l->end[i] - s.begin[i]);
        s.w[i]->window = window;
        ref_forward(s.w[i]);
        ref_backward(s.w[i]);
        ref_leaves(&s, i);
    }
    return s;
}

static void docs_free(struct docs *s)
{
    for (int i = 0; i < s->l->n_docs; i++) {
        world_free(s->w[i]);
        for (int leaf = 0; leaf < s->l->n_leaves; leaf++)
            free(s->dk[i][leaf]), free(s->dv[i][leaf]);
    }
}

/* ---- calling the kernel ---- */
static void put(void *to, enum dtype dt, int64_t i, float x)
{
    if (dt == DT_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = fn_to_bf16(x);
}

/* A document's keys and values in pages of its own. */
static char **pages_of_doc(const struct world *w)
{
    const int64_t n = (w->T + 63) / 64;
    const size_t bytes = attn_page_bytes(KV, HEAD, w->dt);
    char **page = malloc((size_t)n * sizeof *page);
    for (int64_t b = 0; b < n; b++)
        page[b] = calloc(1, bytes);
    for (int64_t at = 0; at < w->T * KV * HEAD; at++) {
        const int64_t j = at / (KV * HEAD), g = at / HEAD % KV, x = at % HEAD;
        put(page[j / 64], w->dt, g * 2 * 64 * HEAD + x * 64 + j % 64, w->k[at]);
        put(page[j / 64], w->dt, g * 2 * 64 * HEAD + 64 * HEAD + j % 64 * HEAD + x, w->v[at]);
    }
    return page;
}

/* What a rank with leaves [first, first + count) passes and gets; one: as of struct attn_cut. */
struct call {
    const struct docs *s;
    int first, count, one, n_runs;
    int64_t rows; /* of queries */
    char **page[MOST_DOCS];
    struct attn_seq doc[MOST_DOCS], run[64];
    struct mat q, out, dout, dq, dk, dv;
    float *lse;
};

/* A token's row among those of the rank, or -1. */
static int64_t query_row(const struct call *c, int64_t token)
{
    const struct layout *l = c->s->l;
    const int64_t leaf_rows = l->len / l->n_leaves, seq = token / l->len;
    const int leaf = leaf_of(l, token);
    if (leaf < c->first || leaf >= c->first + c->count)
        return -1;
    return row_of_token(l, token) - seq * l->len - c->first * leaf_rows + seq * c->count * leaf_rows;
}

static struct mat matrix(enum dtype dt, int64_t rows, int64_t cols)
{
    return mat_of(calloc((size_t)(rows * cols), dtype_size(dt)), dt, rows, cols, cols);
}

static void copy_row(struct mat m, int64_t row, const float *from)
{
    for (int64_t x = 0; x < m.cols; x++)
        put(m.p, m.dt, row * m.ld + x, from[x]);
}

static void open_call(struct call *c)
{
    const struct layout *l = c->s->l;
    const enum dtype dt = c->s->w[0]->dt;
    const int heads = KV * GROUP;
    c->rows = 2 * l->len * c->count / l->n_leaves;
    c->q = matrix(dt, c->rows, heads * HEAD), c->out = matrix(dt, c->rows, heads * HEAD);
    c->dout = matrix(dt, c->rows, heads * HEAD), c->dq = matrix(DT_F32, c->rows, heads * HEAD);
    c->dk = matrix(DT_F32, 2 * l->len, KV * HEAD), c->dv = matrix(DT_F32, 2 * l->len, KV * HEAD);
    c->lse = zeros(c->rows * heads);
    for (int i = 0; i < l->n_docs; i++) {
        const struct world *w = c->s->w[i];
        c->page[i] = pages_of_doc(w);
        c->doc[i] = (struct attn_seq){ c->s->begin[i], w->T, 0, c->page[i] };
        for (int64_t t = 0; t < w->T; t++) {
            const int64_t row = query_row(c, c->s->begin[i] + t);
            struct attn_seq *last = c->n_runs ? &c->run[c->n_runs - 1] : NULL;
            if (row < 0)
                continue;
            copy_row(c->q, row, w->q + t * heads * HEAD);
            copy_row(c->out, row, w->out + t * heads * HEAD);
            copy_row(c->dout, row, w->dout + t * heads * HEAD);
            memcpy(c->lse + row * heads, w->lse + t * heads, sizeof(float) * (size_t)heads);
            if (last && last->page == c->page[i] && last->pos + last->n_rows == t &&
                last->row + last->n_rows == row)
                last->n_rows++;
            else
                c->run[c->n_runs++] = (struct attn_seq){ row, 1, t, c->page[i] };
        }
    }
}

static void close_call(struct call *c)
{
    for (int i = 0; i < c->s->l->n_docs; i++) {
        for (int64_t b = 0; b < (c->s->w[i]->T + 63) / 64; b++)
            free(c->page[i][b]);
        free(c->page[i]);
    }
    free(c->q.p), free(c->out.p), free(c->dout.p), free(c->dq.p), free(c->dk.p), free(c->dv.p);
    free(c->lse);
}

static int same(const float *x, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(x + i, want + i, sizeof *x)) {
            printf("element %lld: %a, not %a\n", (long long)i, (double)x[i], (double)want[i]);
            return 0;
        }
    return 1;
}

/* The rank's part of dK or dV of a key: the tree over its leaves. */
static float want_of(const struct call *c, float *const leaf[MOST_LEAVES], int64_t at)
{
    float x[MOST_LEAVES];
    if (c->one)
        return leaf[c->first + c->one - 1][at];
    for (int g = 0; g < c->count; g++)
        x[g] = leaf[c->first + g][at];
    return tree_sum(c->count, x, 1);
}

static int is_defined(const struct call *c)
{
    const int width = KV * HEAD, wide = GROUP * width;
    int ok = 1;
    for (int i = 0; i < c->s->l->n_docs; i++)
        for (int64_t t = 0; t < c->s->w[i]->T && ok; t++) {
            const int64_t token = c->s->begin[i] + t, key = row_of_token(c->s->l, token);
            const int is_asked = !c->one || leaf_of(c->s->l, token) == c->first + c->one - 1;
            const int64_t row = is_asked ? query_row(c, token) : -1;
            float dk[KV * HEAD], dv[KV * HEAD];
            for (int x = 0; x < width; x++) {
                dk[x] = want_of(c, c->s->dk[i], t * width + x);
                dv[x] = want_of(c, c->s->dv[i], t * width + x);
            }
            ok &= same((float *)c->dk.p + key * width, dk, width);
            ok &= same((float *)c->dv.p + key * width, dv, width);
            ok &= row < 0 || same((float *)c->dq.p + row * wide, c->s->w[i]->dq + t * wide, wide);
        }
    return ok;
}

static void check_part(struct dev *d, const struct docs *s, int first, int count, int one)
{
    struct call c = { .s = s, .first = first, .count = count, .one = one };
    open_call(&c);
    struct attn a = { .n_heads = KV * GROUP,
                      .n_kv = KV,
                      .head_dim = HEAD,
                      .dt = s->w[0]->dt,
                      .scale = s->w[0]->scale,
                      .n_seq = c.n_runs,
                      .seq = c.run,
                      .window = s->w[0]->window,
                      .cut = { s->l->n_leaves, first, count, s->l->n_docs, s->l->len, one, c.doc } };
    const struct attn_kept kept = { c.out, c.q, c.lse };
    KERNEL(d, attn_dx, &a, c.dq, c.dk, c.dv, c.dout, kept);
    if (!is_defined(&c))
        test_fail(__FILE__, __LINE__, "%s %s: len %d, leaves %d + %d of %d, one %d, window %d", d->isa,
                  dtype_name(a.dt), (int)s->l->len, first, count, s->l->n_leaves, one, (int)a.window);
    close_call(&c);
}

/* On every CPU class: all leaves, each half of them, each one, and one of a half. */
static void check_layout(const struct layout *l, enum dtype dt, int64_t window, int threads)
{
    static const char *const isa[] = { "portable", "avx2", "avx512", "avx512bf16", "simt" };
    struct docs s = docs_of(l, dt, window);
    for (size_t i = 0; i < sizeof isa / sizeof *isa; i++) {
        struct mem mem = { 0 };
        struct err e;
        struct dev *d;
        setenv("SHARDLINE_ISA", isa[i], 1);
        if (dev_open(&d, "cpu", threads, &mem, &e) < 0)
            continue;
        for (int count = l->n_leaves; count > 0; count /= 2)
            for (int first = 0; first < l->n_leaves; first += count)
                check_part(d, &s, first, count, 0);
        for (int one = 1; one <= l->n_leaves / 2; one++)
            check_part(d, &s, 0, l->n_leaves / 2, one);
        dev_close(d);
    }
    unsetenv("SHARDLINE_ISA");
    docs_free(&s);
}

TEST(leaves_of_sequences_equal_the_definition)
{
    for (int i = 0; i < N_LAYOUTS; i++)
        for (int dt = DT_F32; dt <= DT_BF16; dt++)
            check_layout(&layouts[i], dt, 0, 1);
}
TEST(leaves_seen_through_a_window_equal_the_definition)
{
    check_layout(&layouts[2], DT_BF16, 9, 1);
    check_layout(&layouts[3], DT_F32, 70, 1);
    check_layout(&layouts[4], DT_BF16, 70, 1);
}
TEST(leaves_give_the_same_bits_on_any_number_of_threads)
{
    check_layout(&layouts[4], DT_F32, 0, 2);
    check_layout(&layouts[4], DT_F32, 70, 3);
}
