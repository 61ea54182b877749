/* network.c - see network.h. */
#include "train/simulate/network.h"

#include <math.h>

/* Ranks of the group inside one unit of a level. */
static double inside(const struct cluster *c, int level, struct net_group g)
{
    double ranks = c->level[level].ranks, n;
    if (level == c->n_levels - 1 || !ranks || ranks >= g.size * g.stride)
        return g.size;
    n = floor(ranks / g.stride);
    return n < 1 ? 1 : n > g.size ? g.size : n;
}

/* Bytes a second of one rank on a level: its own wire, or its part of a wire that the ranks of a unit share.
 * They all send at a time, and as much: max-min gives each the same. */
static double rate(const struct cluster *c, int level)
{
    const struct cluster_level *l = &c->level[level];
    double below = level ? c->level[level - 1].ranks : 1,
           shared = l->unit_bytes_per_s / (below > 1 ? below : 1);
    return shared > 0 && shared < l->bytes_per_s ? shared : l->bytes_per_s;
}

int net_level(const struct cluster *c, struct net_group g)
{
    int l = 0;
    while (l + 1 < c->n_levels && inside(c, l, g) < g.size)
        l++;
    return l;
}

double net_inside(const struct cluster *c, struct net_group g) { return inside(c, 0, g); }

/* Parts of a vector go through the levels one after the other, so the slowest level's time counts; a vector
 * of `bytes` enters a unit of `below` members once, through the wires of all of them. */
static double nested(const struct cluster *c, struct net_group g, double bytes, int ring)
{
    double below = 1, most = 0, alpha = 0;
    for (int l = 0; l < c->n_levels && below < g.size; l++) {
        double here = inside(c, l, g), units = here / below;
        double s = bytes * (1 - 1 / units) / below / rate(c, l);
        /* what lies above is divided by all that are inside */
        most = s > most ? s : most;
        alpha += c->level[l].alpha_s * (ring ? (units < 64 ? units - 1 : 63) : ceil(log2(units)));
        below = here;
    }
    return most + alpha;
}

static double flat(const struct cluster *c, struct net_group g, double bytes)
{
    double below = 1, most = 0, alpha = 0;
    for (int l = 0; l < c->n_levels && below < g.size; l++) {
        double here = inside(c, l, g);
        double s = bytes * (here - below) / g.size / rate(c, l);
        most = s > most ? s : most;
        alpha += c->level[l].alpha_s * ceil(log2(here / below));
        below = here;
    }
    return most + alpha;
}

/* ---- measured collectives ---- */

/* Whether p is nearer to `ranks` than q is. */
static int is_nearer(const struct cluster_collective *p, const struct cluster_collective *q, double ranks)
{
    return !q || fabs(log(p->ranks / ranks)) < fabs(log(q->ranks / ranks));
}

/* Seconds on a machine's clock as seconds of a core that each of its ranks needs. */
static double of_a_core(const struct cluster *c, double s, double ranks)
{
    return s * (c->cores > 0 && c->cores < ranks ? c->cores / ranks : 1);
}

/* Seconds of a core that a rank needs, between the two nearest sizes; -1: nothing is measured, the group has
 * ranks on several machines, or more than twice as many as any that were measured. A sum of one rank is like
 * no other. */
static double measured(const struct cluster *c, enum sim_collective kind, struct net_group g, double bytes)
{
    const struct cluster_collective *best = NULL, *below = NULL, *above = NULL;
    if (inside(c, 0, g) < g.size)
        return -1;
    for (int i = 0; i < c->n_collectives; i++)
        if (c->collective[i].kind == kind && (c->collective[i].ranks > 1) == (g.size > 1) &&
            is_nearer(&c->collective[i], best, g.size))
            best = &c->collective[i];
    if (best && g.size > 2 * best->ranks)
        return -1;
    for (int i = 0; best && i < c->n_collectives; i++) {
        const struct cluster_collective *p = &c->collective[i];
        if (p->kind != kind || p->ranks != best->ranks)
            continue;
        if (p->bytes <= bytes && (!below || p->bytes > below->bytes))
            below = p;
        if (p->bytes >= bytes && (!above || p->bytes < above->bytes))
            above = p;
    }
    if (!below && !above)
        return -1;
    double s = below ? below->seconds : above->seconds;
    if (below && above && above->bytes > below->bytes)
        s += (above->seconds - below->seconds) * (bytes - below->bytes) / (above->bytes - below->bytes);
    else if (below && bytes > 0 && below->bytes > 0)
        s *= bytes / below->bytes; /* beyond what was measured */
    return of_a_core(c, s, best->ranks);
}

double net_reduce_scatter(const struct cluster *c, struct net_group g, double bytes, enum net_way way)
{
    if (g.size <= 1 || bytes <= 0)
        return 0;
    double s = measured(c, SIM_REDUCE_SCATTER, g, bytes);
    return s >= 0 ? s : way == NET_TREE ? flat(c, g, bytes) : nested(c, g, bytes, way == NET_RING);
}

double net_all_gather(const struct cluster *c, struct net_group g, double bytes)
{
    double s = g.size <= 1 || bytes <= 0 ? 0 : measured(c, SIM_GATHER, g, bytes);
    return s >= 0 ? s : nested(c, g, bytes, 0);
}

double net_all_reduce(const struct cluster *c, struct net_group g, double bytes, enum net_way way)
{
    double s = bytes <= 0 ? 0 : measured(c, SIM_ALL_REDUCE, g, bytes);
    return s >= 0 ? s : g.size <= 1 ? 0 : net_reduce_scatter(c, g, bytes, way) + net_all_gather(c, g, bytes);
}

double net_wait(const struct cluster *c, struct net_group g, double at_once)
{
    const struct cluster_wait *best = NULL;
    double least = 0;
    if (g.size <= 1 || inside(c, 0, g) < g.size)
        return 0;
    for (int i = 0; i < c->n_waits; i++) {
        double far = fabs(log(c->wait[i].ranks / g.size)) + 2 * fabs(log(c->wait[i].at_once / at_once));
        if (!best || far < least)
            best = &c->wait[i], least = far;
    }
    return best ? of_a_core(c, best->seconds, best->at_once) : 0;
}

double net_all_to_all(const struct cluster *c, struct net_group g, double bytes, double nodes, double copies)
{
    if (g.size <= 1 || bytes <= 0)
        return 0;
    double r = inside(c, 0, g), units = g.size / r;
    double s = flat(c, g, bytes);
    if (nodes <= 0 || copies <= 0 || units <= 1)
        return s;

    /* a row goes once to each machine that has one of its experts, and on from there */
    double reached = units * (1 - pow(1 - 1 / units, copies));
    reached = reached > nodes ? nodes : reached;
    double above = bytes / copies * reached * (1 - 1 / units) / rate(c, 1);
    double below = bytes * (1 - 1 / r) / rate(c, 0);
    return (above > below ? above : below) + c->level[0].alpha_s + c->level[1].alpha_s * ceil(log2(units));
}

double net_send(const struct cluster *c, double stride, double bytes)
{
    int l = 0;
    while (l + 1 < c->n_levels && c->level[l].ranks && c->level[l].ranks <= stride)
        l++;
    return c->level[l].alpha_s + bytes / rate(c, l);
}
