/* cuda_gemm_test.c - the products of a GPU (product_cases.h). Skips without one. */
#define EMULATED 0
#include "tests/unit/kernels/product_cases.h"
