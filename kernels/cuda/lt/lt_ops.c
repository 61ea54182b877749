/* lt_ops.c - the four products of the op table over calls of cuBLASLt (lt.h): leaves, rows that are left
 * over, trees. */
#include "kernels/cuda/lt/lt.h"

#define PARTIALS 1 /* slots of the device's scratch */
#define REST 2
#define LEVELS 3
#define PARTIAL_BYTES ((int64_t)256 << 20) /* of the leaves' sums at a time, about */
#define SOURCES 4                          /* matrices that one result is contracted over */

static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static const void *element(const void *p, enum dtype dt, int64_t n)
{
    return (const char *)p + n * (int64_t)dtype_size(dt);
}

/* ---- linear_pack: rows as they are ---- */
static int64_t pack_ld(const struct panels *p)
{
    return (int64_t)(panels_bytes(32, p->k, p->dt, &p->leaves) / 32 / dtype_size(p->dt));
}

void lt_linear_pack(struct lt *l, struct panels *p, int n_w, const struct mat *w)
{
    const size_t size = dtype_size(p->dt), pitch = (size_t)pack_ld(p) * size;
    char *to = p->p;
    for (int i = 0; i < n_w; i++) {
        dev_copy_rows(lt_dev(l), to, pitch, w[i].p, (size_t)w[i].ld * size, (size_t)p->k * size, w[i].rows);
        to += pitch * (size_t)w[i].rows;
    }
}

/* ---- linear and dx: y[m][n] = the leaves' tree of sums over sources ---- */
struct source {
    struct lt_operand w, x;
    const struct leaves *leaves;
};
struct rows_job {
    enum lt_form form;
    enum dtype dt;
    struct mat y;
    int n_sources;
    struct source s[SOURCES];
};

static int64_t leaf_begin(const struct leaves *v, int g) { return g ? v->end[g - 1] : 0; }

/* The first leaf behind g that is not as long as it. */
static int run_of(const struct leaves *v, int g)
{
    const int64_t n = v->end[g] - leaf_begin(v, g);
    int h = g + 1;
    while (h < v->n && v->end[h] - v->end[h - 1] == n)
        h++;
    return h;
}

/* Leaves of one source into part[leaf][rows][ld]: runs of one length at once. What an empty leaf of the
 * first one leaves is zero. */
static void run_source(struct lt *l, const struct rows_job *j, const struct source *s, int64_t row,
                       int64_t rows, float *part, int64_t ld, int64_t step)
{
    const int add = s != j->s;
    for (int g = 0, h; g < s->leaves->n; g = h) {
        const int64_t from = leaf_begin(s->leaves, g), n = s->leaves->end[g] - from;
        h = run_of(s->leaves, g);
        if (!n && !add)
            dev_fill(lt_dev(l), part + g * step, 0,
                     (size_t)((h - g - 1) * step + (rows - 1) * ld + j->y.cols) * sizeof(float));
        if (!n)
            continue;
        const int64_t w_at = j->form == LT_DX ? from * s->w.ld : from;
        struct lt_product p = { .form = j->form,
                                .dt = j->dt,
                                .rows = rows,
                                .cols = j->y.cols,
                                .inner = n,
                                .batch = h - g,
                                .a = { element(s->w.p, j->dt, w_at), s->w.ld,
                                       j->form == LT_DX ? n * s->w.ld : n },
                                .b = { element(s->x.p, j->dt, row * s->x.ld + from), s->x.ld, n },
                                .d = part + g * step,
                                .ld = ld,
                                .step = step,
                                .add = add };
        if (!lt_run(l, &p))
            dev_fill(lt_dev(l), part + g * step, 0xff,
                     (size_t)((h - g - 1) * step + (rows - 1) * ld + j->y.cols) * sizeof(float));
    }
}

/* Rows [row, row + rows), a multiple of LT_ROWS that x really has. One leaf needs no tree. */
static void run_rows(struct lt *l, const struct rows_job *j, int64_t row, int64_t rows, float *y, int64_t ld)
{
    const int n = j->s[0].leaves->n;
    const int64_t cols = j->y.cols, step = rows * cols;
    struct dev *d = lt_dev(l);
    const float *in[GRAIN_MAX];
    float *part = n == 1 ? y : dev_scratch(d, PARTIALS, (size_t)(n * step) * sizeof(float));
    if (!part) {
        dev_fill(d, y, 0xff, (size_t)((rows - 1) * ld + cols) * sizeof(float));
        return;
    }
    for (int i = 0; i < j->n_sources; i++)
        run_source(l, j, &j->s[i], row, rows, part, n == 1 ? ld : cols, step);
    if (n == 1)
        return;
    for (int g = 0; g < n; g++)
        in[g] = part + g * step;
    d->ops->tree_add(d, ld == cols ? y : part, in, n, step);
    if (ld != cols)
        dev_copy_rows(d, y, (size_t)ld * sizeof(float), part, (size_t)cols * sizeof(float),
                      (size_t)cols * sizeof(float), rows);
}

/* The rows that are left over, among zeros: [LT_ROWS][…] of every source, then of y. */
static void run_rest(struct lt *l, const struct rows_job *j, int64_t row, int64_t rows)
{
    struct dev *d = lt_dev(l);
    struct rows_job rest = *j;
    const size_t size = dtype_size(j->dt), y_bytes = (size_t)(LT_ROWS * j->y.cols) * sizeof(float);
    size_t bytes = y_bytes, at = y_bytes;
    for (int i = 0; i < j->n_sources; i++)
        bytes += (size_t)LT_ROWS * (size_t)(j->s[i].leaves->end[j->s[i].leaves->n - 1] + 8) * size;
    char *scratch = dev_scratch(d, REST, bytes);
    struct mat y = mat_rows(j->y, row, rows);
    if (!scratch) {
        dev_fill(d, y.p, 0xff, (size_t)((rows - 1) * y.ld + y.cols) * sizeof(float));
        return;
    }
    for (int i = 0; i < j->n_sources; i++) {
        const struct lt_operand x = j->s[i].x;
        const int64_t n = j->s[i].leaves->end[j->s[i].leaves->n - 1], ld = (n + 7) / 8 * 8;
        rest.s[i].x = (struct lt_operand){ scratch + at, ld, 0 };
        dev_fill(d, scratch + at, 0, (size_t)(LT_ROWS * ld) * size);
        dev_copy_rows(d, scratch + at, (size_t)ld * size, element(x.p, j->dt, row * x.ld),
                      (size_t)x.ld * size, (size_t)n * size, rows);
        at += (size_t)(LT_ROWS * ld) * size;
    }
    run_rows(l, &rest, 0, LT_ROWS, (float *)(void *)scratch, y.cols);
    dev_copy_rows(d, y.p, (size_t)y.ld * sizeof(float), scratch, (size_t)y.cols * sizeof(float),
                  (size_t)y.cols * sizeof(float), rows);
}

static void run_job(struct lt *l, const struct rows_job *j)
{
    const int64_t whole = j->y.rows / LT_ROWS * LT_ROWS, row_bytes = j->y.cols * 4 * j->s[0].leaves->n;
    const int64_t most = j->s[0].leaves->n == 1 ? whole
                                                : LT_ROWS * (1 + PARTIAL_BYTES / (LT_ROWS * row_bytes));
    for (int64_t row = 0; row < whole; row += most)
        run_rows(l, j, row, min_of(most, whole - row), (float *)j->y.p + row * j->y.ld, j->y.ld);
    if (whole < j->y.rows)
        run_rest(l, j, whole, j->y.rows - whole);
}

void lt_linear(struct lt *l, struct mat y, struct mat x, const struct panels *w)
{
    struct rows_job j = {
        LT_LINEAR, w->dt, y, 1, { { { w->p, pack_ld(w), 0 }, { x.p, x.ld, 0 }, &w->leaves } }
    };
    j.y.cols = w->n;
    if (y.rows > 0 && w->n > 0)
        run_job(l, &j);
}

void lt_linear_dx(struct lt *l, struct mat dx, int n_w, const struct mat *dy, const struct mat *w,
                  const struct leaves *leaves)
{
    struct rows_job j = { LT_DX, dy[0].dt, dx, n_w, { { { 0 }, { 0 }, NULL } } };
    for (int i = 0; i < n_w && i < SOURCES; i++)
        j.s[i] = (struct source){ { w[i].p, w[i].ld, 0 }, { dy[i].p, dy[i].ld, 0 }, &leaves[i] };
    if (dx.rows > 0 && dx.cols > 0 && n_w <= SOURCES)
        run_job(l, &j);
}

/* ---- linear_dw: a sequence a leaf; the stack of partial sums is the caller's where it is kept, else
 * scratch ---- */
struct stack {
    float *at[TREE_DEPTH_MAX];
    int64_t ld[TREE_DEPTH_MAX];
};

static int open_stack(struct lt *l, struct stack *s, const struct tree_acc *acc, int64_t ld, int64_t n,
                      int64_t k, int n_seq)
{
    int kept = nest_depth_before(acc->n, acc->inner, acc->next), most = kept, own = 0;
    /* a leaf stands on the stack before it is merged, unless the product adds it */
    for (int i = 1; i <= n_seq; i++) {
        const int depth = nest_depth_before(acc->n, acc->inner, acc->next + i);
        most = depth > most ? depth : most;
    }
    const int after = nest_depth_before(acc->n, acc->inner, acc->next + n_seq);
    const int theirs = after > kept ? after : kept;
    float *scratch = most > theirs
                         ? dev_scratch(lt_dev(l), LEVELS, (size_t)((most - theirs) * n * k) * sizeof(float))
                         : NULL;
    for (int i = 0; i < most; i++) {
        s->at[i] = i < theirs ? acc->level[i] : scratch + own++ * n * k;
        s->ld[i] = i < theirs ? ld : k;
    }
    return most == theirs || scratch;
}

static void add_level(struct dev *d, const struct stack *s, int older, int newer, int64_t n, int64_t k)
{
    for (int64_t r = 0; r < (s->ld[older] == k && s->ld[newer] == k ? 1 : n); r++) {
        const float *in[2] = { s->at[older] + r * s->ld[older], s->at[newer] + r * s->ld[newer] };
        d->ops->tree_add(d, s->at[older] + r * s->ld[older], in, 2,
                         s->ld[older] == k && s->ld[newer] == k ? n * k : k);
    }
}

void lt_linear_dw(struct lt *l, const struct tree_acc *acc, int64_t ld, struct mat dy, struct mat x,
                  int n_seq, int64_t seq_len)
{
    struct dev *d = lt_dev(l);
    const int64_t n = dy.cols, k = x.cols;
    struct stack s;
    int depth = nest_depth_before(acc->n, acc->inner, acc->next);
    if (n_seq < 1 || n < 1 || k < 1)
        return;
    if (!open_stack(l, &s, acc, ld, n, k, n_seq)) {
        dev_fill(d, acc->level[0], 0xff, (size_t)((n - 1) * ld + k) * sizeof(float));
        return;
    }
    for (int i = 0; i < n_seq; i++) {
        int merges = nest_merges(acc->n, acc->inner, acc->next + i);
        /* older + leaf is one rounding of the same two numbers in the product's last step */
        const int add = merges > 0;
        const int to = add ? depth - 1 : depth;
        struct lt_product p = { .form = LT_DW,
                                .dt = x.dt,
                                .rows = n,
                                .cols = k,
                                .inner = seq_len,
                                .batch = 1,
                                .a = { element(x.p, x.dt, i * seq_len * x.ld), x.ld, 0 },
                                .b = { element(dy.p, x.dt, i * seq_len * dy.ld), dy.ld, 0 },
                                .d = s.at[to],
                                .ld = s.ld[to],
                                .add = add };
        if (!lt_run(l, &p))
            dev_fill(d, s.at[to], 0xff, (size_t)((n - 1) * s.ld[to] + k) * sizeof(float));
        depth += !add;
        for (merges -= add; merges > 0; merges--, depth--)
            add_level(d, &s, depth - 2, depth - 1, n, k);
    }
}
