/* offload_pieces.c - cuts the state that a rank owns into pieces. See offload.h. */
#include <stdlib.h>
#include <string.h>
#include "train/offload/offload_priv.h"

size_t state_section_bytes(int64_t n, size_t element)
{
    return ((size_t)n * element + AIO_ALIGN - 1) / AIO_ALIGN * AIO_ALIGN;
}

/* Appends the pieces of vector v, which has `own` elements. */
static void cut(struct state_pieces *p, const struct model *m, const struct state_shape *s, int v,
                int64_t own)
{
    p->first[v] = p->n_pieces;
    for (int64_t at = 0; at < own; at += s->run) {
        struct piece *x = &p->piece[p->n_pieces++];
        x->vector = v;
        x->at = at;
        x->n = own - at < s->run ? own - at : s->run;
        x->section = state_section_bytes(x->n, sizeof(float));
        x->weights = s->weights ? state_section_bytes(x->n, dtype_size(m->dt)) : 0;
        x->state_at = v < p->n_vectors ? p->bytes[FILE_A] : -1;
        x->grad_at = p->bytes[FILE_GRADS];
        x->weight_at = p->bytes[FILE_WEIGHTS];
        p->bytes[FILE_GRADS] += s->grad_levels ? (int64_t)x->section : 0;
        p->most = x->n > p->most ? x->n : p->most;
        if (v == p->n_vectors)
            continue;
        p->bytes[FILE_A] += (int64_t)x->section * KIND_STATES;
        p->bytes[FILE_WEIGHTS] += (int64_t)x->weights;
        p->elements += x->n;
    }
    p->end[v] = p->n_pieces;
}

int state_pieces_open(struct state_pieces *p, const struct model *m, const struct state_shape *s,
                      struct err *e)
{
    int n = m->local.n_trained, at = 0, tied = s->grad_levels && m->table.cfg.tied;
    int64_t pieces = 0;
    for (int v = 0; v < n; v++)
        pieces += (1 + (v == 0 && tied)) * ((zero_own(m, s->stage, v) + s->run - 1) / s->run);

    *p = (struct state_pieces){ .n_vectors = n,
                                .run = s->run,
                                .n_levels = s->grad_levels,
                                .order = calloc((size_t)n + 1, sizeof *p->order),
                                .first = calloc((size_t)n + 1, sizeof *p->first),
                                .end = calloc((size_t)n + 1, sizeof *p->end),
                                .piece = calloc((size_t)pieces + 1, sizeof *p->piece) };
    if (!p->order || !p->first || !p->end || !p->piece)
        return err_set(e, ERR_MEMORY, "no memory for the list of offloaded pieces");
    for (int u = 0; u < m->local.n_units; u++) {
        p->order[at++] = u;
        if (m->local.experts_of[u] >= 0)
            p->order[at++] = m->local.experts_of[u];
    }
    for (int i = 0; i < at; i++)
        cut(p, m, s, p->order[i], zero_own(m, s->stage, p->order[i]));
    if (tied)
        cut(p, m, s, n, zero_own(m, s->stage, 0));
    p->bytes[FILE_B] = p->bytes[FILE_A];
    p->bytes[FILE_GRADS] *= s->grad_levels;
    return 0;
}

void state_pieces_close(struct state_pieces *p)
{
    free(p->order);
    free(p->first);
    free(p->end);
    free(p->piece);
    memset(p, 0, sizeof *p);
}
