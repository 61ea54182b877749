/* device.c - memory of a CUDA device and the ways to it: one stream, a ring of pinned memory between it and the host.
 *
 *   host memory --memcpy--> slot of the pinned ring --async copy, event--> device
 *
 * A slot is used again when its event has passed, so the host's memory is free when a write returns, and writes run beside the ops before them.
 * Reads wait for the stream. The runtime is linked into the program and finds the driver when it is asked: without one the program
 * runs, and --device cuda is an error of one line. A failed call is noted, everything after it is not run, dev_check says what it was. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/priv.h"
#include "kernels/cuda/products.h"
#include "kernels/kernels.h"

#define SLOT_BYTES ((size_t)4 << 20)
#define SLOTS 4
#define LEND_BYTES ((size_t)32 << 20)    /* of the ring that op arguments are copied to; a quarter of it at a time */
#define ALIGN 256

struct slot { char *p; cudaEvent_t done; };
struct block { char *p; size_t bytes; enum mem_cat cat; };
struct cuda {
    int index;
    char name[16];
    cudaStream_t stream;
    struct kernel_ops ops;
    struct products *products;
    struct slot slot[SLOTS];
    int turn;
    char *lend;
    size_t lent;                         /* bytes used of the ring of lent arguments */
    struct block *block;                 /* what dev_alloc gave, in no order */
    int n_blocks, cap;
    char what[256];                      /* the first failure since dev_check; "": none */
};

static struct cuda *of(const struct dev *d) { return d->back; }

cudaStream_t cuda_stream(struct dev *d) { return of(d)->stream; }
struct products *cuda_products(struct dev *d) { return of(d)->products; }

int cuda_well(struct dev *d, cudaError_t rc, const char *what)
{
    struct cuda *c = of(d);
    if (rc != cudaSuccess && !c->what[0])
        snprintf(c->what, sizeof c->what, "%s: %s", what, cudaGetErrorString(rc));
    return rc == cudaSuccess;
}

static int failed(const struct dev *d) { return of(d)->what[0] != 0; }

/* ---- memory ---- */
static void *cuda_alloc(struct dev *d, enum mem_cat cat, size_t bytes)
{
    struct cuda *c = of(d);
    void *p = NULL;
    if (c->n_blocks == c->cap) {
        int cap = c->cap ? 2 * c->cap : 256;
        struct block *more = realloc(c->block, sizeof *more * (size_t)cap);
        if (!more)
            return NULL;
        c->block = more;
        c->cap = cap;
    }
    bytes = (bytes + ALIGN) / ALIGN * ALIGN;
    if (mem_made_to_fail(d->mem) || cudaMallocAsync(&p, bytes, c->stream) != cudaSuccess) {
        (void)cudaGetLastError();        /* no memory is no failure of the device */
        return NULL;
    }
    cuda_well(d, cudaMemsetAsync(p, 0, bytes, c->stream), "zeroing memory");
    mem_count(d->mem, cat, (int64_t)bytes);
    c->block[c->n_blocks++] = (struct block){ p, bytes, cat };
    return p;
}

static struct block *block_of(const struct cuda *c, const void *p)
{
    for (int i = c->n_blocks - 1; i >= 0; i--)
        if ((const char *)p >= c->block[i].p && (const char *)p < c->block[i].p + c->block[i].bytes)
            return &c->block[i];
    return NULL;
}

static void cuda_free(struct dev *d, void *p)
{
    struct cuda *c = of(d);
    struct block *b = block_of(c, p);
    if (!b)
        return;
    cuda_well(d, cudaFreeAsync(b->p, c->stream), "freeing memory");
    mem_count(d->mem, b->cat, -(int64_t)b->bytes);
    *b = c->block[--c->n_blocks];
}

static int cuda_owns(const struct dev *d, const void *p) { return block_of(of(d), p) != NULL; }

static size_t cuda_room(struct dev *d)
{
    size_t free_bytes = 0, all = 0;
    cuda_well(d, cudaMemGetInfo(&free_bytes, &all), "asking for free memory");
    return free_bytes;
}

/* ---- copies ---- */
/* The next slot of the ring, when the copy before has left it. */
static struct slot *next_slot(struct dev *d)
{
    struct slot *s = &of(d)->slot[of(d)->turn++ % SLOTS];
    return cuda_well(d, cudaEventSynchronize(s->done), "waiting for a copy") ? s : NULL;
}

static void cuda_write(struct dev *d, void *p, const void *host, size_t bytes)
{
    for (size_t at = 0; at < bytes && !failed(d); at += SLOT_BYTES) {
        size_t n = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        struct slot *s = next_slot(d);
        if (!s)
            return;
        memcpy(s->p, (const char *)host + at, n);
        cuda_well(d, cudaMemcpyAsync((char *)p + at, s->p, n, cudaMemcpyHostToDevice, of(d)->stream), "copying to the device");
        cuda_well(d, cudaEventRecord(s->done, of(d)->stream), "copying to the device");
    }
}

static int fetch_slot(struct dev *d, const struct slot *s, const char *p, size_t n)
{
    return cuda_well(d, cudaMemcpyAsync(s->p, p, n, cudaMemcpyDeviceToHost, of(d)->stream), "copying from the device") &&
           cuda_well(d, cudaEventRecord(s->done, of(d)->stream), "copying from the device");
}

/* Two pieces are under way at a time: one is copied out of its slot while the next one arrives. */
static void cuda_read(struct dev *d, void *host, const void *p, size_t bytes)
{
    struct slot *before = NULL;
    size_t done = 0, n_before = 0;
    for (size_t at = 0; (at < bytes || before) && !failed(d);) {
        size_t n = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        struct slot *s = n ? next_slot(d) : NULL;
        if (s && !fetch_slot(d, s, (const char *)p + at, n))
            return;
        at += n;
        if (before) {
            if (!cuda_well(d, cudaEventSynchronize(before->done), "copying from the device"))
                return;
            memcpy((char *)host + done, before->p, n_before);
            done += n_before;
        }
        before = s;
        n_before = n;
    }
}

static void cuda_copy(struct dev *d, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes, int64_t rows)
{
    if (!bytes || rows < 1 || failed(d))
        return;
    if (rows == 1)
        cuda_well(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, of(d)->stream), "copying on the device");
    else
        cuda_well(d, cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, (size_t)rows, cudaMemcpyDeviceToDevice, of(d)->stream), "copying rows");
}

static void cuda_fill(struct dev *d, void *p, int byte, size_t bytes)
{
    if (bytes && !failed(d))
        cuda_well(d, cudaMemsetAsync(p, byte, bytes, of(d)->stream), "filling memory");
}

static void cuda_sync(struct dev *d) { cuda_well(d, cudaStreamSynchronize(of(d)->stream), "waiting for the device"); }

void *cuda_lend_room(struct dev *d, size_t bytes)
{
    struct cuda *c = of(d);
    size_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (room > LEND_BYTES / 4) {
        cuda_well(d, cudaErrorMemoryAllocation, "arguments of more than 8 MiB: use fewer rows at a time");
        return NULL;
    }
    if (c->lent + room > LEND_BYTES)
        c->lent = 0;                     /* the stream's order keeps what ops before still read */
    c->lent += room;
    return c->lend + c->lent - room;
}

const void *cuda_lend(struct dev *d, const void *host, size_t bytes)
{
    if (!host || block_of(of(d), host))
        return host;
    void *p = cuda_lend_room(d, bytes);
    if (p)
        cuda_write(d, p, host, bytes);
    return p;
}

static int cuda_check(struct dev *d, struct err *e)
{
    struct cuda *c = of(d);
    char text[sizeof c->what];
    cuda_well(d, cudaPeekAtLastError(), "an op on the device");
    if (!c->what[0])
        return products_check(c->products, e);
    memcpy(text, c->what, sizeof text);
    (void)cudaGetLastError();
    c->what[0] = 0;
    return err_set(e, ERR_DEVICE, "CUDA device %d: %s", c->index, text);
}

/* ---- life ---- */
static void cuda_close(struct dev *d)
{
    struct cuda *c = of(d);
    if (!c)
        return;
    if (c->stream)
        cudaStreamSynchronize(c->stream);
    products_close(c->products);
    while (c->n_blocks)
        cuda_free(d, c->block[c->n_blocks - 1].p);
    for (int i = 0; i < SLOTS; i++) {
        if (c->slot[i].done)
            cudaEventDestroy(c->slot[i].done);
        cudaFreeHost(c->slot[i].p);
    }
    cudaFree(c->lend);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    free(c->block);
    free(c);
}

static const struct dev_memory cuda_memory = {
    .alloc = cuda_alloc, .free = cuda_free, .owns = cuda_owns, .read = cuda_read, .write = cuda_write, .copy = cuda_copy,
    .fill = cuda_fill,   .sync = cuda_sync, .room = cuda_room, .check = cuda_check, .close = cuda_close,
    .numerics = products_numerics,
};

/* The GPU of this rank: ranks of a machine take them in turn, as their launcher counts them. */
static int choose_gpu(int n)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_LOCAL_RANK", "SLURM_LOCALID" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *rank = getenv(names[i]);
        if (rank && *rank)
            return atoi(rank) % n;
    }
    return 0;
}

static int open_ring(struct dev *d, struct cuda *c)
{
    int ok = cuda_well(d, cudaMalloc((void **)&c->lend, LEND_BYTES), "memory for arguments");
    for (int i = 0; i < SLOTS; i++)
        ok = ok && cuda_well(d, cudaMallocHost((void **)&c->slot[i].p, SLOT_BYTES), "pinned memory") &&
             cuda_well(d, cudaEventCreateWithFlags(&c->slot[i].done, cudaEventDisableTiming), "an event");
    return ok;
}

/* The pool keeps what is freed: the same sizes come again every step. */
static int keep_memory(struct dev *d, struct cuda *c)
{
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;
    return cuda_well(d, cudaDeviceGetDefaultMemPool(&pool, c->index), "the memory pool") &&
           cuda_well(d, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "the memory pool");
}

void *cuda_stream_of(struct dev *d) { return d->memory == &cuda_memory ? of(d)->stream : NULL; }

int cuda_is_built(void) { return 1; }

int cuda_open(struct dev *d, struct err *e)
{
    struct cudaDeviceProp prop;
    struct cuda *c;
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess || n < 1)
        return err_set(e, ERR_DEVICE, "no GPU here (%s): use --device cpu", rc != cudaSuccess ? cudaGetErrorString(rc) : "none found");
    if (!(c = calloc(1, sizeof *c)))
        return err_set(e, ERR_MEMORY, "no memory for the device's table");
    d->back = c;
    d->memory = &cuda_memory;
    c->ops = *cuda_kernels();
    cuda_choose_attn(&c->ops);
    d->ops = &c->ops;
    c->index = choose_gpu(n);
    int wrong = products_open(&c->products, d, &c->ops, e);
    if (wrong < 0)
        return wrong;
    if (cuda_well(d, cudaSetDevice(c->index), "choosing the GPU") && cuda_well(d, cudaGetDeviceProperties(&prop, c->index), "asking the GPU") &&
        cuda_well(d, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "a stream") && keep_memory(d, c) && open_ring(d, c)) {
        snprintf(c->name, sizeof c->name, "sm_%d%d", prop.major, prop.minor);
        d->isa = c->name;
        wrong = products_ready(d, e);
    }
    return wrong < 0 ? wrong : cuda_check(d, e);
}
