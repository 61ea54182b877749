/* attn_avx512bf16.c - attention for AVX-512 with the bf16 dot instruction: the bits of the others at twice
 * the speed. */
#include "kernels/x86/attn_avx512.h"

#define ATTN_OPS attn_avx512bf16
#include "kernels/attn/attn.inc"
