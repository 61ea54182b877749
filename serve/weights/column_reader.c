/* column_reader.c - see column_reader.h. The matrix is read round by round, so that a rank holds a few MiB of
 * rows that are not its own. */
#include "serve/weights/column_reader.h"

#include <stdlib.h>
#include <string.h>

#define ROUND_BYTES ((int64_t)4 << 20) /* that a rank reads in one round, about */

/* ---- is it worthwhile ---- */

struct caches {
    struct comm *tp;
    uint64_t mine, *all;
};
static int compare_caches(void *arg, struct err *e)
{
    struct caches *c = arg;
    return comm_all_gather(c->tp, c->all, &c->mine, sizeof c->mine, e);
}

int column_reader_needed(struct background *a, struct comm *tp, uint64_t cache, struct err *e)
{
    struct caches c = { tp, cache, calloc((size_t)comm_size(tp), sizeof cache) };
    int rc = c.all ? background_collective(a, compare_caches, &c, e)
                   : err_set(e, ERR_MEMORY, "no memory to compare caches");
    for (int r = 0; rc == 0 && r < comm_size(tp); r++) /* the same on every rank */
        rc = c.all[r] != c.all[0];
    free(c.all);
    return rc;
}

/* ---- reading ---- */

struct column_exchange {
    const struct column_read *c;
    struct comm *tp;
    int n, me;
    int64_t rows, cols, each; /* of the matrix; rows that a rank reads in one round */
    struct box *box;          /* [n] boxes of all ranks */
    char *row, *part;         /* the rows read in this round; one rank's columns of them */
    char *got;                /* this rank's columns of what all ranks have read, in the order of ranks */
    int64_t round;
};

/* Bytes of a row of this rank's box. */
static size_t own_width(const struct column_exchange *x)
{
    return (size_t)x->c->mine->extent[1] * x->c->element;
}

/* Rows of rank r in a round, from *first on: the next part of its share of the matrix. */
static int64_t rows_of(const struct column_exchange *x, int r, int64_t round, int64_t *first)
{
    int64_t begin = x->rows * r / x->n;
    int64_t end = x->rows * (r + 1) / x->n;
    *first = begin + round * x->each < end ? begin + round * x->each : end;
    return end - *first < x->each ? end - *first : x->each;
}

/* Copies the columns of rank `to` in the first n rows that were read to x->part, side by side. */
static void pick(const struct column_exchange *x, int to, int64_t n)
{
    size_t element = x->c->element;
    size_t width = (size_t)x->box[to].extent[1] * element;
    for (int64_t i = 0; i < n; i++) {
        const char *from = x->row + (size_t)(i * x->cols + x->box[to].start[1]) * element;
        memcpy(x->part + (size_t)i * width, from, width);
    }
}

static int gather_boxes(void *arg, struct err *e)
{
    struct column_exchange *x = arg;
    return comm_all_gather(x->tp, x->box, x->c->mine, sizeof *x->box, e);
}

/* After all ranks have read their rows of a round: sends every rank its columns. Collective, main thread. */
static int exchange_columns(void *arg, struct err *e)
{
    struct column_exchange *x = arg;
    int64_t first, n = rows_of(x, x->me, x->round, &first);
    char *got = x->got;
    int rc;

    for (int to = 0; to < x->n; to++) {
        size_t bytes = (size_t)(n * x->box[to].extent[1]) * x->c->element;
        if (to == x->me || !bytes)
            continue;
        pick(x, to, n);
        TRY(comm_send(x->tp, x->part, bytes, to, e));
    }

    pick(x, x->me, n);
    for (int from = 0; from < x->n; from++) {
        size_t bytes = (size_t)rows_of(x, from, x->round, &first) * own_width(x);
        if (from == x->me)
            memcpy(got, x->part, bytes);
        else if (bytes)
            TRY(comm_recv(x->tp, got, bytes, from, e));
        got += bytes;
    }

    rc = 0;
out:
    return rc;
}

/* Puts what has been received to its place. The task's thread. */
static int deliver(struct column_exchange *x, struct err *e)
{
    const char *got = x->got;
    int64_t first;
    int rc = 0;
    for (int from = 0; from < x->n; from++) {
        size_t bytes = (size_t)rows_of(x, from, x->round, &first) * own_width(x);
        char *dst = (char *)x->c->dst + (size_t)first * own_width(x);
        TRY(ring_put(x->c->ring, dst, got, bytes, e));
        got += bytes;
    }
out:
    return rc;
}

static int read_round(struct column_exchange *x, struct err *e)
{
    int64_t first, n = rows_of(x, x->me, x->round, &first);
    struct box b = { .n_dims = 2, .start = { first, 0 }, .extent = { n, x->cols } };
    return n ? x->c->read(x->c->ctx, &b, x->row, e) : 0;
}

int column_reader_read(struct background *a, struct comm *tp, const struct column_read *c, struct err *e)
{
    struct column_exchange x = { .c = c,
                                 .tp = tp,
                                 .n = comm_size(tp),
                                 .me = comm_rank(tp),
                                 .rows = c->p->shape[0],
                                 .cols = c->p->shape[1] };
    int rc;

    x.each = ROUND_BYTES / (x.cols * (int64_t)c->element) + 1;
    x.box = calloc((size_t)x.n, sizeof *x.box);
    x.row = malloc((size_t)(x.each * x.cols) * c->element);
    x.part = malloc((size_t)(x.each * x.cols) * c->element);
    x.got = malloc((size_t)(x.each * x.n) * own_width(&x) + 1);
    if (!x.box || !x.row || !x.part || !x.got) {
        rc = err_set(e, ERR_MEMORY, "no memory for rows of %s", c->p->name);
        goto out;
    }

    /* every rank makes as many rounds as the largest share needs: each round is a collective call */
    TRY(background_collective(a, gather_boxes, &x, e));
    for (; x.round * x.each < (x.rows + x.n - 1) / x.n; x.round++) {
        TRY(read_round(&x, e));
        TRY(background_collective(a, exchange_columns, &x, e));
        TRY(deliver(&x, e));
    }

    rc = 0;
out:
    free(x.box);
    free(x.row);
    free(x.part);
    free(x.got);
    return rc;
}
