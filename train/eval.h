/* eval.h - loss over held-out windows, and a sample of the model's text. */
#ifndef SHARDLINE_TRAIN_EVAL_H
#define SHARDLINE_TRAIN_EVAL_H

#include "base/log.h"
#include "train/work.h"

/* Windows of --eval-data that an evaluation reads: all, or those of the first --eval-batches global
 * batches. */
int64_t eval_windows(const struct work *w);
/* *loss: the exact mean over those windows, the same on every rank. With --eval-logprobs the log-probs of
 * every token are gathered; rank 0 writes them to `logprobs`, a JSON line a window (NULL on other ranks).
 * Progress goes to term. Returns 1, without a loss, when a signal asked the job to stop. Collective.
 * ERR_NUMBER: the loss is not finite. */
int eval_run(struct work *w, struct log *term, double *loss, FILE *logprobs, struct err *e);

/* Prints a greedy continuation of the first training window on rank 0's terminal. Collective. */
int sample_run(struct work *w, struct log *term, struct err *e);
/* Positions that a model must be opened for: a sample may be longer than a training sequence. */
int64_t sample_positions(int64_t seq_len, const struct model_config *c);

#endif
