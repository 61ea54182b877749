/* mem.h - memory with a category: allocations that are counted, and arenas that are sized by the walk that
 * carves them. */
#ifndef SHARDLINE_BASE_MEM_H
#define SHARDLINE_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include "base/err.h"

#define MEM_LIST(X) \
    X(PARAMS, "params") /* weights in the dtype of the arithmetic, packed copies included */ \
    X(GRADS, "grads")   /* gradients and the tree's partial sums */ \
    X(OPTIM, "optim")   /* masters and moments */ \
    X(ACTS, "acts")     /* activations kept for backward */ \
    X(KV, "kv")         /* key-value pages */ \
    X(COMM, "comm")     /* collective buffers */ \
    X(WORK, "work")     /* scratch of kernels and steps */ \
    X(SAVE, "save")     /* the copy that a checkpoint is written from */ \
    X(OTHER, "other")

enum mem_cat {
#define X(name, text) MEM_##name,
    MEM_LIST(X)
#undef X
        MEM_CATS
};

struct mem { /* one per rank; all counts in bytes */
    _Atomic int64_t now[MEM_CATS], peak[MEM_CATS];
    _Atomic int64_t total_now, total_peak;
    /* test hook: > 0 counts down, the allocation that reaches 0 fails */
    _Atomic int64_t fail_after;
};

const char *mem_cat_name(enum mem_cat c);
/* Zeroed memory, aligned to 64 bytes; from 2 MiB up aligned to 2 MiB with huge pages asked for. NULL: none
 * left. */
void *mem_alloc(struct mem *m, enum mem_cat c, size_t bytes);
void mem_free(struct mem *m, void *p); /* NULL is fine */
/* 1 when a test chose this allocation to fail (fail_after, or base/test_hooks.h): for those who take memory
 * elsewhere. */
int mem_alloc_fault(struct mem *m);
/* Bytes that this machine can still give, by the kernel's own estimate, or the room under the limit of the
 * control group when that is less.
 * SHARDLINE_MEMORY_ROOM: that many, for tests. */
int64_t mem_machine_free(void);
/* Counts memory that came from elsewhere (a shared segment). bytes < 0 gives it back. */
void mem_count(struct mem *m, enum mem_cat c, int64_t bytes);

/* An arena: run the carving walk once with base NULL to learn the size, once with memory. */
struct arena {
    char *base;
    size_t used, size;
};
/* 64-byte aligned piece, or NULL while measuring (base NULL). Never fails when carved as measured. */
void *arena_take(struct arena *a, size_t bytes);
#define ARENA_NEW(a, type, count) ((type *)arena_take((a), sizeof(type) * (size_t)(count)))
static inline void arena_reset(struct arena *a) { a->used = 0; }

#endif
