/* megatron_fuzz.c - a Megatron folder, legacy or torch_dist: pickles in sound zips, metadata, options
 * (format/megatron*.c). */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = {
        "latest_checkpointed_iteration.txt",
        "config.json",
        "iter_0000009/.metadata",
        "iter_0000009/common.pt",
        "iter_0000009/metadata.json",
        "iter_0000009/__0_0.distcp",
        "iter_0000009/mp_rank_00/model_optim_rng.pt",
        "iter_0000009/mp_rank_01/model_optim_rng.pt",
        "iter_0000009/mp_rank_00/distrib_optim.pt",
        "iter_0000009/mp_rank_00_000/model_optim_rng.pt",
        "iter_0000009/mp_rank_00_001/model_optim_rng.pt",
        "iter_0000009/mp_rank_00_000/distrib_optim.pt",
        "iter_0000009/mp_rank_00_001/distrib_optim.pt",
        "iter_0000009/mp_rank_00_000_000/model_optim_rng.pt",
        "iter_0000009/mp_rank_00_000_001/model_optim_rng.pt",
    };
    fuzz_write_parts(names, sizeof names / sizeof *names, data, n);
    fuzz_open_ckpt(fuzz_dir());
    return 0;
}
