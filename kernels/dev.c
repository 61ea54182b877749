/* dev.c - see dev.h. */
#include "kernels/dev.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/test_hooks.h"
#include "kernels/cpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/dev_library.h"
#include "kernels/gemm/read_ahead.h"
#include "kernels/kernels.h"

#define SLOTS 8
#define MORE ((size_t)1 << 20)
struct dev_priv {
    struct kernel_ops ops; /* the table of this CPU class, by cpu_choose */
    struct scratch {
        void *p;
        size_t bytes;
    } scratch[DEV_QUEUES][SLOTS];
    size_t missing; /* bytes of the largest scratch that could not be allocated since dev_check */
};

static void drop_scratch(struct dev *d)
{
    struct dev_priv *p = d->priv;
    for (int q = 0; q < DEV_QUEUES; q++)
        for (int i = 0; i < SLOTS; i++)
            dev_free(d, p->scratch[q][i].p);
    memset(p->scratch, 0, sizeof p->scratch);
}

/* An empty device, which the kind's open function fills in. */
static struct dev *new_dev(const char *kind, struct mem *mem)
{
    struct dev *d = calloc(1, sizeof *d);
    if (d && !(d->priv = calloc(1, sizeof(struct dev_priv)))) {
        free(d);
        return NULL;
    }
    if (d) {
        d->kind = kind;
        d->mem = mem;
    }
    return d;
}

static int open_pool(struct dev *d, int threads, struct err *e)
{
    int rc = pool_open(&d->pool, threads, e);
    if (rc >= 0)
        d->ahead = read_ahead_open(d->pool);
    return rc;
}

static void close_pool(struct dev *d)
{
    pool_close(d->pool);
    read_ahead_close(d->ahead);
    d->pool = NULL;
    d->ahead = NULL;
}

static int open_cpu(struct dev *d, int threads, struct err *e)
{
    struct dev_priv *p = d->priv;
    int rc = 0;
    d->host = d;
    TRY(open_pool(d, threads, e));
    d->ops = &p->ops;
    TRY(cpu_choose(d, &p->ops, &d->isa, e));
    drop_scratch(d); /* the self-tests' */
out:
    return rc;
}

/* Opens the device of a shared library (dev_library.h). The library stays loaded. */
static int open_library(struct dev *d, const char *path, struct err *e)
{
    static const struct dev_program program = {
        .err_set = err_set, .mem_alloc = mem_alloc, .mem_free = mem_free, .panels_bytes = panels_bytes
    };
    int (*open)(struct dev * d, const struct dev_program *program, struct err *e);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return err_set(e, ERR_DEVICE, "SHARDLINE_DEVICE: %s: unset it", dlerror());

    *(void **)&open = dlsym(library, "dev_library_open");
    if (!open)
        return err_set(e, ERR_DEVICE, "SHARDLINE_DEVICE: %s has no dev_library_open: unset it", path);
    return open(d, &program, e);
}

/* A device with memory of its own, beside the CPU. cuda_open or the library fills in ops, isa, memory and
 * back. */
static int open_beside(struct dev *d, int threads, struct err *e)
{
    const char *library = hook_device_library();
    int rc = dev_open(&d->host, "cpu", threads, d->mem, e);
    if (rc < 0)
        return rc;
    d->pool = d->host->pool;
    return library ? open_library(d, library, e) : cuda_open(d, e);
}

int dev_open(struct dev **out, const char *kind, int threads, struct mem *mem, struct err *e)
{
    int cuda = !strcmp(kind, "cuda"), rc;
    *out = NULL;
    if (!cuda && strcmp(kind, "cpu"))
        return err_set(e, ERR_USAGE, "device %s is not known: use cpu or cuda", kind);
    if (threads < 1)
        return err_set(e, ERR_USAGE, "%d threads: at least 1 is needed", threads);
    struct dev *d = new_dev(cuda ? "cuda" : "cpu", mem);
    if (!d)
        return err_set(e, ERR_MEMORY, "no memory for the device's table");
    TRY(cuda ? open_beside(d, threads, e) : open_cpu(d, threads, e));
    *out = d;
    d = NULL;
out:
    dev_close(d);
    return rc;
}

void dev_close(struct dev *d)
{
    if (!d)
        return;
    if (d->back)
        dev_sync(d); /* no queue uses its scratch any more */
    drop_scratch(d);
    if (d->memory)
        d->memory->close(d);
    if (d->host != d)
        dev_close(d->host);
    else
        close_pool(d);
    free(d->priv);
    free(d);
}

int dev_threads(struct dev *d, int threads, struct err *e)
{
    close_pool(d->host);
    int rc = open_pool(d->host, threads, e);
    d->pool = d->host->pool;
    return rc;
}

void dev_numerics(struct dev *d, int fast)
{
    d->fast = fast;
    if (d->memory && d->memory->numerics)
        d->memory->numerics(d);
}

const char *dev_kinds(void) { return cuda_is_built() ? "cpu cuda" : "cpu"; }

void *dev_alloc(struct dev *d, enum mem_cat cat, size_t bytes)
{
    return d->memory ? d->memory->alloc(d, cat, bytes) : mem_alloc(d->mem, cat, bytes);
}

void dev_free(struct dev *d, void *p)
{
    if (!d->memory)
        mem_free(d->mem, p);
    else if (p)
        d->memory->free(d, p);
}

void *dev_scratch(struct dev *d, int slot, size_t bytes)
{
    struct dev_priv *p = d->priv;
    struct scratch *s = &p->scratch[d->queue][slot];
    if (bytes <= s->bytes && s->p)
        return s->p;
    /* growing batches must not allocate every time */
    size_t more = bytes / 4 < MORE ? bytes / 4 : MORE, want = bytes + more;
    dev_free(d, s->p);
    s->p = dev_alloc(d, MEM_WORK, want);
    s->bytes = s->p ? want : 0;
    if (!s->p && want > p->missing)
        p->missing = want;
    return s->p;
}

int dev_check(struct dev *d, struct err *e)
{
    struct dev_priv *p = d->priv;
    const size_t missing = p->missing;
    int rc = d->host != d ? dev_check(d->host, e) : 0;
    p->missing = 0;
    if (rc >= 0 && d->memory)
        rc = d->memory->check(d, e);
    if (rc < 0)
        return rc;
    return missing ? err_set(e, ERR_MEMORY, "no memory for %zu KiB of scratch: use fewer rows at a time",
                             (missing + 1023) >> 10)
                   : 0;
}

void *dev_pin(struct dev *d, size_t bytes)
{
    return d->memory ? d->memory->pin(d, bytes) : mem_alloc(d->mem, MEM_WORK, bytes);
}

void dev_unpin(struct dev *d, void *p, size_t bytes)
{
    if (d->memory)
        d->memory->unpin(d, p, bytes);
    else
        mem_free(d->mem, p);
}

void *dev_stage(struct dev *d, void *p, size_t bytes)
{
    return d->memory ? mem_alloc(d->mem, MEM_WORK, bytes) : p;
}

void dev_unstage(struct dev *d, void *p, void *host, size_t bytes)
{
    if (!d->memory || !host)
        return;
    dev_write(d, p, host, bytes);
    mem_free(d->mem, host);
}
