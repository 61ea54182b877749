/* attn_avx512.c - attention for AVX-512. */
#include "kernels/x86/attn_avx512.h"

#define ATTN_OPS attn_avx512
#include "kernels/attn/attn.inc"
