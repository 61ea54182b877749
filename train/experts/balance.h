/* balance.h - what evens the load of the experts of a mixture (--balance), and the counts that it works with.
 *
 *   sequence   a loss over the counts of each sequence (DeepSeek-V3, 2.1.2): nothing is kept between steps
 *   global     the same loss over the counts of the previous step's whole batch (after arXiv 2501.11873)
 *   bias       no loss: the correction bias of every expert moves by the rate (arXiv 2408.15664)
 *
 * Counts are integers: the rows of the global batch that chose an expert, summed over all ranks. A step
 * that is skipped because its loss is not finite leaves counts and biases as they were. */
#ifndef SHARDLINE_TRAIN_EXPERTS_BALANCE_H
#define SHARDLINE_TRAIN_EXPERTS_BALANCE_H

#include <stdint.h>
#include "base/err.h"
#include "format/ckpt_tensor.h"

struct work;

/* All arrays: [n_layers][n_experts]; NULL: the model has no experts, or nothing needs the array. */
struct balance_counts {
    int64_t *loads;  /* of the last step */
    int64_t *before; /* global: of the last step that changed the weights, if has_before */
    int has_before;  /* 0: the next step is the first one, which has no loss of this kind */
    int32_t *host;   /* global: `before`, as it goes to the device */
    int32_t *device; /* … and there */
};

/* Sets the factors of the router's losses, and takes memory for counts. ERR_USAGE: the model has no experts,
 * or no correction bias, or the batch has more rows than counts can hold. */
int balance_open(struct work *w, struct err *e);
void balance_close(struct work *w);

/* Before a step: gives the model the counts of the step before. */
void balance_begin_step(struct work *w);
/* After a step: sums what the ranks have counted to w->balance.loads. Collective over the job. */
int balance_sum(struct work *w, struct err *e);
/* After an update and balance_sum: moves the correction biases of this rank, or keeps the counts. */
void balance_update(struct work *w);
/* Moves n biases: up by the rate where an expert has fewer rows than the mean, down where it has more. */
void balance_move(float *bias, const int64_t *count, int n, float rate);

/* The counts that a checkpoint of this moment keeps, borrowed. */
struct ckpt_counts balance_kept(const struct work *w);
/* Takes the counts of a resumed checkpoint (path: its name, for messages). ERR_FORMAT: they are of another
 * model. */
int balance_restore(struct work *w, const struct ckpt_counts *counts, const char *path, struct err *e);

#endif
