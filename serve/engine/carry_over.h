/* carry_over.h - running sequences are carried over to new weights before a swap: their keys and values are
 * computed with the new weights into a second set of pages, between steps that use the old ones.
 *
 *     step  slice  step  slice  …  step  SWAP  step          (a step: one more token of every sequence)
 *
 * A chunk is some rows of some sequences. A slice runs a few units of the model on one chunk: as many as
 * SLICE_S allows (carry_over.c), the first one the embedding, too. When all sequences have the rows that they
 * had at the beginning of a round, a next round computes the tokens that were sampled meanwhile. When few are
 * left, or rounds do not get shorter, the swap is due: each sequence takes its second pages
 * (sched_requeue_all()), and the next step computes the rest beside the new token. As a row has the same bits
 * in any batch, an answer is the one that computing everything again behind the swap gives.
 *
 * Sequences that decode are carried, as far as free pages hold them beside what is promised. All others, and
 * those whose pages are needed meanwhile, are computed again behind the swap.
 *
 * Pure logic, as scheduler.h: no model, no clock. Rank 0, the engine's thread. */
#ifndef SHARDLINE_SERVE_ENGINE_CARRY_OVER_H
#define SHARDLINE_SERVE_ENGINE_CARRY_OVER_H

#include <stdint.h>
#include "base/err.h"
#include "serve/engine/scheduler.h"

enum { CARRY_ROWS = 256 }; /* of a chunk, at most */

struct carry;
/* What a running sequence has with the new weights. */
struct carried {
    struct carry *carry;
    struct seq seq; /* its pages and n_kv; in no list of the scheduler */
    struct seq *of; /* whose; NULL: that has left, and the pages are released when the chunk is done */
    int32_t *ids;   /* [cap_ids] its tokens, a copy: they may be read when the owner has gone */
    int64_t cap_ids;
    int64_t upto; /* rows that the present round computes */
    struct carried *next;
};
struct carry {
    struct sched *s; /* borrowed */
    const int32_t *(*ids_of)(const struct seq *q);
    struct carried *first;
    int n;             /* of these, those whose sequence runs */
    int n_layers;      /* of the model: the units are 0 (embedding) to n_layers */
    int64_t most_rows; /* of a chunk */

    int is_on;    /* between carry_begin() and the swap */
    int is_due;   /* the swap */
    int step_due; /* a step comes before the next slice */
    int rounds;   /* begun so far */
    int64_t round_rows;
    /* The chunk: its items, for step_message_make(); n_items 0: none is under way. The units of its slice. */
    struct sched plan;
    int first_unit, last_unit;

    /* What slices took, kept for the next swap: */
    double unit_s;     /* a layer of the last slice, … */
    int64_t unit_rows; /* … of that many rows; 0: there was none */
    double row_s;      /* a row in all layers, at the least; 0: not known */
    int64_t rows;      /* of the next chunk, at most */
    int64_t n_rows;    /* computed so far */
};

/* For the sequences of s, whose tokens are ids_of(); sets s->carry. most_rows: of a chunk, 1 … CARRY_ROWS.
 * ERR_MEMORY. carry_close() releases the pages, before sched_close(); safe on zeroes. */
int carry_open(struct carry *c, struct sched *s, const int32_t *(*ids_of)(const struct seq *q), int n_layers,
               int64_t most_rows, struct err *e);
void carry_close(struct carry *c);
/* Between two steps: a swap is wanted. 1: sequences are carried over first; 0: there is nothing to carry, or
 * no page for it. */
int carry_begin(struct carry *c);
/* Between two steps. 1: the swap is due now. Begins the next round where one is over. */
int carry_is_due(struct carry *c);
/* Between two steps. 1: a slice is next: c->plan, first_unit, last_unit; 0: a step, or a swap. */
int carry_slice(struct carry *c);
/* The slice was computed, in that many seconds. */
void carry_slice_done(struct carry *c, double seconds);
/* A step is next. */
static inline void carry_step(struct carry *c) { c->step_due = 0; }
/* Tokens of a sequence of c->plan. */
const int32_t *carry_ids(const struct seq *q);
/* q, which may be carried, leaves the running ones: its second pages are released, at once or behind the
 * chunk that has rows of it. */
void carry_leave(struct seq *q);
/* Releases all second pages. 1: there were some. */
int carry_drop(struct carry *c);
/* The weights are swapped: what is left is released, and nothing is carried any more. */
void carry_end(struct carry *c);
/* 1: q has second pages with keys of its first rows, and no chunk is being computed into them. */
int carry_is_ready(const struct seq *q);
/* Moves these to *q, whose own pages have been released, with their n_kv. */
void carry_take(struct seq *q);

#endif
