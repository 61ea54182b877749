/* row_shares.c - between products: rows come together before a column-parallel product and are summed over
 * tp after a row-parallel one, all on every rank, or (sequence parallel, Korthikanti et al. 2022, section
 * 4.2.2) a share of every sequence on each.
 *
 *     2 sequences on 2 ranks, own rows:  rank 0 [ a0 b0 ]  rank 1 [ a1 b1 ]     all rows, as products see
 *     them: [ a0 a1 b0 b1 ]
 *
 * A share is a whole number of GRAIN blocks. A reduce-scatter adds in the order of the all-reduce: the bits
 * are the same. */
#include "model/units.h"

int64_t rows_first(const struct model *m, const struct seq_rows *r)
{
    return rows_shared(r) ? comm_rank(m->tp) * r->own_len : 0;
}

struct mat rows_gathered(const struct model *m, const struct seq_rows *r)
{
    return mat_of(m->all_rows, m->dt, rows_all(r), m->hidden, m->hidden);
}

/* Nobody writes into all_rows before all ranks have come here (they are done with what was there): the first
 * gather sees to that. */
int rows_gather(const struct model *m, const struct seq_rows *r, struct mat own, struct mat *all,
                struct err *e)
{
    size_t row = (size_t)m->hidden * dtype_size(m->dt), part = (size_t)r->own_len * row;
    int rc = 0;
    *all = own;
    if (!rows_shared(r))
        return 0;
    *all = rows_gathered(m, r);
    for (int s = 0; s < r->n_seq; s++) {
        char *to = (char *)all->p + (size_t)(s * r->len) * row, *place = to + (size_t)rows_first(m, r) * row;
        const char *in = (const char *)own.p + (size_t)s * part;
        if (s)
            dev_copy(m->dev, place, in, part);
        TRY(comm_all_gather_shared(m->tp, to, s ? place : in, part, e));
    }
out:
    return rc;
}

/* Every sequence's sums are left where its share lies; then the shares are moved together: nobody reads
 * there any more. */
int rows_sum(const struct model *m, const struct seq_rows *r, int64_t more, struct mat *own, struct err *e)
{
    int64_t part = r->own_len * m->hidden, first = rows_first(m, r) * m->hidden;
    int rc = 0;
    *own = mat_of(m->sum_rows, DT_F32, rows_own(r), m->hidden, m->hidden);
    if (!rows_shared(r))
        return comm_all_reduce(m->tp, m->sum_rows, rows_all(r) * m->hidden + more, e);
    for (int s = 0; s < r->n_seq; s++) {
        float *in = m->sum_rows + s * r->len * m->hidden;
        TRY(comm_reduce_scatter(m->tp, in + first, in, part, e));
    }
    /* a share is half of a sequence at most: no overlap */
    for (int s = first ? 0 : 1; s < r->n_seq; s++)
        dev_copy(m->dev, m->sum_rows + s * part, m->sum_rows + s * r->len * m->hidden + first,
                 (size_t)part * sizeof(float));
    if (more)
        TRY(comm_all_reduce(m->tp, m->sum_rows + rows_all(r) * m->hidden, more, e));
out:
    return rc;
}
