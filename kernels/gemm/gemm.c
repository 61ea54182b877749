/* gemm.c - the four products of the op table, as one: pack both operands, then run tiles over panels
 * (layouts: gemm_core.h).
 *
 *   linear      A = x in lines      B = panels packed before      leaves of k
 *   linear_dx   A = dy in lines     B = w, packed on the way      leaves of n, all segments of a leaf in turn
 *   linear_dw   A = dy in columns   B = x, packed on the way      a leaf a sequence
 *
 * Rows of A are packed for a block of tiles and used while they are in the cache. A task is a group of
 * panels times a range of rows of the block; a group that must be packed is packed by its task, into a
 * buffer of its thread, and used while it is in the cache.
 *
 * In a class with steps (gemm_core.h) a task goes through the contraction step by step: what a step leaves,
 * sums of leaves not yet merged and the chains of a leaf that goes on, waits in the output (level 0) and in
 * spare levels of the thread. */
#include "kernels/gemm.h"

#include <stdalign.h>
#include <string.h>
#include "kernels/codes/codes_core.h"
#include "kernels/gemm/product.h"
#include "kernels/gemm/read_ahead.h"

/* rows that run over a group of panels together: their packed lines stay in the L2 cache */
#define CHUNK_ROWS 112
#define GROUP_BYTES (1 << 20)     /* panels that a task packs for itself */
#define UNPACKED_BYTES (64 << 10) /* … that it decodes: they stay in the L2 cache beside the rows */
/* columns of a group that goes by steps: what a step leaves is one row of these a row of a chunk */
#define STEP_COLS 128
#define STEP_TILES 3 /* fewer tiles do not go by steps: a panel is not read again */
/* shorter contractions do not go by steps: with them fp32 of 768 and 2048 lost 10 to 15 % */
#define STEP_UNITS 2048
/* packed rows, where one chunk of them would pack the panels too often; more, up to … */
#define A_BYTES (16 << 20)
/* … so many rows, between which packing the panels again costs little … */
#define A_ROWS 128
#define A_BYTES_MOST (64 << 20) /* … that take no more than this */
#define SHORT_LEAF 128          /* units */
/* panels, or tiles of columns, that are packed together: rows are read 1 kB at a time */
#define PIECES 8
#define TASKS_A_THREAD 4
/* of few rows, which is as fast as its weights are read: a task reads about so much, one behind the other */
#define READ_BYTES (64 << 10)
#define SMALL_UNITS 16384 /* waking the pool costs more than packing this much */

void sum_close(struct gemm_sum *s, enum dtype dt)
{
    int depth = s->depth_before;
    int64_t units = 0;
    s->depth_kept = depth;
    for (int i = 0; i < s->n; i++) {
        units += gemm_units(dt, s->elem_end[i] - (i ? s->elem_end[i - 1] : 0));
        s->end[i] = units;
        depth -= s->merges[i];
        s->depth_kept = depth < s->depth_kept ? depth : s->depth_kept;
        depth++;
    }
    s->depth_after = depth;
}

/* Fills s from n and elem_end: its leaves are acc->next and the next ones of acc's tree in this order. */
static void sum_open(struct gemm_sum *s, enum dtype dt, const struct sum_order *order,
                     const struct tree_acc *acc)
{
    s->depth_before = order_depth_before(order, acc, acc->next);
    for (int i = 0; i < s->n; i++)
        s->merges[i] = (uint8_t)order_merges(order, acc, acc->next + i);
    sum_close(s, dt);
}

/* The leaves of a product; altered gemm_leaf: all of the contraction is one. */
static void cut_as_given(struct gemm_sum *s) { (void)s; }
static void one_leaf(struct gemm_sum *s)
{
    s->elem_end[0] = s->elem_end[s->n - 1];
    s->n = 1;
}

void sum_of_leaves(struct gemm_sum *s, struct few_leaves *cuts, enum dtype dt, int n_l,
                   const struct leaves *l)
{
    *s = (struct gemm_sum){
        .n = l[0].n, .elem_end = cuts->elem_end, .end = cuts->end, .merges = cuts->merges
    };
    for (int g = 0; g < s->n; g++) {
        s->elem_end[g] = 0;
        for (int i = 0; i < n_l; i++)
            s->elem_end[g] += l[i].end[g];
    }
    ORDER("gemm_leaf", cut_as_given, one_leaf)(s);
    const struct tree_acc all = { .n = s->n };
    sum_open(s, dt, ORDER("gemm_tree", &tree_order, &chain_order), &all);
}

/* ---- packing
 * ------------------------------------------------------------------------------------------ */

static int64_t tile_begin(const struct product *p, int64_t tile)
{
    return tile * p->low + min_of(tile, p->n_high);
}
static float *tile_a(const struct product *p, int64_t row)
{
    return p->a + (row - tile_begin(p, p->tile)) * p->a_row;
}

/* A in lines: a tile a task. */
static void pack_lines(const struct product *p, int64_t task)
{
    int64_t tile = p->tile + task, row = tile_begin(p, tile);
    int rows = (int)(tile_begin(p, tile + 1) - row);
    float *a = tile_a(p, row);
    for (int i = 0; i < rows; i++)
        if (p->tiles->a_floats == 2)
            gemm_pack_lines_wide(a + i * GEMM_LINE, rows, &p->sum, p->n_src, p->src, p->leaves, row + i);
        else
            gemm_pack_lines(a + i * GEMM_LINE, rows, &p->sum, p->n_src, p->src, p->leaves, row + i);
}

/* A in columns: PIECES tiles a task. */
static void pack_tiles(const struct product *p, int64_t task)
{
    int64_t tile = p->tile + task * PIECES, n = min_of(PIECES, p->tile_end - tile);
    struct gemm_piece piece[PIECES];
    for (int64_t i = 0; i < n; i++) {
        int64_t row = tile_begin(p, tile + i);
        int rows = (int)(tile_begin(p, tile + i + 1) - row);
        piece[i] = (struct gemm_piece){ tile_a(p, row), row, rows, rows, 0 };
    }
    if (p->tiles->a_floats == 2)
        gemm_pack_columns_wide(piece, (int)n, &p->sum, p->a_rows);
    else
        gemm_pack_columns(piece, (int)n, p->dt, &p->sum, p->a_rows);
}

void product_pack(void *arg, int64_t task, int thread)
{
    const struct product *p = arg;
    (void)thread;
    if (p->layout == GEMM_COLUMNS)
        pack_tiles(p, task);
    else
        pack_lines(p, task);
}

/* Panel i of B. */
static struct gemm_panel panel_at(const struct product *p, int64_t i)
{
    if (p->w)
        return gemm_panel_at(p->w, p->stride, i);
    return (struct gemm_panel){ .first = i * GEMM_COLS, .n = (int)min_of(p->n - i * GEMM_COLS, GEMM_COLS) };
}

static void unpack_group(const struct product *p, float *to, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++) {
        const struct gemm_panel panel = panel_at(p, i);
        p->kind->unpack(to + (i - first) * p->n_units * GEMM_COLS, p->tiles->panel_cols, &panel, &p->sum);
    }
}

/* Packs or unpacks the panels [first, end) into the thread's buffer. */
static void pack_group(const struct product *p, float *to, int64_t first, int64_t end)
{
    const int cols = p->tiles->panel_cols, in_panel = GEMM_COLS / cols;
    struct gemm_piece piece[PIECES];
    int n = 0;
    if (p->w) {
        unpack_group(p, to, first, end);
        return;
    }
    for (int64_t i = first * in_panel; i < end * in_panel; i++) {
        int64_t col = i * cols, left = p->n > col ? p->n - col : 0;
        piece[n++] = (struct gemm_piece){ to + (i - first * in_panel) * p->n_units * cols, left ? col : 0,
                                          (int)min_of(left, cols), cols, 1 };
        if (n == PIECES || i == end * in_panel - 1) {
            gemm_pack_columns(piece, n, p->dt, &p->sum, p->b_rows);
            n = 0;
        }
    }
}

/* ---- tiles
 * ------------------------------------------------------------------------------------------ */

static void copy_tile(float *to, int64_t to_ld, const float *from, int64_t from_ld, int64_t rows,
                      int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * to_ld, from + i * from_ld, (size_t)cols * 4);
}

/* The last columns, fewer than a tile has: the sums in memory are copied to a whole tile and back. */
static void run_narrow(const struct product *p, const struct gemm_sum *s, gemm_tile_fn *fn, float *const *at,
                       int64_t rows, int64_t cols, const float *a, const float *b)
{
    alignas(64) float spare[TREE_DEPTH_MAX + 1][GEMM_ROWS_MAX * GEMM_COLS];
    float *level[TREE_DEPTH_MAX + 1];
    struct gemm_sum in_spare = *s;
    const int begun = s->depth_before + s->resumes, most = begun > s->depth_after ? begun : s->depth_after;
    in_spare.spare_ld = p->tiles->cols;
    for (int e = s->depth_kept; e < most; e++) {
        level[e] = spare[e];
        memset(spare[e], 0, sizeof spare[e]);
    }
    for (int e = s->depth_kept; e < begun; e++)
        copy_tile(level[e], p->tiles->cols, at[e], e < s->n_out ? p->ld : s->spare_ld, rows, cols);
    fn(&in_spare, level, p->tiles->cols, a, b);
    for (int e = s->depth_kept; e < s->depth_after; e++)
        copy_tile(at[e], e < s->n_out ? p->ld : s->spare_ld, level[e], p->tiles->cols, rows, cols);
}

/* The lines that a tile will write are asked for when it begins: its stores would wait for them one by
 * one. */
static inline void prefetch_to_write(const float *p, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16)
        __builtin_prefetch(p + i, 1);
}

/* The tiles of a task's step: rows from tile `chunk` on, columns from panel `first` on. */
struct place {
    int64_t chunk, first;
    int64_t col; /* of the output: where panel `first` begins */
    int thread;
};

/* Floats of the panels that a task packs for itself. */
static int64_t group_floats(const struct product *p)
{
    return p->in_place ? 0 : p->group * p->n_units * GEMM_COLS;
}
static float *spares_of(const struct product *p, int thread)
{
    return p->buffers + thread * p->own + group_floats(p);
}

/* Tile `tile` of the columns from `col` on, of which its panel has n_cols. */
static void run_tile(const struct product *p, const struct gemm_sum *s, const struct place *w, int64_t tile,
                     int64_t col, int64_t n_cols, const float *b)
{
    int64_t row = tile_begin(p, tile), rows = tile_begin(p, tile + 1) - row, cols = p->tiles->cols;
    const int begun = s->depth_before + s->resumes, most = begun > s->depth_after ? begun : s->depth_after;
    gemm_tile_fn *fn = p->tiles->fn[p->layout][rows];
    float *at[TREE_DEPTH_MAX + 1];
    for (int e = s->depth_kept; e < most; e++)
        at[e] = e < s->n_out
                    ? p->level[e] + row * p->ld + col
                    : spares_of(p, w->thread) +
                          ((e - s->n_out) * CHUNK_ROWS + row - tile_begin(p, w->chunk)) * p->spare_ld + col -
                          w->col;
    if (begun == 0 || p->step_units)
        for (int e = s->depth_kept; e < most; e++)
            for (int64_t i = 0; i < rows; i++)
                prefetch_to_write(at[e] + i * (e < s->n_out ? p->ld : s->spare_ld), cols);
    if (n_cols < cols)
        run_narrow(p, s, fn, at, rows, n_cols, tile_a(p, row), b);
    else
        fn(s, at, p->ld, tile_a(p, row), b);
}

/* The step after `s` (all 0: the first one) of the whole sum; *stop is where its last leaf ends, if that is
 * not the leaf's end. */
static int next_step(const struct product *p, struct gemm_sum *s, int *leaf, int64_t *stop)
{
    static uint8_t no_merge[1];
    const struct gemm_sum *all = &p->sum;
    if (*leaf == all->n)
        return 0;
    *s = (struct gemm_sum){ .panel_units = p->panel_units,
                            .begin = *stop,
                            .depth_before = s->depth_after - (s->merges == no_merge),
                            .n_out = p->n_levels,
                            .spare_ld = p->spare_ld,
                            .resumes = s->merges == no_merge,
                            .elem_end = all->elem_end + *leaf,
                            .end = all->end + *leaf,
                            .merges = all->merges + *leaf };
    int depth = s->depth_kept = s->depth_before;
    while (*leaf < all->n && (!p->step_units || all->end[*leaf] - s->begin <= p->step_units)) {
        depth -= all->merges[*leaf];
        s->depth_kept = depth < s->depth_kept ? depth : s->depth_kept;
        depth++, s->n++;
        *stop = all->end[(*leaf)++];
    }
    /* a leaf longer than a step: one of its nearly equal parts, whose chains go on */
    if (s->n == 0) {
        const int64_t left = all->end[*leaf] - s->begin, part = ceil_div(left, ceil_div(left, p->step_units));
        *stop = s->begin + min_of(ceil_div(part, GEMM_LINE) * GEMM_LINE, p->step_units);
        s->n = 1, s->end = stop, s->merges = no_merge;
        depth++;
    }
    s->depth_after = depth;
    return 1;
}

/* One step of the tiles [tile, tile_end), over the panels [first, end); packed: these, where the task packed
 * them. */
static void run_step(const struct product *p, struct gemm_sum *s, const struct place *w, int64_t tile_end,
                     int64_t end, const float *packed)
{
    const int64_t cols = p->tiles->cols, beside = p->tiles->panel_cols;
    for (int64_t i = w->first; i < end; i++) {
        const struct gemm_panel panel = panel_at(p, i);
        const float *b = p->in_place ? (const float *)(const void *)panel.p
                                     : packed + (i - w->first) * p->n_units * GEMM_COLS;
        s->panel = p->in_place && p->kind ? &panel : NULL;
        for (int64_t in = 0; in < panel.n; in += cols) {
            s->in = (int)in;
            const float *columns = b + in / beside * beside * p->panel_units + in % beside;
            for (int64_t t = w->chunk; t < tile_end; t++)
                run_tile(p, s, w, t, panel.first + in, panel.n - in, columns);
        }
    }
}

void product_task(void *arg, int64_t task, int thread)
{
    const struct product *p = arg;
    int64_t group = task / p->parts, part = task % p->parts;
    int64_t first = group * p->group, end = min_of(first + p->group, p->n_panels);
    int64_t n_tiles = p->tile_end - p->tile;
    int64_t tile = p->tile + n_tiles * part / p->parts, tile_end = p->tile + n_tiles * (part + 1) / p->parts;
    const int64_t chunk = CHUNK_ROWS / p->rows, col = panel_at(p, first).first;
    float *packed = p->buffers + thread * p->own;
    if (!p->in_place)
        pack_group(p, packed, first, end);
    for (; tile < tile_end; tile += chunk) {
        const struct place w = { tile, first, col, thread };
        struct gemm_sum s = { .depth_after = p->sum.depth_before };
        int64_t stop = 0;
        for (int leaf = 0; next_step(p, &s, &leaf, &stop);)
            run_step(p, &s, &w, min_of(tile + chunk, tile_end), end, packed);
    }
}

/* ---- the product
 * ------------------------------------------------------------------------------------------ */

/* Short leaves end often: lower tiles, which keep half of their sums in registers, then gain more than they
 * lose by reading a panel twice as often. One tile of few rows reads a panel once, from memory; columns are
 * not packed well 7 at a time. */
static int tile_rows(const struct product *p)
{
    const struct gemm_tiles *t = p->tiles;
    int short_leaves = p->sum.n > 1 && p->n_units <= SHORT_LEAF * p->sum.n;
    return t->rows_held && short_leaves && p->layout == GEMM_LINES && p->m > t->rows ? t->rows_held : t->rows;
}

/* Rows of A that are packed at a time, about. */
static int64_t rows_packed(const struct product *p)
{
    int64_t row_bytes = 4 * (p->a_row + 1), rows = A_BYTES / row_bytes;
    return rows > A_ROWS ? rows : min_of(A_BYTES_MOST / row_bytes, A_ROWS);
}

int64_t product_tasks(int threads) { return threads == 1 ? 1 : (int64_t)threads * TASKS_A_THREAD; }

static void split(struct product *p, int n_threads, int64_t tasks)
{
    const int64_t panel_bytes = p->n_units * GEMM_COLS * 4;
    p->rows = tile_rows(p);
    p->n_tiles = ceil_div(p->m, p->rows);
    p->low = p->m / p->n_tiles, p->n_high = p->m % p->n_tiles;
    p->step_units = p->n_tiles >= STEP_TILES && p->n_units > STEP_UNITS ? p->tiles->step_units : 0;
    p->group = ceil_div(p->n_panels, tasks);
    if (p->step_units)
        p->group = min_of(p->group, STEP_COLS / GEMM_COLS);
    if (!p->in_place && panel_bytes > 0 && p->group > 1)
        p->group = min_of(p->group,
                          1 + (p->w && p->w->kind == PANEL_B12 ? UNPACKED_BYTES : GROUP_BYTES) / panel_bytes);
    p->n_groups = ceil_div(p->n_panels, p->group);
    p->block = n_threads == 1 && p->in_place ? CHUNK_ROWS / p->rows : 1 + rows_packed(p) / p->rows;
    p->block = min_of(p->block, p->n_tiles);
    /* a part packs its panels again: not too small */
    p->parts = min_of(ceil_div(tasks, p->n_groups), ceil_div(p->block, 4));
}

/* Not counted, but covered by the allowance of a quarter that memory plans add: a thread's levels of
 * steps, a few of them and each under 112 / 2048 of the panels that it packs; and bf16 rows that a class
 * widens as it packs them: as many bytes, of fewer rows. */
void linear_scratch(enum product_op op, enum dtype dt, int64_t m, int64_t n, int64_t k, int threads,
                    size_t bytes[2])
{
    static const struct gemm_tiles tiles = { .rows = 8, .cols = GEMM_COLS };
    struct product p = { .tiles = &tiles,
                         .layout = op == PRODUCT_DW ? GEMM_COLUMNS : GEMM_LINES,
                         .dt = dt,
                         .m = m,
                         .n = n,
                         .n_units = gemm_units(dt, k),
                         .n_panels = ceil_div(n, GEMM_COLS),
                         .in_place = op == PRODUCT_LINEAR,
                         .sum.n = 1 };
    p.a_row = ceil_div(p.n_units, GEMM_LINE) * GEMM_LINE;
    split(&p, threads, product_tasks(threads));
    size_t a = (size_t)(min_of(m, p.block * p.rows) * p.a_row) * 4,
           b = p.in_place ? 0 : (size_t)(threads * p.group * p.n_units * GEMM_COLS) * 4;
    bytes[0] = a > bytes[0] ? a : bytes[0];
    bytes[1] = b > bytes[1] ? b : bytes[1];
}

void product_poison(const struct product *p)
{
    for (int e = p->sum.depth_kept; e < p->sum.depth_after; e++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++)
                p->level[e][i * p->ld + j] = __builtin_nanf("");
}

/* One row in lines is the row itself, in fp32: nothing to pack. */
static int is_packed(const struct product *p)
{
    return p->m == 1 && p->layout == GEMM_LINES && p->dt == DT_F32 && p->n_src == 1;
}

static size_t packed_bytes(const struct product *p)
{
    return ((size_t)(min_of(p->m, p->block * p->rows) * p->a_row) * 4 + 63) / 64 * 64;
}
static size_t pointer_bytes(const struct product *p)
{
    return ((size_t)(p->n_a_rows + p->n_b_rows) * sizeof(char *) + 63) / 64 * 64;
}
size_t product_bytes(const struct product *p) { return packed_bytes(p) + pointer_bytes(p); }

/* Floats of a thread: the group of panels that it packs, and what steps leave. */
static int64_t own_floats(const struct product *p)
{
    return group_floats(p) + p->n_spares * CHUNK_ROWS * p->spare_ld;
}

int products_take(struct dev *d, struct product *p, int n)
{
    size_t bytes = 64;
    int64_t own = 0;
    for (int i = 0; i < n; i++) {
        bytes += product_bytes(&p[i]);
        own = own_floats(&p[i]) > own ? own_floats(&p[i]) : own;
    }
    char *base = dev_scratch(d, 0, bytes);
    float *buffers = base && own ? dev_scratch(d, 1, (size_t)(pool_threads(d->pool) * own) * 4 + 64) : NULL;
    if (!base || (own && !buffers)) {
        for (int i = 0; i < n; i++)
            product_poison(&p[i]);
        return 0;
    }
    for (int i = 0; i < n; base += product_bytes(&p[i++])) {
        p[i].a = (float *)(void *)base;
        p[i].a_rows = (const char **)(void *)(base + packed_bytes(&p[i]));
        p[i].b_rows = p[i].a_rows + p[i].n_a_rows;
        p[i].buffers = buffers;
        p[i].own = own;
    }
    return 1;
}

/* Levels that steps need besides those of the output. */
static int count_spares(const struct product *p)
{
    struct gemm_sum s = { .depth_after = p->sum.depth_before };
    int64_t stop = 0;
    int most = p->n_levels;
    for (int leaf = 0; next_step(p, &s, &leaf, &stop);)
        most = s.depth_after > most ? s.depth_after : most;
    return most - p->n_levels;
}

int product_weights(struct product *p, const struct gemm_kind (*kinds)[2], const struct panels *w)
{
    p->w = w;
    p->stride = panels_stride(w);
    p->kind = w->kind == PANEL_PLAIN ? NULL : &kinds[w->kind][w->dt];
    return !p->kind || p->kind->unpack;
}

/* Wider tiles for few rows; for panels that are not plain those that read them as they lie. */
static void choose_tiles(struct product *p)
{
    const struct gemm_kind *kind = p->kind;
    p->in_place = p->w &&
                  (!kind || (kind->few && p->m <= (kind->few_rows ? kind->few_rows : kind->few->rows)));
    if (kind && p->in_place)
        p->tiles = kind->few;
    else if (kind && kind->many)
        p->tiles = kind->many;
    if (p->tiles->few && p->m <= p->tiles->few->rows)
        p->tiles = p->tiles->few;
}

int product_open(struct product *p, int threads, int64_t tasks)
{
    if (p->m <= 0 || p->n <= 0 || p->sum.n <= 0)
        return 0;
    choose_tiles(p);
    p->n_panels = p->w ? gemm_panel_count(p->w) : ceil_div(p->n, GEMM_COLS);
    p->n_units = p->sum.end[p->sum.n - 1];
    p->panel_units = p->in_place && p->stride ? p->stride / (4 * GEMM_COLS) : p->n_units;
    p->n_levels = p->sum.depth_before > p->sum.depth_after ? p->sum.depth_before : p->sum.depth_after;
    p->a_row = p->n_units * p->tiles->a_floats;
    if (p->layout == GEMM_LINES)
        p->a_row = ceil_div(p->a_row, GEMM_LINE) * GEMM_LINE;
    split(p, threads, tasks);
    p->spare_ld = p->group * GEMM_COLS;
    p->n_spares = p->step_units ? count_spares(p) : 0;
    p->tile = p->tile_end = 0;
    return 1;
}

/* Whether the product is one reading of its weights, which threads share in long pieces. */
static int is_reading(const struct product *p) { return p->in_place && p->n_tiles == 1 && !p->step_units; }

/* The same, with scratch, for a product alone. */
static int open_alone(struct dev *d, struct product *p)
{
    const int threads = pool_threads(d->pool);
    if (!product_open(p, threads, product_tasks(threads)))
        return 0;
    if (threads > 1 && is_reading(p)) {
        p->group = min_of(p->group, 1 + READ_BYTES / (p->n_units * GEMM_COLS * 4 + 1));
        p->n_groups = ceil_div(p->n_panels, p->group);
    }
    return products_take(d, p, 1);
}

/* The tasks of a product that is one reading. */
static void run_reading(struct dev *d, struct product *p)
{
    const int64_t rows = p->w->kind == PANEL_ROWS ? GEMM_COLS : 1; /* stride is that of a row there */
    const int64_t plain = p->n_units * GEMM_COLS * 4;
    const struct reading r = { panel_at(p, 0).p, p->n_panels * rows, min_of(plain, p->stride), p->stride };
    read_ahead_begin(d->ahead, &r);
    pool_run_apart(d->pool, p->n_groups, product_task, p);
}

int64_t product_next(struct product *p)
{
    p->tile_end = min_of(p->tile + p->block, p->n_tiles);
    if (is_packed(p)) {
        union {
            const char *from;
            float *a;
        } row = { listed_row(p->src, 0) };
        p->a = row.a;
        return 0;
    }
    return p->layout == GEMM_COLUMNS ? ceil_div(p->tile_end - p->tile, PIECES) : p->tile_end - p->tile;
}

int product_packs_alone(int64_t units) { return units <= SMALL_UNITS; }

void product_run(struct dev *d, struct product *p)
{
    for (p->tile = 0; p->tile < p->n_tiles; p->tile = p->tile_end) {
        const int64_t n = product_next(p);
        if (p->layout == GEMM_COLUMNS || !product_packs_alone(p->m * p->n_units))
            pool_run(d->pool, n, product_pack, p);
        else
            for (int64_t i = 0; i < n; i++)
                product_pack(p, i, 0);
        if (is_reading(p))
            run_reading(d, p);
        else
            pool_run(d->pool, p->n_groups * p->parts, product_task, p);
    }
}

void gemm_linear(struct dev *d, const struct gemm_tiles *const *tiles, const struct gemm_kind (*kinds)[2],
                 struct mat y, struct mat x, const struct panels *w)
{
    float *level[1] = { y.p };
    const struct listed src = listed_of(x, NULL);
    if (w->kind == PANEL_CODES) {
        codes_product(d, d->codes, y, src, NULL, w);
        return;
    }
    struct product p = { .tiles = tiles[w->dt],
                         .layout = GEMM_LINES,
                         .dt = w->dt,
                         .m = x.rows,
                         .n = w->n,
                         .n_src = 1,
                         .src = &src,
                         .leaves = &w->leaves,
                         .level = level,
                         .ld = y.ld };
    struct few_leaves cuts;
    sum_of_leaves(&p.sum, &cuts, w->dt, 1, &w->leaves);
    if (!product_weights(&p, kinds, w))
        product_poison(&p);
    else if (open_alone(d, &p))
        product_run(d, &p);
}

void segment_rows(const char **rows, int n_w, const struct mat *w, const struct leaves *l, int n_leaves)
{
    const struct index_order segments = segment_order(n_w);
    for (int g = 0; g < n_leaves; g++)
        for (int i = 0; i < n_w; i++) {
            const int64_t from = index_at(segments, i);
            int64_t begin = g ? l[from].end[g - 1] : 0, end = n_leaves == 1 ? w[from].rows : l[from].end[g];
            for (int64_t r = begin; r < end; r++)
                *rows++ = (const char *)w[from].p + r * w[from].ld * (int64_t)dtype_size(w[from].dt);
        }
}

void gemm_linear_dx(struct dev *d, const struct gemm_tiles *const *tiles, struct mat dx, int n_w,
                    const struct mat *dy, const struct mat *w, const struct leaves *l)
{
    float *level[1] = { dx.p };
    struct listed *src = dev_scratch(d, 2, sizeof *src * (size_t)n_w + 64);
    struct product p = { .tiles = tiles[dy->dt],
                         .layout = GEMM_LINES,
                         .dt = dy->dt,
                         .m = dx.rows,
                         .n = dx.cols,
                         .n_src = n_w,
                         .src = src,
                         .leaves = l,
                         .level = level,
                         .ld = dx.ld };
    struct few_leaves cuts;
    sum_of_leaves(&p.sum, &cuts, p.dt, n_w, l);
    p.n_b_rows = p.sum.elem_end[p.sum.n - 1];
    for (int i = 0; i < n_w && src; i++)
        src[i] = listed_of(dy[i], NULL);
    if (!src)
        product_poison(&p);
    if (!src || !open_alone(d, &p))
        return;
    segment_rows(p.b_rows, n_w, w, l, p.sum.n);
    product_run(d, &p);
}

static void token_rows(const char **rows, struct mat m, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        rows[i] = (const char *)m.p + i * m.ld * (int64_t)dtype_size(m.dt);
}

/* Leaf i: the tokens of sequence i. The arrays are in scratch. 0: no memory. */
static int sum_of_sequences(struct dev *d, struct gemm_sum *s, enum dtype dt, const struct tree_acc *acc,
                            int n_seq, int64_t seq_len)
{
    *s = (struct gemm_sum){ .n = n_seq, .elem_end = dev_scratch(d, 2, (size_t)n_seq * 17 + 64) };
    if (!s->elem_end)
        return 0;
    s->end = s->elem_end + n_seq;
    s->merges = (uint8_t *)(s->end + n_seq);
    for (int i = 0; i < n_seq; i++)
        s->elem_end[i] = (i + 1) * seq_len;
    sum_open(s, dt, ORDER("gemm_dw_tree", &tree_order, &chain_order), acc);
    return 1;
}

void gemm_linear_dw(struct dev *d, const struct gemm_tiles *const *tiles, const struct tree_acc *acc,
                    int64_t ld, struct mat dy, struct mat x, int n_seq, int64_t seq_len)
{
    int64_t n_tokens = n_seq * seq_len;
    struct product p = { .tiles = tiles[x.dt],
                         .layout = GEMM_COLUMNS,
                         .dt = x.dt,
                         .m = dy.cols,
                         .n = x.cols,
                         .n_a_rows = n_tokens,
                         .n_b_rows = n_tokens,
                         .level = acc->level,
                         .ld = ld };
    if (n_seq <= 0)
        return;
    if (!sum_of_sequences(d, &p.sum, p.dt, acc, n_seq, seq_len)) {
        p.sum.depth_after = 1;
        product_poison(&p);
        return;
    }
    if (!open_alone(d, &p))
        return;
    token_rows(p.a_rows, dy, n_tokens);
    token_rows(p.b_rows, x, n_tokens);
    product_run(d, &p);
}
