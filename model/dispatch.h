/* dispatch.h - expert parallelism: rows travel to the ranks of their experts and results travel back.
 *
 * An expert group is `fold` neighbouring dp ranks with all their tp ranks. Its rank r computes experts
 * [ceil(r E / ep), ceil((r + 1) E / ep)), whole. Every rank sends the rows that it holds alone, its *home*
 * rows: a share of every sequence over tp. Movement only: what is added is added by the home rank or by the
 * expert's, in the contract's order.
 *
 *     home rows, grouped by expert (routing.h)       = what is sent: to rank 0, to rank 1, …
 *     arrived rows: from rank 0 by expert and sequence, from rank 1, …
 *     grouped rows: by expert; then by dp rank, sequence, position, so that a sequence is a leaf of the
 *                   expert's weight gradients. Ops take them from the arrived rows through a list. */
#ifndef SHARDLINE_MODEL_DISPATCH_H
#define SHARDLINE_MODEL_DISPATCH_H

#include "comm/comm.h"
#include "model/routing.h"

/* The first expert of rank r among ep. */
static inline int dispatch_first(int64_t n_experts, int ep, int r)
{
    return (int)((r * n_experts + ep - 1) / ep);
}

struct arrivals {
    int ep, tp, rank;     /* size of the expert group, of tp; this rank's place */
    int n_experts, n_seq; /* of the layer; sequences of one rank */
    int parts; /* blocks of positions of one share of a sequence, which are counted apart; 1: no need to */
    int64_t capacity, n; /* grouped rows: at most, now */
    int32_t *counts;     /* [ep][n_experts][n_seq * parts]: rows of every rank's home rows */
    int64_t *to, *from;  /* [ep]: rows to and from every rank */
    int32_t *place;      /* [ep][local experts][n_seq * parts]: where their grouped rows begin */
    int32_t *list;       /* [capacity]: the arrived row of a grouped row */
    int32_t *back;       /* [capacity]: the grouped row of an arrived row */
    int64_t *begin;      /* [n_local + 1] */
    int64_t *leaf_end;   /* [n_local][ep / tp * n_seq] */
    int64_t *block_end;  /* [n_local][ep / tp * n_seq][tp * parts] */
};

/* Takes the lists from a. */
void arrivals_carve(struct arrivals *a, struct arena *from);
/* Exchanges counts and fills the lists from the choice in `home`, which has all experts. Collective over
 * ep. */
int arrivals_fill(struct arrivals *a, struct comm *ep, const struct routing *home, struct err *e);
/* Rows of row_bytes: from home rows in the order that is sent, to arrived rows; and back. Collective. */
int arrivals_send(const struct arrivals *a, struct comm *ep, void *arrived, const void *home,
                  size_t row_bytes, struct err *e);
int arrivals_return(const struct arrivals *a, struct comm *ep, void *home, const void *arrived,
                    size_t row_bytes, struct err *e);
/* Rows of every expert, as the ops take them. */
struct expert_rows arrivals_groups(const struct arrivals *a);
/* The same with blocks of positions as leaves. */
struct expert_rows arrivals_blocks(const struct arrivals *a);

#endif
