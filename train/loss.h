/* loss.h - the loss of targets: weight times -logprob, summed exactly, and the factor of each gradient of
 * dlogits (kernels/NUMERICS.md, text/CHATS.md). Pure functions. */
#ifndef SHARDLINE_TRAIN_LOSS_H
#define SHARDLINE_TRAIN_LOSS_H

#include <stdint.h>
#include "kernels/kernels.h"

/* Adds the losses of n targets to *sum. weight: NULL: each is 1. Returns how many have a weight that is not
 * 0; the others are not looked at. */
int64_t loss_add(struct xsum *sum, const float *logprobs, const float *weight, int64_t n);
/* Fills scale[n] with float(weight / divisor), formed in double; +0 where the weight is 0. */
void loss_scales(float *scale, const float *weight, double divisor, int64_t n);

#endif
