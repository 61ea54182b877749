/* loss.c - see loss.h. */
#include "train/loss.h"

#include "base/alter.h"

/* The product of two floats is exact in double. */
static double product_exact(float logprob, float weight) { return -(double)logprob * (double)weight; }
static double product_rounded(float logprob, float weight) { return (double)(-logprob * weight); }

static float scale_once(float weight, double divisor) { return (float)((double)weight / divisor); }
static float scale_twice(float weight, double divisor) { return weight * (float)(1.0 / divisor); }

int64_t loss_add(struct xsum *sum, const float *logprobs, const float *weight, int64_t n)
{
    double (*const product)(float, float) = ORDER("loss_product", product_exact, product_rounded);
    int64_t counted = 0;
    for (int64_t i = 0; i < n; i++) {
        float by = weight ? weight[i] : 1.0f;
        if (by == 0)
            continue;
        xsum_add(sum, product(logprobs[i], by));
        counted++;
    }
    return counted;
}

void loss_scales(float *scale, const float *weight, double divisor, int64_t n)
{
    float (*const form)(float, double) = ORDER("loss_scale", scale_once, scale_twice);
    for (int64_t i = 0; i < n; i++) {
        float by = weight ? weight[i] : 1.0f;
        scale[i] = by == 0 ? 0.0f : form(by, divisor);
    }
}
