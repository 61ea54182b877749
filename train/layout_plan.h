/* layout_plan.h - what a layout will hold, send and wait for, from the same tables that the run uses.
 * Nothing is started. */
#ifndef SHARDLINE_TRAIN_LAYOUT_PLAN_H
#define SHARDLINE_TRAIN_LAYOUT_PLAN_H

#include <stdio.h>
#include "model/adapter.h"
#include "train/experts/experts_plan.h"
#include "train/offload/offload.h"
#include "train/offload/offload_inputs.h"
#include "train/pipeline/pipeline.h"
#include "train/zero/zero.h"

struct layout_spec {
    struct model_config cfg;
    struct layout layout;
    int64_t rows, micro, seq_len; /* rows: the global batch; micro 0: rows / dp */
    enum dtype dt;
    enum recompute recompute;
    enum pipe_kind pipeline;
    int sharers; /* ranks of dp and cp that share a machine's memory */
    int overlap;
    int save_async;  /* with memory for a copy of what a rank saves */
    int publish;     /* with two published versions: the newest, and the next one until it is whole … */
    int rank;        /* … of this rank of dp and cp: without ZeRO 3 the first one has the weights */
    int documents;   /* --documents */
    int threads;     /* of a rank */
    int expert_leaf; /* --expert-leaf; 0: 1 */
    int cp_grain;    /* --cp-grain; 0: 1 */
    double expert_buffer; /* --expert-buffer */
    enum offload_kind offload;
    int offload_grads, offload_params, offload_activations;
    /* [n_adapted], borrowed: an adapter of these weights is trained and the model is frozen; 0: the model is
     * trained */
    const struct adapter_matrix *adapted;
    int n_adapted;
    double disk_rate; /* bytes a second that a rank reads and writes, together; 0: 1 GB */
    double flops;     /* a second of a rank's products; 0: not known */
};
struct layout_plan {
    struct batch_plan batch;
    double bytes[MEM_CATS]; /* of a rank of the fullest pipeline stage, by category */
    double total_bytes;
    double keys;       /* with cp: of its activations, keys and values of whole sequences */
    int64_t in_flight; /* most micro-batches that a rank keeps */
    double bubble;     /* share of a stage's time */
    /* bytes that one rank sends in a step, by group and collective */
    double dp_reduce, dp_gather, tp_reduce, tp_gather, pp_send;
    double ep_exchange;          /* with as many tokens for every expert */
    double cp_gather, cp_reduce; /* keys and values; their gradients */
    struct experts_plan experts;
    struct offload_bytes offload; /* of a rank of the stage that has most ... */
    double offload_elements;      /* ... and the elements that this rank computes with */
};

/* How many ranks of dp and cp share a machine that has so many ranks (0: all are on one), as
 * comm/mpi/mpi_nodes.c decides. */
int layout_plan_sharers(const struct layout *l, int ranks_a_machine);
/* Of these those of one cp group, which share its pages: they are neighbours among them. */
int layout_plan_page_sharers(const struct layout_spec *a);
/* The pipeline of a run with these micro-batches. */
struct pipe_shape layout_plan_schedule(const struct batch_plan *b, const struct layout *l,
                                       enum pipe_kind kind);
/* What all ranks of a pipeline together wait and keep. draw: where to draw the schedule, or NULL.
 * ERR_USAGE: the schedule cannot be made. */
int layout_plan_pipeline(struct pipe_report *r, const struct pipe_shape *s, FILE *draw, struct err *e);

/* *p needs no closing. draw as above. ERR_USAGE: the layout, the batch and the schedule do not fit each
 * other. */
int layout_plan_make(struct layout_plan *p, const struct layout_spec *a, FILE *draw, struct err *e);
/* The memory of a rank of one pipeline stage, by category. Errors as layout_plan_make(). */
int layout_plan_stage(const struct layout_spec *a, int stage, double bytes[MEM_CATS], struct err *e);
/* The memory of all ranks of the fullest machine, where every machine has so many neighbouring ranks;
 * rank_bytes: what a rank needs besides the plan. Errors as layout_plan_make(). */
int layout_plan_machine(const struct layout_spec *a, int ranks_a_machine, double rank_bytes, double *bytes,
                        struct err *e);
/* Seconds of a disk in a step, for --offload DIR. */
double layout_plan_disk_s(const struct layout_plan *p, const struct layout_spec *a);
void layout_plan_print(const struct layout_plan *p, const struct layout_spec *a, FILE *out); /* as text */

#endif
