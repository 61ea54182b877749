/* gemm.cu - the products of the CUDA device: bf16 on tensor cores, fp32 through shared memory. Which kernel
 * makes a product is chosen by its sizes
 * and is no matter of bits: all of a dtype have one order (gemm_tile.cuh), and where mma and wgmma round
 * otherwise one of them makes all (wgmma.h). Packed weights are those of simt.inc: panels [k][32]. */
#include "kernels/cuda/gemm/gemm_bf16.cuh"
#include "kernels/cuda/gemm/gemm_experts.cuh"
#include "kernels/cuda/gemm/gemm_f32.cuh"
#include "kernels/cuda/gemm/gemm_few.cuh"
extern "C" {
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/products.h"
}
#include "kernels/cuda/gemm/wgmma.h"

/* Leaves whose sums wait in shared memory: all of this call but the newest. */
static int slots_of(const struct tree_acc &t, int n_leaves)
{
    int depth = nest_depth_before(t.n, t.inner, t.next), kept = depth, most = 0;
    for (int i = 0; i < n_leaves; i++) {
        depth -= nest_merges(t.n, t.inner, t.next + i);
        kept = depth < kept ? depth : kept;
        depth++;
        most = depth - 1 - kept > most ? depth - 1 - kept : most;
    }
    return most;
}

static int64_t of_gpu(struct dev *d, enum cudaDeviceAttr attribute)
{
    int index = 0, value = 0;
    cuda_well(d, cudaGetDevice(&index), "asking the GPU");
    cuda_well(d, cudaDeviceGetAttribute(&value, attribute, index), "asking the GPU");
    return value;
}
static size_t shared_max(struct dev *d) { return (size_t)of_gpu(d, cudaDevAttrMaxSharedMemoryPerBlockOptin); }

/* ---- a product, by size: the first row whose shared memory the GPU has and that gives all of it work
 * ---- */
typedef void gemm_starter(struct dev *d, const struct gemm_job &j, int slots);
typedef void experts_starter(struct dev *d, const struct gemm_job &all, const struct gemm_experts &x,
                             unsigned blocks, int slots);
struct size {
    gemm_starter *start;
    experts_starter *start_experts;
    int rows, cols;
    size_t pipe_bytes, slot_bytes;
};
#define SIZE(rows, cols, ...) \
    { \
        gemm_start<tiling<rows, cols, __VA_ARGS__>>, gemm_experts_start<tiling<rows, cols, __VA_ARGS__>>, \
            rows, cols, tiling<rows, cols, __VA_ARGS__>::PIPE_BYTES, \
            tiling<rows, cols, __VA_ARGS__>::SLOT_BYTES \
    }
#define SIZES(by_rows) \
    { \
        SIZE(128, 128, 64, 32, 4, by_rows), SIZE(128, 128, 64, 32, 2, by_rows), \
            SIZE(128, 64, 64, 32, 4, by_rows), SIZE(128, 64, 64, 32, 2, by_rows), \
            SIZE(32, 32, 16, 16, 3, by_rows) \
    }
enum { N_SIZES = 5 };
static const struct size sizes[2][N_SIZES] = { SIZES(false), SIZES(true) };

static void start_bf16(struct dev *d, struct gemm_job &j, enum form form)
{
    set_run(&j);
    const int slots = slots_of(j.acc, j.n_leaves), by_rows = form != FORM_DW;
    const size_t most = shared_max(d);
    const int64_t blocks = of_gpu(d, cudaDevAttrMultiProcessorCount);
    if (wgmma_start(d, j, form, slots, most, blocks))
        return;
    for (int i = 0; i < N_SIZES; i++) {
        const struct size *s = &sizes[by_rows][i];
        if (s->pipe_bytes + (size_t)slots * s->slot_bytes > most ||
            (s->cols == 128 && tiles_of(j, s->rows, s->cols) < blocks))
            continue;
        s->start(d, j, slots);
        return;
    }
    cuda_well(d, cudaErrorInvalidValue, "a product of more leaves than one call takes");
}

static gemm_starter *const f32[2] = { f32_start<false>, f32_start<true> };
/* 0: too deep a tree for shared memory, or too few rows to be worth it; simt has the same bits. */
static int start_f32(struct dev *d, struct gemm_job &j, int by_rows)
{
    set_run(&j);
    const int slots = slots_of(j.acc, j.n_leaves);
    if (j.rows <= 8 || F32_PIPE_BYTES + (size_t)slots * F32_SLOT_BYTES > shared_max(d))
        return 0;
    f32[by_rows](d, j, slots);
    return 1;
}

/* ---- ops ---- */
static void own_pack(struct dev *d, struct panels *p, int n_w, const struct mat *w)
{
    cuda_kernels()->linear_pack(d, p, n_w, w);
}

static struct gemm_job job_of(struct mat y, int n_parts, int n_leaves)
{
    struct gemm_job j = {
        .rows = (int)y.rows, .cols = (int)y.cols, .ld = y.ld, .n_parts = n_parts, .n_leaves = n_leaves
    };
    j.acc.n = n_leaves;
    j.acc.level[0] = (float *)y.p;
    return j;
}

static struct side side_of(struct mat m)
{
    struct side s = { m.p, m.ld, PANEL };
    return s;
}

static void own_linear(struct dev *d, struct mat y, struct mat x, const struct panels *w)
{
    struct gemm_job j = job_of(y, 1, w->leaves.n);
    if (y.rows < 1 || y.cols < 1)
        return;
    j.a[0] = side_of(x);
    j.b[0].p = w->p;
    j.b[0].ld = PANEL;
    j.b[0].panel = (int64_t)(panels_bytes(PANEL, w->k, w->dt, &w->leaves) / dtype_size(w->dt));
    j.l[0] = w->leaves;
    if (x.dt == DT_F32) {
        if (!start_f32(d, j, 1))
            cuda_kernels()->linear(d, y, x, w);
    } else if (y.rows > FEW_ROWS || j.n_leaves > FEW_LEAVES || cuda_wgmma(d)->use == WGMMA_ALONE) {
        start_bf16(d, j, FORM_LINEAR);
    } else if (y.rows > 32) {
        few_start<4>(d, j);
    } else if (y.rows > 16) {
        few_start<2>(d, j);
    } else {
        few_start<1>(d, j);
    }
}

static void own_dx(struct dev *d, struct mat dx, int n_w, const struct mat *dy, const struct mat *w,
                   const struct leaves *l)
{
    struct gemm_job j = job_of(dx, n_w, l[0].n);
    if (!cuda_well(d, n_w <= PARTS_MAX ? cudaSuccess : cudaErrorInvalidValue,
                   "a product of more matrices than it is made for") ||
        dx.rows < 1 || dx.cols < 1)
        return;
    for (int i = 0; i < n_w; i++) {
        j.a[i] = side_of(dy[i]);
        j.b[i] = side_of(w[i]);
        j.l[i] = l[i];
    }
    if (dy[0].dt != DT_F32)
        start_bf16(d, j, FORM_DX);
    else if (!start_f32(d, j, 1))
        cuda_kernels()->linear_dx(d, dx, n_w, dy, w, l);
}

static void own_dw(struct dev *d, const struct tree_acc *acc, int64_t ld, struct mat dy, struct mat x,
                   int n_seq, int64_t seq_len)
{
    struct gemm_job j = { .rows = (int)dy.cols,
                          .cols = (int)x.cols,
                          .ld = ld,
                          .n_parts = 1,
                          .n_leaves = n_seq,
                          .leaf = (int)seq_len,
                          .acc = *acc };
    if (j.rows < 1 || j.cols < 1 || n_seq < 1)
        return;
    j.a[0] = side_of(dy);
    j.b[0] = side_of(x);
    if (x.dt != DT_F32)
        start_bf16(d, j, FORM_DW);
    else if (!start_f32(d, j, 0))
        cuda_kernels()->linear_dw(d, acc, ld, dy, x, n_seq, seq_len);
}

/* ---- experts: one launch for all; where wgmma alone may multiply, one after the other ---- */
static const struct gemm_ops *own_ops(void);

/* Operands of a call and what each expert has of its own: n of them, on the host. */
struct experts_call {
    struct gemm_job all;
    struct gemm_expert *of;
    unsigned *first;
    int n;
    enum dtype dt;
    enum form form;
};

static int experts_open(struct dev *d, struct experts_call *c, const struct expert_rows *g)
{
    c->n = g->n;
    c->of = (struct gemm_expert *)calloc((size_t)g->n + 1, sizeof *c->of);
    c->first = (unsigned *)calloc((size_t)g->n + 1, sizeof *c->first);
    for (int e = 0; c->of && e < g->n; e++) {
        c->of[e].row = g->begin[e];
        c->of[e].rows = (int)(g->begin[e + 1] - g->begin[e]);
    }
    return cuda_well(d, c->of && c->first ? cudaSuccess : cudaErrorMemoryAllocation, "the list of experts");
}
static void experts_close(struct experts_call *c)
{
    free(c->of);
    free(c->first);
}

/* Tiles of rows x cols of all experts; fills first. */
static unsigned experts_tiles(struct experts_call *c, int rows, int cols)
{
    unsigned n = 0;
    for (int e = 0; e < c->n; e++) {
        struct gemm_job j = c->all;
        j.rows = c->of[e].rows;
        c->first[e] = n;
        n += j.rows > 0 ? tiles_of(j, rows, cols) : 0;
    }
    c->first[c->n] = n;
    return n;
}

static struct gemm_experts experts_upload(struct dev *d, const struct experts_call *c)
{
    const size_t n = (size_t)c->n;
    struct gemm_experts x = { (const struct gemm_expert *)cuda_upload(d, c->of, n * sizeof *c->of),
                              (const unsigned *)cuda_upload(d, c->first, (n + 1) * sizeof *c->first), c->n,
                              c->dt == DT_F32 ? 4 : 2 };
    return x;
}

/* Fills each expert's run. Returns the most slots. */
static int experts_slots(struct experts_call *c)
{
    int most = 0;
    for (int e = 0; e < c->n; e++) {
        struct gemm_job j = c->all;
        j.acc = c->of[e].acc;
        if (!j.acc.level[0])
            continue;
        set_run(&j);
        c->of[e].run = j.run;
        const int slots = slots_of(j.acc, c->all.n_leaves);
        most = slots > most ? slots : most;
    }
    return most;
}

/* Half of a tile's rows are used at least, where there are lower tiles. */
static int fits_experts(const struct experts_call *c, const struct size *s)
{
    int64_t rows = 0;
    for (int e = 0; e < c->n; e++)
        rows += c->of[e].rows;
    return s->rows <= 32 || rows * 2 >= (int64_t)s->rows * c->n;
}

static experts_starter *const f32_experts[2] = { f32_experts_start<false>, f32_experts_start<true> };

/* 0: the trees are too deep for shared memory. */
static int experts_start(struct dev *d, struct experts_call *c)
{
    const int by_rows = c->form != FORM_DW, slots = experts_slots(c);
    const size_t most = shared_max(d) - sizeof(struct gemm_job); /* the block's job lies there too */
    const int64_t blocks = of_gpu(d, cudaDevAttrMultiProcessorCount);
    if (c->dt == DT_F32) {
        const unsigned tiles = experts_tiles(c, F32_TILE, F32_TILE);
        if (F32_PIPE_BYTES + (size_t)slots * F32_SLOT_BYTES > most)
            return 0;
        if (tiles > 0)
            f32_experts[by_rows](d, c->all, experts_upload(d, c), tiles, slots);
        return 1;
    }
    for (int i = 0; i < N_SIZES; i++) {
        const struct size *s = &sizes[by_rows][i];
        const unsigned tiles = experts_tiles(c, s->rows, s->cols);
        if (s->pipe_bytes + (size_t)slots * s->slot_bytes > most || (s->cols == 128 && tiles < blocks) ||
            !fits_experts(c, s))
            continue;
        if (tiles > 0)
            s->start_experts(d, c->all, experts_upload(d, c), tiles, slots);
        return 1;
    }
    return 0;
}

/* fp32 of so few rows is made by simt, with the same bits. */
static int is_few(const struct expert_rows *g)
{
    int64_t most = 0;
    for (int e = 0; e < g->n; e++)
        most = g->begin[e + 1] - g->begin[e] > most ? g->begin[e + 1] - g->begin[e] : most;
    return most <= 8;
}

static void fill_nan(struct dev *d, struct mat y)
{
    for (int64_t i = 0; i < y.rows; i++)
        dev_fill(d, (float *)y.p + i * y.ld, 0xff, (size_t)y.cols * 4);
}

static void own_linear_experts(struct dev *d, struct mat y, struct listed x, const struct expert_rows *g,
                               const struct panels *w)
{
    struct experts_call c = { .all = job_of(y, 1, w->leaves.n), .dt = w->dt, .form = FORM_LINEAR };
    struct mat from;
    if (g->begin[g->n] == 0 || y.cols < 1)
        return;
    if (w->dt == DT_F32 && is_few(g)) {
        cuda_kernels()->linear_experts(d, y, x, g, w);
        return;
    }
    if (w->dt != DT_F32 && cuda_wgmma(d)->use == WGMMA_ALONE) {
        experts_loop_linear(d, own_ops(), y, x, g, w);
        return;
    }
    if (!experts_copy_lists(d, &from, 1, &x, g->begin[g->n], 0)) {
        fill_nan(d, y);
        return;
    }
    c.all.a[0] = side_of(from);
    c.all.b[0].ld = PANEL;
    c.all.b[0].panel = (int64_t)(panels_bytes(PANEL, w->k, w->dt, &w->leaves) / dtype_size(w->dt));
    c.all.l[0] = w->leaves;
    if (experts_open(d, &c, g)) {
        for (int e = 0; e < g->n; e++) {
            c.of[e].b[0] = w[e].p;
            c.of[e].acc.n = w->leaves.n;
            c.of[e].acc.level[0] = (float *)y.p + g->begin[e] * y.ld;
        }
        if (!experts_start(d, &c))
            cuda_well(d, cudaErrorInvalidValue, "a product of more leaves than one call takes");
    }
    experts_close(&c);
}

static void own_dx_experts(struct dev *d, struct mat dx, int n_w, const struct listed *dy,
                           const struct mat *w, const struct leaves *l, const struct expert_rows *g)
{
    struct experts_call c = { .all = job_of(dx, n_w, l[0].n), .dt = dy->m.dt, .form = FORM_DX };
    struct mat from[PARTS_MAX];
    if (!cuda_well(d, n_w <= PARTS_MAX ? cudaSuccess : cudaErrorInvalidValue,
                   "a product of more matrices than it is made for") ||
        g->begin[g->n] == 0 || dx.cols < 1)
        return;
    if (c.dt == DT_F32 && is_few(g)) {
        cuda_kernels()->linear_dx_experts(d, dx, n_w, dy, w, l, g);
        return;
    }
    if (c.dt != DT_F32 && cuda_wgmma(d)->use == WGMMA_ALONE) {
        experts_loop_dx(d, own_ops(), dx, n_w, dy, w, l, g);
        return;
    }
    if (!experts_copy_lists(d, from, n_w, dy, g->begin[g->n], 0)) {
        fill_nan(d, dx);
        return;
    }
    for (int s = 0; s < n_w; s++) {
        c.all.a[s] = side_of(from[s]);
        c.all.b[s] = side_of(w[s]);
        c.all.l[s] = l[s];
    }
    if (experts_open(d, &c, g)) {
        for (int e = 0; e < g->n; e++) {
            for (int s = 0; s < n_w; s++)
                c.of[e].b[s] = w[e * n_w + s].p;
            c.of[e].acc.n = l[0].n;
            c.of[e].acc.level[0] = (float *)dx.p + g->begin[e] * dx.ld;
        }
        if (!experts_start(d, &c))
            cuda_well(d, cudaErrorInvalidValue, "a product of more leaves than one call takes");
    }
    experts_close(&c);
}

static void own_dw_experts(struct dev *d, const struct tree_acc *acc, int64_t ld, struct listed dy,
                           struct listed x, const struct expert_rows *g)
{
    const struct listed in[2] = { dy, x };
    struct experts_call c = { .dt = x.m.dt, .form = FORM_DW };
    struct mat from[2];
    int is_done = 0;
    if (dy.m.cols < 1 || x.m.cols < 1 || g->n_leaves < 1)
        return;
    if (x.m.dt != DT_F32 && cuda_wgmma(d)->use == WGMMA_ALONE) {
        experts_loop_dw(d, own_ops(), acc, ld, dy, x, g);
        return;
    }
    if (experts_copy_lists(d, from, 2, in, g->begin[g->n], 0) && experts_open(d, &c, g)) {
        const size_t n = (size_t)g->n * (size_t)g->n_leaves;
        const int64_t *ends = (const int64_t *)cuda_upload(d, g->leaf_end, n * sizeof *ends);
        c.all.cols = (int)x.m.cols;
        c.all.ld = ld;
        c.all.n_parts = 1;
        c.all.n_leaves = g->n_leaves;
        c.all.a[0] = side_of(from[0]);
        c.all.b[0] = side_of(from[1]);
        for (int e = 0; e < g->n; e++) {
            c.of[e].rows = (int)dy.m.cols;
            c.of[e].ends = ends + (int64_t)e * g->n_leaves;
            c.of[e].acc = acc[e];
        }
        is_done = experts_start(d, &c);
    }
    experts_close(&c);
    if (is_done)
        return;
    if (x.m.dt == DT_F32)
        cuda_kernels()->linear_dw_experts(d, acc, ld, dy, x, g);
    else
        experts_loop_dw(d, own_ops(), acc, ld, dy, x, g);
}

static const struct gemm_ops *own_ops(void)
{
    static const struct gemm_ops ops = { own_pack,           own_linear,     own_dx,        own_dw,
                                         own_linear_experts, own_dx_experts, own_dw_experts };
    return &ops;
}

extern "C" const struct gemm_ops *cuda_gemm_own(struct dev *d)
{
    (void)d;
    return own_ops();
}
