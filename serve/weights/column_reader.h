/* column_reader.h - matrices that tp cuts by columns, read from a server by ranks that share no cache:
 * thousands of short runs each, so every rank reads whole rows instead, its share of them, and passes the
 * columns on. Everybody's bytes together are the matrix once. */
#ifndef SHARDLINE_SERVE_WEIGHTS_COLUMN_READER_H
#define SHARDLINE_SERVE_WEIGHTS_COLUMN_READER_H

#include "kernels/ring.h"
#include "model/params.h"
#include "serve/weights/background.h"

/* Box b, whole rows, in the arithmetic's dtype. */
typedef int (*column_reader_rows)(void *ctx, const struct box *b, void *dst, struct err *e);

/* Both in the thread of a, on every rank of tp. 1: the ranks of tp read from servers through caches of their
 * own; 0: they share one, or the files are here. */
int column_reader_needed(struct background *a, struct comm *tp, uint64_t cache, struct err *e);
/* dst gets box mine of p through the ring; element: its bytes. A rank that cannot read ends with its error,
 * the others are stopped by a. */
int column_reader_read(struct background *a, struct comm *tp, const struct param *p, const struct box *mine,
                       size_t element, column_reader_rows read, void *ctx, struct ring *ring, void *dst,
                       struct err *e);

#endif
