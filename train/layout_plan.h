/* layout_plan.h - what a layout will hold, send and wait for, from the same tables that the run uses;
 * nothing is started. */
#ifndef SHARDLINE_TRAIN_LAYOUT_PLAN_H
#define SHARDLINE_TRAIN_LAYOUT_PLAN_H

#include <stdio.h>
#include "train/pipeline/pipeline.h"
#include "train/zero/zero.h"

struct run_ask {
    struct model_config cfg;
    struct layout layout;
    int64_t rows, micro, seq_len; /* micro 0: rows / dp */
    enum dtype dt;
    enum recompute recompute;
    enum pipe_kind pipeline;
    int sharers; /* dp ranks that share a machine's memory */
    int overlap;
    int save_async; /* with room for a copy of what a rank saves */
    int documents;  /* --documents */
    int threads;    /* of a rank */
};
struct run_plan {
    struct batch_plan batch;
    /* of the fullest stage's rank: weights, gradients, optimizer, activations, communication */
    double bytes[MEM_CATS], total_bytes;
    int64_t in_flight;
    double bubble; /* share of a stage's time */
    /* bytes that one rank sends in a step, by group and collective */
    double dp_reduce, dp_gather, tp_reduce, tp_gather, pp_send;
};
/* Of the dp ranks, how many share a machine that has so many ranks (0: all). As comm/mpi/mpi.c decides. */
int train_plan_sharers(const struct layout *l, int ranks_a_machine);
/* The pipeline of a run, and so of its plan; what all its ranks together wait and keep (draw: a picture, or
 * NULL). */
struct pipe_shape train_plan_schedule(const struct batch_plan *b, const struct layout *l,
                                      enum pipe_kind kind);
int train_plan_pipeline(struct pipe_report *r, const struct pipe_shape *s, FILE *draw, struct err *e);
int train_plan_make(struct run_plan *p, const struct run_ask *a, FILE *draw, struct err *e);
void train_plan_print(const struct run_plan *p, const struct run_ask *a, FILE *out);

#endif
