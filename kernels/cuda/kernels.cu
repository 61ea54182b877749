/* kernels.cu - the ops for CUDA: the row ops' and simt_text.h's text, a warp a task; the exact sum of squares; the op table. */
#include "kernels/cuda/cxx.h"
#include "kernels/cuda/kernels.h"
#include "kernels/lanes.h"

#include "kernels/rows_each_text.h"

FN float fma_pair_half(float a, float b, float sum) { return fma_ftz(a, b, sum); }

#include "kernels/simt_text.h"

#include "kernels/cuda/rows.cuh"

/* Attention's sequences on the device: the struct, its sequences, their lists of pages (addresses of the device already), one behind the other. */
const struct attn *cuda_lend_attn(struct dev *d, const struct attn *a)
{
    size_t n_pages = 0, seq_at = sizeof *a, page_at = seq_at + sizeof *a->seq * (size_t)a->n_seq, bytes;
    for (int i = 0; i < a->n_seq; i++)
        n_pages += (size_t)((a->seq[i].pos + a->seq[i].n_rows + ATTN_PAGE - 1) / ATTN_PAGE);
    bytes = page_at + n_pages * sizeof(char *);
    char *to = (char *)cuda_lend_room(d, bytes), *host = to ? (char *)malloc(bytes) : NULL;
    if (!host)
        return NULL;
    struct attn *here = (struct attn *)host;
    struct attn_seq *seq = (struct attn_seq *)(host + seq_at);
    *here = *a;
    here->seq = (struct attn_seq *)(to + seq_at);
    for (int i = 0; i < a->n_seq; i++) {
        const size_t n = (size_t)((a->seq[i].pos + a->seq[i].n_rows + ATTN_PAGE - 1) / ATTN_PAGE);
        seq[i] = a->seq[i];
        seq[i].page = (char *const *)(to + page_at);
        memcpy(host + page_at, a->seq[i].page, n * sizeof(char *));
        page_at += n * sizeof(char *);
    }
    dev_write(d, to, host, bytes);
    free(host);
    return (const struct attn *)to;
}

/* ---- sum of squares: bins of integers by exponent (xsum.c), added in any order ---- */
enum { BINS = 256, SQUARES_THREADS = 256, SQUARES_PIECE = 65536 };       /* a bin holds 2^16 squares of 48 bits */
struct bins { unsigned long long low[BINS], high[BINS], n_nan; };        /* sums of the lower and the upper 32 bits of the blocks' bins */

static __global__ void squares_kernel(struct bins *to, const float *x, int64_t n)
{
    __shared__ unsigned long long bin[BINS];
    const int64_t begin = (int64_t)blockIdx.x * SQUARES_PIECE, end = begin + SQUARES_PIECE < n ? begin + SQUARES_PIECE : n;
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
