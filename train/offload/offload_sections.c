/* offload_sections.c - reads and writes single states between updates: loads write them, saves read them,
 * both in runs that begin and end anywhere. The sections used last stay in memory. */
#include <string.h>
#include "train/offload/offload_priv.h"

static int write_back(struct offload *o, struct section *x, struct err *e)
{
    struct state_files *f = &o->files;
    struct aio_job j;
    if (!x->dirty)
        return 0;
    x->dirty = 0;
    state_files_sum(f, f->now, x->piece, x->k, 1, x->buf);
    state_files_job(f, &j, f->now, x->piece, x->k, 1, x->buf, 1);
    aio_start(f->aio, &j);
    return aio_wait(f->aio, &j, e);
}

static int bring(struct offload *o, struct section *x, int piece, int k, struct err *e)
{
    struct state_files *f = &o->files;
    struct aio_job j;
    int rc = 0;
    x->piece = -1;
    if (f->sum[f->now][piece * KINDS + k]) {
        state_files_job(f, &j, f->now, piece, k, 1, x->buf, 0);
        aio_start(f->aio, &j);
        TRY(aio_wait(f->aio, &j, e));
        TRY(state_files_check(f, f->now, piece, k, 1, x->buf, e));
    } else {
        memset(x->buf, 0, o->of.piece[piece].section);
    }
    x->piece = piece;
    x->k = k;
out:
    return rc;
}

/* The section of a state of a piece, in place of the one used longest ago. */
static int section_of(struct offload *o, int piece, int k, struct section **out, struct err *e)
{
    struct section *best = &o->section[0];
    int rc = 0;
    for (int i = 0; i < SECTIONS; i++) {
        struct section *x = &o->section[i];
        if (x->piece == piece && x->k == k) {
            best = x;
            break;
        }
        best = x->used < best->used ? x : best;
    }
    if (best->piece != piece || best->k != k) {
        TRY(write_back(o, best, e));
        TRY(bring(o, best, piece, k, e));
    }
    best->used = ++o->clock;
    *out = best;
out:
    return rc;
}

/* The piece of vector v that holds an element. Pieces of a vector are equally long, but for the last one. */
static int piece_at(const struct offload *o, int v, int64_t element)
{
    int first = o->of.first[v];
    return first + (int)(element / o->of.piece[first].n);
}

int sections_move(struct offload *o, int v, enum zero_state s, int64_t at, int64_t n, float *out,
                  const float *in, struct err *e)
{
    for (int64_t done = 0, some; done < n; done += some) {
        int piece = piece_at(o, v, at + done);
        const struct piece *p = &o->of.piece[piece];
        int64_t from = at + done - p->at;
        struct section *x;
        int rc = section_of(o, piece, (int)s - ZERO_MASTER, &x, e);
        if (rc < 0)
            return rc;
        float *here = (float *)(void *)x->buf + from;
        some = p->n - from < n - done ? p->n - from : n - done;
        if (in) {
            memcpy(here, in + done, (size_t)some * sizeof *in);
            x->dirty = 1;
        } else {
            memcpy(out + done, here, (size_t)some * sizeof *out);
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
    return rc;
}
