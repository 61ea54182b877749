/* step_share.h - which rows of a step this rank computes (--cp): the ranks of cp divide the rows of every
 * step, of a long prompt's chunk as of decoding. Those that share memory share the pages.
 *
 *     a chunk of 8 pages of a prompt, cp 2:   [ 0 | 1 | 1 | 0 | 0 | 1 | 1 | 0 ]
 *
 * A sequence's rows are cut where its pages begin, so that one rank writes a page in a step. The pieces go to
 * the rank with the least work so far, the last ones of a sequence first: those see the most keys. A run of
 * neighbouring pieces of a rank is one attn_seq at the position of its first row, over the sequence's pages.
 * Every rank deals alike, from the step message alone. A row has the same bits wherever it is computed.
 *
 * Where ranks lie on several machines, or have a GPU each, a *place* is a set of ranks that share memory. The
 * pages of divided sequences go from place to place (page_gather.h); a sequence of one piece is computed at
 * every place, which costs less than to send its keys in every layer of a step of decoding. */
#ifndef SHARDLINE_SERVE_ENGINE_STEP_SHARE_H
#define SHARDLINE_SERVE_ENGINE_STEP_SHARE_H

#include "serve/engine/step_message.h"

/* Rows of a piece, at most. */
#define STEP_PIECE KV_PAGE
/* The most rows that one of the ranks of a place computes of a step of so many. */
static inline int64_t step_share_rows(int64_t rows, int ranks)
{
    int64_t each = (rows + ranks - 1) / ranks + STEP_PIECE;
    return ranks > 1 && each < rows ? each : rows;
}

/* everywhere: `rank` is that of the first place, and the ranks that stand for it at other places compute the
 * piece too. */
struct step_piece {
    int seq, rank, everywhere;
    int64_t row, n_rows; /* in the step */
};
struct step_share {
    int n, rank;       /* size of cp, this rank in it */
    int place;         /* ranks of a place: neighbours */
    int64_t rank_rows; /* a rank's rows at most */
    double row_cost;   /* of a row besides attention, in keys that a row attends to */
    int64_t cap;       /* pieces, at most */
    struct step_piece *piece;
    double *work; /* [n] */

    /* of the step that was dealt last: */
    int n_pieces;
    int divided;                       /* some sequence has rows on several ranks */
    int64_t *rows;                     /* [n] of every rank */
    int64_t *wants;                    /* [n] of these, those that want logits and that it gives */
    struct attn_seq *seq[PAGE_GROUPS]; /* [cap] this rank's runs, */
    int32_t *adapter;                  /* [cap] the slots of their adapters, */
    int n_seq;                         /* so many */
    int32_t *ids, *want;               /* [rank_rows] this rank's tokens; its rows that want logits */
    int32_t *order; /* [max_wants] of the step's i-th wanted row: its place when ranks list theirs in turn */
};

/* What a share is dealt from. hidden: of the model. */
struct step_share_open {
    int n, rank, place, max_seqs;
    int64_t rows, max_wants; /* of a step, at most */
    int64_t hidden;
};
/* ERR_MEMORY. step_share_close() is safe on zeroes and after an error. */
int step_share_open(struct step_share *s, const struct step_share_open *how, struct err *e);
void step_share_close(struct step_share *s);
/* Deals the step of a message whose pages are mapped. Not collective. */
void step_share_deal(struct step_share *s, const struct step_message *p);

#endif
