/* memplan_lab.h - single operations of this machine, timed: kernels on the buffers of a few layers, in the
 * order of a step, so that what a kernel reads lies where it lies in a run; collectives of ranks that this
 * program starts. For memplan --calibrate. */
#ifndef SHARDLINE_TOOLS_MEMPLAN_LAB_H
#define SHARDLINE_TOOLS_MEMPLAN_LAB_H

#include "comm/comm.h"
#include "model/model.h"
#include "train/simulate/cluster.h"

/* What a rank computes with: a share of the model, and the rows of a micro-batch. */
struct lab_shape {
    const struct model_config *cfg; /* borrowed */
    int tp;
    int64_t seqs, seq_len;
    enum dtype dt;
    int ranks; /* that compute at a time; more than the cores take turns, tp ranks at each of their sums */
};
/* Adds the kernels of this shape to c->op, or to those of this shape that are there. alone: one thread at a
 * time, and all threads together, are measured, too. ERR_MEMORY; ERR_USAGE: c->op is full; and
 * the errors of dev_open(). */
int lab_measure(struct cluster *c, const struct lab_shape *s, int alone, struct err *e);

/* Starts ranks of this program, which measure their collectives, and adds those to c->collective.
 * ERR_FILE: it cannot be started, or not all were measured or fit: none is added. */
int lab_collectives(struct cluster *c, int ranks, struct err *e);
/* On every rank: prints what a sum costs ranks that compute before it, a line for each group of 2, 4, ... of
 * them. Collective. */
int lab_waits(struct world *w, struct mem *mem, struct err *e);
/* What such a rank does: it prints lines for lab_collectives(). Does not return where it starts ranks. */
int lab_rank(int ranks, char **argv, struct err *e);

#endif
