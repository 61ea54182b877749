/* flushed.h - one step of a bf16 chain in plain C: inputs and results below the smallest normal number
 * flushed to signed zero. */
#ifndef SHARDLINE_KERNELS_FLUSHED_H
#define SHARDLINE_KERNELS_FLUSHED_H

#include <math.h>

#define SMALLEST_NORMAL 0x1p-126f

/* fma whose result is flushed. Hardware decides after rounding to 24 bits with an unbounded exponent; fmaf
 * has already rounded a value just below to the denormal grid. Such a value is computed again, scaled away
 * from the end of the range (only the smaller factor can be scaled without overflow). */
static inline float fma_flushed(float x, float y, float sum)
{
    float r = fmaf(x, y, sum), size = fabsf(r);
    if (size == SMALLEST_NORMAL) {
        float scale = 0x1p64f;
        float again = fabsf(x) < fabsf(y) ? fmaf(x * scale, y, sum * scale) : fmaf(x, y * scale, sum * scale);
        size = fabsf(again) < SMALLEST_NORMAL * scale ? 0 : size;
    }
    return size < SMALLEST_NORMAL ? copysignf(0.0f, r) : r;
}

static inline float flushed(float x) { return fabsf(x) < SMALLEST_NORMAL ? copysignf(0.0f, x) : x; }

#endif
