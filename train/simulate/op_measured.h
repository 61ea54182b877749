/* op_measured.h - a layer as the list of kernels that this engine calls for it, with the seconds that these
 * were measured with ([[op]] of a cluster, from memplan --calibrate or a trace). Pure functions. */
#ifndef SHARDLINE_TRAIN_SIMULATE_OP_MEASURED_H
#define SHARDLINE_TRAIN_SIMULATE_OP_MEASURED_H

#include "train/simulate/op_times.h"

enum op_place { OP_LAYER, OP_EMBEDDING, OP_HEAD };
/* Replaces what computing takes in *t, all three kinds, by measured kernels. Does nothing where the cluster
 * has none, or the model has layers of another form: experts, latent attention, norms with biases. */
void op_measure(struct part_times *t, const struct sim_run *r, const struct cluster *c, enum op_place part);
/* Seconds of an update of `own` parameters on a rank: squares of `counted` gradients, AdamW, packing of
 * `packed` weights. 0: nothing is measured. */
double op_measured_update(const struct sim_run *r, const struct cluster *c, double own, double counted,
                          double packed);
/* Seconds of packing `n` weights; 0: not measured. */
double op_measured_pack(const struct sim_run *r, const struct cluster *c, double n);
/* Seconds of one call. The nearest shape counts, scaled by its work. 0: this kernel is not measured. */
double op_measured_call(const struct sim_run *r, const struct cluster *c, const struct cluster_op *ask);

#endif
