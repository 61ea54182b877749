/* format_dcp_test.c - PyTorch Distributed Checkpoint: every way that PyTorch cuts its tensors, and what must
 * be refused. */
#include "tests/unit/format/foreign_help.h"

static void check(const char *name, const char *sub, int64_t step, int moments)
{
    char dir[1024], path[1200], ref[1200];
    if (!foreign_path(name, dir))
        return;
    snprintf(path, sizeof path, "%s/%s", dir, sub);
    snprintf(ref, sizeof ref, "%s/ref.safetensors", dir);
    same_as_reference(path, ref, step, moments);
}

TEST(fsdp1_on_2_ranks_gives_the_reference) { check("dcp_fsdp1_w2_fp32", "ckpt", 4, 1); }
TEST(fsdp2_on_2_ranks_gives_the_reference) { check("dcp_fsdp2_w2_fp32", "ckpt", 4, 1); }
TEST(fsdp2_on_4_ranks_tied_gives_the_reference) { check("dcp_fsdp2_w4_bf16", "ckpt", 4, 1); }
TEST(tensor_parallel_with_fsdp_has_strided_shards) { check("dcp_tp2_fsdp2_fp32", "ckpt", 4, 1); }
TEST(numbered_optimizer_state_finds_its_names_by_shape) { check("dcp_raw_optim_fsdp2_w2", "ckpt", 4, 1); }
TEST(safetensors_shards_of_ranks_give_the_reference) { check("dcp_hf_sharded_fsdp2_w2", "hf_sharded", 0, 0); }
TEST(safetensors_shards_of_ranks_and_files_give_the_reference)
{
    check("dcp_hf_sharded_fsdp2_w2", "hf_multi/sharded", 0, 0);
}
TEST(consolidated_safetensors_give_the_reference) { check("dcp_hf_sharded_fsdp2_w2", "hf_multi", 0, 0); }

static const struct bad_folder bad[] = {
    { "dcp_no_metadata", "not finished" },
    { "dcp_missing_file", "__1_0.distcp" },
    { "dcp_truncated_file", "is it whole" },
    { "dcp_chunk_gap", "does not list" },
    { "dcp_chunk_overlap", "does not list" },
    { "dcp_offset_beyond", "is it whole" },
    { "dcp_path_traversal", "files must lie directly" },
    { "dcp_swapped_chunks", "another shape" },
    { "dcp_huge_size", "beyond the limit" },
    { "dcp_exec", "posix.system" },
};

TEST(every_broken_folder_is_refused_by_name) { are_refused(bad, sizeof bad / sizeof *bad); }
