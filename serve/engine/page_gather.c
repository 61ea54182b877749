/* page_gather.c - see page_gather.h. */
#include "serve/engine/page_gather.h"

#include <string.h>

/* A chunk's pages divided among the ranks, and one more where they do not divide evenly. */
static int64_t capacity(int ranks, int64_t rows) { return rows / STEP_PIECE / ranks + 1; }

size_t page_gather_measure(int ranks, int64_t rows, size_t bytes)
{
    return (size_t)(ranks * capacity(ranks, rows)) * bytes;
}

int page_gather_open(struct page_gather *g, struct comm *cp, struct dev *dev, int64_t rows, size_t bytes,
                     struct err *e)
{
    int n = comm_size(cp);
    *g = (struct page_gather){ .cp = cp, .dev = dev, .bytes = bytes, .cap = capacity(n, rows) };
    g->all = comm_alloc(cp, MEM_COMM, page_gather_measure(n, rows, bytes));
    return g->all ? 0
                  : err_set(e, ERR_MEMORY,
                            "no memory to exchange keys and values of steps of %lld rows: lower "
                            "--prefill-chunk",
                            (long long)rows);
}

void page_gather_close(struct page_gather *g)
{
    if (g->cp)
        comm_free(g->cp, g->all);
    memset(g, 0, sizeof *g);
}

/* One exchange: pages [lo, lo + each) of every rank's, of one layer. */
struct part {
    const struct step_share *share;
    const struct step_message *message;
    int group;
    size_t page_off;
    int64_t lo, each;
};

/* Does the piece travel? Then it is one of p->rank's. */
static int travels(const struct step_piece *p, int rank) { return !p->everywhere && p->rank == rank; }

static int64_t n_travelling(const struct step_share *s, int rank)
{
    int64_t n = 0;
    for (int i = 0; i < s->n_pieces; i++)
        n += travels(&s->piece[i], rank);
    return n;
}

/* Copies a rank's pages of the part: this rank's to the buffer; those of another place from it, where each
 * rank of this place copies some. */
static void copy_pages(const struct page_gather *g, const struct part *x, int rank)
{
    const struct step_share *s = x->share;
    int64_t at = -x->lo - 1;
    for (int i = 0; i < s->n_pieces; i++) {
        const struct step_piece *p = &s->piece[i];
        const struct attn_seq *q = &x->message->seq[x->group][p->seq];
        at += travels(p, rank);
        if (!travels(p, rank) || at < 0 || at >= x->each)
            continue;

        char *page = q->page[(q->pos + p->row - q->row) / STEP_PIECE] + x->page_off;
        char *slot = g->all + (size_t)(rank * x->each + at) * g->bytes;
        if (rank == s->rank)
            dev_copy(g->dev, slot, page, g->bytes);
        else if (at % s->place == s->rank % s->place)
            dev_copy(g->dev, page, slot, g->bytes);
    }
}

int page_gather_layer(struct page_gather *g, const struct step_share *s, const struct step_message *m,
                      int group, size_t page_off, struct err *e)
{
    struct part x = { s, m, group, page_off, 0, g->cap };
    int64_t most = 0;
    int rc = 0;

    for (int r = 0; r < s->n; r++)
        most = n_travelling(s, r) > most ? n_travelling(s, r) : most;
    for (; x.lo < most; x.lo += g->cap) {
        x.each = most - x.lo < g->cap ? most - x.lo : g->cap;
        size_t bytes = (size_t)x.each * g->bytes;
        copy_pages(g, &x, s->rank);
        TRY(comm_all_gather(g->cp, g->all, g->all + (size_t)s->rank * bytes, bytes, e));
        for (int r = 0; r < s->n; r++)
            if (r / s->place != s->rank / s->place)
                copy_pages(g, &x, r);
    }
    rc = s->place > 1 ? comm_barrier(g->cp, e) : 0;
out:
    return rc;
}
