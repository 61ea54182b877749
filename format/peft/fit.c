/* fit.c - see peft.h. */
#include "format/peft.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "format/peft/merge_priv.h"

struct peft_fit {
    struct peft_merge *m;
};

static int check_saved(const struct peft_merge *m, struct err *e)
{
    if (!m->a.n_saved)
        return 0;
    return err_set(e, ERR_USAGE,
                   "%s: holds a whole weight, %s (modules_to_save): merge it into the model "
                   "(reshard --merge)",
                   m->path, m->a.saved[0].name);
}

int peft_fit_open(struct peft_fit **out, struct ckpt *adapter, const char *path, const struct ckpt *model,
                  struct err *e)
{
    struct peft_fit *f = calloc(1, sizeof *f);
    struct peft_merge *m = calloc(1, sizeof *m);
    int rc = f && m && (m->path = strdup(path)) ? 0
                                                : err_set(e, ERR_MEMORY, "%s: no memory to read it", path);
    *out = NULL;
    if (m)
        m->adapter = adapter;
    else
        ckpt_close(adapter);
    if (rc >= 0 && !peft_is(adapter))
        rc = err_set(e, ERR_FORMAT, "%s: has no " PEFT_CONFIG ": is it the folder of an adapter", path);
    if (rc >= 0)
        rc = merge_prepare(m, model, e);
    if (rc >= 0)
        rc = check_saved(m, e);
    if (rc < 0) {
        merge_free(m);
        free(f);
        return rc;
    }
    f->m = m;
    *out = f;
    return 0;
}

void peft_fit_close(struct peft_fit *f)
{
    if (f)
        merge_free(f->m);
    free(f);
}

int peft_fit_n(const struct peft_fit *f) { return f->m->n_jobs; }

struct peft_fit_tensor peft_fit_at(const struct peft_fit *f, int i)
{
    const struct merge_job *j = &f->m->job[i];
    return (struct peft_fit_tensor){ j->from, j->mod, j->expert };
}

uint64_t peft_fit_scales(const struct peft_fit *f)
{
    uint64_t h = 0;
    for (int i = 0; i < f->m->a.n; i++) {
        const struct peft_module *mod = &f->m->a.module[i];
        h = XXH3_64bits_withSeed(mod->name, strlen(mod->name), h);
        h = XXH3_64bits_withSeed(&mod->rank, sizeof mod->rank, h);
        h = XXH3_64bits_withSeed(&mod->scale, sizeof mod->scale, h);
    }
    return h;
}

static int read_factor(const struct peft_fit *f, int i, int64_t x, int is_right, int64_t at, int64_t n,
                       double *out, struct err *e)
{
    const struct merge_job *j = &f->m->job[i];
    int rc = merge_factor(j, x, is_right, at, n, out, e);
    for (int64_t k = 0; rc >= 0 && k < n * j->mod->rank; k++)
        if (!isfinite(out[k]))
            return err_set(e, ERR_FORMAT, "%s: %s has a value that is not finite: is the adapter damaged",
                           f->m->path, j->mod->name);
    return rc;
}

int peft_fit_left(const struct peft_fit *f, int i, int64_t x, int64_t at, int64_t n, double *out,
                  struct err *e)
{
    return read_factor(f, i, x, 0, at, n, out, e);
}

int peft_fit_right(const struct peft_fit *f, int i, int64_t x, int64_t at, int64_t n, double *out,
                   struct err *e)
{
    return read_factor(f, i, x, 1, at, n, out, e);
}
