/* dtype.c - names of dtypes, and of what pages of keys and values store. */
#include "kernels/kernels.h"

const char *dtype_name(enum dtype t)
{
    static const char *const name[DT_COUNT] = { [DT_F32] = "fp32", [DT_BF16] = "bf16", [DT_F16] = "fp16" };
    return t < DT_COUNT ? name[t] : "unknown";
}

const char *kv_kind_name(enum kv_kind kv, enum dtype dt)
{
    static const char *const name[KV_KINDS] = { [KV_BF16] = "bf16", [KV_FP8] = "fp8", [KV_INT8] = "int8" };
    return kv > KV_OWN && kv < KV_KINDS ? name[kv] : dtype_name(dt);
}
