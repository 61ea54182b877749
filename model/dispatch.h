/* dispatch.h - expert parallelism: rows travel to the ranks of their experts and results travel back.
 *
 * An expert group is `fold` neighbouring dp ranks with all their cp and tp ranks. Its rank r computes experts
 * [ceil(r E / ep), ceil((r + 1) E / ep)), whole. Every rank sends the rows that it holds alone, its *home*
 * rows: a share of every sequence over tp. Where sequences are cut into leaves (cp_grain), a leaf counts as a
 * sequence here; with cp a rank has some leaves of each. Movement only: what is added is added by the home
 * rank or by the expert's, in the contract's order.
 *
 *     home rows, grouped by expert (routing.h)       = what is sent: to rank 0, to rank 1, …
 *     arrived rows: from rank 0 by expert and sequence, from rank 1, …
 *     grouped rows: by expert; then by dp rank, cp rank, sequence, position, so that a sequence is a leaf
 *                   of the expert's weight gradients. Ops take them from the arrived rows through a list.
 *
 * Memory is planned for `capacity` rows (arrivals_room). Where more would come to a rank, the sequences of
 * the group travel in several rounds: neighbours in the order of leaves, as many as fit on every rank. All
 * ranks know all counts, so they cut alike. The sequences of one leaf of weight gradients always fit. */
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
    int ep, tp, rank; /* size of the expert group, of tp; this rank's place */
    int n_experts, k; /* of the layer; chosen for a row */
    int n_seq;        /* sequences of one rank, of leaf_rows rows each */
    int64_t leaf_rows;
    double buffer; /* room in multiples of an even load; 0: for every choice */
    int joined;    /* sequences that are one leaf of weight gradients: they travel in one round */
    int parts; /* blocks of positions of one share of a sequence, which are counted apart; 1: no need to */
    int64_t capacity, n; /* grouped rows: at most, in this round */
    int n_rounds, round; /* of the last arrivals_fill; the one that the lists are of */
    int leaf, n_leaf;    /* leaves of the round: [leaf, leaf + n_leaf) of those of the group */
    int *round_end;      /* [ep / tp * n_seq]: round i ends before leaf round_end[i] */
    int32_t *counts;     /* [ep][n_experts][n_seq * parts]: rows of every rank's home rows */
    int64_t *to, *from;  /* [ep]: rows to and from every rank */
    int32_t *place;      /* [ep][local experts][n_seq * parts]: where their grouped rows begin */
    int32_t *list;       /* [capacity]: the arrived row of a grouped row */
    int32_t *back;       /* [capacity]: the grouped row of an arrived row */
    int64_t *begin;      /* [n_local + 1] */
    int64_t *leaf_end;   /* [n_local][n_leaf] */
    int64_t *block_end;  /* [n_local][n_leaf][tp * parts] */
};

/* The most rows that can come to a rank of the group: every token chooses experts of this rank alone. */
int64_t arrivals_worst(const struct arrivals *a, int rank);
/* The rows that come to the rank when all experts are chosen equally often. */
int64_t arrivals_even(const struct arrivals *a, int rank);
/* The most rows that a->joined sequences can bring to the rank. */
int64_t arrivals_least(const struct arrivals *a, int rank);
/* The rows that a rank has memory for: `buffer` times an even load, at least the worst case of one leaf, at
 * most that of all. */
int64_t arrivals_room(const struct arrivals *a, int rank);
/* Takes the lists from a, and sets capacity. */
void arrivals_carve(struct arrivals *a, struct arena *from);
/* Exchanges counts, from the choice in `home`, which has all experts and all sequences, and cuts the rounds.
 * No round's lists are there yet. Collective over ep. */
int arrivals_fill(struct arrivals *a, struct comm *ep, const struct routing *home, struct err *e);
/* Fills the lists of a round. */
void arrivals_select(struct arrivals *a, int round);
/* The sequences of this rank that travel in the selected round: their number, from *first on. */
int arrivals_home(const struct arrivals *a, int *first);
/* Starts the selected round's rows, of row_bytes: from home rows in the order that is sent, to arrived rows;
 * and back. comm_finish waits for them; another round may be selected before. Collective. */
int arrivals_send(const struct arrivals *a, struct comm_request **q, struct comm *ep, void *arrived,
                  const void *home, size_t row_bytes, struct err *e);
int arrivals_return(const struct arrivals *a, struct comm_request **q, struct comm *ep, void *home,
                    const void *arrived, size_t row_bytes, struct err *e);
/* Rows of every expert, as the ops take them. */
struct expert_rows arrivals_groups(const struct arrivals *a);
/* The same with blocks of positions as leaves. */
struct expert_rows arrivals_blocks(const struct arrivals *a);

#endif
