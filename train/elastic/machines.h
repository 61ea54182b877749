/* machines.h - sets of state in memory that outlive a machine: a keeper for every machine has the files of
 * its own ranks and those of the machine before it. --ranks-per-node stands for machines: all keepers are
 * processes that the first process starts, and copies go through this machine's memory. */
#ifndef SHARDLINE_TRAIN_MACHINES_H
#define SHARDLINE_TRAIN_MACHINES_H

#include "train/elastic/note.h"
#include "train/ranks.h"

/* Over how many machines that many ranks are spread; per_machine 0: one. ERR_USAGE: more than
 * NOTE_MACHINES. Any process. */
int machines_count(int64_t ranks, int64_t per_machine, struct err *e);

/* ---- the first process ---- */
/* Starts the keepers of n machines (NOTE_MACHINES at most) that are not there. ERR_MEMORY: no process. */
int machines_start(struct note *note, int n, struct err *e);
/* How many of them were not started, or have ended (keeper[m] is 0). */
int machines_lack(const struct note *note);
/* The step of the newest set that this process keeps, or of which the keepers have all files: it is put
 * together here. -1: none. */
int64_t machines_collect(const struct note *note);

/* ---- the ranks ---- */
/* Copies the files of the set of this step, which the first process keeps, to the keepers of this rank's
 * machine and of the next one, and drops it and all older ones when all keepers have theirs. note: rank 0's,
 * else NULL. Nothing is done where there is one machine. Collective. */
int machines_spread(struct note *note, const struct ranks *ranks, int per_machine, const char *dir,
                    int64_t step, struct err *e);
/* Rank 0: drops sets of later steps than this one, everywhere; with older: of earlier ones, too. */
void machines_drop(const struct note *note, int64_t step, int older);

#endif
