/* repack.c - see repack.h. */
#define _GNU_SOURCE /* gettid */
#include "serve/weights/repack.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include "base/test_hooks.h"
#include "model/packs.h"
#include "serve/weights/background.h"
#include "serve/weights/row_source.h"
#include "serve/weights/weights.h"

#define NICE 5    /* steps go first where CPUs are few */
#define CHECKS 64 /* parts of this rank's check */

struct packed {
    int unit, pack;
    struct panels p;
    void *memory;
};
struct repack {
    struct background background;
    struct model_info *l;
    int answers;
    int n;                /* matrices to pack */
    struct packed *of;    /* [n] */
    _Atomic int n_packed; /* the first ones are ready … */
    int n_placed;         /* … and of these so many in place (main thread) */
    _Atomic int digested; /* 1: identity is set; 2: the main thread has it */
    struct ckpt_digest identity;
    _Atomic int failed; /* err is set: a file is damaged */
    struct err err;
};

static void pause_ms(const struct repack *x, int ms)
{
    for (; ms > 0 && !x->background.stop; ms--)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* Checks and digests the files. */
static int read_files(struct repack *x, struct err *e)
{
    struct model_info *l = x->l;
    int rc = 0;
    /* a little at a time, so that a server that ends need not wait */
    for (int i = 0; l->late.check && rc >= 0 && i < CHECKS && !x->background.stop; i++)
        rc = ckpt_check_rest(l->ckpt, l->late.check_part * CHECKS + i, l->late.check_parts * CHECKS, e);
    if (rc >= 0 && l->late.digest && x->answers) {
        rc = weights_digest(l, &x->background.stop, &x->identity, e);
        if (rc >= 0)
            atomic_store(&x->digested, 1);
    }
    ckpt_release_files(l->ckpt);
    return rc;
}

static int pack_all(struct repack *x, struct err *e)
{
    struct dev *host = NULL;
    int rc;

    TRY(dev_open(&host, "cpu", 1, x->l->m.dev->mem, e));
    for (int i = 0; i < x->n && !x->background.stop; i++) {
        struct packed *p = &x->of[i];
        pause_ms(x, hook_packs_every_ms());
        TRY(row_source_repack(host, &x->l->weights.unit[p->unit].pack[p->pack], &p->p, &p->memory, e));
        atomic_store(&x->n_packed, i + 1);
    }
    rc = 0;
out:
    dev_close(host);
    return rc;
}

static int work(struct background *a, void *arg, struct err *e)
{
    struct repack *x = arg;
    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    int rc = read_files(x, e);
    if (rc < 0 && !a->stop) {
        x->err = *e;
        atomic_store(&x->failed, 1);
    }
    return rc < 0 ? rc : pack_all(x, e);
}

/* Counts the matrices that are rows, and lists them where there is room. */
static int list(struct repack *x)
{
    const struct model *m = &x->l->m;
    int n = 0;
    for (int u = 0; u < m->local.n_units; u++)
        for (int k = 0; k < model_n_packs(m, u); k++) {
            if (x->l->weights.unit[u].pack[k].kind != PANEL_ROWS)
                continue;
            if (x->of)
                x->of[n] = (struct packed){ .unit = u, .pack = k };
            n++;
        }
    return n;
}

int repack_open(struct model_info *l, int answers, struct err *e)
{
    struct repack *x;
    l->repack = NULL;
    if (!l->rows)
        return 0;
    x = calloc(1, sizeof *x);
    if (x) {
        *x = (struct repack){ .l = l, .answers = answers };
        x->n = hook_packs_every_ms() < 0 ? 0 : list(x);
        x->of = calloc((size_t)x->n + 1, sizeof *x->of);
    }
    if (!x || !x->of) {
        free(x);
        return err_set(e, ERR_MEMORY, "no memory to pack weights");
    }
    if (x->n)
        list(x);
    l->repack = x;
    background_start(&x->background, work, x, l->m.dev->pool);
    return 0;
}

static void place(struct repack *x)
{
    const int before = x->n_placed, ready = atomic_load(&x->n_packed);
    for (; x->n_placed < ready; x->n_placed++) {
        struct packed *p = &x->of[x->n_placed];
        resident_replace(&x->l->weights, p->unit, p->pack, &p->p, p->memory);
    }
    if (x->n_placed == x->n && before < x->n)
        row_source_release(x->l->rows);
}

int repack_switch(struct repack *x, struct err *e)
{
    if (!x)
        return 0;
    if (atomic_load(&x->failed)) {
        *e = x->err;
        return -e->code;
    }
    if (x->n_placed < x->n)
        place(x);
    if (atomic_load(&x->digested) != 1)
        return 0;
    x->l->identity = x->identity;
    atomic_store(&x->digested, 2);
    return 1;
}

void repack_close(struct repack *x)
{
    if (!x)
        return;
    background_abort(&x->background);
    for (int i = x->n_placed; i < x->n; i++)
        dev_free(x->l->m.dev, x->of[i].memory);
    free(x->of);
    free(x);
}
