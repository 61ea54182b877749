/* leash.h - ranks that end with the first process of their job. mpirun answers the death of its parent by
 * ending the ranks in its own time: SIGTERM, a second, SIGKILL. Until then ranks could publish a checkpoint
 * behind the back of the run that follows. */
#ifndef SHARDLINE_COMM_LEASH_H
#define SHARDLINE_COMM_LEASH_H

#include <signal.h>
#include "base/err.h"

/* Ignored by a process that does not wait for it. */
#define LEASH_TOLD SIGURG

/* In the first process, before it starts mpirun: names this process in SHARDLINE_LAUNCHER. turn: that the
 * ranks wait for (launch.h); 0: none. */
void leash_offer(int turn);
/* In a rank: that number. */
int leash_turn(void);

/* In a rank: starts a thread that kills this process as soon as the process of SHARDLINE_LAUNCHER has ended.
 * Without that variable, and on another machine, it does nothing. ERR_MEMORY: no thread. */
int leash_hold(struct err *e);

/* In a rank that leash_hold() holds: tells the first process of the job, by the signal LEASH_TOLD, that the
 * line is printed that says why the job fails. Any thread; safe in a signal's handler. */
void leash_tell(void);

/* In a rank that leash_hold() holds: the first process starts other ranks early (launch.h, early). */
#define LEASH_ASKED SIGUSR2
void leash_ask(void);

/* In a rank: the number of the first process. 0: it has ended, is on another machine, or there is none. */
long leash_holder(void);

#endif
