/* supervisor.h - the first process of an elastic run: keeps its state in memory, and starts ranks again when
 * they have ended for another layout, or died. */
#ifndef SHARDLINE_TRAIN_SUPERVISOR_H
#define SHARDLINE_TRAIN_SUPERVISOR_H

#include "comm/launch.h"
#include "train/train_options.h"

/* 1: these options ask for more than one start: --restarts, --memory-every, --layout-file. */
int supervisor_is_needed(const struct train_opts *o);
/* In the first process: *k decides what follows a job (launch.h). o must outlive it. ranks: of the
 * first job. ERR_USAGE, ERR_FILE, ERR_MEMORY. */
int supervisor_open(struct launch_keeper *k, const struct train_opts *o, int ranks, struct err *e);

#endif
