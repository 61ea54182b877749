/* cuda_attn_test.c - attention on tensor cores on a GPU, where there is one. */
#include "tests/unit/cuda/attn_tensor_cases.h"
