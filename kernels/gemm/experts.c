/* experts.c - products of experts: a product an expert (gemm.c), the tasks of many in one job of the pool.
 *
 * Experts whose rows are all packed at a time go through the pool together, up to BATCH_BYTES of packed
 * rows and pointers: one job packs their rows, one multiplies. An expert of more rows runs alone, as a dense
 * product does, and so does every expert where there is one thread: its packed rows stay in the cache.
 *
 * Weight gradients. A leaf without rows is left out. The additions that it would have brought about go to the
 * leaf before it, or to levels in memory before the product runs. Stack entries that no leaf has reached are
 * written as -0 when the call ends; entries above one of those have a lower place in the product's stack
 * and are copied up. Altered expert_leaf_zero: such a leaf is +0; expert_leaf_arrival: rows of a leaf last to
 * first. */
#include "kernels/codes/codes_core.h"
#include "kernels/gemm/product.h"

#define BATCH_BYTES ((size_t)16 << 20)
#define LEVEL_TASKS 8 /* of an expert's levels */

/* What a call does, and one product for each expert that has rows. */
struct experts {
    const struct expert_rows *g;
    int n; /* products */
    struct product *p;
    int *of;            /* [n]: expert */
    int64_t *first;     /* [n + 1]: tasks before a product's */
    float **level;      /* [n]: the output of linear_experts, linear_dx_experts */
    struct listed *src; /* [n][n_src] */
    /* linear_dx_experts */
    int n_w;
    const struct mat *w;
    const struct leaves *l;
    /* linear_dw_experts */
    struct listed dy, x;
    struct dw_plan *plan; /* [g->n] */
    const struct tree_acc *acc;
    int64_t ld;
};

/* A leaf's effect on the stack, see the head. */
struct dw_plan {
    struct gemm_sum sum; /* of the leaves with rows */
    int n_before;        /* additions of the two newest levels, before the product */
    int depth;           /* entries after the call */
    /* entry i comes from entry from[i] of the product's stack; -1: no leaf has reached it */
    signed char from[TREE_DEPTH_MAX];
};

/* The operand's rows of expert e. */
static struct listed rows_from(struct listed x, const struct expert_rows *g, int e)
{
    const int64_t begin = g->begin[e];
    if (x.list)
        return listed_of(x.m, x.list + begin);
    return listed_of(mat_rows(x.m, begin, expert_row_count(g, e)), NULL);
}

/* `bytes` bytes at *at, which moves behind them. base NULL: only counts. */
static void *carve(char *base, size_t *at, size_t bytes)
{
    void *p = base ? base + *at : NULL;
    *at += (bytes + 63) / 64 * 64;
    return p;
}

/* Lays out what the op needs for at most g->n products. */
static size_t lay_out(struct experts *x, char *base, int n_src, int n_leaves)
{
    const size_t n = (size_t)x->g->n;
    size_t at = 0;
    x->p = carve(base, &at, sizeof *x->p * n);
    x->of = carve(base, &at, sizeof *x->of * n);
    x->first = carve(base, &at, sizeof *x->first * (n + 1));
    x->level = carve(base, &at, sizeof *x->level * n);
    x->src = carve(base, &at, sizeof *x->src * n * (size_t)n_src);
    if (n_leaves == 0)
        return at;
    x->plan = carve(base, &at, sizeof *x->plan * n);
    for (size_t e = 0; e < n; e++) {
        int64_t *ends = carve(base, &at, (size_t)n_leaves * 17);
        if (base)
            x->plan[e].sum = (struct gemm_sum){ .elem_end = ends,
                                                .end = ends + n_leaves,
                                                .merges = (uint8_t *)(ends + 2 * n_leaves) };
    }
    return at;
}

static int experts_open(struct dev *d, struct experts *x, int n_src, int n_leaves)
{
    char *base = dev_scratch(d, 2, lay_out(x, NULL, n_src, n_leaves) + 64);
    if (base)
        lay_out(x, base, n_src, n_leaves);
    return base != NULL;
}

/* Adds the product of expert e; its tasks are its share of those of all rows. */
static void experts_add(struct experts *x, const struct product *p, int e, int threads)
{
    const int64_t tasks = product_tasks(threads), all = x->g->begin[x->g->n];
    int n_busy = 0;
    for (int i = 0; i < x->g->n; i++)
        n_busy += expert_row_count(x->g, i) > 0;
    const int64_t even = ceil_div(tasks, n_busy ? n_busy : 1),
                  share = ceil_div(tasks * expert_row_count(x->g, e), all ? all : 1);
    x->p[x->n] = *p;
    x->of[x->n] = e;
    x->n += product_open(&x->p[x->n], threads, even > share ? even : share);
}

/* ---- batches ---- */
struct batch {
    struct product *p;
    const int64_t *first;
    int n;
    void (*task)(void *product, int64_t task, int thread);
};

static void batch_task(void *arg, int64_t task, int thread)
{
    const struct batch *b = arg;
    int low = 0, high = b->n;
    while (high - low > 1) {
        const int half = (low + high) / 2;
        if (b->first[half] <= task)
            low = half;
        else
            high = half;
    }
    b->task(&b->p[low], task - b->first[low], thread);
}

static void run_batch(struct dev *d, struct batch *b, int64_t *first)
{
    int64_t units = 0;
    b->task = product_pack;
    b->first = first;
    first[0] = 0;
    for (int i = 0; i < b->n; i++) {
        first[i + 1] = first[i] + product_next(&b->p[i]);
        units += b->p[i].m * b->p[i].n_units;
    }
    if (b->p->layout == GEMM_COLUMNS || !product_packs_alone(units))
        pool_run(d->pool, first[b->n], batch_task, b);
    else
        for (int64_t i = 0; i < first[b->n]; i++)
            batch_task(b, i, 0);
    b->task = product_task;
    for (int i = 0; i < b->n; i++)
        first[i + 1] = first[i] + b->p[i].n_groups * b->p[i].parts;
    pool_run(d->pool, first[b->n], batch_task, b);
}

/* The end of the batch that begins with product i. */
static int batch_end(const struct experts *x, int i, int threads)
{
    size_t bytes = 0;
    int end = i;
    for (; end < x->n && x->p[end].block == x->p[end].n_tiles; end++) {
        bytes += product_bytes(&x->p[end]);
        if (end > i && (threads == 1 || bytes > BATCH_BYTES))
            break;
    }
    return end > i ? end : i + 1;
}

static void run_all(struct dev *d, struct experts *x, void (*point)(const struct experts *x, int i))
{
    for (int i = 0, end; i < x->n; i = end) {
        end = batch_end(x, i, pool_threads(d->pool));
        struct batch b = { .p = x->p + i, .n = end - i };
        if (!products_take(d, b.p, b.n))
            continue;
        for (int k = i; point && k < end; k++)
            point(x, k);
        if (b.n == 1)
            product_run(d, b.p);
        else
            run_batch(d, &b, x->first);
    }
}

/* ---- linear_experts, linear_dx_experts ---- */
void gemm_linear_experts(struct dev *d, const struct gemm_tiles *const *tiles,
                         const struct gemm_kind (*kinds)[2], struct mat y, struct listed x,
                         const struct expert_rows *g, const struct panels *w)
{
    struct experts all = { .g = g };
    struct few_leaves cuts;
    struct gemm_sum sum;
    if (g->begin[g->n] == 0)
        return;
    if (w->kind == PANEL_CODES) {
        codes_product(d, d->codes, y, x, g, w);
        return;
    }
    if (!experts_open(d, &all, 1, 0)) {
        experts_set_nan(d, y);
        return;
    }
    sum_of_leaves(&sum, &cuts, w->dt, 1, &w->leaves);
    for (int e = 0; e < g->n; e++) {
        all.src[e] = rows_from(x, g, e);
        all.level[e] = (float *)y.p + g->begin[e] * y.ld;
        struct product p = { .tiles = tiles[w->dt],
                             .layout = GEMM_LINES,
                             .dt = w->dt,
                             .m = expert_row_count(g, e),
                             .n = w->n,
                             .n_src = 1,
                             .src = &all.src[e],
                             .leaves = &w->leaves,
                             .level = &all.level[e],
                             .ld = y.ld,
                             .sum = sum };
        if (product_weights(&p, kinds, &w[e]))
            experts_add(&all, &p, e, pool_threads(d->pool));
        else
            product_poison(&p);
    }
    run_all(d, &all, NULL);
}

static void point_dx(const struct experts *x, int i)
{
    segment_rows(x->p[i].b_rows, x->n_w, x->w + x->of[i] * x->n_w, x->l, x->p[i].sum.n);
}

void gemm_linear_dx_experts(struct dev *d, const struct gemm_tiles *const *tiles, struct mat dx, int n_w,
                            const struct listed *dy, const struct mat *w, const struct leaves *l,
                            const struct expert_rows *g)
{
    struct experts all = { .g = g, .n_w = n_w, .w = w, .l = l };
    const enum dtype dt = dy->m.dt;
    struct few_leaves cuts;
    struct gemm_sum sum;
    if (g->begin[g->n] == 0)
        return;
    if (!experts_open(d, &all, n_w, 0)) {
        experts_set_nan(d, dx);
        return;
    }
    sum_of_leaves(&sum, &cuts, dt, n_w, l);
    for (int e = 0; e < g->n; e++) {
        struct listed *src = all.src + e * n_w;
        for (int s = 0; s < n_w; s++)
            src[s] = rows_from(dy[s], g, e);
        all.level[e] = (float *)dx.p + g->begin[e] * dx.ld;
        const struct product p = { .tiles = tiles[dt],
                                   .layout = GEMM_LINES,
                                   .dt = dt,
                                   .m = expert_row_count(g, e),
                                   .n = dx.cols,
                                   .n_src = n_w,
                                   .src = src,
                                   .leaves = l,
                                   .n_b_rows = sum.elem_end[sum.n - 1],
                                   .level = &all.level[e],
                                   .ld = dx.ld,
                                   .sum = sum };
        experts_add(&all, &p, e, pool_threads(d->pool));
    }
    run_all(d, &all, point_dx);
}

/* ---- linear_dw_experts ---- */
/* Entries of the stack so far; those that some leaf has reached. */
struct stack {
    int depth, n_there;
};
/* The next leaf, whose rows end at `end`, joins the plan. */
static void plan_leaf(struct dw_plan *p, struct stack *k, int merges, int is_there, int64_t end)
{
    struct gemm_sum *s = &p->sum;
    int adds = 0, found = is_there;
    for (; merges > 0; merges--) {
        if (p->from[--k->depth] < 0)
            continue;
        adds += found;
        found = 1;
        k->n_there--;
    }
    p->from[k->depth++] = (signed char)(found ? k->n_there++ : -1);
    if (is_there) {
        s->elem_end[s->n] = end;
        s->merges[s->n++] = (uint8_t)adds;
    } else if (s->n > 0) {
        s->merges[s->n - 1] = (uint8_t)(s->merges[s->n - 1] + adds);
    } else {
        p->n_before += adds;
    }
}

static void plan_expert(struct dw_plan *p, const struct tree_acc *acc, const struct expert_rows *g, int e,
                        enum dtype dt)
{
    const struct sum_order *order = ORDER("gemm_dw_tree", &tree_order, &chain_order);
    const int keeps_empty = ORDER("expert_leaf_zero", 0, 1);
    struct stack k = { 0 };
    int64_t begin = g->begin[e];
    k.depth = k.n_there = order_depth_before(order, acc, acc->next);
    for (int i = 0; i < k.depth; i++)
        p->from[i] = (signed char)i;
    p->n_before = p->sum.n = 0;
    p->sum.depth_before = k.depth;
    for (int s = 0; s < g->n_leaves; s++) {
        const int64_t end = g->leaf_end[(int64_t)e * g->n_leaves + s];
        plan_leaf(p, &k, order_merges(order, acc, acc->next + s), end > begin || keeps_empty,
                  end - g->begin[e]);
        begin = end;
    }
    p->depth = k.depth;
    p->sum.depth_before -= p->n_before;
    sum_close(&p->sum, dt);
}

/* Rows of a leaf in grouped order; altered: last to first. */
static void point_leaves(const char **rows, const struct listed *x, const struct gemm_sum *s)
{
    for (int i = 0; i < s->n; i++) {
        const int64_t begin = i ? s->elem_end[i - 1] : 0, n = s->elem_end[i] - begin;
        const struct index_order order = ORDER("expert_leaf_arrival", forward_order(), backward_order(n));
        for (int64_t r = 0; r < n; r++)
            rows[begin + r] = listed_row(x, begin + index_at(order, r));
    }
}

static void point_dw(const struct experts *x, int i)
{
    const struct listed dy = rows_from(x->dy, x->g, x->of[i]), in = rows_from(x->x, x->g, x->of[i]);
    point_leaves(x->p[i].a_rows, &dy, &x->p[i].sum);
    point_leaves(x->p[i].b_rows, &in, &x->p[i].sum);
}

/* Task LEVEL_TASKS * e + i: the i-th part of expert e's levels. */
static struct mat level_part(const struct experts *x, int e, int level, int64_t task)
{
    const int64_t m = x->dy.m.cols, begin = m * (task % LEVEL_TASKS) / LEVEL_TASKS,
                  end = m * (task % LEVEL_TASKS + 1) / LEVEL_TASKS;
    const struct mat all = mat_of(x->acc[e].level[level], DT_F32, m, x->x.m.cols, x->ld);
    return mat_rows(all, begin, end - begin);
}

/* Additions that leaves without rows, before any with, bring about. */
static void levels_before(void *arg, int64_t task, int thread)
{
    const struct experts *x = arg;
    const int e = (int)(task / LEVEL_TASKS);
    int top = x->plan[e].sum.depth_before + x->plan[e].n_before;
    (void)thread;
    for (int i = 0; i < x->plan[e].n_before; i++, top--) {
        const struct mat to = level_part(x, e, top - 2, task), from = level_part(x, e, top - 1, task);
        for (int64_t r = 0; r < to.rows; r++)
            for (int64_t c = 0; c < to.cols; c++)
                ((float *)to.p)[r * to.ld + c] += ((const float *)from.p)[r * to.ld + c];
    }
}

/* Entries to their places, and -0 where nothing is. */
static void levels_after(void *arg, int64_t task, int thread)
{
    const struct experts *x = arg;
    const int e = (int)(task / LEVEL_TASKS);
    const struct dw_plan *p = &x->plan[e];
    (void)thread;
    for (int i = p->depth - 1; i >= 0; i--) {
        if (p->from[i] == i)
            continue;
        const struct mat to = level_part(x, e, i, task),
                         from = level_part(x, e, p->from[i] < 0 ? i : p->from[i], task);
        for (int64_t r = 0; r < to.rows; r++)
            for (int64_t c = 0; c < to.cols; c++)
                ((float *)to.p)[r * to.ld + c] = p->from[i] < 0 ? -0.0f
                                                                : ((const float *)from.p)[r * to.ld + c];
    }
}

/* Does any expert's plan move or fill levels? */
static int moves_levels(const struct experts *x, int *adds)
{
    int moves = 0;
    *adds = 0;
    for (int e = 0; e < x->g->n; e++) {
        *adds |= x->plan[e].n_before > 0;
        for (int i = 0; i < x->plan[e].depth; i++)
            moves |= x->plan[e].from[i] != i;
    }
    return moves;
}

/* level: a level's shape. */
static void poison_levels(struct dev *d, const struct tree_acc *acc, struct mat level, int n_experts)
{
    for (int e = 0; e < n_experts; e++)
        if (acc[e].level[0]) {
            level.p = acc[e].level[0];
            experts_set_nan(d, level);
        }
}

void gemm_linear_dw_experts(struct dev *d, const struct gemm_tiles *const *tiles, const struct tree_acc *acc,
                            int64_t ld, struct listed dy, struct listed x, const struct expert_rows *g)
{
    struct experts all = { .g = g, .dy = dy, .x = x, .acc = acc, .ld = ld };
    int adds;
    if (g->n_leaves <= 0)
        return;
    if (!experts_open(d, &all, 0, g->n_leaves)) {
        poison_levels(d, acc, mat_of(NULL, DT_F32, dy.m.cols, x.m.cols, ld), g->n);
        return;
    }
    for (int e = 0; e < g->n; e++) {
        struct dw_plan *plan = &all.plan[e];
        plan->depth = plan->n_before = 0;
        if (!acc[e].level[0])
            continue;
        plan_expert(plan, &acc[e], g, e, x.m.dt);
        const struct product p = { .tiles = tiles[x.m.dt],
                                   .layout = GEMM_COLUMNS,
                                   .dt = x.m.dt,
                                   .m = dy.m.cols,
                                   .n = x.m.cols,
                                   .n_a_rows = expert_row_count(g, e),
                                   .n_b_rows = expert_row_count(g, e),
                                   .level = acc[e].level,
                                   .ld = ld,
                                   .sum = plan->sum };
        experts_add(&all, &p, e, pool_threads(d->pool));
    }
    const int moves = moves_levels(&all, &adds);
    if (adds)
        pool_run(d->pool, (int64_t)g->n * LEVEL_TASKS, levels_before, &all);
    run_all(d, &all, point_dw);
    if (moves)
        pool_run(d->pool, (int64_t)g->n * LEVEL_TASKS, levels_after, &all);
}
