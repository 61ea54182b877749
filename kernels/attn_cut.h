/* attn_cut.h - where the rows of cut sequences lie (struct attn_cut of kernels.h), for the texts of attn_dx.
 *
 *     C = 2, 4 chunks of a sequence:  0 1 2 3      rows: [ 0 3 | 1 2 ]      leaf 0 | leaf 1
 *
 * Source of the pairs of chunks: Llama 3 (Grattafiori et al. 2024), section 3.3.2: every leaf has as many
 * (query, key) pairs. */
#ifndef SHARDLINE_KERNELS_ATTN_CUT_H
#define SHARDLINE_KERNELS_ATTN_CUT_H

#include "kernels/kernels.h"

/* Neighbouring positions [begin, end) of a document, whose first query is in row `row`. */
struct attn_run {
    int64_t begin, end, row;
};

/* The documents of an attn_dx: whole sequences where they are not cut. */
SMALL_FN int attn_docs(const struct attn *a) { return a->cut.count ? a->cut.n_docs : a->n_seq; }
SMALL_FN const struct attn_seq *attn_doc(const struct attn *a) { return a->cut.count ? a->cut.doc : a->seq; }
/* Leaves whose queries are here. */
SMALL_FN int attn_leaves(const struct attn *a) { return a->cut.count && !a->cut.one ? a->cut.count : 1; }

/* The row of key `key` of a document in dk and dv. */
SMALL_FN int64_t attn_key_row(const struct attn *a, const struct attn_seq *doc, int64_t key)
{
    const int64_t token = doc->row + key;
    if (!a->cut.count)
        return token;
    const int64_t chunks = 2 * a->cut.n_leaves, chunk = a->cut.len / chunks, at = token % a->cut.len;
    const int64_t c = at / chunk, first_half = c < a->cut.n_leaves;
    return token - at + (first_half ? 2 * c : 2 * (chunks - 1 - c) + 1) * chunk + at % chunk;
}

/* Half 0 or 1 of the leaf-th of these leaves, as far as the document has it; begin >= end: not at all. */
SMALL_FN struct attn_run attn_run_of(const struct attn *a, const struct attn_seq *doc, int leaf, int half)
{
    struct attn_run r = { 0, half ? 0 : doc->n_rows, doc->row };
    if (!a->cut.count)
        return r;
    if (a->cut.one)
        leaf = a->cut.one - 1;
    const int64_t chunks = 2 * a->cut.n_leaves, chunk = a->cut.len / chunks, g = a->cut.first + leaf;
    const int64_t from = doc->row % a->cut.len, begin = (half ? chunks - 1 - g : g) * chunk - from;
    const int64_t row = doc->row / a->cut.len * a->cut.count * 2 * chunk + (2 * leaf + half) * chunk;
    r.begin = begin > 0 ? begin : 0;
    r.end = begin + chunk < doc->n_rows ? begin + chunk : doc->n_rows;
    r.row = row + r.begin - begin;
    return r;
}

/* The run's blocks of 64 positions of the document from block `from` on, before block `end`: how many;
 * *first: the first of them. A block that a run begins or ends in is a block of fewer queries. */
SMALL_FN int64_t attn_run_blocks(const struct attn_run *r, int64_t from, int64_t end, int64_t *first)
{
    const int64_t low = r->begin / ATTN_PAGE, high = (r->end + ATTN_PAGE - 1) / ATTN_PAGE;
    *first = low > from ? low : from;
    const int64_t last = high < end ? high : end;
    return r->begin < r->end && last > *first ? last - *first : 0;
}

/* Positions of block b of a run: [*t0, *t0 + n), n the return value. */
SMALL_FN int64_t attn_run_block(const struct attn_run *r, int64_t b, int64_t *t0)
{
    const int64_t end = (b + 1) * ATTN_PAGE < r->end ? (b + 1) * ATTN_PAGE : r->end;
    *t0 = b * ATTN_PAGE > r->begin ? b * ATTN_PAGE : r->begin;
    return end - *t0;
}

#endif
