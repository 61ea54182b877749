/* moe_rows.c - a mixture's rows to the ranks of their experts, and results back to the ranks that hold the
 * tokens (--ep, dispatch.h). With ep 1 every rank of tp has all rows, and nothing travels. */
#include <string.h>
#include "model/sublayer/moe.h"

/* ---- whose rows ---- */
/* Results of home rows are gathered over tp, because every rank holds all rows between bodies. */
static int is_scattered(const struct pass *p)
{
    return has_dispatch(p->m) && !rows_shared(&p->r) && p->m->local.layout.tp > 1;
}

struct share experts_share(const struct pass *p)
{
    const struct model *m = p->m;
    int each = m->grain / m->local.layout.tp, from = comm_rank(m->tp) * each;
    int64_t begin = block_begin(p->r.len, m->grain, from), end = block_begin(p->r.len, m->grain, from + each);

    if (is_scattered(p))
        return (struct share){ begin, end - begin };
    return (struct share){ rows_first(m, &p->r), p->r.own_len };
}

struct own_rows experts_own_rows(const struct pass *p, int seq)
{
    struct share share = experts_share(p);
    int64_t each = is_scattered(p) ? share.n : p->r.own_len;
    return (struct own_rows){ seq * p->r.len + share.first, seq * each, share.n };
}

float *experts_results_in(const struct pass *p, struct experts_buf *b, float *to)
{
    return is_scattered(p) ? b->home_out : to;
}

int experts_gather_results(const struct pass *p, struct experts_buf *b, float *to, struct err *e)
{
    const struct model *m = p->m;
    int64_t rows = rows_all(&p->r);
    if (!is_scattered(p))
        return 0;
    KERNEL(m->dev, embed, rows_of(to, DT_F32, rows, m->hidden),
           rows_of(b->home_out, DT_F32, p->r.n_seq * experts_share(p).n, m->hidden), 0, b->spread);
    return comm_all_reduce(m->tp, to, rows * m->hidden, e);
}

/* ---- there and back ---- */
struct side experts_side(const struct pass *p, const struct experts_buf *b, struct mat all,
                         const void *arrived)
{
    if (!has_dispatch(p->m))
        return (
            struct side){ routing_groups(&b->routing), { all, b->routing.row }, b->weight, b->routing.slot };
    return (struct side){ arrivals_groups(&b->arrivals),
                          { rows_of(arrived, p->m->dt, b->n, p->m->hidden), b->arrivals.list },
                          b->arrived_weight,
                          b->arrivals.list };
}

/* What is under way: index of b->moving. */
enum { ROWS, NUMBERS, ADAPTERS };

int experts_arrive(struct experts_buf *b, int rc, struct err *e)
{
    struct err ignored;
    for (int i = 0; i < (int)(sizeof b->moving / sizeof b->moving[0]); i++) {
        int ended = comm_finish(&b->moving[i], rc < 0 ? &ignored : e);
        rc = rc < 0 ? rc : ended;
    }
    return rc;
}

/* The end of a start that returned rc. */
static int started(const struct pass *p, struct experts_buf *b, int rc, struct err *e)
{
    return rc < 0 || p->m->waits ? experts_arrive(b, rc, e) : 0;
}

int experts_send(const struct pass *p, struct experts_buf *b, struct mat all, void *arrived, struct err *e)
{
    const struct model *m = p->m;
    struct listed from = { all, b->routing.row };
    if (!has_dispatch(m))
        return 0;
    KERNEL(m->dev, gather_scaled, rows_of(b->home, m->dt, b->routing.n, m->hidden), from, NULL, NULL);
    int rc = arrivals_send(&b->arrivals, &b->moving[ROWS], m->ep, arrived, b->home,
                           (size_t)m->hidden * dtype_size(m->dt), e);
    return started(p, b, rc, e);
}

/* Writes the number of every row's adapter. */
static void list_adapters(const struct pass *p, const struct experts_buf *b)
{
    float *to = b->low.number_host;
    memset(to, 0, (size_t)b->routing.rows * sizeof *to);
    for (int i = 0; i < p->adapters->n; i++) {
        const struct adapter_run *run = &p->adapters->run[i];
        for (int64_t row = run->first; run->a && row < run->first + run->n; row++)
            to[row] = (float)run->a->number;
    }
    dev_write(p->m->dev, b->low.number, to, (size_t)b->routing.rows * sizeof *to);
}

int experts_send_adapters(const struct pass *p, struct experts_buf *b, struct err *e)
{
    const struct model *m = p->m;
    const struct routing *r = &b->routing;

    list_adapters(p, b);
    KERNEL(m->dev, embed, rows_of(b->low.home, DT_F32, r->n, 1), rows_of(b->low.number, DT_F32, r->rows, 1),
           0, r->row);
    int rc = arrivals_send(&b->arrivals, &b->moving[ADAPTERS], m->ep, b->low.arrived, b->low.home,
                           sizeof *b->low.home, e);
    return started(p, b, rc, e);
}

int experts_return(const struct pass *p, struct experts_buf *b, int unrounded, struct mat *results,
                   struct err *e)
{
    const struct model *m = p->m;
    struct listed from = { grouped(b, b->row, m->dt, m->hidden), b->arrivals.back };

    *results = unrounded ? grouped(b, b->sum, DT_F32, m->hidden) : from.m;
    if (!has_dispatch(m))
        return 0;
    *results = rows_of(b->home, m->dt, b->routing.n, m->hidden);
    KERNEL(m->dev, gather_scaled, rows_of(b->moved, m->dt, b->n, m->hidden), from, NULL, NULL);
    int rc = arrivals_return(&b->arrivals, &b->moving[ROWS], m->ep, b->home, b->moved,
                             (size_t)m->hidden * dtype_size(m->dt), e);
    return started(p, b, rc, e);
}

int experts_find_rows(const struct pass *p, struct experts_buf *b, struct err *e)
{
    const struct routing *r = &b->routing;
    struct share share = experts_share(p);

    for (int64_t i = 0; i < r->rows; i++) {
        int64_t at = i % r->leaf_rows - share.first;
        b->spread[i] = at >= 0 && at < share.n ? (int32_t)(i / r->leaf_rows * share.n + at) : -1;
    }
    return arrivals_fill(&b->arrivals, p->m->ep, r, e);
}

int experts_rounds(const struct experts_buf *b) { return b->arrivals.n_rounds ? b->arrivals.n_rounds : 1; }

int experts_begin_round(const struct pass *p, struct experts_buf *b, int round, struct err *e)
{
    const struct model *m = p->m;
    struct routing *r = &b->routing;

    if (!has_dispatch(m))
        return 0;
    arrivals_select(&b->arrivals, round);
    b->n = b->arrivals.n;
    if (b->arrivals.n_rounds > 1) {
        r->n_routed = arrivals_home(&b->arrivals, &r->leaf);
        routing_fill(r);
    }
    KERNEL(m->dev, embed, rows_of(b->home_weight, DT_F32, r->n, 1),
           rows_of(b->weight, DT_F32, r->rows * r->k, 1), 0, r->slot);
    int rc = arrivals_send(&b->arrivals, &b->moving[NUMBERS], m->ep, b->arrived_weight, b->home_weight,
                           sizeof *b->home_weight, e);
    return started(p, b, rc, e);
}

int experts_return_weight_gradients(const struct pass *p, struct experts_buf *b, struct err *e)
{
    const struct model *m = p->m;
    if (!has_dispatch(m))
        return 0;
    KERNEL(m->dev, embed, rows_of(b->d_moved, DT_F32, b->n, 1), rows_of(b->d_row, DT_F32, b->n, 1), 0,
           b->arrivals.back);
    int rc = arrivals_return(&b->arrivals, &b->moving[NUMBERS], m->ep, b->home_weight, b->d_moved,
                             sizeof *b->d_moved, e);
    return started(p, b, rc, e);
}

void experts_place_weight_gradients(const struct pass *p, struct experts_buf *b)
{
    const struct routing *r = &b->routing;
    int64_t each = r->leaf_rows * r->k, first = r->leaf * each;
    struct mat slots_of = rows_of(b->d_slot + first, DT_F32, r->n_routed * each, 1);
    struct mat home = has_dispatch(p->m) ? rows_of(b->home_weight, DT_F32, r->n, 1)
                                         : rows_of(b->d_row, DT_F32, b->n, 1);
    KERNEL(p->m->dev, embed, slots_of, home, 0, r->place + first);
}

int experts_gather_weight_gradients(const struct pass *p, struct experts_buf *b, struct err *e)
{
    int64_t n = b->routing.rows * b->routing.k;
    return has_dispatch(p->m) ? comm_all_reduce(p->m->tp, b->d_slot, n, e) : 0;
}

/* ---- sums ---- */
struct tree_acc expert_sums(const struct pass *p, const struct model *of, const struct experts_buf *b,
                            int unit, int part)
{
    const struct params_local *l = &of->local;
    struct tree_acc acc = gradient_sums_of(p, of, unit, part);

    if (!has_dispatch(p->m))
        return acc;
    acc.next += b->arrivals.leaf;
    for (int i = 0; i < b->n_partial; i++)
        acc.level[p->g->n_levels + i] = b->partial + i * l->unit[l->experts_of[unit]].flat +
                                        l->part[part].offset;
    return acc;
}
