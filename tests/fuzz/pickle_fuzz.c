/* pickle_fuzz.c - any bytes as a pickle: opcodes, memo, marks, classes (format/torch/pickle.c). */
#include "tests/unit/format/foreign_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_pickle(data, n);
    return 0;
}
