/* simt_gemm_text.h - products without tensor cores, in the CPU's order and so with its bits (part of simt_text.h).
 *
 * A task is 8 rows x 32 columns of the result, a column a lane. A step loads 32 neighbours of B, and a value of A a row that all lanes share:
 *
 *     acc[row][lane] = fma(A[row][k], B[k][lane], acc[row][lane])     leaf after leaf, merged as tree.h says
 *
 * Weights are packed as panels of 32 columns, [k][32], so that B's neighbours are neighbours in memory. */
#define SIMT_ROWS 8
#define LEAF_DEPTH 8                     /* of Tree(n), n <= GRAIN_MAX */

struct tile { struct lanes row[SIMT_ROWS]; };
struct operand { const void *p; int64_t row, k; };           /* element (r, k) at r * row + k * k */

FN float chain_step(const enum dtype dt, float a, float b, float sum) { return dt == DT_BF16 ? fma_pair_half(a, b, sum) : fmaf(a, b, sum); }

FN const void *elements(const void *p, enum dtype dt, int64_t n) { return (const char *)p + n * (int64_t)dtype_size(dt); }

FN void tile_zero(struct tile *t)
{
    UNROLL
    for (int r = 0; r < SIMT_ROWS; r++)
        for (EACH_LANE(j, LANES))
            t->row[r].x[j] = 0.0f;
}

/* n steps of the chain; in bf16 an odd one ends with a zero half. */
FN void tile_chain(struct tile *t, int rows, struct operand a, const void *b, int64_t ldb, int64_t n, int cols, const enum dtype dt)
{
    for (int64_t k = 0; k < n; k++)
        for (EACH_LANE(j, cols)) {
            const float w = get(b, dt, k * ldb + j);
            UNROLL
            for (int r = 0; r < SIMT_ROWS; r++)
                if (r < rows)
                    t->row[r].x[j] = chain_step(dt, get(a.p, dt, r * a.row + k * a.k), w, t->row[r].x[j]);
        }
    if (dt == DT_BF16 && n % 2)
        for (EACH_LANE(j, cols)) {
            UNROLL
            for (int r = 0; r < SIMT_ROWS; r++)
                t->row[r].x[j] = chain_step(dt, 0.0f, 0.0f, t->row[r].x[j]);
        }
}

/* older + newer, into older. */
FN void tile_add(struct tile *older, const struct tile *newer)
{
    UNROLL
    for (int r = 0; r < SIMT_ROWS; r++)
        for (EACH_LANE(j, LANES))
            older->row[r].x[j] = older->row[r].x[j] + newer->row[r].x[j];
}

/* stack[*depth] joins the entries below it. */
FN void tile_join(struct tile *stack, int *depth, int merges)
{
    for (; merges > 0; merges--, --*depth)
        tile_add(&stack[*depth - 1], &stack[*depth]);
    ++*depth;
}

FN void tile_put(struct mat y, int64_t r0, int rows, int64_t c0, int cols, const struct tile *t)
{
    UNROLL
    for (int r = 0; r < SIMT_ROWS; r++)
        if (r < rows)
            put(mat_row(y, r0 + r), DT_F32, c0, cols, &t->row[r]);
}

/* Tasks go over rows first, so that neighbours share columns of B. */
struct place { int64_t r0, c0; int rows, cols; };
FN struct place place_of(int64_t task, int64_t rows, int64_t cols)
{
    const int64_t groups = (rows + SIMT_ROWS - 1) / SIMT_ROWS;
    struct place p = { task % groups * SIMT_ROWS, task / groups * LANES, 0, 0 };
    p.rows = (int)(rows - p.r0 < SIMT_ROWS ? rows - p.r0 : SIMT_ROWS);
    p.cols = (int)(cols - p.c0 < LANES ? cols - p.c0 : LANES);
    return p;
}
ROW_BOTH int64_t places(int64_t rows, int64_t cols) { return (rows + SIMT_ROWS - 1) / SIMT_ROWS * ((cols + LANES - 1) / LANES); }

/* ---- linear_pack ---- */
#define SIMT_MATS 4
struct pack_job { char *to; size_t panel; struct mat w[SIMT_MATS]; int n_w; enum dtype dt; int64_t n, k; };

/* Element k of output n of the stacked matrices. */
FN const void *stacked(const struct pack_job *a, int64_t n, int64_t k)
{
    int i = 0;
    for (; i < a->n_w - 1 && n >= a->w[i].rows; i++)
        n -= a->w[i].rows;
    return elements(a->w[i].p, a->dt, n * a->w[i].ld + k);
}

/* A task is a panel's 32 rows of the contraction. */
ROW_TASK pack_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct pack_job *a = arg;
    const int64_t pieces = (a->k + LANES - 1) / LANES;
    for (int64_t t = begin; t < end; t++) {
        const int64_t panel = t / pieces, k0 = t % pieces * LANES, n0 = panel * LANES;
        char *to = a->to + (size_t)panel * a->panel;
        for (int64_t k = k0; k < k0 + LANES && k < a->k; k++)
            for (EACH_LANE(j, a->n - n0 < LANES ? (int)(a->n - n0) : LANES)) {
                if (a->dt == DT_BF16)
                    ((uint16_t *)to)[k * LANES + j] = *(const uint16_t *)stacked(a, n0 + j, k);
                else
                    ((float *)to)[k * LANES + j] = *(const float *)stacked(a, n0 + j, k);
            }
    }
}

static void op_linear_pack(struct dev *d, struct panels *p, int n_w, const struct mat *w)
{
    struct pack_job a = { .to = (char *)p->p, .panel = panels_bytes(LANES, p->k, p->dt, &p->leaves), .n_w = n_w, .dt = p->dt, .n = p->n, .k = p->k };
    for (int i = 0; i < n_w && i < SIMT_MATS; i++)
        a.w[i] = w[i];
    if (SIMT_FITS(d, n_w <= SIMT_MATS))
        rows_spread(d, (p->n + LANES - 1) / LANES * ((p->k + LANES - 1) / LANES), 1, pack_task, &a);
}

/* ---- linear ---- */
struct linear_job { struct mat y, x; const char *w; size_t panel; struct leaves l; };

FN void linear_tile(const struct linear_job *a, int64_t task, const enum dtype dt)
{
    const struct place p = place_of(task, a->y.rows, a->y.cols);
    const char *w = a->w + (size_t)(p.c0 / LANES) * a->panel;
    struct tile stack[LEAF_DEPTH];
    int depth = 0;
    int64_t from = 0;
    for (int g = 0; g < a->l.n; from = a->l.end[g++]) {
        struct operand x = { elements(a->x.p, dt, p.r0 * a->x.ld + from), a->x.ld, 1 };
        tile_zero(&stack[depth]);
        tile_chain(&stack[depth], p.rows, x, elements(w, dt, from * LANES), LANES, a->l.end[g] - from, p.cols, dt);
        tile_join(stack, &depth, tree_merges(a->l.n, g));
    }
    tile_put(a->y, p.r0, p.rows, p.c0, p.cols, &stack[0]);
}

ROW_TASK linear_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct linear_job *a = arg;
    for (int64_t t = begin; t < end; t++)
        BY_DTYPE(a->x.dt, linear_tile(a, t, DT));
}

static void op_linear(struct dev *d, struct mat y, struct mat x, const struct panels *w)
{
    struct linear_job a = { .y = y, .x = x, .w = (const char *)w->p, .panel = panels_bytes(LANES, w->k, w->dt, &w->leaves), .l = w->leaves };
    rows_spread(d, places(y.rows, y.cols), 1, linear_task, &a);
}

/* ---- linear_dx ---- */
struct linear_dx_job { struct mat dx; int n_w; struct mat dy[SIMT_MATS], w[SIMT_MATS]; struct leaves l[SIMT_MATS]; };

FN void linear_dx_tile(const struct linear_dx_job *a, int64_t task, const enum dtype dt)
{
    const struct place p = place_of(task, a->dx.rows, a->dx.cols);
    struct tile stack[LEAF_DEPTH];
    int depth = 0;
    for (int g = 0; g < a->l[0].n; g++) {
        tile_zero(&stack[depth]);
        for (int s = 0; s < a->n_w; s++) {
            const int64_t from = g ? a->l[s].end[g - 1] : 0;
            struct operand dy = { elements(a->dy[s].p, dt, p.r0 * a->dy[s].ld + from), a->dy[s].ld, 1 };
            tile_chain(&stack[depth], p.rows, dy, elements(a->w[s].p, dt, from * a->w[s].ld + p.c0), a->w[s].ld, a->l[s].end[g] - from, p.cols, dt);
        }
        tile_join(stack, &depth, tree_merges(a->l[0].n, g));
    }
    tile_put(a->dx, p.r0, p.rows, p.c0, p.cols, &stack[0]);
}

ROW_TASK linear_dx_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct linear_dx_job *a = arg;
    for (int64_t t = begin; t < end; t++)
        BY_DTYPE(a->dy[0].dt, linear_dx_tile(a, t, DT));
}

static void op_linear_dx(struct dev *d, struct mat dx, int n_w, const struct mat *dy, const struct mat *w, const struct leaves *l)
{
    struct linear_dx_job a = { .dx = dx, .n_w = n_w };
    for (int i = 0; i < n_w && i < SIMT_MATS; i++) {
        a.dy[i] = dy[i];
        a.w[i] = w[i];
        a.l[i] = l[i];
    }
    if (SIMT_FITS(d, n_w <= SIMT_MATS))
        rows_spread(d, places(dx.rows, dx.cols), 1, linear_dx_task, &a);
}

/* ---- the partial sums of a tree_acc, for rows x columns of it: pile of rows.h ---- */
struct heap { int kept, depth, pushed; struct tile own[TREE_DEPTH_MAX]; };
struct heap_at { const struct tree_acc *acc; int64_t at, ld; int rows, cols; };     /* at: its first element in every level */

FN void heap_begin(struct heap *h, const struct heap_at *p)
{
    h->pushed = 0;
    h->depth = h->kept = tree_depth_before(p->acc->n, p->acc->next);
}

/* The top entry is taken off and stands before *v. */
FN void heap_merge(struct heap *h, const struct heap_at *p, struct tile *v)
{
    const int top = --h->depth;
    UNROLL
    for (int r = 0; r < SIMT_ROWS; r++)
        if (r < p->rows)
            for (EACH_LANE(j, p->cols))
                v->row[r].x[j] = (top < h->kept ? p->acc->level[top][p->at + r * p->ld + j] : h->own[top].row[r].x[j]) + v->row[r].x[j];
}

FN void heap_push(struct heap *h, const struct heap_at *p, const struct tile *leaf)
{
    struct tile v = *leaf;
    for (int merges = tree_merges(p->acc->n, p->acc->next + h->pushed++); merges > 0; merges--)
        heap_merge(h, p, &v);
    h->kept = h->depth < h->kept ? h->depth : h->kept;
    h->own[h->depth++] = v;
}

FN void heap_end(const struct heap *h, const struct heap_at *p)
{
    for (int i = h->kept; i < h->depth; i++) {
        UNROLL
        for (int r = 0; r < SIMT_ROWS; r++)
            if (r < p->rows)
                put(p->acc->level[i], DT_F32, p->at + r * p->ld, p->cols, &h->own[i].row[r]);
    }
}

/* ---- linear_dw ---- */
struct linear_dw_job { struct tree_acc acc; int64_t ld; struct mat dy, x; int n_seq; int64_t seq_len; };

FN void linear_dw_tile(const struct linear_dw_job *a, int64_t task, const enum dtype dt)
{
    const struct place p = place_of(task, a->dy.cols, a->x.cols);
    const struct heap_at at = { &a->acc, p.r0 * a->ld + p.c0, a->ld, p.rows, p.cols };
    struct heap h;
    heap_begin(&h, &at);
    for (int s = 0; s < a->n_seq; s++) {
        const int64_t t0 = s * a->seq_len;
        struct operand dy = { elements(a->dy.p, dt, t0 * a->dy.ld + p.r0), 1, a->dy.ld };
        struct tile leaf;
        tile_zero(&leaf);
        tile_chain(&leaf, p.rows, dy, elements(a->x.p, dt, t0 * a->x.ld + p.c0), a->x.ld, a->seq_len, p.cols, dt);
        heap_push(&h, &at, &leaf);
    }
    heap_end(&h, &at);
}

ROW_TASK linear_dw_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct linear_dw_job *a = arg;
    for (int64_t t = begin; t < end; t++)
        BY_DTYPE(a->x.dt, linear_dw_tile(a, t, DT));
}

static void op_linear_dw(struct dev *d, const struct tree_acc *acc, int64_t ld, struct mat dy, struct mat x, int n_seq, int64_t seq_len)
{
    struct linear_dw_job a = { *acc, ld, dy, x, n_seq, seq_len };
    rows_spread(d, places(dy.cols, x.cols), 1, linear_dw_task, &a);
}
