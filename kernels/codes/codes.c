/* codes.c - products over quantised panels: rows are packed, then every task goes through its panels leaf by
 * leaf and adds the leaves' sums in the order of tree.h. Sums of leaves wait in memory of the thread.
 *
 * Rows go in parts of PART_ROWS, so that what waits stays in the cache; parts of all experts run together. */
#include <stdlib.h>
#include <string.h>
#include "kernels/codes/codes_core.h"
#include "kernels/gemm/product.h"
#include "kernels/gemm/read_ahead.h"

#define PART_ROWS 112
#define BATCH_BYTES ((int64_t)16 << 20) /* of packed rows */
#define TASKS_A_THREAD 4
#define READ_BYTES ((int64_t)64 << 10) /* of a task, where a product is one reading of its weights */
#define SMALL_UNITS 16384              /* waking the pool costs more than packing this much */

/* Some rows of one product. */
struct part {
    const struct panels *w;
    struct listed x;
    float *y; /* of its first row */
    int64_t m, n_tiles;
    char *packed;
    int64_t n_panels, group;        /* panels a task */
    int64_t first_tile, first_task; /* of the batch */
};
struct codes_run {
    const struct codes_ops *ops;
    const struct panel_codes *codes;
    const struct leaves *leaves;
    struct codes_cuts cuts;
    int64_t ld;
    int64_t panel_bytes;
    int64_t row_bytes; /* of a packed row, with factors and sums */
    int depth;         /* sums that wait, at most */
    int64_t leaf_units;
    int n_parts;
    struct part *part;
    char *own; /* of the threads: [own_bytes] each */
    int64_t own_bytes;
};

/* ---- rows ---- */

static int64_t tile_begin(const struct part *p, int64_t tile) { return p->m * tile / p->n_tiles; }

/* Tile `tile` of p: where its packed rows, factors and sums lie. */
static struct codes_rows tile_rows(const struct codes_run *r, const struct part *p, int64_t tile)
{
    const int64_t first = tile_begin(p, tile), rows = tile_begin(p, tile + 1) - first;
    uint32_t *a = (uint32_t *)(void *)(p->packed + first * r->row_bytes);
    float *numbers = (float *)(void *)(a + rows * r->cuts.n_a);
    const int is_int = r->codes->class == CODES_INT;
    return (struct codes_rows){ .x = &p->x,
                                .first = first,
                                .rows = (int)rows,
                                .a = a,
                                .factor = is_int ? numbers : NULL,
                                .sum = is_int ? NULL : numbers,
                                .isum = is_int ? (int32_t *)(void *)(numbers + rows * r->cuts.n) : NULL };
}

static const struct part *part_of_tile(const struct codes_run *r, int64_t tile)
{
    int low = 0, high = r->n_parts;
    while (high - low > 1) {
        const int half = (low + high) / 2;
        if (r->part[half].first_tile <= tile)
            low = half;
        else
            high = half;
    }
    return &r->part[low];
}

static void pack_task(void *arg, int64_t task, int thread)
{
    const struct codes_run *r = arg;
    const struct part *p = part_of_tile(r, task);
    const struct codes_rows t = tile_rows(r, p, task - p->first_tile);
    (void)thread;
    codes_pack_rows(&t, r->codes, &r->cuts, r->leaves, r->ops->step);
}

/* ---- sums ---- */

struct place {
    const uint8_t *panel;
    int64_t out; /* its first output */
    int n;       /* its outputs */
};

static void store_rows(const struct codes_run *r, const struct part *p, const struct place *w,
                       const float *sums)
{
    for (int64_t i = 0; i < p->m; i++)
        memcpy(p->y + i * r->ld + w->out, sums + i * CODES_COLS, (size_t)w->n * sizeof *sums);
}

/* The sums of leaf g of n_w panels, for all rows of the part: panel i's from out + i * m * CODES_COLS on. */
static void run_leaf(const struct codes_run *r, const struct part *p, const struct place *w, int n_w, int g,
                     uint32_t *plain, float *out)
{
    const int first = r->cuts.leaf[g], is_int = r->codes->class == CODES_INT;
    const int64_t level = p->m * CODES_COLS;
    struct codes_job j = { .codes = r->codes,
                           .cut = r->cuts.cut + first,
                           .n_cuts = r->cuts.leaf[g + 1] - first,
                           .panel = w[0].panel,
                           .panel1 = w[n_w - 1].panel };
    if (j.n_cuts > 0)
        j.first_a = min_of(j.cut[0].a, j.cut[j.n_cuts - 1].a);
    if (j.n_cuts == 0) {
        memset(out, 0, (size_t)(n_w * level) * sizeof *out);
        return;
    }
    if (!is_int && p->m > r->ops->rows_few) {
        r->ops->unpack(&j, plain);
        j.plain = plain;
    }
    for (int64_t tile = 0; tile < p->n_tiles; tile++) {
        const struct codes_rows t = tile_rows(r, p, tile);
        j.rows = t.rows;
        j.a = t.a;
        j.factor = t.factor ? t.factor + first * t.rows : NULL;
        j.sum = t.sum ? t.sum + first * t.rows : NULL;
        j.isum = t.isum ? t.isum + first * t.rows : NULL;
        j.out = out + t.first * CODES_COLS;
        j.out1 = j.out + (n_w - 1) * level;
        (is_int ? r->ops->sums_int : n_w == 2 ? r->ops->sums_two : r->ops->sums)(&j);
    }
}

/* One panel, or two side by side. */
static void run_panels(const struct codes_run *r, const struct part *p, const struct place *w, int n_w,
                       char *own)
{
    const struct sum_order *order = ORDER("gemm_tree", &tree_order, &chain_order);
    const int64_t level = n_w * p->m * CODES_COLS;
    float *sums = (float *)(void *)own;
    uint32_t *plain = (uint32_t *)(void *)(own + (size_t)r->depth * PART_ROWS * CODES_COLS * sizeof *sums);
    int depth = 0;
    for (int g = 0; g < r->leaves->n; g++, depth++) {
        run_leaf(r, p, w, n_w, g, plain, sums + depth * level);
        for (int i = order->merges(r->leaves->n, g); i > 0; i--, depth--)
            r->ops->add(sums + (depth - 1) * level, sums + depth * level, level);
    }
    for (int i = 0; i < n_w; i++)
        store_rows(r, p, &w[i], sums + i * p->m * CODES_COLS);
}

/* Panel i of w. */
static struct place place_of(const struct codes_run *r, const struct panels *w, int64_t i)
{
    const struct panel_run one = { w->p, w->n }, *run = w->n_runs ? w->run : &one;
    const int64_t stride = w->stride ? w->stride : r->panel_bytes;
    int64_t out = 0;
    for (; i >= ceil_div(run->n, CODES_COLS); run++) {
        i -= ceil_div(run->n, CODES_COLS);
        out += run->n;
    }
    return (struct place){ (const uint8_t *)run->p + i * stride, out + i * CODES_COLS,
                           (int)min_of(run->n - i * CODES_COLS, CODES_COLS) };
}

static int64_t count_panels(const struct panels *w)
{
    int64_t n = w->n_runs ? 0 : ceil_div(w->n, CODES_COLS);
    for (int i = 0; i < w->n_runs; i++)
        n += ceil_div(w->run[i].n, CODES_COLS);
    return n;
}

/* Panels that are read side by side. */
static int together(const struct codes_run *r, const struct part *p)
{
    return r->ops->rows_two && p->m <= r->ops->rows_two(r->codes) ? 2 : 1;
}

static void sum_task(void *arg, int64_t task, int thread)
{
    const struct codes_run *r = arg;
    int low = 0, high = r->n_parts;
    while (high - low > 1) {
        const int half = (low + high) / 2;
        if (r->part[half].first_task <= task)
            low = half;
        else
            high = half;
    }
    const struct part *p = &r->part[low];
    const int64_t first = (task - p->first_task) * p->group, end = min_of(first + p->group, p->n_panels);
    const int step = together(r, p);
    for (int64_t i = first; i < end; i += step) {
        const int n = (int)min_of(step, end - i);
        const struct place w[2] = { place_of(r, p->w, i), place_of(r, p->w, i + n - 1) };
        run_panels(r, p, w, n, r->own + thread * r->own_bytes);
    }
}

/* ---- the product ---- */

static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static int64_t depth_of(const struct codes_run *r)
{
    const struct sum_order *order = ORDER("gemm_tree", &tree_order, &chain_order);
    int depth = 0, most = 0;
    for (int g = 0; g < r->leaves->n; g++) {
        depth++;
        most = depth > most ? depth : most;
        depth -= order->merges(r->leaves->n, g);
    }
    return most;
}

static void poison(const struct codes_run *r, int first, int end)
{
    for (int k = first; k < end; k++)
        for (int64_t i = 0; i < r->part[k].m; i++)
            for (int64_t j = 0; j < r->part[k].w->n; j++)
                r->part[k].y[i * r->ld + j] = __builtin_nanf("");
}

/* Whether the product is one reading of its weights, which threads share in long pieces. */
static int is_reading(const struct codes_run *r) { return r->n_parts == 1 && r->part->m <= r->ops->rows_few; }

/* Panels of a task of p. */
static int64_t group_of(const struct codes_run *r, const struct part *p, int threads)
{
    int64_t group = ceil_div(p->n_panels * r->n_parts, threads == 1 ? 1 : threads * TASKS_A_THREAD);
    if (threads > 1 && is_reading(r))
        group = min_of(group, 1 + READ_BYTES / r->panel_bytes);
    return min_of(ceil_div(group, together(r, p)) * together(r, p), p->n_panels);
}

static void run_tasks(struct dev *d, struct codes_run *r, int64_t tasks)
{
    const struct panels *w = r->part->w;
    if (!is_reading(r)) {
        pool_run(d->pool, tasks, sum_task, r);
        return;
    }
    const struct reading now = { place_of(r, w, 0).panel, r->part->n_panels, r->panel_bytes,
                                 w->stride ? w->stride : r->panel_bytes };
    read_ahead_begin(d->ahead, &now);
    pool_run_apart(d->pool, tasks, sum_task, r);
}

/* Parts [first, end) of all: their rows are packed together, then multiplied. */
static void run_batch(struct dev *d, const struct codes_run *all, int first, int end, int64_t bytes)
{
    const int threads = pool_threads(d->pool);
    struct codes_run r = *all;
    int64_t tiles = 0, tasks = 0, units = 0;
    char *packed = dev_scratch(d, 0, (size_t)bytes + 64);
    r.own = dev_scratch(d, 1, (size_t)(threads * r.own_bytes) + 64);
    if (!packed || !r.own) {
        poison(all, first, end);
        return;
    }
    r.part = all->part + first, r.n_parts = end - first;
    for (int i = 0; i < r.n_parts; i++) {
        struct part *p = &r.part[i];
        p->packed = packed;
        packed += aligned(p->m * r.row_bytes);
        p->group = group_of(&r, p, threads);
        p->first_tile = tiles, p->first_task = tasks;
        tiles += p->n_tiles, tasks += ceil_div(p->n_panels, p->group);
        units += p->m * r.cuts.n_a;
    }
    if (units > SMALL_UNITS)
        pool_run(d->pool, tiles, pack_task, &r);
    else
        for (int64_t i = 0; i < tiles; i++)
            pack_task(&r, i, 0);
    run_tasks(d, &r, tasks);
}

static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* What all parts share. */
static void measure(struct codes_run *r)
{
    const int is_int = r->codes->class == CODES_INT;
    const int64_t numbers = is_int ? 2 : r->codes->has_mins;
    r->panel_bytes = codes_leaf_offset(r->codes, r->leaves, r->leaves->n);
    r->row_bytes = 4 * (r->cuts.n_a + numbers * r->cuts.n);
    r->depth = (int)depth_of(r);
    for (int g = 0; g < r->leaves->n; g++)
        for (int i = r->cuts.leaf[g], first = i; i < r->cuts.leaf[g + 1]; i++)
            r->leaf_units = max_of(r->leaf_units,
                                   llabs(r->cuts.cut[i].a - r->cuts.cut[first].a) + r->cuts.cut[i].n_units);
    r->own_bytes = aligned(((int64_t)r->depth * PART_ROWS + (is_int ? 0 : r->leaf_units)) * CODES_COLS * 4);
}

static void add_parts(struct codes_run *r, struct mat y, struct listed x, int64_t m, const struct panels *w)
{
    const int rows = r->codes->class == CODES_INT ? r->ops->rows_int : r->ops->rows;
    for (int64_t at = 0; at < m; at += PART_ROWS) {
        const int64_t n = min_of(PART_ROWS, m - at);
        struct listed part = x.list ? listed_of(x.m, x.list + at) : listed_of(mat_rows(x.m, at, n), NULL);
        r->part[r->n_parts++] = (struct part){ .w = w,
                                               .x = part,
                                               .y = (float *)y.p + at * y.ld,
                                               .m = n,
                                               .n_tiles = ceil_div(n, rows),
                                               .n_panels = count_panels(w) };
    }
}

/* Memory for the cuts and parts: at r->part and r->cuts.cut. 0: none. */
static int take_lists(struct dev *d, struct codes_run *r, int64_t n_parts)
{
    codes_cut(&r->cuts, r->codes, r->leaves, r->codes->class == CODES_INT ? r->ops->step : 2);
    const size_t parts = (size_t)n_parts * sizeof *r->part;
    char *base = dev_scratch(d, 2, parts + (size_t)r->cuts.n * sizeof *r->cuts.cut + 64);
    if (!base)
        return 0;
    r->part = (struct part *)(void *)base;
    r->cuts.cut = (struct codes_cut *)(void *)(base + parts);
    codes_cut(&r->cuts, r->codes, r->leaves, r->codes->class == CODES_INT ? r->ops->step : 2);
    return 1;
}

void codes_product(struct dev *d, const struct codes_ops *ops, struct mat y, struct listed x,
                   const struct expert_rows *g, const struct panels *w)
{
    struct codes_run r = { .ops = ops, .codes = w->codes, .leaves = &w->leaves, .ld = y.ld };
    const int n = g ? g->n : 1;
    int64_t n_parts = 0;
    for (int e = 0; e < n; e++)
        n_parts += ceil_div(g ? expert_row_count(g, e) : y.rows, PART_ROWS);
    if (n_parts == 0 || w->n == 0)
        return;
    if (!take_lists(d, &r, n_parts)) {
        experts_set_nan(d, y);
        return;
    }
    measure(&r);
    for (int e = 0; e < n; e++) {
        const int64_t first = g ? g->begin[e] : 0, m = g ? expert_row_count(g, e) : y.rows;
        struct listed rows = x.list ? listed_of(x.m, x.list + first)
                                    : listed_of(mat_rows(x.m, first, m), NULL);
        add_parts(&r, mat_rows(y, first, m), rows, m, &w[e]);
    }
    for (int i = 0, end; i < r.n_parts; i = end) {
        int64_t bytes = 0;
        for (end = i; end < r.n_parts && (end == i || bytes < BATCH_BYTES); end++)
            bytes += aligned(r.part[end].m * r.row_bytes);
        run_batch(d, &r, i, end, bytes);
    }
}
