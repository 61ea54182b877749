/* turn.h - ranks of another layout that start early: while the ranks before them still do their last step and
 * keep their state, they start MPI and wait for their turn. The first process starts them (launch.h, early);
 * rank 0 of the ranks before asks for them, and passes the turn. */
#ifndef SHARDLINE_TRAIN_TURN_H
#define SHARDLINE_TRAIN_TURN_H

#include "train/elastic/note.h"
#include "train/ranks.h"

/* ---- rank 0 of a job ---- */
/* Asks for ranks in this layout, which are to go on after that step. Returns their turn. */
int64_t turn_ask(struct note *note, const char args[LAYOUT_ARGS_BYTES], int64_t step);
/* The state is kept and this job's memory is free: they go on. turn 0: nothing. */
void turn_pass(struct note *note, int64_t turn);
/* They end. Any process. */
void turn_call_off(struct note *note, int64_t turn);

/* ---- all ranks ---- */
/* Waits for the turn of ranks that were started early. 1: they have none, and end without a word; 0: they go
 * on. Collective. */
int turn_wait(const struct ranks *ranks, struct err *e);

#endif
