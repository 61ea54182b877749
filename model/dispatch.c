/* dispatch.c - see dispatch.h. */
#include "model/dispatch.h"

#include <math.h>
#include <string.h>
#include "base/alter.h"

/* Leaves of the group; blocks of a round. */
static int n_leaves(const struct arrivals *a) { return a->ep / a->tp * a->n_seq; }
static int n_blocks(const struct arrivals *a) { return a->n_leaf * a->tp * a->parts; }
static int n_counts(const struct arrivals *a) { return a->n_seq * a->parts; }
static int first_of(const struct arrivals *a, int rank) { return dispatch_first(a->n_experts, a->ep, rank); }
static int first_local(const struct arrivals *a) { return first_of(a, a->rank); }
static int n_of(const struct arrivals *a, int rank) { return first_of(a, rank + 1) - first_of(a, rank); }
static int n_local(const struct arrivals *a) { return n_of(a, a->rank); }

/* ---- memory ---- */

/* Of one token: as many of its experts as one rank can have. */
static int64_t most_chosen(const struct arrivals *a, int rank)
{
    int n = n_of(a, rank);
    return a->k < n ? a->k : n;
}

int64_t arrivals_worst(const struct arrivals *a, int rank)
{
    return n_leaves(a) * a->leaf_rows * most_chosen(a, rank);
}

int64_t arrivals_least(const struct arrivals *a, int rank)
{
    int n = a->joined < n_leaves(a) ? a->joined : n_leaves(a);
    return n * a->leaf_rows * most_chosen(a, rank);
}

int64_t arrivals_even(const struct arrivals *a, int rank)
{
    int64_t all = n_leaves(a) * a->leaf_rows * a->k;
    return (all * n_of(a, rank) + a->n_experts - 1) / a->n_experts;
}

int64_t arrivals_room(const struct arrivals *a, int rank)
{
    int64_t worst = arrivals_worst(a, rank), least = arrivals_least(a, rank);
    double room = ceil(a->buffer * (double)arrivals_even(a, rank));

    if (a->buffer <= 0 || room >= (double)worst)
        return worst;
    return (int64_t)room > least ? (int64_t)room : least;
}

void arrivals_carve(struct arrivals *a, struct arena *from)
{
    int64_t leaves = (int64_t)n_local(a) * n_leaves(a);
    a->capacity = arrivals_room(a, a->rank);
    a->counts = ARENA_NEW(from, int32_t, (int64_t)a->ep * a->n_experts * n_counts(a));
    a->round_end = ARENA_NEW(from, int, n_leaves(a));
    a->to = ARENA_NEW(from, int64_t, a->ep);
    a->from = ARENA_NEW(from, int64_t, a->ep);
    a->place = ARENA_NEW(from, int32_t, (int64_t)a->ep * n_local(a) * n_counts(a));
    a->list = ARENA_NEW(from, int32_t, a->capacity);
    a->back = ARENA_NEW(from, int32_t, a->capacity);
    a->begin = ARENA_NEW(from, int64_t, n_local(a) + 1);
    a->leaf_end = ARENA_NEW(from, int64_t, leaves);
    a->block_end = ARENA_NEW(from, int64_t, leaves * a->tp * a->parts);
}

struct expert_rows arrivals_groups(const struct arrivals *a)
{
    return (struct expert_rows){ n_local(a), a->begin, a->n_leaf, a->leaf_end };
}

struct expert_rows arrivals_blocks(const struct arrivals *a)
{
    return (struct expert_rows){ n_local(a), a->begin, n_blocks(a), a->block_end };
}

/* ---- counts ---- */

/* Rows of one rank for an expert, of part `part` % parts of its share of sequence `part` / parts. */
static int32_t count_of(const struct arrivals *a, int rank, int expert, int part)
{
    return a->counts[((int64_t)rank * a->n_experts + expert) * n_counts(a) + part];
}

/* Where a part's rows end among the home rows of an expert. */
static int64_t home_end(const struct arrivals *a, const struct routing *home, int expert, int part)
{
    int64_t seq = (int64_t)expert * a->n_seq + part / a->parts;
    if (a->parts == 1)
        return home->leaf_end[seq];
    return home->block_end[seq * home->grain + a->rank % a->tp * a->parts + part % a->parts];
}

static void count_home_rows(const struct arrivals *a, const struct routing *home, int32_t *mine)
{
    for (int x = 0; x < a->n_experts; x++) {
        int64_t begin = home->begin[x];
        for (int i = 0; i < n_counts(a); i++) {
            int64_t end = home_end(a, home, x, i);
            mine[(int64_t)x * n_counts(a) + i] = (int32_t)(end - begin);
            begin = end;
        }
    }
}

/* Counts the routed rows of one leaf: sequence `leaf` % n_seq of dp rank `leaf` / n_seq. Adds to rows[rank]
 * those that the rank's experts compute. */
static void count_leaf(const struct arrivals *a, int leaf, int64_t *rows)
{
    int first = leaf / a->n_seq * a->tp, begin = leaf % a->n_seq * a->parts;
    for (int to = 0; to < a->ep; to++)
        for (int x = first_of(a, to); x < first_of(a, to + 1); x++)
            for (int i = 0; i < a->tp * a->parts; i++)
                rows[to] += count_of(a, first + i / a->parts, x, begin + i % a->parts);
}

/* The same of the sequences that are joined to one leaf. */
static void count_joined(const struct arrivals *a, int leaf, int64_t *rows)
{
    for (int i = leaf; i < leaf + a->joined && i < n_leaves(a); i++)
        count_leaf(a, i, rows);
}

/* Does every rank have room for so many rows? */
static int all_fit(const struct arrivals *a, const int64_t *rows)
{
    for (int rank = 0; rank < a->ep; rank++)
        if (rows[rank] > arrivals_room(a, rank))
            return 0;
    return 1;
}

/* As many leaves a round as fit everywhere. Uses a->to. */
static void cut_rounds(struct arrivals *a)
{
    size_t bytes = sizeof *a->to * (size_t)a->ep;
    int begin = 0;

    a->n_rounds = 0;
    a->round = -1;
    memset(a->to, 0, bytes);
    for (int leaf = 0; leaf < n_leaves(a); leaf += a->joined) {
        count_joined(a, leaf, a->to);
        if (leaf == begin || all_fit(a, a->to))
            continue;
        a->round_end[a->n_rounds++] = begin = leaf;
        memset(a->to, 0, bytes);
        count_joined(a, leaf, a->to);
    }
    a->round_end[a->n_rounds++] = n_leaves(a);
}

/* ---- lists of a round ---- */

/* count_of where the part's sequence is in the round, else 0. */
static int32_t count_now(const struct arrivals *a, int rank, int expert, int part)
{
    int leaf = rank / a->tp * a->n_seq + part / a->parts - a->leaf;
    return leaf >= 0 && leaf < a->n_leaf ? count_of(a, rank, expert, part) : 0;
}

/* Rows from one rank to another. */
static int64_t count_between(const struct arrivals *a, int from, int to)
{
    int64_t sum = 0;
    for (int x = first_of(a, to); x < first_of(a, to + 1); x++)
        for (int part = 0; part < n_counts(a); part++)
            sum += count_now(a, from, x, part);
    return sum;
}

static void count_traffic(struct arrivals *a)
{
    for (int r = 0; r < a->ep; r++) {
        a->to[r] = count_between(a, a->rank, r);
        a->from[r] = count_between(a, r, a->rank);
    }
}

/* Where the grouped rows of a rank's part for local expert x begin. */
static int32_t *place_of(const struct arrivals *a, int rank, int x, int part)
{
    return &a->place[((int64_t)rank * n_local(a) + x) * n_counts(a) + part];
}

/* The rows of one sequence of dp rank d for local expert x: its tp ranks' shares, by position. block_end: of
 * the sequence's blocks. */
static void place_sequence(struct arrivals *a, int x, int d, int seq, int64_t *block_end)
{
    for (int block = 0; block < a->tp * a->parts; block++) {
        int rank = d * a->tp + block / a->parts, part = seq * a->parts + block % a->parts;
        *place_of(a, rank, x, part) = (int32_t)a->n;
        a->n += count_now(a, rank, first_local(a) + x, part);
        block_end[block] = a->n;
    }
}

/* Grouped order: by expert; then by dp rank and sequence, a leaf. */
static void place_groups(struct arrivals *a)
{
    int n = n_local(a);
    a->n = 0;
    for (int x = 0; x < n; x++) {
        a->begin[x] = a->n;
        for (int i = 0; i < a->n_leaf; i++) {
            int64_t at = (int64_t)x * a->n_leaf + i;
            int from = a->leaf + ORDER("expert_leaves_dp", i, (i + a->n_seq) % a->n_leaf);
            place_sequence(a, x, from / a->n_seq, from % a->n_seq, a->block_end + at * a->tp * a->parts);
            a->leaf_end[at] = a->n;
        }
    }
    a->begin[n] = a->n;
}

/* The rows in the order of arrival: by rank, expert and part. */
static void place_rows(struct arrivals *a)
{
    int first = first_local(a), n = n_local(a);
    int32_t at = 0;
    for (int rank = 0; rank < a->ep; rank++)
        for (int x = 0; x < n; x++)
            for (int part = 0; part < n_counts(a); part++) {
                int32_t to = *place_of(a, rank, x, part), count = count_now(a, rank, first + x, part);
                for (int32_t i = 0; i < count; i++) {
                    a->list[to + i] = at;
                    a->back[at++] = to + i;
                }
            }
}

int arrivals_fill(struct arrivals *a, struct comm *ep, const struct routing *home, struct err *e)
{
    int64_t each = (int64_t)a->n_experts * n_counts(a);
    int32_t *mine = a->counts + a->rank * each;
    int rc;

    count_home_rows(a, home, mine);
    TRY(comm_all_gather(ep, a->counts, mine, (size_t)each * sizeof *mine, e));
    cut_rounds(a);
    rc = 0;
out:
    return rc;
}

void arrivals_select(struct arrivals *a, int round)
{
    a->round = round;
    a->leaf = round ? a->round_end[round - 1] : 0;
    a->n_leaf = a->round_end[round] - a->leaf;
    count_traffic(a);
    place_groups(a);
    place_rows(a);
}

int arrivals_home(const struct arrivals *a, int *first)
{
    int mine = a->rank / a->tp * a->n_seq, begin = a->leaf - mine, end = begin + a->n_leaf;
    begin = begin > 0 ? begin : 0;
    end = end < a->n_seq ? end : a->n_seq;
    *first = begin < a->n_seq ? begin : 0;
    return end > begin ? end - begin : 0;
}

int arrivals_send(const struct arrivals *a, struct comm_request **q, struct comm *ep, void *arrived,
                  const void *home, size_t row_bytes, struct err *e)
{
    return comm_start_all_to_all_v(q, ep, arrived, a->from, home, a->to, row_bytes, e);
}

int arrivals_return(const struct arrivals *a, struct comm_request **q, struct comm *ep, void *home,
                    const void *arrived, size_t row_bytes, struct err *e)
{
    return comm_start_all_to_all_v(q, ep, home, a->to, arrived, a->from, row_bytes, e);
}
