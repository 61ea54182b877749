/* ops.cu - the ops for CUDA: the row ops' and simt.inc's text, a warp a task; the exact sum of squares;
 * the op table. */
#include "kernels/cuda/cxx.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/lanes.h"

#include "kernels/rows/each.inc"

FN float fma_pair_half(float a, float b, float sum) { return fma_ftz(a, b, sum); }

#include "kernels/simt/simt.inc"

#include "kernels/cuda/rows.cuh"

static size_t n_pages_of(const struct attn_seq *s)
{
    return (size_t)((s->pos + s->n_rows + ATTN_PAGE - 1) / ATTN_PAGE);
}

/* Lists of pages (addresses of the device already) one behind the other, then the sequences. */
static const struct attn_seq *upload_seqs(struct dev *d, int n, const struct attn_seq *s)
{
    const struct attn_seq *there = NULL;
    size_t n_pages = 0, at = 0;
    for (int i = 0; i < n; i++)
        n_pages += n_pages_of(&s[i]);
    struct attn_seq *seq = (struct attn_seq *)malloc(sizeof *seq * ((size_t)n + 1));
    char **page = (char **)malloc(sizeof *page * (n_pages + 1));
    if (cuda_well(d, seq && page ? cudaSuccess : cudaErrorMemoryAllocation, "the lists of pages")) {
        for (int i = 0; i < n; at += n_pages_of(&s[i++]))
            memcpy(page + at, s[i].page, sizeof *page * n_pages_of(&s[i]));
        char *const *const pages = (char *const *)cuda_upload(d, page, sizeof *page * n_pages);
        at = 0;
        for (int i = 0; i < n; at += n_pages_of(&s[i++])) {
            seq[i] = s[i];
            seq[i].page = pages + at;
        }
        there = (const struct attn_seq *)cuda_upload(d, seq, sizeof *seq * (size_t)n);
    }
    free(seq);
    free(page);
    return there;
}

/* The lists are the same in every layer of a step, so only the first one's travel (cuda_upload). */
struct attn cuda_upload_attn(struct dev *d, const struct attn *a)
{
    struct attn there = *a;
    there.seq = upload_seqs(d, a->n_seq, a->seq);
    if (a->cut.count)
        there.cut.doc = upload_seqs(d, a->cut.n_docs, a->cut.doc);
    return there;
}

/* ---- sum of squares: bins of integers by exponent (xsum.c), added in any order ---- */
/* a bin holds 2^16 squares of 48 bits */
enum { BINS = 256, SQUARES_THREADS = 256, SQUARES_PIECE = 65536 };
/* sums of the lower and the upper 32 bits of the blocks' bins */
struct bins {
    unsigned long long low[BINS], high[BINS], n_nan;
};

static __global__ void squares_kernel(struct bins *to, const float *x, int64_t n)
{
    __shared__ unsigned long long bin[BINS];
    const int64_t begin = (int64_t)blockIdx.x * SQUARES_PIECE,
                  end = begin + SQUARES_PIECE < n ? begin + SQUARES_PIECE : n;
    bin[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = begin + threadIdx.x; i < end; i += SQUARES_THREADS) {
        const uint32_t b = fn_bits(x[i]), e = b >> 23 & 255u;
        const unsigned long long m = (b & 0x7fffffu) | (uint32_t)(e != 0) << 23;
        atomicAdd(&bin[e], e == 255 ? 1ull : m * m);
        if (e == 255 && (b & 0x7fffffu))
            atomicAdd(&to->n_nan, 1ull);
    }
    __syncthreads();
    atomicAdd(&to->low[threadIdx.x], bin[threadIdx.x] & 0xffffffffull);
    atomicAdd(&to->high[threadIdx.x], bin[threadIdx.x] >> 32);
}

static void op_sum_squares(struct dev *d, struct xsum *s, const float *x, int64_t n)
{
    struct bins here, *there = (struct bins *)dev_scratch(d, 0, sizeof here);
    const int64_t blocks = (n + SQUARES_PIECE - 1) / SQUARES_PIECE;
    if (!there || n <= 0)
        return;
    dev_fill(d, there, 0, sizeof here);
    cuda_launch(d, squares_kernel, (unsigned)blocks, SQUARES_THREADS, 0, there, x, n);
    dev_read(d, &here, there, sizeof here);
    xsum_add_bins(s, (const uint64_t *)here.low, (const uint64_t *)here.high, (int64_t)here.n_nan);
}

extern "C" const struct kernel_ops *cuda_kernels(void)
{
    static const struct kernel_ops ops = {
#define K(name, ...) .name = op_##name,
        KERNEL_LIST(K)
#undef K
    };
    return &ops;
}
