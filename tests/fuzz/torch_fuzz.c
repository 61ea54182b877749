/* torch_fuzz.c - any bytes as what torch.save writes: zips, the older stream (format/torch/torch_file.c). */
#include "tests/unit/format/foreign_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_torch(data, n);
    return 0;
}
