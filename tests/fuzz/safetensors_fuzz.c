/* safetensors_fuzz.c - any bytes as a .safetensors file, opened and read whole (format/hf/safetensors.c,
 * format/hf/hf_read.c). */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_open_ckpt(fuzz_write("model.safetensors", data, n));
    return 0;
}
