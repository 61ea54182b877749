/* serve_b12.c - see serve_b12.h. The source is read once more than a conversion reads it: where a pack lies
 * in the file depends on its kind. */
#include "reshard/serve/serve_b12.h"

#include <pthread.h>
#include <stdlib.h>
#include "base/pool.h"
#include "reshard/cast.h"

#define PANEL 32
#define MOST_ESCAPES 200 /* one in so many values */

/* The packs are counted by several threads. */
struct counting {
    struct plan *p;
    struct serve_plan *s;
    const struct target **of; /* [pieces] */
    struct pack_count {
        int64_t values, escapes;
        int fits;
    } * pack;
    pthread_mutex_t lock;
    struct err err;
};

/* Elements of a box of the target, as it will store them: malloc'd. NULL: *e is set. */
static char *read_box(const struct plan *p, const struct target *t, const struct box *b, struct err *e)
{
    const struct ckpt_tensor *from = ckpt_tensor(p->src, t->src);
    int64_t n = box_count(b);
    char *in = malloc((size_t)stored_bytes(from->dtype, n)), *out;
    if (!in) {
        err_set(e, ERR_MEMORY, "no memory for a part of %s", t->t.name);
        return NULL;
    }
    if (ckpt_read(p->src, t->src, b, in, e) < 0) {
        free(in);
        return NULL;
    }
    if (from->dtype == t->t.dtype)
        return in;
    if ((out = malloc((size_t)stored_bytes(t->t.dtype, n))))
        cast_run(from->dtype, t->t.dtype, in, out, n);
    else
        err_set(e, ERR_MEMORY, "no memory for a part of %s", t->t.name);
    free(in);
    return out;
}

/* One run: panel by panel where outputs are rows, else at once. */
static int count_run(struct counting *x, const struct panels_piece *q, const struct target *t,
                     struct pack_count *to, struct err *e)
{
    const struct panels_pack *k = &x->s->pack[q->pack];
    const int64_t n = q->box.extent[q->out_dim], in = q->box.extent[q->in_dim];
    const int rows = q->out_dim < q->in_dim;
    for (int64_t first = 0; first < n && to->fits; first += rows ? PANEL : n) {
        struct box b = q->box;
        b.start[q->out_dim] += first;
        b.extent[q->out_dim] = !rows || n - first < PANEL ? n - first : PANEL;
        char *data = read_box(x->p, t, &b, e);
        if (!data)
            return -e->code;
        for (int64_t o = 0; o < b.extent[q->out_dim]; o += PANEL) {
            int64_t left = b.extent[q->out_dim] - o, found;
            int64_t step[2] = { 2 * (rows ? in : 1), 2 * (rows ? 1 : n) };
            to->fits &= panels_b12_fits(k, data + o * step[0], step, left < PANEL ? (int)left : PANEL,
                                        &found);
            to->escapes += found;
        }
        to->values += box_count(&b);
        free(data);
    }
    return 0;
}

static void count_task(void *arg, int64_t pack, int thread)
{
    struct counting *x = arg;
    struct err e = { 0 };
    int rc = 0;
    (void)thread;
    if (x->s->pack[pack].dtype != STORED_BF16)
        return;
    x->pack[pack].fits = 1;
    for (int i = 0; i < x->s->layout.n_pieces && rc >= 0; i++)
        if (x->s->piece[i].pack == pack)
            rc = request_stopped(x->p->req)
                     ? err_set(&e, ERR_STOPPED, "stopped by a signal: nothing was written")
                     : count_run(x, &x->s->piece[i], x->of[i], &x->pack[pack], &e);
    pthread_mutex_lock(&x->lock);
    if (rc < 0 && !x->err.code)
        x->err = e;
    pthread_mutex_unlock(&x->lock);
}

/* The verdict on every pack. */
static int choose(struct counting *x, struct err *e)
{
    struct serve_plan *s = x->s;
    for (int i = 0; i < s->layout.n_packs; i++) {
        const struct pack_count *c = &x->pack[i];
        int narrow = c->fits && c->escapes * MOST_ESCAPES <= c->values;
        if (s->pack[i].dtype != STORED_BF16)
            continue;
        if (narrow)
            s->pack[i].kind = CKPT_PANELS_B12;
        s->narrow.packs += narrow;
        s->narrow.wide += !narrow;
        s->narrow.values += narrow ? c->values : 0;
        s->narrow.escapes += narrow ? c->escapes : 0;
    }
    return s->narrow.packs + s->narrow.wide
               ? 0
               : err_set(e, ERR_USAGE, "--quantize b12 holds bf16, and no matrix is: add --dtype bf16");
}

int serve_b12_choose(struct plan *p, struct serve_plan *s, struct err *e)
{
    struct counting x = { .p = p, .s = s };
    struct pool *pool = NULL;
    int rc = 0;
    pthread_mutex_init(&x.lock, NULL);
    x.of = calloc((size_t)s->layout.n_pieces + 1, sizeof *x.of);
    x.pack = calloc((size_t)s->layout.n_packs + 1, sizeof *x.pack);
    if (!x.of || !x.pack)
        TRY(err_set(e, ERR_MEMORY, "no memory to count %d packs", s->layout.n_packs));
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->target[i].n_pieces; k++)
            x.of[p->target[i].piece[k].index] = &p->target[i];
    TRY(pool_open(&pool, p->req->n_threads, e));
    pool_run(pool, s->layout.n_packs, count_task, &x);
    if (x.err.code) {
        *e = x.err;
        rc = -e->code;
    } else {
        rc = choose(&x, e);
    }
out:
    pool_close(pool);
    pthread_mutex_destroy(&x.lock);
    free((void *)x.of);
    free(x.pack);
    return rc < 0 ? rc : 0;
}
