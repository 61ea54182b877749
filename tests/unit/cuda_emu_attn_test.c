/* cuda_emu_attn_test.c - attention on tensor cores on the emulated GPU. */
#include "tests/unit/attn_tensor_cases.h"
