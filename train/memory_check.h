/* memory_check.h - compares what a run is going to allocate with what its machines have free, before it
 * allocates. */
#ifndef SHARDLINE_TRAIN_MEMORY_CHECK_H
#define SHARDLINE_TRAIN_MEMORY_CHECK_H

#include "base/log.h"
#include "train/layout_plan.h"
#include "train/ranks.h"
#include "train/run.h"

/* The layout of this run as a question to layout_plan.h. sharers: dp ranks that share a machine's memory. */
struct layout_spec memory_check_spec(const struct run *run, const struct ranks *ranks, int sharers);

/* The planned memory of a rank of one pipeline stage, by category; of an evaluation with --eval-only. */
int memory_check_stage(const struct run *run, const struct layout_spec *a, int stage, double bytes[MEM_CATS],
                       struct err *e);

/* ERR_USAGE when the plan of the ranks of one machine (or GPU) needs more memory than is free there: the text
 * has both numbers, the largest parts, and a layout that would fit. With --force a line on term says so
 * instead. Collective over the job; called before anything large is allocated. */
int memory_check(const struct run *run, const struct ranks *ranks, struct log *term, struct err *e);

#endif
