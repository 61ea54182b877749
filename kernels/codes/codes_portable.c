/* codes_portable.c - sums over quantised panels in plain C: the definition. Slow, and the same bits. */
#include <math.h>
#include <string.h>
#include "base/alter.h"
#include "kernels/codes/codes_core.h"
#include "kernels/flushed.h"
#include "kernels/fn.h"
#include "kernels/order.h"

/* Where the code of element e of a piece lies: the inverse of codes_pack.c's place. */
static int code_at(const struct panel_codes *c, const uint8_t *lines, int64_t e, int col)
{
    const int64_t unit = e / 2, line = codes_are_bytes(c->kind) ? unit : unit / 2;
    const uint8_t byte = lines[64 * line + col % 16 / 4 * 16 + col / 16 * 8 + col % 4 * 2 + (e % 2 == 0)];
    if (c->kind == CODE_S8)
        return (int8_t)byte;
    return codes_are_bytes(c->kind) ? byte : byte >> 4 * (unit % 2) & 15;
}

static int zero_of(const struct panel_codes *c, const uint8_t *head, int col)
{
    const uint8_t zero = head[codes_zero_offset(c) + col];
    if (!c->has_zeros)
        return codes_zero(c);
    return c->kind == CODE_S8 ? (int8_t)zero : zero;
}

/* What the chain multiplies with, as bf16. */
static uint16_t operand(const struct panel_codes *c, const uint8_t *head, int64_t e, int col)
{
    const int code = code_at(c, head + codes_head_bytes(c), e, col);
    if (c->class != CODES_DEQ)
        return fn_to_bf16((float)(code - zero_of(c, head, col)));
    const float number = code_number(c->kind, code);
    return fn_to_bf16(isnan(number) ? number : number * code_scale_at(c->scale, head, col));
}

static void portable_unpack(const struct codes_job *j, uint32_t *plain)
{
    for (int i = 0; i < j->n_cuts; i++) {
        const struct codes_cut *c = &j->cut[i];
        const uint8_t *head = j->panel + c->head;
        uint32_t *to = plain + (c->a - j->first_a) * CODES_COLS;
        for (int64_t u = 0; u < c->n_units; u++)
            for (int col = 0; col < CODES_COLS; col++)
                to[u * CODES_COLS + col] = (uint32_t)operand(j->codes, head, 2 * u, col) << 16 |
                                           operand(j->codes, head, 2 * u + 1, col);
    }
}

static float half_of(uint32_t pair, int upper)
{
    return flushed(fn_float(upper ? pair & 0xffff0000u : pair << 16));
}

static float chain(const uint32_t *a, int rows, const uint32_t *w, int64_t n, float sum)
{
    const struct index_order order = ORDER("codes_chain", forward_order(), backward_order(n));
    for (int64_t i = 0; i < n; i++) {
        const int64_t u = index_at(order, i);
        for (int upper = 1; upper >= 0; upper--)
            sum = fma_flushed(half_of(a[u * rows], upper), half_of(w[u * CODES_COLS], upper), sum);
    }
    return sum;
}

static float leaf_sum(const struct codes_job *j, int row, int col)
{
    const struct panel_codes *c = j->codes;
    float leaf = 0;
    for (int i = 0; i < j->n_cuts; i++) {
        const struct codes_cut *cut = &j->cut[i];
        const uint8_t *head = j->panel + cut->head;
        const uint32_t *a = j->a + cut->a * j->rows + row;
        const uint32_t *w = j->plain + (cut->a - j->first_a) * CODES_COLS + col;
        if (c->class == CODES_DEQ) {
            leaf = chain(a, j->rows, w, cut->n_units, leaf);
            continue;
        }
        leaf = fmaf(code_scale_at(c->scale, head, col), chain(a, j->rows, w, cut->n_units, 0), leaf);
        if (c->has_mins)
            leaf = fmaf(-code_scale_at(c->scale, head + codes_min_offset(c), col), j->sum[i * j->rows + row],
                        leaf);
    }
    return leaf;
}

static void portable_sums(const struct codes_job *j)
{
    for (int row = 0; row < j->rows; row++)
        for (int col = 0; col < CODES_COLS; col++)
            j->out[row * CODES_COLS + col] = leaf_sum(j, row, col);
}

static float leaf_sum_int(const struct codes_job *j, int row, int col)
{
    const struct panel_codes *c = j->codes;
    float leaf = 0;
    for (int i = 0; i < j->n_cuts; i++) {
        const struct codes_cut *cut = &j->cut[i];
        const uint8_t *head = j->panel + cut->head, *lines = head + codes_head_bytes(c);
        const float factor = j->factor[i * j->rows + row];
        int32_t sum = 0;
        for (int64_t e = 0; e < 2 * cut->n_units; e++) {
            const uint32_t pair = j->a[(cut->a + e / 2) * j->rows + row];
            const int16_t a = (int16_t)(e % 2 ? pair : pair >> 16);
            sum += a * (code_at(c, lines, 2 * cut->unit + e, col) - zero_of(c, head, col));
        }
        leaf = fmaf((float)sum, factor * code_scale_at(c->scale, head, col), leaf);
        if (c->has_mins)
            leaf = fmaf((float)-j->isum[i * j->rows + row],
                        factor * code_scale_at(c->scale, head + codes_min_offset(c), col), leaf);
    }
    return leaf;
}

static void portable_sums_int(const struct codes_job *j)
{
    for (int row = 0; row < j->rows; row++)
        for (int col = 0; col < CODES_COLS; col++)
            j->out[row * CODES_COLS + col] = leaf_sum_int(j, row, col);
}

static void portable_add(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

static int always(void) { return 1; }

const struct codes_ops codes_portable = { .name = "portable",
                                          .here = always,
                                          .step = 2,
                                          .rows = 4,
                                          .rows_few = 0,
                                          .rows_int = 4,
                                          .unpack = portable_unpack,
                                          .sums = portable_sums,
                                          .sums_int = portable_sums_int,
                                          .add = portable_add };
