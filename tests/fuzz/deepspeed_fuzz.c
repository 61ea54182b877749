/* deepspeed_fuzz.c - a DeepSpeed folder, ZeRO 1 to 3 or universal, with experts or without: pickles in sound
 * zips (format/deepspeed*.c). */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = {
        "latest",
        "config.json",
        "global_step7/mp_rank_00_model_states.pt",
        "global_step7/zero_pp_rank_0_mp_rank_00_model_states.pt",
        "global_step7/zero_pp_rank_1_mp_rank_00_model_states.pt",
        "global_step7/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "global_step7/zero_pp_rank_1_mp_rank_00_optim_states.pt",
        "global_step7/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "zero/model.norm.weight/fp32.pt",
        "zero/model.norm.weight/exp_avg.pt",
        "zero/model.norm.weight/exp_avg_sq.pt",
        "zero/model.norm.weight/step.pt",
        "zero/lm_head.weight/fp32.pt",
        "mp_rank_00_model_states.pt",
        "global_step7/layer_0_expert_0_mp_rank_00_model_states.pt",
        "global_step7/layer_0_expert_1_mp_rank_00_model_states.pt",
        "global_step7/expp_rank_0_mp_rank_00_optim_states.pt",
        "global_step7/expp_rank_1_mp_rank_00_optim_states.pt",
        "zero/model.layers.0.mlp.experts.w1/fp32.pt",
        "zero/model.layers.0.mlp.experts.w2/fp32.pt",
    };
    fuzz_write_parts(names, sizeof names / sizeof *names, data, n);
    fuzz_open_ckpt(fuzz_dir());
    return 0;
}
