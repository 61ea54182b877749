/* op_times.h - seconds of the operations of a layer on one rank: products by shape, attention, kernels of
 * rows, and the messages between them. Pure functions. */
#ifndef SHARDLINE_TRAIN_SIMULATE_OP_TIMES_H
#define SHARDLINE_TRAIN_SIMULATE_OP_TIMES_H

#include "train/simulate/sim_run.h"

enum op_kind { OP_PRODUCTS, OP_ATTENTION, OP_ROWS, OP_TP, OP_CP, OP_EP, OP_KINDS };
struct op_times {
    double s[OP_KINDS];
};
/* Seconds of all kinds. */
double op_sum(const struct op_times *t);
/* *to += times * *t. */
void op_add(struct op_times *to, const struct op_times *t, double times);

/* One micro-batch through a part of the model. */
struct part_times {
    struct op_times forward, backward_input, backward_weight;
    double again;          /* of backward_input, computing of forward once more */
    double flops;          /* of the forward pass, of all ranks of tp and cp together */
    double scores;         /* of flops, those of attention */
    double dense, experts; /* parameters that this rank computes with */
    double units;          /* parts that ZeRO gathers and sums one by one */
};

/* Layer 0 .. n_layers - 1; n_layers: one for multi-token prediction. */
void op_layer(struct part_times *t, const struct sim_run *r, const struct cluster *c, int64_t layer);
void op_embedding(struct part_times *t, const struct sim_run *r, const struct cluster *c);
void op_head(struct part_times *t, const struct sim_run *r, const struct cluster *c);
/* The same for whole parts, parameters included. */
void op_part_add(struct part_times *to, const struct part_times *t, double times);

/* The part's computing on a device of this speed; messages stay. */
void op_slow(struct part_times *t, double speed);
/* Seconds of `groups` products [m][k] x [k][n]. */
double op_product_s(const struct cluster *c, enum sim_dtype d, double groups, double m, double n, double k);
/* How much faster than one thread of the cluster a rank is that has the cores to itself (1 where ranks have
 * devices of their own). */
double op_speed(const struct sim_run *r, const struct cluster *c);
/* Ranks that compute at a time on a machine: all of it, but for stages that wait for the only micro-batch. */
double op_at_once(const struct sim_run *r, const struct cluster *c);
/* The share of that speed which a rank has while the ranks of so many pipeline stages compute: 1, or less
 * where they are more threads than their machine has cores. */
double op_share(const struct sim_run *r, const struct cluster *c, int stages);

#endif
