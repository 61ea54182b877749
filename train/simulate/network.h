/* network.h - seconds of a collective over a group of neighbouring or strided ranks, on a network of levels.
 * Pure functions.
 *
 * A level gives every rank a wire of its own: alpha_s + bytes / bytes_per_s; or the ranks of a unit below
 * share one to other units (unit_bytes_per_s), all at a time and each the same part of it. A group of P
 * ranks that lie `stride` apart has R of them inside a unit of the innermost level, and so on upwards. Sums
 * come in three ways:
 *
 *   NET_TREE    two all-to-alls (P-1)/P, every part sent to its owner at once: one order, starts at any time
 *   NET_NESTED  inside a unit first, then what is left between units: the same order, R times fewer bytes
 * above NET_RING    the ring of a fast library: as many bytes as NET_NESTED, latency P (Rabenseifner 2004;
 * Patarasu and Yuan 2009) */
#ifndef SHARDLINE_TRAIN_SIMULATE_NETWORK_H
#define SHARDLINE_TRAIN_SIMULATE_NETWORK_H

#include "train/simulate/cluster.h"

enum net_way { NET_TREE, NET_NESTED, NET_RING };
struct net_group {
    double size, stride;
};

/* Sum of `bytes` a rank, of which each rank keeps 1 / size. */
double net_reduce_scatter(const struct cluster *c, struct net_group g, double bytes, enum net_way way);
/* Every rank gets `bytes` in all, of which it has 1 / size. */
double net_all_gather(const struct cluster *c, struct net_group g, double bytes);
/* Both. A group of one takes what its sum was measured with, else 0. */
double net_all_reduce(const struct cluster *c, struct net_group g, double bytes, enum net_way way);
/* Every rank sends `bytes` in all, the same to each. nodes: machines that a row is sent to at most, from
 * which its copies go on inside (0: every copy travels by itself); copies: of a row in `bytes`. */
double net_all_to_all(const struct cluster *c, struct net_group g, double bytes, double nodes, double copies);
/* What a sum costs where ranks of a group compute before it, of at_once ranks on a machine: seconds of a core
 * that a rank needs, as the others. 0: not measured. */
double net_wait(const struct cluster *c, struct net_group g, double at_once);
/* A message to the rank that lies `stride` away. */
double net_send(const struct cluster *c, double stride, double bytes);
/* The outermost level that a group's messages cross. */
int net_level(const struct cluster *c, struct net_group g);
/* Ranks of the group in one unit of the innermost level. */
double net_inside(const struct cluster *c, struct net_group g);

#endif
