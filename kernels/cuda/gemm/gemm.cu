/* gemm.cu - the products of the CUDA device: bf16 on tensor cores, fp32 through shared memory. Which kernel
 * makes a product is chosen by its sizes
 * and is no matter of bits: all of a dtype have one order (gemm_tile.cuh), and where mma and wgmma round
 * otherwise one of them makes all (wgmma.h). Packed weights are those of simt.inc: panels [k][32]. */
#include "kernels/cuda/gemm/gemm_bf16.cuh"
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
    int depth = tree_depth_before(t.n, t.next), kept = depth, most = 0;
    for (int i = 0; i < n_leaves; i++) {
        depth -= tree_merges(t.n, t.next + i);
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
struct size {
    gemm_starter *start;
    int rows, cols;
    size_t pipe_bytes, slot_bytes;
};
#define SIZE(rows, cols, ...) \
    { \
        gemm_start<tiling<rows, cols, __VA_ARGS__>>, rows, cols, \
            tiling<rows, cols, __VA_ARGS__>::PIPE_BYTES, tiling<rows, cols, __VA_ARGS__>::SLOT_BYTES \
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

static const struct gemm_ops *own_ops(void);

static void own_linear_experts(struct dev *d, struct mat y, struct listed x, const struct expert_rows *g,
                               const struct panels *w)
{
    experts_loop_linear(d, own_ops(), y, x, g, w);
}

static void own_dx_experts(struct dev *d, struct mat dx, int n_w, const struct listed *dy,
                           const struct mat *w, const struct leaves *l, const struct expert_rows *g)
{
    experts_loop_dx(d, own_ops(), dx, n_w, dy, w, l, g);
}

static void own_dw_experts(struct dev *d, const struct tree_acc *acc, int64_t ld, struct listed dy,
                           struct listed x, const struct expert_rows *g)
{
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
