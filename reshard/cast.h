/* cast.h - one dtype into another, element by element: the conversions that --dtype asks for. */
#ifndef SHARDLINE_RESHARD_CAST_H
#define SHARDLINE_RESHARD_CAST_H

#include "format/ckpt.h"

/* Whether cast_run knows the pair: F32, BF16, F16, F64 to F32 or BF16. The same dtype twice is a copy. */
int cast_known(enum stored_dtype from, enum stored_dtype to);
/* Wider to F32 is exact (not from F64). To BF16: nearest even, denormals (of fp32) become zero of the same
 * sign, NaN stays a quiet NaN (numerics contract). in and out do not overlap. */
void cast_run(enum stored_dtype from, enum stored_dtype to, const void *in, void *out, int64_t n);

#endif
