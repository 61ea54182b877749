/* columns.c - see columns.h. Round by round, so that no rank holds more than some MiBs of rows that are not its own. */
#include "serve/columns.h"

#include <stdlib.h>
#include <string.h>

#define ROUND_BYTES ((int64_t)4 << 20)

int columns_wanted(struct comm *tp, uint64_t cache, struct err *e)
{
    uint64_t *all = calloc((size_t)comm_size(tp), sizeof *all);
    int rc = all ? comm_all_gather(tp, all, &cache, sizeof cache, e) : err_set(e, ERR_MEMORY, "no memory to compare caches");
    for (int r = 0; rc == 0 && r < comm_size(tp); r++)
        rc = cache && all[r] != all[0];
    free(all);
    return rc;
}

struct exchange {
    struct comm *tp;
    int n, me;
    int64_t rows, cols, each;          /* of the matrix; rows a rank reads in one round */
    size_t element;
    const struct box *box;             /* of all ranks */
    char *row, *part;                  /* what was read; one rank's columns of it */
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
        memcpy(x->part + (size_t)i * width, x->row + (size_t)(i * x->cols + x->box[to].start[1]) * x->element, width);
}

static int run_round(struct exchange *x, int64_t round, columns_rows read, void *ctx, char *dst, struct err *e)
{
    size_t width = (size_t)x->box[x->me].extent[1] * x->element;
    int64_t first, n = rows_of(x, x->me, round, &first);
    struct box b = { .n_dims = 2, .start = { first, 0 }, .extent = { n, x->cols } };
    int rc = n ? read(ctx, &b, x->row, e) : 0;
    TRY(comm_agree(x->tp, rc, e));
    for (int to = 0; to < x->n; to++) {
        size_t bytes = (size_t)(n * x->box[to].extent[1]) * x->element;
        pick(x, to, n);
        if (to == x->me)
            memcpy(dst + (size_t)first * width, x->part, bytes);
        else if (bytes)
            TRY(comm_send(x->tp, x->part, bytes, to, e));
    }
    for (int from = 0; from < x->n; from++) {
        int64_t m = rows_of(x, from, round, &first);
        if (from != x->me && m && width)
            TRY(comm_recv(x->tp, dst + (size_t)first * width, (size_t)m * width, from, e));
    }
    rc = 0;
out:
    return rc;
}

int columns_read(struct comm *tp, const struct param *p, const struct box *mine, size_t element, columns_rows read, void *ctx, void *dst, struct err *e)
{
    struct exchange x = { .tp = tp, .n = comm_size(tp), .me = comm_rank(tp), .rows = p->shape[0], .cols = p->shape[1], .element = element };
    struct box *box = calloc((size_t)x.n, sizeof *box);
    int rc = 0;
    x.each = ROUND_BYTES / (x.cols * (int64_t)element) + 1;
    x.row = malloc((size_t)(x.each * x.cols) * element);
    x.part = malloc((size_t)(x.each * x.cols) * element);
    if (!box || !x.row || !x.part)
        rc = err_set(e, ERR_MEMORY, "no memory for rows of %s", p->name);
    TRY(comm_agree(tp, rc, e));
    TRY(comm_all_gather(tp, box, mine, sizeof *box, e));
    x.box = box;
    for (int64_t round = 0; round * x.each < (x.rows + x.n - 1) / x.n; round++)       /* as many for all: the largest share decides */
        TRY(run_round(&x, round, read, ctx, dst, e));
    rc = 0;
out:
    free(box);
    free(x.row);
    free(x.part);
    return rc < 0 ? rc : 0;
}
