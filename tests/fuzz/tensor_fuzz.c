/* tensor_fuzz.c - a pickle in a sound zip: tensors of storages, strides, views (format/torch/torch_file.c,
 * torch_driver.c). */
#include "tests/unit/format/foreign_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    size_t n_zip;
    uint8_t *zip = fuzz_wrap(data, n, &n_zip);
    fuzz_torch(zip, n_zip);
    fuzz_open_ckpt(fuzz_write("model.pt", zip, n_zip));
    free(zip);
    return 0;
}
