/* save.h - checkpoints OUT/step-N, or in memory. Every rank writes its own pieces, rank 0 publishes what all
 * have sealed. All calls but save_close are collective over the job and made by the main thread. */
#ifndef SHARDLINE_TRAIN_CHECKPOINT_SAVE_H
#define SHARDLINE_TRAIN_CHECKPOINT_SAVE_H

#include "train/log/runlog.h"
#include "train/work.h"

struct save;
/* Where checkpoints go. */
struct save_place {
    const char *dir;   /* DIR/step-N; borrowed */
    int64_t keep;      /* only the newest of them, 0: all */
    int async;         /* through a copy in memory, written by a thread */
    const char *event; /* of the log */
};
/* Removes what dead runs left in the folder (rank 0), and takes the memory of a snapshot (async). *out is
 * set also on an error. w and log must outlive it. */
int save_open(struct save **out, const struct work *w, struct runlog *log, const struct save_place *to,
              struct err *e);
/* Waits for the thread of a save; what is not published is removed. NULL is fine. */
void save_close(struct save *s);

/* Writes DIR/step-N of now, after waiting for the save before it; with --save-async only takes the
 * snapshot and starts writing. must: a failure ends the run; else --on-save-error decides. */
int save_start(struct save *s, int must, struct err *e);
/* Between steps: takes the next phase where all ranks have finished theirs. */
int save_poll(struct save *s, struct err *e);
/* Waits until the save is published, or has failed. */
int save_wait(struct save *s, struct err *e);

/* The last published checkpoint: its path, "" when there is none, and its digests. */
const char *save_last(const struct save *s, struct ckpt_digests *digests);

#endif
