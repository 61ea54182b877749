/* leash.h - ranks that end with the first process of their job. mpirun answers the death of its parent by
 * ending the ranks in its own time: SIGTERM, a second, SIGKILL. Until then ranks could publish a checkpoint
 * behind the back of the run that follows. */
#ifndef SHARDLINE_COMM_LEASH_H
#define SHARDLINE_COMM_LEASH_H

#include "base/err.h"

/* In the first process, before it starts mpirun: names this process in SHARDLINE_LAUNCHER. */
void leash_offer(void);

/* In a rank: starts a thread that kills this process as soon as the process of SHARDLINE_LAUNCHER has ended.
 * Without that variable, and on another machine, it does nothing. ERR_MEMORY: no thread. */
int leash_hold(struct err *e);

#endif
