/* torch_fuzz.c - for libFuzzer or AFL: clang -fsanitize=fuzzer,address -I. tests/fuzz/torch_fuzz.c build/sanitize/libshardline.a … */
#include "tests/fuzz/foreign_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_torch(data, n);
    return 0;
}
