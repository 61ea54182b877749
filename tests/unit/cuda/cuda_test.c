/* cuda_test.c - every kind of op on the CUDA device gives the CPU's bits (bf16 products: the plain kernels).
 * Skips without a GPU; the same cases run on the fake device, which proves the cases, and on an emulated GPU
 * (cuda_emu_ops_test.c). */
#include "tests/devices/fake/fake_path.h"
#include "tests/unit/kernels/op_cases.h"

TEST(a_gpu_s_ops_give_the_cpu_s_bits) { all_on(NULL); }
TEST(these_cases_hold_on_the_fake_device) { all_on(fake_device()); }
