/* step_message.h - one step of the engine as rank 0 sends it to the other ranks: which rows of which
 * sequences, their pages, which rows want logits.
 *
 * A message is complete: between steps a rank keeps nothing but the bytes in its pages (and, between two
 * slices of a chunk that is carried over, its rows), so no two ranks can disagree about a sequence. One
 * broadcast of STEP_MESSAGE_INLINE words, which holds a step of decoding; a second one for what is
 * longer. In words of 4 bytes:
 *
 *     [ op | words | n_seq | n_rows | n_want | n_pages | wants_rows | first unit | last unit | 0 ]
 *     [ n_seq x (pos, rows, stale, adapter, released x 2) ]
 *     [ page numbers ] [ ids ] [ want ]
 *
 * A sequence's page numbers are those of group 0, then those of group 1, each behind the ones that are
 * released. */
#ifndef SHARDLINE_SERVE_ENGINE_STEP_MESSAGE_H
#define SHARDLINE_SERVE_ENGINE_STEP_MESSAGE_H

#include <stdint.h>
#include "comm/comm.h"
#include "kernels/kernels.h"
#include "serve/kv/kv.h"
#include "serve/engine/scheduler.h"

#define STEP_MESSAGE_INLINE 1024
enum step_op {
    STEP_IDLE,
    STEP_RUN,
    STEP_GUESS, /* a step of the draft model, on the ranks of its first stage (draft_model.h) */
    STEP_STOP,
    STEP_LOAD, /* from here on: commands; about a reload (reload.h) */
    STEP_SYNC,
    STEP_SWAP,
    STEP_DROP,
    STEP_ADAPTER, /* adapter_set.h */
    STEP_ADAPTER_DROP,
    STEP_PAGES, /* orders about pages (kv_disk.h), between two steps */
    STEP_CARRY  /* a slice: rows with weights that are swapped in later (carry_over.h) */
};

struct step_message {
    int32_t *word; /* the message */
    int64_t cap,
        cap_pages; /* capacity of word and page; they grow: sequences that share a page each name it */
    int max_seqs;
    char **page; /* [all pages of the sequences]: their addresses on this rank; NULL behind a window */
    /* set by step_message_map_pages(): */
    struct attn_seq *seq[PAGE_GROUPS]; /* [max_seqs] */
    int32_t *adapter;                  /* [max_seqs] slots (adapter_set.h); 0: none */
    int n_adapted;                     /* sequences with an adapter */

    /* of the message that was made or received; ids and want point into word: */
    enum step_op op;
    int n_seq;
    int64_t n_rows, n_want;
    int first_unit, last_unit; /* of STEP_CARRY: those that the slice runs; else 0 */
    int wants_rows; /* hidden states of the wanted rows go to the first rank, besides their logits */
    const int32_t *ids, *want; /* [n_rows] tokens; [n_want] rows */
};

/* Allocates for steps of max_seqs sequences; ERR_MEMORY. step_message_close() is safe on zeroes. */
int step_message_open(struct step_message *p, int max_seqs, struct err *e);
void step_message_close(struct step_message *p);
/* Rank 0: makes a message of op and, for STEP_RUN, STEP_GUESS and STEP_CARRY, the scheduler's items. ids_of:
 * the tokens of a sequence. ERR_MEMORY. */
int step_message_make(struct step_message *p, enum step_op op, const struct sched *s,
                      const int32_t *(*ids_of)(const struct seq *q), struct err *e);
/* Rank 0: sets the units that a message of STEP_CARRY runs. */
void step_message_set_units(struct step_message *p, int first, int last);
/* Rank 0: makes a message that carries a reload command in place of a step. text: at most RELOAD_PATH_MAX
 * bytes with its NUL. */
void step_message_command(struct step_message *p, enum step_op op, const char *text);
/* Rank 0: makes a message of n orders. ERR_MEMORY. */
int step_message_orders(struct step_message *p, const struct kv_order *o, int64_t n, struct err *e);
/* Those of such a message, valid until the next message; *n: how many. */
const struct kv_order *step_message_get_orders(const struct step_message *p, int64_t *n);
/* The text of such a message, valid until the next message. */
static inline const char *step_message_text(const struct step_message *p) { return (const char *)p->ids; }
/* Rank 0 sends the message, the other ranks receive it. ERR_MEMORY, or an error of the transport. Collective
 * over c. */
int step_message_broadcast(struct step_message *p, struct comm *c, struct err *e);
/* The same from a rank to another one of c. Not collective. */
int step_message_send(const struct step_message *p, struct comm *c, int to, struct err *e);
int step_message_receive(struct step_message *p, struct comm *c, int from, struct err *e);
/* Finds the pages on this rank, kv: of every group. Fills p->seq, and zeroes pages that a sequence enters in
 * this step and positions that wrong drafts have left stale; where a pass is cut into slices, in the first
 * one. ERR_MEMORY. Every rank, not collective. */
int step_message_map_pages(struct step_message *p, const struct kv kv[PAGE_GROUPS], struct err *e);

#endif
