/* board.h - a text of each rank, passed to rank 0 by threads that call nothing of comm/. For ranks of one
 * machine: a page of shared memory says where each text is, a memfd holds it. */
#ifndef SHARDLINE_TRAIN_CHECKPOINT_BOARD_H
#define SHARDLINE_TRAIN_CHECKPOINT_BOARD_H

#include <stddef.h>
#include "base/err.h"
#include "comm/comm.h"

struct board;
/* Collective. ERR_USAGE: a rank is on another machine than rank 0. */
int board_open(struct board **out, struct comm *all, struct err *e);
/* NULL is allowed. */
void board_close(struct board *b);

/* Forgets this rank's text. Between it and the next board_take all ranks meet. */
void board_clear(struct board *b);
/* Puts this rank's text up; data NULL: there will be none. Any one thread of the rank. ERR_MEMORY: there will
 * be none. */
int board_put(struct board *b, const void *data, size_t bytes, struct err *e);
/* Rank 0: waits for the text of rank r; *out is the caller's. ERR_FILE: there will be none, or
 * board_stop was called. */
int board_take(struct board *b, int r, void **out, size_t *bytes, struct err *e);
/* Rank 0, any thread: board_take waits no longer, until board_clear is called. */
void board_stop(struct board *b);

#endif
