/* pack.h - conversations to rows: whole ones, several to a row where they fit. */
#ifndef SHARDLINE_TRAIN_DATA_PACK_H
#define SHARDLINE_TRAIN_DATA_PACK_H

#include <stdint.h>
#include "base/err.h"

/* Row r has the documents doc[first[r]] to doc[first[r + 1] - 1], ascending. Rows are in the order of their
 * first documents. */
struct pack {
    int64_t n_rows, n_cut;
    int64_t *first, *doc;
};

/* Packs n documents of end[i] - end[i - 1] tokens into rows of `room` tokens, at most `most` in one. A longer
 * document counts as `room` tokens and has a row alone: n_cut of them. Best fit, the longest first: a
 * function of its arguments alone. pack_free() also after an error. ERR_MEMORY: out of memory. */
int pack_make(struct pack *p, const int64_t *end, int64_t n, int64_t room, int most, struct err *e);
void pack_free(struct pack *p);

#endif
