/* train_balance_test.c - how correction biases move (train/experts/balance.h). */
#include "tests/test.h"
#include "train/experts/balance.h"

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
