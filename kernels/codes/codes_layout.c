/* codes_layout.c - where the pieces of a quantised panel lie, and the cuts of a product over it. */
#include "kernels/codes/codes_core.h"

#include <math.h>
#include <string.h>
#include "base/alter.h"
#include "kernels/fn.h"

const char *code_kind_name(enum code_kind k)
{
    static const char *const name[] = { "int8", "int4", "e4m3", "e2m1" };
    return name[k];
}

const char *code_class_name(enum code_class c)
{
    static const char *const name[] = { "deq", "grp", "int" };
    return name[c];
}

int64_t code_scale_bytes(enum code_scale s)
{
    static const int64_t bytes[] = { 4, 2, 2, 1 };
    return bytes[s] * CODES_COLS;
}

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

int64_t codes_head_bytes(const struct panel_codes *c)
{
    return round_up(codes_zero_offset(c) + (c->has_zeros ? CODES_COLS : 0), 32);
}

/* Bytes of a piece of n elements. */
static int64_t piece_bytes(const struct panel_codes *c, int64_t n)
{
    const int64_t pairs = (n + 3) / 4; /* of units: class int reads two at a time */
    return codes_head_bytes(c) + 64 * (codes_are_bytes(c->kind) ? 2 * pairs : pairs);
}

/* Where the piece ends that begins at element e of a leaf that ends at `end`. Altered codes_group: groups
 * are counted from the leaf's start. */
static int64_t piece_end(const struct panel_codes *c, int64_t e, int64_t leaf_begin, int64_t end)
{
    if (c->group <= 0)
        return end;
    const int64_t at = e + ORDER("codes_group", c->first, -leaf_begin), stop = e + c->group - at % c->group;
    return stop < end ? stop : end;
}

/* Cuts the piece [begin, end) at groups of activations. */
static void cut_piece(struct codes_cuts *x, int64_t leaf, int64_t begin, int64_t end, int64_t head, int step,
                      int is_int)
{
    for (int64_t b = begin, e; b < end; b = e) {
        e = is_int ? b + CODES_ACT_GROUP - (b - leaf) % CODES_ACT_GROUP : end;
        e = e < end ? e : end;
        const int64_t from = (b - begin) / step * step, packed = (e - begin - from + step - 1) / step;
        if (x->cut)
            x->cut[x->n] = (struct codes_cut){ .begin = b,
                                               .end = e,
                                               .head = head,
                                               .unit = from / 2,
                                               .n_units = packed * step / 2,
                                               .a = x->n_a,
                                               .skip = (int)(b - begin - from) };
        x->n++;
        x->n_a += packed;
    }
}

/* Altered codes_pieces: the cuts of a leaf from last to first. */
static void order_cuts(struct codes_cut *cut, int n)
{
    for (int i = 0; i < n / 2; i++) {
        const struct codes_cut c = cut[i];
        cut[i] = cut[n - 1 - i];
        cut[n - 1 - i] = c;
    }
}
static void keep_cuts(struct codes_cut *cut, int n) { (void)cut, (void)n; }

void codes_cut(struct codes_cuts *x, const struct panel_codes *c, const struct leaves *l, int step)
{
    int64_t at = 0, begin = 0;
    x->n = 0, x->n_a = 0, x->n_leaves = l->n;
    for (int g = 0; g < l->n; g++) {
        const int64_t leaf = begin;
        x->leaf[g] = x->n;
        for (int64_t end; begin < l->end[g]; begin = end) {
            end = piece_end(c, begin, leaf, l->end[g]);
            cut_piece(x, leaf, begin, end, at, step, c->class == CODES_INT);
            at += piece_bytes(c, end - begin);
        }
        at = round_up(at, 64);
        if (x->cut && c->class != CODES_DEQ)
            ORDER("codes_pieces", keep_cuts, order_cuts)(x->cut + x->leaf[g], x->n - x->leaf[g]);
    }
    x->leaf[l->n] = x->n;
}

int64_t codes_leaf_offset(const struct panel_codes *c, const struct leaves *l, int g)
{
    int64_t at = 0, begin = 0;
    for (int i = 0; i < g; i++) {
        const int64_t leaf = begin;
        for (int64_t end; begin < l->end[i]; begin = end) {
            end = piece_end(c, begin, leaf, l->end[i]);
            at += piece_bytes(c, end - begin);
        }
        at = round_up(at, 64);
    }
    return at;
}

size_t codes_bytes(int64_t n, const struct panel_codes *c, const struct leaves *l)
{
    return (size_t)((n + CODES_COLS - 1) / CODES_COLS * codes_leaf_offset(c, l, l->n));
}

const char *codes_misfit(const struct panel_codes *c, const struct leaves *l)
{
    const int is_deq = c->class == CODES_DEQ, is_float = c->kind == CODE_E4M3 || c->kind == CODE_E2M1;
    if (is_deq != is_float)
        return is_float ? "floating-point codes are computed as dequantised weights only"
                        : "integer codes are computed by groups only";
    if (is_float && (c->has_zeros || c->has_mins))
        return "floating-point codes have no zero points";
    if (c->kind == CODE_E2M1 && c->scale != CODE_SCALE_E8M0)
        return "codes of four bits in floating point need scales that are powers of two";
    if (c->has_zeros && c->has_mins)
        return "codes have zero points or minima, not both";
    for (int64_t begin = 0, g = 0; is_deq && g < l->n; g++) {
        const int64_t leaf = begin;
        for (int64_t end; begin < l->end[g]; begin = end) {
            end = piece_end(c, begin, leaf, l->end[g]);
            if ((begin - leaf) % 2)
                return "a group begins in the middle of a pair";
        }
    }
    return NULL;
}

static float from_f16(uint16_t h)
{
    const int e = h >> 10 & 31, m = h & 1023;
    const float size = e == 31 ? (m ? NAN : INFINITY)
                       : e     ? ldexpf((float)(1024 + m), e - 25)
                               : ldexpf((float)m, -24);
    return h & 0x8000 ? -size : size;
}

float code_scale_at(enum code_scale s, const uint8_t *head, int col)
{
    uint16_t h;
    float x;
    switch (s) {
    case CODE_SCALE_F32: memcpy(&x, head + 4 * col, 4); return x;
    case CODE_SCALE_BF16: memcpy(&h, head + 2 * col, 2); return fn_from_bf16(h);
    case CODE_SCALE_F16: memcpy(&h, head + 2 * col, 2); return from_f16(h);
    default: return head[col] == 255 ? NAN : ldexpf(1, head[col] - 127);
    }
}

float code_number(enum code_kind k, int code)
{
    static const float e2m1[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    if (k == CODE_E2M1)
        return code & 8 ? -e2m1[code & 7] : e2m1[code & 7];
    const int e = code >> 3 & 15, m = code & 7;
    const float size = e == 15 && m == 7 ? NAN : e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
    return code & 128 ? -size : size;
}
