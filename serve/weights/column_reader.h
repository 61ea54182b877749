/* column_reader.h - reading of matrices that tp cuts by columns, from a server, by ranks that share no cache.
 *
 * A rank's columns are thousands of short byte ranges. So every rank reads whole rows instead, its share of
 * them, and sends the other ranks their columns. All ranks together read the matrix once. */
#ifndef SHARDLINE_SERVE_WEIGHTS_COLUMN_READER_H
#define SHARDLINE_SERVE_WEIGHTS_COLUMN_READER_H

#include "kernels/ring.h"
#include "model/params.h"
#include "serve/weights/background.h"

/* Reads box b (whole rows of the matrix) to dst, in the dtype of arithmetic. */
typedef int (*column_reader_rows)(void *ctx, const struct box *b, void *dst, struct err *e);

struct column_read {
    const struct param *p;   /* the matrix, [rows][columns] */
    const struct box *mine;  /* this rank's box of it: all rows, some columns */
    size_t element;          /* bytes of an element at dst */
    column_reader_rows read; /* called in the task's thread */
    void *ctx;
    struct ring *ring; /* the bytes pass through it to dst */
    void *dst;         /* [box_count(mine)] elements, host or device memory; the caller's */
};

/* 1: the ranks of tp read from servers through caches of their own, or only some of them have the files, so
 * column_reader_read() is worthwhile; 0: they share one cache, or the files are local; or an error. cache:
 * this rank's cache (ckpt_cache()), 0 for none. In the thread of background task a, on every rank of tp (it
 * makes a collective call). */
int column_reader_needed(struct background *a, struct comm *tp, uint64_t cache, struct err *e);
/* Fills c->dst. A rank that cannot read returns its own error; a stops the other ranks (ERR_STOPPED).
 * ERR_MEMORY. In the thread of background task a, on every rank of tp (it makes collective calls). */
int column_reader_read(struct background *a, struct comm *tp, const struct column_read *c, struct err *e);

#endif
