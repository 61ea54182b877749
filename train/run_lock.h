/* run_lock.h - one run at a time in a folder OUT. Every rank locks the file OUT/.ptrain.lock, so that the
 * lock is free when the last rank has ended. The kernel releases it, also after SIGKILL. The file stays. */
#ifndef SHARDLINE_TRAIN_RUN_LOCK_H
#define SHARDLINE_TRAIN_RUN_LOCK_H

#include "base/log.h"
#include "train/ranks.h"
#include "train/run.h"

/* Takes the lock where OUT exists and this run does not have it yet; nothing for a run that writes no
 * checkpoints. With --resume it waits up to 30 s for a run before this one to end, and prints that. On a file
 * system without locks it only prints that. Collective. ERR_FILE: another run has the folder. */
int run_lock(struct run *r, const struct ranks *ranks, struct log *term, struct err *e);
/* Releases the lock. */
void run_unlock(struct run *r);

#endif
