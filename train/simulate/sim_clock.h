/* sim_clock.h - how long a training step takes on a cluster: one representative rank a pipeline stage runs
 * the schedule of train/pipeline/ as events, with operator times of op_times.h. Pure functions, no MPI: any
 * thread. */
#ifndef SHARDLINE_TRAIN_SIMULATE_SIM_CLOCK_H
#define SHARDLINE_TRAIN_SIMULATE_SIM_CLOCK_H

#include "train/simulate/op_times.h"

/* Where a step's time goes, of the mean stage. */
enum clock_share {
    CLOCK_COMPUTE,
    CLOCK_AGAIN, /* recomputed */
    CLOCK_TP,
    CLOCK_CP,
    CLOCK_EP,
    CLOCK_PP,     /* messages between stages that a rank waits for */
    CLOCK_BUBBLE, /* stages without work */
    CLOCK_DP,     /* sums of gradients and gathers of weights that nothing hides */
    CLOCK_UPDATE,
    CLOCK_OFFLOAD,
    CLOCK_JITTER, /* the slowest of all machines */
    CLOCK_SHARES
};
extern const char *const clock_share_names[CLOCK_SHARES];

struct clock_result {
    double step_s;
    double share[CLOCK_SHARES]; /* seconds; they add up to step_s */
    double flops;        /* of a step: forward and backward of the model, causal attention counted once */
    double mfu;          /* of the peak of bf16 (fp32 where products are fp32) */
    double tokens_per_s; /* of a device */
    double flops_per_s;  /* of a device */
    double events;
};

/* What a stage did, for pictures. */
struct clock_span {
    int stage, chunk;
    char what; /* 'F', 'B', 'I' (input half of a backward), 'W', 'S' sum over dp, 'U' update, 'G' gather */
    int64_t micro;
    double begin, end;
};
struct clock_timeline {
    int64_t n, cap, most; /* most: later spans are not kept */
    struct clock_span *span;
};

/* Fills *r. t: NULL, or where spans go (the caller frees t->span). ERR_USAGE: the batch does not divide, the
 * schedule cannot be made; ERR_MEMORY. */
int clock_step(struct clock_result *r, const struct sim_run *run, const struct cluster *c,
               struct clock_timeline *t, struct err *e);
/* The last `stages` stages are on devices of another cluster, borrowed; layers are divided such that the
 * slowest stage is as fast as can be. */
void clock_second(struct sim_run *run, const struct cluster *c, const struct cluster *second, int stages);
/* Layers of a virtual stage: first .. end - 1. */
void clock_layers(const struct sim_run *run, int64_t stage, int64_t *first, int64_t *end);

#endif
