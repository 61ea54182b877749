/* routing.h - which rows each expert computes: the lists that a router's choice becomes.
 *
 * A *routed row* is one token at one of its experts. Routed rows are *grouped*: those of the rank's first
 * expert, then those of its second one, and so on; inside an expert by row of the call, so that the rows of
 * one sequence, a leaf of the expert's weight gradients, are neighbours. A counting sort over (expert, row)
 * gives all lists.
 *
 * Slot r * k + j is the j-th expert of row r, by ascending id. Lists lie in host memory. */
#ifndef SHARDLINE_MODEL_ROUTING_H
#define SHARDLINE_MODEL_ROUTING_H

#include "base/mem.h"
#include "kernels/kernels.h"

struct routing {
    int n_experts, k;   /* experts of the layer, chosen for a row */
    int first, n_local; /* this rank computes experts [first, first + n_local) */
    int n_leaves;       /* sequences of the call, of leaf_rows rows each */
    int64_t rows, leaf_rows;
    int64_t home, n_home; /* of every sequence only rows [home, home + n_home) are routed here */
    int leaf, n_routed;   /* and only of sequences [leaf, leaf + n_routed): a round's (dispatch.h) */
    int64_t n;            /* grouped rows */
    int32_t *expert;      /* [rows * k] by slot */
    int32_t *place;       /* [rows * k] by slot: the grouped row, -1: it is not routed here */
    int32_t *row, *slot;  /* [n] of a grouped row */
    int64_t *begin;       /* [n_local + 1]: grouped rows of local expert e are [begin[e], begin[e + 1]) */
    int64_t *leaf_end;    /* [n_local][n_leaves] */
    /* Biases of experts; grain 0: there are none. block_end: [n_local][n_leaves * grain], where blocks of
     * positions end; bias: [n_local], addresses for the ops. */
    int grain;
    int64_t *block_end;
    const void **bias;
    struct tree_acc *acc; /* [n_local], for the op of weight gradients */
    struct mat *mat;      /* [2 * n_local], likewise for gradients of inputs */
};

/* Takes the lists of r from a: for its n_experts, k, n_local, n_leaves and rows. All sequences are routed
 * until the caller sets leaf and n_routed. */
void routing_carve(struct routing *r, struct arena *a);
/* Fills the lists from r->expert. */
void routing_fill(struct routing *r);
/* count[n_leaves][n_experts]: rows of every sequence that chose an expert, home rows or not. */
void routing_count(const struct routing *r, int32_t *count);
/* The same lists, as the ops take them. */
static inline struct expert_rows routing_groups(const struct routing *r)
{
    return (struct expert_rows){ r->n_local, r->begin, r->n_leaves, r->leaf_end };
}

/* g with every n neighbouring leaves joined to one. ends: [g->n][g->n_leaves / n] of the caller. */
struct expert_rows leaves_joined(const struct expert_rows *g, int n, int64_t *ends);

/* The same with blocks of positions as leaves. */
static inline struct expert_rows routing_blocks(const struct routing *r)
{
    return (struct expert_rows){ r->n_local, r->begin, r->n_leaves * r->grain, r->block_end };
}

#endif
