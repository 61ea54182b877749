/* offload_side.c - what training itself reads and writes while it computes: gradients that are spilled (three
 * buffers), weights that are fetched (straight into the memory of their slot). */
#include <string.h>
#include "train/offload/offload_priv.h"

static struct offload *offload_of(struct state_store *s) { return (struct offload *)(void *)s; }

static int wait_buffer(struct offload *o, struct side_buffer *b, struct err *e)
{
    if (!b->writing)
        return 0;
    b->writing = 0;
    return aio_wait(o->side.aio, &b->job, e);
}

int side_settle(struct offload *o, struct err *e)
{
    struct side *s = &o->side;
    for (int i = 0; i < SIDE_BUFFERS && o->store.has_grads; i++) {
        struct err other;
        int rc = wait_buffer(o, &s->buffer[i], s->rc < 0 ? &other : &s->err);
        s->rc = s->rc < 0 ? s->rc : rc;
    }
    if (s->rc >= 0)
        return 0;
    *e = s->err;
    return err_add(e, "offloaded gradients");
}

int side_put_grads(struct state_store *s, int v, int level, int64_t at, int64_t n, const float *in,
                   struct err *e)
{
    struct offload *o = offload_of(s);
    struct side_buffer *b = &o->side.buffer[o->side.next];
    int piece = o->of.first[v] + (int)(at / o->of.run);
    struct state_place p = state_place_of(&o->files, KIND_GRADS, level, piece);
    int rc = wait_buffer(o, b, e);
    if (rc < 0)
        return err_add(e, "offloaded gradients");
    memcpy(b->buf, in, (size_t)n * sizeof *in);
    state_place_sum(&p, b->buf);
    b->job = state_place_job(&p, 1, b->buf, 1);
    b->writing = 1;
    aio_start(o->side.aio, &b->job);
    o->side.next = (o->side.next + 1) % SIDE_BUFFERS;
    return 0;
}

int side_get_grads(struct state_store *s, int v, int level, int64_t at, int64_t n, float *out, struct err *e)
{
    struct offload *o = offload_of(s);
    char *buf = o->side.buffer[0].buf;
    int piece = o->of.first[v] + (int)(at / o->of.run);
    struct state_place p = state_place_of(&o->files, KIND_GRADS, level, piece);
    struct aio_job j = state_place_job(&p, 1, buf, 0);
    int rc;
    TRY(side_settle(o, e)); /* it may be on its way */
    if (!*p.sum) {          /* the other part of a tied embedding, which comes from another stage */
        memset(out, 0, (size_t)n * sizeof *out);
        return 0;
    }
    aio_start(o->side.aio, &j);
    TRY(aio_wait(o->side.aio, &j, e));
    TRY(state_place_check(&o->files, &p, buf, e));
    memcpy(out, buf, (size_t)n * sizeof *out);
out:
    return rc;
}

int side_fetch(struct state_store *s, int slot, int v, void *to, struct err *e)
{
    struct offload *o = offload_of(s);
    struct side_fetch *f = &o->side.fetch[slot];
    int first = o->of.first[v], last = o->of.end[v] - 1;
    int rc = o->any_dirty ? sections_flush(o, e) : 0; /* what was loaded */
    if (rc < 0)
        return rc;
    f->v = v;
    f->to = to;
    f->job = (struct aio_job){ 0 };
    if (last < first)
        return 0;
    struct state_place p = state_place_of(&o->files, KIND_WEIGHTS, 0, first);
    f->job = state_place_job(&p, 1, to, 0);
    f->job.bytes = (size_t)(o->of.piece[last].weight_at - o->of.piece[first].weight_at) +
                   o->of.piece[last].weights;
    aio_start(o->side.aio, &f->job);
    return 0;
}

int side_fetched(struct state_store *s, int slot, struct err *e)
{
    struct offload *o = offload_of(s);
    struct side_fetch *f = &o->side.fetch[slot];
    int rc = aio_wait(o->side.aio, &f->job, e);
    for (int i = o->of.first[f->v]; rc >= 0 && i < o->of.end[f->v]; i++) {
        struct state_place p = state_place_of(&o->files, KIND_WEIGHTS, 0, i);
        char *here = f->to + (o->of.piece[i].weight_at - o->of.piece[o->of.first[f->v]].weight_at);
        if (*p.sum)
            rc = state_place_check(&o->files, &p, here, e);
        else
            memset(here, 0, p.bytes);
    }
    return rc < 0 ? err_add(e, "offloaded weights") : 0;
}

/* ---- opening and closing ---- */
size_t side_bytes(const struct state_pieces *p)
{
    return p->n_levels ? state_section_bytes(p->most, sizeof(float)) * SIDE_BUFFERS + AIO_ALIGN : 0;
}

int side_open(struct offload *o, struct err *e)
{
    struct side *s = &o->side;
    int rc = aio_open(&s->aio, AIO_BEST, e);
    if (rc < 0 || !o->of.n_levels)
        return rc;
    if (!(s->memory = mem_alloc(o->m->dev->mem, MEM_GRADS, side_bytes(&o->of))))
        return err_set(e, ERR_MEMORY, "no memory for the buffers of --offload-grads");
    for (int i = 0; i < SIDE_BUFFERS; i++)
        s->buffer[i].buf = s->memory + (AIO_ALIGN - (uintptr_t)s->memory % AIO_ALIGN) % AIO_ALIGN +
                           state_section_bytes(o->of.most, sizeof(float)) * (size_t)i;
    return 0;
}

void side_close(struct offload *o)
{
    aio_close(o->side.aio);
    if (o->m)
        mem_free(o->m->dev->mem, o->side.memory);
}
