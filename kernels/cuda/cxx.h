/* cxx.h - the room's C headers in a CUDA file. */
#ifndef SHARDLINE_KERNELS_CUDA_CXX_H
#define SHARDLINE_KERNELS_CUDA_CXX_H

/* counters of base/mem.h and pool.h, which nothing here touches: the layout is the same */
#define _Atomic
#define _STDATOMIC_H
extern "C" {
#include "base/alter.h"
#include "base/env.h"
#include "kernels/dev.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"
}
#undef _Atomic

#endif
