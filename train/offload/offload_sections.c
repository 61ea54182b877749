/* offload_sections.c - reads and writes single states between updates: loads write them, saves read them,
 * both in runs that begin and end anywhere. The sections used last stay in memory. */
#include <string.h>
#include "train/offload/offload_priv.h"

static int transfer(struct offload *o, const struct state_place *p, char *buf, int write, struct err *e)
{
    struct aio_job j = state_place_job(p, 1, buf, write);
    aio_start(o->aio, &j);
    return aio_wait(o->aio, &j, e);
}

static int write_back(struct offload *o, struct section *x, struct err *e)
{
    if (!x->dirty)
        return 0;
    struct state_place p = state_place_of(&o->files, x->kind, o->files.now, x->piece);
    x->dirty = 0;
    state_place_sum(&p, x->buf);
    return transfer(o, &p, x->buf, 1, e);
}

static int bring(struct offload *o, struct section *x, int piece, enum kind kind, struct err *e)
{
    struct state_place p = state_place_of(&o->files, kind, o->files.now, piece);
    int rc = 0;
    x->piece = -1;
    if (*p.sum) {
        TRY(transfer(o, &p, x->buf, 0, e));
        TRY(state_place_check(&o->files, &p, x->buf, e));
    } else {
        memset(x->buf, 0, p.padded);
    }
    x->piece = piece;
    x->kind = kind;
out:
    return rc;
}

/* The section of a kind of a piece, in place of the one used longest ago. */
static int section_of(struct offload *o, int piece, enum kind kind, struct section **out, struct err *e)
{
    struct section *best = &o->section[0];
    int rc = 0;
    for (int i = 0; i < SECTIONS; i++) {
        struct section *x = &o->section[i];
        if (x->piece == piece && x->kind == kind) {
            best = x;
            break;
        }
        best = x->used < best->used ? x : best;
    }
    if (best->piece != piece || best->kind != kind) {
        TRY(write_back(o, best, e));
        TRY(bring(o, best, piece, kind, e));
    }
    best->used = ++o->clock;
    *out = best;
out:
    return rc;
}

int sections_move(struct offload *o, int v, enum kind kind, int64_t at, int64_t n, void *out, const void *in,
                  struct err *e)
{
    const size_t element = kind == KIND_WEIGHTS ? dtype_size(o->m->dt) : sizeof(float);
    for (int64_t done = 0, some; done < n; done += some) {
        int piece = o->of.first[v] + (int)((at + done) / o->of.run);
        const struct piece *p = &o->of.piece[piece];
        int64_t from = at + done - p->at;
        struct section *x;
        int rc = section_of(o, piece, kind, &x, e);
        if (rc < 0)
            return rc;
        char *here = x->buf + (size_t)from * element;
        some = p->n - from < n - done ? p->n - from : n - done;
        if (in) {
            memcpy(here, (const char *)in + (size_t)done * element, (size_t)some * element);
            x->dirty = o->any_dirty = 1;
        } else {
            memcpy((char *)out + (size_t)done * element, here, (size_t)some * element);
        }
    }
    return 0;
}

int sections_flush(struct offload *o, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < SECTIONS; i++) {
        if (rc >= 0)
            rc = write_back(o, &o->section[i], e);
        o->section[i].piece = -1;
        o->section[i].dirty = 0;
    }
    o->any_dirty = 0;
    return rc;
}
