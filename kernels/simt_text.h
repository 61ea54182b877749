/* simt_text.h - products, attention and sums down columns as simple tasks of 32 lanes: the CUDA device's first form, right before it is fast. Its
 * orders are the CPU's, so its bits are, too. One text for nvcc (cuda/simt.cu) and for the CPU class "simt" (simt.c), which is slow and there so that
 * every test of the kernels and whole programs can run it where no GPU is.
 *
 * Before it: lanes.h, rows.h, rows_each_text.h, and fma_pair_half(a, b, sum): a step of a bf16 chain, flushed. */
#ifdef __CUDACC__
#define UNROLL GPU_UNROLL
#define SIMT_FITS(d, ok) cuda_well((d), (ok) ? cudaSuccess : cudaErrorInvalidValue, "an op of sizes that it is not made for")
#else
#define UNROLL
#define SIMT_FITS(d, ok) (ok)
#endif

#include "kernels/simt_gemm_text.h"
#include "kernels/simt_column_text.h"
#include "kernels/simt_attn_text.h"
