/* dispatch.c - see dispatch.h. */
#include "model/dispatch.h"

#include "base/alter.h"

static int n_leaves(const struct arrivals *a) { return a->ep / a->tp * a->n_seq; }
static int n_blocks(const struct arrivals *a) { return n_leaves(a) * a->tp * a->parts; }
static int n_counts(const struct arrivals *a) { return a->n_seq * a->parts; }
static int first_local(const struct arrivals *a) { return dispatch_first(a->n_experts, a->ep, a->rank); }
static int n_local(const struct arrivals *a)
{
    return dispatch_first(a->n_experts, a->ep, a->rank + 1) - first_local(a);
}

void arrivals_carve(struct arrivals *a, struct arena *from)
{
    a->counts = ARENA_NEW(from, int32_t, (int64_t)a->ep * a->n_experts * n_counts(a));
    a->to = ARENA_NEW(from, int64_t, a->ep);
    a->from = ARENA_NEW(from, int64_t, a->ep);
    a->place = ARENA_NEW(from, int32_t, (int64_t)a->ep * n_local(a) * n_counts(a));
    a->list = ARENA_NEW(from, int32_t, a->capacity);
    a->back = ARENA_NEW(from, int32_t, a->capacity);
    a->begin = ARENA_NEW(from, int64_t, n_local(a) + 1);
    a->leaf_end = ARENA_NEW(from, int64_t, (int64_t)n_local(a) * n_leaves(a));
    a->block_end = ARENA_NEW(from, int64_t, (int64_t)n_local(a) * n_blocks(a));
}

struct expert_rows arrivals_groups(const struct arrivals *a)
{
    return (struct expert_rows){ n_local(a), a->begin, n_leaves(a), a->leaf_end };
}

struct expert_rows arrivals_blocks(const struct arrivals *a)
{
    return (struct expert_rows){ n_local(a), a->begin, n_blocks(a), a->block_end };
}

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

/* Rows between this rank and every other. */
static void count_traffic(struct arrivals *a, const struct routing *home)
{
    int first = first_local(a), n = n_local(a);
    for (int r = 0; r < a->ep; r++) {
        a->to[r] = home->begin[dispatch_first(a->n_experts, a->ep, r + 1)] -
                   home->begin[dispatch_first(a->n_experts, a->ep, r)];
        a->from[r] = 0;
        for (int x = first; x < first + n; x++)
            for (int i = 0; i < n_counts(a); i++)
                a->from[r] += count_of(a, r, x, i);
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
        a->n += count_of(a, rank, first_local(a) + x, part);
        block_end[block] = a->n;
    }
}

/* Grouped order: by expert; then by dp rank and sequence, a leaf. */
static void place_groups(struct arrivals *a)
{
    int n = n_local(a), leaves = n_leaves(a);
    a->n = 0;
    for (int x = 0; x < n; x++) {
        a->begin[x] = a->n;
        for (int leaf = 0; leaf < leaves; leaf++) {
            int64_t at = (int64_t)x * leaves + leaf;
            int from = ORDER("expert_leaves_dp", leaf, (leaf + a->n_seq) % leaves);
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
                int32_t to = *place_of(a, rank, x, part), count = count_of(a, rank, first + x, part);
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
    count_traffic(a, home);
    place_groups(a);
    place_rows(a);
    rc = 0;
out:
    return rc;
}

int arrivals_send(const struct arrivals *a, struct comm *ep, void *arrived, const void *home,
                  size_t row_bytes, struct err *e)
{
    return comm_all_to_all_v(ep, arrived, a->from, home, a->to, row_bytes, e);
}

int arrivals_return(const struct arrivals *a, struct comm *ep, void *home, const void *arrived,
                    size_t row_bytes, struct err *e)
{
    return comm_all_to_all_v(ep, home, a->to, arrived, a->from, row_bytes, e);
}
