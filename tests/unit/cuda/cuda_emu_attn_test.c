/* cuda_emu_attn_test.c - attention on tensor cores on the emulated GPU. */
#include "tests/unit/cuda/attn_tensor_cases.h"
