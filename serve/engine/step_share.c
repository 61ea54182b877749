/* step_share.c - see step_share.h. */
#include "serve/engine/step_share.h"

#include <stdlib.h>
#include <string.h>

/* A layer's products of one row take about as long as its attention to so many keys a hidden component. */
#define ROW_COST 6

int step_share_open(struct step_share *s, const struct step_share_open *how, struct err *e)
{
    int64_t rows = step_share_rows(how->rows, how->place);
    *s = (struct step_share){ .n = how->n,
                              .rank = how->rank,
                              .place = how->place,
                              .rank_rows = rows,
                              .row_cost = (double)(ROW_COST * how->hidden),
                              .cap = how->rows / STEP_PIECE + 2 * (int64_t)how->max_seqs };
    s->piece = calloc((size_t)s->cap, sizeof *s->piece);
    s->work = calloc((size_t)s->n, sizeof *s->work);
    s->rows = calloc((size_t)s->n, sizeof *s->rows);
    s->wants = calloc((size_t)s->n, sizeof *s->wants);
    s->ids = calloc((size_t)rows, sizeof *s->ids);
    s->want = calloc((size_t)rows, sizeof *s->want);
    s->order = calloc((size_t)how->max_wants, sizeof *s->order);
    for (int g = 0; g < PAGE_GROUPS; g++)
        s->seq[g] = calloc((size_t)s->cap, sizeof *s->seq[g]);
    s->adapter = calloc((size_t)s->cap, sizeof *s->adapter);
    if (s->piece && s->work && s->rows && s->wants && s->ids && s->want && s->order && s->seq[0] &&
        s->seq[1] && s->adapter)
        return 0;
    return err_set(e, ERR_MEMORY,
                   "no memory to divide steps of %lld rows: lower --prefill-chunk or --max-batch",
                   (long long)how->rows);
}

void step_share_close(struct step_share *s)
{
    free(s->piece);
    free(s->work);
    free(s->rows);
    free(s->wants);
    free(s->ids);
    free(s->want);
    free(s->order);
    free(s->adapter);
    for (int g = 0; g < PAGE_GROUPS; g++)
        free(s->seq[g]);
    memset(s, 0, sizeof *s);
}

/* Cuts the rows of a sequence where its pages begin. */
static void cut(struct step_share *s, int seq, const struct attn_seq *q)
{
    int whole = (q->pos + q->n_rows - 1) / STEP_PIECE == q->pos / STEP_PIECE;
    for (int64_t done = 0, n; done < q->n_rows; done += n) {
        int64_t left = q->n_rows - done;
        n = STEP_PIECE - (q->pos + done) % STEP_PIECE;
        n = n < left ? n : left;
        s->piece[s->n_pieces++] = (struct step_piece){
            .seq = seq, .everywhere = whole && s->place < s->n, .row = q->row + done, .n_rows = n
        };
    }
}

/* The rank with the least work of the first `among` that have room for n rows: there always is one
 * (step_share_rows). */
static int idlest(const struct step_share *s, int among, int64_t n)
{
    int best = -1;
    for (int r = 0; r < among; r++)
        if (s->rows[r] + n <= s->rank_rows && (best < 0 || s->work[r] < s->work[best]))
            best = r;
    return best < 0 ? 0 : best;
}

/* Does the rank compute the piece? */
static int computes(const struct step_share *s, const struct step_piece *p, int rank)
{
    return p->everywhere ? rank % s->place == p->rank : rank == p->rank;
}

/* Deals the pieces that every place computes, or the others. */
static void assign(struct step_share *s, const struct attn_seq *seq, int everywhere)
{
    for (int i = s->n_pieces - 1; i >= 0; i--) {
        struct step_piece *p = &s->piece[i];
        const struct attn_seq *q = &seq[p->seq];
        double keys = (double)(q->pos + p->row - q->row) + (double)p->n_rows / 2;
        if (p->everywhere != everywhere)
            continue;
        p->rank = idlest(s, everywhere ? s->place : s->n, p->n_rows);
        for (int r = 0; r < s->n; r++) {
            if (!computes(s, p, r))
                continue;
            s->rows[r] += p->n_rows;
            s->work[r] += (double)p->n_rows * (s->row_cost + keys);
        }
    }
}

/* Adds a piece of this rank to its rows; follows: it goes on where the last run ends. */
static void add_run(struct step_share *s, const struct step_message *m, const struct step_piece *p,
                    int follows)
{
    int64_t at = s->rows[s->rank];

    memcpy(s->ids + at, m->ids + p->row, sizeof *s->ids * (size_t)p->n_rows);
    for (int g = 0; g < PAGE_GROUPS; g++) {
        const struct attn_seq *q = &m->seq[g][p->seq];
        if (follows)
            s->seq[g][s->n_seq - 1].n_rows += p->n_rows;
        else
            s->seq[g][s->n_seq] = (struct attn_seq){
                .row = at, .n_rows = p->n_rows, .pos = q->pos + p->row - q->row, .page = q->page
            };
    }
    if (!follows)
        s->adapter[s->n_seq++] = m->adapter[p->seq];
}

/* This rank's runs and tokens; which rows want logits, on every rank. */
static void list_rows(struct step_share *s, const struct step_message *m)
{
    int64_t wanted = 0;

    memset(s->rows, 0, sizeof *s->rows * (size_t)s->n);
    memset(s->wants, 0, sizeof *s->wants * (size_t)s->n);
    s->n_seq = s->divided = 0;
    for (int i = 0; i < s->n_pieces; i++) {
        const struct step_piece *p = &s->piece[i], *before = p - 1;
        int same_seq = i && before->seq == p->seq, mine = computes(s, p, s->rank);

        s->divided |= same_seq && (before->rank != p->rank || s->place < s->n);
        if (mine)
            add_run(s, m, p, same_seq && before->rank == p->rank);
        for (; wanted < m->n_want && m->want[wanted] < p->row + p->n_rows; wanted++) {
            if (p->rank == s->rank)
                s->want[s->wants[p->rank]] = (int32_t)(s->rows[p->rank] + m->want[wanted] - p->row);
            s->order[wanted] = (int32_t)s->wants[p->rank]++;
        }
        for (int r = 0; r < s->n; r++)
            s->rows[r] += computes(s, p, r) ? p->n_rows : 0;
    }
}

/* From an index among a rank's wanted rows to one among those of all ranks. */
static void finish_order(struct step_share *s, const struct step_message *m)
{
    int64_t i = 0;
    for (int k = 0; k < s->n_pieces; k++) {
        const struct step_piece *p = &s->piece[k];
        int64_t before = 0;
        for (int r = 0; r < p->rank; r++)
            before += s->wants[r];
        for (; i < m->n_want && m->want[i] < p->row + p->n_rows; i++)
            s->order[i] += (int32_t)before;
    }
}

void step_share_deal(struct step_share *s, const struct step_message *m)
{
    s->n_pieces = 0;
    for (int i = 0; i < m->n_seq; i++)
        cut(s, i, &m->seq[0][i]);
    memset(s->work, 0, sizeof *s->work * (size_t)s->n);
    memset(s->rows, 0, sizeof *s->rows * (size_t)s->n);
    assign(s, m->seq[0], 1);
    assign(s, m->seq[0], 0);
    list_rows(s, m);
    finish_order(s, m);
}
