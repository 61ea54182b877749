/* kinds.c - where the panels of weights lie (panels.h): their sizes, and panel i of several runs. */
#include "kernels/gemm/b12.h"
#include "kernels/gemm/product.h"

int64_t gemm_leaves_units(const struct leaves *l, enum dtype dt)
{
    int64_t units = 0;
    for (int i = 0; i < l->n; i++)
        units += gemm_units(dt, l->end[i] - (i ? l->end[i - 1] : 0));
    return units;
}

/* ---- bytes of a panel, by kind ---- */
static int64_t plain_bytes(const struct panels *w)
{
    /* whole: for one leaf of everything, in altered builds */
    const int64_t units = gemm_leaves_units(&w->leaves, w->dt), whole = gemm_units(w->dt, w->k);
    return GEMM_COLS * (units > whole ? units : whole) * 4;
}

/* Of a row. */
static int64_t row_bytes(const struct panels *w) { return w->k * (int64_t)dtype_size(w->dt); }

static int64_t b12_bytes(const struct panels *w)
{
    int64_t bytes = 0;
    for (int g = 0; g < w->leaves.n; g++)
        bytes += b12_piece_bytes(w->leaves.end[g] - (g ? w->leaves.end[g - 1] : 0));
    return bytes;
}

static int64_t (*const bytes_of[PANEL_KINDS])(const struct panels *w) = {
    [PANEL_PLAIN] = plain_bytes, [PANEL_ROWS] = row_bytes, [PANEL_B12] = b12_bytes
};

int64_t panels_stride(const struct panels *w)
{
    return w->stride || !bytes_of[w->kind] ? w->stride : bytes_of[w->kind](w);
}

int64_t panels_leaf_at(const struct panels *w, int g)
{
    struct panels before = *w;
    before.leaves.n = g;
    before.k = g ? w->leaves.end[g - 1] : 0;
    return bytes_of[w->kind] ? bytes_of[w->kind](&before) : 0;
}

/* Panels, or rows, that n outputs take. */
static int64_t pieces_of(const struct panels *w, int64_t n)
{
    return w->kind == PANEL_ROWS ? n : ceil_div(n, GEMM_COLS);
}

size_t panels_size(const struct panels *w) { return (size_t)(pieces_of(w, w->n) * panels_stride(w)); }

size_t panels_bytes(int64_t n, int64_t k, enum dtype dt, const struct leaves *l)
{
    return panels_size(&(struct panels){ NULL, n, k, dt, *l });
}

/* ---- panels of several runs ---- */
int64_t gemm_panel_count(const struct panels *w)
{
    if (w->n_runs == 0)
        return ceil_div(w->n, GEMM_COLS);
    int64_t n = 0;
    for (int r = 0; r < w->n_runs; r++)
        n += ceil_div(w->run[r].n, GEMM_COLS);
    return n;
}

struct gemm_panel gemm_panel_at(const struct panels *w, int64_t stride, int64_t i)
{
    struct panel_run run = { w->p, w->n };
    int64_t first = 0;
    for (int r = 0; r < w->n_runs; r++) {
        run = w->run[r];
        if (i < ceil_div(run.n, GEMM_COLS))
            break;
        i -= ceil_div(run.n, GEMM_COLS);
        first += run.n;
    }
    const int64_t in = i * GEMM_COLS;
    return (struct gemm_panel){ w, (const char *)run.p + pieces_of(w, in) * stride, first + in,
                                (int)min_of(run.n - in, GEMM_COLS) };
}
