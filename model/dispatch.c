/* dispatch.c - see dispatch.h. */
#include "model/dispatch.h"

static int n_leaves(const struct arrivals *a) { return a->ep / a->tp * a->n_seq; }
static int first_local(const struct arrivals *a) { return dispatch_first(a->n_experts, a->ep, a->rank); }
static int n_local(const struct arrivals *a)
{
    return dispatch_first(a->n_experts, a->ep, a->rank + 1) - first_local(a);
}

void arrivals_carve(struct arrivals *a, struct arena *from)
{
    a->counts = ARENA_NEW(from, int32_t, (int64_t)a->ep * a->n_experts * a->n_seq);
    a->to = ARENA_NEW(from, int64_t, a->ep);
    a->from = ARENA_NEW(from, int64_t, a->ep);
    a->list = ARENA_NEW(from, int32_t, a->capacity);
    a->back = ARENA_NEW(from, int32_t, a->capacity);
    a->begin = ARENA_NEW(from, int64_t, n_local(a) + 1);
    a->leaf_end = ARENA_NEW(from, int64_t, (int64_t)n_local(a) * n_leaves(a));
}

struct expert_rows arrivals_groups(const struct arrivals *a)
{
    return (struct expert_rows){ n_local(a), a->begin, n_leaves(a), a->leaf_end };
}

static int32_t count_of(const struct arrivals *a, int rank, int expert, int seq)
{
    return a->counts[((int64_t)rank * a->n_experts + expert) * a->n_seq + seq];
}

static void count_home_rows(const struct arrivals *a, const struct routing *home, int32_t *mine)
{
    for (int x = 0; x < a->n_experts; x++) {
        int64_t begin = home->begin[x];
        for (int s = 0; s < a->n_seq; s++) {
            int64_t end = home->leaf_end[(int64_t)x * a->n_seq + s];
            mine[(int64_t)x * a->n_seq + s] = (int32_t)(end - begin);
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
            for (int s = 0; s < a->n_seq; s++)
                a->from[r] += count_of(a, r, x, s);
    }
}

/* The arrived row at which rank r's rows of a local expert's sequence begin. */
static int64_t arrived_at(const struct arrivals *a, int rank, int expert, int seq)
{
    int64_t at = 0;
    for (int r = 0; r < rank; r++)
        at += a->from[r];
    for (int x = first_local(a); x <= expert; x++)
        for (int s = 0; s < (x < expert ? a->n_seq : seq); s++)
            at += count_of(a, rank, x, s);
    return at;
}

/* The rows of one sequence of dp rank d for one expert: its tp ranks' shares, by position. */
static void place_sequence(struct arrivals *a, int expert, int d, int seq)
{
    for (int t = 0; t < a->tp; t++) {
        int rank = d * a->tp + t;
        int32_t n = count_of(a, rank, expert, seq);
        int64_t at = n ? arrived_at(a, rank, expert, seq) : 0;
        for (int32_t i = 0; i < n; i++) {
            a->list[a->n] = (int32_t)(at + i);
            a->back[at + i] = (int32_t)a->n++;
        }
    }
}

static void place_rows(struct arrivals *a)
{
    int first = first_local(a), n = n_local(a), leaves = n_leaves(a);
    a->n = 0;
    for (int x = 0; x < n; x++) {
        a->begin[x] = a->n;
        for (int leaf = 0; leaf < leaves; leaf++) {
            place_sequence(a, first + x, leaf / a->n_seq, leaf % a->n_seq);
            a->leaf_end[(int64_t)x * leaves + leaf] = a->n;
        }
    }
    a->begin[n] = a->n;
}

int arrivals_fill(struct arrivals *a, struct comm *ep, const struct routing *home, struct err *e)
{
    int64_t each = (int64_t)a->n_experts * a->n_seq;
    int32_t *mine = a->counts + a->rank * each;
    int rc;

    count_home_rows(a, home, mine);
    TRY(comm_all_gather(ep, a->counts, mine, (size_t)each * sizeof *mine, e));
    count_traffic(a, home);
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
