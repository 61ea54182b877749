/* watch.h - one thread a rank that sees what its main thread cannot: a peer that died or is stopped, a
 * signal that asks for the end. It only writes to the board; the main threads learn of it in their next
 * call. When a main thread does not come back within a few seconds after a failure, the thread ends the
 * process. */
#ifndef SHARDLINE_COMM_WATCH_H
#define SHARDLINE_COMM_WATCH_H

#include "comm/failure_board.h"

struct watch;
/* Blocks SIGTERM, SIGINT and SIGUSR1 (which the launcher sends for either) in the calling thread. Before MPI
 * starts its own
 * threads: they would take a signal with its default action. */
void watch_block_signals(void);
/* rank: this process' row of the board. The others' rows are complete when this is called. */
int watch_open(struct watch **out, struct failure_board *b, int rank, struct err *e);
void watch_close(struct watch *w);
/* State letter of a process from /proc, 0 when it is gone. */
char watch_process_state(int pid);

#endif
