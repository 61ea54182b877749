/* cuda_emu_gemm_test.c - the products of the CUDA device on an emulated GPU (product_cases.h). */
#define EMULATED 1
#include "tests/unit/kernels/product_cases.h"
