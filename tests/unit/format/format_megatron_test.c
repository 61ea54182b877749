/* format_megatron_test.c - Megatron folders, torch_dist and legacy, under Hugging Face names: the bits of the
 * live run's state. */
#include "tests/unit/format/foreign_help.h"

static void check(const char *name, int narrow)
{
    char dir[1024], path[1200], ref[1200];
    if (!foreign_path(name, dir))
        return;
    snprintf(path, sizeof path, "%s/ckpt", dir);
    snprintf(ref, sizeof ref, "%s/ref.safetensors", dir);
    same_as_reference(path, ref, 10, 1);
    if (narrow)
        weights_are_rounded_masters(path);
}

TEST(torch_dist_fp32_on_2_by_2_gives_the_reference) { check("mcore_dist_tp2_pp2_fp32", 0); }
TEST(torch_dist_fully_reshardable_gives_the_reference) { check("mcore_dist_tp2_dp2_bf16_fullyresh", 1); }
TEST(torch_dist_dp_reshardable_is_taken_apart) { check("mcore_dist_tp2_dp2_bf16_dpresh", 1); }
TEST(legacy_on_2_by_2_gives_the_reference) { check("mcore_legacy_tp2_pp2_bf16", 1); }
TEST(legacy_tied_with_two_stages_has_one_embedding) { check("mcore_legacy_tp1_pp2_fp32_tied", 0); }
TEST(legacy_distributed_optimizer_gives_the_reference) { check("mcore_legacy_tp2_dp2_bf16_distopt", 1); }

static const struct bad_folder bad[] = {
    { "mg_missing_rank", "mp_rank_01_001" },         { "mg_mixed_iteration", "files of two saves mixed" },
    { "mg_args_tp_lie", "the folders say 2 and 2" }, { "mg_checkpoint_version_0", "another order" },
    { "mg_tracker_traversal", "an iteration or" },
};

TEST(every_broken_folder_is_refused_by_name) { are_refused(bad, sizeof bad / sizeof *bad); }

TEST(a_missing_folder_of_a_rank_is_noticed)
{
    loss_is_noticed("mcore_legacy_tp2_pp2_bf16/ckpt", "iter_0000010/mp_rank_00_001", "is one missing");
}

TEST(a_save_that_was_cut_off_is_refused)
{
    loss_is_noticed("mcore_dist_tp2_pp2_fp32/ckpt", "iter_0000010/metadata.json", "not finished");
}

/* The run's own options are enough without config.json; the config of another model is refused; the one that
 * is given is used. */
TEST(config_json_must_agree_and_can_be_given)
{
    char dir[1024], to[1024], config[1200], other[1200];
    struct err e = { 0 };
    struct ckpt *c = NULL;
    if (!foreign_path("mcore_legacy_tp2_pp2_bf16", dir))
        return;
    snprintf(to, sizeof to, "%s/alone/ckpt", test_tmp_dir());
    snprintf(config, sizeof config, "%s/config.json", dir);
    snprintf(other, sizeof other, "%s/other.json", test_tmp_dir());
    shell("mkdir '%s'/alone && cp -rL '%s'/ckpt '%s' && sed 's/\"num_attention_heads\": "
          "8/\"num_attention_heads\": 4/' '%s' > '%s'",
          test_tmp_dir(), dir, to, config, other);
    CHECK(ckpt_open(&c, to, NULL, &e) >= 0);
    CHECK(c && !ckpt_config_json(c));
    ckpt_close(c);
    c = NULL;
    CHECK(ckpt_open(&c, to, &(struct ckpt_open_opts){ .config_path = other }, &e) < 0);
    CHECK_HAS(e.text, "num_attention_heads 4, the saved run 8");
    CHECK(ckpt_open(&c, to, &(struct ckpt_open_opts){ .config_path = config }, &e) >= 0);
    CHECK(c && ckpt_config_json(c));
    ckpt_close(c);
}
