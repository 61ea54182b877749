/* dev.h - a device: where memory lies, which thread or GPU computes, which op table serves it.
 *
 * Memory. Device memory comes from dev_alloc, dev_scratch and, where a device has its own, comm_alloc. Ops
 * read and write it; all other code uses dev_read, dev_write, dev_copy, dev_fill. Everything else is host
 * memory: what an op gets by a pointer to a struct (leaves, attention's sequences and their lists of
 * pages, optimizer settings, exact sums), lists of matrices, and token ids. An op has read its host
 * arguments when it returns.
 *
 * Time. A device may run behind the host. Ops, copies, allocations and frees go into the queue in use and
 * happen there in the order of the calls; only marks order one queue behind another. DEV_COMPUTE is the
 * usual queue, DEV_COMM is for what goes between ranks, DEV_COPY for what comes from files (ring.h). After
 * dev_read the calls into that queue are complete, after dev_sync those into all.
 *
 * On a CPU both kinds of memory are one, copies are memcpy, everything is complete when it returns, and
 * staging and marks cost nothing.
 *
 * One thread at a time calls into a device, and no function here is collective. */
#ifndef SHARDLINE_KERNELS_DEV_H
#define SHARDLINE_KERNELS_DEV_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/pool.h"

struct kernel_ops;
struct trace;
struct dev;

enum dev_queue { DEV_COMPUTE, DEV_COMM, DEV_COPY, DEV_QUEUES };

/* look() is called from time to time while the host waits for the device. A result below 0 ends the
 * waiting: the device fails with that error. */
struct dev_idle {
    int (*look)(void *arg, struct err *e);
    void *arg;
};

/* A device whose memory the host cannot reach; the functions below describe what each does. One that
 * fails records its error for dev_check. */
struct dev_memory {
    void *(*alloc)(struct dev *d, enum mem_cat cat, size_t bytes); /* zeroed; NULL: none left */
    void (*free)(struct dev *d, void *p);
    int (*owns)(const struct dev *d, const void *p);
    void (*read)(struct dev *d, void *host, const void *p, size_t bytes);
    void (*write)(struct dev *d, void *p, const void *host, size_t bytes);
    void (*copy)(struct dev *d, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes,
                 int64_t rows);
    void (*fill)(struct dev *d, void *p, int byte, size_t bytes);
    void (*sync)(struct dev *d);
    size_t (*free_bytes)(struct dev *d); /* that dev_alloc can still give */
    int (*check)(struct dev *d, struct err *e);
    void (*numerics)(struct dev *d); /* d->fast was set; may be NULL */
    int64_t (*mark)(struct dev *d, enum dev_queue q);
    void (*wait)(struct dev *d, enum dev_queue q, int64_t mark);
    int (*reached)(struct dev *d, int64_t mark);
    void (*await)(struct dev *d, int64_t mark);
    void *(*pin)(struct dev *d, size_t bytes); /* NULL: none left */
    void (*unpin)(struct dev *d, void *p, size_t bytes);
    void (*send)(struct dev *d, void *p, const void *pinned, size_t bytes);
    void *(*stream)(struct dev *d, enum dev_queue q);
    const char *(*identity)(const struct dev *d); /* of the GPU; no other GPU anywhere has the same */
    void (*close)(struct dev *d);
};

struct dev {
    const struct kernel_ops *ops;    /* of this device and CPU class (kernels.h) */
    const char *kind;                /* "cpu" | "cuda", or what a device library sets */
    const struct codes_ops *codes;   /* CPU: products over quantised panels (codes/codes_core.h) */
    const char *isa;                 /* "avx512bf16" | "avx512" | "avx2" | "portable" | "sm_90" … */
    struct pool *pool;               /* threads of the host */
    struct read_ahead *ahead;        /* of a CPU: what its threads ask for while they wait; NULL: nothing */
    struct mem *mem;                 /* borrowed: the rank's counters */
    void *priv;                      /* state of dev.c */
    struct trace *trace;             /* borrowed; may be NULL (base/trace.h) */
    const struct dev_memory *memory; /* NULL: the host's memory */
    void *back;                      /* state of `memory` */
    enum dev_queue queue;            /* in use (dev_use) */
    struct dev_idle idle;            /* look may be NULL */
    struct dev *host;                /* the CPU beside it, for ops on host memory; a CPU's is itself */
    int fast;       /* --numerics fast: products in any order, by a library where that is faster */
    char note[240]; /* which code multiplies, for a line of the log; "": nothing to report */
};

/* Opens a device; *out is owned by the caller. kind: "cpu" or "cuda". threads >= 1, of the host. mem is
 * borrowed.
 *
 * SHARDLINE_ISA=portable|avx2|avx512|avx512bf16 forces a CPU class; without it the best of this machine is
 * taken. SHARDLINE_DEVICE=FILE, for tests: cuda is the device in this shared library (dev_library.h).
 * Start-up self-tests check that denormals are kept (1e-39f / 2 != 0) and that the bf16 dot instruction
 * adds in the contract's order.
 *
 * ERR_USAGE: unknown kind. ERR_DEVICE: no such device or class here, not built with it, or a self-test
 * failed. ERR_MEMORY. */
int dev_open(struct dev **out, const char *kind, int threads, struct mem *mem, struct err *e);
/* Completes what was called, then frees the device. NULL: nothing. */
void dev_close(struct dev *d);
/* Replaces the threads that the device was opened with: MPI must start before there are any. */
int dev_threads(struct dev *d, int threads, struct err *e);
/* Chooses the numerics of later ops; weights packed before must be packed again. A device is opened for
 * exact. */
void dev_numerics(struct dev *d, int fast);
/* The kinds that this program was built with, for --version: "cpu" or "cpu cuda". */
const char *dev_kinds(void);

/* 1: plain panels as files have them (32 columns side by side) are those that this device's products read. */
int dev_file_panels(const struct dev *d);

/* Zeroed, aligned as mem_alloc's; counted in cat. NULL: none left. */
void *dev_alloc(struct dev *d, enum mem_cat cat, size_t bytes);
/* NULL: nothing. */
void dev_free(struct dev *d, void *p);
/* Scratch for one use by an op or its caller, grown and kept by the device: slot 0..7 of the queue in use,
 * valid there until the next call with the same slot. Slots 0..3 belong to the ops, 4..7 to callers. NULL:
 * no memory. */
void *dev_scratch(struct dev *d, int slot, size_t bytes);
/* The errors of ops, which return nothing, since the last call. ERR_MEMORY: an op got no scratch and gave
 * NaN. ERR_DEVICE: the device failed. */
int dev_check(struct dev *d, struct err *e);

/* ---- copies between host and device ---- */
/* Is p device memory? On a CPU: never. */
static inline int dev_owns(const struct dev *d, const void *p)
{
    return d->memory && p && d->memory->owns(d, p);
}

/* Device to host. Complete when it returns, and so are the earlier calls into the queue in use. */
static inline void dev_read(struct dev *d, void *host, const void *p, size_t bytes)
{
    if (d->memory)
        d->memory->read(d, host, p, bytes);
    else
        memcpy(host, p, bytes);
}

/* Host to device. `host` may be changed when it returns. */
static inline void dev_write(struct dev *d, void *p, const void *host, size_t bytes)
{
    if (d->memory)
        d->memory->write(d, p, host, bytes);
    else
        memcpy(p, host, bytes);
}

/* Device to device: rows of `bytes` bytes; pitch: bytes from row to row. They must not overlap. */
static inline void dev_copy_rows(struct dev *d, void *to, size_t to_pitch, const void *from,
                                 size_t from_pitch, size_t bytes, int64_t rows)
{
    if (d->memory) {
        d->memory->copy(d, to, to_pitch, from, from_pitch, bytes, rows);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        memcpy((char *)to + (size_t)i * to_pitch, (const char *)from + (size_t)i * from_pitch, bytes);
}

static inline void dev_copy(struct dev *d, void *to, const void *from, size_t bytes)
{
    dev_copy_rows(d, to, bytes, from, bytes, bytes, 1);
}

/* Sets device memory to a byte. */
static inline void dev_fill(struct dev *d, void *p, int byte, size_t bytes)
{
    if (d->memory)
        d->memory->fill(d, p, byte, bytes);
    else
        memset(p, byte, bytes);
}

/* Waits until all queues are complete. */
static inline void dev_sync(struct dev *d)
{
    if (d->memory)
        d->memory->sync(d);
}

/* ---- queues ---- */
/* Later calls go into queue q. Returns the queue that was in use. */
static inline enum dev_queue dev_use(struct dev *d, enum dev_queue q)
{
    enum dev_queue before = d->queue;
    d->queue = d->memory ? q : DEV_COMPUTE;
    return before;
}

/* A mark in queue q, behind all its calls so far. 0 on a CPU. */
static inline int64_t dev_mark(struct dev *d, enum dev_queue q)
{
    return d->memory ? d->memory->mark(d, q) : 0;
}

/* Orders later calls into queue q behind the mark. The host does not wait. */
static inline void dev_wait(struct dev *d, enum dev_queue q, int64_t mark)
{
    if (d->memory && mark)
        d->memory->wait(d, q, mark);
}

/* Queue q for a library that works on the device's memory: a cudaStream_t. NULL on a CPU. */
static inline void *dev_stream(struct dev *d, enum dev_queue q)
{
    return d->memory ? d->memory->stream(d, q) : NULL;
}

/* Is all before the mark complete? */
static inline int dev_reached(struct dev *d, int64_t mark)
{
    return !d->memory || !mark || d->memory->reached(d, mark);
}

/* The host waits until all before the mark is complete. */
static inline void dev_await(struct dev *d, int64_t mark)
{
    if (d->memory && mark)
        d->memory->await(d, mark);
}

/* ---- host to device without waiting (ring.h) ---- */
/* Pinned host memory, which the device can read without the host. NULL: none left. */
void *dev_pin(struct dev *d, size_t bytes);
/* Frees it: no copy from it may be under way. */
void dev_unpin(struct dev *d, void *p, size_t bytes);
/* Copies from pinned memory, which must not be changed before a later mark is reached. */
static inline void dev_send(struct dev *d, void *p, const void *pinned, size_t bytes)
{
    if (d->memory)
        d->memory->send(d, p, pinned, bytes);
    else
        memcpy(p, pinned, bytes);
}

/* To fill a small piece of device memory p from the host: a host buffer of its size (p itself on a CPU),
 * which dev_unstage copies to p and frees. NULL: no memory. */
void *dev_stage(struct dev *d, void *p, size_t bytes);
/* host NULL: nothing. */
void dev_unstage(struct dev *d, void *p, void *host, size_t bytes);

#endif
