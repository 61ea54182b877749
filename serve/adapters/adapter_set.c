/* adapter_set.c - see adapter_set.h. */
#define _GNU_SOURCE /* gettid */
#include "serve/adapters/adapter_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/machine.h"

#define NICE 5 /* steps go first where CPUs are few */

void adapter_set_open(struct adapter_set *s, struct model_info *model, struct comm *all, int n_here)
{
    memset(s, 0, sizeof *s);
    s->model = model;
    s->all = all;
    s->n_here = n_here;
}

static void slot_free(struct adapter_slot *x)
{
    if (!x)
        return;
    resident_close(&x->weights);
    adapter_close(&x->adapter);
    free(x);
}

static void forget_task(struct adapter_set *s)
{
    slot_free(s->fresh);
    s->fresh = NULL;
    if (s->file.host)
        dev_close(s->file.host);
    adapter_file_close(&s->file);
    free(s->seen);
    s->seen = NULL;
    s->running = 0;
}

void adapter_set_close(struct adapter_set *s)
{
    background_abort(&s->background);
    forget_task(s);
    for (int32_t i = 1; i <= ADAPTERS_MAX; i++)
        adapter_drop(s, i);
}

void adapter_drop(struct adapter_set *s, int32_t slot)
{
    slot_free(s->slot[slot]);
    s->slot[slot] = NULL;
}

/* ---- the task ---- */

/* Memory that is not there would end the process later. */
static int check_memory(const struct adapter_set *s, int64_t bytes, struct err *e)
{
    struct dev *d = s->model->m.dev;
    int64_t need = bytes * (d->memory ? 1 : s->n_here),
            there = d->memory ? (int64_t)d->memory->free_bytes(d) : machine_memory_free();
    if (need <= there)
        return 0;
    return err_set(e, ERR_MEMORY,
                   "%s: needs %lld MiB on all ranks of this machine, there are %lld: unload other adapters",
                   s->path, (long long)(need >> 20), (long long)(there >> 20));
}

/* Host memory may be written by any thread; device memory only by the main thread. */
static int by_device(void *ctx, int (*fn)(void *arg, struct err *e), void *arg, struct err *e)
{
    struct adapter_set *s = ctx;
    return s->model->m.dev->memory ? background_on_device(&s->background, fn, arg, e) : fn(arg, e);
}

static int read_parts(struct adapter_set *s, struct err *e)
{
    struct adapter_slot *x = s->fresh;
    struct model *m = &x->adapter.m;
    struct dev *d = s->model->m.dev;
    const struct resident_source from = { .read = adapter_file_read,
                                          .ctx = &s->file,
                                          .executor = { by_device, s } };
    size_t reading;
    x->bytes = (int64_t)resident_measure(m, &reading);
    int rc = check_memory(s, x->bytes + (int64_t)reading, e);
    if (rc < 0)
        return rc;
    if (!d->memory) /* steps use the other device object */
        m->dev = s->file.host;
    rc = resident_fill(&x->weights, m, &from, e);
    m->dev = d;
    x->adapter.w = &x->weights.w;
    return rc;
}

static int work(struct background *a, void *arg, struct err *e)
{
    struct adapter_set *s = arg;
    struct model *base = &s->model->m;
    struct adapter_file *f = &s->file;
    int rc;

    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    if (!f->fit)
        TRY(adapter_file_open(f, s->path, &(struct adapter_base){ s->model->ckpt, &base->table, &a->stop },
                              e));
    if (f->rank > base->adapter_rank) {
        rc = err_set(e, ERR_USAGE,
                     "%s: has rank %lld, this server has room for rank %lld: start it with this adapter "
                     "(--lora NAME=DIR)",
                     s->path, (long long)f->rank, (long long)base->adapter_rank);
        goto out;
    }
    TRY(dev_open(&f->host, "cpu", 1, base->dev->mem, e));
    s->seen = calloc((size_t)ckpt_n_tensors(f->ckpt) + 1, sizeof *s->seen);
    s->fresh = calloc(1, sizeof *s->fresh);
    TRY(s->seen && s->fresh ? 0 : err_set(e, ERR_MEMORY, "%s: no memory to read it", s->path));
    s->fresh->n_matrices = f->n;
    s->fresh->rank = f->rank;
    rc = adapter_open(&s->fresh->adapter, base, f->matrix, f->n, e);
    TRY(rc < 0 ? err_add(e, "%s", s->path) : 0);
    TRY(read_parts(s, e));
    TRY(adapter_file_digest(f, comm_rank(s->all), comm_size(s->all), s->seen, e));
out:
    return rc < 0 ? rc : 0;
}

void adapter_begin(struct adapter_set *s, int32_t slot, const char *path, struct adapter_file *file)
{
    if (file) {
        s->file = *file;
        memset(file, 0, sizeof *file);
    }
    snprintf(s->path, sizeof s->path, "%s", path);
    s->into = slot;
    s->begin_s = clock_s();
    s->running = 1;
    background_start(&s->background, work, s, s->model->m.dev->pool);
}

int64_t adapter_measure(const struct adapter_file *f, const struct model *base, struct err *e)
{
    struct adapter a = { 0 };
    size_t reading;
    int rc = adapter_open(&a, base, f->matrix, f->n, e);
    int64_t bytes = rc < 0 ? err_add(e, "%s", f->path) : (int64_t)resident_measure(&a.m, &reading);
    adapter_close(&a);
    return bytes;
}

int adapter_sync(struct adapter_set *s, struct err *e)
{
    return background_sync(&s->background, s->model->m.tp, s->all, e);
}

/* Ranks of several machines may have read files of their own. */
static int check_alike(const struct adapter_set *s, struct err *e)
{
    const uint64_t own[2] = { ckpt_list_hash(s->file.ckpt), peft_fit_scales(s->file.fit) };
    int rc = comm_agree_alike(s->all, own, 2,
                              "its modules, ranks or factors are not those that the first rank has read: is "
                              "it the same on all machines",
                              e);
    return rc < 0 ? err_add(e, "%s", s->path) : 0;
}

int adapter_end(struct adapter_set *s, char digest[ADAPTER_DIGEST_MAX], struct err *e)
{
    int rc;
    TRY(background_finish(&s->background, s->all, e));
    TRY(check_alike(s, e));
    TRY(comm_all_reduce_i64(s->all, (int64_t *)s->seen, 2 * (int64_t)ckpt_n_tensors(s->file.ckpt), e));
    TRY(comm_agree(s->all, adapter_file_name(&s->file, s->seen, digest, e), e));
    s->fresh->adapter.number = s->into;
    s->slot[s->into] = s->fresh;
    s->fresh = NULL;
out:
    forget_task(s);
    return rc < 0 ? rc : 0;
}
