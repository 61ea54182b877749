/* gemm_tile.h - the text of a tile, included once per CPU class and dtype: the order of a product is written here only.
 *
 * The including file defines
 *   TILE(layout, rows)    name of the function for that height
 *   TILE_SET              name of the table that this file ends with
 *   TILE_ROWS             heights: 2, 4, 6, 12 or 14 are generated up to that
 *   TILE_HELD             tiles of so many rows and fewer have the registers to hold the sum of a leaf until the next one's is there
 *   TILE_PANEL            columns of a panel that lie side by side; not defined: all
 *   TILE_STEP             units of a step; not defined: no steps
 *   TILE_FEW              pointer to the set of wider tiles for few rows; not defined: none
 *   V, V_WIDTH            vector type and its fp32 lanes; a tile is 2 * V_WIDTH columns wide
 *   V_ZERO() V_LOAD(p) V_STORE(p, v) V_ADD(a, b)
 *   STEP_B(b)             declares the B operands of one unit: b[0 .. 2 * V_WIDTH)
 *   STEP_B_LOWER(b)       where A is widened: those of the lower halves; STEP_B is the upper ones
 *   STEP_ROW(p, q, x)     accumulators p, q of one row: the fused multiply-adds of one unit (half of it, where A is widened) with *x
 *   CHAIN_STATE           what these need to remember from leaf to leaf; not defined: nothing
 *   CHAIN_ENTER, CHAIN_LEAVE, PIN(v)   around a leaf: for classes that must change the rounding mode; else empty
 * Accumulators are single named variables, by macro: gcc 12 keeps arrays of vectors in memory. FMA is an asm statement where all
 * registers are taken: of the intrinsic gcc 12 makes forms that overwrite a factor, and spills (6 % of the speed). */
#include <stdalign.h>
#include <stddef.h>
#include "base/alter.h"
#include "kernels/gemm_core.h"

#ifndef SHARDLINE_KERNELS_GEMM_TILE_H
#define SHARDLINE_KERNELS_GEMM_TILE_H

#define HOT_LINES 6        /* touched every 16 units; with 4 the leaves of 8 rows cost 8 % of a stream, with 6 6.5 %, with 8 11 % */

#define ROWS_1(X) X(0)
#define ROWS_2(X) ROWS_1(X) X(1)
#define ROWS_3(X) ROWS_2(X) X(2)
#define ROWS_4(X) ROWS_3(X) X(3)
#define ROWS_5(X) ROWS_4(X) X(4)
#define ROWS_6(X) ROWS_5(X) X(5)
#define ROWS_7(X) ROWS_6(X) X(6)
#define ROWS_8(X) ROWS_7(X) X(7)
#define ROWS_9(X) ROWS_8(X) X(8)
#define ROWS_10(X) ROWS_9(X) X(9)
#define ROWS_11(X) ROWS_10(X) X(10)
#define ROWS_12(X) ROWS_11(X) X(11)
#define ROWS_13(X) ROWS_12(X) X(12)
#define ROWS_14(X) ROWS_13(X) X(13)

/* Distance in floats between two rows and between two values of packed A. */
#define ROW_STEP_GEMM_LINES(rows) GEMM_LINE
#define ROW_STEP_GEMM_COLUMNS(rows) 1
#define VALUE_STEP_GEMM_LINES(rows) 1
#define VALUE_STEP_GEMM_COLUMNS(rows) (rows)

#define ROW_ZERO(i) V p##i = V_ZERO(), q##i = V_ZERO();
#define ROW_HELD(i) V hp##i = V_ZERO(), hq##i = V_ZERO();
#define ROW_HOLD(i) hp##i = p##i, hq##i = q##i;
#define ROW_ADD_HELD(i) p##i = V_ADD(hp##i, p##i), q##i = V_ADD(hq##i, q##i);
#define ROW_PIN(i) PIN(p##i) PIN(q##i)
#define ROW_STEP(i) STEP_ROW(p##i, q##i, ap + (i) * row_step + j * unit_step)
#define ROW_STEP_LOWER(i) STEP_ROW(p##i, q##i, ap + (i) * row_step + j * unit_step + value_step)
#define ROW_RESUME(i) p##i = V_LOAD(older), q##i = V_LOAD(older + V_WIDTH), older += older_ld;
#define ROW_ADD_OLDER(i) p##i = V_ADD(V_LOAD(older), p##i), q##i = V_ADD(V_LOAD(older + V_WIDTH), q##i), older += older_ld;
#define ROW_STORE(i) V_STORE(to, p##i), V_STORE(to + V_WIDTH, q##i), to += to_ld;
/* How many units from u on lie at equal distances in packed A, and where. */
static inline int64_t run_of_units(enum gemm_layout layout, int a_floats, int rows, const float *a, int64_t u, int64_t end, const float **ap)
{
    const int64_t line = GEMM_LINE / a_floats;
    if (layout == GEMM_COLUMNS) {
        *ap = a + u * rows * a_floats;
        return end - u < GEMM_LINE ? end - u : GEMM_LINE;
    }
    int64_t room = line - u % line;
    *ap = a + u / line * rows * GEMM_LINE + u % line * a_floats;
    return room < end - u ? room : end - u;
}

/* A panel that streams from memory evicts the saved sums from the L1 cache during a leaf, and their misses would wait behind the
 * stream: so some lines of them are touched in turn. */
static inline void keep_hot(const float *saved, int n_lines, int *touched)
{
    for (int i = 0; i < HOT_LINES && n_lines > 0; i++) {
        __builtin_prefetch(saved + *touched * GEMM_LINE);
        *touched = *touched + 1 < n_lines ? *touched + 1 : 0;
    }
}

#endif

#ifndef TILE_PANEL
#define TILE_PANEL GEMM_COLS
#endif
#ifndef TILE_STEP
#define TILE_STEP 0
#endif
#ifndef TILE_FEW
#define TILE_FEW NULL
#endif
#ifndef CHAIN_STATE
#define CHAIN_STATE
#endif
#ifdef STEP_B_LOWER
#define TILE_A_FLOATS 2
#define UNIT_STEP(ROWS, number)                                                                                          \
    {                                                                                                                    \
        enum { j = number };                                                                                             \
        {                                                                                                                \
            STEP_B(bp + j * TILE_PANEL)                                                                                  \
            ROWS(ROW_STEP)                                                                                               \
        }                                                                                                                \
        STEP_B_LOWER(bp + j * TILE_PANEL)                                                                                \
        ROWS(ROW_STEP_LOWER)                                                                                             \
    }
#else
#define TILE_A_FLOATS 1
#define UNIT_STEP(ROWS, number)                                                                                          \
    {                                                                                                                    \
        enum { j = number };                                                                                             \
        STEP_B(bp + j * TILE_PANEL)                                                                                      \
        ROWS(ROW_STEP)                                                                                                   \
    }
#endif
#define LEVEL_LD(e) (TILE_STEP && (e) >= s->n_out ? s->room_ld : ld)

#define TILE_FUNCTION(layout, rows)                                                                                      \
    static void TILE(layout, rows)(const struct gemm_sum *s, float *const *level, int64_t ld, const float *a, const float *b) \
    {                                                                                                                    \
        enum { row_step = ROW_STEP_##layout(rows), value_step = VALUE_STEP_##layout(rows), unit_step = TILE_A_FLOATS * value_step }; \
        enum { width = 2 * V_WIDTH };                                                                                    \
        enum { holds = rows <= TILE_HELD };                                                                              \
        alignas(64) float saved[TREE_DEPTH_MAX][rows * width];       /* entries kept.. of the stack: made by this call */    \
        int kept = s->depth_before, depth = kept;                                                                        \
        int64_t u = TILE_STEP ? s->begin : 0;                                                                            \
        int touched = 0, is_held = 0;                                                                                    \
        CHAIN_STATE                                                                                                      \
        ROWS_##rows(ROW_HELD)                                                                                            \
        for (int g = 0; g < s->n; g++) {                                                                                 \
            ROWS_##rows(ROW_ZERO)                                                                                        \
            if (TILE_STEP && g == 0 && s->resumes) {                                                                     \
                const float *older = level[depth];                                                                       \
                int64_t older_ld = LEVEL_LD(depth);                                                                      \
                ROWS_##rows(ROW_RESUME)                                                                                  \
            }                                                                                                            \
            CHAIN_ENTER                                                                                                  \
            ROWS_##rows(ROW_PIN)                                                                                         \
            for (int64_t end = s->end[g], begin = u; u < end;) {                                                         \
                const float *ap, *bp = b + u * TILE_PANEL;                                                               \
                int64_t n = run_of_units(layout, TILE_A_FLOATS, rows, a, u, end, &ap);                                   \
                if (ALTERED("gemm_chain")) {                                                                             \
                    run_of_units(layout, TILE_A_FLOATS, rows, a, begin + end - 1 - u, end, &ap);                         \
                    bp = b + (begin + end - 1 - u) * TILE_PANEL;                                                         \
                    n = 1;                                                                                               \
                }                                                                                                        \
                u += n;                                                                                                  \
                keep_hot(saved[0], (depth - kept + 1) * (rows * width / GEMM_LINE), &touched);                           \
                for (; n >= 4; n -= 4, ap += 4 * unit_step, bp += 4 * TILE_PANEL) {                                      \
                    UNIT_STEP(ROWS_##rows, 0)                                                                            \
                    UNIT_STEP(ROWS_##rows, 1)                                                                            \
                    UNIT_STEP(ROWS_##rows, 2)                                                                            \
                    UNIT_STEP(ROWS_##rows, 3)                                                                            \
                }                                                                                                        \
                for (; n > 0; n--, ap += unit_step, bp += TILE_PANEL)                                                    \
                    UNIT_STEP(ROWS_##rows, 0)                                                                            \
            }                                                                                                            \
            ROWS_##rows(ROW_PIN)                                                                                         \
            CHAIN_LEAVE                                                                                                  \
            int merge = s->merges[g];                                                                                    \
            if (holds && is_held) {                                                                                      \
                ROWS_##rows(ROW_ADD_HELD)                                                                                \
                merge--, depth--;                                                                                        \
            }                                                                                                            \
            for (; merge > 0; merge--)                                                                                   \
                if (--depth < kept) {                                                                                    \
                    const float *older = level[depth];                                                                   \
                    int64_t older_ld = LEVEL_LD(depth);                                                                  \
                    kept--;                                                                                              \
                    ROWS_##rows(ROW_ADD_OLDER)                                                                           \
                } else {                                                                                                 \
                    const float *older = saved[depth - kept];                                                            \
                    enum { older_ld = width };                                                                           \
                    ROWS_##rows(ROW_ADD_OLDER)                                                                           \
                }                                                                                                        \
            is_held = holds && g < s->n - 1 && s->merges[g + 1] > 0;                                                     \
            if (is_held) {                                                                                               \
                ROWS_##rows(ROW_HOLD)                                                                                    \
            } else if (g == s->n - 1) {                                                                                  \
                float *to = level[depth];                                                                                \
                int64_t to_ld = LEVEL_LD(depth);                                                                         \
                ROWS_##rows(ROW_STORE)                                                                                   \
            } else {                                                                                                     \
                float *to = saved[depth - kept];                                                                         \
                enum { to_ld = width };                                                                                  \
                ROWS_##rows(ROW_STORE)                                                                                   \
            }                                                                                                            \
            depth++;                                                                                                     \
        }                                                                                                                \
        for (int e = kept; e < depth - 1; e++)                                                                           \
            for (int i = 0; i < rows; i++)                                                                               \
                for (int c = 0; c < width; c++)                                                                          \
                    level[e][i * LEVEL_LD(e) + c] = saved[e - kept][i * width + c];                                      \
    }
#define TILE_PAIR(rows) TILE_FUNCTION(GEMM_LINES, rows) TILE_FUNCTION(GEMM_COLUMNS, rows)
#define TILE_ENTRIES(layout)                                                                                             \
    [layout] = { NULL, TILE(layout, 1), TILE(layout, 2), TILE_ENTRIES_4(layout) TILE_ENTRIES_6(layout)                   \
                 TILE_ENTRIES_12(layout) TILE_ENTRIES_14(layout) }

TILE_PAIR(1)
TILE_PAIR(2)
#if TILE_ROWS >= 4
TILE_PAIR(3)
TILE_PAIR(4)
#define TILE_ENTRIES_4(layout) TILE(layout, 3), TILE(layout, 4),
#else
#define TILE_ENTRIES_4(layout)
#endif
#if TILE_ROWS >= 6
TILE_PAIR(5)
TILE_PAIR(6)
#define TILE_ENTRIES_6(layout) TILE(layout, 5), TILE(layout, 6),
#else
#define TILE_ENTRIES_6(layout)
#endif
#if TILE_ROWS >= 12
TILE_PAIR(7)
TILE_PAIR(8)
TILE_PAIR(9)
TILE_PAIR(10)
TILE_PAIR(11)
TILE_PAIR(12)
#define TILE_ENTRIES_12(layout)                                                                                          \
    TILE(layout, 7), TILE(layout, 8), TILE(layout, 9), TILE(layout, 10), TILE(layout, 11), TILE(layout, 12),
#else
#define TILE_ENTRIES_12(layout)
#endif
#if TILE_ROWS >= 14
TILE_PAIR(13)
TILE_PAIR(14)
#define TILE_ENTRIES_14(layout) TILE(layout, 13), TILE(layout, 14),
#else
#define TILE_ENTRIES_14(layout)
#endif

const struct gemm_tiles TILE_SET = { TILE_ROWS, TILE_HELD, 2 * V_WIDTH, TILE_PANEL, TILE_A_FLOATS, TILE_STEP, TILE_FEW,
                                     { TILE_ENTRIES(GEMM_LINES), TILE_ENTRIES(GEMM_COLUMNS) } };

#undef TILE_FUNCTION
#undef TILE_PAIR
#undef TILE_ENTRIES
#undef TILE_ENTRIES_4
#undef TILE_ENTRIES_6
#undef TILE_ENTRIES_12
#undef TILE_ENTRIES_14
#undef TILE
#undef TILE_SET
#undef TILE_ROWS
#undef TILE_HELD
#undef STEP_B
#undef STEP_ROW
#undef CHAIN_STATE
#undef CHAIN_ENTER
#undef CHAIN_LEAVE
#undef PIN
#undef TILE_PANEL
#undef TILE_STEP
#undef TILE_FEW
#undef TILE_A_FLOATS
#undef UNIT_STEP
#undef LEVEL_LD
#undef STEP_B_LOWER
