/* codes_pack.c - codes in natural order become panels. */
#include <string.h>
#include "kernels/codes/codes_core.h"
#include "kernels/fn.h"

/* The outputs of one panel: where each row lies. */
struct column {
    const uint8_t *code;
    const float *scale, *min;
    const int16_t *zero;
};
struct packing {
    const struct panels *w;
    struct codes_cuts cuts; /* pieces */
    const struct panel_codes *codes;
    int n_w;
    const struct codes_source *source;
};

static struct column column_at(const struct codes_source *s, int64_t i)
{
    const int64_t at = (s->scale_first + i) / s->scale_rows * s->scale_ld;
    return (struct column){ s->code + i * s->code_ld, s->scale + at, s->min ? s->min + at : NULL,
                            s->zero ? s->zero + at : NULL };
}

/* To the nearest fp16; exact for what was one. */
static uint16_t to_f16(float x)
{
    const uint32_t u = fn_bits(x), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
    if (size >= 0x7f800000)
        return (uint16_t)(sign | (size > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (size >= 0x47800000)
        return (uint16_t)(sign | 0x7c00);
    if (size >= 0x38800000)
        return (uint16_t)(sign | ((size - 0x38000000) >> 13));
    /* adding 2^-1 * 2^-24 * 2^24 moves a denormal's bits to the end */
    return (uint16_t)(sign | (fn_bits(fn_float(size) + 0.5f) - 0x3f000000));
}

static void put_scale(enum code_scale s, uint8_t *head, int col, float x)
{
    const uint32_t u = fn_bits(x);
    const uint16_t h = s == CODE_SCALE_BF16 ? (uint16_t)(u >> 16) : to_f16(x);
    switch (s) {
    case CODE_SCALE_F32: memcpy(head + 4 * col, &x, 4); return;
    case CODE_SCALE_BF16:
    case CODE_SCALE_F16: memcpy(head + 2 * col, &h, 2); return;
    default: head[col] = (uint8_t)(u >> 23); return;
    }
}

/* Where the code of element e (of the piece) and output col lies in the piece's lines; *shift: 4 for a high
 * nibble. */
static int64_t code_place(enum code_kind k, int64_t e, int col, int *shift)
{
    const int64_t unit = e / 2, line = codes_are_bytes(k) ? unit : unit / 2;
    *shift = codes_are_bytes(k) ? 0 : 4 * (int)(unit % 2);
    return 64 * line + col % 16 / 4 * 16 + col / 16 * 8 + col % 4 * 2 + (e % 2 == 0);
}

static void pack_column(const struct packing *a, const struct codes_cut *piece, uint8_t *to, int col,
                        const struct column *from)
{
    const struct panel_codes *c = a->codes;
    const int64_t group = c->group > 0 ? (c->first + piece->begin) / c->group - c->first / c->group : 0;
    const int64_t n = piece->end - piece->begin;
    int zero = codes_zero(c), shift;
    put_scale(c->scale, to, col, from ? from->scale[group] : 0);
    if (c->has_mins)
        put_scale(c->scale, to + codes_min_offset(c), col, from ? from->min[group] : 0);
    if (c->has_zeros) {
        zero = from ? from->zero[group] : 0;
        to[codes_zero_offset(c) + col] = (uint8_t)zero;
    }
    to += codes_head_bytes(c);
    for (int64_t e = 0; e < (n + 3) / 4 * 4; e++) {
        const uint8_t code = from && e < n ? from->code[piece->begin + e] : (uint8_t)zero;
        const int64_t at = code_place(c->kind, e, col, &shift);
        to[at] |= (uint8_t)(code << shift);
    }
}

/* The output `out` of all matrices. */
static struct column column_of(const struct packing *a, int64_t out)
{
    const struct codes_source *s = a->source;
    for (; out >= s->n; s++)
        out -= s->n;
    return column_at(s, out);
}

static void pack_panel(void *arg, int64_t panel, int thread)
{
    const struct packing *a = arg;
    const int64_t bytes = codes_leaf_offset(a->codes, &a->w->leaves, a->w->leaves.n);
    const int64_t stride = a->w->stride ? a->w->stride : bytes;
    uint8_t *to = (uint8_t *)a->w->p + panel * stride;
    (void)thread;
    memset(to, 0, (size_t)bytes);
    for (int col = 0; col < CODES_COLS; col++) {
        const int64_t out = panel * CODES_COLS + col;
        const struct column from = out < a->w->n ? column_of(a, out) : (struct column){ 0 };
        for (int i = 0; i < a->cuts.n; i++)
            pack_column(a, &a->cuts.cut[i], to + a->cuts.cut[i].head, col, out < a->w->n ? &from : NULL);
    }
}

/* The pieces of w, whatever its class. NULL: no memory. */
static struct codes_cut *pieces_of(struct dev *d, struct codes_cuts *x, const struct panel_codes *c,
                                   const struct leaves *l)
{
    struct panel_codes whole = *c;
    whole.class = CODES_GRP;
    *x = (struct codes_cuts){ 0 };
    codes_cut(x, &whole, l, 2);
    x->cut = dev_scratch(d, 2, sizeof *x->cut * (size_t)x->n + 64);
    if (x->cut)
        codes_cut(x, &whole, l, 2);
    return x->cut;
}

void codes_pack(struct dev *d, const struct panels *w, int n_w, const struct codes_source *source)
{
    struct packing a = { .w = w, .codes = w->codes, .n_w = n_w, .source = source };
    if (pieces_of(d, &a.cuts, w->codes, &w->leaves))
        pool_run(d->pool, (w->n + CODES_COLS - 1) / CODES_COLS, pack_panel, &a);
}
