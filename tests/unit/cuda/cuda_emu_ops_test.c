/* cuda_emu_ops_test.c - the cases of cuda_test.c on an emulated GPU: the kernels' own text, and device.c
 * over a runtime of the host's memory. */
#include "tests/unit/kernels/op_cases.h"

TEST(ops_give_the_cpu_s_bits_where_a_gpu_is_emulated) { all_on(NULL); }
