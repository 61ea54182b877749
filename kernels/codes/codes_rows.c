/* codes_rows.c - activations of a product over quantised panels: packed by tiles, quantised for class int. */
#include <math.h>
#include <string.h>
#include "base/alter.h"
#include "kernels/codes/codes_core.h"
#include "kernels/flushed.h"
#include "kernels/fn.h"
#include "kernels/gemm/product.h"

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__)
#define ROWS_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ROWS_CLONES
#endif

/* ---- bf16 pairs ---- */

static void pack_pairs(const struct codes_rows *t, int row, const uint16_t *x, const struct codes_cuts *cuts)
{
    for (int i = 0; i < cuts->n; i++) {
        const struct codes_cut *c = &cuts->cut[i];
        uint32_t *to = t->a + c->a * t->rows + row;
        int64_t e = c->begin;
        for (; e + 1 < c->end; e += 2, to += t->rows)
            *to = (uint32_t)x[e] << 16 | x[e + 1];
        if (e < c->end)
            *to = (uint32_t)x[e] << 16;
    }
}

/* The chain of a cut where every code is one. An addition of numbers that flushing leaves is exact where its
 * result is denormal, so flushing it afterwards is what the chain does. */
static float sum_of(const uint16_t *x, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum = flushed(flushed(fn_from_bf16(x[i])) + sum);
    return sum;
}

/* ---- codes of 8 bits ---- */

/* The largest magnitude of n bf16, as bits: exact, in any order. */
ROWS_CLONES
static uint16_t largest(const uint16_t *x, int64_t n)
{
    uint16_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t size = x[i] & 0x7fff;
        most = size > most ? size : most;
    }
    return most;
}

/* code[i] = x[i] / scale to the nearest integer, ties to even: adding 1.5 * 2^23 leaves it in the low bits.
 */
ROWS_CLONES
static void encode(const uint16_t *x, int64_t n, float scale, int8_t *code)
{
    for (int64_t i = 0; i < n; i++)
        code[i] = (int8_t)fn_bits(fn_from_bf16(x[i]) / scale + 0x1.8p23f);
}

/* code[CODES_ACT_GROUP]: the codes of a group of n activations, then zeros; returns their scale. Denormals
 * count as zero, as in the bf16 chain; a group with NaN or infinity has the scale NaN. */
static float encode_group(const uint16_t *x, int64_t n, int8_t *code)
{
    const uint16_t most = largest(x, n);
    const float scale = fn_from_bf16(most) / 127;
    memset(code, 0, CODES_ACT_GROUP);
    if (most < 0x80)
        return 0;
    if (most >= 0x7f80)
        return NAN;
    encode(x, n, scale, code);
    return scale;
}

/* The quantised elements of one cut, which lie at code[0 .. CODES_ACT_GROUP). */
static void pack_codes(const struct codes_rows *t, int row, const struct codes_cut *c, const int8_t *code,
                       int step)
{
    const int64_t n = c->end - c->begin;
    int8_t padded[CODES_ACT_GROUP + 8] = { 0 };
    uint32_t *to = t->a + c->a * t->rows + row;
    memcpy(padded + c->skip, code, (size_t)n);
    for (int64_t e = 0; e < c->skip + n; e += step, to += t->rows) {
        const int8_t *p = padded + e;
        *to = step == 4 ? (uint32_t)(uint8_t)p[1] | (uint32_t)(uint8_t)p[0] << 8 |
                              (uint32_t)(uint8_t)p[3] << 16 | (uint32_t)(uint8_t)p[2] << 24
                        : (uint32_t)(uint16_t)p[1] | (uint32_t)(uint16_t)p[0] << 16;
    }
}

static void pack_int(const struct codes_rows *t, int row, const uint16_t *x, const struct codes_cuts *cuts,
                     const struct leaves *l, int step)
{
    int64_t begin = 0;
    for (int g = 0; g < cuts->n_leaves; begin = l->end[g++]) {
        int8_t code[CODES_ACT_GROUP];
        float scale = 0;
        int64_t at = -1;
        for (int i = cuts->leaf[g]; i < cuts->leaf[g + 1]; i++) {
            const struct codes_cut *c = &cuts->cut[i];
            const int64_t group = begin + (c->begin - begin) / CODES_ACT_GROUP * CODES_ACT_GROUP;
            const int64_t end = min_of(group + CODES_ACT_GROUP, l->end[g]);
            int32_t sum = 0;
            if (group != at)
                scale = encode_group(x + group, end - group, code);
            at = group;
            for (int64_t e = c->begin; e < c->end; e++)
                sum += code[e - group];
            pack_codes(t, row, c, code + (c->begin - group), step);
            t->factor[i * t->rows + row] = scale;
            t->isum[i * t->rows + row] = sum;
        }
    }
}

void codes_pack_rows(const struct codes_rows *t, const struct panel_codes *c, const struct codes_cuts *cuts,
                     const struct leaves *l, int step)
{
    for (int r = 0; r < t->rows; r++) {
        const uint16_t *x = (const uint16_t *)(const void *)listed_row(t->x, t->first + r);
        if (c->class == CODES_INT) {
            pack_int(t, r, x, cuts, l, step);
            continue;
        }
        pack_pairs(t, r, x, cuts);
        for (int i = 0; c->has_mins && i < cuts->n; i++)
            t->sum[i * t->rows + r] = sum_of(x + cuts->cut[i].begin, cuts->cut[i].end - cuts->cut[i].begin);
    }
}
