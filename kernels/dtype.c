/* dtype.c - names of dtypes. */
#include "kernels/kernels.h"

const char *dtype_name(enum dtype t)
{
    static const char *const name[DT_COUNT] = { [DT_F32] = "fp32", [DT_BF16] = "bf16", [DT_F16] = "fp16" };
    return t < DT_COUNT ? name[t] : "unknown";
}
