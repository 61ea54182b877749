/* piece_reader.c - see piece_reader.h. */
#include "serve/weights/piece_reader.h"

#include <pthread.h>

#define HERE_BYTES ((int64_t)1 << 20)  /* of a piece that is read from memory */
#define ASKED_BYTES ((int64_t)8 << 20) /* of one that is asked for */

struct work {
    const struct piece_read *x;
    int64_t step;
    pthread_mutex_t lock; /* of what follows, and of *x->digest */
    int rc;
    struct err *e;
};

/* Elements of a piece. A cache of files at a URL asks for long ranges by several requests itself. */
static int64_t elements(const struct piece_read *x)
{
    const int64_t bytes = ckpt_version(x->c)[0] && !ckpt_is_shared(x->c) ? ASKED_BYTES : HERE_BYTES;
    if (!x->is_proven || ckpt_cache(x->c))
        return x->hi - x->lo;
    return bytes * 8 / stored_dtype_bits(ckpt_tensor(x->c, x->tensor)->dtype);
}

static int has_failed(struct work *w)
{
    pthread_mutex_lock(&w->lock);
    const int rc = w->rc;
    pthread_mutex_unlock(&w->lock);
    return rc < 0;
}

static void read_one(void *arg, int64_t task, int thread)
{
    struct work *w = arg;
    const struct piece_read *x = w->x;
    const struct ckpt_tensor *t = ckpt_tensor(x->c, x->tensor);
    const int64_t lo = x->lo + task * w->step, hi = x->hi - lo < w->step ? x->hi : lo + w->step;
    char *dst = (char *)x->dst + stored_bytes(t->dtype, lo - x->lo);
    struct ckpt_digest d = { 0, 0 };
    struct err e = { 0 };
    (void)thread;
    if (has_failed(w)) /* the piece would be asked for as patiently as the one that failed */
        return;
    int rc = *x->stop       ? err_set(&e, ERR_STOPPED, "stopped: another rank has failed, or the server ends")
             : x->is_proven ? ckpt_read_unproven(x->c, x->tensor, x->box, lo, hi, dst, &e)
                            : ckpt_read_range(x->c, x->tensor, x->box, lo, hi, dst, &e);
    if (rc >= 0 && x->digest)
        ckpt_digest_add(&d, t->dtype, t->n_dims, t->shape, x->box, lo, hi, dst);

    pthread_mutex_lock(&w->lock);
    if (rc < 0 && w->rc >= 0) {
        w->rc = rc;
        *w->e = e;
    }
    if (x->digest) {
        x->digest->lo += d.lo;
        x->digest->hi += d.hi;
    }
    pthread_mutex_unlock(&w->lock);
}

int piece_read(struct pool *pool, const struct piece_read *x, struct err *e)
{
    struct work w = { .x = x, .step = elements(x), .e = e };
    if (x->lo == x->hi)
        return 0;
    pthread_mutex_init(&w.lock, NULL);
    pool_run(pool, (x->hi - x->lo + w.step - 1) / w.step, read_one, &w);
    pthread_mutex_destroy(&w.lock);
    return w.rc;
}
