/* verify.c - see verify.h. */
#define _GNU_SOURCE /* gettid */
#include "serve/weights/verify.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
#include "format/panels_file.h"

#define NICE 5 /* steps go first where CPUs are few */

struct verify {
    struct ckpt *c;
    struct load_progress *progress;
    const struct pool *pool;
    pthread_t thread;
    volatile sig_atomic_t stop;
    struct err err;     /* set before … */
    _Atomic int failed; /* … this */
};

int verify_blocks(struct ckpt *c, int64_t first, int64_t step, struct load_progress *progress,
                  const volatile sig_atomic_t *stop, struct err *e)
{
    const int64_t n = ckpt_n_blocks(c);
    for (int64_t i = first; i < n; i += step) {
        if (stop && *stop)
            return err_set(e, ERR_STOPPED, "stopped: another rank has failed, or the server ends");
        int rc = ckpt_check_block(c, i, e);
        if (rc < 0)
            return rc;
        if (progress)
            atomic_fetch_add(&progress->done, 1);
    }
    return 0;
}

static void *run(void *arg)
{
    struct verify *v = arg;
    pool_unpin_self(v->pool);
    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    int rc = verify_blocks(v->c, 0, 1, v->progress, &v->stop, &v->err);
    if (rc < 0 && !v->stop)
        atomic_store(&v->failed, 1);
    return NULL;
}

int verify_open(struct verify **out, struct ckpt *c, struct load_progress *progress, const struct pool *pool,
                struct err *e)
{
    *out = NULL;
    int rc = ckpt_hold_files(c, e);
    if (rc < 0)
        return rc;
    struct verify *v = *out = calloc(1, sizeof *v);
    if (!v)
        return err_set(e, ERR_MEMORY, "no memory to check the weights");
    v->c = c;
    v->progress = progress;
    v->pool = pool;
    if (progress) {
        atomic_store(&progress->done, 0);
        atomic_store(&progress->total, ckpt_n_blocks(c));
    }
    if (pthread_create(&v->thread, NULL, run, v) == 0)
        return 0;
    free(v);
    *out = NULL;
    return err_set(e, ERR_MEMORY, "no thread to check the weights: raise the limit of processes");
}

int verify_result(struct verify *v, struct err *e)
{
    if (!atomic_load(&v->failed))
        return 0;
    *e = v->err;
    return -v->err.code;
}

void verify_close(struct verify *v)
{
    if (!v)
        return;
    v->stop = 1;
    pthread_join(v->thread, NULL);
    free(v);
}
