/* cast.h - one dtype into another, element by element: the conversions that --dtype asks for. */
#ifndef SHARDLINE_RESHARD_CAST_H
#define SHARDLINE_RESHARD_CAST_H

#include "format/ckpt.h"

/* Whether cast_run() knows the pair: F32, BF16, F16, F64 to F32 or BF16; any dtype to itself (a copy). */
int cast_known(enum stored_dtype from, enum stored_dtype to);
/* Converts n elements; in and out do not overlap. To F32: exact, but for F64, which is rounded to nearest
 * even. To BF16: nearest even, fp32 denormals become zero of the same sign, a NaN becomes a quiet NaN
 * (numerics contract). */
void cast_run(enum stored_dtype from, enum stored_dtype to, const void *in, void *out, int64_t n);

#endif
