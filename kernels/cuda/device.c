/* device.c - memory of a CUDA device: a stream for each queue, copies through a ring of pinned memory.
 *
 *   host memory --memcpy--> slot of the pinned ring --async copy, event--> device
 *
 * A slot is used again when its event has passed. So the host's memory is free when a write returns, and
 * writes run beside earlier ops. Reads wait for the stream. A mark is the n-th event of its queue; a queue
 * has MARKS events, used in turn. A wait for a mark whose event was used again waits for the later mark:
 * for more than necessary, never for less. The runtime is linked into the program and finds the driver
 * when it is first called: without a driver the program runs, and --device cuda is an error of one line.
 * After a failed call nothing more is run; dev_check reports the call. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda.h"
#include "base/clock.h"
#include "base/env.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/priv.h"
#include "kernels/cuda/products.h"
#include "kernels/kernels.h"

#define SLOT_BYTES ((size_t)4 << 20)
#define SLOTS 4
#define MARKS 64 /* of a queue */
/* the host polls an event this long before it yields the processor */
#define SPIN_NS 50000
#define LOOK_NS 1000000 /* between two calls of dev_idle while the host waits */
/* of the ring that op arguments are copied to; one upload takes a quarter at most */
#define UPLOAD_BYTES ((size_t)32 << 20)
#define RECENT 8                      /* uploads of a queue that may be used again, */
#define RECENT_MOST ((size_t)1 << 20) /* if no larger */
#define ALIGN 256

struct slot {
    char *p;
    cudaEvent_t done;
};
struct block {
    char *p;
    size_t bytes;
    enum mem_cat cat;
};
/* Arguments on the device: address, bytes, when (struct queue's `uploaded` then), the host's copy (NULL:
 * none). */
struct upload {
    char *p;
    size_t bytes;
    uint64_t at;
    void *copy;
};
struct queue {
    cudaStream_t stream;
    cudaEvent_t mark[MARKS];
    int64_t n_marks;
    char *uploads;
    uint64_t uploaded; /* bytes ever taken of the ring `uploads` */
    struct upload recent[RECENT];
    unsigned turn; /* the entry of `recent` that is replaced next */
};
struct cuda {
    int index;
    char name[16], identity[64];
    struct queue queue[DEV_QUEUES];
    struct kernel_ops ops;
    struct products *products;
    struct slot slot[SLOTS];
    int turn;
    struct block *block; /* what dev_alloc returned, in no order */
    int n_blocks, cap;
    int code;       /* of the first failure since dev_check, and */
    char what[256]; /* its text; "": none */
};

static struct cuda *of(const struct dev *d) { return d->back; }

static struct queue *in_use(struct dev *d) { return &of(d)->queue[d->queue]; }

cudaStream_t cuda_stream(struct dev *d) { return in_use(d)->stream; }
struct products *cuda_products(struct dev *d) { return of(d)->products; }

int cuda_well(struct dev *d, cudaError_t rc, const char *what)
{
    struct cuda *c = of(d);
    if (rc != cudaSuccess && !c->what[0]) {
        c->code = ERR_DEVICE;
        snprintf(c->what, sizeof c->what, "CUDA device %d: %s: %s", c->index, what, cudaGetErrorString(rc));
    }
    return rc == cudaSuccess;
}

int cuda_failed(const struct dev *d) { return of(d)->what[0] != 0; }

/* ---- waiting ---- */
/* Waiting still makes sense. */
static int look(struct dev *d)
{
    struct cuda *c = of(d);
    struct err e;
    int rc = d->idle.look ? d->idle.look(d->idle.arg, &e) : 0;
    if (rc < 0 && !c->what[0]) {
        c->code = e.code;
        snprintf(c->what, sizeof c->what, "%.255s", e.text);
    }
    return rc >= 0;
}

/* The host waits for an event: 1 when it has passed. */
static int await(struct dev *d, cudaEvent_t event, const char *what)
{
    int64_t began = clock_ns(), looked = began;
    cudaError_t rc;
    if (!d->idle.look)
        return cuda_well(d, cudaEventSynchronize(event), what);
    while ((rc = cudaEventQuery(event)) == cudaErrorNotReady) {
        int64_t now = clock_ns();
        (void)cudaGetLastError(); /* not ready is no failure */
        if (now - began > SPIN_NS)
            sched_yield();
        if (now - looked > LOOK_NS && !look(d))
            return 0;
        looked = now - looked > LOOK_NS ? now : looked;
    }
    return cuda_well(d, rc, what);
}

/* Mark n of queue q is n * DEV_QUEUES + q. */
static cudaEvent_t event_of(struct cuda *c, int64_t mark)
{
    return c->queue[mark % DEV_QUEUES].mark[mark / DEV_QUEUES % MARKS];
}

static int64_t cuda_mark(struct dev *d, enum dev_queue q)
{
    struct cuda *c = of(d);
    int64_t mark = ++c->queue[q].n_marks * DEV_QUEUES + q;
    cuda_well(d, cudaEventRecord(event_of(c, mark), c->queue[q].stream), "marking a place");
    return mark;
}

static void cuda_wait(struct dev *d, enum dev_queue q, int64_t mark)
{
    cuda_well(d, cudaStreamWaitEvent(of(d)->queue[q].stream, event_of(of(d), mark), 0), "waiting for a mark");
}

static int cuda_reached(struct dev *d, int64_t mark)
{
    cudaError_t rc = cudaEventQuery(event_of(of(d), mark));
    if (rc == cudaErrorNotReady)
        (void)cudaGetLastError();
    return rc != cudaErrorNotReady; /* a failure is noted elsewhere */
}

static void cuda_await(struct dev *d, int64_t mark)
{
    if (!cuda_failed(d))
        await(d, event_of(of(d), mark), "waiting for a mark");
}

static void cuda_sync(struct dev *d)
{
    for (int q = 0; q < DEV_QUEUES && !cuda_failed(d); q++)
        if (of(d)->queue[q].stream)
            await(d, event_of(of(d), cuda_mark(d, (enum dev_queue)q)), "waiting for the device");
}

static void *cuda_stream_of(struct dev *d, enum dev_queue q) { return of(d)->queue[q].stream; }

static const char *cuda_identity(const struct dev *d) { return of(d)->identity; }

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
    if (mem_alloc_fault(d->mem) || cudaMallocAsync(&p, bytes, cuda_stream(d)) != cudaSuccess) {
        (void)cudaGetLastError(); /* no memory is no failure of the device */
        return NULL;
    }
    cuda_well(d, cudaMemsetAsync(p, 0, bytes, cuda_stream(d)), "zeroing memory");
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
    cuda_well(d, cudaFreeAsync(b->p, cuda_stream(d)), "freeing memory");
    mem_count(d->mem, b->cat, -(int64_t)b->bytes);
    *b = c->block[--c->n_blocks];
}

static int cuda_owns(const struct dev *d, const void *p) { return block_of(of(d), p) != NULL; }

static size_t cuda_free_bytes(struct dev *d)
{
    cudaMemPool_t pool;
    uint64_t kept = 0, used = 0; /* of the pool: what is kept and not used can be had, too */
    size_t free_bytes = 0, all = 0;
    if (cuda_well(d, cudaMemGetInfo(&free_bytes, &all), "asking for free memory") &&
        cuda_well(d, cudaDeviceGetDefaultMemPool(&pool, of(d)->index), "the memory pool") &&
        cuda_well(d, cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &kept),
                  "the memory pool"))
        cuda_well(d, cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used), "the memory pool");
    return free_bytes + (size_t)(kept - used);
}

/* ---- copies ---- */
/* The next slot of the ring, when the copy before has left it. */
static struct slot *next_slot(struct dev *d)
{
    struct slot *s = &of(d)->slot[of(d)->turn++ % SLOTS];
    return await(d, s->done, "waiting for a copy") ? s : NULL;
}

static void cuda_write(struct dev *d, void *p, const void *host, size_t bytes)
{
    for (size_t at = 0; at < bytes && !cuda_failed(d); at += SLOT_BYTES) {
        size_t n = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        struct slot *s = next_slot(d);
        if (!s)
            return;
        memcpy(s->p, (const char *)host + at, n);
        cuda_well(d, cudaMemcpyAsync((char *)p + at, s->p, n, cudaMemcpyHostToDevice, cuda_stream(d)),
                  "copying to the device");
        cuda_well(d, cudaEventRecord(s->done, cuda_stream(d)), "copying to the device");
    }
}

static void *cuda_pin(struct dev *d, size_t bytes)
{
    void *p = NULL;
    if (mem_alloc_fault(d->mem) || cudaMallocHost(&p, bytes) != cudaSuccess) {
        (void)cudaGetLastError(); /* no memory is no failure of the device */
        return NULL;
    }
    mem_count(d->mem, MEM_WORK, (int64_t)bytes);
    return p;
}

static void cuda_unpin(struct dev *d, void *p, size_t bytes)
{
    cuda_well(d, cudaFreeHost(p), "giving pinned memory back");
    mem_count(d->mem, MEM_WORK, -(int64_t)bytes);
}

static void cuda_send(struct dev *d, void *p, const void *pinned, size_t bytes)
{
    if (!cuda_failed(d))
        cuda_well(d, cudaMemcpyAsync(p, pinned, bytes, cudaMemcpyHostToDevice, cuda_stream(d)),
                  "sending to the device");
}

static int fetch_slot(struct dev *d, const struct slot *s, const char *p, size_t n)
{
    return cuda_well(d, cudaMemcpyAsync(s->p, p, n, cudaMemcpyDeviceToHost, cuda_stream(d)),
                     "copying from the device") &&
           cuda_well(d, cudaEventRecord(s->done, cuda_stream(d)), "copying from the device");
}

/* Two pieces are under way at a time: one is copied out of its slot while the next one arrives. */
static void cuda_read(struct dev *d, void *host, const void *p, size_t bytes)
{
    struct slot *before = NULL;
    size_t done = 0, n_before = 0;
    for (size_t at = 0; (at < bytes || before) && !cuda_failed(d);) {
        size_t n = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        struct slot *s = n ? next_slot(d) : NULL;
        if (s && !fetch_slot(d, s, (const char *)p + at, n))
            return;
        at += n;
        if (before) {
            if (!await(d, before->done, "copying from the device"))
                return;
            memcpy((char *)host + done, before->p, n_before);
            done += n_before;
        }
        before = s;
        n_before = n;
    }
}

static void cuda_copy(struct dev *d, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                      size_t bytes, int64_t rows)
{
    if (!bytes || rows < 1 || cuda_failed(d))
        return;
    if (rows == 1)
        cuda_well(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream(d)),
                  "copying on the device");
    else
        cuda_well(d,
                  cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, (size_t)rows,
                                    cudaMemcpyDeviceToDevice, cuda_stream(d)),
                  "copying rows");
}

static void cuda_fill(struct dev *d, void *p, int byte, size_t bytes)
{
    if (bytes && !cuda_failed(d))
        cuda_well(d, cudaMemsetAsync(p, byte, bytes, cuda_stream(d)), "filling memory");
}

static char *upload_space(struct dev *d, size_t bytes)
{
    struct queue *c = in_use(d);
    const uint64_t span = (bytes + ALIGN - 1) / ALIGN * ALIGN, at = c->uploaded % UPLOAD_BYTES;
    if (span > UPLOAD_BYTES / 4 || !c->uploads) {
        cuda_well(d, cudaErrorMemoryAllocation,
                  c->uploads ? "arguments of more than 8 MiB: use fewer rows at a time"
                             : "the copy queue takes no ops");
        return NULL;
    }
    if (at + span > UPLOAD_BYTES)
        c->uploaded += UPLOAD_BYTES - at; /* the queue's order keeps what its ops before still read */
    c->uploaded += span;
    return c->uploads + (c->uploaded - span) % UPLOAD_BYTES;
}

/* The same bytes, uploaded so recently that they will not be overwritten for a while. */
static const struct upload *uploaded_recently(const struct queue *c, const void *host, size_t bytes)
{
    for (int i = 0; i < RECENT; i++) {
        const struct upload *l = &c->recent[i];
        if (l->copy && l->bytes == bytes && c->uploaded - l->at < UPLOAD_BYTES / 2 &&
            !memcmp(l->copy, host, bytes))
            return l;
    }
    return NULL;
}

static void remember(struct queue *c, char *p, const void *host, size_t bytes)
{
    struct upload *l = &c->recent[c->turn % RECENT];
    void *copy = bytes && bytes <= RECENT_MOST ? malloc(bytes) : NULL;
    if (!copy)
        return;
    memcpy(copy, host, bytes);
    free(l->copy);
    *l = (struct upload){ p, bytes, c->uploaded - (bytes + ALIGN - 1) / ALIGN * ALIGN, copy };
    c->turn++;
}

static void forget_uploads(struct queue *c)
{
    for (int i = 0; i < RECENT; i++) {
        free(c->recent[i].copy);
        c->recent[i].copy = NULL;
    }
}

const void *cuda_upload(struct dev *d, const void *host, size_t bytes)
{
    if (!host || block_of(of(d), host))
        return host;
    const struct upload *before = uploaded_recently(in_use(d), host, bytes);
    if (before)
        return before->p;
    char *p = upload_space(d, bytes);
    if (p) {
        cuda_write(d, p, host, bytes);
        remember(in_use(d), p, host, bytes);
    }
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
    for (int q = 0; q < DEV_QUEUES; q++)
        forget_uploads(&c->queue[q]); /* some may not have arrived */
    return err_set(e, c->code, "%s", text);
}

/* ---- life ---- */
static void close_queue(struct queue *q)
{
    for (int i = 0; i < MARKS; i++)
        if (q->mark[i])
            cudaEventDestroy(q->mark[i]);
    forget_uploads(q);
    cudaFree(q->uploads);
    if (q->stream)
        cudaStreamDestroy(q->stream);
}

/* has_uploads: the queue runs ops; the copy queue runs none. */
static int open_queue(struct dev *d, struct queue *q, int has_uploads)
{
    int ok = cuda_well(d, cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking), "a stream") &&
             (!has_uploads ||
              cuda_well(d, cudaMalloc((void **)&q->uploads, UPLOAD_BYTES), "memory for arguments"));
    for (int i = 0; i < MARKS && ok; i++)
        ok = cuda_well(d, cudaEventCreateWithFlags(&q->mark[i], cudaEventDisableTiming), "an event");
    return ok;
}

static void cuda_close(struct dev *d)
{
    struct cuda *c = of(d);
    if (!c)
        return;
    d->idle = (struct dev_idle){ 0 };
    for (int q = 0; q < DEV_QUEUES; q++)
        if (c->queue[q].stream)
            cudaStreamSynchronize(c->queue[q].stream);
    products_close(c->products);
    while (c->n_blocks)
        cuda_free(d, c->block[c->n_blocks - 1].p);
    for (int i = 0; i < SLOTS; i++) {
        if (c->slot[i].done)
            cudaEventDestroy(c->slot[i].done);
        cudaFreeHost(c->slot[i].p);
    }
    for (int q = 0; q < DEV_QUEUES; q++)
        close_queue(&c->queue[q]);
    free(c->block);
    free(c);
}

static const struct dev_memory cuda_memory = {
    .alloc = cuda_alloc,
    .free = cuda_free,
    .owns = cuda_owns,
    .read = cuda_read,
    .write = cuda_write,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .sync = cuda_sync,
    .free_bytes = cuda_free_bytes,
    .check = cuda_check,
    .close = cuda_close,
    .mark = cuda_mark,
    .wait = cuda_wait,
    .reached = cuda_reached,
    .stream = cuda_stream_of,
    .identity = cuda_identity,
    .await = cuda_await,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .send = cuda_send,
    .numerics = products_numerics,
};

/* The GPU of this rank: ranks of a machine take them in turn, as their launcher counts them. */
static int choose_gpu(int n)
{
    static const enum env names[] = { ENV_OMPI_COMM_WORLD_LOCAL_RANK, ENV_PMIX_LOCAL_RANK,
                                      ENV_SLURM_LOCALID };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *rank = env_get(names[i]);
        if (rank)
            return atoi(rank) % n;
    }
    return 0;
}

static int open_ring(struct dev *d, struct cuda *c)
{
    int ok = 1;
    for (int q = 0; q < DEV_QUEUES && ok; q++)
        ok = open_queue(d, &c->queue[q], q != DEV_COPY);
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
           cuda_well(d, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all),
                     "the memory pool");
}

int cuda_is_built(void) { return 1; }

int cuda_open(struct dev *d, struct err *e)
{
    struct cudaDeviceProp prop;
    struct cuda *c;
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess || n < 1)
        return err_set(e, ERR_DEVICE, "no GPU here (%s): use --device cpu",
                       rc != cudaSuccess ? cudaGetErrorString(rc) : "none found");
    if (!(c = calloc(1, sizeof *c)))
        return err_set(e, ERR_MEMORY, "no memory for the device's table");
    d->back = c;
    d->memory = &cuda_memory;
    c->ops = *cuda_kernels();
    cuda_choose_rows(&c->ops);
    cuda_choose_attn(&c->ops);
    d->ops = &c->ops;
    c->index = choose_gpu(n);
    int wrong = products_open(&c->products, d, &c->ops, e);
    if (wrong < 0)
        return wrong;
    if (cuda_well(d, cudaSetDevice(c->index), "choosing the GPU") &&
        cuda_well(d, cudaGetDeviceProperties(&prop, c->index), "asking the GPU") && keep_memory(d, c) &&
        open_ring(d, c)) {
        snprintf(c->name, sizeof c->name, "sm_%d%d", prop.major, prop.minor);
        d->isa = c->name;
        for (int i = 0; i < 16; i++)
            snprintf(c->identity + 2 * i, 3, "%02x", (unsigned char)prop.uuid.bytes[i]);
        wrong = products_ready(d, e);
    }
    return wrong < 0 ? wrong : cuda_check(d, e);
}
