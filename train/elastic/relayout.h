/* relayout.h - an elastic run, seen from its ranks: state kept in memory, and another layout taken between
 * two steps. All calls but relayout_is_asked, _count_step, _close and _pass are collective over the job;
 * NULL stands for a run that is not elastic. */
#ifndef SHARDLINE_TRAIN_RELAYOUT_H
#define SHARDLINE_TRAIN_RELAYOUT_H

#include "train/log/runlog.h"
#include "train/work.h"

struct relayout;
/* *out stays NULL without --memory-every and --layout-file; set also on an error. w and log must outlive it.
 * ERR_USAGE: the ranks were not started by ptrain. */
int relayout_open(struct relayout **out, const struct work *w, struct runlog *log, struct err *e);
/* Ends its work; relayout_pass comes last of all, when this rank's memory is free and --out is open to
 * others: other ranks go on, where the layout changes. */
void relayout_close(struct relayout *x);
void relayout_pass(struct relayout *x);

/* Before the first step, with all state in place: what changed, its digest before and after, and the seconds
 * since the last step of the ranks before. ERR_INTEGRITY: this state is not that one. */
int relayout_begin(struct relayout *x, struct err *e);
/* Rank 0, within a step: the file of --layout-file has changed, or SIGHUP came. Reads it; ranks of a layout
 * that can be taken are started already. */
int relayout_is_asked(struct relayout *x);
/* A step is done. Called before the log has it: a layout that is seen to work is never taken back. */
void relayout_count_step(struct relayout *x);
/* Keeps the state where --memory-every says so. asked, on all ranks: where the layout that rank 0 has read
 * can be taken, keeps the state and returns 1: the ranks end. A layout or file that is refused is a line. */
int relayout_after_step(struct relayout *x, int asked, struct err *e);

#endif
