/* column_reader.c - see column_reader.h. Round by round, so that no rank holds more than some MiBs of rows that
 * are not its own. */
#include "serve/weights/column_reader.h"

#include <stdlib.h>
#include <string.h>

#define ROUND_BYTES ((int64_t)4 << 20)

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
    for (int r = 0; rc == 0 && r < comm_size(tp); r++)
        rc = cache && c.all[r] != c.all[0];
    free(c.all);
    return rc;
}

struct exchange {
    struct comm *tp;
    int n, me;
    int64_t rows, cols, each; /* of the matrix; rows a rank reads in one round */
    size_t element;
    const struct box *mine;
    struct box *box;  /* of all ranks */
    char *row, *part; /* what was read; one rank's columns of it */
    char *got;        /* this rank's columns of what all have read, from rank after rank */
    int64_t round;
    struct ring *ring;
    char *dst;
};

/* Rows of rank r in a round: its share of the matrix from the front on. */
static int64_t rows_of(const struct exchange *x, int r, int64_t round, int64_t *first)
{
    int64_t begin = x->rows * r / x->n, end = x->rows * (r + 1) / x->n;
    *first = begin + round * x->each < end ? begin + round * x->each : end;
    return end - *first < x->each ? end - *first : x->each;
}

/* The columns of rank `to` in n rows that were read, side by side. */
static void pick(const struct exchange *x, int to, int64_t n)
{
    size_t width = (size_t)x->box[to].extent[1] * x->element;
    for (int64_t i = 0; i < n; i++)
        memcpy(x->part + (size_t)i * width, x->row + (size_t)(i * x->cols + x->box[to].start[1]) * x->element,
               width);
}

static int tell_boxes(void *arg, struct err *e)
{
    struct exchange *x = arg;
    return comm_all_gather(x->tp, x->box, x->mine, sizeof *x->box, e);
}

/* Behind the reading of a round, on all ranks: every rank gets its columns of what each has read. */
static int pass_on(void *arg, struct err *e)
{
    struct exchange *x = arg;
    size_t width = (size_t)x->mine->extent[1] * x->element;
    int64_t first, n = rows_of(x, x->me, x->round, &first);
    char *got = x->got;
    int rc;
    for (int to = 0; to < x->n; to++) {
        size_t bytes = (size_t)(n * x->box[to].extent[1]) * x->element;
        if (to == x->me || !bytes)
            continue;
        pick(x, to, n);
        TRY(comm_send(x->tp, x->part, bytes, to, e));
    }
    pick(x, x->me, n);
    for (int from = 0; from < x->n; from++) {
        size_t bytes = (size_t)rows_of(x, from, x->round, &first) * width;
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

/* This rank's thread again: what has come goes where it belongs. */
static int deliver(struct exchange *x, struct err *e)
{
    size_t width = (size_t)x->mine->extent[1] * x->element;
    const char *got = x->got;
    int64_t first;
    int rc = 0;
    for (int from = 0; from < x->n; from++) {
        size_t bytes = (size_t)rows_of(x, from, x->round, &first) * width;
        TRY(ring_put(x->ring, x->dst + (size_t)first * width, got, bytes, e));
        got += bytes;
    }
out:
    return rc;
}

static int read_round(struct exchange *x, column_reader_rows read, void *ctx, struct err *e)
{
    int64_t first, n = rows_of(x, x->me, x->round, &first);
    struct box b = { .n_dims = 2, .start = { first, 0 }, .extent = { n, x->cols } };
    return n ? read(ctx, &b, x->row, e) : 0;
}

int column_reader_read(struct background *a, struct comm *tp, const struct param *p, const struct box *mine,
                       size_t element, column_reader_rows read, void *ctx, struct ring *ring, void *dst,
                       struct err *e)
{
    struct exchange x = { .tp = tp,
                          .n = comm_size(tp),
                          .me = comm_rank(tp),
                          .rows = p->shape[0],
                          .cols = p->shape[1],
                          .element = element,
                          .mine = mine,
                          .ring = ring,
                          .dst = dst };
    int rc;
    x.each = ROUND_BYTES / (x.cols * (int64_t)element) + 1;
    x.box = calloc((size_t)x.n, sizeof *x.box);
    x.row = malloc((size_t)(x.each * x.cols) * element);
    x.part = malloc((size_t)(x.each * x.cols) * element);
    x.got = malloc((size_t)(x.each * x.n * mine->extent[1]) * element + 1);
    TRY(x.box && x.row && x.part && x.got ? 0 : err_set(e, ERR_MEMORY, "no memory for rows of %s", p->name));
    TRY(background_collective(a, tell_boxes, &x, e));
    /* as many for all: the largest share decides */
    for (; x.round * x.each < (x.rows + x.n - 1) / x.n; x.round++) {
        TRY(read_round(&x, read, ctx, e));
        TRY(background_collective(a, pass_on, &x, e));
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
