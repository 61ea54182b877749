/* page_gather.h - keys and values that a step adds to divided sequences, from the place (step_share.h) where
 * they were computed to all others, layer by layer: whole pages, each written by one rank in a step.
 *
 *     rank r:  [ its first piece's page | the second one's | … ]   of one layer, STEP_PIECE positions each
 *     all ranks' together; a rank of another place copies some of them to the pages that its place shares
 *
 * Rounded values travel, so that all places have the same bytes. */
#ifndef SHARDLINE_SERVE_ENGINE_PAGE_GATHER_H
#define SHARDLINE_SERVE_ENGINE_PAGE_GATHER_H

#include "serve/engine/step_share.h"

struct page_gather {
    struct comm *cp; /* borrowed */
    struct dev *dev; /* borrowed */
    size_t bytes;    /* of a layer in a page */
    int64_t cap;     /* pages of a rank in one exchange; more take several */
    char *all;       /* comm memory [ranks][cap][bytes] */
};
/* Bytes of the buffer. ranks: of cp; rows: of a step, at most; bytes: of a layer in a page. */
size_t page_gather_measure(int ranks, int64_t rows, size_t bytes);
/* ERR_MEMORY. page_gather_close() is safe on zeroes. Not collective. */
int page_gather_open(struct page_gather *g, struct comm *cp, struct dev *dev, int64_t rows, size_t bytes,
                     struct err *e);
void page_gather_close(struct page_gather *g);
/* The layer at page_off in the pages of a page group of m. Collective over cp. */
int page_gather_layer(struct page_gather *g, const struct step_share *s, const struct step_message *m,
                      int group, size_t page_off, struct err *e);

#endif
