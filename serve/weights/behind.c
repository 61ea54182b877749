/* behind.c - see behind.h. */
#define _GNU_SOURCE /* gettid */
#include "serve/weights/behind.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define NICE 5 /* steps go first where CPUs are few */

struct made {
    int unit, pack;
    struct panels panels;
    void *memory;
    struct made *next;
};
struct behind {
    struct resident *r;
    behind_make make;
    void *ctx;
    pthread_t thread;
    int started;
    volatile sig_atomic_t stop;
    _Atomic int news; /* something was made, or failed, since the last switch */

    /* guarded by lock: */
    pthread_mutex_t lock;
    struct made *first, **last;
    int rc;
    struct err err; /* of rc */
};

/* ---- the thread ---- */

static int make_pack(struct behind *b, int unit, int pack, struct err *e)
{
    struct made *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_MEMORY, "no memory to switch packs");
    x->unit = unit;
    x->pack = pack;
    int rc = b->make(b->ctx, unit, pack, &b->r->unit[unit].pack[pack], &x->panels, &x->memory, &b->stop, e);
    if (rc <= 0) {
        free(x);
        return rc;
    }

    pthread_mutex_lock(&b->lock);
    *b->last = x;
    b->last = &x->next;
    pthread_mutex_unlock(&b->lock);
    atomic_store(&b->news, 1);
    return 1;
}

static void *run(void *arg)
{
    struct behind *b = arg;
    const struct model *m = b->r->m;
    struct err e;
    int rc = 0;
    pool_unpin_self(m->dev->pool);
    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    for (int v = 0; rc >= 0 && v < m->local.n_trained; v++)
        for (int i = -1; rc >= 0 && !b->stop && (i = model_vector_packs(m, v, i + 1)) >= 0;)
            rc = make_pack(b, m->local.unit[v].unit, i, &e);

    if (rc < 0 && !b->stop) {
        pthread_mutex_lock(&b->lock);
        b->rc = rc;
        b->err = e;
        pthread_mutex_unlock(&b->lock);
        atomic_store(&b->news, 1);
    }
    return NULL;
}

/* ---- the main thread ---- */

int behind_open(struct behind **out, struct resident *r, behind_make make, void *ctx, struct err *e)
{
    struct behind *b = *out = calloc(1, sizeof *b);
    if (!b)
        return err_set(e, ERR_MEMORY, "no memory to switch packs");
    b->r = r;
    b->make = make;
    b->ctx = ctx;
    b->last = &b->first;
    pthread_mutex_init(&b->lock, NULL);
    b->started = pthread_create(&b->thread, NULL, run, b) == 0;
    if (b->started)
        return 0;
    behind_close(b);
    *out = NULL;
    return err_set(e, ERR_MEMORY, "no thread for weights: raise the limit of processes");
}

int behind_switch(struct behind *b, struct err *e)
{
    if (!atomic_load_explicit(&b->news, memory_order_relaxed) || !atomic_exchange(&b->news, 0))
        return 0;
    pthread_mutex_lock(&b->lock);
    struct made *x = b->first;
    int rc = b->rc;
    b->first = NULL;
    b->last = &b->first;
    if (rc < 0)
        *e = b->err;
    pthread_mutex_unlock(&b->lock);

    while (x) {
        struct made *next = x->next;
        resident_replace(b->r, x->unit, x->pack, &x->panels, x->memory);
        free(x);
        x = next;
    }
    return rc;
}

void behind_close(struct behind *b)
{
    if (!b)
        return;
    b->stop = 1;
    if (b->started)
        pthread_join(b->thread, NULL);
    for (struct made *x = b->first, *next; x; x = next) {
        next = x->next;
        dev_free(b->r->m->dev, x->memory);
        free(x);
    }
    pthread_mutex_destroy(&b->lock);
    free(b);
}
