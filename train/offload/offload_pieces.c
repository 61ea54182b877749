/* offload_pieces.c - cuts the state that a rank owns into pieces. See offload.h. */
#include <stdlib.h>
#include <string.h>
#include "train/offload/offload_priv.h"

size_t state_section_bytes(int64_t n)
{
    return ((size_t)n * sizeof(float) + AIO_ALIGN - 1) / AIO_ALIGN * AIO_ALIGN;
}

/* Appends the pieces of vector v. */
static void cut(struct pieces_of_state *p, const struct model *m, int stage, int v, int64_t most)
{
    int64_t own = zero_own(m, stage, v);
    p->first[v] = p->n_pieces;
    for (int64_t at = 0; at < own; at += most) {
        struct piece *x = &p->piece[p->n_pieces++];
        x->vector = v;
        x->at = at;
        x->n = own - at < most ? own - at : most;
        x->section = state_section_bytes(x->n);
        x->file_at = p->bytes;
        p->bytes += (int64_t)x->section * KINDS;
        p->elements += x->n;
        p->most = x->n > p->most ? x->n : p->most;
    }
    p->end[v] = p->n_pieces;
}

int state_pieces_open(struct pieces_of_state *p, const struct model *m, int stage, int64_t most,
                      struct err *e)
{
    int n = m->local.n_trained, at = 0;
    int64_t pieces = 0;
    for (int v = 0; v < n; v++)
        pieces += (zero_own(m, stage, v) + most - 1) / most;

    *p = (struct pieces_of_state){ .n_vectors = n,
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
        cut(p, m, stage, p->order[i], most);
    return 0;
}

void state_pieces_close(struct pieces_of_state *p)
{
    free(p->order);
    free(p->first);
    free(p->end);
    free(p->piece);
    memset(p, 0, sizeof *p);
}
