/* wgmma.cu - products by wgmma: operands described for the copies of boxes, a tile size chosen, the kernel
 * started. */
#include "kernels/cuda/gemm/wgmma.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static_assert(sizeof(struct group_job) + sizeof(int) <= 4096, "a kernel's arguments");

/* ---- operands as tensors of boxes ---- */
/* sizes in elements, innermost first; strides in bytes */
struct tensor {
    void *p;
    cuuint64_t size[3], stride[2];
    cuuint32_t box[3];
    CUtensorMapSwizzle swizzle;
};
typedef CUresult tensor_encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *p,
                               const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                               const cuuint32_t *step, CUtensorMapInterleave interleave,
                               CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                               CUtensorMapFloatOOBfill fill);

static int describe(const struct wgmma *w, CUtensorMap *map, const struct tensor &t)
{
    static const cuuint32_t step[3] = { 1, 1, 1 };
    return ((tensor_encode *)w->encode)(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, t.p, t.size, t.stride,
                                        t.box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, t.swizzle,
                                        CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* n: elements of the result, k: of the contraction. */
static struct tensor by_rows(const struct side &x, int64_t n, int64_t k, int rows)
{
    const cuuint64_t line = (cuuint64_t)x.ld * 2;
    return { (void *)x.p,
             { (cuuint64_t)k, (cuuint64_t)n, 1 },
             { line, line * (cuuint64_t)n },
             { DEEP, (cuuint32_t)rows, 1 },
             CU_TENSOR_MAP_SWIZZLE_128B };
}
static struct tensor across(const struct side &x, int64_t n, int64_t k)
{
    const cuuint64_t line = (cuuint64_t)x.ld * 2;
    return { (void *)x.p,
             { (cuuint64_t)n, (cuuint64_t)k, 1 },
             { line, line * (cuuint64_t)k },
             { BOX_A, DEEP, 1 },
             CU_TENSOR_MAP_SWIZZLE_128B };
}
static struct tensor panels(const struct side &x, int64_t n, int64_t k, int cols)
{
    return { (void *)x.p,
             { PANEL, (cuuint64_t)k, (cuuint64_t)((n + PANEL - 1) / PANEL) },
             { PANEL * 2, (cuuint64_t)x.panel * 2 },
             { PANEL, DEEP, (cuuint32_t)cols / PANEL },
             CU_TENSOR_MAP_SWIZZLE_64B };
}

static int64_t contraction(const struct gemm_job &j, int s)
{
    return j.leaf ? (int64_t)j.leaf * j.n_leaves : j.l[s].end[j.n_leaves - 1];
}

/* May copies of boxes bring the operands: 16-byte pieces, and nothing of the next leaf in a leaf's last
 * step. */
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

/* What a size is to the choice. shared: of a block, for so many sums that wait. */
struct size {
    void (*start)(struct dev *d, const struct size *s, const struct gemm_job &j, int slots, int boxes,
                  int64_t blocks);
    const char *name;
    int rows, cols, cluster, waits, first, per_processor, clocks;
    size_t pipe_bytes;
};

static size_t shared_of(const struct size *s, int slots)
{
    return s->pipe_bytes + slots_bytes(slots, s->cols / 2, s->first, s->rows * 2);
}
/* Tiles of a cluster: one below the other. */
static int64_t tiles_together(const struct size *s, const struct gemm_job &j)
{
    return tiles_of(j, s->rows * s->cluster, s->cols);
}

/* blocks: that run at a time. */
template <class T, enum form F>
static void start(struct dev *d, const struct size *s, const struct gemm_job &j, int slots, int boxes,
                  int64_t blocks)
{
    struct group_job g = {};
    int well = 1;
    const int64_t n = tiles_together(s, j), clusters = blocks / T::CLUSTER > 1 ? blocks / T::CLUSTER : 1;
    g.j = j;
    g.boxes = boxes;
    g.n_tiles = (unsigned)n;
    for (int i = 0; i < j.n_parts && boxes; i++) {
        const int64_t k = contraction(j, i);
        if (!k)
            continue; /* it will not be read */
        well &= describe(cuda_wgmma(d), &g.a[i],
                         T::A_ACROSS ? across(j.a[i], j.rows, k) : by_rows(j.a[i], j.rows, k, T::ROWS));
        well &= describe(cuda_wgmma(d), &g.b[i],
                         F == FORM_LINEAR ? panels(j.b[i], j.cols, k, T::SHARE) : across(j.b[i], j.cols, k));
    }
    if (cuda_well(d, well ? cudaSuccess : cudaErrorInvalidValue, "describing a matrix to the GPU"))
        cuda_launch_clusters(d, group_kernel<T>, T::CLUSTER,
                             (unsigned)((n < clusters ? n : clusters) * T::CLUSTER), T::THREADS,
                             shared_of(s, slots), g, slots);
}

/* ---- a product, by size ---- */
template <enum form F, int GROUPS, int COLS, int STAGES, int WAITS, int FIRST, int CLUSTER>
static constexpr struct size size_of(const char *name, int clocks)
{
    typedef group_tiling<F, GROUPS, COLS, STAGES, WAITS, FIRST, CLUSTER> T;
    return { start<T, F>, name,  T::ROWS,          T::COLS, CLUSTER,
             WAITS,       FIRST, T::PER_PROCESSOR, clocks,  (size_t)T::PIPE_BYTES };
}
/* The number behind the name: clocks of 64 elements of the contraction (README.md's estimate). */
#define SIZES(form, last, last_name, last_clocks) \
    { \
        size_of<form, 2, 256, 4, 0, 0, 2>("128x256", 1024), \
            size_of<form, 2, 128, 4, 1, 32, 2>("128x128", 640), \
            size_of<form, 2, 64, 4, 1, 32, 1>("128x64", 448), \
            size_of<form, 1, last, 4, 1, 0, 1>(last_name, last_clocks) \
    }
static const struct size sizes[FORMS][WGMMA_SIZES] = { SIZES(FORM_LINEAR, 32, "64x32", 192),
                                                       SIZES(FORM_DX, 64, "64x64", 256),
                                                       SIZES(FORM_DW, 64, "64x64", 256) };

static int size_fits(const struct size *s, const struct gemm_job &j, int slots, size_t shared_most)
{
    return (s->waits || j.n_leaves == 1) && shared_of(s, slots) <= shared_most;
}

/* Of the sizes that fit, the one that finishes all tiles first; NULL: none fits. */
static const struct size *choose(const struct wgmma *w, const struct size *of_form, const struct gemm_job &j,
                                 int slots, size_t shared_most, int64_t processors)
{
    const struct size *best = NULL;
    int64_t least = 0;
    for (int i = 0; i < WGMMA_SIZES; i++) {
        const struct size *s = &of_form[i];
        const int64_t at_a_time = processors > s->cluster ? processors / s->cluster : 1,
                      clocks = (tiles_together(s, j) + at_a_time - 1) / at_a_time * s->clocks;
        if (!size_fits(s, j, slots, shared_most) || (w->only && i + 1 != w->only))
            continue;
        if (!strcmp(s->name, w->first))
            return s;
        if (!best || clocks < least)
            best = s, least = clocks;
    }
    return best;
}

/* NULL: mma makes it, or no kernel can. */
static const struct size *wanted(const struct wgmma *w, const struct gemm_job &j, enum form form, int slots,
                                 size_t shared_most, int64_t processors)
{
    const struct size *s = w->use == WGMMA_OFF ? NULL
                                               : choose(w, sizes[form], j, slots, shared_most, processors);
    if (!s || w->use == WGMMA_ALONE)
        return s;
    /* mma has smaller tiles */
    const int fills = tiles_together(s, j) * s->cluster * 2 > processors;
    return fills && fits_boxes(j) ? s : NULL;
}

const char *wgmma_size(const struct wgmma *w, const struct gemm_job &j, enum form form, int slots,
                       size_t shared_most, int64_t processors)
{
    const struct size *s = wanted(w, j, form, slots, shared_most, processors);
    return s ? s->name : "";
}

int wgmma_start(struct dev *d, const struct gemm_job &j, enum form form, int slots, size_t shared_most,
                int64_t processors)
{
    const struct wgmma *w = cuda_wgmma(d);
    const struct size *s = wanted(w, j, form, slots, shared_most, processors);
    const int impossible = !s && w->use == WGMMA_ALONE && !w->only; /* the self-check's: mma then */
    if (s)
        s->start(d, s, j, slots, fits_boxes(j),
                 (w->only ? (int64_t)CHECK_PROCESSORS : processors) * s->per_processor);
    cuda_well(d, impossible ? cudaErrorInvalidValue : cudaSuccess,
              "a product of more leaves than one call takes");
    return s || impossible;
}

/* ---- opening ---- */
/* Is there a size of this name in any form? */
static int known(const char *name)
{
    int found = !*name;
    for (int f = 0; f < FORMS; f++)
        for (int i = 0; i < WGMMA_SIZES; i++)
            found |= !strcmp(name, sizes[f][i].name);
    return found;
}

int wgmma_open(struct dev *d, struct wgmma *w, enum wgmma_use use, struct err *e)
{
    const char *first = env_get(ENV_SHARDLINE_WGMMA);
    struct cudaDeviceProp prop;
    enum cudaDriverEntryPointQueryResult found;
    int index = 0;
    *w = {};
    if (first && !known(first))
        return err_set(e, ERR_USAGE, "SHARDLINE_WGMMA=%s: use 128x256, 128x128, 128x64, 64x64 or 64x32",
                       first);
    snprintf(w->first, sizeof w->first, "%s", first ? first : "");
    if (!cuda_well(d, cudaGetDevice(&index), "asking the GPU") ||
        !cuda_well(d, cudaGetDeviceProperties(&prop, index), "asking the GPU") || prop.major != 9 ||
        use == WGMMA_OFF)
        return 0;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &w->encode, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
        w->encode = NULL;
        snprintf(w->why, sizeof w->why, "without wgmma: the driver has no cuTensorMapEncodeTiled");
        (void)cudaGetLastError();
        return 0;
    }
    w->use = use;
    if (use == WGMMA_ASK)
        wgmma_check(d, w);
    return 0;
}
