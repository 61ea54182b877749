/* index_fuzz.c - a Hugging Face folder, and the one that PyTorch DCP writes in safetensors: index, shards,
 * config (format/hf/hf_read.c, dcp_hf.c). */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = {
        "model.safetensors.index.json",
        "a.safetensors",
        "b.safetensors",
        "config.json",
        "shard-00001-model-00001-of-00001.safetensors",
        "shard-00002-model-00001-of-00001.safetensors",
        "generation_config.json",
    };
    fuzz_write_parts(names, sizeof names / sizeof *names, data, n);
    fuzz_open_ckpt(fuzz_dir());
    return 0;
}
