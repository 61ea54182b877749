/* ptrain.h - one run of ptrain on one rank: its five parts, and the walk that opens and drives them.
 *
 *   ptrain_open (setup.c)   command line -> run -> ranks -> data -> work -> save -> log
 *   ptrain_run  (loop.c)    step_run -> runlog_step -> eval_run -> save_start, until the last step
 *   ptrain_close            in the reverse order
 *
 * Only these functions take the whole; everything below takes the parts it uses. A part points at parts
 * above it in the struct, never at parts below it. All calls are collective over the ranks of the job. */
#ifndef SHARDLINE_TRAIN_PTRAIN_H
#define SHARDLINE_TRAIN_PTRAIN_H

#include "train/checkpoint/save.h"
#include "train/ranks.h"
#include "train/run.h"
#include "train/log/runlog.h"
#include "train/work.h"

struct ptrain {
    struct run run;
    struct ranks ranks;
    struct work work;
    struct runlog log;
    struct save *save; /* NULL with --eval-only */
};

/* *p zeroed before; ptrain_close also after an error. Returns 1 when the command line only asked for
 * --help or --version. With --dry-run no model is opened. Starts the ranks of the job where no launcher
 * did. */
int ptrain_open(struct ptrain *p, int argc, char **argv, struct err *e);
void ptrain_close(struct ptrain *p);

/* Trains to the last step, or evaluates (--eval-only). Rank 0 prints the result as one line of JSON. */
int ptrain_run(struct ptrain *p, struct err *e);
/* --dry-run: rank 0 prints what the layout will hold, send and wait for. */
int ptrain_plan(struct ptrain *p, struct err *e);

#endif
