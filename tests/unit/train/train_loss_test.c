/* train_loss_test.c - the loss of targets with weights, by its definition (train/loss.h). */
#include <math.h>
#include "tests/test.h"
#include "train/loss.h"

#define N 200

/* Odd values: products and quotients need every bit of a double's 53. */
static float logprob_of(int i) { return -(float)(i * 7919 % 101 + 1) / 7.0f; }
static float weight_of(int i) { return i % 3 == 1 ? 0.0f : (float)(i * 104729 % 211 - 105) / 13.0f; }

TEST(a_loss_is_the_exact_sum_of_weight_times_loss)
{
    float logprobs[N], weight[N];
    struct xsum sum = { 0 };
    double expected = 0;
    int64_t n = 0;
    for (int i = 0; i < N; i++) {
        logprobs[i] = logprob_of(i);
        weight[i] = weight_of(i);
        n += weight[i] != 0;
    }

    /* in turns of any size: integer bins have no order */
    CHECK_INT(loss_add(&sum, logprobs, weight, 77) + loss_add(&sum, logprobs + 77, weight + 77, N - 77), n);

    /* products of 48 bits, cut into halves whose sums are exact */
    double high = 0, low = 0;
    for (int i = 0; i < N; i++) {
        double p = -(double)logprobs[i] * (double)weight[i], h = (double)(float)p;
        high += h;
        low += p - h;
    }
    expected = high + low;
    CHECK(xsum_double(&sum) == expected);
}

TEST(targets_of_weight_0_are_not_looked_at)
{
    const float logprobs[3] = { -1.5f, NAN, -INFINITY }, weight[3] = { 2, 0, -0.0f };
    struct xsum sum = { 0 };
    CHECK_INT(loss_add(&sum, logprobs, weight, 3), 1);
    CHECK(xsum_double(&sum) == 3.0);
}

TEST(without_weights_each_target_counts_once)
{
    const float logprobs[3] = { -1.5f, -0.25f, -2 };
    struct xsum sum = { 0 };
    float scale[3];
    CHECK_INT(loss_add(&sum, logprobs, NULL, 3), 3);
    CHECK(xsum_double(&sum) == 3.75);
    loss_scales(scale, NULL, 3, 3);
    CHECK_BITS(scale[2], (float)(1.0 / 3.0));
}

TEST(a_scale_is_rounded_once)
{
    int differ = 0;
    for (int divisor = 3; divisor < 60; divisor += 7) {
        float weight[N], scale[N];
        for (int i = 0; i < N; i++)
            weight[i] = weight_of(i);
        loss_scales(scale, weight, divisor, N);
        for (int i = 0; i < N; i++) {
            CHECK_BITS(scale[i], weight[i] == 0 ? 0.0f : (float)((double)weight[i] / divisor));
            differ += scale[i] != weight[i] * (1.0f / (float)divisor);
        }
    }
    CHECK(differ > 100); /* two roundings would be seen */
}
