/* gemm_pack.c - operands of products copied into the order in which tiles read them (layouts: gemm_core.h).
 *
 * A pair of bf16 holds the earlier element in its upper half: the dot instruction takes the upper half
 * first, so that the chain ascends. In memory the earlier element is the lower half of a 32-bit word:
 * copying rows is a rotation by 16. */
#include "kernels/gemm/product.h"

#include <string.h>

/* Copying is the same in every CPU class: the widest registers that the machine has are taken when the
 * program is loaded. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__)
#define PACK_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PACK_CLONES
#endif
/* else compiled once, for the oldest machine */
#define IN_CLONE static inline __attribute__((always_inline))

typedef uint32_t word4 __attribute__((vector_size(16)));

static inline uint16_t half_at(const char *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}

/* Altered gemm_bf16_pair: the later element is in the upper half. */
static inline int pairs_swapped(void) { return ORDER("gemm_bf16_pair", 0, 1); }

static inline uint32_t pair_of(uint16_t first, uint16_t second, int swapped)
{
    return swapped ? (uint32_t)second << 16 | first : (uint32_t)first << 16 | second;
}

/* ---- weights: 32 rows become the columns of a panel
 * ---------------------------------------------------------------- */

/* Unit `u` of a leaf that begins at src; last: only one element of a pair is left. */
static uint32_t unit_at(const char *src, int64_t u, enum dtype dt, int last, int swapped)
{
    uint32_t w;
    if (dt == DT_F32) {
        memcpy(&w, src + 4 * u, 4);
        return w;
    }
    return pair_of(half_at(src + 4 * u), last ? 0 : half_at(src + 4 * u + 2), swapped);
}

static inline word4 units4(const char *src, int rotate)
{
    word4 v;
    memcpy(&v, src, 16);
    return rotate ? v << 16 | v >> 16 : v;
}

/* 4 rows x 4 units, transposed: panel[u][j]. */
IN_CLONE void transpose4(uint32_t *panel, int cols, const char *const src[4], int64_t off, int rotate)
{
    word4 a = units4(src[0] + off, rotate), b = units4(src[1] + off, rotate);
    word4 c = units4(src[2] + off, rotate), d = units4(src[3] + off, rotate);
    word4 ab = __builtin_shuffle(a, b, (word4){ 0, 4, 1, 5 }),
          cd = __builtin_shuffle(c, d, (word4){ 0, 4, 1, 5 });
    word4 AB = __builtin_shuffle(a, b, (word4){ 2, 6, 3, 7 }),
          CD = __builtin_shuffle(c, d, (word4){ 2, 6, 3, 7 });
    word4 out[4] = { __builtin_shuffle(ab, cd, (word4){ 0, 1, 4, 5 }),
                     __builtin_shuffle(ab, cd, (word4){ 2, 3, 6, 7 }),
                     __builtin_shuffle(AB, CD, (word4){ 0, 1, 4, 5 }),
                     __builtin_shuffle(AB, CD, (word4){ 2, 3, 6, 7 }) };
    for (int i = 0; i < 4; i++)
        memcpy(panel + i * cols, &out[i], 16);
}

/* Rows src[0..n_rows) of one leaf: n_elems elements from byte `off`. Whole blocks of 4x4 units are
 * transposed in registers. */
IN_CLONE void pack_panel_leaf(uint32_t *panel, int cols, enum dtype dt, const char *const *src, int n_rows,
                              int64_t off, int64_t n_elems)
{
    int swapped = pairs_swapped();
    int64_t n_units = gemm_units(dt, n_elems), n_whole = dt == DT_F32 ? n_elems : n_elems / 2;
    int64_t n_fast = n_whole / 4 * 4;
    int rows_fast = n_rows / 4 * 4;
    for (int64_t block = 0; block < n_fast; block += GEMM_LINE) {
        int64_t stop = block + GEMM_LINE < n_fast ? block + GEMM_LINE : n_fast;
        for (int j = 0; j < rows_fast; j += 4)
            for (int64_t u = block; u < stop; u += 4)
                transpose4(panel + u * cols + j, cols, src + j, off + 4 * u, dt == DT_BF16 && !swapped);
    }
    for (int64_t u = 0; u < n_units; u++)
        for (int j = u < n_fast ? rows_fast : 0; j < cols; j++)
            panel[u * cols + j] = j < n_rows ? unit_at(src[j] + off, u, dt, u >= n_whole, swapped) : 0;
}

PACK_CLONES
void gemm_block_plain(const struct gemm_block *b)
{
    const int64_t elems = b->dt == DT_F32 ? b->units : 2 * b->units - b->is_single;
    uint32_t *to = (uint32_t *)(void *)b->to;
    if (b->cols == GEMM_COLS)
        pack_panel_leaf(to, GEMM_COLS, b->dt, b->row, b->n_rows, b->off, elems);
    else
        pack_panel_leaf(to, b->cols, b->dt, b->row, b->n_rows, b->off, elems);
}

/* Columns w[0 .. n_rows) of a panel, `cols` of them side by side. */
static void pack_columns(float *panel, int cols, gemm_block_fn *block, enum dtype dt,
                         const struct gemm_sum *s, const char *const *w, int n_rows, int64_t row_bytes)
{
    for (int g = 0; g < s->n; g++) {
        int64_t begin = g ? s->elem_end[g - 1] : 0, unit = g ? s->end[g - 1] : 0;
        int64_t n = s->elem_end[g] - begin;
        block(&(struct gemm_block){ .to = panel + unit * cols,
                                    .cols = cols,
                                    .dt = dt,
                                    .row = w,
                                    .n_rows = n_rows,
                                    .row_bytes = n_rows > 0 ? row_bytes : 0,
                                    .off = begin * (int64_t)dtype_size(dt),
                                    .units = gemm_units(dt, n),
                                    .is_single = dt == DT_BF16 && n % 2 });
    }
}

void gemm_pack_panel(float *panel, const struct gemm_tiles *tiles, enum dtype dt, const struct gemm_sum *s,
                     const char *const *w, int n_rows, int64_t row_bytes)
{
    pack_columns(panel, tiles->panel_cols, tiles->block, dt, s, w, n_rows, row_bytes);
}

void gemm_unpack_rows(float *to, int cols, const struct gemm_panel *from, const struct gemm_sum *s,
                      gemm_block_fn *block)
{
    const int64_t row_bytes = panels_stride(from->w), units = s->end[s->n - 1];
    const char *row[GEMM_COLS];
    for (int i = 0; i < from->n; i++)
        row[i] = from->p + i * row_bytes;
    for (int in = 0; in < GEMM_COLS; in += cols) {
        const int left = from->n > in ? from->n - in : 0;
        pack_columns(to + in * units, cols, block, from->w->dt, s, row + in, left < cols ? left : cols,
                     row_bytes);
    }
}

void gemm_unpack_rows_plain(float *to, int cols, const struct gemm_panel *from, const struct gemm_sum *s)
{
    gemm_unpack_rows(to, cols, from, s, gemm_block_plain);
}

/* ---- rows: lines of 16 units
 * ------------------------------------------------------------------------------------------ */

/* The address of unit u of the row in its tile; *left: units from there to the end of its line. */
static inline uint32_t *line_at(float *row, int rows, int64_t u, int64_t *left)
{
    *left = GEMM_LINE - u % GEMM_LINE;
    return (uint32_t *)(void *)row + u / GEMM_LINE * rows * GEMM_LINE + u % GEMM_LINE;
}

IN_CLONE void copy_line(uint32_t *to, const char *src, int64_t n, int rotate)
{
    uint32_t line[GEMM_LINE];
    memcpy(line, src, 4 * (size_t)n);
    for (int64_t i = 0; rotate && i < n; i++)
        line[i] = line[i] << 16 | line[i] >> 16;
    memcpy(to, line, 4 * (size_t)n);
}

/* bytes: rows often come from the L3 cache, later than the machine asks for them by itself */
#define LINES_AHEAD 3072

IN_CLONE void copy_lines(float *row, int rows, int64_t u, const char *src, int64_t n, int rotate)
{
    int64_t left;
    uint32_t *to = line_at(row, rows, u, &left);
    if (left < GEMM_LINE || n < GEMM_LINE) {
        int64_t head = n < left ? n : left;
        copy_line(to, src, head, rotate);
        n -= head, src += 4 * head;
        to = line_at(row, rows, u + head, &left);
    }
    for (; n >= GEMM_LINE; n -= GEMM_LINE, src += 4 * GEMM_LINE, to += rows * GEMM_LINE) {
        __builtin_prefetch(src + LINES_AHEAD);
        copy_line(to, src, GEMM_LINE, rotate);
    }
    if (n > 0)
        copy_line(to, src, n, rotate);
}

IN_CLONE void copy_units(float *row, int rows, int64_t u, const char *src, int64_t n, int rotate)
{
    if (rotate)
        copy_lines(row, rows, u, src, n, 1);
    else
        copy_lines(row, rows, u, src, n, 0);
}

/* n bf16 elements from src become elements elem… of the leaf that begins at `unit`: a run may begin or end
 * within a pair. */
IN_CLONE void lines_bf16(float *row, int rows, int64_t unit, int64_t elem, const char *src, int64_t n)
{
    int swapped = pairs_swapped();
    int64_t left;
    if (elem % 2 && n > 0) {
        uint32_t *to = line_at(row, rows, unit + elem / 2, &left);
        *to |= pair_of(0, half_at(src), swapped);
        src += 2, elem++, n--;
    }
    copy_units(row, rows, unit + elem / 2, src, n / 2, !swapped);
    if (n % 2)
        *line_at(row, rows, unit + (elem + n) / 2, &left) = pair_of(half_at(src + 2 * (n - 1)), 0, swapped);
}

/* One matrix: its leaves are neighbours in the row and, up to one that is odd in bf16, in units. */
IN_CLONE void pack_row(float *line, int rows, const struct gemm_sum *s, enum dtype dt, const char *p)
{
    int64_t begin = 0, unit = 0;
    for (int g = 0; g < s->n; g++) {
        int64_t n = s->elem_end[g] - begin;
        if (n % 2 == 0 && g < s->n - 1)
            continue;
        if (dt == DT_F32)
            copy_units(line, rows, unit, p + 4 * begin, n, 0);
        else
            lines_bf16(line, rows, unit, 0, p + 2 * begin, n);
        begin = s->elem_end[g], unit = s->end[g];
    }
}

PACK_CLONES
void gemm_pack_lines(float *line, int rows, const struct gemm_sum *s, int n_src, const struct listed *src,
                     const struct leaves *l, int64_t row)
{
    if (n_src == 1) {
        pack_row(line, rows, s, src->m.dt, listed_row(src, row));
        return;
    }
    const struct index_order segments = segment_order(n_src);
    for (int g = 0; g < s->n; g++) {
        int64_t unit = g ? s->end[g - 1] : 0, elem = 0;
        for (int i = 0; i < n_src; i++) {
            const int64_t from = index_at(segments, i);
            const struct mat m = src[from].m;
            int64_t begin = g ? l[from].end[g - 1] : 0, n = (s->n == 1 ? m.cols : l[from].end[g]) - begin;
            const char *p = listed_row(&src[from], row) + begin * (int64_t)dtype_size(m.dt);
            if (m.dt == DT_F32)
                copy_units(line, rows, unit + elem, p, n, 0);
            else
                lines_bf16(line, rows, unit, elem, p, n);
            elem += n;
        }
    }
}

/* ---- the same for bf16 widened to fp32: a unit is two values
 * ---------------------------------------------------------- */

/* n values from src become values at, at + 1 … of the row; swapped: altered. */
IN_CLONE void widen_values(float *row, int rows, int64_t at, const char *src, int64_t n, int swapped)
{
    uint32_t *to = (uint32_t *)(void *)row;
    int64_t i = 0;
    while (!swapped && i < n) {
        int64_t in = (at + i) % GEMM_LINE, stop = i + GEMM_LINE - in < n ? i + GEMM_LINE - in : n;
        uint32_t *line = to + (at + i) / GEMM_LINE * rows * GEMM_LINE + in;
        uint16_t half[GEMM_LINE];
        if (stop - i == GEMM_LINE) {
            __builtin_prefetch(src + 2 * i + LINES_AHEAD);
            memcpy(half, src + 2 * i, sizeof half);
            for (int j = 0; j < GEMM_LINE; j++)
                line[j] = (uint32_t)half[j] << 16;
        } else {
            for (int64_t j = i; j < stop; j++)
                line[j - i] = (uint32_t)half_at(src + 2 * j) << 16;
        }
        i = stop;
    }
    for (; i < n; i++)
        to[((at + i) ^ 1) / GEMM_LINE * rows * GEMM_LINE + ((at + i) ^ 1) % GEMM_LINE] =
            (uint32_t)half_at(src + 2 * i) << 16;
}

PACK_CLONES
void gemm_pack_lines_wide(float *line, int rows, const struct gemm_sum *s, int n_src,
                          const struct listed *src, const struct leaves *l, int64_t row)
{
    /* one value is taken; gcc 12 sees the whole line read */
    static const char none[2 * GEMM_LINE];
    const int swapped = pairs_swapped();
    const struct index_order segments = segment_order(n_src);
    for (int g = 0; g < s->n; g++) {
        int64_t at = g ? 2 * s->end[g - 1] : 0;
        for (int i = 0; i < n_src; i++) {
            const int64_t from = index_at(segments, i);
            int64_t begin = g ? l[from].end[g - 1] : 0;
            int64_t n = (s->n == 1 ? src[from].m.cols : l[from].end[g]) - begin;
            widen_values(line, rows, at, listed_row(&src[from], row) + begin * 2, n, swapped);
            at += n;
        }
        if (at < 2 * s->end[g])
            widen_values(line, rows, at, none, 1, swapped);
    }
}

/* ---- contraction-major rows: columns of a panel, rows of a weight gradient's tile
 * ------------------------------------- */

IN_CLONE void copy_words(float *to, const char *from, int n)
{
    size_t bytes = (size_t)n * 4;
    if (n == GEMM_COLS) {
        memcpy(to, from, 4 * GEMM_COLS);
    } else if (n >= 8 && n <= 16) { /* two copies of a fixed size that overlap */
        memcpy(to, from, 32);
        memcpy((char *)to + bytes - 32, from + bytes - 32, 32);
    } else {
        memcpy(to, from, bytes);
    }
}

IN_CLONE void pair_fixed(uint32_t *to, const char *first, const char *second, int n, int shift)
{
    uint16_t a[GEMM_COLS], b[GEMM_COLS];
    memcpy(a, first, 2 * (size_t)n);
    memcpy(b, second, 2 * (size_t)n);
    for (int j = 0; j < n; j++)
        to[j] = (uint32_t)a[j] << shift | (uint32_t)b[j] << (16 - shift);
}

IN_CLONE void pair_words(float *out, const char *first, const char *second, int n)
{
    uint32_t *to = (uint32_t *)(void *)out;
    int shift = pairs_swapped() ? 0 : 16;
    if (n == GEMM_COLS) {
        pair_fixed(to, first, second, GEMM_COLS, shift);
    } else if (n >= 8 && n <= 16) {
        pair_fixed(to, first, second, 8, shift);
        pair_fixed(to + n - 8, first + 2 * (n - 8), second + 2 * (n - 8), 8, shift);
    } else {
        pair_fixed(to, first, second, n, shift);
    }
}

/* Unit u, made of one row (fp32) or two (bf16), in every piece. */
IN_CLONE void piece_units(const struct gemm_piece *piece, int n_pieces, enum dtype dt, int64_t u,
                          const char *first, const char *second, int is_single)
{
    static const char zeros[2 * GEMM_COLS];
    for (int i = 0; i < n_pieces; i++) {
        const struct gemm_piece *p = &piece[i];
        float *out = p->out + u * p->stride;
        if (dt == DT_F32)
            copy_words(out, first + 4 * p->col, p->n);
        else
            pair_words(out, first + 2 * p->col, is_single ? zeros : second + 2 * p->col, p->n);
        for (int j = p->n; p->fill && j < p->stride; j++)
            out[j] = 0;
    }
}

#define AHEAD 8 /* rows are far apart: the machine does not guess the next one */

/* Asks for what the pieces will read of a row. */
static inline void piece_prefetch(const struct gemm_piece *piece, int n_pieces, enum dtype dt,
                                  const char *row)
{
    const char *p = row + piece[0].col * (int64_t)dtype_size(dt);
    const char *end = row + (piece[n_pieces - 1].col + piece[n_pieces - 1].n) * (int64_t)dtype_size(dt);
    for (; p < end; p += 64)
        __builtin_prefetch(p);
}

PACK_CLONES
void gemm_pack_columns(const struct gemm_piece *piece, int n_pieces, enum dtype dt, const struct gemm_sum *s,
                       const char *const *row)
{
    int64_t u = 0, n = s->elem_end[s->n - 1];
    for (int g = 0; g < s->n; g++) {
        int64_t e = g ? s->elem_end[g - 1] : 0, end = s->elem_end[g];
        if (dt == DT_F32)
            for (; e < end; e++) {
                piece_prefetch(piece, n_pieces, DT_F32, row[e + AHEAD < n ? e + AHEAD : n - 1]);
                piece_units(piece, n_pieces, DT_F32, u++, row[e], NULL, 0);
            }
        else
            for (; e < end; e += 2) {
                piece_prefetch(piece, n_pieces, DT_BF16, row[e + AHEAD < n ? e + AHEAD : n - 1]);
                piece_prefetch(piece, n_pieces, DT_BF16, row[e + AHEAD + 1 < n ? e + AHEAD + 1 : n - 1]);
                piece_units(piece, n_pieces, DT_BF16, u++, row[e], e + 1 < end ? row[e + 1] : NULL,
                            e + 1 == end);
            }
    }
}

IN_CLONE void widen_words(float *out, const char *from, int n)
{
    uint32_t *to = (uint32_t *)(void *)out;
    uint16_t half[GEMM_COLS];
    memcpy(half, from, 2 * (size_t)n);
    for (int j = 0; j < n; j++)
        to[j] = (uint32_t)half[j] << 16;
}

IN_CLONE void piece_values(const struct gemm_piece *piece, int n_pieces, int64_t at, const char *row)
{
    static const char zeros[2 * GEMM_COLS];
    for (int i = 0; i < n_pieces; i++) {
        const struct gemm_piece *p = &piece[i];
        const char *from = row ? row + 2 * p->col : zeros;
        /* the highest tile: a size that is known */
        if (p->n == 6)
            widen_words(p->out + at * p->stride, from, 6);
        else
            widen_words(p->out + at * p->stride, from, p->n);
    }
}

PACK_CLONES
void gemm_pack_columns_wide(const struct gemm_piece *piece, int n_pieces, const struct gemm_sum *s,
                            const char *const *row)
{
    const int64_t swapped = pairs_swapped(), n = s->elem_end[s->n - 1];
    for (int g = 0; g < s->n; g++) {
        int64_t e = g ? s->elem_end[g - 1] : 0, at = g ? 2 * s->end[g - 1] : 0;
        for (; e < s->elem_end[g]; e++, at++) {
            piece_prefetch(piece, n_pieces, DT_BF16, row[e + AHEAD < n ? e + AHEAD : n - 1]);
            piece_values(piece, n_pieces, at ^ swapped, row[e]);
        }
        if (at < 2 * s->end[g])
            piece_values(piece, n_pieces, at ^ swapped, NULL);
    }
}
