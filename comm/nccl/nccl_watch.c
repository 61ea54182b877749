/* nccl_watch.c - the watch over the device while it works for several ranks: errors of NCCL's own threads, a
 * failed world, a rank that does not enter an operation.
 *
 *   board   rank 0: group 1: 17   rank 1: group 1: 17   rank 2: group 1: 16
 *           rank 2 has not entered operation 17
 *
 * Every rank writes on the board which operation of a group it has entered, and whether its device has it.
 * When the device does not complete an operation while the host does nothing but wait for it, for
 * --rank-timeout seconds (600), the ranks of its group that are behind are named, and the job ends. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "comm/nccl/nccl.h"
#include "base/clock.h"

#define PAUSE_NS 50000

void nccl_abort_all(struct nccl *n)
{
    for (struct nccl_group *g = n->groups; g; g = g->next) {
        nccl_comm comm = g->comm;
        g->comm = NULL;
        if (comm)
            n->CommAbort(comm);
    }
}

/* ---- a rank that does not enter an operation ---- */
static const struct failure_board_rank *on_board(const struct world *w, int world_rank)
{
    for (int r = 0; r < w->board->n_ranks; r++)
        if (w->board->rank[r].world_rank == world_rank)
            return &w->board->rank[r];
    return NULL;
}

/* Why an operation does not end: a rank has not entered it; else a rank has entered it, but has neither
 * submitted it to its device nor waits. */
static int not_entered(const struct failure_board_rank *b, int slot, int64_t number, int64_t now)
{
    (void)now;
    return atomic_load(&b->entered[slot]) < 2 * number - 1;
}

static int stuck_in_it(const struct failure_board_rank *b, int slot, int64_t number, int64_t now)
{
    return atomic_load(&b->entered[slot]) < 2 * number && now - atomic_load(&b->polled_ns) > SECOND_NS;
}

struct blame {
    int (*is)(const struct failure_board_rank *b, int slot, int64_t number, int64_t now);
    const char *one, *several;
};
static const struct blame blames[] = { { not_entered, "did not enter", "did not enter" },
                                       { stuck_in_it, "hangs in", "hang in" } };

/* text: " 2 3", the ranks of this machine that are to blame in this way. Returns how many. */
static int name_some(const struct nccl_operation *o, const struct blame *b, int64_t now, char *text,
                     size_t bytes)
{
    const struct comm *c = o->g->c;
    int n = 0;
    size_t at = 0;
    for (int r = 0; r < c->size && o->g->slot < BOARD_GROUPS; r++) {
        const struct failure_board_rank *x = on_board(c->w, c->member[r]);
        if (x && b->is(x, o->g->slot, o->number, now) && at + 16 < bytes)
            at += (size_t)snprintf(text + at, bytes - at, " %d", c->member[r]), n++;
    }
    return n;
}

/* 1 when the group has ranks on other machines, which this board does not have. */
static int has_far_ranks(const struct comm *c)
{
    int far = 0;
    for (int r = 0; r < c->size; r++)
        far |= !on_board(c->w, c->member[r]);
    return far;
}

/* Reports an operation that took too long, as the watch thread reports a death: the other ranks only receive
 * the text. */
static int too_long(struct nccl *n, const struct nccl_operation *o, int64_t now, struct err *e)
{
    char who[128], text[512];
    struct world *w = n->w;
    const long long number = o->number, s = n->limit_ns / SECOND_NS;
    int found = 0;
    snprintf(text, sizeof text, "%s %lld of group %s does not end for %lld s%s; stopping all ranks", o->what,
             number, o->g->c->name, s,
             has_far_ranks(o->g->c) ? ": a rank on another machine did not enter it"
                                    : ", though all ranks entered it");
    for (size_t i = 0; i < sizeof blames / sizeof *blames && !found; i++)
        if ((found = name_some(o, &blames[i], now, who, sizeof who)) > 0)
            snprintf(text, sizeof text, "rank%s%s %s %s %lld of group %s for %lld s; stopping all ranks",
                     found > 1 ? "s" : "", who, found > 1 ? blames[i].several : blames[i].one, o->what,
                     number, o->g->c->name, s);
    if (failure_board_fail(w->board, text)) {
        if (failure_board_claim_report(w->board))
            dprintf(2, "%s: %s\n", program_invocation_short_name, text);
        if (w->t->report_failure)
            w->t->report_failure(w, text);
    }
    return world_check(w, e); /* the first failure, this one or another */
}

/* Times the oldest operation: the clock runs while the same one is the oldest and the host polls. After a
 * pause of the host it starts again. */
static int watch_oldest(struct nccl *n, int64_t now, struct err *e)
{
    const struct nccl_operation *o = NULL;
    for (; n->n_over < n->n_begun; n->n_over++) {
        o = &n->operation[n->n_over % NCCL_OPERATIONS];
        if (!o->mark || !dev_reached(n->w->dev, o->mark))
            break;
    }
    if (n->n_over == n->n_begun)
        return 0;
    if (n->oldest != n->n_over || now - n->polled_ns > SECOND_NS)
        n->since_ns = now;
    n->oldest = n->n_over;
    n->polled_ns = now;
    return now - n->since_ns > n->limit_ns ? too_long(n, o, now, e) : 0;
}

static int library_errors(const struct nccl *n, struct err *e)
{
    int rc = 0;
    for (const struct nccl_group *g = n->groups; g && rc >= 0; g = g->next) {
        int later = 0;
        if (g->comm &&
            (rc = nccl_check(n, n->CommGetAsyncError(g->comm, &later), "asking for errors", e)) >= 0)
            rc = nccl_check(n, later, "an operation under way", e);
    }
    return rc;
}

int nccl_poll(struct world *w, struct err *e)
{
    struct nccl *n = w->nccl;
    const int64_t now = clock_ns();
    atomic_store(&w->board->rank[w->at.node_rank].polled_ns, now);
    int rc = w->t->poll ? w->t->poll(w, e) : 0; /* failures of other machines arrive there */
    rc = rc < 0 ? rc : world_check(w, e);
    if (rc >= 0 && (rc = library_errors(n, e)) < 0)
        world_fail(w, e);
    if (rc >= 0)
        rc = watch_oldest(n, now, e);
    if (rc < 0)
        nccl_abort_all(n);
    return rc;
}

/* ---- the stages of an operation ---- */
int nccl_alive(const struct nccl_group *g, struct err *e)
{
    int rc = g->comm ? 0 : world_check(g->c->w, e);
    return rc < 0 || g->comm ? rc : err_set(e, ERR_PEER, "group %s was given up", g->c->name);
}

int nccl_complete(struct nccl_group *g, int rc, const char *what, struct err *e)
{
    static const struct timespec pause = { 0, PAUSE_NS };
    struct nccl *n = g->c->w->nccl;
    const int64_t began = clock_ns();
    while (rc == NCCL_IN_PROGRESS) {
        int looked = nccl_poll(n->w, e), asked = 0;
        if (looked < 0)
            return looked;
        /* a second after watch_oldest, which can name the rank */
        if (clock_ns() - began > n->limit_ns + SECOND_NS) {
            nccl_abort_all(n);
            return err_set(e, ERR_PEER,
                           "NCCL: %s (%s): its ranks do not reach each other for %lld s: NCCL_DEBUG=INFO "
                           "tells more, NCCL_SOCKET_IFNAME chooses the network",
                           what, g->c->name, (long long)(n->limit_ns / SECOND_NS));
        }
        rc = n->CommGetAsyncError(g->comm, &asked);
        rc = rc ? rc : asked;
        if (rc == NCCL_IN_PROGRESS)
            nanosleep(&pause, NULL);
    }
    rc = nccl_check(n, rc, what, e);
    return rc < 0 ? rc : nccl_alive(g, e);
}

/* Writes this rank's progress in the group on the board. */
static void show(const struct nccl_group *g, int64_t entered)
{
    const struct world *w = g->c->w;
    if (g->slot < BOARD_GROUPS)
        atomic_store(&w->board->rank[w->at.node_rank].entered[g->slot], entered);
}

int nccl_begin(struct nccl_group *g, const char *what, struct err *e)
{
    struct world *w = g->c->w;
    struct nccl *n = w->nccl;
    int rc = nccl_poll(w, e);
    if (rc < 0 || (rc = nccl_alive(g, e)) < 0)
        return rc;
    if (n->n_begun - n->n_over == NCCL_OPERATIONS)
        n->n_over++;
    n->operation[n->n_begun++ % NCCL_OPERATIONS] = (struct nccl_operation){ g, what, ++g->entered, 0 };
    show(g, 2 * g->entered - 1);
    /* a communicator's operations are in one order, whatever their queues */
    dev_wait(w->dev, w->dev->queue, g->last);
    return 0;
}

void nccl_submitted(struct nccl_group *g)
{
    struct nccl *n = g->c->w->nccl;
    struct dev *d = n->w->dev;
    g->last = dev_mark(d, d->queue);
    n->operation[(n->n_begun - 1) % NCCL_OPERATIONS].mark = g->last;
    show(g, 2 * g->entered);
}
