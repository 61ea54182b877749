/* dev.c - see dev.h. */
#include "kernels/dev.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cpu.h"
#include "kernels/kernels.h"

#define SLOTS 8
struct dev_priv {
    struct kernel_ops ops;           /* the table of this CPU class, put together by cpu_choose */
    void *scratch[SLOTS];
    size_t bytes[SLOTS];
    size_t missing;                  /* the largest scratch that there was no memory for since dev_check */
};

static void drop_scratch(struct dev *d)
{
    struct dev_priv *p = d->priv;
    for (int i = 0; i < SLOTS; i++) {
        mem_free(d->mem, p->scratch[i]);
        p->scratch[i] = NULL;
        p->bytes[i] = 0;
    }
}

int dev_open(struct dev **out, const char *kind, int threads, struct mem *mem, struct err *e)
{
    int rc = 0;
    struct dev *d = NULL;
    struct dev_priv *p = NULL;
    *out = NULL;
    if (!strcmp(kind, "cuda"))
        return err_set(e, ERR_DEVICE, "built without CUDA: use --device cpu");
    if (strcmp(kind, "cpu"))
        return err_set(e, ERR_USAGE, "device %s is not known: use cpu or cuda", kind);
    if (threads < 1)
        return err_set(e, ERR_USAGE, "%d threads: at least 1 is needed", threads);
    d = calloc(1, sizeof *d);
    p = calloc(1, sizeof *p);
    if (!d || !p) {
        free(p);
        free(d);
        return err_set(e, ERR_MEMORY, "no memory for the device's table");
    }
    d->kind = "cpu";
    d->mem = mem;
    d->priv = p;
    TRY(pool_open(&d->pool, threads, e));
    d->ops = &p->ops;
    TRY(cpu_choose(d, &p->ops, &d->isa, e));
    drop_scratch(d);                     /* the self-tests' */
    *out = d;
    d = NULL;
out:
    dev_close(d);
    return rc;
}

void dev_close(struct dev *d)
{
    struct dev_priv *p = d ? d->priv : NULL;
    if (!d)
        return;
    drop_scratch(d);
    if (d->pool)
        pool_close(d->pool);
    free(p);
    free(d);
}

void *dev_alloc(struct dev *d, enum mem_cat cat, size_t bytes) { return mem_alloc(d->mem, cat, bytes); }

void dev_free(struct dev *d, void *p) { mem_free(d->mem, p); }

void *dev_scratch(struct dev *d, int slot, size_t bytes)
{
    struct dev_priv *p = d->priv;
    if (bytes <= p->bytes[slot] && p->scratch[slot])
        return p->scratch[slot];
    size_t want = bytes + bytes / 4;                 /* a little more: growing batches must not allocate every time */
    mem_free(d->mem, p->scratch[slot]);
    p->scratch[slot] = mem_alloc(d->mem, MEM_WORK, want);
    p->bytes[slot] = p->scratch[slot] ? want : 0;
    if (!p->scratch[slot] && want > p->missing)
        p->missing = want;
    return p->scratch[slot];
}

int dev_check(struct dev *d, struct err *e)
{
    struct dev_priv *p = d->priv;
    const size_t missing = p->missing;
    p->missing = 0;
    return missing ? err_set(e, ERR_MEMORY, "no memory for %zu KiB of scratch: use fewer rows at a time", (missing + 1023) >> 10) : 0;
}
