/* nccl_group.c - who uses NCCL, and a communicator for every group of ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/nccl/nccl.h"
#include "base/clock.h"

enum { DEFAULT_TIMEOUT_S = 600 };

/* What a rank contributes to the decision whether NCCL is used: its GPU, "" when it has none or no
 * library. */
struct candidate {
    char gpu[64];
};

static int find_mine(struct nccl *n, struct candidate *mine, struct err *e)
{
    const struct dev *d = n->w->dev;
    if (!d || !d->memory)
        return err_set(e, ERR_USAGE, "transport nccl needs a GPU: use --device cuda, or --transport auto");
    int rc = nccl_load(n, d, e);
    if (rc >= 0)
        snprintf(mine->gpu, sizeof mine->gpu, "%s", d->memory->identity(d));
    return rc;
}

/* 0 when every rank has a GPU of its own. A rank without one reports the reason itself. */
static int all_apart(const struct candidate *all, int n, struct err *e)
{
    for (int r = 0; r < n; r++) {
        if (!all[r].gpu[0])
            return err_set(e, ERR_PEER, "rank %d cannot use NCCL", r);
        for (int s = 0; s < r; s++)
            if (!strcmp(all[r].gpu, all[s].gpu))
                return err_set(e, ERR_USAGE,
                               "transport nccl needs a GPU for every rank, ranks %d and %d have one "
                               "together: use --transport auto, or fewer ranks on a machine",
                               s, r);
    }
    return 0;
}

static int agree_on_use(struct nccl *n, struct err *e)
{
    struct comm *c = n->w->all;
    struct candidate mine = { "" }, *all = calloc((size_t)c->size, sizeof *all);
    struct err own;
    int found = find_mine(n, &mine, &own),
        rc = all ? comm_all_gather(c, all, &mine, sizeof mine, e)
                 : err_set(e, ERR_MEMORY, "no memory for %d names", c->size);
    if (!all)
        world_fail(c->w, e); /* the other ranks wait for this one */
    if (rc >= 0)
        rc = all_apart(all, c->size, e);
    if (found < 0)
        *e = own;
    free(all);
    return found < 0 ? found : rc;
}

static int idle(void *arg, struct err *e) { return nccl_poll(arg, e); }

int nccl_open_world(struct world *w, int asked, int64_t timeout_s, struct err *e)
{
    struct nccl *n = calloc(1, sizeof *n);
    int version = 0;
    if (!n) {
        err_set(e, ERR_MEMORY, "no memory for NCCL's table");
        world_fail(w, e);
        return -ERR_MEMORY;
    }
    n->w = w;
    n->limit_ns = (timeout_s ? timeout_s : DEFAULT_TIMEOUT_S) * SECOND_NS;
    int rc = agree_on_use(n, e);
    if (rc < 0) {
        free(n);
        /* the reason, without the advice behind the colon */
        snprintf(w->device_route, sizeof w->device_route, "through the host (%s): %.*s", w->t->name,
                 (int)strcspn(e->text, ":"), e->text);
        return asked || world_check(w, &(struct err){ 0 }) < 0 ? rc : 0;
    }
    n->GetVersion(&version);
    snprintf(w->device_route, sizeof w->device_route, "by NCCL %d.%d.%d, a GPU a rank", version / 10000,
             version / 100 % 100, version % 100);
    w->nccl = n;
    w->device = &transport_nccl;
    w->dev->idle = (struct dev_idle){ idle, w };
    if ((rc = nccl_join(w->all, e)) < 0)
        world_fail(w, e); /* so that nccl_leave does not wait */
    return rc;
}

/* The library stays: its threads end with the process. */
void nccl_close_world(struct world *w)
{
    if (!w->nccl)
        return;
    w->dev->idle = (struct dev_idle){ 0 };
    free(w->nccl);
    w->nccl = NULL;
}

/* ---- groups ---- */
/* Chooses a row of the board that is free on all ranks of the group. */
static int agree_on_slot(struct nccl_group *g, struct err *e)
{
    struct nccl *n = g->c->w->nccl;
    float next = (float)n->next_slot;
    int rc = comm_all_reduce_max(g->c, &next, 1, e);
    g->slot = (int)next;
    n->next_slot = g->slot + 1;
    return rc;
}

/* The group's communicator. Its id travels over the group's own transport. */
int nccl_join(struct comm *c, struct err *e)
{
    struct nccl *n = c->w->nccl;
    struct nccl_config config = { sizeof config, 0xcafebeef, 21400, 0 };
    struct nccl_id id = { { 0 } };
    if (c->size == 1)
        return 0;

    struct nccl_group *g = calloc(1, sizeof *g);
    int rc = g ? 0 : err_set(e, ERR_MEMORY, "no memory for a group of NCCL");
    if (rc >= 0 && c->rank == 0)
        rc = nccl_check(n, n->GetUniqueId(&id), "a group's name", e);
    rc = comm_agree(c, rc, e);
    if (rc < 0) {
        free(g);
        return rc;
    }

    c->device = g;
    g->c = c;
    g->next = n->groups;
    n->groups = g;
    TRY(agree_on_slot(g, e));
    TRY(comm_broadcast(c, &id, sizeof id, 0, e));
    rc = nccl_complete(g, n->CommInitRankConfig(&g->comm, c->size, id, c->rank, &config), "joining a group",
                       e);
    rc = comm_agree(c, rc, e);
out:
    return rc;
}

static void forget(struct nccl *n, const struct nccl_group *g)
{
    struct nccl_group **p = &n->groups;
    while (*p != g)
        p = &(*p)->next;
    *p = g->next;
    n->n_over = n->n_begun; /* its operations have ended, or no rank waits for them */
}

/* After a failure it aborts: a destroy would wait for the missing rank. */
void nccl_leave(struct comm *c)
{
    struct nccl *n = c->w->nccl;
    struct nccl_group *g = c->device;
    struct err e;
    if (!g)
        return;
    if (g->comm && !atomic_load(&c->w->board->failed) &&
        nccl_complete(g, n->CommFinalize(g->comm), "leaving a group", &e) >= 0)
        n->CommDestroy(g->comm);
    else if (g->comm)
        n->CommAbort(g->comm);
    g->comm = NULL;
    forget(n, g);
    free(g);
    c->device = NULL;
}
