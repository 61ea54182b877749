/* experts_loop.c - products of experts, one expert after the other (gemm.h). */
#include <string.h>
#include "kernels/gemm.h"

/* a slot that products leave alone */
#define LISTED(d) ((d)->memory ? 0 : 3)

static size_t copy_bytes(struct listed x, int64_t rows)
{
    return x.list ? ((size_t)(rows * x.m.cols) * dtype_size(x.m.dt) + 63) / 64 * 64 : 0;
}

char *experts_copy_lists(struct dev *d, struct mat *out, int n, const struct listed *in, int64_t rows,
                         size_t more)
{
    size_t bytes = more + 64;
    for (int i = 0; i < n; i++)
        bytes += copy_bytes(in[i], rows);
    char *to = dev_scratch(d, LISTED(d), bytes);
    for (int i = 0; i < n && to; i++) {
        out[i] = in[i].m;
        if (in[i].list) {
            out[i] = mat_of(to, in[i].m.dt, rows, in[i].m.cols, in[i].m.cols);
            KERNEL(d, gather_scaled, out[i], in[i], NULL, NULL);
        }
        to += copy_bytes(in[i], rows);
    }
    return to;
}

void experts_set_nan(struct dev *d, struct mat y)
{
    for (int64_t i = 0; i < y.rows; i++)
        dev_fill(d, (float *)y.p + i * y.ld, 0xff, (size_t)y.cols * 4);
}

void experts_loop_linear(struct dev *d, const struct gemm_ops *ops, struct mat y, struct listed x,
                         const struct expert_rows *g, const struct panels *w)
{
    struct mat from;
    if (!experts_copy_lists(d, &from, 1, &x, g->begin[g->n], 0)) {
        experts_set_nan(d, y);
        return;
    }
    for (int e = 0; e < g->n; e++)
        if (expert_row_count(g, e) > 0)
            ops->linear(d, mat_rows(y, g->begin[e], expert_row_count(g, e)),
                        mat_rows(from, g->begin[e], expert_row_count(g, e)), &w[e]);
}

void experts_loop_dx(struct dev *d, const struct gemm_ops *ops, struct mat dx, int n_w,
                     const struct listed *dy, const struct mat *w, const struct leaves *l,
                     const struct expert_rows *g)
{
    enum { MOST = 8 };
    struct mat from[MOST], rows[MOST];
    if (n_w > MOST || !experts_copy_lists(d, from, n_w, dy, g->begin[g->n], 0)) {
        experts_set_nan(d, dx);
        return;
    }
    for (int e = 0; e < g->n; e++) {
        for (int s = 0; s < n_w; s++)
            rows[s] = mat_rows(from[s], g->begin[e], expert_row_count(g, e));
        if (expert_row_count(g, e) > 0)
            ops->linear_dx(d, mat_rows(dx, g->begin[e], expert_row_count(g, e)), n_w, rows, w + e * n_w, l);
    }
}

/* Sets a matrix to -0: what embed gives for tokens that are in no row of the table. */
static void minus_zero(struct dev *d, struct mat m)
{
    struct mat none = m;
    int32_t *ids = dev_scratch(d->host, 2, sizeof *ids * (size_t)m.rows);
    none.rows = 0;
    if (!ids) {
        experts_set_nan(d, m);
        return;
    }
    memset(ids, 0xff, sizeof *ids * (size_t)m.rows);
    KERNEL(d, embed, m, none, 0, ids);
}

/* A leaf without rows: sums that wait for it alone are added. */
static void empty_leaf(struct dev *d, const struct tree_acc *acc, struct mat level)
{
    int depth = nest_depth_before(acc->n, acc->inner, acc->next);
    int merges = nest_merges(acc->n, acc->inner, acc->next);
    struct mat older = level;
    if (merges == 0) {
        level.p = acc->level[depth];
        minus_zero(d, level);
    }
    for (; merges > 1; merges--, depth--) {
        older.p = acc->level[depth - 2];
        level.p = acc->level[depth - 1];
        KERNEL(d, add_to, older, level);
    }
}

/* Levels that sums need while the leaves of a call come one by one, and between calls. */
struct depths {
    int within, between;
};
static struct depths depths_of(const struct tree_acc *acc, int n_leaves)
{
    struct depths d = { 0, 0 };
    if (!acc->level[0])
        return d;
    d.between = nest_depth_before(acc->n, acc->inner, acc->next);
    for (int s = 0; s < n_leaves; s++) {
        const int64_t i = acc->next + s;
        const int after = nest_depth_before(acc->n, acc->inner, i) - nest_merges(acc->n, acc->inner, i) + 1;
        d.within = after > d.within ? after : d.within;
        if (s == n_leaves - 1)
            d.between = after > d.between ? after : d.between;
    }
    return d;
}

static void dw_of_expert(struct dev *d, const struct gemm_ops *ops, struct tree_acc leaf, struct mat level,
                         const struct mat from[2], const struct expert_rows *g, int e)
{
    int64_t begin = g->begin[e];
    for (int s = 0; s < g->n_leaves; s++, leaf.next++) {
        const int64_t end = g->leaf_end[e * g->n_leaves + s];
        if (end > begin)
            ops->linear_dw(d, &leaf, level.ld, mat_rows(from[0], begin, end - begin),
                           mat_rows(from[1], begin, end - begin), 1, end - begin);
        else
            empty_leaf(d, &leaf, level);
        begin = end;
    }
}

void experts_loop_dw(struct dev *d, const struct gemm_ops *ops, const struct tree_acc *acc, int64_t ld,
                     struct listed dy, struct listed x, const struct expert_rows *g)
{
    const struct listed in[2] = { dy, x };
    const struct mat level = mat_of(NULL, DT_F32, dy.m.cols, x.m.cols, ld);
    const size_t bytes = (size_t)(level.rows * ld) * 4;
    struct mat from[2];
    int more = 0;
    for (int e = 0; e < g->n; e++) {
        const struct depths of = depths_of(&acc[e], g->n_leaves);
        more = of.within - of.between > more ? of.within - of.between : more;
    }
    char *spare = experts_copy_lists(d, from, 2, in, g->begin[g->n], bytes * (size_t)more);
    for (int e = 0; e < g->n; e++) {
        const struct depths of = depths_of(&acc[e], g->n_leaves);
        struct tree_acc leaf = acc[e];
        for (int i = of.between; i < of.within; i++)
            leaf.level[i] = (float *)(void *)(spare + bytes * (size_t)(i - of.between));
        if (leaf.level[0] && spare)
            dw_of_expert(d, ops, leaf, level, from, g, e);
        else if (leaf.level[0])
            experts_set_nan(d, mat_of(leaf.level[0], DT_F32, level.rows, level.cols, ld));
    }
}
