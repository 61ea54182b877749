/* train_simulate_test.c - clusters as files, seconds of collectives, and the clock's arithmetic. The clock
 * against the world: train_published_test.c. */
#include <math.h>
#include "tests/test.h"
#include "train/simulate/op_measured.h"
#include "train/simulate/sim_job.h"
#include "train/simulate/sim_move.h"
#include "train/simulate/sim_picture.h"
#include "train/simulate/sim_plan.h"

/* A cluster whose figures are easy: 1 Tflop/s, products at half of it, no latencies. */
static const char easy[] =
    "name = \"easy\"\n[device]\nfp32_flops = 1e12\nefficiency = 0.5\ntile_m = 1\ntile_n = 1\n"
    "tile_k = 0\nhbm_bytes_per_s = 1e15\nhbm_bytes = \"80GB\"\n"
    "[[network]]\nranks = 4\nalpha_s = 0\nbytes_per_s = 1e6\n"
    "[[network]]\nranks = 0\nalpha_s = 0\nbytes_per_s = 1e5\n";
#define DEVICE "[device]\nbf16_flops = 1e12\nefficiency = 0.5\nhbm_bytes_per_s = 1e9\nhbm_bytes = 1e9\n"
#define WIRE "[[network]]\nranks = 0\nalpha_s = 0\nbytes_per_s = 1e9\n"
#define OP "[[op]]\nname = \"linear\"\ndtype = \"fp32\"\n"

static struct cluster cluster_of(const char *text)
{
    struct cluster c;
    struct err e = { 0 };
    if (cluster_parse(&c, text, "a test", &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    return c;
}

static struct cluster easy_cluster(void) { return cluster_of(easy); }

static const char *refused(const char *text)
{
    static struct err e;
    struct cluster c;
    e = (struct err){ 0 };
    if (cluster_parse(&c, text, "x.toml", &e) >= 0)
        strcpy(e.text, "(accepted)");
    return e.text;
}

TEST(an_impossible_cluster_gets_one_line_with_its_key_and_value)
{
    static const struct {
        const char *text, *part[2];
    } bad[] = {
        { DEVICE "units = 0\n" WIRE, { "line 6: units is 0", "from 1 to" } },
        { DEVICE "units = many\n" WIRE, { "line 6: units is many", "use a number" } },
        { DEVICE "units = 1e\n" WIRE, { "line 6: units is 1e", "use a number" } },
        { DEVICE "units = nan\n" WIRE, { "units is nan", "use a number" } },
        { DEVICE "units = -3\n" WIRE, { "units is -3", "from 1 to" } },
        { DEVICE "kernel_s = 2\n" WIRE, { "kernel_s is 2", "from 0 to 1" } },
        { DEVICE "kernel_s = \"fast\"\n" WIRE, { "kernel_s is \"fast\"", "80GB" } },
        { DEVICE "colour = 3\n" WIRE, { "line 6: colour", "no such key" } },
        { DEVICE "efficiency = 0.4\n" WIRE, { "efficiency", "there twice" } },
        { "[device]\nefficiency = 2\n" WIRE, { "efficiency is 2", "from 0.001 to 1" } },
        { "[device]\nbf16_flops = 1e12\nefficiency = 0.5\nhbm_bytes = 1e9\n" WIRE,
          { "no hbm_bytes_per_s", "add it" } },
        { "[device]\nefficiency = 0.5\nhbm_bytes_per_s = 1e9\nhbm_bytes = 1e9\n" WIRE,
          { "neither", "bf16_flops" } },
        { DEVICE, { "no [[network]]", "bytes_per_s" } },
        { DEVICE "[[network]]\nranks = 8\nalpha_s = 0\n", { "no bytes_per_s", "add it" } },
        { DEVICE "[[network]]\nranks = 8\nalpha_s = 0\nbytes_per_s = 0\n",
          { "bytes_per_s is 0", "from 1000" } },
        { DEVICE WIRE WIRE, { "level 1 has 0 ranks", "innermost" } },
        { DEVICE WIRE "[[device]]\n", { "[[device]]", "write [ ]" } },
        { DEVICE WIRE "[network]\n", { "[network]", "write [[ ]]" } },
        { DEVICE WIRE "[cooling]\n", { "[cooling]", "no such section" } },
        { DEVICE WIRE "ranks\n", { "line 10: ranks", "no =" } },
        { DEVICE WIRE "[[product]]\nm = 1\nn = 1\nk = 1\nflops_per_s = 1e9\n", { "no dtype", "add it" } },
        { DEVICE WIRE "[[product]]\ndtype = \"int4\"\n", { "int4", "fp32" } },
        { DEVICE "idle_watts = 5\n" WIRE, { "idle_watts is 5", "watts 0" } },
        { "speed = 3\n" DEVICE WIRE, { "line 1: speed", "before the first section" } },
        { DEVICE "measured = 0\n" WIRE, { "line 6: measured is 0", "from 0.01 to 100" } },
        { DEVICE WIRE "[op]\n", { "[op]", "write [[ ]]" } },
        { DEVICE WIRE OP "rows = 0\n", { "line 13: rows is 0", "from 1 to" } },
        { DEVICE WIRE OP "rows = 4\ncols = -1\n", { "line 14: cols is -1", "from 0 to" } },
        { DEVICE WIRE OP "rows = 4\nother = 1e10\n", { "other is 1e+10", "from 0 to" } },
        { DEVICE WIRE OP "rows = 4\nseq_len = x\n", { "seq_len is x", "use a number" } },
        { DEVICE WIRE OP "rows = 4\nseconds = 1e7\n", { "seconds is 1e+07", "from 1e-12 to" } },
        { DEVICE WIRE OP "rows = 4\nseconds = 0\n", { "line 14: seconds is 0", "from 1e-12 to" } },
        { DEVICE "fp32_flops = 1e-300\n" WIRE, { "fp32_flops is 1e-300", "use 0, or 1e-15" } },
        { DEVICE WIRE "[[serve]]\ntp = 1.5\nbatch = 8\ntokens_per_s = 9\nfirst_s = 0\n",
          { "[[serve]] 1 has tp 1.5 and batch 8", "whole numbers" } },
        { DEVICE WIRE OP "rows = 4\nalone_s = -1\n", { "alone_s is -1", "from 0 to" } },
        { DEVICE WIRE OP "rows = 4\nall_s = -1\n", { "all_s is -1", "from 0 to" } },
        { DEVICE WIRE OP "rows = 4\nseconds = 1\nname = \"attn\"\n", { "name", "there twice" } },
        { DEVICE WIRE OP "rows = 4\n", { "[[op]] that ends here has no seconds", "add it" } },
        { DEVICE WIRE "[[op]]\nname = \"warp\"\n", { "line 11: \"warp\"", "no such kernel" } },
        { DEVICE WIRE "[[op]]\nrows = 1\nseconds = 1\nname = \"attn\"\n", { "has no dtype", "add it" } },
        { DEVICE WIRE "unit_bytes_per_s = -1\n", { "line 10: unit_bytes_per_s is -1", "from 0 to" } },
        { DEVICE WIRE "[[serve]]\ntp = 0\n", { "line 11: tp is 0", "from 1 to" } },
        { DEVICE WIRE "[[serve]]\nbatch = 0\n", { "line 11: batch is 0", "from 1 to" } },
        { DEVICE WIRE "[[serve]]\ntokens_per_s = 0\n", { "line 11: tokens_per_s is 0", "from 1e-06" } },
        { DEVICE WIRE "[[serve]]\ntp = 1\nfirst_s = -1\n", { "line 12: first_s is -1", "from 0 to" } },
        { DEVICE WIRE "[[serve]]\ntp = 1\nbatch = 1\nfirst_s = 1\n", { "has no tokens_per_s", "add it" } },
        { DEVICE WIRE "[[collective]]\nkind = \"broadcast\"\n", { "line 11: \"broadcast\"", "all-reduce" } },
        { DEVICE WIRE "[[collective]]\nranks = 0\n", { "line 11: ranks is 0", "from 1 to" } },
        { DEVICE WIRE "[[wait]]\nat_once = 0\n", { "line 11: at_once is 0", "from 1 to" } },
        { DEVICE WIRE "[[wait]]\nseconds = -1\n", { "line 11: seconds is -1", "from 0 to" } },
        { DEVICE WIRE "[[wait]]\nranks = 2\nat_once = 4\n", { "has no seconds", "add it" } },
        { DEVICE WIRE OP "rows = 4\nat_once = -1\n", { "at_once is -1", "from 0 to" } },
        { DEVICE WIRE "[[collective]]\nbytes = -4\n", { "line 11: bytes is -4", "from 0 to" } },
        { DEVICE WIRE "[[collective]]\nseconds = -4\n", { "line 11: seconds is -4", "from 0 to" } },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *said = refused(bad[i].text);
        CHECK_HAS(said, bad[i].part[0]);
        CHECK_HAS(said, bad[i].part[1]);
        CHECK(!strchr(said, '\n'));
    }
}

TEST(presets_are_read_and_written_and_read_again_as_they_were)
{
    static const char *const names[] = { "a100", "h100", "h800", "b200" };
    for (int i = 0; i < 4; i++) {
        struct cluster a, b;
        struct err e = { 0 };
        char *text = NULL;
        size_t n;
        FILE *out = open_memstream(&text, &n);
        CHECK_INT(cluster_open(&a, names[i], &e), 0);
        a.product[a.n_products++] = (struct cluster_product){ SIM_BF16, 512, 768, 256, 1e9 };
        a.op[a.n_ops++] = (struct cluster_op){ SIM_OP_attn_dx, SIM_F32, 512, 768, 0, 256, 0.25, 0.125, 0, 8 };
        a.wait[a.n_waits++] = (struct cluster_wait){ 2, 8, 0.001 };
        a.collective[a.n_collectives++] = (struct cluster_collective){ SIM_GATHER, 4, 1024, 0.1 };
        a.level[a.n_levels - 1].alpha_s = 1e-6 / 3;
        cluster_write(&a, out);
        fclose(out);
        CHECK_INT(cluster_parse(&b, text, names[i], &e), 0);
        CHECK(!memcmp(&a, &b, sizeof a));
        free(text);
    }
}

/* Whatever is changed in a file, it is refused with one line or gives values within their limits. */
TEST(a_changed_byte_of_a_cluster_is_refused_or_harmless)
{
    const char *text = cluster_preset("h100");
    size_t n = strlen(text);
    char *copy = malloc(n + 1);
    static const char with[] = "0-[]=\"\n#e9x";
    for (size_t i = 0; i < n; i++)
        for (size_t w = 0; w <= sizeof with - 1; w++) {
            struct cluster c;
            struct err e = { 0 };
            memcpy(copy, text, n + 1);
            copy[i] = with[w]; /* the last one ends the text here */
            if (cluster_parse(&c, copy, "changed", &e) < 0)
                CHECK(*e.text && !strchr(e.text, '\n'));
            else
                CHECK(c.efficiency > 0 && c.efficiency <= 1 && c.hbm_bytes_per_s > 0 && c.n_levels > 0 &&
                      c.level[0].bytes_per_s > 0);
        }
    free(copy);
}

/* 8 ranks, 4 a machine, 1e6 bytes a second inside and 1e5 between. */
TEST(collectives_take_what_their_bytes_take_on_the_slowest_level)
{
    struct cluster c = easy_cluster();
    struct net_group all = { 8, 1 }, inside = { 4, 1 }, strided = { 2, 4 };
    /* at once: each of 8 sends 1/8 to 4 ranks of the other machine */
    CHECK_NEAR(net_reduce_scatter(&c, all, 8e5, NET_TREE), 4.0, 1e-9);
    /* inside first: a quarter of the bytes is left, half of it crosses */
    CHECK_NEAR(net_reduce_scatter(&c, all, 8e5, NET_NESTED), 1.0, 1e-9);
    CHECK_NEAR(net_reduce_scatter(&c, all, 8e5, NET_RING), 1.0, 1e-9);
    CHECK_NEAR(net_all_gather(&c, all, 8e5), 1.0, 1e-9);
    CHECK_NEAR(net_all_reduce(&c, all, 8e5, NET_RING), 2.0, 1e-9);
    CHECK_NEAR(net_reduce_scatter(&c, inside, 8e5, NET_TREE), 0.6, 1e-9);
    CHECK_NEAR(net_all_gather(&c, strided, 8e5), 4.0, 1e-9);
    CHECK_NEAR(net_send(&c, 1, 1e6), 1.0, 1e-9);
    CHECK_NEAR(net_send(&c, 4, 1e6), 10.0, 1e-9);
    CHECK_NEAR(net_all_to_all(&c, all, 8e5, 0, 0), 4.0, 1e-9);
    /* two machines, two copies: a row reaches 1.5 of them, half of that is the other one */
    CHECK_NEAR(net_all_to_all(&c, all, 8e5, 2, 2), 8e5 / 2 * 1.5 * 0.5 / 1e5, 1e-9);
    CHECK_INT(net_inside(&c, all), 4);
}

static struct model_config model_of(int layers)
{
    struct model_config c;
    struct err e = { 0 };
    char text[400];
    snprintf(
        text, sizeof text,
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":%d,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":4,\"intermediate_size\":128,\"vocab_size\":8,\"max_position_embeddings\":"
        "4096,\"tie_word_embeddings\":false}",
        layers);
    CHECK_INT(model_config_parse(&c, text, "a test", &e), 0);
    return c;
}

static struct sim_run run_of(const struct model_config *c)
{
    return (struct sim_run){ .cfg = c,
                             .tp = 1,
                             .pp = 1,
                             .vpp = 1,
                             .cp = 1,
                             .dp = 1,
                             .ep = 1,
                             .rows = 16,
                             .micro = 1,
                             .seq_len = 64,
                             .schedule = PIPE_1F1B,
                             .dtype = SIM_F32 };
}

static struct clock_result step_of(const struct sim_run *run, const struct cluster *c)
{
    struct clock_result r = { 0 };
    struct err e = { 0 };
    if (clock_step(&r, run, c, NULL, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    return r;
}

TEST(a_product_takes_its_flops_at_the_efficiency_and_a_measured_one_its_own_rate)
{
    struct cluster c = easy_cluster();
    CHECK_NEAR(op_product_s(&c, SIM_F32, 1, 100, 200, 300), 2.0 * 100 * 200 * 300 / 0.5e12, 1e-15);
    c.n_products = 3;
    c.product[0] = (struct cluster_product){ SIM_F32, 64, 200, 300, 1e9 };
    c.product[1] = (struct cluster_product){ SIM_F32, 256, 200, 300, 3e9 };
    c.product[2] = (struct cluster_product){ SIM_F32, 64, 9000, 9000, 7e9 };
    CHECK_NEAR(op_product_s(&c, SIM_F32, 1, 64, 200, 300), 2.0 * 64 * 200 * 300 / 1e9, 1e-12);
    CHECK_NEAR(op_product_s(&c, SIM_F32, 1, 128, 190, 310), 2.0 * 128 * 190 * 310 / 2e9, 1e-12);
    CHECK_NEAR(op_product_s(&c, SIM_F32, 1, 1000, 200, 300), 2.0 * 1000 * 200 * 300 / 3e9, 1e-12);
}

/* A cluster of two cores where every kernel takes a microsecond a row, whatever its width. */
static struct cluster measured_cluster(void)
{
    struct cluster c = easy_cluster();
    c.cores = 2;
    c.n_levels = 1;
    c.level[0] = (struct cluster_level){ 0, 0, 1e15 };
    for (int i = 0; i < SIM_OPS; i++)
        c.op[c.n_ops++] = (struct cluster_op){ .name = (enum sim_op)i, .rows = 64, .seconds = 64e-6 };
    return c;
}

TEST(measured_kernels_are_scaled_by_their_work_and_by_threads)
{
    struct model_config m = model_of(2);
    struct cluster c = measured_cluster();
    struct sim_run run = run_of(&m);
    run.dp = 2;
    c.op[SIM_OP_swiglu] = (struct cluster_op){ SIM_OP_swiglu, SIM_F32, 64, 32, 64, 64, 1, 0.5, 0.75 };
    struct cluster_op ask = { SIM_OP_swiglu, SIM_F32, 128, 64, 128, 64, 0, 0, 0 };
    CHECK_NEAR(op_measured_call(&run, &c, &ask), 4, 1e-12);
    run.dp = 1; /* the other core rests */
    CHECK_NEAR(op_measured_call(&run, &c, &ask), 2, 1e-12);
    run.threads = 2; /* both compute one call */
    CHECK_NEAR(op_measured_call(&run, &c, &ask), 3, 1e-12);
    c.measured = 2;
    CHECK_NEAR(op_measured_call(&run, &c, &ask), 6, 1e-12);
    ask.dtype = SIM_BF16;
    CHECK_NEAR(op_measured_call(&run, &c, &ask), 0, 0); /* not measured */
}

/* Ranks that take turns on the cores have kernels of their own; the nearest number counts, another shape
 * does not. */
TEST(kernels_of_ranks_that_take_turns_are_their_own)
{
    struct model_config m = model_of(2);
    struct cluster c = measured_cluster();
    struct sim_run run = run_of(&m);
    struct cluster_op ask = { SIM_OP_swiglu, SIM_F32, 128, 64, 128, 64 };
    c.n_ops = 0;
    c.op[c.n_ops++] = (struct cluster_op){ SIM_OP_swiglu, SIM_F32, 128, 64, 128, 64, 1 };
    c.op[c.n_ops++] = (struct cluster_op){ SIM_OP_swiglu, SIM_F32, 128, 64, 128, 64, 3, 0, 0, 8 };
    c.op[c.n_ops++] = (struct cluster_op){ SIM_OP_swiglu, SIM_F32, 64, 64, 128, 64, 9, 0, 0, 16 };
    run.dp = 2; /* a core each */
    CHECK_NEAR(op_measured_call(&run, &c, &ask), 1, 1e-12);
    run.dp = 8;
    CHECK_NEAR(op_measured_call(&run, &c, &ask), 3, 1e-12);
    run.dp = 16;
    CHECK_NEAR(op_measured_call(&run, &c, &ask), 3, 1e-12);
    run.dp = 2, run.pp = 4, run.rows = 2; /* stages that wait for the only micro-batch take no turns */
    CHECK_NEAR(op_measured_call(&run, &c, &ask), 1, 1e-12);
    run.rows = 16;
    CHECK_NEAR(op_measured_call(&run, &c, &ask), 3, 1e-12);
}

/* Each sum of a pass costs its wait: of 2 layers two a pass, the embedding's and the head's one, and the two
 * at the end of a step, for which all ranks wait. */
TEST(ranks_that_compute_before_a_sum_wait_for_each_other)
{
    struct model_config m = model_of(2);
    struct cluster c = measured_cluster();
    struct sim_run run = run_of(&m);
    struct net_group two = { 2, 1 };
    c.wait[c.n_waits++] = (struct cluster_wait){ 2, 2, 1 };
    c.wait[c.n_waits++] = (struct cluster_wait){ 2, 8, 40 };
    CHECK_NEAR(net_wait(&c, two, 2), 1, 1e-12);
    CHECK_NEAR(net_wait(&c, two, 8), 10, 1e-12); /* 40 seconds of two cores by eight */
    CHECK_NEAR(net_wait(&c, (struct net_group){ 1, 1 }, 8), 0, 0);
    run.tp = 2, run.rows = 1;
    double with = step_of(&run, &c).step_s;
    c.n_waits = 0;
    CHECK_NEAR(with - step_of(&run, &c).step_s, 2 * 2 * 2 + 1 + 1 + 2, 1e-3);
}

/* As many threads as cores take no longer than one rank on one core; twice as many take twice the time, but
 * for stages that wait for each other. */
TEST(ranks_share_the_cores_of_their_machine_and_a_stage_that_waits_leaves_them)
{
    struct model_config m = model_of(8);
    struct cluster c = measured_cluster();
    struct sim_run run = run_of(&m);
    run.rows = 8;
    double one = step_of(&run, &c).step_s;
    run.dp = 2, run.rows = 16;
    CHECK_NEAR(step_of(&run, &c).step_s, one, 0.02 * one);
    run.dp = 4, run.rows = 32;
    CHECK_NEAR(step_of(&run, &c).step_s, 2 * one, 0.04 * one);
    run.dp = 2, run.pp = 2, run.rows = 2; /* one micro-batch: one of the two stages computes at a time */
    struct clock_result waits = step_of(&run, &c);
    run.dp = 1, run.pp = 1, run.rows = 1;
    one = step_of(&run, &c).step_s;
    CHECK_NEAR(waits.step_s, one, 0.03 * one);
    CHECK(waits.share[CLOCK_BUBBLE] > 0.45 * waits.step_s);
    run.dp = 2, run.pp = 4, run.rows = 32; /* eight ranks on two cores, no one of which rests */
    waits = step_of(&run, &c);
    CHECK(waits.step_s > 0.95 * 16 * one && waits.step_s < 1.3 * 16 * one);
    double sum = 0;
    for (int s = 0; s < CLOCK_SHARES; s++)
        sum += waits.share[s];
    CHECK_NEAR(sum, waits.step_s, 1e-9 * waits.step_s);
}

/* Cores enough for every stage: sharing them changes nothing, messages that are waited for neither. */
TEST(a_stage_that_shares_cores_waits_for_what_it_sends)
{
    struct model_config m = model_of(8);
    struct cluster c = easy_cluster();
    struct sim_run run = run_of(&m);
    run.pp = 4, run.rows = 8, run.engine.wait_sends = 1;
    struct clock_result own = step_of(&run, &c);
    c.cores = 1000;
    struct clock_result shared = step_of(&run, &c);
    CHECK(own.share[CLOCK_PP] > 0.01 * own.step_s);
    CHECK_NEAR(shared.share[CLOCK_PP], own.share[CLOCK_PP], 1e-9 * own.step_s);
    CHECK_NEAR(shared.step_s, own.step_s, 1e-9 * own.step_s);
}

TEST(measured_collectives_replace_the_formula_and_are_seconds_of_a_core)
{
    struct cluster c = measured_cluster();
    struct net_group two = { 2, 1 }, four = { 4, 1 };
    c.n_collectives = 3;
    c.collective[0] = (struct cluster_collective){ SIM_ALL_REDUCE, 2, 1000, 1 };
    c.collective[1] = (struct cluster_collective){ SIM_ALL_REDUCE, 2, 3000, 3 };
    c.collective[2] = (struct cluster_collective){ SIM_ALL_REDUCE, 4, 1000, 8 };
    CHECK_NEAR(net_all_reduce(&c, two, 2000, NET_TREE), 2, 1e-12);
    CHECK_NEAR(net_all_reduce(&c, two, 10, NET_TREE), 1, 1e-12);
    CHECK_NEAR(net_all_reduce(&c, two, 6000, NET_TREE), 6, 1e-12);
    CHECK_NEAR(net_all_reduce(&c, four, 1000, NET_TREE), 4, 1e-12); /* eight seconds of two cores by four */
    CHECK(net_all_gather(&c, two, 1000) < 1e-6);                    /* not measured */
    CHECK_NEAR(net_all_reduce(&c, (struct net_group){ 8, 1 }, 1000, NET_TREE), 4, 1e-12);
    CHECK(net_all_reduce(&c, (struct net_group){ 9, 1 }, 1000, NET_TREE) < 1e-6); /* too many: the formula */

    struct net_group one = { 1, 1 }; /* nothing is sent, but its sum goes through the buffer, too */
    CHECK_NEAR(net_all_reduce(&c, one, 1000, NET_TREE), 0, 0);
    c.collective[c.n_collectives++] = (struct cluster_collective){ SIM_ALL_REDUCE, 1, 1000, 0.5 };
    CHECK_NEAR(net_all_reduce(&c, one, 1000, NET_TREE), 0.5, 1e-12);
    CHECK_NEAR(net_all_reduce(&c, two, 2000, NET_TREE), 2, 1e-12); /* and says nothing of two */
}

TEST(shares_add_up_to_the_step_at_every_layout)
{
    struct model_config m = model_of(8);
    struct cluster c;
    struct err e = { 0 };
    static const int layout[][6] = { { 1, 1, 1, 1, 0, 0 }, { 2, 1, 1, 4, 3, 1 }, { 2, 4, 1, 2, 1, 1 },
                                     { 1, 2, 2, 4, 2, 0 }, { 4, 2, 1, 1, 0, 0 }, { 1, 8, 1, 2, 0, 0 } };
    CHECK_INT(cluster_open(&c, "h100", &e), 0);
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++)
        for (int again = 0; again <= RECOMPUTE_FULL; again++) {
            struct sim_run run = run_of(&m);
            run.tp = layout[i][0], run.pp = layout[i][1], run.cp = layout[i][2], run.dp = layout[i][3];
            run.zero = layout[i][4], run.sp = layout[i][5], run.recompute = (enum recompute)again;
            run.dtype = SIM_BF16;
            struct clock_result r = step_of(&run, &c);
            double sum = 0;
            for (int s = 0; s < CLOCK_SHARES; s++) {
                CHECK(r.share[s] >= -1e-9 * r.step_s);
                sum += r.share[s];
            }
            CHECK_NEAR(sum, r.step_s, 1e-9 * r.step_s);
            CHECK((r.share[CLOCK_AGAIN] > 0) == (again > 0));
        }
}

/* Stages with two layers each and nothing else that takes time: the bubble is the schedule's. */
TEST(the_bubble_is_that_of_the_schedule)
{
    struct model_config m = model_of(8);
    struct cluster c = easy_cluster();
    struct err e = { 0 };
    c.level[0].bytes_per_s = c.level[1].bytes_per_s = 1e15;
    struct sim_run run = run_of(&m);
    run.pp = 4;
    static const enum pipe_kind kinds[] = { PIPE_GPIPE, PIPE_1F1B, PIPE_INTERLEAVED, PIPE_ZERO_BUBBLE };
    double bubble[4];
    for (int i = 0; i < 4; i++) {
        run.schedule = kinds[i];
        run.vpp = kinds[i] == PIPE_INTERLEAVED ? 2 : 1;
        struct clock_result r = step_of(&run, &c);
        struct pipe_report p;
        struct pipe_shape shape = { kinds[i], 4, run.vpp, 16 };
        CHECK_INT(layout_plan_pipeline(&p, &shape, NULL, &e), 0);
        bubble[i] = r.share[CLOCK_BUBBLE] / r.step_s;
        CHECK_NEAR(bubble[i], p.bubble, 0.04); /* both halves of a backward are not as long as a forward */
    }
    CHECK(bubble[3] < bubble[2] && bubble[2] < bubble[1]);
}

TEST(overlap_hides_sums_and_two_kinds_of_devices_get_layers_by_their_speed)
{
    struct model_config m = model_of(12);
    struct cluster c;
    struct err e = { 0 };
    int64_t first, end;
    CHECK_INT(cluster_open(&c, "a100", &e), 0);
    struct sim_run run = run_of(&m);
    run.dp = 16, run.zero = 1, run.dtype = SIM_BF16;
    struct clock_result plain = step_of(&run, &c);
    run.engine.dp_overlap = 1;
    struct clock_result hidden = step_of(&run, &c);
    CHECK(hidden.share[CLOCK_DP] < plain.share[CLOCK_DP]);
    run.pp = 4, run.dp = 1, run.slow_stages = 2, run.slow_speed = 0.5;
    clock_layers(&run, 0, &first, &end);
    CHECK_INT(end - first, 4);
    clock_layers(&run, 3, &first, &end);
    CHECK_INT(first, 10);
    CHECK_INT(end, 12);
}

TEST(flows_that_cross_one_wire_share_it)
{
    struct model_config m = model_of(8);
    struct cluster c = easy_cluster();
    struct net_group strided = { 2, 4 };
    struct sim_run run = run_of(&m);
    c.level[1].unit_bytes_per_s = 2e5; /* half of what its four ranks' wires carry */
    CHECK_NEAR(net_all_gather(&c, strided, 8e5), 8.0, 1e-9);
    CHECK_NEAR(net_send(&c, 4, 1e6), 20.0, 1e-9);
    CHECK_INT(net_level(&c, strided), 1);
    CHECK_INT(net_level(&c, (struct net_group){ 4, 1 }), 0);

    /* sums over dp beside sums over tp, both between machines: the wire has to carry both */
    c.level[0].ranks = 1;
    c.level[1].unit_bytes_per_s = 0;
    run.tp = 2, run.dp = 2, run.zero = 1, run.rows = 2, run.engine.dp_overlap = 1;
    struct clock_result apart = step_of(&run, &c);
    c.level[1].unit_bytes_per_s = 1e5; /* the same bytes a second, but of one wire for all of a rank */
    struct clock_result shared = step_of(&run, &c);
    CHECK_NEAR(shared.share[CLOCK_TP], apart.share[CLOCK_TP], 1e-9);
    CHECK(shared.share[CLOCK_DP] > apart.share[CLOCK_DP]);
    double back = apart.share[CLOCK_TP] / 2; /* at most: backward's half of them is as long again */
    CHECK(shared.step_s - apart.step_s <= back * 1.01);
}

TEST(stages_on_another_kind_of_devices_get_layers_by_what_one_takes_there)
{
    struct model_config m = model_of(24);
    struct cluster fast, slow;
    struct err e = { 0 };
    int64_t first, end;
    CHECK_INT(cluster_open(&fast, "h100", &e), 0);
    CHECK_INT(cluster_open(&slow, "h100", &e), 0);
    slow.peak[SIM_BF16] /= 3, slow.hbm_bytes_per_s /= 3, slow.kernel_s = fast.kernel_s * 3;
    struct sim_run run = run_of(&m);
    run.dtype = SIM_BF16, run.pp = 4, run.micro = 16, run.seq_len = 4096, run.rows = 128;
    double even = step_of(&run, &fast).step_s;
    clock_second(&run, &fast, &slow, 2);
    CHECK_NEAR(run.slow_speed, 1.0 / 3, 0.02);
    clock_layers(&run, 0, &first, &end);
    CHECK_INT(end - first, 9);
    clock_layers(&run, 3, &first, &end);
    CHECK_INT(end - first, 3);
    double uneven = step_of(&run, &fast).step_s;
    run.slow_speed = 1; /* the same devices, layers as many everywhere */
    CHECK(uneven > even && uneven < 0.75 * step_of(&run, &fast).step_s);
}

TEST(failures_saves_and_restarts_cost_what_daly_s_formula_says)
{
    struct model_config m = model_of(2);
    struct cluster c = easy_cluster();
    struct sim_run run = run_of(&m);
    struct clock_result step = { .step_s = 1, .share = { [CLOCK_BUBBLE] = 0.25 } };
    struct sim_job job = { .params = 1e9, .state_bytes = 16e9 };
    struct sim_job_result r;
    run.dp = 16;
    c.failures_a_day = 1000, c.restart_s = 60, c.disk_bytes_per_s = 1e8, c.store_bytes_per_s = 0;
    c.watts = 100, c.idle_watts = 20, c.price_per_hour = 2;
    sim_job(&r, &job, &step, &run, &c);
    CHECK_NEAR(r.failures_a_day, 16, 1e-9);
    CHECK_NEAR(r.save_s, 10, 1e-9);
    CHECK_NEAR(r.save_every_s, sqrt(2 * 10 * 5400.0), 1e-6);
    CHECK_NEAR(r.goodput, 1 - 10 / (r.save_every_s + 10) - (r.save_every_s / 2 + 60) / 5400, 1e-9);
    CHECK_NEAR(r.day_kwh, 16 * 80 * 24 / 1e3, 1e-9);
    CHECK_NEAR(r.day_price, 16 * 48, 1e-9);
    job.sites = 2, c.site_bytes_per_s = 1e9;
    sim_job(&r, &job, &step, &run, &c);
    CHECK_NEAR(r.site_s, 2 * 0.5 * 4e9 / 2 / 1e9, 1e-9); /* 16 ranks are 4 machines, 2 a site */
}

TEST(a_reshard_takes_what_its_slowest_part_takes)
{
    struct cluster c = easy_cluster();
    struct sim_reshard_result r;
    c.disk_bytes_per_s = 1e6, c.store_bytes_per_s = 0;
    sim_reshard(&r, &(struct sim_reshard){ 64e6, 4, 4 }, &c);
    CHECK_NEAR(r.read_s, 4, 1e-9);
    CHECK_NEAR(r.wire_bytes, 48e6, 1e-3);
    CHECK_NEAR(r.wire_s, 48e6 / 16 / 1e5, 1e-9); /* slower than the disks */
    CHECK_NEAR(r.step_s, r.wire_s, 1e-9);
    c.store_bytes_per_s = 2e6;
    sim_reshard(&r, &(struct sim_reshard){ 64e6, 4, 4 }, &c);
    CHECK_NEAR(r.step_s, 64, 1e-9);
    CHECK_NEAR(r.wire_bytes, 0, 0);
}

TEST(servers_for_a_load_have_room_carry_it_and_are_in_time)
{
    struct model_config m = model_of(8);
    struct cluster c;
    struct err e = { 0 };
    struct sim_serve_result r, more;
    CHECK_INT(cluster_open(&c, "h100", &e), 0);
    struct sim_load load = { 1e6, 512, 128, 0 };
    CHECK_INT(sim_serve(&r, &load, &m, 30e9, &c), 0);
    CHECK(r.replicas * r.tokens_per_s >= load.tokens_per_s);
    CHECK((r.replicas - 1) * r.tokens_per_s < load.tokens_per_s);
    load.tokens_per_s = 4e6;
    CHECK_INT(sim_serve(&more, &load, &m, 30e9, &c), 0);
    CHECK(more.devices > r.devices);
    CHECK_INT(sim_serve(&more, &load, &m, 150e9, &c), 0);
    CHECK(more.tp > 1); /* one device has no room */
    load.first_s = 1e-9;
    CHECK(sim_serve(&more, &load, &m, 30e9, &c) < 0);

    /* measured ones: the fewest devices in time */
    c.n_serves = 3;
    c.serve[0] = (struct cluster_serve){ 1, 8, 100, 0.2 };
    c.serve[1] = (struct cluster_serve){ 1, 32, 200, 0.9 };
    c.serve[2] = (struct cluster_serve){ 4, 32, 700, 0.1 };
    load = (struct sim_load){ 1500, 512, 128, 0 };
    CHECK_INT(sim_serve(&r, &load, &m, 30e9, &c), 0);
    CHECK(r.measured && r.batch == 32 && r.tp == 1 && r.devices == 8);
    load.first_s = 0.5;
    CHECK_INT(sim_serve(&r, &load, &m, 30e9, &c), 0);
    CHECK(r.tp == 4 && r.replicas == 3 && r.devices == 12);
    load.first_s = 0.05;
    CHECK(sim_serve(&r, &load, &m, 30e9, &c) < 0);
}

TEST(a_timeline_has_every_forward_and_backward_once)
{
    struct model_config m = model_of(8);
    struct cluster c = easy_cluster();
    struct sim_run run = run_of(&m);
    struct clock_timeline t = { .most = 10000 };
    struct clock_result r;
    struct err e = { 0 };
    char *text = NULL;
    size_t n;
    int forward = 0, backward = 0;
    run.pp = 4;
    CHECK_INT(clock_step(&r, &run, &c, &t, &e), 0);
    for (int64_t i = 0; i < t.n; i++) {
        forward += t.span[i].what == 'F';
        backward += t.span[i].what == 'B';
        CHECK(t.span[i].end >= t.span[i].begin);
    }
    CHECK_INT(forward, 4 * 16);
    CHECK_INT(backward, 4 * 16);
    CHECK_INT(sim_picture_trace(&t, &text, &n, &e), 0);
    CHECK_HAS(text, "\"name\":\"forward\"");
    free(text);
    CHECK_INT(sim_picture_svg(&t, 4, r.step_s, &text, &n, &e), 0);
    CHECK_HAS(text, "stage 3");
    free(text);
    free(t.span);
}
