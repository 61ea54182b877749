/* wgmma.cu - products by wgmma: operands described for the copies of boxes, a tile size chosen, the kernel started. */
#include "kernels/cuda/wgmma.cuh"

#include <stdio.h>

static_assert(sizeof(struct group_job) + sizeof(int) <= 4096, "a kernel's arguments");

/* ---- operands as tensors of boxes ---- */
struct tensor { void *p; cuuint64_t size[3], stride[2]; cuuint32_t box[3]; CUtensorMapSwizzle swizzle; };      /* sizes in elements, innermost first; strides in bytes */
typedef CUresult tensor_encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *p, const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                               const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill);

static int describe(const struct wgmma *w, CUtensorMap *map, const struct tensor &t)
{
    static const cuuint32_t step[3] = { 1, 1, 1 };
    return ((tensor_encode *)w->encode)(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, t.p, t.size, t.stride, t.box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, t.swizzle,
                                        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* n: elements of the result, k: of the contraction. */
static struct tensor by_rows(const struct side &x, int64_t n, int64_t k, int rows)
{
    const cuuint64_t line = (cuuint64_t)x.ld * 2;
    return { (void *)x.p, { (cuuint64_t)k, (cuuint64_t)n, 1 }, { line, line * (cuuint64_t)n }, { DEEP, (cuuint32_t)rows, 1 }, CU_TENSOR_MAP_SWIZZLE_128B };
}
static struct tensor across(const struct side &x, int64_t n, int64_t k)
{
    const cuuint64_t line = (cuuint64_t)x.ld * 2;
    return { (void *)x.p, { (cuuint64_t)n, (cuuint64_t)k, 1 }, { line, line * (cuuint64_t)k }, { BOX_A, DEEP, 1 }, CU_TENSOR_MAP_SWIZZLE_128B };
}
static struct tensor panels(const struct side &x, int64_t n, int64_t k, int cols)
{
    return { (void *)x.p, { PANEL, (cuuint64_t)k, (cuuint64_t)((n + PANEL - 1) / PANEL) }, { PANEL * 2, (cuuint64_t)x.panel * 2 },
             { PANEL, DEEP, (cuuint32_t)cols / PANEL }, CU_TENSOR_MAP_SWIZZLE_64B };
}

static int64_t contraction(const struct gemm_job &j, int s) { return j.leaf ? (int64_t)j.leaf * j.n_leaves : j.l[s].end[j.n_leaves - 1]; }

/* May copies of boxes bring the operands: 16-byte pieces, and nothing of the next leaf in a leaf's last step. */
static int fits_boxes(const struct gemm_job &j)
{
    for (int s = 0; s < j.n_parts; s++) {
        const int64_t all = contraction(j, s);
        if (!aligned16(j.a[s].p, j.a[s].ld) || !aligned16(j.b[s].p, j.b[s].ld | j.b[s].panel))
            return 0;
        for (int g = 0, begin = 0; g < j.n_leaves; g++) {
            const int end = leaf_end(j, g, s);
            if ((end - begin) % DEPTH_STEP && end != all)
                return 0;
            begin = end;
        }
    }
    return 1;
}

template <class T, enum form F> static void start(struct dev *d, const struct gemm_job &j, int slots, int boxes)
{
    struct group_job g = {};
    int well = 1;
    g.j = j;
    g.boxes = boxes;
    for (int s = 0; s < j.n_parts && boxes; s++) {
        const int64_t k = contraction(j, s);
        if (!k)
            continue;                    /* nobody will ask for it */
        well &= describe(cuda_wgmma(d), &g.a[s], T::A_ACROSS ? across(j.a[s], j.rows, k) : by_rows(j.a[s], j.rows, k, T::ROWS));
        well &= describe(cuda_wgmma(d), &g.b[s], F == FORM_LINEAR ? panels(j.b[s], j.cols, k, T::COLS) : across(j.b[s], j.cols, k));
    }
    if (cuda_well(d, well ? cudaSuccess : cudaErrorInvalidValue, "describing a matrix to the GPU"))
        cuda_launch(d, group_kernel<T>, tiles_of(j, T::ROWS, T::COLS), T::THREADS, (size_t)T::PIPE_BYTES + (size_t)slots * T::SLOT_BYTES, g, slots);
}

/* ---- a product, by size: the first row whose shared memory the GPU has and that gives all of it work; the last one at any rate ---- */
typedef void group_starter(struct dev *d, const struct gemm_job &j, int slots, int boxes);
struct size { group_starter *start; int rows, cols; size_t pipe_bytes, slot_bytes; };
template <enum form F, int GROUPS, int COLS, int STAGES> static constexpr struct size size_of()
{
    typedef group_tiling<F, GROUPS, COLS, STAGES> T;
    return { start<T, F>, T::ROWS, T::COLS, (size_t)T::PIPE_BYTES, (size_t)T::SLOT_BYTES };
}
#define SIZES(form, last) { size_of<form, 2, 128, 5>(), size_of<form, 2, 128, 3>(), size_of<form, 2, 64, 4>(), size_of<form, 1, last, 4>() }
static const struct size sizes[FORMS][WGMMA_SIZES] = { SIZES(FORM_LINEAR, 32), SIZES(FORM_DX, 64), SIZES(FORM_DW, 64) };

int wgmma_start(struct dev *d, const struct gemm_job &j, enum form form, int slots, size_t shared_most, int64_t processors)
{
    const struct wgmma *w = cuda_wgmma(d);
    if (w->use == WGMMA_OFF)
        return 0;
    const int boxes = fits_boxes(j), alone = w->use == WGMMA_ALONE;
    for (int i = 0; i < WGMMA_SIZES && (boxes || alone); i++) {
        const struct size *s = &sizes[form][i];
        const int fills = w->only ? i + 1 == w->only : tiles_of(j, s->rows, s->cols) >= processors;
        if (s->pipe_bytes + (size_t)slots * s->slot_bytes > shared_most || (!fills && (w->only || !alone || i + 1 < WGMMA_SIZES)))
            continue;
        s->start(d, j, slots, boxes);
        return 1;
    }
    if (w->only)
        return 0;                        /* a size that this GPU has no shared memory for */
    cuda_well(d, alone ? cudaErrorInvalidValue : cudaSuccess, "a product of more leaves than one call takes");
    return alone;
}

/* ---- opening ---- */
void wgmma_open(struct dev *d, struct wgmma *w, enum wgmma_use wish)
{
    struct cudaDeviceProp prop;
    enum cudaDriverEntryPointQueryResult found;
    int index = 0;
    *w = {};
    if (!cuda_well(d, cudaGetDevice(&index), "asking the GPU") || !cuda_well(d, cudaGetDeviceProperties(&prop, index), "asking the GPU") || prop.major != 9 || wish == WGMMA_OFF)
        return;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &w->encode, 12000, cudaEnableDefault, &found) != cudaSuccess || found != cudaDriverEntryPointSuccess) {
        w->encode = NULL;
        snprintf(w->why, sizeof w->why, "without wgmma: the driver has no cuTensorMapEncodeTiled");
        (void)cudaGetLastError();
        return;
    }
    w->use = wish;
    if (wish == WGMMA_ASK)
        wgmma_check(d, w);
}
