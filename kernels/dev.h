/* dev.h - a device: where memory lies, who computes, which op table serves it. */
#ifndef SHARDLINE_KERNELS_DEV_H
#define SHARDLINE_KERNELS_DEV_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/pool.h"

struct kernel_ops;
struct trace;

struct dev {
    const struct kernel_ops *ops;    /* the op table of this device and CPU class (kernels.h)                  */
    const char *kind;                /* "cpu" | "cuda"                                                         */
    const char *isa;                 /* "avx512bf16" | "avx512" | "avx2" | "portable"                          */
    struct pool *pool;
    struct mem *mem;                 /* borrowed: the rank's counters                                          */
    void *priv;                      /* scratch of the implementation                                          */
    struct trace *trace;             /* borrowed; may be NULL (base/trace.h)                                   */
};

/* kind: "cpu" or "cuda" (ERR_DEVICE when built without or absent). threads >= 1. The CPU class is the best this machine has;
 * the environment variable SHARDLINE_ISA=portable|avx2|avx512|avx512bf16 forces a lower one (ERR_DEVICE: not available).
 * Runs the start-up self-tests: denormals are alive (1e-39f / 2 != 0), the bf16 dot instruction has the contract's order. */
int dev_open(struct dev **out, const char *kind, int threads, struct mem *mem, struct err *e);
void dev_close(struct dev *d);
void *dev_alloc(struct dev *d, enum mem_cat cat, size_t bytes);      /* zeroed, as mem_alloc; NULL: none left  */
void dev_free(struct dev *d, void *p);
/* Scratch for one use by an op or its caller, grown and kept: slot 0..7, valid until the next call with the same slot.
 * NULL: no memory. Slots 0..3 belong to the ops themselves, 4..7 to callers. */
void *dev_scratch(struct dev *d, int slot, size_t bytes);
/* Ops return nothing: one that got no scratch gives NaN, and leaves word here. ERR_MEMORY when that happened since the last call. */
int dev_check(struct dev *d, struct err *e);

#endif
