/* step.h - one update: forward and backward of the global batch, sum of the gradients, AdamW. */
#ifndef SHARDLINE_TRAIN_STEP_H
#define SHARDLINE_TRAIN_STEP_H

#include "train/log/runlog.h"
#include "train/work.h"

/* Learning rate of update `step` (from 0): linear warm-up, then the schedule of --lr-schedule down to
 * min_lr. */
double schedule_lr(const struct train_opts *o, int64_t step);
/* Runs one update and adds 1 to w->at.step. A loss or norm that is not finite changes no weights. Collective.
 * ERR_NUMBER: the eleventh such step in a row. */
int step_run(struct work *w, struct runlog *log, struct step_result *r, struct err *e);

#endif
