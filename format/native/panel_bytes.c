/* panel_bytes.c - see panel_bytes.h. */
#include "format/native/panel_bytes.h"

#include <string.h>
#include "format/native/panel_b12.h"

#define COLS PANEL_OUTPUTS
#define LINE (COLS * (int64_t)4) /* bytes of a unit: one element of F32, two of BF16 */
#define BLOCK 16                 /* units that are turned at once: their lines stay in the first cache */

/* ---- plain ---- */

static int64_t units_of(enum stored_dtype dtype, int64_t n) { return dtype == STORED_F32 ? n : (n + 1) / 2; }

static uint32_t take(const char *p, enum stored_dtype dtype)
{
    uint32_t w = 0;
    memcpy(&w, p, dtype == STORED_F32 ? 4 : 2);
    return w;
}

/* Unit u of a leaf of n elements, of one output whose first element is at p. */
static uint32_t unit_of(const char *p, int64_t in, enum stored_dtype dtype, int64_t u, int64_t n)
{
    if (dtype == STORED_F32)
        return take(p + u * in, dtype);
    uint32_t first = take(p + 2 * u * in, dtype);
    return first << 16 | (2 * u + 1 < n ? take(p + (2 * u + 1) * in, dtype) : 0);
}

static uint32_t turn(uint32_t w, enum stored_dtype dtype)
{
    return dtype == STORED_F32 ? w : w << 16 | w >> 16;
}

/* Whole units [u, u + BLOCK) of 32 outputs whose elements are neighbours in memory. */
static void encode_block(uint32_t *to, struct panel_view from, enum stored_dtype dtype, int64_t u)
{
    uint32_t in[COLS][BLOCK];
    for (int c = 0; c < COLS; c++)
        memcpy(in[c], from.p + c * from.out + 4 * u, sizeof in[c]);
    for (int i = 0; i < BLOCK; i++)
        for (int c = 0; c < COLS; c++)
            to[(u + i) * COLS + c] = turn(in[c][i], dtype);
}

static int plain_encode(char *leaf, struct panel_view from, enum stored_dtype dtype, int n_out, int64_t n)
{
    uint32_t *to = (uint32_t *)(void *)leaf;
    int size = dtype == STORED_F32 ? 4 : 2;
    int64_t u = 0, whole = n * size / 4;
    if (from.in == size && n_out == COLS)
        for (; u + BLOCK <= whole; u += BLOCK)
            encode_block(to, from, dtype, u);
    for (; u < units_of(dtype, n); u++)
        for (int c = 0; c < COLS; c++)
            to[u * COLS + c] = c < n_out ? unit_of(from.p + c * from.out, from.in, dtype, u, n) : 0;
    return 0;
}

static void decode_block(const uint32_t *from, struct panel_view to, enum stored_dtype dtype, int first,
                         int n_out)
{
    uint32_t out[COLS][BLOCK];
    for (int i = 0; i < BLOCK; i++)
        for (int c = 0; c < COLS; c++)
            out[c][i] = turn(from[i * COLS + c], dtype);
    for (int c = 0; c < n_out; c++)
        memcpy(to.p + c * to.out, out[first + c], sizeof out[c]);
}

/* The line of element i, which is not behind the last one. */
static int64_t plain_line(enum stored_dtype dtype, int64_t i)
{
    return LINE * (dtype == STORED_F32 ? i : i / 2);
}

static int64_t plain_bytes(enum stored_dtype dtype, int64_t n) { return LINE * units_of(dtype, n); }

static struct panel_span plain_span(enum stored_dtype dtype, int64_t n, int64_t begin, int64_t end)
{
    (void)n;
    return (struct panel_span){ plain_line(dtype, begin), plain_line(dtype, end - 1) + LINE };
}

static void plain_decode(const char *span, enum stored_dtype dtype, int64_t n, int64_t begin, int64_t end,
                         int first, int n_out, struct panel_view to)
{
    const uint32_t *from = (const uint32_t *)(const void *)span;
    const int size = dtype == STORED_F32 ? 4 : 2, each = 4 / size;
    int64_t i = begin;
    (void)n;
    if (to.in == size && begin % each == 0)
        for (; i + BLOCK * each <= end; i += BLOCK * each)
            decode_block(from + (i - begin) / each * COLS,
                         (struct panel_view){ to.p + (i - begin) * size, to.out, size }, dtype, first, n_out);
    for (; i < end; i++) {
        const uint32_t *line = from + (i / each - begin / each) * COLS;
        for (int c = 0; c < n_out; c++) {
            uint32_t w = line[first + c] >> (each == 2 && i % 2 == 0 ? 16 : 0);
            memcpy(to.p + c * to.out + (i - begin) * to.in, &w, (size_t)size);
        }
    }
}

/* ---- bf16 in 12 bits: a leaf is read whole ---- */

static int64_t narrow_bytes(enum stored_dtype dtype, int64_t n)
{
    (void)dtype;
    return b12_leaf_bytes(n);
}

static struct panel_span narrow_span(enum stored_dtype dtype, int64_t n, int64_t begin, int64_t end)
{
    (void)dtype, (void)begin, (void)end;
    return (struct panel_span){ 0, b12_leaf_bytes(n) };
}

static int narrow_encode(char *leaf, struct panel_view from, enum stored_dtype dtype, int n_out, int64_t n)
{
    (void)dtype;
    return b12_encode(leaf, from, n_out, n);
}

static void narrow_decode(const char *span, enum stored_dtype dtype, int64_t n, int64_t begin, int64_t end,
                          int first, int n_out, struct panel_view to)
{
    (void)dtype;
    b12_decode(span, n, begin, end, first, n_out, to);
}

/* ---- kinds ---- */

static const struct {
    const char *name;
    int takes[2];                                         /* F32, BF16 */
    int64_t most;                                         /* a leaf has fewer elements */
    int64_t (*bytes)(enum stored_dtype dtype, int64_t n); /* of a leaf of n elements */
    /* What of a leaf of n elements is read for [begin, end) of it. */
    struct panel_span (*span)(enum stored_dtype dtype, int64_t n, int64_t begin, int64_t end);
    int (*encode)(char *leaf, struct panel_view from, enum stored_dtype dtype, int n_out, int64_t n);
    void (*decode)(const char *span, enum stored_dtype dtype, int64_t n, int64_t begin, int64_t end,
                   int first, int n_out, struct panel_view to);
} kinds[CKPT_PANEL_KINDS] = {
    [CKPT_PANELS_PLAIN] = { "plain",
                            { 1, 1 },
                            (int64_t)1 << 40,
                            plain_bytes,
                            plain_span,
                            plain_encode,
                            plain_decode },
    [CKPT_PANELS_B12] = { "b12",
                          { 0, 1 },
                          B12_ELEMENTS,
                          narrow_bytes,
                          narrow_span,
                          narrow_encode,
                          narrow_decode },
};

int panel_kind_find(const char *word)
{
    for (int i = 0; i < CKPT_PANEL_KINDS; i++)
        if (!strcmp(word, kinds[i].name))
            return i;
    return -1;
}

const char *ckpt_panel_kind_name(enum ckpt_panel_kind kind) { return kinds[kind].name; }

int panel_kind_takes(enum ckpt_panel_kind kind, enum stored_dtype dtype)
{
    return (dtype == STORED_F32 && kinds[kind].takes[0]) || (dtype == STORED_BF16 && kinds[kind].takes[1]);
}

int64_t panel_kind_most(enum ckpt_panel_kind kind) { return kinds[kind].most; }

void panel_leaves(enum ckpt_panel_kind kind, enum stored_dtype dtype, int n_leaves, const int64_t *leaf_end,
                  int64_t *offset)
{
    offset[0] = 0;
    for (int g = 0; g < n_leaves; g++)
        offset[g + 1] = offset[g] + kinds[kind].bytes(dtype, leaf_end[g] - (g ? leaf_end[g - 1] : 0));
}

/* ---- panels ---- */

static int64_t leaf_begin(const struct ckpt_pack *k, int g) { return g ? k->leaf_end[g - 1] : 0; }

int panel_encode(const struct ckpt_pack *k, struct panel_view from, int n_out, char *panel)
{
    int rc = 0;
    for (int g = 0; g < k->n_leaves && rc >= 0; g++) {
        int64_t begin = leaf_begin(k, g);
        struct panel_view at = { from.p + begin * from.in, from.out, from.in };
        rc = kinds[k->kind].encode(panel + k->leaf_offset[g], at, k->dtype, n_out, k->leaf_end[g] - begin);
    }
    return rc;
}

/* The bytes of the panel for what leaf g has of [begin, end); *a, *b: those elements, counted in the leaf. 0:
 * it has none. */
static int leaf_span(const struct ckpt_pack *k, int g, int64_t begin, int64_t end, int64_t *a, int64_t *b,
                     struct panel_span *out)
{
    int64_t first = leaf_begin(k, g);
    *a = (begin > first ? begin : first) - first;
    *b = (end < k->leaf_end[g] ? end : k->leaf_end[g]) - first;
    if (*a >= *b)
        return 0;
    *out = kinds[k->kind].span(k->dtype, k->leaf_end[g] - first, *a, *b);
    out->begin += k->leaf_offset[g];
    out->end += k->leaf_offset[g];
    return 1;
}

struct panel_span panel_span_of(const struct ckpt_pack *k, int64_t begin, int64_t end)
{
    struct panel_span all = { -1, 0 }, one;
    int64_t a, b;
    for (int g = 0; g < k->n_leaves; g++)
        if (leaf_span(k, g, begin, end, &a, &b, &one))
            all = (struct panel_span){ all.begin < 0 ? one.begin : all.begin, one.end };
    return all;
}

void panel_decode(const struct ckpt_pack *k, const char *span, int64_t begin, int64_t end, int first,
                  int n_out, struct panel_view to)
{
    int64_t base = panel_span_of(k, begin, end).begin, a, b;
    struct panel_span one;
    for (int g = 0; g < k->n_leaves; g++) {
        int64_t from = leaf_begin(k, g);
        if (leaf_span(k, g, begin, end, &a, &b, &one))
            kinds[k->kind].decode(span + one.begin - base, k->dtype, k->leaf_end[g] - from, a, b, first,
                                  n_out,
                                  (struct panel_view){ to.p + (from + a - begin) * to.in, to.out, to.in });
    }
}
