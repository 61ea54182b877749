/* panels_pack.c - linear_pack: rows of weights become panels, plain or in 12 bits. */
#include <stdatomic.h>
#include <string.h>

#include "kernels/gemm/b12.h"
#include "kernels/gemm/product.h"

struct weights {
    const struct panels *p;
    int n_w;
    const struct gemm_tiles *tiles;
    const struct mat *w;
    int64_t stride;
    struct gemm_sum sum;
    struct few_leaves leaves;
    atomic_llong escapes;
    atomic_int misfits; /* panels */
};

static void weights_open(struct weights *a, const struct panels *p, int n_w, const struct mat *w)
{
    *a = (struct weights){ .p = p, .n_w = n_w, .w = w, .stride = panels_stride(p) };
    sum_of_leaves(&a->sum, &a->leaves, p->dt, 1, &p->leaves);
}

/* The rows of a panel. */
static int collect_rows(const struct weights *a, const struct gemm_panel *at, const char *rows[GEMM_COLS])
{
    int64_t skip = at->first;
    int count = 0;
    for (int i = 0; i < a->n_w && count < at->n; i++) {
        const struct mat *w = &a->w[i];
        for (int64_t r = skip; r < w->rows && count < at->n; r++)
            rows[count++] = (const char *)w->p + r * w->ld * (int64_t)dtype_size(w->dt);
        skip = skip > w->rows ? skip - w->rows : 0;
    }
    return count;
}

static void pack_plain(void *arg, int64_t panel, int thread)
{
    const struct weights *a = arg;
    const struct gemm_panel at = gemm_panel_at(a->p, a->stride, panel);
    const char *rows[GEMM_COLS];
    const int count = collect_rows(a, &at, rows);
    (void)thread;
    const int cols = a->tiles->panel_cols;
    const int64_t row_bytes = a->w[0].ld * (int64_t)dtype_size(a->p->dt);
    for (int in = 0; in < GEMM_COLS; in += cols)
        gemm_pack_panel((float *)(void *)(at.p + a->stride / GEMM_COLS * in), a->tiles, a->p->dt, &a->sum,
                        rows + in, (int)min_of(count > in ? count - in : 0, cols), row_bytes);
}

/* A panel that does not fit becomes NaN. */
static void pack_b12(void *arg, int64_t panel, int thread)
{
    const struct weights *a = arg;
    const struct gemm_panel at = gemm_panel_at(a->p, a->stride, panel);
    const char *rows[GEMM_COLS];
    const int count = collect_rows(a, &at, rows);
    (void)thread;
    if (b12_pack_panel((char *)at.p, &a->sum, rows, count) < 0)
        memset((char *)at.p, 0xff, (size_t)b12_panel_bytes(&a->sum));
}

void gemm_linear_pack(struct dev *d, const struct gemm_tiles *const *tiles, struct panels *p, int n_w,
                      const struct mat *w)
{
    struct weights a;
    weights_open(&a, p, n_w, w);
    a.tiles = tiles[p->dt];
    pool_run(d->pool, gemm_panel_count(p), p->kind == PANEL_B12 ? pack_b12 : pack_plain, &a);
}

static void count_b12(void *arg, int64_t panel, int thread)
{
    struct weights *a = arg;
    const struct gemm_panel at = gemm_panel_at(a->p, a->stride, panel);
    const char *rows[GEMM_COLS];
    const int count = collect_rows(a, &at, rows);
    const int64_t escapes = b12_pack_panel(NULL, &a->sum, rows, count);
    (void)thread;
    if (escapes < 0)
        atomic_fetch_add(&a->misfits, 1);
    else
        atomic_fetch_add(&a->escapes, escapes);
}

int64_t panels_escapes(struct dev *d, const struct panels *p, int n_w, const struct mat *w)
{
    struct weights a;
    struct panels b12 = *p;
    b12.kind = PANEL_B12;
    weights_open(&a, &b12, n_w, w);
    pool_run(d->pool, gemm_panel_count(&b12), count_b12, &a);
    return a.misfits ? -1 : a.escapes;
}
