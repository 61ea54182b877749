/* sim_move.h - what is not a training step: a reshard over nodes and a store, and servers for a load. Pure
 * functions but for the printing. */
#ifndef SHARDLINE_TRAIN_SIMULATE_SIM_MOVE_H
#define SHARDLINE_TRAIN_SIMULATE_SIM_MOVE_H

#include "train/simulate/sim_clock.h"

struct sim_reshard {
    double bytes, nodes, ranks_a_node;
};
struct sim_reshard_result {
    double read_s, wire_s, write_s, wire_bytes;
    double step_s; /* of it all: the three run beside each other, the slowest counts */
};
/* With a store every node reads the boxes that it writes, and writes them back: there is no wire between
 * nodes. With disks of its own a node has 1 / nodes of what it needs. */
void sim_reshard(struct sim_reshard_result *r, const struct sim_reshard *a, const struct cluster *c);
void sim_reshard_print(const struct sim_reshard_result *r, const struct sim_reshard *a, FILE *out);

struct sim_load {
    double tokens_per_s;   /* generated, of all requests together */
    double prompt, answer; /* tokens of a request */
    double first_s;        /* most seconds to the first token; 0: any */
};
struct sim_serve_result {
    int tp;
    double batch, replicas, devices;
    double tokens_per_s; /* of a replica, while it also reads prompts */
    double first_s;      /* a prompt alone, behind a step of decode */
    int measured;        /* a [[serve]] of the cluster */
};
/* The fewest devices that carry the load: from the servers of the cluster that were measured, with requests
 * as they were measured with; without any, tp 1 to a machine, batches by powers of two, from the operator
 * times of the clock. weights: bytes of the model. 0, or -1: no tp has room for the model and one request in
 * time. */
int sim_serve(struct sim_serve_result *r, const struct sim_load *l, const struct model_config *cfg,
              double weights, const struct cluster *c);

#endif
