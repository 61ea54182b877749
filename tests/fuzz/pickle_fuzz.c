/* pickle_fuzz.c - for libFuzzer or AFL: clang -fsanitize=fuzzer,address -I. tests/fuzz/pickle_fuzz.c build/sanitize/libshardline.a … */
#include "tests/fuzz/foreign_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_pickle(data, n);
    return 0;
}
