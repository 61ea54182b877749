/* watch.h - one thread per rank that notices what its main thread cannot: a rank that exited or is stopped, a
 * signal that asks the job to stop. It writes on the failure board, which the main threads read in their next
 * call. When the main thread does not return within a few seconds after a failure, the watch thread ends the
 * process. */
#ifndef SHARDLINE_COMM_WATCH_H
#define SHARDLINE_COMM_WATCH_H

#include "comm/failure_board.h"

struct watch;

/* Blocks SIGTERM, SIGINT and SIGUSR1 (which the launcher sends for either) in the calling thread. Called
 * before MPI starts its threads, which would take a signal with its default action. */
void watch_block_signals(void);

/* Starts the thread. rank: this process's row of the board; the rows of all ranks are complete. */
int watch_open(struct watch **out, struct failure_board *b, int rank, struct err *e);

/* line not NULL: from now on a stop request ends this process at once, with that line on stderr: there is
 * nothing to save yet, and the main thread may be in a long allocation. NULL: the main threads act on
 * requests again (world_stop_signal). line: static text. Any thread may call it. */
void watch_end_on_stop(struct watch *w, const char *line);

/* line not NULL: the first stop request of this machine prints it on stderr at once, if rank 0 is here. NULL:
 * prints nothing. line: static text. Any thread may call it. */
void watch_answer_stop(struct watch *w, const char *line);

/* Ends the thread; NULL is allowed. */
void watch_close(struct watch *w);

/* State letter of a process from /proc; 0 when it has exited. */
char watch_process_state(int pid);

#endif
