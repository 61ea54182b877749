/* mem.h - allocations that are counted by category, and arenas that are measured by the walk that carves
 * them. */
#ifndef SHARDLINE_BASE_MEM_H
#define SHARDLINE_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include "base/err.h"

/* X(category, its name in logs and plans) */
#define MEM_LIST(X) \
    X(PARAMS, "params") /* weights in the dtype of the arithmetic, with their packed copies */ \
    X(GRADS, "grads")   /* gradients and partial sums of the tree */ \
    X(OPTIM, "optim")   /* masters and moments */ \
    X(ACTS, "acts")     /* activations kept for backward */ \
    X(KV, "kv")         /* key-value pages */ \
    X(COMM, "comm")     /* collective buffers */ \
    X(WORK, "work")     /* scratch of kernels and steps */ \
    X(SAVE, "save")     /* the snapshot that a checkpoint is written from */ \
    X(OTHER, "other")

enum mem_cat {
#define X(name, text) MEM_##name,
    MEM_LIST(X)
#undef X
        MEM_CATS
};

/* Counts of one rank, in bytes. Zero it to start. Any thread may allocate and free. */
struct mem {
    _Atomic int64_t now[MEM_CATS], peak[MEM_CATS];
    _Atomic int64_t total_now, total_peak;
    _Atomic int64_t fail_after; /* for tests: > 0 counts down, the allocation that reaches 0 fails */
};

/* The lowest multiple of `to` that is not below n. */
static inline size_t mem_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Name of a category. */
const char *mem_cat_name(enum mem_cat c);

/* Allocates zeroed memory, aligned to 64 bytes; from 2 MiB up aligned to 2 MiB, with huge pages requested.
 * m may be NULL: not counted. NULL: out of memory. The caller frees it with mem_free on the same m. */
void *mem_alloc(struct mem *m, enum mem_cat c, size_t bytes);

/* Frees memory of mem_alloc; NULL is allowed. */
void mem_free(struct mem *m, void *p);

/* 1 when a test chose this allocation to fail (fail_after, or base/test_hooks.h). For allocators besides
 * mem_alloc; each allocation asks once. */
int mem_alloc_fault(struct mem *m);

/* Counts memory that another allocator gave (a shared segment, a device). bytes < 0: it was freed. */
void mem_count(struct mem *m, enum mem_cat c, int64_t bytes);

/* An arena. The walk that carves it runs twice: with base NULL to learn the size, then with memory. The
 * caller owns the memory. */
struct arena {
    char *base;
    size_t used, size;
};

/* Takes a 64-byte aligned piece. NULL while base is NULL; a walk that asks for what it measured never
 * fails. */
void *arena_take(struct arena *a, size_t bytes);

/* Takes `count` elements of a type. */
#define ARENA_NEW(a, type, count) ((type *)arena_take((a), sizeof(type) * (size_t)(count)))

/* Frees all pieces at once. */
static inline void arena_reset(struct arena *a) { a->used = 0; }

#endif
