/* cxx.h - includes the C headers of kernels/ in a CUDA file. */
#ifndef SHARDLINE_KERNELS_CUDA_CXX_H
#define SHARDLINE_KERNELS_CUDA_CXX_H

/* The counters of base/mem.h and base/pool.h have the same layout without _Atomic; CUDA files do not touch
 * them. */
#define _Atomic
#define _STDATOMIC_H
extern "C" {
#include "base/alter.h"
#include "base/env.h"
#include "kernels/dev.h"
#include "kernels/gemm.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"
}
#undef _Atomic

#endif
