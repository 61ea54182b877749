/* attn_text.h - attention forward and backward: one text, compiled once a CPU class (attn.c, x86/attn_*.c).
 *
 * Keys are counted from the sequence's first token, in blocks of 64 (a page) and segments of 1024. A query row is one position p
 * of one head; its key blocks 0 .. p / 64 are run whole, no other; a key behind p has score -inf, so its p is +0. So has a key
 * before the window, p - window + 1. A block that a row sees nothing of leaves the row's m, l and o as they are, and a segment that
 * it sees nothing of is not merged: such blocks need not be run. Backward they would add +0: where they are left out, + 0 is added.
 *
 * Forward, a row (online softmax: Milakov and Gimelshein 2018; Dao et al. 2022):
 *   s_j = scale * chain over head_dim of fma(q_i, k_ji, .) from +0, ascending
 *   in a segment, from m = -inf, l = 0, o = 0, block by block:
 *     m' = max(m, s_0 .. s_63), c = exp(m - m'), p_j = exp(s_j - m'), l = fma(l, c, sum32(p)), o_i = o_i * c,
 *     then the chain o_i = fma(p_j, v_ji, o_i) over the 64 keys, ascending
 *     sum32: x[i] + x[i + 32], then halves folded, + 16, 8, 4, 2, 1
 *   the first segment's state is the total; a later one is merged: M = max(mt, ms), a = exp(mt - M), b = exp(ms - M),
 *     l = fma(lt, a, ls * b), o = fma(ot, a, os * b)
 *   out = round(o / l), lse = m + log(l)
 *
 * Backward, whole sequences, a pair (query i, key j) of a head:
 *   D_i = the 32 lanes of fma(dout, out, .), folded; P = exp(s - lse), masked +0; dP = chain over head_dim of dout_i . v_j;
 *   dS = P * (dP - D)
 *   dQ_i: a key block is a chain from +0 over its 64 keys of fma(dS_j, k_j, .); blocks are added in order onto the first; * scale
 *   dK_j, dV_j: a query block (64 positions, from the key's own upward) is a chain from +0 over its queries that exist of
 *     fma(dS_i, q_i, .), fma(P_i, dout_i, .); blocks are added in order onto the first; dK * scale
 *   dK, dV of a kv head: Tree(group) over its query heads, each complete
 *
 * bf16: operands are widened exactly, p (for P.V and dV) and dS are rounded to bf16 as operands; the chains, and nothing else, run
 * with inputs and results flushed to signed zero, and one of odd length ends with fma(+0, +0, .): the order and the bits of the
 * dot instruction. So a row's bits do not depend on which rows share its tile, its call, or its batch. */

#include <math.h>
#include <string.h>

#include "base/alter.h"
#include "kernels/attn.h"
#include "kernels/attn_tile.h"
#include "kernels/fn.h"

#define ROWS_MAX 64                             /* query rows that share a load of K and V */
#define SEGMENT_BLOCKS (ATTN_SEGMENT / ATTN_PAGE)

static int64_t padded(int64_t n) { return (n + 15) & ~(int64_t)15; }

/* ---- operands: how values of either dtype are laid out for a product of chain c ---- */
typedef uint32_t pair_of __attribute__((may_alias, aligned(2)));        /* pairs live in arrays of float */
typedef uint16_t half_of __attribute__((may_alias));

static enum chain chain_of(const struct attn *a) { return a->dt == DT_F32 ? CHAIN_PLAIN : HAVE_PAIRS ? CHAIN_PAIRS : CHAIN_FLUSH; }
static int64_t steps_of(enum chain c, int64_t n) { return c == CHAIN_PAIRS ? (n + 1) / 2 : n; }

/* One row of n values. */
static void widen_row(float *to, const void *src, enum dtype dt, int64_t n)
{
    if (dt == DT_F32) {
        memcpy(to, src, (size_t)n * 4);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        to[i] = fn_from_bf16(((const half_of *)src)[i]);
}

/* A: the contraction runs along a row of n values. */
static void operand_across(float *to, const void *src, enum dtype dt, int64_t n, enum chain c)
{
    pair_of *pair = (pair_of *)to;
    const half_of *x = src;
    if (c != CHAIN_PAIRS) {
        widen_row(to, src, dt, n);
        return;
    }
    for (int64_t i = 0; i < n / 2; i++) {
        const uint32_t two = ((const pair_of *)src)[i];
        pair[i] = two << 16 | two >> 16;
    }
    if (n % 2)
        pair[n / 2] = (uint32_t)x[n - 1] << 16;
}

/* B: the contraction runs down the rows of [rows][cols]; columns behind cols are not touched, they are never looked at. */
static void operand_down(float *to, int64_t ld, const void *src, int64_t ld_src, enum dtype dt, int64_t rows, int64_t cols, enum chain c)
{
    if (c != CHAIN_PAIRS) {
        for (int64_t r = 0; r < rows; r++)
            widen_row(to + r * ld, (const char *)src + (size_t)(r * ld_src) * dtype_size(dt), dt, cols);
        return;
    }
#if HAVE_PAIRS
    if (cols % VW == 0) {
        for (int64_t r = 0; r < rows; r += 2)
            for (int64_t i = 0; i < cols; i += VW)
                V_STORE(to + r / 2 * ld + i, V_LOAD_PAIRS((const half_of *)src + r * ld_src + i, r + 1 < rows ? ld_src : 0, r + 1 < rows));
        return;
    }
#endif
    for (int64_t r = 0; r < rows; r += 2) {
        pair_of *pair = (pair_of *)(to + r / 2 * ld);
        const half_of *x = (const half_of *)src + r * ld_src, *y = x + ld_src;
        if (r + 1 < rows)
            for (int64_t i = 0; i < cols; i++)
                pair[i] = (uint32_t)x[i] << 16 | y[i];
        else
            for (int64_t i = 0; i < cols; i++)
                pair[i] = (uint32_t)x[i] << 16;
    }
}

/* B of the transpose: [rows][cols] in memory, the contraction runs along cols. */
static void operand_turned(float *to, int64_t ld, const void *src, int64_t ld_src, enum dtype dt, int64_t rows, int64_t cols, enum chain c)
{
    float line[ATTN_PAGE];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i += ATTN_PAGE) {
            const int64_t n = cols - i < ATTN_PAGE ? cols - i : ATTN_PAGE;
            operand_across(line, (const char *)src + (size_t)(r * ld_src + i) * dtype_size(dt), dt, n, c);
            float *at = to + steps_of(c, i) * ld + r;
            for (int64_t x = 0; x < steps_of(c, n); x++)
                memcpy(at + x * ld, line + x, 4);
        }
}

/* ---- what both directions know of a task: one sequence, one kv head ---- */
struct view {
    const struct attn *a;
    const struct attn_seq *seq;
    int kv, group;                              /* query heads kv * group .. of this kv head */
};

/* The first key that position p sees. */
static int64_t first_key(const struct attn *a, int64_t p) { return a->window > 0 && p >= a->window ? p - a->window + 1 : 0; }

static const void *element(struct mat m, int64_t row, int64_t col)
{
    return (const char *)m.p + (size_t)(row * m.ld + col) * dtype_size(m.dt);
}

static const char *page_of(const struct view *v, int64_t block)
{
    const struct attn *a = v->a;
    return v->seq->page[block] + a->page_off + (size_t)v->kv * 2 * ATTN_PAGE * (size_t)a->head_dim * dtype_size(a->dt);
}

/* K of a block, [head_dim][64], and V, [64][padded head_dim], as operands: in place where they are that already, else in `room`. */
static const float *keys_of(const struct view *v, int64_t block, float *room)
{
    const struct attn *a = v->a;
    const char *p = page_of(v, block);
    if (a->dt == DT_F32)
        return (const float *)p;
    operand_down(room, ATTN_PAGE, p, ATTN_PAGE, a->dt, a->head_dim, ATTN_PAGE, chain_of(a));
    return room;
}

static const char *raw_values(const struct view *v, int64_t block)
{
    return page_of(v, block) + (size_t)(ATTN_PAGE * v->a->head_dim) * dtype_size(v->a->dt);
}

static const float *values_of(const struct view *v, int64_t block, float *room)
{
    const struct attn *a = v->a;
    const int64_t d = a->head_dim;
    const char *p = raw_values(v, block);
    if (a->dt == DT_F32 && d == padded(d))
        return (const float *)p;
    operand_down(room, padded(d), p, d, a->dt, ATTN_PAGE, d, chain_of(a));
    return room;
}

/* ---- lanes ---- */
/* x[0..32) folded by halves; x is used up. */
static float fold32(float *x)
{
    for (int w = 16; w > 0; w >>= 1)
        for (int i = 0; i < w; i++)
            x[i] = x[i] + x[i + w];
    return x[0];
}

/* ---- rows of one block: 64 floats, N_V vectors ---- */
#define N_V (ATTN_PAGE / VW)
#if !HAVE_PAIRS
#define V_STORE_PAIRS(p, low, high) ((void)0)
#define V_STORE_HALVES(p, low, high) ((void)0)
#endif

/* A row of the first factor of a product: as it is, rounded to bf16, or as pairs. */
static inline void store_across(float *to, const V *x, enum chain c)
{
    for (int i = 0; i < N_V && c != CHAIN_PAIRS; i++)
        V_STORE(to + i * VW, c == CHAIN_PLAIN ? x[i] : V_ROUND(x[i]));
    for (int i = 0; i < N_V / 2 && c == CHAIN_PAIRS; i++)
        V_STORE_PAIRS(to + i * VW, x[2 * i], x[2 * i + 1]);
}

/* The same for a product whose contraction runs down the rows: pairs are made later, of whole rows of bf16. */
static inline void store_down(float *to, const V *x, enum chain c)
{
    if (c != CHAIN_PAIRS)
        store_across(to, x, c);
    for (int i = 0; i < N_V / 2 && c == CHAIN_PAIRS; i++)
        V_STORE_HALVES(to + i * VW, x[2 * i], x[2 * i + 1]);
}

/* The first `from` values of a row and those behind the first `live` become `none`. */
static inline V keep_seen(V x, int64_t from, int64_t live, V none) { return V_KEEP(none, from, V_KEEP(x, live, none)); }

/* x[i] + x[i + 32], then + 16, as long as these are whole vectors: V_FOLD_ADD goes on inside the one. */
static inline V sum_vectors(V *x)
{
    if (ALTERED("attn_block_sum")) {            /* one chain over the 64 */
        float p[ATTN_PAGE], sum[VW] = { 0 };
        for (int i = 0; i < N_V; i++)
            V_STORE(p + i * VW, x[i]);
        for (int j = 0; j < ATTN_PAGE; j++)
            sum[0] = sum[0] + p[j];
        return V_LOAD(sum);
    }
    for (int w = N_V / 2; w > 0; w >>= 1)
        for (int i = 0; i < w; i++)
            x[i] = V_ADD(x[i], x[i + w]);
    return x[0];
}

static inline V max_vectors(const float *s)
{
    V x[N_V];
    for (int i = 0; i < N_V; i++)
        x[i] = V_LOAD(s + i * VW);
    for (int w = N_V / 2; w > 0; w >>= 1)
        for (int i = 0; i < w; i++)
            x[i] = V_MAX(x[i], x[i + w]);
    return x[0];
}

static inline float exp_one(float x)
{
    float y[VW];
    V_STORE(y, V_EXP(V_SET1(x)));
    return y[0];
}

/* No memory for scratch: every element becomes NaN, which the next check of numbers reports. */
static void poison(struct mat m)
{
    for (int64_t r = 0; r < m.rows; r++)
        for (int64_t c = 0; c < m.cols; c++)
            if (m.dt == DT_F32)
                ((float *)m.p)[r * m.ld + c] = FN_NAN;
            else
                ((uint16_t *)m.p)[r * m.ld + c] = fn_to_bf16(FN_NAN);
}

#include "kernels/attn_fwd_text.h"
#include "kernels/attn_dx_text.h"

const struct attn_ops ATTN_OPS = { .attn = attn_forward, .attn_dx = attn_backward };
