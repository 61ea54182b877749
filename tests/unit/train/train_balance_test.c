/* train_balance_test.c - how correction biases move (train/experts/balance.h), and what a plan says of
 * experts (train/experts/experts_plan.h). */
#include "tests/test.h"
#include "train/experts/balance.h"
#include "train/layout_plan.h"

#define RATE 0.125f

TEST(a_bias_rises_below_the_mean_and_falls_above_it)
{
    /* a mean of 7/3: no count is equal to it */
    const int64_t uneven[3] = { 2, 3, 2 }, even[3] = { 5, 5, 5 }, one[3] = { 0, 9, 0 };
    float bias[3] = { 0, 1, -2 };
    balance_move(bias, uneven, 3, RATE);
    CHECK_BITS(bias[0], RATE);
    CHECK_BITS(bias[1], 1 - RATE);
    CHECK_BITS(bias[2], -2 + RATE);

    balance_move(bias, even, 3, RATE);
    CHECK_BITS(bias[0], RATE);
    CHECK_BITS(bias[2], -2 + RATE);

    balance_move(bias, one, 3, RATE);
    CHECK_BITS(bias[0], 2 * RATE);
    CHECK_BITS(bias[1], 1 - 2 * RATE);
}

TEST(counts_that_a_float_cannot_hold_are_compared_exactly)
{
    const int64_t n = ((int64_t)1 << 40) + 1, counts[2] = { n, n + 1 };
    float bias[2] = { 0, 0 };
    balance_move(bias, counts, 2, RATE);
    CHECK_BITS(bias[0], RATE);
    CHECK_BITS(bias[1], -RATE);
}

TEST(an_expert_with_the_mean_stays)
{
    const int64_t counts[4] = { 1, 2, 3, 2 };
    float bias[4] = { 0, 0, 0, 0 };
    balance_move(bias, counts, 4, RATE);
    CHECK_BITS(bias[1], 0.0f);
    CHECK_BITS(bias[3], 0.0f);
    CHECK_BITS(bias[0], RATE);
    CHECK_BITS(bias[2], -RATE);
}

TEST(tokens_choose_as_many_different_experts_as_the_formula_says)
{
    CHECK_NEAR(experts_distinct(8, 2, 1), 2, 1e-12);
    CHECK_NEAR(experts_distinct(8, 2, 4), 8 * (1 - 0.31640625), 1e-12);
    CHECK_NEAR(experts_distinct(128, 8, 1), 8, 1e-12);
    CHECK_NEAR(experts_distinct(128, 8, 16), 82.4, 0.05);
    CHECK_NEAR(experts_distinct(128, 8, 64), 125.9, 0.05);
    CHECK_NEAR(experts_distinct(4, 4, 1), 4, 0);
    CHECK_NEAR(experts_distinct(4, 4, 0), 0, 0);
}

/* hidden 64, experts of 48: a matrix has 3072 elements, an expert three of them. */
static struct experts_plan plan_of(struct layout l, enum dtype dt)
{
    static const char text[] = "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"num_hidden_layers\":4,"
                               "\"num_attention_heads\":8,\"num_key_value_heads\":8,\"head_dim\":8,"
                               "\"intermediate_size\":64,\"vocab_size\":256,\"num_experts\":8,"
                               "\"num_experts_per_tok\":2,\"moe_intermediate_size\":48,"
                               "\"decoder_sparse_step\":2}";
    struct layout_spec a = {
        .layout = l, .rows = 16, .micro = 2, .seq_len = 32, .dt = dt, .sharers = 1, .threads = 1
    };
    struct layout_plan p;
    struct err e = { 0 };
    CHECK_INT(model_config_parse(&a.cfg, text, "a config", &e), 0);
    CHECK_INT(layout_plan_make(&p, &a, NULL, &e), 0);
    return p.experts;
}

TEST(a_plan_has_the_memory_of_a_layer_s_experts)
{
    enum { EXPERT = 3 * 64 * 48 };
    for (int ep = 1; ep <= 8; ep *= 2) {
        struct experts_plan x = plan_of((struct layout){ 1, 1, 1, 8, ep, 0, 1 }, DT_F32);
        CHECK_INT(x.local, 8 / ep);
        CHECK_INT((int64_t)x.weights, (int64_t)EXPERT * 4 * 8 / ep);
        CHECK_INT((int64_t)x.optim, (int64_t)EXPERT * 8 * 8 / ep);
        CHECK_INT(x.tokens, 64 * ep);
        CHECK_INT(x.n_layers, 2);
    }

    /* ZeRO divides over the ranks that hold the same experts: two */
    struct experts_plan x = plan_of((struct layout){ 1, 1, 1, 8, 4, 3, 1 }, DT_BF16);
    CHECK_INT((int64_t)x.weights, EXPERT * 2 * 2 / 2);
    CHECK_INT((int64_t)x.optim, EXPERT * 2 * 12 / 2);
    /* cut by tp: a part of each */
    x = plan_of((struct layout){ 4, 1, 1, 2, 1, 1, 1 }, DT_F32);
    CHECK(x.local == 8 && !x.whole);
    CHECK_INT((int64_t)x.weights, EXPERT * 8 * 4 / 4);
    CHECK_INT((int64_t)x.optim, EXPERT * 8 * 8 / 4 / 2);
    /* the second stage alone has them */
    x = plan_of((struct layout){ 1, 2, 1, 4, 2, 0, 1 }, DT_F32);
    CHECK_INT((int64_t)x.weights, EXPERT * 4 * 4);
}
