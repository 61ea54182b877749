/* dev.h - a device: where memory lies, who computes, which op table serves it.
 *
 * Two kinds of memory. Device memory comes from dev_alloc, dev_scratch and, where a device has its own,
 * comm_alloc: ops read and write it, everybody else goes through dev_read, dev_write, dev_copy, dev_fill.
 * Host memory is all the rest: what an op gets by a pointer to a struct (leaves, attention's sequences and
 * their lists of pages, optimizer settings, exact sums), lists of matrices, and token ids. An op has read
 * its host arguments when it returns. On a CPU both kinds are one, the copies are memcpy, and dev_stage
 * costs nothing.
 *
 * A device may run behind. It has queues: ops, copies, allocations and frees go into the one in use and
 * happen there in the order of their calls; between the queues only marks order anything. The second one is
 * for what goes between ranks, the third for what comes from files (ring.h). What was called is over after
 * dev_read (that queue) or dev_sync (all). On a CPU everything is over when it returns, and marks cost
 * nothing. */
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

/* Called now and then while the host waits for the device; below 0: waiting makes no sense any more, the
 * device fails with that error. */
struct dev_idle {
    int (*look)(void *arg, struct err *e);
    void *arg;
};

/* A device whose memory the host cannot reach. An operation that fails leaves word for dev_check. */
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
    /* bytes that dev_alloc may still give */
    size_t (*room)(struct dev *d);
    int (*check)(struct dev *d, struct err *e);
    void (*numerics)(struct dev *d); /* d->fast was set; may be NULL */
    int64_t (*mark)(struct dev *d, enum dev_queue q);
    void (*wait)(struct dev *d, enum dev_queue q, int64_t mark);
    int (*reached)(struct dev *d, int64_t mark);
    void (*await)(struct dev *d, int64_t mark);
    /* memory of the host that the device reads by itself; NULL: none left */
    void *(*pin)(struct dev *d, size_t bytes);
    void (*unpin)(struct dev *d, void *p, size_t bytes);
    void (*send)(struct dev *d, void *p, const void *pinned, size_t bytes);
    void *(*stream)(struct dev *d, enum dev_queue q);
    /* of the GPU, different for each in the world */
    const char *(*identity)(const struct dev *d);
    void (*close)(struct dev *d);
};

struct dev {
    /* the op table of this device and CPU class (kernels.h)                  */
    const struct kernel_ops *ops;
    /* "cpu" | "cuda" | a library's                                            */
    const char *kind;
    /* "avx512bf16" | "avx512" | "avx2" | "portable" | "sm_90" ...            */
    const char *isa;
    /* of the host                                                            */
    struct pool *pool;
    /* borrowed: the rank's counters                                          */
    struct mem *mem;
    /* scratch of the implementation                                          */
    void *priv;
    /* borrowed; may be NULL (base/trace.h)                                   */
    struct trace *trace;
    /* NULL: the host's                                                       */
    const struct dev_memory *memory;
    /* what stands behind memory                                              */
    void *back;
    /* in use (dev_use)                                                       */
    enum dev_queue queue;
    /* may be empty                                                           */
    struct dev_idle idle;
    /* the CPU beside it, for ops on host memory; a CPU's is itself           */
    struct dev *host;
    /* --numerics fast: products in any order, by a library where that is faster */
    int fast;
    /* who multiplies, for a line of the log; "": nothing to say               */
    char note[240];
};

/* kind: "cpu" or "cuda" (ERR_DEVICE when built without or absent). threads >= 1. The CPU class is the best
 * this machine has; the environment variable SHARDLINE_ISA=portable|avx2|avx512|avx512bf16 forces a lower
 * one (ERR_DEVICE: not available). SHARDLINE_DEVICE=FILE, for tests: cuda is the device in this shared
 * library (dev_library.h). Runs the start-up self-tests: denormals are alive (1e-39f / 2 != 0), the bf16
 * dot instruction has the contract's order. */
int dev_open(struct dev **out, const char *kind, int threads, struct mem *mem, struct err *e);
void dev_close(struct dev *d);
/* Other threads than it was opened with: MPI must start before there are any. */
int dev_threads(struct dev *d, int threads, struct err *e);
/* Which numerics the ops are called for from now on (weights packed before are packed again). A device is
 * opened for exact. */
void dev_numerics(struct dev *d, int fast);
/* What this program was built with, for --version: "cpu" or "cpu cuda". */
const char *dev_kinds(void);

/* zeroed, as mem_alloc; NULL: none left  */
void *dev_alloc(struct dev *d, enum mem_cat cat, size_t bytes);
void dev_free(struct dev *d, void *p);
/* Scratch for one use by an op or its caller, grown and kept: slot 0..7 of the queue in use, valid there
 * until the next call with the same slot.
 * NULL: no memory. Slots 0..3 belong to the ops themselves, 4..7 to callers. */
void *dev_scratch(struct dev *d, int slot, size_t bytes);
/* Ops return nothing: one that got no scratch gives NaN, and leaves word here. ERR_MEMORY when that happened
 * since the last call, ERR_DEVICE when the device failed. */
int dev_check(struct dev *d, struct err *e);

/* ---- the ways between host and device ---- */
static inline int dev_owns(const struct dev *d, const void *p)
{
    return d->memory && p && d->memory->owns(d, p);
}

/* Device to host; over when it returns, and so is all that was called before. */
static inline void dev_read(struct dev *d, void *host, const void *p, size_t bytes)
{
    if (d->memory)
        d->memory->read(d, host, p, bytes);
    else
        memcpy(host, p, bytes);
}

/* Host to device; host may be used again when it returns. */
static inline void dev_write(struct dev *d, void *p, const void *host, size_t bytes)
{
    if (d->memory)
        d->memory->write(d, p, host, bytes);
    else
        memcpy(p, host, bytes);
}

/* Rows of so many bytes inside of the device; pitch: bytes from row to row. No overlap. */
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

static inline void dev_fill(struct dev *d, void *p, int byte, size_t bytes)
{
    if (d->memory)
        d->memory->fill(d, p, byte, bytes);
    else
        memset(p, byte, bytes);
}

static inline void dev_sync(struct dev *d)
{
    if (d->memory)
        d->memory->sync(d);
}

/* ---- queues ---- */
/* What is called from now on goes into queue q. Returns the one that was in use. */
static inline enum dev_queue dev_use(struct dev *d, enum dev_queue q)
{
    enum dev_queue before = d->queue;
    d->queue = d->memory ? q : DEV_COMPUTE;
    return before;
}

/* A place in queue q: behind all that it was given so far. */
static inline int64_t dev_mark(struct dev *d, enum dev_queue q)
{
    return d->memory ? d->memory->mark(d, q) : 0;
}

/* What queue q is given from now on happens behind the mark. The host does not wait. */
static inline void dev_wait(struct dev *d, enum dev_queue q, int64_t mark)
{
    if (d->memory && mark)
        d->memory->wait(d, q, mark);
}

/* Queue q for libraries that work on the device's memory: a cudaStream_t; NULL on a CPU. */
static inline void *dev_stream(struct dev *d, enum dev_queue q)
{
    return d->memory ? d->memory->stream(d, q) : NULL;
}

/* Has the device come past the mark? */
static inline int dev_reached(struct dev *d, int64_t mark)
{
    return !d->memory || !mark || d->memory->reached(d, mark);
}

/* The host waits until the device has come past the mark. */
static inline void dev_await(struct dev *d, int64_t mark)
{
    if (d->memory && mark)
        d->memory->await(d, mark);
}

/* ---- host to device without waiting (ring.h) ---- */
/* Memory of the host that the device reads by itself. NULL: none left. */
void *dev_pin(struct dev *d, size_t bytes);
void dev_unpin(struct dev *d, void *p, size_t bytes);
/* From such memory, which is not to be changed before a mark behind it is reached. */
static inline void dev_send(struct dev *d, void *p, const void *pinned, size_t bytes)
{
    if (d->memory)
        d->memory->send(d, p, pinned, bytes);
    else
        memcpy(p, pinned, bytes);
}

/* To fill a small piece of device memory p from the host: a place for the bytes (p itself on a CPU), which
 * dev_unstage brings there and gives back.
 * NULL: no memory. host == NULL in dev_unstage: nothing. */
void *dev_stage(struct dev *d, void *p, size_t bytes);
void dev_unstage(struct dev *d, void *p, void *host, size_t bytes);

#endif
