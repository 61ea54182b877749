/* format_deepspeed_test.c - DeepSpeed folders: every stage compared with the full state of the live run, and
 * what must be refused. */
#include "tests/unit/format/foreign_help.h"

static void check(const char *name, const char *sub, int64_t step, int narrow)
{
    char dir[1024], path[1200], ref[1200];
    if (!foreign_path(name, dir))
        return;
    snprintf(path, sizeof path, "%s/%s", dir, sub);
    snprintf(ref, sizeof ref, "%s/ref.safetensors", dir);
    same_as_reference(path, ref, step, 1);
    if (narrow)
        weights_are_rounded_masters(path);
}

TEST(zero1_bf16_optimizer_gives_the_reference) { check("ds_zero1_w2_bf16opt", "ckpt", 4, 1); }
TEST(zero1_on_3_ranks_gives_the_reference) { check("ds_zero1_w3_fp32", "ckpt", 4, 0); }
TEST(zero1_on_4_ranks_bf16_gives_the_reference) { check("ds_zero1_w4_bf16", "ckpt", 4, 1); }
TEST(zero2_on_2_ranks_gives_the_reference) { check("ds_zero2_w2_fp32", "ckpt", 4, 0); }
TEST(zero2_tied_gives_the_reference) { check("ds_zero2_w3_bf16_tied", "ckpt", 4, 1); }
TEST(zero2_round_robin_goes_by_param_shapes) { check("ds_zero2_w3_fp32_roundrobin", "ckpt", 4, 0); }
TEST(zero2_with_frozen_parameters_and_a_buffer_gives_the_reference)
{
    check("ds_zero2_w4_bf16_frozen", "ckpt", 4, 1);
}
TEST(zero3_on_2_ranks_gives_the_reference) { check("ds_zero3_w2_bf16", "ckpt", 4, 0); }
TEST(zero3_tied_on_3_ranks_gives_the_reference) { check("ds_zero3_w3_fp32", "ckpt", 4, 0); }
TEST(zero3_with_sub_groups_gives_the_reference) { check("ds_zero3_w4_bf16_sub", "ckpt", 4, 0); }
TEST(the_folder_of_a_tag_is_taken_too) { check("ds_zero3_w3_fp32", "ckpt/global_step4", 4, 0); }
TEST(universal_from_zero1_gives_the_reference) { check("ds_zero1_w2_bf16opt", "universal", 4, 1); }
TEST(universal_from_zero3_takes_shapes_and_step_from_elsewhere)
{
    check("ds_zero3_w2_bf16", "universal", 4, 0);
}
TEST(latest_universal_leads_to_it) { check("ds_zero3_w2_bf16", "", 4, 0); }

static const struct bad_folder bad[] = {
    { "ds_missing_rank", "is one missing" },
    { "ds_truncated_rank", "end record" },
    { "ds_rank_swapped_copy", "a copy of the other" },
    { "ds_latest_traversal", "files must lie directly" },
    { "ds_latest_missing_tag", "which is not there" },
    { "ds_mixed_steps", "files of two saves mixed" },
    { "ds_short_partition", "elements" },
    { "ds_partition_count", "ranks share the state" },
    { "ds_shape_lie", "param_shapes needs" },
    { "ds_shape_huge", "makes no sense" },
    { "ds_exec", "posix.system" },
};

TEST(every_broken_folder_is_refused_by_name) { are_refused(bad, sizeof bad / sizeof *bad); }

TEST(a_missing_rank_between_others_is_named)
{
    loss_is_noticed("ds_zero1_w4_bf16/ckpt", "global_step4/*rank_2_mp_rank_00_optim*", "rank 2 is missing");
}

TEST(nan_and_inf_keep_their_bits)
{
    char dir[1024], to[1100], path[1200];
    struct err e = { 0 };
    struct ckpt *c = NULL;
    int n_bad = 0;
    if (!foreign_path("bad", dir))
        return;
    snprintf(to, sizeof to, "%s/nan", test_tmp_dir());
    make_bad("ds_nan", to);
    snprintf(path, sizeof path, "%s/ckpt", to);
    if (ckpt_open(&c, path, NULL, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    for (int i = 0; c && i < ckpt_n_tensors(c); i++) {
        struct box b = box_whole(ckpt_tensor(c, i)->n_dims, ckpt_tensor(c, i)->shape);
        int64_t n = box_count(&b);
        uint32_t *v = malloc((size_t)n * 4);
        CHECK(ckpt_read(c, i, &b, v, &e) >= 0);
        for (int64_t k = 0; k < n; k++)
            n_bad += (v[k] & 0x7f800000u) == 0x7f800000u;
        free(v);
    }
    CHECK_INT(n_bad, 2);
    ckpt_close(c);
}
